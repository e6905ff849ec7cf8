//! The scan of a stripe (`crates/scan`) with PostgreSQL's buffers and object stores behind it: what it needs is read here, and what is
//! wrong with the bytes is raised here.

use super::handle::{with_decoder, StripeHandle};
use crate::pg::{xact, Toast};
use bytes::Bytes;
use firn_format::{Column, DeleteVector, Filter, StripeMeta};
use firn_scan::{
    pages_of, Counters, DecodedBatch, FrozenStripe, Narrowing, Need, Part, Piece, Step, StripeScan,
};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// Reads a stripe batch by batch.
pub struct BatchReader {
    handle: Rc<StripeHandle>,
    scan: StripeScan,
    counted: Counters,
    bytes: Vec<u8>,
    meta: Arc<StripeMeta>,
    /// By the stripe's column.
    ahead: HashMap<usize, Ahead>,
}

/// How far a column's pages have been asked for that are read one after the other, in bytes from the stripe's beginning.
#[derive(Default)]
struct Ahead {
    begun: u64,
    asked: u64,
}

impl Ahead {
    /// Reading comes to `at` of what ends at `end`: what is to be asked for now. At first one request's bytes, and so many as have been read in
    /// order since, up to `most`; when half of that is left.
    fn come_to(&mut self, at: u64, end: u64, (request, most): (u64, u64)) -> Option<Range<u64>> {
        if at < self.begun || at > self.asked {
            *self = Ahead { begun: at, asked: at };
        }
        let window = (at - self.begun).max(request).min(most);
        let to = (at + window).min(end);
        if self.asked >= to || self.asked > at + window / 2 {
            return None;
        }
        Some(std::mem::replace(&mut self.asked, to)..to)
    }
}

impl BatchReader {
    /// Rows of `batches` that pass the filter and are not deleted, in `columns`; all columns are the stripe's.
    pub fn new(
        handle: Rc<StripeHandle>,
        toast: &Toast,
        columns: &[usize],
        filter: Filter,
        deleted: Option<DeleteVector>,
        batches: Range<u32>,
    ) -> BatchReader {
        let meta = handle.meta(toast).clone();
        let stripe = FrozenStripe { meta, deleted: deleted.map(Arc::new) };
        let meta = stripe.meta.clone();
        let scan = StripeScan::new(stripe, columns, filter, batches);
        let (counted, bytes, ahead) = Default::default();
        BatchReader { handle, scan, counted, bytes, meta, ahead }
    }

    pub fn handle(&self) -> &Rc<StripeHandle> {
        &self.handle
    }

    /// Go on with other batches.
    pub fn go_on(&mut self, batches: Range<u32>) {
        self.scan.go_on(batches);
    }

    /// From the next batch on, narrow by these.
    pub fn narrow(&mut self, narrowings: Vec<Narrowing>) {
        self.scan.narrow(narrowings);
    }

    /// How the narrowings fare.
    pub fn narrowings(&self) -> &[Narrowing] {
        self.scan.narrowings()
    }

    /// The next batch of which rows are wanted; None when none is left.
    pub fn next(&mut self, toast: &Toast) -> Option<DecodedBatch> {
        loop {
            match self.scan.step().unwrap_or_else(|e| self.handle.raise(e)) {
                Step::Need(need) => self.read(toast, &need),
                Step::Batch(batch) => return Some(batch),
                Step::Done => return None,
            }
        }
    }

    /// What was done since this was asked last.
    pub fn take_counters(&mut self) -> Counters {
        let now = self.scan.counters();
        let before = std::mem::replace(&mut self.counted, now);
        Counters {
            batches_read: now.batches_read - before.batches_read,
            batches_skipped: now.batches_skipped - before.batches_skipped,
            pages_read: now.pages_read - before.pages_read,
            rows_filtered: now.rows_filtered - before.rows_filtered,
        }
    }

    fn read(&mut self, toast: &Toast, need: &Need) {
        let (handle, scan, bytes) = (&self.handle, &mut self.scan, &mut self.bytes);
        let mut soon = need.soon.iter();
        let mut cold = Cold::of(handle, need);
        for piece in &need.pieces {
            let supplied = match (piece.part, cold.next(handle, piece)) {
                (Part::Dictionary, Some(bytes)) => {
                    let dictionary = handle.dictionary_of(toast, piece.column, &bytes);
                    scan.supply_dictionary(piece, dictionary)
                }
                (Part::Page(_), Some(bytes)) => {
                    // A batch that is there at once may take long to decode.
                    xact::check_for_interrupts();
                    with_decoder(|d| scan.supply(piece, &bytes, d))
                }
                // The session keeps them.
                (Part::Dictionary, None) => match handle.dictionary(toast, piece.column) {
                    Some(dictionary) => scan.supply_dictionary(piece, dictionary),
                    None => Ok(()),
                },
                (Part::Page(_), None) => {
                    handle.read(toast, piece.offset, piece.len as usize, bytes);
                    // Who reads page after page will want the next ones of this column.
                    if let Some(next) = soon.as_slice().first().filter(|s| s.column == piece.column)
                    {
                        let pages = self.meta.pages(next.column);
                        let end = pages.last().map_or(0, |p| p.offset + u64::from(p.len));
                        let column = self.ahead.entry(next.column).or_default();
                        if let Some(bytes) = column.come_to(next.offset, end, toast.ahead()) {
                            handle.read_soon(toast, bytes);
                        }
                        soon.next();
                    }
                    with_decoder(|d| scan.supply(piece, bytes, d))
                }
            };
            supplied.unwrap_or_else(|e| handle.raise(e));
        }
    }
}

