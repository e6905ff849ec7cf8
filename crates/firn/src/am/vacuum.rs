//! VACUUM: heapam's cleans the row store, and counts that only. The table's counts are set right
//! before, so that heapam's estimate is about the row store, and after it.

use super::counts;
use crate::directory::Directory;
use crate::pg::index_clean::Wish;
use crate::pg::statistics::add_live_rows;
use crate::pg::tableam_ddl::{index_oids, row_count, set_row_count};
use crate::pg::{xact, LockMode, OpenRel, Rel};

/// What heapam shall take for the table's `pg_class.reltuples` = `whole`. VACUUM counts the pages it
/// reads and takes the others to be as full as all were before.
pub fn row_store_tuples(table: Rel, whole: f32) -> f32 {
    counts::stripe_totals_now(table).row_store_part(whole).unwrap_or(-1.0)
}

/// What comes before heapam's VACUUM.
pub fn before(table: Rel, wish: &Wish) {
    super::clean_indexes::clean(table, wish);
}

/// What comes after it.
pub fn after(table: Rel) {
    // Near the end of transaction ids VACUUM must do without one. And a snapshot that lasts as long as the
    // transaction was taken while others ignored it.
    if !xact::ids_are_scarce() && !xact::keeps_snapshot() {
        xact::leave_vacuum();
        crate::mover::tidy(table);
    }
    correct_statistics(table);
}

/// Add the stripes' rows to the table's and its indexes' counts, by overwriting in place as VACUUM does it.
fn correct_statistics(table: Rel) {
    let Some(directory) = Directory::open(table, LockMode::RowExclusive) else { return };
    let (rows, live) = counts::count_stripe_rows(&directory);
    if rows == 0 {
        return;
    }
    let whole = row_count(table.oid()).max(0.0) + live as f64;
    set_row_count(table, whole);
    counts::note(&directory.toast, whole, rows, live);
    add_live_rows(table, live);
    for oid in index_oids(table) {
        let index = OpenRel::any_kind(oid, LockMode::AccessShare);
        let counted = row_count(oid);
        if !index.rel().has_predicate() && counted >= 0.0 && counted < whole {
            set_row_count(index.rel(), whole);
        }
    }
}
