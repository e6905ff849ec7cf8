//! One stripe in the making: rows are pushed, whoever is to read them meanwhile does, and a thread of its own encodes it.
//! Inserts and the mover have the same one; where a stripe goes and when it is full is theirs to say.

use crate::pg::datum::{form_numeric, timestamp, Conversion};
use crate::pg::json::push_jsonb;
use crate::pg::{error, thread, xact, Kind, Rel, TupleSlot};
use crate::stripe::{layout, pending_row, Layout, RowBuffer};
use firn_format::{
    ColumnBuilder, ColumnKind, ColumnSpec, Stripe, StripeWriter, Value, WriteOptions,
};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Rows of a table that become one stripe.
pub(crate) struct StripeBuilder {
    layout: Rc<Layout>,
    /// Shared with the encoding thread once that has begun, and with readers.
    writer: Arc<StripeWriter>,
    encoding: Option<Encoding>,
}

impl StripeBuilder {
    /// An empty one, of the table's columns as they are now.
    pub fn new(table: Rel) -> StripeBuilder {
        let layout = layout(table);
        let specs: Vec<ColumnSpec> = layout.columns.iter().flatten().map(|c| c.spec()).collect();
        let writer = Arc::new(StripeWriter::new(specs, WriteOptions::default()));
        StripeBuilder { layout, writer, encoding: None }
    }

    /// Rows so far.
    pub fn rows(&self) -> u32 {
        self.writer.rows()
    }

    /// Bytes of their values, not encoded.
    pub fn raw_bytes(&self) -> usize {
        self.writer.raw_bytes()
    }

    /// It has so many rows, or values of so many bytes.
    pub fn is_full(&self, rows: u32, bytes: usize) -> bool {
        self.rows() >= rows || self.raw_bytes() >= bytes
    }

    /// Somebody else holds its rows: a reader, or who encodes it. It takes no more.
    pub fn is_held(&self) -> bool {
        Arc::strong_count(&self.writer) != 1
    }

    /// Add the row in a slot, of the table's columns.
    pub fn push(&mut self, slot: TupleSlot) {
        match Arc::get_mut(&mut self.writer) {
            Some(writer) => push_row(writer, &self.layout, slot),
            None => error(Kind::Internal, "a stripe that others hold takes no more rows").raise(),
        }
    }

    /// Its rows, for readers.
    pub fn writer(&self) -> Arc<StripeWriter> {
        self.writer.clone()
    }

    /// One of its rows, as it will be read.
    pub fn row(&self, row: u32, out: &mut RowBuffer) {
        pending_row(&self.layout, &self.writer, row, out);
    }

    /// Start to encode it, apart from this session.
    pub fn begin_encoding(&mut self) {
        self.encoding.get_or_insert_with(|| encode_apart(&self.writer));
    }

    /// The stripe; cancel requests are served while it is waited for.
    pub fn finish(&mut self) -> Stripe {
        self.encoding.take().unwrap_or_else(|| encode_apart(&self.writer)).finish()
    }
}

type Encoded = Result<Stripe, firn_format::Error>;

/// A stripe being encoded, or encoded.
enum Encoding {
    Apart(thread::Job<Encoded>),
    Done(Encoded),
}

fn encode_apart(writer: &Arc<StripeWriter>) -> Encoding {
    let writer = writer.clone();
    match thread::spawn(move || writer.encode()) {
        Ok(job) => Encoding::Apart(job),
        // No thread is to be had: it takes longer, that is all.
        Err(work) => Encoding::Done(work()),
    }
}

impl Encoding {
    /// Wait for the result; cancel requests are served meanwhile.
    fn finish(self) -> Stripe {
        let encoded = match self {
            Encoding::Done(encoded) => Some(encoded),
            Encoding::Apart(job) => {
                while !job.is_finished() {
                    xact::check_for_interrupts();
                    std::thread::sleep(Duration::from_micros(500));
                }
                job.join()
            }
        };
        match encoded {
            Some(Ok(stripe)) => stripe,
            Some(Err(e)) => {
                error(Kind::Limit, "could not encode a stripe").detail(e.to_string()).raise()
            }
            None => error(Kind::Internal, "the encoding of a stripe panicked").raise(),
        }
    }
}

/// Push one row; columns that cannot hold a value fall back to a kind that can.
fn push_row(writer: &mut StripeWriter, layout: &Layout, slot: TupleSlot) {
    let row = slot.typed_row(&layout.columns);
    let mut stored = 0;
    for (i, column) in layout.columns.iter().enumerate() {
        let Some(column) = column else { continue };
        let kind = writer.columns()[stored].kind;
        if !row.push(i, kind, writer.column_mut(stored)) {
            let fallback = column.fallback();
            degrade(writer, stored, column.conversion_from(kind), fallback);
            row.push(i, fallback, writer.column_mut(stored));
        }
        stored += 1;
    }
    writer.end_row();
}

/// Turn a column collected so far into the kind `to`.
fn degrade(writer: &mut StripeWriter, column: usize, from: Option<Conversion>, to: ColumnKind) {
    let scale = match from {
        Some(Conversion::Numeric { scale }) => scale,
        _ => 0,
    };
    let spec = ColumnSpec { kind: to, ..writer.columns()[column].clone() };
    let mut all = ColumnBuilder::new(to);
    let mut bytes = Vec::new();
    for row in 0..writer.rows() as usize {
        let value = match writer.value(column, row) {
            Value::I64(v) if from == Some(Conversion::Timestamp) => {
                all.push_i64(timestamp(v));
                continue;
            }
            Value::Bytes(text) if from == Some(Conversion::Jsonb) => {
                bytes.clear();
                push_jsonb(text, None, &mut bytes);
                all.push_bytes(&bytes[4..]);
                continue;
            }
            Value::I64(v) => Some(i128::from(v)),
            Value::I128(v) => Some(v),
            _ => None,
        };
        match value {
            Some(v) => {
                bytes.clear();
                form_numeric(v, scale, &mut bytes);
                all.push_bytes(&bytes[4..]);
            }
            None => all.push_null(),
        }
    }
    writer.replace_column(column, spec, all);
}
