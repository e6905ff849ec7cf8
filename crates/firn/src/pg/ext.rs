//! PostgreSQL functions that pgrx's bindings leave out, and inline functions and macros of its headers: those that are the same in all
//! versions. The others are in `compat/`.

#![allow(non_snake_case)]

use super::{compat, Oid};
use pgrx::pg_sys;
use std::mem::MaybeUninit;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

/// Declare PostgreSQL functions together with wrappers that turn its errors into unwinding panics.
macro_rules! postgres_functions {
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)?;)*) => {
        mod raw {
            use super::*;
            unsafe extern "C-unwind" {
                $(pub fn $name($($arg: $type),*) $(-> $ret)?;)*
            }
        }
        $(
            /// PostgreSQL's function of this name.
            ///
            /// # Safety
            /// As for any call into PostgreSQL: main thread, valid arguments.
            #[allow(clippy::too_many_arguments)]
            pub unsafe fn $name($($arg: $type),*) $(-> $ret)? {
                // SAFETY: the caller promises PostgreSQL what it asks of its callers; all arguments are Copy.
                unsafe { $crate::pg::ext::guarded(|| raw::$name($($arg),*)) }
            }
        )*
    };
}

pub(super) use postgres_functions;

postgres_functions! {
    fn toast_open_indexes(
        toastrel: pg_sys::Relation,
        lock: pg_sys::LOCKMODE,
        toastidxs: *mut *mut pg_sys::Relation,
        num_indexes: *mut core::ffi::c_int,
    ) -> core::ffi::c_int;
    fn toast_close_indexes(
        toastidxs: *mut pg_sys::Relation,
        num_indexes: core::ffi::c_int,
        lock: pg_sys::LOCKMODE,
    );
    fn begin_heap_rewrite(
        old_heap: pg_sys::Relation,
        new_heap: pg_sys::Relation,
        oldest_xmin: pg_sys::TransactionId,
        freeze_xid: pg_sys::TransactionId,
        cutoff_multi: pg_sys::MultiXactId,
    ) -> *mut core::ffi::c_void;
    fn NewRelationCreateToastTable(table: Oid, options: pg_sys::Datum);
    fn end_heap_rewrite(state: *mut core::ffi::c_void);
    fn rewrite_heap_dead_tuple(
        state: *mut core::ffi::c_void,
        old_tuple: pg_sys::HeapTuple,
    ) -> bool;
    fn PredicateLockTID(
        relation: pg_sys::Relation,
        tid: *mut pg_sys::ItemPointerData,
        snapshot: pg_sys::Snapshot,
        insert_xid: pg_sys::TransactionId,
    );
    fn PredicateLockRelation(relation: pg_sys::Relation, snapshot: pg_sys::Snapshot);
    fn TransferPredicateLocksToHeapRelation(relation: pg_sys::Relation);
    fn CheckForSerializableConflictIn(
        relation: pg_sys::Relation,
        tid: *mut pg_sys::ItemPointerData,
        blkno: pg_sys::BlockNumber,
    );
    fn ShareSerializableXact() -> *mut core::ffi::c_void;
    fn datum_image_eq(
        value1: pg_sys::Datum,
        value2: pg_sys::Datum,
        type_by_value: bool,
        type_len: core::ffi::c_int,
    ) -> bool;
    fn find_inheritance_children(
        parent: Oid,
        lock: pg_sys::LOCKMODE,
    ) -> *mut pg_sys::List;
    fn pgstat_get_entry_ref_locked(
        kind: compat::StatisticsKind,
        database: Oid,
        object: compat::StatisticsObject,
        nowait: bool,
    ) -> *mut PgStatEntryRef;
    fn pgstat_unlock_entry(entry: *mut PgStatEntryRef);
    fn generateClonedIndexStmt(
        relation: *mut pg_sys::RangeVar,
        index: pg_sys::Relation,
        columns: *const pg_sys::AttrMap,
        constraint: *mut Oid,
    ) -> *mut pg_sys::IndexStmt;
    fn toast_compress_datum(value: pg_sys::Datum, method: core::ffi::c_char) -> pg_sys::Datum;
    fn heap_toast_delete(
        rel: pg_sys::Relation,
        tuple: pg_sys::HeapTuple,
        is_speculative: bool,
    );
    fn find_all_inheritors(
        parent: Oid,
        lock: pg_sys::LOCKMODE,
        numparents: *mut *mut pg_sys::List,
    ) -> *mut pg_sys::List;

    // pgrx has these, each with a guard's frame of its own ([`behind_guard`]); each look-up of a row calls them.
    fn table_open(relation: Oid, lock: pg_sys::LOCKMODE) -> pg_sys::Relation;
    fn relation_close(relation: pg_sys::Relation, lock: pg_sys::LOCKMODE);
    fn heap_fetch(
        relation: pg_sys::Relation,
        snapshot: pg_sys::Snapshot,
        tuple: pg_sys::HeapTuple,
        buffer: *mut pg_sys::Buffer,
        keep: bool,
    ) -> bool;
    fn palloc0(size: pg_sys::Size) -> *mut core::ffi::c_void;
    fn pull_varattnos(
        node: *mut pg_sys::Node,
        varno: pg_sys::Index,
        attributes: *mut *mut pg_sys::Bitmapset,
    );
    fn ReleaseBuffer(buffer: pg_sys::Buffer);
    fn UnlockReleaseBuffer(buffer: pg_sys::Buffer);
}

