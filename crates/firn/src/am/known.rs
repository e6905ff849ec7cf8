//! What a snapshot sees of stripes, found out once: which stripe a row is of, and whether any row of that is deleted, or which. Many
//! rows that are fetched under one snapshot are of few stripes.

use super::fetch::{locate, written, Place, RowAt};
use crate::directory::{tombstones, Directory, Found};
use crate::pg::snapshot::SnapshotId;
use crate::pg::{guc, Snap, Toast};
use crate::write::pending_at;
use firn_directory::Xid;
use firn_format::garbage::DeadRows;
use firn_format::{DirectoryEntry, Slot, Tid, VIRTUAL_BASE};
use std::cell::Cell;
use std::rc::{Rc, Weak};

/// Rows of a stripe that are looked for among its tombstones one by one, before it is asked whether there are any.
const SINGLE_LOOKS: u32 = 2;

/// Rows of a stripe after which its tombstones are read, all at once, if they are few beside the rows that were asked for; else after twice as
/// many rows, and so on. Prices of index scans count on it (`entry/customscan/price.rs`).
pub const SINGLE_ROWS: u32 = 64;

/// So many entries of tombstones cost as much as a look for one row, at most.
pub const ENTRIES_OF_LOOK: u32 = 24;

/// A scan's knowledge of deleted rows takes such a part of what the session's metadata may take, beside it, at most; so does its list of stripes.
/// Where there is no room for the deleted rows of one more stripe, those of the others are forgotten.
const SHARE_OF_CACHE: usize = 8;

/// Of how many of so many stripes a scan that goes from one to another can know which rows are deleted, if each has so many rows, and so many deleted ones.
pub fn stripes_with_room(stripes: f64, rows: f64, deleted: f64) -> f64 {
    if stripes > most_stripes() as f64 && deleted > f64::from(ENTRIES_OF_LOOK) {
        return 0.0;
    }
    let bytes = (rows / 8.0 + 8.0).min(deleted * 4.0) + size_of::<Partly>() as f64;
    (room_for_deleted() as f64 / bytes).floor().min(MOST_KNOWN as f64)
}

/// Stripes in the list, at most, however much room there is: a place in the middle is made by moving the others.
const MOST: usize = 16_384;
/// Those of which it is known that they have no tombstones, at most, and those of which it is known which rows are deleted: each costs more to find out
/// than to make a place for.
const MOST_KNOWN: usize = 4 * MOST;

/// Bytes.
fn room_for_deleted() -> usize {
    guc::metadata_cache() / SHARE_OF_CACHE
}

fn most_stripes() -> usize {
    (room_for_deleted() / size_of::<Known>()).min(MOST)
}

/// A stripe without rows.
const NONE: (Slot, u32) = (Slot(0), 0);

/// Places for stripes at hand, 8 kB: a stripe of the usual size has some 900 blocks and so 14 of them, of which the first and
/// the last are its neighbours' as well.
const AT_HAND: usize = 1_024;

/// Where the stripe of a row is, if it is at hand.
#[inline]
fn place_of(tid: Tid) -> usize {
    (tid.block >> 6) as usize % AT_HAND
}

/// Stripes with rows that were fetched under one snapshot, in the order of their slots.
#[derive(Default)]
pub struct KnownStripes {
    seen_by: Option<SnapshotId>,
    /// Most scans are of few.
    stripes: Vec<Known>,
    /// There were more than the list has places, and it was begun anew. None of them may be asked for often before the next time, so what
    /// can be known of one is found out when it is met.
    is_crowded: bool,
    /// The entry of the last one. The others' belong to the session's cache of directories.
    last: Option<Rc<DirectoryEntry>>,
    /// Slots and rows of those that have no tombstones, in order.
    whole: Vec<(Slot, u32)>,
    /// Those of which it is known which rows are deleted, in order, and the bytes of that.
    partly: Vec<Partly>,
    partly_bytes: usize,
    /// Those of them that were asked for last, each by some of its blocks ([`place_of`]): entries of an index may lead from
    /// stripe to stripe, and a search costs as much as all else of such a row. Empty until there is one.
    at_hand: Vec<Cell<(Slot, u32)>>,
}

/// Of a stripe, the rows that the snapshot does not see.
struct Partly {
    slot: Slot,
    rows: u32,
    deleted: DeadRows,
}

impl Partly {
    fn bytes(&self) -> usize {
        self.deleted.memory() + size_of::<Partly>()
    }
}

