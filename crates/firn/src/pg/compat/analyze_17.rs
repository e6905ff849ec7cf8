//! ANALYZE from PostgreSQL 17 on: the access method takes the blocks that it has chosen out of a stream.
//!
//! That stream would read them, and those of stripes cannot be read: it is asked for their numbers only. A stream of ours is given the row
//! store's, which come first, and reads them ahead; at the first one behind the row store it ends.

use super::super::ext::direct as own;
use super::Handed;
use pgrx::pg_sys;

/// What a scan of ANALYZE's keeps of the blocks that it is given.
#[repr(C)]
pub(crate) struct ReadAhead {
    given: *mut pg_sys::ReadStream,
    strategy: pg_sys::BufferAccessStrategy,
    /// The page that our stream has read last, pinned, until somebody begins with it.
    buffer: pg_sys::Buffer,
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
    // the scan.
    unsafe {
        let begin = H::ANALYZE_BLOCK;
        let place = H::READ_AHEAD;
        let (ahead, heap) = (place(scan), scan as pg_sys::HeapScanDesc);
        let main = pg_sys::ForkNumber::MAIN_FORKNUM;
        let no_buffer = pg_sys::InvalidBuffer as pg_sys::Buffer;
        if (*ahead).given.is_null() {
            (*ahead).given = given;
            let bytes = direct::table_block_relation_size((*scan).rs_rd, main);
            (*ahead).end = (bytes / u64::from(pg_sys::BLCKSZ)) as pg_sys::BlockNumber;
            // (Which ring the blocks are to go through is said with the first one.)
            (*ahead).next = direct::read_stream_next_block(given, &raw mut (*ahead).strategy);
            (*ahead).has_next = true;
            (*heap).rs_read_stream = direct::read_stream_begin_relation(
                super::STREAM_OF_ANALYZE as i32,
                (*ahead).strategy,
                (*scan).rs_rd,
                main,
                next_in_row_store,
                ahead.cast(),
                0,
            );
        }
        while !(*ahead).is_behind {
            let nothing = std::ptr::null_mut();
            let buffer = direct::read_stream_next_buffer((*heap).rs_read_stream, nothing);
            if buffer == no_buffer {
                (*ahead).is_behind = true;
                break;
            }
            (*ahead).buffer = buffer;
            let is_begun = begin(scan, direct::BufferGetBlockNumber(buffer), (*ahead).strategy);
            if (*ahead).buffer != no_buffer {
                (*ahead).buffer = no_buffer;
                direct::ReleaseBuffer(buffer);
            }
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

/// Lock a block of a heap for ANALYZE, and begin with its rows.
///
/// # Safety
/// A scan that ANALYZE has begun, what it keeps of its blocks, and a block of the heap.
pub(crate) unsafe fn begin_analyzed(
    scan: pg_sys::TableScanDesc,
    ahead: *mut ReadAhead,
    block: pg_sys::BlockNumber,
    strategy: pg_sys::BufferAccessStrategy,
) -> bool {
    // SAFETY: as the caller promises. The page is held, as heapam holds it, until all rows of it have been returned.
    unsafe {
        let heap = scan as pg_sys::HeapScanDesc;
        let (main, normal) = (pg_sys::ForkNumber::MAIN_FORKNUM, pg_sys::ReadBufferMode::RBM_NORMAL);
        let mut buffer = (*ahead).buffer;
        // (The table may have grown since the stream was told where it ends.)
        if buffer == pg_sys::InvalidBuffer as pg_sys::Buffer {
            buffer = own::ReadBufferExtended((*scan).rs_rd, main, block, normal, strategy);
        }
        (*ahead).buffer = pg_sys::InvalidBuffer as pg_sys::Buffer;
        (*heap).rs_cbuf = buffer;
        own::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
        (*heap).rs_cblock = block;
        (*heap).rs_cindex = 1;
        true
    }
}

/// The next block that ANALYZE has chosen.
unsafe fn next(ahead: *mut ReadAhead) -> pg_sys::BlockNumber {
    // SAFETY: a place of a scan that has begun, whose stream ANALYZE ends after it.
    unsafe {
        if (*ahead).has_next {
            (*ahead).has_next = false;
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
#[allow(non_snake_case)]
mod direct {
    use pgrx::pg_sys;
    type NextBlock = unsafe extern "C-unwind" fn(
        *mut pg_sys::ReadStream,
        *mut core::ffi::c_void,
        *mut core::ffi::c_void,
    ) -> pg_sys::BlockNumber;
    unsafe extern "C-unwind" {
        pub fn table_block_relation_size(
            relation: pg_sys::Relation,
            fork: pg_sys::ForkNumber::Type,
        ) -> u64;
        pub fn ReleaseBuffer(buffer: pg_sys::Buffer);
        pub fn read_stream_begin_relation(
            flags: i32,
            strategy: pg_sys::BufferAccessStrategy,
            relation: pg_sys::Relation,
            fork: pg_sys::ForkNumber::Type,
            next: NextBlock,
            of_next: *mut core::ffi::c_void,
            size_for_each: usize,
        ) -> *mut pg_sys::ReadStream;
        pub fn read_stream_next_buffer(
            stream: *mut pg_sys::ReadStream,
            of_buffer: *mut *mut core::ffi::c_void,
        ) -> pg_sys::Buffer;
        pub fn BufferGetBlockNumber(buffer: pg_sys::Buffer) -> pg_sys::BlockNumber;
        pub fn read_stream_next_block(
            stream: *mut pg_sys::ReadStream,
            strategy: *mut pg_sys::BufferAccessStrategy,
        ) -> pg_sys::BlockNumber;
    }
}
