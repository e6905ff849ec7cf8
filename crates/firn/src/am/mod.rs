//! The table access method, one file per section of PostgreSQL's tableam.h. Callbacks arrive through
//! `pg::tableam`, which tells rows of the row store (heapam's own code runs) from rows of stripes
//! (the code here runs).

pub mod analyze;
mod analyze_plan;
mod analyze_rows;
pub mod anchors;
pub mod clean_indexes;
pub mod counts;
pub mod fetch;
pub mod index_build;
pub mod moved;
pub mod row_lock;
pub mod rows;
pub mod sample;
pub mod scan;
pub mod tuple;
pub mod vacuum;
