//! Runs of rows of a stripe.

use firn_format::{Column, Selection};
use std::ops::Range;
use std::sync::Arc;

/// Rows of a batch: the page size of narrow columns.
pub const BATCH_ROWS: u32 = 2_048;

/// A run of rows of one stripe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub rows: Range<u32>,
}

impl Batch {
    /// How many batches a stripe of `rows` rows has.
    pub fn count(rows: u32) -> u32 {
        rows.div_ceil(BATCH_ROWS)
    }

    /// Batch `n` of a stripe of `rows` rows; empty beyond its end.
    pub fn number(n: u32, rows: u32) -> Batch {
        let start = n.saturating_mul(BATCH_ROWS).min(rows);
        Batch { rows: start..start.saturating_add(BATCH_ROWS).min(rows) }
    }
}

/// A batch of which rows are wanted.
#[derive(Clone, Debug)]
pub struct DecodedBatch {
    pub batch: Batch,
    /// Rows, counted from the batch's first, that passed the filter and are not deleted. Never empty.
    pub selection: Selection,
    /// The columns asked for, in that order; each has all rows of the batch.
    pub columns: Vec<Arc<Column>>,
}