/// A session's reference to a shared entry of the cumulative statistics (PgStat_EntryRef), as far as
/// we look into it.
#[repr(C)]
pub struct PgStatEntryRef {
    shared_entry: *mut core::ffi::c_void,
    pub table: *mut PgStatSharedTable,
}

/// A table's entry in shared memory (PgStatShared_Relation).
#[repr(C)]
pub struct PgStatSharedTable {
    magic: u32,
    lock: pg_sys::LWLock,
    pub stats: pg_sys::PgStat_StatTabEntry,
}

/// Call a C function pointer, or a function that raises as C does, so that a PostgreSQL error becomes
/// an unwinding panic.
///
/// A longjmp out of `f` runs no destructor, so `f` owns nothing that has one: it is `Copy`, as is its
/// result. A panic out of `f`, of a guarded function that it calls or of its own, ends before the
/// boundary's C frame, which nothing may unwind, and goes on behind it: guards nest.
///
/// # Safety
/// To be called on the main thread; what `f` makes inside itself needs no dropping while it calls
/// PostgreSQL.
#[inline]
pub unsafe fn guarded<T: Copy>(f: impl FnOnce() -> T + Copy) -> T {
    let mut result = MaybeUninit::uninit();
    // SAFETY: the closure and its result are Copy, so an error that passes over them drops nothing; without one there is a result.
    unsafe {
        behind_guard(&mut || {
            result.write(f());
        });
        result.assume_init()
    }
}

/// The one frame that all guarded calls share: a session that takes turns with many others finds little of itself in the processor's caches, and a
/// frame of its own for each function was a tenth of the code that a look-up runs through.
///
/// # Safety
/// As for [`guarded`].
#[inline(never)]
unsafe fn behind_guard(body: &mut dyn FnMut()) {
    // SAFETY: what the body owns is Copy, as its maker promises; the context is one that outlives the call.
    unsafe {
        let context = pg_sys::CurrentMemoryContext;
        // The boundary puts back PostgreSQL's lists of handlers and of error contexts on both ways out.
        let ended = pg_sys::ffi::pg_guard_ffi_boundary(|| catch_unwind(AssertUnwindSafe(body)));
        if let Err(panic) = ended {
            // As after an error of PostgreSQL's.
            pg_sys::CurrentMemoryContext = context;
            resume_unwind(panic)
        }
    }
}

pub(crate) use super::compat::expression_tree_mutator;
pub use super::errors::{beside_workers, callback};

/// The transaction that updated or deleted a tuple (PostgreSQL's HeapTupleHeaderGetUpdateXid).
///
/// # Safety
/// `header` is a live heap tuple header.
pub unsafe fn update_xid(header: pg_sys::HeapTupleHeader) -> pg_sys::TransactionId {
    // SAFETY: a live header, as the caller promises, of whose fields any is valid.
    unsafe {
        let mask = u32::from((*header).t_infomask);
        let multi_update = mask & pg_sys::HEAP_XMAX_INVALID == 0
            && mask & pg_sys::HEAP_XMAX_IS_MULTI != 0
            && mask & pg_sys::HEAP_XMAX_LOCK_ONLY == 0;
        if multi_update {
            return pg_sys::HeapTupleGetUpdateXid(header);
        }
        (*header).t_choice.t_heap.t_xmax
    }
}

/// A tuple has a heap-only successor, of an update that counts (PostgreSQL's HeapTupleHeaderIsHotUpdated).
///
/// # Safety
/// `header` is a live heap tuple header.
pub unsafe fn is_hot_updated(header: pg_sys::HeapTupleHeader) -> bool {
    // SAFETY: a live header, as the caller promises.
    unsafe {
        let mask = u32::from((*header).t_infomask);
        u32::from((*header).t_infomask2) & pg_sys::HEAP_HOT_UPDATED != 0
            && mask & pg_sys::HEAP_XMAX_INVALID == 0
            && mask & pg_sys::HEAP_XMIN_FROZEN != pg_sys::HEAP_XMIN_INVALID
    }
}

