//! Row addresses: TIDs of stripe rows lie in virtual blocks above the row store's.

/// First virtual block.
pub const VIRTUAL_BASE: u32 = 0x8000_0000;
/// Rows of a virtual block: PostgreSQL's bitmaps accept no greater offset on 8 kB pages.
pub const ROWS_PER_BLOCK: u32 = 291;

/// A tuple identifier: block and offset (from 1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Tid {
    pub block: u32,
    pub offset: u16,
}

/// A stripe's first virtual block, counted from [`VIRTUAL_BASE`]: its key in the directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord, Debug)]
pub struct Slot(pub u32);

impl Tid {
    /// The address belongs to a stripe row.
    pub fn is_virtual(self) -> bool {
        self.block >= VIRTUAL_BASE
    }

    /// Address of row `row` of the stripe at `slot`.
    pub fn of(slot: Slot, row: u32) -> Tid {
        Tid {
            block: VIRTUAL_BASE.wrapping_add(slot.0).wrapping_add(row / ROWS_PER_BLOCK),
            offset: (row % ROWS_PER_BLOCK + 1) as u16,
        }
    }

    /// Which row of the stripe at `slot` this is; None when it lies before it or its offset is not
    /// one of a stripe row.
    #[inline]
    pub fn row_in(self, slot: Slot) -> Option<u32> {
        let block = self.block.checked_sub(VIRTUAL_BASE)?.checked_sub(slot.0)?;
        if self.offset == 0 || u32::from(self.offset) > ROWS_PER_BLOCK {
            return None;
        }
        block.checked_mul(ROWS_PER_BLOCK)?.checked_add(u32::from(self.offset) - 1)
    }

    /// Position on the number line of all stripe rows of a table. Only for virtual TIDs.
    pub fn linear(self) -> u64 {
        u64::from(self.block.wrapping_sub(VIRTUAL_BASE)) * u64::from(ROWS_PER_BLOCK)
            + u64::from(self.offset.saturating_sub(1))
    }

    /// Inverse of [`Tid::linear`].
    pub fn from_linear(linear: u64) -> Option<Tid> {
        let block = u32::try_from(linear / u64::from(ROWS_PER_BLOCK)).ok()?;
        let block = VIRTUAL_BASE.checked_add(block)?;
        Some(Tid { block, offset: (linear % u64::from(ROWS_PER_BLOCK)) as u16 + 1 })
    }
}

/// Virtual blocks that `rows` rows need.
pub fn blocks_for(rows: u32) -> u32 {
    rows.div_ceil(ROWS_PER_BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn addresses_round_trip(slot in 0u32..1 << 30, row in 0u32..300_000_000) {
            let tid = Tid::of(Slot(slot), row);
            prop_assert!(tid.is_virtual());
            prop_assert_eq!(tid.row_in(Slot(slot)), Some(row));
            prop_assert_eq!(Tid::from_linear(tid.linear()), Some(tid));
            let next = Tid::of(Slot(slot), row + 1);
            prop_assert_eq!(next.linear(), tid.linear() + 1);
            prop_assert!(next > tid);
        }
    }

    #[test]
    fn rows_before_a_slot_are_not_its_own() {
        assert_eq!(Tid::of(Slot(5), 0).row_in(Slot(6)), None);
        assert_eq!(Tid { block: VIRTUAL_BASE, offset: 0 }.row_in(Slot(0)), None);
        assert_eq!(Tid { block: VIRTUAL_BASE, offset: 292 }.row_in(Slot(0)), None);
        assert_eq!(blocks_for(0), 0);
        assert_eq!(blocks_for(291), 1);
        assert_eq!(blocks_for(292), 2);
    }
}
