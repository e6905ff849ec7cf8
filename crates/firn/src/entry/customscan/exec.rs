//! Running the scan: rows of the row store, then batches of stripe rows, then what this session has
//! not written yet.
//!
//! `exec` runs for every row. It calls PostgreSQL without guards and owns nothing that needs dropping
//! while it does, so that errors of user expressions pass by whole; what can fail on our side happens
//! once a batch, inside `callback`.

use super::conditions;
use super::parallel::{self, Parallel};
use super::{
    backward, columns_of, explain, joins, list_items, path, substitute, table_columns, Shared,
};
use crate::entry::tableam::{self, hidden::hidden};
use crate::pg::datum::{Datum, RightValue};
use crate::pg::ext::{callback, direct, guarded};
use crate::pg::jsonb::Fields;
use crate::pg::memory::{alloc, slot_for_state};
use crate::pg::parallel::Shared as SharedScan;
use crate::pg::slot::Slot;
use crate::pg::snapshot::Snap;
use crate::pg::{compat, error, memory, xact, Kind, Rel};
use crate::plan::{Bound, Condition, Counters, FirnScan, Formula, Qual};
use pgrx::pg_sys;
use std::rc::Rc;

pub(super) static SCAN_METHODS: Shared<pg_sys::CustomScanMethods> =
    Shared(pg_sys::CustomScanMethods {
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
    EstimateDSMCustomScan: Some(parallel::estimate_dsm),
    InitializeDSMCustomScan: Some(parallel::initialize_dsm),
    ReInitializeDSMCustomScan: Some(parallel::reinitialize_dsm),
    InitializeWorkerCustomScan: Some(parallel::initialize_worker),
    ShutdownCustomScan: Some(parallel::shutdown),
    ExplainCustomScan: Some(explain::explain),
});

/// The executor's node: PostgreSQL's state, then ours.
#[repr(C)]
pub(super) struct State {
    css: pg_sys::CustomScanState,
    pub run: *mut Option<Run>,
}

/// Values of a column in the batch at hand and the column of a slot they go to.
struct Feed {
    values: *const usize,
    /// Null when no value is NULL.
    nulls: *const bool,
    to: usize,
}

/// A qual that stripes evaluate, or a part of it: its conditions, with the numbers of their right-hand sides.
struct Stated {
    formula: Formula<(Condition, usize)>,
    is_all: bool,
}

