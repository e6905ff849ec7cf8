//! Slots and chunk addresses of a table. They are given out by `firn_directory::allocation`; here is where that is refused.

use super::raise::{report, OrRaise};
use super::Directory;
use crate::pg::rel::index_oids;
use crate::pg::xact::Sub;
use crate::pg::{error, Kind, LockMode, OpenRel, Rel, Toast};
pub use firn_directory::allocation::next_block;
use firn_directory::{allocation, reserved_bytes, Cid, Place};
use firn_format::Slot;

/// A slot is given out where a rollback would forget that, and the table's indexes would not.
fn refuse_to_be_forgotten(directory: &Directory) {
    if would_be_forgotten(directory) {
        error(Kind::Unsupported, "cannot write stripes of a table in this transaction")
            .detail("The transaction has reindexed or moved the table's TOAST relation, and not all of the table's indexes since the same savepoint.")
            .hint("Commit first.")
            .raise()
    }
}

/// A rollback of this transaction, or to a savepoint, would forget that a slot is given out now, and would leave an index of the
/// table as it is. The slot would be given out again, and entries of the rows that are undone would lead to others.
pub fn would_be_forgotten(directory: &Directory) -> bool {
    let toast = &directory.toast;
    let any_index = |outlives: &dyn Fn(Rel) -> bool| {
        let opened = |oid| OpenRel::any_kind(oid, LockMode::AccessShare);
        index_oids(directory.table).into_iter().any(|oid| outlives(opened(oid).rel()))
    };
    // The note goes with a file that is younger than an index: ALTER TABLE SET TABLESPACE gives the TOAST relation one, but not
    // the table's indexes.
    let (_, given) = toast.rel().storage_is_of();
    if given != Sub::NONE && any_index(&|index| index.storage_is_of().0 < given) {
        return true;
    }
    // After a REINDEX of the TOAST relation, the first note goes with a rollback though the file does not.
    if !toast.index_alone_is_undone() || allocation::is_there(toast).or_raise(toast) {
        return false;
    }
    !toast.valid_index().has_storage_of_savepoint()
        || any_index(&|index| !index.has_storage_of_savepoint())
}

/// Hand out a range of virtual blocks for up to `rows` rows and reserve its directory row, both in one. Returns the slot
/// and where the directory row is.
pub fn slot_for(directory: &Directory, rows: u32, cid: Cid) -> (Slot, Place) {
    refuse_to_be_forgotten(directory);
    directory.expect_stripe();
    let room = reserved_bytes(directory.table.column_count());
    allocation::slot_for(&directory.toast, rows, cid, room).or_raise(directory)
}

/// The first virtual block that is not handed out; None when there is no allocation row that can be read, which is
/// said of a damaged one, and of one that must have been there.
pub fn handed_out(toast: &Toast) -> Option<u32> {
    allocation::handed_out(toast).unwrap_or_else(|e| {
        report(toast, &e).warn();
        None
    })
}

/// `count` consecutive chunk addresses. Returns the first.
pub fn addresses(toast: &Toast, count: u64) -> u64 {
    allocation::addresses(toast, count).or_raise(toast)
}