struct Known {
    slot: Slot,
    entry: Weak<DirectoryEntry>,
    /// Where its directory row is.
    place: firn_directory::Place,
    xmin: Xid,
    rows: u32,
    rows_asked_for: u32,
    /// It has no tombstones.
    whole: bool,
    /// It is in the list of those. (Whoever looks for one row makes none.)
    listed: bool,
    /// When so many rows have been asked for, its tombstones are read.
    read_at: u32,
    /// They were, before.
    was_read: bool,
}

impl KnownStripes {
    /// It is known that this snapshot sees the row, as its stripe was looked into before. False says nothing.
    #[inline]
    pub fn is_seen(&self, tid: Tid, snap: Snap) -> bool {
        let known = self.is_in_whole(tid)
            || self.partly(tid).is_some_and(|(row, stripe)| !stripe.deleted.contains(row));
        known && self.seen_by.is_some() && self.seen_by == snap.id()
    }

    /// The row's number, and its stripe, if it is known which of its rows are deleted.
    #[inline]
    fn partly(&self, tid: Tid) -> Option<(u32, &Partly)> {
        let block = tid.block.checked_sub(VIRTUAL_BASE)?;
        let next = self.partly.partition_point(|stripe| stripe.slot.0 <= block);
        let stripe = self.partly.get(next.checked_sub(1)?)?;
        let row = tid.row_in(stripe.slot).filter(|row| *row < stripe.rows)?;
        Some((row, stripe))
    }

    /// Make room for what is known of one more stripe, `may_forget` that of the others; false where there is none.
    fn make_room_for(&mut self, stripe: &Partly, may_forget: bool) -> bool {
        let room = room_for_deleted();
        let has_room = |known: &KnownStripes| {
            known.partly_bytes + stripe.bytes() <= room && known.partly.len() < MOST_KNOWN
        };
        if !has_room(self) && may_forget && stripe.bytes() <= room {
            self.forget_partly();
        }
        has_room(self)
    }

    /// Which of the stripe's rows are deleted is known from now on.
    fn remember_partly(&mut self, stripe: Partly) {
        self.partly_bytes += stripe.bytes();
        let place = self.partly.partition_point(|known| known.slot.0 < stripe.slot.0);
        self.partly.insert(place, stripe);
    }

    /// The row is one of a stripe without tombstones.
    #[inline]
    fn is_in_whole(&self, tid: Tid) -> bool {
        let (slot, rows) = self.at_hand.get(place_of(tid)).map_or(NONE, Cell::get);
        tid.row_in(slot).is_some_and(|row| row < rows) || self.turn_to_whole(tid)
    }

    /// The row is one of another stripe without tombstones, which is at hand now.
    fn turn_to_whole(&self, tid: Tid) -> bool {
        let Some(block) = tid.block.checked_sub(VIRTUAL_BASE) else { return false };
        let next = self.whole.partition_point(|(slot, _)| slot.0 <= block);
        let Some((slot, rows)) = next.checked_sub(1).and_then(|i| self.whole.get(i)) else {
            return false;
        };
        if let Some(place) = self.at_hand.get(place_of(tid)) {
            place.set((*slot, *rows));
        }
        tid.row_in(*slot).is_some_and(|row| row < *rows)
    }

    fn remember_whole(&mut self, slot: Slot, rows: u32) {
        if self.whole.len() >= MOST_KNOWN {
            return;
        }
        let place = self.whole.partition_point(|(s, _)| s.0 < slot.0);
        self.whole.insert(place, (slot, rows));
        self.at_hand.resize(AT_HAND, Cell::new(NONE));
    }

    fn forget_partly(&mut self) {
        self.partly.clear();
        self.partly_bytes = 0;
    }

    fn forget_all(&mut self) {
        self.stripes.clear();
        self.is_crowded = false;
        self.last = None;
        self.whole.clear();
        self.at_hand.clear();
        self.forget_partly();
    }

