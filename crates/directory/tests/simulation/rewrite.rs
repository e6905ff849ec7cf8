//! VACUUM FULL: both relations are written anew, and the index. Rows of the row store get other places.

use crate::heap::{ours_of, tid_of, Heap, Tuple};
use crate::session::Session;
use crate::world::{Ours, Row, Snap, World};
use firn_directory::carry::{Carried, Item, Moves, NewPlaces, Sort, Wants};
use firn_directory::{cleaned, rows, tombstones, Xid};
use firn_format::Tid;
use std::collections::{BTreeMap, BTreeSet};

/// A sort in memory.
#[derive(Default)]
struct Sorted {
    items: Vec<Item>,
    taken: usize,
}

impl Sort for Sorted {
    fn put(&mut self, item: &Item) {
        self.items.push(*item);
    }
    fn sort(&mut self) {
        self.items.sort_unstable();
    }
    fn next(&mut self) -> Option<Item> {
        self.taken += 1;
        self.items.get(self.taken - 1).copied()
    }
}

/// Copy a heap's rows but the dead ones, in another order if there is one; tell where each went.
fn copied<P: Clone>(
    world: &mut World,
    old: &Heap<P>,
    oldest: Xid,
    mut becomes: impl FnMut(u32, &Tuple<P>) -> Option<P>,
    shuffle: bool,
) -> (Heap<P>, BTreeMap<Tid, Tid>) {
    let mut order = Vec::new();
    for (place, tuple) in old.iter().filter(|(_, t)| !world.is_dead(t, oldest)) {
        if let Some(payload) = becomes(place, tuple) {
            order.push((place, Tuple { payload, ..tuple.clone() }));
        }
    }
    for i in (1..order.len()).rev().filter(|_| shuffle) {
        order.swap(i, world.random.below(i as u32 + 1) as usize);
    }
    // Now and then all of them further back.
    let first = world.random.below(3);
    let (mut new, mut places) = (Heap::default(), BTreeMap::new());
    for (i, (place, tuple)) in order.into_iter().enumerate() {
        let at = first + i as u32;
        places.insert(tid_of(place), tid_of(at));
        new.put(at, Some(tuple));
    }
    for at in 0..new.len() {
        if let Some(tuple) = new.get(at).cloned() {
            let next = tuple.next.and_then(|next| places.get(&next).copied());
            new.put(at, Some(Tuple { next, ..tuple }));
        }
    }
    (new, places)
}

impl Session {
    /// The table becomes this session's alone, if nobody else wants to have it so.
    pub fn begin_rewrite(&self) -> bool {
        let first = self.now(|world| {
            let first = world.exclusive.is_none();
            if first {
                world.exclusive = Some(self.me);
                world.backends[self.me].levels.push(Default::default());
            }
            first
        });
        if first {
            self.be_alone();
            self.lock_table();
        }
        first
    }

    pub fn rewrite(&self) {
        let oldest = self.now(|world| world.horizon());
        let wants = Wants::collect(&self, oldest, Sorted::default).unwrap();
        self.point();
        let (rows, row_places) = self.now(|world| {
            let old = world.rows.clone();
            copied(world, &old, oldest, |_, tuple| Some(tuple.payload), true)
        });
        let mut places = match wants {
            None => NewPlaces::none(),
            Some(wants) => {
                self.now(|world| world.saw("rewrites that translate places"));
                let mut moves = Moves(Sorted::default());
                row_places.iter().for_each(|(old, new)| moves.note(*old, *new));
                wants.resolve(moves, Sorted::default())
            }
        };
        self.point();
        let (ours, _) = self.now(|world| {
            let old = world.ours.clone();
            let settled: BTreeSet<u32> = old
                .iter()
                .filter(|(_, t)| t.frozen || t.xmin.0 < oldest.0)
                .map(|(place, _)| place)
                .collect();
            let becomes = |number: u32, tuple: &Tuple<Ours>| {
                let Ours { key, data } = tuple.payload.clone();
                let is_settled = settled.contains(&number);
                match places.carry(key.id, ours_of(number), is_settled, &data) {
                    Carried::Not => None,
                    Carried::AsItIs => Some(Ours { key, data }),
                    Carried::With(data) => Some(Ours { key, data: data.into() }),
                }
            };
            copied(world, &old, oldest, becomes, false)
        });
        let mut index = self.index_of_stripes();
        for (place, tuple) in rows.iter() {
            let Row { id, .. } = tuple.payload;
            index.entry(id).or_default().insert(tid_of(place));
        }
        self.point();
        self.now(|world| {
            world.entries =
                ours.iter().map(|(at, t)| (t.payload.key.id, t.payload.key.seq, at)).collect();
            world.ours = ours;
            world.rows = rows;
            world.index = index;
            world.storage += 1;
            world.saw("rewrites");
            world.note(self.me, || "the table is written anew".to_owned());
            // The new files are there when the transaction commits.
            world.flush();
            world.commit(self.me);
        });
    }

    /// Entries of all rows of stripes but those deleted so long ago that VACUUM has taken theirs.
    fn index_of_stripes(&self) -> BTreeMap<u64, BTreeSet<Tid>> {
        let clean = cleaned::read(&self).before;
        let mut index: BTreeMap<u64, BTreeSet<Tid>> = BTreeMap::new();
        for found in rows::list(&self, Snap::Own).unwrap() {
            let mut gone = BTreeSet::new();
            let all = found.entry.rows;
            tombstones::each(&self, found.slot, all, Snap::Own, |row, stone| {
                let long_ago = stone.xmin == Xid::FROZEN || u64::from(stone.raw_xmin.0) < clean;
                if stone.is_of_deleted() && long_ago && u64::from(stone.raw_xmin.0) < clean {
                    gone.insert(row);
                }
            })
            .unwrap();
            let bytes = self.bytes_of(&found);
            for row in (0..all).filter(|row| !gone.contains(row)) {
                let id = crate::reader::row_at(&bytes, row).id;
                index.entry(id).or_default().insert(Tid::of(found.slot, row));
            }
        }
        index
    }
}
