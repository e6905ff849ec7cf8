//! What `pg_class.reltuples` includes of the stripes. It counts both halves of a table, and only who
//! knows the stripes' part of it can tell the row store's. A note of it is overwritten in place, like
//! reltuples, by VACUUM and ANALYZE.

use super::keys;
use crate::pg::lock::AllocationLock;
use crate::pg::{ChunkKey, Snap, Toast};

const KEY: ChunkKey = ChunkKey { id: keys::COUNTED, seq: 0 };
const VERSION: u8 = 1;
const LEN: usize = 24;

/// The stripes' part of a table's row count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    /// `pg_class.reltuples` that this is part of. Others write it, too: the note is about no other
    /// value.
    pub whole: f32,
    /// Rows in stripes, deleted ones too.
    pub rows: u64,
    /// Those alive.
    pub live: u64,
}

impl Counted {
    fn encode(self) -> [u8; LEN] {
        let mut out = [0u8; LEN];
        out[0] = VERSION;
        out[4..8].copy_from_slice(&self.whole.to_le_bytes());
        out[8..16].copy_from_slice(&self.rows.to_le_bytes());
        out[16..24].copy_from_slice(&self.live.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Counted> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if bytes.len() != LEN || bytes[0] != VERSION {
            return None;
        }
        let whole = f32::from_le_bytes(bytes[4..8].try_into().ok()?);
        Some(Counted { whole, rows: word(8)?, live: word(16)? })
    }
}

/// The note, if there is one. A damaged one is none: it only helps estimates.
pub fn read(toast: &Toast) -> Option<Counted> {
    if toast.is_empty() {
        return None;
    }
    let row = toast.find_damaged(KEY, Snap::self_snap()).filter(|row| !row.key_is_damaged);
    row.and_then(|row| Counted::decode(&row.data))
}

/// Write the note, outside of any transaction: VACUUM's cannot write otherwise.
pub fn write(toast: &Toast, counted: Counted) {
    let _lock = AllocationLock::take(toast.rel());
    match toast.find_damaged(KEY, Snap::self_snap()) {
        Some(row) if row.data.len() == LEN && !row.key_is_damaged => {
            toast.overwrite(row.place, KEY, &counted.encode())
        }
        Some(_) => (),
        None => insert(toast, counted),
    }
}

/// Make room for the note of a table that gets its first stripe: a row written later would lie
/// behind the chunks and keep their file from shrinking when they go.
pub(super) fn prepare(toast: &Toast) {
    insert(toast, Counted { whole: -1.0, rows: 0, live: 0 })
}

/// Frozen from birth, as it belongs to no transaction.
fn insert(toast: &Toast, counted: Counted) {
    toast.insert(KEY, &counted.encode(), crate::pg::xact::command_id(true), true);
}

#[cfg(test)]
mod tests {
    use super::Counted;

    #[test]
    fn note_round_trips() {
        let note = Counted { whole: 3.5e9, rows: u64::MAX, live: 7 };
        assert_eq!(Counted::decode(&note.encode()), Some(note));
        assert_eq!(Counted::decode(&[0; 24]), None);
        assert_eq!(Counted::decode(&[1; 23]), None);
    }
}
