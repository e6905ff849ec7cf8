//! Single rows by number: one page per column is read, unless it was lately, and one value taken from it.

use super::datums::{one_value, One};
use super::handle::{with_decoder, StripeHandle};
use super::layout::Layout;
use super::pages::{self, PageKey};
use super::projection::{source, Source};
use crate::pg::datum::{Conversion, Datum};
use crate::pg::Toast;
use firn_format::{Column, PageLocation, StripeWriter};
use std::rc::{Rc, Weak};

/// A row as datums; the buffer owns what they point to until its next use.
#[derive(Default)]
pub struct RowBuffer {
    pub values: Vec<Datum>,
    pub nulls: Vec<bool>,
    bytes: Vec<u8>,
    page: Vec<u8>,
    value: Vec<u8>,
    by_reference: Vec<(usize, usize)>,
    last: LastPages,
}

/// The pages that were read last, one of each column of a stripe. They belong to the cache.
#[derive(Default)]
struct LastPages {
    /// The number of the stripe's handle.
    handle: u64,
    /// By the stripe's columns.
    pages: Vec<(u32, Weak<Column>)>,
}

impl RowBuffer {
    fn start(&mut self, columns: usize) {
        self.values.clear();
        self.values.resize(columns, 0);
        self.nulls.clear();
        self.nulls.resize(columns, true);
        self.bytes.clear();
        self.by_reference.clear();
    }
    fn put(&mut self, column: usize, one: One) {
        match one {
            One::Null => (),
            One::Direct(d) => {
                self.values[column] = d;
                self.nulls[column] = false;
            }
            One::At(offset) => {
                self.by_reference.push((column, offset));
                self.nulls[column] = false;
            }
        }
    }

    /// A page decoded: the one of before, one that is kept, or read now to be kept. None when that does not pay.
    fn decoded(
        &mut self,
        toast: &Toast,
        handle: &StripeHandle,
        key: PageKey,
        page: &PageLocation,
    ) -> Option<Rc<Column>> {
        if self.last.handle != handle.number {
            self.last = LastPages { handle: handle.number, pages: Vec::new() };
        }
        let (column, number) = key;
        if let Some((last, decoded)) = self.last.pages.get(column as usize) {
            if let Some(decoded) = decoded.upgrade().filter(|_| *last == number) {
                return Some(decoded);
            }
        }
        let decoded = match pages::find(handle.number, key) {
            Some(kept) => kept,
            None if !pages::fits(page.len as usize)
                || !pages::is_asked_again(handle.number, key) =>
            {
                return None
            }
            None => {
                let bytes = &mut self.page;
                let decoded = handle.decode_page(toast, column as usize, number as usize, bytes);
                let decoded = Rc::new(decoded);
                pages::keep(handle.number, key, &decoded);
                decoded
            }
        };
        let pages = &mut self.last.pages;
        if pages.len() <= column as usize {
            pages.resize(column as usize + 1, (0, Weak::new()));
        }
        pages[column as usize] = (number, Rc::downgrade(&decoded));
        Some(decoded)
    }

    /// A value out of a page that is not decoded for it.
    fn value_of(
        &mut self,
        toast: &Toast,
        handle: &StripeHandle,
        (column, number): PageKey,
        page: &PageLocation,
        within: u32,
        conversion: Conversion,
    ) -> One {
        let (column, number) = (column as usize, number as usize);
        let dictionary = handle.dictionary(toast, column);
        handle.read(toast, page.offset, page.len as usize, &mut self.page);
        let meta = handle.meta(toast);
        let (bytes, value, out) = (&self.page, &mut self.value, &mut self.bytes);
        value.clear();
        with_decoder(|d| {
            d.value_at(meta, column, number, within, bytes, dictionary.as_ref(), value)
                .map(|v| one_value(&v, conversion, out))
                .unwrap_or_else(|e| handle.raise(e))
        })
    }

    /// Addresses are known once nothing moves any more.
    fn finish(&mut self) {
        self.bytes.reserve(8);
        let shift = (8 - self.bytes.as_ptr() as usize % 8) % 8;
        if shift != 0 {
            self.bytes.splice(0..0, std::iter::repeat_n(0, shift));
        }
        let base = self.bytes.as_ptr() as usize + shift;
        for (column, offset) in &self.by_reference {
            self.values[*column] = base + offset;
        }
    }
}

/// Read row `row` of a stripe. `wanted` tells which columns are needed; the others stay NULL.
pub fn stripe_row(
    layout: &Layout,
    toast: &Toast,
    handle: &StripeHandle,
    row: u32,
    wanted: impl Fn(usize) -> bool,
    out: &mut RowBuffer,
) {
    out.start(layout.columns.len());
    let meta = handle.meta(toast);
    for i in (0..layout.columns.len()).filter(|i| wanted(*i)) {
        let (stored, conversion) = match source(layout, meta, i) {
            Source::Stored { stored, conversion } => (stored, conversion),
            Source::Constant { value, null } => {
                (out.values[i], out.nulls[i]) = (value, null);
                continue;
            }
        };
        let page_no = meta.page_of(stored, row);
        let Some(page) = meta.pages(stored).get(page_no) else { continue };
        let within = row.saturating_sub(page.first_row);
        let key = (stored as u32, page_no as u32);
        let one = match out.decoded(toast, handle, key, page) {
            Some(decoded) if within as usize >= decoded.rows => {
                handle.raise(firn_format::Error::corrupt("a page has no such row"))
            }
            Some(decoded) => one_value(&decoded.value(within as usize), conversion, &mut out.bytes),
            None => out.value_of(toast, handle, key, page, within, conversion),
        };
        out.put(i, one);
    }
    out.finish();
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
        let one = one_value(&writer.value(stored, row as usize), conversion, &mut out.bytes);
        out.put(i, one);
    }
    out.finish();
}
