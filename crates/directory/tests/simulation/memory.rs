//! The session's chunk store: rows in the server's memory.

use crate::heap::{number_of, ours_of, tid_of, Cid, Tuple, Xid};
use crate::session::{Guard, Session};
use crate::world::{Entry, Ours, Snap, World};
use firn_directory::seen::Seen;
use firn_directory::{seq_of, ChunkKey, ChunkStore, Keep, Met, Place, Row, Witness};
use std::cell::Cell;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

/// Entries that a scan takes from the index at a time, before it looks at their rows.
const PAGE: usize = 5;
/// Of so many pages of a scan one is where another session goes on.
const BETWEEN: u32 = 10;

pub struct View {
    tuple: Tuple<Ours>,
    place: Place,
}

impl Row for View {
    fn key(&self) -> ChunkKey {
        self.tuple.payload.key
    }
    fn data(&self) -> &[u8] {
        &self.tuple.payload.data
    }
    fn place(&self) -> Place {
        self.place
    }
    fn xmin(&self) -> Xid {
        if self.tuple.frozen {
            Xid::FROZEN
        } else {
            self.tuple.xmin
        }
    }
    fn raw_xmin(&self) -> Xid {
        self.tuple.xmin
    }
    fn cmin(&self) -> Cid {
        self.tuple.cmin
    }
}

impl Session {
    /// Insert a row without an entry.
    fn insert_unindexed(&self, key: ChunkKey, data: &[u8], cid: Cid) -> u32 {
        self.call(|world| {
            let xmin = world.xid(self.me);
            let choice = world.random.below(1 << 20);
            let place = world.ours.room(choice);
            world.new_record();
            let payload = Ours { key, data: Arc::from(data) };
            world.put_ours(place, Some(Tuple::new(xmin, cid, payload)));
            place
        })
    }

    fn index(&self, key: ChunkKey, place: u32) {
        self.call(|world| {
            world.check_unique(key, place, self.me);
            world.add_entry(key, place);
        });
    }

    /// The next page of entries of a scan.
    fn page(
        &self,
        (low, high): (Entry, Entry),
        after: Option<Entry>,
        backward: bool,
    ) -> Vec<Entry> {
        self.call(|world| {
            let (from, to) = match (after, backward) {
                (None, _) => (Bound::Included(low), Bound::Included(high)),
                (Some(last), false) => (Bound::Excluded(last), Bound::Included(high)),
                (Some(last), true) => (Bound::Included(low), Bound::Excluded(last)),
            };
            if let (Bound::Excluded(a), Bound::Included(b))
            | (Bound::Included(a), Bound::Excluded(b)) = (from, to)
            {
                if a >= b {
                    return Vec::new();
                }
            }
            let range = world.entries.range((from, to));
            match backward {
                true => range.rev().take(PAGE).copied().collect(),
                false => range.take(PAGE).copied().collect(),
            }
        })
    }
}

/// A row that nobody else may be changing is about to be changed: it must be as its changer believes.
fn expect_free(world: &World, place: Place, me: usize) -> Tuple<Ours> {
    let tuple = world.ours.of_ours(place).cloned();
    let Some(tuple) = tuple else { panic!("there is no row at {place:?}") };
    let theirs = world.is_running_elsewhere(tuple.xmax, me);
    let gone = world.is_committed(tuple.deleter()) || world.is_ours(tuple.deleter(), me);
    assert!(!theirs && !gone, "the row at {place:?} has changed meanwhile: {tuple:?}");
    tuple
}

impl Session {
    /// As [`ChunkStore::scan`]; `met` is told whether the index has led anywhere.
    #[allow(clippy::too_many_arguments)]
    fn scan_met<B>(
        &self,
        id: u32,
        low: i32,
        high: i32,
        snap: Snap,
        backward: bool,
        met: &Cell<Met>,
        mut visit: impl FnMut(ChunkKey, &View) -> ControlFlow<B>,
    ) -> Option<B> {
        let _page = (!matches!(snap, Snap::Mvcc(_))).then(|| self.hold_page());
        let range = ((id, low, 0), (id, high, u32::MAX));
        let mut after = None;
        loop {
            let page = self.page(range, after, backward);
            // The rows may be replaced before they are looked at.
            if !page.is_empty() {
                met.set(Met::Entries);
                self.maybe_give_way(BETWEEN);
            }
            for entry in &page {
                let (id, seq, place) = *entry;
                let key = ChunkKey { id, seq };
                let row = self.call(|world| world.fetch(place, snap, self.me));
                let Some(tuple) = row else { continue };
                // The place may have been given out again; then the entry is gone.
                let is_other = tuple.payload.key != key;
                if is_other && !self.now(|world| world.entries.contains(entry)) {
                    continue;
                }
                let view = View { tuple, place: ours_of(place) };
                if let ControlFlow::Break(found) = visit(key, &view) {
                    return Some(found);
                }
            }
            after = page.last().copied();
            if page.len() < PAGE {
                return None;
            }
        }
    }
}

