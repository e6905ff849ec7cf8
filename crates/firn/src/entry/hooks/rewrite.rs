//! `SELECT DISTINCT k, max(x) OVER (PARTITION BY k) FROM t` asks for one row per partition, but
//! PostgreSQL plans it as it is written: sort all rows by `k`, compute the window, give every row the
//! result, and throw all but one per partition away. When every result column of a SELECT DISTINCT is
//! made of partition keys and of aggregates over whole partitions, all rows of a partition are the
//! same, and GROUP BY the partition keys gives the same rows without sorting, in parallel.
//!
//! Rows of a partition have *equal* keys, which need not be the same: 1.0 and 1.00 are equal, and
//! print differently. So an expression over a key is let pass only where equal values of its type are
//! the same bytes (what nbtree asks before it deduplicates); any key may be a result column itself,
//! as DISTINCT keeps one of its equal values anyway.
//!
//! Queries that read a firn table are planned that way while `firn.enable_window_grouping` is on;
//! docs/decisions/0005 has the reasons and the limits.

use crate::pg::ext::{self, callback, direct};
use crate::pg::{guc, LockMode, Oid, OpenRel};
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
    // SAFETY: PostgreSQL hands in a query that is the planner's to change.
    unsafe {
        if guc::enable_window_grouping() {
            callback(|| visit(parse));
        }
        match PREVIOUS {
            Some(f) => f(parse, source, options, params),
            None => direct::standard_planner(parse, source, options, params),
        }
    }
}

unsafe fn items<T>(list: *mut pg_sys::List) -> Vec<*mut T> {
    // SAFETY: the list is one of pointers to `T`, as the caller says by asking for them.
    unsafe {
        if list.is_null() {
            return Vec::new();
        }
        (0..(*list).length as usize)
            .map(|i| (*(*list).elements.add(i)).ptr_value as *mut T)
            .collect()
    }
}

