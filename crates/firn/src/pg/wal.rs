//! The write-ahead log.

use super::compat::{self, BtreeReusePage, HeapInplace};
use super::Rel;
use pgrx::pg_sys;

/// Wait until everything this session has logged so far is on disk.
pub fn flush() {
    // SAFETY: plain call; XactLastRecEnd is the end of this transaction's last record.
    unsafe { pg_sys::XLogFlush(pg_sys::XactLastRecEnd) }
}

impl Rel {
    /// Changes of this relation are logged: not those of temporary and unlogged ones, nor, under
    /// `wal_level = minimal`, those of storage that this transaction has created.
    pub(super) fn needs_wal(self) -> bool {
        // SAFETY: variable read.
        unsafe {
            let always = pg_sys::wal_level >= pg_sys::WalLevel::WAL_LEVEL_REPLICA as i32;
            self.is_permanent() && (always || !self.has_new_storage())
        }
    }
}

/// heapam's record "the xmax of this tuple, which is not the newest version, has got lockers"; the same
/// in PostgreSQL 15 to 18.
#[repr(C)]
pub(super) struct HeapLockUpdated {
    xmax: pg_sys::TransactionId,
    offset: u16,
    bits: u8,
    flags: u8,
}

impl HeapLockUpdated {
    const INFO: u8 = 0x60;
    const BYTES: i32 = 8;

    /// `mask` and `mask2` are what t_infomask and t_infomask2 say of xmax.
    pub fn new(xmax: pg_sys::TransactionId, offset: u16, mask: u32, mask2: u32) -> HeapLockUpdated {
        let pairs = [
            (mask & pg_sys::HEAP_XMAX_IS_MULTI, 0x01),
            (mask & pg_sys::HEAP_XMAX_LOCK_ONLY, 0x02),
            (mask & pg_sys::HEAP_XMAX_EXCL_LOCK, 0x04),
            (mask & pg_sys::HEAP_XMAX_KEYSHR_LOCK, 0x08),
            (mask2 & pg_sys::HEAP_KEYS_UPDATED, 0x10),
        ];
        let bits = pairs.iter().filter(|(set, _)| *set != 0).fold(0, |all, (_, bit)| all | bit);
        HeapLockUpdated { xmax, offset, bits, flags: 0 }
    }
}

/// Log the change of the page in `buffer` that `record` describes.
///
/// # Safety
/// In a critical section that has made the change, holding the page's exclusive lock.
pub(super) unsafe fn log_page_change(buffer: pg_sys::Buffer, record: &mut HeapLockUpdated) {
    // SAFETY: the record is a plain struct that outlives its insertion; buffer and critical section are the caller's, as it promises.
    unsafe {
        pg_sys::XLogBeginInsert();
        pg_sys::XLogRegisterBuffer(0, buffer, pg_sys::REGBUF_STANDARD as u8);
        pg_sys::XLogRegisterData(
            (record as *mut HeapLockUpdated).cast(),
            HeapLockUpdated::BYTES as _,
        );
        let manager = pg_sys::RmgrIds::RM_HEAP2_ID as pg_sys::RmgrId;
        set_lsn(buffer, pg_sys::XLogInsert(manager, HeapLockUpdated::INFO));
    }
}

/// Log that the user data of the tuple at `offset` of the page in `buffer` has been overwritten in place:
/// heapam's record of it.
///
/// # Safety
/// As [`log_page_change`]; `data` are the bytes behind the tuple's header.
pub(super) unsafe fn log_overwriting(buffer: pg_sys::Buffer, offset: u16, data: &[u8]) {
    // SAFETY: what is registered outlives the insertion; buffer and critical section are the caller's, as it promises.
    unsafe {
        const INFO: u8 = 0x70;
        pg_sys::XLogBeginInsert();
        let mut record = HeapInplace::new(offset);
        pg_sys::XLogRegisterData((&raw mut record).cast(), HeapInplace::BYTES as _);
        pg_sys::XLogRegisterBuffer(0, buffer, pg_sys::REGBUF_STANDARD as u8);
        pg_sys::XLogRegisterBufData(0, data.as_ptr().cast_mut().cast(), data.len() as _);
        let manager = pg_sys::RmgrIds::RM_HEAP_ID as pg_sys::RmgrId;
        set_lsn(buffer, pg_sys::XLogInsert(manager, INFO));
    }
}

/// The tuple at `offset` of the page in `buffer`.
///
/// # Safety
/// The page is locked, and has that tuple.
pub(super) unsafe fn header_of(buffer: pg_sys::Buffer, offset: u16) -> pg_sys::HeapTupleHeader {
    // SAFETY: as the caller promises.
    unsafe {
        let page = pg_sys::BufferGetPage(buffer);
        let item = pg_sys::PageGetItemId(page, offset);
        page.add((*item).lp_off() as usize) as pg_sys::HeapTupleHeader
    }
}

/// # Safety
/// A page that is pinned and locked exclusively.
pub(super) unsafe fn set_lsn(buffer: pg_sys::Buffer, at: u64) {
    // SAFETY: as the caller promises.
    unsafe {
        let page = pg_sys::BufferGetPage(buffer) as pg_sys::PageHeader;
        (*page).pd_lsn = pg_sys::PageXLogRecPtr { xlogid: (at >> 32) as u32, xrecoff: at as u32 };
    }
}

/// Tell standbys that what the transaction `removed` (an id that does not wrap around) has deleted of this table
/// cannot be read any more.
pub fn log_snapshot_conflict(rel: Rel, removed: u64) {
    const INFO: u8 = 0xD0;
    if !rel.needs_wal() {
        return;
    }
    // SAFETY: a record without pages, in the form of this version.
    unsafe {
        if pg_sys::wal_level < pg_sys::WalLevel::WAL_LEVEL_REPLICA as i32 {
            return;
        }
        let mut record = BtreeReusePage::new(compat::file_of(rel.data()), removed);
        pg_sys::XLogBeginInsert();
        pg_sys::XLogRegisterData((&raw mut record).cast(), BtreeReusePage::BYTES as _);
        pg_sys::XLogInsert(pg_sys::RmgrIds::RM_BTREE_ID as pg_sys::RmgrId, INFO);
    }
}

/// Wait until everything that any session has logged so far is on disk.
pub fn flush_all() {
    // Bytes of the header of a page of the log, and of the first one of a file.
    const HEADER: u64 = 24;
    const LONG_HEADER: u64 = 40;
    // SAFETY: plain calls and a variable of the server.
    unsafe {
        // Where the next record begins: behind a header that is not there yet, when the last one has filled
        // its page. PostgreSQL does not wait for that.
        let next = pg_sys::GetXLogInsertRecPtr();
        let header = match next % pg_sys::wal_segment_size as u64 {
            LONG_HEADER => LONG_HEADER,
            _ if next % u64::from(pg_sys::XLOG_BLCKSZ) == HEADER => HEADER,
            _ => 0,
        };
        pg_sys::XLogFlush(next - header)
    }
}
