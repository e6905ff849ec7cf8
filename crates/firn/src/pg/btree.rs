//! What the pages of a B-tree hold.

use super::Rel;
use firn_format::btree::{Sample, SMALL};
use pgrx::pg_sys;

/// Pages looked at, of a large index a part that is spread evenly.
const AT_MOST: u32 = 1_000;
const PAGE: usize = pg_sys::BLCKSZ as usize;
const FILLFACTOR: u32 = 90;

/// The options of a B-tree (BTOptions).
#[repr(C)]
struct Options {
    header: i32,
    fillfactor: i32,
    cleanup_scale: f64,
    deduplicate: bool,
}

/// The pages that an index has, and that it would have if it were built anew. A small one is not looked at.
pub fn pages(index: Rel) -> (u32, f64) {
    // SAFETY: an open index; its options, if it has any, are those of a B-tree.
    let (blocks, options) = unsafe {
        let rel = index.raw();
        let blocks = pg_sys::RelationGetNumberOfBlocksInFork(rel, pg_sys::ForkNumber::MAIN_FORKNUM);
        (blocks, ((*rel).rd_options as *const Options).as_ref())
    };
    if blocks <= SMALL {
        return (blocks, f64::from(blocks));
    }
    let strategy = Ring::new();
    let mut page = [0u8; PAGE];
    copy(index, 0, &strategy, &mut page);
    // What is built is a copy that is not unique: keys that are null come together in it.
    let mut sample = Sample::new(&page, false, options.is_none_or(|o| o.deduplicate));
    let looks = (blocks - 1).min(AT_MOST);
    for i in 0..looks {
        super::xact::check_for_interrupts();
        let block = 1 + u64::from(i) * u64::from(blocks - 1) / u64::from(looks);
        copy(index, block as u32, &strategy, &mut page);
        sample.add(&page);
    }
    let fillfactor = options.map_or(FILLFACTOR, |o| o.fillfactor as u32);
    (blocks, sample.fresh_pages(blocks, fillfactor))
}

/// A few buffers, so that others' pages stay in the cache.
struct Ring(pg_sys::BufferAccessStrategy);

impl Ring {
    fn new() -> Ring {
        // SAFETY: plain call.
        Ring(unsafe { super::compat::ring_of_buffers() })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !super::memory::resources_are_released() {
            // SAFETY: made in new().
            unsafe { pg_sys::FreeAccessStrategy(self.0) }
        }
    }
}

fn copy(index: Rel, block: u32, ring: &Ring, into: &mut [u8; PAGE]) {
    // SAFETY: a block of the index, pinned and under its shared lock while it is copied.
    unsafe {
        let buffer = pg_sys::ReadBufferExtended(
            index.raw(),
            pg_sys::ForkNumber::MAIN_FORKNUM,
            block,
            pg_sys::ReadBufferMode::RBM_NORMAL,
            ring.0,
        );
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
        let page = pg_sys::BufferGetPage(buffer) as *const u8;
        std::ptr::copy_nonoverlapping(page, into.as_mut_ptr(), PAGE);
        pg_sys::UnlockReleaseBuffer(buffer);
    }
}
