//! Single rows by number: one page per column is read, unless it was lately, and one value taken from it.

use super::datums::{one_value, One};
use super::handle::{with_decoder, StripeHandle};
use super::layout::Layout;
use super::pages::{self, PageKey};
use super::projection::{source, Source};
use crate::pg::datum::{Conversion, Datum};
use crate::pg::Toast;
use firn_format::{Column, ColumnSpec, PageRef, StripeWriter};
use std::cell::Cell;
use std::ops::Range;
use std::rc::{Rc, Weak};

/// A row as datums; the buffer owns what they point to until its next use.
pub struct RowBuffer {
    pub values: Vec<Datum>,
    pub nulls: Vec<bool>,
    /// Which columns are read out of stripes; the others keep what they have.
    pub wanted: Vec<bool>,
    /// Columns of them that are read before the others, stage by stage.
    pub first: Vec<Vec<usize>>,
    scratch: Scratch,
}

/// What a buffer works with. A statement that looks up one row would take all of it from the allocator and give it back: it is left for the session's next.
#[derive(Default)]
struct Scratch {
    bytes: Vec<u8>,
    aligned: Vec<u64>,
    page: Vec<u8>,
    value: Vec<u8>,
    by_reference: Vec<(usize, usize)>,
    at: AtStripe,
}

/// Bytes of memory that are left for the next, of each kind at most.
const MOST_LEFT: usize = 64 << 10;

thread_local! {
    static LEFT: Cell<Option<Scratch>> = const { Cell::new(None) };
}

impl Default for RowBuffer {
    fn default() -> RowBuffer {
        let scratch = LEFT.take().unwrap_or_default();
        let (values, nulls, wanted, first) = Default::default();
        RowBuffer { values, nulls, wanted, first, scratch }
    }
}

