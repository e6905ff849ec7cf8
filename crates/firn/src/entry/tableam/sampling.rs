//! Callbacks of TABLESAMPLE and ANALYZE.

use super::hidden::hidden;
use super::scan::heap;
use super::scandesc::{in_scan, ScanDesc};
use crate::am::analyze::Sampler;
use crate::am::sample::SampleState;
use crate::pg::compat;
use crate::pg::ext::guarded;
use crate::pg::heap::am as heapam;
use crate::pg::memory::slot_for_state;
use crate::pg::slot::Slot;
use crate::pg::snapshot::Snap;
use crate::pg::Rel;
use pgrx::pg_sys;

unsafe fn sample<'a>(scan: pg_sys::TableScanDesc) -> &'a mut SampleState {
    // SAFETY: a scan of ours that samples; the state stays where it is until the scan's end, and nobody else looks at it meanwhile.
    unsafe {
        let desc = scan as *mut ScanDesc;
        if (*desc).sample.is_null() {
            (*desc).sample = slot_for_state();
        }
        let rel = Rel::of((*scan).rs_rd);
        let snap = Snap::of((*scan).rs_snapshot);
        let blocks = (*desc).heap.rs_nblocks;
        (*(*desc).sample).get_or_insert_with(|| SampleState::new(rel, snap, blocks))
    }
}

pub(super) unsafe fn next_block(
    scan: pg_sys::TableScanDesc,
    state: *mut pg_sys::SampleScanState,
) -> bool {
    // SAFETY: the node has chosen its sampling method, whose functions are asked as heapam asks them; a buffer of the scan's is released once.
    unsafe {
        in_scan(scan, || {
            let desc = scan as *mut ScanDesc;
            let sampling = sample(scan);
            sampling.leave_block();
            let total = sampling.blocks();
            let block = match (*(*state).tsmroutine).NextSampleBlock {
                Some(choose) => guarded(|| choose(state, total)),
                None if sampling.next_block < u64::from(total) => {
                    sampling.next_block += 1;
                    (sampling.next_block - 1) as u32
                }
                None => pg_sys::InvalidBlockNumber,
            };
            if block == pg_sys::InvalidBlockNumber {
                if (*desc).heap.rs_cbuf != 0 {
                    pg_sys::ReleaseBuffer((*desc).heap.rs_cbuf);
                }
                (*desc).heap.rs_cbuf = 0;
                (*desc).heap.rs_cblock = pg_sys::InvalidBlockNumber;
                (*desc).heap.rs_inited = false;
                sampling.next_block = 0;
                return false;
            }
            (*desc).heap.rs_inited = true;
            if block < sampling.heap_blocks {
                compat::read_sampled(scan, block);
            } else {
                sampling.begin_block(u64::from(block - sampling.heap_blocks));
            }
            true
        })
    }
}

pub(super) unsafe fn next_tuple(
    scan: pg_sys::TableScanDesc,
    state: *mut pg_sys::SampleScanState,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: the node has chosen its sampling method, and the slot is one for rows of the table.
    unsafe {
        if !in_scan(scan, || sample(scan).in_stripes()) {
            while heap!(scan_sample_next_tuple(scan, state, slot)) {
                if !hidden((*scan).rs_rd, (*scan).rs_snapshot, slot) {
                    return true;
                }
            }
            return false;
        }
        in_scan(scan, || {
            let sampling = sample(scan);
            let Some(choose) = (*(*state).tsmroutine).NextSampleTuple else { return false };
            loop {
                crate::pg::xact::check_for_interrupts();
                let block = sampling.block();
                let rows = sampling.rows();
                let offset = guarded(|| choose(state, block, rows));
                if offset == 0 {
                    Slot::of(slot).clear();
                    return false;
                }
                if sampling.fetch(offset, Slot::of(slot)) {
                    return true;
                }
            }
        })
    }
}

unsafe fn sampler<'a>(scan: pg_sys::TableScanDesc) -> &'a mut Sampler {
    // SAFETY: a scan of ANALYZE's; the state stays where it is until the scan's end, and nobody else looks at it meanwhile.
    unsafe {
        let desc = scan as *mut ScanDesc;
        if (*desc).analyze.is_null() {
            (*desc).analyze = slot_for_state();
        }
        let rel = Rel::of((*scan).rs_rd);
        (*(*desc).analyze).get_or_insert_with(|| Sampler::new(rel))
    }
}

/// What is kept of ANALYZE's blocks. (The sampler looks at the directory before the first page of the row store is pinned.)
pub(super) unsafe fn ahead_of(scan: pg_sys::TableScanDesc) -> *mut compat::ReadAhead {
    // SAFETY: a scan that ANALYZE has begun.
    unsafe {
        in_scan(scan, || {
            sampler(scan);
        });
        &raw mut (*(scan as *mut ScanDesc)).ahead
    }
}

pub(super) unsafe fn analyze_next_block(
    scan: pg_sys::TableScanDesc,
    block: pg_sys::BlockNumber,
    strategy: pg_sys::BufferAccessStrategy,
) -> bool {
    // SAFETY: a scan that ANALYZE has begun, and a block of those that it was told there are.
    unsafe {
        let in_row_store = in_scan(scan, || sampler(scan).begin_block(block));
        if in_row_store {
            let ahead = &raw mut (*(scan as *mut ScanDesc)).ahead;
            return compat::begin_analyzed(scan, ahead, block, strategy);
        }
        true
    }
}

/// heapam holds a page until it has returned all rows of it.
unsafe fn holds_page(scan: pg_sys::TableScanDesc) -> bool {
    // SAFETY: the descriptor begins with heapam's.
    unsafe { (*(scan as *mut ScanDesc)).heap.rs_cbuf != 0 }
}

pub(super) unsafe fn analyze_next_tuple(
    scan: pg_sys::TableScanDesc,
    oldest_xmin: pg_sys::TransactionId,
    live: *mut f64,
    dead: *mut f64,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: a scan of ANALYZE's; its counters are variables of the caller's, which nobody else changes during the call.
    unsafe {
        while holds_page(scan) {
            if heap!(scan_analyze_next_tuple(scan, oldest_xmin, live, dead, slot))
                && in_scan(scan, || sampler(scan).keep_row_store_row())
            {
                return true;
            }
        }
        in_scan(scan, || sampler(scan).next(&mut *live, Slot::of(slot)))
    }
}
