//! Who uses an index's relations, and how a rebuild waits for them: by looking again, never in a lock's queue for longer
//! than it takes others to notice a deadlock.

use super::super::compat;
use super::Place;
use crate::pg::{guc, lock, xact, Oid};
use firn_directory::Xid;
use pgrx::pg_sys;
use std::time::{Duration, Instant};

const SHARE_UPDATE_EXCLUSIVE: i32 = pg_sys::ShareUpdateExclusiveLock as i32;
/// Who holds a lock that conflicts with this writes; with the other, uses the table at all.
pub const WRITERS: i32 = pg_sys::ShareLock as i32;
pub const ANYBODY: i32 = pg_sys::AccessExclusiveLock as i32;

/// Locks of the session, which last through its transactions, until [`Held::release`] or an error.
pub struct Held {
    /// Table, TOAST relation, the index and its copy: who wants one of them is given way.
    tags: Vec<pg_sys::LOCKTAG>,
    /// Table and TOAST relation, for whose users we wait.
    relations: [pg_sys::LOCKTAG; 2],
}

impl Held {
    /// Lock all that a rebuild needs unless somebody else has; then nothing is locked.
    pub fn take(place: Place) -> Option<Held> {
        let relations = [tag(place.table), tag(place.toast)];
        let mut held = Held { tags: Vec::new(), relations };
        // Moves and VACUUM lock the table first, too.
        for oid in [place.table, place.toast, place.index] {
            if !held.add(oid) {
                held.release();
                return None;
            }
        }
        Some(held)
    }

    pub fn add(&mut self, oid: Oid) -> bool {
        let tag = tag(oid);
        // SAFETY: plain call.
        let got = unsafe { pg_sys::LockAcquire(&tag, SHARE_UPDATE_EXCLUSIVE, true, true) };
        let got = got != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL;
        if got {
            self.tags.push(tag);
        }
        got
    }

    pub fn release(self) {
        for tag in self.tags.iter().rev() {
            // SAFETY: taken in add().
            unsafe { pg_sys::LockRelease(tag, SHARE_UPDATE_EXCLUSIVE, true) };
        }
    }

    /// Somebody wants what our locks keep from him.
    pub fn are_wanted(&self) -> bool {
        // SAFETY: locks that we hold.
        let has_waiters =
            |tag: &_| unsafe { pg_sys::LockHasWaiters(tag, SHARE_UPDATE_EXCLUSIVE, true) };
        self.tags.iter().any(has_waiters)
    }

    /// Wait for the transactions that hold locks on the relations which conflict with `mode`.
    pub fn wait_for(&self, mode: i32, until: Instant) -> bool {
        xact::next();
        let others = self.relations.iter().flat_map(|tag| lockers(tag, mode)).collect();
        wait_for_ends(others, until, || self.are_wanted())
    }

    /// Lock indexes so that nobody uses them, to the end of this transaction. One does not get that beside sessions that
    /// use them all the time without standing in the queue. So does this, now and then and less and less often, and so
    /// briefly that nobody who begins to wait meanwhile looks for a deadlock before it is over.
    pub fn keep_others_out(&self, indexes: &[Oid], until: Instant) -> bool {
        let (mut in_queue, mut between) = (Instant::now(), BETWEEN_QUEUES);
        // Standbys keep the lock to the end of the transaction that has asked for it. It waits for none of them.
        let again = || {
            xact::next();
            false
        };
        again();
        wait(
            until,
            || self.are_wanted(),
            || {
                // Asked first, as asking for this lock takes an id, with which nobody is to be kept waiting.
                let is_free = |index: &Oid| lockers(&tag(*index), ANYBODY).is_empty();
                if indexes.iter().all(is_free) {
                    guc::commit_without_standbys();
                    return take_all(indexes, try_lock) || again();
                }
                if Instant::now() < in_queue || self.are_wanted() || users_wait(indexes) {
                    return false;
                }
                guc::commit_without_standbys();
                let got = take_all(indexes, |index| {
                    lock::relation_within(index, ANYBODY, in_queue_for() / indexes.len() as u32)
                });
                in_queue = Instant::now() + between;
                between = (between * 2).min(LONGEST_BETWEEN);
                got || again()
            },
        )
    }
}

/// How long all locks together are stood for, and how long is waited before the next time, at first and at last.
const IN_QUEUE: Duration = Duration::from_millis(50);
const BETWEEN_QUEUES: Duration = Duration::from_millis(500);
const LONGEST_BETWEEN: Duration = Duration::from_secs(16);

fn in_queue_for() -> Duration {
    // SAFETY: a setting.
    let deadlock = unsafe { pg_sys::DeadlockTimeout };
    IN_QUEUE.min(Duration::from_millis(deadlock.max(2) as u64 / 2))
}

fn try_lock(index: Oid) -> bool {
    // SAFETY: plain call.
    unsafe { pg_sys::ConditionalLockRelationOid(index, ANYBODY) }
}

/// All locks or none.
fn take_all(indexes: &[Oid], take: impl Fn(Oid) -> bool) -> bool {
    for (i, index) in indexes.iter().enumerate() {
        if !take(*index) {
            for taken in &indexes[..i] {
                // SAFETY: taken before.
                unsafe { pg_sys::UnlockRelationOid(*taken, ANYBODY) };
            }
            return false;
        }
    }
    true
}

