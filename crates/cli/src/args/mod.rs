//! What the command line says.

pub mod backup;
pub mod connect;
pub mod output;
pub mod restore;

use clap::{Parser, Subcommand};

/// Restore and back up PostgreSQL databases, in parallel and verified.
#[derive(Parser, Debug)]
#[command(name = "firn", version, disable_help_subcommand = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Restore a database from an archive made by pg_dump or firn backup
    Restore(Box<restore::Args>),
    /// Back up a database, check backups, list them
    Backup(Box<backup::Args>),
}

/// Connections if nothing else is said: one for each processor.
fn default_jobs() -> u16 {
    std::thread::available_parallelism().map_or(2, |n| n.get().min(64) as u16)
}
