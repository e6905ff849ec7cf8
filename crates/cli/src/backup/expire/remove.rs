//! Removing one backup: so that what a crash leaves is either whole or looks like none, and a later run can finish it.
//!
//! | after | there is | for `firn restore`, `verify`, `list` | for the next `expire` |
//! |---|---|---|---|
//! | the note of removal | all files | a complete backup, or an unfinished one | the same: its rules, or --incomplete-hours, decide anew |
//! | marker and manifest are gone | data, table of contents, the note | being removed | goes on |
//! | the table of contents is gone | data, the note | being removed; nothing for `pg_restore` | goes on |
//! | all else is gone | the note | being removed | goes on |
//! | the note is gone | an empty folder | nothing | nothing: a backup can be made there |
//!
//! Each line is durable before the next is begun.
//!
//! What was surveyed may be something else by now: removing others takes hours in an object store. So it is looked at again, before
//! the note is written and after. A backup that is still being made, and was taken for dead, writes its manifest first and then looks for
//! the note; we write the note first and then look for the manifest. So one of the two sees the other: the backup ends in an error, or
//! stays. (If both do, it stays as an unfinished one.)
//!
//! `--overwrite-incomplete` exchanges the marker and then looks for the note, so of those two, too, one sees the other; it is refused wherever
//! there is a note. So once all looks are done nobody writes there until the note is gone, which is when nothing is left to be done.

use super::super::halt::Halt;
use super::super::place::Place;
use super::super::survey::{self, Lot, Standing};
use super::{now, rules, Options, SKEW};
use crate::archive::manifest;
use crate::crypt;
use crate::error::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// The most threads that remove at once.
const THREADS: usize = 16;
/// How often files may come while others go.
const ROUNDS: usize = 10;

fn open(options: &Options, name: &str, halt: &Arc<Halt>) -> Result<Place> {
    let location = match name {
        "." => options.parent.clone(),
        name => format!("{}/{name}", options.parent.trim_end_matches('/')),
    };
    Place::open(&location, &options.store, halt, true)
}

/// What became of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// All is gone, maybe by others.
    Done,
    /// It is not any more what was surveyed, and is left as it is.
    Changed,
}

/// Removes a backup, or what is left of it. Another run may be doing the same, and take the folder away at any moment.
pub fn remove(options: &Options, lot: &Lot, halt: &Arc<Halt>) -> Result<Removal> {
    let place = open(options, &lot.name, halt)?;
    remove_at(&place, options, lot, halt).or_else(|e| match &place {
        Place::Folder(path) if matches!(path.try_exists(), Ok(false)) => Ok(Removal::Done),
        _ => Err(e),
    })
}

/// What a second look finds.
enum Seen {
    Same,
    /// Others are removing it.
    Going,
    Gone,
    Other,
}

fn look(place: &Place, lot: &Lot) -> Result<Seen> {
    if let Some(text) = survey::read(place, manifest::FILE)? {
        return Ok(match &lot.standing {
            Standing::Sealed { sum, .. } if survey::sum(&text) == *sum => Seen::Same,
            _ => Seen::Other,
        });
    }
    let marker = survey::read(place, manifest::MARKER)?;
    let doomed = place.has(manifest::DOOMED)?;
    Ok(match (&lot.standing, marker) {
        (Standing::Unfinished { text, .. }, Some(found)) if found == *text => Seen::Same,
        (_, Some(_)) => Seen::Other,
        (_, None) if doomed => Seen::Going,
        (_, None) => {
            let mut left = place.list(0)?.0;
            left.retain(|file| !file.name.ends_with('/'));
            match left.iter().all(|file| manifest::is_temporary(&file.name)) {
                true if left.is_empty() => Seen::Gone,
                // All else was removed before.
                true => Seen::Going,
                false => Seen::Other,
            }
        }
    })
}

fn remove_at(place: &Place, options: &Options, lot: &Lot, halt: &Arc<Halt>) -> Result<Removal> {
    match look(place, lot)? {
        Seen::Same | Seen::Going => {}
        Seen::Gone => return place.remove_folder_of(&lot.name),
        Seen::Other => return Ok(Removal::Changed),
    }
    let own = place.put_empty(manifest::DOOMED)?;
    if matches!(look(place, lot)?, Seen::Other) {
        if own {
            place.remove(manifest::DOOMED)?;
        }
        return Ok(Removal::Changed);
    }
    let sealed = [manifest::FILE, "toc.dat"].map(|name| format!("{name}{}", crypt::SUFFIX));
    for first in [&[manifest::MARKER, manifest::FILE][..], &["toc.dat", &sealed[0], &sealed[1]]] {
        first.iter().try_for_each(|file| place.remove(file))?;
        place.settle()?;
    }
    for _ in 0..ROUNDS {
        let mut left: Vec<String> = place.list(0)?.0.into_iter().map(|file| file.name).collect();
        // Others have removed all, and a new backup is being made here.
        if left.iter().any(|name| [manifest::MARKER, manifest::FILE].contains(&&name[..])) {
            return Ok(Removal::Changed);
        }
        // Other backups may lie in folders within.
        left.retain(|name| !name.contains('/') && name != manifest::DOOMED && lot.owns(name));
        if left.is_empty() {
            place.settle()?;
            place.remove(manifest::DOOMED)?;
            place.settle()?;
            return place.remove_folder_of(&lot.name);
        }
        remove_all(options, &lot.name, place, &left, halt)?;
    }
    Err(Error::new(ErrorKind::Storage, "files keep coming while they are removed")
        .hint("A backup to this place may be under way."))
}

impl Place {
    /// The last step of removing a backup of that name.
    fn remove_folder_of(&self, name: &str) -> Result<Removal> {
        // For object stores there are no folders.
        match name {
            "." => Ok(Removal::Done),
            _ => self.remove_folder().map(|()| Removal::Done),
        }
    }
}

/// Takes the note away from a backup that is kept. One that was finished not long ago may be one that was taken for dead, and its maker
/// about to look for the note: there it stays, and does no harm beside the manifest.
pub fn spare(options: &Options, lot: &Lot, halt: &Arc<Halt>) -> Result<()> {
    let Standing::Sealed { head, .. } = &lot.standing else { return Ok(()) };
    if rules::seconds(&head.finished).is_none_or(|finished| finished + SKEW > now()) {
        return Ok(());
    }
    let place = open(options, &lot.name, halt)?;
    place.remove(manifest::DOOMED)?;
    // Another run, by other rules, is removing it just now.
    if !place.has(manifest::FILE)? {
        place.put_empty(manifest::DOOMED)?;
    }
    Ok(())
}

fn remove_all(
    options: &Options,
    name: &str,
    place: &Place,
    files: &[String],
    halt: &Arc<Halt>,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let some = |place: &Place| -> Result<()> {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            halt.check()?;
            place.remove(file)?;
        }
        Ok(())
    };
    let threads = match place {
        Place::Folder(_) => 1,
        Place::Remote { .. } => options.jobs.min(THREADS).min(files.len().div_ceil(4)),
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..threads)
            .map(|_| scope.spawn(|| open(options, name, halt).and_then(|place| some(&place))))
            .collect();
        let result = some(place);
        threads.into_iter().fold(result, |result, thread| {
            let other = thread.join();
            result.and(
                other.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a thread panicked"))),
            )
        })
    })
}
