//! The directory of a firn table: which stripes it has, where they are, which of their rows are
//! gone. All of it is rows of the table's TOAST relation; see README.md for keys and protocols.

pub mod allocation;
pub mod chunks;
pub mod counted;
mod entries;
pub mod forward;
pub mod keys;
mod seen;
pub mod tombstones;

pub use entries::{Directory, Found};
