//! Locking a stripe row. Its locks are held on an anchor, a small tuple of the TOAST relation that
//! heapam locks natively and that becomes the tombstone when the row is changed. See
//! directory/README.md.

use super::tuple::moved_to;
use crate::directory::{tombstones, Directory};
use crate::pg::anchor::{self, Pin};
use crate::pg::heap::{self, Failure, Outcome, RowLock};
use crate::pg::lock::{self, Wait};
use crate::pg::rowlock::{self, Step};
use crate::pg::{error, xact, Kind, Rel};
use firn_directory::{Cid, Place, Xid};
use firn_format::{Tid, Tombstone, TombstoneState};

/// What a lock attempt gave.
pub enum Locked {
    /// No anchor exists: the short row lock is held, the caller writes a tombstone and releases it.
    Bare,
    /// The anchor at this place was made just now: the short row lock is held instead of a lock on
    /// it, the caller turns it into a tombstone and releases the short lock.
    Fresh(Place),
    /// The anchor at this place is locked by this transaction, which had locked it before as these
    /// (sub)transactions.
    Anchor(Place, Vec<Xid>),
    /// The row's key is held through its newer versions.
    Through,
    /// Not locked, and why.
    Not(Outcome, Failure),
}

/// What to do with a row that has no anchor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unanchored {
    /// Give it one and lock that.
    Anchor,
    /// Give it one and return at once, holding the short row lock.
    Fresh,
    /// Return at once, holding the short row lock.
    Bare,
}

fn would_block(table: Rel, wait: Wait) -> Locked {
    if wait == Wait::Error {
        error(
            Kind::LockNotAvailable,
            format!("could not obtain lock on row in relation \"{}\"", table.name()),
        )
        .raise()
    }
    Locked::Not(Outcome::WouldBlock, Failure::default())
}

/// heapam would name the TOAST relation in its error: let it skip, and say it ourselves.
fn quietly(wait: Wait) -> Wait {
    if wait == Wait::Error {
        Wait::Skip
    } else {
        wait
    }
}

/// Lock a stripe row.
pub fn lock_row(
    directory: &Directory,
    tid: Tid,
    cid: Cid,
    mode: RowLock,
    wait: Wait,
    unanchored: Unanchored,
) -> Locked {
    let table = directory.table;
    let toast = &directory.toast;
    if tid.offset == 0 {
        error(Kind::Internal, format!("no row of table \"{}\" was named", table.name())).raise()
    }
    loop {
        // Nobody who holds the short lock waits for a transaction, so that this is no wait either.
        lock::lock_row(table, tid);
        let place = match tombstones::to_lock(toast, tid) {
            Some((stone, _)) if stone.tombstone.state == TombstoneState::Anchor => stone.place,
            Some((stone, writer)) => {
                lock::unlock_row(table, tid);
                if writer != Xid::NONE {
                    if !lock::wait_for(writer, table, tid, wait == Wait::Block) {
                        return would_block(table, wait);
                    }
                    continue;
                }
                return match stone.tombstone.successor {
                    Some(next)
                        if mode == RowLock::KeyShare
                            && stone.tombstone.same_key
                            && !xact::is_ours(stone.xmin) =>
                    {
                        hold_key(directory, next, stone.raw_xmin, cid, wait)
                            .unwrap_or(Locked::Through)
                    }
                    _ => gone(&stone, tid, cid),
                };
            }
            None if unanchored == Unanchored::Bare => return Locked::Bare,
            None => {
                // Frozen from birth: an anchor belongs to no transaction, its locks do.
                let bytes = Tombstone::anchor().encode();
                let place = toast.insert(tombstones::key_of(tid), &bytes, cid, true);
                if unanchored == Unanchored::Fresh {
                    return Locked::Fresh(place);
                }
                place
            }
        };
        // VACUUM may remove the anchor from here on, but leaves it where it is.
        let pin = Pin::take(toast.rel(), place);
        lock::unlock_row(table, tid);
        let before = rowlock::own_lockers(toast.rel(), place);
        let (outcome, failure) =
            heap::lock_tuple(toast.rel(), place, cid, mode, quietly(wait), false);
        // It may have done so while we waited for the last holder: heapam does not look again then whether the
        // tuple is still there. From when we hold it, it stays.
        let removed = matches!(outcome, Outcome::Ok | Outcome::Invisible)
            && !anchor::is_there(toast.rel(), place, tombstones::key_of(tid));
        drop(pin);
        match outcome {
            _ if removed => continue,
            Outcome::Ok if mode == RowLock::KeyShare => {}
            Outcome::Ok => return Locked::Anchor(place, before),
            Outcome::WouldBlock => return would_block(table, wait),
            // It became a tombstone meanwhile.
            Outcome::Updated | Outcome::Deleted => continue,
            other => {
                return Locked::Not(other, Failure { successor: Some(tid), ..failure });
            }
        }
        // An update that leaves the key alone does not stop us. It may be over or be over soon: the
        // version it made has to be held, too.
        let Some((next, updater)) = rowlock::update_of(toast.rel(), place) else {
            return Locked::Anchor(place, before);
        };
        let made = tombstones::made_by(toast, tid, next, updater);
        if let Some(successor) = made.filter(|t| t.same_key).and_then(|t| t.successor) {
            return hold_key(directory, successor, updater, cid, wait)
                .unwrap_or(Locked::Anchor(place, before));
        }
        if !lock::wait_for(updater, table, tid, wait == Wait::Block) {
            return would_block(table, wait);
        }
    }
}

