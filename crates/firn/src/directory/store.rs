//! The table's TOAST relation as the place of the directory's rows.

use crate::pg::lock::AllocationLock;
use crate::pg::rel::StorageId;
use crate::pg::snapshot::DirtySnap;
use crate::pg::toast::RowView;
use crate::pg::{guc, rowlock, xact, Snap, SnapKind, Toast};
use firn_directory::seen::Seen;
use firn_directory::{ChunkKey, ChunkStore, Cid, Keep, Met, Place, Row, Witness, Xid};
use std::cell::RefCell;
use std::ops::ControlFlow;

thread_local! {
    static SEEN: RefCell<Seen<StorageId>> = RefCell::default();
}

impl Row for RowView {
    #[inline]
    fn key(&self) -> ChunkKey {
        RowView::key(self)
    }
    #[inline]
    fn data(&self) -> &[u8] {
        RowView::data(self)
    }
    #[inline]
    fn place(&self) -> Place {
        RowView::place(self)
    }
    #[inline]
    fn xmin(&self) -> Xid {
        RowView::xmin(self)
    }
    #[inline]
    fn raw_xmin(&self) -> Xid {
        RowView::raw_xmin(self)
    }
    #[inline]
    fn cmin(&self) -> Cid {
        RowView::cmin(self)
    }
}

impl ChunkStore for Toast {
    type Snap = Snap;
    type Row = RowView;
    type Lock = AllocationLock;
    type Storage = StorageId;

    fn storage(&self) -> StorageId {
        Toast::storage(self)
    }
    fn is_empty(&self) -> bool {
        Toast::is_empty(self)
    }

    #[inline]
    fn any(&self) -> Snap {
        Snap::any()
    }
    #[inline]
    fn own(&self) -> Snap {
        Snap::self_snap()
    }
    fn with_dirty<T>(&self, body: impl FnOnce(Snap) -> T) -> T {
        body(DirtySnap::new().snap())
    }
    fn writer(&self, dirty: Snap) -> Xid {
        dirty.dirty_found().0
    }
    #[inline]
    fn may_miss(&self, snap: Snap) -> bool {
        matches!(snap.kind(), SnapKind::Dirty | SnapKind::SelfSnap)
    }

    #[inline]
    fn scan<B>(
        &self,
        id: u32,
        low: i32,
        high: i32,
        snap: Snap,
        backward: bool,
        visit: impl FnMut(ChunkKey, &RowView) -> ControlFlow<B>,
    ) -> Option<B> {
        self.scan_damaged(id, low, high, snap, backward, visit)
    }
    #[inline]
    fn look<B>(
        &self,
        key: ChunkKey,
        snap: Snap,
        mut visit: impl FnMut(&RowView) -> ControlFlow<B>,
    ) -> (Option<B>, Met) {
        let mut met = Met::NoEntry;
        let found =
            self.scan_met(key.id, key.seq, key.seq, snap, false, &mut met, |_, row| visit(row));
        (found, met)
    }
    #[inline]
    fn at<T>(
        &self,
        place: Place,
        key: ChunkKey,
        snap: Snap,
        visit: impl FnOnce(&RowView) -> T,
    ) -> Option<T> {
        Toast::at(self, place, key, snap, visit)
    }
    #[inline]
    fn gives_witnesses(&self, snap: Snap) -> bool {
        Toast::gives_witnesses(self, snap)
    }

    #[inline]
    fn at_witnessed<T>(
        &self,
        place: Place,
        key: ChunkKey,
        snap: Snap,
        visit: impl FnOnce(&RowView) -> T,
    ) -> Option<(T, Option<Witness>)> {
        Toast::at_witnessed(self, place, key, snap, visit)
    }
    fn is_unchanged(&self, place: Place, snap: Snap, witness: &Witness) -> bool {
        Toast::is_unchanged(self, place, snap, witness)
    }
    fn entries(&self, id: u32, low: i32, high: i32, most: u32) -> u32 {
        Toast::entries(self, id, low, high, most)
    }

    fn lacks(&self, id: u32, low: i32, high: i32) -> bool {
        Toast::lacks(self, id, low, high)
    }

    fn insert(&self, key: ChunkKey, data: &[u8], cid: Cid, keep: Keep) -> Place {
        Toast::insert(self, key, data, cid, keep == Keep::ForGood)
    }
    fn update(&self, place: Place, key: ChunkKey, data: &[u8], cid: Cid) -> Place {
        Toast::update(self, place, key, data, cid)
    }
    fn delete(&self, place: Place, cid: Cid) {
        Toast::delete(self, place, cid)
    }
    fn delete_run(&self, id: u32, first: u32, count: u32, cid: Cid) {
        Toast::delete_run(self, id, first, count, cid)
    }
    fn overwrite(&self, place: Place, key: ChunkKey, data: &[u8]) {
        Toast::overwrite(self, place, key, data)
    }

    fn command_id(&self) -> Cid {
        xact::command_id(true)
    }
    fn assign_xid(&self) {
        xact::xid();
    }
    fn precedes(&self, xid: Xid, other: Xid) -> bool {
        xact::precedes(xid, other)
    }
    fn did_commit(&self, xid: Xid) -> bool {
        xact::did_commit(xid)
    }
    fn full(&self, xid: Xid) -> u64 {
        xact::full(xid)
    }
    fn is_held(&self, place: Place) -> bool {
        rowlock::is_held(self.rel(), place)
    }

    fn lock_allocation(&self) -> AllocationLock {
        AllocationLock::take(self.rel())
    }
    fn pause(&self) {
        xact::check_for_interrupts()
    }
    fn rest(&self) {
        xact::delay_vacuum()
    }
    fn reached(&self, point: &'static str) {
        guc::crash_point(point)
    }
    fn with_seen<T>(&self, body: impl FnOnce(&mut Seen<StorageId>) -> T) -> T {
        SEEN.with_borrow_mut(|seen| {
            // A quarter of what the session's metadata may take.
            seen.most = guc::metadata_cache() / 4;
            body(seen)
        })
    }
}

/// The storage was emptied, and its slots will be given out anew.
pub(super) fn forget(storage: StorageId) {
    SEEN.with_borrow_mut(|seen| seen.forget(storage));
}
