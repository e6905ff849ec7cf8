//! The entry points: what PostgreSQL calls, one folder or file for each of its interfaces.
//!
//! - `tableam/`: the routines of the access methods `firn` and `firn_toast`, and the descriptors of their scans.
//! - `customscan/`: paths, plan nodes and executor nodes (FirnScan, FirnCount, FirnRecheck).
//! - `hooks/`: hooks of planner, executor, utility statements and object changes, each calling the one before it.
//! - `index_only.rs`: index-only scans of B-trees, in the executor's own nodes.
//! - `transaction.rs`: ends of transactions. `fmgr.rs`: SQL functions. `worker.rs`: the background process.
//! - `copying.rs`: what hooks tell the access method.
//!
//! What belongs here is an interface's own business: C's arguments become handles of `pg`, a room below does the work, the
//! result becomes C's again. What decides by firn's rules (which rows are seen, what is written where) belongs to the
//! room that it is about; what only calls PostgreSQL, and may be called from anywhere, to `pg`. Nobody imports this room
//! but `lib.rs`: whoever needs something of it from below gets it as an argument.
//!
//! Beside `pg` it is the only place for `unsafe`: C hands over raw pointers here, as it does there. Which of its functions may
//! call PostgreSQL how is decision 0011.

mod copying;
mod customscan;
mod fmgr;
mod hooks;
mod index_only;
mod tableam;
mod transaction;
mod worker;

/// Set the library up: settings and hooks. Called once, when PostgreSQL loads it.
pub fn install() {
    crate::pg::init(|| {
        crate::pg::guc::define();
        hooks::install();
        transaction::install();
        customscan::install();
        hooks::rewrite::install();
    });
}
