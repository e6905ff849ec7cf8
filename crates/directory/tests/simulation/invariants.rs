//! What must be so at every moment, whatever runs: functions of the server's state alone.

use crate::heap::{ours_of, Xid};
use crate::world::{Status, World};
use firn_directory::{allocation, chunks, decode, keys, tombstones, unsigned_of, ChunkKey, Place};
use firn_format::{DirectoryEntry, Location, Slot, VIRTUAL_BASE};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The next block and address, as the allocation row has them.
pub struct Allocated {
    pub block: u64,
    pub address: u64,
}

impl World {
    /// The inserter has committed, or still may.
    fn may_live(&self, frozen: bool, xmin: Xid) -> bool {
        frozen || self.status(xmin) != Status::Aborted
    }

    pub fn allocated(&self) -> Option<Allocated> {
        let all = self.ours.iter().filter(|(_, t)| t.payload.key == allocation::KEY);
        let mut living = all.filter(|(_, t)| t.frozen).map(|(_, t)| t.payload.data.clone());
        let data = living.next()?;
        assert!(living.next().is_none(), "two allocation rows");
        let word = |at: usize| data[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
        Some(Allocated { block: word(8), address: word(16) })
    }

    /// Virtual blocks that anything names, but the row at `except`.
    pub fn blocks_referred_to(&self, except: Place) -> Vec<(String, u32)> {
        let mut named = Vec::new();
        for (id, tids) in &self.index {
            for tid in tids.iter().filter(|tid| tid.is_virtual()) {
                let what = format!("the index entry of row {id}");
                named.push((what, tid.block - VIRTUAL_BASE));
            }
        }
        for (place, tuple) in self.ours.iter().filter(|(at, _)| ours_of(*at) != except) {
            let key = tuple.payload.key;
            let block = match key.id {
                keys::DIRECTORY | keys::FORWARDING => Some(key.seq as u32),
                keys::TOMBSTONES..=keys::LAST_TOMBSTONES => {
                    tombstones::tid_of(key).map(|tid| tid.block - VIRTUAL_BASE)
                }
                _ => None,
            };
            // What nobody can see any more, VACUUM takes without asking what it names.
            let lives = self.may_live(tuple.frozen, tuple.xmin);
            named.extend(block.filter(|_| lives).map(|b| (format!("{key:?} at {place}"), b)));
        }
        named
    }

    fn address_of(key: ChunkKey) -> Option<u64> {
        (keys::CHUNKS..keys::TOMBSTONES).contains(&key.id).then(|| {
            u64::from(key.id - keys::CHUNKS) * chunks::PER_ID + u64::from(unsigned_of(key.seq))
        })
    }

    /// These addresses are handed out: no chunk has one of them, dead or alive, as readers ask for none's visibility.
    pub fn expect_no_chunks(&self, range: Range<u64>) {
        for (_, tuple) in self.ours.iter() {
            let address = World::address_of(tuple.payload.key);
            let taken = address.is_some_and(|address| range.contains(&address));
            assert!(!taken, "address {address:?} is given out twice");
        }
    }

    pub fn is_anchor_of(&self, place: Place, key: ChunkKey) -> bool {
        self.ours.of_ours(place).is_some_and(|tuple| {
            let is_anchor = keys::is_anchor(key.id, &tuple.payload.data);
            tuple.frozen && is_anchor && tuple.payload.key == key
        })
    }

    /// The key of the anchor at `place` that no running transaction holds and no committed one has changed.
    pub fn unheld_anchor(&self, place: Place) -> Option<ChunkKey> {
        let tuple = self.ours.of_ours(place)?;
        let key = tuple.payload.key;
        let held = self.is_running(tuple.xmax) || self.is_committed(tuple.deleter());
        (self.is_anchor_of(place, key) && !held).then_some(key)
    }

    /// The directory's rows that have not been rolled back, newest versions.
    fn directory(&self) -> BTreeMap<u32, DirectoryEntry> {
        let mut found = BTreeMap::new();
        for (_, tuple) in self.ours.iter().filter(|(_, t)| t.payload.key.id == keys::DIRECTORY) {
            let gone = self.is_committed(tuple.deleter());
            if !self.may_live(tuple.frozen, tuple.xmin) || gone {
                continue;
            }
            let slot = Slot(tuple.payload.key.seq as u32);
            match decode(slot, &tuple.payload.data) {
                Ok(entry) => drop(found.insert(slot.0, entry)),
                Err(e) => panic!("directory row {}: {e}", slot.0),
            }
        }
        found
    }

    /// The allocation lock is given back: what was handed out under it has its directory row.
    pub fn check_handed_out(&self) {
        let first = self.first_free;
        if self.allocated().is_none_or(|next| next.block == first) {
            return;
        }
        let is_its =
            |key: ChunkKey| key.id == keys::DIRECTORY && u64::from(key.seq as u32) == first;
        let reserved = self.ours.iter().any(|(_, t)| is_its(t.payload.key));
        assert!(reserved, "slot {first} is handed out without its directory row");
    }

    /// All of it.
    pub fn check_invariants(&self) {
        let Some(next) = self.allocated() else {
            let ours = self.blocks_referred_to(Place { block: 0, offset: 0 });
            assert!(ours.is_empty(), "there is no allocation row, but {ours:?}");
            return;
        };
        // Nothing names what is still to be given out.
        for (what, block) in self.blocks_referred_to(Place { block: 0, offset: 0 }) {
            assert!(u64::from(block) < next.block, "{what} names block {block}, still to be given");
        }
        for (_, tuple) in self.ours.iter() {
            if let Some(address) = World::address_of(tuple.payload.key) {
                let lives = self.may_live(tuple.frozen, tuple.xmin);
                assert!(!lives || address < next.address, "chunk {address} is still to be given");
            }
        }
        // Stripes do not overlap.
        let directory = self.directory();
        let (mut end, mut runs) = (0, BTreeMap::new());
        for (slot, entry) in &directory {
            assert!(*slot >= end, "stripe {slot} begins before {end}, where the last one ends");
            end = slot + entry.blocks;
            assert!(u64::from(end) <= next.block, "stripe {slot} ends behind {}", next.block);
            if let Location::Chunks { address, .. } = entry.location {
                let count = entry.bytes.div_ceil(firn_directory::CHUNK_BYTES as u64);
                if count > 0 {
                    runs.insert(address, address + count);
                }
            }
        }
        let mut end = 0;
        for (from, to) in runs {
            assert!(from >= end, "the chunks from {from} on are in two stripes");
            end = to;
        }
        self.check_clean(&directory);
        self.check_entries(&directory);
        self.check_pinned();
    }

    /// What the note of cleaning says: no index entry leads to blocks before that one which no stripe has.
    fn check_clean(&self, directory: &BTreeMap<u32, DirectoryEntry>) {
        let note = |key: ChunkKey| key.id == keys::CLEANED && key.seq == 0;
        let row = self.ours.iter().find(|(_, t)| t.frozen && note(t.payload.key));
        let Some((_, row)) = row else { return };
        let clean = row.payload.data[16..20].try_into().map_or(0, u32::from_le_bytes);
        for tid in self.index.values().flatten() {
            let Some(block) = tid.block.checked_sub(VIRTUAL_BASE).filter(|b| *b < clean) else {
                continue;
            };
            let stripe = directory.range(..=block).next_back();
            let taken = stripe.is_some_and(|(slot, entry)| block - slot < entry.blocks);
            assert!(taken, "an index entry leads to {tid:?}, which is noted as clean");
        }
    }

    /// Each entry that leads to a row which a snapshot may see has its stripe: entries of running loads that of a
    /// running transaction. (Those of others lead nowhere, until VACUUM takes them.) And each row of ours that does not depend on its
    /// transaction has its entry.
    fn check_entries(&self, directory: &BTreeMap<u32, DirectoryEntry>) {
        for (id, versions) in &self.model.versions {
            let open = versions.iter().any(|v| self.is_running(v.xmin));
            let tids = self.index.get(id);
            for tid in tids.into_iter().flatten().filter(|_| open && versions.len() == 1) {
                let Some(block) = tid.block.checked_sub(VIRTUAL_BASE) else { continue };
                let covered = directory
                    .range(..=block)
                    .next_back()
                    .is_some_and(|(slot, entry)| block - slot < entry.blocks);
                assert!(covered, "row {id} is being loaded, and {tid:?} has no directory row");
            }
        }
        let indexed: BTreeSet<(u32, i32, u32)> = self.entries.iter().copied().collect();
        for (place, tuple) in self.ours.iter().filter(|(_, t)| t.frozen) {
            // VACUUM takes the entry first.
            if self.is_committed(tuple.deleter()) {
                continue;
            }
            let ChunkKey { id, seq } = tuple.payload.key;
            assert!(indexed.contains(&(id, seq, place)), "no index entry leads to {tuple:?}");
        }
    }

    /// Of each key there is one row at most of those that belong to no transaction.
    fn check_pinned(&self) {
        let mut keys_seen = BTreeSet::new();
        for (_, tuple) in self.ours.iter() {
            let key = tuple.payload.key;
            let pinned = keys::is_pinned(key.id, &tuple.payload.data);
            let gone = self.is_committed(tuple.deleter());
            if pinned && tuple.frozen && !gone {
                assert!(keys_seen.insert((key.id, key.seq)), "two rows under {key:?}");
            }
        }
    }

    /// Nobody has a snapshot and VACUUM has been there: nothing is left that is of no use.
    pub fn check_nothing_is_left(&self) {
        let directory = self.directory();
        let stripe = |block: u32| {
            let (slot, entry) = directory.range(..=block).next_back()?;
            (block - slot < entry.blocks).then_some((Slot(*slot), entry))
        };
        let mut deleted = BTreeSet::new();
        for (_, tuple) in self.ours.iter() {
            let key = tuple.payload.key;
            if let Some(address) = World::address_of(key) {
                let used = directory.values().any(|entry| match entry.location {
                    Location::Chunks { address: from, .. } => {
                        let count = entry.bytes.div_ceil(firn_directory::CHUNK_BYTES as u64);
                        (from..from + count).contains(&address)
                    }
                    Location::Object { .. } => false,
                });
                assert!(used, "chunk {address} is no stripe's");
            }
            assert!(key.id != keys::FORWARDING, "a forwarding list nobody needs: {key:?}");
            if key.id >= keys::TOMBSTONES {
                let Some(tid) = tombstones::tid_of(key) else { continue };
                let of = stripe(tid.block - VIRTUAL_BASE);
                assert!(of.is_some(), "a tombstone of no stripe: {tid:?}");
                deleted.insert(tid);
            }
        }
        for (id, tids) in &self.index {
            for tid in tids.iter().filter(|tid| tid.is_virtual()) {
                let of = stripe(tid.block - VIRTUAL_BASE);
                let row =
                    of.and_then(|(slot, entry)| tid.row_in(slot).filter(|row| *row < entry.rows));
                let useful = row.is_some() && !deleted.contains(tid);
                assert!(useful, "an index entry of row {id} is left: {tid:?}");
            }
        }
    }
}
