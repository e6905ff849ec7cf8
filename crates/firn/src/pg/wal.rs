//! The write-ahead log.

use pgrx::pg_sys;

/// Wait until everything this session has logged so far is on disk.
pub fn flush() {
    // SAFETY: plain call; XactLastRecEnd is the end of this transaction's last record.
    unsafe { pg_sys::XLogFlush(pg_sys::XactLastRecEnd) }
}
