//! Which fields of a document a query asks for, where it asks for nothing else of it: stripes give documents of these fields alone then.
//!
//! It is looked at in the query, not in the plan: whatever the plan does with a column, the query says how values of it are looked at.
//! Fields of other places than the document's first level are within theirs.

use super::list_items;
use crate::pg::datum::{each_element, with_varlena, Datum};
use crate::pg::ext::callback;
use crate::pg::jsonb::Fields;
use crate::pg::memory;
use pgrx::pg_sys;
use std::ffi::c_void;

/// Fields of a document, and bytes of a field's name, up to which they are looked for.
const MOST_FIELDS: usize = 32;
const MOST_BYTES: usize = 200;
/// Nodes of an expression in each other that are looked at: each takes some stack.
const MOST_NESTED: usize = 300;
/// Tables of a UNION ALL or partitioned table above one another.
const MOST_LEVELS: usize = 16;

/// A column of a table of a query.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    relid: i32,
    /// From 1 on.
    column: i32,
}

/// The fields that a query asks for of a column of its.
struct Search {
    place: Place,
    /// Queries within the one that the column is of.
    depth: u32,
    /// Calls of the walker within each other.
    nested: usize,
    names: Vec<Box<[u8]>>,
}

/// For each of these columns (0 = first) of a table, which are jsonb, the fields that are asked for, if nothing else is.
pub(super) unsafe fn fields_of(
    root: *mut pg_sys::PlannerInfo,
    rel: *mut pg_sys::RelOptInfo,
    columns: impl Iterator<Item = usize>,
) -> Vec<(usize, Fields)> {
    // SAFETY: the planner's own structures, of a query that is being planned.
    unsafe {
        let query = (*root).parse;
        // Rows that are changed, locked or checked again are looked at as a whole.
        if (*query).commandType != pg_sys::CmdType::CMD_SELECT || !(*query).rowMarks.is_null() {
            return Vec::new();
        }
        let of = |column: usize| {
            let place = Place { relid: (*rel).relid as i32, column: column as i32 + 1 };
            let mut search = Search { place, depth: 0, nested: 0, names: Vec::new() };
            (asked(root, place, &mut search, 0) && search.names.len() <= MOST_FIELDS)
                .then(|| (column, Fields::new(search.names)))
        };
        columns.filter_map(of).collect()
    }
}

/// Look for what is asked of a place, or of the place of a table above it that it is shown as; false when that is not fields alone.
unsafe fn asked(
    root: *mut pg_sys::PlannerInfo,
    place: Place,
    search: &mut Search,
    level: usize,
) -> bool {
    // SAFETY: the planner's own structures; entries of the list of appended relations are AppendRelInfo, one for each child.
    unsafe {
        (search.place, search.depth, search.nested) = (place, 0, 0);
        let context = (search as *mut Search).cast();
        let flags = pg_sys::QTW_IGNORE_JOINALIASES as i32;
        if level > MOST_LEVELS
            || pg_sys::query_tree_walker((*root).parse, Some(is_more), context, flags)
        {
            return false;
        }
        for above in list_items::<pg_sys::AppendRelInfo>((*root).append_rel_list) {
            let child = (*above).child_relid;
            let entry = *(*root).simple_rte_array.add(child as usize);
            if child as i32 != place.relid && (*entry).rtekind == pg_sys::RTEKind::RTE_RELATION {
                continue;
            }
            let shown = list_items::<pg_sys::Node>((*above).translated_vars);
            for (column, expr) in shown.into_iter().enumerate() {
                (search.place, search.depth, search.nested) = (place, 0, 0);
                if expr.is_null() {
                    continue;
                }
                let fine = match is_of(expr, search) {
                    true => {
                        let relid = (*above).parent_relid as i32;
                        let place = Place { relid, column: column as i32 + 1 };
                        asked(root, place, search, level + 1)
                    }
                    false => !looks_at_more(expr, (search as *mut Search).cast()),
                };
                if !fine {
                    return false;
                }
            }
        }
        true
    }
}

/// The node is the column that is searched for.
unsafe fn is_of(node: *mut pg_sys::Node, search: &Search) -> bool {
    // SAFETY: an expression of a query: its tag says of which type it is.
    unsafe {
        let var = node as *mut pg_sys::Var;
        !node.is_null()
            && (*node).type_ == pg_sys::NodeTag::T_Var
            && (*var).varno == search.place.relid
            && (*var).varlevelsup == search.depth
            && i32::from((*var).varattno) == search.place.column
    }
}

/// As `looks_at_more`, where PostgreSQL's walkers come to the next node. What is nested deeper than is looked at may look at more.
unsafe extern "C-unwind" fn is_more(node: *mut pg_sys::Node, context: *mut c_void) -> bool {
    // SAFETY: the context is what `asked` has handed on; nobody else uses it meanwhile.
    unsafe {
        let search = context as *mut Search;
        (*search).nested += 1;
        let more = (*search).nested > MOST_NESTED || callback(|| looks_at_more(node, context));
        (*search).nested -= 1;
        more
    }
}

