//! As it is from PostgreSQL 18 on.

use super::super::errors::beside_workers;
use super::super::ext::postgres_functions;
use super::super::Oid;
use pgrx::pg_sys;

/// All attributes of a descriptor.
///
/// # Safety
/// A live descriptor, which is not changed while they are looked at.
pub(crate) unsafe fn attributes<'a>(
    descriptor: pg_sys::TupleDesc,
) -> &'a [pg_sys::FormData_pg_attribute] {
    // SAFETY: a live descriptor has natts attributes behind as many short forms of them, which stand behind its header.
    unsafe {
        let count = (*descriptor).natts as usize;
        let first = (*descriptor).compact_attrs.as_ptr().add(count);
        std::slice::from_raw_parts(first.cast(), count)
    }
}

/// Begin a scan of an index.
///
/// # Safety
/// As for PostgreSQL's function of this name.
pub(crate) unsafe fn index_beginscan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    keys: i32,
    orders: i32,
) -> pg_sys::IndexScanDesc {
    // SAFETY: as the caller promises.
    unsafe { pg_sys::index_beginscan(table, index, snapshot, std::ptr::null_mut(), keys, orders) }
}

/// Lock a row if it is free.
///
/// # Safety
/// An open relation.
pub(crate) unsafe fn try_lock_tuple(
    table: pg_sys::Relation,
    tid: &mut pg_sys::ItemPointerData,
    mode: pg_sys::LOCKMODE,
) -> bool {
    // SAFETY: open, as the caller promises.
    unsafe { pg_sys::ConditionalLockTuple(table, tid, mode, false) }
}

/// The transaction has ended.
///
/// # Safety
/// A plain call.
pub(crate) unsafe fn try_wait_for(xid: pg_sys::TransactionId) -> bool {
    // SAFETY: a plain call.
    unsafe { pg_sys::ConditionalXactLockTableWait(xid, false) }
}

/// How the cumulative statistics name a kind of object, and an object.
pub(crate) type StatisticsKind = u32;
pub(crate) type StatisticsObject = u64;
pub(crate) const STATISTICS_OF_RELATION: StatisticsKind = pg_sys::PGSTAT_KIND_RELATION;

pub(crate) fn statistics_object(oid: Oid) -> StatisticsObject {
    oid.to_u32().into()
}

/// Set what a signal does.
///
/// # Safety
/// A handler of PostgreSQL's.
pub(crate) unsafe fn handle_signal(
    signal: i32,
    handler: unsafe extern "C-unwind" fn(core::ffi::c_int),
) {
    // SAFETY: as the caller promises.
    unsafe {
        pg_sys::pqsignal_be(signal, Some(handler));
    }
}

/// The beginning of PostgreSQL's pg_locale_struct.
#[repr(C)]
pub(crate) struct Locale {
    provider: core::ffi::c_char,
    is_deterministic: bool,
    collate_is_c: bool,
}

postgres_functions! {
    fn pg_newlocale_from_collation(collation: Oid) -> *const Locale;
}

/// Text of this collation is compared by its bytes.
///
/// # Safety
/// The OID of a collation.
pub(crate) unsafe fn is_bytewise(collation: Oid) -> bool {
    // SAFETY: as the caller promises.
    unsafe { (*pg_newlocale_from_collation(collation)).collate_is_c }
}

/// Write a relation's counts to pg_class in place, as VACUUM does; horizons stay.
///
/// # Safety
/// An open relation.
pub(crate) unsafe fn write_counts(relation: pg_sys::Relation, rows: f64) {
    // SAFETY: open, as the caller promises. The in-place update needs no transaction of its own; ids 0 leave horizons alone.
    unsafe {
        let form = (*relation).rd_rel;
        let (mut a, mut b) = (false, false);
        pg_sys::vac_update_relstats(
            relation,
            (*form).relpages.max(0) as u32,
            rows,
            (*form).relallvisible as u32,
            (*form).relallfrozen as u32,
            (*form).relhasindex,
            pg_sys::InvalidTransactionId,
            pg_sys::MultiXactId::from_inner(0),
            &mut a,
            &mut b,
            false,
        );
    }
}

/// Serve requests, and sleep when VACUUM has done as much as it may in a while.
///
/// # Safety
/// A plain call.
pub(crate) unsafe fn delay_vacuum() {
    // SAFETY: a plain call.
    unsafe { pg_sys::vacuum_delay_point(false) }
}

/// heapam's record of user data that is overwritten in place; the data follow with the page.
#[repr(C)]
pub(crate) struct HeapInplace {
    offset: u16,
    database: Oid,
    tablespace: Oid,
    drops_cache_file: bool,
    invalidations: i32,
}

impl HeapInplace {
    pub(crate) const BYTES: usize = 20;

