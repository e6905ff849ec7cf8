//! VACUUM: heapam's cleans the row store, and counts that only. The table's counts are set right
//! before, so that heapam's estimate is about the row store, and after it.

use crate::directory::{cleaned, counts, damaged_row, forward, newer_row, Directory};
use crate::pg::index_clean::Wish;
use crate::pg::rel::index_oids;
use crate::pg::statistics::{add_live_rows, row_count, set_row_count};
use crate::pg::{error, guc, worker, xact, Kind, LockMode, OpenRel, Rel, Snap};
use firn_format::{Error, Slot};

/// What heapam shall take for the table's `pg_class.reltuples` = `whole`. VACUUM counts the pages it
/// reads and takes the others to be as full as all were before.
pub fn row_store_tuples(table: Rel, whole: f32) -> f32 {
    let mut damaged: Vec<(Slot, Error)> = Vec::new();
    let totals = counts::stripe_totals_readable(table, |slot, e| damaged.push((slot, e.clone())));
    if let Some((slot, e)) = damaged.first() {
        warn_of_damage(table, *slot, e, damaged.len() - 1);
    }
    totals.row_store_part(whole).unwrap_or(-1.0)
}

/// Freezing must go on, whatever a directory row says: nothing that VACUUM does asks for a stripe that it cannot read
/// about. It says so here, once, and passes over such a row wherever it meets one.
fn warn_of_damage(table: Rel, slot: Slot, e: &Error, others: usize) {
    let more = match others {
        0 => String::new(),
        1 => " So is 1 other.".to_owned(),
        n => format!(" So are {n} others."),
    };
    let report = match e.is_of_newer() {
        true => newer_row(table, slot, e),
        false => error(Kind::Corrupt, damaged_row(table, slot))
            .hint("Run firn.check() on the table; restore it from a backup or standby."),
    };
    report
        .detail(format!("{e}.{more} VACUUM leaves the stripe and its index entries as they are."))
        .warn()
}

/// What comes before heapam's VACUUM. Returns of how many moved rows that will leave the entries that they had before;
/// None when it may leave those of all.
pub fn before(table: Rel, wish: &Wish) -> Option<u64> {
    super::clean_indexes::clean(table, wish);
    if wish.index_cleanup_is_off() {
        return None;
    }
    let toast = Directory::open(table, LockMode::RowExclusive)?.toast;
    // Not the TOAST relation's horizon: what is removed are the table's rows.
    let oldest = xact::oldest_visible(table);
    (!toast.is_empty()).then(|| forward::rows_not_outlived(&toast, oldest))
}

/// What comes after it; `left` as `before` has found.
pub fn after(table: Rel, left: Option<u64>) {
    if let Some(left) = left {
        settle(table, left);
    }
    // Near the end of transaction ids VACUUM must do without one. And a snapshot that lasts as long as the
    // transaction was taken while others ignored it.
    let tidies = !xact::ids_are_scarce() && !xact::keeps_snapshot();
    let left = tidies && crate::mover::tidy_or_leave(table, !xact::leave_vacuum());
    correct_statistics(table);
    let wanted = || guc::rebuild_indexes() && crate::mover::rebuild_wanted(table);
    if xact::is_autovacuum() && (left || wanted()) {
        worker::start_at_exit();
    }
}

/// Only so many rows still have entries of the places where they were before they were moved.
fn settle(table: Rel, left: u64) {
    if let Some(directory) = Directory::open(table, LockMode::RowExclusive) {
        cleaned::settle(&directory.toast, left);
    }
}

/// Add the stripes' rows to the table's and its indexes' counts, by overwriting in place as VACUUM does it.
fn correct_statistics(table: Rel) {
    let Some(directory) = Directory::open(table, LockMode::RowExclusive) else { return };
    let stripes = directory.list_readable(Snap::self_snap(), |_, _| ());
    let (rows, live) = counts::count_stripe_rows(&directory, &stripes);
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
