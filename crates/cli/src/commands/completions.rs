//! `firn completions`: a script by which a shell completes the program's command lines.

use crate::args::shell::Completions;
use crate::args::Cli;
use crate::error::Result;
use clap::CommandFactory;
use clap_complete::Shell;
use std::process::ExitCode;

/// The script for a shell.
pub fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "firn", &mut script);
    script
}

pub fn run(args: &Completions) -> Result<ExitCode> {
    super::print(&script(args.shell))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_shell_has_every_command() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(script(*shell)).unwrap();
            for word in ["restore", "backup", "verify", "list", "expire", "completions", "man"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
            for flag in ["on-error", "compress", "html-report", "checksums"] {
                assert!(script.contains(flag), "{shell}: {flag}");
            }
        }
    }
}
