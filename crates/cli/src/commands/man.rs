//! `firn man`: the manual's pages, made from the flags themselves, with what flags cannot say.

use crate::args::shell::Man as Args;
use crate::args::Cli;
use crate::error::{Error, Result};
use clap::{Command, CommandFactory};
use clap_mangen::roff::{bold, roman, Roff};
use clap_mangen::Man;
use std::path::Path;
use std::process::ExitCode;

pub fn run(args: &Args) -> Result<ExitCode> {
    let mut top = Cli::command();
    top.build();
    match &args.dir {
        Some(dir) => {
            for command in all(&top) {
                write(&command, dir)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        None => super::print(&page(find(&top, &args.command)?)?),
    }
}

/// A command and all that is below it.
fn all(command: &Command) -> Vec<Command> {
    let below = command.get_subcommands().filter(|c| !c.is_hide_set());
    std::iter::once(command.clone()).chain(below.flat_map(all)).collect()
}

fn find<'a>(top: &'a Command, words: &[String]) -> Result<&'a Command> {
    words.iter().try_fold(top, |command, word| {
        command.find_subcommand(word).ok_or_else(|| {
            let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            let error = Error::usage(format!("unrecognized command \"{}\"", words.join(" ")));
            match names.is_empty() {
                true => error,
                false => error.hint(format!("Commands are: {}.", names.join(", "))),
            }
        })
    })
}

fn write(command: &Command, dir: &Path) -> Result<()> {
    let path = dir.join(Man::new(command.clone()).get_filename());
    std::fs::write(&path, page(command)?)
        .map_err(|e| Error::io(format!("could not write file \"{}\"", path.display()), &e))
}

/// One page, in the language of `man`.
fn page(command: &Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    let man =
        Man::new(command.clone()).manual("firn").source(Cli::command().render_version().trim());
    let render = |page: &mut Vec<u8>| {
        man.render_title(page)?;
        man.render_name_section(page)?;
        man.render_synopsis_section(page)?;
        man.render_description_section(page)?;
        if command.get_arguments().any(|a| !a.is_hide_set()) {
            man.render_options_section(page)?;
        }
        if command.has_subcommands() {
            man.render_subcommands_section(page)?;
        }
        more(command).to_writer(page)
    };
    render(&mut page).map_err(|e| Error::io("could not make the page", &e))?;
    Ok(page)
}

/// What the flags do not say.
fn more(command: &Command) -> Roff {
    let name = command.get_bin_name().unwrap_or("firn");
    let mut roff = Roff::new();
    let mut terms = |title: &str, terms: &[(&str, &str)]| {
        if terms.is_empty() {
            return;
        }
        roff.control("SH", [title]);
        for (term, meaning) in terms {
            roff.control("TP", []);
            roff.text([bold(*term)]);
            roff.text([roman(*meaning)]);
        }
    };
    let works = matches!(name, "firn restore" | "firn backup" | "firn backup verify");
    terms("EXIT STATUS", exits(name));
    terms("ENVIRONMENT", if works { &ENVIRONMENT } else { &[] });
    terms("EXAMPLES", examples(name));
    let others: &[&str] = match name {
        "firn" => &["firn-restore", "firn-backup"],
        "firn restore" => &["firn-backup", "pg_restore"],
        "firn backup" => &[
            "firn-restore",
            "firn-backup-verify",
            "firn-backup-list",
            "firn-backup-expire",
            "pg_dump",
        ],
        "firn backup verify" | "firn backup list" | "firn backup expire" => {
            &["firn-backup", "firn-restore"]
        }
        _ => &["firn"],
    };
    roff.control("SH", ["SEE ALSO"]);
    let mut line = Vec::new();
    for (i, other) in others.iter().enumerate() {
        line.extend([roman(if i == 0 { "" } else { ", " }), bold(*other), roman("(1)")]);
    }
    roff.text(line);
    roff
}

const ENVIRONMENT: [(&str, &str); 4] = [
    (
        "PGHOST, PGPORT, PGUSER, PGDATABASE, PGPASSFILE, PGSERVICE, PGSSLMODE, ...",
        "How to connect, where no option says so, as for all programs that use libpq.",
    ),
    (
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL",
        "Keys, region and address of the object store behind s3:// addresses.",
    ),
    (
        "FIRN_STORE_OPTIONS",
        "How the object store is used: name=value, separated by commas; max_retries, retry_timeout_ms, \
         request_timeout_ms, connect_timeout_ms, part_bytes and others.",
    ),
    ("TERM", "With \"dumb\" a terminal gets plain lines instead of the live display."),
];

