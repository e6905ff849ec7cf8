//! Anchors on a page: which of them nobody holds, and their removal.

use super::rowlock::{self, Held};
use super::toast::RowView;
use super::{ChunkKey, Rel};
use firn_format::Tid;
use pgrx::pg_sys;

/// Line pointer state of a stored tuple.
const NORMAL: u32 = 1;

/// The anchors on a page that no running transaction holds and no committed one has changed: offset and key.
pub fn unheld(rel: Rel, block: u32) -> Vec<(u16, ChunkKey)> {
    let mut list = Vec::new();
    // SAFETY: the block exists; line pointers and tuples are looked at under the page's lock.
    unsafe {
        let buffer = pg_sys::ReadBuffer(rel.raw(), block);
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
        let page = pg_sys::BufferGetPage(buffer);
        for offset in 1..=pg_sys::PageGetMaxOffsetNumber(page) {
            if let Some(key) = unheld_at(page, offset) {
                list.push((offset, key));
            }
        }
        pg_sys::UnlockReleaseBuffer(buffer);
    }
    list
}

/// The key of the anchor at `offset`, if there is one that nobody holds.
///
/// # Safety
/// Under the page's lock.
unsafe fn unheld_at(page: pg_sys::Page, offset: u16) -> Option<ChunkKey> {
    let item = pg_sys::PageGetItemId(page, offset);
    if (*item).lp_flags() != NORMAL {
        return None;
    }
    let mut tuple: pg_sys::HeapTupleData = std::mem::zeroed();
    tuple.t_data = page.add((*item).lp_off() as usize).cast();
    tuple.t_len = (*item).lp_len();
    let view = RowView::of(&mut tuple);
    let key = view.key();
    let is_anchor = crate::directory::is_pinned_tombstone(key, view.data());
    // One that is not frozen belongs to a transaction (see `frozen.rs`), or is removed already.
    let free = view.xmin() == super::toast::FROZEN_XID && rowlock::members(tuple.t_data).is_empty();
    (is_anchor && free).then_some(key)
}

/// Remove the anchors at `offsets` of a page, as far as nobody holds them now. The caller has the short locks of
/// their rows.
///
/// From then on they are tuples whose inserter has aborted. The page and, if it says something of it, the
/// visibility map's are logged whole: no record of heapam's takes a frozen tuple away.
pub fn remove(rel: Rel, block: u32, offsets: &[u16]) {
    if offsets.is_empty() {
        return;
    }
    // SAFETY: as above, with the page's exclusive lock; the map's page is pinned before that lock is taken. Nothing
    // between the first change and the log records can fail but by a PANIC.
    unsafe {
        let mut map: pg_sys::Buffer = 0;
        pg_sys::visibilitymap_pin(rel.raw(), block, &mut map);
        let buffer = pg_sys::ReadBuffer(rel.raw(), block);
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_EXCLUSIVE as i32);
        let page = pg_sys::BufferGetPage(buffer);
        let mut free = [0u16; firn_format::ROWS_PER_BLOCK as usize];
        let mut count = 0;
        for offset in offsets {
            if unheld_at(page, *offset).is_some() && count < free.len() {
                free[count] = *offset;
                count += 1;
            }
        }
        if count > 0 {
            let needs_wal = rel.needs_wal();
            pg_sys::CritSectionCount += 1;
            let head = page as pg_sys::PageHeader;
            if u32::from((*head).pd_flags) & pg_sys::PD_ALL_VISIBLE != 0 {
                (*head).pd_flags &= !(pg_sys::PD_ALL_VISIBLE as u16);
                let all = pg_sys::VISIBILITYMAP_VALID_BITS as u8;
                pg_sys::visibilitymap_clear(rel.raw(), block, map, all);
                if needs_wal {
                    pg_sys::LockBuffer(map, pg_sys::BUFFER_LOCK_EXCLUSIVE as i32);
                    pg_sys::log_newpage_buffer(map, false);
                    pg_sys::LockBuffer(map, pg_sys::BUFFER_LOCK_UNLOCK as i32);
                }
            }
            for offset in &free[..count] {
                let item = pg_sys::PageGetItemId(page, *offset);
                let header = page.add((*item).lp_off() as usize) as pg_sys::HeapTupleHeader;
                let rest = (*header).t_infomask & !(pg_sys::HEAP_XMIN_FROZEN as u16);
                (*header).t_infomask = rest | pg_sys::HEAP_XMIN_INVALID as u16;
            }
            pg_sys::MarkBufferDirty(buffer);
            if needs_wal {
                pg_sys::log_newpage_buffer(buffer, true);
            }
            pg_sys::CritSectionCount -= 1;
        }
        pg_sys::UnlockReleaseBuffer(buffer);
        if map != 0 {
            pg_sys::ReleaseBuffer(map);
        }
    }
}

/// A page kept pinned: VACUUM clears nothing on it away.
pub struct Pin(pg_sys::Buffer);

impl Pin {
    pub fn take(rel: Rel, place: Tid) -> Pin {
        // SAFETY: a row was found at this place, so the block exists.
        Pin(unsafe { pg_sys::ReadBuffer(rel.raw(), place.block) })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if !super::memory::resources_are_released() {
            // SAFETY: pinned in take().
            unsafe { pg_sys::ReleaseBuffer(self.0) }
        }
    }
}

/// Is the anchor of `key` still at `place`?
pub fn is_there(rel: Rel, place: Tid, key: ChunkKey) -> bool {
    Held::take_shared(rel, place).is_some_and(|held| held.is_anchor_of(key))
}