/// A scan that is set up.
pub(super) struct Run {
    /// heapam's scan of the row store; null before the first row.
    pub heap: pg_sys::TableScanDesc,
    pub heap_slot: *mut pg_sys::TupleTableSlot,
    heap_done: bool,
    /// The row store's block that the first scan began at: where all of them begin, so that a cursor that is
    /// rewound finds the same rows in the same order (as heapam's rescan has it).
    pub first_block: Option<pg_sys::BlockNumber>,
    /// The table's own scan, from the first step back on; null before.
    pub both_ways: pg_sys::TableScanDesc,
    /// Highest column (count) used, for deforming.
    deform: i32,
    pub wanted: Vec<usize>,
    /// Of documents in some of them, the fields that the query looks at.
    pub fields: Rc<Vec<(usize, Fields)>>,
    stated: Vec<Stated>,
    /// The right-hand sides of their conditions.
    values: Vec<*mut pg_sys::ExprState>,
    /// Which of them are a parameter of the statement.
    parameters: Vec<bool>,
    /// The quals that no stripe evaluates, or not wholly; null when there is none.
    residual: *mut pg_sys::ExprState,
    /// Joins by hash whose other side this scan is.
    pub joins: Vec<joins::Join>,
    /// Where rows of columns alone go without being projected: column of the table, of the result.
    outputs: Option<Vec<(usize, usize)>>,
    /// Somebody looks at ctid or tableoid: the query itself, or WHERE CURRENT OF at the scan slot of
    /// a cursor. (Cursors are never read in parallel.)
    needs_tid: bool,
    pub stripes: Option<FirnScan>,
    /// The batch at hand: its columns, and whether they go straight to the result slot.
    feeds: Vec<Feed>,
    straight: bool,
    qual: *mut pg_sys::ExprState,
    row: usize,
    rows: usize,
    stripes_done: bool,
    pub parallel: *mut Parallel,
    /// What the processes have counted in that memory is collected, and the memory may be gone.
    pub is_collected: bool,
    pub total: Counters,
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
    estate: *mut pg_sys::EState,
    _flags: i32,
) {
    // SAFETY: the node is new, with its relation opened and its slots made by PostgreSQL; its plan is the one that `path.rs` has made.
    unsafe {
        callback(|| {
            let plan = (*node).ss.ps.plan as *mut pg_sys::CustomScan;
            let rel = (*node).ss.ss_currentRelation;
            let columns = Rel::of(rel).column_count();
            let nodes = [(*plan).scan.plan.targetlist.cast(), (*plan).scan.plan.qual.cast()];
            let numbers = columns_of(&nodes, std::ptr::null_mut(), (*plan).scan.scanrelid);
            let wanted = table_columns(&numbers, columns);
            let mut fields = path::read_fields(plan);
            fields.retain(|(column, _)| wanted.contains(column));
            let (stated, whole) = stated(path::conditions_of(plan));
            let values = list_items::<pg_sys::Expr>((*plan).custom_exprs);
            let parameters = values.iter().map(|e| conditions::is_parameter((*e).cast())).collect();
            let values =
                values.into_iter().map(|e| pg_sys::ExecInitExpr(e, &mut (*node).ss.ps)).collect();
            let mut others = std::ptr::null_mut();
            let quals = list_items::<pg_sys::Node>((*plan).scan.plan.qual);
            for (_, qual) in quals.into_iter().enumerate().filter(|(i, _)| !whole.contains(i)) {
                others = pg_sys::lappend(others, qual.cast());
            }
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
                heap_slot: pg_sys::table_slot_create(rel, std::ptr::null_mut()),
                heap_done: false,
                first_block: None,
                both_ways: std::ptr::null_mut(),
                deform: wanted.iter().max().map_or(0, |m| *m as i32 + 1),
                needs_tid: numbers.iter().any(|n| *n < 0)
                    || !((*estate).es_use_parallel_mode || xact::is_parallel_worker()),
                fields: Rc::new(fields),
                wanted,
                stated,
                values,
                parameters,
                joins: Vec::new(),
                residual: pg_sys::ExecInitQual(others, &mut (*node).ss.ps),
                outputs: plain_outputs(node, (*plan).scan.scanrelid),
                stripes: None,
                feeds: Vec::new(),
                straight: false,
                qual: std::ptr::null_mut(),
                row: 0,
                rows: 0,
                stripes_done: false,
                parallel: std::ptr::null_mut(),
                is_collected: false,
                total: Default::default(),
            });
        })
    }
}

/// What the plan says that stripes evaluate, and the numbers of the quals that are evaluated so as a whole.
fn stated(mut numbers: impl Iterator<Item = i32>) -> (Vec<Stated>, Vec<usize>) {
    let (mut stated, mut whole, mut value) = (Vec::new(), Vec::new(), 0);
    while let (Some(qual), Some(is_all)) = (numbers.next(), numbers.next()) {
        let Some(formula) = conditions::read(&mut numbers, &mut value) else { break };
        let is_all = is_all != 0;
        stated.push(Stated { formula, is_all });
        whole.extend(is_all.then_some(qual as usize));
    }
    (stated, whole)
}

/// When every result column is a column of the table: which. None too when nothing is projected.
unsafe fn plain_outputs(
    node: *mut pg_sys::CustomScanState,
    relid: pg_sys::Index,
) -> Option<Vec<(usize, usize)>> {
    // SAFETY: a node that is being set up; entries of a target list are TargetEntry.
    unsafe {
        if (*node).ss.ps.ps_ProjInfo.is_null() {
            return None;
        }
        let list = list_items::<pg_sys::TargetEntry>((*(*node).ss.ps.plan).targetlist);
        let column = |(to, entry): (usize, *mut pg_sys::TargetEntry)| {
            let var = (*entry).expr as *mut pg_sys::Var;
            let plain = (*var).xpr.type_ == pg_sys::NodeTag::T_Var
                && (*var).varno as pg_sys::Index == relid
                && (*var).varattno > 0;
            plain.then(|| ((*var).varattno as usize - 1, to))
        };
        list.into_iter().enumerate().map(column).collect()
    }
}

