//! Callbacks of definition and maintenance: index builds, VACUUM, CLUSTER, sizes.

use super::rewrite_table::Request;
use super::scan::heap;
use crate::am::{analyze, index_build, vacuum as maintenance};
use crate::directory::counts;
use crate::pg::compat;
use crate::pg::ext::{callback, guarded};
use crate::pg::index::{Build, Builder};
use crate::pg::rel::BLOCK_BYTES;
use crate::pg::statistics::{size_asked, SizeAsked};
use crate::pg::{own_toast, Oid, Rel};
use pgrx::pg_sys;

use crate::pg::heap::am as heapam;

pub(super) unsafe extern "C-unwind" fn index_build_range_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    allow_sync: bool,
    anyvisible: bool,
    _progress: bool,
    // Ranges of blocks: BRIN asks for them, which gets the row store's, and builds that look at a sample first.
    start: pg_sys::BlockNumber,
    count: pg_sys::BlockNumber,
    call: pg_sys::IndexBuildCallback,
    state: *mut core::ffi::c_void,
    scan: pg_sys::TableScanDesc,
) -> f64 {
    // SAFETY: PostgreSQL hands in an open table and index and what describes the index; a scan that comes along is live.
    unsafe {
        callback(|| {
            let is_all = start == 0 && count == pg_sys::InvalidBlockNumber;
            let blocks = (!is_all).then(|| start..start.saturating_add(count));
            let build =
                Build { table, index, info, allow_sync, anyvisible, blocks, call, state, scan };
            let mut builder = Builder::new(build);
            let rows = index_build::build(&mut builder);
            builder.finish();
            rows
        })
    }
}

pub(super) unsafe extern "C-unwind" fn index_validate_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    snapshot: pg_sys::Snapshot,
    state: *mut pg_sys::ValidateIndexState,
) {
    // SAFETY: PostgreSQL hands in an open table and index, a registered snapshot, and the sorted TIDs of the index.
    unsafe { callback(|| super::index_validate::validate(table, index, info, snapshot, state)) }
}

/// Run `f`, a callback of heapam that is to take the table for one of `rows` rows. An error leaves the
/// cached count as it was.
unsafe fn counted_as(rel: pg_sys::Relation, rows: f32, f: impl FnOnce() + Copy) {
    // SAFETY: the cached row of pg_class is there while the relation is open; an error is held back until it is what it was.
    unsafe {
        let whole = (*(*rel).rd_rel).reltuples;
        (*(*rel).rd_rel).reltuples = rows;
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| guarded(f)));
        if let Err(panic) = outcome {
            (*(*rel).rd_rel).reltuples = whole;
            std::panic::resume_unwind(panic);
        }
    }
}

pub(super) unsafe extern "C-unwind" fn vacuum(
    rel: pg_sys::Relation,
    params: *mut pg_sys::VacuumParams,
    strategy: pg_sys::BufferAccessStrategy,
) {
    // SAFETY: the relation is open under VACUUM's lock; parameters and ring are the caller's for the length of the call.
    unsafe {
        callback(|| {
            let wish = crate::pg::index_clean::Wish::of(params, strategy);
            let left = maintenance::before(Rel::of(rel), &wish);
            let part = maintenance::row_store_tuples(Rel::of(rel), (*(*rel).rd_rel).reltuples);
            counted_as(rel, part, || heap!(relation_vacuum(rel, params, strategy)));
            // heapam has written the catalog; the minor releases before 2024 tell the caches of such
            // writes at the end of the command only.
            pg_sys::CommandEndInvalidationMessages();
            maintenance::after(Rel::of(rel), left)
        })
    }
}

pub(super) unsafe extern "C-unwind" fn size(
    rel: pg_sys::Relation,
    fork: pg_sys::ForkNumber::Type,
) -> u64 {
    // SAFETY: the relation is open.
    unsafe {
        if fork == pg_sys::ForkNumber::MAIN_FORKNUM {
            let table = Rel::of(rel);
            let blocks = match size_asked(table) {
                SizeAsked::Plainly => None,
                SizeAsked::ToSample => Some(callback(|| analyze::blocks_to_sample(table))),
                SizeAsked::ToShare => Some(callback(|| analyze::blocks_to_share(table))),
            };
            if let Some(blocks) = blocks {
                return u64::from(blocks) * BLOCK_BYTES;
            }
        }
        heap!(relation_size(rel, fork))
    }
}

/// A firn table needs one, whatever its columns are. Asked when a table is made, and by every ALTER TABLE:
/// by that only a table is met without one that has just become firn's or comes from before firn saw to
/// that. It gets it as soon as the statement is over (see `hooks/alter.rs`), if that holds the lock that is
/// needed; here PostgreSQL would raise an error if not.
pub(super) unsafe extern "C-unwind" fn needs_toast_table(rel: pg_sys::Relation) -> bool {
    // SAFETY: the relation is open.
    unsafe { (*rel).rd_createSubid != 0 || own_toast::is_creating_toast() }
}

