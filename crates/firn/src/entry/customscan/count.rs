//! `SELECT count(*) FROM table` without a row passing through the executor: the rows of the row store
//! are counted by heapam's scan, those of stripes are their directory's counts less the tombstones
//! that the snapshot sees. Partitioned tables are counted partition by partition.

use super::{explain, list_items, Shared};
use crate::entry::tableam::hidden::count_rows;
use crate::pg::compat;
use crate::pg::ext::callback;
use crate::pg::memory::{alloc, slot_for_state};
use crate::pg::snapshot::Snap;
use crate::pg::{error, guc, Kind, LockMode, Oid, OpenRel, Rel};
use pgrx::pg_sys;

static mut PREVIOUS: pg_sys::create_upper_paths_hook_type = None;

static PATH_METHODS: Shared<pg_sys::CustomPathMethods> = Shared(pg_sys::CustomPathMethods {
    CustomName: c"FirnCount".as_ptr(),
    PlanCustomPath: Some(plan_path),
    ReparameterizeCustomPathByChild: None,
});
static SCAN_METHODS: Shared<pg_sys::CustomScanMethods> = Shared(pg_sys::CustomScanMethods {
    CustomName: c"FirnCount".as_ptr(),
    CreateCustomScanState: Some(create_state),
});
static EXEC_METHODS: Shared<pg_sys::CustomExecMethods> = Shared(pg_sys::CustomExecMethods {
    CustomName: c"FirnCount".as_ptr(),
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
    ExplainCustomScan: Some(explain_count),
});

pub(super) unsafe fn install() {
    // SAFETY: the library is being loaded; tables of methods are constants.
    unsafe {
        PREVIOUS = pg_sys::create_upper_paths_hook;
        pg_sys::create_upper_paths_hook = Some(upper_paths);
        pg_sys::RegisterCustomScanMethods(&SCAN_METHODS.0);
    }
}

unsafe extern "C-unwind" fn upper_paths(
    root: *mut pg_sys::PlannerInfo,
    stage: pg_sys::UpperRelationKind::Type,
    input: *mut pg_sys::RelOptInfo,
    output: *mut pg_sys::RelOptInfo,
    extra: *mut core::ffi::c_void,
) {
    // SAFETY: the planner hands in its own structures, complete for this stage.
    unsafe {
        if let Some(f) = PREVIOUS {
            f(root, stage, input, output, extra);
        }
        if stage == pg_sys::UpperRelationKind::UPPERREL_GROUP_AGG && guc::enable_scan() {
            callback(|| {
                if counts_whole_relation(root, input) {
                    offer(root, input, output);
                }
            })
        }
    }
}

/// The query asks for nothing but `count(*)` of one relation, unfiltered.
unsafe fn counts_whole_relation(
    root: *mut pg_sys::PlannerInfo,
    input: *mut pg_sys::RelOptInfo,
) -> bool {
    // SAFETY: a query that is being planned; aggregates in its target are Aggref where their tags say so.
    unsafe {
        let parse = (*root).parse;
        let plain = (*parse).commandType == pg_sys::CmdType::CMD_SELECT
            && (*parse).groupClause.is_null()
            && (*parse).groupingSets.is_null()
            && (*parse).havingQual.is_null()
            && !(*parse).hasTargetSRFs
            && (*root).rowMarks.is_null()
            && !(*parse).jointree.is_null()
            && (*(*parse).jointree).quals.is_null()
            && (*input).reloptkind == pg_sys::RelOptKind::RELOPT_BASEREL
            && (*input).rtekind == pg_sys::RTEKind::RTE_RELATION
            && (*input).baserestrictinfo.is_null()
            && (*input).joininfo.is_null()
            && (*input).lateral_relids.is_null();
        if !plain {
            return false;
        }
        let target = (*root).upper_targets[pg_sys::UpperRelationKind::UPPERREL_GROUP_AGG as usize];
        let used = pg_sys::pull_var_clause(
            (*target).exprs.cast(),
            (pg_sys::PVC_INCLUDE_AGGREGATES
                | pg_sys::PVC_INCLUDE_WINDOWFUNCS
                | pg_sys::PVC_INCLUDE_PLACEHOLDERS) as i32,
        );
        let used = list_items::<pg_sys::Aggref>(used);
        !used.is_empty()
            && used.into_iter().all(|agg| {
                (*agg).xpr.type_ == pg_sys::NodeTag::T_Aggref
                    && (*agg).aggfnoid == Oid::from(pg_sys::F_COUNT_)
                    && (*agg).aggfilter.is_null()
                    && (*agg).agglevelsup == 0
            })
    }
}

