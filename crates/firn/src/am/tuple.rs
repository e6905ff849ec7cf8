//! Changing and locking stripe rows. A row is deleted by a tombstone, updated by one that names the
//! new version in the row store.

use super::fetch::Fetcher;
use super::moved::{note_change, sees};
use super::row_lock::{bury, lock_row, moved_to_other_partition, release, Locked, Unanchored};
use crate::directory::{forward, tombstones, Directory};
use crate::pg::change_log::Identity;
use crate::pg::heap::{self, Failure, Outcome, RowLock};
use crate::pg::lock::Wait;
use crate::pg::rowlock::{self, Newest, OTHER_PARTITION};
use crate::pg::{error, ChangeLog, Kind, LockMode, OldRow, Rel, Snap, TupleSlot};
use firn_directory::{Cid, Xid};
use firn_format::{Tid, Tombstone};

fn open(table: Rel) -> Directory {
    Directory::open(table, LockMode::RowExclusive).unwrap_or_else(|| {
        error(Kind::Corrupt, format!("table \"{}\" has no TOAST relation", table.name())).raise()
    })
}

/// A foreign key check under REPEATABLE READ asks that the row be visible to the transaction's
/// snapshot, too.
fn crosscheck_fails(directory: &Directory, tid: Tid, crosscheck: Option<Snap>) -> bool {
    crosscheck.is_some_and(|snap| !sees(directory.table, tid, snap))
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
    cid: Cid,
    crosscheck: Option<Snap>,
    wait: bool,
    changing_partition: bool,
) -> (Outcome, Failure) {
    note_change(table);
    let directory = open(table);
    let mode = RowLock::Exclusive;
    let locked = lock_row(&directory, tid, cid, mode, wait_mode(wait), Unanchored::Bare);
    if let Locked::Not(outcome, failure) = locked {
        return (not_waited(outcome, wait), failure);
    }
    if crosscheck_fails(&directory, tid, crosscheck) {
        release(&directory, tid, &locked);
        return (Outcome::Updated, Failure { successor: Some(tid), ..Failure::default() });
    }
    let tombstone = if changing_partition { Tombstone::moved_away() } else { Tombstone::deleted() };
    bury(&directory, tid, &locked, tombstone, cid);
    if let Some(log) = ChangeLog::of(table) {
        log.delete(old_row(log, directory, tid, None).as_ref());
    }
    table.count_delete();
    (Outcome::Ok, Failure::default())
}

/// The row in the slot has the same values as the stripe row at `tid` in all columns of the table's
/// keys, those that a foreign key could refer to. Gives the directory back.
fn has_same_key(directory: Directory, tid: Tid, slot: TupleSlot) -> (bool, Directory) {
    let table = directory.table;
    let Some(key) = table.key_columns() else { return (false, directory) };
    if key.is_empty() {
        return (true, directory);
    }
    let mut fetcher = Fetcher::within(table, Some(directory));
    let same = (fetcher.columns(tid, &key)).is_some_and(|row| slot.has_same(table, &key, row));
    (same, fetcher.end().unwrap_or_else(|| open(table)))
}

/// What is logged of the row at `tid` that is deleted or, by the row in `new`, updated: heapam's ExtractReplicaIdentity(). A key that stays
/// is not logged.
fn old_row(
    log: ChangeLog,
    directory: Directory,
    tid: Tid,
    new: Option<TupleSlot>,
) -> Option<OldRow> {
    let table = directory.table;
    let identity = table.identity();
    let columns = match &identity {
        Identity::Nothing => return None,
        Identity::Key(columns) => columns.clone(),
        Identity::Full => (1..=table.column_count() as i16).collect(),
    };
    let mut fetcher = Fetcher::within(table, Some(directory));
    let Some(row) = fetcher.columns(tid, &columns) else {
        // Subscribers would not hear of a change without the key.
        let what = format!("a stripe row of table \"{}\" cannot be found", table.name());
        error(Kind::Corrupt, what).raise()
    };
    let stays = |new: TupleSlot| identity != Identity::Full && new.has_same(table, &columns, row);
    if new.is_some_and(stays) {
        return None;
    }
    log.old_row(row, &identity)
}

