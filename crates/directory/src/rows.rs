//! Directory rows: reserved when a stripe's slot is handed out, published when its bytes are
//! written, found by the virtual block of any of its rows.

use crate::frame::{decode, frame, written_for};
use crate::seen::Print;
use crate::tombstones::LOOKS;
use crate::{
    chunks, keys, tombstones, ChunkKey, ChunkStore, Cid, Error, Keep, Place, Result, Row, Witness,
    Xid, CHUNK_BYTES,
};
use firn_format::{blocks_for, DirectoryEntry, EntryState, Location, Slot, Tid, VIRTUAL_BASE};
use std::collections::HashSet;
use std::ops::{ControlFlow, Range};
use std::rc::Rc;

/// A directory row that a snapshot sees.
#[derive(Clone)]
pub struct Found {
    pub slot: Slot,
    pub entry: Rc<DirectoryEntry>,
    /// Where the directory row is.
    pub place: Place,
    /// The transaction that wrote the row ([`Xid::FROZEN`] when frozen).
    pub xmin: Xid,
}

/// The key of a slot's directory row.
pub fn key(slot: Slot) -> ChunkKey {
    ChunkKey { id: keys::DIRECTORY, seq: slot.0 as i32 }
}

fn damaged(slot: Slot, why: firn_format::Error) -> Error {
    Error::DirectoryRow { slot, why }
}

/// Why a directory row that the index leads to is damaged: it has this key.
fn misplaced(key: ChunkKey) -> firn_format::Error {
    firn_format::Error::corrupt(format!("its key says ({}, {})", key.id, key.seq))
}

fn remember<S: ChunkStore>(
    store: &S,
    slot: Slot,
    place: Place,
    xmin: Xid,
    data: &[u8],
) -> firn_format::Result<Found> {
    let print = Print::of(data);
    let storage = store.storage();
    let known = store.with_seen(|seen| seen.at(storage, slot.0)).filter(|r| r.print == print);
    if let Some(known) = known.as_ref().filter(|r| r.found.place == place) {
        return Ok(Found { xmin, ..known.found.clone() });
    }
    let entry = match known {
        Some(moved) => moved.found.entry.clone(),
        None => Rc::new(decode(slot, data)?),
    };
    let found = Found { slot, entry, place, xmin };
    store.with_seen(|seen| seen.remember(storage, &found, print));
    Ok(found)
}

/// All stripes that `snap` sees, in slot order.
///
/// # Errors
/// A directory row is damaged.
pub fn list<S: ChunkStore>(store: &S, snap: S::Snap) -> Result<Vec<Found>> {
    let mut list = Vec::new();
    each(store, snap, 0..VIRTUAL_BASE, |found| {
        list.push(found);
        ControlFlow::Continue(())
    })?;
    Ok(list)
}

/// As [`list`] for a dirty snapshot. Of a row that is being replaced that can see both versions, or, as
/// `tombstones::again` has it, neither: whatever slot has a row that was not seen is looked at by itself.
///
/// # Errors
/// As [`list`].
pub fn list_dirty<S: ChunkStore>(store: &S, snap: S::Snap) -> Result<Vec<Found>> {
    let mut list = list(store, snap)?;
    let seen: HashSet<u32> = list.iter().map(|found| found.slot.0).collect();
    let mut others = slots(store);
    others.retain(|slot| !seen.contains(slot));
    for slot in others {
        for _ in 0..LOOKS {
            let looked = look_at(store, slot, snap)?;
            list.extend(looked.iter().cloned());
            if looked.is_some() {
                break;
            }
        }
    }
    // The version that was there before comes first: who writes the other may take it back.
    list.sort_by_cached_key(|found| (found.slot, !store.did_commit(found.xmin)));
    list.dedup_by_key(|found| found.slot);
    Ok(list)
}

fn look_at<S: ChunkStore>(store: &S, slot: u32, snap: S::Snap) -> Result<Option<Found>> {
    let mut seen = None;
    each(store, snap, slot..slot + 1, |found| {
        seen = Some(found);
        ControlFlow::Break(())
    })?;
    Ok(seen)
}

