//! Counting stripe rows from the directory and the tombstones.

use crate::am::rows::visible_pending;
use crate::directory::{tombstones, Directory};
use crate::pg::{lock, xact, LockMode, Rel, Snap};

/// Rows of a table's stripes that `snap` sees, and how many stripes there are.
pub fn count_seen_rows(table: Rel, snap: Snap) -> (u64, u64) {
    if snap.is_serializable() {
        lock::predicate_lock_table(table, snap);
    }
    let Some(directory) = Directory::open(table, LockMode::AccessShare) else { return (0, 0) };
    let alive = |slot, rows: u32| {
        let deleted = tombstones::deleted(&directory.toast, slot, rows, snap);
        u64::from(rows - deleted.map_or(0, |d| d.count().min(rows)))
    };
    let (mut rows, mut stripes) = (0, 0);
    for found in directory.list(snap) {
        xact::check_for_interrupts();
        rows += alive(found.slot, found.entry.rows);
        stripes += 1;
    }
    // What this session has not written yet.
    for pending in visible_pending(table, snap) {
        rows += alive(pending.slot, pending.rows);
    }
    (rows, stripes)
}
