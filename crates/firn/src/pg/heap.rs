//! The row store: heapam's callbacks and functions, called as they are.

use super::slot::Slot;
use super::snapshot::Snap;
use super::toast::{raw_tid, tid_of, Address};
use super::xact::{raw_xid, xid_of};
use super::Rel;
use firn_directory::{Cid, Xid};
use firn_format::Tid;
use pgrx::pg_sys;

/// heapam's routine; valid for the life of the process.
#[inline]
pub(crate) fn am() -> &'static pg_sys::TableAmRoutine {
    static mut ROUTINE: *const pg_sys::TableAmRoutine = std::ptr::null();
    // SAFETY: PostgreSQL returns a pointer to a static; main thread only.
    unsafe {
        if ROUTINE.is_null() {
            ROUTINE = super::ext::direct::GetHeapamTableAmRoutine();
        }
        &*ROUTINE
    }
}

/// Pages that a row store may have. Half of all block numbers are those of stripe rows; the pages left out
/// in between are for what is inserted by sessions that have looked when there was room.
const MOST_BLOCKS: u32 = firn_format::VIRTUAL_BASE - (1 << 22);

/// The row store may have come to its end. PostgreSQL remembers where it has inserted last: only a session
/// that is near the end, or begins, has to look at the file's length.
#[inline]
unsafe fn is_near_end(rel: pg_sys::Relation) -> bool {
    // SAFETY: an open relation; its file's entry may be missing.
    unsafe {
        let smgr = (*rel).rd_smgr;
        // An unknown block is the greatest number.
        smgr.is_null() || (*smgr).smgr_targblock >= MOST_BLOCKS
    }
}

/// Raise when the row store is as large as it may be. For callbacks, before heapam's.
///
/// # Safety
/// An open relation.
#[inline]
pub(crate) unsafe fn check_room(rel: pg_sys::Relation) {
    // SAFETY: an open relation, as the caller promises.
    unsafe {
        if is_near_end(rel) {
            super::ext::callback(|| refuse_to_outgrow(Rel::of(rel)))
        }
    }
}

fn refuse_to_outgrow(table: Rel) {
    if table.heap_blocks() >= MOST_BLOCKS {
        super::error(
            super::Kind::Limit,
            format!("the row store of table \"{}\" is full", table.name()),
        )
        .detail(format!("It has {} blocks, of {MOST_BLOCKS}.", table.heap_blocks()))
        .hint("Move rows into stripes with firn.compact and run VACUUM, or partition the table.")
        .raise()
    }
}

/// Insert the slot's row into the row store, of which nobody who decodes is told; the slot gets its TID.
pub fn insert_untold(table: Rel, slot: Slot, cid: Cid) {
    // SAFETY: heapam always has this callback; errors unwind through the guard.
    unsafe {
        let Some(f) = am().tuple_insert else { return };
        if is_near_end(table.raw()) {
            refuse_to_outgrow(table);
        }
        let options = pg_sys::HEAP_INSERT_NO_LOGICAL as i32;
        super::ext::guarded(|| f(table.raw(), slot.0, cid.0, options, std::ptr::null_mut()))
    }
}

/// Result of a delete, update or lock, as tableam defines it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Ok,
    Invisible,
    SelfModified,
    Updated,
    Deleted,
    BeingModified,
    WouldBlock,
}

impl Outcome {
    pub(crate) fn raw(self) -> pg_sys::TM_Result::Type {
        use pg_sys::TM_Result as T;
        match self {
            Outcome::Ok => T::TM_Ok,
            Outcome::Invisible => T::TM_Invisible,
            Outcome::SelfModified => T::TM_SelfModified,
            Outcome::Updated => T::TM_Updated,
            Outcome::Deleted => T::TM_Deleted,
            Outcome::BeingModified => T::TM_BeingModified,
            Outcome::WouldBlock => T::TM_WouldBlock,
        }
    }
    pub(crate) fn of(raw: pg_sys::TM_Result::Type) -> Outcome {
        use pg_sys::TM_Result as T;
        match raw {
            T::TM_Ok => Outcome::Ok,
            T::TM_Invisible => Outcome::Invisible,
            T::TM_SelfModified => Outcome::SelfModified,
            T::TM_Updated => Outcome::Updated,
            T::TM_Deleted => Outcome::Deleted,
            T::TM_BeingModified => Outcome::BeingModified,
            _ => Outcome::WouldBlock,
        }
    }
}

