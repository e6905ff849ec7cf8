//! What VACUUM may take away: index entries that lead to stripe rows which nobody can see (of deleted rows, of stripes that
//! are gone, of bulk writes that were rolled back), and stripes of whose rows none is seen. What is garbage follows from ranges and
//! row numbers alone (`firn_format::garbage`); these are found here, as a value that whoever has the indexes carries out.

use crate::cleaned::{self, Cleaned, Damaged};
use crate::{rows, tombstones, ChunkStore, Found, Xid};
use firn_format::garbage::{untaken, DeadRows, Garbage, Taken};
use firn_format::{EntryState, Slot, ROWS_PER_BLOCK};

/// A stripe, living or in the making, of which `dead` rows are to lose their index entries.
struct Known {
    slot: u32,
    blocks: u32,
    rows: u32,
    dead: u32,
}

/// What a pass over the indexes would do.
pub struct Pass {
    /// All stripes that are there or may come to be, in the order of their slots.
    known: Vec<Known>,
    /// The block before which everything is known.
    end: u32,
    /// The first slot of a running transaction, whose rollback would leave more garbage than is known now.
    first_open: Option<u32>,
    /// Damaged rows: of their stripes none is taken for garbage, nor what lies between them and the next ones.
    damaged: Damaged,
    oldest: Xid,
    /// Rows of all stripes.
    pub rows: u64,
    /// Entries of an index that a pass would remove: of each deleted row one, and as many as may lie in blocks that nobody has.
    pub garbage: u64,
    /// The last transaction whose deletions cannot be read any more by who still sees the rows; None when there is none.
    pub latest: Option<u64>,
}

impl Pass {
    /// Find out what there is to do, in a table whose slots before `end` were handed out when the allocation row was read. `oldest` is the oldest
    /// transaction that some snapshot does not see. Who calls it keeps others from replacing directory rows.
    pub fn plan<S: ChunkStore>(store: &S, oldest: Xid, end: u32) -> Pass {
        let note = cleaned::read(store);
        let mut pass = known_before(store, end, oldest);
        let before = note.beside(&pass.damaged);
        let mut fresh = 0u64;
        for stripe in &mut pass.known {
            store.rest();
            each_dead(store, stripe.slot, stripe.rows, oldest, |_, deleter| {
                stripe.dead += 1;
                fresh += u64::from(deleter >= before.before);
                pass.latest = pass.latest.max(Some(deleter));
            });
            pass.rows += u64::from(stripe.rows);
        }
        let holes = untaken(before.blocks, end, pass.known.iter().map(|k| (k.slot, k.blocks)));
        pass.garbage = fresh + holes * u64::from(ROWS_PER_BLOCK);
        // Whoever deleted the rows of a stripe that is gone is not known any more.
        if holes > 0 {
            pass.latest = pass.latest.max(Some(store.full(oldest).saturating_sub(1)));
        }
        pass
    }

    /// Show the garbage in as many parts as so many bytes of memory make of it, one stripe at least in each.
    pub fn parts<S: ChunkStore>(&self, store: &S, memory: usize, mut remove: impl FnMut(&Garbage)) {
        let (mut at, mut from) = (0, 0);
        while from < self.end {
            let (taken, next) = self.part(store, at, memory);
            at += taken.len();
            let to = if at == self.known.len() { self.end } else { next };
            remove(&Garbage::new(from, to, taken));
            from = to;
        }
    }

    /// As many stripes from number `at` on as there is memory for, at least one, and the first block of what is left.
    fn part<S: ChunkStore>(&self, store: &S, at: usize, memory: usize) -> (Vec<Taken>, u32) {
        let (mut taken, mut used) = (Vec::new(), 0);
        for k in self.known.iter().skip(at) {
            if used > memory {
                return (taken, k.slot);
            }
            store.rest();
            let mut dead = Vec::new();
            if k.dead > 0 {
                each_dead(store, k.slot, k.rows, self.oldest, |row, _| dead.push(row));
            }
            let dead = DeadRows::of(dead, k.rows);
            used += dead.memory() + std::mem::size_of::<Taken>();
            taken.push(Taken { slot: Slot(k.slot), blocks: k.blocks, dead });
        }
        (taken, u32::MAX)
    }

    /// The pass has been made: note what is clean now.
    pub fn done<S: ChunkStore>(&self, store: &S) {
        let blocks = self.first_open.unwrap_or(self.end);
        let (before, damaged) = (store.full(self.oldest), self.damaged.in_short());
        cleaned::write(store, Cleaned { before, blocks, damaged, ..cleaned::read(store) });
    }
}

