//! A scan of one stripe.

use crate::batch::{Batch, DecodedBatch};
use crate::gather::Gather;
use crate::piece::Piece;
use crate::stripe::FrozenStripe;
use firn_format::{Column, Decoder, Dictionary, Error, Filter, Result, Selection};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// What a scan did.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Counters {
    pub batches_read: u64,
    /// Batches that the page index has dropped.
    pub batches_skipped: u64,
    /// Data pages decoded.
    pub pages_read: u64,
    /// Rows that the filter has dropped, and deleted ones.
    pub rows_filtered: u64,
}

/// Bytes that a scan waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// To be supplied in this order.
    pub pieces: Vec<Piece>,
    /// What will probably be asked for next; nobody waits for it.
    pub soon: Vec<Piece>,
}

/// What a scan has to say.
#[derive(Debug)]
pub enum Step {
    /// It goes on when it has been given these bytes.
    Need(Need),
    Batch(DecodedBatch),
    /// No batch is left.
    Done,
}

enum State {
    Between,
    /// The filter's columns of this batch are being read.
    Filtering(Batch),
    /// Rows are left: the other columns are being read.
    Fetching(Batch, Selection),
}

/// A scan of one stripe: batch by batch the rows that pass the filter.
pub struct StripeScan {
    stripe: FrozenStripe,
    filter: Filter,
    /// The filter's columns, then those that are only wanted.
    gathers: Vec<Gather>,
    /// How many of them are the filter's.
    filters: usize,
    /// Of each wanted column, which of them it is.
    wanted: Vec<usize>,
    left: Range<u32>,
    state: State,
    /// Pieces asked for and not supplied yet, each with whose it is.
    asked: VecDeque<(usize, Piece)>,
    counters: Counters,
}

impl StripeScan {
    /// The rows of `batches` that pass `filter` and are not deleted, in `columns`. All columns are the stripe's.
    pub fn new(
        stripe: FrozenStripe,
        columns: &[usize],
        filter: Filter,
        batches: Range<u32>,
    ) -> StripeScan {
        let mut all = filter.columns();
        let filters = all.len();
        let mut place = |column: &usize| {
            all.iter().position(|c| c == column).unwrap_or_else(|| {
                all.push(*column);
                all.len() - 1
            })
        };
        let wanted = columns.iter().map(&mut place).collect();
        StripeScan {
            stripe,
            filter,
            gathers: all.into_iter().map(Gather::new).collect(),
            filters,
            wanted,
            left: batches,
            state: State::Between,
            asked: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Go on with other batches; what is decoded is kept, what was under way is dropped.
    pub fn go_on(&mut self, batches: Range<u32>) {
        self.left = batches;
        self.state = State::Between;
        self.asked.clear();
    }

    /// What the scan did so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Go on as far as it goes.
    ///
    /// # Errors
    /// Corrupt when the stripe's metadata contradict themselves.
    pub fn step(&mut self) -> Result<Step> {
        loop {
            match std::mem::replace(&mut self.state, State::Between) {
                State::Between => {
                    let Some(number) = self.left.next() else { return Ok(Step::Done) };
                    let batch = Batch::number(number, self.stripe.meta.rows());
                    if batch.rows.is_empty() {
                        continue;
                    }
                    let zone = |column| self.stripe.zone(column, &batch.rows);
                    if self.filters > 0 && !self.filter.may_match(&zone) {
                        self.counters.batches_skipped += 1;
                        continue;
                    }
                    self.counters.batches_read += 1;
                    self.begin(0..self.filters, &batch);
                    self.state = State::Filtering(batch);
                }
                State::Filtering(batch) => {
                    if let Some(need) = self.need(0..self.filters)? {
                        self.state = State::Filtering(batch);
                        return Ok(Step::Need(need));
                    }
                    let selection = self.select(&batch);
                    let rows = batch.rows.len();
                    self.counters.rows_filtered += (rows - selection.len()) as u64;
                    if selection.is_empty() {
                        continue;
                    }
                    self.begin(self.filters..self.gathers.len(), &batch);
                    self.state = State::Fetching(batch, selection);
                }
                State::Fetching(batch, selection) => {
                    if let Some(need) = self.need(self.filters..self.gathers.len())? {
                        self.state = State::Fetching(batch, selection);
                        return Ok(Step::Need(need));
                    }
                    let column = |at: &usize| self.gathers.get(*at)?.whole().cloned();
                    let columns: Vec<Arc<Column>> = self.wanted.iter().filter_map(column).collect();
                    return Ok(Step::Batch(DecodedBatch { batch, selection, columns }));
                }
            }
        }
    }

    /// The bytes of the next piece asked for.
    ///
    /// # Errors
    /// Corrupt or Unsupported when the bytes are not such a piece; and when it is not its turn.
    pub fn supply(&mut self, piece: &Piece, bytes: &[u8], decoder: &mut Decoder) -> Result<()> {
        let at = self.turn(piece)?;
        if matches!(piece.part, crate::Part::Page(_)) {
            self.counters.pages_read += 1;
        }
        match self.gathers.get_mut(at) {
            Some(gather) => gather.supply(&self.stripe.meta, piece.part, bytes, decoder),
            None => Ok(()),
        }
    }

    /// In place of the bytes of a dictionary, for those who have kept it decoded.
    ///
    /// # Errors
    /// When it is not its turn.
    pub fn supply_dictionary(&mut self, piece: &Piece, dictionary: Arc<Dictionary>) -> Result<()> {
        let at = self.turn(piece)?;
        self.gathers.get_mut(at).into_iter().for_each(|g| g.set_dictionary(dictionary.clone()));
        Ok(())
    }

    fn turn(&mut self, piece: &Piece) -> Result<usize> {
        match self.asked.pop_front() {
            Some((at, asked)) if asked == *piece => Ok(at),
            _ => Err(Error::corrupt("a piece of a stripe was not asked for")),
        }
    }

    fn begin(&mut self, which: Range<usize>, batch: &Batch) {
        let meta = &self.stripe.meta;
        let gathers = self.gathers.get_mut(which).unwrap_or_default();
        gathers.iter_mut().for_each(|g| g.begin(meta, batch.rows.clone()));
    }

    /// What these columns wait for; None when they are whole.
    fn need(&mut self, which: Range<usize>) -> Result<Option<Need>> {
        let (mut pieces, mut soon) = (Vec::new(), Vec::new());
        self.asked.clear();
        for (at, gather) in self.gathers.iter().enumerate().take(which.end).skip(which.start) {
            let before = pieces.len();
            gather.needs(&self.stripe.meta, &mut pieces)?;
            self.asked.extend(pieces.iter().skip(before).map(|piece| (at, *piece)));
            if pieces.len() > before {
                soon.extend(gather.soon(&self.stripe.meta));
            }
        }
        Ok((!pieces.is_empty()).then_some(Need { pieces, soon }))
    }

    fn select(&self, batch: &Batch) -> Selection {
        let mut selection = Selection::all(batch.rows.len());
        let filters = self.gathers.get(..self.filters).unwrap_or_default();
        let find = |column: usize| {
            let gather = filters.iter().find(|g| g.column == column)?;
            gather.whole().map(Arc::as_ref)
        };
        let unsigned = |column| self.stripe.is_unsigned(column);
        self.filter.evaluate(&find, &unsigned, &mut selection);
        if let Some(deleted) = &self.stripe.deleted {
            selection.retain(|row| !deleted.contains(batch.rows.start + row));
        }
        selection
    }
}