    /// No cache keeps what is overwritten: there is nothing to be invalidated.
    pub(crate) fn new(offset: u16) -> HeapInplace {
        // SAFETY: set when the session began.
        let (database, tablespace) =
            unsafe { (pg_sys::MyDatabaseId, pg_sys::MyDatabaseTableSpace) };
        HeapInplace { offset, database, tablespace, drops_cache_file: false, invalidations: 0 }
    }
}

/// A function to be told of a query before it is run; true: without workers.
pub(crate) type Before = unsafe extern "C-unwind" fn(*mut pg_sys::QueryDesc) -> bool;

static mut BEFORE: Option<Before> = None;
static mut PREVIOUS: pg_sys::ExecutorRun_hook_type = None;

/// Install the hook that is called when a query is run. Called once at library load.
///
/// # Safety
/// On the main thread, at load.
pub(crate) unsafe fn before_runs(before: Before) {
    // SAFETY: as the caller promises.
    unsafe {
        BEFORE = Some(before);
        PREVIOUS = pg_sys::ExecutorRun_hook;
        pg_sys::ExecutorRun_hook = Some(executor_run);
    }
}

unsafe extern "C-unwind" fn executor_run(
    query: *mut pg_sys::QueryDesc,
    direction: pg_sys::ScanDirection::Type,
    count: u64,
) {
    // SAFETY: a query that has been started.
    unsafe {
        let alone = match BEFORE {
            Some(before) => before(query),
            None => false,
        };
        // A query that has been run before goes on without workers.
        if alone {
            (*query).already_executed = true;
        }
        beside_workers(|| match PREVIOUS {
            Some(f) => f(query, direction, count),
            None => direct::standard_ExecutorRun(query, direction, count),
        })
    }
}

/// See `ext::direct`.
mod direct {
    use pgrx::pg_sys;
    unsafe extern "C-unwind" {
        pub fn standard_ExecutorRun(
            query: *mut pg_sys::QueryDesc,
            direction: pg_sys::ScanDirection::Type,
            count: u64,
        );
    }
}

/// PostgreSQL's HashJoinTableData, as far as it is looked at (executor/hashjoin.h). `layouts.c` compares it with the header.
#[repr(C)]
pub(crate) struct HashTable {
    pub bucket_count: i32,
    /// Its logarithm; the same two of how it began, and of what it should be.
    pub bucket_bits: i32,
    bucket_counts: [i32; 3],
    /// The first link of each bucket.
    pub buckets: *mut usize,
    pub skew_enabled: bool,
    skew_buckets: *mut core::ffi::c_void,
    skew_counts: [i32; 2],
    skew_numbers: *mut i32,
    pub batches: i32,
    pub current_batch: i32,
    batches_before: [i32; 2],
    grow_enabled: bool,
    pub rows: f64,
    rows_of_parts: [f64; 2],
    files: [*mut core::ffi::c_void; 2],
    room: [usize; 5],
    contexts: [*mut core::ffi::c_void; 3],
    chunks: [*mut core::ffi::c_void; 2],
    /// Where the links lead to, and what the processes share, of a table that several have built.
    pub area: *mut pg_sys::dsa_area,
    pub shared: *mut core::ffi::c_void,
}

/// What the evaluation of a projection is handed for "the value is null": nothing, as it has no value.
pub(crate) fn flag_of_projection(_: &mut bool) -> *mut bool {
    std::ptr::null_mut()
}

/// A join by hash that gives the rows of its hashed side that have a match.
pub(crate) const RIGHT_SEMI: Option<pg_sys::JoinType::Type> =
    Some(pg_sys::JoinType::JOIN_RIGHT_SEMI);

/// The path is of a kind that is switched off.
///
/// # Safety
/// A path with its costs, which is not offered yet.
pub(crate) unsafe fn disable(path: *mut pg_sys::Path) {
    // SAFETY: the caller's.
    unsafe { (*path).disabled_nodes += 1 }
}

/// Of how many kinds that are switched off the path is, as the planner's lists are ordered by first.
///
/// # Safety
/// A path.
pub(crate) unsafe fn disabled(path: *const pg_sys::Path) -> i32 {
    // SAFETY: the caller's.
    unsafe { (*path).disabled_nodes }
}

mod unfailing {
    use pgrx::pg_sys;
    unsafe extern "C-unwind" {
        pub fn pgstat_count_io_op(
            object: pg_sys::IOObject::Type,
            context: pg_sys::IOContext::Type,
            op: pg_sys::IOOp::Type,
            count: u32,
            bytes: u64,
        );
    }
}

/// A block of some relation was found in its buffer, for `pg_stat_io`.
pub(crate) fn count_io_hit() {
    use pg_sys::{IOContext, IOObject, IOOp};
    // SAFETY: a plain call, which adds to a number.
    unsafe {
        unfailing::pgstat_count_io_op(
            IOObject::IOOBJECT_RELATION,
            IOContext::IOCONTEXT_NORMAL,
            IOOp::IOOP_HIT,
            1,
            0,
        )
    }
}
