//! Giving space back. Stripes whose rows are all deleted, and forwarding lists, are of no use once no
//! snapshot needs them. And a TOAST relation's file does not shrink when VACUUM has removed chunks as
//! long as directory rows lie at its end, where their new versions were put because no page before it
//! had room then.

use crate::directory::{allocation, clean, cleaned, forward, Directory};
use crate::pg::toast::CHUNK_BYTES;
use crate::pg::{guc, xact, LockMode, Oid, OpenRel, Rel, Snap};
use firn_format::Location;

/// Pages below which a file is not worth the work.
const SMALL: u64 = 64;

/// Delete what no snapshot needs any more of a table that is being vacuumed: forwarding lists, and stripes whose
/// rows are all deleted. In a transaction that may write.
fn tidy(table: Rel) {
    let Some(directory) = Directory::open(table, LockMode::RowExclusive) else { return };
    if directory.toast.is_empty() {
        return;
    }
    let oldest = xact::oldest_visible(directory.toast.rel());
    forward::prune(&directory.toast, oldest);
    if allocation::next_block(&directory.toast).is_some() {
        cleaned::make_room(&directory.toast);
    }
    clean::remove_dead_stripes(&directory.toast, oldest);
}

/// Tidy up at the end of VACUUM, or `leave` that to a transaction of its own; returns whether one is asked for.
pub fn tidy_or_leave(table: Rel, leave: bool) -> bool {
    if !leave {
        tidy(table);
    }
    let Some(directory) = Directory::open(table, LockMode::RowExclusive) else { return false };
    if leave && !directory.toast.is_empty() {
        cleaned::leave_tidying(&directory.toast);
    }
    noted(&directory).is_some()
}

/// Tidy up what VACUUM has left, in transactions of their own: called in one in which nothing is going on, and leaves one.
/// Returns the TOAST relation when that was something. Nothing is done while somebody else vacuums or moves.
pub fn tidy_what_was_left(oid: Oid) -> Option<Oid> {
    let done = xact::with_snapshot(|| {
        on_what_is_left(oid, |table, left| {
            tidy(table);
            Some((table.toast_oid()?, left))
        })
    });
    guc::crash_point("tidied");
    xact::next();
    let (toast, left) = done?;
    // Not before it has committed: the note is written outside of any transaction.
    xact::with_snapshot(|| {
        on_what_is_left(oid, |table, _| {
            let directory = Directory::open(table, LockMode::RowExclusive)?;
            cleaned::is_tidied(&directory.toast, left);
            Some(())
        })
    });
    xact::next();
    Some(toast)
}

/// VACUUM has left the table for a transaction of its own.
pub fn is_left(oid: Oid) -> bool {
    on_what_is_left(oid, |_, _| Some(())).is_some()
}

/// Do something to a table that VACUUM has left, told what has been, while nobody else vacuums or moves.
fn on_what_is_left<T>(oid: Oid, body: impl FnOnce(Rel, u8) -> Option<T>) -> Option<T> {
    let opened = OpenRel::try_open(oid, LockMode::ShareUpdateExclusive)?;
    if opened.rel().is_of_other_session() {
        return None;
    }
    let left = noted(&Directory::open(opened.rel(), LockMode::RowExclusive)?)?;
    body(opened.rel(), left)
}

/// What VACUUM has left, if anything.
fn noted(directory: &Directory) -> Option<u8> {
    match directory.toast.is_empty() {
        true => None,
        false => cleaned::read(&directory.toast).left(),
    }
}

/// Move directory rows to the front of a file that is mostly unused, in this transaction; returns the TOAST relation
/// when VACUUM can shrink it then. Nothing is done while somebody else vacuums or moves.
pub fn shrink(oid: Oid) -> Option<Oid> {
    let opened = OpenRel::try_open(oid, LockMode::ShareUpdateExclusive)?;
    // VACUUM has passed over it, and its file may be gone, when that session ended with the server.
    if opened.rel().is_of_other_session() {
        return None;
    }
    let directory = Directory::open(opened.rel(), LockMode::RowExclusive)?;
    if u64::from(directory.toast.rel().heap_blocks()) < SMALL {
        return None;
    }
    let moved = move_directory_rows(&directory);
    (moved > 0).then(|| directory.toast.rel().oid())
}

/// When less than half of the file is in use, move directory rows from its end to free pages at its
/// beginning. Returns how many were moved: none when what is in use is not known.
fn move_directory_rows(directory: &Directory) -> usize {
    let mut damaged = false;
    let mut list = directory.list_readable(Snap::self_snap(), |_, _| damaged = true);
    if damaged {
        return 0;
    }
    let chunks = list.iter().map(|found| match found.entry.location {
        Location::Chunks { .. } => found.entry.bytes.div_ceil(CHUNK_BYTES as u64),
        Location::Object { .. } => 0,
    });
    // A page for each directory row is more than they need.
    let needed = chunks.sum::<u64>() + list.len() as u64;
    if u64::from(directory.toast.rel().heap_blocks()) < 2 * needed {
        return 0;
    }
    list.sort_by_key(|found| std::cmp::Reverse(found.place.block));
    let cid = xact::command_id(true);
    let (mut moved, mut block) = (0, 0);
    for found in &list {
        xact::check_for_interrupts();
        if u64::from(found.place.block) < needed {
            break;
        }
        let room = directory.row_bytes(found);
        while block < found.place.block && directory.toast.free_bytes(block) < room {
            block += 1;
        }
        if block >= found.place.block {
            break;
        }
        directory.relocate(found, cid, block);
        moved += 1;
    }
    moved
}
