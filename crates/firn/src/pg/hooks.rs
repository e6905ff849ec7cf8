//! Hooks into PostgreSQL, each calling the one before it.

use super::ext::{callback, direct};
use super::wanted;
use pgrx::pg_sys;

static mut PREVIOUS_START: pg_sys::ExecutorStart_hook_type = None;
static mut PREVIOUS_RUN: pg_sys::ExecutorRun_hook_type = None;
static mut PREVIOUS_FINISH: pg_sys::ExecutorFinish_hook_type = None;

/// Install all hooks. Called once at library load.
pub fn install() {
    // SAFETY: main thread, at load.
    unsafe {
        PREVIOUS_START = pg_sys::ExecutorStart_hook;
        pg_sys::ExecutorStart_hook = Some(executor_start);
        PREVIOUS_RUN = pg_sys::ExecutorRun_hook;
        pg_sys::ExecutorRun_hook = Some(executor_run);
        PREVIOUS_FINISH = pg_sys::ExecutorFinish_hook;
        pg_sys::ExecutorFinish_hook = Some(executor_finish);
    }
}

unsafe extern "C-unwind" fn executor_start(query: *mut pg_sys::QueryDesc, flags: i32) {
    match PREVIOUS_START {
        Some(f) => f(query, flags),
        None => direct::standard_ExecutorStart(query, flags),
    }
    let state = (*query).planstate;
    if !state.is_null() {
        let mut reads = wanted::only_reads(query);
        prepare(state, (&raw mut reads).cast());
    }
}

/// A query that a function runs within a bulk statement sees the rows collected so far. They are in this
/// session's memory, where no worker sees them, and not every parallel plan is carried out by its leader,
/// too: such a query runs without workers.
unsafe extern "C-unwind" fn executor_run(
    query: *mut pg_sys::QueryDesc,
    direction: pg_sys::ScanDirection::Type,
    count: u64,
    once: bool,
) {
    let parallel = (*(*query).plannedstmt).parallelModeNeeded;
    let alone = parallel && callback(crate::write::is_collecting);
    // A plan that is gone on with has no workers; which of both says so depends on the minor version.
    (*query).already_executed |= alone;
    let once = once && !alone;
    match PREVIOUS_RUN {
        Some(f) => f(query, direction, count, once),
        None => direct::standard_ExecutorRun(query, direction, count, once),
    }
}

/// Look at each scan of a plan before it runs.
unsafe extern "C-unwind" fn prepare(
    state: *mut pg_sys::PlanState,
    only_reads: *mut core::ffi::c_void,
) -> bool {
    if state.is_null() {
        return false;
    }
    no_prefetch(state);
    if *(only_reads as *mut bool) {
        wanted::note(state);
    }
    direct::planstate_tree_walker(state, Some(prepare), only_reads)
}

/// Up to PostgreSQL 17 a bitmap heap scan prefetches blocks of the main fork, and the virtual blocks
/// of stripes are none: it must not prefetch on firn tables.
unsafe fn no_prefetch(state: *mut pg_sys::PlanState) {
    if (*state).type_ == pg_sys::NodeTag::T_BitmapHeapScanState {
        let bitmap = state as *mut pg_sys::BitmapHeapScanState;
        let rel = (*bitmap).ss.ss_currentRelation;
        if !rel.is_null() && super::Rel::of(rel).is_firn() {
            (*bitmap).prefetch_maximum = 0;
            // The all-visible map knows nothing of stripes: every row is fetched.
            (*bitmap).can_skip_fetch = false;
        }
    }
}

/// The rows of a statement are complete: write its stripes before AFTER triggers run.
unsafe extern "C-unwind" fn executor_finish(query: *mut pg_sys::QueryDesc) {
    callback(crate::write::flush_all);
    match PREVIOUS_FINISH {
        Some(f) => f(query),
        None => direct::standard_ExecutorFinish(query),
    }
    // What AFTER triggers inserted in bulk.
    callback(crate::write::flush_all);
}
