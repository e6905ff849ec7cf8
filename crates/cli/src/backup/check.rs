//! Checking a backup without a server.

use super::halt::Halt;
use super::place::Place;
use crate::archive::manifest::{self, hex, Manifest};
use crate::archive::Archive;
use crate::crypt::{self, Keys};
use crate::error::{Error, ErrorKind, Result};
use crate::report::{Costs, Event, Kind, Watch};
use crate::stop::Stop;
use crate::store::StoreSettings;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What a check found.
#[derive(Debug)]
pub struct Checked {
    /// `None` if the manifest itself cannot be used; then nothing else was looked at. Of an encrypted backup it is the one
    /// that anybody may read, unless there was a key.
    pub manifest: Option<Manifest>,
    /// It is encrypted, and what is in the files was not looked at.
    pub closed: bool,
    /// Sentences without the final full stop, in order of the files' names.
    pub problems: Vec<String>,
}

/// Checks that a backup is complete and unchanged: the manifest's own checksum, every file's size and SHA-256, nothing
/// missing and nothing besides, the table of contents and that it and the files fit each other.
///
/// Of an encrypted backup without keys: all of this of the encrypted files, and nothing of what is in them.
///
/// An error is what kept us from looking; what was found wrong is in the answer.
pub fn check(
    location: &str,
    settings: &StoreSettings,
    keys: Option<&Keys>,
    jobs: usize,
    watch: &dyn Watch,
    stop: &Stop,
) -> Result<Checked> {
    let halt = Halt::new(stop);
    let listed = Place::open(location, settings, &halt, false)?.list(0)?.0;
    let place = Place::open(location, settings, &halt, true)?;
    if !listed.iter().any(|file| file.name == manifest::FILE) {
        let message = if listed.iter().any(|file| file.name == manifest::DOOMED) {
            "there is no manifest: the backup is being removed"
        } else if listed.iter().any(|file| file.name == manifest::MARKER) {
            "there is no manifest: the backup was not finished, or is being made"
        } else if listed.iter().any(|file| manifest::is_backup_file(&file.name)) {
            "there is no manifest: pg_dump made the archive, or the manifest was lost"
        } else {
            "there is no backup: no manifest, and no file of one"
        };
        return Ok(unusable(message.to_string()));
    }
    let text = place.read_all(manifest::FILE)?;
    let manifest = match Manifest::from_text(&text) {
        Ok(manifest) => manifest,
        Err(e) => {
            let mut problem = e.message;
            if let Some(detail) = e.detail {
                problem += ": ";
                problem += detail.trim_end_matches('.');
            }
            return Ok(unusable(problem));
        }
    };
    drop(text);
    let mut problems = BTreeMap::<String, Vec<String>>::new();
    let mut note = |name: &str, problem: String| {
        problems.entry(name.to_string()).or_default().push(problem);
    };
    let sizes: HashMap<&str, u64> = listed.iter().map(|f| (f.name.as_str(), f.size)).collect();
    let mut known: HashSet<&str> =
        HashSet::from([manifest::FILE, manifest::MARKER, manifest::DOOMED]);
    let mut to_read = Vec::new();
    for file in &manifest.files {
        if !known.insert(&file.name) {
            note(&file.name, "the manifest lists it twice".into());
            continue;
        }
        match sizes.get(file.name.as_str()) {
            _ if !manifest::is_backup_file(&file.name) => {
                note(&file.name, "the manifest lists it, but no backup has such a file".into());
            }
            None => note(&file.name, "the file is missing".into()),
            Some(size) if *size != file.size => {
                note(&file.name, format!("the file has {size} bytes instead of {}", file.size));
            }
            Some(_) => to_read.push(file),
        }
    }
    for file in &listed {
        if !known.contains(file.name.as_str()) && !manifest::is_temporary(&file.name) {
            note(&file.name, "the file does not belong to the backup".into());
        }
    }
    let stopped = Arc::clone(&halt);
    let settings =
        StoreSettings { cancelled: Some(Arc::new(move || stopped.is_set())), ..settings.clone() };
    let encrypted = manifest.head.encryption.is_some();
    if let Some(keys) = keys.filter(|_| !encrypted) {
        keys.expect_nothing(&format!("backup \"{location}\""))?;
    }
    let closed = encrypted && keys.is_none();
    // A key that does not fit keeps us from looking, before anything is read.
    let unlocked = match keys.filter(|_| encrypted) {
        Some(keys) => match Archive::open_locked(location, &settings, keys) {
            Ok(archive) => Some(archive),
            Err(e) if e.kind == ErrorKind::Archive => {
                note(&format!("{}{}", manifest::FILE, crypt::SUFFIX), explained(&e));
                None
            }
            Err(e) => return Err(e),
        },
        None => None,
    };
    let cost = Costs::of(Kind::Verify, to_read.iter().map(|file| file.size).sum());
    watch.event(&Event::Work { steps: to_read.len(), cost });
    let reading = Reading { location, settings: &settings, unlocked: unlocked.as_ref(), watch };
    for (name, problem) in check_sums(&place, &reading, &to_read, jobs, &halt)? {
        note(&name, problem);
    }
    let mut manifest = manifest;
    let opened = match (unlocked, encrypted) {
        (Some(archive), _) => {
            if let Some(own) = archive.manifest()? {
                manifest = own;
            }
            Some(Ok(archive))
        }
        (None, true) => None,
        (None, false) => Some(Archive::open_with(location, &settings)),
    };
    match opened {
        None => {}
        Some(Ok(archive)) => fits(&archive, &place, &manifest, &mut note)?,
        Some(Err(e)) if matches!(e.kind, ErrorKind::Archive) => note("toc.dat", explained(&e)),
        // A missing or unreadable file was noted above.
        Some(Err(e)) if problems.contains_key("toc.dat") && e.kind == ErrorKind::Storage => {}
        Some(Err(e)) => return Err(e),
    }
    halt.check()?;
    let flat = problems.into_iter().flat_map(|(name, problems)| {
        let name = name.escape_debug().to_string();
        problems.into_iter().map(move |problem| format!("\"{name}\": {problem}"))
    });
    let problems = flat.collect();
    Ok(Checked { manifest: Some(manifest), closed, problems })
}

