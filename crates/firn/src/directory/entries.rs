//! Directory rows: reserved when a stripe's slot is handed out, published when its bytes are
//! written, found by the virtual block of any of its rows.

use super::{chunks, keys, tombstones};
use crate::pg::rel::StorageId;
use crate::pg::toast::CHUNK_BYTES;
use crate::pg::{error, ChunkKey, Kind, LockMode, Rel, Snap, Toast};
use firn_format::{blocks_for, DirectoryEntry, EntryState, Location, Slot, Tid, VIRTUAL_BASE};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::rc::Rc;

/// A directory row that a snapshot sees.
#[derive(Clone)]
pub struct Found {
    pub slot: Slot,
    pub entry: Rc<DirectoryEntry>,
    /// Where the directory row is.
    pub place: Tid,
    /// The transaction that wrote the row (2 when frozen).
    pub xmin: u32,
}

/// An open table's directory.
pub struct Directory {
    pub table: Rel,
    pub toast: Toast,
}

struct Remembered {
    found: Found,
    bytes: Vec<u8>,
}

thread_local! {
    /// Directory rows seen before, by storage and slot. What is remembered is checked against the
    /// row itself at each use; the gain is not to search the index and not to decode.
    static SEEN: RefCell<HashMap<(StorageId, u32), Rc<Remembered>>> = RefCell::default();
}

fn key(slot: Slot) -> ChunkKey {
    ChunkKey { id: keys::DIRECTORY, seq: slot.0 as i32 }
}

/// Room for the entry of a table with `columns` columns, length word included.
fn reserved_bytes(columns: usize) -> usize {
    (200 + 96 * columns).min(CHUNK_BYTES - 100)
}

impl Directory {
    /// Open the directory of a firn table; None when the table has no TOAST relation (yet).
    pub fn open(table: Rel, lock: LockMode) -> Option<Directory> {
        Some(Directory { table, toast: Toast::open(table, lock)? })
    }

