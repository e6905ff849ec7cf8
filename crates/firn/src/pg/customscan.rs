//! The custom scan inside PostgreSQL: paths, the plan node and the executor's callbacks.

use super::ext::{callback, guarded};
use super::scandesc::{alloc, claim, slot_for_state, ParallelDesc};
use super::slot::Slot;
use super::snapshot::Snap;
use super::Rel;
use crate::plan::{Condition, FirnScan, Operand, Test};
use firn_format::CompareOp;
use pgrx::pg_sys;

static mut PREVIOUS: pg_sys::set_rel_pathlist_hook_type = None;

static PATH_METHODS: Shared<pg_sys::CustomPathMethods> = Shared(pg_sys::CustomPathMethods {
    CustomName: c"FirnScan".as_ptr(),
    PlanCustomPath: Some(plan_path),
    ReparameterizeCustomPathByChild: None,
});
static SCAN_METHODS: Shared<pg_sys::CustomScanMethods> = Shared(pg_sys::CustomScanMethods {
    CustomName: c"FirnScan".as_ptr(),
    CreateCustomScanState: Some(create_state),
});
static EXEC_METHODS: Shared<pg_sys::CustomExecMethods> = Shared(pg_sys::CustomExecMethods {
    CustomName: c"FirnScan".as_ptr(),
    BeginCustomScan: Some(begin),
    ExecCustomScan: Some(exec),
    EndCustomScan: Some(end),
    ReScanCustomScan: Some(rescan),
    MarkPosCustomScan: None,
    RestrPosCustomScan: None,
    EstimateDSMCustomScan: Some(estimate_dsm),
    InitializeDSMCustomScan: Some(initialize_dsm),
    ReInitializeDSMCustomScan: Some(reinitialize_dsm),
    InitializeWorkerCustomScan: Some(initialize_worker),
    ShutdownCustomScan: None,
    ExplainCustomScan: Some(explain),
});

/// Method tables are constants that PostgreSQL only reads.
struct Shared<T>(T);
// SAFETY: never written.
unsafe impl<T> Sync for Shared<T> {}

/// Register the scan and hook into the planner.
pub fn install() {
    // SAFETY: main thread, at load.
    unsafe {
        PREVIOUS = pg_sys::set_rel_pathlist_hook;
        pg_sys::set_rel_pathlist_hook = Some(pathlist);
        pg_sys::RegisterCustomScanMethods(&SCAN_METHODS.0);
    }
}

unsafe fn list_items<T>(list: *mut pg_sys::List) -> Vec<*mut T> {
    if list.is_null() {
        return Vec::new();
    }
    (0..(*list).length as usize).map(|i| (*(*list).elements.add(i)).ptr_value as *mut T).collect()
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
            offer(root, rel);
        }
    });
}

unsafe fn applies(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    rte: *mut pg_sys::RangeTblEntry,
) -> bool {
    use pg_sys::CmdType as C;
    if !super::guc::enable_scan()
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
    let mut used = std::ptr::null_mut();
    let exprs = (*(*rel).reltarget).exprs;
    pg_sys::pull_varattnos(exprs.cast(), (*rel).relid, &mut used);
    for info in list_items::<pg_sys::RestrictInfo>((*rel).baserestrictinfo) {
        pg_sys::pull_varattnos((*info).clause.cast(), (*rel).relid, &mut used);
    }
    let mut member = -1;
    loop {
        member = pg_sys::bms_next_member(used, member);
        if member < 0 {
            return false;
        }
        let number = member + pg_sys::FirstLowInvalidHeapAttributeNumber;
        let fine = [0, pg_sys::SelfItemPointerAttributeNumber, pg_sys::TableOidAttributeNumber];
        if number < 0 && !fine.contains(&number) {
            return true;
        }
    }
}

