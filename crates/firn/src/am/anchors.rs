//! Anchors that carry no lock any more are removed when their relation is vacuumed. They belong to no transaction, so
//! they cannot be deleted by one either: the page is changed in place (`pg/anchor.rs`), and VACUUM, which comes right
//! after, finds dead rows.
//!
//! Whoever looks for the anchor of a row holds the row's short lock; so does who removes it, if it is free. A locker
//! that has let go of the short lock to lock the anchor keeps the anchor's page pinned until it has: VACUUM does not
//! clear away what is pinned, and the locker finds that the anchor is gone (`am/row_lock.rs`).

use crate::directory::{keys, tombstones};
use crate::pg::{anchor, catalog, lock, xact, LockMode, OpenRel, Rel, Toast};
use firn_format::Tid;
use std::collections::BTreeSet;

/// Short locks held at a time, as many as anchors are removed from a page at once.
const AT_ONCE: usize = 32;

/// Remove the anchors of a TOAST relation, which is being vacuumed, that nobody holds. Does nothing while the
/// table is locked by someone who might wait for us.
pub fn remove_unheld(rel: Rel) {
    let Some(owner) = catalog::owner_of_toast(rel.oid()) else { return };
    // Not to the end of VACUUM's transaction, which may be long.
    let Some(table) = OpenRel::try_open(owner, LockMode::AccessShare) else { return };
    let toast = Toast::open_oid(rel.oid(), LockMode::RowExclusive);
    if toast.is_empty() {
        return;
    }
    let mut blocks = BTreeSet::new();
    toast.each_place(keys::TOMBSTONES, keys::LAST, |place| {
        blocks.insert(place.block);
    });
    for block in blocks {
        xact::delay_vacuum();
        let found: Vec<(u16, Tid)> = anchor::unheld(rel, block)
            .into_iter()
            .filter_map(|(offset, key)| Some((offset, tombstones::tid_of(key)?)))
            .collect();
        for part in found.chunks(AT_ONCE) {
            let ours: Vec<(u16, Tid)> = part
                .iter()
                .copied()
                .filter(|(_, tid)| lock::try_lock_row(table.rel(), *tid))
                .collect();
            let offsets: Vec<u16> = ours.iter().map(|(offset, _)| *offset).collect();
            anchor::remove(rel, block, &offsets);
            for (_, tid) in ours {
                lock::unlock_row(table.rel(), tid);
            }
        }
    }
}
