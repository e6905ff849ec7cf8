//! As it was up to PostgreSQL 16.

use super::super::Oid;
use super::Handed;
use pgrx::pg_sys;

/// Build an index anew, as REINDEX INDEX does it.
///
/// # Safety
/// As for PostgreSQL's function of this name.
pub(crate) unsafe fn reindex_index(oid: Oid, persistence: core::ffi::c_char) {
    // SAFETY: as the caller promises; the options are plain values.
    unsafe {
        let mut options: pg_sys::ReindexParams = std::mem::zeroed();
        pg_sys::reindex_index(oid, false, persistence, &mut options)
    }
}

/// The current role may maintain the relation: its owner and, as for VACUUM, the database's.
pub(crate) fn may_maintain(oid: Oid) -> bool {
    super::owns_relation(oid) || super::owns_database()
}

/// This session holds a lock in just this mode.
///
/// # Safety
/// A plain call.
pub(crate) unsafe fn holds_lock(tag: &pg_sys::LOCKTAG, mode: pg_sys::LOCKMODE) -> bool {
    // SAFETY: a plain call.
    unsafe { pg_sys::LockHeldByMe(tag, mode) }
}

/// The session of a prepared transaction.
pub(crate) const NO_SESSION: i32 = pg_sys::InvalidBackendId;

/// Session and number of a transaction that a lock is waited for.
pub(crate) fn transaction_of(id: &pg_sys::VirtualTransactionId) -> (i32, u32) {
    (id.backendId, id.localTransactionId)
}

/// Of the one that a session is in.
pub(crate) fn transaction_in(session: &pg_sys::PGPROC) -> (i32, u32) {
    (session.backendId, session.lxid)
}

/// The oldest transaction id that any database has.
///
/// # Safety
/// In a session.
pub(crate) unsafe fn oldest_xid() -> pg_sys::TransactionId {
    // SAFETY: shared memory that is set up at start.
    unsafe { (*pg_sys::ShmemVariableCache).oldestXid }
}

/// The id from which on PostgreSQL warns that few are left.
///
/// # Safety
/// In a session.
pub(crate) unsafe fn warning_xid() -> pg_sys::TransactionId {
    // SAFETY: shared memory that is set up at start.
    unsafe { (*pg_sys::ShmemVariableCache).xidWarnLimit }
}

/// Read a block of a heap for TABLESAMPLE, in place of the one read before.
///
/// # Safety
/// A scan that heapam has begun, and a block that it has.
pub(crate) unsafe fn read_sampled(scan: pg_sys::TableScanDesc, block: pg_sys::BlockNumber) {
    // SAFETY: as the caller promises.
    unsafe { pg_sys::heapgetpage(scan, block) }
}

/// Statistics targets of a relation's columns; -1 for the default.
///
/// # Safety
/// An open relation.
// (The number has 32 bits in 15, and 16 in 16.)
#[allow(clippy::useless_conversion)]
pub(crate) unsafe fn statistics_targets(relation: pg_sys::Relation) -> Vec<i32> {
    // SAFETY: open, as the caller promises.
    let attributes = unsafe { super::attributes((*relation).rd_att) };
    attributes.iter().filter(|a| !a.attisdropped).map(|a| i32::from(a.attstattarget)).collect()
}

/// Ask the system for so many blocks of a relation's main fork, which has them.
///
/// # Safety
/// An open relation.
pub(crate) unsafe fn prefetch(relation: pg_sys::Relation, first: pg_sys::BlockNumber, count: u32) {
    for block in first..first + count {
        // SAFETY: as the caller promises.
        unsafe { pg_sys::PrefetchBuffer(relation, pg_sys::ForkNumber::MAIN_FORKNUM, block) };
    }
}

/// What a scan of ANALYZE's keeps of the blocks that it is given: ANALYZE itself reads ahead.
pub(crate) struct ReadAhead;

/// Set the callback by which ANALYZE goes from block to block.
pub(crate) fn set_analyze_callback<H: Handed>(routine: &mut pg_sys::TableAmRoutine) {
    routine.scan_analyze_next_block = Some(H::ANALYZE_BLOCK);
}

/// Lock a block of a heap for ANALYZE, and begin with its rows.
///
/// # Safety
/// A scan that ANALYZE has begun, and a block of the heap.
pub(crate) unsafe fn begin_analyzed(
    scan: pg_sys::TableScanDesc,
    _: *mut ReadAhead,
    block: pg_sys::BlockNumber,
    strategy: pg_sys::BufferAccessStrategy,
) -> bool {
    // SAFETY: as the caller promises; heapam has this callback.
    unsafe {
        match super::super::heap::am().scan_analyze_next_block {
            Some(f) => f(scan, block, strategy),
            None => std::process::abort(),
        }
    }
}
