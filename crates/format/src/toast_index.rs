//! What a page of a TOAST relation's index, a B-tree of (OID, number), says of a range of keys: whether it has an entry of any. Pages are
//! bytes as they are on disk, of the version that PostgreSQL 12 and later make; of strange ones nothing is known.
//!
//! The layout is PostgreSQL's (`nbtree.h`, `itup.h`, `bufpage.h`), as are the rules by which a key leads down and to the right (`_bt_binsrch()` and
//! `_bt_moveright()` in `nbtsearch.c`); where these differ for equal keys, nothing is known either.

use std::cmp::Ordering;
use std::ops::RangeInclusive;

/// Bytes of a page, its header, what stands at its end, a line pointer, and an entry's header.
const PAGE: usize = 8_192;
const HEADER: usize = 24;
const SPECIAL: usize = 16;
const POINTER: usize = 4;
const ENTRY_HEADER: usize = 8;

const MAGIC: u32 = 0x0005_3162;
const VERSION: u32 = 4;

/// Chunk id and number, in the index's order.
pub type Key = (u32, i32);

/// What a page says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// The index has no entry in the range.
    Nothing,
    /// It has one, dead or alive.
    Something,
    /// It is to be asked of this page.
    Ask(u32),
    Unknown,
}

/// The page to begin with, by the index's first one; None when it has none, or is of another kind.
pub fn root(meta: &[u8]) -> Option<u32> {
    // BTMetaPageData: magic, version, root, level, fast root.
    let is_known = word(meta, HEADER)? == MAGIC && word(meta, HEADER + 4)? == VERSION;
    word(meta, HEADER + 16).filter(|root| is_known && *root != 0)
}

/// What a page that `keys` have led to by way of its root says of them.
pub fn asked(page: &[u8], keys: &RangeInclusive<Key>) -> Says {
    says(page, keys, true).unwrap_or(Says::Unknown)
}

/// What a page of the index says of keys that nothing has led to now.
pub fn asked_alone(page: &[u8], keys: &RangeInclusive<Key>) -> Says {
    match says(page, keys, false) {
        Some(Says::Ask(_)) | None => Says::Unknown,
        Some(says) => says,
    }
}

fn says(page: &[u8], keys: &RangeInclusive<Key>, led: bool) -> Option<Says> {
    const LEAF: u16 = 1;
    /// Deleted, the first one, half dead.
    const GONE: u16 = 4 | 8 | 16;
    let special = PAGE - SPECIAL;
    if page.len() != PAGE || usize::from(half(page, 16)?) != special {
        return None;
    }
    let (before, next) = (word(page, special)?, word(page, special + 4)?);
    let flags = half(page, special + 12)?;
    let lower = usize::from(half(page, 12)?).min(special);
    let entries = lower.checked_sub(HEADER)? / POINTER;
    if flags & GONE != 0 {
        return None;
    }
    // All but the last page of a level begin with the bound of their keys.
    let first = usize::from(next != 0);
    if next != 0 {
        let bound = Bound::of(page, 0)?;
        match (bound.cmp(*keys.start()), bound.cmp(*keys.end())) {
            (_, Ordering::Greater) => {}
            (Ordering::Less, _) if led => return Some(Says::Ask(next)),
            _ => return None,
        }
    }
    if flags & LEAF == 0 {
        // The first entry has no key: it is below all.
        let mut found = first;
        let (mut low, mut high) = (first + 1, entries);
        while low < high {
            let middle = low.midpoint(high);
            match Bound::of(page, middle)?.cmp(*keys.start()) {
                Ordering::Less => (found, low) = (middle, middle + 1),
                _ => high = middle,
            }
        }
        return Some(Says::Ask(down(page, found)?));
    }
    let (mut low, mut high) = (first, entries);
    while low < high {
        let middle = low.midpoint(high);
        match key(entry(page, middle)?)? < *keys.start() {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    if low < entries && key(entry(page, low)?)? <= *keys.end() {
        return Some(Says::Something);
    }
    // Lower keys are here, too, so that these would be; else only the page above tells that.
    (led || low > first || before == 0).then_some(Says::Nothing)
}

/// A bound between pages; columns that it has not are below all.
#[derive(Clone, Copy, Debug)]
struct Bound {
    id: Option<u32>,
    seq: Option<i32>,
}

impl Bound {
    fn of(page: &[u8], number: usize) -> Option<Bound> {
        const IS_SPECIAL: u16 = 0x2000;
        const COLUMNS: u16 = 0x0fff;
        let entry = entry(page, number)?;
        let columns = match half(entry, 6)? & IS_SPECIAL {
            0 => 2,
            _ => half(entry, 4)? & COLUMNS,
        };
        let id = (columns > 0).then(|| word(entry, ENTRY_HEADER)).flatten();
        let seq = (columns > 1).then(|| word(entry, ENTRY_HEADER + 4)).flatten();
        Some(Bound { id, seq: seq.map(|seq| seq as i32) })
    }

    fn cmp(&self, key: Key) -> Ordering {
        let of = |own: Option<Ordering>| own.unwrap_or(Ordering::Less);
        of(self.id.map(|id| id.cmp(&key.0))).then_with(|| of(self.seq.map(|seq| seq.cmp(&key.1))))
    }
}

fn key(entry: &[u8]) -> Option<Key> {
    Some((word(entry, ENTRY_HEADER)?, word(entry, ENTRY_HEADER + 4)? as i32))
}

/// The page that an entry of an inner one leads to.
fn down(page: &[u8], number: usize) -> Option<u32> {
    let entry = entry(page, number)?;
    Some(u32::from(half(entry, 0)?) << 16 | u32::from(half(entry, 2)?))
}

fn entry(page: &[u8], number: usize) -> Option<&[u8]> {
    let pointer = word(page, HEADER + number * POINTER)?;
    let (at, len) = ((pointer & 0x7fff) as usize, (pointer >> 17) as usize);
    page.get(at..at + len)
}

#[inline]
fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|b| u16::from_le_bytes([b[0], b[1]]))
}

#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

#[cfg(test)]
mod tests;
