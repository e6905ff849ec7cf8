//! Bulk writing: which inserts go to the row store and which to stripes, and the stripes that this
//! session is collecting. README.md states the protocol.

mod flush;
mod pending;

pub(crate) use flush::{encode_now, store, store_bytes};
pub use flush::{flush_all, flush_table};
pub(crate) use pending::{discard_table, push_row, write_options};
pub use pending::{insert, insert_many, pending_at, pending_of, PendingRef};

use crate::pg::xact::{self, Event};

/// Follow the ends of transactions. Called once at library load.
pub fn init() {
    xact::on_events(|event| match event {
        Event::BeforeCommit => flush_all(),
        Event::BeforeSubCommit { sub } => flush::flush_subtransaction(sub),
        Event::SubAbort { sub } => pending::discard_subtransaction(sub),
        Event::Ended => pending::discard_all(),
    });
}