    /// A stripe that is not in the list, or whose entry nobody has any more, enters it. What is known of its rows stays: it is of this snapshot.
    /// Returns its place in the list.
    fn meet(&mut self, directory: &Directory, found: &Found, tid: Tid, snap: Snap) -> usize {
        let (toast, slot, rows) = (&directory.toast, found.slot, found.entry.rows);
        self.last = Some(found.entry.clone());
        let known = Known::of(found);
        let place = |known: &Known| known.slot.0;
        if let Ok(at) = self.stripes.binary_search_by_key(&slot.0, place) {
            let before = &mut self.stripes[at];
            (before.entry, before.place, before.xmin) = (known.entry, known.place, known.xmin);
            return at;
        }
        let listed = self.is_in_whole(tid);
        let mut whole = listed;
        if !listed && self.partly(tid).is_none() {
            whole = tombstones::is_known_to_be_whole(toast, slot, rows);
            let few = || tombstones::few_deleted(toast, slot, rows, snap, ENTRIES_OF_LOOK);
            if let Some(list) = (self.is_crowded && !whole).then(few).flatten() {
                whole = list.is_empty();
                let stripe = Partly { slot, rows, deleted: DeadRows::of(list, rows) };
                if !whole && self.make_room_for(&stripe, false) {
                    self.remember_partly(stripe);
                }
            }
        }
        if self.stripes.len() >= most_stripes() {
            self.stripes.clear();
            self.is_crowded = true;
        }
        let at = self.stripes.partition_point(|known| known.slot.0 < slot.0);
        self.stripes.insert(at, Known { whole, listed, ..known });
        at
    }

    /// A row of the stripe at this place of the list is deleted.
    fn is_deleted(&mut self, place: usize, directory: &Directory, tid: Tid, snap: Snap) -> bool {
        if let Some((row, stripe)) = self.partly(tid) {
            return stripe.deleted.contains(row);
        }
        let Some(known) = self.stripes.get_mut(place) else {
            return is_deleted(&directory.toast, tid, snap);
        };
        let (deleted, is_due) = known.is_deleted(directory, tid, snap);
        let (slot, rows, asked_for) = (known.slot, known.rows, known.rows_asked_for);
        if known.whole && !known.listed && (asked_for > SINGLE_LOOKS || self.is_crowded) {
            known.listed = true;
            self.remember_whole(slot, rows);
        } else if is_due {
            known.read_at = known.read_at.saturating_mul(2);
            let toast = &directory.toast;
            let mut most = asked_for.saturating_mul(ENTRIES_OF_LOOK);
            if rows as usize / 8 > room_for_deleted() {
                // There is no room for all of its rows, so for so many. (Entries that lead to nothing count, until VACUUM removes them.)
                most = most.min(room_for_deleted() as u32 / 4);
            }
            if let Some(list) = tombstones::few_deleted(toast, slot, rows, snap, most) {
                // A scan in the rows' order does not come back to the others soon; one in no order, which does, is to end with as many as there is room for.
                let may_forget = !std::mem::replace(&mut known.was_read, true);
                let stripe = Partly { slot, rows, deleted: DeadRows::of(list, rows) };
                if self.make_room_for(&stripe, may_forget) {
                    self.remember_partly(stripe);
                }
            }
        }
        deleted
    }

    /// As [`locate`].
    ///
    /// The stripes and the tombstones that an MVCC snapshot sees do not change while it is in use: what others commit is
    /// not seen, nor what later commands of this transaction do, and rows of earlier ones that are rolled back
    /// belong to snapshots that end with them. (In a serializable transaction each row is looked for, as that is where
    /// conflicts are found.)
    pub fn locate(&mut self, directory: &Directory, tid: Tid, snap: Snap) -> Option<RowAt> {
        let id = snap.id();
        if id.is_none() || pending_at(directory.table, tid).is_some() {
            return locate(directory, tid, snap);
        }
        if self.seen_by != id {
            self.seen_by = id;
            self.forget_all();
        }
        let block = tid.block.checked_sub(VIRTUAL_BASE)?;
        let behind = self.stripes.partition_point(|known| known.slot.0 <= block);
        let candidate = behind.checked_sub(1).and_then(|i| Some((i, self.stripes.get(i)?)));
        if let Some((place, known)) = candidate {
            if let Some(row) = tid.row_in(known.slot).filter(|r| *r < known.rows) {
                // If nobody has its entry any more, it is read again.
                if let Some(found) = known.found() {
                    if !self.last.as_ref().is_some_and(|last| Rc::ptr_eq(last, &found.entry)) {
                        self.last = Some(found.entry.clone());
                    }
                    let xmin = found.xmin;
                    let deleted = self.is_deleted(place, directory, tid, snap);
                    let place = Place::Stripe(found);
                    return (!deleted).then_some(RowAt { place, row, xmin });
                }
            }
        }
        let at = written(directory, tid, snap)?;
        if let Place::Stripe(found) = &at.place {
            let place = self.meet(directory, found, tid, snap);
            if self.is_deleted(place, directory, tid, snap) {
                return None;
            }
        }
        Some(at)
    }
}

impl Known {
    fn of(found: &Found) -> Known {
        Known {
            slot: found.slot,
            entry: Rc::downgrade(&found.entry),
            place: found.place,
            xmin: found.xmin,
            rows: found.entry.rows,
            rows_asked_for: 0,
            whole: false,
            listed: false,
            read_at: SINGLE_ROWS,
            was_read: false,
        }
    }

