//! What `pg_class.reltuples` includes of the stripes. It counts both halves of a table, and only who
//! knows the stripes' part of it can tell the row store's. A note of it is overwritten in place, like
//! reltuples, by VACUUM and ANALYZE.

use crate::{keys, ChunkKey, ChunkStore, Keep};

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
    pub(crate) fn encode(self) -> [u8; LEN] {
        let mut out = [0u8; LEN];
        out[0] = VERSION;
        out[4..8].copy_from_slice(&self.whole.to_le_bytes());
        out[8..16].copy_from_slice(&self.rows.to_le_bytes());
        out[16..24].copy_from_slice(&self.live.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Counted> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if bytes.len() != LEN || bytes[0] != VERSION {
            return None;
        }
        let whole = f32::from_le_bytes(bytes[4..8].try_into().ok()?);
        Some(Counted { whole, rows: word(8)?, live: word(16)? })
    }
}

/// The note, if there is one. A damaged one is none: it only helps estimates.
pub fn read<S: ChunkStore>(store: &S) -> Option<Counted> {
    if store.is_empty() {
        return None;
    }
    let row = store.find_damaged(KEY, store.own()).filter(|row| !row.key_is_damaged);
    row.and_then(|row| Counted::decode(&row.data))
}

/// Write the note, outside of any transaction: VACUUM's cannot write otherwise.
pub fn write<S: ChunkStore>(store: &S, counted: Counted) {
    let _lock = store.lock_allocation();
    match store.find_damaged(KEY, store.own()) {
        Some(row) if row.data.len() == LEN && !row.key_is_damaged => {
            store.overwrite(row.place, KEY, &counted.encode())
        }
        Some(_) => (),
        None => insert(store, counted),
    }
}

/// Make room for the note of a table that gets its first stripe: a row written later would lie
/// behind the chunks and keep their file from shrinking when they go.
pub(crate) fn prepare<S: ChunkStore>(store: &S) {
    insert(store, Counted { whole: -1.0, rows: 0, live: 0 })
}

/// It belongs to no transaction.
fn insert<S: ChunkStore>(store: &S, counted: Counted) {
    store.insert(KEY, &counted.encode(), store.command_id(), Keep::ForGood);
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
