//! Bitmap scans from PostgreSQL 18 on: the access method goes through the bitmap itself.
//!
//! heapam gives the row store's blocks to a stream, which reads ahead, and passes over all that are behind the table's end: so it would
//! over those of stripes. A stream of ours takes its place. A bitmap has its blocks in order, those of the row store first: at the first
//! virtual one the stream ends, and the scan goes on with that and those behind it.

use super::super::ext::direct as own;
use super::super::{heap, xact};
use super::Handed;
use firn_format::{ROWS_PER_BLOCK, VIRTUAL_BASE};
use pgrx::pg_sys;

/// What a scan keeps of its bitmap.
#[repr(C)]
pub(crate) struct Bitmap {
    scan: pg_sys::TableScanDesc,
    /// The first virtual block, which the stream has come upon, until its turn comes.
    first: pg_sys::TBMIterateResult,
    has_first: bool,
    /// The scan has come to the stripes.
    in_stripes: bool,
    /// It is at a block of theirs, whose rows are checked again.
    in_block: bool,
    recheck: bool,
}

/// Begin with the bitmap of a scan that heapam has just begun.
///
/// # Safety
/// A scan of heapam's, which stays where it is, and a place that lives as long.
pub(crate) unsafe fn begin_bitmap(scan: pg_sys::TableScanDesc, bitmap: *mut Bitmap) {
    // SAFETY: as the caller promises; heapam has begun a stream for a scan of a bitmap, and ends ours in its place.
    unsafe {
        (*bitmap).scan = scan;
        if (*scan).rs_flags & pg_sys::ScanOptions::SO_TYPE_BITMAPSCAN == 0 {
            return;
        }
        let heap = scan as pg_sys::HeapScanDesc;
        pg_sys::read_stream_end((*heap).rs_read_stream);
        (*heap).rs_read_stream = std::ptr::null_mut();
        (*heap).rs_read_stream = pg_sys::read_stream_begin_relation(
            (pg_sys::READ_STREAM_DEFAULT | pg_sys::READ_STREAM_USE_BATCHING) as i32,
            (*heap).rs_strategy,
            (*scan).rs_rd,
            pg_sys::ForkNumber::MAIN_FORKNUM,
            Some(next_in_row_store),
            bitmap.cast(),
            size_of::<pg_sys::TBMIterateResult>(),
        );
    }
}

/// The scan gets another bitmap.
///
/// # Safety
/// A place that [`begin_bitmap`] was given.
pub(crate) unsafe fn reset_bitmap(bitmap: *mut Bitmap) {
    // SAFETY: as the caller promises.
    unsafe {
        (*bitmap).has_first = false;
        (*bitmap).in_stripes = false;
        (*bitmap).in_block = false;
    }
}

/// Set the callbacks of bitmap scans.
pub(crate) fn set_bitmap_callbacks<H: Handed>(routine: &mut pg_sys::TableAmRoutine) {
    routine.scan_bitmap_next_tuple = Some(bitmap_next_tuple::<H>);
}

/// The stream's next block of the row store.
unsafe extern "C-unwind" fn next_in_row_store(
    _: *mut pg_sys::ReadStream,
    bitmap: *mut core::ffi::c_void,
    page: *mut core::ffi::c_void,
) -> pg_sys::BlockNumber {
    // SAFETY: the stream hands back what `begin_bitmap` has given it, and a place for what is to be known of the block.
    unsafe {
        let (bitmap, page) = (bitmap as *mut Bitmap, page as *mut pg_sys::TBMIterateResult);
        let scan = (*bitmap).scan;
        let heap = scan as pg_sys::HeapScanDesc;
        loop {
            if pg_sys::InterruptPending != 0 {
                own::ProcessInterrupts();
            }
            if !direct::tbm_iterate(&raw mut (*scan).st.rs_tbmiterator, page) {
                return pg_sys::InvalidBlockNumber;
            }
            let block = (*page).blockno;
            if block >= VIRTUAL_BASE {
                (*bitmap).first = *page;
                (*bitmap).has_first = true;
                return pg_sys::InvalidBlockNumber;
            }
            // What was added since the scan began it cannot see; a serializable transaction looks at that nevertheless.
            if xact::is_serializable() || block < (*heap).rs_nblocks {
                return block;
            }
        }
    }
}

unsafe extern "C-unwind" fn bitmap_next_tuple<H: Handed>(
    scan: pg_sys::TableScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
    recheck: *mut bool,
    lossy_pages: *mut u64,
    exact_pages: *mut u64,
) -> bool {
    // SAFETY: a scan of ours that has not ended, a slot for rows of its table, and variables of the node's.
    unsafe {
        let place = H::BITMAP;
        let is_hidden = H::IS_HIDDEN;
        let row = H::STRIPE_ROW;
        let bitmap = place(scan);
        if !(*bitmap).in_stripes {
            while match heap::am().scan_bitmap_next_tuple {
                Some(f) => f(scan, slot, recheck, lossy_pages, exact_pages),
                None => std::process::abort(),
            } {
                if !is_hidden(scan, slot) {
                    return true;
                }
            }
            (*bitmap).in_stripes = true;
        }
        loop {
            if (*bitmap).in_block && row(scan, slot) {
                *recheck = (*bitmap).recheck;
                return true;
            }
            (*bitmap).in_block = begin_block::<H>(scan, bitmap, lossy_pages, exact_pages);
            if !(*bitmap).in_block {
                return false;
            }
        }
    }
}

/// Begin the next virtual block; false when there is none.
unsafe fn begin_block<H: Handed>(
    scan: pg_sys::TableScanDesc,
    bitmap: *mut Bitmap,
    lossy_pages: *mut u64,
    exact_pages: *mut u64,
) -> bool {
    // SAFETY: as for `bitmap_next_tuple`; a page that is not lossy says which of its rows are meant.
    unsafe {
        if !(*bitmap).has_first {
            let iterator = &raw mut (*scan).st.rs_tbmiterator;
            if !direct::tbm_iterate(iterator, &raw mut (*bitmap).first) {
                return false;
            }
        }
        (*bitmap).has_first = false;
        let page = &raw mut (*bitmap).first;
        let mut offsets = [0; MOST_OFFSETS];
        let count = match (*page).lossy {
            true => -1,
            false => {
                let most = MOST_OFFSETS as u32;
                direct::tbm_extract_page_tuple(page, offsets.as_mut_ptr(), most)
            }
        };
        *(if count < 0 { lossy_pages } else { exact_pages }) += 1;
        (*bitmap).recheck = (*page).recheck;
        let begin = H::STRIPE_BLOCK;
        begin(scan, (*page).blockno, offsets.as_ptr(), count, (*page).recheck);
        true
    }
}

/// Rows of a block that a bitmap knows at most.
const MOST_OFFSETS: usize = ROWS_PER_BLOCK as usize;

/// See `ext::direct`.
mod direct {
    use pgrx::pg_sys;
    unsafe extern "C-unwind" {
        pub fn tbm_iterate(
            iterator: *mut pg_sys::TBMIterator,
            page: *mut pg_sys::TBMIterateResult,
        ) -> bool;
        pub fn tbm_extract_page_tuple(
            page: *mut pg_sys::TBMIterateResult,
            offsets: *mut pg_sys::OffsetNumber,
            most: u32,
        ) -> core::ffi::c_int;
    }
}
