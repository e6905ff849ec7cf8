//! Flags of `firn completions` and `firn man`: what belongs into the shell and the manual.

use clap::{Args as Group, ValueHint};
use clap_complete::Shell;
use std::path::PathBuf;

/// Flags of `firn completions`.
#[derive(Group, Clone, Debug)]
pub struct Completions {
    /// the shell to complete in
    #[arg(value_enum, ignore_case = true)]
    pub shell: Shell,
}

/// Flags of `firn man`.
#[derive(Group, Clone, Debug)]
#[command(override_usage = "firn man [COMMAND]...\n       firn man --dir DIR")]
pub struct Man {
    /// the command to print the page of, e.g. "backup verify"; without one that of firn itself
    #[arg(value_name = "COMMAND")]
    pub command: Vec<String>,
    /// write the pages of all commands into this directory
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "command")]
    pub dir: Option<PathBuf>,
}
