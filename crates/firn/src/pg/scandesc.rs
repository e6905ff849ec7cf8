//! Memory layouts that PostgreSQL and heapam see: our descriptors begin with theirs.

use super::memory;
use super::slot::Slot;
use crate::am::scan::Scan;
use pgrx::pg_sys;
use std::sync::atomic::{AtomicU32, Ordering};

/// Scan descriptor: heapam's, then ours.
#[repr(C)]
pub(super) struct ScanDesc {
    pub heap: pg_sys::HeapScanDescData,
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
    /// `scan` was made by `tableam_scan::begin` and not ended.
    pub(super) unsafe fn scan<'a>(scan: pg_sys::TableScanDesc) -> &'a mut Scan {
        let desc = scan as *mut ScanDesc;
        match (*desc).state.as_mut() {
            Some(Some(state)) => state,
            _ => super::error(super::Kind::Internal, "a firn scan was used after its end").raise(),
        }
    }
    /// The keys that rows are asked to have.
    ///
    /// # Safety
    /// As [`ScanDesc::scan`].
    pub(super) unsafe fn keys(scan: pg_sys::TableScanDesc) -> Keys {
        Keys { first: (*scan).rs_key, count: (*scan).rs_nkeys }
    }
    /// Drop what the scan holds.
    pub(super) unsafe fn finish(scan: pg_sys::TableScanDesc) {
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

/// Keys of a scan: no plan has any, but extensions that read tables as PostgreSQL reads its catalogs.
#[derive(Clone, Copy)]
pub struct Keys {
    first: *mut pg_sys::ScanKeyData,
    count: i32,
}

impl Keys {
    /// The row in the slot, a heap tuple with all its values, has them: heapam's HeapKeyTest().
    pub fn hold(self, slot: Slot) -> bool {
        // SAFETY: a scan has that many keys; what their functions leave behind goes with each row.
        let all = || (0..self.count as usize).all(|i| unsafe { holds(self.first.add(i), slot) });
        self.count == 0 || memory::scratch(all)
    }
}

unsafe fn holds(key: *mut pg_sys::ScanKeyData, slot: Slot) -> bool {
    if (*key).sk_flags as u32 & pg_sys::SK_ISNULL != 0 {
        return false;
    }
    let Some((value, null)) = slot.attribute((*key).sk_attno) else { return false };
    if null {
        return false;
    }
    let (value, argument) = (pg_sys::Datum::from(value), (*key).sk_argument);
    let truth =
        pg_sys::FunctionCall2Coll(&mut (*key).sk_func, (*key).sk_collation, value, argument);
    truth.value() as u8 != 0
}

/// Index fetch descriptor: heapam's, then ours.
#[repr(C)]
pub(super) struct FetchDesc {
    pub heap: pg_sys::IndexFetchHeapData,
    /// The memory context in which the index scan began.
    pub context: pg_sys::MemoryContext,
    pub state: *mut Option<crate::am::fetch::Fetcher>,
}

/// Run the body of a scan's callback in the scan's memory context.
pub(super) unsafe fn in_scan<T: Copy>(scan: pg_sys::TableScanDesc, f: impl FnOnce() -> T) -> T {
    let context = (*(scan as *mut ScanDesc)).context;
    super::ext::callback(|| memory::within(context, f))
}

/// Allocate zeroed PostgreSQL memory for a `T`.
pub(super) unsafe fn alloc<T>() -> *mut T {
    pg_sys::palloc0(std::mem::size_of::<T>()) as *mut T
}

/// A state that begins empty and is dropped with the current memory context at the latest.
pub(super) fn slot_for_state<T>() -> *mut Option<T> {
    memory::bind(None)
}

/// Drop a state with its scan.
///
/// # Safety
/// It is null or was made by [`slot_for_state`] in a context that is still there.
pub(super) unsafe fn end_state<T>(state: &mut *mut Option<T>) {
    let state = std::mem::replace(state, std::ptr::null_mut());
    if !state.is_null() {
        memory::release(state);
    }
}

/// Shared memory of a parallel scan: heapam's, then the next stripe to claim.
#[repr(C)]
pub(super) struct ParallelDesc {
    pub base: pg_sys::ParallelBlockTableScanDescData,
    pub next: AtomicU32,
}

/// Address of the shared state of a parallel scan, and what claims the next stripe number there.
pub type Shared = (usize, fn(usize) -> u32);

/// Claim the next stripe number of the parallel scan at `address`.
pub(super) fn claim(address: usize) -> u32 {
    // SAFETY: the address of a ParallelDesc in shared memory that outlives the scan.
    unsafe { (*(address as *const ParallelDesc)).next.fetch_add(1, Ordering::Relaxed) }
}
