//! `SELECT DISTINCT k, max(x) OVER (PARTITION BY k) FROM t` asks for one row per partition, but
//! PostgreSQL plans it as it is written: sort all rows by `k`, compute the window, give every row the
//! result, and throw all but one per partition away. When every result column of a SELECT DISTINCT is
//! made of partition keys and of aggregates over whole partitions, all rows of a partition are equal,
//! and GROUP BY the partition keys gives the same rows without sorting, in parallel.
//!
//! Queries that read a firn table are planned that way while `firn.enable_window_grouping` is on;
//! docs/decisions/0005 has the reasons and the limits.

use super::ext::{self, callback, direct};
use super::{guc, LockMode, OpenRel};
use pgrx::pg_sys;

static mut PREVIOUS: pg_sys::planner_hook_type = None;

/// Hook into the planner. Called once at library load.
pub fn install() {
    // SAFETY: main thread, at load.
    unsafe {
        PREVIOUS = pg_sys::planner_hook;
        pg_sys::planner_hook = Some(planner);
    }
}

unsafe extern "C-unwind" fn planner(
    parse: *mut pg_sys::Query,
    source: *const core::ffi::c_char,
    options: i32,
    params: pg_sys::ParamListInfo,
) -> *mut pg_sys::PlannedStmt {
    if guc::enable_window_grouping() {
        callback(|| visit(parse));
    }
    match PREVIOUS {
        Some(f) => f(parse, source, options, params),
        None => direct::standard_planner(parse, source, options, params),
    }
}

unsafe fn items<T>(list: *mut pg_sys::List) -> Vec<*mut T> {
    if list.is_null() {
        return Vec::new();
    }
    (0..(*list).length as usize).map(|i| (*(*list).elements.add(i)).ptr_value as *mut T).collect()
}

/// Rewrite a query and those in its FROM and WITH, innermost first.
unsafe fn visit(query: *mut pg_sys::Query) {
    pg_sys::check_stack_depth();
    for rte in items::<pg_sys::RangeTblEntry>((*query).rtable) {
        if (*rte).rtekind == pg_sys::RTEKind::RTE_SUBQUERY && !(*rte).subquery.is_null() {
            visit((*rte).subquery);
        }
    }
    for cte in items::<pg_sys::CommonTableExpr>((*query).cteList) {
        let inner = (*cte).ctequery as *mut pg_sys::Query;
        if !inner.is_null() && (*inner).type_ == pg_sys::NodeTag::T_Query {
            visit(inner);
        }
    }
    if let Some(window) = only_window(query) {
        if reads_firn(query, 0) {
            group(query, window);
        }
    }
}

/// The query's only window, if the query is one of the kind described above as far as can be seen
/// without looking at its result columns.
unsafe fn only_window(query: *mut pg_sys::Query) -> Option<*mut pg_sys::WindowClause> {
    let q = &*query;
    let fits = q.commandType == pg_sys::CmdType::CMD_SELECT
        && q.hasWindowFuncs
        && !q.hasAggs
        && !q.hasTargetSRFs
        && !q.hasDistinctOn
        && !q.hasForUpdate
        && !q.distinctClause.is_null()
        && q.groupClause.is_null()
        && q.groupingSets.is_null()
        && q.havingQual.is_null()
        && q.setOperations.is_null()
        && q.rowMarks.is_null();
    if !fits {
        return None;
    }
    let [window] = items::<pg_sys::WindowClause>(q.windowClause)[..] else { return None };
    let whole_partition = (*window).orderClause.is_null()
        && (*window).frameOptions & pg_sys::FRAMEOPTION_NONDEFAULT as i32 == 0;
    // Without partition keys an empty table has no row, but a plain aggregate of it has one.
    (whole_partition && !(*window).partitionClause.is_null()).then_some(window)
}

/// The query reads a firn table, or a partitioned table with a partition that is one.
unsafe fn reads_firn(query: *mut pg_sys::Query, depth: u32) -> bool {
    items::<pg_sys::RangeTblEntry>((*query).rtable).into_iter().any(|rte| match (*rte).rtekind {
        pg_sys::RTEKind::RTE_RELATION => is_firn((*rte).relid, (*rte).relkind as u8),
        pg_sys::RTEKind::RTE_SUBQUERY if depth < 16 && !(*rte).subquery.is_null() => {
            reads_firn((*rte).subquery, depth + 1)
        }
        _ => false,
    })
}

/// Partitions looked at before a partitioned table is taken for one without firn tables.
const PARTITIONS_LOOKED_AT: usize = 16;

