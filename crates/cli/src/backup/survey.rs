//! What lies in a folder or below a prefix: backups, and what is left of some.

use super::halt::Halt;
use super::place::{Found, Place};
use crate::archive::manifest::{self, Head, Manifest, Marker};
use crate::crypt::KEY_FILE;
use crate::error::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};

/// A folder with a file of a backup.
pub struct Lot {
    /// Relative to where was searched; `.` for the place itself.
    pub name: String,
    /// Bytes and number of files that may be a backup's.
    pub size: u64,
    pub files: u64,
    /// A file in it that is no backup's.
    pub foreign: Option<String>,
    /// A removal was begun.
    pub doomed: bool,
    pub standing: Standing,
}

impl Lot {
    /// Whether a file of this name may go with the rest. A key that somebody keeps beside backups that it opens may have the name that
    /// the key of a backup with a passphrase has.
    pub fn owns(&self, name: &str) -> bool {
        self.standing.owns(name)
    }
}

pub enum Standing {
    /// There is a manifest.
    Sealed {
        head: Box<Head>,
        /// SHA-256 of its text.
        sum: String,
        /// A file that is missing or has another size than it should.
        lacks: Option<String>,
        /// It lists a key of its own.
        has_key: bool,
    },
    /// There is a manifest that cannot be used.
    Damaged(Error),
    /// There is a marker, whose text this is, and no manifest.
    Unfinished {
        text: Vec<u8>,
        marker: Option<Marker>,
        /// When a marker was written that tells nothing: a crash has left half of it. Of a file, in seconds since 1970.
        written: Option<u64>,
    },
    /// There is neither.
    Bare,
}

impl Standing {
    fn owns(&self, name: &str) -> bool {
        match self {
            Standing::Sealed { has_key, .. } if name == KEY_FILE => *has_key,
            Standing::Unfinished { marker, .. } if name == KEY_FILE => {
                marker.as_ref().is_some_and(|marker| marker.passphrase)
            }
            _ => manifest::is_backup_file(name),
        }
    }
}

/// The SHA-256 of a text.
pub fn sum(text: &[u8]) -> String {
    manifest::hex(&Sha256::digest(text))
}

/// All folders with a file of a backup, down to a depth, in order of name; and folders that could not be read.
///
/// Others make and remove backups meanwhile: what goes while it is looked at is gone.
pub fn survey(place: &Place, depth: usize, halt: &Halt) -> Result<(Vec<Lot>, Vec<Error>)> {
    let (found, unread) = place.list(depth)?;
    let mut folders = BTreeMap::<String, Vec<Found>>::new();
    for file in found {
        let (folder, name) = file.name.rsplit_once('/').unwrap_or((".", &file.name));
        // Deeper folders are listed by name only.
        if !name.is_empty() {
            folders.entry(folder.to_string()).or_default().push(file);
        }
    }
    // A key by itself is no backup: somebody may keep one of this name.
    let tells = |name: &str| name != KEY_FILE && manifest::is_backup_file(name);
    folders.retain(|_, files| files.iter().any(|file| tells(own_name(file))));
    let mut lots = Vec::new();
    for (name, files) in folders {
        halt.check()?;
        let has = |wanted| files.iter().any(|file| own_name(file) == wanted);
        let standing = standing(place, &files)?;
        let ours = || files.iter().filter(|file| standing.owns(own_name(file)));
        let foreign = files.iter().find(|file| !standing.owns(own_name(file)));
        // A manifest that was there and is not goes first of all.
        let mut going = has(manifest::FILE) && matches!(standing, Standing::Bare);
        // Nor is what one that was taken for dead has left, and a kill, when all else was removed.
        going |= files.iter().all(|file| manifest::is_temporary(own_name(file)));
        lots.push(Lot {
            name,
            size: ours().map(|file| file.size).sum(),
            files: ours().count() as u64,
            foreign: foreign.map(|file| own_name(file).to_string()),
            doomed: has(manifest::DOOMED) || going,
            standing,
        });
    }
    Ok((lots, unread))
}

/// The file's name within its folder.
fn own_name(file: &Found) -> &str {
    file.name.rsplit_once('/').map_or(&file.name, |(_, name)| name)
}

fn standing(place: &Place, files: &[Found]) -> Result<Standing> {
    let has = |wanted| files.iter().find(|file| own_name(file) == wanted);
    if let Some(file) = has(manifest::FILE) {
        match read(place, &file.name) {
            Ok(Some(text)) => return Ok(sealed(&text, files)),
            // It is just being removed.
            Ok(None) => return Ok(Standing::Bare),
            // It is there and not to be read: its owner is somebody else, a disk is broken.
            Err(e) if is_about(place, &file.name, &e) => return Ok(Standing::Damaged(e)),
            Err(e) => return Err(e),
        }
    }
    let Some(file) = has(manifest::MARKER) else { return Ok(Standing::Bare) };
    Ok(match read(place, &file.name) {
        Ok(Some(text)) => {
            let marker = Marker::from_text(&text);
            let written = if marker.is_none() { place.written(&file.name) } else { None };
            Standing::Unfinished { text, marker, written }
        }
        // It may just be finished now: then the next look will find it so.
        Ok(None) => Standing::Unfinished { text: Vec::new(), marker: None, written: None },
        Err(e) if is_about(place, &file.name, &e) => {
            Standing::Unfinished { text: Vec::new(), marker: None, written: None }
        }
        Err(e) => return Err(e),
    })
}

/// Whether an error is about this file: others may be read. A store that does not answer says nothing of its objects.
fn is_about(place: &Place, name: &str, e: &Error) -> bool {
    match place {
        _ if e.kind == ErrorKind::Cancelled => false,
        Place::Folder(_) => true,
        Place::Remote { .. } => matches!(place.has(name), Ok(true)),
    }
}

/// A file's text; `None` if it is gone meanwhile.
pub fn read(place: &Place, name: &str) -> Result<Option<Vec<u8>>> {
    match place.read_all(name) {
        Ok(text) => Ok(Some(text)),
        Err(e) => match place.has(name) {
            Ok(false) => Ok(None),
            _ => Err(e),
        },
    }
}

fn sealed(text: &[u8], files: &[Found]) -> Standing {
    let manifest = match Manifest::from_text(text) {
        Ok(manifest) => manifest,
        Err(e) => return Standing::Damaged(e),
    };
    let sizes: HashMap<&str, u64> = files.iter().map(|file| (own_name(file), file.size)).collect();
    Standing::Sealed {
        lacks: manifest.lacking(&sizes).first().map(|file| file.name.clone()),
        has_key: manifest.files.iter().any(|file| file.name == KEY_FILE),
        head: Box::new(manifest.head),
        sum: sum(text),
    }
}
