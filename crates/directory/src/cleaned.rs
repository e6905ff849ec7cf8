//! How far the table's indexes are rid of entries that lead to no row which anybody can see. VACUUM removes them
//! in a pass over all indexes; the note of it, overwritten in place, says which of them have come since, and how many
//! rows have been given new entries, so that the indexes may have pages which are mostly empty now.

use crate::{keys, ChunkKey, ChunkRow, ChunkStore, Keep};

const KEY: ChunkKey = ChunkKey { id: keys::CLEANED, seq: 0 };
const VERSION: u8 = 1;
const LEN: usize = 32;

/// What the last pass has left for the next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cleaned {
    /// Rows deleted by transactions before this one (an id that does not wrap around) have no entries.
    pub before: u64,
    /// Virtual blocks before this one that no stripe has taken have no entries.
    pub blocks: u32,
    /// Which directory rows were damaged then, in short ([`Damaged`]): what they hide, blocks behind their stripes and
    /// rows deleted in them, may have entries all the same. 0 when none was.
    pub damaged: u32,
    /// Rows that have been moved, whose entries of before VACUUM has not removed yet.
    pub moved: u32,
    /// Those whose entries of before it has removed since the B-trees were built anew or found to be as small as new
    /// ones.
    pub settled: u32,
    /// The same since indexes of other kinds were built anew. All three are counted up to 2^32 - 1.
    pub settled_others: u32,
    /// Whether VACUUM could not tidy up, so that a transaction of its own is to do it ([`ASKED`]), and how often that was so, as
    /// far as there is room for the number.
    pub untidied: u8,
}

const ASKED: u8 = 0x80;

impl Cleaned {
    pub(crate) fn encode(self) -> [u8; LEN] {
        let mut out = [0u8; LEN];
        out[0] = VERSION;
        out[1..4].copy_from_slice(&self.damaged.to_le_bytes()[..3]);
        out[8..16].copy_from_slice(&self.before.to_le_bytes());
        out[16..20].copy_from_slice(&self.blocks.to_le_bytes());
        out[4..8].copy_from_slice(&self.settled.to_le_bytes());
        out[20..24].copy_from_slice(&self.moved.to_le_bytes());
        out[24..28].copy_from_slice(&self.settled_others.to_le_bytes());
        out[28] = self.untidied;
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Cleaned> {
        if bytes.len() != LEN || bytes[0] != VERSION {
            return None;
        }
        let before = u64::from_le_bytes(bytes[8..16].try_into().ok()?);
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let damaged = word(0)? >> 8;
        let (settled, settled_others) = (word(4)?, word(24)?);
        Some(Cleaned {
            before,
            blocks: word(16)?,
            damaged,
            moved: word(20)?,
            settled,
            settled_others,
            untidied: bytes[28],
        })
    }

    /// VACUUM has left something to tidy up. That is told from what it has left another time: whoever says late that he has done
    /// that has not done this.
    fn leave(self) -> Cleaned {
        Cleaned { untidied: ASKED | self.untidied.wrapping_add(1), ..self }
    }

    /// What had been left as [`Cleaned::left`] has told is tidied up.
    fn tidied(self, left: u8) -> Cleaned {
        let is_it = self.left() == Some(left);
        Cleaned { untidied: if is_it { left & !ASKED } else { self.untidied }, ..self }
    }

    /// What has been left to tidy up, if anything has.
    pub fn left(self) -> Option<u8> {
        (self.untidied & ASKED != 0).then_some(self.untidied)
    }

    /// What of the note holds when these directory rows are damaged: all, unless others were when it was made. What those
    /// hid may show now, so nothing is taken for clean.
    pub fn beside(self, damaged: &Damaged) -> Cleaned {
        match self.damaged == 0 || self.damaged == damaged.in_short() {
            true => self,
            false => Cleaned { before: 0, blocks: 0, ..self },
        }
    }
}

/// Damaged directory rows, as they are met.
#[derive(Default)]
pub struct Damaged {
    slots: Vec<u8>,
}

impl Damaged {
    pub fn meet(&mut self, slot: u32) {
        self.slots.extend_from_slice(&slot.to_le_bytes());
    }