/// The node is one of these.
pub(super) unsafe fn is_scan(state: *mut pg_sys::PlanState) -> bool {
    // SAFETY: a node of a started query, whose tag says what it is.
    unsafe { std::ptr::eq((*(state as *mut pg_sys::CustomScanState)).methods, &EXEC_METHODS.0) }
}

pub(super) unsafe fn run<'a>(node: *mut pg_sys::CustomScanState) -> &'a mut Run {
    // SAFETY: a node that has begun; nobody else holds its state.
    unsafe {
        match &mut *(*(node as *mut State)).run {
            Some(run) => run,
            None => error(Kind::Internal, "a firn scan was used after its end").raise(),
        }
    }
}

unsafe extern "C-unwind" fn exec(
    node: *mut pg_sys::CustomScanState,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: a node that has begun; its state is used by raw pointer, as what is called below uses it, too.
    unsafe {
        let Some(run) = &mut *(*(node as *mut State)).run else { return std::ptr::null_mut() };
        let run: *mut Run = run;
        let state = (*node).ss.ps.state;
        if !(*state).es_epq_active.is_null() {
            let slot = substitute::step(node, run, (*state).es_epq_active);
            if !slot.is_null() {
                return slot;
            }
        }
        let direction = (*state).es_direction;
        if direction == pg_sys::ScanDirection::BackwardScanDirection || !(*run).both_ways.is_null()
        {
            return backward::step(node, run, direction);
        }
        loop {
            // Between rows that a condition refuses, too.
            if pg_sys::InterruptPending != 0 {
                direct::ProcessInterrupts();
            }
            if (*run).row < (*run).rows {
                let slot = next_of_batch(node, run);
                if !slot.is_null() {
                    return slot;
                }
            } else if !(*run).heap_done {
                let slot = next_in_row_store(node, run);
                if !slot.is_null() {
                    return slot;
                }
            } else if !(*run).stripes_done {
                callback(|| refill(node, &mut *run));
            } else {
                let slot = (*node).ss.ss_ScanTupleSlot;
                if !callback(|| next_unwritten(node, &mut *run)) {
                    return finished(node);
                }
                let slot = checked(node, slot, (*node).ss.ps.qual);
                if !slot.is_null() {
                    return slot;
                }
            }
        }
    }
}

/// An empty result.
pub(super) unsafe fn finished(node: *mut pg_sys::CustomScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: a node that has begun has a slot, and a projection one for its result.
    unsafe {
        let slot = (*node).ss.ss_ScanTupleSlot;
        direct::ExecClearTuple(slot);
        let projection = (*node).ss.ps.ps_ProjInfo;
        if projection.is_null() {
            return slot;
        }
        let result = (*projection).pi_state.resultslot;
        direct::ExecClearTuple(result);
        result
    }
}

/// The virtual row in the scan slot as the node's result, or its end.
pub(super) unsafe fn virtual_row(
    node: *mut pg_sys::CustomScanState,
    slot: *mut pg_sys::TupleTableSlot,
    produced: bool,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: all values of the slot have been set by the caller, or there is no row.
    unsafe {
        if !produced {
            return finished(node);
        }
        full(slot);
        checked(node, slot, std::ptr::null_mut())
    }
}

/// The row in `slot` as a result: null when `qual` refuses it.
unsafe fn checked(
    node: *mut pg_sys::CustomScanState,
    slot: *mut pg_sys::TupleTableSlot,
    qual: *mut pg_sys::ExprState,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: a node that has begun has an expression context; the slot is one that its expressions are compiled for.
    unsafe {
        let econtext = (*node).ss.ps.ps_ExprContext;
        let per_tuple = (*econtext).ecxt_per_tuple_memory;
        if !(*per_tuple).isReset {
            direct::MemoryContextReset(per_tuple);
        }
        (*econtext).ecxt_scantuple = slot;
        if !qual.is_null() {
            let mut null = false;
            let passes = evaluate(qual, econtext, &mut null);
            if null || passes.value() == 0 {
                let instrument = (*node).ss.ps.instrument;
                if !instrument.is_null() {
                    (*instrument).nfiltered1 += 1.0;
                }
                return std::ptr::null_mut();
            }
        }
        let projection = (*node).ss.ps.ps_ProjInfo;
        if projection.is_null() {
            return slot;
        }
        let state = &raw mut (*projection).pi_state;
        let result = (*state).resultslot;
        direct::ExecClearTuple(result);
        let mut null = false;
        evaluate(state, (*projection).pi_exprContext, compat::flag_of_projection(&mut null));
        full(result);
        result
    }
}

