//! The `firn` program: `firn restore` and `firn backup`. It needs no server extension.
//!
//! - [`args`], [`commands`]: the command line.
//! - [`archive`]: what a `pg_dump` archive says (custom, directory and tar format), from a folder or an object store.
//! - [`plan`]: pure decisions: which statements, in which transactions, at the same time as which others.
//! - [`pg`]: the fence around libpq; the only place for `unsafe`.
//! - [`stop`]: how the user, or a part that fails, ends the work.
//! - [`store`]: local paths and object stores, and how to reach them.
//! - [`restore`]: carries a plan out on connections, with a journal in the target database.
//! - [`script`]: what `pg_restore` does on one connection, printed or run.
//! - [`crypt`]: encryption of backups.
//! - [`backup`]: makes, checks and lists backups; [`verify`]: compares a database with what it should be.
//! - [`report`]: what a person sees of it; `row_sum`, `hex`, `say`: a checksum of rows, digits, lines for the terminal, for all of them.

#![deny(unsafe_op_in_unsafe_fn)]
// They panic when nobody reads: `report::say` and `report::print` do not.
#![deny(clippy::print_stderr, clippy::print_stdout)]

pub mod archive;
pub mod args;
pub mod backup;
pub mod commands;
pub mod crypt;
pub mod error;
mod hex;
pub mod pg;
pub mod plan;
pub mod report;
pub mod restore;
pub mod row_sum;
mod say;
pub mod script;
pub mod stop;
pub mod store;
pub mod verify;

pub use error::{Error, Result};
