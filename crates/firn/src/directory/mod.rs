//! The directory of a firn table: which stripes it has, where they are, which of their rows are
//! gone. All of it is rows of the table's TOAST relation; see README.md for keys and protocols. What is decided of them
//! is in the crate `firn-directory`, without PostgreSQL; here is where its rows are, and what its errors say.

pub mod allocation;
pub mod carry;
pub mod counts;
mod entries;
pub mod forward;
mod raise;
mod store;
pub mod tombstones;

pub use entries::{Directory, Found};
pub use firn_directory::{
    chunks, clean, cleaned, decode as decode_row, directory_row_of, is_misplaced, keys,
};
pub use raise::{damaged_row, newer_row};

/// The storage of a TOAST relation was emptied: what was remembered of it is forgotten.
pub fn forget(storage: crate::pg::rel::StorageId) {
    store::forget(storage);
    counts::forget(storage);
}