/// Evaluate an expression in the per-tuple memory.
unsafe fn evaluate(
    state: *mut pg_sys::ExprState,
    econtext: *mut pg_sys::ExprContext,
    null: *mut bool,
) -> pg_sys::Datum {
    // SAFETY: an expression that was compiled for this context.
    unsafe {
        let Some(f) = (*state).evalfunc else { return pg_sys::Datum::from(0usize) };
        let old = pg_sys::CurrentMemoryContext;
        pg_sys::CurrentMemoryContext = (*econtext).ecxt_per_tuple_memory;
        let value = f(state, econtext, null);
        pg_sys::CurrentMemoryContext = old;
        value
    }
}

/// A row of the slot that somebody has copied into the slot's memory (ExecMaterializeSlot()) goes, memory and all: else the next
/// one would count as copied, too.
unsafe fn emptied(slot: *mut pg_sys::TupleTableSlot) {
    // SAFETY: a live slot.
    unsafe {
        if (*slot).tts_flags & pg_sys::TTS_FLAG_SHOULDFREE as u16 != 0 {
            direct::ExecClearTuple(slot);
        }
    }
}

/// All columns of a virtual slot have been set.
unsafe fn full(slot: *mut pg_sys::TupleTableSlot) {
    // SAFETY: a virtual slot, all of whose values have been set.
    unsafe {
        (*slot).tts_flags &= !(pg_sys::TTS_FLAG_EMPTY as u16);
        (*slot).tts_nvalid = (*(*slot).tts_tupleDescriptor).natts as i16;
    }
}

unsafe fn next_of_batch(
    node: *mut pg_sys::CustomScanState,
    run: *mut Run,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: the feeds lead to columns of the batch at hand, each as long as the batch; it is let go after its last row only.
    unsafe {
        let run = &mut *run;
        let row = run.row;
        run.row += 1;
        let slot = match run.straight {
            true => (*(*node).ss.ps.ps_ProjInfo).pi_state.resultslot,
            false => (*node).ss.ss_ScanTupleSlot,
        };
        emptied(slot);
        let (values, nulls) = ((*slot).tts_values, (*slot).tts_isnull);
        for feed in &run.feeds {
            *values.add(feed.to) = pg_sys::Datum::from(*feed.values.add(row));
            *nulls.add(feed.to) = !feed.nulls.is_null() && *feed.nulls.add(row);
        }
        full(slot);
        if run.needs_tid {
            if let Some(ready) = run.stripes.as_ref().and_then(|s| s.ready()) {
                let number = ready.rows.get(row).copied().unwrap_or(0);
                let table = (*(*node).ss.ss_currentRelation).rd_id;
                let scan_slot = (*node).ss.ss_ScanTupleSlot;
                Slot::of(scan_slot).set_tid(table, firn_format::Tid::of(ready.slot, number));
                full(scan_slot);
            }
        }
        if run.straight {
            return slot;
        }
        checked(node, slot, run.qual)
    }
}

unsafe fn next_in_row_store(
    node: *mut pg_sys::CustomScanState,
    run: *mut Run,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: a scan of heapam's that has not ended, and a slot for heap tuples in buffers.
    unsafe {
        if (*run).heap.is_null() {
            callback(|| start_heap(node, &mut *run));
        }
        let from = (*run).heap_slot;
        let forward = pg_sys::ScanDirection::ForwardScanDirection;
        if !direct::heap_getnextslot((*run).heap, forward, from) {
            (*run).heap_done = true;
            return std::ptr::null_mut();
        }
        let scan = (*run).heap;
        if hidden((*scan).rs_rd, (*scan).rs_snapshot, from) {
            return std::ptr::null_mut();
        }
        shown(node, run, from)
    }
}

