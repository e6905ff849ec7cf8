//! Rows of the TOAST relation that outlive the transaction that writes them: the allocation row, anchors,
//! intents, kept defaults.
//!
//! They are frozen, but not from birth: a crash or a full disk between a row and its index entry would
//! leave a row for ever that no index knows, and the next REINDEX would find two rows under one key. Until
//! it has its index entry, a row is its transaction's, and dead if that dies. For the same reason a row
//! stays its transaction's to the end when a rollback would take the index entry away: after a REINDEX in
//! the same transaction, which keeps all others out of the TOAST relation until it ends.

use super::toast::raw_tid;
use super::Rel;
use firn_format::Tid;
use pgrx::pg_sys;

/// Free the row at `place`, inserted and indexed by this transaction, from the transaction's fate.
pub(super) fn freeze(rel: Rel, place: Tid) {
    let tid = raw_tid(place);
    // SAFETY: the tuple exists, as we have just inserted it: under the page's exclusive lock its header is
    // found through its line pointer. The change is made to the copy that is logged and then put in place.
    unsafe {
        let buffer = pg_sys::ReadBuffer(rel.raw(), place.block);
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_EXCLUSIVE as i32);
        let state = pg_sys::GenericXLogStart(rel.raw());
        let page = pg_sys::GenericXLogRegisterBuffer(state, buffer, 0);
        let item = pg_sys::PageGetItemId(page, tid.ip_posid);
        let header = page.add((*item).lp_off() as usize) as pg_sys::HeapTupleHeader;
        (*header).t_infomask |= pg_sys::HEAP_XMIN_FROZEN as u16;
        pg_sys::GenericXLogFinish(state);
        pg_sys::UnlockReleaseBuffer(buffer);
    }
}
