//! Wrong command lines, said as PostgreSQL's programs say them.

use super::{abbreviated, Cli};
use crate::error::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind as Kind};
use clap::{Command, CommandFactory, Parser};
use std::ffi::OsString;

/// What a command line comes to if not to a command to run.
#[derive(Debug)]
pub enum Refused {
    /// It asked for help or the version, or had no word at all: clap's own text, to be shown by `exit()`.
    Shown(clap::Error),
    /// It is wrong.
    Wrong(Error),
}

/// Read a command line; its first word is the program's name.
pub fn parse(words: &[OsString]) -> Result<Cli, Refused> {
    match Cli::try_parse_from(words) {
        Err(e) if e.kind() == Kind::UnknownArgument => {
            match abbreviated::spelled_out(&command_of(words), words).map_err(Refused::Wrong)? {
                Some(words) => Cli::try_parse_from(&words).map_err(|e| refused(e, &words)),
                None => Err(refused(e, words)),
            }
        }
        other => other.map_err(|e| refused(e, words)),
    }
}

fn refused(e: clap::Error, words: &[OsString]) -> Refused {
    match e.kind() {
        Kind::DisplayHelp
        | Kind::DisplayVersion
        | Kind::DisplayHelpOnMissingArgumentOrSubcommand => Refused::Shown(e),
        _ => Refused::Wrong(explain(&e, words)),
    }
}

/// The command that the words name, with its subcommands: `firn backup verify`.
fn command_of(words: &[OsString]) -> Command {
    let mut command = Cli::command();
    command.build();
    for word in words.iter().skip(1) {
        if let Some(found) = word.to_str().and_then(|w| command.find_subcommand(w)) {
            command = found.clone();
        } else if command.get_name() == "firn" {
            break;
        }
    }
    command
}

/// An option as PostgreSQL's messages name it, `-j/--jobs`; clap says `--jobs <NUM>`.
fn named(command: &Command, shown: &str) -> String {
    let word = shown.split([' ', '=']).next().unwrap_or(shown);
    let found = command.get_arguments().find(|arg| {
        word.strip_prefix("--").is_some_and(|long| arg.get_long() == Some(long))
            || word.strip_prefix('-').is_some_and(|short| {
                arg.get_short().is_some_and(|c| short.len() == c.len_utf8() && short.starts_with(c))
            })
    });
    match found.map(|arg| (arg.get_short(), arg.get_long())) {
        Some((Some(short), Some(long))) => format!("-{short}/--{long}"),
        _ => word.to_string(),
    }
}

fn text(e: &clap::Error, kind: ContextKind) -> String {
    match e.get(kind) {
        Some(ContextValue::String(s)) => s.clone(),
        Some(ContextValue::Strings(all)) => all.first().cloned().unwrap_or_default(),
        _ => String::new(),
    }
}

fn list(e: &clap::Error, kind: ContextKind) -> Vec<String> {
    match e.get(kind) {
        Some(ContextValue::String(s)) => vec![s.clone()],
        Some(ContextValue::Strings(all)) => all.clone(),
        _ => Vec::new(),
    }
}

fn explain(e: &clap::Error, words: &[OsString]) -> Error {
    let command = command_of(words);
    let arg = text(e, ContextKind::InvalidArg);
    let value = text(e, ContextKind::InvalidValue);
    let option = |shown: &str| named(&command, shown);
    let mut hints = Vec::new();
    let mut detail = None;
    let message = match e.kind() {
        Kind::UnknownArgument if arg.starts_with('-') => format!("unrecognized option \"{arg}\""),
        Kind::UnknownArgument => format!("too many command-line arguments (first is \"{arg}\")"),
        Kind::TooManyValues if arg.starts_with('-') => {
            format!("option {} takes no value", option(&arg))
        }
        Kind::TooManyValues => format!("too many command-line arguments (first is \"{value}\")"),
        Kind::InvalidSubcommand => {
            format!("unrecognized command \"{}\"", text(e, ContextKind::InvalidSubcommand))
        }
        Kind::InvalidValue if value.is_empty() => {
            format!("option {} requires a value", option(&arg))
        }
        Kind::InvalidValue | Kind::ValueValidation => {
            detail = std::error::Error::source(e).map(|why| sentence(&why.to_string()));
            let what = match arg.starts_with('-') {
                true => format!("option {}", option(&arg)),
                false => arg.trim_matches(['<', '>', '[', ']']).to_string(),
            };
            format!("invalid value \"{value}\" for {what}")
        }
        Kind::ArgumentConflict if e.get(ContextKind::PriorArg).is_some() && !arg.is_empty() => {
            let other = text(e, ContextKind::PriorArg);
            if arg == other {
                format!("option {} was given twice", option(&arg))
            } else {
                let (one, two) = (option(&other), option(&arg));
                format!("options {one} and {two} cannot be used together")
            }
        }
        Kind::MissingRequiredArgument => {
            let missing = list(e, ContextKind::InvalidArg);
            match missing.iter().find(|m| m.starts_with('-')) {
                Some(needed) => {
                    format!("option {} is missing, which another option needs", option(needed))
                }
                None => {
                    let names: Vec<&str> =
                        missing.iter().map(|m| m.trim_matches(['<', '>', '.'])).collect();
                    format!("missing command-line argument: {}", names.join(" "))
                }
            }
        }
        Kind::InvalidUtf8 => "a command-line argument is not valid UTF-8".to_string(),
        _ => first_line(e),
    };
    let suggested =
        [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue];
    if let Some(close) = suggested.iter().map(|kind| text(e, *kind)).find(|s| !s.is_empty()) {
        hints.push(format!("Perhaps you meant \"{close}\"."));
    }
    let valid = list(e, ContextKind::ValidValue);
    if !valid.is_empty() {
        hints.push(format!("Values are: {}.", valid.join(", ")));
    }
    let name = command.get_bin_name().unwrap_or("firn");
    hints.push(format!("Try \"{name} --help\" for more information."));
    let error = Error::usage(message).hint(hints.join(" "));
    match detail {
        Some(detail) => error.detail(detail),
        None => error,
    }
}

