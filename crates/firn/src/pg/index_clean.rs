//! Bulk deletion from all indexes of a table, as VACUUM does it.

use super::compat;
use super::toast::tid_of;
use super::Rel;
use firn_format::Tid;
use pgrx::pg_sys;

/// What a VACUUM has been asked for.
pub struct Wish {
    index_cleanup: pg_sys::VacOptValue::Type,
    strategy: pg_sys::BufferAccessStrategy,
}

impl Wish {
    /// # Safety
    /// As PostgreSQL calls relation_vacuum; to be used during that call.
    pub(crate) unsafe fn of(
        params: *const pg_sys::VacuumParams,
        strategy: pg_sys::BufferAccessStrategy,
    ) -> Wish {
        // SAFETY: parameters of PostgreSQL's, as the caller promises.
        unsafe { Wish { index_cleanup: (*params).index_cleanup, strategy } }
    }
    pub fn index_cleanup_is_off(&self) -> bool {
        self.index_cleanup == pg_sys::VacOptValue::VACOPTVALUE_DISABLED
    }
    pub fn index_cleanup_is_on(&self) -> bool {
        self.index_cleanup == pg_sys::VacOptValue::VACOPTVALUE_ENABLED
    }
    pub fn has_indexes(&self, table: Rel) -> bool {
        // SAFETY: an open relation.
        unsafe { (*(*table.raw()).rd_rel).relhasindex }
    }
}

/// Remove the entries whose TIDs are `garbage` from all indexes that take entries.
pub fn bulk_delete(table: Rel, wish: &Wish, garbage: &dyn Fn(Tid) -> bool) {
    // SAFETY: the indexes are open while they are worked on; the state outlives the calls; VACUUM's lock is held.
    unsafe {
        let (mut count, mut indexes) = (0, std::ptr::null_mut());
        let lock = pg_sys::RowExclusiveLock as i32;
        pg_sys::vac_open_indexes(table.raw(), lock, &mut count, &mut indexes);
        let mut state = garbage;
        for i in 0..count as usize {
            let rows = f64::from((*(*table.raw()).rd_rel).reltuples);
            let index = *indexes.add(i);
            let mut info = compat::index_vacuum_info(table.raw(), index, rows, wish.strategy);
            let done = pg_sys::index_bulk_delete(
                &mut info,
                std::ptr::null_mut(),
                Some(is_garbage),
                (&raw mut state).cast(),
            );
            let done = pg_sys::index_vacuum_cleanup(&mut info, done);
            if !done.is_null() {
                pg_sys::pfree(done.cast());
            }
            super::xact::check_for_interrupts();
        }
        pg_sys::vac_close_indexes(count, indexes, lock);
    }
}

/// Called for each index entry: no call into PostgreSQL, nothing that could fail.
unsafe extern "C-unwind" fn is_garbage(
    tid: pg_sys::ItemPointer,
    state: *mut core::ffi::c_void,
) -> bool {
    // SAFETY: the state is `bulk_delete`'s variable, which outlives the calls.
    unsafe {
        let garbage = &*(state as *const &dyn Fn(Tid) -> bool);
        garbage(tid_of(&*tid))
    }
}
