//! The last phase of CREATE INDEX and REINDEX CONCURRENTLY on the TOAST relation of a firn table.
//!
//! heapam's validation inserts each row that its snapshot sees and that the index did not have when the phase
//! began: a row that came later is not seen, and its own transaction has put it into the index. Pinned rows are
//! seen whenever they come (directory/README.md). So here the index is asked once more before a row is inserted.
//! Whoever inserts a pinned row puts it into all indexes before it lets others see it, so a row that is seen and
//! is not in the index was there before the index took part, and nobody else will insert it.

use super::index_validate::KnownTids;
use crate::pg::compat;
use crate::pg::index::{Build, Builder};
use crate::pg::snapshot::Snap;
use crate::pg::toast::tid_of;
use crate::pg::toast_scan::fill_keys;
use pgrx::pg_sys;

/// Insert the entries that `index` lacks of the rows that `snapshot` sees.
///
/// # Safety
/// As PostgreSQL calls index_validate_scan.
pub(super) unsafe fn validate(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    snapshot: pg_sys::Snapshot,
    state: *mut pg_sys::ValidateIndexState,
) {
    // SAFETY: all that PostgreSQL hands in lives to the end of this call, and so does what the build's callback is given of it.
    unsafe {
        let flags = pg_sys::ScanOptions::SO_TYPE_SEQSCAN
            | pg_sys::ScanOptions::SO_ALLOW_STRAT
            | pg_sys::ScanOptions::SO_ALLOW_PAGEMODE;
        let none = std::ptr::null_mut();
        // Not synchronized with other scans: the pages come in their order, as do the index's TIDs.
        let scan = pg_sys::heap_beginscan(table, snapshot, 0, none, std::ptr::null_mut(), flags);
        let mut missing = Missing { known: KnownTids::new(state), table, index, info, state };
        let mut builder = Builder::new(Build {
            table,
            index,
            info,
            allow_sync: false,
            anyvisible: false,
            blocks: None,
            call: Some(insert_missing),
            state: (&raw mut missing).cast(),
            scan,
        });
        (*state).htups = builder.heap_rows(super::toast::never);
        builder.finish();
    }
}

struct Missing {
    known: KnownTids,
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    state: *mut pg_sys::ValidateIndexState,
}

impl Missing {
    /// The index has an entry for this place by now.
    unsafe fn is_there(&self, values: *mut pg_sys::Datum, tid: pg_sys::ItemPointer) -> bool {
        // SAFETY: the index is one of a TOAST relation, with two columns of fixed length; the scan keys live until the scan has ended.
        unsafe {
            let id = (*values).value() as u32;
            let seq = (*values.add(1)).value() as i32;
            let mut keys: [pg_sys::ScanKeyData; 3] = std::mem::zeroed();
            let n = fill_keys(&mut keys, id, seq, seq);
            let scan = compat::index_beginscan(self.table, self.index, Snap::any().raw(), n, 0);
            pg_sys::index_rescan(scan, keys.as_mut_ptr(), n, std::ptr::null_mut(), 0);
            let mut found = false;
            while !found {
                let at =
                    pg_sys::index_getnext_tid(scan, pg_sys::ScanDirection::ForwardScanDirection);
                if at.is_null() {
                    break;
                }
                found = tid_of(&*at) == tid_of(&*tid);
            }
            pg_sys::index_endscan(scan);
            found
        }
    }
}

unsafe extern "C-unwind" fn insert_missing(
    _index: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    values: *mut pg_sys::Datum,
    nulls: *mut bool,
    _alive: bool,
    state: *mut core::ffi::c_void,
) {
    // SAFETY: the build that `validate` has begun hands its own state back, and the values of one row.
    unsafe {
        crate::pg::ext::callback(|| {
            let missing = &mut *(state as *mut Missing);
            if missing.known.contains(tid_of(&*tid)) || missing.is_there(values, tid) {
                return;
            }
            let check = match (*missing.info).ii_Unique {
                true => pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES,
                false => pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO,
            };
            pg_sys::index_insert(
                missing.index,
                values,
                nulls,
                tid,
                missing.table,
                check,
                false,
                missing.info,
            );
            (*missing.state).tups_inserted += 1.0;
        })
    }
}
