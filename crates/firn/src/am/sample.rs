//! TABLESAMPLE: virtual blocks follow the row store's blocks in one numbering.

use super::fetch::Fetcher;
use crate::directory::{Directory, Found};
use crate::pg::{LockMode, Rel, Snap, TupleSlot};
use firn_format::{blocks_for, Tid, ROWS_PER_BLOCK, VIRTUAL_BASE};

/// The state of one sample scan.
pub struct SampleState {
    stripes: Vec<(u64, Found)>,
    pub heap_blocks: u32,
    virtual_blocks: u64,
    /// The last block given to a method that takes all.
    pub next_block: u64,
    current: Option<(Found, u32)>,
    fetcher: Fetcher,
    snap: Snap,
}

impl SampleState {
    pub fn new(table: Rel, snap: Snap, heap_blocks: u32) -> SampleState {
        let directory = Directory::open(table, LockMode::AccessShare);
        let mut stripes = Vec::new();
        let mut virtual_blocks = 0u64;
        for found in directory.as_ref().map(|d| d.list(snap)).unwrap_or_default() {
            let count = u64::from(blocks_for(found.entry.rows));
            stripes.push((virtual_blocks, found));
            virtual_blocks += count;
        }
        drop(directory);
        let fetcher = Fetcher::new(table);
        SampleState {
            stripes,
            heap_blocks,
            virtual_blocks,
            next_block: 0,
            current: None,
            fetcher,
            snap,
        }
    }

    /// Blocks of both halves.
    pub fn blocks(&self) -> u32 {
        (u64::from(self.heap_blocks) + self.virtual_blocks).min(u64::from(u32::MAX - 1)) as u32
    }

    pub fn leave_block(&mut self) {
        self.current = None;
    }

    /// Begin virtual block number `unit` (counted from the first behind the row store).
    pub fn begin_block(&mut self, unit: u64) {
        let at = self.stripes.partition_point(|(first, _)| *first <= unit);
        self.current = at
            .checked_sub(1)
            .and_then(|i| self.stripes.get(i))
            .map(|(first, found)| (found.clone(), (unit - first) as u32));
    }

    /// In a virtual block?
    pub fn in_stripes(&self) -> bool {
        self.current.is_some()
    }

    /// Rows of the current virtual block.
    pub fn rows(&self) -> u16 {
        self.current.as_ref().map_or(0, |(found, block)| {
            found.entry.rows.saturating_sub(block * ROWS_PER_BLOCK).min(ROWS_PER_BLOCK) as u16
        })
    }

    /// The number by which a method may choose rows of the current virtual block: its own, as some choose by nothing else.
    pub fn block(&self) -> u32 {
        self.current.as_ref().map_or(0, |(found, block)| VIRTUAL_BASE + found.slot.0 + block)
    }

    /// Put the row at `offset` of the current virtual block into the slot, if it is visible.
    pub fn fetch(&mut self, offset: u16, slot: TupleSlot) -> bool {
        let Some((found, block)) = &self.current else { return false };
        let tid = Tid { block: VIRTUAL_BASE + found.slot.0 + block, offset };
        self.fetcher.fetch(tid, self.snap, slot)
    }
}