/// The slots of all rows there are, whoever sees them.
fn slots<S: ChunkStore>(store: &S) -> Vec<u32> {
    let mut slots = Vec::new();
    if !store.is_empty() {
        let (high, any) = ((VIRTUAL_BASE - 1) as i32, store.any());
        store.scan::<()>(keys::DIRECTORY, 0, high, any, false, |key, _| {
            slots.push(key.seq as u32);
            ControlFlow::Continue(())
        });
    }
    slots.dedup();
    slots
}

/// As [`list`] for those who can do without some: `damaged` is told of each directory row that does
/// not decode, and its stripe is left out.
pub fn list_readable<S: ChunkStore>(
    store: &S,
    snap: S::Snap,
    mut damaged: impl FnMut(Slot, &firn_format::Error),
) -> Vec<Found> {
    let mut list = Vec::new();
    visit::<S, ()>(store, snap, 0..VIRTUAL_BASE, |slot, found| {
        match found {
            Ok(found) => list.push(found),
            Err(e) => damaged(slot, &e),
        }
        ControlFlow::Continue(())
    });
    list
}

/// Visit the stripes at these slots that `snap` sees, in their order.
///
/// # Errors
/// A directory row is damaged.
pub fn each<S: ChunkStore>(
    store: &S,
    snap: S::Snap,
    slots: Range<u32>,
    mut see: impl FnMut(Found) -> ControlFlow<()>,
) -> Result<()> {
    let ended = visit(store, snap, slots, |slot, found| match found {
        Ok(found) => match see(found) {
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(()) => ControlFlow::Break(Ok(())),
        },
        Err(e) => ControlFlow::Break(Err(damaged(slot, e))),
    });
    ended.unwrap_or(Ok(()))
}

fn visit<S: ChunkStore, B>(
    store: &S,
    snap: S::Snap,
    slots: Range<u32>,
    mut visit: impl FnMut(Slot, firn_format::Result<Found>) -> ControlFlow<B>,
) -> Option<B> {
    // During TRUNCATE the heap is emptied before its index: entries would lead nowhere.
    if slots.is_empty() || store.is_empty() {
        return None;
    }
    let (low, high) = (slots.start as i32, (slots.end.min(VIRTUAL_BASE) - 1) as i32);
    store.scan(keys::DIRECTORY, low, high, snap, false, |key, row| {
        let slot = Slot(key.seq as u32);
        if !row.is_under(key) {
            return visit(slot, Err(misplaced(row.key())));
        }
        match remember(store, slot, row.place(), row.xmin(), row.data()) {
            Ok(found) if found.entry.state != EntryState::Live => ControlFlow::Continue(()),
            found => visit(slot, found),
        }
    })
}

/// Visit the directory rows that `snap` sees, reserved ones too, in slot order; of one that does not decode, or has a damaged key,
/// there is the slot that it was written for, if it still says so.
pub fn each_row<S: ChunkStore>(
    store: &S,
    snap: S::Snap,
    mut visit: impl FnMut(Slot, std::result::Result<&DirectoryEntry, Option<Slot>>),
) {
    store.scan::<()>(keys::DIRECTORY, 0, i32::MAX, snap, false, |key, row| {
        let slot = Slot(key.seq as u32);
        let entry = match row.is_under(key) {
            true => decode(slot, row.data()),
            false => Err(misplaced(row.key())),
        };
        visit(slot, entry.as_ref().map_err(|_| written_for(row.data()).ok().flatten()));
        ControlFlow::Continue(())
    });
}

