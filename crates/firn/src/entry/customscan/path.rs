//! Offering the scan to the planner, and its plan node.

use super::price::{self, Asked, Prices};
use super::{columns_of, conditions, exec, fields, inner, list_items, table_columns, Shared};
use crate::directory::counts::{stripe_totals, StripeTotals};
use crate::pg::compat;
use crate::pg::ext::callback;
use crate::pg::jsonb::Fields;
use crate::pg::memory::alloc;
use crate::pg::{guc, LockMode, OpenRel};
use crate::write::pending_of;
use pgrx::pg_sys;

static mut PREVIOUS: pg_sys::set_rel_pathlist_hook_type = None;

pub(super) static PATH_METHODS: Shared<pg_sys::CustomPathMethods> =
    Shared(pg_sys::CustomPathMethods {
        CustomName: c"FirnScan".as_ptr(),
        PlanCustomPath: Some(plan_path),
        ReparameterizeCustomPathByChild: None,
    });

pub(super) unsafe fn install() {
    // SAFETY: the library is being loaded; tables of methods are constants.
    unsafe {
        PREVIOUS = pg_sys::set_rel_pathlist_hook;
        pg_sys::set_rel_pathlist_hook = Some(pathlist);
        pg_sys::RegisterCustomScanMethods(&exec::SCAN_METHODS.0);
    }
}

unsafe extern "C-unwind" fn pathlist(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    rti: pg_sys::Index,
    rte: *mut pg_sys::RangeTblEntry,
) {
    // SAFETY: the planner hands in a relation of its query that it has locked, with the entry of the range table.
    unsafe {
        if let Some(f) = PREVIOUS {
            f(root, rel, rti, rte);
        }
        callback(|| {
            if (*rte).rtekind != pg_sys::RTEKind::RTE_RELATION
                || !matches!((*rte).relkind as u8, b'r' | b'm')
            {
                return;
            }
            // The planner holds a lock on every relation it plans for.
            let table = OpenRel::open((*rte).relid, LockMode::None);
            if !table.is_firn() || (*rte).inh || !(*rte).tablesample.is_null() || is_of_cursor(rel)
            {
                return;
            }
            let totals = stripe_totals(table.rel());
            if totals.rows == 0.0 && pending_of(table.rel()).is_empty() {
                return;
            }
            let prices = Prices::of(rel, table.rel(), &totals);
            if totals.rows > 0.0 {
                only_what_is_needed(rel);
                price::reprice(root, rel, &prices);
            }
            if applies(rel) {
                // Of the system columns a row made of columns has its TID and table only.
                if !uses_transaction_columns(rel) {
                    offer(root, rel, &totals, &prices);
                    inner::offer(root, rel, (*rte).relid, &totals, &prices);
                }
            }
        });
    }
}

/// Scans of this relation give the columns that are asked for. PostgreSQL would have index scans give all of them where
/// nobody minds, as of a heap tuple they cost nothing; a stripe's columns cost a page each. It does not where a
/// system column is needed (use_physical_tlist()), so one is said to be: from here on, when paths are compared, that
/// is looked at for columns which the relation gives, and it does not give this one.
unsafe fn only_what_is_needed(rel: *mut pg_sys::RelOptInfo) {
    // SAFETY: the array of needed columns begins with the relation's least attribute and has one place for each.
    unsafe {
        let first = i32::from((*rel).min_attr);
        if (*rel).reloptkind != pg_sys::RelOptKind::RELOPT_BASEREL || first > TABLE_OID {
            return;
        }
        let system = || (first..=0).map(|n| (*rel).attr_needed.add((n - first) as usize));
        if system().all(|needed| (*needed).is_null()) {
            *(*rel).attr_needed.add((TABLE_OID - first) as usize) = pg_sys::bms_make_singleton(0);
        }
    }
}

const TABLE_OID: i32 = pg_sys::TableOidAttributeNumber;

unsafe fn applies(rel: *mut pg_sys::RelOptInfo) -> bool {
    // SAFETY: the planner's own structures.
    unsafe { guc::enable_scan() && (*rel).lateral_relids.is_null() && !(*rel).pathlist.is_null() }
}

/// WHERE CURRENT OF asks for the row by its TID, which a scan by TIDs alone can do: from PostgreSQL 18 on it is the only path.
unsafe fn is_of_cursor(rel: *mut pg_sys::RelOptInfo) -> bool {
    // SAFETY: the planner's own structures.
    unsafe {
        list_items::<pg_sys::RestrictInfo>((*rel).baserestrictinfo)
            .iter()
            .any(|info| (*(**info).clause).type_ == pg_sys::NodeTag::T_CurrentOfExpr)
    }
}