fn unusable(problem: String) -> Checked {
    Checked { manifest: None, closed: false, problems: vec![problem] }
}

/// An error as a problem.
fn explained(e: &Error) -> String {
    let detail = e.detail.as_deref().unwrap_or("").trim_end_matches('.');
    format!("{} ({detail})", e.message)
}

/// How files are read.
struct Reading<'a> {
    location: &'a str,
    settings: &'a StoreSettings,
    /// Of an encrypted backup: what decrypts it.
    unlocked: Option<&'a Archive>,
    watch: &'a dyn Watch,
}

/// Reads files and compares their checksums; several at the same time.
fn check_sums(
    place: &Place,
    reading: &Reading,
    files: &[&manifest::FileRecord],
    jobs: usize,
    halt: &Arc<Halt>,
) -> Result<Vec<(String, String)>> {
    let Reading { location, settings, unlocked, watch } = *reading;
    let moved = |bytes| watch.event(&Event::Moved { worker: None, rows: 0, bytes });
    let next = AtomicUsize::new(0);
    let problems = Mutex::new(Vec::new());
    let read_some = |place: &Place| {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Some(archive) = unlocked {
                let examined = archive.examine(&file.name, &mut |bytes| {
                    moved(bytes);
                    halt.check()
                });
                match examined {
                    Ok(()) => continue,
                    _ if halt.is_set() => return,
                    Err(e) if e.kind == ErrorKind::Archive => {
                        let mut problems = problems.lock().unwrap_or_else(|e| e.into_inner());
                        problems.push((file.name.clone(), e.message));
                    }
                    Err(e) => {
                        halt.fail(e);
                        return;
                    }
                }
                continue;
            }
            let mut hash = Sha256::new();
            let read = place.read(&file.name, |piece| {
                hash.update(piece);
                moved(piece.len() as u64);
                halt.check()
            });
            if halt.is_set() {
                return;
            }
            let problem = match read {
                Ok(size) if size != file.size => {
                    format!("the file had {size} bytes instead of {} when it was read", file.size)
                }
                Ok(_) if hex(&hash.finalize()) == file.sha256 => continue,
                Ok(_) => "the file's bytes do not have the SHA-256 that the manifest holds".into(),
                // A store that does not answer says nothing about the file.
                Err(e) if matches!(place, Place::Remote { .. }) && e.kind == ErrorKind::Storage => {
                    halt.fail(e);
                    return;
                }
                Err(e) => e.message,
            };
            let mut problems = problems.lock().unwrap_or_else(|e| e.into_inner());
            problems.push((file.name.clone(), problem));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..jobs.min(files.len()) {
            scope.spawn(|| {
                if let Some(place) = halt.watch(|| Place::open(location, settings, halt, true)) {
                    read_some(&place);
                }
            });
        }
        read_some(place);
    });
    halt.check()?;
    Ok(problems.into_inner().unwrap_or_else(|e| e.into_inner()))
}

