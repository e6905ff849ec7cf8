//! Hooks into PostgreSQL, each calling the one before it.

use super::customscan::recheck;
use super::ext::{callback, direct};
use super::{memory, wanted};
use pgrx::pg_sys;

static mut PREVIOUS_START: pg_sys::ExecutorStart_hook_type = None;
static mut PREVIOUS_FINISH: pg_sys::ExecutorFinish_hook_type = None;

/// Install all hooks. Called once at library load.
pub fn install() {
    // SAFETY: main thread, at load.
    unsafe {
        PREVIOUS_START = pg_sys::ExecutorStart_hook;
        pg_sys::ExecutorStart_hook = Some(executor_start);
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
        let mut look = Look { only_reads: wanted::only_reads(query), bitmaps: false };
        prepare(state, (&raw mut look).cast());
        if look.bitmaps && !look.only_reads {
            guard_rechecks(state, (*query).estate.cast());
        }
    }
}

/// What is known of a query, and what is found in its plan.
struct Look {
    only_reads: bool,
    /// There is a bitmap heap scan of a firn table.
    bitmaps: bool,
}

/// Look at each scan of a plan before it runs.
unsafe extern "C-unwind" fn prepare(
    state: *mut pg_sys::PlanState,
    look: *mut core::ffi::c_void,
) -> bool {
    if state.is_null() {
        return false;
    }
    let found = look as *mut Look;
    (*found).bitmaps |= no_prefetch(state);
    if (*found).only_reads {
        wanted::note(state);
    }
    direct::planstate_tree_walker(state, Some(prepare), look)
}

/// The nodes that check changed rows again make nodes of their own of the plan below them, out of
/// sight: see to it that those are looked at, too.
unsafe extern "C-unwind" fn guard_rechecks(
    state: *mut pg_sys::PlanState,
    estate: *mut core::ffi::c_void,
) -> bool {
    if state.is_null() {
        return false;
    }
    let check = match (*state).type_ {
        pg_sys::NodeTag::T_ModifyTableState => {
            &raw mut (*(state as *mut pg_sys::ModifyTableState)).mt_epqstate
        }
        pg_sys::NodeTag::T_LockRowsState => {
            &raw mut (*(state as *mut pg_sys::LockRowsState)).lr_epqstate
        }
        _ => std::ptr::null_mut(),
    };
    if !check.is_null() && !(*check).plan.is_null() {
        let context = (*(estate as *mut pg_sys::EState)).es_query_cxt;
        callback(|| (*check).plan = memory::within(context, || recheck::above((*check).plan)));
    }
    direct::planstate_tree_walker(state, Some(guard_rechecks), estate)
}

/// Do to nodes that ExecutorStart has not made what `prepare` does to all that must be done.
pub(super) unsafe extern "C-unwind" fn calm(
    state: *mut pg_sys::PlanState,
    nobody: *mut core::ffi::c_void,
) -> bool {
    if state.is_null() {
        return false;
    }
    no_prefetch(state);
    direct::planstate_tree_walker(state, Some(calm), nobody)
}

/// Up to PostgreSQL 17 a bitmap heap scan prefetches blocks of the main fork, and the virtual blocks
/// of stripes are none (the file that should hold one cannot be opened): it must not prefetch on firn
/// tables. True for such a scan.
unsafe fn no_prefetch(state: *mut pg_sys::PlanState) -> bool {
    if (*state).type_ != pg_sys::NodeTag::T_BitmapHeapScanState {
        return false;
    }
    let bitmap = state as *mut pg_sys::BitmapHeapScanState;
    let rel = (*bitmap).ss.ss_currentRelation;
    if rel.is_null() || !super::Rel::of(rel).is_firn() {
        return false;
    }
    (*bitmap).prefetch_maximum = 0;
    // The all-visible map knows nothing of stripes: every row is fetched.
    (*bitmap).can_skip_fetch = false;
    true
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