/// `0 is not in 1..=1000` as `0 is not in 1..=1000.`
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    let mut sentence: String = first.chain(chars).collect();
    if !sentence.ends_with('.') {
        sentence.push('.');
    }
    sentence
}

/// What clap says itself, without what follows it.
fn first_line(e: &clap::Error) -> String {
    let shown = e.render().to_string();
    let line = shown.lines().next().unwrap_or("wrong command line");
    line.strip_prefix("error: ").unwrap_or(line).replace('\'', "\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        match parse(&words) {
            Err(Refused::Wrong(e)) => {
                assert_eq!(e.exit_code(), 2);
                e.to_string()
            }
            other => panic!("{line}: {other:?}"),
        }
    }

    #[track_caller]
    fn check(line: &str, expected: &str) {
        assert_eq!(message(line), expected, "{line}");
    }

    #[test]
    fn unknown() {
        check(
            "firn restore a --jobz 3",
            "unrecognized option \"--jobz\"\nHINT:  Perhaps you meant \"--jobs\". \
             Try \"firn restore --help\" for more information.",
        );
        check(
            "firn restor a",
            "unrecognized command \"restor\"\nHINT:  Perhaps you meant \"restore\". \
             Try \"firn --help\" for more information.",
        );
        check(
            "firn restore a -k",
            "unrecognized option \"-k\"\nHINT:  Try \"firn restore --help\" for more information.",
        );
    }

    #[test]
    fn too_many_and_too_few() {
        let help = "\nHINT:  Try \"firn restore --help\" for more information.";
        check(
            "firn restore a b c",
            &format!("too many command-line arguments (first is \"b\"){help}"),
        );
        check("firn restore a -h", &format!("option -h/--host requires a value{help}"));
        check("firn restore a --host", &format!("option -h/--host requires a value{help}"));
        let help = "\nHINT:  Try \"firn backup --help\" for more information.";
        check(
            "firn backup a b c",
            &format!("too many command-line arguments (first is \"c\"){help}"),
        );
        check(
            "firn restore a --resume=3",
            "option --resume takes no value\nHINT:  Try \"firn restore --help\" for more information.",
        );
        check("firn backup", &format!("missing command-line argument: DBNAME DEST{help}"));
    }

    #[test]
    fn values() {
        let help = "Try \"firn restore --help\" for more information.";
        check(
            "firn restore a -j 0",
            &format!(
                "invalid value \"0\" for option -j/--jobs\nDETAIL:  0 is not in 1..=1000.\nHINT:  {help}"
            ),
        );
        check(
            "firn restore a --section dat",
            &format!(
                "invalid value \"dat\" for option --section\nHINT:  Perhaps you meant \"data\". \
                 Values are: pre-data, data, post-data. {help}"
            ),
        );
    }

    #[test]
    fn together() {
        let help = "\nHINT:  Try \"firn restore --help\" for more information.";
        // Clap names first the option that says what it does not go with, however they were given.
        for line in ["firn restore a -q -v", "firn restore a -v -q"] {
            let message = message(line);
            assert!(message.contains(&format!(" cannot be used together{help}")), "{message}");
            for part in ["options -", "-q/--quiet", "-v/--verbose"] {
                assert!(message.contains(part), "{message}");
            }
        }
        check(
            "firn man --dir a --dir b",
            "option --dir was given twice\nHINT:  Try \"firn man --help\" for more information.",
        );
        check(
            "firn backup verify b --checksums",
            "option -d/--dbname is missing, which another option needs\n\
             HINT:  Try \"firn backup verify --help\" for more information.",
        );
    }

    #[test]
    fn help_is_no_mistake() {
        for line in
            ["firn", "firn --help", "firn --version", "firn restore -?", "firn backup list --help"]
        {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(matches!(parse(&words), Err(Refused::Shown(_))), "{line}");
        }
    }
}