/// Rewrite a query and those in its FROM and WITH, innermost first.
unsafe fn visit(query: *mut pg_sys::Query) {
    // SAFETY: a query that the planner may change; its range table and its CTEs are of the types that PostgreSQL gives them.
    unsafe {
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
}

/// The query's only window, if the query is one of the kind described above as far as can be seen
/// without looking at its result columns.
unsafe fn only_window(query: *mut pg_sys::Query) -> Option<*mut pg_sys::WindowClause> {
    // SAFETY: a query, whose window clauses are of that type.
    unsafe {
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
}

/// The query reads a firn table, or a partitioned table with a partition that is one.
unsafe fn reads_firn(query: *mut pg_sys::Query, depth: u32) -> bool {
    // SAFETY: a query, whose range table is of RangeTblEntry.
    unsafe {
        items::<pg_sys::RangeTblEntry>((*query).rtable).into_iter().any(|rte| {
            match (*rte).rtekind {
                pg_sys::RTEKind::RTE_RELATION => is_firn((*rte).relid, (*rte).relkind as u8),
                pg_sys::RTEKind::RTE_SUBQUERY if depth < 16 && !(*rte).subquery.is_null() => {
                    reads_firn((*rte).subquery, depth + 1)
                }
                _ => false,
            }
        })
    }
}

/// Partitions looked at before a partitioned table is taken for one without firn tables.
const PARTITIONS_LOOKED_AT: usize = 16;

unsafe fn is_firn(oid: Oid, kind: u8) -> bool {
    // SAFETY: the OID is that of a relation in a query; a list of partitions is one of OIDs.
    unsafe {
        match kind {
            b'r' | b'm' => {
                // The parser holds a lock on it, or it is a partition: then look at it under one.
                OpenRel::open(oid, LockMode::AccessShare).is_firn()
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
}

/// A partition key.
struct Key {
    node: *mut pg_sys::Node,
    /// The operator by which rows are put into one partition.
    equality: Oid,
    /// Values that it takes for equal are the same.
    is_identity: bool,
}

impl Key {
    unsafe fn of(clause: *mut pg_sys::SortGroupClause, list: *mut pg_sys::List) -> Key {
        // SAFETY: a clause that refers to an entry of this list.
        unsafe {
            let node: *mut pg_sys::Node =
                (*pg_sys::get_sortgroupclause_tle(clause, list)).expr.cast();
            let (equality, order) = ((*clause).eqop, (*clause).sortop);
            Key { node, equality, is_identity: means_identity(order, pg_sys::exprCollation(node)) }
        }
    }
}

/// Number of the support function of B-trees that says whether equal values are the same
/// (BTEQUALIMAGE_PROC).
const EQUAL_IMAGE: i16 = 4;

/// Values that the equality of this order takes for equal have the same bytes: as nbtree asks before
/// it stores equal values once. Not believed of char(n), whose values without a length differ in
/// blanks, and interval, of which older catalogs say so wrongly.
unsafe fn means_identity(order: Oid, collation: Oid) -> bool {
    // SAFETY: the operator is one of the query's; a support function of this number takes the OID of a type.
    unsafe {
        let (mut family, mut kind, mut strategy) = (pg_sys::InvalidOid, pg_sys::InvalidOid, 0);
        if order == pg_sys::InvalidOid
            || !pg_sys::get_ordering_op_properties(order, &mut family, &mut kind, &mut strategy)
            || matches!(kind, pg_sys::BPCHAROID | pg_sys::INTERVALOID)
        {
            return false;
        }
        let says = pg_sys::get_opfamily_proc(family, kind, kind, EQUAL_IMAGE);
        says != pg_sys::InvalidOid
            && pg_sys::OidFunctionCall1Coll(says, collation, pg_sys::Datum::from(kind)).value() != 0
    }
}

/// What the search through the result columns needs and finds.
struct Search {
    keys: Vec<Key>,
    /// A column is made of something else than keys and aggregates.
    refused: bool,
}

impl Search {
    unsafe fn key(&self, node: *mut pg_sys::Node) -> Option<&Key> {
        // SAFETY: two expressions of one query.
        unsafe { self.keys.iter().find(|key| pg_sys::equal(node.cast(), key.node.cast())) }
    }
}

/// Turn the query into its grouped form, if its result columns allow it.
unsafe fn group(query: *mut pg_sys::Query, window: *mut pg_sys::WindowClause) {
    // SAFETY: the query is the planner's to change; nothing of it is changed before all of it is known to fit.
    unsafe {
        let list = (*query).targetList;
        if pg_sys::contain_volatile_functions(list.cast()) || pg_sys::contain_subplans(list.cast())
        {
            return;
        }
        let keys = items::<pg_sys::SortGroupClause>((*window).partitionClause)
            .into_iter()
            .map(|clause| Key::of(clause, list))
            .collect();
        let mut search = Search { keys, refused: false };
        let distinct = items::<pg_sys::SortGroupClause>((*query).distinctClause);
        let mut grouped = std::ptr::null_mut();
        for entry in items::<pg_sys::TargetEntry>(list) {
            let copy = pg_sys::copyObjectImpl(entry.cast()) as *mut pg_sys::TargetEntry;
            // The operator by which DISTINCT compares the column.
            let equality = distinct
                .iter()
                .find(|clause| (***clause).tleSortGroupRef == (*entry).ressortgroupref)
                .map(|clause| (**clause).eqop);
            let whole = search.key((*entry).expr.cast());
            // A key that is no result column is never seen; one that is may be shown as any of its equal
            // values, unless DISTINCT tells more values apart.
            if !whole.is_some_and(|key| (*entry).resjunk || equality == Some(key.equality)) {
                (*copy).expr = replace((*entry).expr.cast(), (&raw mut search).cast()).cast();
            }
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
}

/// A copy of an expression with its window functions as aggregates.
unsafe extern "C-unwind" fn replace(
    node: *mut pg_sys::Node,
    context: *mut core::ffi::c_void,
) -> *mut pg_sys::Node {
    // SAFETY: PostgreSQL's walk hands in a node of the query, or null, and the search that `group` has begun.
    unsafe {
        callback(|| {
            let search = &mut *(context as *mut Search);
            if node.is_null() || search.refused {
                return node;
            }
            if let Some(key) = search.key(node) {
                search.refused = !key.is_identity;
                return pg_sys::copyObjectImpl(node.cast()) as *mut pg_sys::Node;
            }
            if pg_sys::check_functions_in_node(node, Some(tells_copies_apart), std::ptr::null_mut())
            {
                search.refused = true;
                return node;
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
}

/// OIDs from here on are of objects that users made (PostgreSQL's FirstNormalObjectId).
const FIRST_OF_USERS: u32 = 16_384;

/// A function that may give different results for values of the same bytes: it looks at how they are
/// stored, or is somebody's that promises nothing.
unsafe extern "C-unwind" fn tells_copies_apart(
    function: Oid,
    _context: *mut core::ffi::c_void,
) -> bool {
    // SAFETY: PostgreSQL's walk hands in the OID of a function.
    unsafe {
        callback(|| match function.to_u32() {
            pg_sys::F_PG_COLUMN_SIZE | pg_sys::F_PG_COLUMN_COMPRESSION => true,
            FIRST_OF_USERS.. => {
                pg_sys::func_volatile(function) as u8 != pg_sys::PROVOLATILE_IMMUTABLE
            }
            _ => false,
        })
    }
}

/// The result of an aggregate is the same in whatever order it is given its rows, but for rounding and
/// for which of equal values it shows, which its author states by letting it be computed in parts. Of
/// PostgreSQL's own only; some of later versions that make lists say so, too.
unsafe fn is_orderless(aggregate: Oid) -> bool {
    // SAFETY: the OID of an aggregate, looked up only.
    unsafe {
        let makes_list = matches!(
            aggregate.to_u32(),
            pg_sys::F_ARRAY_AGG_ANYNONARRAY
                | pg_sys::F_ARRAY_AGG_ANYARRAY
                | pg_sys::F_STRING_AGG_TEXT_TEXT
                | pg_sys::F_STRING_AGG_BYTEA_BYTEA
        );
        !makes_list && aggregate.to_u32() < FIRST_OF_USERS && is_combinable(aggregate)
    }
}

/// The column of pg_aggregate that says how results of parts are put together.
const COMBINE_FUNCTION: i16 = 6;

unsafe fn is_combinable(aggregate: Oid) -> bool {
    // SAFETY: a row of the catalog is looked at before it is released.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::AGGFNOID as i32;
        let tuple = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(aggregate));
        if tuple.is_null() {
            return false;
        }
        let mut null = false;
        let combine = pg_sys::SysCacheGetAttr(cache, tuple, COMBINE_FUNCTION, &mut null);
        pg_sys::ReleaseSysCache(tuple);
        !null && combine.value() as u32 != 0
    }
}

/// An aggregate over a window as a plain one; None when it is none or its arguments are not written
/// out.
unsafe fn aggregate(func: *mut pg_sys::WindowFunc) -> Option<*mut pg_sys::Aggref> {
    // SAFETY: a call of a window function, whose arguments are expressions; what is made of it shares them.
    unsafe {
        let f = &*func;
        let args = items::<pg_sys::Expr>(f.args);
        let written_out = args.iter().all(|a| (**a).type_ != pg_sys::NodeTag::T_NamedArgExpr)
            && pg_sys::get_func_nargs(f.winfnoid) as usize == args.len();
        if !f.winagg || !written_out || !is_orderless(f.winfnoid) {
            return None;
        }
        let agg = crate::pg::memory::alloc::<pg_sys::Aggref>();
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
            (*agg).aggargtypes =
                pg_sys::lappend_oid((*agg).aggargtypes, pg_sys::exprType(arg.cast()));
        }
        Some(agg)
    }
}
