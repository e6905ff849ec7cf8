//! Tombstones and anchors: one small row per deleted, updated or locked stripe row, under a key
//! computed from its TID, so that those of a stripe are neighbours.

use super::keys;
use crate::pg::toast::{seq_of, unsigned_of};
use crate::pg::{ChunkKey, Snap, Toast};
use firn_format::{DeleteVector, Slot, Tid, Tombstone, TombstoneState};
use std::ops::ControlFlow;

/// A tombstone or anchor row.
pub struct Stone {
    pub place: Tid,
    pub xmin: u32,
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

/// The tombstone or anchor of `tid` that `snap` sees. Under a dirty snapshot, transactions in
/// progress are reported through it.
pub fn find(toast: &Toast, tid: Tid, snap: Snap) -> Option<Stone> {
    let key = key_of(tid);
    toast.scan(key.id, key.seq, key.seq, snap, false, |_, row| {
        Tombstone::decode(row.data()).ok().map_or(ControlFlow::Continue(()), |tombstone| {
            ControlFlow::Break(Stone {
                place: row.place(),
                xmin: row.xmin(),
                cmin: row.cmin(),
                tombstone,
            })
        })
    })
}

/// Visit the tombstones and anchors of a stripe's rows that `snap` sees, in row order.
pub fn each(toast: &Toast, slot: Slot, rows: u32, snap: Snap, mut visit: impl FnMut(u32, Stone)) {
    if rows == 0 {
        return;
    }
    let first = Tid::of(slot, 0).linear();
    let last = first + u64::from(rows) - 1;
    let mut from = first;
    while from <= last {
        // A stripe can straddle two chunk ids.
        let to = last.min(from | u64::from(u32::MAX));
        let (low, high) = (key_of_linear(from), key_of_linear(to));
        toast.scan::<()>(low.id, low.seq, high.seq, snap, false, |key, row| {
            let linear = (from >> 32 << 32) | u64::from(unsigned_of(key.seq));
            if let Ok(tombstone) = Tombstone::decode(row.data()) {
                let stone =
                    Stone { place: row.place(), xmin: row.xmin(), cmin: row.cmin(), tombstone };
                visit((linear - first) as u32, stone);
            }
            ControlFlow::Continue(())
        });
        from = to + 1;
    }
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
