//! Hooks into PostgreSQL, each calling the one before it.

use super::customscan::{joins, recheck};
use super::ext::{callback, direct};
use super::{memory, wanted};
use pgrx::pg_sys;

static mut PREVIOUS_START: pg_sys::ExecutorStart_hook_type = None;
static mut PREVIOUS_RUN: pg_sys::ExecutorRun_hook_type = None;
static mut PREVIOUS_FINISH: pg_sys::ExecutorFinish_hook_type = None;
static mut PREVIOUS_UTILITY: pg_sys::ProcessUtility_hook_type = None;

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
        PREVIOUS_UTILITY = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
    }
}

unsafe extern "C-unwind" fn executor_start(query: *mut pg_sys::QueryDesc, flags: i32) {
    match PREVIOUS_START {
        Some(f) => f(query, flags),
        None => direct::standard_ExecutorStart(query, flags),
    }
    let state = (*query).planstate;
    if !state.is_null() {
        let mut bitmaps = false;
        prepare(state, (&raw mut bitmaps).cast());
        if bitmaps && !only_reads(query) {
            guard_rechecks(state, (*query).estate.cast());
        }
    }
}

unsafe fn only_reads(query: *mut pg_sys::QueryDesc) -> bool {
    let statement = (*query).plannedstmt;
    (*statement).commandType == pg_sys::CmdType::CMD_SELECT
        && (*statement).rowMarks.is_null()
        && !(*statement).hasModifyingCTE
}

/// Look at each scan of a plan before it runs, and note whether there is a bitmap heap scan of a firn table.
unsafe extern "C-unwind" fn prepare(
    state: *mut pg_sys::PlanState,
    bitmaps: *mut core::ffi::c_void,
) -> bool {
    if state.is_null() {
        return false;
    }
    *(bitmaps as *mut bool) |= no_prefetch(state);
    wanted::note(state);
    joins::note(state);
    direct::planstate_tree_walker(state, Some(prepare), bitmaps)
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

/// Rows that this session has collected and not written yet are in its memory, which parallel workers cannot
/// read: a query that a function runs meanwhile does without them.
unsafe extern "C-unwind" fn executor_run(
    query: *mut pg_sys::QueryDesc,
    direction: pg_sys::ScanDirection::Type,
    count: u64,
    execute_once: bool,
) {
    // A query that has been run before goes on without workers; up to 15.8 that is an error for one that is said
    // to be run once.
    let alone = callback(crate::write::any_pending);
    if alone {
        (*query).already_executed = true;
    }
    let once = execute_once && !alone;
    match PREVIOUS_RUN {
        Some(f) => f(query, direction, count, once),
        None => direct::standard_ExecutorRun(query, direction, count, once),
    }
}

/// The rows of a statement are complete: write its stripes before AFTER triggers run. Those of a statement
/// that this one is a part of are not: its rows are not complete.
unsafe extern "C-unwind" fn executor_finish(query: *mut pg_sys::QueryDesc) {
    // Only these have a command id of their own, greater than that of the statement around them.
    let writes = (*query).operation != pg_sys::CmdType::CMD_SELECT
        || (*(*query).plannedstmt).hasModifyingCTE;
    let cid = (*(*query).estate).es_output_cid;
    if writes {
        callback(|| crate::write::end_command(cid));
    }
    match PREVIOUS_FINISH {
        Some(f) => f(query),
        None => direct::standard_ExecutorFinish(query),
    }
    // What CTEs that nobody has read to their end have inserted since, and what AFTER triggers have left.
    if writes {
        callback(|| crate::write::end_command(cid));
    }
}

/// A COPY FROM is at work, and no other command within it.
static mut COPYING: bool = false;

/// A COPY that has many partitions open tells of one after the other that its rows are complete, to open
/// another, and comes back to it: its stripes wait for the end of the command.
pub fn is_copying() -> bool {
    // SAFETY: main thread only.
    unsafe { COPYING }
}

/// A (sub)transaction was undone, and a COPY may have been in it.
pub fn forget_copy() {
    // SAFETY: as above.
    unsafe { COPYING = false }
}

/// COPY FROM has no executor to tell us when its rows are complete.
unsafe extern "C-unwind" fn process_utility(
    statement: *mut pg_sys::PlannedStmt,
    source: *const core::ffi::c_char,
    read_only: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    dest: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // Looked at before it runs: a CALL may free it.
    let node = (*statement).utilityStmt;
    let copies =
        (*node).type_ == pg_sys::NodeTag::T_CopyStmt && (*(node as *mut pg_sys::CopyStmt)).is_from;
    let outer = COPYING;
    COPYING = copies;
    let cid = if copies { callback(|| pg_sys::GetCurrentCommandId(false)) } else { 0 };
    let f = PREVIOUS_UTILITY.unwrap_or(direct::standard_ProcessUtility);
    f(statement, source, read_only, context, params, environment, dest, completion);
    if copies {
        callback(|| crate::write::end_command(cid));
    }
    COPYING = outer;
}
