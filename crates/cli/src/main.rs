//! `firn`: see the library beside this file.

use clap::Parser;
use firn_cli::args::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Restore(args) => firn_cli::commands::restore::run(&args),
        Command::Backup(args) => firn_cli::commands::backup::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(e) => {
            eprintln!("firn: error: {e}");
            ExitCode::from(e.exit_code())
        }
    }
}
