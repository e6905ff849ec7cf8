//! As it was up to PostgreSQL 17.

use super::super::errors::beside_workers;
use super::super::ext::postgres_functions;
use super::super::{heap, Oid};
use super::Handed;
use firn_format::VIRTUAL_BASE;
use pgrx::pg_sys;

/// All attributes of a descriptor.
///
/// # Safety
/// A live descriptor, which is not changed while they are looked at.
pub(crate) unsafe fn attributes<'a>(
    descriptor: pg_sys::TupleDesc,
) -> &'a [pg_sys::FormData_pg_attribute] {
    // SAFETY: a live descriptor has natts attributes behind its header.
    unsafe {
        let count = (*descriptor).natts as usize;
        std::slice::from_raw_parts((*descriptor).attrs.as_ptr(), count)
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
    unsafe { pg_sys::index_beginscan(table, index, snapshot, keys, orders) }
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
    unsafe { pg_sys::ConditionalLockTuple(table, tid, mode) }
}

/// The transaction has ended.
///
/// # Safety
/// A plain call.
pub(crate) unsafe fn try_wait_for(xid: pg_sys::TransactionId) -> bool {
    // SAFETY: a plain call.
    unsafe { pg_sys::ConditionalXactLockTableWait(xid) }
}

/// How the cumulative statistics name a kind of object, and an object.
pub(crate) type StatisticsKind = pg_sys::PgStat_Kind::Type;
pub(crate) type StatisticsObject = Oid;
pub(crate) const STATISTICS_OF_RELATION: StatisticsKind = pg_sys::PgStat_Kind::PGSTAT_KIND_RELATION;

pub(crate) fn statistics_object(oid: Oid) -> StatisticsObject {
    oid
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
        pg_sys::pqsignal(signal, Some(handler));
    }
}

postgres_functions! {
    fn lc_collate_is_c(collation: Oid) -> bool;
}

/// Text of this collation is compared by its bytes.
///
/// # Safety
/// The OID of a collation.
pub(crate) unsafe fn is_bytewise(collation: Oid) -> bool {
    // SAFETY: as the caller promises.
    unsafe { lc_collate_is_c(collation) }
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
    unsafe { pg_sys::vacuum_delay_point() }
}

/// heapam's record of user data that is overwritten in place; the data follow with the page.
#[repr(C)]
pub(crate) struct HeapInplace {
    offset: u16,
}

impl HeapInplace {
    pub(crate) const BYTES: usize = 2;

    pub(crate) fn new(offset: u16) -> HeapInplace {
        HeapInplace { offset }
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
    execute_once: bool,
) {
    // SAFETY: a query that has been started.
    unsafe {
        let alone = match BEFORE {
            Some(before) => before(query),
            None => false,
        };
        // A query that has been run before goes on without workers; up to 15.8 that is an error for one that is said
        // to be run once.
        let once = execute_once && !alone;
        if alone {
            (*query).already_executed = true;
        }
        beside_workers(|| match PREVIOUS {
            Some(f) => f(query, direction, count, once),
            None => direct::standard_ExecutorRun(query, direction, count, once),
        })
    }
}

/// What a scan keeps of its bitmap: the executor hands in one block after the other.
pub(crate) struct Bitmap;

/// Begin with the bitmap of a scan that heapam has just begun.
///
/// # Safety
/// None.
pub(crate) unsafe fn begin_bitmap(_: pg_sys::TableScanDesc, _: *mut Bitmap) {}

/// The scan gets another bitmap.
///
/// # Safety
/// None.
pub(crate) unsafe fn reset_bitmap(_: *mut Bitmap) {}

/// Set the callbacks of bitmap scans.
pub(crate) fn set_bitmap_callbacks<H: Handed>(routine: &mut pg_sys::TableAmRoutine) {
    routine.scan_bitmap_next_block = Some(bitmap_next_block::<H>);
    routine.scan_bitmap_next_tuple = Some(bitmap_next_tuple::<H>);
}

unsafe extern "C-unwind" fn bitmap_next_block<H: Handed>(
    scan: pg_sys::TableScanDesc,
    page: *mut pg_sys::TBMIterateResult,
) -> bool {
    // SAFETY: a scan of ours; a page of the bitmap has as many offsets behind it as it says, or is lossy and has none.
    unsafe {
        if (*page).blockno < VIRTUAL_BASE {
            return match heap::am().scan_bitmap_next_block {
                Some(f) => f(scan, page),
                None => std::process::abort(),
            };
        }
        let begin = H::STRIPE_BLOCK;
        let offsets = (*page).offsets.as_ptr();
        begin(scan, (*page).blockno, offsets, (*page).ntuples, (*page).recheck);
        true
    }
}

unsafe extern "C-unwind" fn bitmap_next_tuple<H: Handed>(
    scan: pg_sys::TableScanDesc,
    page: *mut pg_sys::TBMIterateResult,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: a scan of ours, the block that `bitmap_next_block` was given last, and a slot for rows of its table.
    unsafe {
        if (*page).blockno >= VIRTUAL_BASE {
            let next = H::STRIPE_ROW;
            return next(scan, slot);
        }
        let is_hidden = H::IS_HIDDEN;
        while match heap::am().scan_bitmap_next_tuple {
            Some(f) => f(scan, page, slot),
            None => std::process::abort(),
        } {
            if !is_hidden(scan, slot) {
                return true;
            }
        }
        false
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
            execute_once: bool,
        );
    }
}

/// What the evaluation of a projection is handed for "the value is null".
pub(crate) fn flag_of_projection(flag: &mut bool) -> *mut bool {
    flag
}

/// What PostgreSQL 18 brought: a join by hash that gives the rows of its hashed side that have a match.
pub(crate) const RIGHT_SEMI: Option<pg_sys::JoinType::Type> = None;

/// The path is of a kind that is switched off.
///
/// # Safety
/// A path with its costs, which is not offered yet.
pub(crate) unsafe fn disable(path: *mut pg_sys::Path) {
    // SAFETY: the caller's.
    unsafe {
        (*path).startup_cost += pg_sys::disable_cost;
        (*path).total_cost += pg_sys::disable_cost;
    }
}

/// Of how many kinds that are switched off the path is, as the planner's lists are ordered by first.
///
/// # Safety
/// A path.
pub(crate) unsafe fn disabled(_: *const pg_sys::Path) -> i32 {
    0
}
