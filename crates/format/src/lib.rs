//! What the bytes of a firn table mean: stripes, zone maps, row addresses, directory entries,
//! tombstones and the filter expression. No I/O, no async, no PostgreSQL. See README.md for the
//! layouts.

#![forbid(unsafe_code)]

pub mod address;
pub mod btree;
mod checksum;
pub mod column;
pub mod entry;
pub mod error;
pub mod filter;
pub mod garbage;
pub mod hash;
pub mod keys;
mod packed;
mod page_map;
pub mod read;
pub mod schema;
pub mod toast_index;
pub mod tombstone;
pub mod write;
pub mod zone;

pub use address::{blocks_for, Slot, Tid, ROWS_PER_BLOCK, VIRTUAL_BASE};
pub use column::{ByteColumn, Column, Dictionary, Value, Values};
pub use entry::{DirectoryEntry, EntryState, Location};
pub use error::{Error, ErrorKind, Result};
pub use filter::{CompareOp, Constant, Filter, Selection, Set};
pub use packed::PackedColumn;
pub use read::{
    Decoder, Outline, PageLocation, PageRef, Place, StripeMeta, Workspace, RECORD_BYTES,
};
pub use schema::{ColumnKind, ColumnSpec, Physical};
pub use tombstone::{DeleteVector, Tombstone, TombstoneState};
pub use write::{Codec, ColumnBuilder, Stripe, StripeWriter, WriteOptions};
pub use zone::{Bound, ZoneMap};

/// Version of the stripe format, in the file's key-value metadata.
pub const FORMAT_VERSION: u16 = 1;
