//! Callbacks of definition and maintenance: index builds, VACUUM, CLUSTER, sizes.

use super::ext::{self, callback, guarded};
use super::index::{Build, Builder};
use super::snapshot::Snap;
use super::statistics::{size_asked, SizeAsked};
use super::tableam_scan::heap;
use super::Rel;
use crate::am::{analyze, counts, index_build, vacuum as maintenance};
use crate::directory::Directory;
use pgrx::pg_sys;

use super::heap::am as heapam;

pub(super) unsafe extern "C-unwind" fn index_build_range_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    allow_sync: bool,
    anyvisible: bool,
    _progress: bool,
    // Ranges of blocks: only BRIN asks for them, and it is refused.
    _start: pg_sys::BlockNumber,
    _count: pg_sys::BlockNumber,
    call: pg_sys::IndexBuildCallback,
    state: *mut core::ffi::c_void,
    scan: pg_sys::TableScanDesc,
) -> f64 {
    callback(|| {
        let build = Build { table, index, info, allow_sync, anyvisible, call, state, scan };
        let mut builder = Builder::new(build);
        let rows = index_build::build(&mut builder);
        builder.finish();
        rows
    })
}

pub(super) unsafe extern "C-unwind" fn index_validate_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    snapshot: pg_sys::Snapshot,
    state: *mut pg_sys::ValidateIndexState,
) {
    callback(|| super::index::validate(table, index, info, snapshot, state))
}

/// Run `f`, a callback of heapam that is to take the table for one of `rows` rows. An error leaves the
/// cached count as it was.
unsafe fn counted_as(rel: pg_sys::Relation, rows: f32, f: impl FnOnce() + Copy) {
    let whole = (*(*rel).rd_rel).reltuples;
    (*(*rel).rd_rel).reltuples = rows;
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| guarded(f)));
    if let Err(panic) = outcome {
        (*(*rel).rd_rel).reltuples = whole;
        std::panic::resume_unwind(panic);
    }
}

pub(super) unsafe extern "C-unwind" fn vacuum(
    rel: pg_sys::Relation,
    params: *mut pg_sys::VacuumParams,
    strategy: pg_sys::BufferAccessStrategy,
) {
    callback(|| {
        maintenance::before(Rel::of(rel), &super::index_clean::Wish::of(params, strategy));
        let part = maintenance::row_store_tuples(Rel::of(rel), (*(*rel).rd_rel).reltuples);
        counted_as(rel, part, || heap!(relation_vacuum(rel, params, strategy)));
        // heapam has written the catalog; the minor releases before 2024 tell the caches of such
        // writes at the end of the command only.
        pg_sys::CommandEndInvalidationMessages();
        maintenance::after(Rel::of(rel))
    })
}

pub(super) unsafe extern "C-unwind" fn size(
    rel: pg_sys::Relation,
    fork: pg_sys::ForkNumber::Type,
) -> u64 {
    if fork == pg_sys::ForkNumber::MAIN_FORKNUM {
        let table = Rel::of(rel);
        let blocks = match size_asked(table) {
            SizeAsked::Plainly => None,
            SizeAsked::ToSample => Some(callback(|| analyze::blocks_to_sample(table))),
            SizeAsked::ToShare => Some(callback(|| analyze::blocks_to_share(table))),
        };
        if let Some(blocks) = blocks {
            return u64::from(blocks) * u64::from(pg_sys::BLCKSZ);
        }
    }
    heap!(relation_size(rel, fork))
}

pub(super) unsafe extern "C-unwind" fn needs_toast_table(_rel: pg_sys::Relation) -> bool {
    true
}

/// The TOAST relation of a firn table is a heap that knows of rows that are not MVCC.
pub(super) unsafe extern "C-unwind" fn toast_am(_rel: pg_sys::Relation) -> pg_sys::Oid {
    callback(|| pg_sys::get_table_am_oid(c"firn_toast".as_ptr(), false))
}