/// What is known before the block `end`. No stripe is missed: `end` was read when all of them had their directory
/// rows, and nobody waits for us meanwhile. Nor does the dirty snapshot miss a row that is replaced while we look:
/// whoever replaces or moves directory rows holds ShareUpdateExclusiveLock to the end of its transaction, as VACUUM
/// does now.
fn known_before<S: ChunkStore>(store: &S, end: u32, oldest: Xid) -> Pass {
    let mut list: Vec<Known> = Vec::new();
    let (mut first_open, mut damaged, mut strays) = (None, Damaged::default(), Vec::new());
    store.with_dirty(|snap| {
        rows::each_row(store, snap, |slot, entry| {
            store.rest();
            let slot = slot.0;
            if slot >= end {
                return;
            }
            if store.writer(snap) != Xid::NONE && first_open.is_none() {
                first_open = Some(slot);
            }
            if let Err(of) = entry {
                damaged.meet(slot);
                strays.extend(of.filter(|of| of.0 != slot && of.0 < end));
            }
            // How far a stripe reaches whose row is damaged is not known: it may be up to the next one.
            let blocks = entry.map_or(u32::MAX, |e| e.blocks);
            let live = entry.ok().filter(|e| e.state == EntryState::Live);
            let rows = live.map_or(0, |e| e.rows);
            match list.last_mut() {
                // Two versions of one row, one of them written by a running transaction.
                Some(last) if last.slot == slot => last.blocks = blocks.max(last.blocks),
                last => {
                    if let Some(last) = last {
                        last.blocks = last.blocks.min(slot.saturating_sub(last.slot));
                    }
                    list.push(Known { slot, blocks, rows, dead: 0 });
                }
            }
        });
    });
    if let Some(last) = list.last_mut() {
        last.blocks = last.blocks.min(end - last.slot);
    }
    // A row whose key is damaged stands for the stripe that it was written for as well: that one's blocks are no hole.
    for Slot(slot) in strays {
        let Err(at) = list.binary_search_by_key(&slot, |k| k.slot) else { continue };
        let next = list.get(at).map_or(end, |k| k.slot);
        if let Some(before) = at.checked_sub(1).and_then(|i| list.get_mut(i)) {
            before.blocks = before.blocks.min(slot - before.slot);
        }
        list.insert(at, Known { slot, blocks: next - slot, rows: 0, dead: 0 });
    }
    Pass { known: list, end, first_open, damaged, oldest, rows: 0, garbage: 0, latest: None }
}

/// Visit the rows of a stripe that nobody can see any more, in order, with who deleted them.
fn each_dead<S: ChunkStore>(
    store: &S,
    slot: u32,
    rows: u32,
    oldest: Xid,
    mut visit: impl FnMut(u32, u64),
) {
    let mut last = None;
    tombstones::each_readable(store, Slot(slot), rows, store.own(), |row, stone| {
        if stone.is_settled(store, oldest) && last != Some(row) {
            last = Some(row);
            visit(row, store.full(stone.raw_xmin));
        }
    });
}

/// Remove the stripes without a row that some snapshot sees. Their index entries, if they still have any, lead
/// nowhere from then on, as their slots are never used again.
pub fn remove_dead_stripes<S: ChunkStore>(store: &S, oldest: Xid) {
    let mut first = None;
    for found in rows::list_readable(store, store.own(), |_, _| ()) {
        store.pause();
        let (rows, mut dead) = (found.entry.rows, 0);
        tombstones::each_readable(store, found.slot, rows, store.own(), |_, stone| {
            dead += u32::from(stone.is_settled(store, oldest));
        });
        if dead == rows && !is_any_held(store, &found) {
            rows::remove(store, &found, store.command_id());
            first = first.or(Some(found.slot.0));
        }
    }
    // Index entries that this VACUUM has left are the next one's to find.
    let clean = cleaned::read(store);
    if let Some(slot) = first.filter(|slot| *slot < clean.blocks) {
        cleaned::write(store, Cleaned { blocks: slot, ..clean });
    }
}

/// Somebody holds a lock on a tombstone of the stripe: on a key that an update left alone. To delete it would be to
/// wait for him.
fn is_any_held<S: ChunkStore>(store: &S, found: &Found) -> bool {
    let mut places = Vec::new();
    tombstones::each_readable(store, found.slot, found.entry.rows, store.own(), |_, stone| {
        places.push(stone.place)
    });
    places.into_iter().any(|place| store.is_held(place))
}
