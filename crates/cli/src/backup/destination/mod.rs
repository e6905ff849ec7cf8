//! Where a backup is written to.

mod folder;
mod remote;

pub use folder::FolderDestination;
pub use remote::RemoteDestination;

use super::halt::Halt;
use super::place::Place;
use super::survey;
use crate::archive::manifest::{self, FileRecord, Manifest, Marker};
use crate::crypt::KEY_FILE;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Location, StoreSettings};
use std::fs::File;
use std::sync::Arc;

/// A place to write a backup's files to. Files are written once, by many threads; none is replaced.
pub trait Destination: Send + Sync {
    /// Begins a file. `expected`: about so many bytes, as far as anybody knows.
    fn create(&self, name: &str, expected: u64) -> Result<Box<dyn Output>>;
    /// Makes a file of another backup beside this one a file of this one, too, without moving its bytes if that can be. Answers
    /// false if it is not there, has another size, or this cannot be done.
    fn adopt(&self, from: &Sibling, name: &str) -> Result<bool>;
    /// Writes a small file as it is, even where all others are encrypted.
    fn write_as_is(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        let mut output = self.create(name, bytes.len() as u64)?;
        output.write(bytes)?;
        output.finish()
    }
    /// A file without a name for what is needed only during the run.
    fn scratch(&self) -> Result<File>;
    /// Waits until all files that were finished are written and durable. More may follow.
    fn settle(&self) -> Result<()>;
    /// Writes the manifest, which makes the files a backup, and removes the marker. To be called after all else is
    /// settled. An error if the marker is not this run's any more, as then another run has removed our files; or if one of
    /// them is not there.
    fn seal(&self, manifest: &Manifest) -> Result<()>;
    /// Gives up what cannot be completed after a failure.
    fn abandon(&self);
}

/// A file of a backup that lies in the same folder, or below the same prefix, as this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sibling<'a> {
    /// The other backup's name.
    pub backup: &'a str,
    pub file: &'a str,
    pub size: u64,
    /// In hexadecimal.
    pub sha256: &'a str,
}

/// A file being written.
pub trait Output: Send {
    fn write(&mut self, bytes: Vec<u8>) -> Result<()>;
    /// The file is complete. It need not be durable before [`Destination::settle`].
    fn finish(self: Box<Self>) -> Result<()>;
}

/// How to prepare a destination.
#[derive(Clone, Debug)]
pub struct Preparation {
    /// The marker that the backup is not finished.
    pub marker: Marker,
    /// Remove what an unfinished backup left.
    pub overwrite_incomplete: bool,
    /// Connections that copy: bounds what is written at once.
    pub jobs: usize,
    /// Wait for stable storage (folders).
    pub sync: bool,
}

/// Opens a destination and sees to it that it is empty.
pub fn prepare(
    location: &str,
    settings: &StoreSettings,
    how: Preparation,
    halt: &Arc<Halt>,
) -> Result<Box<dyn Destination>> {
    Ok(match Location::parse(location)? {
        Location::Local(path) => Box::new(FolderDestination::prepare(path, how)?),
        Location::S3 { .. } => Box::new(RemoteDestination::prepare(location, settings, how, halt)?),
    })
}

/// What lies at a destination.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// Files of a backup with the marker and without the manifest.
    Incomplete,
    /// Files of an archive with neither.
    Archive,
    /// "firn backup expire" removes it.
    Doomed,
    Complete,
    /// Something that no backup writes.
    Foreign(String),
}

/// What is said when the marker is gone or another's.
fn usurped() -> Error {
    Error::new(ErrorKind::Storage, "the destination is not this backup's any more")
        .detail(format!(
            "The file \"{}\" was removed or replaced, or there is a file \"{}\".",
            manifest::MARKER,
            manifest::DOOMED
        ))
        .hint("Another run with --overwrite-incomplete, or \"firn backup expire\", may have removed files of this one. Start again.")
}

/// What is said of a file that was written and is not there as it was.
fn lost(file: &FileRecord) -> Error {
    let (name, size) = (&file.name, file.size);
    Error::new(ErrorKind::Storage, format!("file \"{name}\" of the backup, of {size} bytes, is not there any more"))
        .detail("Another run has removed it, or a store has carried out a request to remove a file of that name later than it was given up.")
        .hint("Start again with --overwrite-incomplete, or give another destination.")
}