pub(super) unsafe extern "C-unwind" fn estimate_size(
    rel: pg_sys::Relation,
    widths: *mut i32,
    pages: *mut pg_sys::BlockNumber,
    tuples: *mut f64,
    all_visible: *mut f64,
) {
    // heapam's estimate divides reltuples by relpages, and reltuples counts stripes too after VACUUM
    // and ANALYZE: give it the row store's part.
    let (stripes, actual) = callback(|| {
        let stripes = counts::stripe_totals(Rel::of(rel));
        let whole = (*(*rel).rd_rel).reltuples;
        let part = if whole < 0.0 { whole } else { stripes.row_store_part(whole).unwrap_or(-1.0) };
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
    *pages = (*pages).saturating_add(stripes.pages());
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
    // heapam's copy reads the old table through its access method when there is no index: it would
    // see stripe rows and has no place for their bytes. The row store is copied by heapam with the
    // scan restricted to it, then the chunks are carried over as they are.
    callback(|| crate::am::scan::row_store_only(true));
    let result = callback(|| {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            guarded(|| {
                heap!(relation_copy_for_cluster(
                    old,
                    new,
                    index,
                    use_sort,
                    oldest_xmin,
                    xid_cutoff,
                    multi_cutoff,
                    rows,
                    vacuumed,
                    recently_dead
                ))
            })
        }));
        crate::am::scan::row_store_only(false);
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        let (all, live) = stripe_rows(Rel::of(old));
        carry_stripes(old, new, oldest_xmin, *xid_cutoff, *multi_cutoff);
        if all > 0 {
            // The caller sets the table's count to what we return.
            let toast = (*(*new).rd_rel).reltoastrelid.to_u32();
            let toast = super::Toast::open_oid(toast, super::LockMode::RowExclusive);
            counts::note(&toast, *rows + live as f64, all, live);
        }
        live as f64
    });
    *rows += result;
}

/// Copy all rows of ours from the old TOAST relation to the new one, their transaction ids kept, so
/// that older snapshots go on seeing what they saw.
unsafe fn carry_stripes(
    old: pg_sys::Relation,
    new: pg_sys::Relation,
    oldest_xmin: pg_sys::TransactionId,
    freeze_xid: pg_sys::TransactionId,
    cutoff_multi: pg_sys::MultiXactId,
) {
    let (from, to) = ((*(*old).rd_rel).reltoastrelid, (*(*new).rd_rel).reltoastrelid);
    if from == pg_sys::InvalidOid || to == pg_sys::InvalidOid {
        return;
    }
    let from = pg_sys::table_open(from, pg_sys::AccessExclusiveLock as i32);
    let to = pg_sys::table_open(to, pg_sys::AccessExclusiveLock as i32);
    let rewrite = ext::begin_heap_rewrite(from, to, oldest_xmin, freeze_xid, cutoff_multi);
    let flags = pg_sys::ScanOptions::SO_TYPE_SEQSCAN | pg_sys::ScanOptions::SO_ALLOW_STRAT;
    let scan = pg_sys::heap_beginscan(
        from,
        Snap::any().0,
        0,
        std::ptr::null_mut(),
        std::ptr::null_mut(),
        flags,
    );
    let slot = pg_sys::table_slot_create(from, std::ptr::null_mut());
    loop {
        super::xact::check_for_interrupts();
        if !pg_sys::heap_getnextslot(scan, pg_sys::ScanDirection::ForwardScanDirection, slot) {
            break;
        }
        let tuple = (*(slot as *mut pg_sys::BufferHeapTupleTableSlot)).base.tuple;
        let header = (*tuple).t_data;
        let id = *((header as *const u8).add(usize::from((*header).t_hoff)) as *const u32);
        if id >= pg_sys::FirstNormalObjectId {
            continue;
        }
        let buffer = (*(scan as pg_sys::HeapScanDesc)).rs_cbuf;
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
        let state = pg_sys::HeapTupleSatisfiesVacuum(tuple, oldest_xmin, buffer);
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
        if state == pg_sys::HTSV_Result::HEAPTUPLE_DEAD {
            ext::rewrite_heap_dead_tuple(rewrite, tuple);
        } else {
            ext::rewrite_heap_tuple(rewrite, tuple, pg_sys::heap_copytuple(tuple));
        }
    }
    pg_sys::ExecDropSingleTupleTableSlot(slot);
    pg_sys::heap_endscan(scan);
    ext::end_heap_rewrite(rewrite);
    pg_sys::CommandCounterIncrement();
    let indexes = pg_sys::RelationGetIndexList(to);
    let mut params: pg_sys::ReindexParams = std::mem::zeroed();
    let persistence = (*(*to).rd_rel).relpersistence;
    for i in 0..(if indexes.is_null() { 0 } else { (*indexes).length }) {
        let oid = (*(*indexes).elements.add(i as usize)).oid_value;
        pg_sys::reindex_index(oid, false, persistence, &mut params);
    }
    keep_defaults(Rel::of(old), (*to).rd_id.to_u32());
    pg_sys::relation_close(from, pg_sys::NoLock as i32);
    pg_sys::relation_close(to, pg_sys::NoLock as i32);
}

