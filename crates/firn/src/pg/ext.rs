//! PostgreSQL functions that pgrx's bindings leave out, and the version-specific parts of those they
//! have. What differs between PostgreSQL 15 and 18 belongs here and in `tableam`.

use pgrx::pg_sys;

#[pgrx::pg_guard]
unsafe extern "C-unwind" {
    pub fn toast_open_indexes(
        toastrel: pg_sys::Relation,
        lock: pg_sys::LOCKMODE,
        toastidxs: *mut *mut pg_sys::Relation,
        num_indexes: *mut core::ffi::c_int,
    ) -> core::ffi::c_int;
    pub fn toast_close_indexes(
        toastidxs: *mut pg_sys::Relation,
        num_indexes: core::ffi::c_int,
        lock: pg_sys::LOCKMODE,
    );
    pub fn begin_heap_rewrite(
        old_heap: pg_sys::Relation,
        new_heap: pg_sys::Relation,
        oldest_xmin: pg_sys::TransactionId,
        freeze_xid: pg_sys::TransactionId,
        cutoff_multi: pg_sys::MultiXactId,
    ) -> *mut core::ffi::c_void;
    pub fn end_heap_rewrite(state: *mut core::ffi::c_void);
    pub fn rewrite_heap_tuple(
        state: *mut core::ffi::c_void,
        old_tuple: pg_sys::HeapTuple,
        new_tuple: pg_sys::HeapTuple,
    );
    pub fn rewrite_heap_dead_tuple(
        state: *mut core::ffi::c_void,
        old_tuple: pg_sys::HeapTuple,
    ) -> bool;
    pub fn PredicateLockTID(
        relation: pg_sys::Relation,
        tid: *mut pg_sys::ItemPointerData,
        snapshot: pg_sys::Snapshot,
        insert_xid: pg_sys::TransactionId,
    );
    pub fn PredicateLockRelation(relation: pg_sys::Relation, snapshot: pg_sys::Snapshot);
    pub fn CheckForSerializableConflictIn(
        relation: pg_sys::Relation,
        tid: *mut pg_sys::ItemPointerData,
        blkno: pg_sys::BlockNumber,
    );
    pub fn toast_flatten_tuple(
        tup: pg_sys::HeapTuple,
        desc: pg_sys::TupleDesc,
    ) -> pg_sys::HeapTuple;
}

/// Call a C function pointer so that a PostgreSQL error becomes an unwinding panic.
///
/// # Safety
/// `f` may call PostgreSQL only, on the main thread, and owns nothing that needs dropping.
#[inline]
pub unsafe fn guarded<T>(f: impl FnOnce() -> T) -> T {
    pg_sys::ffi::pg_guard_ffi_boundary(f)
}

/// Run a callback's body so that panics and errors leave it as PostgreSQL errors.
#[inline]
pub unsafe fn callback<R: Copy>(f: impl FnOnce() -> R) -> R {
    pg_sys::panic::pgrx_extern_c_guard(f)
}
