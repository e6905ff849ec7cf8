//! ANALYZE: stripes are presented as blocks of up to 291 rows behind the row store's. PostgreSQL
//! picks blocks; of what it picks we return every row with one and the same probability, so that the
//! sample is fair and the reading bounded: rows of a stripe are taken by whole pages.

use crate::directory::{tombstones, Directory, Found};
use crate::pg::{LockMode, Rel, Snap, TupleSlot};
use crate::stripe::{handle_for, layout, stripe_row, Layout, RowBuffer};
use firn_format::{blocks_for, DeleteVector, Tid, ROWS_PER_BLOCK};
use std::rc::Rc;

/// Rows of stripes that one ANALYZE looks at, about.
const ROWS_WANTED: f64 = 60_000.0;
/// Blocks that PostgreSQL samples at most with the default statistics target.
const BLOCKS_SAMPLED: f64 = 30_000.0;
/// Rows taken from one chosen block.
const ROWS_PER_SAMPLE: u32 = 8;

/// The state of one ANALYZE scan.
pub struct Sampler {
    table: Rel,
    layout: Rc<Layout>,
    directory: Option<Directory>,
    stripes: Vec<(u64, Found)>,
    heap_blocks: u32,
    /// Probability with which a row of a picked block is returned.
    rate: f64,
    random: u64,
    block: Option<Block>,
    buffer: RowBuffer,
    deleted: Option<(u32, Option<DeleteVector>)>,
}

struct Block {
    found: Found,
    first_row: u32,
    rows: u32,
    picks: Vec<u32>,
    counted: bool,
}

impl Sampler {
    pub fn new(table: Rel) -> Sampler {
        let directory = Directory::open(table, LockMode::AccessShare);
        let mut stripes = Vec::new();
        let mut blocks = 0u64;
        let mut rows = 0.0;
        for found in directory.as_ref().map(|d| d.list(Snap::self_snap())).unwrap_or_default() {
            rows += f64::from(found.entry.rows);
            let count = u64::from(blocks_for(found.entry.rows));
            stripes.push((blocks, found));
            blocks += count;
        }
        let heap_blocks = table.heap_blocks();
        let all = blocks as f64 + f64::from(heap_blocks);
        let picked = rows * (BLOCKS_SAMPLED / all.max(1.0)).min(1.0);
        let rate = if rows == 0.0 { 1.0 } else { (ROWS_WANTED / picked.max(1.0)).min(1.0) };
        Sampler {
            table,
            layout: layout(table),
            directory,
            stripes,
            heap_blocks,
            rate,
            random: 0x9E37_79B9_7F4A_7C15 ^ u64::from(table.oid()),
            block: None,
            buffer: RowBuffer::default(),
            deleted: None,
        }
    }

    /// splitmix64, as a number in [0, 1).
    fn next_random(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Is this block of the row store?
    pub fn is_row_store(&self, block: u32) -> bool {
        block < self.heap_blocks
    }

    /// A live row of the row store was found: is it to be returned?
    pub fn keep_row_store_row(&mut self) -> bool {
        self.rate >= 1.0 || self.next_random() < self.rate
    }

    pub fn leave_block(&mut self) {
        self.block = None;
    }

    /// Begin a block behind the row store's.
    pub fn begin_block(&mut self, block: u32) -> bool {
        let unit = u64::from(block - self.heap_blocks);
        let at = self.stripes.partition_point(|(first, _)| *first <= unit);
        let Some((first, found)) = at.checked_sub(1).and_then(|i| self.stripes.get(i)).cloned()
        else {
            return false;
        };
        let first_row = (unit - first) as u32 * ROWS_PER_BLOCK;
        let rows = found.entry.rows.saturating_sub(first_row).min(ROWS_PER_BLOCK);
        // A block is taken with a probability and then gives a few rows, so that the expected number
        // of rows per block is rate times its rows.
        let mut picks = Vec::new();
        if self.rate >= 1.0 {
            picks.extend(0..rows);
        } else {
            let want = f64::from(rows) * self.rate;
            let take = ROWS_PER_SAMPLE.max(want.ceil() as u32).min(rows);
            if self.next_random() < want / f64::from(take.max(1)) {
                let mut left = take;
                for row in 0..rows {
                    if left > 0 && self.next_random() < f64::from(left) / f64::from(rows - row) {
                        picks.push(row);
                        left -= 1;
                    }
                }
            }
        }
        picks.reverse();
        self.block = Some(Block { found, first_row, rows, picks, counted: false });
        true
    }

    /// Next row of a block of stripe rows: None when the current block is not one.
    pub fn next(&mut self, live: &mut f64, dead: &mut f64, slot: TupleSlot) -> Option<bool> {
        let directory = self.directory.as_ref()?;
        let block = self.block.as_mut()?;
        let stripe = block.found.slot;
        if self.deleted.as_ref().is_none_or(|(s, _)| *s != stripe.0) {
            let rows = block.found.entry.rows;
            let vector = tombstones::deleted(&directory.toast, stripe, rows, Snap::self_snap());
            self.deleted = Some((stripe.0, vector));
        }
        let gone = |row: u32| {
            self.deleted.as_ref().and_then(|(_, v)| v.as_ref()).is_some_and(|v| v.contains(row))
        };
        if !block.counted {
            block.counted = true;
            let lost = (0..block.rows).filter(|r| gone(block.first_row + r)).count() as f64;
            *dead += lost;
            *live += f64::from(block.rows) - lost;
        }
        while let Some(pick) = block.picks.pop() {
            let row = block.first_row + pick;
            if gone(row) {
                continue;
            }
            let handle = handle_for(self.table, &directory.toast, stripe, &block.found.entry);
            let all = |_: usize| true;
            stripe_row(&self.layout, &directory.toast, &handle, row, all, &mut self.buffer);
            let tid = Tid::of(stripe, row);
            slot.store_row(
                self.table,
                &self.buffer.values,
                &self.buffer.nulls,
                tid,
                block.found.xmin,
            );
            return Some(true);
        }
        slot.clear();
        Some(false)
    }
}
