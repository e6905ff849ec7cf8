//! How far the table's indexes are rid of entries that lead to no row which anybody can see. VACUUM removes them
//! in a pass over all indexes; the note of it, overwritten in place, says which of them have come since, and how many
//! rows have been given new entries, so that the indexes may have pages which are mostly empty now.

use super::keys;
use crate::pg::lock::AllocationLock;
use crate::pg::{ChunkKey, Snap, Toast};

const KEY: ChunkKey = ChunkKey { id: keys::CLEANED, seq: 0 };
const VERSION: u8 = 1;
const LEN: usize = 24;
const SETTLED: u32 = 1 << 31;

/// What the last pass has left for the next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cleaned {
    /// Rows deleted by transactions before this one (an id that does not wrap around) have no entries.
    pub before: u64,
    /// Virtual blocks before this one that no stripe has taken have no entries.
    pub blocks: u32,
    /// Rows that have been moved since the indexes were built anew or found to be as small as new ones, up to 2^31 - 1.
    pub moved: u32,
    /// VACUUM has removed the entries that they had before.
    pub settled: bool,
}

impl Cleaned {
    fn encode(self) -> [u8; LEN] {
        let mut out = [0u8; LEN];
        out[0] = VERSION;
        out[8..16].copy_from_slice(&self.before.to_le_bytes());
        out[16..20].copy_from_slice(&self.blocks.to_le_bytes());
        let moved = self.moved.min(SETTLED - 1) | if self.settled { SETTLED } else { 0 };
        out[20..24].copy_from_slice(&moved.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Cleaned> {
        if bytes.len() != LEN || bytes[0] != VERSION {
            return None;
        }
        let before = u64::from_le_bytes(bytes[8..16].try_into().ok()?);
        let blocks = u32::from_le_bytes(bytes[16..20].try_into().ok()?);
        let moved = u32::from_le_bytes(bytes[20..24].try_into().ok()?);
        let settled = moved & SETTLED != 0;
        Some(Cleaned { before, blocks, moved: moved & !SETTLED, settled })
    }
}

/// The note. Without one, or with a damaged one, nothing counts as clean: that costs a pass.
pub fn read(toast: &Toast) -> Cleaned {
    let row = toast.find(KEY, Snap::self_snap());
    row.and_then(|row| Cleaned::decode(&row.data)).unwrap_or_default()
}

/// Write the note, outside of any transaction.
pub fn write(toast: &Toast, cleaned: Cleaned) {
    let _lock = AllocationLock::take(toast.rel());
    if let Some(row) = toast.find(KEY, Snap::self_snap()).filter(|row| row.data.len() == LEN) {
        toast.overwrite(row.place, KEY, &cleaned.encode());
    }
}

/// Rows are given new index entries, in a transaction that keeps VACUUM out to its end. (When it is rolled back, its
/// entries are bloat all the same.)
pub fn count_moved(toast: &Toast, rows: u64) {
    let note = read(toast);
    let moved = note.moved.saturating_add(rows.try_into().unwrap_or(u32::MAX)).min(SETTLED - 1);
    if rows > 0 {
        write(toast, Cleaned { moved, settled: false, ..note });
    }
}

/// VACUUM has removed all entries that the moved rows had before.
pub fn settle(toast: &Toast) {
    let note = read(toast);
    if note.moved > 0 && !note.settled {
        write(toast, Cleaned { settled: true, ..note });
    }
}

/// The indexes are as small as new ones.
pub fn forget_moved(toast: &Toast) {
    let note = read(toast);
    if note.moved > 0 {
        write(toast, Cleaned { moved: 0, settled: false, ..note });
    }
}

/// Make room for the note where an error had kept it from being made with the first stripe.
pub fn make_room(toast: &Toast) {
    let _lock = AllocationLock::take(toast.rel());
    if toast.find(KEY, Snap::self_snap()).is_none() {
        prepare(toast);
    }
}

/// Make room for the note of a table that gets its first stripe.
pub(super) fn prepare(toast: &Toast) {
    toast.insert(KEY, &Cleaned::default().encode(), crate::pg::xact::command_id(true), true);
}

#[cfg(test)]
mod tests {
    use super::{Cleaned, SETTLED};

    #[test]
    fn note_round_trips() {
        for (moved, settled) in [(0, false), (SETTLED - 1, false), (7, true)] {
            let note = Cleaned { before: u64::MAX - 1, blocks: 1 << 31, moved, settled };
            assert_eq!(Cleaned::decode(&note.encode()), Some(note));
        }
        assert_eq!(Cleaned::decode(&[0; 24]), None);
        assert_eq!(Cleaned::decode(&[1; 23]), None);
    }
}