/// Somebody who uses one of the indexes waits for a lock himself, or is a prepared transaction. He may have waited for nearly
/// as long as it takes until he looks for a deadlock, and we are not to be a part of it.
fn users_wait(indexes: &[Oid]) -> bool {
    let users: Vec<Transaction> =
        indexes.iter().flat_map(|index| lockers(&tag(*index), ANYBODY)).collect();
    let is_user = |process: &pg_sys::PGPROC| {
        let is = |t: &Transaction| compat::transaction_of(t) == compat::transaction_in(process);
        users.iter().any(is)
    };
    // SAFETY: the array in shared memory has that many entries; what is read changes at any time, in one go.
    let waits = |i: usize| unsafe {
        let process = (*pg_sys::ProcGlobal).allProcs.add(i);
        !std::ptr::read_volatile(&raw const (*process).waitLock).is_null() && is_user(&*process)
    };
    // SAFETY: set when the server began.
    let count = unsafe { (*pg_sys::ProcGlobal).allProcCount } as usize;
    users.iter().any(|t| compat::transaction_of(t).0 == compat::NO_SESSION) || (0..count).any(waits)
}

pub fn tag(oid: Oid) -> pg_sys::LOCKTAG {
    pg_sys::LOCKTAG {
        // SAFETY: set when the session began.
        locktag_field1: unsafe { pg_sys::MyDatabaseId }.to_u32(),
        locktag_field2: oid.to_u32(),
        locktag_field3: 0,
        locktag_field4: 0,
        locktag_type: pg_sys::LockTagType::LOCKTAG_RELATION as u8,
        locktag_lockmethodid: 1,
    }
}

type Transaction = pg_sys::VirtualTransactionId;

pub fn lockers(tag: &pg_sys::LOCKTAG, mode: i32) -> Vec<Transaction> {
    // SAFETY: the array lives in this transaction's memory and is copied; freed, as this is asked again and again.
    unsafe {
        let mut count = 0;
        let list = pg_sys::GetLockConflicts(tag, mode, &mut count);
        let found = std::slice::from_raw_parts(list, count as usize).to_vec();
        pg_sys::pfree(list.cast());
        found
    }
}

/// Transactions of this database whose snapshots are not newer than `xmin` ([`Xid::NONE`]: all that have one).
pub fn snapshot_holders(xmin: Xid) -> Vec<Transaction> {
    const NOBODYS: u32 =
        pg_sys::PROC_IS_AUTOVACUUM | pg_sys::PROC_IN_VACUUM | pg_sys::PROC_IN_SAFE_IC;
    // SAFETY: as above.
    unsafe {
        let xmin = xact::raw_xid(xmin);
        let mut count = 0;
        let list = pg_sys::GetCurrentVirtualXIDs(xmin, true, false, NOBODYS as i32, &mut count);
        let found = std::slice::from_raw_parts(list, count as usize).to_vec();
        pg_sys::pfree(list.cast());
        found
    }
}

/// Wait until these have ended; false when that takes too long, or is `wanted` to end.
pub fn wait_for_ends(
    mut others: Vec<Transaction>,
    until: Instant,
    wanted: impl Fn() -> bool,
) -> bool {
    wait(until, wanted, || {
        // SAFETY: does not wait.
        others.retain(|other| unsafe { !pg_sys::VirtualXactLock(*other, false) });
        others.is_empty()
    })
}

/// Wait until these have ended or have newer snapshots.
pub fn wait_for_snapshots(
    xmin: Xid,
    mut others: Vec<Transaction>,
    until: Instant,
    wanted: impl Fn() -> bool,
) -> bool {
    wait(until, wanted, || {
        if !others.is_empty() {
            let now = snapshot_holders(xmin);
            let id = compat::transaction_of;
            others.retain(|other| now.iter().any(|n| id(n) == id(other)));
        }
        others.is_empty()
    })
}

/// Wait until no snapshot that standbys (or slots) tell of can be older than one which ends before this transaction.
pub fn wait_for_standbys(xmax: Xid, until: Instant, wanted: impl Fn() -> bool) -> bool {
    wait(until, wanted, || {
        xact::reported_xmins().into_iter().all(|xmin| !xact::precedes(xmin, xmax))
    })
}

fn wait(until: Instant, wanted: impl Fn() -> bool, mut over: impl FnMut() -> bool) -> bool {
    let mut pause = 1;
    loop {
        if over() {
            return true;
        }
        if Instant::now() >= until || wanted() {
            return false;
        }
        nap(pause);
        pause = (pause * 2).min(100);
    }
}

/// Sleep so many milliseconds, or until somebody wakes us.
fn nap(milliseconds: i64) {
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: this process's latch.
    unsafe {
        let latch = pg_sys::MyLatch;
        pg_sys::WaitLatch(latch, events as i32, milliseconds as _, pg_sys::PG_WAIT_EXTENSION);
        pg_sys::ResetLatch(latch);
    }
    xact::check_for_interrupts();
}
