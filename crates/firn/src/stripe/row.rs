//! Single rows by number: one page per column is read and one value taken from it.

use super::datums::{one_value, One};
use super::handle::{with_decoder, StripeHandle};
use super::layout::Layout;
use crate::pg::datum::Datum;
use crate::pg::Toast;
use firn_format::StripeWriter;

/// A row as datums; the buffer owns what they point to until its next use.
#[derive(Default)]
pub struct RowBuffer {
    pub values: Vec<Datum>,
    pub nulls: Vec<bool>,
    bytes: Vec<u8>,
    page: Vec<u8>,
    value: Vec<u8>,
    by_reference: Vec<(usize, usize)>,
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
    for (i, column) in layout.columns.iter().enumerate() {
        let Some(column) = column.as_ref().filter(|_| wanted(i)) else { continue };
        let number = column.attribute.number;
        let Some(stored) = meta.column_by_field_id(i32::from(number)) else {
            let (value, null) = layout.missing(i);
            out.values[i] = value;
            out.nulls[i] = null;
            continue;
        };
        let conversion = column.conversion_from(meta.columns()[stored].kind);
        let page_no = meta.page_of(stored, row);
        let Some(page) = meta.pages(stored).get(page_no) else { continue };
        let dictionary = handle.dictionary(toast, stored);
        let mut bytes = std::mem::take(&mut out.page);
        handle.read(toast, page.offset, page.len as usize, &mut bytes);
        let mut value = std::mem::take(&mut out.value);
        value.clear();
        let one = with_decoder(|d| {
            let within = row.saturating_sub(page.first_row);
            d.value_at(meta, stored, page_no, within, &bytes, dictionary.as_ref(), &mut value)
                .map(|v| one_value(&v, conversion, &mut out.bytes))
                .unwrap_or_else(|e| handle.raise(e))
        });
        out.page = bytes;
        out.value = value;
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
