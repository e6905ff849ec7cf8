//! Tombstones and anchors of a table, see `firn_directory::tombstones`. A damaged one is raised here.

use super::raise::OrRaise;
use crate::pg::{Snap, Toast};
pub use firn_directory::tombstones::{
    deleted_readable, few_deleted, is_known_to_be_whole, key_of, may_be_any, tid_of, Stone,
    Unsettled,
};
use firn_directory::{tombstones, Place, Xid};
use firn_format::{DeleteVector, Slot, Tid, Tombstone};
use std::ops::Range;

/// The tombstone or anchor of `tid` that `snap` sees. Under a dirty snapshot, transactions in
/// progress are reported through it.
#[inline]
pub fn find(toast: &Toast, tid: Tid, snap: Snap) -> Option<Stone> {
    tombstones::find(toast, tid, snap).or_raise(toast)
}

/// The stone of `tid` that a locker has to do with, and the running transaction that made it
/// ([`Xid::NONE`] when that is over).
pub fn to_lock(toast: &Toast, tid: Tid) -> Option<(Stone, Xid)> {
    tombstones::to_lock(toast, tid).or_raise(toast)
}

/// The tombstone that the update of an anchor made: at `place`, by transaction `updater`.
pub fn made_by(toast: &Toast, tid: Tid, place: Place, updater: Xid) -> Option<Tombstone> {
    tombstones::made_by(toast, tid, place, updater).or_raise(toast)
}

/// Visit the tombstones and anchors of a stripe's rows that `snap` sees, in row order.
pub fn each(toast: &Toast, slot: Slot, rows: u32, snap: Snap, visit: impl FnMut(u32, Stone)) {
    tombstones::each(toast, slot, rows, snap, visit).or_raise(toast)
}

/// Which of some rows of a stripe are deleted for `snap`, ascending.
pub fn deleted_of(toast: &Toast, slot: Slot, rows: Range<u32>, snap: Snap) -> Vec<u32> {
    tombstones::deleted_of(toast, slot, rows, snap).or_raise(toast)
}

/// Rows of a stripe that are deleted for `snap`; None when there is none.
pub fn deleted(toast: &Toast, slot: Slot, rows: u32, snap: Snap) -> Option<DeleteVector> {
    tombstones::deleted(toast, slot, rows, snap).or_raise(toast)
}

/// What a dirty snapshot is told of a stripe's rows.
pub fn dirty(toast: &Toast, slot: Slot, rows: u32) -> Unsettled {
    tombstones::dirty(toast, slot, rows).or_raise(toast)
}
