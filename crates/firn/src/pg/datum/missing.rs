//! What rows have in a column that was added after they had been written.

use super::Word;
use crate::pg::rel::Attribute;
use crate::pg::{error, Kind};
use pgrx::varlena;
use std::rc::Rc;

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
    /// A value of the attribute's type, by its bytes: of eight, as a word, where the type is by value.
    pub fn of(attribute: &Attribute, bytes: &[u8]) -> Missing {
        let none =
            || format!("the default kept of column \"{}\" is none of its type", attribute.name);
        Missing::read(attribute, bytes).unwrap_or_else(|| error(Kind::Corrupt, none()).raise())
    }

    /// None where nobody could read them as one.
    pub(super) fn read(attribute: &Attribute, bytes: &[u8]) -> Option<Missing> {
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
            -1 if bytes.is_empty() => false,
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