    /// A number of 24 bits that is another one, but for chance, when other rows are damaged; 0 when none is.
    pub fn in_short(&self) -> u32 {
        match self.slots.is_empty() {
            true => 0,
            false => (crc32c::crc32c(&self.slots) >> 8).max(1),
        }
    }
}

/// The note. Without one, or with a damaged one, nothing counts as clean: that costs a pass.
pub fn read<S: ChunkStore>(store: &S) -> Cleaned {
    row(store).and_then(|row| Cleaned::decode(&row.data)).unwrap_or_default()
}

fn row<S: ChunkStore>(store: &S) -> Option<ChunkRow> {
    store.find_damaged(KEY, store.own()).filter(|row| !row.key_is_damaged)
}

/// Write the note, outside of any transaction.
pub fn write<S: ChunkStore>(store: &S, cleaned: Cleaned) {
    let _lock = store.lock_allocation();
    if let Some(row) = row(store).filter(|row| row.data.len() == LEN) {
        store.overwrite(row.place, KEY, &cleaned.encode());
    }
}

/// Rows are given new index entries, in a transaction that keeps VACUUM out to its end. (When it is rolled back, its
/// entries are bloat all the same.)
pub fn count_moved<S: ChunkStore>(store: &S, rows: u64) {
    let note = read(store);
    let moved = note.moved.saturating_add(rows.try_into().unwrap_or(u32::MAX));
    if rows > 0 {
        write(store, Cleaned { moved, ..note });
    }
}

/// VACUUM has removed the entries that the moved rows had before, but for the `left` that some snapshot needs.
pub fn settle<S: ChunkStore>(store: &S, left: u64) {
    let note = read(store);
    let moved = note.moved.min(left.try_into().unwrap_or(u32::MAX));
    if moved < note.moved {
        let settled = note.settled.saturating_add(note.moved - moved);
        let settled_others = note.settled_others.saturating_add(note.moved - moved);
        write(store, Cleaned { moved, settled, settled_others, ..note });
    }
}

/// Tidying up is left to a transaction of its own.
pub fn leave_tidying<S: ChunkStore>(store: &S) {
    write(store, read(store).leave());
}

/// What had been left has been tidied up, by a transaction that has committed.
pub fn is_tidied<S: ChunkStore>(store: &S, left: u8) {
    let note = read(store);
    if note != note.tidied(left) {
        write(store, note.tidied(left));
    }
}

/// After moves of so many rows that are settled, B-trees and indexes of other kinds are as small as new ones.
pub fn forget_settled<S: ChunkStore>(store: &S, rows: u64, of_others: u64) {
    let note = read(store);
    let less = |count: u32, by: u64| count.saturating_sub(by.try_into().unwrap_or(u32::MAX));
    let settled = less(note.settled, rows);
    let settled_others = less(note.settled_others, of_others);
    if (settled, settled_others) != (note.settled, note.settled_others) {
        write(store, Cleaned { settled, settled_others, ..note });
    }
}

/// Make room for the note where an error had kept it from being made with the first stripe.
pub fn make_room<S: ChunkStore>(store: &S) {
    let _lock = store.lock_allocation();
    if store.find_damaged(KEY, store.own()).is_none() {
        prepare(store);
    }
}

/// Make room for the note of a table that gets its first stripe.
pub(crate) fn prepare<S: ChunkStore>(store: &S) {
    store.insert(KEY, &Cleaned::default().encode(), store.command_id(), Keep::ForGood);
}

#[cfg(test)]
mod tests {
    use super::{Cleaned, Damaged, LEN};

    #[test]
    fn note_round_trips() {
        for (moved, settled, damaged) in [(0, 0, 0), (u32::MAX, 1, 0xff_ffff), (7, u32::MAX, 1)] {
            let (before, blocks, settled_others) = (u64::MAX - 1, 1 << 31, settled ^ 9);
            let note = Cleaned {
                before,
                blocks,
                damaged,
                moved,
                settled,
                settled_others,
                untidied: damaged as u8,
            };
            assert_eq!(Cleaned::decode(&note.encode()), Some(note));
        }
        assert_eq!(Cleaned::decode(&[0; LEN]), None);
        assert_eq!(Cleaned::decode(&[1; LEN - 1]), None);
    }

    #[test]
    fn what_is_left_again_is_not_tidied() {
        let mut note = Cleaned::default();
        assert_eq!(note.left(), None);
        let mut earlier = Vec::new();
        for _ in 0..100 {
            note = note.leave();
            let left = note.left().unwrap();
            assert!(!earlier.contains(&left));
            for other in &earlier {
                assert_eq!(note.tidied(*other), note);
            }
            earlier.push(left);
            // By the next VACUUM, too, before somebody has done it.
            if left % 3 > 0 {
                note = note.tidied(left);
                assert_eq!(note.left(), None);
                assert_eq!(note.tidied(left), note);
            }
        }
    }

    #[test]
    fn what_damage_hid_is_not_clean() {
        let (none, mut one, mut two) = (Damaged::default(), Damaged::default(), Damaged::default());
        one.meet(5);
        [5, 9].into_iter().for_each(|slot| two.meet(slot));
        let note = Cleaned { before: 7, blocks: 9, ..Cleaned::default() };
        for now in [&none, &one, &two] {
            assert_eq!(note.beside(now), note);
        }
        let note = Cleaned { damaged: one.in_short(), ..note };
        assert_eq!(note.beside(&one), note);
        for now in [&none, &two] {
            assert_eq!(note.beside(now), Cleaned { before: 0, blocks: 0, ..note });
        }
    }
}
