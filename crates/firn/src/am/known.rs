//! What a snapshot sees of stripes, found out once: which stripe a row is of, and whether any row of that is deleted. Many
//! rows that are fetched under one snapshot are of few stripes.

use super::fetch::{locate, Place, RowAt};
use crate::directory::{tombstones, Directory, Found};
use crate::pg::snapshot::SnapshotId;
use crate::pg::Snap;
use crate::write::pending_at;
use firn_format::{Tid, TombstoneState, VIRTUAL_BASE};
use std::collections::BTreeMap;

/// Rows of a stripe that are looked for among its tombstones one by one, before it is asked whether there are any.
const SINGLE_LOOKS: u32 = 2;

/// Stripes remembered at most.
const MOST: usize = 1_024;

/// Stripes with rows that were fetched under one snapshot, by slot.
#[derive(Default)]
pub struct KnownStripes {
    seen_by: Option<SnapshotId>,
    stripes: BTreeMap<u32, Known>,
}

struct Known {
    found: Found,
    rows_asked_for: u32,
    /// It has no tombstones.
    whole: bool,
}

impl KnownStripes {
    /// As [`locate`].
    ///
    /// The stripes and the tombstones that an MVCC snapshot sees do not change while it is in use: what others commit is
    /// not seen, nor what later commands of this transaction do, and rows of earlier ones that are rolled back
    /// belong to snapshots that end with them. (In a serializable transaction each row is looked for, as that is where
    /// conflicts are found.)
    pub fn locate(&mut self, directory: &Directory, tid: Tid, snap: Snap) -> Option<RowAt> {
        let id = snap.id();
        if id.is_none() || pending_at(directory.table, tid).is_some() {
            return locate(directory, tid, snap);
        }
        if self.seen_by != id || self.stripes.len() > MOST {
            self.seen_by = id;
            self.stripes.clear();
        }
        let candidate = self.stripes.range_mut(..=tid.block.checked_sub(VIRTUAL_BASE)?).next_back();
        if let Some((_, known)) = candidate {
            if let Some(row) = tid.row_in(known.found.slot).filter(|r| *r < known.found.entry.rows)
            {
                return known.look(directory, tid, row, snap);
            }
        }
        let at = locate(directory, tid, snap)?;
        if let Place::Stripe(found) = &at.place {
            let known = Known { found: found.clone(), rows_asked_for: 1, whole: false };
            self.stripes.insert(found.slot.0, known);
        }
        Some(at)
    }
}

impl Known {
    fn look(&mut self, directory: &Directory, tid: Tid, row: u32, snap: Snap) -> Option<RowAt> {
        let (toast, found) = (&directory.toast, &self.found);
        if !self.whole {
            self.rows_asked_for = self.rows_asked_for.saturating_add(1);
            if self.rows_asked_for == SINGLE_LOOKS + 1 {
                // Whoever sees them: the first one ends the search. If there is none, this snapshot will see none.
                self.whole = !tombstones::any(toast, found.slot, found.entry.rows, Snap::any());
            }
        }
        let deleted = !self.whole
            && tombstones::find(toast, tid, snap)
                .is_some_and(|s| s.tombstone.state == TombstoneState::Deleted);
        let at = || RowAt { place: Place::Stripe(found.clone()), row, xmin: found.xmin };
        (!deleted).then(at)
    }
}