impl<'a> ChunkStore for &'a Session {
    type Snap = Snap;
    type Row = View;
    type Lock = Guard<'a>;
    type Storage = u32;

    fn storage(&self) -> u32 {
        self.now(|world| world.storage)
    }
    fn is_empty(&self) -> bool {
        self.now(|world| world.ours.len() == 0)
    }

    fn any(&self) -> Snap {
        Snap::Any
    }
    fn own(&self) -> Snap {
        Snap::Own
    }
    fn with_dirty<T>(&self, body: impl FnOnce(Snap) -> T) -> T {
        body(Snap::Dirty)
    }
    fn writer(&self, _: Snap) -> Xid {
        self.now(|world| world.backends[self.me].met)
    }
    fn may_miss(&self, snap: Snap) -> bool {
        matches!(snap, Snap::Own | Snap::Dirty)
    }

    fn scan<B>(
        &self,
        id: u32,
        low: i32,
        high: i32,
        snap: Snap,
        backward: bool,
        visit: impl FnMut(ChunkKey, &View) -> ControlFlow<B>,
    ) -> Option<B> {
        self.scan_met(id, low, high, snap, backward, &Cell::new(Met::NoEntry), visit)
    }

    fn look<B>(
        &self,
        key: ChunkKey,
        snap: Snap,
        mut visit: impl FnMut(&View) -> ControlFlow<B>,
    ) -> (Option<B>, Met) {
        // The first entry that the scan meets is one that was there when it began.
        let met = Cell::new(Met::NoEntry);
        let found = self.scan_met(key.id, key.seq, key.seq, snap, false, &met, |_, row| visit(row));
        (found, met.get())
    }

    fn at<T>(
        &self,
        place: Place,
        key: ChunkKey,
        snap: Snap,
        visit: impl FnOnce(&View) -> T,
    ) -> Option<T> {
        let tuple = self.call(|world| world.fetch(number_of(place), snap, self.me))?;
        (tuple.payload.key == key).then(|| visit(&View { tuple, place }))
    }

    fn gives_witnesses(&self, snap: Snap) -> bool {
        matches!(snap, Snap::Mvcc(_))
    }

    fn at_witnessed<T>(
        &self,
        place: Place,
        key: ChunkKey,
        snap: Snap,
        visit: impl FnOnce(&View) -> T,
    ) -> Option<(T, Option<Witness>)> {
        let number = number_of(place);
        let (tuple, version) = self.call(|world| {
            let version = world.versions.get(&number).copied().unwrap_or(0);
            Some((world.fetch(number, snap, self.me)?, version))
        })?;
        let inserted = tuple.frozen || self.now(|world| world.is_committed(tuple.xmin));
        let xmin = if tuple.frozen { Xid::FROZEN } else { tuple.xmin };
        let is_settled = inserted && tuple.xmax == Xid::NONE;
        let witness = (is_settled && self.gives_witnesses(snap)).then_some(Witness {
            hint: 0,
            version,
            xmin,
        });
        // The bytes are looked at later than the version.
        self.maybe_give_way(BETWEEN);
        let later = self.now(|world| world.ours.get(number).map(|now| now.payload.clone()));
        let tuple = Tuple { payload: later.unwrap_or(tuple.payload.clone()), ..tuple };
        (tuple.payload.key == key).then(|| (visit(&View { tuple, place }), witness))
    }

    fn is_unchanged(&self, place: Place, snap: Snap, witness: &Witness) -> bool {
        let Snap::Mvcc(at) = snap else { return false };
        let same = self.call(|world| {
            let xmin = world.backends[self.me].snapshots[at].xmin();
            let is_old = witness.xmin == Xid::FROZEN || witness.xmin.0 < xmin.0;
            let number = number_of(place);
            let same =
                is_old && world.versions.get(&number).copied().unwrap_or(0) == witness.version;
            if same {
                let row = world.fetch(number, snap, self.me);
                let xmin = row.map(|t| if t.frozen { Xid::FROZEN } else { t.xmin });
                assert_eq!(
                    xmin,
                    Some(witness.xmin),
                    "a row at {place:?} that is said to be unchanged"
                );
            }
            same
        });
        if same {
            self.now(|world| world.saw("unchanged rows"));
        }
        same
    }

