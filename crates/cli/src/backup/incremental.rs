//! Taking the files of unchanged tables from an earlier backup: docs/decisions/0019-incremental.md.

use super::basis::{Facts, Pages};
use super::destination::{Destination, Sibling};
use super::halt::Halt;
use super::list::{self, State};
use super::manifest::{self, Basis, FileRecord, Manifest, TableData};
use super::options::Base;
use super::place::Place;
use super::progress::Progress;
use super::tasks::Table;
use super::{Login, Options, Watch};
use crate::archive::rewrite::DataEntry;
use crate::archive::Compression;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Location;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

/// A backup to go by.
struct Earlier {
    name: String,
    manifest: Manifest,
}

/// What the new backup has in common with one that it may take files from, and what it knows of its tables.
pub struct Ask<'a> {
    pub options: &'a Options,
    pub database: &'a str,
    pub system_identifier: Option<&'a str>,
    pub encoding: &'a str,
    pub compression: Compression,
    pub basis: Option<&'a Basis>,
    pub facts: &'a Facts,
    pub tables: &'a [Table],
    pub entries: &'a [DataEntry],
}

/// Files that need not be made.
#[derive(Debug, Default)]
pub struct Taken {
    /// The name of the backup they were taken from.
    pub base: Option<String>,
    pub records: Vec<FileRecord>,
    /// The tables, by their place among the entries with data.
    pub places: HashSet<usize>,
}

/// The folder or prefix that a backup lies in, and its name there. The backup's folder must exist.
pub fn split(destination: &str) -> Result<(String, String)> {
    let no_name = || {
        Error::usage(format!("\"{destination}\" is in nothing that could hold an earlier backup"))
    };
    match Location::parse(destination)? {
        Location::Local(path) => {
            let path = path.canonicalize().map_err(|e| {
                Error::io(format!("could not find directory \"{}\"", path.display()), &e)
            })?;
            let name = path.file_name().and_then(|n| n.to_str()).ok_or_else(no_name)?;
            let parent = path.parent().and_then(Path::to_str).ok_or_else(no_name)?;
            Ok((parent.to_string(), name.to_string()))
        }
        Location::S3 { bucket, key } => match key.rsplit_once('/') {
            Some((parent, name)) => Ok((format!("s3://{bucket}/{parent}"), name.to_string())),
            None if key.is_empty() => Err(no_name()),
            None => Ok((format!("s3://{bucket}"), key)),
        },
    }
}

/// Takes what can be taken. Nothing is no failure: then all is copied, and it is told why.
pub fn take(
    ask: &Ask,
    base: &Base,
    destination: &dyn Destination,
    progress: &dyn Progress,
    halt: &Arc<Halt>,
) -> Result<Taken> {
    progress.phase("looking for tables that have not changed");
    let all = |why: &str| {
        progress.note(&format!("all tables are copied: {why}"));
        Ok(Taken::default())
    };
    let Some(own) = ask.basis else {
        return all("this server does not tell what has not changed (it is a standby, or row security is on)");
    };
    let earlier = match find(ask, base, halt)? {
        Some(earlier) => earlier,
        None => return all("there is no earlier backup of the database beside this one"),
    };
    if let Some(why) = unlike(&earlier.manifest, own, ask) {
        return all(&format!("backup \"{}\" {why}", earlier.name));
    }
    let candidates = candidates(&earlier.manifest, ask);
    if candidates.is_empty() {
        return all(&format!("none is in backup \"{}\" as it is now", earlier.name));
    }
    let unchanged = match unchanged(&ask.options.login, candidates, halt)? {
        Ok(unchanged) => unchanged,
        Err(why) => {
            return all(&format!(
                "{} (it takes superuser, or EXECUTE on that function and the role pg_checkpoint)",
                why.message
            ))
        }
    };
    let mut taken = Taken { base: Some(earlier.name.clone()), ..Taken::default() };
    for (table, record, data) in unchanged {
        halt.check()?;
        let Some(entry) = ask.entries.get(table.place) else { continue };
        let name = format!("{}{}", entry.file, ask.compression.suffix());
        let (file, size, sha256) = (&record.name[..], record.size, &record.sha256[..]);
        let from = Sibling { backup: &earlier.name, file, size, sha256 };
        if !destination.adopt(&from, &name)? {
            continue;
        }
        let since = &earlier.manifest.head.snapshot_time;
        taken.places.insert(table.place);
        taken.records.push(FileRecord {
            name,
            table: Some(TableData {
                dump_id: entry.dump_id,
                unchanged_since: data.unchanged_since.clone().or_else(|| Some(since.clone())),
                ..data.clone()
            }),
            ..record.clone()
        });
    }
    Ok(taken)
}

