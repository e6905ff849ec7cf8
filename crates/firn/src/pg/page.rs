//! Changing a heap page as a whole, logged by its image: for changes that heapam has no record of, or none
//! that may be decoded. Logical decoding passes images by; replay puts them in place as they are, so that
//! standbys and recovery need no code of firn's.
//!
//! A page whose rows all are visible to everybody is noted as such in the visibility map. When a change
//! ends that, the map's page goes to the log before the heap's: whoever replays the log up to a point in
//! between reads a page that he need not read, and never takes a deleted row for visible.

use super::toast::raw_tid;
use super::Rel;
use firn_format::Tid;
use pgrx::pg_sys;
use std::ops::Range;

const EXCLUSIVE: i32 = pg_sys::BUFFER_LOCK_EXCLUSIVE as i32;
const UNLOCK: i32 = pg_sys::BUFFER_LOCK_UNLOCK as i32;
/// Line pointer state of a stored tuple.
const NORMAL: u32 = 1;
/// Both bits of a page in the visibility map.
const MAP_BITS: u8 = pg_sys::VISIBILITYMAP_VALID_BITS as u8;

/// What a change does to a page whose rows all are visible to everybody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AllVisible {
    /// They still are.
    Stays,
    /// Not any more: page and map are told.
    Ends,
    /// Not any more, and the map was told before ([`clear_map`]).
    EndedInMap,
}

/// A pinned page under its exclusive lock.
pub(super) struct Page {
    rel: Rel,
    buffer: pg_sys::Buffer,
    block: u32,
}

impl Page {
    pub fn buffer(&self) -> pg_sys::Buffer {
        self.buffer
    }

    fn header(&self) -> pg_sys::PageHeader {
        // SAFETY: pinned.
        unsafe { pg_sys::BufferGetPage(self.buffer) as pg_sys::PageHeader }
    }

    fn is_all_visible(&self) -> bool {
        // SAFETY: pinned and locked.
        unsafe { u32::from((*self.header()).pd_flags) & pg_sys::PD_ALL_VISIBLE != 0 }
    }

    /// The tuple stored at `offset`; None when there is none.
    pub fn tuple(&self, offset: u16) -> Option<pg_sys::HeapTupleData> {
        // SAFETY: pinned and locked; a line pointer within the page's array, its tuple as heapam trusts it.
        unsafe {
            let page = pg_sys::BufferGetPage(self.buffer);
            let new = (*self.header()).pd_upper == 0;
            if new || offset == 0 || offset > pg_sys::PageGetMaxOffsetNumber(page) {
                return None;
            }
            let item = pg_sys::PageGetItemId(page, offset);
            if (*item).lp_flags() != NORMAL {
                return None;
            }
            Some(pg_sys::HeapTupleData {
                t_len: (*item).lp_len(),
                t_self: raw_tid(Tid { block: self.block, offset }),
                t_tableOid: (*self.rel.raw()).rd_id,
                t_data: pg_sys::PageGetItem(page, item) as pg_sys::HeapTupleHeader,
            })
        }
    }

    /// Note that transaction `xid` leaves rows behind here that may be removed one day.
    pub fn set_prunable(&self, xid: pg_sys::TransactionId) {
        // SAFETY: pinned and locked.
        unsafe {
            let oldest = &mut (*self.header()).pd_prune_xid;
            if oldest.into_inner() == 0 || pg_sys::TransactionIdPrecedes(xid, *oldest) {
                *oldest = xid;
            }
        }
    }
}

