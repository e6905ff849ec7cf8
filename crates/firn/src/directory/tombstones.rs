//! Tombstones and anchors: one small row per deleted, updated or locked stripe row, under a key
//! computed from its TID, so that those of a stripe are neighbours.

use super::keys;
use crate::pg::snapshot::DirtySnap;
use crate::pg::toast::{seq_of, unsigned_of, RowView};
use crate::pg::{error, guc, ChunkKey, Kind, Snap, SnapKind, Toast};
use firn_format::{DeleteVector, Error, Slot, Tid, Tombstone, TombstoneState};
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

/// A tombstone or anchor row.
pub struct Stone {
    pub place: Tid,
    /// The transaction that wrote it; 2 when frozen.
    pub xmin: u32,
    /// The transaction that wrote it, frozen or not.
    pub raw_xmin: u32,
    pub cmin: u32,
    pub tombstone: Tombstone,
}

fn key_of_linear(linear: u64) -> ChunkKey {
    ChunkKey { id: keys::TOMBSTONES + (linear >> 32) as u32, seq: seq_of(linear as u32) }
}

/// The key of the row at `tid`.
pub fn key_of(tid: Tid) -> ChunkKey {
    key_of_linear(tid.linear())
}

/// Inverse of [`key_of`].
pub fn tid_of(key: ChunkKey) -> Option<Tid> {
    let high = u64::from(key.id.checked_sub(keys::TOMBSTONES)?);
    Tid::from_linear(high << 32 | u64::from(unsigned_of(key.seq)))
}

/// The tombstone or anchor of `tid` that `snap` sees. Under a dirty snapshot, transactions in
/// progress are reported through it.
pub fn find(toast: &Toast, tid: Tid, snap: Snap) -> Option<Stone> {
    let key = key_of(tid);
    let look = || {
        toast.scan_damaged(key.id, key.seq, key.seq, snap, false, |key, row| {
            ControlFlow::Break(stone(toast, key, row))
        })
    };
    match snap.kind() {
        SnapKind::Dirty | SnapKind::SelfSnap => again(toast, key, look),
        _ => look(),
    }
}

/// Look once more where nothing was found although a version of the row is there: a look that judges each
/// version as it comes to it can miss a row that is replaced meanwhile, when it has read the index before the new
/// version's entry came and looks at the old version after that was committed. The next look reads the
/// index anew; to miss the row, too, it would have to be replaced again.
fn again<T>(toast: &Toast, key: ChunkKey, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..LOOKS {
        let found = look();
        if found.is_some() || toast.find_damaged(key, Snap::any()).is_none() {
            return found;
        }
    }
    None
}

/// Looks for a row that may be replaced meanwhile.
pub(super) const LOOKS: usize = 4;

/// The stone of `tid` that a locker has to do with, and the running transaction that made it (0 when
/// that is over). While a transaction turns an anchor into a tombstone, both can be found: the anchor
/// then, as it carries the locks.
pub fn to_lock(toast: &Toast, tid: Tid) -> Option<(Stone, u32)> {
    let key = key_of(tid);
    again(toast, key, || look_to_lock(toast, key))
}

fn look_to_lock(toast: &Toast, key: ChunkKey) -> Option<(Stone, u32)> {
    let mut dirty = DirtySnap::new();
    let snap = dirty.snap();
    let mut tombstone = None;
    let anchor = toast.scan_damaged(key.id, key.seq, key.seq, snap, false, |key, row| {
        let (writer, _) = snap.dirty_found();
        let stone = stone(toast, key, row);
        if stone.tombstone.state == TombstoneState::Anchor {
            return ControlFlow::Break((stone, writer));
        }
        tombstone = Some((stone, writer));
        ControlFlow::Continue(())
    });
    anchor.or(tombstone)
}

/// The tombstone that the update of an anchor made: at `place`, by transaction `updater`.
pub fn made_by(toast: &Toast, tid: Tid, place: Tid, updater: u32) -> Option<Tombstone> {
    let key = key_of(tid);
    let stone = toast.at(place, key, Snap::any(), |row| stone(toast, key, row))?;
    let is_it = stone.raw_xmin == updater && stone.tombstone.state == TombstoneState::Deleted;
    is_it.then_some(stone.tombstone)
}

fn decode(key: ChunkKey, row: &RowView) -> firn_format::Result<Stone> {
    if !row.is_under(key) {
        let own = row.key();
        return Err(Error::corrupt(format!("its key says ({}, {})", own.id, own.seq)));
    }
    let tombstone = Tombstone::decode(row.data())?;
    Ok(Stone {
        place: row.place(),
        xmin: row.xmin(),
        raw_xmin: row.raw_xmin(),
        cmin: row.cmin(),
        tombstone,
    })
}

/// The tombstone or anchor that a row is. Raises when it is damaged: whether the stripe's row lives is not known then.
fn stone(toast: &Toast, key: ChunkKey, row: &RowView) -> Stone {
    decode(key, row).unwrap_or_else(|e| {
        let of = match tid_of(key) {
            Some(tid) => format!("the tombstone of row ({},{}) is damaged", tid.block, tid.offset),
            None => "a tombstone is damaged".to_owned(),
        };
        let place = row.place();
        error(Kind::Corrupt, of)
            .detail(format!(
                "TOAST relation {}, at ({},{}): {e}",
                toast.rel().oid(),
                place.block,
                place.offset
            ))
            .hint("Run firn.check() on the table; restore it from a backup or standby.")
            .raise()
    })
}