/// The tables whose rows make up the relation's; None when one of them is none that we can count.
unsafe fn tables(
    root: *mut pg_sys::PlannerInfo,
    input: *mut pg_sys::RelOptInfo,
) -> Option<Vec<*mut pg_sys::RelOptInfo>> {
    // SAFETY: relations and entries of the range table stand at the same numbers in the planner's two arrays.
    unsafe {
        let rte = *(*root).simple_rte_array.add((*input).relid as usize);
        if !(*rte).tablesample.is_null() {
            return None;
        }
        let has_rows =
            |rte: *mut pg_sys::RangeTblEntry| matches!((*rte).relkind as u8, b'r' | b'm');
        if !(*rte).inh {
            // A partitioned table without partitions has no storage, nor has a foreign table.
            return has_rows(rte).then(|| vec![input]);
        }
        let mut list = Vec::new();
        for i in 1..(*root).simple_rel_array_size {
            let rel = *(*root).simple_rel_array.add(i as usize);
            let rte = *(*root).simple_rte_array.add(i as usize);
            if rel.is_null()
                || (*rel).reloptkind != pg_sys::RelOptKind::RELOPT_OTHER_MEMBER_REL
                || !pg_sys::bms_is_member((*input).relid as i32, (*rel).top_parent_relids)
            {
                continue;
            }
            match (*rte).relkind as u8 {
                _ if has_rows(rte) && !(*rte).inh => list.push(rel),
                // Partitioned tables hold no rows themselves.
                b'p' => (),
                _ => return None,
            }
        }
        Some(list)
    }
}

unsafe fn offer(
    root: *mut pg_sys::PlannerInfo,
    input: *mut pg_sys::RelOptInfo,
    output: *mut pg_sys::RelOptInfo,
) {
    // SAFETY: the planner's own structures; the path is zeroed memory that becomes its.
    unsafe {
        let Some(tables) = tables(root, input) else { return };
        let mut oids = std::ptr::null_mut();
        let mut cost = 0.0;
        let mut ours = false;
        for rel in tables {
            let rte = *(*root).simple_rte_array.add((*rel).relid as usize);
            // The planner holds a lock on every relation it plans for.
            let table = OpenRel::open((*rte).relid, LockMode::None);
            let blocks = f64::from(table.heap_blocks());
            let (mut rows, mut steps) = ((*rel).tuples, 0.0);
            if table.is_firn() {
                ours = true;
                let stripes = crate::directory::counts::stripe_totals(table.rel());
                rows = (rows - stripes.live()).max(0.0);
                steps = stripes.stripes;
            }
            cost += blocks * pg_sys::seq_page_cost
                + rows * pg_sys::cpu_tuple_cost
                + steps * 10.0 * pg_sys::cpu_tuple_cost;
            oids = pg_sys::lappend_oid(oids, (*rte).relid);
        }
        if !ours {
            return;
        }
        let path = alloc::<pg_sys::CustomPath>();
        let p = &mut (*path).path;
        p.type_ = pg_sys::NodeTag::T_CustomPath;
        p.pathtype = pg_sys::NodeTag::T_CustomScan;
        p.parent = output;
        p.pathtarget =
            (*root).upper_targets[pg_sys::UpperRelationKind::UPPERREL_GROUP_AGG as usize];
        p.rows = 1.0;
        p.startup_cost = cost;
        p.total_cost = cost;
        if !pg_sys::enable_seqscan {
            compat::disable(p);
        }
        (*path).flags = pg_sys::CUSTOMPATH_SUPPORT_PROJECTION;
        (*path).methods = &PATH_METHODS.0;
        (*path).custom_private = oids;
        pg_sys::add_path(output, path.cast());
    }
}

