//! What the command line says.

mod abbreviated;
pub mod backup;
pub mod connect;
mod filter_file;
mod locked;
pub mod output;
pub mod restore;
pub mod shell;
pub mod usage;

use clap::{Parser, Subcommand};

/// Restore and back up PostgreSQL databases, in parallel and verified.
#[derive(Parser, Debug)]
#[command(name = "firn", version, propagate_version = true, disable_help_subcommand = true)]
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
    /// Print a script by which a shell completes firn's command lines
    Completions(shell::Completions),
    /// Print a page of the manual, or write all pages
    Man(shell::Man),
}

/// Connections if nothing else is said: one for each processor.
fn default_jobs() -> u16 {
    std::thread::available_parallelism().map_or(2, |n| n.get().min(64) as u16)
}