/// Visit the tombstones and anchors of a stripe's rows that `snap` sees, in row order. Raises at a damaged one.
pub fn each(toast: &Toast, slot: Slot, rows: u32, snap: Snap, mut visit: impl FnMut(u32, Stone)) {
    within(toast, slot, 0..rows, snap, |key, row, at| {
        visit(at, stone(toast, key, row));
        ControlFlow::Continue(())
    });
}

/// As [`each`] for those who need not know of every row: damaged ones are passed over.
pub fn each_readable(
    toast: &Toast,
    slot: Slot,
    rows: u32,
    snap: Snap,
    mut visit: impl FnMut(u32, Stone),
) {
    within(toast, slot, 0..rows, snap, |key, row, at| {
        if let Ok(stone) = decode(key, row) {
            visit(at, stone);
        }
        ControlFlow::Continue(())
    });
}

/// The rows under the keys of some of a stripe's rows, until `visit` breaks. It is told the row's number, too.
fn within(
    toast: &Toast,
    slot: Slot,
    rows: Range<u32>,
    snap: Snap,
    mut visit: impl FnMut(ChunkKey, &RowView, u32) -> ControlFlow<()>,
) {
    let base = Tid::of(slot, 0).linear();
    for (from, low, high) in spans(slot, rows) {
        let ended = toast.scan_damaged(low.id, low.seq, high.seq, snap, false, |key, row| {
            let linear = (from >> 32 << 32) | u64::from(unsigned_of(key.seq));
            guc::crash_point("tombstone-seen");
            visit(key, row, (linear - base) as u32)
        });
        if ended.is_some() {
            return;
        }
    }
}

/// The keys of some of a stripe's rows: the first row's place in the number line, its key, and the last one's. A stripe can straddle
/// two chunk ids.
fn spans(slot: Slot, rows: Range<u32>) -> impl Iterator<Item = (u64, ChunkKey, ChunkKey)> {
    let base = Tid::of(slot, 0).linear();
    let end = base + u64::from(rows.end);
    let mut next = base + u64::from(rows.start);
    std::iter::from_fn(move || {
        let from = next;
        if from >= end {
            return None;
        }
        let to = (end - 1).min(from | u64::from(u32::MAX));
        next = to + 1;
        Some((from, key_of_linear(from), key_of_linear(to)))
    })
}

/// Whether there may be a tombstone or anchor of a stripe's rows, seen by whomever. The index alone is asked, for one entry: those of
/// deletions that were rolled back are many, lead nowhere, and stay until VACUUM.
pub fn may_be_any(toast: &Toast, slot: Slot, rows: u32) -> bool {
    spans(slot, 0..rows).any(|(_, low, high)| toast.has_entry(low.id, low.seq, high.seq))
}

/// Which of some rows of a stripe are deleted for `snap`, ascending.
pub fn deleted_of(toast: &Toast, slot: Slot, rows: Range<u32>, snap: Snap) -> Vec<u32> {
    let mut list = Vec::new();
    within(toast, slot, rows, snap, |key, row, at| {
        if stone(toast, key, row).tombstone.state == TombstoneState::Deleted {
            list.push(at);
        }
        ControlFlow::Continue(())
    });
    list.dedup();
    list
}

/// How many rows of a stripe are known to be deleted for `snap`; damaged tombstones count for none.
pub fn deleted_readable(toast: &Toast, slot: Slot, rows: u32, snap: Snap) -> u32 {
    let mut vector = DeleteVector::new(rows);
    each_readable(toast, slot, rows, snap, |row, stone| {
        if stone.tombstone.state == TombstoneState::Deleted {
            vector.set(row);
        }
    });
    vector.count()
}

/// Rows of a stripe that are deleted for `snap`; None when there is none.
pub fn deleted(toast: &Toast, slot: Slot, rows: u32, snap: Snap) -> Option<DeleteVector> {
    let mut vector = None;
    each(toast, slot, rows, snap, |row, stone| {
        if stone.tombstone.state == TombstoneState::Deleted {
            vector.get_or_insert_with(|| DeleteVector::new(rows)).set(row);
        }
    });
    vector
}

/// What a dirty snapshot is told of a stripe's rows: those that are surely deleted, and for those that others are
/// deleting, who does.
pub fn dirty(toast: &Toast, slot: Slot, rows: u32) -> (Option<DeleteVector>, HashMap<u32, u32>) {
    let mut own = DirtySnap::new();
    let snap = own.snap();
    let (mut deleted, mut deleters) = (None::<DeleteVector>, HashMap::new());
    each(toast, slot, rows, snap, |row, stone| {
        if stone.tombstone.state != TombstoneState::Deleted {
            return;
        }
        match snap.dirty_found() {
            (0, _) => deleted.get_or_insert_with(|| DeleteVector::new(rows)).set(row),
            (writer, _) => drop(deleters.insert(row, writer)),
        }
    });
    (deleted, deleters)
}
