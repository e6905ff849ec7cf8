//! All rows of a TOAST relation for those who look for damage: by page, without an index, and by key, through
//! one. Rows are judged by a snapshot one by one, as serializable isolation has no business here.

use super::compat;
use super::toast::{place_of, raw_place, RowView};
use super::{ChunkKey, Oid, Rel, Snap};
use firn_directory::{Place, Xid};
use pgrx::pg_sys;

/// A row as a survey meets it.
pub struct Met<'a> {
    pub key: ChunkKey,
    pub row: &'a RowView,
    /// The snapshot sees it.
    pub visible: bool,
}

/// An entry of the index: the key and where it leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub key: ChunkKey,
    pub place: Place,
}

/// What an index entry leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Led {
    /// Nothing that the snapshot sees.
    Nowhere,
    /// A visible row of another key: this one.
    Astray(ChunkKey),
    /// A visible row: is it frozen, its bytes, the row's own place, the first of its bytes.
    Row { frozen: bool, bytes: usize, place: Place, first: u8 },
}

/// A page in a survey: pinned and share-locked.
struct Page {
    buffer: pg_sys::Buffer,
}

/// The few buffers that a survey reads pages into, so that it does not drive out what others use.
pub struct Ring(pg_sys::BufferAccessStrategy);

impl Ring {
    /// In the current memory context, which outlives it.
    pub fn new() -> Ring {
        // SAFETY: plain call.
        Ring(unsafe { super::compat::ring_of_buffers() })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // While an error unwinds, it goes with its memory context.
        if !super::memory::resources_are_released() {
            // SAFETY: made in new().
            unsafe { pg_sys::FreeAccessStrategy(self.0) }
        }
    }
}

/// A TOAST relation, open; its index may be in any state.
#[derive(Clone, Copy)]
pub struct Rows<'a>(pub Rel, pub &'a Ring);

