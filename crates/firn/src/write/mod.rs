//! Bulk writing: which inserts go to the row store and which to stripes, and the stripes that this
//! session is collecting. README.md states the protocol.

mod flush;
mod pending;

pub(crate) use flush::{encode_now, store, store_bytes};
pub use flush::{end_command, flush_table};
pub use pending::{any_pending, insert, insert_many, pending_at, pending_of, PendingRef};
pub(crate) use pending::{discard_table, most_bytes, push_row, write_options};

use crate::pg::hooks;
use crate::pg::xact::{self, Event};

/// Follow the ends of transactions. Called once at library load.
pub fn init() {
    xact::on_events(|event| match event {
        Event::BeforeCommit | Event::BeforeSubCommit => flush::flush_subtransaction(),
        Event::SubAbort { sub } => {
            hooks::forget_copy();
            pending::discard_subtransaction(sub)
        }
        Event::Ended => {
            hooks::forget_copy();
            pending::discard_all();
            crate::am::moved::forget();
        }
    });
}
