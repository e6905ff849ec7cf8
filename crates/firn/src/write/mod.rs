//! Bulk writing: which inserts go to the row store and which to stripes, and the stripes that this
//! session is collecting. README.md states the protocol.

mod flush;
mod pending;

pub(crate) use flush::{encode_now, store, store_bytes};
pub use flush::{end_command, flush_subtransaction, flush_table};
pub use pending::{
    any_pending, discard_all, discard_subtransaction, insert, insert_many, pending_at, pending_of,
    PendingRef,
};
pub(crate) use pending::{discard_table, most_bytes, push_row};
