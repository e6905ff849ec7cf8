//! Anchors on a page: which of them nobody holds, and their removal.

use super::page::{self, AllVisible, Page};
use super::rowlock::{self, Held};
use super::toast::RowView;
use super::{ChunkKey, Rel};
use firn_directory::{Place, Xid};
use firn_format::keys::is_anchor;
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
            let item = pg_sys::PageGetItemId(page, offset);
            if (*item).lp_flags() != NORMAL {
                continue;
            }
            let mut tuple: pg_sys::HeapTupleData = std::mem::zeroed();
            tuple.t_data = page.add((*item).lp_off() as usize).cast();
            tuple.t_len = (*item).lp_len();
            if let Some(key) = unheld_anchor(&mut tuple) {
                list.push((offset, key));
            }
        }
        pg_sys::UnlockReleaseBuffer(buffer);
    }
    list
}

/// The key of the anchor that the tuple is, if nobody holds it.
///
/// # Safety
/// A tuple under its page's lock.
unsafe fn unheld_anchor(tuple: &mut pg_sys::HeapTupleData) -> Option<ChunkKey> {
    // SAFETY: a whole tuple under its page's lock, as the caller promises.
    unsafe {
        let view = RowView::of(tuple);
        let key = view.key();
        let is_anchor = is_anchor(key.id, view.data());
        // One that is not frozen belongs to a transaction (see `frozen.rs`), or is removed already.
        let free = view.xmin() == Xid::FROZEN && rowlock::members(tuple.t_data).is_empty();
        (is_anchor && free).then_some(key)
    }
}

/// Remove the anchors at `offsets` of a page, as far as nobody holds them now. The caller has the short locks of
/// their rows.
///
/// From then on they are tuples whose inserter has aborted. The page is logged whole: no record of heapam's takes a
/// frozen tuple away.
pub fn remove(rel: Rel, block: u32, offsets: &[u16]) {
    if offsets.is_empty() {
        return;
    }
    page::edit_page(rel, block, AllVisible::Ends, |page| {
        // SAFETY: the tuples are looked at under the page's lock.
        let free = |offset: &u16| unsafe { unheld_anchor(&mut page.tuple(*offset)?) };
        let free: Vec<u16> = offsets.iter().copied().filter(|o| free(o).is_some()).collect();
        (!free.is_empty()).then_some(move |page: &Page| {
            for tuple in free.iter().filter_map(|offset| page.tuple(*offset)) {
                // SAFETY: as above; the lock is exclusive now.
                let header = unsafe { &mut *tuple.t_data };
                // As heapam leaves an insertion that is taken back: the inserter may be older than the
                // relation's oldest transaction, to whoever looks at the number alone.
                header.t_choice.t_heap.t_xmin = pg_sys::InvalidTransactionId;
                let mask = &mut header.t_infomask;
                *mask =
                    *mask & !(pg_sys::HEAP_XMIN_FROZEN as u16) | pg_sys::HEAP_XMIN_INVALID as u16;
            }
        })
    });
}

/// A page kept pinned: VACUUM clears nothing on it away.
pub struct Pin(pg_sys::Buffer);

impl Pin {
    pub fn take(rel: Rel, place: Place) -> Pin {
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
pub fn is_there(rel: Rel, place: Place, key: ChunkKey) -> bool {
    Held::take_shared(rel, place).is_some_and(|held| held.is_anchor_of(key))
}
