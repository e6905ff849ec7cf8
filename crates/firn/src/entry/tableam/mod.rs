//! Our table access method routine: heapam's, with the callbacks that must know stripes replaced.
//! Callbacks whose shape depends on PostgreSQL's version (new files, ANALYZE's blocks, bitmap scans) are set by `pg/compat/`.

mod carry;
mod ddl;
pub(super) mod hidden;
mod index_toast;
mod index_validate;
mod rewrite_table;
mod sampling;
pub(super) mod scan;
pub(super) mod scandesc;
pub(super) mod toast;
mod tuple;

use crate::pg::{compat, heap, method};
use pgrx::pg_sys;

/// The routine; its address identifies firn tables.
pub(super) fn routine() -> *const pg_sys::TableAmRoutine {
    static mut FILLED: bool = false;
    // SAFETY: filled once, on the main thread, before PostgreSQL has seen the address; never written afterwards.
    unsafe {
        if !FILLED {
            method::routine().write(build());
            FILLED = true;
        }
    }
    method::routine()
}

fn build() -> pg_sys::TableAmRoutine {
    let mut routine = pg_sys::TableAmRoutine {
        scan_begin: Some(scan::begin),
        scan_end: Some(scan::end),
        scan_rescan: Some(scan::rescan),
        scan_getnextslot: Some(scan::getnextslot),
        scan_set_tidrange: Some(scan::set_tidrange),
        scan_getnextslot_tidrange: Some(scan::getnextslot_tidrange),
        parallelscan_estimate: Some(scan::parallel_estimate),
        parallelscan_initialize: Some(scan::parallel_initialize),
        parallelscan_reinitialize: Some(scan::parallel_reinitialize),
        scan_sample_next_block: Some(scan::sample_next_block),
        scan_sample_next_tuple: Some(scan::sample_next_tuple),
        scan_analyze_next_tuple: Some(scan::analyze_next_tuple),
        index_fetch_begin: Some(tuple::index_fetch_begin),
        index_fetch_reset: Some(tuple::index_fetch_reset),
        index_fetch_end: Some(tuple::index_fetch_end),
        index_fetch_tuple: Some(tuple::index_fetch_tuple),
        tuple_fetch_row_version: Some(tuple::fetch_row_version),
        tuple_tid_valid: Some(tuple::tid_valid),
        tuple_get_latest_tid: Some(tuple::get_latest_tid),
        tuple_satisfies_snapshot: Some(tuple::satisfies_snapshot),
        index_delete_tuples: Some(tuple::index_delete_tuples),
        tuple_insert: Some(tuple::insert),
        tuple_insert_speculative: Some(tuple::insert_speculative),
        multi_insert: Some(tuple::multi_insert),
        finish_bulk_insert: Some(tuple::finish_bulk_insert),
        tuple_delete: Some(tuple::delete),
        tuple_update: Some(tuple::update),
        tuple_lock: Some(tuple::lock),
        index_build_range_scan: Some(ddl::index_build_range_scan),
        index_validate_scan: Some(ddl::index_validate_scan),
        relation_nontransactional_truncate: Some(ddl::nontransactional_truncate),
        relation_copy_for_cluster: Some(ddl::copy_for_cluster),
        relation_vacuum: Some(ddl::vacuum),
        relation_size: Some(ddl::size),
        relation_needs_toast_table: Some(ddl::needs_toast_table),
        relation_toast_am: Some(ddl::toast_am),
        relation_estimate_size: Some(ddl::estimate_size),
        ..*heap::am()
    };
    compat::set_new_file(&mut routine, Some(ddl::set_new_file));
    compat::set_analyze_callback::<scan::Own>(&mut routine);
    compat::set_bitmap_callbacks::<scan::Own>(&mut routine);
    routine
}