/// The copy of the status of backend `number` (from 1) that this transaction has made, or null.
///
/// # Safety
/// As for any call into PostgreSQL; the copy lives to the end of the transaction.
pub unsafe fn local_status(number: i32) -> *const pg_sys::PgBackendStatus {
    // SAFETY: PostgreSQL returns an entry of its copy, or null for a number that has none.
    unsafe {
        let entry = compat::local_entry(number);
        if entry.is_null() {
            return std::ptr::null();
        }
        &raw const (*entry).backendStatus
    }
}

/// The number of this session's transaction, counted in the session's slot of shared memory.
///
/// # Safety
/// In a session.
pub unsafe fn local_transaction() -> u32 {
    // SAFETY: a session has a slot in shared memory from its beginning to its end.
    unsafe { compat::transaction_in(&*pg_sys::MyProc).1 }
}

/// PostgreSQL functions that look something up, or set a field, in the session's own memory: they raise nothing, whoever calls them. The names are
/// known to `scripts/frames.py` (`UNFAILING`) and to those that make calls fail (`crates/faults/src/spared.rs`, `RELEASES`).
pub mod unfailing {
    use pgrx::pg_sys;
    unsafe extern "C-unwind" {
        pub fn bms_next_member(
            set: *const pg_sys::Bitmapset,
            before: core::ffi::c_int,
        ) -> core::ffi::c_int;
        pub fn CheckRelationLockedByMe(
            relation: pg_sys::Relation,
            mode: pg_sys::LOCKMODE,
            or_stronger: bool,
        ) -> bool;
        pub fn TransactionIdPrecedes(
            xid: pg_sys::TransactionId,
            other: pg_sys::TransactionId,
        ) -> bool;
        pub fn MemoryContextRegisterResetCallback(
            context: pg_sys::MemoryContext,
            callback: *mut pg_sys::MemoryContextCallback,
        );
    }
}

