//! A node above the plan by which PostgreSQL checks a changed row again (EvalPlanQual).
//!
//! Plans become nodes in two places: ExecutorStart, which has a hook, and EvalPlanQualStart, which has
//! none. What is to be done to the nodes of every plan (`calm`) is done for the second by this
//! node: when it begins, it makes the nodes of the plan below it and sees those of the sub-plans, which
//! PostgreSQL has made just before. Rows pass through it as they are.

use super::Shared;
use crate::pg::compat;
use crate::pg::ext::{callback, direct};
use crate::pg::memory::alloc;
use crate::pg::Rel;
use pgrx::pg_sys;

static SCAN_METHODS: Shared<pg_sys::CustomScanMethods> = Shared(pg_sys::CustomScanMethods {
    CustomName: c"FirnRecheck".as_ptr(),
    CreateCustomScanState: Some(create_state),
});
static EXEC_METHODS: Shared<pg_sys::CustomExecMethods> = Shared(pg_sys::CustomExecMethods {
    CustomName: c"FirnRecheck".as_ptr(),
    BeginCustomScan: Some(begin),
    ExecCustomScan: Some(exec),
    EndCustomScan: Some(end),
    ReScanCustomScan: Some(rescan),
    MarkPosCustomScan: None,
    RestrPosCustomScan: None,
    EstimateDSMCustomScan: None,
    InitializeDSMCustomScan: None,
    ReInitializeDSMCustomScan: None,
    InitializeWorkerCustomScan: None,
    ShutdownCustomScan: None,
    ExplainCustomScan: None,
});

/// The plan that checks a row again, with the node above it; allocated where `plan`'s query is.
pub(in crate::entry) unsafe fn above(plan: *mut pg_sys::Plan) -> *mut pg_sys::Plan {
    // SAFETY: a plan that nobody runs yet; the node shares its sets of parameters.
    unsafe {
        let scan = alloc::<pg_sys::CustomScan>();
        let own = &mut (*scan).scan.plan;
        own.type_ = pg_sys::NodeTag::T_CustomScan;
        own.lefttree = plan;
        // PostgreSQL looks here for the parameters that it must have evaluated or changed.
        own.extParam = (*plan).extParam;
        own.allParam = (*plan).allParam;
        (*scan).methods = &SCAN_METHODS.0;
        scan.cast()
    }
}

unsafe extern "C-unwind" fn create_state(_scan: *mut pg_sys::CustomScan) -> *mut pg_sys::Node {
    // SAFETY: zeroed memory that is PostgreSQL's state and no more.
    unsafe {
        callback(|| {
            let state = alloc::<pg_sys::CustomScanState>();
            (*state).ss.ps.type_ = pg_sys::NodeTag::T_CustomScanState;
            (*state).methods = &EXEC_METHODS.0;
            state as *mut pg_sys::Node
        })
    }
}

unsafe extern "C-unwind" fn begin(
    node: *mut pg_sys::CustomScanState,
    estate: *mut pg_sys::EState,
    flags: i32,
) {
    // SAFETY: the node is new; the plan below it is the one that `above` was given, and the sub-plans' nodes are made.
    unsafe {
        let plan = (*(*node).ss.ps.plan).lefttree;
        (*node).ss.ps.lefttree = callback(|| pg_sys::ExecInitNode(plan, estate, flags));
        let nobody = std::ptr::null_mut();
        calm((*node).ss.ps.lefttree, nobody);
        let others = (*estate).es_subplanstates;
        if !others.is_null() {
            for i in 0..(*others).length as usize {
                calm((*(*others).elements.add(i)).ptr_value.cast(), nobody);
            }
        }
    }
}

unsafe extern "C-unwind" fn exec(
    node: *mut pg_sys::CustomScanState,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: the node below was made by `begin`.
    unsafe { direct::ExecProcNode((*node).ss.ps.lefttree) }
}

unsafe extern "C-unwind" fn end(node: *mut pg_sys::CustomScanState) {
    // SAFETY: the node below was made by `begin`, and is ended once.
    unsafe { callback(|| pg_sys::ExecEndNode((*node).ss.ps.lefttree)) }
}

unsafe extern "C-unwind" fn rescan(node: *mut pg_sys::CustomScanState) {
    // SAFETY: the node below was made by `begin`.
    unsafe {
        // Changed parameters have been passed down; then the first row asked for rescans.
        let below = (*node).ss.ps.lefttree;
        if (*below).chgParam.is_null() {
            direct::ExecReScan(below);
        }
    }
}

/// Do to nodes that ExecutorStart has not made what `prepare` does to all that must be done.
unsafe extern "C-unwind" fn calm(
    state: *mut pg_sys::PlanState,
    nobody: *mut core::ffi::c_void,
) -> bool {
    // SAFETY: a node whose query has been started, or null.
    unsafe {
        if state.is_null() {
            return false;
        }
        no_prefetch(state);
        direct::planstate_tree_walker(state, Some(calm), nobody)
    }
}

/// Up to PostgreSQL 17 a bitmap heap scan prefetches blocks of the main fork, and the virtual blocks
/// of stripes are none (the file that should hold one cannot be opened): it must not prefetch on firn
/// tables. True for such a scan.
pub(in crate::entry) unsafe fn no_prefetch(state: *mut pg_sys::PlanState) -> bool {
    // SAFETY: a node of the type that its tag says, whose relation, if it has one, is open.
    unsafe {
        if (*state).type_ != pg_sys::NodeTag::T_BitmapHeapScanState {
            return false;
        }
        let bitmap = state as *mut pg_sys::BitmapHeapScanState;
        let rel = (*bitmap).ss.ss_currentRelation;
        if rel.is_null() || !Rel::of(rel).is_firn() {
            return false;
        }
        compat::fetch_every_row(bitmap);
        true
    }
}