/// A new file for a table, or for a table that TRUNCATE empties.
pub(super) unsafe extern "C-unwind" fn set_new_file(
    rel: pg_sys::Relation,
    file: *const compat::FileName,
    persistence: core::ffi::c_char,
    freeze_xid: *mut pg_sys::TransactionId,
    minmulti: *mut pg_sys::MultiXactId,
) {
    // SAFETY: the relation is open, and the caller's places for the horizons are to be written to by heapam.
    unsafe {
        // PostgreSQL will rebuild the TOAST relation's valid index only.
        callback(|| Rel::of(rel).toast_oid().map(own_toast::drop_left_over_indexes));
        match compat::new_file(heapam()) {
            Some(f) => f(rel, file, persistence, freeze_xid, minmulti),
            None => std::process::abort(),
        }
    }
}

/// TRUNCATE where a rollback would take the file away anyway: it is emptied in place. PostgreSQL goes on
/// with the indexes, and only then with the TOAST relation; but the indexes must not find the stripes any
/// more, whose TIDs are about to be given out anew.
pub(super) unsafe extern "C-unwind" fn nontransactional_truncate(rel: pg_sys::Relation) {
    // SAFETY: the relation is open under the strongest lock, and so is then its TOAST relation.
    unsafe {
        heap!(relation_nontransactional_truncate(rel));
        callback(|| {
            let table = Rel::of(rel);
            crate::write::discard_table(table);
            let Some(oid) = table.toast_oid() else { return };
            let toast = pg_sys::table_open(oid, pg_sys::AccessExclusiveLock as i32);
            pg_sys::heap_truncate_one_rel(toast);
            crate::am::forget(Rel::of(toast).storage());
            pg_sys::table_close(toast, pg_sys::NoLock as i32);
        })
    }
}

/// The TOAST relation of a firn table is a heap that knows of rows that are not MVCC.
pub(super) unsafe extern "C-unwind" fn toast_am(_rel: pg_sys::Relation) -> Oid {
    // SAFETY: a look-up of a name, in a transaction.
    unsafe { callback(|| pg_sys::get_table_am_oid(c"firn_toast".as_ptr(), false)) }
}

pub(super) unsafe extern "C-unwind" fn estimate_size(
    rel: pg_sys::Relation,
    widths: *mut i32,
    pages: *mut pg_sys::BlockNumber,
    tuples: *mut f64,
    all_visible: *mut f64,
) {
    // SAFETY: the relation is open, and what the planner asks for goes to variables of its own.
    unsafe {
        // heapam's estimate divides reltuples by relpages, and reltuples counts stripes too after VACUUM
        // and ANALYZE: give it the row store's part.
        let (stripes, actual) = callback(|| {
            let stripes = counts::stripe_totals(Rel::of(rel));
            let whole = (*(*rel).rd_rel).reltuples;
            // (Statistics that a dump has brought are of another row store: more rows than its pages can have say nothing of this one's.)
            let most = (*(*rel).rd_rel).relpages as f32 * firn_format::ROWS_PER_BLOCK as f32;
            let part = match whole < 0.0 {
                true => whole,
                false => stripes.row_store_part(whole).filter(|p| *p <= most).unwrap_or(-1.0),
            };
            counted_as(rel, part, || {
                heap!(relation_estimate_size(rel, widths, pages, tuples, all_visible))
            });
            (*(*rel).rd_rel).reltuples = whole;
            (stripes, Rel::of(rel).heap_blocks())
        });
        if stripes.rows > 0.0 && actual < *pages {
            // heapam takes a never-analysed table for ten pages at least; here the stripes are the table.
            *tuples *= f64::from(actual) / f64::from((*pages).max(1));
            *pages = actual;
        }
        *tuples += stripes.live();
        // An index-only scan takes rows of stripes as it takes those of a heap's pages that are all visible. (What finding the deleted ones costs is
        // added to the path's price later: `entry/customscan/price.rs`.)
        let (row_store, of_stripes) = (f64::from(*pages), f64::from(stripes.pages()));
        if of_stripes > 0.0 && stripes.rows > 0.0 {
            let visible =
                *all_visible * row_store + (stripes.live() / stripes.rows).min(1.0) * of_stripes;
            *all_visible = visible / (row_store + of_stripes);
        }
        *pages = (*pages).saturating_add(stripes.pages());
    }
}

pub(super) unsafe extern "C-unwind" fn copy_for_cluster(
    old: pg_sys::Relation,
    new: pg_sys::Relation,
    index: pg_sys::Relation,
    use_sort: bool,
    oldest_xmin: pg_sys::TransactionId,
    xid_cutoff: *mut pg_sys::TransactionId,
    multi_cutoff: *mut pg_sys::MultiXactId,
    rows: *mut f64,
    vacuumed: *mut f64,
    recently_dead: *mut f64,
) {
    // SAFETY: both relations are open under the strongest lock, the index, if one is given, too; the counters are the caller's.
    unsafe {
        let request = Request {
            old,
            new,
            index,
            sort: use_sort,
            oldest: oldest_xmin,
            freeze: *xid_cutoff,
            multi: *multi_cutoff,
        };
        let found = callback(|| super::carry::copy_table(&request));
        *rows += found.rows;
        *vacuumed += found.vacuumed;
        *recently_dead += found.recently_dead;
    }
}
