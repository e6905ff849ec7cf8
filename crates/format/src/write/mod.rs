//! Writing stripes: rows are collected by column and encoded as one Parquet file with one row group.

mod builder;
mod choose;
mod encode;
mod far;
mod zones;

pub use builder::ColumnBuilder;
pub use encode::Stripe;

use crate::column::Value;
use crate::error::Result;
use crate::schema::ColumnSpec;

/// Compression of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Codec {
    None,
    /// LZ4 blocks (Parquet's LZ4_RAW): quickest to read single rows from.
    Lz4,
    /// Zstandard at this level; level 3 is the default.
    Zstd(i32),
}

/// How a stripe is encoded.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    pub codec: Codec,
    /// Rows of a page.
    pub page_rows: usize,
    /// Bytes of a page of wide values; such columns get smaller pages, so that a look-up decodes
    /// little.
    pub text_page_bytes: usize,
    /// The same of documents (json, jsonb), which are looked up by key more often than they are scanned, and whose scan costs
    /// more for what becomes of them than for their pages.
    pub json_page_bytes: usize,
}

impl WriteOptions {
    /// Bytes of a page of a column of wide values.
    fn page_bytes(&self, spec: &ColumnSpec) -> usize {
        match spec.type_name.as_str() {
            "json" | "jsonb" => self.json_page_bytes.min(self.text_page_bytes),
            _ => self.text_page_bytes,
        }
    }
}

impl Default for WriteOptions {
    fn default() -> Self {
        WriteOptions {
            codec: Codec::Zstd(3),
            page_rows: 2_048,
            text_page_bytes: 16_384,
            json_page_bytes: 4_096,
        }
    }
}

/// Rows being collected for a stripe.
pub struct StripeWriter {
    columns: Vec<ColumnSpec>,
    builders: Vec<ColumnBuilder>,
    options: WriteOptions,
    rows: u32,
}

impl StripeWriter {
    pub fn new(columns: Vec<ColumnSpec>, options: WriteOptions) -> StripeWriter {
        let builders = columns.iter().map(|c| ColumnBuilder::new(c.kind)).collect();
        StripeWriter { columns, builders, options, rows: 0 }
    }
    pub fn columns(&self) -> &[ColumnSpec] {
        &self.columns
    }
    /// The builder of column `i`; one value is to be pushed per row.
    pub fn column_mut(&mut self, i: usize) -> &mut ColumnBuilder {
        &mut self.builders[i]
    }
    /// Exchange a column for one of another kind with the same rows.
    pub fn replace_column(&mut self, i: usize, spec: ColumnSpec, builder: ColumnBuilder) {
        self.columns[i] = spec;
        self.builders[i] = builder;
    }
    /// All columns of the row have been pushed.
    pub fn end_row(&mut self) {
        self.rows += 1;
    }
    pub fn rows(&self) -> u32 {
        self.rows
    }
    /// Memory that the collected values take, bytes.
    pub fn raw_bytes(&self) -> usize {
        self.builders.iter().map(ColumnBuilder::bytes).sum()
    }
    /// A value already pushed.
    pub fn value(&self, column: usize, row: usize) -> Value<'_> {
        self.builders.get(column).map_or(Value::Null, |b| b.value(row))
    }
    /// Encode all rows. Takes CPU time; the rows stay readable meanwhile.
    pub fn encode(&self) -> Result<Stripe> {
        encode::encode(&self.columns, &self.builders, &self.options, self.rows)
    }
}
