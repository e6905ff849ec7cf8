//! How far the table's indexes are rid of entries that lead to no row which anybody can see. VACUUM removes them
//! in a pass over all indexes; the note of it, overwritten in place, says which of them have come since, and how many
//! rows have been given new entries, so that the indexes may have pages which are mostly empty now.

use super::keys;
use crate::pg::lock::AllocationLock;
use crate::pg::{ChunkKey, Snap, Toast};

const KEY: ChunkKey = ChunkKey { id: keys::CLEANED, seq: 0 };
const VERSION: u8 = 1;
const LEN: usize = 24;

/// What the last pass has left for the next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cleaned {
    /// Rows deleted by transactions before this one (an id that does not wrap around) have no entries.
    pub before: u64,
    /// Virtual blocks before this one that no stripe has taken have no entries.
    pub blocks: u32,
    /// Rows that have been moved, whose entries of before VACUUM has not removed yet.
    pub moved: u32,
    /// Those whose entries of before it has removed since the indexes were built anew or found to be as small as new
    /// ones. Both are counted up to 2^32 - 1.
    pub settled: u32,
}

impl Cleaned {
    fn encode(self) -> [u8; LEN] {
        let mut out = [0u8; LEN];
        out[0] = VERSION;
        out[8..16].copy_from_slice(&self.before.to_le_bytes());
        out[16..20].copy_from_slice(&self.blocks.to_le_bytes());
        out[4..8].copy_from_slice(&self.settled.to_le_bytes());
        out[20..24].copy_from_slice(&self.moved.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Cleaned> {
        if bytes.len() != LEN || bytes[0] != VERSION {
            return None;
        }
        let before = u64::from_le_bytes(bytes[8..16].try_into().ok()?);
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        Some(Cleaned { before, blocks: word(16)?, moved: word(20)?, settled: word(4)? })
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
    let moved = note.moved.saturating_add(rows.try_into().unwrap_or(u32::MAX));
    if rows > 0 {
        write(toast, Cleaned { moved, ..note });
    }
}

/// VACUUM has removed the entries that the moved rows had before, but for the `left` that some snapshot needs.
pub fn settle(toast: &Toast, left: u64) {
    let note = read(toast);
    let moved = note.moved.min(left.try_into().unwrap_or(u32::MAX));
    if moved < note.moved {
        let settled = note.settled.saturating_add(note.moved - moved);
        write(toast, Cleaned { moved, settled, ..note });
    }
}

/// After moves of so many rows that are settled, the indexes are as small as new ones.
pub fn forget_settled(toast: &Toast, rows: u64) {
    let note = read(toast);
    let settled = note.settled.saturating_sub(rows.try_into().unwrap_or(u32::MAX));
    if settled < note.settled {
        write(toast, Cleaned { settled, ..note });
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
    use super::Cleaned;

    #[test]
    fn note_round_trips() {
        for (moved, settled) in [(0, 0), (u32::MAX, 1), (7, u32::MAX)] {
            let note = Cleaned { before: u64::MAX - 1, blocks: 1 << 31, moved, settled };
            assert_eq!(Cleaned::decode(&note.encode()), Some(note));
        }
        assert_eq!(Cleaned::decode(&[0; 24]), None);
        assert_eq!(Cleaned::decode(&[1; 23]), None);
    }
}