fn exits(name: &str) -> &'static [(&'static str, &'static str)] {
    match name {
        "firn restore" => &[
            ("0", "Everything that was asked for is there."),
            ("1", "Something failed, or is missing; the messages say what."),
            ("2", "The command line is wrong."),
            ("3", "The restored database differs from what it should be."),
            ("130", "It was stopped, by Ctrl-C or SIGTERM."),
        ],
        "firn backup verify" => &[
            ("0", "The backup is whole, and the database equals it if one was compared."),
            ("1", "It could not be checked."),
            ("2", "The command line is wrong."),
            ("3", "Something is missing, changed or different."),
            ("130", "It was stopped, by Ctrl-C or SIGTERM."),
        ],
        "firn backup expire" => &[
            ("0", "What was to be removed is gone."),
            ("1", "Something failed; running it again goes on."),
            ("2", "The command line is wrong."),
            ("130", "It was stopped, by Ctrl-C or SIGTERM; running it again goes on."),
        ],
        "firn backup" => &[
            ("0", "The backup is complete."),
            ("1", "There is no complete backup."),
            ("2", "The command line is wrong."),
            ("130", "It was stopped, by Ctrl-C or SIGTERM."),
        ],
        _ => &[],
    }
}

fn examples(name: &str) -> &'static [(&'static str, &'static str)] {
    match name {
        "firn restore" => &[
            (
                "firn restore -C -d postgres -j 8 shop.dump",
                "Restore into a new database of the archive's name.",
            ),
            (
                "firn restore -d shop --resume shop.dump",
                "Go on after a restore that was stopped or killed.",
            ),
            ("firn restore --dry-run -j 8 shop.dump", "Show the plan, without a server."),
        ],
        "firn backup" => &[
            ("firn backup shop /backups/shop-1", "Back up database shop into a new directory."),
            ("firn backup shop s3://bucket/backups/shop-1", "The same, into an object store."),
            (
                "firn backup --incremental shop /backups/shop-2",
                "Take the files of tables that have not changed from the latest backup beside it.",
            ),
        ],
        "firn backup verify" => &[
            (
                "firn backup verify /backups/shop-1",
                "Read all files and compare them with the manifest.",
            ),
            (
                "firn backup verify -d shop --checksums /backups/shop-1",
                "Also compare a restored database with the backup.",
            ),
        ],
        "firn backup list" => {
            &[("firn backup list s3://bucket/backups", "List the backups below a prefix.")]
        }
        "firn backup expire" => &[
            ("firn backup expire --keep=7 /backups", "Keep the latest seven backups of each database."),
            (
                "firn backup expire --keep-daily=7 --keep-weekly=4 --keep-monthly=12 --dry-run s3://bucket/backups",
                "Show what would be removed.",
            ),
        ],
        "firn completions" => &[(
            "firn completions bash > ~/.local/share/bash-completion/completions/firn",
            "Complete firn's command lines in bash.",
        )],
        "firn man" => &[("firn man restore | man -l -", "Read a page without installing it.")],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn one_page_for_each_command() {
        let dir = std::env::temp_dir().join(format!("firn-man-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        run(&Args { command: Vec::new(), dir: Some(dir.clone()) }).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|f| f.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(
            names,
            [
                "backup-expire",
                "backup-list",
                "backup-verify",
                "backup",
                "completions",
                "man",
                "restore"
            ]
            .iter()
            .map(|n| format!("firn-{n}.1"))
            .chain(["firn.1".to_string()])
            .collect::<Vec<_>>()
        );
    }

    /// The page of a command as lines without the marks of bold and italic.
    fn plain(words: &[&str]) -> String {
        let mut top = Cli::command();
        top.build();
        let words: Vec<String> = words.iter().map(|w| w.to_string()).collect();
        let text = String::from_utf8(page(find(&top, &words).unwrap()).unwrap()).unwrap();
        ["\\fB", "\\fI", "\\fR"]
            .iter()
            .fold(text, |t, mark| t.replace(mark, ""))
            .replace("\\-", "-")
    }

    #[test]
    fn pages_say_all_flags_and_how_it_ends() {
        let page = plain(&["restore"]);
        for part in ["-j, --jobs <NUM>", "--on-error", "EXIT STATUS", "EXAMPLES", "PGHOST"] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
        assert!(plain(&["backup", "verify"]).contains("--checksums"));
        assert!(plain(&[]).contains("firn-backup"));
    }

    #[test]
    fn pages_do_not_depend_on_the_machine() {
        assert!(!plain(&["restore"]).contains("[default: 2]"));
        assert!(!plain(&["backup"]).contains(&std::env::var("HOME").unwrap_or("/home/".into())));
    }

    #[test]
    fn examples_are_right() {
        for name in [
            "firn restore",
            "firn backup",
            "firn backup verify",
            "firn backup list",
            "firn backup expire",
            "firn completions",
            "firn man",
        ] {
            assert!(!examples(name).is_empty(), "{name}");
            for (line, _) in examples(name) {
                let words =
                    line.split([' ', '|', '>']).take_while(|w| !w.is_empty() || line.is_empty());
                assert!(Cli::try_parse_from(words).is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn no_such_command() {
        let mut top = Cli::command();
        top.build();
        let e = find(&top, &["backup".into(), "x".into()]).unwrap_err();
        assert_eq!(e.hint.as_deref(), Some("Commands are: verify, list, expire."));
        assert_eq!(e.exit_code(), 2);
    }
}
