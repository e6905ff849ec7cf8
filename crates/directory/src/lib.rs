//! What is stored where: which slots and addresses are given out, which stripes a table has, which of their rows
//! are gone, where moved rows went. All of it is small rows under keys, in a [`ChunkStore`], and how they
//! are written and read is decided here; where they are and who sees them is the store's affair. No PostgreSQL, no I/O.
//! See README.md for the parts, and crates/firn/src/directory/README.md for keys and protocols.

#![forbid(unsafe_code)]

pub mod allocation;
pub mod carry;
pub mod chunks;
pub mod clean;
pub mod cleaned;
pub mod counted;
mod error;
pub mod forward;
mod frame;
#[cfg(test)]
mod golden;
mod ids;
pub mod rows;
pub mod seen;
mod store;
pub mod tombstones;

pub use error::{Error, Result};
pub use firn_format::keys;
pub use frame::{decode, directory_row_of, is_misplaced, reserved_bytes};
pub use ids::{Cid, Place, Xid};
pub use rows::Found;
pub use store::{
    is_settled, seq_of, unsigned_of, ChunkKey, ChunkRow, ChunkStore, Keep, Met, Row, Witness,
    CHUNK_BYTES,
};