/// Estimated cost: the share of the pages that the wanted columns take, and less work per row than
/// deforming tuples.
unsafe fn offer(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo) {
    let columns = f64::from((*rel).max_attr.max(1));
    let wanted = wanted_columns(
        &[(*(*rel).reltarget).exprs.cast()],
        (*rel).baserestrictinfo,
        (*rel).relid,
        (*rel).max_attr as usize,
    );
    let share = (wanted.len() as f64 / columns).clamp(0.02, 1.0);
    let pages = f64::from((*rel).pages) * share;
    let per_row = pg_sys::cpu_tuple_cost * 0.5
        + (*rel).baserestrictcost.per_tuple
        + (*(*rel).reltarget).cost.per_tuple;
    let io = pages * pg_sys::seq_page_cost;
    let startup = (*rel).baserestrictcost.startup + (*(*rel).reltarget).cost.startup;
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
    let _ = root;
}

/// Columns (0 = first) that expressions use; all for a whole-row reference.
unsafe fn wanted_columns(
    nodes: &[*mut pg_sys::Node],
    restrictions: *mut pg_sys::List,
    relid: pg_sys::Index,
    columns: usize,
) -> Vec<usize> {
    let mut used = std::ptr::null_mut();
    for node in nodes {
        pg_sys::pull_varattnos(*node, relid, &mut used);
    }
    for info in list_items::<pg_sys::RestrictInfo>(restrictions) {
        pg_sys::pull_varattnos((*info).clause.cast(), relid, &mut used);
    }
    let mut wanted = Vec::new();
    let mut member = -1;
    loop {
        member = pg_sys::bms_next_member(used, member);
        if member < 0 {
            break;
        }
        let number = member + pg_sys::FirstLowInvalidHeapAttributeNumber;
        if number == 0 {
            return (0..columns).collect();
        }
        if number > 0 {
            wanted.push((number - 1) as usize);
        }
    }
    wanted
}

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
        (*scan).methods = &SCAN_METHODS.0;
        for clause in list_items::<pg_sys::Node>(s.plan.qual) {
            let Some((code, operand)) = translate(clause, (*rel).relid) else { continue };
            for number in code {
                (*scan).custom_private = pg_sys::lappend_int((*scan).custom_private, number);
            }
            // One expression per condition; tests for NULL get a constant.
            let operand =
                if operand.is_null() { pg_sys::makeBoolConst(true, false) } else { operand };
            (*scan).custom_exprs = pg_sys::lappend((*scan).custom_exprs, operand.cast());
        }
        scan as *mut pg_sys::Plan
    })
}

/// A condition as integers (column, test, operand) and the expression of its right-hand side.
unsafe fn translate(
    clause: *mut pg_sys::Node,
    relid: pg_sys::Index,
) -> Option<([i32; 3], *mut pg_sys::Node)> {
    match (*clause).type_ {
        pg_sys::NodeTag::T_NullTest => {
            let test = clause as *mut pg_sys::NullTest;
            let var = plain_var((*test).arg.cast(), relid)?;
            let is_null = (*test).nulltesttype == pg_sys::NullTestType::IS_NULL;
            let code = if is_null { TEST_NULL } else { TEST_NOT_NULL };
            (!(*test).argisrow)
                .then_some(([i32::from((*var).varattno) - 1, code, 0], std::ptr::null_mut()))
        }
        pg_sys::NodeTag::T_OpExpr => {
            let op = clause as *mut pg_sys::OpExpr;
            let args = list_items::<pg_sys::Node>((*op).args);
            let [left, right] = args[..] else { return None };
            let (var, other, opno) = match plain_var(left, relid) {
                Some(var) => (var, right, (*op).opno),
                None => (plain_var(right, relid)?, left, pg_sys::get_commutator((*op).opno)),
            };
            if opno == pg_sys::InvalidOid
                || pg_sys::contain_var_clause(other)
                || pg_sys::contain_volatile_functions(other)
                || has_sub_plan(other)
            {
                return None;
            }
            let operand = operand_code(pg_sys::exprType(other))?;
            let class = pg_sys::GetDefaultOpClass((*var).vartype, pg_sys::BTREE_AM_OID);
            if class == pg_sys::InvalidOid {
                return None;
            }
            let strategy =
                pg_sys::get_op_opfamily_strategy(opno, pg_sys::get_opclass_family(class));
            if !(1..=5).contains(&strategy) {
                return None;
            }
            if operand == Operand::Text as i32 {
                let collation = (*op).inputcollid;
                let bytewise =
                    collation == pg_sys::C_COLLATION_OID || super::ext::lc_collate_is_c(collation);
                let equality = strategy == pg_sys::BTEqualStrategyNumber as i32
                    && collation != pg_sys::InvalidOid
                    && pg_sys::get_collation_isdeterministic(collation);
                if !bytewise && !equality {
                    return None;
                }
            }
            Some(([i32::from((*var).varattno) - 1, strategy, operand], other))
        }
        _ => None,
    }
}

