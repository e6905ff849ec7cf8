//! Rows of the TOAST relation that outlive the transaction that writes them: the allocation row, anchors,
//! intents, kept defaults.
//!
//! They are frozen, but not from birth: a crash or a full disk between a row and its index entry would
//! leave a row for ever that no index knows, and the next REINDEX would find two rows under one key. Until
//! it has its index entry, a row is its transaction's, and dead if that dies. For the same reason a row
//! stays its transaction's to the end when a rollback would take the index entry away: after a REINDEX in
//! the same transaction, which keeps all others out of the TOAST relation until it ends.

use super::Rel;
use firn_directory::Place;
use pgrx::pg_sys;

/// Free the row at `place`, inserted and indexed by this transaction, from the transaction's fate.
pub(crate) fn freeze(rel: Rel, place: Place) {
    // SAFETY: the tuple exists, as we have just inserted it: under the page's exclusive lock its header is
    // found through its line pointer. Nothing between the change and its log record can fail but by a PANIC.
    unsafe {
        let buffer = pg_sys::ReadBuffer(rel.raw(), place.block);
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_EXCLUSIVE as i32);
        let needs_wal = rel.needs_wal();
        pg_sys::CritSectionCount += 1;
        let page = pg_sys::BufferGetPage(buffer);
        let item = pg_sys::PageGetItemId(page, place.offset);
        let header = page.add((*item).lp_off() as usize) as pg_sys::HeapTupleHeader;
        (*header).t_infomask |= pg_sys::HEAP_XMIN_FROZEN as u16;
        pg_sys::MarkBufferDirty(buffer);
        if needs_wal {
            super::compat::log_frozen(rel.raw(), buffer, place.offset);
        }
        pg_sys::CritSectionCount -= 1;
        pg_sys::UnlockReleaseBuffer(buffer);
    }
}