impl Drop for RowBuffer {
    fn drop(&mut self) {
        let mut left = std::mem::take(&mut self.scratch);
        left.bytes.clear();
        left.by_reference.clear();
        left.at.leave();
        let sizes = [
            left.bytes.capacity(),
            left.aligned.capacity() * size_of::<u64>(),
            left.page.capacity(),
            left.value.capacity(),
            left.by_reference.capacity() * size_of::<(usize, usize)>(),
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
    columns: Vec<AtColumn>,
    /// How many of these have been read after each stage.
    ends: Vec<usize>,
}

impl AtStripe {
    /// It is no longer the one.
    fn leave(&mut self) {
        self.handle = 0;
        self.columns.clear();
        self.ends.clear();
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
    decoded: Weak<Column>,
    /// Single values to be read of that page, which was decoded and has left the cache, before it is decoded once more.
    rest: u32,
}

/// So many values of a page cost about as much as all of it.
const REST: u32 = 16;

impl RowBuffer {
    /// Read these columns from now on. The others have what is given for them.
    pub fn ask_for(&mut self, wanted: &[bool], (values, nulls): (Vec<Datum>, Vec<bool>)) {
        self.scratch.at.leave();
        self.wanted = wanted.to_vec();
        self.first.clear();
        (self.values, self.nulls) = (values, nulls);
    }

    /// From now on these columns, of those that are asked for, have a stage of their own each: they are read before the others. No
    /// column is of two stages.
    pub fn read_first(&mut self, stages: &[Vec<usize>]) {
        self.scratch.at.leave();
        self.first = stages.to_vec();
    }

    /// Read all columns from now on.
    pub fn ask_for_all(&mut self, columns: usize) {
        if self.wanted.len() != columns || self.wanted.contains(&false) {
            self.ask_for(&vec![true; columns], (vec![0; columns], vec![true; columns]));
        }
    }

    /// A row without values.
    pub fn start(&mut self, columns: usize) {
        // What was in columns that nobody asks for is gone.
        self.wanted.clear();
        self.first.clear();
        self.scratch.at.leave();
        self.values.clear();
        self.values.resize(columns, 0);
        self.nulls.clear();
        self.nulls.resize(columns, true);
        self.scratch.bytes.clear();
        self.scratch.by_reference.clear();
    }

    fn put(&mut self, column: usize, one: One) {
        self.nulls[column] = matches!(one, One::Null);
        match one {
            One::Null => self.values[column] = 0,
            One::Direct(d) => self.values[column] = d,
            One::At(offset) => self.scratch.by_reference.push((column, offset)),
        }
    }

    /// Find out where the columns of a stripe are.
    fn enter(&mut self, layout: &Layout, columns: &[ColumnSpec], handle: u64) {
        self.scratch.at.leave();
        self.scratch.at.handle = handle;
        for stage in 0..=self.first.len() {
            for i in 0..layout.columns.len() {
                let own = self.first.iter().position(|columns| columns.contains(&i));
                if own.unwrap_or(self.first.len()) != stage
                    || !self.wanted.get(i).copied().unwrap_or(true)
                {
                    continue;
                }
                match source(layout, columns, i) {
                    Source::Constant { value, null } => {
                        (self.values[i], self.nulls[i]) = (value, null)
                    }
                    Source::Stored { stored, conversion } => {
                        self.scratch.at.columns.push(AtColumn {
                            column: i,
                            stored: stored as u32,
                            conversion,
                            page: 0,
                            rows: 0..0,
                            decoded: Weak::new(),
                            rest: 0,
                        })
                    }
                }
            }
            self.scratch.at.ends.push(self.scratch.at.columns.len());
        }
    }

    /// A page decoded and kept, if that pays: as far as the scan knows, or as the session has asked for it lately.
    fn decoded(
        &mut self,
        toast: &Toast,
        handle: &StripeHandle,
        key: PageKey,
        page: &PageRef<'_>,
        known: Option<bool>,
    ) -> Option<Rc<Column>> {
        let pays = || known.unwrap_or_else(|| pages::is_asked_again(handle.number, key));
        if !pages::fits(page.location.len as usize) || !pays() {
            return None;
        }
        let decoded =
            Rc::new(handle.decode_page(toast, key.0 as usize, page, &mut self.scratch.page));
        pages::keep(handle.number, key, &decoded);
        Some(decoded)
    }

    /// A value out of a page that is not decoded for it.
    fn value_of(
        &mut self,
        toast: &Toast,
        handle: &StripeHandle,
        column: u32,
        page: &PageRef<'_>,
        within: u32,
        conversion: Conversion,
    ) -> One {
        let dictionary = handle.dictionary(toast, column as usize);
        handle.read(
            toast,
            page.location.offset,
            page.location.len as usize,
            &mut self.scratch.page,
        );
        let (bytes, value, out) =
            (&self.scratch.page, &mut self.scratch.value, &mut self.scratch.bytes);
        value.clear();
        with_decoder(|d| {
            d.value_in(page, within, bytes, dictionary.as_ref(), value)
                .map(|v| one_value(&v, conversion, out))
                .unwrap_or_else(|e| handle.raise(e))
        })
    }

    /// Addresses are known once nothing moves any more, until the next stage.
    fn finish(&mut self) {
        self.scratch.bytes.reserve(8);
        let mut base = self.scratch.bytes.as_ptr() as usize;
        if !base.is_multiple_of(8) {
            // No allocator that is known gives such memory.
            self.scratch.aligned.clear();
            self.scratch.aligned.resize(self.scratch.bytes.len().div_ceil(8), 0);
            for (word, bytes) in self.scratch.aligned.iter_mut().zip(self.scratch.bytes.chunks(8)) {
                let mut whole = [0; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_ne_bytes(whole);
            }
            base = self.scratch.aligned.as_ptr() as usize;
        }
        for (column, offset) in &self.scratch.by_reference {
            self.values[*column] = base + offset;
        }
    }
}

/// Read row `row` of a stripe: the columns that the buffer is to have, of these stages. They come one after the other, from 0 on; what is not
/// read first is of the last one.
pub fn stripe_row(
    layout: &Layout,
    toast: &Toast,
    handle: &StripeHandle,
    row: u32,
    stages: Range<usize>,
    out: &mut RowBuffer,
) {
    if stages.start == 0 {
        out.scratch.bytes.clear();
        out.scratch.by_reference.clear();
    }
    if out.scratch.at.handle != handle.number {
        out.enter(layout, handle.outline(toast).columns(), handle.number);
    }
    let end_of = |stages: usize| {
        let last = stages.min(out.scratch.at.ends.len()).checked_sub(1);
        last.map_or(0, |stage| out.scratch.at.ends[stage])
    };
    for i in end_of(stages.start)..end_of(stages.end) {
        let at = &out.scratch.at.columns[i];
        let (column, conversion) = (at.column, at.conversion);
        let at_hand = at.decoded.upgrade().filter(|_| at.rows.contains(&row));
        let one = match at_hand {
            Some(decoded) => one_value(
                &decoded.value((row - at.rows.start) as usize),
                conversion,
                &mut out.scratch.bytes,
            ),
            None => out.turn_to(toast, handle, i, row),
        };
        out.put(column, one);
    }
    out.finish();
}

impl RowBuffer {
    /// The value of a column that is not in the page at hand.
    fn turn_to(&mut self, toast: &Toast, handle: &StripeHandle, i: usize, row: u32) -> One {
        let stored = self.scratch.at.columns[i].stored;
        let place = handle.place_of(toast, stored as usize, row);
        let (number, rows) = (place.number() as u32, place.rows());
        let at = &mut self.scratch.at.columns[i];
        let conversion = at.conversion;
        let is_same = !at.rows.is_empty() && at.page == number;
        let known = match is_same {
            // It is asked for again. One that was decoded and has left the cache since may have no room there: of many columns not all pages
            // have, and would drive each other out with each row.
            true => Some(at.rest == 0),
            // Who goes from page to page will read all of it.
            false => (!at.rows.is_empty() && at.page + 1 == number).then_some(true),
        };
        let within = row.saturating_sub(rows.start);
        at.rest = if is_same { at.rest.saturating_sub(1) } else { 0 };
        (at.page, at.rows) = (number, rows);
        // Should reading it fail, nobody takes the other page's values for these rows'.
        at.decoded = Weak::new();
        let key = (stored, number);
        let (page, decoded) = match pages::find(handle.number, key) {
            Some(kept) => (None, Some(kept)),
            None => {
                let page = handle.page_at(toast, stored as usize, place, &mut self.scratch.page);
                (Some(page), self.decoded(toast, handle, key, &page, known))
            }
        };
        match decoded {
            Some(decoded) if within as usize >= decoded.rows => {
                handle.raise(firn_format::Error::corrupt("a page has no such row"))
            }
            Some(decoded) => {
                let at = &mut self.scratch.at.columns[i];
                (at.decoded, at.rest) = (Rc::downgrade(&decoded), REST);
                one_value(&decoded.value(within as usize), conversion, &mut self.scratch.bytes)
            }
            None => {
                let Some(page) = page else { return One::Null };
                self.value_of(toast, handle, stored, &page, within, conversion)
            }
        }
    }
}

/// Read row `row` of a stripe that is still being collected by this session.
pub fn pending_row(layout: &Layout, writer: &StripeWriter, row: u32, out: &mut RowBuffer) {
    out.start(layout.columns.len());
    for (i, column) in layout.columns.iter().enumerate() {
        let Some(column) = column.as_ref() else { continue };
        let number = i32::from(column.attribute.number);
        let Some(stored) = writer.columns().iter().position(|c| c.field_id == number) else {
            let (value, null) = layout.missing(i);
            out.values[i] = value;
            out.nulls[i] = null;
            continue;
        };
        let conversion = column.conversion_from(writer.columns()[stored].kind);
        let one =
            one_value(&writer.value(stored, row as usize), conversion, &mut out.scratch.bytes);
        out.put(i, one);
    }
    out.finish();
}