/// The row in a slot of the table's as a result: null when it does not pass.
pub(super) unsafe fn shown(
    node: *mut pg_sys::CustomScanState,
    run: *mut Run,
    from: *mut pg_sys::TupleTableSlot,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: the slot has as many columns as the table, and those up to `deform` are there once it is deformed.
    unsafe {
        let deform = (*run).deform;
        if deform > i32::from((*from).tts_nvalid) {
            direct::slot_getsomeattrs_int(from, deform);
        }
        // Expressions are compiled for a virtual scan slot, whose columns are there without deforming a tuple.
        let slot = (*node).ss.ss_ScanTupleSlot;
        emptied(slot);
        for i in &(*run).wanted {
            *(*slot).tts_values.add(*i) = *(*from).tts_values.add(*i);
            *(*slot).tts_isnull.add(*i) = *(*from).tts_isnull.add(*i);
        }
        full(slot);
        (*slot).tts_tid = (*from).tts_tid;
        (*slot).tts_tableOid = (*from).tts_tableOid;
        checked(node, slot, (*node).ss.ps.qual)
    }
}

unsafe fn start_heap(node: *mut pg_sys::CustomScanState, run: &mut Run) {
    // SAFETY: the node's relation is open, and the snapshot is the query's; the scan lives in the query's memory.
    unsafe {
        let rel = (*node).ss.ss_currentRelation;
        let state = (*node).ss.ps.state;
        memory::within((*state).es_query_cxt, || {
            run.heap = if run.parallel.is_null() {
                let flags = pg_sys::ScanOptions::SO_TYPE_SEQSCAN
                    | pg_sys::ScanOptions::SO_ALLOW_PAGEMODE
                    | pg_sys::ScanOptions::SO_ALLOW_STRAT
                    | pg_sys::ScanOptions::SO_ALLOW_SYNC;
                let none = std::ptr::null_mut();
                let heap =
                    pg_sys::heap_beginscan(rel, (*state).es_snapshot, 0, none, none.cast(), flags);
                let block = &raw mut (*(heap as pg_sys::HeapScanDesc)).rs_startblock;
                *block = *run.first_block.get_or_insert(*block);
                heap
            } else {
                pg_sys::table_beginscan_parallel(rel, Parallel::scan(run.parallel))
            };
        })
    }
}

/// Fetch the next batch of stripe rows, or note that there is none.
unsafe fn refill(node: *mut pg_sys::CustomScanState, run: &mut Run) {
    // SAFETY: a node that runs; a batch that is pointed to stays with the scan until the next is asked for.
    unsafe {
        let state = (*node).ss.ps.state;
        memory::within((*state).es_query_cxt, || {
            let snap = Snap::of((*state).es_snapshot);
            if run.stripes.is_none() {
                start_stripes(node, run, snap);
            }
            run.feeds.clear();
            (run.row, run.rows) = (0, 0);
            let Some(stripes) = &mut run.stripes else { return };
            joins::take(&mut run.joins, stripes);
            let Some(ready) = stripes.advance(snap) else {
                run.stripes_done = true;
                return;
            };
            run.qual = if ready.exact { run.residual } else { (*node).ss.ps.qual };
            let feed = |column: usize, to: usize| {
                let (_, d) = ready.columns.iter().find(|(i, _)| *i == column)?;
                let (values, nulls) = d.as_raw();
                Some(Feed { values, nulls, to })
            };
            run.straight = run.qual.is_null() && run.outputs.is_some();
            match &run.outputs {
                Some(outputs) if run.straight => {
                    run.feeds.extend(outputs.iter().filter_map(|(column, to)| feed(*column, *to)));
                }
                _ => run.feeds.extend(run.wanted.iter().filter_map(|i| feed(*i, *i))),
            }
            run.rows = ready.rows.len();
        })
    }
}

unsafe fn next_unwritten(node: *mut pg_sys::CustomScanState, run: &mut Run) -> bool {
    // SAFETY: a node that runs, and its own slot.
    unsafe {
        let state = (*node).ss.ps.state;
        let slot = Slot::of((*node).ss.ss_ScanTupleSlot);
        memory::within((*state).es_query_cxt, || {
            let snap = Snap::of((*state).es_snapshot);
            run.stripes.as_mut().is_some_and(|stripes| {
                let found = stripes.next_pending(snap, slot);
                if !found {
                    stripes.let_go();
                }
                found
            })
        })
    }
}

