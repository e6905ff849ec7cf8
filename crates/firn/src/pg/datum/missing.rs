//! What rows have in a column that was added after they had been written.

use super::Word;
use crate::pg::rel::Attribute;
use pgrx::varlena;
use std::rc::Rc;

/// What a varlena begins with that points to its value (PostgreSQL's VARATT_IS_1B_E, where the lowest byte comes first).
const ELSEWHERE: u8 = 1;

/// The default of a column that rows lack. It owns its bytes together with those who have taken it over from here.
#[derive(Clone, Default)]
pub struct Missing(Kept);

#[derive(Clone, Default)]
enum Kept {
    #[default]
    Null,
    Direct(Word),
    /// Bytes of a value by reference, aligned to 8.
    Bytes(Rc<[u64]>),
}

impl Missing {
    /// A value of the attribute's type, by its bytes: of eight, as a word, where the type is by value. None where nobody could read
    /// them as one.
    pub fn of(attribute: &Attribute, bytes: &[u8]) -> Option<Missing> {
        if attribute.by_value {
            let mut word = [0u8; 8];
            let n = bytes.len().min(8);
            word[..n].copy_from_slice(&bytes[..n]);
            return Some(Missing(Kept::Direct(u64::from_le_bytes(word) as Word)));
        }
        let words = bytes.chunks(8).map(|c| {
            let mut word = [0u8; 8];
            word[..c.len()].copy_from_slice(c);
            u64::from_ne_bytes(word)
        });
        let words: Rc<[u64]> = words.collect();
        let is_whole = match attribute.length {
            // (A pointer to a value elsewhere says not how long it is, but what it is; a default is none.)
            -1 if bytes.first().is_none_or(|first| *first == ELSEWHERE) => false,
            // SAFETY: eight bytes and more, of whose first the length is read.
            -1 => unsafe { varlena::varsize_any(words.as_ptr().cast()) == bytes.len() },
            -2 => bytes.last() == Some(&0),
            length => usize::try_from(length) == Ok(bytes.len()),
        };
        is_whole.then_some(Missing(Kept::Bytes(words)))
    }

    /// The word, which is NULL if it says so, and the bytes that it points to.
    pub(super) fn word(&self) -> (Word, bool, Option<&Rc<[u64]>>) {
        match &self.0 {
            Kept::Null => (0, true, None),
            Kept::Direct(word) => (*word, false, None),
            Kept::Bytes(bytes) => (bytes.as_ptr() as Word, false, Some(bytes)),
        }
    }
}
