//! Tombstones and anchors: the eight bytes that say what became of a stripe row; and the delete
//! vector, tombstones as a bitmap.
//!
//! Layout: byte 0 `L` (anchor) or `D` (deleted); byte 1 is 1 when a successor follows, 3 when it has
//! the same key, 2 when the row has moved to another partition; bytes 2..6 the successor's block, 6..8
//! its offset, little-endian.

use crate::address::Tid;
use crate::error::{Error, Result};

/// What a tombstone row says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TombstoneState {
    /// The row lives; the tuple only carries its locks.
    Anchor,
    /// The row is deleted, or updated when there is a successor.
    Deleted,
}

/// State of a stripe row that is not simply alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tombstone {
    pub state: TombstoneState,
    /// Where the row's next version is.
    pub successor: Option<Tid>,
    /// The update changed no key column: whoever asks for the key alone may hold this version.
    pub same_key: bool,
    /// The row lives on in another partition of the table's parent.
    pub moved_away: bool,
}

impl Tombstone {
    /// What carries the locks of a living row.
    pub fn anchor() -> Tombstone {
        Tombstone { state: TombstoneState::Anchor, ..Tombstone::deleted() }
    }
    /// The row is deleted.
    pub fn deleted() -> Tombstone {
        Tombstone {
            state: TombstoneState::Deleted,
            successor: None,
            same_key: false,
            moved_away: false,
        }
    }
    /// The row is deleted here because it belongs to another partition now.
    pub fn moved_away() -> Tombstone {
        Tombstone { moved_away: true, ..Tombstone::deleted() }
    }
    /// The row is updated: its next version is at `successor`.
    pub fn updated(successor: Tid, same_key: bool) -> Tombstone {
        Tombstone { successor: Some(successor), same_key, ..Tombstone::deleted() }
    }

    pub fn encode(self) -> [u8; 8] {
        let mut out = [0u8; 8];
        out[0] = match self.state {
            TombstoneState::Anchor => b'L',
            TombstoneState::Deleted => b'D',
        };
        if let Some(tid) = self.successor {
            out[1] = if self.same_key { 3 } else { 1 };
            out[2..6].copy_from_slice(&tid.block.to_le_bytes());
            out[6..8].copy_from_slice(&tid.offset.to_le_bytes());
        } else if self.moved_away {
            out[1] = 2;
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Tombstone> {
        let bytes: &[u8; 8] =
            bytes.try_into().map_err(|_| Error::corrupt("a tombstone has not eight bytes"))?;
        let state = match bytes[0] {
            b'L' => TombstoneState::Anchor,
            b'D' => TombstoneState::Deleted,
            other => return Err(Error::corrupt(format!("unknown state {other}"))),
        };
        let successor = match bytes[1] {
            0 | 2 => None,
            1 | 3 => Some(Tid {
                block: u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]),
                offset: u16::from_le_bytes([bytes[6], bytes[7]]),
            }),
            other => return Err(Error::corrupt(format!("unknown flags {other}"))),
        };
        Ok(Tombstone { state, successor, same_key: bytes[1] == 3, moved_away: bytes[1] == 2 })
    }
}

/// Rows of a stripe that are deleted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeleteVector {
    words: Vec<u64>,
    rows: u32,
    count: u32,
}

impl DeleteVector {
    /// An empty vector over `rows` rows.
    pub fn new(rows: u32) -> DeleteVector {
        DeleteVector { words: vec![0; rows.div_ceil(64) as usize], rows, count: 0 }
    }
    /// Mark a row; rows beyond the stripe are ignored.
    pub fn set(&mut self, row: u32) {
        if row >= self.rows {
            return;
        }
        if let Some(word) = self.words.get_mut((row / 64) as usize) {
            let bit = 1u64 << (row % 64);
            self.count += u32::from(*word & bit == 0);
            *word |= bit;
        }
    }
    #[inline]
    pub fn contains(&self, row: u32) -> bool {
        self.words.get((row / 64) as usize).is_some_and(|w| w >> (row % 64) & 1 == 1)
    }
    /// Rows marked.
    pub fn count(&self) -> u32 {
        self.count
    }
    /// Bytes of memory that it takes.
    pub fn memory(&self) -> usize {
        self.words.len() * 8
    }
    /// Marked rows in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.rows).filter(|r| self.contains(*r))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tombstones_round_trip(kind in 0u8..4, block: u32, offset: u16, same_key: bool) {
            let t = match kind {
                0 => Tombstone::anchor(),
                1 => Tombstone::deleted(),
                2 => Tombstone::moved_away(),
                _ => Tombstone::updated(Tid { block, offset }, same_key),
            };
            prop_assert_eq!(Tombstone::decode(&t.encode()).unwrap(), t);
        }
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
            let _ = Tombstone::decode(&bytes);
        }
        #[test]
        fn delete_vector_is_a_set(rows in 1u32..500, marks: Vec<u32>) {
            let mut v = DeleteVector::new(rows);
            let mut model = std::collections::BTreeSet::new();
            for m in marks {
                let m = m % (rows + 10);
                v.set(m);
                if m < rows { model.insert(m); }
            }
            prop_assert_eq!(v.count() as usize, model.len());
            prop_assert!(v.iter().eq(model.iter().copied()));
        }
    }
}
