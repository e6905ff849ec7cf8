//! Counts that the planner, VACUUM and ANALYZE need of the stripe half of a table.

use crate::directory::{tombstones, Directory};
use crate::pg::rel::StorageId;
use crate::pg::tableam_ddl::{index_oids, row_count, set_row_count};
use crate::pg::{LockMode, OpenRel, Rel, Snap};
use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What a table's stripes hold.
#[derive(Clone, Copy, Default)]
pub struct StripeTotals {
    pub stripes: f64,
    /// Rows, deleted ones too.
    pub rows: f64,
    pub bytes: f64,
}

impl StripeTotals {
    /// The pages they take (what a scan of them reads).
    pub fn pages(&self) -> u32 {
        (self.bytes / 8192.0).ceil() as u32
    }
}

/// Totals as they were when the TOAST relation had that many blocks.
struct Remembered {
    totals: StripeTotals,
    /// The table's definition then: its first stripe, VACUUM and ANALYZE change it.
    token: u64,
    toast_blocks: u32,
    at: Instant,
}

/// For how long totals may be told from memory: another session may have committed a stripe that was
/// there before, or filled space that was free.
const MEMORY: Duration = Duration::from_secs(1);

thread_local! {
    static TOTALS: RefCell<HashMap<StorageId, Remembered>> = RefCell::default();
}

/// What the table's stripes hold, as of late: planning asks again and again, and walking a large
/// directory each time would make it slow.
pub fn stripe_totals(table: Rel) -> StripeTotals {
    let Some(directory) = Directory::open(table, LockMode::AccessShare) else {
        return StripeTotals::default();
    };
    let toast_blocks = directory.toast.rel().heap_blocks();
    let storage = directory.toast.storage();
    let token = table.definition_token();
    let known = TOTALS.with_borrow(|map| {
        let r = map.get(&storage)?;
        let slack = if r.totals.stripes > 1_000.0 { r.toast_blocks / 100 } else { 0 };
        let grown = toast_blocks.checked_sub(r.toast_blocks)?;
        (grown <= slack && r.token == token && r.at.elapsed() < MEMORY).then_some(r.totals)
    });
    if let Some(totals) = known {
        return totals;
    }
    let totals = totals_of(&directory);
    TOTALS.with_borrow_mut(|map| {
        if map.len() > 4_096 {
            map.clear();
        }
        map.insert(storage, Remembered { totals, token, toast_blocks, at: Instant::now() })
    });
    totals
}

/// What the table's stripes hold just now.
pub fn stripe_totals_now(table: Rel) -> StripeTotals {
    Directory::open(table, LockMode::AccessShare).as_ref().map(totals_of).unwrap_or_default()
}

fn totals_of(directory: &Directory) -> StripeTotals {
    let mut t = StripeTotals::default();
    for found in directory.list(Snap::self_snap()) {
        t.stripes += 1.0;
        t.rows += f64::from(found.entry.rows);
        t.bytes += found.entry.bytes as f64;
    }
    t
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
