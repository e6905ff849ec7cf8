//! Callbacks of scans: row store rows come from heapam's scan (called without a detour), stripe rows
//! from `am`.

use super::hidden::hidden;
use super::scandesc::{in_scan, ScanDesc};
use crate::am::scan::Scan;
use crate::pg::compat;
use crate::pg::ext::{callback, guarded};
use crate::pg::heap::am as heapam;
use crate::pg::memory::{extend, slot_for_state};
use crate::pg::parallel::{ParallelDesc, Shared};
use crate::pg::slot::Slot;
use crate::pg::snapshot::Snap;
use crate::pg::toast::tid_of;
use crate::pg::Rel;
use pgrx::pg_sys;
use std::sync::atomic::Ordering;

/// heapam's callbacks are all set; calling one cannot fail to find it.
macro_rules! heap {
    ($name:ident($($arg:expr),* $(,)?)) => {
        match heapam().$name {
            Some(f) => f($($arg),*),
            None => std::process::abort(),
        }
    };
}
pub(super) use heap;

pub(in crate::entry) unsafe extern "C-unwind" fn begin(
    rel: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    nkeys: i32,
    key: *mut pg_sys::ScanKeyData,
    pscan: pg_sys::ParallelTableScanDesc,
    flags: u32,
) -> pg_sys::TableScanDesc {
    // SAFETY: the relation is open, the snapshot lives as long as the scan, and ours begins with heapam's descriptor.
    unsafe {
        callback(|| {
            let flags = compat::scan_flags(flags);
            let heap = guarded(|| heap!(scan_begin(rel, snapshot, nkeys, key, pscan, flags)));
            let desc = extend::<pg_sys::HeapScanDescData, ScanDesc>(heap.cast());
            compat::begin_bitmap(heap, &raw mut (*desc).bitmap);
            (*desc).context = pg_sys::CurrentMemoryContext;
            (*desc).state = slot_for_state();
            let shared = (!pscan.is_null()).then(|| Shared::of(pscan));
            *(*desc).state = Some(Scan::new(Rel::of(rel), Snap::of(snapshot), shared));
            desc as pg_sys::TableScanDesc
        })
    }
}

pub(in crate::entry) unsafe extern "C-unwind" fn end(scan: pg_sys::TableScanDesc) {
    // SAFETY: PostgreSQL ends a scan once that `begin` has made, so its state is there to be dropped.
    unsafe {
        callback(|| ScanDesc::finish(scan));
        heap!(scan_end(scan))
    }
}

pub(super) unsafe extern "C-unwind" fn rescan(
    scan: pg_sys::TableScanDesc,
    key: *mut pg_sys::ScanKeyData,
    set_params: bool,
    allow_strat: bool,
    allow_sync: bool,
    allow_pagemode: bool,
) {
    // SAFETY: a scan that `begin` has made and nobody has ended.
    unsafe {
        compat::reset_bitmap(bitmap_of(scan));
        callback(|| ScanDesc::scan(scan).reset());
        heap!(scan_rescan(scan, key, set_params, allow_strat, allow_sync, allow_pagemode))
    }
}

unsafe fn stripe_row(
    scan: pg_sys::TableScanDesc,
    forward: bool,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: a scan of ours that has not ended, and a slot of the node that asks.
    unsafe { ScanDesc::scan(scan).next_in_stripes(forward, ScanDesc::keys(scan), Slot::of(slot)) }
}

