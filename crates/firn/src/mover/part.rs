//! Work that goes through a table piece by piece, a transaction for each: where it stands in between.

use crate::pg::rel::StorageId;
use firn_format::VIRTUAL_BASE;
use std::ops::Range;

/// Pages of the row store in which a piece looks for the rows of one stripe.
const PAGES_PER_STRIPE: u32 = 65_536;

/// What of a table a piece of work is about, by positions: blocks of the row store, or slots of the directory.
///
/// Nothing is locked between pieces, so others change the table meanwhile. What they add behind the end that the
/// first piece has seen is not looked at: however fast they write, the work ends. When they give the table other
/// storage (VACUUM FULL, TRUNCATE, a rewrite) positions mean nothing any more, and it begins anew.
pub struct Part {
    /// Most stripes of a piece; None when there is one piece only.
    stripes: Option<u32>,
    /// The storage that the positions are of, and where it ended.
    of: Option<(StorageId, u32)>,
    next: u32,
    is_first: bool,
    more: bool,
}

impl Part {
    /// All in one piece.
    pub fn whole() -> Part {
        Part { stripes: None, of: None, next: 0, is_first: true, more: false }
    }

    /// Pieces of about so many stripes.
    pub fn pieces(stripes: u32) -> Part {
        Part { stripes: Some(stripes.max(1)), ..Part::whole() }
    }

    /// Most stripes of a piece.
    pub fn stripes(&self) -> usize {
        self.stripes.map_or(usize::MAX, |n| n as usize)
    }

    /// Begin a piece on a storage that ends at `end` now: the positions that are left.
    pub fn begin(&mut self, storage: StorageId, end: u32) -> Range<u32> {
        if self.of.is_none_or(|(known, _)| known != storage) {
            self.of = Some((storage, end));
            self.next = 0;
        }
        self.is_first = self.next == 0;
        let end = self.of.map_or(end, |(_, first)| first.min(end));
        self.next.min(end)..end
    }

    /// As [`Part::begin`] for pages of the row store: those that this piece may look at. The next piece, if there are
    /// more, begins behind them.
    pub fn begin_pages(&mut self, storage: StorageId, end: u32) -> Range<u32> {
        let Range { start, end } = self.begin(storage, end);
        let most = self.stripes.map_or(VIRTUAL_BASE, |n| n.saturating_mul(PAGES_PER_STRIPE));
        let stop = end.min(start.saturating_add(most));
        if stop < end {
            self.stop_before(stop);
        }
        start..stop
    }

    /// As [`Part::begin`] for slots, of which `handed_out` have been given to stripes so far.
    pub fn begin_slots(&mut self, storage: StorageId, handed_out: Option<u64>) -> Range<u32> {
        let end = handed_out.filter(|_| self.stripes.is_some());
        self.begin(storage, end.map_or(VIRTUAL_BASE, |end| end.min(VIRTUAL_BASE.into()) as u32))
    }

    /// This piece is the first, or there is but one.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// This piece ends before `next`, with which another begins.
    pub fn stop_before(&mut self, next: u32) {
        (self.next, self.more) = (next, true);
    }

    /// A piece is over: another follows.
    pub fn goes_on(&mut self) -> bool {
        std::mem::take(&mut self.more)
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, StorageId, PAGES_PER_STRIPE};
    use crate::pg::Oid;

    const ONE: Oid = Oid::from_u32(1);
    const A: StorageId = StorageId { tablespace: ONE, database: ONE, file: 1 };
    const B: StorageId = StorageId { file: 2, ..A };

    #[test]
    fn pieces_end_where_the_first_saw_the_end() {
        let mut part = Part::pieces(2);
        assert_eq!(part.begin(A, 100), 0..100);
        assert!(part.is_first());
        part.stop_before(40);
        assert!(part.goes_on());
        assert_eq!(part.begin(A, 500), 40..100);
        assert!(!part.goes_on() && !part.is_first());
        assert_eq!(part.begin(A, 30), 30..30);
        // Another storage: from its beginning to its end.
        assert_eq!(part.begin(B, 70), 0..70);
    }

    #[test]
    fn a_piece_reads_so_many_pages() {
        let mut part = Part::pieces(1);
        assert_eq!(part.begin_pages(A, PAGES_PER_STRIPE + 5), 0..PAGES_PER_STRIPE);
        assert!(part.goes_on());
        assert_eq!(part.begin_pages(A, u32::MAX), PAGES_PER_STRIPE..PAGES_PER_STRIPE + 5);
        assert!(!part.goes_on());
        let mut whole = Part::whole();
        assert_eq!(whole.begin_pages(A, 1 << 30), 0..1 << 30);
        assert!(!whole.goes_on());
    }
}
