//! Reading the chunks of stripes: where they were found before, through a ring of buffers and ahead of their use
//! when many are read.

use super::ext;
use super::glance::count;
use super::recent::Recent;
use super::snapshot::Snap;
use super::toast::{seq_of, ChunkKey, RowView, Toast, CHUNK_BYTES};
use firn_directory::Place;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ops::{ControlFlow, Range};

/// So many blocks are one request of the disk's (128 kB, PostgreSQL's `io_combine_limit`).
const BLOCKS_AT_ONCE: u32 = 16;

impl Toast {
    /// A scan is about to read many chunks. Of a relation that is large beside the buffers they go
    /// through a ring of these, by heapam's measure, so that a scan does not drive out what others need; and
    /// they are asked for ahead. For what does not outlive the current memory context.
    pub fn read_in_bulk(&self) {
        self.blocks.set(self.rel().heap_blocks());
        // SAFETY: plain calls; the ring is freed in drop().
        unsafe {
            let large = self.blocks.get() > pg_sys::NBuffers as u32 / 4;
            if large && !self.rel().is_temporary() && self.ring.get().is_null() {
                self.ring.set(super::compat::ring_of_buffers());
            }
            let tablespace = self.storage().tablespace;
            self.ahead.set(pg_sys::get_tablespace_io_concurrency(tablespace).max(0) as u32);
        }
    }

    /// Read the chunk at `place` without asking for its visibility, if it holds `key`: chunk
    /// addresses are never used twice, so a chunk that is there is the right one.
    pub fn chunk_at(&self, place: Place, key: ChunkKey, visit: impl FnOnce(&[u8])) -> bool {
        // SAFETY: the page is read under a share lock and pin; item bounds come from the page's own
        // line pointers, as heapam trusts them.
        unsafe {
            let (relation, ring) = (self.raw(), self.ring.get());
            let file = super::compat::file_of(self.rel().data());
            let recent = ring.is_null().then(|| Recent::of(self.rel(), place.block));
            let known = recent.map_or(0, |recent| recent.buffer);
            let (buffer, is_there) = ext::guarded(|| {
                let (main, normal) =
                    (pg_sys::ForkNumber::MAIN_FORKNUM, pg_sys::ReadBufferMode::RBM_NORMAL);
                let is_there =
                    known > 0 && ext::direct::ReadRecentBuffer(file, main, place.block, known);
                let buffer = match is_there {
                    true => known,
                    false => {
                        ext::direct::ReadBufferExtended(relation, main, place.block, normal, ring)
                    }
                };
                ext::direct::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
                (buffer, is_there)
            });
            if let Some(recent) = recent {
                recent.is_in(buffer, is_there, self.rel());
            }
            let page = pg_sys::BufferGetPage(buffer);
            let mut found = false;
            if place.offset <= pg_sys::PageGetMaxOffsetNumber(page) {
                let item = pg_sys::PageGetItemId(page, place.offset);
                if (*item).lp_flags() == pg_sys::LP_NORMAL {
                    let mut tuple: pg_sys::HeapTupleData = std::mem::zeroed();
                    tuple.t_data = pg_sys::PageGetItem(page, item) as pg_sys::HeapTupleHeader;
                    tuple.t_len = (*item).lp_len();
                    let view = RowView { tuple: &mut tuple };
                    if view.key() == key {
                        visit(view.data());
                        found = true;
                    }
                }
            }
            ext::UnlockReleaseBuffer(buffer);
            found
        }
    }

    /// Ask the system for the chunks `from..=last` of a run whose first one is at `first`. Returns the number
    /// after the last one asked for.
    fn ask_for(&self, first: Place, from: u32, last: u32) -> u32 {
        let begin = first.block.wrapping_add(from);
        let end = first.block.wrapping_add(last.saturating_add(1)).min(self.blocks.get());
        let blocks = if from <= last { begin..end } else { 0..0 };
        for piece in blocks.step_by(BLOCKS_AT_ONCE as usize) {
            let behind = end.min(piece.saturating_add(BLOCKS_AT_ONCE)) - piece - 1;
            // SAFETY: the blocks exist; hints, which pin nothing.
            unsafe {
                // One that the buffers have says the same of those behind it, which were read with it. (The system takes some hundred kB by a
                // call, and forgets the rest.)
                let main = pg_sys::ForkNumber::MAIN_FORKNUM;
                let is_missing = pg_sys::PrefetchBuffer(self.raw(), main, piece).initiated_io;
                if is_missing && behind > 0 {
                    super::compat::prefetch(self.raw(), piece + 1, behind);
                }
            }
        }
        from.max(last.saturating_add(1))
    }