const TEST_NULL: i32 = 100;
const TEST_NOT_NULL: i32 = 101;

unsafe fn has_sub_plan(node: *mut pg_sys::Node) -> bool {
    // Constants, parameters and stable function calls over them are what can be evaluated once at
    // the start; anything that hides a plan cannot.
    pg_sys::contain_subplans(node)
}

unsafe fn plain_var(node: *mut pg_sys::Node, relid: pg_sys::Index) -> Option<*mut pg_sys::Var> {
    let node = match (*node).type_ {
        pg_sys::NodeTag::T_RelabelType => (*(node as *mut pg_sys::RelabelType)).arg.cast(),
        _ => node,
    };
    if (*node).type_ != pg_sys::NodeTag::T_Var {
        return None;
    }
    let var = node as *mut pg_sys::Var;
    let fits = (*var).varno as u32 == relid && (*var).varattno > 0 && (*var).varlevelsup == 0;
    fits.then_some(var)
}

const OPERANDS: [Operand; 13] = [
    Operand::Bool,
    Operand::Int2,
    Operand::Int4,
    Operand::Int8,
    Operand::Oid,
    Operand::Float4,
    Operand::Float8,
    Operand::Date,
    Operand::Timestamp,
    Operand::Time,
    Operand::Numeric,
    Operand::Text,
    Operand::Uuid,
];

fn operand_code(oid: pg_sys::Oid) -> Option<i32> {
    let operand = match oid {
        pg_sys::BOOLOID => Operand::Bool,
        pg_sys::INT2OID => Operand::Int2,
        pg_sys::INT4OID => Operand::Int4,
        pg_sys::INT8OID => Operand::Int8,
        pg_sys::OIDOID => Operand::Oid,
        pg_sys::FLOAT4OID => Operand::Float4,
        pg_sys::FLOAT8OID => Operand::Float8,
        pg_sys::DATEOID => Operand::Date,
        pg_sys::TIMESTAMPOID | pg_sys::TIMESTAMPTZOID => Operand::Timestamp,
        pg_sys::TIMEOID => Operand::Time,
        pg_sys::NUMERICOID => Operand::Numeric,
        pg_sys::TEXTOID | pg_sys::VARCHAROID => Operand::Text,
        pg_sys::UUIDOID => Operand::Uuid,
        _ => return None,
    };
    Some(operand as i32)
}

fn condition_of(code: [i32; 3]) -> Option<Condition> {
    let test = match code[1] {
        TEST_NULL => Test::IsNull,
        TEST_NOT_NULL => Test::IsNotNull,
        strategy => {
            let op = match strategy {
                1 => CompareOp::Lt,
                2 => CompareOp::Le,
                3 => CompareOp::Eq,
                4 => CompareOp::Ge,
                5 => CompareOp::Gt,
                _ => return None,
            };
            Test::Compare(op, *OPERANDS.get(code[2] as usize)?)
        }
    };
    Some(Condition { column: code[0] as usize, test })
}

/// The executor's node: PostgreSQL's state, then ours.
#[repr(C)]
struct State {
    css: pg_sys::CustomScanState,
    run: *mut Option<Run>,
}