/// The backup to go by: the one that was named, or the latest of the database.
fn find(ask: &Ask, base: &Base, halt: &Arc<Halt>) -> Result<Option<Earlier>> {
    let options = ask.options;
    let (parent, own) = split(&options.destination)?;
    let name = match base {
        Base::Named(name) => {
            let wrong = || {
                Error::usage(format!("\"{name}\" is no name of a backup beside the new one"))
                    .hint("Give the name that \"firn backup list\" shows for it, without a path.")
            };
            if name.contains('/') || [".", ".."].contains(&&name[..]) || *name == own {
                return Err(wrong());
            }
            name.clone()
        }
        Base::Latest => {
            let stop = Arc::new(AtomicBool::new(false));
            let found = list::list(&parent, &options.store, None, stop)?;
            let latest = found
                .into_iter()
                .filter(|b| {
                    b.state == State::Complete && b.database.as_deref() == Some(ask.database)
                })
                .filter(|b| b.name != own && b.name != "." && !b.name.contains('/'))
                .max_by(|a, b| a.snapshot_time.cmp(&b.snapshot_time));
            match latest {
                Some(latest) => latest.name,
                None => return Ok(None),
            }
        }
    };
    let place = Place::open(&parent, &options.store, halt, true)?;
    let read = place
        .read_all(&format!("{name}/{}", manifest::FILE))
        .and_then(|text| Manifest::from_text(&text));
    match (read, base) {
        // Whoever has encrypted backups and now makes one in the clear may have forgotten for whom to encrypt: that is not passed
        // over by copying everything.
        (Ok(manifest), _) if manifest.head.encryption.is_some() => {
            Err(Error::usage(format!("backup \"{name}\" is encrypted, and no incremental backup can go by it"))
                .hint("Leave out --incremental: all tables are then copied. To encrypt this backup, too, give --encrypt-to or --passphrase."))
        }
        (Ok(manifest), _) => Ok(Some(Earlier { name, manifest })),
        // It may be going, being expired.
        (Err(e), Base::Latest) if matches!(e.kind, ErrorKind::Archive | ErrorKind::Storage) => {
            Ok(None)
        }
        (Err(e), _) => {
            Err(Error { message: format!("could not use backup \"{name}\": {}", e.message), ..e })
        }
    }
}

/// Why nothing of a backup can be proven; `None` if it may be.
fn unlike(manifest: &Manifest, own: &Basis, ask: &Ask) -> Option<&'static str> {
    let head = &manifest.head;
    let same_cluster = head.system_identifier.is_some()
        && head.system_identifier.as_deref() == ask.system_identifier;
    let method = head.compression.split(':').next().unwrap_or_default();
    match &head.basis {
        _ if !same_cluster => Some("is of another cluster, or of an unknown one"),
        None => Some("does not tell enough"),
        Some(basis)
            if basis.server_started != own.server_started || basis.timeline != own.timeline =>
        {
            Some("was made before the server was started")
        }
        Some(basis) if basis != own || head.encoding != ask.encoding => {
            Some("was made under other settings")
        }
        Some(_) if method != ask.compression.to_string() => Some("is compressed in another way"),
        Some(_) => None,
    }
}

type Candidate<'a> = (&'a Table, &'a FileRecord, &'a TableData);

/// Tables of which the earlier backup has the same facts but for their place in WAL.
fn candidates<'a>(manifest: &'a Manifest, ask: &Ask<'a>) -> Vec<Candidate<'a>> {
    let known: HashMap<u32, (&FileRecord, &TableData)> = manifest
        .tables()
        .filter_map(|(file, data)| Some((data.basis.as_ref()?.oid, (file, data))))
        .collect();
    let same = |table: &'a Table| {
        let own = ask.facts.tables.get(&table.place)?;
        let (record, data) = *known.get(&table.oid)?;
        let basis = data.basis.as_ref()?;
        let like = manifest::TableBasis { lsn: basis.lsn.clone(), ..own.clone() } == *basis;
        (like && (data.checksum.is_some() || !ask.options.checksums))
            .then_some((table, record, data))
    };
    ask.tables.iter().filter_map(same).collect()
}

/// Those of which no page was changed; or why that cannot be told.
fn unchanged<'a>(
    login: &Login,
    candidates: Vec<Candidate<'a>>,
    halt: &Arc<Halt>,
) -> Result<Result<Vec<Candidate<'a>>, Error>> {
    let pages = match Pages::open(login)? {
        Ok(pages) => pages,
        Err(why) => return Ok(Err(why)),
    };
    let _watch = Watch::start(vec![pages.canceller()], halt);
    if let Err(why) = pages.settle()? {
        return Ok(Err(why));
    }
    let mut unchanged = Vec::new();
    for candidate in candidates {
        halt.check()?;
        if let Some(basis) = &candidate.2.basis {
            if pages.unchanged(basis)? {
                unchanged.push(candidate);
            }
        }
    }
    Ok(Ok(unchanged))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_a_backup() {
        let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
        assert_eq!(split("s3://bucket/a/b").unwrap(), pair("s3://bucket/a", "b"));
        assert_eq!(split("s3://bucket/b/").unwrap(), pair("s3://bucket", "b"));
        assert!(split("s3://bucket").is_err());
        let dir = std::env::temp_dir()
            .canonicalize()
            .unwrap()
            .join(format!("firn-split-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let found = split(dir.join(".").to_str().unwrap()).unwrap();
        assert_eq!(Path::new(&found.0).join(&found.1), dir);
        std::fs::remove_dir(&dir).unwrap();
        assert!(split("/").is_err());
    }
}
