//! One column of one batch. Pages of different columns may begin at different rows (wide text has smaller ones), so it is cut
//! out of the pages that cover it, one after the other.

use crate::piece::{Part, Piece};
use firn_format::{Column, Decoder, Dictionary, Error, Result, StripeMeta};
use std::ops::Range;
use std::sync::Arc;

pub(crate) struct Gather {
    pub column: usize,
    dictionary: Option<Arc<Dictionary>>,
    /// The page decoded last.
    at_hand: Option<(usize, Arc<Column>)>,
    /// The rows to be put together.
    rows: Range<u32>,
    /// The next page that is needed for them.
    next: usize,
    part: Option<Column>,
    whole: Option<Arc<Column>>,
    in_order: bool,
}

impl Gather {
    pub fn new(column: usize) -> Gather {
        Gather {
            column,
            dictionary: None,
            at_hand: None,
            rows: 0..0,
            next: 0,
            part: None,
            whole: None,
            in_order: false,
        }
    }

    /// Put these rows together, beginning with what is at hand. Nothing new where that has begun.
    pub fn begin(&mut self, meta: &StripeMeta, rows: &Range<u32>) {
        if self.rows == *rows {
            return;
        }
        self.next = meta.page_of(self.column, rows.start);
        self.rows = rows.clone();
        (self.part, self.whole) = (None, None);
        let last = self.at_hand.as_ref().map(|(number, _)| *number);
        self.in_order = last.is_some_and(|number| number + 1 == self.next || number == self.next);
        if let Some((number, page)) = self.at_hand.clone().filter(|(n, _)| *n == self.next) {
            self.take(meta, number, page);
        }
    }

    /// The column, once it is whole.
    pub fn whole(&self) -> Option<&Arc<Column>> {
        self.whole.as_ref()
    }

    /// What is missing.
    pub fn needs(&self, meta: &StripeMeta, needs: &mut Vec<Piece>) -> Result<()> {
        if self.whole.is_some() {
            return Ok(());
        }
        if self.dictionary.is_none() {
            needs.extend(Piece::dictionary(meta, self.column));
        }
        let last = meta.page_of(self.column, self.rows.end.saturating_sub(1));
        let before = needs.len();
        needs.extend((self.next..=last).filter_map(|n| Piece::page(meta, self.column, n)));
        // Nothing is missing, but not all is there.
        if needs.len() == before {
            return Err(Error::corrupt("a column ends before its stripe does"));
        }
        Ok(())
    }

    /// The page that a scan will come to next, if it goes on as it has so far.
    pub fn soon(&self, meta: &StripeMeta) -> Option<Piece> {
        let last = meta.page_of(self.column, self.rows.end.saturating_sub(1));
        Piece::page(meta, self.column, last + 1).filter(|_| self.in_order)
    }

    pub fn set_dictionary(&mut self, dictionary: Arc<Dictionary>) {
        self.dictionary = Some(dictionary);
    }

    /// The bytes of a piece that was asked for.
    pub fn supply(
        &mut self,
        meta: &StripeMeta,
        part: Part,
        bytes: &[u8],
        decoder: &mut Decoder,
    ) -> Result<()> {
        match part {
            Part::Dictionary => {
                self.dictionary = Some(decoder.decode_dictionary(meta, self.column, bytes)?);
            }
            Part::Page(number) => {
                let dictionary = self.dictionary.as_ref();
                let page = decoder.decode_page(meta, self.column, number, bytes, dictionary)?;
                let page = Arc::new(page);
                self.at_hand = Some((number, page.clone()));
                self.take(meta, number, page);
            }
        }
        Ok(())
    }

    /// Page `number`, which is the next, is there.
    fn take(&mut self, meta: &StripeMeta, number: usize, page: Arc<Column>) {
        let start = meta.pages(self.column).get(number).map_or(0, |p| p.first_row);
        let len = self.rows.len();
        self.next = number + 1;
        if start == self.rows.start && page.rows == len {
            self.whole = Some(page);
            return;
        }
        let there = self.part.as_ref().map_or(0, |part| part.rows);
        let skip = (self.rows.start as usize + there).saturating_sub(start as usize);
        let slice = page.slice(skip, (len - there).min(page.rows.saturating_sub(skip)));
        match &mut self.part {
            Some(part) => part.append(&slice),
            None => self.part = Some(slice),
        }
        if self.part.as_ref().is_some_and(|part| part.rows == len) {
            self.whole = self.part.take().map(Arc::new);
        }
    }
}
