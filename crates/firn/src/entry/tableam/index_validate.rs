//! The last phase of CREATE INDEX CONCURRENTLY: what the index lacks is inserted.

use crate::am::index_build::{last_block, visible_stripes};
use crate::pg::compat;
use crate::pg::ext::{callback, guarded};
use crate::pg::index::{Build, Builder};
use crate::pg::snapshot::Snap;
use crate::pg::toast::tid_of;
use crate::pg::{Rel, Toast};
use firn_format::Tid;
use pgrx::pg_sys;

/// Last phase of CREATE INDEX CONCURRENTLY: insert what the index misses of the rows that `snapshot`
/// sees.
pub(super) unsafe fn validate(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    snapshot: pg_sys::Snapshot,
    state: *mut pg_sys::ValidateIndexState,
) {
    // SAFETY: all that PostgreSQL hands in lives to the end of this call, and so does what the build's callback is given of it.
    unsafe {
        let mut missing = Missing { known: KnownTids::new(state), table, index, info, state };
        let request = Build {
            table,
            index,
            info,
            allow_sync: false,
            anyvisible: false,
            blocks: None,
            call: Some(insert_missing),
            state: (&raw mut missing).cast(),
            scan: std::ptr::null_mut(),
        };
        // A unique one looks at rows of equal keys, see `lock::before_indexes`.
        if (*info).ii_Unique {
            Toast::lock(Rel::of(table));
        }
        // The row store under this very snapshot, then the stripes.
        let scan = guarded(|| {
            super::scan::begin(
                table,
                snapshot,
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                pg_sys::ScanOptions::SO_TYPE_SEQSCAN
                    | pg_sys::ScanOptions::SO_ALLOW_STRAT
                    | pg_sys::ScanOptions::SO_ALLOW_PAGEMODE,
            )
        });
        let mut builder = Builder::new(Build { scan, ..request });
        if builder.is_of_ranges() {
            // Nobody reads it, but rows that have come since it was built are to be refused as those that come later are. It has no TIDs, so all
            // rows are taken for missing, on heap as well.
            builder.put_all_into(last_block(builder.table()));
        }
        let rows = builder.row_store();
        let stripes = visible_stripes(&mut builder, Snap::of(snapshot));
        (*state).htups = rows + stripes;
        builder.finish();
    }
}

/// Rows that a block can have, in the row store and in stripes.
const ON_BLOCK: usize = firn_format::ROWS_PER_BLOCK as usize;

/// The index's TIDs, which come sorted, beside the table's rows, which come block by block: first the row
/// store's, then the stripes, whose virtual blocks are above all others.
pub(super) struct KnownTids {
    state: *mut pg_sys::ValidateIndexState,
    /// The index's TID read last, as one number.
    at_hand: Option<i64>,
    exhausted: bool,
    /// The block of the row looked for last, and which of its rows the index was found to have: those of
    /// one block do not come in order, as heap-only tuples are indexed under their roots.
    block: Option<u32>,
    on_block: [bool; ON_BLOCK],
}

impl KnownTids {
    pub(super) fn new(state: *mut pg_sys::ValidateIndexState) -> KnownTids {
        let on_block = [false; ON_BLOCK];
        KnownTids { state, at_hand: None, exhausted: false, block: None, on_block }
    }

    /// The index had an entry for `tid` when the validation began.
    ///
    /// # Safety
    /// While the validation runs.
    pub(super) unsafe fn contains(&mut self, tid: Tid) -> bool {
        // SAFETY: the sort is done and is read here only; it lives as long as the validation.
        unsafe {
            let wanted = code_of(tid);
            if self.block != Some(tid.block) {
                self.block = Some(tid.block);
                self.on_block = [false; ON_BLOCK];
            }
            while !self.exhausted && self.at_hand.is_none_or(|code| code < wanted) {
                self.note();
                let mut value = pg_sys::Datum::from(0usize);
                let mut null = false;
                let sort = (*self.state).tuplesort;
                self.exhausted = !compat::sorted_datum(sort, &mut value, &mut null);
                self.at_hand = (!self.exhausted).then(|| value.value() as i64);
            }
            let place = usize::from(tid.offset).checked_sub(1);
            self.at_hand == Some(wanted)
                || place.and_then(|i| self.on_block.get(i)).copied().unwrap_or(false)
        }
    }

    /// Keep in mind the TID at hand if it is one of the block at hand.
    fn note(&mut self) {
        let Some(code) = self.at_hand else { return };
        if self.block.map(i64::from) == Some(code >> 16) {
            let place = usize::from(code as u16).checked_sub(1);
            if let Some(known) = place.and_then(|i| self.on_block.get_mut(i)) {
                *known = true;
            }
        }
    }
}

/// A TID as the number by which PostgreSQL sorts it.
fn code_of(tid: Tid) -> i64 {
    (i64::from(tid.block) << 16) | i64::from(tid.offset)
}

struct Missing {
    known: KnownTids,
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    state: *mut pg_sys::ValidateIndexState,
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
        callback(|| {
            let missing = &mut *(state as *mut Missing);
            if missing.known.contains(tid_of(&*tid)) {
                return;
            }
            let check = if (*missing.info).ii_Unique {
                pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES
            } else {
                pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO
            };
            let (index, table, info) = (missing.index, missing.table, missing.info);
            pg_sys::index_insert(index, values, nulls, tid, table, check, false, info);
            (*missing.state).tups_inserted += 1.0;
        })
    }
}
