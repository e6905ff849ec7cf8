//! Long options that are cut short, as getopt_long takes them: the beginning of a name that begins no other one.

use crate::error::{Error, Result};
use clap::Command;
use std::ffi::OsString;

/// The long options of `pg_restore` 18. What is short for one of them there is short for it here, whatever else begins so.
const PG_RESTORE: [&str; 52] = [
    "clean",
    "create",
    "data-only",
    "dbname",
    "disable-triggers",
    "enable-row-security",
    "exclude-schema",
    "exit-on-error",
    "file",
    "filter",
    "format",
    "function",
    "host",
    "if-exists",
    "index",
    "jobs",
    "list",
    "no-acl",
    "no-comments",
    "no-data",
    "no-data-for-failed-tables",
    "no-owner",
    "no-password",
    "no-policies",
    "no-privileges",
    "no-publications",
    "no-reconnect",
    "no-schema",
    "no-security-labels",
    "no-statistics",
    "no-subscriptions",
    "no-table-access-method",
    "no-tablespaces",
    "password",
    "port",
    "restrict-key",
    "role",
    "schema",
    "schema-only",
    "section",
    "single-transaction",
    "statistics",
    "statistics-only",
    "strict-names",
    "superuser",
    "table",
    "transaction-size",
    "trigger",
    "use-list",
    "use-set-session-authorization",
    "username",
    "verbose",
];

/// The words of a command line with all options written out, if any was cut short.
pub fn spelled_out(command: &Command, words: &[OsString]) -> Result<Option<Vec<OsString>>> {
    let own: Vec<&str> = command
        .get_arguments()
        .flat_map(|arg| arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default()))
        .collect();
    let known = if command.get_name() == "restore" { &PG_RESTORE[..] } else { &[] };
    let mut found = words.to_vec();
    for word in found.iter_mut().take_while(|word| *word != "--") {
        let Some(text) = word.to_str().and_then(|w| w.strip_prefix("--")) else { continue };
        let name = text.split('=').next().unwrap_or(text);
        if name.is_empty() || own.contains(&name) {
            continue;
        }
        let mut meant = begun_by(name, known);
        if meant.is_empty() {
            meant = begun_by(name, &own);
        }
        match meant[..] {
            [] => {}
            [whole] => *word = format!("--{whole}{}", &text[name.len()..]).into(),
            _ => return Err(ambiguous(command, name, &meant)),
        }
    }
    Ok((found != words).then_some(found))
}

fn begun_by<'a>(name: &str, options: &[&'a str]) -> Vec<&'a str> {
    options.iter().copied().filter(|option| option.starts_with(name)).collect()
}

fn ambiguous(command: &Command, name: &str, meant: &[&str]) -> Error {
    let all: Vec<String> = meant.iter().map(|option| format!("--{option}")).collect();
    let program = command.get_bin_name().unwrap_or("firn");
    Error::usage(format!("option \"--{name}\" is ambiguous"))
        .detail(format!("It begins {}.", all.join(", ")))
        .hint(format!("Try \"{program} --help\" for more information."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::usage::{parse, Refused};

    /// What comes of a command line, as text.
    fn outcome(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        match parse(&words) {
            Ok(cli) => format!("{cli:?}"),
            Err(Refused::Wrong(e)) => e.to_string(),
            Err(Refused::Shown(e)) => e.to_string(),
        }
    }

    #[test]
    fn every_beginning() {
        for option in PG_RESTORE {
            for end in 1..option.len() {
                let name = &option[..end];
                if PG_RESTORE.contains(&name) {
                    continue;
                }
                for value in ["", "=3"] {
                    let found = outcome(&format!("firn restore --{name}{value} a"));
                    match begun_by(name, &PG_RESTORE).len() {
                        1 => {
                            let whole = outcome(&format!("firn restore --{option}{value} a"));
                            assert_eq!(found, whole, "{name} {value}");
                        }
                        _ => assert!(found.contains(" is ambiguous\n"), "{name}: {found}"),
                    }
                }
            }
        }
    }

    #[test]
    fn of_its_own() {
        for (short, whole) in [
            ("firn restore a --resu", "firn restore a --resume"),
            ("firn restore --html=x a", "firn restore --html-report=x a"),
            ("firn backup a b --verb", "firn backup a b --verbose"),
            ("firn backup verify b --qui", "firn backup verify b --quiet"),
        ] {
            assert_eq!(outcome(short), outcome(whole));
        }
        let found = outcome("firn restore a --redirect x");
        assert!(
            found.starts_with("option \"--redirect\" is ambiguous\nDETAIL:  It begins --redirect-"),
            "{found}"
        );
        // After -- there are no options.
        assert!(outcome("firn restore -- --singl").contains("--singl"));
        assert!(outcome("firn restore --nothing-like-it").starts_with("unrecognized option"));
    }
}
