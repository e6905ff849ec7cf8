//! The rows chosen of a batch: of every column, the pages that hold them are read and decoded once.

use crate::directory::Found;
use crate::pg::datum::Datum;
use crate::pg::{Rel, Toast, TupleSlot};
use crate::stripe::{
    handle_for, layout, of_column, source, Datums, Layout, PageReader, Rows, Source,
};
use firn_directory::Xid;
use firn_format::{Slot, Tid};
use std::rc::Rc;

/// Values of the chosen rows in one column; the datums own what the values point to.
#[derive(Default)]
struct Values {
    values: Vec<Datum>,
    nulls: Vec<bool>,
    owners: Vec<Datums>,
}

/// Rows of one batch, handed out one by one.
pub struct UnitRows {
    table: Rel,
    layout: Rc<Layout>,
    reader: Option<PageReader>,
    stripe: Slot,
    xmin: Xid,
    rows: Vec<u32>,
    next: usize,
    columns: Vec<Values>,
    row_values: Vec<Datum>,
    row_nulls: Vec<bool>,
}

impl UnitRows {
    pub fn new(table: Rel) -> UnitRows {
        UnitRows {
            table,
            layout: layout(table),
            reader: None,
            stripe: Slot(0),
            xmin: Xid::NONE,
            rows: Vec::new(),
            next: 0,
            columns: Vec::new(),
            row_values: Vec::new(),
            row_nulls: Vec::new(),
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
        self.columns.clear();
        for i in 0..self.layout.columns.len() {
            self.columns.push(column(&self.layout, reader, toast, i, &rows));
        }
        self.rows = rows;
        self.next = 0;
    }

    /// Put the next row into the slot; false when there is none.
    pub fn next_into(&mut self, slot: TupleSlot) -> bool {
        let Some(row) = self.rows.get(self.next) else { return false };
        let at = self.next;
        self.row_values.clear();
        self.row_nulls.clear();
        for column in &self.columns {
            self.row_values.push(column.values.get(at).copied().unwrap_or(0));
            self.row_nulls.push(column.nulls.get(at).copied().unwrap_or(true));
        }
        let tid = Tid::of(self.stripe, *row);
        slot.store_row(self.table, &self.row_values, &self.row_nulls, tid, self.xmin);
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
) -> Values {
    let mut out = Values::default();
    let handle = reader.handle().clone();
    let (stored, conversion) = match source(layout, handle.outline(toast).columns(), i) {
        Source::Stored { stored, conversion } => (stored, conversion),
        Source::Constant { value, null } => {
            out.values = vec![value; rows.len()];
            out.nulls = vec![null; rows.len()];
            return out;
        }
    };
    for (page, within) in reader.pages_of(toast, stored, rows) {
        let datums = of_column(&handle, &page, stored, (conversion, None), Rows::Some(&within));
        for k in 0..within.len() {
            let (value, null) = datums.get(k);
            out.values.push(value);
            out.nulls.push(null);
        }
        out.owners.push(datums);
    }
    out
}