    /// So many chunks are asked for ahead.
    fn window(&self) -> u32 {
        self.ahead.get().saturating_mul(BLOCKS_AT_ONCE)
    }

    /// So many bytes are one request, and so many may be asked for ahead; none of a relation that is not read in bulk, or where the system is
    /// not to be asked ([`Toast::read_in_bulk`]).
    pub fn ahead(&self) -> (u64, u64) {
        let bytes = |blocks: u32| u64::from(blocks) * CHUNK_BYTES as u64;
        (bytes(BLOCKS_AT_ONCE), bytes(self.window()))
    }

    /// These bytes of a run of chunks will be read soon.
    pub fn read_soon(&self, bytes: Range<u64>, hint: &Cell<Option<Place>>) {
        let Some(first) = hint.get() else { return };
        // The chunk that has the first bytes has the end of what is before them, which has been read or asked for.
        let from = bytes.start.div_ceil(CHUNK_BYTES as u64) as u32;
        let last = (bytes.end.saturating_sub(1) / CHUNK_BYTES as u64) as u32;
        self.ask_for(first, from, last);
    }

    /// As [`Toast::read_run`], but at a glance (`glance.rs`): the bytes are what they seem to be, and are to be held against a checksum. False says nothing.
    pub fn glance_run(
        &self,
        id: u32,
        first_seq: u32,
        bytes: Range<u64>,
        out: &mut Vec<u8>,
        hint: &Cell<Option<Place>>,
    ) -> bool {
        let Some(first) = hint.get() else { return false };
        let (mut at, mut looks) = (bytes.start, 0);
        while at < bytes.end {
            super::xact::check_for_interrupts();
            let chunk = (at / CHUNK_BYTES as u64) as u32;
            let within = (at % CHUNK_BYTES as u64) as usize;
            let want = ((bytes.end - at) as usize).min(CHUNK_BYTES - within);
            let key = ChunkKey { id, seq: seq_of(first_seq + chunk) };
            let place = Place { block: first.block.wrapping_add(chunk), offset: first.offset };
            if !self.glance(place, key, (within, want), out) {
                return false;
            }
            at += want as u64;
            looks += 1;
        }
        (0..looks).for_each(|_| count(self.rel()));
        true
    }

    /// Read bytes `[offset, offset + out.len())` of the run of chunks that starts at `address`
    /// (see `directory::chunks`). `hint` remembers where the run's first chunk was found; wrong or
    /// missing hints cost an index look-up. False when a chunk is missing.
    pub fn read_run(
        &self,
        id: u32,
        first_seq: u32,
        offset: u64,
        out: &mut Vec<u8>,
        len: usize,
        hint: &Cell<Option<Place>>,
    ) -> bool {
        let end = offset + len as u64;
        let mut at = offset;
        let last = (end.saturating_sub(1) / CHUNK_BYTES as u64) as u32;
        let mut asked = 0;
        while at < end {
            super::xact::check_for_interrupts();
            let chunk = (at / CHUNK_BYTES as u64) as u32;
            let within = (at % CHUNK_BYTES as u64) as usize;
            let want = ((end - at) as usize).min(CHUNK_BYTES - within);
            let key = ChunkKey { id, seq: seq_of(first_seq + chunk) };
            let before = out.len();
            let mut take = |data: &[u8]| {
                if let Some(part) = data.get(within..within + want) {
                    out.extend_from_slice(part);
                }
            };
            let mut done = false;
            if let Some(first) = hint.get() {
                // (Once half of them are read, the next ones are asked for, many together.)
                let window = self.window();
                if chunk < last && window > 0 && asked < (chunk + window / 2).min(last + 1) {
                    let to = chunk.saturating_add(window - 1);
                    // (A chunk in which a page begins behind another was read with that.)
                    let from = if within > 0 { chunk + 1 } else { chunk };
                    asked = self.ask_for(first, asked.max(from), last.min(to));
                }
                // Chunks fill one page each, so a run usually occupies consecutive blocks.
                let place = Place { block: first.block.wrapping_add(chunk), offset: first.offset };
                done = self.has_block(place.block) && self.chunk_at(place, key, &mut take);
            }
            if !done {
                let row = self.scan(key.id, key.seq, key.seq, Snap::any(), false, |_, row| {
                    take(row.data());
                    ControlFlow::Break(row.place())
                });
                let Some(place) = row else { return false };
                if place.block >= chunk {
                    hint.set(Some(Place { block: place.block - chunk, offset: place.offset }));
                }
            }
            if out.len() != before + want {
                return false;
            }
            at += want as u64;
        }
        true
    }
}