/// Hold the key of the row's versions from the one at `version` in the row store on, which `inserter`
/// made. None when done.
fn hold_key(
    directory: &Directory,
    mut version: Tid,
    mut inserter: Xid,
    cid: Cid,
    wait: Wait,
) -> Option<Locked> {
    let table = directory.table;
    let me = xact::xid();
    loop {
        match rowlock::share_key(table, version, inserter, &[me]) {
            Step::End | Step::Locked(None) => return None,
            Step::Locked(Some(next)) => (version, inserter) = next,
            Step::Wait(other) => {
                if !lock::wait_for(other, table, version, wait == Wait::Block) {
                    return Some(would_block(table, wait));
                }
            }
            Step::Settled => {
                let (outcome, failure) =
                    heap::lock_tuple(table, version, cid, RowLock::KeyShare, wait, true);
                return match outcome {
                    // Changed by this transaction itself: it holds more than the key.
                    Outcome::Ok | Outcome::SelfModified | Outcome::Invisible => None,
                    Outcome::Updated | Outcome::Deleted => {
                        match moved_to(table, version, failure.xmax) {
                            // A moved row is the same row.
                            Some(home) => match lock_row(
                                directory,
                                home,
                                cid,
                                RowLock::KeyShare,
                                wait,
                                Unanchored::Anchor,
                            ) {
                                Locked::Not(outcome, failure) => {
                                    Some(Locked::Not(outcome, failure))
                                }
                                _ => None,
                            },
                            None => {
                                let failure = Failure { successor: Some(version), ..failure };
                                Some(Locked::Not(outcome, failure))
                            }
                        }
                    }
                    other => Some(Locked::Not(other, failure)),
                };
            }
        }
    }
}

/// The row is deleted by a committed transaction or by this one.
fn gone(stone: &tombstones::Stone, tid: Tid, cid: Cid) -> Locked {
    let elsewhere = stone.tombstone.moved_away.then_some(rowlock::OTHER_PARTITION);
    let successor = stone.tombstone.successor.or(elsewhere);
    let mut failure = Failure {
        successor: Some(successor.unwrap_or(tid)),
        xmax: stone.xmin,
        cmax: Cid::NONE,
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

/// heapam's error where a row cannot be followed into another partition.
pub fn moved_to_other_partition() -> ! {
    error(
        Kind::Serialization,
        "tuple to be locked was already moved to another partition due to concurrent update",
    )
    .raise()
}

/// Write the tombstone of a row that [`lock_row`] has locked. After an update, those who hold the
/// row's key hold the new version's, and so does this transaction if it had locked the row before: as
/// on heap, where an upsert's `RETURNING xmax = 0` tells new rows from changed ones. Returns whether anybody does.
pub fn bury(
    directory: &Directory,
    tid: Tid,
    locked: &Locked,
    tombstone: Tombstone,
    cid: Cid,
) -> bool {
    let toast = &directory.toast;
    let mut is_held = false;
    let key = tombstones::key_of(tid);
    match locked {
        Locked::Anchor(place, _) | Locked::Fresh(place) => {
            let made = toast.update(*place, key, &tombstone.encode(), cid);
            if let (Locked::Anchor(_, own), Some(successor)) = (locked, tombstone.successor) {
                let mut sharers = rowlock::key_sharers(toast.rel(), made);
                sharers.extend(own);
                is_held = !sharers.is_empty();
                if is_held {
                    rowlock::share_key(directory.table, successor, xact::xid(), &sharers);
                }
            }
        }
        _ => {
            toast.insert(key, &tombstone.encode(), cid, false);
        }
    }
    release(directory, tid, locked);
    // Readers take their predicate lock, then look for a tombstone; so the other way round here.
    lock::check_serializable_write(directory.table, tid);
    is_held
}

/// Give up what [`lock_row`] holds beyond the row lock itself.
pub fn release(directory: &Directory, tid: Tid, locked: &Locked) {
    if matches!(locked, Locked::Bare | Locked::Fresh(_)) {
        lock::unlock_row(directory.table, tid);
    }
}
