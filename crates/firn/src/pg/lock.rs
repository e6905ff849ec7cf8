//! Heavyweight locks: short ones on rows and on the allocation of addresses, and waiting for
//! transactions.

use super::compat;
use super::toast::raw_tid;
use super::xact::Sub;
use super::{attempt, guc, toast_indexes, xact, Oid, Rel};
use firn_directory::Xid;
use firn_format::Tid;
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::time::Duration;

const EXCLUSIVE: i32 = pg_sys::ExclusiveLock as i32;

/// What to do when a row is locked by someone else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    Block,
    Skip,
    Error,
}

/// Take the short lock of one row.
pub fn lock_row(table: Rel, tid: Tid) {
    let mut raw = raw_tid(tid);
    // SAFETY: plain call on an open relation.
    unsafe { pg_sys::LockTuple(table.raw(), &mut raw, EXCLUSIVE) }
}

/// Take the short lock of one row if it is free.
pub fn try_lock_row(table: Rel, tid: Tid) -> bool {
    let mut raw = raw_tid(tid);
    // SAFETY: plain call on an open relation.
    unsafe { compat::try_lock_tuple(table.raw(), &mut raw, EXCLUSIVE) }
}

pub fn unlock_row(table: Rel, tid: Tid) {
    let mut raw = raw_tid(tid);
    // SAFETY: as above; taken by lock_row.
    unsafe { pg_sys::UnlockTuple(table.raw(), &mut raw, EXCLUSIVE) }
}

/// Wait until `xid` has ended; false when it runs and we may not wait.
pub fn wait_for(xid: Xid, table: Rel, tid: Tid, wait: bool) -> bool {
    let mut raw = raw_tid(tid);
    let xid = xact::raw_xid(xid);
    // SAFETY: plain calls.
    unsafe {
        if wait {
            pg_sys::XactLockTableWait(xid, table.raw(), &mut raw, pg_sys::XLTW_Oper::XLTW_Lock);
            true
        } else {
            compat::try_wait_for(xid)
        }
    }
}