/// Why a row could not be changed, for the executor's re-check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Failure {
    pub successor: Option<Tid>,
    pub xmax: Xid,
    pub cmax: Cid,
    pub traversed: bool,
}

impl Failure {
    pub(crate) fn of(raw: &pg_sys::TM_FailureData) -> Failure {
        Failure {
            successor: Some(tid_of(&raw.ctid)),
            xmax: xid_of(raw.xmax),
            cmax: Cid(raw.cmax),
            traversed: raw.traversed,
        }
    }
    pub(crate) fn write(&self, raw: &mut pg_sys::TM_FailureData) {
        if let Some(tid) = self.successor {
            raw.ctid = raw_tid(tid);
        }
        raw.xmax = raw_xid(self.xmax);
        raw.cmax = self.cmax.0;
        raw.traversed = self.traversed;
    }
}

/// Strength of a row lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowLock {
    KeyShare,
    Share,
    NoKeyExclusive,
    Exclusive,
}

impl RowLock {
    pub(crate) fn of(raw: pg_sys::LockTupleMode::Type) -> RowLock {
        use pg_sys::LockTupleMode as M;
        match raw {
            M::LockTupleKeyShare => RowLock::KeyShare,
            M::LockTupleShare => RowLock::Share,
            M::LockTupleNoKeyExclusive => RowLock::NoKeyExclusive,
            _ => RowLock::Exclusive,
        }
    }
    pub(crate) fn raw(self) -> pg_sys::LockTupleMode::Type {
        use pg_sys::LockTupleMode as M;
        match self {
            RowLock::KeyShare => M::LockTupleKeyShare,
            RowLock::Share => M::LockTupleShare,
            RowLock::NoKeyExclusive => M::LockTupleNoKeyExclusive,
            RowLock::Exclusive => M::LockTupleExclusive,
        }
    }
}

/// Lock the tuple at `at` of `rel` (a heap: a row store or a TOAST relation) natively; with `follow`, the later
/// versions of an updated row, too.
pub fn lock_tuple(
    rel: Rel,
    at: impl Into<Address>,
    cid: Cid,
    mode: RowLock,
    wait: super::lock::Wait,
    follow: bool,
) -> (Outcome, Failure) {
    use super::lock::Wait;
    let policy = match wait {
        Wait::Block => pg_sys::LockWaitPolicy::LockWaitBlock,
        Wait::Skip => pg_sys::LockWaitPolicy::LockWaitSkip,
        Wait::Error => pg_sys::LockWaitPolicy::LockWaitError,
    };
    // SAFETY: outputs are plain structs; the buffer pin is released.
    unsafe {
        let mut tuple: pg_sys::HeapTupleData = std::mem::zeroed();
        tuple.t_self = at.into().raw();
        tuple.t_tableOid = (*rel.raw()).rd_id;
        let mut failure: pg_sys::TM_FailureData = std::mem::zeroed();
        let mut buffer: pg_sys::Buffer = 0;
        let result = pg_sys::heap_lock_tuple(
            rel.raw(),
            &mut tuple,
            cid.0,
            mode.raw(),
            policy,
            follow,
            &mut buffer,
            &mut failure,
        );
        if buffer != 0 {
            pg_sys::ReleaseBuffer(buffer);
        }
        (Outcome::of(result), Failure::of(&failure))
    }
}

