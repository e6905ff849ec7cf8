//! How large a B-tree would be if it were built anew, judged by what (some of) its pages hold, and whether that is
//! worth doing. Pages are bytes as they are on disk; strange ones count as empty.

use std::ops::Range;

/// Bytes of a page, its header, what stands at its end, and a line pointer.
const PAGE: usize = 8_192;
const HEADER: usize = 24;
const SPECIAL: usize = 16;
const POINTER: usize = 4;
/// Bytes for entries of a page of a new index, before its fill factor is looked at.
const ROOM: usize = PAGE - HEADER - SPECIAL - POINTER;
/// Of these a new index uses that much of an inner page.
const INNER_PART: f64 = 0.7;
/// Header of an entry, size of a TID in a posting list, greatest posting list that a new index has.
const ENTRY_HEADER: usize = 8;
const TID: usize = 6;
const LONGEST_POSTING: usize = 808;

/// Pages of an index that is not worth a rebuild, whatever it holds.
pub const SMALL: u32 = 32;
/// From this share on an index counts as larger than a new one. A sample may be off by two per cent, and a new index
/// must not be due again.
const LARGER: f64 = 1.07;
/// An index is looked at when one of so many rows has been moved since it was built: its B-tree may
/// have grown by other ways, which are its owner's.
const MOVED: u64 = 20;
/// Of other kinds of indexes nothing short of a build tells how large a new one would be. As a moved row has two entries for a
/// while, they have grown by as much as has moved, or by a little more.
const MOVED_FOR_OTHERS: u64 = 10;

/// What some pages of a B-tree hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// A new index puts equal keys together.
    merges: bool,
    /// Pages looked at; inner ones among them.
    pages: u64,
    inner_pages: u64,
    leaves: Entries,
    inner: Entries,
}

/// Entries as a new index would have them, with their line pointers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entries {
    count: u64,
    bytes: u64,
    least: usize,
    greatest: usize,
}

impl Default for Entries {
    fn default() -> Entries {
        Entries { count: 0, bytes: 0, least: usize::MAX, greatest: 0 }
    }
}

impl Entries {
    fn add(&mut self, bytes: usize, count: u64) {
        if count == 0 {
            return;
        }
        let each = aligned(bytes) + POINTER;
        self.count += count;
        self.bytes += each as u64 * count;
        self.least = self.least.min(each);
        self.greatest = self.greatest.max(each);
    }

    /// How many fit into so many bytes, on average.
    fn in_room(&self, room: f64) -> f64 {
        let fit = room / (self.bytes as f64 / self.count as f64);
        // Where they differ, half a one is left over at the end of a page.
        let fit = if self.least == self.greatest { fit.floor() } else { fit - 0.5 };
        fit.max(1.0)
    }
}

fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

impl Sample {
    /// Of the index with this first page (its meta page). `unique` ones merge no equal keys; others do unless they
    /// have been told not to, or cannot.
    pub fn new(meta: &[u8], unique: bool, told_to_merge: bool) -> Sample {
        const VERSION: usize = HEADER + 4;
        const IMAGES_TELL: usize = HEADER + 40;
        let can = word(meta, VERSION) >= 4 && meta.get(IMAGES_TELL).is_some_and(|b| *b == 1);
        Sample { merges: can && told_to_merge && !unique, ..Sample::default() }
    }

    /// Look at another page than the first.
    pub fn add(&mut self, page: &[u8]) {
        const LEAF: u16 = 1;
        const GONE: u16 = 4 | 8 | 16;
        self.pages += 1;
        let special = usize::from(half(page, 16));
        if page.len() != PAGE || special != PAGE - SPECIAL {
            return;
        }
        let flags = half(page, special + 12);
        if flags & GONE != 0 {
            return;
        }
        // All but the last page of a level begin with the bound of their keys.
        let bounds = usize::from(word(page, special + 4) != 0);
        let end = usize::from(half(page, 12)).min(special);
        let pointers = (HEADER..end.saturating_sub(POINTER - 1)).step_by(POINTER).skip(bounds);
        let entries = pointers.filter_map(|at| entry(page, word(page, at)));
        if flags & LEAF != 0 {
            self.add_leaf(entries)
        } else {
            self.inner_pages += 1;
            entries.for_each(|entry| self.inner.add(entry.len(), 1));
        }
    }

