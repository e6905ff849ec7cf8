//! The table access method, one file per section of PostgreSQL's tableam.h. Callbacks arrive through
//! `entry::tableam`, which tells rows of the row store (heapam's own code runs) from rows of stripes
//! (the code here runs).

pub mod analyze;
mod analyze_plan;
mod analyze_rows;
pub mod anchors;
pub mod clean_indexes;
pub mod fetch;
pub mod index_build;
pub mod known;
pub mod moved;
pub mod row_lock;
pub mod rows;
pub mod sample;
pub mod scan;
pub mod tuple;
pub mod vacuum;

use crate::pg::rel::StorageId;

/// A TOAST relation was emptied and keeps its storage: what was remembered of it is to be forgotten. Only
/// this session can have seen it, as the table, or its file, is this transaction's or temporary. The cache
/// of open stripes is left: a handle is that of one stripe, told by its checksum and its time of creation,
/// and verifies where the chunks are.
pub fn forget(storage: StorageId) {
    crate::directory::forget(storage);
    moved::forget_storage(storage);
}