/// A scan of the row store alone.
pub struct RowStoreScan(pg_sys::TableScanDesc);

impl RowStoreScan {
    pub fn begin(table: Rel, snap: Snap) -> RowStoreScan {
        let flags = pg_sys::ScanOptions::SO_TYPE_SEQSCAN
            | pg_sys::ScanOptions::SO_ALLOW_PAGEMODE
            | pg_sys::ScanOptions::SO_ALLOW_STRAT;
        // SAFETY: heap_beginscan does not look at the access method.
        RowStoreScan(unsafe {
            pg_sys::heap_beginscan(
                table.raw(),
                snap.0,
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                flags,
            )
        })
    }
    /// A scan of these blocks, of which there is one at least; all of them exist.
    pub fn of_blocks(table: Rel, snap: Snap, blocks: std::ops::Range<u32>) -> RowStoreScan {
        let scan = RowStoreScan::begin(table, snap);
        // SAFETY: the scan has not begun, and begins where it is told to.
        unsafe { pg_sys::heap_setscanlimits(scan.0, blocks.start, blocks.end - blocks.start) }
        scan
    }
    pub(crate) fn raw(&self) -> pg_sys::TableScanDesc {
        self.0
    }
    pub fn next(&mut self, slot: Slot) -> bool {
        // SAFETY: the slot is a buffer heap slot of the table.
        unsafe {
            pg_sys::heap_getnextslot(self.0, pg_sys::ScanDirection::ForwardScanDirection, slot.0)
        }
    }
}

impl Drop for RowStoreScan {
    fn drop(&mut self) {
        if !super::memory::resources_are_released() {
            // SAFETY: begun in begin().
            unsafe { pg_sys::heap_endscan(self.0) }
        }
    }
}

/// `snap` sees the row-store row at `place`.
pub fn sees(rel: Rel, place: Tid, snap: Snap) -> bool {
    if !rel.has_block(place.block) {
        return false;
    }
    // SAFETY: the block exists; outputs are plain structs; the buffer pin is released.
    unsafe {
        let mut tuple: pg_sys::HeapTupleData = std::mem::zeroed();
        tuple.t_self = raw_tid(place);
        let mut buffer: pg_sys::Buffer = 0;
        let seen = pg_sys::heap_fetch(rel.raw(), snap.0, &mut tuple, &mut buffer, false);
        if seen {
            pg_sys::ReleaseBuffer(buffer);
        }
        seen
    }
}

/// What became of a row-store row that was deleted or updated.
#[derive(Clone, Copy, Debug)]
pub struct Fate {
    /// Who did it.
    pub deleter: Xid,
    /// Where the version is that an update made.
    pub next: Option<Tid>,
}

/// What became of the row-store row at `place`, whoever sees it; None when nothing did.
pub fn fate(rel: Rel, place: Tid) -> Option<Fate> {
    if !rel.has_block(place.block) {
        return None;
    }
    // SAFETY: the block exists; the header is read under the page's lock; pin and lock are released.
    unsafe {
        let mut tuple: pg_sys::HeapTupleData = std::mem::zeroed();
        tuple.t_self = raw_tid(place);
        let mut buffer: pg_sys::Buffer = 0;
        if !pg_sys::heap_fetch(rel.raw(), Snap::any().0, &mut tuple, &mut buffer, false) {
            return None;
        }
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
        let header = tuple.t_data;
        let untouched = pg_sys::HEAP_XMAX_INVALID | pg_sys::HEAP_XMAX_LOCK_ONLY;
        let touched = u32::from((*header).t_infomask) & untouched == 0;
        let deleter = if touched { xid_of(super::ext::update_xid(header)) } else { Xid::NONE };
        let next = tid_of(&(*header).t_ctid);
        pg_sys::UnlockReleaseBuffer(buffer);
        let next = (next != place && !next.is_virtual()).then_some(next);
        (deleter != Xid::NONE).then_some(Fate { deleter, next })
    }
}
