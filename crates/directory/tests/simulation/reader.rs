//! What a statement sees of the table: rows of the row store, rows of stripes, rows by the index.

use crate::session::Session;
use crate::world::{Row, Snap};
use firn_directory::forward::{self, Moves};
use firn_directory::{
    chunks, rows, seq_of, tombstones, ChunkStore, Found, Row as _, Xid, CHUNK_BYTES,
};
use firn_format::{EntryState, Location, Slot, Tid};
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

/// Bytes of a row in a stripe.
const ROW: usize = 16;

/// A stripe's bytes, and some more, so that it takes several chunks.
pub fn encode(list: &[Row], more: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(list.len() * ROW + more);
    for row in list {
        bytes.extend_from_slice(&row.id.to_le_bytes());
        bytes.extend_from_slice(&row.value.to_le_bytes());
    }
    bytes.resize(bytes.len() + more, 7);
    bytes
}

pub fn row_at(bytes: &[u8], row: u32) -> Row {
    let word = |at: usize| bytes[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    let at = row as usize * ROW;
    Row { id: word(at), value: word(at + 8) }
}

impl Session {
    /// A stripe's bytes, wherever they are.
    pub fn bytes_of(&self, found: &Found) -> Vec<u8> {
        let entry = &found.entry;
        let mut bytes = Vec::new();
        match &entry.location {
            Location::Object { key, .. } => {
                let object = self.call(|world| world.objects.get(key).cloned());
                let Some(object) = object else { panic!("object {key} is not there") };
                bytes.extend_from_slice(&object);
            }
            Location::Chunks { address, .. } => {
                let (id, first) = chunks::key_of(*address);
                let count = entry.bytes.div_ceil(CHUNK_BYTES as u64) as u32;
                let (low, high) = (seq_of(first), seq_of(first + count - 1));
                // Addresses are never used twice, so a chunk that is there is the right one, whoever sees it.
                (&self).scan::<()>(id, low, high, Snap::Any, false, |_, row| {
                    bytes.extend_from_slice(row.data());
                    ControlFlow::Continue(())
                });
            }
        }
        assert_eq!(bytes.len() as u64, entry.bytes, "bytes of stripe {}", found.slot.0);
        assert_eq!(crc32c::crc32c(&bytes), entry.crc32c, "content of stripe {}", found.slot.0);
        bytes
    }

    /// All rows that the snapshot sees, in order.
    pub fn all_rows(&self, snap: Snap) -> Vec<Row> {
        let mut list = Vec::new();
        let mut moves = HashMap::new();
        for place in 0..self.now(|world| world.rows.len()) {
            let tuple = self.now(|world| {
                let tuple = world.rows.get(place)?.clone();
                world.sees(&tuple, snap, self.me).then_some(tuple)
            });
            let Some(tuple) = tuple else { continue };
            if !self.hides(crate::heap::tid_of(place), tuple.deleter(), snap, &mut moves) {
                list.push(tuple.payload);
            }
        }
        for found in rows::list(&self, snap).unwrap() {
            let deleted = tombstones::deleted(&self, found.slot, found.entry.rows, snap).unwrap();
            let bytes = self.bytes_of(&found);
            let lives = |row: &u32| !deleted.as_ref().is_some_and(|d| d.contains(*row));
            list.extend((0..found.entry.rows).filter(lives).map(|row| row_at(&bytes, row)));
        }
        list.sort_by_key(|row| (row.id, row.value));
        list
    }

    /// The snapshot sees a row of the row store that `deleter` has deleted. Was that a move, and has this transaction
    /// deleted the row where it went?
    fn hides(
        &self,
        origin: Tid,
        deleter: Xid,
        snap: Snap,
        moves: &mut HashMap<Xid, Moves>,
    ) -> bool {
        let may = self.now(|world| {
            deleter != Xid::NONE && world.backends[self.me].changed && world.is_committed(deleter)
        });
        if !may {
            return false;
        }
        let of = moves.entry(deleter).or_insert_with(|| Moves::of(&self, deleter).unwrap());
        let Some(home) = of.home(&self, origin).unwrap() else { return false };
        let stone = tombstones::find(&self, home, snap).unwrap();
        let hidden = stone.is_some_and(|stone| stone.is_of_deleted());
        if hidden {
            self.now(|world| world.saw("moved rows hidden, as changed where they went"));
        }
        hidden
    }

    /// The row of a stripe at `tid` that the snapshot sees.
    pub fn stripe_row(&self, tid: Tid, snap: Snap) -> Option<Row> {
        let found = rows::find(&self, tid, snap).unwrap()?;
        let row = tid.row_in(found.slot)?;
        if found.entry.state == EntryState::Reserved || row >= found.entry.rows {
            return None;
        }
        // Asked first: what comes later is not seen by this snapshot. Who is told that there is none looks for no stone.
        let (slot, rows) = (found.slot, found.entry.rows);
        let may_be_any = tombstones::may_be_any(&self, slot, rows)
            && !tombstones::is_known_to_be_whole(&self, slot, rows);
        let stone = tombstones::find(&self, tid, snap).unwrap();
        let is_deleted = stone.is_some_and(|stone| stone.is_of_deleted());
        // What is read of all rows at once says the same of this one.
        if row % 8 == 0 && matches!(snap, Snap::Mvcc(_)) {
            if let Some(list) = tombstones::few_deleted(&self, slot, rows, snap, 64) {
                assert_eq!(list.contains(&row), is_deleted, "{tid:?} among {list:?}");
                self.now(|world| world.saw("few deleted rows read at once"));
            }
        }
        if is_deleted {
            let is_mvcc = matches!(snap, Snap::Mvcc(_));
            assert!(
                may_be_any || !is_mvcc,
                "a stone of {tid:?} is seen, and its stripe is said to have none"
            );
            return None;
        }
        Some(row_at(&self.bytes_of(&found), row))
    }

    /// The row with this identity that the snapshot sees, by the index, and where it is.
    pub fn look_up(&self, id: u64, snap: Snap) -> Option<(Tid, Row)> {
        let tids = self.call(|world| world.index.get(&id).cloned()).unwrap_or_default();
        let mut found: Option<(Tid, Row)> = None;
        for tid in tids {
            let row = match tid.is_virtual() {
                true => self.stripe_row(tid, snap),
                false => self.row_store_row(tid, snap),
            };
            let Some(row) = row else { continue };
            assert_eq!(row.id, id, "the index entry of row {id} at {tid:?} leads to another row");
            assert!(found.is_none(), "row {id} is at {found:?} and at {tid:?}");
            found = Some((tid, row));
        }
        found
    }

    fn row_store_row(&self, tid: Tid, snap: Snap) -> Option<Row> {
        let tuple = self.call(|world| {
            let tuple = world.rows.at(tid)?.clone();
            world.sees(&tuple, snap, self.me).then_some(tuple)
        })?;
        let hidden = self.hides(tid, tuple.deleter(), snap, &mut HashMap::new());
        (!hidden).then_some(tuple.payload)
    }

    /// Where the row was moved that `mover` took from `origin`.
    pub fn moved_to(&self, origin: Tid, mover: Xid) -> Option<Tid> {
        let home = forward::find(&self, origin, mover).unwrap();
        if home.is_some() {
            self.now(|world| world.saw("moves followed"));
        }
        home
    }

    /// The stripes that are committed now, which no other session may change meanwhile.
    fn committed_stripes(&self) -> BTreeSet<u32> {
        let before = self.quiet.replace(true);
        let list = rows::list(&self, Snap::Own).unwrap();
        self.quiet.set(before);
        list.iter().map(|found| found.slot.0).collect()
    }

    /// Who judges each version as it comes misses no stripe that is there all the time, whoever offloads it meanwhile.
    pub fn check_dirty(&self) {
        let before = self.committed_stripes();
        let listed = (&self).with_dirty(|snap| rows::list_dirty(&self, snap)).unwrap();
        let live = listed.iter().all(|found| found.entry.state == EntryState::Live);
        assert!(live, "a stripe that is only reserved is listed");
        let listed: BTreeSet<u32> = listed.iter().map(|found| found.slot.0).collect();
        let choice = self.now(|world| world.random.below(before.len() as u32));
        let one = before.iter().nth(choice as usize).copied();
        let found = one.map(|slot| rows::find(&self, Tid::of(Slot(slot), 0), Snap::Own).unwrap());
        let after = self.committed_stripes();
        for slot in before.intersection(&after) {
            assert!(listed.contains(slot), "stripe {slot} is not in the list of a dirty snapshot");
        }
        if let (Some(slot), Some(found)) = (one, found) {
            let missed = found.is_none() && after.contains(&slot);
            assert!(!missed, "stripe {slot} is not found");
        }
    }

    /// Compare what a snapshot sees with the model.
    pub fn check(&self) {
        let (snap, _held) = self.snapshot();
        let Snap::Mvcc(at) = snap else { return };
        let (expected, ids) = self.now(|world| {
            world.backends[self.me].touched = true;
            let snapshot = world.backends[self.me].snapshots[at].clone();
            let rows = world.model_rows(&snapshot, self.me);
            let next = world.next_id;
            let some = (0..4).map(|_| 1 + world.random.next() % next).collect::<Vec<u64>>();
            (rows, some)
        });
        let found = self.all_rows(snap);
        if found != expected {
            panic!("a snapshot sees {found:?}, not {expected:?}");
        }
        let some = expected.iter().map(|row| row.id).skip(ids[0] as usize % 8).step_by(8);
        for id in some.chain(ids) {
            let expected = self.now(|world| {
                let snapshot = world.backends[self.me].snapshots[at].clone();
                world.model_row(id, &snapshot, self.me)
            });
            let found = self.look_up(id, snap).map(|(_, row)| row);
            assert_eq!(found, expected, "row {id} by the index");
        }
    }
}