unsafe fn next(
    scan: pg_sys::TableScanDesc,
    direction: pg_sys::ScanDirection::Type,
    slot: *mut pg_sys::TupleTableSlot,
    heap_next: unsafe fn(
        pg_sys::TableScanDesc,
        pg_sys::ScanDirection::Type,
        *mut pg_sys::TupleTableSlot,
    ) -> bool,
) -> bool {
    // SAFETY: a scan of ours that has not ended: the descriptor begins with heapam's, which is all that heapam looks at.
    unsafe {
        let heap_next = |scan: pg_sys::TableScanDesc, direction, slot| loop {
            if !heap_next(scan, direction, slot) {
                return false;
            }
            if !hidden((*scan).rs_rd, (*scan).rs_snapshot, slot) {
                return true;
            }
        };
        let desc = scan as *mut ScanDesc;
        let in_stripes = (*(*desc).state).as_ref().is_some_and(|s| s.in_stripes);
        if direction != pg_sys::ScanDirection::BackwardScanDirection {
            if !in_stripes && heap_next(scan, direction, slot) {
                return true;
            }
            return in_scan(scan, || stripe_row(scan, true, slot));
        }
        if !in_stripes && (*desc).heap.rs_inited {
            return heap_next(scan, direction, slot);
        }
        if in_scan(scan, || stripe_row(scan, false, slot)) {
            return true;
        }
        heap_next(scan, direction, slot)
    }
}

pub(in crate::entry) unsafe extern "C-unwind" fn getnextslot(
    scan: pg_sys::TableScanDesc,
    direction: pg_sys::ScanDirection::Type,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: PostgreSQL hands in a scan of ours and a slot for rows of its table.
    unsafe { next(scan, direction, slot, |a, b, c| heap!(scan_getnextslot(a, b, c))) }
}

pub(super) unsafe extern "C-unwind" fn set_tidrange(
    scan: pg_sys::TableScanDesc,
    min: pg_sys::ItemPointer,
    max: pg_sys::ItemPointer,
) {
    // SAFETY: a scan of ours, and two TIDs that are the caller's for the length of the call.
    unsafe {
        callback(|| ScanDesc::scan(scan).set_range(tid_of(&*min), tid_of(&*max)));
        heap!(scan_set_tidrange(scan, min, max))
    }
}

pub(super) unsafe extern "C-unwind" fn getnextslot_tidrange(
    scan: pg_sys::TableScanDesc,
    direction: pg_sys::ScanDirection::Type,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: PostgreSQL hands in a scan of ours and a slot for rows of its table.
    unsafe { next(scan, direction, slot, |a, b, c| heap!(scan_getnextslot_tidrange(a, b, c))) }
}

pub(super) unsafe extern "C-unwind" fn parallel_estimate(_rel: pg_sys::Relation) -> usize {
    std::mem::size_of::<ParallelDesc>().next_multiple_of(8)
}

pub(super) unsafe extern "C-unwind" fn parallel_initialize(
    rel: pg_sys::Relation,
    pscan: pg_sys::ParallelTableScanDesc,
) -> usize {
    // SAFETY: the memory is as large as `parallel_estimate` has said, and begins with what heapam initializes.
    unsafe {
        heap!(parallelscan_initialize(rel, pscan));
        (*(pscan as *mut ParallelDesc)).next.store(0, Ordering::Relaxed);
        std::mem::size_of::<ParallelDesc>().next_multiple_of(8)
    }
}

pub(in crate::entry) unsafe extern "C-unwind" fn parallel_reinitialize(
    rel: pg_sys::Relation,
    pscan: pg_sys::ParallelTableScanDesc,
) {
    // SAFETY: memory that `parallel_initialize` has filled; no process scans at this moment.
    unsafe {
        heap!(parallelscan_reinitialize(rel, pscan));
        (*(pscan as *mut ParallelDesc)).next.store(0, Ordering::Relaxed);
    }
}

/// What `pg/compat/` calls in the callbacks whose shape depends on PostgreSQL's version.
pub(super) struct Own;

