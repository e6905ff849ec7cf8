//! Which addresses of stripe rows lead to no row that anybody can see, so that index entries with them are of no
//! use. What is known of them is a list of ranges of virtual blocks; decided is from that alone.

use crate::address::{Slot, Tid, VIRTUAL_BASE};
use crate::tombstone::DeleteVector;

/// Rows of a stripe that nobody can see any more.
#[derive(Debug)]
pub enum DeadRows {
    None,
    /// Few: their numbers, ascending.
    Few(Vec<u32>),
    Many(DeleteVector),
}

impl DeadRows {
    /// From ascending row numbers of a stripe of `rows` rows, in the form that takes less memory.
    pub fn of(mut dead: Vec<u32>, rows: u32) -> DeadRows {
        if dead.is_empty() {
            return DeadRows::None;
        }
        if dead.len() as u64 * 32 <= u64::from(rows) {
            dead.shrink_to_fit();
            return DeadRows::Few(dead);
        }
        let mut vector = DeleteVector::new(rows);
        dead.into_iter().for_each(|row| vector.set(row));
        DeadRows::Many(vector)
    }

    #[inline]
    pub fn contains(&self, row: u32) -> bool {
        match self {
            DeadRows::None => false,
            DeadRows::Few(list) => list.binary_search(&row).is_ok(),
            DeadRows::Many(vector) => vector.contains(row),
        }
    }

    /// Bytes of memory that it takes.
    pub fn memory(&self) -> usize {
        match self {
            DeadRows::None => 0,
            DeadRows::Few(list) => list.capacity() * 4,
            DeadRows::Many(vector) => vector.memory(),
        }
    }
}

/// A range of virtual blocks that a stripe has, living or in the making.
#[derive(Debug)]
pub struct Taken {
    pub slot: Slot,
    pub blocks: u32,
    pub dead: DeadRows,
}

/// The addresses of the virtual blocks `from..to`: what no stripe has taken was a stripe's that was rolled back or
/// removed, and is never given out again.
#[derive(Debug)]
pub struct Garbage {
    from: u32,
    to: u32,
    /// By slot.
    taken: Vec<Taken>,
}

impl Garbage {
    /// `taken` in the order of their slots, all within `from..to`.
    pub fn new(from: u32, to: u32, taken: Vec<Taken>) -> Garbage {
        Garbage { from, to, taken }
    }

    /// An index entry with this TID leads to no row that anybody can see.
    pub fn contains(&self, tid: Tid) -> bool {
        let Some(block) = tid.block.checked_sub(VIRTUAL_BASE) else { return false };
        if block < self.from || block >= self.to {
            return false;
        }
        let after = self.taken.partition_point(|t| t.slot.0 <= block);
        let Some(taken) = after.checked_sub(1).and_then(|i| self.taken.get(i)) else { return true };
        if block - taken.slot.0 >= taken.blocks {
            return true;
        }
        tid.row_in(taken.slot).is_some_and(|row| taken.dead.contains(row))
    }
}

/// Blocks of `from..to` that no range has, given ranges (slot, blocks) in the order of their slots.
pub fn untaken(from: u32, to: u32, ranges: impl Iterator<Item = (u32, u32)>) -> u64 {
    let (mut at, mut count) = (u64::from(from), 0);
    for (slot, blocks) in ranges {
        let (start, end) = (u64::from(slot), u64::from(slot) + u64::from(blocks));
        count += start.min(u64::from(to)).saturating_sub(at);
        at = at.max(end);
    }
    count + u64::from(to).saturating_sub(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn addresses_beyond_the_range_are_nobodys_business() {
        let garbage = Garbage::new(5, 10, Vec::new());
        assert!(!garbage.contains(Tid { block: 7, offset: 1 }));
        assert!(!garbage.contains(Tid::of(Slot(4), 0)));
        assert!(garbage.contains(Tid::of(Slot(5), 0)));
        assert!(garbage.contains(Tid::of(Slot(9), 290)));
        assert!(!garbage.contains(Tid::of(Slot(10), 0)));
    }

    proptest! {
        #[test]
        fn holes_and_dead_rows_and_nothing_else(
            parts in prop::collection::vec((0u32..5, 1u32..6, prop::collection::btree_set(0u32..1500, 0..60)), 0..8),
            rest in 0u32..5,
        ) {
            let (mut at, mut taken, mut alive) = (0, Vec::new(), BTreeSet::new());
            let (mut ranges, mut holes) = (Vec::new(), u64::from(rest));
            for (gap, blocks, dead) in parts {
                let slot = at + gap;
                holes += u64::from(gap);
                let rows = blocks * crate::ROWS_PER_BLOCK;
                let dead: Vec<u32> = dead.into_iter().filter(|row| *row < rows).collect();
                alive.extend((0..rows).filter(|row| !dead.contains(row)).map(|row| Tid::of(Slot(slot), row)));
                taken.push(Taken { slot: Slot(slot), blocks, dead: DeadRows::of(dead, rows) });
                ranges.push((slot, blocks));
                at = slot + blocks;
            }
            let end = at + rest;
            prop_assert_eq!(untaken(0, end, ranges.into_iter()), holes);
            let garbage = Garbage::new(0, end, taken);
            for linear in 0..u64::from(end) * u64::from(crate::ROWS_PER_BLOCK) {
                let tid = Tid::from_linear(linear).unwrap();
                prop_assert_eq!(garbage.contains(tid), !alive.contains(&tid), "{:?}", tid);
            }
        }
    }
}
