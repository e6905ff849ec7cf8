//! Scans read a stripe in batches of rows: the wanted columns of one batch, decoded. Pages of
//! different columns may begin at different rows (wide text has smaller ones), so a batch is cut out
//! of the pages that cover it.

use super::handle::{with_decoder, StripeHandle};
use crate::pg::Toast;
use firn_format::Column;
use std::ops::Range;
use std::rc::Rc;

/// Rows of a batch: the page size of narrow columns.
pub const BATCH_ROWS: u32 = 2_048;

/// A run of rows of one stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub rows: Range<u32>,
}

impl Batch {
    /// The batches of a stripe of `rows` rows.
    pub fn count(rows: u32) -> u32 {
        rows.div_ceil(BATCH_ROWS)
    }
    pub fn number(n: u32, rows: u32) -> Batch {
        Batch { rows: n * BATCH_ROWS..((n + 1) * BATCH_ROWS).min(rows) }
    }
}

/// Decodes columns of one stripe batch by batch, keeping the page at hand per column.
pub struct BatchReader {
    handle: Rc<StripeHandle>,
    current: Vec<Option<(usize, Rc<Column>)>>,
    bytes: Vec<u8>,
    /// Pages decoded so far.
    pub pages_read: u64,
}

impl BatchReader {
    pub fn new(handle: Rc<StripeHandle>) -> BatchReader {
        BatchReader { handle, current: Vec::new(), bytes: Vec::new(), pages_read: 0 }
    }

    pub fn handle(&self) -> &Rc<StripeHandle> {
        &self.handle
    }

    /// Stripe column `stored` for the rows of `batch`.
    pub fn column(&mut self, toast: &Toast, stored: usize, batch: &Batch) -> Rc<Column> {
        let first = self.handle.meta(toast).page_of(stored, batch.rows.start);
        let page = self.page(toast, stored, first);
        let start = self.handle.meta(toast).pages(stored).get(first).map_or(0, |p| p.first_row);
        let len = batch.rows.len();
        if start == batch.rows.start && page.rows == len {
            return page;
        }
        let skip = (batch.rows.start - start) as usize;
        let mut whole = page.slice(skip, len.min(page.rows.saturating_sub(skip)));
        let mut next = first + 1;
        while whole.rows < len {
            if next >= self.handle.meta(toast).pages(stored).len() {
                break;
            }
            let page = self.page(toast, stored, next);
            let part = page.slice(0, (len - whole.rows).min(page.rows));
            whole.append(&part);
            next += 1;
        }
        Rc::new(whole)
    }

    /// Single rows of stripe column `stored` (ascending numbers): the pages they are in, and their
    /// numbers within each.
    pub fn pages_of(
        &mut self,
        toast: &Toast,
        stored: usize,
        rows: &[u32],
    ) -> Vec<(Rc<Column>, Vec<u32>)> {
        let mut pages: Vec<(Rc<Column>, Vec<u32>)> = Vec::new();
        let mut last = None;
        for row in rows {
            let number = self.handle.meta(toast).page_of(stored, *row);
            if last != Some(number) {
                last = Some(number);
                pages.push((self.page(toast, stored, number), Vec::new()));
            }
            let first =
                self.handle.meta(toast).pages(stored).get(number).map_or(0, |p| p.first_row);
            if let Some((_, within)) = pages.last_mut() {
                within.push(row.saturating_sub(first));
            }
        }
        pages
    }

    fn page(&mut self, toast: &Toast, stored: usize, number: usize) -> Rc<Column> {
        if self.current.len() <= stored {
            self.current.resize(stored + 1, None);
        }
        if let Some((n, page)) = &self.current[stored] {
            if *n == number {
                return page.clone();
            }
        }
        let meta = self.handle.meta(toast);
        let dictionary = self.handle.dictionary(toast, stored);
        let Some(place) = meta.pages(stored).get(number) else {
            self.handle.raise(firn_format::Error::corrupt("a page is missing from the page index"))
        };
        self.handle.read(toast, place.offset, place.len as usize, &mut self.bytes);
        // Who reads page after page will want the next one.
        let follows = self.current[stored].as_ref().is_some_and(|(n, _)| n + 1 == number);
        if let Some(next) = meta.pages(stored).get(number + 1).filter(|_| follows) {
            self.handle.read_soon(toast, next.offset, next.len as usize);
        }
        self.pages_read += 1;
        let column =
            with_decoder(|d| d.decode_page(meta, stored, number, &self.bytes, dictionary.as_ref()))
                .unwrap_or_else(|e| self.handle.raise(e));
        let column = Rc::new(column);
        self.current[stored] = Some((number, column.clone()));
        column
    }
}
