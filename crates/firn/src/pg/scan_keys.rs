//! The keys that a scan's rows are asked to have.

use super::memory;
use super::slot::Slot;
use pgrx::pg_sys;

/// Keys of a scan: no plan has any, but extensions that read tables as PostgreSQL reads its catalogs.
#[derive(Clone, Copy)]
pub struct Keys {
    first: *mut pg_sys::ScanKeyData,
    count: i32,
}

impl Keys {
    /// # Safety
    /// A live scan, for as long as it is.
    pub(crate) unsafe fn of(scan: pg_sys::TableScanDesc) -> Keys {
        // SAFETY: the scan is live, as the caller promises.
        unsafe { Keys { first: (*scan).rs_key, count: (*scan).rs_nkeys } }
    }
    /// The row in the slot, a heap tuple with all its values, has them: heapam's HeapKeyTest().
    pub fn hold(self, slot: Slot) -> bool {
        // SAFETY: a scan has that many keys; what their functions leave behind goes with each row.
        let all = || (0..self.count as usize).all(|i| unsafe { holds(self.first.add(i), slot) });
        self.count == 0 || memory::scratch(all)
    }
}

unsafe fn holds(key: *mut pg_sys::ScanKeyData, slot: Slot) -> bool {
    // SAFETY: a key of the scan's, whose function takes the column's type and the argument's.
    unsafe {
        if (*key).sk_flags as u32 & pg_sys::SK_ISNULL != 0 {
            return false;
        }
        let Some(value) = slot.attribute((*key).sk_attno) else { return false };
        let (value, argument) = (value.raw(), (*key).sk_argument);
        let truth =
            pg_sys::FunctionCall2Coll(&mut (*key).sk_func, (*key).sk_collation, value, argument);
        truth.value() as u8 != 0
    }
}
