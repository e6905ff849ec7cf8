//! CREATE TABLE … (LIKE … INCLUDING INDEXES) makes no index for what a rebuild has left, or is just making.
//!
//! PostgreSQL clones every index of the other table that is in use, valid or not. It makes a CREATE INDEX of each, which comes by
//! the hook, and does not say of which index it is. So those are left out that say what a left-over would, but for
//! as many as there are other indexes that say the same.

use crate::pg::compat;
use crate::pg::ext::generateClonedIndexStmt;
use crate::pg::xact::Sub;
use crate::pg::{catalog, rebuild, xact, LockMode, Oid, OpenRel};
use pgrx::pg_sys;
use std::cell::RefCell;

/// A table whose indexes are cloned.
#[derive(Clone, Copy)]
struct Source {
    table: Oid,
    /// So are the comments on them.
    comments: bool,
}

/// A CREATE TABLE that is being run and clones indexes.
struct Creation {
    /// The subtransaction that it runs in.
    sub: Sub,
    sources: Vec<Source>,
    /// The left-over of each statement that said what one would.
    seen: Vec<Oid>,
}

thread_local! {
    /// Innermost last. One that has failed stays until somebody looks, or the transaction is over.
    static CURRENT: RefCell<Vec<Creation>> = RefCell::default();
}

/// A CREATE TABLE begins; returns how many are around it.
pub(super) unsafe fn begin(statement: *mut pg_sys::CreateStmt) -> usize {
    // SAFETY: a CREATE TABLE, whose elements are nodes, of which those are clauses that say so.
    unsafe {
        let mut sources = Vec::new();
        let elements = (*statement).tableElts;
        let count = if elements.is_null() { 0 } else { (*elements).length as usize };
        for i in 0..count {
            let element: *mut pg_sys::Node = (*(*elements).elements.add(i)).ptr_value.cast();
            if (*element).type_ != pg_sys::NodeTag::T_TableLikeClause {
                continue;
            }
            let clause = element as *mut pg_sys::TableLikeClause;
            let asks_for = |what| (*clause).options & what != 0;
            if asks_for(pg_sys::TableLikeOption::CREATE_TABLE_LIKE_INDEXES) {
                let comments = asks_for(pg_sys::TableLikeOption::CREATE_TABLE_LIKE_COMMENTS);
                sources.extend(named((*clause).relation).map(|table| Source { table, comments }));
            }
        }
        CURRENT.with_borrow_mut(|current| {
            drop_failed(current);
            let around = current.len();
            if !sources.is_empty() {
                let sub = xact::subtransaction();
                current.push(Creation { sub, sources, seen: Vec::new() });
            }
            around
        })
    }
}

/// Those whose subtransaction was rolled back.
unsafe fn drop_failed(current: &mut Vec<Creation>) {
    // SAFETY: a question about numbers, in a transaction.
    unsafe {
        current.retain(|creation| pg_sys::SubTransactionIsActive(creation.sub.0));
    }
}

/// The transaction is over, and with it whatever has failed in it.
pub(in crate::entry) fn forget() {
    CURRENT.take();
}

/// It is over.
pub(super) fn end(around: usize) {
    CURRENT.with_borrow_mut(|current| current.truncate(around));
}

/// The relation of that name. Whether one may know of it, and what is said of names that are wrong, is PostgreSQL's to say.
unsafe fn named(name: *mut pg_sys::RangeVar) -> Option<Oid> {
    // SAFETY: a name of the parser's, whose relation part is never missing.
    unsafe {
        // A temporary table has got no schema with its name, wherever the path has that.
        let is_temporary = (*name).relpersistence as u8 == pg_sys::RELPERSISTENCE_TEMP;
        let schema = match (*name).schemaname.is_null() {
            true if is_temporary => c"pg_temp".as_ptr(),
            _ => (*name).schemaname,
        };
        let oid = match schema.is_null() {
            true => pg_sys::RelnameGetRelid((*name).relname),
            false => {
                let schema = pg_sys::LookupNamespaceNoError(schema);
                pg_sys::get_relname_relid((*name).relname, schema)
            }
        };
        (oid != pg_sys::InvalidOid).then_some(oid)
    }
}

/// This CREATE INDEX would clone what a rebuild has left.
pub(super) unsafe fn is_of_left_over(statement: *mut pg_sys::IndexStmt) -> bool {
    // SAFETY: a CREATE INDEX that is about to be run.
    unsafe {
        let sources = CURRENT.with_borrow_mut(|current| {
            drop_failed(current);
            current.last().map(|creation| creation.sources.clone())
        });
        let sources = sources.unwrap_or_default();
        let is_left = |source: &Source| !rebuild::left_overs(source.table).is_empty();
        if !(*statement).transformed || !sources.iter().any(is_left) {
            return false;
        }
        let Some(table) = named((*statement).relation) else { return false };
        let (mut left, mut others) = (Vec::new(), 0);
        for source in sources {
            let left_overs = rebuild::left_overs(source.table);
            for index in catalog::indexes_of(source.table) {
                let is_left_over = left_overs.contains(&index.oid);
                if (is_left_over || index.live) && clones(statement, table, source, index.oid) {
                    match is_left_over {
                        true => left.push(index.oid),
                        false => others += 1,
                    }
                }
            }
        }
        let Some(first) = left.first() else { return false };
        CURRENT.with_borrow_mut(|current| {
            let Some(creation) = current.last_mut() else { return false };
            let before = creation.seen.iter().filter(|index| *index == first).count();
            creation.seen.push(*first);
            before >= others
        })
    }
}

/// The statement says what one would that makes a clone of the index of `source` for `table`, comment included: of those that
/// say the same but for that, each has its own.
unsafe fn clones(
    statement: *mut pg_sys::IndexStmt,
    table: Oid,
    source: Source,
    index: Oid,
) -> bool {
    // SAFETY: the three are open; the statement that is made lives in the current memory.
    unsafe {
        let lock = LockMode::AccessShare;
        let opened = [table, source.table, index].map(|oid| OpenRel::if_there(oid, lock));
        let [Some(table), Some(of), Some(opened)] = opened else { return false };
        let columns = compat::map_by_name((*table.raw()).rd_att, (*of.raw()).rd_att);
        let none = std::ptr::null_mut();
        let clone = generateClonedIndexStmt((*statement).relation, opened.raw(), columns, none);
        if source.comments {
            (*clone).idxcomment = pg_sys::GetComment(index, pg_sys::RelationRelationId, 0);
        }
        pg_sys::equal(statement.cast(), clone.cast())
    }
}
