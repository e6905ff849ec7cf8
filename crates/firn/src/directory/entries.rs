//! An open table's directory, see `firn_directory::rows`. A damaged row is raised here.

use super::counts;
use super::raise::OrRaise;
use crate::pg::{LockMode, Rel, Snap, Toast};
pub use firn_directory::Found;
use firn_directory::{reserved_bytes, rows, Cid, Place};
use firn_format::{DirectoryEntry, Error, Slot, Tid};
use std::ops::{ControlFlow, Range};

/// An open table's directory.
pub struct Directory {
    pub table: Rel,
    pub toast: Toast,
}

impl Directory {
    /// Open the directory of a firn table; None when the table has no TOAST relation (yet).
    pub fn open(table: Rel, lock: LockMode) -> Option<Directory> {
        Some(Directory { table, toast: Toast::open(table, lock)? })
    }

    /// Bytes of a directory row.
    fn room(&self) -> usize {
        reserved_bytes(self.table.column_count())
    }

    /// All stripes that `snap` sees, in slot order. Raises when a directory row is damaged.
    pub fn list(&self, snap: Snap) -> Vec<Found> {
        rows::list(&self.toast, snap).or_raise(self)
    }

    /// As [`Directory::list`] for a dirty snapshot, which misses no row that is being replaced.
    pub fn list_dirty(&self, snap: Snap) -> Vec<Found> {
        rows::list_dirty(&self.toast, snap).or_raise(self)
    }

    /// As [`Directory::list`] for those who can do without some: `damaged` is told of each directory row that does
    /// not decode, and its stripe is left out.
    pub fn list_readable(&self, snap: Snap, damaged: impl FnMut(Slot, &Error)) -> Vec<Found> {
        rows::list_readable(&self.toast, snap, damaged)
    }

    /// Visit the stripes at these slots that `snap` sees, in their order. Raises when a directory row is damaged.
    pub fn each(&self, snap: Snap, slots: Range<u32>, visit: impl FnMut(Found) -> ControlFlow<()>) {
        rows::each(&self.toast, snap, slots, visit).or_raise(self)
    }

    /// The stripe (live or only reserved) whose range of virtual blocks holds `tid`.
    #[inline]
    pub fn find(&self, tid: Tid, snap: Snap) -> Option<Found> {
        rows::find(&self.toast, tid, snap).or_raise(self)
    }

    /// The table is about to get a stripe. Plans made for a table without stripes do not scan any fast.
    pub(super) fn expect_stripe(&self) {
        if counts::stripe_totals(self.table).stripes == 0.0 {
            self.table.invalidate();
        }
    }

    /// Complete the row reserved at `place` by this very transaction: it becomes the stripe's.
    pub fn publish(&self, slot: Slot, place: Place, entry: &DirectoryEntry) {
        rows::publish(&self.toast, slot, place, entry, self.room())
    }

    /// Delete a stripe's chunks; VACUUM removes them when no snapshot can need them.
    pub fn free_chunks(&self, found: &Found) {
        rows::free_chunks(&self.toast, found)
    }

    /// Bytes that a stripe's row takes on a page, headers included.
    pub fn row_bytes(&self, found: &Found) -> usize {
        rows::as_it_is(found, self.room()).1.len() + 64
    }

    /// Move a stripe's row to the page `block`, as it is.
    pub fn relocate(&self, found: &Found, cid: Cid, block: u32) {
        let (key, bytes) = rows::as_it_is(found, self.room());
        self.toast.relocate(found.place, key, &bytes, cid, block);
    }

    /// Replace a live stripe's row (it moved).
    pub fn replace(&self, found: &Found, entry: &DirectoryEntry, cid: Cid) -> Place {
        rows::replace(&self.toast, found, entry, cid, self.room())
    }
}