    fn add_leaf<'a>(&mut self, entries: impl Iterator<Item = &'a [u8]>) {
        let mut run: (&[u8], u64) = (&[], 0);
        for entry in entries {
            let (key, rows) = parts(entry);
            if self.merges && run.1 > 0 && run.0 == key {
                run.1 += rows;
                continue;
            }
            self.add_run(run.0.len(), run.1);
            run = (key, rows);
        }
        self.add_run(run.0.len(), run.1);
    }

    /// Rows of one key.
    fn add_run(&mut self, key: usize, rows: u64) {
        let base = ENTRY_HEADER + key;
        let together = LONGEST_POSTING.saturating_sub(base) / TID;
        if !self.merges || together < 2 || rows < 2 {
            return self.leaves.add(base, rows);
        }
        self.leaves.add(base + together * TID, rows / together as u64);
        match rows % together as u64 {
            0 => (),
            1 => self.leaves.add(base, 1),
            left => self.leaves.add(base + left as usize * TID, 1),
        }
    }

    /// Pages that the index would have if it were built anew. It has `pages` now, and this fill factor.
    pub fn fresh_pages(&self, pages: u32, fillfactor: u32) -> f64 {
        if self.leaves.count == 0 {
            return 1.0;
        }
        let others = f64::from(pages.saturating_sub(1)).max(1.0);
        let part = others / self.pages.max(1) as f64;
        let free = PAGE * (100 - fillfactor.min(100)) as usize / 100;
        let in_leaf = self.leaves.in_room((ROOM - free) as f64);
        let leaves = (self.leaves.count as f64 * part / in_leaf).ceil();
        let in_inner = match self.inner.count {
            0 => 200.0,
            _ => self.inner.in_room(ROOM as f64 * INNER_PART),
        };
        let (mut level, mut inner) = (leaves, 0.0);
        while level > 1.0 {
            level = (level / in_inner.max(2.0)).ceil();
            inner += level;
        }
        1.0 + leaves + inner
    }
}

/// An entry by its line pointer; None when it is dead or not there.
fn entry(page: &[u8], pointer: u32) -> Option<&[u8]> {
    const NORMAL: u32 = 1;
    let (at, state, len) = (pointer & 0x7fff, pointer >> 15 & 3, pointer >> 17);
    let range: Range<usize> = at as usize..at as usize + len as usize;
    page.get(range).filter(|_| state == NORMAL && len as usize >= ENTRY_HEADER)
}

/// The key of a leaf's entry, and how many rows have it.
fn parts(entry: &[u8]) -> (&[u8], u64) {
    const SPECIAL_KIND: u16 = 0x2000;
    const POSTING: u16 = 0x2000;
    const COUNT: u16 = 0x0fff;
    let offset = half(entry, 4);
    if half(entry, 6) & SPECIAL_KIND == 0 || offset & POSTING == 0 {
        return (&entry[ENTRY_HEADER..], 1);
    }
    let end = usize::from(half(entry, 0)) << 16 | usize::from(half(entry, 2));
    (entry.get(ENTRY_HEADER..end).unwrap_or(&[]), u64::from(offset & COUNT))
}

fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// What is known of a table before its indexes are looked at.
#[derive(Clone, Copy, Debug)]
pub struct Moves {
    /// Rows that firn has moved since the B-trees were built or last found small, none of whose old entries is left.
    pub moved: u64,
    /// The same since the indexes of other kinds were built.
    pub moved_others: u64,
    /// Rows there are.
    pub rows: u64,
}

impl Moves {
    /// So much has been moved that B-trees may be larger than new ones for it.
    pub fn are_many(&self) -> bool {
        self.moved > 0 && self.moved.saturating_mul(MOVED) >= self.rows
    }

    /// An index that is no B-tree, of so many pages, is to be built anew.
    pub fn make_other_due(&self, pages: u32) -> bool {
        pages > SMALL && self.are_many_for_others()
    }

    /// So much has been moved that indexes which are no B-trees are to be built anew.
    pub fn are_many_for_others(&self) -> bool {
        let moved = self.moved_others;
        moved > 0 && moved.saturating_mul(MOVED_FOR_OTHERS) >= self.rows
    }

    /// A B-tree of `pages` pages is to be built anew, as it would have `fresh` then.
    pub fn make_due(&self, pages: u32, fresh: f64) -> bool {
        let larger = f64::from(pages) / fresh.max(1.0);
        self.are_many() && pages > SMALL && larger >= LARGER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(version: u32, images_tell: bool) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        page[28..32].copy_from_slice(&version.to_le_bytes());
        page[64] = u8::from(images_tell);
        page
    }

