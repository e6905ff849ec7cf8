//! What the processes of a parallel scan share, and how it begins and ends.

use super::exec::{run, State};
use crate::entry::tableam::scan::parallel_reinitialize;
use crate::pg::ext::{callback, guarded};
use crate::pg::parallel::ParallelDesc;
use crate::pg::xact;
use crate::plan::{Counters, FirnScan};
use pgrx::pg_sys;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shared memory of a parallel scan: what its processes counted, then the table scan's part.
#[repr(C)]
pub(super) struct Parallel {
    counters: [AtomicU64; 6],
    scan: ParallelDesc,
}

impl Parallel {
    pub(super) unsafe fn scan(this: *mut Parallel) -> pg_sys::ParallelTableScanDesc {
        // SAFETY: shared memory of this scan's, which begins where the node's part of it does.
        unsafe { (&raw mut (*this).scan).cast() }
    }
}

pub(super) unsafe extern "C-unwind" fn estimate_dsm(
    node: *mut pg_sys::CustomScanState,
    _context: *mut pg_sys::ParallelContext,
) -> usize {
    // SAFETY: a node that has begun, whose relation is open.
    unsafe {
        callback(|| {
            let snapshot = (*(*node).ss.ps.state).es_snapshot;
            let scan = pg_sys::table_parallelscan_estimate((*node).ss.ss_currentRelation, snapshot);
            std::mem::size_of::<Parallel>() + scan
        })
    }
}

pub(super) unsafe extern "C-unwind" fn initialize_dsm(
    node: *mut pg_sys::CustomScanState,
    _context: *mut pg_sys::ParallelContext,
    place: *mut core::ffi::c_void,
) {
    // SAFETY: the memory is as large as `estimate_dsm` has said, and nobody else knows it yet.
    unsafe {
        callback(|| {
            let snapshot = (*(*node).ss.ps.state).es_snapshot;
            let rel = (*node).ss.ss_currentRelation;
            let parallel = place as *mut Parallel;
            for counter in &(*parallel).counters {
                counter.store(0, Ordering::Relaxed);
            }
            pg_sys::table_parallelscan_initialize(rel, Parallel::scan(parallel), snapshot);
            let run = run(node);
            (run.parallel, run.is_collected) = (parallel, false);
        })
    }
}

pub(super) unsafe extern "C-unwind" fn reinitialize_dsm(
    node: *mut pg_sys::CustomScanState,
    _context: *mut pg_sys::ParallelContext,
    place: *mut core::ffi::c_void,
) {
    // SAFETY: memory that `initialize_dsm` has filled; no worker runs at this moment.
    unsafe {
        callback(|| {
            let rel = (*node).ss.ss_currentRelation;
            let scan = Parallel::scan(place as *mut Parallel);
            guarded(|| parallel_reinitialize(rel, scan));
            run(node).is_collected = false;
        })
    }
}

pub(super) unsafe extern "C-unwind" fn initialize_worker(
    node: *mut pg_sys::CustomScanState,
    _toc: *mut pg_sys::shm_toc,
    place: *mut core::ffi::c_void,
) {
    // SAFETY: memory that the leader has filled, which outlives this process's scan.
    unsafe { callback(|| run(node).parallel = place.cast()) }
}

/// No more rows are needed now, though a cursor without SCROLL may come back for more. What is done at the end of a statement (checks of
/// keys) comes before the scan's end. The shared memory is about to go: workers leave what they counted, the leader collects it.
pub(super) unsafe extern "C-unwind" fn shutdown(node: *mut pg_sys::CustomScanState) {
    // SAFETY: a node that has begun; the shared memory is there when this is called for the first time since it was filled.
    unsafe {
        callback(|| {
            let Some(run) = &mut *(*(node as *mut State)).run else { return };
            run.stripes.iter_mut().for_each(FirnScan::let_go);
            // A node is shut down again by each node above it that needs no more rows, and once for each time that the subplan it is in is
            // listed: the memory may be gone by then.
            if std::mem::replace(&mut run.is_collected, true) {
                return;
            }
            let Some(parallel) = run.parallel.as_ref() else { return };
            if xact::is_parallel_worker() {
                let mut mine = run.total;
                if let Some(stripes) = &run.stripes {
                    mine.add(&stripes.counters);
                }
                for (shared, n) in parallel.counters.iter().zip(mine.numbers()) {
                    shared.fetch_add(n, Ordering::Relaxed);
                }
            } else {
                let numbers: Vec<u64> =
                    parallel.counters.iter().map(|c| c.swap(0, Ordering::Relaxed)).collect();
                run.total.add(&Counters::of(&numbers));
            }
        })
    }
}
