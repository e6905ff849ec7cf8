//! PostgreSQL 16.

pub(crate) use super::count_16::count_io_hit;
pub(crate) use super::hash_table_16::HashTable;
pub(crate) use super::since_16::*;
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

/// heapam's record of the tuples that were frozen on a page.
#[repr(C)]
struct HeapFreezePage {
    cutoff: pg_sys::TransactionId,
    plans: u16,
    is_catalog: bool,
}

/// What was done to some of them, here one; their places on the page follow.
#[repr(C)]
struct FreezePlan {
    xmax: pg_sys::TransactionId,
    infomask2: u16,
    infomask: u16,
    flags: u8,
    tuples: u16,
}

/// Log that the tuple at `offset` of the page in `buffer` has got the state it is in.
///
/// # Safety
/// In a critical section that has made the change, holding the page's exclusive lock.
pub(crate) unsafe fn log_frozen(_: pg_sys::Relation, buffer: pg_sys::Buffer, mut offset: u16) {
    // SAFETY: the tuple is found through its line pointer under the page's exclusive lock; what is registered outlives the insertion.
    unsafe {
        const INFO: u8 = 0x30;
        let header = wal::header_of(buffer, offset);
        // Conflicts on standbys are with snapshots older than the cutoff: there are to be none, so it is the oldest
        // id that any database has.
        let cutoff = oldest_xid();
        let mut record = HeapFreezePage { cutoff, plans: 1, is_catalog: false };
        let mut plan = FreezePlan {
            xmax: (*header).t_choice.t_heap.t_xmax,
            infomask2: (*header).t_infomask2,
            infomask: (*header).t_infomask,
            flags: 0,
            tuples: 1,
        };
        pg_sys::XLogBeginInsert();
        // Seven bytes: without the padding at the end.
        pg_sys::XLogRegisterData((&raw mut record).cast(), 7);
        pg_sys::XLogRegisterBuffer(0, buffer, pg_sys::REGBUF_STANDARD as u8);
        pg_sys::XLogRegisterBufData(0, (&raw mut plan).cast(), size_of::<FreezePlan>() as u32);
        pg_sys::XLogRegisterBufData(0, (&raw mut offset).cast(), size_of::<u16>() as u32);
        let manager = pg_sys::RmgrIds::RM_HEAP2_ID as pg_sys::RmgrId;
        wal::set_lsn(buffer, pg_sys::XLogInsert(manager, INFO));
    }
}
