//! Keys of a join by hash, for the scan on its other side.
//!
//! Such a join reads one side into a hash table, then the other: of that, rows without a key in the table are dropped. When a FirnScan
//! is the other side, or gives it its rows as they are, it takes the keys out of the table before it reads stripes on, and
//! leaves out stripes, batches and rows that have none. `IN (SELECT …)` is such a join, too.
//!
//! It is an optimisation of the executor's, which the plan knows nothing of: what comes in spite of it the join drops. So it is left
//! where it is not easy: a join that wants rows of that side without a partner (LEFT, FULL, ANTI), a table that has parts on disk, keys that are more
//! than columns, many keys for few rows.
//!
//! A table that several processes build together (Parallel Hash) is in their shared memory: each takes the keys for itself, when it reads its
//! part of the other side. Nobody changes the table from then on.

use super::{conditions, exec, list_items, path};
use crate::pg::datum::{Datum, Operand, Value};
use crate::pg::ext::callback;
use crate::pg::slot::Slot;
use crate::pg::{compat, Oid};
use crate::plan::{Bound, FirnScan};
use pgrx::pg_sys;

/// Keys that are taken out of a table at most; so many rows of stripes there must be for each.
const MOST_KEYS: f64 = 65_536.0;
/// Of those that a filter converts for each batch.
const MOST_CONVERTED_KEYS: f64 = 1_000.0;
const ROWS_PER_KEY: f64 = 4.0;
/// Memory of a key beside its own bytes, about: its places among the values and in a filter's set, each allocated by itself.
const BYTES_PER_KEY: usize = 96;

/// A join above a scan.
pub(super) struct Join {
    join: *mut pg_sys::HashJoinState,
    /// The key's column in the rows of the hash table (1 = first), and its type.
    number: i16,
    operand: Operand,
    /// The scan's column that is to equal it.
    pub column: usize,
    /// It has been looked at since the scan has begun.
    looked_at: bool,
    /// Several processes build its table, if there are several.
    is_parallel: bool,
}

/// Where an entry is: its address, or where it is in the area that processes share; 0 for none.
type Link = usize;

/// A table, of which nothing is believed before [`Table::makes_sense`]: a server of another minor version might have others.
type Table = compat::HashTable;

impl Table {
    /// All numbers are such as PostgreSQL would have in a table that is built.
    fn makes_sense(&self) -> bool {
        (0..31).contains(&self.bucket_bits)
            && self.bucket_count == 1 << self.bucket_bits
            && !self.buckets.is_null()
            && self.batches >= 1
            && (0..self.batches).contains(&self.current_batch)
            && self.rows >= 0.0
            && self.rows.fract() == 0.0
            && (self.shared.is_null() || !self.area.is_null())
    }

    /// The entry that a link leads to; null for none.
    unsafe fn entry(&self, link: Link) -> *const Entry {
        match self.shared.is_null() {
            true => link as *const Entry,
            // SAFETY: a link of this table, which lies in this area.
            false => unsafe { pg_sys::dsa_get_address(self.area, link as u64) as *const Entry },
        }
    }
}

/// HashJoinTupleData: the row follows, as a MinimalTuple.
#[repr(C, align(8))]
struct Entry {
    next: Link,
    hash: u32,
}

/// Look at a node of a plan before it runs.
///
/// # Safety
/// A planstate node of a query that has been started.
pub(in crate::entry) unsafe fn note(state: *mut pg_sys::PlanState) {
    // SAFETY: a node of a started query; only joins by hash are looked at as such.
    unsafe {
        if (*state).type_ == pg_sys::NodeTag::T_HashJoinState {
            callback(|| tell_scans(state.cast()))
        }
    }
}

unsafe fn tell_scans(join: *mut pg_sys::HashJoinState) {
    // SAFETY: a join by hash that was started, with its plan and both of its sides.
    unsafe {
        use pg_sys::JoinType as J;
        let plan = (*join).js.ps.plan as *mut pg_sys::HashJoin;
        // Rows of the outer side without a match are dropped.
        let kind = (*plan).join.jointype;
        let drops = matches!(kind, J::JOIN_INNER | J::JOIN_SEMI | J::JOIN_RIGHT)
            || [compat::RIGHT_ANTI, compat::RIGHT_SEMI].contains(&Some(kind));
        if !drops {
            return;
        }
        let is_parallel = (*plan).join.plan.parallel_aware;
        for clause in list_items::<pg_sys::OpExpr>((*plan).hashclauses) {
            let [left, right] = list_items::<pg_sys::Node>((*clause).args)[..] else { continue };
            let (Some(outer), Some(number)) =
                (column_of(left, pg_sys::OUTER_VAR), column_of(right, pg_sys::INNER_VAR))
            else {
                continue;
            };
            let kind = pg_sys::exprType(right);
            each_scan((*join).js.ps.lefttree, outer, &mut |scan, var| {
                let operand =
                    conditions::equality(var, (*clause).opno, kind, (*clause).inputcollid);
                let plan = (*scan).ss.ps.plan as *mut pg_sys::CustomScan;
                let leaks = path::is_guarded(plan) && !is_leakproof((*clause).opno);
                if let Some(operand) = operand.filter(|_| !leaks) {
                    let column = (*var).varattno as usize - 1;
                    let looked_at = false;
                    // Who walks through a plan comes to a sub-select as often as it is listed.
                    let joins = &mut exec::run(scan).joins;
                    if !joins.iter().any(|j| (j.join, j.number, j.column) == (join, number, column))
                    {
                        joins.push(Join { join, number, operand, column, looked_at, is_parallel });
                    }
                }
            });
        }
    }
}

