//! Forwarding lists: for each stripe that a move filled from the row store, the row-store TID that
//! each of its rows had. Whoever waited for a row of the row store and finds it gone looks here
//! where it went. Lists live until no snapshot is older than the move.

use super::keys;
use crate::pg::toast::{CHUNK_BYTES, FROZEN_XID};
use crate::pg::{xact, ChunkKey, Snap, Toast};
use firn_format::{Slot, Tid};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// Bytes of one entry: block (4), offset (2).
const ENTRY: usize = 6;
const PER_ROW: usize = CHUNK_BYTES / ENTRY;
/// Where a row was that is no more, since VACUUM FULL or CLUSTER have written the row store anew: no row is.
const NOWHERE: Tid = Tid { block: u32::MAX, offset: 0 };

/// Remember that row `i` of the stripe at `slot` came from `origins[i]`. The parts of a list lie
/// under the virtual blocks of their first rows, which no other stripe has.
pub fn write(toast: &Toast, slot: Slot, origins: &[Tid], cid: u32) {
    for (part, chunk) in origins.chunks(PER_ROW).enumerate() {
        let mut bytes = Vec::with_capacity(chunk.len() * ENTRY);
        for tid in chunk {
            bytes.extend_from_slice(&encode(*tid));
        }
        toast.insert(key(slot, part), &bytes, cid, false);
    }
}

/// Delete the lists of moves that every snapshot sees (`oldest` is the oldest transaction that some
/// snapshot does not): who begins now finds the rows where they are. Returns how many rows went.
pub fn prune(toast: &Toast, oldest: u32) -> usize {
    let mut places = Vec::new();
    toast.scan::<()>(keys::FORWARDING, i32::MIN, i32::MAX, Snap::self_snap(), false, |_, row| {
        if row.xmin() == FROZEN_XID || xact::precedes(row.xmin(), oldest) {
            places.push(row.place());
        }
        ControlFlow::Continue(())
    });
    if places.is_empty() {
        return 0;
    }
    let cid = xact::command_id(true);
    for place in &places {
        toast.delete(*place, cid);
    }
    places.len()
}

fn key(slot: Slot, part: usize) -> ChunkKey {
    let block = Tid::of(slot, (part * PER_ROW) as u32).block - firn_format::VIRTUAL_BASE;
    ChunkKey { id: keys::FORWARDING, seq: block as i32 }
}

/// Where all rows that transaction `mover` moved were, and where they are.
pub fn all(toast: &Toast, mover: u32, directory: &super::Directory) -> HashMap<Tid, Tid> {
    let mut parts = Vec::new();
    toast.scan::<()>(keys::FORWARDING, i32::MIN, i32::MAX, Snap::any(), false, |key, row| {
        if row.raw_xmin() == mover {
            parts.push((key.seq as u32, row.data().to_vec()));
        }
        ControlFlow::Continue(())
    });
    let mut moves = HashMap::new();
    for (block, bytes) in parts {
        let tid = Tid { block: block + firn_format::VIRTUAL_BASE, offset: 1 };
        let Some(stripe) = directory.find(tid, Snap::any()) else { continue };
        let first = first_row(block, stripe.slot);
        for (at, origin) in entries(&bytes).enumerate().filter(|(_, origin)| *origin != NOWHERE) {
            moves.insert(origin, Tid::of(stripe.slot, first + at as u32));
        }
    }
    moves
}

/// Where row `row` of the stripe at `slot` was before a move; None when none has brought it there.
pub fn origin(toast: &Toast, slot: Slot, row: u32) -> Option<Tid> {
    let (part, at) = (row as usize / PER_ROW, row as usize % PER_ROW);
    let list = toast.find(key(slot, part), Snap::self_snap())?;
    let origin = entries(&list.data).nth(at);
    origin.filter(|origin| *origin != NOWHERE)
}

/// The row-store TIDs of a part of a list, in order.
pub fn entries(data: &[u8]) -> impl Iterator<Item = Tid> + '_ {
    data.chunks_exact(ENTRY).map(decode)
}

/// A part of a list after the row store's rows got new places: of the entries in `places` (number, TID), the
/// others' rows are gone.
pub fn translated(data: &[u8], places: &[(usize, Tid)]) -> Vec<u8> {
    let mut out = encode(NOWHERE).repeat(data.len() / ENTRY);
    for (at, tid) in places {
        if let Some(entry) = out.get_mut(at * ENTRY..(at + 1) * ENTRY) {
            entry.copy_from_slice(&encode(*tid));
        }
    }
    out
}

fn encode(tid: Tid) -> [u8; ENTRY] {
    let mut out = [0; ENTRY];
    out[..4].copy_from_slice(&tid.block.to_le_bytes());
    out[4..].copy_from_slice(&tid.offset.to_le_bytes());
    out
}

fn decode(entry: &[u8]) -> Tid {
    let byte = |i: usize| entry.get(i).copied().unwrap_or(0);
    Tid {
        block: u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]),
        offset: u16::from_le_bytes([byte(4), byte(5)]),
    }
}

/// The first row of a part that is filed under `block`.
fn first_row(block: u32, slot: Slot) -> u32 {
    let rows_before = (block - slot.0) * firn_format::ROWS_PER_BLOCK;
    rows_before.div_ceil(PER_ROW as u32) * PER_ROW as u32
}

/// Where did the row-store row `origin`, deleted by transaction `mover`, go? None when that
/// transaction did not move it.
pub fn find(toast: &Toast, origin: Tid, mover: u32, directory: &super::Directory) -> Option<Tid> {
    let wanted = encode(origin);
    let hit =
        toast.scan(keys::FORWARDING, i32::MIN, i32::MAX, Snap::self_snap(), true, |key, row| {
            if row.raw_xmin() != mover {
                return ControlFlow::Continue(());
            }
            match row.data().chunks_exact(ENTRY).position(|e| e == wanted) {
                Some(at) => ControlFlow::Break((key.seq as u32, at)),
                None => ControlFlow::Continue(()),
            }
        })?;
    let (block, at) = hit;
    // The list part begins at a row whose virtual block it is filed under; which row of the stripe
    // that is follows from the stripe's slot.
    let tid = Tid { block: block + firn_format::VIRTUAL_BASE, offset: 1 };
    let stripe = directory.find(tid, Snap::self_snap())?;
    Some(Tid::of(stripe.slot, first_row(block, stripe.slot) + at as u32))
}