    fn found(&self) -> Option<Found> {
        let entry = self.entry.upgrade()?;
        Some(Found { slot: self.slot, entry, place: self.place, xmin: self.xmin })
    }

    /// The row is deleted; and whether it is time to read all the stripe's tombstones.
    fn is_deleted(&mut self, directory: &Directory, tid: Tid, snap: Snap) -> (bool, bool) {
        let toast = &directory.toast;
        self.rows_asked_for = self.rows_asked_for.saturating_add(1);
        if !self.whole && self.rows_asked_for == SINGLE_LOOKS + 1 {
            // If there is none, whoever would see it, this snapshot will see none.
            self.whole = !tombstones::may_be_any(toast, self.slot, self.rows);
        }
        match self.whole {
            true => (false, false),
            false => (is_deleted(toast, tid, snap), self.rows_asked_for >= self.read_at),
        }
    }
}

fn is_deleted(toast: &Toast, tid: Tid, snap: Snap) -> bool {
    tombstones::find(toast, tid, snap).is_some_and(|stone| stone.is_of_deleted())
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_format::{blocks_for, ROWS_PER_BLOCK};

    /// Whatever was asked for before, and whatever was forgotten: a row is known exactly if its stripe is.
    #[test]
    fn rows_of_whole_stripes_are_known() {
        let mut known = KnownStripes::default();
        // Stripes of all sizes, over more blocks than there are places.
        let (mut stripes, mut next, mut x) = (Vec::new(), 0u32, 7u32);
        let mut random = move || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            x >> 8
        };
        while next < 3 * 64 * AT_HAND as u32 {
            let rows = 1 + random() % if random() % 3 == 0 { 262_144 } else { 2_000 };
            stripes.push((Slot(next), rows));
            next += blocks_for(rows) + random() % 3;
        }
        let mut whole = Vec::new();
        for step in 0..400_000 {
            let (slot, rows) = stripes[random() as usize % stripes.len()];
            match random() % 50 {
                0 if !whole.contains(&(slot, rows)) => {
                    known.remember_whole(slot, rows);
                    whole.push((slot, rows));
                }
                1 if step % 10_000 == 2 => {
                    known.forget_all();
                    whole.clear();
                }
                _ => {}
            }
            // Rows beyond its end and in gaps, too.
            let row = random() % (rows + 600);
            let block = VIRTUAL_BASE + slot.0 + row / ROWS_PER_BLOCK;
            let tid = Tid { block, offset: 1 + (row % ROWS_PER_BLOCK) as u16 };
            let is = |(slot, rows): &(Slot, u32)| tid.row_in(*slot).is_some_and(|r| r < *rows);
            assert_eq!(known.is_in_whole(tid), whole.iter().any(is), "step {step}, {tid:?}");
        }
    }

    /// What finds no room is not known, and no more is kept than may be.
    #[test]
    fn lists_are_bounded() {
        let mut known = KnownStripes::default();
        for i in 0..MOST_KNOWN as u32 + 9 {
            known.remember_whole(Slot(i * 7), 7 * ROWS_PER_BLOCK);
        }
        let first_row_of = |i: u32| Tid { block: VIRTUAL_BASE + i * 7, offset: 1 };
        assert_eq!(known.whole.len(), MOST_KNOWN);
        assert!(known.is_in_whole(first_row_of(MOST_KNOWN as u32 - 1)));
        assert!(!known.is_in_whole(first_row_of(MOST_KNOWN as u32)));

        // Of rows that are all deleted but some, a bit for each is kept.
        let rows = 262_144;
        let stripe = |i: u32| {
            let deleted = DeadRows::of((0..rows).filter(|row| row % 3 > 0).collect(), rows);
            Partly { slot: Slot(i * blocks_for(rows)), rows, deleted }
        };
        let with_room = room_for_deleted() / stripe(0).bytes();
        assert!((2..1_000).contains(&with_room), "{with_room}");
        for i in 0..with_room as u32 {
            let one = stripe(i);
            assert!(known.make_room_for(&one, false));
            known.remember_partly(one);
        }
        let one = stripe(with_room as u32);
        assert!(!known.make_room_for(&one, false));
        assert!(known.partly.len() == with_room && known.partly_bytes <= room_for_deleted());
        assert!(known.make_room_for(&one, true));
        assert!(known.partly.is_empty() && known.partly_bytes == 0);
    }
}