/// Update the stripe row at `tid`: the slot's row goes to the row store and gets its TID there. Told
/// back with the outcome: how strong a lock the update needs.
pub fn update(
    table: Rel,
    tid: Tid,
    slot: TupleSlot,
    cid: Cid,
    crosscheck: Option<Snap>,
    wait: bool,
) -> (Outcome, Failure, RowLock) {
    note_change(table);
    let (same_key, directory) = has_same_key(open(table), tid, slot);
    // Whoever wants to share the key while this update runs must find an anchor to lock.
    let (mode, unanchored) = if same_key {
        (RowLock::NoKeyExclusive, Unanchored::Fresh)
    } else {
        (RowLock::Exclusive, Unanchored::Bare)
    };
    let locked = lock_row(&directory, tid, cid, mode, wait_mode(wait), unanchored);
    if let Locked::Not(outcome, failure) = locked {
        return (not_waited(outcome, wait), failure, mode);
    }
    if crosscheck_fails(&directory, tid, crosscheck) {
        release(&directory, tid, &locked);
        return (Outcome::Updated, Failure { successor: Some(tid), ..Failure::default() }, mode);
    }
    // Who has locked the row FOR UPDATE has announced to change the key: as heapam sees it, the update
    // does, and those who wait to share the key go on to the new version.
    let announced = match &locked {
        Locked::Anchor(place, _) => rowlock::is_locked_for_update(directory.toast.rel(), *place),
        _ => false,
    };
    heap::insert_untold(table, slot, cid);
    let stone = Tombstone::updated(slot.tid(), same_key && !announced);
    if bury(&directory, tid, &locked, stone, cid) {
        // RETURNING shows the slot's row.
        rowlock::copy_xmax(table, slot);
    }
    if let Some(log) = ChangeLog::of(table) {
        log.update(slot, old_row(log, directory, tid, Some(slot)).as_ref());
    }
    table.count_update_not_insert();
    (Outcome::Ok, Failure::default(), mode)
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
    cid: Cid,
    mode: RowLock,
    wait: Wait,
    find_last_version: bool,
) -> LockResult {
    let directory = open(table);
    let (outcome, failure) = match lock_row(&directory, tid, cid, mode, wait, Unanchored::Anchor) {
        Locked::Not(outcome, failure) => (outcome, failure),
        _ => (Outcome::Ok, Failure::default()),
    };
    if outcome == Outcome::Updated && find_last_version {
        match failure.successor {
            Some(OTHER_PARTITION) => moved_to_other_partition(),
            Some(next) => return LockResult::Follow(next),
            None => (),
        }
    }
    // As heapam does, give the row whatever the outcome.
    Fetcher::within(table, Some(directory)).fetch(tid, Snap::any(), slot);
    LockResult::Done(outcome, failure)
}

/// How to go on with a row that is followed to its version at `place` in the row store.
#[derive(Clone, Copy)]
pub enum FollowedTo {
    Lock(Tid),
    Done(Outcome, Failure),
}

/// This transaction may have changed the followed row itself: as heapam does, find its newest
/// version, and tell the executor when that is this very command's work.
pub fn follow_own(table: Rel, place: Tid, cid: Cid) -> FollowedTo {
    let failure = Failure { successor: Some(place), ..Failure::default() };
    match rowlock::newest_of_own(table, place, cid) {
        Newest::At(newest) => FollowedTo::Lock(newest),
        Newest::Own(cmax) => FollowedTo::Done(
            Outcome::SelfModified,
            Failure { xmax: crate::pg::xact::xid(), cmax, ..failure },
        ),
        Newest::Deleted => FollowedTo::Done(Outcome::Deleted, failure),
        Newest::Elsewhere => moved_to_other_partition(),
    }
}

/// Where a move has taken a row of the row store that `mover` deleted; None when it was no move.
pub fn moved_to(table: Rel, origin: Tid, mover: Xid) -> Option<Tid> {
    if mover == Xid::NONE {
        return None;
    }
    let directory = Directory::open(table, LockMode::AccessShare)?;
    if directory.toast.is_empty() {
        return None;
    }
    forward::find(&directory, origin, mover)
}