/// What is said where the manifest may be there, or may not.
pub const DOUBT: &str = "Its manifest may be there all the same, so whether the backup is complete is not known: \"firn backup verify\" tells.";

fn in_doubt(e: Error) -> Error {
    e.detail(DOUBT)
}

/// What lies there by its names. `marker` reads the marker; it is asked only if there is a key beside it.
fn judge<'a>(
    names: impl Iterator<Item = &'a str>,
    marker: impl FnOnce() -> Result<Vec<u8>>,
) -> Result<Found> {
    let (mut found, mut key) = (Found::Nothing, false);
    for name in names {
        if name == KEY_FILE {
            key = true;
            continue;
        }
        // It says nothing, and is in nobody's way.
        if manifest::is_temporary(name) {
            continue;
        }
        if !manifest::is_backup_file(name) {
            return Ok(Found::Foreign(name.to_string()));
        }
        found = match (name, found) {
            (manifest::FILE, _) | (_, Found::Complete) => Found::Complete,
            (manifest::DOOMED, _) | (_, Found::Doomed) => Found::Doomed,
            (manifest::MARKER, _) | (_, Found::Incomplete) => Found::Incomplete,
            _ => Found::Archive,
        };
    }
    // Somebody may keep a key of this name here, one that opens all his backups.
    let foreign = match found {
        Found::Nothing => key,
        Found::Incomplete if key => {
            !Marker::from_text(&marker()?).is_some_and(|marker| marker.passphrase)
        }
        _ => false,
    };
    Ok(if foreign { Found::Foreign(KEY_FILE.to_string()) } else { found })
}

/// Whether what was found has to be removed first; an error if it must not be.
fn must_clear(location: &str, found: Found, overwrite_incomplete: bool) -> Result<bool> {
    let not_empty = || Error::usage(format!("destination \"{location}\" is not empty"));
    match found {
        Found::Nothing => Ok(false),
        Found::Incomplete if overwrite_incomplete => Ok(true),
        Found::Incomplete => Err(not_empty()
            .detail("It holds files of a backup that was not finished: there is no manifest.")
            .hint("Use --overwrite-incomplete to remove them, or another destination.")),
        Found::Archive => Err(not_empty()
            .detail("It holds an archive without a manifest, maybe one that pg_dump made.")
            .hint("Give a destination that is empty or does not exist.")),
        Found::Doomed => Err(not_empty()
            .detail(format!("It holds what is left of a backup that is being removed: there is a file \"{}\".", manifest::DOOMED))
            .hint("Wait for \"firn backup expire\", or run it again if it was broken off; with --incomplete-hours, if the backup was not finished.")),
        Found::Complete => Err(not_empty()
            .detail("It holds a complete backup.")
            .hint("Backups are never overwritten: give another destination.")),
        Found::Foreign(name) => Err(not_empty()
            .detail(format!("It holds \"{}\", which is not part of a backup.", name.escape_debug()))
            .hint("Give a destination that is empty or does not exist.")),
    }
}