/// Change the page `block` (of those there are) of the heap `rel`. `decide` looks at it under its exclusive
/// lock, and may raise; what it returns is then done to the page in a critical section, where nothing may
/// fail, and the page is logged. None leaves everything as it was. Returns whether there was a change.
///
/// With [`AllVisible::EndedInMap`] the caller keeps VACUUM out from [`clear_map`] on.
pub(super) fn edit_page<C: FnOnce(&Page)>(
    rel: Rel,
    block: u32,
    all_visible: AllVisible,
    decide: impl FnOnce(&Page) -> Option<C>,
) -> bool {
    // SAFETY: pin and lock are released here, or by PostgreSQL when `decide` raises. Between the first
    // change and the last log record nothing can fail but by a PANIC.
    unsafe {
        let page = Page { rel, buffer: pg_sys::ReadBuffer(rel.raw(), block), block };
        let mut map: pg_sys::Buffer = 0;
        // The map's page may have to be read, which is not to be waited for under the lock.
        let needs_map = |page: &Page| all_visible == AllVisible::Ends && page.is_all_visible();
        if needs_map(&page) {
            pg_sys::visibilitymap_pin(rel.raw(), block, &mut map);
        }
        pg_sys::LockBuffer(page.buffer, EXCLUSIVE);
        if map == 0 && needs_map(&page) {
            pg_sys::LockBuffer(page.buffer, UNLOCK);
            pg_sys::visibilitymap_pin(rel.raw(), block, &mut map);
            pg_sys::LockBuffer(page.buffer, EXCLUSIVE);
        }
        let change = decide(&page);
        let changed = change.is_some();
        if let Some(change) = change {
            let logged = rel.needs_wal();
            pg_sys::CritSectionCount += 1;
            if all_visible != AllVisible::Stays && page.is_all_visible() {
                (*page.header()).pd_flags &= !(pg_sys::PD_ALL_VISIBLE as u16);
                if map != 0 {
                    pg_sys::visibilitymap_clear(rel.raw(), block, map, MAP_BITS);
                    log_map(map, logged);
                }
            }
            change(&page);
            pg_sys::MarkBufferDirty(page.buffer);
            if logged {
                pg_sys::log_newpage_buffer(page.buffer, true);
            }
            pg_sys::CritSectionCount -= 1;
        }
        pg_sys::UnlockReleaseBuffer(page.buffer);
        if map != 0 {
            pg_sys::ReleaseBuffer(map);
        }
        changed
    }
}

/// Log a page of the visibility map, all of which is used. What others have cleared in it meanwhile is
/// logged by them again; nobody sets bits here but VACUUM, under the map page's lock.
unsafe fn log_map(map: pg_sys::Buffer, logged: bool) {
    // SAFETY: a pinned page of the visibility map, logged under its own lock; the caller is in a critical section.
    unsafe {
        if logged {
            pg_sys::LockBuffer(map, EXCLUSIVE);
            pg_sys::log_newpage_buffer(map, false);
            pg_sys::LockBuffer(map, UNLOCK);
        }
    }
}

/// Tell the visibility map that not all rows of these pages are visible to everybody, logged once per page
/// of the map: for who is about to change many of them. The caller keeps VACUUM out until he has.
/// A page that is left alone then is merely read more often until the next VACUUM.
pub(super) fn clear_map(rel: Rel, blocks: Range<u32>) {
    // SAFETY: a map page that is not there has no bits set and is left so; pins are handed over from
    // page to page of the map and released. In the critical section nothing can fail.
    unsafe {
        let mut map: pg_sys::Buffer = 0;
        let mut set = Vec::new();
        let clear = |map: pg_sys::Buffer, set: &mut Vec<u32>| {
            if set.is_empty() {
                return;
            }
            let logged = rel.needs_wal();
            pg_sys::CritSectionCount += 1;
            for block in set.drain(..) {
                pg_sys::visibilitymap_clear(rel.raw(), block, map, MAP_BITS);
            }
            log_map(map, logged);
            pg_sys::CritSectionCount -= 1;
        };
        for block in blocks {
            if map != 0 && !pg_sys::visibilitymap_pin_ok(block, map) {
                clear(map, &mut set);
            }
            if pg_sys::visibilitymap_get_status(rel.raw(), block, &mut map) != 0 {
                set.push(block);
            }
        }
        clear(map, &mut set);
        if map != 0 {
            pg_sys::ReleaseBuffer(map);
        }
    }
}
