//! Which fields of a document a query asks for, where it asks for nothing else of it: stripes give documents of these fields alone then.
//!
//! It is looked at in the query, not in the plan: whatever the plan does with a column, the query says how values of it are looked at.
//! Fields of other places than the document's first level are within theirs.

use super::list_items;
use crate::pg::datum::{each_element, with_varlena, Datum};
use crate::pg::ext::callback;
use crate::pg::jsonb::Fields;
use crate::pg::{memory, xact, Oid};
use pgrx::pg_sys;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::rc::Rc;

/// Fields of a document, and bytes of a field's name, up to which they are looked for.
const MOST_FIELDS: usize = 32;
const MOST_BYTES: usize = 200;
/// Nodes of an expression in each other that are looked at: each takes some stack.
const MOST_NESTED: usize = 64;
/// Nodes of a query that are looked at.
const MOST_NODES: u64 = 1_000_000;
/// Tables of a UNION ALL or partitioned table above one another.
const MOST_LEVELS: usize = 16;

/// A column of a table of a query: number of the table, and of the column from 1 on.
type Place = (i32, i32);

/// How a query looks at documents of its tables.
#[derive(Default)]
struct Uses {
    /// The fields of them that it names.
    names: HashMap<Place, Vec<Box<[u8]>>>,
    /// Those that it looks at otherwise.
    whole: HashSet<Place>,
    /// Tables whose rows it looks at as a whole.
    rows: HashSet<i32>,
    /// It is too large to be looked through.
    is_unknown: bool,
}

thread_local! {
    /// Queries that are being planned, by the planner's structure. Many scans are planned for one query.
    static QUERIES: RefCell<Vec<(usize, Rc<Uses>)>> = const { RefCell::new(Vec::new()) };
}

/// What is known of a query goes with the memory that it is planned in.
struct Planned(usize);

impl Drop for Planned {
    fn drop(&mut self) {
        QUERIES.with(|queries| {
            if let Ok(mut queries) = queries.try_borrow_mut() {
                queries.retain(|(root, _)| *root != self.0);
            }
        });
    }
}

/// For each of these columns (0 = first) of a table, which are jsonb, the fields that are asked for, if nothing else is.
pub(super) unsafe fn fields_of(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    columns: &[usize],
) -> Vec<(usize, Fields)> {
    // SAFETY: the planner's own structures, of a query that is being planned.
    unsafe {
        let query = (*root).parse;
        // Rows that are changed, locked or checked again are looked at as a whole.
        let only_reads =
            (*query).commandType == pg_sys::CmdType::CMD_SELECT && (*query).rowMarks.is_null();
        if columns.is_empty() || !only_reads {
            return Vec::new();
        }
        let uses = uses_of(root);
        let of = |column: &usize| {
            let place = ((*rel).relid as i32, *column as i32 + 1);
            let mut names = Vec::new();
            (collect(root, &uses, place, &mut names, 0) && names.len() <= MOST_FIELDS)
                .then(|| (*column, Fields::new(names)))
        };
        columns.iter().filter_map(of).collect()
    }
}

/// The fields asked for of a place, or of the place of a table above it that it is shown as; false when that is not fields alone.
unsafe fn collect(
    root: *mut pg_sys::PlannerInfo,
    uses: &Uses,
    place: Place,
    names: &mut Vec<Box<[u8]>>,
    level: usize,
) -> bool {
    // SAFETY: the planner's own structures: a place for each table, with what it is a child of or null.
    unsafe {
        let is_whole =
            uses.is_unknown || uses.rows.contains(&place.0) || uses.whole.contains(&place);
        if is_whole || level > MOST_LEVELS {
            return false;
        }
        names.extend(uses.names.get(&place).into_iter().flatten().cloned());
        let children = (*root).append_rel_array;
        let above = match children.is_null() {
            true => std::ptr::null_mut(),
            false => *children.add(place.0 as usize),
        };
        if above.is_null() {
            return true;
        }
        let shown = list_items::<pg_sys::Node>((*above).translated_vars);
        let is_it = |expr: &*mut pg_sys::Node| {
            let var = *expr as *mut pg_sys::Var;
            is_own(*expr, place.0) && i32::from((*var).varattno) == place.1
        };
        let mut shown = shown.into_iter().enumerate().filter(|(_, expr)| is_it(expr));
        shown.all(|(column, _)| {
            let place = ((*above).parent_relid as i32, column as i32 + 1);
            collect(root, uses, place, names, level + 1)
        })
    }
}

/// A plain column of this table.
unsafe fn is_own(node: *mut pg_sys::Node, relid: i32) -> bool {
    // SAFETY: an expression of a query, or null: its tag says of which type it is.
    unsafe {
        let var = node as *mut pg_sys::Var;
        !node.is_null()
            && (*node).type_ == pg_sys::NodeTag::T_Var
            && (*var).varno == relid
            && (*var).varlevelsup == 0
    }
}

