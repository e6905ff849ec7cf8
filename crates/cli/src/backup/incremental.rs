//! Taking the files of unchanged tables from an earlier backup: docs/decisions/0019-incremental.md.

use super::basis::{Facts, Pages};
use super::destination::{Destination, Sibling};
use super::halt::Halt;
use super::options::Base;
use super::place::Place;
use super::progress::Watched;
use super::survey::{survey, Standing};
use super::tasks::Table;
use super::Options;
use crate::archive::manifest::selection;
use crate::archive::manifest::{self, Basis, FileRecord, Head, Manifest, TableData};
use crate::archive::rewrite::DataEntry;
use crate::archive::Compression;
use crate::error::{Error, ErrorKind, Result};
use crate::pg::Login;
use crate::store::Location;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

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

/// The folder or prefix that a backup lies in, or will lie in, and its name there.
pub fn split(destination: &str) -> Result<(String, String)> {
    let no_name = || {
        Error::usage(format!("\"{destination}\" is in nothing that could hold an earlier backup"))
    };
    match Location::parse(destination)? {
        Location::Local(path) => {
            let path = whole(&path).map_err(|e| {
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

/// A path without links and dots. What it names may be missing, its parent may not.
fn whole(path: &Path) -> std::io::Result<PathBuf> {
    match (path.canonicalize(), path.file_name()) {
        (Err(e), Some(name)) if e.kind() == std::io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            Ok(parent.unwrap_or(Path::new(".")).canonicalize()?.join(name))
        }
        (found, _) => found,
    }
}

/// Whether the arguments make sense, before anything is done.
pub fn check(options: &Options) -> Result<()> {
    let Some(base) = &options.incremental else { return Ok(()) };
    let (_, own) = split(&options.destination)?;
    match base {
        Base::Named(name)
            if name.contains('/') || [".", ".."].contains(&&name[..]) || *name == own =>
        {
            Err(Error::usage(format!("\"{name}\" is no name of a backup beside the new one"))
                .hint("Give the name that \"firn backup list\" shows for it, without a path."))
        }
        _ => Ok(()),
    }
}

/// Takes what can be taken. Nothing is no failure: then all is copied, and it is told why.
pub fn take(
    ask: &Ask,
    base: &Base,
    destination: &dyn Destination,
    progress: &Watched,
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
    let found = find(ask, own, base, progress, halt);
    let earlier = match (found, base) {
        (Ok(Some(earlier)), _) => earlier,
        (Ok(None), _) => return all("there is no earlier backup of the database beside this one"),
        (Err(e), Base::Named(_)) => return Err(e),
        // It is encrypted.
        (Err(e), Base::Latest) if e.kind == ErrorKind::Usage => return Err(e),
        (Err(e), Base::Latest) => {
            halt.check()?;
            return all(&e.message);
        }
    };
    if let Some(why) = unlike(&earlier.manifest.head, own, ask) {
        return all(&format!("backup \"{}\" {why}", earlier.name));
    }
    let candidates = candidates(&earlier.manifest, ask);
    if candidates.is_empty() {
        return all(&format!("none is in backup \"{}\" as it is now", earlier.name));
    }
    let unchanged = match unchanged(&ask.options.login, candidates, halt) {
        Ok(Ok(unchanged)) => unchanged,
        Ok(Err(why)) => {
            return all(&format!(
                "{} (it takes superuser, or EXECUTE on that function and the role pg_checkpoint)",
                why.message
            ))
        }
        Err(e) => {
            halt.check()?;
            return all(&e.message);
        }
    };
    adopt(ask, &earlier, unchanged, destination, halt)
}

/// The most files that are taken at once.
const THREADS: usize = 16;

/// Makes files of the earlier backup files of this one.
fn adopt(
    ask: &Ask,
    earlier: &Earlier,
    unchanged: Vec<Candidate>,
    destination: &dyn Destination,
    halt: &Arc<Halt>,
) -> Result<Taken> {
    let since = &earlier.manifest.head.snapshot_time;
    let taken = Mutex::new(Taken { base: Some(earlier.name.clone()), ..Taken::default() });
    let next = AtomicUsize::new(0);
    let some = || -> Result<()> {
        while let Some((table, record, data)) = unchanged.get(next.fetch_add(1, Ordering::Relaxed))
        {
            halt.check()?;
            let Some(entry) = ask.entries.get(table.place) else { continue };
            let name = format!("{}{}", entry.file, ask.compression.suffix());
            let (file, size, sha256) = (&record.name[..], record.size, &record.sha256[..]);
            let from = Sibling { backup: &earlier.name, file, size, sha256 };
            if !destination.adopt(&from, &name)? {
                continue;
            }
            let unchanged_since = data.unchanged_since.clone().or_else(|| Some(since.clone()));
            let data = TableData { dump_id: entry.dump_id, unchanged_since, ..(*data).clone() };
            let record = FileRecord { name, table: Some(data), ..(*record).clone() };
            let mut taken = taken.lock().unwrap_or_else(|e| e.into_inner());
            taken.places.insert(table.place);
            taken.records.push(record);
        }
        Ok(())
    };
    let threads = ask.options.jobs.min(THREADS).min(unchanged.len().div_ceil(4));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..threads).map(|_| scope.spawn(some)).collect();
        let result = some();
        threads.into_iter().fold(result, |result, thread| {
            let panicked = |_| Err(Error::new(ErrorKind::Internal, "a thread panicked"));
            result.and(thread.join().unwrap_or_else(panicked))
        })
    })?;
    Ok(taken.into_inner().unwrap_or_else(|e| e.into_inner()))
}

/// The backup to go by: the one that was named, or the latest of the database.
fn find(
    ask: &Ask,
    own_basis: &Basis,
    base: &Base,
    progress: &Watched,
    halt: &Arc<Halt>,
) -> Result<Option<Earlier>> {
    let options = ask.options;
    let (parent, own) = split(&options.destination)?;
    let place = Place::open(&parent, &options.store, halt, true)?;
    let name = match base {
        Base::Named(name) => name.clone(),
        Base::Latest => {
            let (lots, unread) = survey(&place, 1, halt)?;
            for e in unread {
                progress.note(&e.message);
            }
            let beside = |name: &str| name != own && name != "." && !name.contains('/');
            let mut heads: Vec<(Box<Head>, String)> = lots
                .into_iter()
                .filter_map(|lot| match lot.standing {
                    Standing::Sealed { head, .. } => Some((head, lot.name)),
                    _ => None,
                })
                .filter(|(head, name)| head.database == ask.database && beside(name))
                .collect();
            // That of another cluster, whose database has the same name, is none that one could have gone by.
            let maybe_same = |head: &Head| match (&head.system_identifier, ask.system_identifier) {
                (Some(one), Some(other)) => one == other,
                _ => true,
            };
            let own_heads = heads.iter().filter(|(head, _)| maybe_same(head));
            let latest = own_heads.max_by(|a, b| a.0.snapshot_time.cmp(&b.0.snapshot_time));
            if let Some((_, name)) = latest.filter(|(head, _)| head.encryption.is_some()) {
                return Err(locked(name));
            }
            heads.retain(|(head, _)| head.encryption.is_none());
            // One that can be used before one that cannot, one of the same tables before others.
            let selected = selection(&options.selection);
            let fits = |head: &Head| {
                let time = head.snapshot_time.clone();
                (unlike(head, own_basis, ask).is_none(), selection(&head.options) == selected, time)
            };
            match heads.into_iter().map(|(head, name)| (fits(&head), name)).max() {
                Some((_, name)) => name,
                None => return Ok(None),
            }
        }
    };
    let read = place
        .read_all(&format!("{name}/{}", manifest::FILE))
        .and_then(|text| Manifest::from_text(&text));
    match read {
        Ok(manifest) if manifest.head.encryption.is_some() => Err(locked(&name)),
        Ok(manifest) => Ok(Some(Earlier { name, manifest })),
        Err(e) => {
            Err(Error { message: format!("could not use backup \"{name}\": {}", e.message), ..e })
        }
    }
}

/// Whoever has encrypted backups and now makes one in the clear may have forgotten for whom to encrypt: that is not passed over by
/// going by another backup, or by copying everything.
fn locked(name: &str) -> Error {
    Error::usage(format!("backup \"{name}\" is encrypted, and no incremental backup can go by it"))
        .hint("Leave out --incremental: all tables are then copied; or name a backup that is not encrypted: --incremental=NAME. To encrypt this backup, too, give --encrypt-to or --passphrase.")
}

/// Why nothing of a backup can be proven; `None` if it may be.
fn unlike(head: &Head, own: &Basis, ask: &Ask) -> Option<&'static str> {
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
        // Its name becomes part of a path.
        .filter(|(file, _)| manifest::is_backup_file(&file.name))
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
    let _cancels = halt.cancels(&pages.connection);
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
        assert_eq!(split(dir.join("new").to_str().unwrap()).unwrap().1, "new");
        assert!(split(dir.join("a/b").to_str().unwrap()).is_err());
        assert_eq!(split("new").unwrap().1, "new");
        std::fs::remove_dir(&dir).unwrap();
        assert!(split("/").is_err());
    }
}
