//! Taking rows out of the row store because they have moved into a stripe: what `heap_delete` leaves behind,
//! a page at a time, and logged as an image of the page. To logical decoding, a record of `heap_delete`
//! says that the row is gone, and it is not. mover/README.md goes through all that `heap_delete` does.

use super::page::{self, edit_page, AllVisible, Page};
use super::slot::Slot;
use super::{xact, Rel};
use firn_directory::Cid;
use pgrx::pg_sys;
use std::ops::Range;

/// Pages whose bits in the visibility map are cleared at a time: the map's page is logged for each so many.
const PAGES_PER_CLEARING: u32 = 1_024;

/// Takes the rows of one table, in a transaction that keeps VACUUM out of it.
pub struct Marker {
    table: Rel,
    cid: Cid,
    /// Pages of which the visibility map knows that not all rows are visible.
    cleared: Range<u32>,
}

/// Rows of a page that this transaction has just taken. Their bytes stay as long as this lives.
pub struct Taken {
    table: Rel,
    buffer: pg_sys::Buffer,
    rows: Vec<pg_sys::HeapTupleData>,
}

impl Marker {
    pub fn new(table: Rel, cid: Cid) -> Marker {
        Marker { table, cid, cleared: 0..0 }
    }

    /// Take the rows at these offsets of a page, which the caller has seen under a snapshot that he still
    /// has and knows to be committed for everybody: all but those that somebody else has locked or
    /// changed meanwhile, who is not waited for.
    pub fn take(&mut self, block: u32, offsets: &[u16]) -> Taken {
        // SAFETY: the block exists, as rows of it were seen; the pin is released in drop, or by PostgreSQL
        // on error.
        let buffer = unsafe { pg_sys::ReadBuffer(self.table.raw(), block) };
        let mut taken = Taken { table: self.table, buffer, rows: Vec::new() };
        if !self.cleared.contains(&block) {
            let end = block.saturating_add(PAGES_PER_CLEARING).min(self.table.heap_blocks());
            self.cleared = block..end.max(block + 1);
            page::clear_map(self.table, self.cleared.clone());
        }
        let xid = xact::raw_xid(xact::xid());
        // SAFETY: plain call; whoever makes a multixact of our id from now on is waited for by VACUUM.
        unsafe { pg_sys::MultiXactIdSetOldestMember() }
        let (table, cid, rows) = (self.table, self.cid, &mut taken.rows);
        edit_page(table, block, AllVisible::EndedInMap, |page: &Page| {
            let stored = offsets.iter().filter_map(|offset| page.tuple(*offset));
            rows.extend(stored.filter(|row| is_free(*row, cid, page.buffer())));
            for row in rows.iter() {
                let mut tid = row.t_self;
                // SAFETY: plain call; raises before anything is changed.
                unsafe { super::ext::CheckForSerializableConflictIn(table.raw(), &mut tid, block) }
            }
            let rows = &*rows;
            (!rows.is_empty()).then_some(move |page: &Page| {
                for row in rows {
                    // SAFETY: a tuple of the page, which is locked exclusively.
                    unsafe { mark(row, xid, cid) }
                }
                page.set_prunable(xid);
            })
        });
        taken
    }
}

/// Nobody has deleted, updated or locked the row but transactions that are over and undone.
fn is_free(mut row: pg_sys::HeapTupleData, cid: Cid, buffer: pg_sys::Buffer) -> bool {
    // SAFETY: a tuple on a page that is pinned and locked.
    unsafe {
        let ok =
            pg_sys::HeapTupleSatisfiesUpdate(&mut row, cid.0, buffer) == pg_sys::TM_Result::TM_Ok;
        // A committed locker would have to be kept beside us; heapam leaves no such mark today.
        ok && u32::from((*row.t_data).t_infomask) & pg_sys::HEAP_XMAX_COMMITTED == 0
    }
}

/// Make the row one that transaction `xid` has deleted by its command `cid`.
unsafe fn mark(row: &pg_sys::HeapTupleData, xid: pg_sys::TransactionId, cid: Cid) {
    // SAFETY: a tuple on a page that is pinned and locked exclusively, in a critical section.
    unsafe {
        let header = &mut *row.t_data;
        header.t_infomask &=
            !((pg_sys::HEAP_XMAX_BITS | pg_sys::HEAP_MOVED | pg_sys::HEAP_COMBOCID) as u16);
        header.t_infomask2 &= !(pg_sys::HEAP_HOT_UPDATED as u16);
        header.t_infomask2 |= pg_sys::HEAP_KEYS_UPDATED as u16;
        header.t_choice.t_heap.t_xmax = xid;
        header.t_choice.t_heap.t_field3.t_cid = cid.0;
        header.t_ctid = row.t_self;
    }
}

impl Taken {
    /// Put one row after the other into `slot` and show it. What belongs to a row in the TOAST relation is
    /// deleted thereafter.
    pub fn each(mut self, slot: Slot, mut show: impl FnMut(Slot)) {
        for mut row in std::mem::take(&mut self.rows) {
            // SAFETY: a buffer heap slot of the table, cleared before the tuple's header goes; the page is
            // pinned, and its tuples stay where they are as long as their deleter runs.
            unsafe {
                pg_sys::ExecStoreBufferHeapTuple(&mut row, slot.0, self.buffer);
                show(slot);
                slot.clear();
                if u32::from((*row.t_data).t_infomask) & pg_sys::HEAP_HASEXTERNAL != 0 {
                    super::ext::heap_toast_delete(self.table.raw(), &mut row, false);
                }
            }
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !super::memory::resources_are_released() {
            // SAFETY: pinned in take().
            unsafe { pg_sys::ReleaseBuffer(self.buffer) }
        }
    }
}