    fn entries(&self, id: u32, low: i32, high: i32, most: u32) -> u32 {
        let range = (id, low, 0)..=(id, high, u32::MAX);
        self.call(|world| world.entries.range(range).take(most as usize).count() as u32)
    }

    fn lacks(&self, id: u32, low: i32, high: i32) -> bool {
        !self.has_entry(id, low, high)
    }

    fn insert(&self, key: ChunkKey, data: &[u8], cid: Cid, keep: Keep) -> Place {
        let place = self.insert_unindexed(key, data, cid);
        self.index(key, place);
        if keep == Keep::ForGood {
            self.call(|world| {
                let tuple = world.ours.get(place).cloned();
                world.new_record();
                world.put_ours(place, tuple.map(|t| Tuple { frozen: true, ..t }));
            });
        }
        ours_of(place)
    }

    fn update(&self, place: Place, key: ChunkKey, data: &[u8], cid: Cid) -> Place {
        let made = self.call(|world| {
            let old = expect_free(world, place, self.me);
            assert_eq!(old.payload.key, key, "another row at {place:?}");
            let xid = world.xid(self.me);
            let choice = world.random.below(1 << 20);
            let made = world.ours.room(choice);
            // One record of both.
            world.new_record();
            let next = Some(tid_of(made));
            let old = Tuple { xmax: xid, cmax: cid, lock_only: false, next, ..old };
            world.put_ours(number_of(place), Some(old));
            let payload = Ours { key, data: Arc::from(data) };
            world.put_ours(made, Some(Tuple::new(xid, cid, payload)));
            made
        });
        self.index(key, made);
        ours_of(made)
    }

    fn delete(&self, place: Place, cid: Cid) {
        self.call(|world| {
            let old = expect_free(world, place, self.me);
            let xid = world.xid(self.me);
            world.new_record();
            let old = Tuple { xmax: xid, cmax: cid, lock_only: false, next: None, ..old };
            world.put_ours(number_of(place), Some(old));
        });
    }

    fn delete_run(&self, id: u32, first: u32, count: u32, cid: Cid) {
        let mut places = Vec::new();
        let (low, high) = (seq_of(first), seq_of(first + count - 1));
        self.scan::<()>(id, low, high, Snap::Own, false, |_, row| {
            places.push(row.place());
            ControlFlow::Continue(())
        });
        for place in places {
            self.delete(place, cid);
        }
    }

    fn overwrite(&self, place: Place, key: ChunkKey, data: &[u8]) {
        self.call(|world| {
            let old = world.ours.of_ours(place).cloned();
            let Some(old) = old else { panic!("there is no row at {place:?}") };
            assert_eq!(old.payload.key, key, "another row at {place:?}");
            assert_eq!(old.payload.data.len(), data.len(), "another length at {place:?}");
            world.new_record();
            let payload = Ours { key, data: Arc::from(data) };
            world.put_ours(number_of(place), Some(Tuple { payload, ..old }));
        });
    }

    fn command_id(&self) -> Cid {
        self.now(|world| world.backends[self.me].cid)
    }
    fn assign_xid(&self) {
        self.now(|world| world.xid(self.me));
    }
    fn precedes(&self, xid: Xid, other: Xid) -> bool {
        xid.0 < other.0
    }
    fn did_commit(&self, xid: Xid) -> bool {
        xid == Xid::FROZEN || self.now(|world| world.is_committed(xid))
    }
    fn full(&self, xid: Xid) -> u64 {
        u64::from(xid.0)
    }
    fn is_held(&self, place: Place) -> bool {
        self.call(|world| {
            let holder = world.ours.of_ours(place).map_or(Xid::NONE, |t| t.xmax);
            world.is_running_elsewhere(holder, self.me)
        })
    }

    fn lock_allocation(&self) -> Guard<'a> {
        Session::lock_allocation_row(self)
    }
    fn pause(&self) {
        self.point()
    }
    fn reached(&self, _: &'static str) {
        self.point()
    }
    fn with_seen<T>(&self, body: impl FnOnce(&mut Seen<u32>) -> T) -> T {
        self.with_memory(body)
    }
}
