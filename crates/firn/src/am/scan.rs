//! Sequential, TID-range and bitmap scans: the row store first (heapam's scan), then the stripes.

use super::fetch::Fetcher;
use super::rows::{Claim, StripeRows};
use crate::pg::{parallel::Shared, scan_keys::Keys};
use crate::pg::{Rel, Snap, TupleSlot};
use firn_format::{Tid, ROWS_PER_BLOCK};

/// The stripe half of a scan descriptor.
pub struct Scan {
    table: Rel,
    snap: Snap,
    /// Of a parallel scan.
    shared: Option<Shared>,
    rows: Option<StripeRows>,
    /// The row store is exhausted and stripes are being read.
    pub in_stripes: bool,
    range: Option<(Tid, Tid)>,
    /// Of each column whether it is asked for; None: all are.
    wanted: Option<Vec<bool>>,
    bitmap: Option<BitmapBlock>,
    fetcher: Option<Fetcher>,
}

struct BitmapBlock {
    check: bool,
    block: u32,
    offsets: Vec<u16>,
    next: usize,
}

impl Scan {
    pub fn new(table: Rel, snap: Snap, shared: Option<Shared>) -> Scan {
        Scan {
            table,
            snap,
            shared,
            rows: None,
            in_stripes: false,
            range: None,
            wanted: None,
            bitmap: None,
            fetcher: None,
        }
    }

    /// Start again from the row store.
    pub fn reset(&mut self) {
        self.rows = None;
        self.in_stripes = false;
        self.bitmap = None;
    }

    pub fn set_range(&mut self, low: Tid, high: Tid) {
        self.range = Some((low, high));
    }

    /// Of stripes only these columns are asked for; the others are NULL, or what stands in NOT NULL columns.
    pub fn want(&mut self, columns: &[usize]) {
        let count = self.table.column_count();
        self.wanted = Some((0..count).map(|column| columns.contains(&column)).collect());
    }

    /// Continue after (or before) the row of a stripe at `tid`, without a look at those before it; false when there is none.
    pub fn go_to(&mut self, tid: Tid) -> bool {
        let mut rows = self.begin_stripes();
        self.in_stripes = rows.go_to(tid);
        self.rows = Some(rows);
        self.in_stripes
    }

    fn begin_stripes(&self) -> StripeRows {
        let claim = self.shared.map(|shared| Box::new(move || shared.claim()) as Claim);
        let rows = match &self.wanted {
            Some(wanted) => StripeRows::new(self.table, self.snap, wanted.clone(), claim),
            None => StripeRows::all(self.table, self.snap, claim),
        };
        match self.range {
            Some((low, high)) => rows.between(low, high),
            None => rows,
        }
    }

    /// Next row of the stripes that has the keys; false when there is none (then a backward scan goes on in the row
    /// store).
    pub fn next_in_stripes(&mut self, forward: bool, keys: Keys, slot: TupleSlot) -> bool {
        self.in_stripes = true;
        // It is large, so it stays where it is.
        if self.rows.is_none() {
            self.rows = Some(self.begin_stripes());
        }
        let Some(rows) = &mut self.rows else { return false };
        if !forward && rows.is_before_first() && rows.never_stepped() {
            rows.go_to_end();
        }
        while rows.next_into(forward, slot) {
            if keys.hold(slot) {
                self.table.count_reads(1);
                return true;
            }
        }
        if !forward {
            self.in_stripes = false;
        }
        slot.clear();
        false
    }

    /// Begin a virtual block of a bitmap scan: the listed offsets, or all rows of it.
    /// `check` is whether the conditions are checked again on them.
    pub fn bitmap_block(&mut self, block: u32, offsets: Option<&[u16]>, check: bool) {
        let offsets = match offsets {
            Some(list) => list.to_vec(),
            None => (1..=ROWS_PER_BLOCK as u16).collect(),
        };
        self.bitmap = Some(BitmapBlock { block, offsets, check, next: 0 });
    }

    /// Next row of the current virtual block; None when the current block is not a virtual one.
    pub fn bitmap_next(&mut self, slot: TupleSlot) -> Option<bool> {
        let block = self.bitmap.as_mut()?;
        let fetcher = self.fetcher.get_or_insert_with(|| Fetcher::new(self.table));
        while let Some(offset) = block.offsets.get(block.next) {
            block.next += 1;
            let tid = Tid { block: block.block, offset: *offset };
            if fetcher.fetch_of_bitmap(tid, self.snap, slot, block.check) {
                return Some(true);
            }
        }
        slot.clear();
        Some(false)
    }
}
