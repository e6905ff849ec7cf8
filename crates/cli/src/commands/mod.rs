//! The subcommands: each reads its flags, does its work by the library's parts, and says how it went.

pub mod backup;
pub mod completions;
pub mod man;
pub mod restore;
mod signals;

use crate::error::{Error, Result};
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Write a command's whole answer to standard output.
fn print(answer: &[u8]) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    printed(out.write_all(answer).and_then(|()| out.flush()))
}

/// How a command ends whose work was to write to standard output. Whoever reads it may have seen enough.
fn printed(written: std::io::Result<()>) -> Result<ExitCode> {
    match written {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Error::io("could not write to standard output", &e))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