    /// A page with these entries; the first is a bound unless it is the last of its level.
    fn page(flags: u16, last: bool, entries: &[Vec<u8>]) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        let special = PAGE - SPECIAL;
        let mut end = special;
        for (i, entry) in entries.iter().enumerate() {
            end -= aligned(entry.len());
            page[end..end + entry.len()].copy_from_slice(entry);
            let pointer = end as u32 | 1 << 15 | (entry.len() as u32) << 17;
            page[HEADER + 4 * i..HEADER + 4 * i + 4].copy_from_slice(&pointer.to_le_bytes());
        }
        page[12..14].copy_from_slice(&((HEADER + 4 * entries.len()) as u16).to_le_bytes());
        page[16..18].copy_from_slice(&(special as u16).to_le_bytes());
        page[special + 4..special + 8].copy_from_slice(&u32::from(!last).to_le_bytes());
        page[special + 12..special + 14].copy_from_slice(&flags.to_le_bytes());
        page
    }

    fn plain(key: u64) -> Vec<u8> {
        [&[0; 6][..], &16u16.to_le_bytes(), &key.to_le_bytes()].concat()
    }

    fn posting(key: u64, rows: u16) -> Vec<u8> {
        let mut entry = [&[0, 0, 16, 0][..], &(rows | 0x2000).to_le_bytes()].concat();
        entry.extend_from_slice(&(0x2000u16 | 16).to_le_bytes());
        entry.extend_from_slice(&key.to_le_bytes());
        entry.resize(16 + usize::from(rows) * TID, 7);
        entry
    }

    #[test]
    fn sizes_are_postgresqls() {
        // CREATE TABLE t AS SELECT i FROM generate_series(1, 100000) i: an index of it has 276 pages.
        let mut sample = Sample::new(&meta(4, true), true, true);
        let full: Vec<_> = (0..367).map(plain).collect();
        (0..273).for_each(|_| sample.add(&page(1, false, &full)));
        sample.add(&page(1, true, &full[..82]));
        sample.add(&page(2, true, &vec![plain(0); 274]));
        assert_eq!(sample.leaves.count, 100_000);
        assert_eq!(sample.fresh_pages(276, 90), 276.0);
        // Half empty ones would be half as many; so would a sample say.
        let mut sample = Sample::new(&meta(4, true), true, true);
        (0..100).for_each(|_| sample.add(&page(1, false, &full[..184])));
        assert!((sample.fresh_pages(10_001, 90) / 5_000.0 - 1.0).abs() < 0.01);
        assert!((sample.fresh_pages(10_001, 70) / 6_440.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn equal_keys_are_merged_where_a_new_index_does() {
        let entries: Vec<_> = [plain(0)].into_iter().chain((0..200).map(|_| plain(5))).collect();
        for (merges, expected) in [(true, 2), (false, 200)] {
            let mut sample = Sample::new(&meta(4, true), false, merges);
            sample.add(&page(1, false, &entries));
            assert_eq!(sample.leaves.count, expected);
        }
        for (version, images, unique) in [(3, true, false), (4, false, false), (4, true, true)] {
            assert!(!Sample::new(&meta(version, images), unique, true).merges);
        }
        let mut sample = Sample::new(&meta(4, true), false, true);
        sample.add(&page(1, true, &[posting(5, 100), posting(5, 31), plain(5), plain(6)]));
        let sizes: Vec<u64> = [16 + 132 * 6, 16].iter().map(|n| *n as u64 + 4).collect();
        assert_eq!((sample.leaves.count, sample.leaves.bytes), (2, sizes.iter().sum()));
    }

    #[test]
    fn what_is_no_living_page_is_empty() {
        let mut sample = Sample::new(&meta(4, true), true, true);
        for flags in [5, 9, 16] {
            sample.add(&page(flags, true, &[plain(1)]));
        }
        sample.add(&[0; PAGE]);
        sample.add(&[255; PAGE]);
        sample.add(&[1, 2, 3]);
        assert_eq!((sample.pages, sample.leaves.count), (6, 0));
        assert_eq!(sample.fresh_pages(1_000, 90), 1.0);
        // Damage is no panic, whatever the bytes.
        let mut bytes = page(1, false, &[posting(5, 400), plain(1)]);
        let mut dice = 1u64;
        for _ in 0..20_000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (dice >> 33) as usize % 64 + if dice & 1 << 32 == 0 { 0 } else { PAGE - 64 };
            bytes[at] = (dice >> 56) as u8;
            sample.add(&bytes);
            assert!(sample.fresh_pages(u32::MAX, 90) >= 1.0);
        }
    }

    #[test]
    fn due_is_what_was_moved_and_is_larger() {
        let moves = |moved, rows| Moves { moved, moved_others: moved, rows };
        assert!(moves(50, 1_000).make_due(110, 100.0));
        assert!(!moves(50, 1_000).make_due(106, 100.0));
        assert!(!moves(49, 1_000).make_due(300, 100.0));
        assert!(!moves(0, 0).make_due(300, 100.0));
        assert!(!moves(1_000, 1_000).make_due(32, 3.0));
        assert!(moves(100, 1_000).make_other_due(33));
        assert!(!moves(99, 1_000).make_other_due(33));
        assert!(!moves(100, 1_000).make_other_due(32));
        assert!(!moves(0, 0).make_other_due(33));
    }
}