/// How a query looks at documents, found out once.
unsafe fn uses_of(root: *mut pg_sys::PlannerInfo) -> Rc<Uses> {
    let of_it = |queries: &Vec<(usize, Rc<Uses>)>| {
        queries.iter().find(|(known, _)| *known == root as usize).map(|(_, uses)| uses.clone())
    };
    if let Some(uses) = QUERIES.with_borrow(of_it) {
        return uses;
    }
    // SAFETY: the planner's own structures; the structure of a query lives in the memory that it is planned in.
    unsafe {
        let mut search = Search::default();
        look_through(root, &mut search);
        let mut uses = search.uses;
        uses.is_unknown = search.nodes > MOST_NODES;
        let uses = Rc::new(uses);
        QUERIES.with_borrow_mut(|queries| queries.push((root as usize, uses.clone())));
        memory::within((*root).planner_cxt, || memory::bind(Planned(root as usize)));
        uses
    }
}

/// A query that is looked through.
#[derive(Default)]
struct Search {
    uses: Uses,
    /// Queries within it that the node at hand is of.
    depth: u32,
    /// Calls of the walker within each other.
    nested: usize,
    nodes: u64,
}

/// All of a query's expressions, and what tables above others show of these that is no plain column.
unsafe fn look_through(root: *mut pg_sys::PlannerInfo, search: &mut Search) {
    // SAFETY: the planner's own structures; entries of the list of appended relations are AppendRelInfo.
    unsafe {
        let context = (search as *mut Search).cast();
        let flags = pg_sys::QTW_IGNORE_JOINALIASES as i32;
        if pg_sys::query_tree_walker((*root).parse, Some(is_too_much), context, flags) {
            return;
        }
        for above in list_items::<pg_sys::AppendRelInfo>((*root).append_rel_list) {
            for expr in list_items::<pg_sys::Node>((*above).translated_vars) {
                if !expr.is_null()
                    && !is_own(expr, (*above).child_relid as i32)
                    && look_at(expr, context)
                {
                    return;
                }
            }
        }
    }
}

/// A document of a table of the query that is looked through.
unsafe fn document(node: *mut pg_sys::Node, search: &Search) -> Option<Place> {
    // SAFETY: an expression of a query, or null: its tag says of which type it is.
    unsafe {
        let var = node as *mut pg_sys::Var;
        let is_it = !node.is_null()
            && (*node).type_ == pg_sys::NodeTag::T_Var
            && (*var).vartype == pg_sys::JSONBOID
            && (*var).varlevelsup == search.depth
            && (*var).varattno > 0;
        is_it.then(|| ((*var).varno, i32::from((*var).varattno)))
    }
}

/// As `look_at`, where PostgreSQL's walkers come to the next node.
unsafe extern "C-unwind" fn is_too_much(node: *mut pg_sys::Node, context: *mut c_void) -> bool {
    // SAFETY: a part of a query, or null; the context is what `look_through` has handed on, and nobody else uses it meanwhile.
    unsafe {
        // Of which there may be very many.
        if node.is_null() || (*node).type_ == pg_sys::NodeTag::T_Const {
            return false;
        }
        let search = context as *mut Search;
        (*search).nested += 1;
        let too_much = callback(|| look_at(node, context));
        (*search).nested -= 1;
        too_much
    }
}

/// Note how an expression, or a query within, looks at documents. True when it is too much to be looked through.
unsafe fn look_at(node: *mut pg_sys::Node, context: *mut c_void) -> bool {
    // SAFETY: a part of a query: its tag says of which type it is; the context is what `look_through` has handed on.
    unsafe {
        use pg_sys::NodeTag as T;
        let search = &mut *(context as *mut Search);
        search.nodes += 1;
        if search.nodes.is_multiple_of(1_024) {
            xact::check_for_interrupts();
        }
        // Within a list of very many, as a rule, and else of an expression that is nested deeply.
        if search.nested > MOST_NESTED {
            search.nodes = MOST_NODES + 1;
        }
        if search.nodes > MOST_NODES {
            return true;
        }
        match (*node).type_ {
            T::T_Query => {
                search.depth += 1;
                let flags = pg_sys::QTW_IGNORE_JOINALIASES as i32;
                let walker = Some(is_too_much as _);
                let too_much = pg_sys::query_tree_walker(node.cast(), walker, context, flags);
                (*(context as *mut Search)).depth -= 1;
                return too_much;
            }
            T::T_Var => {
                let var = node as *mut pg_sys::Var;
                if (*var).varattno == 0 && (*var).varlevelsup == search.depth {
                    search.uses.rows.insert((*var).varno);
                }
                if let Some(place) = document(node, search) {
                    search.uses.whole.insert(place);
                }
                return false;
            }
            // Of some fields as of all.
            T::T_NullTest
                if document((*(node as *mut pg_sys::NullTest)).arg.cast(), search).is_some() =>
            {
                return false;
            }
            T::T_OpExpr => {
                let op = node as *mut pg_sys::OpExpr;
                if names(search, (*op).opfuncid, (*op).args) {
                    return false;
                }
            }
            T::T_FuncExpr => {
                let call = node as *mut pg_sys::FuncExpr;
                if names(search, (*call).funcid, (*call).args) {
                    return false;
                }
            }
            T::T_SubscriptingRef => {
                let part = node as *mut pg_sys::SubscriptingRef;
                let first = list_items::<pg_sys::Node>((*part).refupperindexpr);
                let value = first.first().and_then(|first| constant(*first, pg_sys::TEXTOID));
                let reads = (*part).refassgnexpr.is_null() && (*part).reflowerindexpr.is_null();
                let place = document((*part).refexpr.cast(), search);
                if let (true, Some(value), Some(place)) = (reads, value, place) {
                    if note(search, place, value) {
                        // What else stands in the brackets may ask for documents, too.
                        let others = (*part).refupperindexpr.cast();
                        return pg_sys::expression_tree_walker(others, Some(is_too_much), context);
                    }
                }
            }
            _ => (),
        }
        pg_sys::expression_tree_walker(node, Some(is_too_much), context)
    }
}