impl Rows<'_> {
    unsafe fn page(&self, block: u32) -> Page {
        // SAFETY: the relation is open and has this block; the lock goes with the page.
        unsafe {
            let (fork, mode) =
                (pg_sys::ForkNumber::MAIN_FORKNUM, pg_sys::ReadBufferMode::RBM_NORMAL);
            let buffer = pg_sys::ReadBufferExtended(self.0.raw(), fork, block, mode, self.1 .0);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            Page { buffer }
        }
    }

    unsafe fn release(page: Page) {
        // SAFETY: pinned and locked by `page`.
        unsafe {
            pg_sys::UnlockReleaseBuffer(page.buffer);
        }
    }

    /// The tuple at `offset`, if there is one.
    unsafe fn tuple(&self, page: &Page, block: u32, offset: u16) -> Option<pg_sys::HeapTupleData> {
        // SAFETY: a pinned and locked page; the line pointer is one of its array, and leads to bytes within the page.
        unsafe {
            let raw = pg_sys::BufferGetPage(page.buffer);
            if offset == 0 || offset > pg_sys::PageGetMaxOffsetNumber(raw) {
                return None;
            }
            let item = pg_sys::PageGetItemId(raw, offset);
            let end = usize::from((*item).lp_off() as u16) + (*item).lp_len() as usize;
            let whole = end <= pg_sys::BLCKSZ as usize && (*item).lp_len() >= 24;
            if (*item).lp_flags() != pg_sys::LP_NORMAL || !whole {
                return None;
            }
            let mut tuple: pg_sys::HeapTupleData = std::mem::zeroed();
            tuple.t_self = raw_place(Place { block, offset });
            tuple.t_tableOid = (*self.0.raw()).rd_id;
            tuple.t_data = pg_sys::PageGetItem(raw, item) as pg_sys::HeapTupleHeader;
            tuple.t_len = (*item).lp_len();
            Some(tuple)
        }
    }

    /// Visit all rows on the pages `blocks`, dead ones too.
    pub fn on_pages(
        &self,
        blocks: std::ops::Range<u32>,
        snap: Snap,
        visit: &mut dyn FnMut(&Met<'_>),
    ) {
        // SAFETY: pages are read under a share lock and pin; tuples are found through line pointers that
        // are held against the page.
        unsafe {
            for block in blocks {
                super::xact::check_for_interrupts();
                let page = self.page(block);
                let last = pg_sys::PageGetMaxOffsetNumber(pg_sys::BufferGetPage(page.buffer));
                for offset in 1..=last {
                    let Some(mut tuple) = self.tuple(&page, block, offset) else { continue };
                    let row = RowView { tuple: &mut tuple };
                    let visible = sees(snap, &mut tuple, page.buffer);
                    visit(&Met { key: row.key(), row: &row, visible });
                }
                Rows::release(page);
            }
        }
    }

    /// The next entries of `index`, in order, behind `after`; none are left when there are fewer than
    /// `most`.
    pub fn next_entries(&self, index: Rel, after: Option<Entry>, most: usize) -> Vec<Entry> {
        let mut found = Vec::new();
        // Those of the same id first, then those of greater ids.
        if let Some(after) = after {
            self.entries(index, after.key.id, Some(after), most, &mut found);
            if found.len() < most && after.key.id < u32::MAX {
                self.entries(index, after.key.id + 1, None, most, &mut found);
            }
        } else {
            self.entries(index, 0, None, most, &mut found);
        }
        found
    }

    /// Entries of ids from `id` on, or those of `id` behind `after`.
    fn entries(
        &self,
        index: Rel,
        id: u32,
        after: Option<Entry>,
        most: usize,
        found: &mut Vec<Entry>,
    ) {
        // SAFETY: an index scan that does not look at the table; keys live on the stack across it, and a
        // B-tree's tuple is valid until the next one is fetched.
        unsafe {
            let mut keys: [pg_sys::ScanKeyData; 2] = std::mem::zeroed();
            let (first, how) = match after {
                None => (pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_OIDGE),
                Some(_) => (pg_sys::BTEqualStrategyNumber, pg_sys::F_OIDEQ),
            };
            pg_sys::ScanKeyInit(
                &mut keys[0],
                1,
                first as u16,
                Oid::from(how),
                pg_sys::Datum::from(id),
            );
            if let Some(after) = after {
                pg_sys::ScanKeyInit(
                    &mut keys[1],
                    2,
                    pg_sys::BTGreaterEqualStrategyNumber as u16,
                    Oid::from(pg_sys::F_INT4GE),
                    pg_sys::Datum::from(after.key.seq),
                );
            }
            let count = 1 + i32::from(after.is_some());
            let scan = compat::index_beginscan(self.0.raw(), index.raw(), Snap::any().0, count, 0);
            (*scan).xs_want_itup = true;
            (*scan).kill_prior_tuple = false;
            pg_sys::index_rescan(scan, keys.as_mut_ptr(), count, std::ptr::null_mut(), 0);
            while found.len() < most {
                let tid =
                    pg_sys::index_getnext_tid(scan, pg_sys::ScanDirection::ForwardScanDirection);
                if tid.is_null() {
                    break;
                }
                let entry = Entry { key: key_of_entry((*scan).xs_itup), place: place_of(&*tid) };
                let behind = after.is_none_or(|a| {
                    (entry.key.seq, place_order(entry.place)) > (a.key.seq, place_order(a.place))
                });
                if behind {
                    found.push(entry);
                }
            }
            pg_sys::index_endscan(scan);
        }
    }

    /// What an index entry leads to, through the chain of heap-only tuples if there is one, followed as
    /// PostgreSQL's heap_hot_search_buffer does: what has the place of a tuple that an aborted update
    /// had made, and that is gone, is not the next of the chain.
    pub fn led_to(&self, entry: Entry, snap: Snap) -> Led {
        let block = entry.place.block;
        if block >= self.0.heap_blocks() {
            return Led::Nowhere;
        }
        // SAFETY: as on_pages; the chain stays on the page, and no more links are followed than it can have.
        unsafe {
            let page = self.page(block);
            let raw = pg_sys::BufferGetPage(page.buffer);
            let mut offset = entry.place.offset;
            let mut led = Led::Nowhere;
            let mut redirected = false;
            if offset > 0 && offset <= pg_sys::PageGetMaxOffsetNumber(raw) {
                let item = pg_sys::PageGetItemId(raw, offset);
                if (*item).lp_flags() == pg_sys::LP_REDIRECT {
                    (offset, redirected) = ((*item).lp_off() as u16, true);
                }
            }
            let mut updater = None;
            for links in 0..firn_format::ROWS_PER_BLOCK {
                let Some(mut tuple) = self.tuple(&page, block, offset) else { break };
                let header = tuple.t_data;
                let xmin = RowView { tuple: &mut tuple }.xmin();
                let heap_only = (*header).t_infomask2 as u32 & pg_sys::HEAP_ONLY_TUPLE != 0;
                let foreign = updater.is_some_and(|updater| updater != xmin);
                if foreign || (heap_only && links == 0 && !redirected) {
                    break;
                }
                if sees(snap, &mut tuple, page.buffer) {
                    let row = RowView { tuple: &mut tuple };
                    led = match row.key() == entry.key {
                        false => Led::Astray(row.key()),
                        true => Led::Row {
                            frozen: xmin == Xid::FROZEN,
                            bytes: row.data().len(),
                            place: row.place(),
                            first: row.data().first().copied().unwrap_or(0),
                        },
                    };
                    break;
                }
                let next = place_of(&(*header).t_ctid);
                if !super::ext::is_hot_updated(header)
                    || next.block != block
                    || next.offset == offset
                {
                    break;
                }
                updater = Some(super::xact::xid_of(super::ext::update_xid(header)));
                offset = next.offset;
            }
            Rows::release(page);
            led
        }
    }
}

