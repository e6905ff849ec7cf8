//! Directory rows: reserved when a stripe's slot is handed out, published when its bytes are
//! written, found by the virtual block of any of its rows.

use super::seen::{self, Print};
use super::{chunks, counts, keys, tombstones};
use crate::pg::toast::CHUNK_BYTES;
use crate::pg::{error, xact, ChunkKey, Kind, LockMode, Rel, Snap, SnapKind, Toast};
use firn_format::{
    blocks_for, DirectoryEntry, EntryState, Error, Location, Slot, Tid, VIRTUAL_BASE,
};
use std::collections::HashSet;
use std::ops::{ControlFlow, Range};
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

    fn raise_damaged(&self, slot: Slot, e: &Error) -> ! {
        error(Kind::Corrupt, damaged_row(self.table, slot))
            .detail(e.to_string())
            .hint("Restore the table from a backup or standby.")
            .raise()
    }

    fn remember(
        &self,
        slot: Slot,
        place: Tid,
        xmin: u32,
        data: &[u8],
    ) -> firn_format::Result<Found> {
        let print = Print::of(data);
        let known = seen::at(self.toast.storage(), slot.0).filter(|r| r.print == print);
        if let Some(known) = known.as_ref().filter(|r| r.found.place == place) {
            return Ok(Found { xmin, ..known.found.clone() });
        }
        let entry = match known {
            Some(moved) => moved.found.entry.clone(),
            None => Rc::new(decode(slot, data)?),
        };
        let found = Found { slot, entry, place, xmin };
        seen::remember(self.toast.storage(), &found, print);
        Ok(found)
    }

    /// All stripes that `snap` sees, in slot order. Raises when a directory row is damaged.
    pub fn list(&self, snap: Snap) -> Vec<Found> {
        self.list_readable(snap, |slot, e| self.raise_damaged(slot, e))
    }

    /// As [`Directory::list`] for a dirty snapshot. Of a row that is being replaced that can see both versions, or, as
    /// `tombstones::again` has it, neither: whatever slot has a row that was not seen is looked at by itself.
    pub fn list_dirty(&self, snap: Snap) -> Vec<Found> {
        let mut list = self.list(snap);
        let seen: HashSet<u32> = list.iter().map(|found| found.slot.0).collect();
        let mut others = self.slots();
        others.retain(|slot| !seen.contains(slot));
        for slot in others {
            let looks = (0..tombstones::LOOKS).find_map(|_| self.look_at(slot, snap));
            list.extend(looks);
        }
        // The version that was there before comes first: who writes the other may take it back.
        list.sort_by_cached_key(|found| (found.slot, !xact::did_commit(found.xmin)));
        list.dedup_by_key(|found| found.slot);
        list
    }

    fn look_at(&self, slot: u32, snap: Snap) -> Option<Found> {
        let mut seen = None;
        self.each(snap, slot..slot + 1, |found| {
            seen = Some(found);
            ControlFlow::Break(())
        });
        seen
    }

    /// The slots of all rows there are, whoever sees them.
    fn slots(&self) -> Vec<u32> {
        let mut slots = Vec::new();
        if !self.toast.is_empty() {
            let high = (VIRTUAL_BASE - 1) as i32;
            self.toast.scan_damaged::<()>(
                keys::DIRECTORY,
                0,
                high,
                Snap::any(),
                false,
                |key, _| {
                    slots.push(key.seq as u32);
                    ControlFlow::Continue(())
                },
            );
        }
        slots.dedup();
        slots
    }

    /// As [`Directory::list`] for those who can do without some: `damaged` is told of each directory row that does
    /// not decode, and its stripe is left out.
    pub fn list_readable(&self, snap: Snap, mut damaged: impl FnMut(Slot, &Error)) -> Vec<Found> {
        let mut list = Vec::new();
        self.visit(snap, 0..VIRTUAL_BASE, |slot, found| {
            match found {
                Ok(found) => list.push(found),
                Err(e) => damaged(slot, &e),
            }
            ControlFlow::Continue(())
        });
        list
    }

    /// Visit the stripes at these slots that `snap` sees, in their order. Raises when a directory row is damaged.
    pub fn each(
        &self,
        snap: Snap,
        slots: Range<u32>,
        mut visit: impl FnMut(Found) -> ControlFlow<()>,
    ) {
        self.visit(snap, slots, |slot, found| match found {
            Ok(found) => visit(found),
            Err(e) => self.raise_damaged(slot, &e),
        });
    }

    fn visit(
        &self,
        snap: Snap,
        slots: Range<u32>,
        mut visit: impl FnMut(Slot, Result<Found, Error>) -> ControlFlow<()>,
    ) {
        // During TRUNCATE the heap is emptied before its index: entries would lead nowhere.
        if slots.is_empty() || self.toast.is_empty() {
            return;
        }
        let (low, high) = (slots.start as i32, (slots.end.min(VIRTUAL_BASE) - 1) as i32);
        self.toast.scan_damaged::<()>(keys::DIRECTORY, low, high, snap, false, |key, row| {
            let slot = Slot(key.seq as u32);
            if !row.is_under(key) {
                return visit(slot, Err(misplaced(row.key())));
            }
            match self.remember(slot, row.place(), row.xmin(), row.data()) {
                Ok(found) if found.entry.state != EntryState::Live => ControlFlow::Continue(()),
                found => visit(slot, found),
            }
        });
    }

    /// Visit the directory rows that `snap` sees, reserved ones too, in slot order; of one that does not decode, or has a damaged key,
    /// there is the slot that it was written for, if it still says so.
    pub fn each_row(
        &self,
        snap: Snap,
        mut visit: impl FnMut(Slot, Result<&DirectoryEntry, Option<Slot>>),
    ) {
        self.toast.scan_damaged::<()>(keys::DIRECTORY, 0, i32::MAX, snap, false, |key, row| {
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
    pub fn find(&self, tid: Tid, snap: Snap) -> Option<Found> {
        let block = tid.block.checked_sub(VIRTUAL_BASE)?;
        let covers = |slot: Slot, blocks: u32| block >= slot.0 && block - slot.0 < blocks;
        // Most look-ups hit a stripe seen before: ask its row directly. The candidate is the known
        // stripe that covers the block.
        if let Some(seen) = seen::covering(self.toast.storage(), block) {
            let f = &seen.found;
            let hit = self.toast.at(f.place, key(f.slot), snap, |row| {
                (Print::of(row.data()) == seen.print).then(|| row.xmin())
            });
            if let Some(Some(xmin)) = hit {
                return Some(Found { xmin, ..f.clone() });
            }
        }
        if self.toast.is_empty() {
            return None;
        }
        let upto = ChunkKey { id: keys::DIRECTORY, seq: block as i32 };
        let look = |snap| {
            let row = self.toast.find_at_or_before(upto, snap)?;
            let slot = Slot(row.key.seq as u32);
            let found = match row.key_is_damaged {
                true => Err(Error::corrupt("its key is damaged")),
                false => self.remember(slot, row.place, row.xmin, &row.data),
            };
            let found = found.unwrap_or_else(|e| self.raise_damaged(slot, &e));
            covers(found.slot, found.entry.blocks).then_some(found)
        };
        // An offload, a load or VACUUM may replace the row while we look, see `tombstones::again`. An MVCC
        // snapshot sees one version, whenever.
        let looks = match snap.kind() {
            SnapKind::Dirty | SnapKind::SelfSnap => tombstones::LOOKS,
            _ => 1,
        };
        for left in (0..looks).rev() {
            let found = look(snap);
            if found.is_some() || left == 0 || look(Snap::any()).is_none() {
                return found;
            }
        }
        None
    }

    /// The table is about to get a stripe. Plans made for a table without stripes do not scan any fast.
    pub(super) fn expect_stripe(&self) {
        if counts::stripe_totals(self.table).stripes == 0.0 {
            self.table.invalidate();
        }
    }

    /// Reserve the directory row of a new stripe before the first index entry points into it, so
    /// that other sessions' uniqueness checks find whom to wait for. For `allocation::slot_for`, which
    /// hands out the slot.
    pub(super) fn reserve(&self, slot: Slot, rows: u32, cid: u32) -> Tid {
        let entry = DirectoryEntry::reserved(blocks_for(rows));
        let bytes = frame(slot, &entry, reserved_bytes(self.table.column_count()));
        self.toast.insert(key(slot), &bytes, cid, false)
    }

    /// Complete the row reserved at `place` by this very transaction: it becomes the stripe's.
    pub fn publish(&self, slot: Slot, place: Tid, entry: &DirectoryEntry) {
        let bytes = frame(slot, entry, reserved_bytes(self.table.column_count()));
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
        tombstones::each_readable(&self.toast, found.slot, rows, Snap::self_snap(), |_, stone| {
            stones.push(stone.place)
        });
        for place in stones {
            self.toast.delete(place, cid);
        }
    }

    /// Bytes that a stripe's row takes on a page, headers included.
    pub fn row_bytes(&self, found: &Found) -> usize {
        frame(found.slot, &found.entry, reserved_bytes(self.table.column_count())).len() + 64
    }

    /// Move a stripe's row to the page `block`, as it is.
    pub fn relocate(&self, found: &Found, cid: u32, block: u32) {
        let bytes = frame(found.slot, &found.entry, reserved_bytes(self.table.column_count()));
        self.toast.relocate(found.place, key(found.slot), &bytes, cid, block);
    }

    /// Replace a live stripe's row (it moved, or its tombstones were folded in).
    pub fn replace(&self, found: &Found, entry: &DirectoryEntry, cid: u32) -> Tid {
        let bytes = frame(found.slot, entry, reserved_bytes(self.table.column_count()));
        self.toast.update(found.place, key(found.slot), &bytes, cid)
    }
}

/// What is said of a directory row that does not decode.
pub fn damaged_row(table: Rel, slot: Slot) -> String {
    format!("directory row {} of table \"{}\" is damaged", slot.0, table.name())
}

/// Why a directory row that the index leads to is damaged: it has this key.
fn misplaced(key: ChunkKey) -> Error {
    Error::corrupt(format!("its key says ({}, {})", key.id, key.seq))
}

/// Bytes of the note of a row's slot.
const NOTE: usize = 8;

/// The entry in the data of the directory row under this slot, see [`frame`]. The key is not what has a checksum, so
/// the row says itself which slot it is of.
pub fn decode(slot: Slot, data: &[u8]) -> firn_format::Result<DirectoryEntry> {
    let entry = DirectoryEntry::decode(body(data))?;
    match written_for(data)? {
        Some(other) if other != slot => {
            Err(Error::corrupt(format!("the directory row is that of slot {}", other.0)))
        }
        _ => Ok(entry),
    }
}

fn body(data: &[u8]) -> &[u8] {
    let len = data.get(..4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    data.get(4..4 + len as usize).unwrap_or(&[])
}

/// The slot that a directory row was written for; None in rows of before it was noted.
fn written_for(data: &[u8]) -> firn_format::Result<Option<Slot>> {
    let body = body(data);
    let Some(note) = data.get(4 + body.len()..4 + body.len() + NOTE) else { return Ok(None) };
    if note.iter().all(|b| *b == 0) {
        return Ok(None);
    }
    let slot = Slot(note[..4].try_into().map_or(0, u32::from_le_bytes));
    match note == note_of(slot, body) {
        true => Ok(Some(slot)),
        false => Err(Error::corrupt("the note of a directory row's slot does not match")),
    }
}

/// The slot of the directory row that these data are, whatever the row's key says; None of one that has no note of it, and
/// of anything else.
pub fn directory_row_of(data: &[u8]) -> Option<Slot> {
    let slot = written_for(data).ok()??;
    DirectoryEntry::decode(body(data)).is_ok().then_some(slot)
}

/// Whether a row of ours has a key that it was not given, going by the row alone: nobody gives that key, or the row is another one's
/// directory row. (Chunks are bytes that users have chosen, but of a length that no directory row has, or with the end of a stripe.
/// Parts of values, which may be anything, are never recognised.)
pub fn is_misplaced(key: ChunkKey, data: &[u8]) -> bool {
    let is_another = || match key.id {
        keys::CHUNKS..keys::TOMBSTONES if data.len() == CHUNK_BYTES || data.ends_with(b"PAR1") => {
            false
        }
        keys::DIRECTORY => directory_row_of(data).is_some_and(|slot| slot.0 as i32 != key.seq),
        _ => directory_row_of(data).is_some(),
    };
    key.id <= keys::LAST && (keys::is_nobodys_key(key.id, key.seq) || is_another())
}

/// The slot and a checksum of it and the entry.
fn note_of(slot: Slot, body: &[u8]) -> [u8; NOTE] {
    let mut note = [0; NOTE];
    note[..4].copy_from_slice(&slot.0.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(body), &note[..4]);
    // Never all zeros.
    note[4..].copy_from_slice(&crc.max(1).to_le_bytes());
    note
}

/// An entry with its length before it, its slot after it, padded so that it can be overwritten in place later.
fn frame(slot: Slot, entry: &DirectoryEntry, room: usize) -> Vec<u8> {
    let body = entry.encode(room - 4 - NOTE);
    let mut bytes = Vec::with_capacity(room);
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes.extend_from_slice(&note_of(slot, &body));
    bytes.resize(room.max(bytes.len()), 0);
    bytes
}
