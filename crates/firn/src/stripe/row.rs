//! Single rows by number: one page per column is read, unless it was lately, and one value taken from it.

use super::handle::{with_decoder, StripeHandle};
use super::layout::Layout;
use super::pages::{self, PageKey};
use super::places::Places;
use super::projection::{source, Source};
use crate::pg::datum::{Blank, Conversion, Filling, Memory, Missing, OwnRow, Row};
use crate::pg::{Toast, TupleSlot};
use firn_format::{ColumnSpec, Decoder, PackedColumn, PageRef, Place, Slot, StripeWriter, Value};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};

/// A row as datums; the buffer owns what they point to until its next use.
pub struct RowBuffer {
    row: OwnRow,
    /// Which columns are read out of stripes; the others keep what they have.
    wanted: Vec<bool>,
    /// Columns of them that are read before the others, stage by stage.
    first: Vec<Vec<usize>>,
    scratch: Scratch,
}

/// What a buffer works with. A statement that looks up one row would take all of it from the allocator and give it back: it is left for the session's next.
#[derive(Default)]
struct Scratch {
    /// Of the row, while nobody has it.
    memory: Memory,
    page: Vec<u8>,
    value: Vec<u8>,
    at: AtStripe,
    /// Stripes that the same buffer has read before, by the numbers of their handles. (With what is gone since of pages, at most some 300 kB, and 128 bytes for each of the table's columns.)
    others: Places<AtStripe>,
}

/// Columns of a stripe that is kept for when the reader comes back to it, those included that it lacks, at most.
const MOST_COLUMNS: usize = 8;

/// Bytes of memory that are left for the next, of each kind at most.
const MOST_LEFT: usize = 64 << 10;

thread_local! {
    static LEFT: Cell<Option<Scratch>> = const { Cell::new(None) };
}

impl Default for RowBuffer {
    fn default() -> RowBuffer {
        let mut scratch = LEFT.take().unwrap_or_default();
        let row = OwnRow::new(std::mem::take(&mut scratch.memory));
        RowBuffer { row, wanted: Vec::new(), first: Vec::new(), scratch }
    }
}

impl Drop for RowBuffer {
    fn drop(&mut self) {
        let mut left = std::mem::take(&mut self.scratch);
        left.memory = self.row.take_memory();
        left.leave();
        let sizes = [
            left.memory.largest(),
            left.page.capacity(),
            left.value.capacity(),
            left.at.columns.capacity() * size_of::<AtColumn>(),
        ];
        if sizes.iter().all(|size| *size <= MOST_LEFT) {
            // (Not where the thread ends.)
            let _ = LEFT.try_with(|place| place.set(Some(left)));
        }
    }
}

/// The stripe that was read last.
#[derive(Default)]
struct AtStripe {
    /// The number of its handle.
    handle: u64,
    slot: Slot,
    columns: Vec<AtColumn>,
    /// Columns that it lacks, of which all rows have the same value.
    constants: Vec<(usize, Missing)>,
    /// How many of the columns have been read after each stage.
    ends: Vec<usize>,
    /// None behind so many has a value, be it of an earlier row.
    filled: usize,
    /// Another buffer may go on with it, as all is read in one stage. Which columns of which layout that is.
    is_whole: bool,
    layout: Weak<Layout>,
    wanted: Vec<bool>,
}

/// Stripes that buffers have left, of so many the last. A command that changes rows reads each with a buffer of its own, or with several
/// that read different columns, mostly in the same stripe: of many columns it would decode all pages with each row. Triggers and foreign
/// keys read further ones meanwhile. (At most some 150 kB each.)
const LEFT_STRIPES: usize = 8;

thread_local! {
    static LEFT_AT: RefCell<Vec<AtStripe>> = const { RefCell::new(Vec::new()) };
}

