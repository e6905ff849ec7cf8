//! The directory of a firn table: which stripes it has, where they are, which of their rows are
//! gone. All of it is rows of the table's TOAST relation; see README.md for keys and protocols.

pub mod allocation;
pub mod carry;
pub mod chunks;
pub mod cleaned;
pub mod counted;
mod entries;
pub mod forward;
pub mod keys;
mod seen;
pub mod tombstones;

pub use entries::{
    damaged_row, decode as decode_row, directory_row_of, is_misplaced, Directory, Found,
};
pub use seen::forget;

/// A row of a kind that is not MVCC: it exists, under a key that it alone has, from when it is inserted to when
/// it is deleted, whatever becomes of the transactions that do so. Snapshots say nothing about it.
pub fn is_pinned(key: crate::pg::ChunkKey, data: &[u8]) -> bool {
    match key.id {
        keys::ALLOCATION | keys::INTENT | keys::COUNTED | keys::CLEANED => true,
        _ => is_pinned_tombstone(key, data),
    }
}

/// The row is an anchor.
pub fn is_pinned_tombstone(key: crate::pg::ChunkKey, data: &[u8]) -> bool {
    (keys::TOMBSTONES..=keys::LAST).contains(&key.id) && tombstones::is_anchor(data)
}
