//! PostgreSQL 15.

pub(crate) use super::until_15::*;
pub(crate) use super::until_16::*;
pub(crate) use super::until_17::*;

use super::super::wal;
use pgrx::pg_sys;

/// The flags that a scan is begun with.
pub(crate) fn scan_flags(flags: u32) -> u32 {
    flags
}

/// A bitmap scan neither prefetches nor passes over rows that the visibility map knows of: the map knows nothing of stripes.
///
/// # Safety
/// A node of a query that has been started.
pub(crate) unsafe fn fetch_every_row(scan: *mut pg_sys::BitmapHeapScanState) {
    // SAFETY: a live node, as the caller promises.
    unsafe {
        (*scan).prefetch_maximum = 0;
        (*scan).can_skip_fetch = false;
    }
}

/// heapam's record of the tuples that were frozen on a page, here one.
#[repr(C)]
struct HeapFreezePage {
    cutoff: pg_sys::TransactionId,
    tuples: u16,
}

/// One tuple of it.
#[repr(C)]
struct FrozenTuple {
    xmax: pg_sys::TransactionId,
    offset: u16,
    infomask2: u16,
    infomask: u16,
    flags: u8,
}

/// Log that the tuple at `offset` of the page in `buffer` has got the state it is in.
///
/// # Safety
/// In a critical section that has made the change, holding the page's exclusive lock.
pub(crate) unsafe fn log_frozen(_: pg_sys::Relation, buffer: pg_sys::Buffer, offset: u16) {
    // SAFETY: the tuple is found through its line pointer under the page's exclusive lock; what is registered outlives the insertion.
    unsafe {
        const INFO: u8 = 0x30;
        let header = wal::header_of(buffer, offset);
        // Conflicts on standbys are with snapshots older than the cutoff: there are to be none, so it is the oldest
        // id that any database has.
        let cutoff = oldest_xid();
        let mut record = HeapFreezePage { cutoff, tuples: 1 };
        let mut tuple = FrozenTuple {
            xmax: (*header).t_choice.t_heap.t_xmax,
            offset,
            infomask2: (*header).t_infomask2,
            infomask: (*header).t_infomask,
            flags: 0,
        };
        pg_sys::XLogBeginInsert();
        // Six bytes: without the padding at the end.
        pg_sys::XLogRegisterData((&raw mut record).cast(), 6);
        pg_sys::XLogRegisterBuffer(0, buffer, pg_sys::REGBUF_STANDARD as u8);
        pg_sys::XLogRegisterBufData(0, (&raw mut tuple).cast(), size_of::<FrozenTuple>() as i32);
        let manager = pg_sys::RmgrIds::RM_HEAP2_ID as pg_sys::RmgrId;
        wal::set_lsn(buffer, pg_sys::XLogInsert(manager, INFO));
    }
}

/// PostgreSQL's HashJoinTableData, as far as it is looked at (executor/hashjoin.h). `layouts.c` compares it with the header.
#[repr(C)]
pub(crate) struct HashTable {
    pub bucket_count: i32,
    /// Its logarithm; the same two of how it began, and of what it should be.
    pub bucket_bits: i32,
    bucket_counts: [i32; 3],
    /// The first link of each bucket.
    pub buckets: *mut usize,
    keep_nulls: bool,
    pub skew_enabled: bool,
    skew_buckets: *mut core::ffi::c_void,
    skew_counts: [i32; 2],
    skew_numbers: *mut i32,
    pub batches: i32,
    pub current_batch: i32,
    batches_before: [i32; 2],
    grow_enabled: bool,
    pub rows: f64,
    rows_of_parts: [f64; 2],
    files: [*mut core::ffi::c_void; 2],
    functions: [*mut core::ffi::c_void; 4],
    room: [usize; 5],
    contexts: [*mut core::ffi::c_void; 2],
    chunks: [*mut core::ffi::c_void; 2],
    /// Where the links lead to, and what the processes share, of a table that several have built.
    pub area: *mut pg_sys::dsa_area,
    pub shared: *mut core::ffi::c_void,
}