const INDEX_TUPLE_HEADER: usize = std::mem::size_of::<pg_sys::IndexTupleData>();

/// The key in an entry of a TOAST relation's index.
///
/// # Safety
/// An entry that a scan was asked to return, before the next one.
pub(super) unsafe fn key_of_entry(entry: pg_sys::IndexTuple) -> ChunkKey {
    // SAFETY: an entry has both columns, as the caller promises, behind its header: not null, of four bytes each.
    unsafe {
        // Both columns are not null and of fixed length, so they follow the header.
        let words = (entry as *const u8).add(INDEX_TUPLE_HEADER) as *const u32;
        ChunkKey { id: *words, seq: *words.add(1) as i32 }
    }
}

fn place_order(place: Place) -> (u32, u16) {
    (place.block, place.offset)
}

unsafe fn sees(snap: Snap, tuple: pg_sys::HeapTuple, buffer: pg_sys::Buffer) -> bool {
    // SAFETY: a tuple under its page's lock, in this buffer.
    unsafe { pg_sys::HeapTupleSatisfiesVisibility(tuple, snap.0, buffer) }
}

/// An index of a TOAST relation.
#[derive(Clone, Debug)]
pub struct ToastIndex {
    pub oid: Oid,
    pub name: String,
    pub valid: bool,
    pub ready: bool,
}

/// The indexes of a TOAST relation, whatever their state.
pub fn indexes_of(toast: Rel) -> Vec<ToastIndex> {
    let all = super::catalog::indexes_of(toast.oid()).into_iter().filter(|index| index.live);
    all.filter_map(|index| {
        let super::catalog::IndexState { oid, valid, ready, .. } = index;
        let name = super::catalog::plain_name_of(oid)?;
        Some(ToastIndex { oid, name, valid, ready })
    })
    .collect()
}

/// Delete a row that nobody else changes, found in a survey.
pub fn delete_row(toast: Rel, place: Place) {
    let mut raw = raw_place(place);
    // SAFETY: plain call on an open relation; raises when somebody else was faster.
    unsafe { pg_sys::simple_heap_delete(toast.raw(), &mut raw) }
}