/// Makes an unfinished backup's place this run's, and removes what is there. Answers the marker's text.
///
/// The marker goes first, in one step from the other's to ours; from then on the place is ours, whatever becomes of this run. Whoever made
/// the backup may be alive after all and at its end: it writes its manifest and then looks at the marker, we write the marker and then
/// look for a manifest. "firn backup expire" writes its note and then looks at the marker, we then look for the note: it removes files by
/// name, and would go on with those that are about to be written. So of two at least one gives up, and if that is this run nothing
/// but the marker was changed.
fn take_over(place: &Place, location: &str, own: &Marker) -> Result<Vec<u8>> {
    let read = || Ok(survey::read(place, manifest::MARKER)?.unwrap_or_default());
    // The key of the backup before is there as long as its other files may be.
    let had_key = Marker::from_text(&read()?).is_some_and(|marker| marker.passphrase);
    let own = Marker { passphrase: own.passphrase || had_key, ..own.clone() }.to_text()?;
    let others = || {
        if place.has(manifest::DOOMED)? {
            must_clear(location, Found::Doomed, true)?;
        }
        match place.has(manifest::FILE)? {
            true => must_clear(location, Found::Complete, true).map(|_| ()),
            false => Ok(()),
        }
    };
    others()?;
    place.replace(manifest::MARKER, &own)?;
    others()?;
    let mut names: Vec<String> = place.list(0)?.0.into_iter().map(|file| file.name).collect();
    // A manifest that came since is its maker's to remove, who finds the marker exchanged.
    must_clear(location, judge(names.iter().map(String::as_str), read)?, true)?;
    names.retain(|name| name != manifest::MARKER);
    for name in names {
        // The other run names its files, and removes some.
        place.remove(&name)?;
    }
    match read()? == own {
        true => Ok(own),
        // Another run like this one has come.
        false => Err(usurped()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_there() {
        let no_marker = || -> Result<Vec<u8>> { panic!("asked for the marker") };
        let judged = |names: &[&str]| judge(names.iter().copied(), no_marker).unwrap();
        assert_eq!(judged(&[]), Found::Nothing);
        assert_eq!(judged(&["12.dat.gz", "toc.dat"]), Found::Archive);
        assert_eq!(judged(&["12.dat.gz", "toc.dat", "unfinished.json"]), Found::Incomplete);
        assert_eq!(judged(&["unfinished.json", "1.dat"]), Found::Incomplete);
        assert_eq!(judged(&["manifest.json", "unfinished.json"]), Found::Complete);
        assert_eq!(judged(&["1.dat", "expired.json", "toc.dat"]), Found::Doomed);
        assert_eq!(judged(&["expired.json", "toc.dat"]), Found::Doomed);
        assert_eq!(judged(&["expired.json"]), Found::Doomed);
        assert_eq!(judged(&["expired.json", "unfinished.json"]), Found::Doomed);
        assert_eq!(judged(&["unfinished.json", "expired.json", "toc.dat"]), Found::Doomed);
        assert_eq!(judged(&["expired.json", "manifest.json"]), Found::Complete);
        let temporary = manifest::temporary(manifest::MARKER);
        assert_eq!(judged(&["unfinished.json", &temporary]), Found::Incomplete);
        assert_eq!(judged(&[&temporary]), Found::Nothing);
        assert_eq!(judged(&[&temporary, "toc.dat"]), Found::Archive);
        assert_eq!(judged(&["toc.dat.tmp"]), Found::Foreign("toc.dat.tmp".into()));
        assert_eq!(judged(&["toc.dat", "manifest.json", "12.dat"]), Found::Complete);
        assert_eq!(judged(&["toc.dat", "letter.odt"]), Found::Foreign("letter.odt".into()));
        // A key belongs to a backup that is being made with a passphrase; without one it is somebody's.
        assert_eq!(judged(&["key.age"]), Found::Foreign("key.age".into()));
        assert_eq!(judged(&["key.age", "manifest.json"]), Found::Complete);
        assert_eq!(judged(&["expired.json", "key.age", "1.dat.age"]), Found::Doomed);
        for (text, own) in [
            (r#"{"database":"d","started":"1","firn_version":"1","passphrase":true}"#, true),
            (r#"{"database":"d","started":"1","firn_version":"1"}"#, false),
            ("", false),
        ] {
            let names = ["1.dat.age", "key.age", "unfinished.json"];
            let found = judge(names.into_iter(), || Ok(text.into())).unwrap();
            let foreign = Found::Foreign("key.age".into());
            assert_eq!(found, if own { Found::Incomplete } else { foreign });
        }
        assert!(must_clear("d", Found::Incomplete, true).unwrap());
        assert!(!must_clear("d", Found::Nothing, false).unwrap());
        for (found, overwrite) in [
            (Found::Incomplete, false),
            (Found::Complete, false),
            (Found::Complete, true),
            (Found::Archive, true),
            (Found::Doomed, true),
            (Found::Foreign("x".into()), true),
        ] {
            must_clear("d", found, overwrite).unwrap_err();
        }
    }
}