/// The call takes a document, and constants that name fields of it: they are noted.
unsafe fn names(search: &mut Search, function: Oid, args: *mut pg_sys::List) -> bool {
    // SAFETY: a function's arguments are of the types that it takes.
    unsafe {
        let args = list_items::<pg_sys::Node>(args);
        let [first, other] = args[..] else { return false };
        let Some(place) = document(first, search) else { return false };
        match function.to_u32() {
            pg_sys::F_JSONB_OBJECT_FIELD
            | pg_sys::F_JSONB_OBJECT_FIELD_TEXT
            | pg_sys::F_JSONB_EXISTS => {
                constant(other, pg_sys::TEXTOID).is_some_and(|name| note(search, place, name))
            }
            pg_sys::F_JSONB_EXTRACT_PATH | pg_sys::F_JSONB_EXTRACT_PATH_TEXT => {
                constant(other, pg_sys::TEXTARRAYOID)
                    .is_some_and(|path| note_first(search, place, path))
            }
            pg_sys::F_JSONB_CONTAINS => {
                constant(other, pg_sys::JSONBOID).is_some_and(|part| note_keys(search, place, part))
            }
            _ => false,
        }
    }
}

/// The value of a constant of this type that is not NULL.
unsafe fn constant<'a>(node: *mut pg_sys::Node, kind: Oid) -> Option<Datum<'a>> {
    // SAFETY: an expression of a query: its tag says of which type it is; a constant lives as long as the query.
    unsafe {
        let value = node as *mut pg_sys::Const;
        let fits = (*node).type_ == pg_sys::NodeTag::T_Const
            && (*value).consttype == kind
            && !(*value).constisnull;
        fits.then(|| Datum::of((*value).constvalue))
    }
}

/// Note the name of a field, a text.
unsafe fn note(search: &mut Search, place: Place, text: Datum<'_>) -> bool {
    // SAFETY: a text, as the caller promises.
    unsafe { with_varlena(text, |name| push(search, place, name)) }
}

fn push(search: &mut Search, place: Place, name: &[u8]) -> bool {
    let names = search.uses.names.entry(place).or_default();
    let fits = name.len() <= MOST_BYTES && names.len() <= MOST_FIELDS;
    if fits && !names.iter().any(|known| **known == *name) {
        names.push(name.into());
    }
    fits
}

/// Note the first name of a path, an array of text. One without names is the document itself.
unsafe fn note_first(search: &mut Search, place: Place, path: Datum<'_>) -> bool {
    let (mut seen, mut fits) = (false, false);
    // SAFETY: an array of text, as the caller promises.
    unsafe {
        let some_are_null = each_element(path, |name| {
            if !std::mem::replace(&mut seen, true) {
                fits = note(search, place, name);
            }
        });
        fits && !some_are_null
    }
}

/// Note the keys of an object, a jsonb, that the document is asked to contain. (So many pairs it must have at least: of all fields as of these.)
unsafe fn note_keys(search: &mut Search, place: Place, part: Datum<'_>) -> bool {
    // SAFETY: a jsonb, as the caller promises; the iterator frees itself at its end, and its memory is emptied in any case.
    memory::scratch(|| unsafe {
        use pg_sys::JsonbIteratorToken as Token;
        let whole = pg_sys::pg_detoast_datum(part.raw().cast_mut_ptr()) as *mut pg_sys::Jsonb;
        let mut at = pg_sys::JsonbIteratorInit(&raw mut (*whole).root);
        let mut value: pg_sys::JsonbValue = std::mem::zeroed();
        if pg_sys::JsonbIteratorNext(&mut at, &mut value, true) != Token::WJB_BEGIN_OBJECT {
            return false;
        }
        loop {
            match pg_sys::JsonbIteratorNext(&mut at, &mut value, true) {
                Token::WJB_KEY => {
                    let key = &value.val.string;
                    let name = std::slice::from_raw_parts(key.val.cast::<u8>(), key.len as usize);
                    if !push(search, place, name) {
                        return false;
                    }
                }
                Token::WJB_DONE => return true,
                _ => (),
            }
        }
    })
}
