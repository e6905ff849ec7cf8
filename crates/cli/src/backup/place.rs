//! Reading what lies at a place: a folder or what has a prefix in an object store.

use super::halt::Halt;
use crate::archive::manifest;
use crate::error::{Error, Result};
use crate::store::{store_error, Location, StoreSettings};
use firn_lake::{Store, StoreOptions};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// A place to read from. Each thread opens one of its own.
pub enum Place {
    Folder(PathBuf),
    Remote { store: Store, halt: Arc<Halt> },
}

/// A file below a place. Names of folders on the way are part of the name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    pub name: String,
    pub size: u64,
}

/// An error of a folder that is written to.
pub fn failed(doing: &str, path: &Path, e: &io::Error) -> Error {
    let error = Error::io(format!("could not {doing} \"{}\"", path.display()), e);
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => error.hint(
            "Make room and start again with --overwrite-incomplete, or use another destination.",
        ),
        _ => error,
    }
}

/// Bytes asked of an object store at a time.
const STEP: u64 = 4 << 20;

impl Place {
    /// `reached`: it has answered before, so one that does not is worth waiting for.
    pub fn open(
        location: &str,
        settings: &StoreSettings,
        halt: &Arc<Halt>,
        reached: bool,
    ) -> Result<Place> {
        Ok(match Location::parse(location)? {
            Location::Local(path) => Place::Folder(path),
            Location::S3 { .. } => {
                let options: StoreOptions = match reached {
                    true => settings.patient_store_options(location)?,
                    false => settings.store_options(location)?,
                };
                let store = Store::open(&options, || {}).map_err(store_error)?;
                Place::Remote { store, halt: Arc::clone(halt) }
            }
        })
    }

    /// All files, in order of name, down to `depth` folders below (object stores: all). What is no regular file or
    /// folder is listed with size 0 too. Folders below that cannot be read are passed over, and told of.
    pub fn list(&self, depth: usize) -> Result<(Vec<Found>, Vec<Error>)> {
        let (mut found, mut unread) = (Vec::new(), Vec::new());
        match self {
            Place::Folder(path) => list_folder(path, "", depth, &mut found, &mut unread)?,
            Place::Remote { store, halt } => {
                let all = store.list("", &|| halt.is_set()).map_err(store_error)?;
                found.extend(all.into_iter().map(|(name, size)| Found { name, size }));
            }
        }
        found.sort();
        Ok((found, unread))
    }

