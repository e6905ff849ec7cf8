//! What keeps others from maintaining the table meanwhile, and nobody from using it: moves, offloads and loads back, VACUUM.

use crate::heap::{number_of, ours_of, place_of, tid_of, Tuple, Xid};
use crate::reader::encode;
use crate::session::Session;
use crate::world::{Row, Snap, Status};
use crate::writer::ROOM;
use firn_directory::clean::{self, Pass};
use firn_directory::counted::{self, Counted};
use firn_directory::{allocation, cleaned, forward, rows, tombstones, ChunkStore, Keep, Place};
use firn_format::{DirectoryEntry, Location, Tid};
use std::collections::BTreeSet;

impl Session {
    /// Begin a transaction of maintenance, if nobody else maintains the table.
    pub fn begin_maintenance(&self) -> bool {
        self.now(|world| {
            if world.maintainer.is_some() || world.exclusive.is_some() {
                return false;
            }
            world.maintainer = Some(self.me);
            world.backends[self.me].levels.push(Default::default());
            world.backends[self.me].touched = true;
            true
        })
    }

    pub fn commit(&self) {
        self.call(|world| world.commit(self.me));
    }

    /// Move settled rows from the row store into stripes of so many rows.
    pub fn compact(&self, most: usize, more: usize) {
        let (snap, _held) = self.latest();
        let oldest = self.now(|world| world.horizon());
        if self.now(|world| world.random.one_in(2)) {
            forward::prune(&self, oldest);
        }
        let mut batch: Vec<(Tid, Row)> = Vec::new();
        let (mut moved, mut stripes) = (0, 0);
        for place in 0..self.now(|world| world.rows.len()) {
            let taken = self.call(|world| {
                let tuple = world.rows.get(place)?.clone();
                let settled = world.is_settled(tuple.xmin, tuple.frozen, oldest);
                let holder = world.status(tuple.xmax);
                let free =
                    holder == Status::Aborted || tuple.lock_only && holder != Status::Running;
                if !settled || !free || !world.sees(&tuple, snap, self.me) {
                    return None;
                }
                let (xid, cid) = (world.xid(self.me), world.backends[self.me].cid);
                world.new_record();
                let row = tuple.payload;
                let gone = Tuple { xmax: xid, cmax: cid, lock_only: false, next: None, ..tuple };
                world.put_row(place, Some(gone));
                Some(row)
            });
            batch.extend(taken.map(|row| (tid_of(place), row)));
            if batch.len() >= most {
                moved += batch.len();
                self.write_moved(&std::mem::take(&mut batch), more);
                stripes += 1;
                if stripes == 3 {
                    break;
                }
            }
        }
        moved += batch.len();
        self.write_moved(&batch, more);
        cleaned::count_moved(&self, moved as u64);
    }

    fn write_moved(&self, batch: &[(Tid, Row)], more: usize) {
        if batch.is_empty() {
            return;
        }
        let cid = self.now(|world| world.backends[self.me].cid);
        let (origins, list): (Vec<Tid>, Vec<Row>) = batch.iter().copied().unzip();
        let count = list.len() as u32;
        let (slot, place) = self.slot_for(count);
        let entry = self.store(&encode(&list, more), count, count);
        self.now(|world| world.saw("stripes of moved rows"));
        rows::publish(&self, slot, place, &entry, ROOM);
        forward::write(&self, slot, &origins, cid);
        for (i, row) in list.iter().enumerate() {
            self.call(|world| world.add_index(row.id, Tid::of(slot, i as u32)));
        }
    }

    /// Move a stripe to the object store, or back, or its directory row to another place.
    pub fn move_stripe(&self) {
        let list = rows::list(&self, Snap::Own).unwrap();
        let choice = self.now(|world| world.random.below(list.len() as u32));
        let Some(found) = list.get(choice as usize) else { return };
        let cid = self.now(|world| world.backends[self.me].cid);
        if self.now(|world| world.random.one_in(4)) {
            // As the directory rows are that keep a file from shrinking.
            self.now(|world| world.saw("directory rows moved as they are"));
            let (key, bytes) = rows::as_it_is(found, ROOM);
            (&self).delete(found.place, cid);
            (&self).insert(key, &bytes, cid, Keep::WithTransaction);
            return;
        }
        let bytes = self.bytes_of(found);
        let generation = found.entry.generation + 1;
        let location = match found.entry.location {
            Location::Object { .. } => {
                self.now(|world| world.saw("loads back"));
                self.store_chunks(&bytes)
            }
            Location::Chunks { .. } => self.call(|world| {
                world.saw("offloads");
                let key = format!("{}-{generation}-{}", found.slot.0, world.calls);
                world.objects.insert(key.clone(), bytes.as_slice().into());
                Location::Object { server: "cold".into(), key }
            }),
        };
        let entry = DirectoryEntry { location, generation, ..(*found.entry).clone() };
        rows::replace(&self, found, &entry, cid, ROOM);
        rows::free_chunks(&self, found);
    }

