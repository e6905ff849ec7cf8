//! What becomes of a row of a TOAST relation, whoever asks: not whether a snapshot sees it, but whether it
//! is there for good, dead, or waiting for a transaction to end.

use super::toast::raw_place;
use super::Toast;
use firn_directory::Place;
use pgrx::pg_sys;

/// A row's state, as VACUUM sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Inserted by a transaction that has committed, and not deleted.
    Live,
    /// The transaction that inserts it is running, maybe this one.
    Inserting,
    /// The transaction that deletes it is running, maybe this one.
    Deleting,
    /// Deleted by a transaction that has committed; some snapshot may see it still.
    Deleted,
    /// No snapshot sees it: rolled back, or deleted long ago.
    Dead,
}

impl Toast {
    /// The state of the row at `place`; None when there is none.
    pub fn fate(&self, place: Place) -> Option<Fate> {
        if !self.rel().has_block(place.block) {
            return None;
        }
        // SAFETY: the page is read under a share lock and pin; the item is found through its line pointer,
        // whose number is checked.
        unsafe {
            let oldest = pg_sys::GetOldestNonRemovableTransactionId(self.raw());
            let buffer = pg_sys::ReadBuffer(self.raw(), place.block);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let page = pg_sys::BufferGetPage(buffer);
            let there = (1..=pg_sys::PageGetMaxOffsetNumber(page)).contains(&place.offset);
            let item = pg_sys::PageGetItemId(page, place.offset);
            let mut fate = None;
            if there && (*item).lp_flags() == pg_sys::LP_NORMAL {
                let mut tuple: pg_sys::HeapTupleData = std::mem::zeroed();
                tuple.t_self = raw_place(place);
                tuple.t_tableOid = (*self.raw()).rd_id;
                tuple.t_data = pg_sys::PageGetItem(page, item) as pg_sys::HeapTupleHeader;
                tuple.t_len = (*item).lp_len();
                use pg_sys::HTSV_Result as V;
                fate = Some(match pg_sys::HeapTupleSatisfiesVacuum(&mut tuple, oldest, buffer) {
                    V::HEAPTUPLE_LIVE => Fate::Live,
                    V::HEAPTUPLE_INSERT_IN_PROGRESS => Fate::Inserting,
                    V::HEAPTUPLE_DELETE_IN_PROGRESS => Fate::Deleting,
                    V::HEAPTUPLE_RECENTLY_DEAD => Fate::Deleted,
                    _ => Fate::Dead,
                });
            }
            pg_sys::UnlockReleaseBuffer(buffer);
            fate
        }
    }
}
