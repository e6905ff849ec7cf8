//! firn: a table access method whose tables are a row store (PostgreSQL's heap), compressed columnar
//! stripes in the table's own TOAST relation, and cold stripes as Parquet objects.
//!
//! The rooms, from the top down; each imports only rooms below it (`scripts/layers.py`): `entry` (what PostgreSQL calls),
//! `sql` (the SQL functions), `plan` (what the custom nodes do), `am` (rows of stripes, as the access method), `tier` (offload
//! and load), `mover` (compaction), `write` (how rows become stripes), `stripe` (how they are read), `stores` (open object
//! stores), `directory` (what is stored where), `pg` (calls into PostgreSQL).
//! ARCHITECTURE.md says in which order to read them.

// What an unsafe function does is no safer than what others do: each says why it may.
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

mod allocator;
mod am;
mod directory;
mod entry;
mod mover;
mod pg;
mod plan;
mod sql;
mod stores;
mod stripe;
mod tier;
mod write;

pgrx::pg_module_magic!();

/// Called by PostgreSQL when it loads the library.
#[no_mangle]
pub extern "C-unwind" fn _PG_init() {
    // A server started with RUST_BACKTRACE would get a backtrace in the DETAIL of every error.
    std::env::set_var("RUST_LIB_BACKTRACE", "0");
    entry::install();
}