unsafe extern "C-unwind" fn plan_path(
    _root: *mut pg_sys::PlannerInfo,
    _rel: *mut pg_sys::RelOptInfo,
    best: *mut pg_sys::CustomPath,
    tlist: *mut pg_sys::List,
    _clauses: *mut pg_sys::List,
    _plans: *mut pg_sys::List,
) -> *mut pg_sys::Plan {
    // SAFETY: the planner hands in a path of ours and its target list; the plan is zeroed memory that becomes PostgreSQL's.
    unsafe {
        callback(|| {
            let scan = alloc::<pg_sys::CustomScan>();
            let s = &mut (*scan).scan;
            s.plan.type_ = pg_sys::NodeTag::T_CustomScan;
            s.plan.targetlist = tlist;
            (*scan).flags = (*best).flags;
            (*scan).methods = &SCAN_METHODS.0;
            (*scan).custom_private = (*best).custom_private;
            // The row that the node makes has one column: the count itself.
            let used = pg_sys::pull_var_clause(tlist.cast(), pg_sys::PVC_INCLUDE_AGGREGATES as i32);
            if let Some(count) = list_items::<pg_sys::Expr>(used).first() {
                let entry = pg_sys::makeTargetEntry(*count, 1, std::ptr::null_mut(), false);
                (*scan).custom_scan_tlist = pg_sys::lappend(std::ptr::null_mut(), entry.cast());
            }
            scan as *mut pg_sys::Plan
        })
    }
}

#[repr(C)]
struct State {
    css: pg_sys::CustomScanState,
    run: *mut Option<Run>,
}

#[derive(Default)]
struct Run {
    done: bool,
    counted: Counted,
}

/// Rows counted, by where they are.
#[derive(Clone, Copy, Default)]
pub struct Counted {
    pub row_store: u64,
    pub stripes: u64,
    pub stripe_rows: u64,
}

unsafe fn run<'a>(node: *mut pg_sys::CustomScanState) -> &'a mut Run {
    // SAFETY: a node of ours, whose state is made by `begin` and stays where it is until `end`.
    unsafe { (*(*(node as *mut State)).run).get_or_insert_default() }
}

unsafe extern "C-unwind" fn create_state(scan: *mut pg_sys::CustomScan) -> *mut pg_sys::Node {
    // SAFETY: zeroed memory that begins with PostgreSQL's state.
    unsafe {
        callback(|| {
            let state = alloc::<State>();
            (*state).css.ss.ps.type_ = pg_sys::NodeTag::T_CustomScanState;
            (*state).css.flags = (*scan).flags;
            (*state).css.methods = &EXEC_METHODS.0;
            state as *mut pg_sys::Node
        })
    }
}

unsafe extern "C-unwind" fn begin(
    node: *mut pg_sys::CustomScanState,
    _estate: *mut pg_sys::EState,
    flags: i32,
) {
    // SAFETY: a node that `create_state` has made.
    unsafe {
        callback(|| {
            (*(node as *mut State)).run = slot_for_state();
            let only_planned = pg_sys::EXEC_FLAG_EXPLAIN_ONLY | pg_sys::EXEC_FLAG_WITH_NO_DATA;
            if flags as u32 & only_planned == 0 {
                oids(node).for_each(expect_populated);
            }
        })
    }
}

/// The tables that the node counts.
unsafe fn oids(node: *mut pg_sys::CustomScanState) -> impl Iterator<Item = Oid> {
    // SAFETY: the plan of such a node has a list of OIDs, and outlives it.
    unsafe {
        let list = (*((*node).ss.ps.plan as *mut pg_sys::CustomScan)).custom_private;
        (0..(*list).length as usize).map(move |i| (*(*list).elements.add(i)).oid_value)
    }
}

