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

/// A filter that need not be applied, and is where that pays: rows that do not pass may come all the same.
#[derive(Clone, Debug)]
pub struct Narrowing {
    pub filter: Filter,
    /// Rows that were looked at, and that passed.
    pub tested: u64,
    pub passed: u64,
    /// Of ten rows that are looked at, so many may pass before it does not pay.
    pub most_of_ten: u64,
}

/// Rows that tell whether it pays to look at each.
const TELLING_ROWS: u64 = 8_192;

impl Narrowing {
    fn pays(&self) -> bool {
        self.tested < TELLING_ROWS || self.passed < self.tested / 10 * self.most_of_ten
    }
}

enum State {
    Between,
    /// The filter's columns of this batch are being read.
    Filtering(Batch),
    /// Rows are left: the columns of the narrowing of this number are being read.
    Narrowing(Batch, Selection, usize),
    /// Rows are left: the other columns are being read.
    Fetching(Batch, Selection),
}

/// A scan of one stripe: batch by batch the rows that pass the filter.
pub struct StripeScan {
    stripe: FrozenStripe,
    filter: Filter,
    narrowings: Vec<Narrowing>,
    /// The columns that are read: the filter's, then those that are only wanted, then those of narrowings.
    gathers: Vec<Gather>,
    /// Which of them are the filter's.
    filters: Vec<usize>,
    /// Of each wanted column, which of them it is; and all of these, each once.
    wanted: Vec<usize>,
    fetched: Vec<usize>,
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
        let mut scan = StripeScan {
            stripe,
            filter,
            narrowings: Vec::new(),
            gathers: Vec::new(),
            filters: Vec::new(),
            wanted: Vec::new(),
            fetched: Vec::new(),
            left: batches,
            state: State::Between,
            asked: VecDeque::new(),
            counters: Counters::default(),
        };
        scan.filters = scan.places(&scan.filter.columns());
        scan.wanted = scan.places(columns);
        scan.fetched = scan.wanted.clone();
        scan.fetched.sort_unstable();
        scan.fetched.dedup();
        scan
    }

    /// Which of the columns that are read these are; new ones are added.
    fn places(&mut self, columns: &[usize]) -> Vec<usize> {
        let place = |column: &usize| {
            self.gathers.iter().position(|g| g.column == *column).unwrap_or_else(|| {
                self.gathers.push(Gather::new(*column));
                self.gathers.len() - 1
            })
        };
        columns.iter().map(place).collect()
    }

    /// From the next batch on, narrow by these.
    pub fn narrow(&mut self, narrowings: Vec<Narrowing>) {
        self.narrowings = narrowings;
    }

    /// How the narrowings fare.
    pub fn narrowings(&self) -> &[Narrowing] {
        &self.narrowings
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
                    if !self.may_match(&batch) {
                        self.counters.batches_skipped += 1;
                        continue;
                    }
                    self.counters.batches_read += 1;
                    self.state = State::Filtering(batch);
                }
                State::Filtering(batch) => {
                    if let Some(need) = self.need(&self.filters.clone(), &batch)? {
                        self.state = State::Filtering(batch);
                        return Ok(Step::Need(need));
                    }
                    let selection = self.select(&batch);
                    self.counters.rows_filtered += (batch.rows.len() - selection.len()) as u64;
                    self.state = State::Narrowing(batch, selection, 0);
                }
                State::Narrowing(_, selection, _) if selection.is_empty() => (),
                State::Narrowing(batch, mut selection, number) => {
                    let Some(narrowing) = self.narrowings.get(number) else {
                        self.state = State::Fetching(batch, selection);
                        continue;
                    };
                    if narrowing.pays() {
                        let columns = narrowing.filter.columns();
                        let places = self.places(&columns);
                        if let Some(need) = self.need(&places, &batch)? {
                            self.state = State::Narrowing(batch, selection, number);
                            return Ok(Step::Need(need));
                        }
                        self.narrow_by(number, &mut selection);
                    }
                    self.state = State::Narrowing(batch, selection, number + 1);
                }
                State::Fetching(batch, selection) => {
                    if let Some(need) = self.need(&self.fetched.clone(), &batch)? {
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

    /// The page index leaves it open whether some row of a batch is wanted.
    fn may_match(&self, batch: &Batch) -> bool {
        let zone = |column| self.stripe.zone(column, &batch.rows);
        let narrowings = self.narrowings.iter().map(|n| &n.filter);
        std::iter::once(&self.filter).chain(narrowings).all(|filter| filter.may_match(&zone))
    }

    /// What these columns of a batch wait for; None when they are whole.
    fn need(&mut self, which: &[usize], batch: &Batch) -> Result<Option<Need>> {
        let (mut pieces, mut soon) = (Vec::new(), Vec::new());
        self.asked.clear();
        for at in which {
            let Some(gather) = self.gathers.get_mut(*at) else { continue };
            gather.begin(&self.stripe.meta, &batch.rows);
            let before = pieces.len();
            gather.needs(&self.stripe.meta, &mut pieces)?;
            self.asked.extend(pieces.iter().skip(before).map(|piece| (*at, *piece)));
            if pieces.len() > before {
                soon.extend(gather.soon(&self.stripe.meta));
            }
        }
        Ok((!pieces.is_empty()).then_some(Need { pieces, soon }))
    }

    fn select(&self, batch: &Batch) -> Selection {
        let mut selection = Selection::all(batch.rows.len());
        self.evaluate(&self.filter, &mut selection);
        if let Some(deleted) = &self.stripe.deleted {
            selection.retain(|row| !deleted.contains(batch.rows.start + row));
        }
        selection
    }

    fn narrow_by(&mut self, number: usize, selection: &mut Selection) {
        let before = selection.len();
        if let Some(narrowing) = self.narrowings.get(number) {
            self.evaluate(&narrowing.filter, selection);
        }
        if let Some(narrowing) = self.narrowings.get_mut(number) {
            narrowing.tested += before as u64;
            narrowing.passed += selection.len() as u64;
        }
        self.counters.rows_filtered += (before - selection.len()) as u64;
    }

    /// Keep the rows that pass, by columns that are whole.
    fn evaluate(&self, filter: &Filter, selection: &mut Selection) {
        let find = |column: usize| {
            let gather = self.gathers.iter().find(|g| g.column == column)?;
            gather.whole().map(Arc::as_ref)
        };
        filter.evaluate(&find, &|column| self.stripe.is_unsigned(column), selection);
    }
}
