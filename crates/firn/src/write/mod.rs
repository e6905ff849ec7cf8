//! Bulk writing: which inserts go to the row store and which to stripes, and the stripes that this
//! session is collecting. README.md states the protocol.

mod builder;
mod flush;
mod pending;

pub(crate) use builder::StripeBuilder;
pub use flush::{end_command, flush_subtransaction, flush_table};
pub(crate) use flush::{store, store_bytes};
pub use pending::{
    any_pending, discard_all, discard_subtransaction, insert, insert_many, pending_at, pending_of,
    PendingRef,
};
pub(crate) use pending::{discard_table, most_bytes};
