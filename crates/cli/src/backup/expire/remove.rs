//! Removing one backup: so that what a crash leaves is either whole or looks like none, and a later run can finish it.
//!
//! | after | there is | for `firn restore`, `verify`, `list` | for the next `expire` |
//! |---|---|---|---|
//! | the note of removal | all files | a complete backup | a complete backup: its rules decide anew |
//! | marker and manifest are gone | data, table of contents, the note | being removed | goes on |
//! | the table of contents is gone | data, the note | being removed; nothing for `pg_restore` | goes on |
//! | all else is gone | the note | being removed | goes on |
//! | the note is gone | an empty folder | nothing | nothing: a backup can be made there |
//!
//! Each line is durable before the next is begun. A backup that is still being made, and was taken for dead, finds its marker
//! gone when it is to write its manifest, or right after that, and ends in an error.

use super::super::halt::Halt;
use super::super::manifest;
use super::super::place::Place;
use super::Options;
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

/// Removes a backup, or what is left of it. Another run may be doing the same, and take the folder away at any moment.
pub fn remove(options: &Options, name: &str, halt: &Arc<Halt>) -> Result<()> {
    let place = open(options, name, halt)?;
    remove_at(&place, options, name, halt).or_else(|e| match &place {
        Place::Folder(path) if matches!(path.try_exists(), Ok(false)) => Ok(()),
        _ => Err(e),
    })
}

fn remove_at(place: &Place, options: &Options, name: &str, halt: &Arc<Halt>) -> Result<()> {
    place.put_new(manifest::DOOMED, b"{}\n")?;
    let sealed = [manifest::FILE, "toc.dat"].map(|name| format!("{name}{}", crypt::SUFFIX));
    for first in [&[manifest::MARKER, manifest::FILE][..], &["toc.dat", &sealed[0], &sealed[1]]] {
        first.iter().try_for_each(|file| place.remove(file))?;
        place.settle()?;
    }
    for _ in 0..ROUNDS {
        let mut left: Vec<String> = place.list(0)?.into_iter().map(|file| file.name).collect();
        // Other backups may lie in folders within.
        left.retain(|name| {
            !name.contains('/') && name != manifest::DOOMED && manifest::is_backup_file(name)
        });
        if left.is_empty() {
            place.settle()?;
            place.remove(manifest::DOOMED)?;
            place.settle()?;
            // For object stores there are no folders.
            return match name {
                "." => Ok(()),
                _ => place.remove_folder(),
            };
        }
        remove_all(options, name, place, &left, halt)?;
    }
    Err(Error::new(ErrorKind::Storage, "files keep coming while they are removed")
        .hint("A backup to this place may be under way."))
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
