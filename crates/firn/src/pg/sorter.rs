//! Sorting what memory may not hold: PostgreSQL's sort, which goes on in temporary files when it has used
//! up what it was given.

use super::ext;
use super::{compat, Oid};
use pgrx::pg_sys;

/// What is sorted, by its bytes.
pub type Item = [u8; 16];

/// uuid's "less than": the order of sixteen bytes.
const UUID_LESS: Oid = Oid::from_u32(2974);

/// A sort: put everything in, [`Sorter::sort`], take everything out.
pub struct Sorter(*mut pg_sys::Tuplesortstate);

impl Sorter {
    /// A sort that uses `1 / share` of `maintenance_work_mem` at most.
    pub fn new(share: i32) -> Sorter {
        // SAFETY: plain call; the state lives in a child of the current memory context.
        Sorter(unsafe {
            pg_sys::tuplesort_begin_datum(
                pg_sys::UUIDOID,
                UUID_LESS,
                pg_sys::InvalidOid,
                false,
                (pg_sys::maintenance_work_mem / share).max(64),
                std::ptr::null_mut(),
                pg_sys::TUPLESORT_NONE as i32,
            )
        })
    }

    pub fn put(&mut self, item: &Item) {
        // SAFETY: sixteen bytes, which the sort copies.
        unsafe {
            let value = pg_sys::Datum::from(item.as_ptr());
            ext::guarded(|| ext::direct::tuplesort_putdatum(self.0, value, false))
        }
    }

    /// Everything is in.
    pub fn sort(&mut self) {
        // SAFETY: called once, before anything is taken out.
        unsafe { pg_sys::tuplesort_performsort(self.0) }
    }

    /// The next item in order; None after the last.
    pub fn next(&mut self) -> Option<Item> {
        // SAFETY: the datum is a copy of sixteen bytes in the current memory context, freed at once.
        unsafe {
            let (mut value, mut null) = (pg_sys::Datum::from(0usize), false);
            if !compat::sorted_datum(self.0, &mut value, &mut null) {
                return None;
            }
            let at = value.cast_mut_ptr::<Item>();
            let item = *at;
            pg_sys::pfree(at.cast());
            Some(item)
        }
    }
}

impl Drop for Sorter {
    fn drop(&mut self) {
        if !super::memory::resources_are_released() {
            // SAFETY: begun in new().
            unsafe { pg_sys::tuplesort_end(self.0) }
        }
    }
}
