//! What the processes of a parallel scan share: memory that begins with heapam's layout.

use pgrx::pg_sys;
use std::sync::atomic::{AtomicU32, Ordering};

/// Shared memory of a parallel scan: heapam's, then the next stripe to claim.
#[repr(C)]
pub(crate) struct ParallelDesc {
    pub base: pg_sys::ParallelBlockTableScanDescData,
    pub next: AtomicU32,
}

/// The shared state of a parallel scan.
#[derive(Clone, Copy)]
pub struct Shared(*const ParallelDesc);

impl Shared {
    /// # Safety
    /// The address of a [`ParallelDesc`] in shared memory, which whoever claims has for as long.
    pub(crate) unsafe fn of(scan: pg_sys::ParallelTableScanDesc) -> Shared {
        Shared(scan.cast())
    }
    /// Claim the next stripe number.
    pub fn claim(self) -> u32 {
        // SAFETY: the memory is there, as the constructor's caller has promised.
        unsafe { (*self.0).next.fetch_add(1, Ordering::Relaxed) }
    }
}