/// Lock a relation to the end of the transaction, waiting for so long at most. False when that was not long enough.
pub fn relation_within(oid: Oid, mode: i32, wait: Duration) -> bool {
    let taken = attempt::subtransaction(|| {
        guc::with_lock_timeout(wait, || {
            // SAFETY: plain call; raises when it takes longer.
            unsafe { pg_sys::LockRelationOid(oid, mode) }
            // The time may be over just as the lock is granted. Then the timeout is still to be raised, and is no error of what
            // is done under the lock.
            xact::check_for_interrupts();
        })
    });
    match taken {
        Ok(()) => true,
        Err(panic) if attempt::is_about_locks(panic.as_ref()) => false,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Serialises the allocation of slots and chunk addresses of one table: a lock on page 0 of its
/// TOAST relation, which nobody else takes. Released on drop, or by PostgreSQL on error.
pub struct AllocationLock(pg_sys::Relation);

impl AllocationLock {
    pub fn take(toast: Rel) -> AllocationLock {
        // SAFETY: plain call on an open relation.
        unsafe { pg_sys::LockPage(toast.raw(), 0, EXCLUSIVE) }
        AllocationLock(toast.raw())
    }
}

impl Drop for AllocationLock {
    fn drop(&mut self) {
        if !super::memory::resources_are_released() {
            // SAFETY: taken in take(); the relation stays open around it.
            unsafe { pg_sys::UnlockPage(self.0, 0, EXCLUSIVE) }
        }
    }
}

/// Tables whose look-ups have been made ready in a transaction and subtransaction.
#[derive(Default)]
struct Ready {
    within: (u32, Sub),
    tables: HashSet<Oid>,
}

thread_local! {
    static READY: RefCell<Ready> = RefCell::default();
    /// The one that was asked for last.
    static LAST: Cell<(Oid, (u32, Sub))> = const { Cell::new((Oid::INVALID, (0, Sub::NONE))) };
}

/// PostgreSQL looks at the row of an equal key while it has a page of the index in its hands: interrupts wait then, and no
/// deadlock would be found. Whatever is to be waited for, such as a REINDEX of the TOAST relation's index, is waited for
/// here, before that. The lock is the one that a writer of stripes or of large values takes: none is made stronger later.
#[inline]
pub(crate) unsafe fn before_indexes(rel: pg_sys::Relation) {
    // SAFETY: an open relation of the statement that runs.
    unsafe {
        // Without indexes of its own the table's large values still go into those of its TOAST relation.
        if toast_indexes::are_left() {
            super::ext::callback(toast_indexes::forget_after_error);
        }
        if !(*(*rel).rd_rel).relhasindex && !toast_indexes::are_several_open() {
            return;
        }
        let sub = Sub(super::ext::direct::GetCurrentSubTransactionId());
        let within = (super::ext::local_transaction(), sub);
        let asked = ((*rel).rd_id, within);
        if LAST.get() != asked {
            super::ext::callback(|| {
                let is_new = READY.with_borrow_mut(|ready| {
                    if ready.within != within {
                        *ready = Ready { within, tables: HashSet::new() };
                    }
                    !ready.tables.contains(&asked.0)
                });
                if is_new {
                    super::Toast::lock(Rel::of(rel));
                    READY.with_borrow_mut(|ready| ready.tables.insert(asked.0));
                }
                LAST.set(asked);
            });
        }
    }
}

/// This transaction has locked the table to lock or change rows of it. Whoever has it in SHARE UPDATE EXCLUSIVE mode says himself
/// what he does: ANALYZE writes a note, a concurrent build of an index only reads, and a REINDEX of the TOAST relation need not
/// wait for it.
pub(super) fn may_write(table: Rel) -> bool {
    let modes = [pg_sys::RowExclusiveLock, pg_sys::RowShareLock];
    // SAFETY: looks into the session's own table of locks, and cannot fail.
    modes.into_iter().any(|mode| unsafe {
        super::ext::unfailing::CheckRelationLockedByMe(table.raw(), mode as i32, false)
    })
}

/// This transaction has locked a relation of this database in just this mode. (PostgreSQL's own function for it is of some minor versions only.)
pub fn holds(oid: Oid, mode: i32) -> bool {
    // SAFETY: set when the session began; looks into the session's own table of locks.
    unsafe {
        let tag = pg_sys::LOCKTAG {
            locktag_field1: pg_sys::MyDatabaseId.to_u32(),
            locktag_field2: oid.to_u32(),
            locktag_field3: 0,
            locktag_field4: 0,
            locktag_type: pg_sys::LockTagType::LOCKTAG_RELATION as u8,
            locktag_lockmethodid: 1,
        };
        compat::holds_lock(&tag, mode)
    }
}

/// This transaction has locked the table, to its end, so that no other session inserts rows or looks for their keys.
pub(super) fn lets_nobody_write(table: Rel) -> bool {
    let share = pg_sys::ShareLock as i32;
    // SAFETY: looks into the session's own table of locks.
    unsafe { pg_sys::CheckRelationLockedByMe(table.raw(), share, true) }
}

/// Whether this session holds a page or another light lock: nobody can interrupt it, and whoever wants the page stands behind it.
pub fn holds_light() -> bool {
    // SAFETY: reads a variable.
    unsafe { pg_sys::InterruptHoldoffCount != 0 }
}

/// Serializable isolation: this transaction writes (or replaces) the row at `tid`.
pub fn check_serializable_write(table: Rel, tid: Tid) {
    let mut raw = raw_tid(tid);
    // SAFETY: plain call.
    unsafe { super::ext::CheckForSerializableConflictIn(table.raw(), &mut raw, tid.block) }
}

/// Serializable isolation: this transaction inserts rows into the table.
pub fn check_serializable_insert(table: Rel) {
    // SAFETY: plain call; no TID and no block stand for "somewhere in the table".
    unsafe {
        let none = std::ptr::null_mut();
        super::ext::CheckForSerializableConflictIn(table.raw(), none, pg_sys::InvalidBlockNumber)
    }
}

/// Serializable isolation: this transaction is about to read the row at `tid` under `snap`.
pub fn predicate_lock_row(table: Rel, tid: Tid, snap: super::Snap) {
    let mut raw = raw_tid(tid);
    let nobody = xact::raw_xid(Xid::NONE);
    // SAFETY: plain call.
    unsafe { super::ext::PredicateLockTID(table.raw(), &mut raw, snap.0, nobody) }
}

/// Serializable isolation: rows of the table get other TIDs; whoever has read one counts as having
/// read the whole table.
pub fn widen_predicate_locks(table: Rel) {
    // SAFETY: plain call.
    unsafe { super::ext::TransferPredicateLocksToHeapRelation(table.raw()) }
}

/// Serializable isolation: this transaction is about to read the whole table under `snap`.
pub fn predicate_lock_table(table: Rel, snap: super::Snap) {
    // SAFETY: plain call.
    unsafe { super::ext::PredicateLockRelation(table.raw(), snap.0) }
}

/// Whether another transaction holds a lock on the table that conflicts with `mode`, at this moment.
pub fn is_held_by_others(table: Rel, mode: super::LockMode) -> bool {
    let oid = table.oid();
    // SAFETY: the lock is given back at once; one that this transaction has already is counted.
    unsafe {
        if !pg_sys::ConditionalLockRelationOid(oid, mode as i32) {
            return true;
        }
        pg_sys::UnlockRelationOid(oid, mode as i32);
        false
    }
}