impl AtStripe {
    /// It is no longer the one.
    fn leave(&mut self) {
        if self.is_whole {
            // (Not where the thread ends.)
            let _ = LEFT_AT.try_with(|left| {
                let left = &mut *left.borrow_mut();
                // Two buffers may have read the same at a time: one of them is enough.
                let same = left.iter().position(|at| self.is_as(&at.layout, at.handle, &at.wanted));
                let gone = match same {
                    Some(number) => Some(left.remove(number)),
                    None => (left.len() == LEFT_STRIPES).then(|| left.remove(0)),
                };
                left.push(std::mem::replace(self, gone.unwrap_or_default()));
            });
        }
        self.handle = 0;
        self.columns.clear();
        self.constants.clear();
        self.ends.clear();
        self.is_whole = false;
    }

    /// Whether it is of these columns of this stripe.
    fn is_as(&self, layout: &Weak<Layout>, handle: u64, wanted: &[bool]) -> bool {
        self.handle == handle && self.layout.ptr_eq(layout) && self.wanted == wanted
    }

    /// Go on where another buffer has left this stripe, of which it has read the same columns.
    fn go_on(&mut self, layout: &Rc<Layout>, handle: u64, wanted: &[bool]) -> bool {
        let found = LEFT_AT.with_borrow_mut(|left| {
            let layout = Rc::downgrade(layout);
            let number = left.iter().position(|at| at.is_as(&layout, handle, wanted))?;
            Some(left.remove(number))
        });
        let Some(found) = found else { return false };
        *self = found;
        // Of the other buffer's row.
        self.filled = 0;
        true
    }
}

/// A column that is read of it.
struct AtColumn {
    /// The table's, and the stripe's.
    column: usize,
    stored: u32,
    conversion: Conversion,
    /// The page that was read last: its number, its rows in the stripe, and, if it is decoded, its values, which belong to the cache.
    page: u32,
    rows: Range<u32>,
    decoded: Weak<PackedColumn>,
    /// Single values to be read of that page, which was decoded and has left the cache, before it is decoded once more.
    rest: u32,
}

/// None that could be stayed at, or followed.
const NO_PAGE: u32 = u32::MAX;

/// So many values of a page cost about as much as all of it.
const REST: u32 = 16;

impl RowBuffer {
    /// The row that was read last.
    #[inline]
    pub fn row(&self) -> Row<'_> {
        self.row.row()
    }

    /// These columns are asked for, in these stages.
    pub fn asks_for(&self, wanted: &[bool], first: &[Vec<usize>]) -> bool {
        self.wanted == wanted && self.first == first
    }

    /// Read these columns from now on. The others have what is given for them.
    pub fn ask_for(&mut self, wanted: &[bool], others: Blank) {
        self.scratch.leave();
        self.wanted = wanted.to_vec();
        self.first.clear();
        self.row.begin(others);
    }

    /// From now on these columns, of those that are asked for, have a stage of their own each: they are read before the others. No
    /// column is of two stages.
    pub fn read_first(&mut self, stages: &[Vec<usize>]) {
        self.scratch.leave();
        self.first = stages.to_vec();
    }

    /// Read all columns from now on.
    pub fn ask_for_all(&mut self, columns: usize) {
        if self.wanted.len() != columns || self.wanted.contains(&false) {
            self.ask_for(&vec![true; columns], Blank::nulls(columns));
        }
    }

    /// A row without values.
    pub fn start(&mut self, columns: usize) {
        // What was in columns that nobody asks for is gone.
        self.wanted.clear();
        self.first.clear();
        self.scratch.leave();
        self.row.clear(columns);
    }

    /// Put something into columns that are not wanted, for the slot.
    pub fn stand_in(&mut self, slot: TupleSlot, wanted: &[bool]) {
        self.row.stand_in(slot, wanted)
    }
}