/// PostgreSQL functions called without a guard, from frames that own nothing: their errors pass by as
/// C's own longjmp, and a call costs no more than in C.
pub mod direct {
    use super::compat;
    pub use super::compat::direct::planstate_tree_walker;
    use pgrx::pg_sys;
    unsafe extern "C-unwind" {
        pub fn ExecScan(
            node: *mut pg_sys::ScanState,
            next: Option<
                unsafe extern "C-unwind" fn(*mut pg_sys::ScanState) -> *mut pg_sys::TupleTableSlot,
            >,
            recheck: Option<
                unsafe extern "C-unwind" fn(
                    *mut pg_sys::ScanState,
                    *mut pg_sys::TupleTableSlot,
                ) -> bool,
            >,
        ) -> *mut pg_sys::TupleTableSlot;
        pub fn ExecStoreVirtualTuple(
            slot: *mut pg_sys::TupleTableSlot,
        ) -> *mut pg_sys::TupleTableSlot;
        pub fn index_getnext_tid(
            scan: pg_sys::IndexScanDesc,
            direction: pg_sys::ScanDirection::Type,
        ) -> pg_sys::ItemPointer;
        pub fn index_fetch_heap(
            scan: pg_sys::IndexScanDesc,
            slot: *mut pg_sys::TupleTableSlot,
        ) -> bool;
        pub fn index_deform_tuple(
            entry: pg_sys::IndexTuple,
            desc: pg_sys::TupleDesc,
            values: *mut pg_sys::Datum,
            nulls: *mut bool,
        );
        pub fn visibilitymap_get_status(
            relation: pg_sys::Relation,
            block: pg_sys::BlockNumber,
            map: *mut pg_sys::Buffer,
        ) -> u8;
        pub fn PredicateLockPage(
            relation: pg_sys::Relation,
            block: pg_sys::BlockNumber,
            snapshot: pg_sys::Snapshot,
        );
        pub fn heap_getnextslot(
            scan: pg_sys::TableScanDesc,
            direction: pg_sys::ScanDirection::Type,
            slot: *mut pg_sys::TupleTableSlot,
        ) -> bool;
        pub fn heap_deform_tuple(
            tuple: pg_sys::HeapTuple,
            desc: pg_sys::TupleDesc,
            values: *mut pg_sys::Datum,
            nulls: *mut bool,
        );
        pub fn heap_form_tuple(
            desc: pg_sys::TupleDesc,
            values: *mut pg_sys::Datum,
            nulls: *mut bool,
        ) -> pg_sys::HeapTuple;
        pub fn heap_freetuple(tuple: pg_sys::HeapTuple);
        pub fn rewrite_heap_tuple(
            state: *mut core::ffi::c_void,
            old_tuple: pg_sys::HeapTuple,
            new_tuple: pg_sys::HeapTuple,
        );
        pub fn GetCurrentSubTransactionId() -> pg_sys::SubTransactionId;
        pub fn LockBuffer(buffer: pg_sys::Buffer, mode: core::ffi::c_int);
        pub fn ReadBufferExtended(
            relation: pg_sys::Relation,
            fork: pg_sys::ForkNumber::Type,
            block: pg_sys::BlockNumber,
            mode: pg_sys::ReadBufferMode::Type,
            ring: pg_sys::BufferAccessStrategy,
        ) -> pg_sys::Buffer;
        pub fn ReadBuffer(relation: pg_sys::Relation, block: pg_sys::BlockNumber)
            -> pg_sys::Buffer;
        pub fn ReadRecentBuffer(
            file: compat::FileName,
            fork: pg_sys::ForkNumber::Type,
            block: pg_sys::BlockNumber,
            recent: pg_sys::Buffer,
        ) -> bool;
        pub fn BufferGetLSNAtomic(buffer: pg_sys::Buffer) -> pg_sys::XLogRecPtr;
        pub fn HeapTupleSatisfiesVacuum(
            tuple: pg_sys::HeapTuple,
            oldest_xmin: pg_sys::TransactionId,
            buffer: pg_sys::Buffer,
        ) -> pg_sys::HTSV_Result::Type;
        pub fn tuplesort_putdatum(
            state: *mut pg_sys::Tuplesortstate,
            value: pg_sys::Datum,
            null: bool,
        );
        pub fn slot_getsomeattrs_int(slot: *mut pg_sys::TupleTableSlot, count: core::ffi::c_int);
        pub fn MemoryContextReset(context: pg_sys::MemoryContext);
        pub fn ProcessInterrupts();
        pub fn standard_ProcessUtility(
            statement: *mut pg_sys::PlannedStmt,
            source: *const core::ffi::c_char,
            read_only: bool,
            context: pg_sys::ProcessUtilityContext::Type,
            params: pg_sys::ParamListInfo,
            environment: *mut pg_sys::QueryEnvironment,
            dest: *mut pg_sys::DestReceiver,
            completion: *mut pg_sys::QueryCompletion,
        );
        /// Returns the address of a constant: it cannot fail.
        pub fn GetHeapamTableAmRoutine() -> *const pg_sys::TableAmRoutine;
        /// Reads a variable: it cannot fail.
        pub fn GetTopTransactionIdIfAny() -> pg_sys::TransactionId;
        pub fn make_parsestate(parent: *mut pg_sys::ParseState) -> *mut pg_sys::ParseState;
        pub fn ExecVacuum(
            state: *mut pg_sys::ParseState,
            statement: *mut pg_sys::VacuumStmt,
            top_level: bool,
        );
        pub fn die(signal: core::ffi::c_int);
        pub fn StatementCancelHandler(signal: core::ffi::c_int);
        pub fn standard_planner(
            parse: *mut pg_sys::Query,
            source: *const core::ffi::c_char,
            options: core::ffi::c_int,
            params: pg_sys::ParamListInfo,
        ) -> *mut pg_sys::PlannedStmt;
        pub fn standard_ExecutorStart(query: *mut pg_sys::QueryDesc, flags: core::ffi::c_int);
        pub fn standard_ExecutorFinish(query: *mut pg_sys::QueryDesc);
        pub fn ExecReScan(node: *mut pg_sys::PlanState);
        pub fn EvalPlanQualFetchRowMark(
            check: *mut pg_sys::EPQState,
            relation: pg_sys::Index,
            slot: *mut pg_sys::TupleTableSlot,
        ) -> bool;
    }

    /// Empty a slot, as PostgreSQL's inline function of this name.
    ///
    /// # Safety
    /// A live slot.
    pub unsafe fn ExecClearTuple(slot: *mut pg_sys::TupleTableSlot) {
        // SAFETY: a live slot, as the caller promises, whose table of functions PostgreSQL has set.
        unsafe {
            if let Some(f) = (*(*slot).tts_ops).clear {
                f(slot)
            }
        }
    }

    /// The node's next row, as PostgreSQL's inline function of this name.
    ///
    /// # Safety
    /// A node that has been initialised and not ended.
    pub unsafe fn ExecProcNode(node: *mut pg_sys::PlanState) -> *mut pg_sys::TupleTableSlot {
        // SAFETY: a node that runs, as the caller promises; its function is set by ExecInitNode.
        unsafe {
            if !(*node).chgParam.is_null() {
                ExecReScan(node);
            }
            match (*node).ExecProcNode {
                Some(f) => f(node),
                None => std::ptr::null_mut(),
            }
        }
    }
}
