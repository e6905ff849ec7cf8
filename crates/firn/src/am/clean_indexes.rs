//! VACUUM removes index entries that lead to stripe rows which nobody can see: of deleted rows, of stripes that
//! are gone, of bulk writes that were rolled back. heapam knows the row store's only. What is garbage is decided by
//! `firn_directory::clean`; the pass over the indexes is PostgreSQL's own bulk deletion.

use crate::directory::clean::Pass;
use crate::directory::{allocation, Directory};
use crate::pg::index_clean::{bulk_delete, Wish};
use crate::pg::{guc, wal, xact, LockMode, Rel};

/// Entries of so few rows are worth no pass when nobody asked for one.
const WORTH_A_PASS: u64 = 1_000;

/// Clean the indexes of a table that is being vacuumed, if that is worth it or asked for.
pub fn clean(table: Rel, wish: &Wish) {
    // Where ids are scarce, freezing is urgent, and this can wait.
    if wish.index_cleanup_is_off() || !wish.has_indexes(table) || xact::ids_are_scarce() {
        return;
    }
    let Some(directory) = Directory::open(table, LockMode::RowExclusive) else { return };
    if directory.toast.is_empty() {
        return;
    }
    let oldest = xact::oldest_visible(table);
    let Some(end) = allocation::handed_out(&directory.toast) else { return };
    let pass = Pass::plan(&directory.toast, oldest, end);
    let is_worth_it = pass.garbage >= WORTH_A_PASS
        || pass.garbage * 50 >= pass.rows
        || wish.index_cleanup_is_on();
    if pass.garbage == 0 || !is_worth_it {
        return;
    }
    // A standby's queries may see what this server's cannot any more.
    if let Some(latest) = pass.latest {
        wal::log_snapshot_conflict(table, latest);
    }
    pass.parts(&directory.toast, guc::vacuum_memory(), |part| {
        bulk_delete(table, wish, &|tid| part.contains(tid));
    });
    guc::crash_point("vacuum-cleaned");
    pass.done(&directory.toast);
}
