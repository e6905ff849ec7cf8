//! PostgreSQL 17.

pub(crate) use super::analyze_17::{begin_analyzed, set_analyze_callback, ReadAhead};
pub(crate) use super::count_16::count_io_hit;
pub(crate) use super::hash_table_16::HashTable;
pub(crate) use super::since_16::*;
pub(crate) use super::since_17::*;
pub(crate) use super::until_17::*;

use pgrx::pg_sys;

/// How ANALYZE's blocks are read.
pub(super) const STREAM_OF_ANALYZE: u32 = pg_sys::READ_STREAM_MAINTENANCE;

/// The flags that a scan is begun with: a bitmap scan fetches rows that nobody looks into, too, as the visibility map knows nothing of
/// stripes.
pub(crate) fn scan_flags(flags: u32) -> u32 {
    flags | pg_sys::ScanOptions::SO_NEED_TUPLES
}

/// A bitmap scan does not prefetch.
///
/// # Safety
/// A node of a query that has been started.
pub(crate) unsafe fn fetch_every_row(scan: *mut pg_sys::BitmapHeapScanState) {
    // SAFETY: a live node, as the caller promises.
    unsafe { (*scan).prefetch_maximum = 0 }
}
