//! Comparing a database with what it should be.

mod sum;

pub use sum::RowSum;
