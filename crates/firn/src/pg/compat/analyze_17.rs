//! ANALYZE from PostgreSQL 17 on: the access method takes the blocks that it has chosen out of a stream.
//!
//! That stream would read them, and those of stripes cannot be read: it is asked for their numbers only. A stream of ours is given the row
//! store's, which come first, and reads them ahead; at the first one behind the row store it ends.

use super::Handed;
use pgrx::pg_sys;

/// What a scan of ANALYZE's keeps of the blocks that it is given.
#[repr(C)]
pub(crate) struct ReadAhead {
    given: *mut pg_sys::ReadStream,
    strategy: pg_sys::BufferAccessStrategy,
    /// The row store's blocks when the scan began: they can be read.
    end: pg_sys::BlockNumber,
    /// A block that was taken from `given`, until its turn comes.
    next: pg_sys::BlockNumber,
    has_next: bool,
    /// The scan has come behind the row store.
    is_behind: bool,
}

/// Set the callback by which ANALYZE goes from block to block.
pub(crate) fn set_analyze_callback<H: Handed>(routine: &mut pg_sys::TableAmRoutine) {
    routine.scan_analyze_next_block = Some(next_block::<H>);
}

unsafe extern "C-unwind" fn next_block<H: Handed>(
    scan: pg_sys::TableScanDesc,
    given: *mut pg_sys::ReadStream,
) -> bool {
    // SAFETY: ANALYZE hands in a scan of ours, of which heapam has no stream, and the stream that it has begun for it. heapam ends ours with
    // the scan. A page is pinned once more while it is begun with.
    unsafe {
        let (begin, place) = (H::ANALYZE_BLOCK, H::READ_AHEAD);
        let (ahead, heap) = (place(scan), scan as pg_sys::HeapScanDesc);
        if (*ahead).given.is_null() {
            (*ahead).given = given;
            (*ahead).end = super::super::Rel::of((*scan).rs_rd).heap_blocks();
            // (Which ring the blocks are to go through is said with the first one.)
            (*ahead).next = direct::read_stream_next_block(given, &raw mut (*ahead).strategy);
            (*ahead).has_next = true;
            (*heap).rs_read_stream = pg_sys::read_stream_begin_relation(
                super::STREAM_OF_ANALYZE as i32,
                (*ahead).strategy,
                (*scan).rs_rd,
                pg_sys::ForkNumber::MAIN_FORKNUM,
                Some(next_in_row_store),
                ahead.cast(),
                0,
            );
        }
        while !(*ahead).is_behind {
            let nothing = std::ptr::null_mut();
            let buffer = pg_sys::read_stream_next_buffer((*heap).rs_read_stream, nothing);
            if buffer == pg_sys::InvalidBuffer as pg_sys::Buffer {
                (*ahead).is_behind = true;
                break;
            }
            let is_begun = begin(scan, pg_sys::BufferGetBlockNumber(buffer), (*ahead).strategy);
            super::super::ext::direct::ReleaseBuffer(buffer);
            if is_begun {
                return true;
            }
        }
        loop {
            let block = next(ahead);
            if block == pg_sys::InvalidBlockNumber {
                return false;
            }
            if begin(scan, block, (*ahead).strategy) {
                return true;
            }
        }
    }
}

/// The next block that ANALYZE has chosen.
unsafe fn next(ahead: *mut ReadAhead) -> pg_sys::BlockNumber {
    // SAFETY: a place of a scan that has begun, whose stream ANALYZE ends after it.
    unsafe {
        if std::mem::take(&mut (*ahead).has_next) {
            return (*ahead).next;
        }
        let mut strategy = std::ptr::null_mut();
        direct::read_stream_next_block((*ahead).given, &mut strategy)
    }
}

/// Our stream's next block.
unsafe extern "C-unwind" fn next_in_row_store(
    _: *mut pg_sys::ReadStream,
    ahead: *mut core::ffi::c_void,
    _: *mut core::ffi::c_void,
) -> pg_sys::BlockNumber {
    // SAFETY: the stream hands back what `next_block` has given it.
    unsafe {
        let ahead = ahead as *mut ReadAhead;
        let block = next(ahead);
        // (No block at all is behind all of them.)
        if block < (*ahead).end {
            return block;
        }
        (*ahead).next = block;
        (*ahead).has_next = true;
        pg_sys::InvalidBlockNumber
    }
}

/// See `ext::direct`.
mod direct {
    use pgrx::pg_sys;
    unsafe extern "C-unwind" {
        pub fn read_stream_next_block(
            stream: *mut pg_sys::ReadStream,
            strategy: *mut pg_sys::BufferAccessStrategy,
        ) -> pg_sys::BlockNumber;
    }
}