    fn decode(&self, slot: Slot, data: &[u8]) -> DirectoryEntry {
        let len = data.get(..4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        let body = data.get(4..4 + len as usize).unwrap_or(&[]);
        DirectoryEntry::decode(body).unwrap_or_else(|e| {
            error(
                Kind::Corrupt,
                format!("directory row {} of table \"{}\" is damaged", slot.0, self.table.name()),
            )
            .detail(e.to_string())
            .hint("Restore the table from a backup or standby.")
            .raise()
        })
    }

    fn remember(&self, slot: Slot, place: Tid, xmin: u32, data: &[u8]) -> Found {
        let id = (self.toast.storage(), slot.0);
        let known = SEEN.with_borrow(|seen| {
            seen.get(&id).filter(|r| r.bytes == data).map(|r| Found {
                place,
                xmin,
                ..r.found.clone()
            })
        });
        if let Some(found) = known {
            return found;
        }
        let entry = Rc::new(self.decode(slot, data));
        let found = Found { slot, entry, place, xmin };
        SEEN.with_borrow_mut(|seen| {
            if seen.len() > 16_384 {
                seen.clear();
            }
            seen.insert(id, Rc::new(Remembered { found: found.clone(), bytes: data.to_vec() }));
        });
        found
    }

    /// All stripes that `snap` sees, in slot order.
    pub fn list(&self, snap: Snap) -> Vec<Found> {
        let mut list = Vec::new();
        // During TRUNCATE the heap is emptied before its index: entries would lead nowhere.
        if self.toast.is_empty() {
            return list;
        }
        self.toast.scan::<()>(keys::DIRECTORY, 0, i32::MAX, snap, false, |key, row| {
            let found = self.remember(Slot(key.seq as u32), row.place(), row.xmin(), row.data());
            if found.entry.state == EntryState::Live {
                list.push(found);
            }
            ControlFlow::Continue(())
        });
        list
    }

    /// The stripe (live or only reserved) whose range of virtual blocks holds `tid`.
    pub fn find(&self, tid: Tid, snap: Snap) -> Option<Found> {
        let block = tid.block.checked_sub(VIRTUAL_BASE)?;
        let covers = |slot: Slot, blocks: u32| block >= slot.0 && block - slot.0 < blocks;
        // Most look-ups hit a stripe seen before: ask its row directly. The candidate is the known
        // stripe that covers the block.
        let seen = self.candidate(block);
        // Ranges of blocks are remembered apart from the rows, and may be an older stripe's.
        if let Some(seen) = seen.filter(|s| covers(s.found.slot, s.found.entry.blocks)) {
            let f = &seen.found;
            let hit = self.toast.at(f.place, key(f.slot), snap, |row| {
                (row.data() == seen.bytes).then(|| row.xmin())
            });
            if let Some(Some(xmin)) = hit {
                return Some(Found { xmin, ..f.clone() });
            }
        }
        if self.toast.is_empty() {
            return None;
        }
        let upto = ChunkKey { id: keys::DIRECTORY, seq: block as i32 };
        let row = self.toast.find_at_or_before(upto, snap)?;
        let found = self.remember(Slot(row.key.seq as u32), row.place, row.xmin, &row.data);
        remember_blocks(self.toast.storage(), found.slot, found.entry.blocks);
        covers(found.slot, found.entry.blocks).then_some(found)
    }

    fn candidate(&self, block: u32) -> Option<Rc<Remembered>> {
        let storage = self.toast.storage();
        let slot = BLOCKS.with_borrow(|map| {
            let ranges = map.get(&storage)?;
            let (slot, blocks) = ranges.range(..=block).next_back()?;
            (block - slot < *blocks).then_some(*slot)
        })?;
        SEEN.with_borrow(|seen| seen.get(&(storage, slot)).cloned())
    }

    /// Reserve the directory row of a new stripe before the first index entry points into it, so
    /// that other sessions' uniqueness checks find whom to wait for.
    pub fn reserve(&self, slot: Slot, rows: u32, cid: u32) -> Tid {
        let entry = DirectoryEntry::reserved(blocks_for(rows));
        let bytes = frame(&entry, reserved_bytes(self.table.column_count()));
        // Plans made for a table without stripes do not scan any fast.
        if crate::am::counts::stripe_totals(self.table).stripes == 0.0 {
            self.table.invalidate();
        }
        self.toast.insert(key(slot), &bytes, cid, false)
    }

    /// Complete the row reserved at `place` by this very transaction: it becomes the stripe's.
    pub fn publish(&self, slot: Slot, place: Tid, entry: &DirectoryEntry) {
        let bytes = frame(entry, reserved_bytes(self.table.column_count()));
        self.toast.overwrite(place, key(slot), &bytes);
    }

    /// Delete a stripe's chunks; VACUUM removes them when no snapshot can need them.
    pub fn free_chunks(&self, found: &Found) {
        let Location::Chunks { address, .. } = found.entry.location else { return };
        let (id, first) = chunks::key_of(address);
        let count = found.entry.bytes.div_ceil(CHUNK_BYTES as u64) as u32;
        self.toast.delete_run(id, first, count, crate::pg::xact::command_id(true));
    }

    /// Remove a stripe with all that belongs to it: no snapshot sees a row of it.
    pub fn remove(&self, found: &Found, cid: u32) {
        self.toast.delete(found.place, cid);
        self.free_chunks(found);
        let mut stones = Vec::new();
        let rows = found.entry.rows;
        tombstones::each(&self.toast, found.slot, rows, Snap::self_snap(), |_, stone| {
            stones.push(stone.place)
        });
        for place in stones {
            self.toast.delete(place, cid);
        }
    }

    /// Bytes that a stripe's row takes on a page, headers included.
    pub fn row_bytes(&self, found: &Found) -> usize {
        frame(&found.entry, reserved_bytes(self.table.column_count())).len() + 64
    }

    /// Move a stripe's row to the page `block`, as it is.
    pub fn relocate(&self, found: &Found, cid: u32, block: u32) {
        let bytes = frame(&found.entry, reserved_bytes(self.table.column_count()));
        self.toast.relocate(found.place, key(found.slot), &bytes, cid, block);
    }

    /// Replace a live stripe's row (it moved, or its tombstones were folded in).
    pub fn replace(&self, found: &Found, entry: &DirectoryEntry, cid: u32) -> Tid {
        let bytes = frame(entry, reserved_bytes(self.table.column_count()));
        self.toast.update(found.place, key(found.slot), &bytes, cid)
    }
}

thread_local! {
    /// Ranges of virtual blocks seen, per table: slot to number of blocks.
    static BLOCKS: RefCell<HashMap<StorageId, std::collections::BTreeMap<u32, u32>>> =
        RefCell::default();
}

fn remember_blocks(storage: StorageId, slot: Slot, blocks: u32) {
    BLOCKS.with_borrow_mut(|map| {
        if map.len() > 4_096 {
            map.clear();
        }
        map.entry(storage).or_default().insert(slot.0, blocks);
    })
}

/// The storage was emptied, and its slots will be given out anew.
pub fn forget(storage: StorageId) {
    SEEN.with_borrow_mut(|seen| seen.retain(|(of, _), _| *of != storage));
    BLOCKS.with_borrow_mut(|map| map.remove(&storage));
}

/// An entry with its length before it, padded so that it can be overwritten in place later.
fn frame(entry: &DirectoryEntry, room: usize) -> Vec<u8> {
    let body = entry.encode(room - 4);
    let mut bytes = Vec::with_capacity(room);
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes.resize(room.max(bytes.len()), 0);
    bytes
}
