//! The fence: PostgreSQL is called here, and by the entry points that PostgreSQL calls (`entry`), which are the only other
//! place for `unsafe`. Nothing here knows of anything above it. Callbacks that are handed to PostgreSQL from here lead back
//! here, or to what the caller has given along.
//!
//! Everything outside works with the handles defined here. They are `Copy` wrappers of PostgreSQL's
//! own pointers; who holds one upholds PostgreSQL's rules for it (a relation is open and locked, a
//! slot belongs to a running executor node, a snapshot is registered or active). Values have a lifetime (`datum`).
//! PostgreSQL errors arrive as Rust panics that unwind (destructors run) and are raised again unchanged where a
//! callback returns to C (see `errors`). A *plain call*, in comments on safety, asks of its caller no more than every call into
//! PostgreSQL does: the main thread, a session, and pointers that live as long as the call, as those of handles do. Which
//! code may call PostgreSQL how is decision 0011; `make lint` checks it.

pub mod anchor;
pub mod attempt;
pub mod btree;
pub mod catalog;
pub mod change_log;
mod change_tuple;
pub(crate) mod compat;
mod conflicts;
pub mod datum;
pub mod errors;
pub mod ext;
pub mod fate;
pub mod first_conditions;
pub mod fmgr;
mod frozen;
mod glance;
pub mod guc;
pub mod heap;
pub mod index;
pub mod index_clean;
mod index_gap;
pub mod json;
pub mod jsonb;
pub mod known_stores;
pub mod lock;
pub mod mark_moved;
pub mod memory;
pub mod method;
pub mod nodes;
mod of_nulls;
pub mod own_toast;
mod page;
pub mod parallel;
pub mod procedure;
pub mod progress;
pub mod rebuild;
mod recent;
pub mod rel;
pub mod relocate;
pub mod report;
pub mod rowlock;
pub mod scan_keys;
pub mod shared;
pub mod slot;
pub mod snapshot;
pub mod sorter;
pub mod statistics;
pub mod survey;
pub mod thread;
pub mod toast;
pub(crate) mod toast_indexes;
mod toast_read;
mod toast_row;
pub mod toast_scan;
pub mod tuple_size;
pub mod wal;
pub mod wanted;
mod witness;
pub mod worker;
pub mod xact;

pub use attempt::attempt;
pub use change_log::{ChangeLog, OldRow};
pub use fate::Fate;
/// The id of an object: a type of its own, so that none is taken for a number of a block or of a transaction.
pub use pgrx::pg_sys::Oid;
pub use progress::{Count, Phase, Progress};
pub use rel::{IndexKind, LockMode, OpenRel, Rel};
pub use report::{error, Kind};
pub use slot::Slot as TupleSlot;
pub use snapshot::{Snap, SnapKind};
pub use toast::{ChunkKey, Toast};

/// Run the set-up of the library; errors leave it as PostgreSQL errors.
pub fn init(body: impl FnOnce()) {
    // SAFETY: called by PostgreSQL on the main thread.
    unsafe { ext::callback(body) }
}