/// What is needed of a cold stripe, asked for together.
struct Cold {
    /// In the order in which they are supplied.
    pieces: Vec<Piece>,
    supplied: usize,
    read: std::vec::IntoIter<Bytes>,
}

impl Cold {
    fn of(handle: &StripeHandle, need: &Need) -> Cold {
        let is_read = |piece: &&Piece| {
            handle.is_cold()
                && (piece.part != Part::Dictionary || !handle.has_dictionary(piece.column))
        };
        let pieces = need.pieces.iter().filter(is_read).copied().collect();
        Cold { pieces, supplied: 0, read: Vec::new().into_iter() }
    }

    /// The bytes of a piece, if it is the next of these.
    fn next(&mut self, handle: &StripeHandle, piece: &Piece) -> Option<Bytes> {
        if self.pieces.get(self.supplied) != Some(piece) {
            return None;
        }
        if self.read.len() == 0 {
            let range = |piece: &Piece| piece.offset..piece.offset + u64::from(piece.len);
            let ranges: Vec<_> = self.pieces[self.supplied..].iter().map(range).collect();
            self.read = handle.read_at_once(&ranges).into_iter();
        }
        self.supplied += 1;
        self.read.next()
    }
}

/// Reads single rows of a stripe, in ascending order: of every column the pages that have some of them, each of them once.
pub struct PageReader {
    handle: Rc<StripeHandle>,
    /// The page read last, by the stripe's columns.
    at_hand: Vec<Option<(usize, Rc<Column>)>>,
    bytes: Vec<u8>,
}

impl PageReader {
    pub fn new(handle: Rc<StripeHandle>) -> PageReader {
        PageReader { handle, at_hand: Vec::new(), bytes: Vec::new() }
    }

    pub fn handle(&self) -> &Rc<StripeHandle> {
        &self.handle
    }

    /// The pages of stripe column `stored` that these rows are on, and the rows' numbers within each.
    pub fn pages_of(
        &mut self,
        toast: &Toast,
        stored: usize,
        rows: &[u32],
    ) -> Vec<(Rc<Column>, Vec<u32>)> {
        let pages = pages_of(self.handle.meta(toast), stored, rows);
        pages.into_iter().map(|(n, within)| (self.page(toast, stored, n), within)).collect()
    }

    fn page(&mut self, toast: &Toast, stored: usize, number: usize) -> Rc<Column> {
        if self.at_hand.len() <= stored {
            self.at_hand.resize(stored + 1, None);
        }
        if let Some((_, page)) = self.at_hand[stored].as_ref().filter(|(n, _)| *n == number) {
            return page.clone();
        }
        let page = self.handle.meta(toast).page(stored, number);
        let page = page.unwrap_or_else(|e| self.handle.raise(e));
        let page = Rc::new(self.handle.decode_page(toast, stored, &page, &mut self.bytes));
        self.at_hand[stored] = Some((number, page.clone()));
        page
    }
}

#[cfg(test)]
mod tests {
    use super::Ahead;

    #[test]
    fn asks_ahead_in_large_pieces_that_grow() {
        let (request, most) = (100, 400);
        let mut ahead = Ahead::default();
        let mut asked = Vec::new();
        // Pages of ten bytes, one after the other.
        for page in 1..150 {
            asked.extend(ahead.come_to(page * 10, 1_500, (request, most)));
        }
        // Nothing twice, nothing left out, nothing behind the end.
        assert_eq!(asked.first().map(|r| r.start), Some(10));
        assert!(asked.windows(2).all(|two| two[0].end == two[1].start), "{asked:?}");
        assert_eq!(asked.last().map(|r| r.end), Some(1_500));
        assert!(asked.len() < 20, "{asked:?}");
        assert!(asked.iter().any(|r| r.end - r.start > 150), "{asked:?}");
        // Elsewhere it begins anew; nothing where nothing is to be asked for.
        assert_eq!(ahead.come_to(700, 1_500, (request, most)), None);
        assert_eq!(Ahead::default().come_to(700, 1_500, (request, most)), Some(700..800));
        assert_eq!(Ahead::default().come_to(700, 1_500, (request, 0)), None);
    }
}