unsafe fn is_leakproof(operator: Oid) -> bool {
    // SAFETY: look-ups in the catalogs.
    unsafe { pg_sys::get_func_leakproof(pg_sys::get_opcode(operator)) }
}

/// The number of a column below a node, by itself.
unsafe fn column_of(node: *mut pg_sys::Node, side: i32) -> Option<i16> {
    // SAFETY: an expression of the plan: its tag says of which type it is.
    unsafe {
        let node = match (*node).type_ {
            pg_sys::NodeTag::T_RelabelType => (*(node as *mut pg_sys::RelabelType)).arg.cast(),
            _ => node,
        };
        let var = node as *mut pg_sys::Var;
        let fits = (*node).type_ == pg_sys::NodeTag::T_Var && (*var).varno == side;
        fits.then(|| (*var).varattno).filter(|number| *number > 0)
    }
}

/// Each scan whose rows become the node's without more of them being dropped, or others made, when some are missing; and its column
/// that is the node's of that number.
unsafe fn each_scan(
    state: *mut pg_sys::PlanState,
    number: i16,
    f: &mut dyn FnMut(*mut pg_sys::CustomScanState, *mut pg_sys::Var),
) {
    // SAFETY: nodes of a started query: their tags say of which type they are, and their children are theirs.
    unsafe {
        use pg_sys::{JoinType as J, NodeTag as T};
        if state.is_null() || has_side_effects((*state).plan) {
            return;
        }
        let plan = (*state).plan;
        let entries = list_items::<pg_sys::TargetEntry>((*plan).targetlist);
        let Some(entry) = entries.get(number as usize - 1) else { return };
        let expr = (**entry).expr as *mut pg_sys::Node;
        match (*state).type_ {
            T::T_CustomScanState if exec::is_scan(state) => {
                let relid = (*(plan as *mut pg_sys::Scan)).scanrelid as i32;
                if column_of(expr, relid).is_some() {
                    let plain = (*expr).type_ == T::T_Var;
                    let relabelled = expr as *mut pg_sys::RelabelType;
                    let var = if plain { expr } else { (*relabelled).arg.cast() };
                    f(state.cast(), var.cast());
                }
            }
            T::T_HashJoinState | T::T_NestLoopState => {
                let kind = (*(plan as *mut pg_sys::Join)).jointype;
                let keeps =
                    matches!(kind, J::JOIN_INNER | J::JOIN_LEFT | J::JOIN_SEMI | J::JOIN_ANTI);
                let joined = (*(plan as *mut pg_sys::Join)).joinqual;
                // The inner side of a loop is run for each outer row: with a row that does not come, so does not what it does. That of a
                // join by hash is not run at all when no row comes.
                if keeps && is_quiet((*plan).righttree) && !is_volatile(joined.cast()) {
                    if let Some(below) = column_of(expr, pg_sys::OUTER_VAR) {
                        each_scan((*state).lefttree, below, f);
                    }
                }
            }
            T::T_AppendState => {
                let append = state as *mut pg_sys::AppendState;
                for i in 0..(*append).as_nplans as usize {
                    each_scan(*(*append).appendplans.add(i), number, f);
                }
            }
            _ => (),
        }
    }
}

/// A row that does not come to the node may be missed by others than its join.
unsafe fn has_side_effects(plan: *mut pg_sys::Plan) -> bool {
    // SAFETY: a node of a plan; lists in it are PostgreSQL's.
    unsafe { is_volatile((*plan).targetlist.cast()) || is_volatile((*plan).qual.cast()) }
}