    /// Reads a file piece by piece; `each` gets the pieces. Returns the number of bytes. The error's kind is
    /// `Archive` if an object store says that the object is not there or shorter than it was.
    pub fn read(&self, name: &str, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<u64> {
        let mut at = 0;
        match self {
            Place::Folder(path) => {
                let path = path.join(name);
                let failed = |e: &io::Error| {
                    Error::io(format!("could not read file \"{}\"", path.display()), e)
                };
                let mut file = File::open(&path).map_err(|e| failed(&e))?;
                let mut buffer = vec![0; 1 << 20];
                loop {
                    match file.read(&mut buffer) {
                        Ok(0) => return Ok(at),
                        Ok(n) => {
                            each(&buffer[..n])?;
                            at += n as u64;
                        }
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(failed(&e)),
                    }
                }
            }
            Place::Remote { store, halt } => {
                let stopped = || halt.is_set();
                // What is wrong with the object, and what is with the store.
                let store_error = |e: firn_lake::Error| match e.kind {
                    firn_lake::ErrorKind::NotFound | firn_lake::ErrorKind::Corrupt => {
                        Error::archive(e.message)
                    }
                    _ => store_error(e),
                };
                let size = store.head(name, &stopped).map_err(store_error)?;
                while at < size {
                    let end = (at + STEP).min(size);
                    let bytes = store.get_range(name, at..end, &stopped).map_err(store_error)?;
                    each(&bytes)?;
                    at = end;
                }
                Ok(at)
            }
        }
    }

    /// When a file of a folder was written, in seconds since 1970.
    pub fn written(&self, name: &str) -> Option<u64> {
        let Place::Folder(path) = self else { return None };
        let written = fs::metadata(path.join(name)).and_then(|file| file.modified()).ok()?;
        written.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
    }

    /// Whether there is such a file.
    pub fn has(&self, name: &str) -> Result<bool> {
        match self {
            Place::Folder(path) => match fs::symlink_metadata(path.join(name)) {
                Ok(_) => Ok(true),
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
                Err(e) => {
                    let path = path.join(name);
                    Err(Error::io(format!("could not look up file \"{}\"", path.display()), &e))
                }
            },
            Place::Remote { store, halt } => match store.head(name, &|| halt.is_set()) {
                Ok(_) => Ok(true),
                Err(e) if e.kind == firn_lake::ErrorKind::NotFound => Ok(false),
                Err(e) => Err(store_error(e)),
            },
        }
    }

    /// Makes an empty file, durably; false if there is one of that name already. Only the name says something, so that it can be neither
    /// half written nor too large for a full disk.
    pub fn put_empty(&self, name: &str) -> Result<bool> {
        match self {
            Place::Folder(path) => {
                let file = path.join(name);
                let made = OpenOptions::new().write(true).create_new(true).open(&file);
                match made.and_then(|made| made.sync_all()) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                        Err(Error::io(format!("could not create file \"{}\"", file.display()), &e))
                    }
                    made => self.settle().map(|()| made.is_ok()),
                }
            }
            Place::Remote { store, halt } => {
                match store.put(name, bytes::Bytes::new(), &|| halt.is_set()) {
                    Err(e) if e.kind != firn_lake::ErrorKind::AlreadyExists => Err(store_error(e)),
                    made => Ok(made.is_ok()),
                }
            }
        }
    }

    /// Writes a small file, durably, in the place of whatever has its name, at once: there is the old one or this one, whatever happens.
    pub fn replace(&self, name: &str, text: &[u8]) -> Result<()> {
        match self {
            Place::Folder(path) => {
                let temporary = path.join(manifest::temporary(name));
                let written = OpenOptions::new().write(true).create_new(true).open(&temporary);
                let written = written
                    .and_then(|mut open| open.write_all(text).and_then(|()| open.sync_all()))
                    .and_then(|()| fs::rename(&temporary, path.join(name)));
                written.map_err(|e| {
                    let _ = fs::remove_file(&temporary);
                    failed("write file", &path.join(name), &e)
                })?;
                self.settle()
            }
            Place::Remote { store, halt } => {
                let text = bytes::Bytes::copy_from_slice(text);
                store.replace(name, text, &|| halt.is_set()).map_err(store_error)
            }
        }
    }

    /// Removes a file. One that is not there is removed already.
    pub fn remove(&self, name: &str) -> Result<()> {
        match self {
            Place::Folder(path) => match fs::remove_file(path.join(name)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    let path = path.join(name);
                    Err(Error::io(format!("could not remove file \"{}\"", path.display()), &e))
                }
                _ => Ok(()),
            },
            Place::Remote { store, halt } => {
                store.delete(name, &|| halt.is_set()).map_err(store_error)
            }
        }
    }

    /// Sees to it that what was removed stays so. Stores do that themselves.
    pub fn settle(&self) -> Result<()> {
        let Place::Folder(path) = self else { return Ok(()) };
        match File::open(path).and_then(|folder| folder.sync_all()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io(
                format!("could not synchronize directory \"{}\"", path.display()),
                &e,
            )),
            _ => Ok(()),
        }
    }

    /// Removes the folder itself, if nothing is in it.
    pub fn remove_folder(&self) -> Result<()> {
        let Place::Folder(path) = self else { return Ok(()) };
        use io::ErrorKind::{DirectoryNotEmpty, NotFound};
        match fs::remove_dir(path) {
            Err(e) if ![DirectoryNotEmpty, NotFound].contains(&e.kind()) => {
                Err(Error::io(format!("could not remove directory \"{}\"", path.display()), &e))
            }
            _ => Ok(()),
        }
    }

    /// A whole file.
    pub fn read_all(&self, name: &str) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        self.read(name, |piece| {
            all.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(all)
    }
}

fn list_folder(
    path: &PathBuf,
    prefix: &str,
    depth: usize,
    found: &mut Vec<Found>,
    unread: &mut Vec<Error>,
) -> Result<()> {
    let failed =
        |e: io::Error| Error::io(format!("could not read directory \"{}\"", path.display()), &e);
    let entries = match fs::read_dir(path) {
        // It has just been removed, as backups are.
        Err(e) if e.kind() == io::ErrorKind::NotFound && !prefix.is_empty() => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() && depth > 0 {
            let below = format!("{name}/");
            // Somebody else's: "lost+found", a service's folder for temporary files.
            let before = found.len();
            if let Err(e) = list_folder(&entry.path(), &below, depth - 1, found, unread) {
                found.truncate(before);
                unread.push(e);
            }
        } else if kind.is_dir() {
            found.push(Found { name: format!("{name}/"), size: 0 });
        } else {
            let size = match entry.metadata() {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Ok(metadata) if kind.is_file() => metadata.len(),
                Ok(_) => 0,
                Err(e) => return Err(failed(e)),
            };
            found.push(Found { name, size });
        }
    }
    Ok(())
}
