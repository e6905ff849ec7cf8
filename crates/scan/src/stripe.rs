//! What is known of a stripe before a byte of its rows is read.

use firn_format::{ColumnKind, DeleteVector, StripeMeta, ZoneMap};
use std::sync::Arc;

/// A stripe as a snapshot sees it. It never changes, and may go to another thread.
#[derive(Clone)]
pub struct FrozenStripe {
    pub meta: Arc<StripeMeta>,
    /// Rows that the snapshot does not see any more; None when there are none.
    pub deleted: Option<Arc<DeleteVector>>,
}

impl FrozenStripe {
    /// What the page index says of these rows in a column; unknown when several pages cover them.
    pub(crate) fn zone(&self, column: usize, rows: &std::ops::Range<u32>) -> Option<ZoneMap> {
        let first = self.meta.page_of(column, rows.start);
        let last = self.meta.page_of(column, rows.end.saturating_sub(1));
        (first == last).then(|| self.meta.page_zone(column, first)).flatten()
    }

    /// The column's values are unsigned integers, kept in signed ones.
    pub(crate) fn is_unsigned(&self, column: usize) -> bool {
        self.meta.columns().get(column).is_some_and(|c| c.kind == ColumnKind::UInt32)
    }
}
