//! Rows of the row store that a snapshot sees and a transaction must not: see `am/moved.rs`.

use crate::am::moved::{hides, may_hide};
use crate::pg::ext::{callback, direct, guarded, update_xid};
use crate::pg::heap::RowStoreScan;
use crate::pg::slot::OwnedSlot;
use crate::pg::toast::tid_of;
use crate::pg::{xact, Rel, Snap, SnapKind};
use firn_directory::Xid;
use firn_format::Tid;
use pgrx::pg_sys;

/// The row-store row in `slot`, which `snapshot` sees, has been moved into a stripe meanwhile and
/// changed there by this transaction: its new version is seen, this one must not be.
///
/// # Safety
/// A slot of the executor with a tuple of `rel`, a live snapshot.
#[inline]
pub(in crate::entry) unsafe fn hidden(
    rel: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: the caller promises a live snapshot, and a slot with a row of the relation.
    unsafe {
        may_hide()
            && callback(|| {
                let Some((tid, deleter)) = deleted_by(slot) else { return false };
                let snap = Snap::of(snapshot);
                snap.kind() == SnapKind::Mvcc && hides(Rel::of(rel), tid, deleter, snap)
            })
    }
}

/// The transaction, not this one, that has deleted or updated the heap tuple in `slot`.
unsafe fn deleted_by(slot: *mut pg_sys::TupleTableSlot) -> Option<(Tid, Xid)> {
    // SAFETY: a filled slot of buffer heap tuples has a pinned page under its tuple; the header is read again under the page's lock.
    unsafe {
        if !std::ptr::eq((*slot).tts_ops, &raw const pg_sys::TTSOpsBufferHeapTuple) {
            return None;
        }
        let filled = slot as *mut pg_sys::BufferHeapTupleTableSlot;
        let header = (*filled).base.tuple.as_ref()?.t_data;
        let untouched = pg_sys::HEAP_XMAX_INVALID | pg_sys::HEAP_XMAX_LOCK_ONLY;
        if u32::from((*header).t_infomask) & untouched != 0 || (*filled).buffer == 0 {
            return None;
        }
        pg_sys::LockBuffer((*filled).buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
        let still = u32::from((*header).t_infomask) & untouched == 0;
        let deleter = if still { xact::xid_of(update_xid(header)) } else { Xid::NONE };
        pg_sys::LockBuffer((*filled).buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
        let other = deleter != Xid::NONE && !xact::is_ours(deleter);
        other.then(|| (tid_of(&(*slot).tts_tid), deleter))
    }
}

/// Rows of the row store that `snap` sees.
pub(in crate::entry) fn count_rows(table: Rel, snap: Snap) -> u64 {
    let scan = RowStoreScan::begin(table, snap);
    let slot = OwnedSlot::for_table(table);
    let (raw_scan, raw_slot) = (scan.raw(), slot.slot().raw());
    // SAFETY: one guard around the whole loop, which owns nothing.
    unsafe {
        guarded(|| {
            let forward = pg_sys::ScanDirection::ForwardScanDirection;
            let mut rows = 0;
            while direct::heap_getnextslot(raw_scan, forward, raw_slot) {
                rows += u64::from(!hidden(table.raw(), snap.raw(), raw_slot));
            }
            rows
        })
    }
}