/// Running it leaves nothing behind: scans of tables, with what keeps, sorts, groups and joins their rows.
unsafe fn is_quiet(plan: *mut pg_sys::Plan) -> bool {
    // SAFETY: nodes of a plan, whose tags say of which type they are; lists in them are PostgreSQL's.
    unsafe {
        use pg_sys::NodeTag as T;
        if plan.is_null() {
            return true;
        }
        let own = match (*plan).type_ {
            T::T_SeqScan
            | T::T_IndexScan
            | T::T_IndexOnlyScan
            | T::T_BitmapHeapScan
            | T::T_BitmapIndexScan
            | T::T_CustomScan
            | T::T_Material
            | T::T_Memoize
            | T::T_Hash
            | T::T_Sort
            | T::T_IncrementalSort
            | T::T_Unique
            | T::T_Group
            | T::T_Agg => true,
            T::T_SubqueryScan => is_quiet((*(plan as *mut pg_sys::SubqueryScan)).subplan),
            T::T_FunctionScan => {
                !is_volatile((*(plan as *mut pg_sys::FunctionScan)).functions.cast())
            }
            T::T_ValuesScan => {
                !is_volatile((*(plan as *mut pg_sys::ValuesScan)).values_lists.cast())
            }
            T::T_NestLoop | T::T_HashJoin => {
                !is_volatile((*(plan as *mut pg_sys::Join)).joinqual.cast())
            }
            _ => false,
        };
        own && !has_side_effects(plan) && is_quiet((*plan).lefttree) && is_quiet((*plan).righttree)
    }
}

unsafe fn is_volatile(node: *mut pg_sys::Node) -> bool {
    // SAFETY: an expression of a plan, of which the function only looks at the nodes.
    unsafe { pg_sys::contain_volatile_functions(node) || pg_sys::contain_subplans(node) }
}

/// Joins are to be looked at again: the scan begins anew, as their tables may have.
pub(super) fn forget(joins: &mut [Join]) {
    joins.iter_mut().for_each(|join| join.looked_at = false);
}

/// Give the scan the keys of those joins whose tables are there. Each is built before the scan is asked for its second row: the join
/// fetches one row perhaps to see whether there is any. One that several processes build is before the first, or is in parts: then the
/// other side is read into parts while no part of the table is at hand (`curbatch`).
pub(super) unsafe fn take(joins: &mut [Join], scan: &mut FirnScan) {
    // SAFETY: the joins stand above this scan in the same query and live as long; their hash tables are read only when they are built.
    unsafe {
        for join in joins.iter_mut().filter(|join| !join.looked_at) {
            let table = (*join.join).hj_HashTable as *const Table;
            if table.is_null() {
                continue;
            }
            join.looked_at = true;
            // The area is there, and nothing is shared in it any more.
            let is_gone = join.is_parallel && (*table).shared.is_null() && !(*table).area.is_null();
            let is_whole = !is_gone
                && (*table).makes_sense()
                && (*table).batches == 1
                && !(*table).skew_enabled;
            let most = match join.operand {
                Operand::Float4 | Operand::Float8 | Operand::Numeric | Operand::Bool => {
                    MOST_CONVERTED_KEYS
                }
                _ => MOST_KEYS,
            };
            let most = most.min(scan.stripe_rows() as f64 / ROWS_PER_KEY);
            if is_whole && (*table).rows <= most {
                let is_varlena = matches!(join.operand, Operand::Text | Operand::Numeric);
                if let Some(keys) =
                    keys((*join.join).hj_HashTupleSlot, &*table, join.number, is_varlena)
                {
                    let keys = keys.into_iter().map(|key| Value::of(join.operand, key));
                    scan.narrow(Bound::among(join.column, join.operand, keys.collect()));
                }
            }
        }
    }
}

/// The values of a column in all rows of the table but NULLs; they live as long as that. None if the copies that a filter makes
/// of them would not fit into `work_mem`: the join's own memory is that already.
unsafe fn keys<'a>(
    like: *mut pg_sys::TupleTableSlot,
    table: &'a Table,
    number: i16,
    is_varlena: bool,
) -> Option<Vec<Datum<'a>>> {
    // SAFETY: rows in the hash table's memory, of the descriptor that the slot has; what is copied is copied before the slot is emptied.
    unsafe {
        let columns = (*like).tts_tupleDescriptor;
        let row = pg_sys::MakeSingleTupleTableSlot(columns, &raw const pg_sys::TTSOpsMinimalTuple);
        let mut keys = Vec::with_capacity(table.rows as usize);
        let mut room = (pg_sys::work_mem as usize).saturating_mul(1024);
        let mut fits = true;
        'table: for bucket in 0..table.bucket_count as usize {
            let mut entry = table.entry(*table.buckets.add(bucket));
            while !entry.is_null() {
                pg_sys::ExecStoreMinimalTuple(entry.add(1).cast_mut().cast(), row, false);
                if let Some(value) = Slot::of(row).attribute(number) {
                    // As long as they are when they are neither compressed nor elsewhere: only their headers are read for this.
                    let own =
                        if is_varlena { pg_sys::toast_raw_datum_size(value.raw()) } else { 0 };
                    let Some(rest) = room.checked_sub(2 * own + BYTES_PER_KEY) else {
                        fits = false;
                        break 'table;
                    };
                    room = rest;
                    // The slot points into the table.
                    keys.push(Datum::of(value.raw()));
                }
                entry = table.entry((*entry).next);
            }
        }
        pg_sys::ExecDropSingleTupleTableSlot(row);
        fits.then_some(keys)
    }
}