unsafe fn is_firn(oid: pg_sys::Oid, kind: u8) -> bool {
    match kind {
        b'r' | b'm' => {
            // The parser holds a lock on it, or it is a partition: then look at it under one.
            OpenRel::brief(oid.to_u32(), LockMode::AccessShare).is_firn()
        }
        b'p' => {
            let children = ext::find_inheritance_children(oid, 0);
            if children.is_null() {
                return false;
            }
            let count = ((*children).length as usize).min(PARTITIONS_LOOKED_AT);
            (0..count).map(|i| (*(*children).elements.add(i)).oid_value).any(|child| {
                let kind = pg_sys::get_rel_relkind(child) as u8;
                is_firn(child, kind)
            })
        }
        _ => false,
    }
}

/// What the search through the result columns needs and finds.
struct Search {
    keys: Vec<*mut pg_sys::Node>,
    /// A column is made of something else than keys and aggregates.
    refused: bool,
}

/// Turn the query into its grouped form, if its result columns allow it.
unsafe fn group(query: *mut pg_sys::Query, window: *mut pg_sys::WindowClause) {
    let list = (*query).targetList;
    if pg_sys::contain_volatile_functions(list.cast()) || pg_sys::contain_subplans(list.cast()) {
        return;
    }
    let keys = items::<pg_sys::SortGroupClause>((*window).partitionClause)
        .into_iter()
        .map(|clause| (*pg_sys::get_sortgroupclause_tle(clause, list)).expr.cast())
        .collect();
    let mut search = Search { keys, refused: false };
    let mut grouped = std::ptr::null_mut();
    for entry in items::<pg_sys::TargetEntry>(list) {
        let copy = pg_sys::copyObjectImpl(entry.cast()) as *mut pg_sys::TargetEntry;
        (*copy).expr = replace((*entry).expr.cast(), (&raw mut search).cast()).cast();
        grouped = pg_sys::lappend(grouped, copy.cast());
    }
    if search.refused {
        return;
    }
    (*query).targetList = grouped;
    (*query).groupClause = (*window).partitionClause;
    (*query).windowClause = std::ptr::null_mut();
    (*query).hasWindowFuncs = false;
    (*query).hasAggs = true;
}

/// A copy of an expression with its window functions as aggregates.
unsafe extern "C-unwind" fn replace(
    node: *mut pg_sys::Node,
    context: *mut core::ffi::c_void,
) -> *mut pg_sys::Node {
    callback(|| {
        let search = &mut *(context as *mut Search);
        if node.is_null() || search.refused {
            return node;
        }
        if search.keys.iter().any(|key| pg_sys::equal(node.cast(), (*key).cast())) {
            return pg_sys::copyObjectImpl(node.cast()) as *mut pg_sys::Node;
        }
        match (*node).type_ {
            pg_sys::NodeTag::T_WindowFunc => match aggregate(node.cast()) {
                Some(agg) => agg.cast(),
                None => {
                    search.refused = true;
                    node
                }
            },
            // A column that is no key; whether one of an outer query could be let pass is not asked.
            pg_sys::NodeTag::T_Var
            | pg_sys::NodeTag::T_Aggref
            | pg_sys::NodeTag::T_GroupingFunc => {
                search.refused = true;
                node
            }
            _ => ext::expression_tree_mutator(node, Some(replace), context),
        }
    })
}

/// An aggregate over a window as a plain one; None when it is none or its arguments are not written
/// out.
unsafe fn aggregate(func: *mut pg_sys::WindowFunc) -> Option<*mut pg_sys::Aggref> {
    let f = &*func;
    let args = items::<pg_sys::Expr>(f.args);
    let written_out = args.iter().all(|a| (**a).type_ != pg_sys::NodeTag::T_NamedArgExpr)
        && pg_sys::get_func_nargs(f.winfnoid) as usize == args.len();
    if !f.winagg || !written_out {
        return None;
    }
    let agg = super::scandesc::alloc::<pg_sys::Aggref>();
    (*agg).xpr.type_ = pg_sys::NodeTag::T_Aggref;
    (*agg).aggfnoid = f.winfnoid;
    (*agg).aggtype = f.wintype;
    (*agg).aggcollid = f.wincollid;
    (*agg).inputcollid = f.inputcollid;
    (*agg).aggfilter = f.aggfilter;
    (*agg).aggstar = f.winstar;
    (*agg).aggkind = b'n' as core::ffi::c_char;
    (*agg).aggsplit = pg_sys::AggSplit::AGGSPLIT_SIMPLE;
    (*agg).aggno = -1;
    (*agg).aggtransno = -1;
    (*agg).location = f.location;
    for (i, arg) in args.into_iter().enumerate() {
        let entry = pg_sys::makeTargetEntry(arg, i as i16 + 1, std::ptr::null_mut(), false);
        (*agg).args = pg_sys::lappend((*agg).args, entry.cast());
        (*agg).aggargtypes = pg_sys::lappend_oid((*agg).aggargtypes, pg_sys::exprType(arg.cast()));
    }
    Some(agg)
}
