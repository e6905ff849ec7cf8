//! Memory layouts that PostgreSQL and heapam see: our descriptors begin with theirs.

use crate::am::scan::Scan;
use crate::pg::compat;
use crate::pg::memory::{self, end_state};
use crate::pg::scan_keys::Keys;
use pgrx::pg_sys;

/// Scan descriptor: heapam's, then ours.
#[repr(C)]
pub(in crate::entry) struct ScanDesc {
    pub heap: pg_sys::HeapScanDescData,
    /// What is kept of the bitmap of a bitmap scan.
    pub bitmap: compat::Bitmap,
    /// What is kept of ANALYZE's blocks.
    pub ahead: compat::ReadAhead,
    /// The memory context in which the scan began.
    pub context: pg_sys::MemoryContext,
    pub state: *mut Option<Scan>,
    pub analyze: *mut Option<crate::am::analyze::Sampler>,
    pub sample: *mut Option<crate::am::sample::SampleState>,
}

impl ScanDesc {
    /// The stripe half.
    ///
    /// # Safety
    /// `scan` was made by `scan::begin` and not ended.
    pub(in crate::entry) unsafe fn scan<'a>(scan: pg_sys::TableScanDesc) -> &'a mut Scan {
        // SAFETY: the descriptor is ours, as the caller promises, and its state is bound to memory that outlives the scan.
        unsafe {
            let desc = scan as *mut ScanDesc;
            match (*desc).state.as_mut() {
                Some(Some(state)) => state,
                _ => crate::pg::error(
                    crate::pg::Kind::Internal,
                    "a firn scan was used after its end",
                )
                .raise(),
            }
        }
    }
    /// The keys that rows are asked to have.
    ///
    /// # Safety
    /// As [`ScanDesc::scan`].
    pub(in crate::entry) unsafe fn keys(scan: pg_sys::TableScanDesc) -> Keys {
        // SAFETY: the scan is live, as the caller promises.
        unsafe { Keys::of(scan) }
    }
    /// Drop what the scan holds.
    pub(in crate::entry) unsafe fn finish(scan: pg_sys::TableScanDesc) {
        // SAFETY: the states are null, or were made for this scan, in memory that is still there; each is given up here once.
        unsafe {
            let desc = scan as *mut ScanDesc;
            let analyze = (*desc).analyze;
            let sampler = if analyze.is_null() { None } else { (*analyze).take() };
            end_state(&mut (*desc).state);
            end_state(&mut (*desc).analyze);
            end_state(&mut (*desc).sample);
            if let Some(sampler) = sampler {
                sampler.finish();
            }
        }
    }
}

/// Index fetch descriptor: heapam's, then ours.
#[repr(C)]
pub(in crate::entry) struct FetchDesc {
    pub heap: pg_sys::IndexFetchHeapData,
    /// The memory context in which the index scan began.
    pub context: pg_sys::MemoryContext,
    pub state: *mut Option<crate::am::fetch::Fetcher>,
}

/// Run the body of a scan's callback in the scan's memory context.
pub(in crate::entry) unsafe fn in_scan<T: Copy>(
    scan: pg_sys::TableScanDesc,
    f: impl FnOnce() -> T,
) -> T {
    // SAFETY: the descriptor is ours; the context that it began in lives at least as long as it does.
    unsafe {
        let context = (*(scan as *mut ScanDesc)).context;
        crate::pg::ext::callback(|| memory::within(context, f))
    }
}