/// A scan that is set up.
struct Run {
    /// heapam's scan of the row store; null before the first row.
    heap: pg_sys::TableScanDesc,
    heap_slot: *mut pg_sys::TupleTableSlot,
    heap_done: bool,
    /// Highest column (count) used, for deforming.
    deform: i32,
    wanted: Vec<usize>,
    conditions: Vec<(Condition, *mut pg_sys::ExprState)>,
    stripes: Option<FirnScan>,
    parallel: pg_sys::ParallelTableScanDesc,
    total: crate::plan::Counters,
}

unsafe extern "C-unwind" fn create_state(scan: *mut pg_sys::CustomScan) -> *mut pg_sys::Node {
    callback(|| {
        let state = alloc::<State>();
        (*state).css.ss.ps.type_ = pg_sys::NodeTag::T_CustomScanState;
        (*state).css.flags = (*scan).flags;
        (*state).css.methods = &EXEC_METHODS.0;
        state as *mut pg_sys::Node
    })
}

unsafe extern "C-unwind" fn begin(
    node: *mut pg_sys::CustomScanState,
    _estate: *mut pg_sys::EState,
    _flags: i32,
) {
    callback(|| {
        let plan = (*node).ss.ps.plan as *mut pg_sys::CustomScan;
        let rel = (*node).ss.ss_currentRelation;
        let columns = Rel::of(rel).column_count();
        let wanted = wanted_columns(
            &[(*plan).scan.plan.targetlist.cast(), (*plan).scan.plan.qual.cast()],
            std::ptr::null_mut(),
            (*plan).scan.scanrelid,
            columns,
        );
        let private = (*plan).custom_private;
        let exprs = list_items::<pg_sys::Expr>((*plan).custom_exprs);
        let mut conditions = Vec::new();
        for (i, expr) in exprs.into_iter().enumerate() {
            let number = |k: usize| (*(*private).elements.add(3 * i + k)).int_value;
            if let Some(condition) = condition_of([number(0), number(1), number(2)]) {
                conditions.push((condition, pg_sys::ExecInitExpr(expr, &mut (*node).ss.ps)));
            }
        }
        let heap_slot = pg_sys::table_slot_create(rel, std::ptr::null_mut());
        // Columns that are not decoded are NULL for ever.
        let slot = (*node).ss.ss_ScanTupleSlot;
        for i in 0..columns {
            *(*slot).tts_values.add(i) = pg_sys::Datum::from(0usize);
            *(*slot).tts_isnull.add(i) = true;
        }
        let state = node as *mut State;
        (*state).run = slot_for_state();
        *(*state).run = Some(Run {
            heap: std::ptr::null_mut(),
            heap_slot,
            heap_done: false,
            deform: wanted.iter().max().map_or(0, |m| *m as i32 + 1),
            wanted,
            conditions,
            stripes: None,
            parallel: std::ptr::null_mut(),
            total: Default::default(),
        });
    })
}

unsafe fn run<'a>(node: *mut pg_sys::CustomScanState) -> &'a mut Run {
    match &mut *(*(node as *mut State)).run {
        Some(run) => run,
        None => super::error(super::Kind::Internal, "a firn scan was used after its end").raise(),
    }
}

unsafe extern "C-unwind" fn exec(
    node: *mut pg_sys::CustomScanState,
) -> *mut pg_sys::TupleTableSlot {
    super::ext::direct::ExecScan(&mut (*node).ss, Some(next), Some(recheck))
}

unsafe extern "C-unwind" fn recheck(
    _node: *mut pg_sys::ScanState,
    _slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    true
}