unsafe fn start_stripes(node: *mut pg_sys::CustomScanState, run: &mut Run, snap: Snap) {
    // SAFETY: expressions were compiled for this node; what they return is copied before their memory is reset.
    unsafe {
        let econtext = (*node).ss.ps.ps_ExprContext;
        let per_tuple = (*econtext).ecxt_per_tuple_memory;
        let rel = Rel::of((*node).ss.ss_currentRelation);
        // What a condition compares with is a sub-select or a function perhaps, which costs, or raises, and is not asked for nothing.
        let needed = !run.stated.is_empty() && crate::plan::sees_stripes(rel, snap);
        let (values, parameters) = (&run.values, &run.parameters);
        // PL/pgSQL's are looked up when they are asked for, which a field of a record that has none may not be.
        let params = (*(*node).ss.ps.state).es_param_list_info;
        let may_fail = !params.is_null() && (*params).paramCompile.is_some();
        let bind = |(condition, value): &(Condition, usize), is_choice: bool| {
            if may_fail && is_choice && parameters[*value] {
                return Bound::unknown(*condition);
            }
            let mut null = true;
            let is_null = &raw mut null;
            // The value is copied out: nothing of it stays in the query's memory, which a scan that starts
            // again and again would fill.
            let bound = memory::within(per_tuple, || {
                let state: *mut pg_sys::ExprState = values[*value];
                let value = match (*state).evalfunc {
                    Some(f) => guarded(|| f(state, econtext, is_null)),
                    None => pg_sys::Datum::from(0usize),
                };
                // Of the type that the operator takes there.
                let value =
                    (!null).then(|| RightValue::of(condition.test.right(), Datum::of(value)));
                Bound::new(*condition, value)
            });
            pg_sys::MemoryContextReset(per_tuple);
            bound
        };
        let quals = run.stated.iter().filter(|_| needed).map(|stated| {
            let is_choice = stated.formula.has_choice();
            let formula = stated.formula.map(&mut |one| bind(one, is_choice));
            Qual { formula, is_checked_again: !stated.is_all }
        });
        let quals = quals.collect();
        let shared = run.parallel;
        let claims: Option<Box<dyn FnMut() -> u32>> = (!shared.is_null()).then(|| {
            let shared = SharedScan::of(Parallel::scan(shared));
            Box::new(move || shared.claim()) as _
        });
        let columns = (run.wanted.clone(), run.fields.clone());
        run.stripes = Some(FirnScan::new(rel, snap, columns, quals, claims));
    }
}

/// Back to the state before the first row; counters are kept.
unsafe fn stop(run: &mut Run) {
    // SAFETY: scans that were begun here, ended once.
    unsafe {
        if let Some(stripes) = run.stripes.take() {
            run.total.add(&stripes.counters);
        }
        if !run.heap.is_null() {
            // Both kinds of scan end through their own access method's function.
            if run.parallel.is_null() {
                pg_sys::heap_endscan(run.heap);
            } else {
                guarded(|| tableam::scan::end(run.heap));
            }
            run.heap = std::ptr::null_mut();
        }
        backward::stop(run);
        joins::forget(&mut run.joins);
        run.feeds.clear();
        (run.row, run.rows) = (0, 0);
        (run.heap_done, run.stripes_done) = (false, false);
    }
}

unsafe extern "C-unwind" fn end(node: *mut pg_sys::CustomScanState) {
    // SAFETY: a node that has begun, ended once.
    unsafe {
        callback(|| {
            let run = run(node);
            stop(run);
            pg_sys::ExecDropSingleTupleTableSlot(run.heap_slot);
            *(*(node as *mut State)).run = None;
        })
    }
}

unsafe extern "C-unwind" fn rescan(node: *mut pg_sys::CustomScanState) {
    // SAFETY: a node that has begun.
    unsafe {
        callback(|| {
            stop(run(node));
            pg_sys::ExecScanReScan(&mut (*node).ss);
        })
    }
}
