//! Offering the scan to the planner, and its plan node.

use super::super::ext::callback;
use super::super::scandesc::alloc;
use super::super::Rel;
use super::{columns_of, conditions, exec, list_items, table_columns, Shared};
use pgrx::pg_sys;

static mut PREVIOUS: pg_sys::set_rel_pathlist_hook_type = None;

static PATH_METHODS: Shared<pg_sys::CustomPathMethods> = Shared(pg_sys::CustomPathMethods {
    CustomName: c"FirnScan".as_ptr(),
    PlanCustomPath: Some(plan_path),
    ReparameterizeCustomPathByChild: None,
});

pub(super) unsafe fn install() {
    PREVIOUS = pg_sys::set_rel_pathlist_hook;
    pg_sys::set_rel_pathlist_hook = Some(pathlist);
    pg_sys::RegisterCustomScanMethods(&exec::SCAN_METHODS.0);
}

unsafe extern "C-unwind" fn pathlist(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    rti: pg_sys::Index,
    rte: *mut pg_sys::RangeTblEntry,
) {
    if let Some(f) = PREVIOUS {
        f(root, rel, rti, rte);
    }
    callback(|| {
        if applies(root, rel, rte) {
            offer(rel);
        }
    });
}

unsafe fn applies(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    rte: *mut pg_sys::RangeTblEntry,
) -> bool {
    use pg_sys::CmdType as C;
    if !super::super::guc::enable_scan()
        || (*rte).rtekind != pg_sys::RTEKind::RTE_RELATION
        || !matches!((*rte).relkind as u8, b'r' | b'm')
        || (*rte).inh
        || !(*rte).tablesample.is_null()
        || !(*rel).lateral_relids.is_null()
        || (*rel).pathlist.is_null()
    {
        return false;
    }
    // Rows of UPDATE, DELETE and FOR UPDATE are re-checked in heap slots: PostgreSQL's own scan
    // gives those.
    let parse = (*root).parse;
    if !(*root).rowMarks.is_null() || !matches!((*parse).commandType, C::CMD_SELECT | C::CMD_INSERT)
    {
        return false;
    }
    let table = pg_sys::table_open((*rte).relid, pg_sys::NoLock as i32);
    let ours = Rel::of(table).is_firn();
    pg_sys::table_close(table, pg_sys::NoLock as i32);
    // Of the system columns a row made of columns has its TID and table only.
    ours && !uses_transaction_columns(rel)
}

unsafe fn uses_transaction_columns(rel: *mut pg_sys::RelOptInfo) -> bool {
    let exprs = (*(*rel).reltarget).exprs;
    let fine = [pg_sys::SelfItemPointerAttributeNumber, pg_sys::TableOidAttributeNumber];
    columns_of(&[exprs.cast()], (*rel).baserestrictinfo, (*rel).relid)
        .iter()
        .any(|n| *n < 0 && !fine.contains(n))
}

/// Estimated cost: the share of the pages that the wanted columns take, and less work per row than
/// deforming tuples.
unsafe fn offer(rel: *mut pg_sys::RelOptInfo) {
    let columns = f64::from((*rel).max_attr.max(1));
    let exprs = (*(*rel).reltarget).exprs;
    let numbers = columns_of(&[exprs.cast()], (*rel).baserestrictinfo, (*rel).relid);
    let wanted = table_columns(&numbers, (*rel).max_attr as usize);
    let share = (wanted.len() as f64 / columns).clamp(0.02, 1.0);
    let pages = f64::from((*rel).pages) * share;
    let per_row = pg_sys::cpu_tuple_cost * 0.5
        + (*rel).baserestrictcost.per_tuple
        + (*(*rel).reltarget).cost.per_tuple;
    let io = pages * pg_sys::seq_page_cost;
    // This is how a firn table is read from end to end: who switches such scans off means this one.
    let discouraged = if pg_sys::enable_seqscan { 0.0 } else { pg_sys::disable_cost };
    let startup = discouraged + (*rel).baserestrictcost.startup + (*(*rel).reltarget).cost.startup;
    let make = |workers: i32| {
        let path = alloc::<pg_sys::CustomPath>();
        let p = &mut (*path).path;
        p.type_ = pg_sys::NodeTag::T_CustomPath;
        p.pathtype = pg_sys::NodeTag::T_CustomScan;
        p.parent = rel;
        p.pathtarget = (*rel).reltarget;
        p.parallel_aware = workers > 0;
        p.parallel_safe = (*rel).consider_parallel;
        p.parallel_workers = workers;
        let divisor = if workers > 0 {
            let leader = if pg_sys::parallel_leader_participation {
                (1.0 - 0.3 * f64::from(workers)).max(0.0)
            } else {
                0.0
            };
            f64::from(workers) + leader
        } else {
            1.0
        };
        p.rows = ((*rel).rows / divisor).max(1.0);
        p.startup_cost = startup;
        p.total_cost = startup + io + per_row * (*rel).tuples.max(1.0) / divisor;
        (*path).flags = pg_sys::CUSTOMPATH_SUPPORT_PROJECTION;
        (*path).methods = &PATH_METHODS.0;
        path as *mut pg_sys::Path
    };
    pg_sys::add_path(rel, make(0));
    if (*rel).consider_parallel {
        let workers = pg_sys::compute_parallel_worker(
            rel,
            // As many workers as a heap of these rows would get: stripes are small but as much work.
            (*rel).tuples * f64::from((*(*rel).reltarget).width.max(64) + 24) / 8192.0,
            -1.0,
            pg_sys::max_parallel_workers_per_gather,
        );
        if workers > 0 {
            pg_sys::add_partial_path(rel, make(workers));
        }
    }
}

/// Conditions go to `custom_private` as four integers each (column, test, operand, number of the
/// qual) and their right-hand sides to `custom_exprs`. The quals stay complete: rows of the row store
/// are checked by them, and EXPLAIN shows them.
unsafe extern "C-unwind" fn plan_path(
    _root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    best: *mut pg_sys::CustomPath,
    tlist: *mut pg_sys::List,
    clauses: *mut pg_sys::List,
    _plans: *mut pg_sys::List,
) -> *mut pg_sys::Plan {
    callback(|| {
        let scan = alloc::<pg_sys::CustomScan>();
        let s = &mut (*scan).scan;
        s.plan.type_ = pg_sys::NodeTag::T_CustomScan;
        s.plan.targetlist = tlist;
        s.plan.qual = pg_sys::extract_actual_clauses(clauses, false);
        s.scanrelid = (*rel).relid;
        (*scan).flags = (*best).flags;
        (*scan).methods = &exec::SCAN_METHODS.0;
        for (number, clause) in list_items::<pg_sys::Node>(s.plan.qual).into_iter().enumerate() {
            let Some(known) = conditions::translate(clause, (*rel).relid) else { continue };
            for part in [known.column, known.test, known.operand, number as i32] {
                (*scan).custom_private = pg_sys::lappend_int((*scan).custom_private, part);
            }
            (*scan).custom_exprs = pg_sys::lappend((*scan).custom_exprs, known.value.cast());
        }
        scan as *mut pg_sys::Plan
    })
}