unsafe extern "C-unwind" fn next(scan: *mut pg_sys::ScanState) -> *mut pg_sys::TupleTableSlot {
    let node = scan as *mut pg_sys::CustomScanState;
    let slot = (*scan).ss_ScanTupleSlot;
    let context = (*(*scan).ps.state).es_query_cxt;
    let body = || {
        let run = run(node);
        let snapshot = (*(*scan).ps.state).es_snapshot;
        if !run.heap_done {
            if run.heap.is_null() {
                start_heap(run, (*scan).ss_currentRelation, snapshot);
            }
            if next_in_row_store(run, slot) {
                return true;
            }
            run.heap_done = true;
        }
        if run.stripes.is_none() {
            start_stripes(run, node, snapshot);
        }
        match &mut run.stripes {
            Some(stripes) => stripes.next(Snap::of(snapshot), Slot::of(slot)),
            None => false,
        }
    };
    let found = callback(|| super::memory::within(context, body));
    if !found {
        Slot::of(slot).clear();
    }
    slot
}

unsafe fn start_heap(run: &mut Run, rel: pg_sys::Relation, snapshot: pg_sys::Snapshot) {
    run.heap = if run.parallel.is_null() {
        let flags = pg_sys::ScanOptions::SO_TYPE_SEQSCAN
            | pg_sys::ScanOptions::SO_ALLOW_PAGEMODE
            | pg_sys::ScanOptions::SO_ALLOW_STRAT
            | pg_sys::ScanOptions::SO_ALLOW_SYNC;
        let none = std::ptr::null_mut();
        pg_sys::heap_beginscan(rel, snapshot, 0, none, std::ptr::null_mut(), flags)
    } else {
        pg_sys::table_beginscan_parallel(rel, run.parallel)
    };
}

unsafe fn next_in_row_store(run: &mut Run, slot: *mut pg_sys::TupleTableSlot) -> bool {
    let forward = pg_sys::ScanDirection::ForwardScanDirection;
    if !pg_sys::heap_getnextslot(run.heap, forward, run.heap_slot) {
        return false;
    }
    if run.deform > 0 {
        pg_sys::slot_getsomeattrs_int(run.heap_slot, run.deform);
    }
    let values = (*run.heap_slot).tts_values;
    let nulls = (*run.heap_slot).tts_isnull;
    Slot::of(slot)
        .fill(run.wanted.iter().map(|i| (*i, ((*values.add(*i)).value(), *nulls.add(*i)))));
    (*slot).tts_tid = (*run.heap_slot).tts_tid;
    (*slot).tts_tableOid = (*run.heap_slot).tts_tableOid;
    true
}

unsafe fn start_stripes(
    run: &mut Run,
    node: *mut pg_sys::CustomScanState,
    snapshot: pg_sys::Snapshot,
) {
    let econtext = (*node).ss.ps.ps_ExprContext;
    let mut conditions = Vec::new();
    for (condition, state) in &run.conditions {
        let mut null = false;
        // Values by reference must last as long as the scan: the current context is the query's.
        let value = match (**state).evalfunc {
            Some(f) => guarded(|| f(*state, econtext, &mut null)),
            None => continue,
        };
        conditions.push((*condition, (!null).then(|| value.value())));
    }
    let rel = Rel::of((*node).ss.ss_currentRelation);
    let shared = run.parallel;
    let claims: Option<Box<dyn FnMut() -> u32>> =
        (!shared.is_null()).then(|| Box::new(move || claim(shared as usize)) as _);
    run.stripes =
        Some(FirnScan::new(rel, Snap::of(snapshot), run.wanted.clone(), conditions, claims));
}

unsafe fn stop(run: &mut Run) {
    if let Some(stripes) = run.stripes.take() {
        let (t, c) = (&mut run.total, stripes.counters);
        t.stripes_read += c.stripes_read;
        t.stripes_skipped += c.stripes_skipped;
        t.batches_read += c.batches_read;
        t.batches_skipped += c.batches_skipped;
        t.rows_filtered += c.rows_filtered;
    }
    if !run.heap.is_null() {
        // Both kinds of scan end through their own access method's function.
        if run.parallel.is_null() {
            pg_sys::heap_endscan(run.heap);
        } else {
            guarded(|| super::tableam_scan::end(run.heap));
        }
        run.heap = std::ptr::null_mut();
    }
    run.heap_done = false;
}