unsafe fn uses_transaction_columns(rel: *mut pg_sys::RelOptInfo) -> bool {
    // SAFETY: the planner's own structures.
    unsafe {
        let exprs = (*(*rel).reltarget).exprs;
        let fine = [pg_sys::SelfItemPointerAttributeNumber, pg_sys::TableOidAttributeNumber];
        columns_of(&[exprs.cast()], (*rel).baserestrictinfo, (*rel).relid)
            .iter()
            .any(|n| *n < 0 && !fine.contains(n))
    }
}

/// Estimated cost: for rows of the row store that of a sequential scan; of stripes the share of the
/// pages that the wanted columns take, their values, and less work for the rows that pass than deforming tuples.
unsafe fn offer(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    totals: &StripeTotals,
    prices: &Prices,
) {
    // SAFETY: the planner's own structures; a path is zeroed memory that becomes its.
    unsafe {
        let columns = f64::from((*rel).max_attr.max(1));
        let exprs = (*(*rel).reltarget).exprs;
        let numbers = columns_of(&[exprs.cast()], (*rel).baserestrictinfo, (*rel).relid);
        let wanted = table_columns(&numbers, (*rel).max_attr as usize);
        let share = (wanted.len() as f64 / columns).clamp(0.02, 1.0);
        let stripe_pages = f64::from(totals.pages()).min(f64::from((*rel).pages));
        let stripe_rows = totals.rows.min((*rel).tuples);
        let pages = f64::from((*rel).pages) - stripe_pages + stripe_pages * share;
        let target = (*(*rel).reltarget).cost.per_tuple;
        let in_row_store = ((*rel).tuples - stripe_rows).max(0.0);
        let cpu = (pg_sys::cpu_tuple_cost + (*rel).baserestrictcost.per_tuple) * in_row_store
            + prices.scanned(&asked_of_stripes(root, rel))
            + target * (*rel).rows.max(1.0);
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
            p.total_cost = startup + io + cpu / divisor;
            // This is the table's sequential scan: who switches those off means it, too.
            if !pg_sys::enable_seqscan {
                compat::disable(p);
            }
            (*path).flags =
                pg_sys::CUSTOMPATH_SUPPORT_PROJECTION | pg_sys::CUSTOMPATH_SUPPORT_BACKWARD_SCAN;
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
}

/// The conditions of a scan, as far as stripes evaluate them and otherwise.
unsafe fn asked_of_stripes(root: *mut pg_sys::PlannerInfo, rel: *mut pg_sys::RelOptInfo) -> Asked {
    // SAFETY: the planner's own structures.
    unsafe {
        let mut asked = Asked { of_batches: 0.0, of_rows: 0.0, passing: 1.0 };
        let mut whole: *mut pg_sys::List = std::ptr::null_mut();
        for info in list_items::<pg_sys::RestrictInfo>((*rel).baserestrictinfo) {
            let mut cost = pg_sys::QualCost::default();
            pg_sys::cost_qual_eval_node(&mut cost, info.cast(), root);
            let stated = (!(*info).pseudoconstant
                && pg_sys::restriction_is_securely_promotable(info, rel))
            .then(|| conditions::translate((*info).clause.cast(), (*rel).relid))
            .flatten();
            let Some(stated) = stated else {
                asked.of_rows += cost.per_tuple;
                continue;
            };
            asked.of_batches += cost.per_tuple;
            if stated.is_all {
                whole = pg_sys::lappend(whole, info.cast());
            } else {
                asked.of_rows += cost.per_tuple;
            }
        }
        if !whole.is_null() {
            let (inner, none) = (pg_sys::JoinType::JOIN_INNER, std::ptr::null_mut());
            asked.passing = pg_sys::clauselist_selectivity(root, whole, 0, inner, none);
        }
        asked
    }
}

/// Append a number to those of a plan's conditions.
pub(super) unsafe fn put(scan: *mut pg_sys::CustomScan, number: i32) {
    // SAFETY: a plan node that is being made; lists and numbers are allocated in its memory.
    unsafe { (*scan).custom_private = pg_sys::lappend_int((*scan).custom_private, number) }
}

/// The numbers of a plan, behind whether it is guarded.
unsafe fn numbers(scan: *mut pg_sys::CustomScan) -> impl Iterator<Item = i32> {
    // SAFETY: the list that `plan_path` has put into the plan.
    unsafe {
        let private = (*scan).custom_private;
        (1..(*private).length as usize).map(move |i| (*(*private).elements.add(i)).int_value)
    }
}

/// The numbers that say what stripes evaluate.
pub(super) unsafe fn conditions_of(scan: *mut pg_sys::CustomScan) -> impl Iterator<Item = i32> {
    // SAFETY: as above.
    unsafe {
        let mut numbers = numbers(scan);
        let fields = numbers.next().unwrap_or(0);
        numbers.skip(fields as usize)
    }
}

/// Write what of documents is looked at: how many numbers follow, then of each column its number, how many fields, and of each of these
/// how many bytes and which, four in a number.
unsafe fn write_fields(scan: *mut pg_sys::CustomScan, fields: &[(usize, Fields)]) {
    // SAFETY: a plan node that is being made.
    unsafe {
        let mut list = Vec::new();
        for (column, fields) in fields {
            list.extend([*column as i32, fields.names().len() as i32]);
            for name in fields.names() {
                list.push(name.len() as i32);
                list.extend(name.chunks(4).map(|bytes| {
                    let word = |word, (n, byte): (usize, &u8)| word | i32::from(*byte) << (8 * n);
                    bytes.iter().enumerate().fold(0, word)
                }));
            }
        }
        put(scan, list.len() as i32);
        list.into_iter().for_each(|number| put(scan, number));
    }
}

/// What was written so.
pub(super) unsafe fn read_fields(scan: *mut pg_sys::CustomScan) -> Vec<(usize, Fields)> {
    // SAFETY: the list that `plan_path` has put into the plan.
    unsafe {
        let mut numbers = numbers(scan);
        let count = numbers.next().unwrap_or(0);
        let mut numbers = numbers.take(count as usize);
        let mut found = Vec::new();
        while let (Some(column), Some(count)) = (numbers.next(), numbers.next()) {
            let mut names = Vec::new();
            for _ in 0..count {
                let length = numbers.next().unwrap_or(0) as usize;
                let words = numbers.by_ref().take(length.div_ceil(4));
                names.push(words.flat_map(i32::to_le_bytes).take(length).collect());
            }
            found.push((column as usize, Fields::new(names)));
        }
        found
    }
}

/// Rows may be kept from the user: what leaks of them is not asked before those who keep them.
pub(super) unsafe fn is_guarded(scan: *mut pg_sys::CustomScan) -> bool {
    // SAFETY: as above.
    unsafe { (*(*(*scan).custom_private).elements).int_value != 0 }
}

/// The fields that a query looks at of documents in the columns that a scan gives or has conditions on.
unsafe fn fields_of(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
) -> Vec<(usize, Fields)> {
    // SAFETY: the planner's own structures; it holds a lock on every relation it plans for.
    unsafe {
        // Other encodings' documents are kept in PostgreSQL's own form.
        if pg_sys::GetDatabaseEncoding() != pg_sys::pg_enc::PG_UTF8 as i32 {
            return Vec::new();
        }
        let exprs = (*(*rel).reltarget).exprs;
        let numbers = columns_of(&[exprs.cast()], (*rel).baserestrictinfo, (*rel).relid);
        let entry = *(*root).simple_rte_array.add((*rel).relid as usize);
        let table = OpenRel::open((*entry).relid, LockMode::None);
        let attributes = table.rel().attributes();
        let mut documents = table_columns(&numbers, attributes.len());
        documents.retain(|i| attributes.get(*i).is_some_and(|a| a.type_oid == pg_sys::JSONBOID));
        fields::fields_of(root, rel, &documents)
    }
}

/// What stripes evaluate goes to `custom_private`, behind whether there are conditions of a security barrier, and the fields of documents
/// that are looked at: of each qual its number, whether all of it is said, and the conditions; their right-hand sides go to `custom_exprs`. The quals stay complete: rows of the row
/// store are checked by them, and EXPLAIN shows them. Whoever may not see a row is not to learn of it by a condition that stripes
/// evaluate before, and count: PostgreSQL's rule for index conditions holds.
unsafe extern "C-unwind" fn plan_path(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    best: *mut pg_sys::CustomPath,
    tlist: *mut pg_sys::List,
    clauses: *mut pg_sys::List,
    _plans: *mut pg_sys::List,
) -> *mut pg_sys::Plan {
    // SAFETY: the planner hands in a path of ours with its relation; the plan is zeroed memory that becomes PostgreSQL's.
    unsafe {
        callback(|| {
            let scan = alloc::<pg_sys::CustomScan>();
            let s = &mut (*scan).scan;
            s.plan.type_ = pg_sys::NodeTag::T_CustomScan;
            s.plan.targetlist = tlist;
            s.plan.qual = pg_sys::extract_actual_clauses(clauses, false);
            s.scanrelid = (*rel).relid;
            (*scan).flags = (*best).flags;
            (*scan).methods = &exec::SCAN_METHODS.0;
            put(scan, i32::from((*root).qual_security_level > 0));
            write_fields(scan, &fields_of(root, rel));
            // As extract_actual_clauses() has it.
            let infos = list_items::<pg_sys::RestrictInfo>(clauses).into_iter();
            for (number, info) in infos.filter(|info| !(**info).pseudoconstant).enumerate() {
                if !pg_sys::restriction_is_securely_promotable(info, rel) {
                    continue;
                }
                let Some(stated) = conditions::translate((*info).clause.cast(), (*rel).relid)
                else {
                    continue;
                };
                put(scan, number as i32);
                put(scan, i32::from(stated.is_all));
                conditions::write(&stated.formula, scan);
            }
            scan as *mut pg_sys::Plan
        })
    }
}
