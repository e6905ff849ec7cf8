//! Counts that the planner, VACUUM and ANALYZE need of the stripe half of a table.

use crate::directory::{tombstones, Directory};
use crate::pg::rel::StorageId;
use crate::pg::tableam_ddl::{index_oids, row_count, set_row_count};
use crate::pg::{LockMode, OpenRel, Rel, Snap};
use firn_format::blocks_for;
use std::cell::RefCell;
use std::collections::HashMap;

#[derive(Clone, Copy, Default)]
struct Totals {
    token: u64,
    toast_blocks: u32,
    stripes: usize,
    rows: f64,
    bytes: f64,
    virtual_blocks: u64,
}

thread_local! {
    static TOTALS: RefCell<HashMap<StorageId, Totals>> = RefCell::default();
}

fn totals(table: Rel) -> Totals {
    let Some(directory) = Directory::open(table, LockMode::AccessShare) else {
        return Totals::default();
    };
    let blocks = directory.toast.rel().heap_blocks();
    let storage = directory.toast.storage();
    // Planning asks again and again; walking a large directory each time would make it slow. As
    // long as the TOAST relation has hardly grown, neither has the directory; VACUUM, ANALYZE and a
    // table's first stripe change its definition's token.
    let token = table.definition_token();
    let known = TOTALS.with_borrow(|map| map.get(&storage).copied());
    if let Some(t) = known.filter(|t| t.token == token) {
        let slack = if t.stripes > 1_000 { t.toast_blocks / 100 } else { 0 };
        if blocks >= t.toast_blocks && blocks - t.toast_blocks <= slack {
            return t;
        }
    }
    let mut t = Totals { token, toast_blocks: blocks, ..Totals::default() };
    for found in directory.list(Snap::self_snap()) {
        t.stripes += 1;
        t.rows += f64::from(found.entry.rows);
        t.bytes += found.entry.bytes as f64;
        t.virtual_blocks += u64::from(blocks_for(found.entry.rows));
    }
    TOTALS.with_borrow_mut(|map| {
        if map.len() > 4_096 {
            map.clear();
        }
        map.insert(storage, t)
    });
    t
}

/// Rows in stripes, and the pages they take (what a scan of them reads).
pub fn stripe_totals(table: Rel) -> (f64, u32) {
    let t = totals(table);
    (t.rows, (t.bytes / 8192.0).ceil() as u32)
}

/// Rows in stripes, and the number of stripes, as of late.
pub fn stripe_counts(table: Rel) -> (f64, f64) {
    let t = totals(table);
    (t.rows, t.stripes as f64)
}

/// What ANALYZE is told as the stripes' size: one block per virtual block.
pub fn virtual_bytes(table: Rel) -> u64 {
    totals(table).virtual_blocks * 8192
}

/// heapam's VACUUM has counted the row store only: add the stripes' rows to the table's and its
/// indexes' counts. Done by overwriting in place, as VACUUM's transaction must not write otherwise.
pub fn correct_statistics(table: Rel) {
    let Some(directory) = Directory::open(table, LockMode::AccessShare) else { return };
    let snap = Snap::self_snap();
    let mut rows = 0.0;
    for found in directory.list(snap) {
        let deleted = tombstones::deleted(&directory.toast, found.slot, found.entry.rows, snap);
        rows += f64::from(found.entry.rows - deleted.map_or(0, |d| d.count()));
    }
    if rows == 0.0 {
        return;
    }
    let heap_rows = row_count(table.oid()).max(0.0);
    set_row_count(table, heap_rows + rows);
    for oid in index_oids(table) {
        let index = OpenRel::any_kind(oid, LockMode::AccessShare);
        if !index.rel().has_predicate()
            && row_count(oid) >= 0.0
            && row_count(oid) < heap_rows + rows
        {
            set_row_count(index.rel(), heap_rows + rows);
        }
    }
}