/// Whether the table of contents and the files fit each other.
fn fits(
    archive: &Archive,
    place: &Place,
    manifest: &Manifest,
    note: &mut impl FnMut(&str, String),
) -> Result<()> {
    let toc = archive.toc();
    if toc.len() != manifest.head.entries as usize {
        let (found, expected) = (toc.len(), manifest.head.entries);
        note("toc.dat", format!("it has {found} entries, the manifest says {expected}"));
    }
    let tables: HashMap<i32, &str> =
        manifest.tables().map(|(file, table)| (table.dump_id, file.name.as_str())).collect();
    let files: HashSet<&str> = manifest.files.iter().map(|file| file.name.as_str()).collect();
    let mut expected = 0;
    for entry in toc.entries().filter(|entry| entry.has_data) {
        if entry.desc == b"BLOBS" {
            let list = match files.contains("blobs.toc") {
                true => "blobs.toc".to_string(),
                false => format!("blobs_{}.toc", entry.dump_id),
            };
            if !files.contains(list.as_str()) {
                note(&list, "the list of large objects is not in the manifest".into());
                continue;
            }
            let text = match archive.is_encrypted() {
                true => archive.read_file(&list),
                false => place.read_all(&list),
            };
            match text {
                Ok(text) => {
                    for problem in missing_objects(&String::from_utf8_lossy(&text), &files) {
                        note(&list, problem);
                    }
                }
                Err(e) if matches!(place, Place::Remote { .. }) && e.kind == ErrorKind::Storage => {
                    return Err(e)
                }
                // Noted when its checksum was to be computed.
                Err(_) => {}
            }
            continue;
        }
        expected += 1;
        if !tables.contains_key(&entry.dump_id) {
            let name = String::from_utf8_lossy(entry.tag);
            let id = entry.dump_id;
            note("toc.dat", format!("entry {id}, data of \"{name}\", has no file in the manifest"));
        }
    }
    if tables.len() > expected {
        let extra = tables.len() - expected;
        note("toc.dat", format!("{extra} files of the manifest belong to no entry"));
    }
    Ok(())
}

/// Large objects in a list whose files the manifest does not have.
fn missing_objects(list: &str, files: &HashSet<&str>) -> Vec<String> {
    let mut problems = Vec::new();
    for line in list.lines() {
        let Some((oid, name)) = line.split_once(' ') else {
            problems
                .push(format!("it has a line that makes no sense: \"{}\"", line.escape_debug()));
            continue;
        };
        let found = ["", ".gz", ".lz4", ".zst"]
            .iter()
            .any(|suffix| files.contains(format!("{name}{suffix}").as_str()));
        if !found {
            problems.push(format!("large object {oid} has no file in the manifest"));
        }
    }
    problems
}

/// The error that a check with problems ends in.
pub fn failed(location: &str, problems: usize) -> Error {
    let what = if problems == 1 { "1 problem".to_string() } else { format!("{problems} problems") };
    Error::new(ErrorKind::Verify, format!("backup \"{location}\" has {what}"))
}
