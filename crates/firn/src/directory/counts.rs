//! Row counts of a table with stripes, for planning and for the commands that keep them.

use super::{tombstones, Directory, Found};
use crate::pg::rel::{StorageId, BLOCK_BYTES};
use crate::pg::{xact, LockMode, Rel, Snap, Toast};
use firn_directory::counted::{self, Counted};
use firn_format::{Error, Slot};
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
    /// Bytes of their values before encoding.
    pub raw_bytes: f64,
    /// What was known of them when rows were counted last.
    counted: Option<Counted>,
}

impl StripeTotals {
    /// Bytes of a row's values, on average.
    pub fn row_width(&self) -> f64 {
        self.raw_bytes / self.rows.max(1.0)
    }

    /// Rows that are alive, about: what came since the last count is taken to be, and what went since
    /// were stripes whose rows were all deleted.
    pub fn live(&self) -> f64 {
        match self.counted {
            Some(c) if c.rows as f64 <= self.rows => c.live as f64 + self.rows - c.rows as f64,
            Some(c) => (c.live as f64).min(self.rows),
            None => self.rows,
        }
    }

    /// The row store's part of `pg_class.reltuples` = `whole`; None when that is unknown.
    pub fn row_store_part(&self, whole: f32) -> Option<f32> {
        if whole < 0.0 {
            return None;
        }
        let stripes = match self.counted {
            Some(c) if c.whole == whole => c.live as f64,
            // Someone else has counted since (CREATE INDEX does).
            _ => self.live(),
        };
        let rest = f64::from(whole) - stripes;
        // reltuples has seven digits: what is lost in them is no row store.
        (rest >= -f64::from(whole) * 1e-6).then_some(rest.max(0.0) as f32)
    }

    /// The pages they take (what a scan of them reads).
    pub fn pages(&self) -> u32 {
        (self.bytes / BLOCK_BYTES as f64).ceil() as u32
    }
}

impl StripeTotals {
    fn of(directory: &Directory, stripes: &[Found]) -> StripeTotals {
        let mut t =
            StripeTotals { counted: counted::read(&directory.toast), ..StripeTotals::default() };
        for found in stripes {
            t.stripes += 1.0;
            t.rows += f64::from(found.entry.rows);
            t.bytes += found.entry.bytes as f64;
            t.raw_bytes += found.entry.raw_bytes as f64;
        }
        t
    }
}

/// Totals as they were when the TOAST relation had that many blocks.
struct Remembered {
    totals: StripeTotals,
    /// The table's definition then: its first stripe, VACUUM and ANALYZE change it.
    token: u64,
    toast_blocks: u32,
    at: Instant,
    /// How long it took to find them.
    took: Duration,
}

/// For how long totals may be told from memory: another session may have committed a stripe that was
/// there before, or filled space that was free.
const MEMORY: Duration = Duration::from_secs(1);
/// The same as a multiple of the time that it takes to find them, so that planning never spends more than
/// a hundredth of a session's time on walks through a large directory.
const REST: u32 = 100;

thread_local! {
    static TOTALS: RefCell<HashMap<StorageId, Remembered>> = RefCell::default();
}

/// What the table's stripes hold, as recently computed: planning asks again and again, and walking a large
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
        let fresh = r.at.elapsed() < MEMORY.max(r.took * REST);
        (grown <= slack && r.token == token && fresh).then_some(r.totals)
    });
    if let Some(totals) = known {
        return totals;
    }
    let before = Instant::now();
    // Whoever reads a stripe whose directory row is damaged is told; who reads others needs a plan, too.
    let stripes = directory.list_readable(Snap::self_snap(), |_, _| ());
    let totals = StripeTotals::of(&directory, &stripes);
    let at = Instant::now();
    let took = at - before;
    TOTALS.with_borrow_mut(|map| {
        if map.len() > 4_096 {
            map.clear();
        }
        map.insert(storage, Remembered { totals, token, toast_blocks, at, took })
    });
    totals
}

/// The storage was emptied.
pub(super) fn forget(storage: StorageId) {
    TOTALS.with_borrow_mut(|map| map.remove(&storage));
}

/// What the table's stripes hold just now.
pub fn stripe_totals_now(table: Rel) -> StripeTotals {
    let directory = Directory::open(table, LockMode::AccessShare);
    let totals = |d: &Directory| StripeTotals::of(d, &d.list(Snap::self_snap()));
    directory.as_ref().map(totals).unwrap_or_default()
}

/// The same, of those stripes whose directory rows can be read; `damaged` is told of the others.
pub fn stripe_totals_readable(table: Rel, damaged: impl FnMut(Slot, &Error)) -> StripeTotals {
    let directory = Directory::open(table, LockMode::AccessShare);
    let totals = |d: &Directory| StripeTotals::of(d, &d.list_readable(Snap::self_snap(), damaged));
    directory.as_ref().map(totals).unwrap_or_default()
}

/// Count the rows of stripes and the deleted ones. Returns all and the live.
pub fn count_stripe_rows(directory: &Directory, stripes: &[Found]) -> (u64, u64) {
    let snap = Snap::self_snap();
    let (mut rows, mut live) = (0, 0);
    for found in stripes {
        xact::check_for_interrupts();
        let all = found.entry.rows;
        let deleted = tombstones::deleted_readable(&directory.toast, found.slot, all, snap);
        rows += u64::from(all);
        live += u64::from(all - deleted.min(all));
    }
    (rows, live)
}

/// Note how many rows of stripes the table's `pg_class.reltuples`, which is being set to `whole`,
/// includes.
pub fn note(toast: &Toast, whole: f64, rows: u64, live: u64) {
    counted::write(toast, Counted { whole: whole as f32, rows, live });
    TOTALS.with_borrow_mut(|map| map.remove(&toast.storage()));
}

/// Note the count of an index build, `whole` rows and `live` of them in stripes.
pub fn note_build(table: Rel, whole: f64, live: f64) {
    let totals = stripe_totals_now(table);
    if totals.rows == 0.0 {
        return;
    }
    if let Some(directory) = Directory::open(table, LockMode::RowExclusive) {
        note(&directory.toast, whole, totals.rows as u64, live as u64);
    }
}
