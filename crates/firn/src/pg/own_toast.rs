//! The TOAST relation that every firn table has: whether one lacks it, making it, and keeping its indexes to what they know.

use super::rel::index_oids;
use super::{ext, Oid, Rel};
use pgrx::pg_sys;
use std::cell::Cell;

thread_local! {
    static CREATING: Cell<bool> = const { Cell::new(false) };
}

/// A firn table without the TOAST relation that its stripes would be in. It works, but none is ever made.
pub fn lacks_toast(table: Rel) -> bool {
    let has_storage = matches!(table.kind(), pg_sys::RELKIND_RELATION | pg_sys::RELKIND_MATVIEW);
    has_storage && table.is_firn() && table.toast_oid().is_none()
}

/// See [`create_toast`].
pub(crate) fn is_creating_toast() -> bool {
    CREATING.get()
}

/// Give a firn table a TOAST relation. Its ACCESS EXCLUSIVE lock is held.
pub fn create_toast(table: Oid) {
    struct Creating;
    impl Drop for Creating {
        fn drop(&mut self) {
            CREATING.set(false)
        }
    }
    CREATING.set(true);
    let _creating = Creating;
    // SAFETY: plain call; no options.
    unsafe { ext::NewRelationCreateToastTable(table, pg_sys::Datum::from(0usize)) }
}

/// The TOAST relation is about to get new contents. What a REINDEX CONCURRENTLY that failed has left there are
/// indexes that are not valid and take entries all the same; PostgreSQL builds only the valid one anew. They
/// would lead to rows that are no more, and find new rows to be duplicates of those.
pub(crate) fn drop_left_over_indexes(toast: Oid) {
    // SAFETY: plain calls; the lock is the one that the caller holds or PostgreSQL takes next, and keeps out
    // a REINDEX that is still running.
    unsafe {
        let rel = pg_sys::table_open(toast, pg_sys::AccessExclusiveLock as i32);
        let indexes = index_oids(Rel::of(rel));
        pg_sys::relation_close(rel, pg_sys::NoLock as i32);
        for oid in indexes {
            if pg_sys::get_index_isvalid(oid) {
                continue;
            }
            let index = pg_sys::ObjectAddress {
                classId: pg_sys::RelationRelationId,
                objectId: oid,
                objectSubId: 0,
            };
            let internal = pg_sys::PERFORM_DELETION_INTERNAL as i32;
            pg_sys::performDeletion(&index, pg_sys::DropBehavior::DROP_RESTRICT, internal);
        }
    }
}