/// What the executor asks of each relation that is scanned by its plan, which this one's are not.
fn expect_populated(oid: Oid) {
    let table = OpenRel::open(oid, LockMode::AccessShare);
    if !table.is_populated() {
        let name = table.name();
        error(Kind::NotInState, format!("materialized view \"{name}\" has not been populated"))
            .hint("Use the REFRESH MATERIALIZED VIEW command.")
            .raise()
    }
}

unsafe extern "C-unwind" fn exec(
    node: *mut pg_sys::CustomScanState,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: a node that has begun; its slot is a virtual one with one column.
    unsafe {
        let slot = (*node).ss.ss_ScanTupleSlot;
        let produced = callback(|| {
            let run = run(node);
            if std::mem::replace(&mut run.done, true) {
                return false;
            }
            run.counted = Counted::default();
            for oid in oids(node) {
                count(oid, (*(*node).ss.ps.state).es_snapshot, &mut run.counted);
            }
            let total = run.counted.row_store + run.counted.stripe_rows;
            *(*slot).tts_values = pg_sys::Datum::from(total as usize);
            *(*slot).tts_isnull = false;
            true
        });
        super::exec::virtual_row(node, slot, produced)
    }
}

/// Count the rows of a table that the snapshot sees.
unsafe fn count(oid: Oid, snapshot: pg_sys::Snapshot, counted: &mut Counted) {
    // SAFETY: the snapshot is the query's, which is registered.
    unsafe {
        let table = OpenRel::open(oid, LockMode::AccessShare);
        if table.kind() != b'r' && table.kind() != b'm' {
            error(Kind::Internal, "a count of something that is no table").raise()
        }
        if table.is_firn() {
            let snap = Snap::of(snapshot);
            let (rows, stripes) = crate::plan::count_seen_rows(table.rel(), snap);
            counted.stripe_rows += rows;
            counted.stripes += stripes;
            counted.row_store += count_rows(table.rel(), snap);
        } else {
            counted.row_store += plain_count(table.rel(), snapshot);
        }
    }
}

/// Count the rows of a table of another access method.
unsafe fn plain_count(table: Rel, snapshot: pg_sys::Snapshot) -> u64 {
    // SAFETY: an open table; scan and slot are ended where they were begun.
    unsafe {
        let slot = pg_sys::table_slot_create(table.raw(), std::ptr::null_mut());
        let scan = pg_sys::table_beginscan_strat(
            table.raw(),
            snapshot,
            0,
            std::ptr::null_mut(),
            true,
            true,
        );
        let mut rows = 0;
        while pg_sys::table_scan_getnextslot(
            scan,
            pg_sys::ScanDirection::ForwardScanDirection,
            slot,
        ) {
            rows += 1;
        }
        pg_sys::table_endscan(scan);
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        rows
    }
}

unsafe extern "C-unwind" fn end(node: *mut pg_sys::CustomScanState) {
    // SAFETY: a node that has begun, ended once.
    unsafe { callback(|| *(*(node as *mut State)).run = None) }
}

unsafe extern "C-unwind" fn rescan(node: *mut pg_sys::CustomScanState) {
    // SAFETY: a node that has begun.
    unsafe { callback(|| run(node).done = false) }
}

unsafe extern "C-unwind" fn explain_count(
    node: *mut pg_sys::CustomScanState,
    _ancestors: *mut pg_sys::List,
    es: *mut pg_sys::ExplainState,
) {
    // SAFETY: a node that has begun, and the plan that it was made of.
    unsafe {
        callback(|| {
            let plan = (*node).ss.ps.plan as *mut pg_sys::CustomScan;
            explain::number(es, c"Tables", (*(*plan).custom_private).length as u64);
            if (*es).analyze {
                let counted = run(node).counted;
                explain::number(es, c"Rows Counted in Row Store", counted.row_store);
                explain::number(es, c"Stripes", counted.stripes);
                explain::number(es, c"Rows Counted in Stripes", counted.stripe_rows);
            }
        })
    }
}
