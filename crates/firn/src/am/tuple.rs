//! Changing and locking stripe rows. A row is deleted by a tombstone; its locks are held on an
//! anchor, a small tuple of the TOAST relation that heapam locks natively and that becomes the
//! tombstone when the row is changed. See directory/README.md.

use super::fetch::{locate, Fetcher};
use crate::directory::{forward, tombstones, Directory};
use crate::pg::heap::{self, Failure, Outcome, RowLock};
use crate::pg::lock::{self, Wait};
use crate::pg::{error, xact, Kind, LockMode, Rel, Snap, TupleSlot};
use firn_format::{Tid, Tombstone, TombstoneState};

/// What a lock attempt gave.
enum Locked {
    /// No anchor exists: the short row lock is held, the caller writes a tombstone and releases it.
    Bare,
    /// The anchor at this place is locked by this transaction.
    Anchor(Tid),
    /// Not locked, and why.
    Not(Outcome, Failure),
}

fn not_available(table: Rel) -> ! {
    error(
        Kind::LockNotAvailable,
        format!("could not obtain lock on row in relation \"{}\"", table.name()),
    )
    .raise()
}

/// Lock a stripe row. With `bare_suffices`, a row without an anchor is not given one.
fn lock_row(
    directory: &Directory,
    tid: Tid,
    cid: u32,
    mode: RowLock,
    wait: Wait,
    bare_suffices: bool,
) -> Locked {
    let table = directory.table;
    loop {
        if !lock::lock_row(table, tid, wait == Wait::Block) {
            if wait == Wait::Error {
                not_available(table)
            }
            return Locked::Not(Outcome::WouldBlock, Failure::default());
        }
        let mut dirty = crate::pg::snapshot::DirtySnap::new();
        let stone = tombstones::find(&directory.toast, tid, dirty.snap());
        let (writer, _) = dirty.snap().dirty_found();
        let place = match &stone {
            Some(stone) if stone.tombstone.state == TombstoneState::Anchor => stone.place,
            Some(stone) => {
                lock::unlock_row(table, tid);
                if writer != 0 {
                    if !lock::wait_for(writer, table, tid, wait == Wait::Block) {
                        if wait == Wait::Error {
                            not_available(table)
                        }
                        return Locked::Not(Outcome::WouldBlock, Failure::default());
                    }
                    continue;
                }
                return gone(stone, tid, cid);
            }
            None if bare_suffices => return Locked::Bare,
            None => {
                let anchor = Tombstone { state: TombstoneState::Anchor, successor: None };
                // Frozen from birth: an anchor belongs to no transaction, its locks do.
                directory.toast.insert(tombstones::key_of(tid), &anchor.encode(), cid, true)
            }
        };
        lock::unlock_row(table, tid);
        let (outcome, failure) = heap::lock_tuple(directory.toast.rel(), place, cid, mode, wait);
        match outcome {
            Outcome::Ok => return Locked::Anchor(place),
            // It became a tombstone meanwhile.
            Outcome::Updated | Outcome::Deleted => continue,
            other => {
                return Locked::Not(other, Failure { successor: Some(tid), ..failure });
            }
        }
    }
}

/// The row is deleted by a committed transaction or by this one.
fn gone(stone: &tombstones::Stone, tid: Tid, cid: u32) -> Locked {
    let successor = stone.tombstone.successor;
    let mut failure = Failure {
        successor: Some(successor.unwrap_or(tid)),
        xmax: stone.xmin,
        cmax: u32::MAX,
        traversed: false,
    };
    if xact::is_ours(stone.xmin) {
        failure.cmax = stone.cmin;
        let outcome = if stone.cmin >= cid { Outcome::SelfModified } else { Outcome::Invisible };
        return Locked::Not(outcome, failure);
    }
    let outcome = if successor.is_some() { Outcome::Updated } else { Outcome::Deleted };
    Locked::Not(outcome, failure)
}

/// Write the tombstone of a row that [`lock_row`] has locked.
fn bury(directory: &Directory, tid: Tid, locked: &Locked, successor: Option<Tid>, cid: u32) {
    let tombstone = Tombstone { state: TombstoneState::Deleted, successor };
    let key = tombstones::key_of(tid);
    match locked {
        Locked::Anchor(place) => {
            directory.toast.update(*place, key, &tombstone.encode(), cid);
        }
        _ => {
            directory.toast.insert(key, &tombstone.encode(), cid, false);
            lock::unlock_row(directory.table, tid);
        }
    }
}