impl AtStripe {
    /// Find out where the columns of a stripe are.
    fn enter(
        &mut self,
        (layout, columns): (&Rc<Layout>, &[ColumnSpec]),
        handle: &StripeHandle,
        (wanted, first): (&[bool], &[Vec<usize>]),
    ) {
        for stage in 0..=first.len() {
            for i in 0..layout.columns.len() {
                let own = first.iter().position(|columns| columns.contains(&i));
                if own.unwrap_or(first.len()) != stage || !wanted.get(i).copied().unwrap_or(true) {
                    continue;
                }
                match source(layout, columns, i) {
                    Source::Constant(value) => self.constants.push((i, value)),
                    Source::Stored { stored, conversion } => self.columns.push(AtColumn {
                        column: i,
                        stored: stored as u32,
                        conversion,
                        page: 0,
                        rows: 0..0,
                        decoded: Weak::new(),
                        rest: 0,
                    }),
                }
            }
            self.ends.push(self.columns.len());
        }
        self.filled = self.columns.len();
        (self.handle, self.slot) = (handle.number, handle.slot);
        self.is_whole = first.is_empty();
        if self.is_whole {
            self.layout = Rc::downgrade(layout);
            self.wanted.clear();
            self.wanted.extend_from_slice(wanted);
        }
    }

    /// How many columns have been read after so many stages.
    fn end_of(&self, stages: usize) -> usize {
        stages.min(self.ends.len()).checked_sub(1).map_or(0, |last| self.ends[last])
    }
}

/// Read row `row` of a stripe: the columns that the buffer is to have, of these stages. They come one after the other, from 0 on; what is not
/// read first is of the last one.
pub fn stripe_row(
    layout: &Rc<Layout>,
    toast: &Toast,
    handle: &StripeHandle,
    row: u32,
    stages: Range<usize>,
    out: &mut RowBuffer,
) {
    let RowBuffer { row: values, wanted: asked, first, scratch } = out;
    // Given back at the end: after an error nothing is in the row, and it is asked for anew.
    let wanted = std::mem::take(asked);
    let mut filling = values.fill(stages.start == 0);
    if scratch.at.handle != handle.number {
        filling.forget_missing();
        let is_known = scratch.go_back(handle.number, handle.slot)
            || first.is_empty() && scratch.at.go_on(layout, handle.number, &wanted);
        if !is_known {
            let columns = handle.outline(toast).columns();
            scratch.at.enter((layout, columns), handle, (&wanted, first));
        }
        scratch.at.constants.iter().for_each(|(i, value)| filling.put_missing(*i, value));
    }
    let (start, end) = (scratch.at.end_of(stages.start), scratch.at.end_of(stages.end));
    for i in start..end {
        let at = &scratch.at.columns[i];
        let at_hand = at.decoded.upgrade().filter(|_| at.rows.contains(&row));
        match at_hand {
            Some(decoded) => {
                let value = decoded.value((row - at.rows.start) as usize);
                filling.put(at.column, &value.unwrap_or_else(|e| give_up(handle, e)), at.conversion)
            }
            None => scratch.turn_to(toast, handle, i, row, &mut filling),
        }
    }
    if start == 0 {
        // What is read later, if at all, is an earlier row's.
        let filled = std::mem::replace(&mut scratch.at.filled, end);
        let later = scratch.at.columns.get(end..filled).unwrap_or(&[]);
        later.iter().for_each(|at| filling.take_out(at.column));
    } else {
        scratch.at.filled = scratch.at.filled.max(end);
    }
    filling.finish();
    *asked = wanted;
}

/// Raise what is wrong with a page that is kept. It is read again next time, as others are that are damaged.
fn give_up(handle: &StripeHandle, e: firn_format::Error) -> ! {
    pages::forget(handle.number);
    handle.raise(e)
}

impl Scratch {
    /// None of its stripes is the one any longer.
    fn leave(&mut self) {
        self.others.clear();
        self.at.leave();
    }

