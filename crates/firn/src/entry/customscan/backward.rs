//! A cursor that moves backward. PostgreSQL lets each cursor do so whose plan can, and puts a Material above what cannot
//! where SCROLL is said; WHERE CURRENT OF does not look through that. Batches come forward only: from the
//! first step back on, the rows of both directions come from the table's own scan, one by one and in the same order. It is
//! brought to the row at hand: page by page of the row store, at once in stripes.

use super::exec::{finished, shown, Run};
use crate::entry::tableam::scan as tableam_scan;
use crate::entry::tableam::scandesc::{in_scan, ScanDesc};
use crate::pg::ext::{callback, guarded};
use crate::pg::toast::tid_of;
use crate::pg::{error, memory, Kind};
use firn_format::VIRTUAL_BASE;
use pgrx::pg_sys;
use pgrx::pg_sys::ScanDirection::ForwardScanDirection;

/// The next row in a direction. As `exec`, it calls PostgreSQL without guards and owns nothing.
pub(super) unsafe fn step(
    node: *mut pg_sys::CustomScanState,
    run: *mut Run,
    direction: pg_sys::ScanDirection::Type,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: a node that runs, with the state that its `begin` has made; a scan of ours is read through its own functions.
    unsafe {
        let row = (*run).heap_slot;
        if (*run).both_ways.is_null() {
            callback(|| start(node, &mut *run));
            // The row that was returned last. There is none at the end, from where the scan begins anyway.
            let last = (*node).ss.ss_ScanTupleSlot;
            let is_at_end = (*last).tts_flags & pg_sys::TTS_FLAG_EMPTY as u16 != 0;
            let at = tid_of(&(*last).tts_tid);
            if !is_at_end && at.block >= VIRTUAL_BASE {
                if !in_scan((*run).both_ways, || ScanDesc::scan((*run).both_ways).go_to(at)) {
                    callback(lost);
                }
            } else if !is_at_end {
                loop {
                    if !tableam_scan::getnextslot((*run).both_ways, ForwardScanDirection, row) {
                        callback(lost);
                    }
                    if tid_of(&(*row).tts_tid) == at {
                        break;
                    }
                }
            }
        }
        while tableam_scan::getnextslot((*run).both_ways, direction, row) {
            let slot = shown(node, run, row);
            if !slot.is_null() {
                return slot;
            }
        }
        finished(node)
    }
}

unsafe fn start(node: *mut pg_sys::CustomScanState, run: &mut Run) {
    // SAFETY: the node has an open relation and a query with a snapshot; the scan lives in the query's memory.
    unsafe {
        let rel = (*node).ss.ss_currentRelation;
        let state = (*node).ss.ps.state;
        memory::within((*state).es_query_cxt, || {
            let flags = pg_sys::ScanOptions::SO_TYPE_SEQSCAN
                | pg_sys::ScanOptions::SO_ALLOW_PAGEMODE
                | pg_sys::ScanOptions::SO_ALLOW_STRAT;
            let none = std::ptr::null_mut();
            let scan = guarded(|| {
                tableam_scan::begin(rel, (*state).es_snapshot, 0, none, none.cast(), flags)
            });
            // Where another session's scan was when ours began, if that was in step with it.
            if let Some(block) = run.first_block {
                (*(scan as pg_sys::HeapScanDesc)).rs_startblock = block;
            }
            ScanDesc::scan(scan).want(&run.wanted);
            run.both_ways = scan;
        })
    }
}

fn lost() {
    error(Kind::Internal, "a cursor's row was not found again").raise()
}

/// Back to before the first row.
pub(super) unsafe fn stop(run: &mut Run) {
    // SAFETY: a scan that `start` has begun, ended once.
    unsafe {
        if !run.both_ways.is_null() {
            guarded(|| tableam_scan::end(run.both_ways));
            run.both_ways = std::ptr::null_mut();
        }
    }
}
