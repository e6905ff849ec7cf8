//! The directory of a firn table: which stripes it has, where they are, which of their rows are
//! gone. All of it is rows of the table's TOAST relation; see README.md for keys and protocols.

pub mod allocation;
pub mod carry;
pub mod chunks;
pub mod cleaned;
pub mod counted;
pub mod counts;
mod decoded;
mod entries;
pub mod forward;
mod seen;
pub mod tombstones;

pub use decoded::refuse_decoded;
pub use entries::{
    damaged_row, decode as decode_row, directory_row_of, is_misplaced, Directory, Found,
};
pub use firn_format::keys;

/// The storage of a TOAST relation was emptied: what was remembered of it is forgotten.
pub fn forget(storage: crate::pg::rel::StorageId) {
    seen::forget(storage);
    counts::forget(storage);
}