/// Whether an expression, or a query within, looks at more of the column than fields; which, is noted.
unsafe fn looks_at_more(node: *mut pg_sys::Node, context: *mut c_void) -> bool {
    // SAFETY: a part of a query: its tag says of which type it is; the context is what `asked` has handed on.
    unsafe {
        use pg_sys::NodeTag as T;
        if node.is_null() {
            return false;
        }
        let search = &mut *(context as *mut Search);
        match (*node).type_ {
            T::T_Query => {
                search.depth += 1;
                let flags = pg_sys::QTW_IGNORE_JOINALIASES as i32;
                let more = pg_sys::query_tree_walker(node.cast(), Some(is_more), context, flags);
                (*(context as *mut Search)).depth -= 1;
                return more;
            }
            T::T_Var => {
                let var = node as *mut pg_sys::Var;
                let whole_row = (*var).varattno == 0
                    && (*var).varno == search.place.relid
                    && (*var).varlevelsup == search.depth;
                return whole_row || is_of(node, search);
            }
            // Of some fields as of all.
            T::T_NullTest if is_of((*(node as *mut pg_sys::NullTest)).arg.cast(), search) => {
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
                if reads && is_of((*part).refexpr.cast(), search) {
                    if let Some(value) = value {
                        // What else stands in the brackets may be asked of the column, too.
                        let others = (*part).refupperindexpr.cast();
                        return !note(search, value)
                            || pg_sys::expression_tree_walker(others, Some(is_more), context);
                    }
                }
            }
            _ => (),
        }
        pg_sys::expression_tree_walker(node, Some(is_more), context)
    }
}

/// The call takes the column, and constants that name fields of it: they are noted.
unsafe fn names(search: &mut Search, function: pg_sys::Oid, args: *mut pg_sys::List) -> bool {
    // SAFETY: a function's arguments are of the types that it takes.
    unsafe {
        let args = list_items::<pg_sys::Node>(args);
        let [document, other] = args[..] else { return false };
        if !is_of(document, search) {
            return false;
        }
        match function.to_u32() {
            pg_sys::F_JSONB_OBJECT_FIELD
            | pg_sys::F_JSONB_OBJECT_FIELD_TEXT
            | pg_sys::F_JSONB_EXISTS => {
                constant(other, pg_sys::TEXTOID).is_some_and(|name| note(search, name))
            }
            pg_sys::F_JSONB_EXTRACT_PATH | pg_sys::F_JSONB_EXTRACT_PATH_TEXT => {
                constant(other, pg_sys::TEXTARRAYOID).is_some_and(|path| note_first(search, path))
            }
            pg_sys::F_JSONB_CONTAINS => {
                constant(other, pg_sys::JSONBOID).is_some_and(|part| note_keys(search, part))
            }
            _ => false,
        }
    }
}

/// The value of a constant of this type that is not NULL.
unsafe fn constant(node: *mut pg_sys::Node, kind: pg_sys::Oid) -> Option<Datum> {
    // SAFETY: an expression of a query: its tag says of which type it is.
    unsafe {
        let value = node as *mut pg_sys::Const;
        let fits = (*node).type_ == pg_sys::NodeTag::T_Const
            && (*value).consttype == kind
            && !(*value).constisnull;
        fits.then(|| (*value).constvalue.value())
    }
}

/// Note the name of a field.
fn note(search: &mut Search, text: Datum) -> bool {
    with_varlena(text, |name| push(search, name))
}

fn push(search: &mut Search, name: &[u8]) -> bool {
    let fits = name.len() <= MOST_BYTES && search.names.len() < 4 * MOST_FIELDS;
    if fits && !search.names.iter().any(|known| **known == *name) {
        search.names.push(name.into());
    }
    fits
}

/// Note the first name of a path. One without names is the document itself.
fn note_first(search: &mut Search, path: Datum) -> bool {
    let (mut seen, mut fits) = (false, false);
    let some_are_null = each_element(path, |name| {
        if !std::mem::replace(&mut seen, true) {
            fits = note(search, name);
        }
    });
    fits && !some_are_null
}

/// Note the keys of an object that the document is asked to contain. (So many pairs it must have at least: of all fields as of these.)
fn note_keys(search: &mut Search, part: Datum) -> bool {
    // SAFETY: a jsonb; the iterator frees itself at its end, and its memory is emptied in any case.
    memory::scratch(|| unsafe {
        use pg_sys::JsonbIteratorToken as Token;
        let whole = pg_sys::pg_detoast_datum(part as *mut pg_sys::varlena) as *mut pg_sys::Jsonb;
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
                    if !push(search, name) {
                        return false;
                    }
                }
                Token::WJB_DONE => return true,
                _ => (),
            }
        }
    })
}