impl compat::Handed for Own {
    const ANALYZE_BLOCK: unsafe extern "C-unwind" fn(
        pg_sys::TableScanDesc,
        pg_sys::BlockNumber,
        pg_sys::BufferAccessStrategy,
    ) -> bool = analyze_next_block;
    const STRIPE_BLOCK: unsafe extern "C-unwind" fn(
        pg_sys::TableScanDesc,
        pg_sys::BlockNumber,
        *const pg_sys::OffsetNumber,
        i32,
        bool,
    ) = stripe_block;
    const STRIPE_ROW: unsafe extern "C-unwind" fn(
        pg_sys::TableScanDesc,
        *mut pg_sys::TupleTableSlot,
    ) -> bool = row_of_stripe_block;
    const IS_HIDDEN: unsafe extern "C-unwind" fn(
        pg_sys::TableScanDesc,
        *mut pg_sys::TupleTableSlot,
    ) -> bool = is_hidden;
    const BITMAP: unsafe extern "C-unwind" fn(pg_sys::TableScanDesc) -> *mut compat::Bitmap =
        bitmap_of;
    const READ_AHEAD: unsafe extern "C-unwind" fn(pg_sys::TableScanDesc) -> *mut compat::ReadAhead =
        ahead_of;
}

unsafe extern "C-unwind" fn stripe_block(
    scan: pg_sys::TableScanDesc,
    block: pg_sys::BlockNumber,
    offsets: *const pg_sys::OffsetNumber,
    count: i32,
    recheck: bool,
) {
    // SAFETY: a scan of ours; as many offsets as said, if any are.
    unsafe {
        callback(|| {
            let offsets = (count >= 0).then(|| std::slice::from_raw_parts(offsets, count as usize));
            ScanDesc::scan(scan).bitmap_block(block, offsets, recheck)
        })
    }
}

unsafe extern "C-unwind" fn row_of_stripe_block(
    scan: pg_sys::TableScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: a scan of ours, at a block that `stripe_block` was given, and a slot for rows of its table.
    unsafe { in_scan(scan, || ScanDesc::scan(scan).bitmap_next(Slot::of(slot)).unwrap_or(false)) }
}

unsafe extern "C-unwind" fn is_hidden(
    scan: pg_sys::TableScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: a scan of ours, and a slot with a row of its row store.
    unsafe { hidden((*scan).rs_rd, (*scan).rs_snapshot, slot) }
}

unsafe extern "C-unwind" fn bitmap_of(scan: pg_sys::TableScanDesc) -> *mut compat::Bitmap {
    // SAFETY: a scan of ours.
    unsafe { &raw mut (*(scan as *mut ScanDesc)).bitmap }
}

unsafe extern "C-unwind" fn ahead_of(scan: pg_sys::TableScanDesc) -> *mut compat::ReadAhead {
    // SAFETY: a scan of ours that ANALYZE has begun.
    unsafe { super::sampling::ahead_of(scan) }
}

pub(super) unsafe extern "C-unwind" fn sample_next_block(
    scan: pg_sys::TableScanDesc,
    state: *mut pg_sys::SampleScanState,
) -> bool {
    // SAFETY: PostgreSQL hands in a scan of ours and the node that samples it.
    unsafe { super::sampling::next_block(scan, state) }
}

pub(super) unsafe extern "C-unwind" fn sample_next_tuple(
    scan: pg_sys::TableScanDesc,
    state: *mut pg_sys::SampleScanState,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: PostgreSQL hands in a scan of ours, the node that samples it, and its slot.
    unsafe { super::sampling::next_tuple(scan, state, slot) }
}

pub(super) unsafe extern "C-unwind" fn analyze_next_block(
    scan: pg_sys::TableScanDesc,
    block: pg_sys::BlockNumber,
    strategy: pg_sys::BufferAccessStrategy,
) -> bool {
    // SAFETY: ANALYZE hands in a scan of ours and its ring of buffers.
    unsafe { super::sampling::analyze_next_block(scan, block, strategy) }
}

pub(super) unsafe extern "C-unwind" fn analyze_next_tuple(
    scan: pg_sys::TableScanDesc,
    oldest_xmin: pg_sys::TransactionId,
    live: *mut f64,
    dead: *mut f64,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: ANALYZE hands in a scan of ours, its counters, and a slot for rows of the table.
    unsafe { super::sampling::analyze_next_tuple(scan, oldest_xmin, live, dead, slot) }
}
