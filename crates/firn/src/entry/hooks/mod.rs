//! Hooks into PostgreSQL, each calling the one before it.
//!
//! `executor.rs`: statements begin and end, and COPY. `utility.rs`: other statements, with `alter.rs` (what they leave to be
//! done), `like.rs` (indexes that are not to be cloned), `servers.rs` (foreign servers) and `swapped.rs` (tables not to be touched). `relation_info.rs`: tables
//! before they are planned. `rewrite.rs`: queries before that. `shared.rs`: shared memory, at the server's start.

mod alter;
mod executor;
pub(super) mod like;
mod relation_info;
pub(super) mod rewrite;
mod servers;
mod shared;
mod swapped;
mod utility;

/// Install those that are not the planner's. Called once at library load.
pub(super) fn install() {
    shared::install();
    executor::install();
    utility::install();
    alter::install();
    relation_info::install();
}