unsafe extern "C-unwind" fn end(node: *mut pg_sys::CustomScanState) {
    callback(|| {
        let run = run(node);
        stop(run);
        pg_sys::ExecDropSingleTupleTableSlot(run.heap_slot);
        *(*(node as *mut State)).run = None;
    })
}

unsafe extern "C-unwind" fn rescan(node: *mut pg_sys::CustomScanState) {
    callback(|| {
        stop(run(node));
        pg_sys::ExecScanReScan(&mut (*node).ss);
    })
}

unsafe extern "C-unwind" fn estimate_dsm(
    node: *mut pg_sys::CustomScanState,
    _context: *mut pg_sys::ParallelContext,
) -> usize {
    callback(|| {
        let snapshot = (*(*node).ss.ps.state).es_snapshot;
        pg_sys::table_parallelscan_estimate((*node).ss.ss_currentRelation, snapshot)
            .max(std::mem::size_of::<ParallelDesc>())
    })
}

unsafe extern "C-unwind" fn initialize_dsm(
    node: *mut pg_sys::CustomScanState,
    _context: *mut pg_sys::ParallelContext,
    place: *mut core::ffi::c_void,
) {
    callback(|| {
        let snapshot = (*(*node).ss.ps.state).es_snapshot;
        let rel = (*node).ss.ss_currentRelation;
        pg_sys::table_parallelscan_initialize(rel, place.cast(), snapshot);
        run(node).parallel = place.cast();
    })
}

unsafe extern "C-unwind" fn reinitialize_dsm(
    node: *mut pg_sys::CustomScanState,
    _context: *mut pg_sys::ParallelContext,
    place: *mut core::ffi::c_void,
) {
    callback(|| {
        let rel = (*node).ss.ss_currentRelation;
        guarded(|| super::tableam_scan::parallel_reinitialize(rel, place.cast()));
    })
}

unsafe extern "C-unwind" fn initialize_worker(
    node: *mut pg_sys::CustomScanState,
    _toc: *mut pg_sys::shm_toc,
    place: *mut core::ffi::c_void,
) {
    callback(|| run(node).parallel = place.cast())
}

unsafe extern "C-unwind" fn explain(
    node: *mut pg_sys::CustomScanState,
    _ancestors: *mut pg_sys::List,
    es: *mut pg_sys::ExplainState,
) {
    callback(|| {
        let run = run(node);
        if (*es).verbose {
            explain_columns(node, run, es);
        }
        if !(*es).analyze {
            return;
        }
        let live = run.stripes.as_ref().map(|s| s.counters).unwrap_or_default();
        let t = run.total;
        let show = |label: &std::ffi::CStr, value: u64| {
            pg_sys::ExplainPropertyInteger(label.as_ptr(), std::ptr::null(), value as i64, es)
        };
        show(c"Stripes Read", t.stripes_read + live.stripes_read);
        show(c"Stripes Skipped", t.stripes_skipped + live.stripes_skipped);
        show(c"Batches Read", t.batches_read + live.batches_read);
        show(c"Batches Skipped", t.batches_skipped + live.batches_skipped);
        show(c"Rows Removed by Stripe Filter", t.rows_filtered + live.rows_filtered);
    })
}

unsafe fn explain_columns(
    node: *mut pg_sys::CustomScanState,
    run: &Run,
    es: *mut pg_sys::ExplainState,
) {
    let names = Rel::of((*node).ss.ss_currentRelation).attributes();
    let list: Vec<&str> =
        run.wanted.iter().filter_map(|i| names.get(*i)).map(|a| a.name.as_str()).collect();
    if let Ok(text) = std::ffi::CString::new(list.join(", ")) {
        pg_sys::ExplainPropertyText(c"Columns Read".as_ptr(), text.as_ptr(), es);
    }
}
