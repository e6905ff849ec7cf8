//! PostgreSQL 18.

pub(crate) use super::analyze_17::{begin_analyzed, set_analyze_callback, ReadAhead};
pub(crate) use super::bitmap_18::{begin_bitmap, reset_bitmap, set_bitmap_callbacks, Bitmap};
pub(crate) use super::since_16::*;
pub(crate) use super::since_17::*;
pub(crate) use super::since_18::*;

use pgrx::pg_sys;

/// How ANALYZE's blocks are read.
pub(super) const STREAM_OF_ANALYZE: u32 =
    pg_sys::READ_STREAM_MAINTENANCE | pg_sys::READ_STREAM_USE_BATCHING;

/// The flags that a scan is begun with.
pub(crate) fn scan_flags(flags: u32) -> u32 {
    flags
}

/// A bitmap scan neither prefetches by itself nor passes over rows: the access method does the first, and nobody the second.
///
/// # Safety
/// None.
pub(crate) unsafe fn fetch_every_row(_: *mut pg_sys::BitmapHeapScanState) {}
