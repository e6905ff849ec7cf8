//! The rows chosen of a batch: of every column, the pages that hold them are read and decoded once.

use crate::directory::Found;
use crate::pg::datum::{BatchRow, Datums, Rows};
use crate::pg::{Rel, Toast, TupleSlot};
use crate::stripe::{handle_for, layout, of_column, source, Layout, PageReader, Source};
use firn_directory::Xid;
use firn_format::{Slot, Tid};
use std::rc::Rc;

/// Rows of one batch, handed out one by one.
pub struct UnitRows {
    table: Rel,
    layout: Rc<Layout>,
    reader: Option<PageReader>,
    stripe: Slot,
    xmin: Xid,
    rows: Vec<u32>,
    next: usize,
    values: BatchRow,
}

impl UnitRows {
    pub fn new(table: Rel) -> UnitRows {
        let layout = layout(table);
        UnitRows {
            table,
            values: BatchRow::new(layout.columns.len()),
            layout,
            reader: None,
            stripe: Slot(0),
            xmin: Xid::NONE,
            rows: Vec::new(),
            next: 0,
        }
    }

    pub fn table(&self) -> Rel {
        self.table
    }

    /// Read the rows `rows` (ascending) of a stripe.
    pub fn read(&mut self, toast: &Toast, found: &Found, rows: Vec<u32>) {
        crate::pg::xact::check_for_interrupts();
        let reader = match self.reader.take() {
            Some(reader) if self.stripe == found.slot => reader,
            _ => PageReader::new(handle_for(self.table, toast, found.slot, &found.entry)),
        };
        let reader = self.reader.insert(reader);
        (self.stripe, self.xmin) = (found.slot, found.xmin);
        // Before the new ones, which may need their room.
        self.values.load(Vec::new());
        let columns = 0..self.layout.columns.len();
        let columns = columns.map(|i| (i, column(&self.layout, reader, toast, i, &rows)));
        self.values.load(columns.collect());
        self.rows = rows;
        self.next = 0;
    }

    /// Put the next row into the slot; false when there is none.
    pub fn next_into(&mut self, slot: TupleSlot) -> bool {
        let Some(row) = self.rows.get(self.next) else { return false };
        self.values.turn_to(self.next);
        let tid = Tid::of(self.stripe, *row);
        slot.store_row(self.table, self.values.row(), tid, self.xmin);
        self.next += 1;
        true
    }
}

/// Values of table column `i` in some rows of a stripe.
fn column(
    layout: &Layout,
    reader: &mut PageReader,
    toast: &Toast,
    i: usize,
    rows: &[u32],
) -> Datums {
    let handle = reader.handle().clone();
    let (stored, conversion) = match source(layout, handle.outline(toast).columns(), i) {
        Source::Stored { stored, conversion } => (stored, conversion),
        Source::Constant(value) => return Datums::constant(&value, rows.len()),
    };
    let pages = reader.pages_of(toast, stored, rows).into_iter();
    let parts = pages.map(|(page, within)| {
        of_column(&handle, &page, stored, (conversion, None), Rows::Some(&within))
    });
    Datums::joined(parts.collect())
}
