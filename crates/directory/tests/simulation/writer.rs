//! Statements that change rows: into the row store, straight into stripes; deletions, updates and locks of rows
//! wherever they are, which wait for others and follow where the row has gone.

use crate::heap::{number_of, place_of, tid_of, Cid, Tuple, Xid};
use crate::session::{unwind, Guard, Session};
use crate::world::{Doom, Row, Snap};
use firn_directory::{
    allocation, chunks, rows, seq_of, tombstones, ChunkKey, ChunkStore, Keep, Place, CHUNK_BYTES,
};
use firn_format::{blocks_for, DirectoryEntry, EntryState, Location, Slot, Tid, Tombstone};

/// Room of a directory row.
pub const ROOM: usize = 260;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Delete,
    Update,
    Lock,
}

/// How a row that a statement has found can be changed.
enum Locked<'a> {
    /// In the row store.
    Row,
    /// It has no anchor: the short lock is held.
    Bare { _short: Guard<'a> },
    /// Its anchor was made just now: the short lock is held.
    Fresh { _short: Guard<'a>, place: Place },
    /// Its anchor is locked.
    Anchor(Place),
    /// There is a newer version.
    Updated(Tid),
    /// It is deleted, by this transaction.
    Deleted(Xid),
}

impl Session {
    fn cid(&self) -> Cid {
        self.now(|world| world.backends[self.me].cid)
    }

    pub fn new_row(&self, id: Option<u64>) -> Row {
        self.now(|world| {
            let id = id.unwrap_or_else(|| {
                world.next_id += 1;
                world.next_id - 1
            });
            world.next_value += 1;
            Row { id, value: world.next_value }
        })
    }

    /// Insert a row into the row store, with its index entry.
    pub fn insert_row(&self, row: Row) -> Tid {
        let cid = self.cid();
        let tid = self.call(|world| {
            let xmin = world.xid(self.me);
            let choice = world.random.below(1 << 20);
            let place = world.rows.room(choice);
            world.new_record();
            world.put_row(place, Some(Tuple::new(xmin, cid, row)));
            world.model_insert(self.me, row);
            tid_of(place)
        });
        self.call(|world| world.add_index(row.id, tid));
        tid
    }

    /// A slot for up to so many rows. Nothing may refer to any of its addresses but its directory row.
    pub fn slot_for(&self, capacity: u32) -> (Slot, Place) {
        let (slot, place) = allocation::slot_for(&self, capacity, self.cid(), ROOM).unwrap();
        self.now(|world| {
            let range = slot.0..slot.0 + blocks_for(capacity);
            for (what, block) in world.blocks_referred_to(place) {
                assert!(!range.contains(&block), "block {block} is given out, but {what} names it");
            }
        });
        (slot, place)
    }

    /// Store bytes; returns the entry of a stripe of so many rows.
    pub fn store(&self, bytes: &[u8], rows: u32, capacity: u32) -> DirectoryEntry {
        DirectoryEntry {
            state: EntryState::Live,
            rows,
            bytes: bytes.len() as u64,
            crc32c: crc32c::crc32c(bytes),
            location: self.store_chunks(bytes),
            ..DirectoryEntry::reserved(blocks_for(capacity))
        }
    }

    pub fn store_chunks(&self, bytes: &[u8]) -> Location {
        let count = bytes.len().div_ceil(CHUNK_BYTES) as u64;
        let address = allocation::addresses(&self, count).unwrap();
        let (id, first) = chunks::key_of(address);
        self.now(|world| world.expect_no_chunks(address..address + count));
        for (i, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
            let key = ChunkKey { id, seq: seq_of(first + i as u32) };
            (&self).insert(key, chunk, self.cid(), Keep::WithTransaction);
        }
        Location::Chunks { address, chunk_bytes: CHUNK_BYTES as u32 }
    }

    /// Rows straight into a stripe, each with its index entry before the stripe is there.
    pub fn load(&self, count: u32, capacity: u32, more: usize) {
        let (slot, place) = self.slot_for(capacity);
        let mut list = Vec::new();
        for i in 0..count {
            let row = self.new_row(None);
            list.push(row);
            self.now(|world| world.model_insert(self.me, row));
            self.call(|world| world.add_index(row.id, Tid::of(slot, i)));
        }
        let entry = self.store(&crate::reader::encode(&list, more), count, capacity);
        rows::publish(&self, slot, place, &entry, ROOM);
    }

    /// Delete, update or lock the row with this identity, if this statement sees it.
    pub fn change(&self, id: u64, change: Change) {
        let (snap, _held) = self.snapshot();
        let (Snap::Mvcc(at), repeatable) = (snap, self.now(|w| w.backends[self.me].repeatable))
        else {
            return;
        };
        self.now(|world| world.backends[self.me].touched = true);
        let found = self.look_up(id, snap);
        let expected = self.now(|world| {
            let snapshot = world.backends[self.me].snapshots[at].clone();
            world.model_row(id, &snapshot, self.me)
        });
        assert_eq!(found.map(|(_, row)| row), expected, "row {id} by the index");
        let Some((mut tid, mut row)) = found else { return };
        loop {
            let locked = match tid.is_virtual() {
                true => self.lock_stripe_row(tid, change),
                false => self.lock_row_store_row(tid),
            };
            match locked {
                Locked::Updated(next) => {
                    assert!(self.now(|w| w.model_is_gone(self.me, row)), "{row:?} is still there");
                    let newer = self.newest(next, row);
                    if repeatable {
                        self.could_not_serialize();
                    }
                    self.now(|world| world.saw("updates followed"));
                    row = newer;
                    tid = next;
                }
                Locked::Deleted(by) => match self.moved_to(tid, by) {
                    Some(home) => tid = home,
                    None => {
                        let gone = self.now(|w| w.model_is_gone(self.me, row));
                        assert!(gone, "{row:?} at {tid:?} is not found, deleted by {by:?}");
                        if repeatable {
                            self.could_not_serialize();
                        }
                        return;
                    }
                },
                locked => return self.carry_out(tid, row, change, locked),
            }
        }
    }

    fn could_not_serialize(&self) -> ! {
        self.now(|world| world.saw("changes refused, as they could not be serialized"));
        unwind(Doom::Error)
    }

    /// The row that an update has made, at `tid` in the row store, or where a move has taken it.
    fn newest(&self, tid: Tid, of: Row) -> Row {
        let row = self.now(|world| world.rows.at(tid).map(|t| t.payload));
        let Some(row) = row else { panic!("the new version of {of:?} at {tid:?} is not there") };
        assert_eq!(row.id, of.id, "{of:?} is followed to another row at {tid:?}");
        row
    }

    fn carry_out(&self, tid: Tid, row: Row, change: Change, locked: Locked) {
        self.now(|world| {
            world.note(self.me, || format!("{change:?} {row:?} at {tid:?}"));
            if tid.is_virtual() {
                world.backends[self.me].changed = true;
            }
        });
        if change == Change::Lock {
            return;
        }
        let next = (change == Change::Update).then(|| {
            let new = self.new_row(Some(row.id));
            self.insert_row(new)
        });
        let stone = match next {
            Some(next) => Tombstone::updated(next, false),
            None => Tombstone::deleted(),
        };
        let (key, cid) = (tombstones::key_of(tid), self.cid());
        match &locked {
            Locked::Row => self.call(|world| {
                let xid = world.xid(self.me);
                let Some(old) = world.rows.at(tid).cloned() else {
                    panic!("{row:?}, which is locked, is not there")
                };
                world.new_record();
                let old = Tuple { xmax: xid, cmax: cid, lock_only: false, next, ..old };
                world.put_row(place_of(tid), Some(old));
            }),
            Locked::Anchor(place) | Locked::Fresh { place, .. } => {
                (&self).update(*place, key, &stone.encode(), cid);
            }
            _ => {
                (&self).insert(key, &stone.encode(), cid, Keep::WithTransaction);
            }
        }
        self.now(|world| world.model_delete(self.me, row));
    }

    /// As heapam does: wait for whoever holds the row, then hold it.
    fn lock_row_store_row(&self, tid: Tid) -> Locked<'_> {
        loop {
            let tuple = self.call(|world| world.rows.at(tid).cloned());
            let Some(tuple) = tuple else { panic!("a row at {tid:?} that was seen is not there") };
            let (holder, deleter) = (tuple.xmax, tuple.deleter());
            let state = self.now(|world| {
                let ended = world.is_committed(deleter) || world.is_ours(deleter, self.me);
                (world.is_running_elsewhere(holder, self.me), ended)
            });
            match (state, tuple.next) {
                ((true, _), _) => self.wait_for(holder),
                ((_, true), Some(next)) => return Locked::Updated(next),
                ((_, true), None) => return Locked::Deleted(deleter),
                _ => {
                    let taken = self.call(|world| {
                        // Somebody else may have come before us.
                        let now = world.rows.at(tid)?.clone();
                        if now.xmax != holder || now.lock_only != tuple.lock_only {
                            return None;
                        }
                        let xid = world.xid(self.me);
                        world.new_record();
                        let held = Tuple { xmax: xid, lock_only: true, next: None, ..now };
                        world.put_row(place_of(tid), Some(held));
                        Some(())
                    });
                    if taken.is_some() {
                        return Locked::Row;
                    }
                }
            }
        }
    }

    /// As `am/row_lock.rs` does, for locks of one strength.
    fn lock_stripe_row(&self, tid: Tid, change: Change) -> Locked<'_> {
        loop {
            let short = self.lock_row(tid);
            let place = match tombstones::to_lock(&self, tid).unwrap() {
                Some((stone, _)) if !stone.is_of_deleted() => stone.place,
                Some((stone, writer)) => {
                    drop(short);
                    if writer != Xid::NONE {
                        self.wait_for(writer);
                        continue;
                    }
                    return match stone.tombstone.successor {
                        Some(next) => Locked::Updated(next),
                        None => Locked::Deleted(stone.raw_xmin),
                    };
                }
                None if change == Change::Delete => return Locked::Bare { _short: short },
                None => {
                    let (key, bytes) = (tombstones::key_of(tid), Tombstone::anchor().encode());
                    let place = (&self).insert(key, &bytes, self.cid(), Keep::ForGood);
                    if change == Change::Update {
                        return Locked::Fresh { _short: short, place };
                    }
                    place
                }
            };
            // VACUUM may remove the anchor from here on, but leaves it where it is.
            let pin = self.pin(place);
            drop(short);
            let locked = self.lock_anchor(place);
            let there = self.now(|world| world.is_anchor_of(place, tombstones::key_of(tid)));
            drop(pin);
            if locked && there {
                return Locked::Anchor(place);
            }
            self.now(|world| {
                world.saw(match locked {
                    true => "anchors removed under who locks them",
                    false => "anchors changed under who locks them",
                })
            });
        }
    }

    /// As `heap_lock_tuple`: false when it was changed.
    fn lock_anchor(&self, place: Place) -> bool {
        loop {
            let tuple = self.call(|world| world.ours.of_ours(place).cloned());
            let Some(tuple) = tuple else { panic!("the anchor at {place:?} is pinned, and gone") };
            if self.now(|world| world.is_running_elsewhere(tuple.xmax, self.me)) {
                self.wait_for(tuple.xmax);
                continue;
            }
            let changed = self.now(|world| {
                let deleter = tuple.deleter();
                world.is_committed(deleter) || world.is_ours(deleter, self.me)
            });
            if changed {
                return false;
            }
            let taken = self.call(|world| {
                let now = world.ours.of_ours(place)?.clone();
                if now.xmax != tuple.xmax || now.lock_only != tuple.lock_only {
                    return None;
                }
                let xid = world.xid(self.me);
                world.new_record();
                let held = Tuple { xmax: xid, lock_only: true, next: None, ..now };
                world.put_ours(number_of(place), Some(held));
                Some(())
            });
            if taken.is_some() {
                return true;
            }
        }
    }
}