/// Rows of the table's stripes, and those alive.
fn stripe_rows(table: Rel) -> (u64, u64) {
    let directory = Directory::open(table, super::LockMode::AccessShare);
    directory.map_or((0, 0), |d| counts::count_stripe_rows(&d))
}

/// PostgreSQL forgets the defaults of added columns after a rewrite, as heap rows have them written
/// out then. Stripes were carried as they are and still need them.
fn keep_defaults(old: Rel, new_toast: u32) {
    let toast = super::Toast::open_oid(new_toast, super::LockMode::RowExclusive);
    for attribute in old.attributes().iter().filter(|a| !a.dropped) {
        let Some(bytes) = super::slot::remembered_default(old, attribute) else { continue };
        let key = super::ChunkKey {
            id: crate::directory::keys::MISSING,
            seq: i32::from(attribute.number),
        };
        if bytes.len() > super::toast::CHUNK_BYTES {
            super::error(
                super::Kind::Limit,
                format!(
                    "default of column \"{}\" is too large to rewrite the table",
                    attribute.name
                ),
            )
            .hint("Rewrite the table with ALTER TABLE ... SET ACCESS METHOD heap and back.")
            .raise()
        }
        if toast.find(key, Snap::self_snap()).is_none() {
            toast.insert(key, &bytes, super::xact::command_id(true), true);
        }
    }
}

/// Write a table's counts to pg_class in place, as VACUUM does.
pub fn set_row_count(table: Rel, rows: f64) {
    // SAFETY: the in-place update needs no transaction of its own; ids 0 leave horizons alone.
    unsafe {
        let form = (*table.raw()).rd_rel;
        let (mut a, mut b) = (false, false);
        pg_sys::vac_update_relstats(
            table.raw(),
            (*form).relpages.max(0) as u32,
            rows,
            (*form).relallvisible as u32,
            (*form).relhasindex,
            pg_sys::InvalidTransactionId,
            pg_sys::MultiXactId::from_inner(0),
            &mut a,
            &mut b,
            false,
        );
    }
}

/// pg_class.reltuples of a relation as the catalog has it now.
pub fn row_count(oid: u32) -> f64 {
    // SAFETY: syscache look-up, released.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::RELOID as i32,
            pg_sys::Datum::from(pg_sys::Oid::from(oid)),
        );
        if tuple.is_null() {
            return -1.0;
        }
        let header = (*tuple).t_data;
        let form = (header as *const u8).add(usize::from((*header).t_hoff))
            as *const pg_sys::FormData_pg_class;
        let rows = f64::from((*form).reltuples);
        pg_sys::ReleaseSysCache(tuple);
        rows
    }
}

/// OIDs of the table's indexes.
pub fn index_oids(table: Rel) -> Vec<u32> {
    // SAFETY: the list is a copy in the current context.
    unsafe {
        let list = pg_sys::RelationGetIndexList(table.raw());
        if list.is_null() {
            return Vec::new();
        }
        let all =
            (0..(*list).length as usize).map(|i| (*(*list).elements.add(i)).oid_value.to_u32());
        let all = all.collect();
        pg_sys::list_free(list);
        all
    }
}
