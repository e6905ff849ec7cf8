//! The scan on the inner side of a nested loop, under conditions that compare its columns with the outer row: `at >= o.since AND at <
//! o.until`. It starts again for each outer row, with other right-hand sides, and zone maps skip what those exclude. For the planner it is a path
//! with parameters, as an index scan has them.
//!
//! It is offered where nothing but a nested loop can join, and where the rows lie in the order of a column that is compared: what
//! else there is reads all rows for each outer row, from the table or from memory. (A join by hash takes its keys to the scan
//! itself, see `joins.rs`.)

use super::price::Prices;
use super::{columns_of, conditions, list_items, path, table_columns};
use crate::directory::counts::StripeTotals;
use crate::pg::memory::alloc;
use crate::pg::{compat, Oid};
use pgrx::pg_sys;

/// How well rows must follow the order of a column.
const LEAST_CORRELATION: f64 = 0.9;
/// Sets of outer relations that paths are made for.
const MOST_PATHS: usize = 4;
/// Rows that are decoded at least where any are.
const BATCH: f64 = 2_048.0;

/// Offer such paths.
pub(super) unsafe fn offer(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    relation: Oid,
    totals: &StripeTotals,
    prices: &Prices,
) {
    // SAFETY: the planner hands in its query and a relation of it, which has statistics of its own.
    unsafe {
        let mut done: Vec<pg_sys::Relids> = Vec::new();
        for info in list_items::<pg_sys::RestrictInfo>((*rel).joininfo) {
            if (*info).hashjoinoperator != pg_sys::InvalidOid
                || !pg_sys::join_clause_is_movable_to(info, rel)
            {
                continue;
            }
            let relid = (*rel).relid as i32;
            let outer = pg_sys::bms_del_member(pg_sys::bms_copy((*info).clause_relids), relid);
            let is_known = compat::is_empty(outer)
                || done.iter().any(|known| pg_sys::bms_equal(*known, outer));
            if is_known || done.len() >= MOST_PATHS {
                continue;
            }
            done.push(outer);
            let parameters = pg_sys::get_baserel_parampathinfo(root, rel, outer);
            let order = order(rel, relation, parameters);
            if order >= LEAST_CORRELATION {
                add(root, rel, parameters, totals, prices, order);
            }
        }
    }
}

/// How well the rows follow the order of that column among those compared with the outer row which they follow best.
unsafe fn order(
    rel: *mut pg_sys::RelOptInfo,
    relation: Oid,
    parameters: *mut pg_sys::ParamPathInfo,
) -> f64 {
    // SAFETY: clauses of the planner's; the look-ups are in the catalogs.
    unsafe {
        let mut best: f64 = 0.0;
        for info in list_items::<pg_sys::RestrictInfo>((*parameters).ppi_clauses) {
            if let Some(stated) = conditions::translate((*info).clause.cast(), (*rel).relid) {
                for column in conditions::columns(&stated.formula) {
                    best = best.max(correlation(relation, column + 1));
                }
            }
        }
        best
    }
}

/// The correlation between the values of a column and the rows' places, as ANALYZE has found it, without its sign; 0 where it is not known.
unsafe fn correlation(relation: Oid, number: i32) -> f64 {
    // SAFETY: a look-up in the catalogs; the row is given back when its numbers have been copied.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::STATRELATTINH as i32;
        let inherited = pg_sys::Datum::from(false);
        let tuple =
            pg_sys::SearchSysCache3(cache, relation.into(), (number as i16).into(), inherited);
        if tuple.is_null() {
            return 0.0;
        }
        let mut slot = pg_sys::AttStatsSlot::default();
        let kind = pg_sys::STATISTIC_KIND_CORRELATION as i32;
        let numbers = pg_sys::ATTSTATSSLOT_NUMBERS as i32;
        let found = pg_sys::get_attstatsslot(&mut slot, tuple, kind, pg_sys::InvalidOid, numbers);
        let found = found && slot.nnumbers > 0;
        let correlation = if found { f64::from(*slot.numbers).abs() } else { 0.0 };
        pg_sys::free_attstatsslot(&mut slot);
        pg_sys::ReleaseSysCache(tuple);
        correlation
    }
}

/// Each start reads the row store, looks at each stripe, and decodes what the conditions leave, as far as rows lie in order.
unsafe fn add(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    parameters: *mut pg_sys::ParamPathInfo,
    totals: &StripeTotals,
    prices: &Prices,
    order: f64,
) {
    // SAFETY: the planner's structures; the path is zeroed memory that becomes PostgreSQL's.
    unsafe {
        let tuples = (*rel).tuples.max(1.0);
        let stripe_rows = totals.rows.min(tuples);
        let passing = ((*parameters).ppi_rows / tuples).min(1.0);
        let apart = 1.0 - order * order;
        let share = (passing + BATCH / tuples + apart).min(1.0);
        let mut quals = pg_sys::QualCost::default();
        pg_sys::cost_qual_eval(&mut quals, (*parameters).ppi_clauses, root);
        let target = (*(*rel).reltarget).cost;
        let per_row = (*rel).baserestrictcost.per_tuple + quals.per_tuple + target.per_tuple;
        let in_row_store = tuples - stripe_rows;
        let rows_read = in_row_store + stripe_rows * share;
        let cpu = pg_sys::cpu_tuple_cost * (in_row_store + stripe_rows * share * 0.5)
            + pg_sys::cpu_tuple_cost * (1.0 + totals.stripes * 2.0)
            + prices.values() * share
            + per_row * rows_read;
        let numbers =
            columns_of(&[(*(*rel).reltarget).exprs.cast()], (*rel).baserestrictinfo, (*rel).relid);
        let wanted = table_columns(&numbers, (*rel).max_attr as usize).len() as f64;
        let of_columns = (wanted / f64::from((*rel).max_attr.max(1))).clamp(0.02, 1.0);
        let stripe_pages = f64::from(totals.pages()).min(f64::from((*rel).pages));
        let pages = f64::from((*rel).pages) - stripe_pages * (1.0 - of_columns * share);
        let startup = (*rel).baserestrictcost.startup + quals.startup + target.startup;
        let made = alloc::<pg_sys::CustomPath>();
        let p = &mut (*made).path;
        p.type_ = pg_sys::NodeTag::T_CustomPath;
        p.pathtype = pg_sys::NodeTag::T_CustomScan;
        p.parent = rel;
        p.pathtarget = (*rel).reltarget;
        p.param_info = parameters;
        p.parallel_safe = (*rel).consider_parallel;
        p.rows = (*parameters).ppi_rows;
        p.startup_cost = startup;
        p.total_cost = startup + cpu + pages * pg_sys::seq_page_cost;
        if !pg_sys::enable_seqscan {
            compat::disable(p);
        }
        (*made).flags = pg_sys::CUSTOMPATH_SUPPORT_PROJECTION;
        (*made).methods = &path::PATH_METHODS.0;
        pg_sys::add_path(rel, made.cast());
    }
}