fn open(table: Rel) -> Directory {
    Directory::open(table, LockMode::RowExclusive).unwrap_or_else(|| {
        error(Kind::Corrupt, format!("table \"{}\" has no TOAST relation", table.name())).raise()
    })
}

/// A foreign key check under REPEATABLE READ asks that the row be visible to the transaction's
/// snapshot, too.
fn crosscheck_fails(directory: &Directory, tid: Tid, crosscheck: Option<Snap>) -> bool {
    crosscheck.is_some_and(|snap| locate(directory, tid, snap).is_none())
}

fn wait_mode(wait: bool) -> Wait {
    if wait {
        Wait::Block
    } else {
        Wait::Skip
    }
}

/// A skipped wait is reported as heapam reports it to callers that did not want to wait.
fn not_waited(outcome: Outcome, wait: bool) -> Outcome {
    if outcome == Outcome::WouldBlock && !wait {
        Outcome::BeingModified
    } else {
        outcome
    }
}

/// Delete the stripe row at `tid`.
pub fn delete(
    table: Rel,
    tid: Tid,
    cid: u32,
    crosscheck: Option<Snap>,
    wait: bool,
) -> (Outcome, Failure) {
    let directory = open(table);
    lock::check_serializable_write(table, tid);
    let locked = lock_row(&directory, tid, cid, RowLock::Exclusive, wait_mode(wait), true);
    if let Locked::Not(outcome, failure) = locked {
        return (not_waited(outcome, wait), failure);
    }
    if crosscheck_fails(&directory, tid, crosscheck) {
        if matches!(locked, Locked::Bare) {
            lock::unlock_row(table, tid);
        }
        return (Outcome::Updated, Failure { successor: Some(tid), ..Failure::default() });
    }
    bury(&directory, tid, &locked, None, cid);
    table.count_delete();
    (Outcome::Ok, Failure::default())
}

/// Update the stripe row at `tid`: the slot's row goes to the row store and gets its TID there.
pub fn update(
    table: Rel,
    tid: Tid,
    slot: TupleSlot,
    cid: u32,
    crosscheck: Option<Snap>,
    wait: bool,
) -> (Outcome, Failure) {
    let directory = open(table);
    lock::check_serializable_write(table, tid);
    let locked = lock_row(&directory, tid, cid, RowLock::Exclusive, wait_mode(wait), true);
    if let Locked::Not(outcome, failure) = locked {
        return (not_waited(outcome, wait), failure);
    }
    if crosscheck_fails(&directory, tid, crosscheck) {
        if matches!(locked, Locked::Bare) {
            lock::unlock_row(table, tid);
        }
        return (Outcome::Updated, Failure { successor: Some(tid), ..Failure::default() });
    }
    heap::insert(table, slot, cid);
    bury(&directory, tid, &locked, Some(slot.tid()), cid);
    table.count_update_not_insert();
    (Outcome::Ok, Failure::default())
}

/// The next version of a stripe row that `snap` sees as deleted by an update.
pub fn successor(table: Rel, tid: Tid, snap: Snap) -> Option<Tid> {
    let directory = Directory::open(table, LockMode::AccessShare)?;
    tombstones::find(&directory.toast, tid, snap).and_then(|s| s.tombstone.successor)
}

/// How a lock request ended.
#[derive(Clone, Copy)]
pub enum LockResult {
    Done(Outcome, Failure),
    /// The row has a newer version at this TID: lock that.
    Follow(Tid),
}

/// Lock the stripe row at `tid` and put it into `slot`.
pub fn lock(
    table: Rel,
    tid: Tid,
    slot: TupleSlot,
    cid: u32,
    mode: RowLock,
    wait: Wait,
    find_last_version: bool,
) -> LockResult {
    let directory = open(table);
    let (outcome, failure) = match lock_row(&directory, tid, cid, mode, wait, false) {
        Locked::Not(outcome, failure) => (outcome, failure),
        _ => (Outcome::Ok, Failure::default()),
    };
    if outcome == Outcome::Updated && find_last_version {
        if let Some(next) = failure.successor {
            return LockResult::Follow(next);
        }
    }
    drop(directory);
    // As heapam does, give the row whatever the outcome.
    Fetcher::new(table).fetch(tid, Snap::any(), slot);
    LockResult::Done(outcome, failure)
}

/// Where a move has taken a row of the row store that `mover` deleted; None when it was no move.
pub fn moved_to(table: Rel, origin: Tid, mover: u32) -> Option<Tid> {
    if mover == 0 {
        return None;
    }
    let directory = Directory::open(table, LockMode::AccessShare)?;
    if directory.toast.is_empty() {
        return None;
    }
    forward::find(&directory.toast, origin, mover, &directory)
}