    /// Leave the stripe that was read last, and go on where this one was left; false where it was not, or no longer is.
    fn go_back(&mut self, handle: u64, slot: Slot) -> bool {
        let AtStripe { handle: last, slot: from, columns, constants, .. } = &self.at;
        if *last != 0 && columns.len() + constants.len() <= MOST_COLUMNS {
            if let Some(place) = self.others.leave(*last, *from, slot) {
                // What it takes the place of is left, or is the one.
                std::mem::swap(place, &mut self.at);
            }
        }
        if self.at.handle != handle {
            // (Its memory is of use where the other one is not there either.)
            self.at.leave();
            match self.others.find(handle).filter(|other| other.handle == handle) {
                Some(other) => std::mem::swap(other, &mut self.at),
                None => return false,
            }
        }
        // What has a value has it of another stripe's row.
        self.at.filled = self.at.columns.len();
        // Who comes back neither stays at a page nor goes on to the next.
        self.at.columns.iter_mut().for_each(|at| at.page = NO_PAGE);
        true
    }

    /// The value of a column that is not in the page at hand.
    fn turn_to(
        &mut self,
        toast: &Toast,
        handle: &StripeHandle,
        i: usize,
        row: u32,
        out: &mut Filling<'_>,
    ) {
        let stored = self.at.columns[i].stored;
        let mut place = handle.place_of(toast, stored as usize, row);
        let (number, rows) = (place.number() as u32, place.rows());
        let at = &mut self.at.columns[i];
        let (column, conversion) = (at.column, at.conversion);
        let is_same = !at.rows.is_empty() && at.page == number;
        let known = match is_same {
            // It is asked for again. One that was decoded and has left the cache since may have no room there: of many columns not all pages
            // have, and would drive each other out with each row.
            true => Some(at.rest == 0),
            // Who goes from page to page will read all of it.
            false => {
                (!at.rows.is_empty() && at.page.checked_add(1) == Some(number)).then_some(true)
            }
        };
        let within = row.saturating_sub(rows.start);
        at.rest = if is_same { at.rest.saturating_sub(1) } else { 0 };
        (at.page, at.rows) = (number, rows);
        // Should reading it fail, nobody takes the other page's values for these rows'.
        at.decoded = Weak::new();
        let key = (stored, number);
        let kept = match pages::find(handle.number, key) {
            Some(kept) if known.is_none() => Some(pages::pack(handle.number, key, kept)),
            kept => kept,
        };
        match kept.or_else(|| self.decoded(toast, handle, key, &mut place, known)) {
            Some(decoded) => {
                let at = &mut self.at.columns[i];
                (at.decoded, at.rest) = (Rc::downgrade(&decoded), REST);
                let value = decoded.value(within as usize);
                out.put(column, &value.unwrap_or_else(|e| give_up(handle, e)), conversion)
            }
            None => self.single(toast, handle, (key, &place, within), |value| {
                out.put(column, value, conversion)
            }),
        }
    }

