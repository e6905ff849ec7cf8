//! Building indexes over both halves of a table.

use super::rows::StripeRows;
use crate::directory::tombstones::Stone;
use crate::directory::{cleaned, counts, tombstones, Directory};
use crate::pg::index::Builder;
use crate::pg::report::notice;
use crate::pg::{xact, LockMode, Rel, Snap};
use firn_format::{Slot, Tid, TombstoneState, VIRTUAL_BASE};
use std::collections::HashMap;

/// A number of rows that PostgreSQL does not note: that of a parallel build, to which each process adds, is negative with it.
const UNKNOWN: f64 = -1e30;

/// Build an index. Returns the number of rows.
pub fn build(builder: &mut Builder) -> f64 {
    if builder.is_of_ranges() {
        // No plan uses it: rows of stripes are in no range of blocks. It is no error, as a partition must have the index that its parent has, a
        // table that becomes firn's keeps its indexes, and a dump of either is to be restored, by pg_upgrade as well. A new one refuses what heap's
        // would, as it would refuse the rows that come later: rows of stripes are in its last range. To build a valid one anew (VACUUM FULL does, where
        // there is no other index) no stripe is read, and no store.
        if builder.is_asked_for() && builder.blocks().is_none() {
            notice(format!("index \"{}\" will not be used", builder.name()))
                .detail(
                    "A BRIN index summarizes ranges of physical blocks; rows in stripes have none.",
                )
                .hint("The zone maps of stripes do the same work without an index.")
                .tell();
        }
        builder.put_all_into(last_block(builder.table()));
    }
    let rows = builder.row_store();
    if builder.is_of_ranges() && !builder.is_new() {
        builder.end_scan();
        // A worker does not know of an index that its leader's transaction has made: the leader reads the stripes and tells.
        return if xact::is_parallel_worker() { rows } else { UNKNOWN };
    }
    let stripes = match builder.mvcc_snapshot() {
        Some(snap) => visible_stripes(builder, snap),
        None => all_stripes(builder),
    };
    builder.end_scan();
    // PostgreSQL sets the table's count, too. Of a parallel build no process knows all of it, nor
    // could write it: estimates are less good until the next VACUUM or ANALYZE then. Who asks for some blocks builds nothing of them.
    if !builder.is_of_given_scan() && builder.blocks().is_none() {
        counts::note_build(builder.table(), rows + stripes, stripes);
    }
    rows + stripes
}

/// The row store's last block.
pub fn last_block(table: Rel) -> u32 {
    table.heap_blocks().saturating_sub(1)
}

/// Offer the stripe rows that `snap` sees.
pub fn visible_stripes(builder: &mut Builder, snap: Snap) -> f64 {
    let Some(mut rows) = stripe_rows(builder, snap) else { return 0.0 };
    let mut count = 0.0;
    while let Some((tid, xmin)) = rows.step(true) {
        builder.offer(tid, xmin, rows.row(), true);
        count += 1.0;
    }
    count
}

/// The rows of stripes that are asked for; None when none are.
fn stripe_rows(builder: &Builder, snap: Snap) -> Option<StripeRows> {
    let rows = || StripeRows::new(builder.table(), snap, builder.wanted(), claim(builder));
    let Some(asked) = builder.blocks() else { return Some(rows()) };
    let low = Tid { block: asked.start, offset: 0 };
    let high = Tid { block: asked.end, offset: 0 };
    (asked.end > VIRTUAL_BASE).then(|| rows().between(low, high))
}

fn claim(builder: &Builder) -> Option<super::rows::Claim> {
    builder.shared().map(|shared| Box::new(move || shared.claim()) as super::rows::Claim)
}

/// Offer all rows that any snapshot may see: deleted ones too, unless they are dead to all.
fn all_stripes(builder: &mut Builder) -> f64 {
    let table = builder.table();
    let asked = builder.blocks().unwrap_or(0..u32::MAX);
    if asked.end <= VIRTUAL_BASE {
        return 0.0;
    }
    let Some(directory) = Directory::open(table, LockMode::AccessShare) else { return 0.0 };
    let snap = Snap::self_snap();
    let oldest = xact::oldest_visible(table);
    // That may go back, behind what VACUUM has gone by: a row whose entries it has removed is as gone as one that it has removed.
    // (A table that is being emptied has no note that could be read: its TOAST relation's index comes later.)
    let list = directory.list(snap);
    let cleaned = if list.is_empty() { 0 } else { cleaned::read(&directory.toast).before };
    let is_gone =
        |stone: &Stone| xact::precedes(stone.xmin, oldest) || xact::full(stone.raw_xmin) < cleaned;
    // Row number to "dead to all", per stripe.
    let mut deleted: HashMap<u32, HashMap<u32, bool>> = HashMap::new();
    for found in list {
        let block = |row| Tid::of(found.slot, row).block;
        if block(0) >= asked.end || block(found.entry.rows.max(1) - 1) < asked.start {
            continue;
        }
        let mut of_stripe = HashMap::new();
        tombstones::each(&directory.toast, found.slot, found.entry.rows, snap, |row, stone| {
            if stone.tombstone.state == TombstoneState::Deleted {
                of_stripe.insert(row, is_gone(&stone));
            }
        });
        if !of_stripe.is_empty() {
            deleted.insert(found.slot.0, of_stripe);
        }
    }
    let Some(rows) = stripe_rows(builder, snap) else { return 0.0 };
    let mut rows = rows.with_deleted();
    let mut count = 0.0;
    while let Some((tid, xmin)) = rows.step(true) {
        let slot: Option<Slot> = rows.slot();
        let fate = slot
            .and_then(|s| deleted.get(&s.0).zip(tid.row_in(s)))
            .and_then(|(map, row)| map.get(&row).copied());
        if fate == Some(true) {
            continue;
        }
        builder.offer(tid, xmin, rows.row(), fate.is_none());
        if fate.is_none() {
            count += 1.0;
        }
    }
    count
}
