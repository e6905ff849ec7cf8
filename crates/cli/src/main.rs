//! `firn`: see the library beside this file.

use firn_cli::args::usage::{parse, Refused};
use firn_cli::args::{Cli, Command};
use firn_cli::commands::{backup, completions, man, restore};
use firn_cli::report::{say, secret};
use firn_cli::Result;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let result = match parse(&words) {
        Ok(cli) => run(cli),
        Err(Refused::Shown(text)) => text.exit(),
        Err(Refused::Wrong(e)) => Err(e),
    };
    match result {
        Ok(code) => code,
        Err(e) => {
            say(&format!("firn: error: {}", secret::error(&e)));
            ExitCode::from(e.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command {
        Command::Restore(args) => restore::run(&args),
        Command::Backup(args) => backup::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