    /// A page decoded and kept, if that pays: as far as the scan knows, or as the session has asked for it lately. If not, `place` may know more of it.
    fn decoded<'a>(
        &mut self,
        toast: &Toast,
        handle: &'a StripeHandle,
        key: PageKey,
        place: &mut Place<'a>,
        known: Option<bool>,
    ) -> Option<Rc<PackedColumn>> {
        let pays = || known.unwrap_or_else(|| pages::is_asked_again(handle.number, key));
        let column = key.0 as usize;
        // (How long a page is that has a record is known when that is read. Few are too long.)
        let fits = pages::fits(match place {
            Place::Page(page) => page.location.len as usize,
            Place::Record { .. } => 1,
        });
        if !fits || !pays() {
            return None;
        }
        let page = handle.page_at(toast, column, place, &mut self.page);
        if !pages::fits(page.location.len as usize) {
            *place = Place::Page(page);
            return None;
        }
        // Who is known to stay at it, or to come from the page before, may go through all rows: then packing is for nothing. If not, it is packed when
        // it is come back to.
        let again = known.is_none();
        let decoded = Rc::new(handle.pack_page(toast, column, &page, again, &mut self.page));
        pages::keep(handle.number, key, &decoded);
        Some(decoded)
    }

    /// Give a single value of a page that is not decoded. What is read at a glance, and is not what it should be, is read again.
    fn single(
        &mut self,
        toast: &Toast,
        handle: &StripeHandle,
        (key, place, within): (PageKey, &Place<'_>, u32),
        mut give: impl FnMut(&Value<'_>),
    ) {
        let column = key.0 as usize;
        let dictionary = handle.dictionary(toast, column);
        let (bytes, value) = (&mut self.page, &mut self.value);
        let mut take = |page: &PageRef<'_>, bytes: &[u8]| {
            value.clear();
            let value = |d: &mut Decoder| {
                let value = d.value_in(page, within, bytes, dictionary.as_ref(), value);
                value.map(|value| give(&value))
            };
            with_decoder(value)
        };
        let glanced = handle.glance_at_page(toast, column, place, bytes);
        let is_sure = glanced.is_none() || matches!(place, Place::Page(_));
        let mut page = glanced.unwrap_or_else(|| handle.page_at(toast, column, place, bytes));
        let (at, len) = (page.location.offset, page.location.len as usize);
        if page.has_checksum() {
            let is_read = handle.glance(toast, at, len, bytes) && take(&page, bytes).is_ok();
            // (If the record was glanced at, its page is read in the ordinary way before that is.)
            let is_read = is_read
                || !is_sure && handle.try_read(toast, at, len, bytes) && take(&page, bytes).is_ok();
            if is_read {
                return;
            }
        }
        if !is_sure {
            page = handle.page_at(toast, column, place, bytes);
        }
        handle.read(toast, page.location.offset, page.location.len as usize, bytes);
        take(&page, bytes).unwrap_or_else(|e| handle.raise(e))
    }
}

/// Read row `row` of a stripe that is still being collected by this session.
pub fn pending_row(layout: &Layout, writer: &StripeWriter, row: u32, out: &mut RowBuffer) {
    out.start(layout.columns.len());
    let mut filling = out.row.fill(true);
    for i in 0..layout.columns.len() {
        match source(layout, writer.columns(), i) {
            Source::Constant(value) => filling.put_missing(i, &value),
            Source::Stored { stored, conversion } => {
                filling.put(i, &writer.value(stored, row as usize), conversion)
            }
        }
    }
    filling.finish();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(handle: u64) -> AtColumn {
        AtColumn {
            column: 0,
            stored: handle as u32,
            conversion: Conversion::Int32,
            page: 3,
            rows: 0..1,
            decoded: Weak::new(),
            rest: 0,
        }
    }

    /// A reader that goes to and fro between more stripes than there are places, some of which are wide, is told of none what it knows of another.
    #[test]
    fn who_comes_back_finds_the_same_stripe() {
        let mut scratch = Scratch::default();
        let (mut random, mut known) = (7u64, 0);
        for _ in 0..50_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Half of the visits are to few of them.
            let number = random >> 33;
            let handle = 1 + number % if number & 64 == 0 { 20 } else { 300 };
            if scratch.at.handle == handle {
                continue;
            }
            let columns = if handle % 50 == 0 { MOST_COLUMNS + 1 } else { 1 + handle as usize % 3 };
            if scratch.go_back(handle, Slot(handle as u32)) {
                assert_ne!(handle % 50, 0);
                known += 1;
                let at = &scratch.at;
                assert_eq!((at.handle, at.columns.len(), at.filled), (handle, columns, columns));
                let own = |at: &AtColumn| at.stored == handle as u32 && at.page == NO_PAGE;
                assert!(at.columns.iter().all(own));
            } else {
                assert_eq!((scratch.at.handle, scratch.at.columns.len()), (0, 0));
                (scratch.at.handle, scratch.at.slot) = (handle, Slot(handle as u32));
                scratch.at.columns.extend((0..columns).map(|_| column(handle)));
                scratch.at.filled = 0;
            }
        }
        assert!(known > 10_000, "{known}");
        scratch.leave();
        assert!(scratch.others.find(1).is_none() && scratch.at.handle == 0);
    }
}
