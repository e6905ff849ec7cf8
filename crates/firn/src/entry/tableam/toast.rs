//! The access method `firn_toast` of the TOAST relations of firn tables: heapam's routine, with the callbacks
//! replaced that must know that some rows there are not MVCC (see directory/README.md, "Pinned rows").

use super::scan::heap;
use crate::directory::{is_misplaced, keys};
use crate::pg::compat;
use crate::pg::ext::callback;
use crate::pg::index::{Build, Builder};
use crate::pg::toast::RowView;
use crate::pg::{error, heap::am as heapam, toast_indexes, Kind, Oid, Rel};
use firn_directory::Place;
use pgrx::pg_sys;

static mut ROUTINE: Option<pg_sys::TableAmRoutine> = None;

/// The routine; its address identifies TOAST relations of firn tables.
pub(in crate::entry) fn routine() -> *const pg_sys::TableAmRoutine {
    // SAFETY: filled once, main thread only, never moved afterwards.
    unsafe {
        let place = &raw mut ROUTINE;
        (*place).get_or_insert_with(build) as *const _
    }
}

fn build() -> pg_sys::TableAmRoutine {
    let mut routine = pg_sys::TableAmRoutine {
        index_build_range_scan: Some(index_build_range_scan),
        index_validate_scan: Some(index_validate_scan),
        relation_vacuum: Some(vacuum),
        relation_fetch_toast_slice: Some(fetch_slice),
        ..*heapam()
    };
    compat::set_new_file(&mut routine, Some(set_new_storage));
    routine
}

unsafe extern "C-unwind" fn set_new_storage(
    rel: pg_sys::Relation,
    file: *const compat::FileName,
    persistence: core::ffi::c_char,
    freeze_xid: *mut pg_sys::TransactionId,
    min_multi: *mut pg_sys::MultiXactId,
) {
    // SAFETY: the relation is open, and the caller's places for the horizons are to be written to by heapam.
    unsafe {
        callback(|| {
            if Rel::of(rel).kind() != pg_sys::RELKIND_TOASTVALUE {
                error(
                    Kind::Unsupported,
                    "access method \"firn_toast\" is for TOAST relations of firn tables only",
                )
                .hint("Use access method firn, and VACUUM FULL on the table itself.")
                .raise()
            }
        });
        match compat::new_file(heapam()) {
            Some(f) => f(rel, file, persistence, freeze_xid, min_multi),
            None => std::process::abort(),
        }
    }
}

unsafe extern "C-unwind" fn index_build_range_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    allow_sync: bool,
    anyvisible: bool,
    _progress: bool,
    // Ranges of blocks: only BRIN asks for them, and TOAST relations have no such index.
    _start: pg_sys::BlockNumber,
    _count: pg_sys::BlockNumber,
    call: pg_sys::IndexBuildCallback,
    state: *mut core::ffi::c_void,
    scan: pg_sys::TableScanDesc,
) -> f64 {
    // SAFETY: PostgreSQL hands in an open TOAST relation and index and what describes the index; a scan that comes along is live.
    unsafe {
        callback(|| {
            let blocks = None;
            let build =
                Build { table, index, info, allow_sync, anyvisible, blocks, call, state, scan };
            let mut builder = Builder::new(build);
            // A concurrent build leaves the pinned rows to its validation.
            let rows = match builder.mvcc_snapshot().is_some() {
                true => builder.heap_rows(is_pinned),
                false => builder.heap_rows(never),
            };
            builder.finish();
            rows
        })
    }
}

unsafe extern "C-unwind" fn index_validate_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    snapshot: pg_sys::Snapshot,
    state: *mut pg_sys::ValidateIndexState,
) {
    // SAFETY: PostgreSQL hands in an open TOAST relation and index, a registered snapshot, and the sorted TIDs of the index.
    unsafe { callback(|| super::index_toast::validate(table, index, info, snapshot, state)) }
}

unsafe extern "C-unwind" fn vacuum(
    rel: pg_sys::Relation,
    params: *mut pg_sys::VacuumParams,
    strategy: pg_sys::BufferAccessStrategy,
) {
    // SAFETY: the relation is open under VACUUM's lock; heapam gets a copy of the parameters, which are plain values.
    unsafe {
        let mut own = *params;
        // Chunks are large and few: their index entries are worth removing however few they are, as else
        // their pages could not be given back.
        if own.index_cleanup == pg_sys::VacOptValue::VACOPTVALUE_AUTO {
            own.index_cleanup = pg_sys::VacOptValue::VACOPTVALUE_ENABLED;
        }
        callback(|| {
            toast_indexes::forget_after_error();
            crate::am::anchors::remove_unheld(Rel::of(rel))
        });
        heap!(relation_vacuum(rel, &mut own, strategy));
    }
}

unsafe extern "C-unwind" fn fetch_slice(
    toast: pg_sys::Relation,
    value: Oid,
    size: i32,
    offset: i32,
    length: i32,
    result: *mut pg_sys::varlena,
) {
    // SAFETY: PostgreSQL hands in an open TOAST relation, and room for the slice.
    unsafe {
        if toast_indexes::are_left() {
            callback(toast_indexes::forget_after_error);
        }
        heap!(relation_fetch_toast_slice(toast, value, size, offset, length, result))
    }
}

/// Which rows a build passes over. An index goes by the keys that rows have: one that is seen to have got another one would be lost
/// under that to all who look for it, and to those who might say so.
fn is_pinned(row: &RowView) -> bool {
    refuse_misplaced(row);
    keys::is_pinned(row.key().id, row.data())
}

/// As [`is_pinned`] for those that take them all.
pub(super) fn never(row: &RowView) -> bool {
    refuse_misplaced(row);
    false
}

fn refuse_misplaced(row: &RowView) {
    let (key, Place { block, offset }) = (row.key(), row.place());
    if !is_misplaced(key, row.data()) {
        return;
    }
    error(Kind::Corrupt, format!("a row of TOAST relation {} is damaged", row.relation()))
        .detail(format!(
            "The row at ({block},{offset}) has the key ({}, {}), which is not its own.",
            key.id, key.seq
        ))
        .hint("Run firn.check() on the table; restore it from a backup or standby.")
        .raise()
}
