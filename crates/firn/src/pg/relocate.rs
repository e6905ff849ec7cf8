//! Putting a row of a TOAST relation on a page of our choice, so that the file can shrink.

use super::toast::place_of;
use super::{ChunkKey, Toast};
use firn_directory::{Cid, Place};
use pgrx::pg_sys;

/// The beginning of PostgreSQL's BulkInsertStateData, the same in 15 to 18.
#[repr(C)]
struct BulkInsertHead {
    strategy: pg_sys::BufferAccessStrategy,
    current_buf: pg_sys::Buffer,
}

impl Toast {
    /// Bytes that a new row may take on this page. Only as good as the moment: other sessions insert,
    /// too.
    pub fn free_bytes(&self, block: u32) -> usize {
        // SAFETY: the page is read under a share lock and pin.
        unsafe {
            let buffer = pg_sys::ReadBuffer(self.raw(), block);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let page = pg_sys::BufferGetPage(buffer);
            // A page that was never initialised is left to VACUUM.
            let header = page as *const pg_sys::PageHeaderData;
            let free = if (*header).pd_upper == 0 { 0 } else { pg_sys::PageGetHeapFreeSpace(page) };
            pg_sys::UnlockReleaseBuffer(buffer);
            free
        }
    }

    /// Move the row of `key` at `place` (which nobody else changes now) to the page `block` if it has
    /// room, else to where PostgreSQL finds some. Returns the row's new place.
    pub fn relocate(
        &self,
        place: Place,
        key: ChunkKey,
        data: &[u8],
        cid: Cid,
        block: u32,
    ) -> Place {
        self.delete(place, cid);
        // SAFETY: the tuple was formed for this relation and is freed after use; the bulk insert
        // state, whose current buffer is where heap_insert looks first, owns the pin.
        unsafe {
            let tuple = self.form(key, data);
            let bulk = pg_sys::GetBulkInsertState();
            (*(bulk as *mut BulkInsertHead)).current_buf = pg_sys::ReadBuffer(self.raw(), block);
            let options = pg_sys::HEAP_INSERT_NO_LOGICAL as i32;
            pg_sys::heap_insert(self.raw(), tuple, cid.0, options, bulk);
            pg_sys::FreeBulkInsertState(bulk);
            let mut new_place = (*tuple).t_self;
            self.index(key, &mut new_place);
            pg_sys::heap_freetuple(tuple);
            place_of(&new_place)
        }
    }
}