/// The stripe (live or only reserved) whose range of virtual blocks holds `tid`.
///
/// # Errors
/// Its directory row is damaged.
pub fn find<S: ChunkStore>(store: &S, tid: Tid, snap: S::Snap) -> Result<Option<Found>> {
    let Some(block) = tid.block.checked_sub(VIRTUAL_BASE) else { return Ok(None) };
    // Most look-ups hit a stripe seen before: ask its row directly. The candidate is the known
    // stripe that covers the block.
    let storage = store.storage();
    if let Some(seen) = store.with_seen(|seen| seen.covering(storage, block)) {
        let f = &seen.found;
        let witness = seen.witness.get().filter(|w| store.is_unchanged(f.place, snap, w));
        if let Some(Witness { xmin, .. }) = witness {
            return Ok(Some(Found { xmin, ..f.clone() }));
        }
        let hit = store.at_witnessed(f.place, key(f.slot), snap, |row| {
            (Print::of(row.data()) == seen.print).then(|| row.xmin())
        });
        if let Some((Some(xmin), witness)) = hit {
            // (Who looks by another kind of snapshot gets none, and the one before may still be right. Else that one is outdated.)
            debug_assert!(witness.is_none() || store.gives_witnesses(snap));
            if store.gives_witnesses(snap) {
                seen.witness.set(witness);
            }
            return Ok(Some(Found { xmin, ..f.clone() }));
        }
    }
    if store.is_empty() {
        return Ok(None);
    }
    // An offload, a load or VACUUM may replace the row while we look, see `tombstones::again`. An MVCC
    // snapshot sees one version, whenever.
    let looks = if store.may_miss(snap) { LOOKS } else { 1 };
    for left in (0..looks).rev() {
        let found = look(store, block, snap)?;
        if found.is_some() || left == 0 || look(store, block, store.any())?.is_none() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// The stripe that holds a virtual block, by the index.
fn look<S: ChunkStore>(store: &S, block: u32, snap: S::Snap) -> Result<Option<Found>> {
    let upto = ChunkKey { id: keys::DIRECTORY, seq: block as i32 };
    let Some(row) = store.find_at_or_before(upto, snap) else { return Ok(None) };
    let slot = Slot(row.key.seq as u32);
    let found = match row.key_is_damaged {
        true => Err(firn_format::Error::corrupt("its key is damaged")),
        false => remember(store, slot, row.place, row.xmin, &row.data),
    };
    let found = found.map_err(|e| damaged(slot, e))?;
    let covers = block >= found.slot.0 && block - found.slot.0 < found.entry.blocks;
    Ok(covers.then_some(found))
}

/// Reserve the directory row of a new stripe, with `room` bytes, before the first index entry points into it, so
/// that other sessions' uniqueness checks find whom to wait for. For `allocation::slot_for`, which
/// hands out the slot.
pub(crate) fn reserve<S: ChunkStore>(
    store: &S,
    slot: Slot,
    rows: u32,
    cid: Cid,
    room: usize,
) -> Place {
    let entry = DirectoryEntry::reserved(blocks_for(rows));
    store.insert(key(slot), &frame(slot, &entry, room), cid, Keep::WithTransaction)
}

/// Complete the row reserved at `place` by this very transaction: it becomes the stripe's.
pub fn publish<S: ChunkStore>(
    store: &S,
    slot: Slot,
    place: Place,
    entry: &DirectoryEntry,
    room: usize,
) {
    store.overwrite(place, key(slot), &frame(slot, entry, room));
}

/// Replace a live stripe's row (it moved).
pub fn replace<S: ChunkStore>(
    store: &S,
    found: &Found,
    entry: &DirectoryEntry,
    cid: Cid,
    room: usize,
) -> Place {
    store.update(found.place, key(found.slot), &frame(found.slot, entry, room), cid)
}

/// A live stripe's row as it is, to be put elsewhere: its key and bytes.
pub fn as_it_is(found: &Found, room: usize) -> (ChunkKey, Vec<u8>) {
    (key(found.slot), frame(found.slot, &found.entry, room))
}

/// Delete a stripe's chunks; VACUUM removes them when no snapshot can need them.
pub fn free_chunks<S: ChunkStore>(store: &S, found: &Found) {
    let Location::Chunks { address, .. } = found.entry.location else { return };
    let (id, first) = chunks::key_of(address);
    let count = found.entry.bytes.div_ceil(CHUNK_BYTES as u64) as u32;
    store.delete_run(id, first, count, store.command_id());
}

/// Remove a stripe with all that belongs to it: no snapshot sees a row of it.
pub fn remove<S: ChunkStore>(store: &S, found: &Found, cid: Cid) {
    store.delete(found.place, cid);
    free_chunks(store, found);
    let mut stones = Vec::new();
    let rows = found.entry.rows;
    tombstones::each_readable(store, found.slot, rows, store.own(), |_, stone| {
        stones.push(stone.place)
    });
    for place in stones {
        store.delete(place, cid);
    }
}
