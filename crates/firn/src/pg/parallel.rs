//! What the processes of a parallel scan share: memory that begins with heapam's layout.

use pgrx::pg_sys;
use std::sync::atomic::{AtomicU32, Ordering};

/// Shared memory of a parallel scan: heapam's, then the next stripe to claim.
#[repr(C)]
pub(crate) struct ParallelDesc {
    pub base: pg_sys::ParallelBlockTableScanDescData,
    pub next: AtomicU32,
}

/// Address of the shared state of a parallel scan, and what claims the next stripe number there.
pub type Shared = (usize, fn(usize) -> u32);

/// Claim the next stripe number of the parallel scan at `address`.
pub(crate) fn claim(address: usize) -> u32 {
    // SAFETY: the address of a ParallelDesc in shared memory that outlives the scan.
    unsafe { (*(address as *const ParallelDesc)).next.fetch_add(1, Ordering::Relaxed) }
}
