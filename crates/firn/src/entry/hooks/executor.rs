//! Hooks of the executor, and of COPY, which does without one.

use crate::entry::customscan::joins;
use crate::entry::customscan::recheck::{self, no_prefetch};
use crate::entry::{copying, index_only};
use crate::pg::ext::{callback, direct};
use crate::pg::{compat, memory, wanted, xact};
use firn_directory::Cid;
use pgrx::pg_sys;

static mut PREVIOUS_START: pg_sys::ExecutorStart_hook_type = None;
static mut PREVIOUS_FINISH: pg_sys::ExecutorFinish_hook_type = None;
static mut PREVIOUS_UTILITY: pg_sys::ProcessUtility_hook_type = None;

/// Install the hooks. Called once at library load.
pub fn install() {
    // SAFETY: main thread, at load.
    unsafe {
        PREVIOUS_START = pg_sys::ExecutorStart_hook;
        pg_sys::ExecutorStart_hook = Some(executor_start);
        compat::before_runs(before_run);
        PREVIOUS_FINISH = pg_sys::ExecutorFinish_hook;
        pg_sys::ExecutorFinish_hook = Some(executor_finish);
        PREVIOUS_UTILITY = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(process_utility);
    }
}

unsafe extern "C-unwind" fn executor_start(query: *mut pg_sys::QueryDesc, flags: i32) {
    // SAFETY: the query is about to be started, by whoever was hooked in before us; after that its plan has nodes, or is a utility's.
    unsafe {
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
}

unsafe fn only_reads(query: *mut pg_sys::QueryDesc) -> bool {
    // SAFETY: a query that has been started has a statement.
    unsafe {
        let statement = (*query).plannedstmt;
        (*statement).commandType == pg_sys::CmdType::CMD_SELECT
            && (*statement).rowMarks.is_null()
            && !(*statement).hasModifyingCTE
    }
}

/// Look at each scan of a plan before it runs, and note whether there is a bitmap heap scan of a firn table.
unsafe extern "C-unwind" fn prepare(
    state: *mut pg_sys::PlanState,
    bitmaps: *mut core::ffi::c_void,
) -> bool {
    // SAFETY: a node of a started query, or null; the other pointer is to `executor_start`'s variable.
    unsafe {
        if state.is_null() {
            return false;
        }
        *(bitmaps as *mut bool) |= no_prefetch(state);
        wanted::note(state);
        index_only::prepare(state);
        joins::note(state);
        direct::planstate_tree_walker(state, Some(prepare), bitmaps)
    }
}

/// The nodes that check changed rows again make nodes of their own of the plan below them, out of
/// sight: see to it that those are looked at, too.
unsafe extern "C-unwind" fn guard_rechecks(
    state: *mut pg_sys::PlanState,
    estate: *mut core::ffi::c_void,
) -> bool {
    // SAFETY: a node of a started query, or null, and that query's state; the plan is changed before anybody has made nodes of it.
    unsafe {
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
}

/// Rows that this session has collected and not written yet are in its memory, which parallel workers cannot
/// read: a query that a function runs meanwhile does without them.
unsafe extern "C-unwind" fn before_run(_: *mut pg_sys::QueryDesc) -> bool {
    // SAFETY: called by the hook, before a query is run.
    unsafe { callback(crate::write::any_pending) }
}

/// The rows of a statement are complete: write its stripes before AFTER triggers run. Those of a statement
/// that this one is a part of are not: its rows are not complete.
unsafe extern "C-unwind" fn executor_finish(query: *mut pg_sys::QueryDesc) {
    // SAFETY: a query that has been started, and so has a state and a statement.
    unsafe {
        // Only these have a command id of their own, greater than that of the statement around them.
        let writes = (*query).operation != pg_sys::CmdType::CMD_SELECT
            || (*(*query).plannedstmt).hasModifyingCTE;
        let cid = Cid((*(*query).estate).es_output_cid);
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
    // SAFETY: PostgreSQL hands in a statement to run; its node is not looked at after that.
    unsafe {
        // Looked at before it runs: a CALL may free it.
        let node = (*statement).utilityStmt;
        let copies = (*node).type_ == pg_sys::NodeTag::T_CopyStmt
            && (*(node as *mut pg_sys::CopyStmt)).is_from;
        let before = callback(|| copying::begin(xact::subtransaction(), copies));
        let cid = if copies { callback(|| pg_sys::GetCurrentCommandId(false)) } else { 0 };
        let f = PREVIOUS_UTILITY.unwrap_or(direct::standard_ProcessUtility);
        f(statement, source, read_only, context, params, environment, dest, completion);
        if copies {
            callback(|| crate::write::end_command(Cid(cid)));
        }
        callback(|| copying::end(before));
    }
}