    /// VACUUM, in a transaction of maintenance, which it ends.
    pub fn vacuum(&self, all: bool) {
        let oldest = self.now(|world| world.horizon());
        if let Some(end) = allocation::handed_out(&self).unwrap() {
            let pass = Pass::plan(&self, oldest, end);
            if pass.garbage > 0 && (all || pass.garbage < 1 << 20) {
                let memory = self.now(|world| world.random.below(200) as usize);
                pass.parts(&self, memory, |part| {
                    self.call(|world| {
                        world.saw("index passes");
                        world.remove_index(|tid| part.contains(tid))
                    });
                });
                pass.done(&self);
            }
        }
        let left = forward::rows_not_outlived(&self, oldest);
        self.vacuum_row_store(oldest);
        cleaned::settle(&self, left);
        let oldest = self.now(|world| world.horizon());
        if forward::prune(&self, oldest) > 0 {
            self.now(|world| world.saw("lists pruned"));
        }
        if allocation::next_block(&self).is_some() {
            cleaned::make_room(&self);
        }
        let stripes = || rows::list(&self, Snap::Own).unwrap().len();
        let before = stripes();
        clean::remove_dead_stripes(&self, oldest);
        if stripes() < before {
            self.now(|world| world.saw("dead stripes removed"));
        }
        self.commit();
        if self.begin_maintenance() {
            self.remove_anchors();
            self.vacuum_ours();
            self.commit();
        }
    }

    fn vacuum_row_store(&self, oldest: Xid) {
        let dead: BTreeSet<Tid> = self.call(|world| {
            let dead = world.rows.iter().filter(|(_, t)| world.is_dead(t, oldest));
            dead.map(|(place, _)| tid_of(place)).collect()
        });
        self.call(|world| world.remove_index(|tid| dead.contains(&tid)));
        for tid in dead {
            self.call(|world| {
                world.new_record();
                world.put_row(place_of(tid), None);
            });
        }
        self.call(|world| {
            world.new_record();
            for place in 0..world.rows.len() {
                let Some(tuple) = world.rows.get(place).cloned() else { continue };
                if world.is_settled(tuple.xmin, false, oldest) && world.random.one_in(2) {
                    world.put_row(place, Some(Tuple { frozen: true, ..tuple }));
                }
            }
        });
    }

    /// As `am/anchors.rs` does: anchors that nobody holds become rows whose inserter has aborted.
    fn remove_anchors(&self) {
        for place in self.call(|world| world.stones()) {
            let place = ours_of(place);
            let Some(key) = self.now(|world| world.unheld_anchor(place)) else { continue };
            let Some(tid) = tombstones::tid_of(key) else { continue };
            let Some(_short) = self.try_lock_row(tid) else { continue };
            self.call(|world| {
                if world.unheld_anchor(place) != Some(key) {
                    return;
                }
                let Some(tuple) = world.ours.of_ours(place).cloned() else { return };
                world.saw("anchors removed");
                world.new_record();
                world.put_ours(
                    number_of(place),
                    Some(Tuple { xmin: Xid::NONE, frozen: false, ..tuple }),
                );
            });
        }
    }

    fn vacuum_ours(&self) {
        let oldest = self.call(|world| world.horizon());
        self.point();
        self.wait_for_scans();
        self.now(|world| {
            let pinned: BTreeSet<Place> =
                world.backends.iter().flat_map(|b| b.pins.iter().copied()).collect();
            let mut dead = BTreeSet::new();
            for (place, tuple) in world.ours.iter() {
                if world.is_dead(tuple, oldest) && !pinned.contains(&ours_of(place)) {
                    dead.insert(place);
                }
            }
            world.new_record();
            let gone = world.entries.iter().filter(|(.., place)| dead.contains(place));
            for entry in gone.copied().collect::<Vec<_>>() {
                world.remove_entry(entry);
            }
            world.new_record();
            for place in dead {
                world.put_ours(place, None);
            }
            for place in 0..world.ours.len() {
                let Some(tuple) = world.ours.get(place).cloned() else { continue };
                if world.is_settled(tuple.xmin, false, oldest) && world.random.one_in(2) {
                    world.put_ours(place, Some(Tuple { frozen: true, ..tuple }));
                }
            }
        });
    }

    /// Note how many rows the stripes have, and read the note again.
    pub fn count(&self) {
        if allocation::next_block(&self).is_none() {
            return;
        }
        let (mut rows, mut live) = (0, 0);
        for found in rows::list(&self, Snap::Own).unwrap() {
            let all = found.entry.rows;
            rows += u64::from(all);
            let deleted = tombstones::deleted_readable(&self, found.slot, all, Snap::Own);
            live += u64::from(all - deleted);
        }
        let note = Counted { whole: live as f32, rows, live };
        counted::write(&self, note);
        assert_eq!(counted::read(&self), Some(note), "the note of counts");
    }

    /// Nobody else uses the table: each row of a stripe is counted once.
    pub fn check_counts(&self) {
        let (snap, _held) = self.latest();
        let (mut stripes, mut row_store) = (0, 0);
        for found in rows::list(&self, snap).unwrap() {
            let all = found.entry.rows;
            stripes += all - tombstones::deleted_readable(&self, found.slot, all, Snap::Own);
        }
        for place in 0..self.now(|world| world.rows.len()) {
            row_store += self.now(|world| {
                let tuple = world.rows.get(place).cloned();
                u32::from(tuple.is_some_and(|t| world.sees(&t, snap, self.me)))
            });
        }
        let all = self.all_rows(snap).len() as u32;
        assert_eq!(stripes + row_store, all, "rows counted, and rows seen");
    }

    pub fn store_is_empty(&self) -> bool {
        (&self).is_empty()
    }
}
