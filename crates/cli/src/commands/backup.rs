//! `firn backup`, `firn backup verify`, `firn backup list`, `firn backup expire`.

use super::signals;
use crate::archive::manifest::Encryption;
use crate::archive::Archive;
use crate::args::backup::{Args, Command, Expire, List, Make, Verify};
use crate::args::output::LogFormat;
use crate::backup;
use crate::backup::check::{self, Checked};
use crate::backup::expire::{self, Expired, Fate};
use crate::backup::list::{self, Backup, State};
use crate::error::{Error, ErrorKind, Result};
use crate::report::plain::Lines;
use crate::report::words::{bytes, count, size};
use crate::report::{self, Event, Quiet, Reporter, Watch};
use crate::store::StoreSettings;
use crate::verify::{self, Expected};
use std::io::{stderr, Write};
use std::process::ExitCode;
use std::sync::Arc;

pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        None => make(&args.make),
        Some(Command::Verify(args)) => check(args),
        Some(Command::List(args)) => list(args),
        Some(Command::Expire(args)) => expire(args),
    }
}

fn say(text: &str) {
    report::say(&format!("firn: {text}"));
}

fn make(args: &Make) -> Result<ExitCode> {
    let options = args.options()?;
    let reporter =
        Reporter::start(args.output.settings("backup", &options.destination, options.jobs))?;
    let screen = reporter.clone();
    let stop = signals::begin(move |text| screen.say(text))?;
    let result = backup::run(&options, Arc::new(reporter.clone()), &stop);
    if let Ok(report) = &result {
        tell(&reporter, report);
    }
    let told = reporter.finish(result.as_ref().err());
    result?;
    told.map(|_| ExitCode::SUCCESS)
}

/// What a finished backup has, for the summary.
fn tell(reporter: &Reporter, report: &backup::Report) {
    let manifest = &report.manifest;
    let head = &manifest.head;
    let tables = manifest.tables().count() as u64;
    let fact = |name, value: String| reporter.event(&Event::Fact { name, value: &value });
    fact("tables", count(tables));
    if head.large_objects.count > 0 {
        fact("large objects", count(head.large_objects.count));
    }
    let unchanged: Vec<_> =
        manifest.tables().filter(|(_, table)| table.unchanged_since.is_some()).collect();
    if let Some(base) = &head.base {
        let size: u64 = unchanged.iter().map(|(file, _)| file.size).sum();
        let tables = count(unchanged.len() as u64);
        fact("unchanged", format!("{tables} tables, {}, from \"{base}\"", bytes(size)));
    }
    fact("stored", bytes(manifest.stored()));
    match report.encryption {
        None => {}
        Some(Encryption { passphrase: true, .. }) => {
            fact("encrypted", "with a passphrase".to_string());
        }
        Some(Encryption { recipients, .. }) => {
            let word = if recipients == 1 { "recipient" } else { "recipients" };
            fact("encrypted", format!("for {recipients} {word}"));
        }
    }
    fact("snapshot", format!("of {} at {}", head.snapshot_time, head.snapshot_lsn));
    reporter.event(&Event::Finished);
}

fn check(args: &Verify) -> Result<ExitCode> {
    let jobs = usize::from(args.jobs);
    let watch: Box<dyn Watch> = match args.quiet {
        true => Box::new(Quiet),
        false => Box::new(Lines::new(stderr())),
    };
    let login = args.login()?;
    let stop = signals::begin(say)?;
    let settings = stop.settings();
    let keys = args.locked.keys()?;
    let Checked { manifest, closed, problems } =
        check::check(&args.dest, &settings, keys.as_ref(), jobs, &*watch, &stop)?;
    if !problems.is_empty() {
        for problem in &problems {
            report::print(problem);
        }
        return Err(check::failed(&args.dest, problems.len()));
    }
    if closed && login.is_some() {
        return Err(Error::new(ErrorKind::Key, format!("backup \"{}\" is encrypted", args.dest))
            .hint("To compare a database with it, give --identity=FILE."));
    }
    if let (Some(manifest), false, true) = (&manifest, args.quiet, closed) {
        report::print(&format!(
            "encrypted backup of database \"{}\" as of {}: {} files, {}: no problem",
            manifest.head.database,
            manifest.head.snapshot_time,
            manifest.files.len() + 1,
            size(manifest.stored())
        ));
        let passphrase = manifest.head.encryption.as_ref().is_some_and(|e| e.passphrase);
        let takes = if passphrase { "--passphrase" } else { "--identity=FILE" };
        report::print(&format!("what is in the files was not checked: that takes {takes}"));
    }
    if let (Some(manifest), false, false) = (&manifest, args.quiet, closed) {
        let rows: u64 = manifest.tables().map(|(_, table)| table.rows).sum();
        report::print(&format!(
            "backup of database \"{}\" as of {}: {} files, {}, {} tables with {rows} rows, {} large objects: no problem",
            manifest.head.database,
            manifest.head.snapshot_time,
            manifest.files.len() + 1,
            size(manifest.stored()),
            manifest.tables().count(),
            manifest.head.large_objects.count));
    }
    let Some(login) = login else { return Ok(ExitCode::SUCCESS) };
    let archive = Archive::open_locked(&args.dest, &settings, &keys.unwrap_or_default())?;
    let expected =
        Expected::Archive { archive: &archive, manifest: manifest.as_ref(), selected: &|_| true };
    let outcome = verify::compare(&login, &expected, &args.terms(), &*watch, &stop)?;
    for note in &outcome.notes {
        report::say(&format!("firn: note: {note}"));
    }
    for difference in &outcome.differences {
        report::print(&difference.to_string());
    }
    if let Some(error) = outcome.error() {
        return Err(error);
    }
    if !args.quiet {
        report::print(&format!(
            "the database equals the backup: {} objects, {} tables with {} rows{}",
            outcome.objects,
            outcome.tables,
            outcome.rows,
            if args.checksums { " of the same checksums" } else { "" }
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &List) -> Result<ExitCode> {
    let keys = args.locked.keys()?;
    let stop = signals::begin(say)?;
    let (backups, notes) =
        list::list(&args.parent, &StoreSettings::default(), keys.as_ref(), &stop)?;
    for note in notes {
        say(&format!("note: {}", note.message));
    }
    let text = match args.json {
        true => as_json(&backups)?,
        false => as_table(backups),
    };
    super::print(text.as_bytes())
}

fn expire(args: &Expire) -> Result<ExitCode> {
    let stop = signals::begin(say)?;
    let options = args.options(stop.settings())?;
    let mut out = std::io::stdout().lock();
    let (mut kept, mut removed, mut freed) = (0, 0, 0);
    let result = expire::run(&options, &stop, |backup| {
        match backup.fate {
            Fate::Kept => kept += 1,
            Fate::Removed => {
                removed += 1;
                freed += backup.size;
            }
            Fate::Left | Fate::Failed => {}
        }
        if args.quiet && matches!(backup.fate, Fate::Kept | Fate::Left) {
            return Ok(());
        }
        let line = expired_line(backup, args)?;
        // Whoever reads it may have seen enough; the work goes on.
        match writeln!(out, "{line}") {
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Error::io("could not write to standard output", &e))
            }
            _ => Ok(()),
        }
    });
    for note in result.as_ref().unwrap_or(&Vec::new()) {
        say(&format!("note: {}", note.message));
    }
    if !args.quiet && args.log_format == LogFormat::Text {
        let done = if args.dry_run { "would be removed" } else { "removed" };
        say(&format!("{removed} backups with {} {done}, {kept} kept", size(freed)));
    }
    result.map(|_| ExitCode::SUCCESS)
}

fn expired_line(backup: &Expired, args: &Expire) -> Result<String> {
    if args.log_format == LogFormat::Json {
        let event = serde_json::json!({ "event": "backup", "dry_run": args.dry_run });
        let fields = serde_json::to_value(backup);
        let fields = fields.map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
        let both = [event, fields].into_iter().filter_map(|part| part.as_object().cloned());
        let whole: serde_json::Map<String, serde_json::Value> = both.flatten().collect();
        return Ok(serde_json::Value::Object(whole).to_string());
    }
    let fate = match (backup.fate, args.dry_run) {
        (Fate::Kept, _) => "keep",
        (Fate::Left, _) => "leave",
        (Fate::Removed, true) => "would remove",
        (Fate::Removed, false) => "removed",
        (Fate::Failed, _) => "could not remove",
    };
    let mut what = backup.database.as_deref().unwrap_or("-").to_string();
    for flag in &backup.options {
        what += &format!(" {flag}");
    }
    Ok(format!("{fate} {} ({what}, {}): {}", backup.name, size(backup.size), backup.why))
}

fn as_json(backups: &[Backup]) -> Result<String> {
    let mut text = String::new();
    for backup in backups {
        text += &serde_json::to_string(backup)
            .map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
        text.push('\n');
    }
    Ok(text)
}

fn as_table(backups: Vec<Backup>) -> String {
    let mut rows = vec![["NAME", "DATABASE", "SNAPSHOT", "SIZE", "STATE"].map(str::to_string)];
    for backup in backups {
        let unknown = || "-".to_string();
        let state = match backup.state {
            State::Complete => match (backup.encrypted, backup.opens) {
                (false, _) => "complete",
                (true, Some(false)) => "complete, encrypted, not for this key",
                (true, _) => "complete, encrypted",
            },
            State::Incomplete => "incomplete",
            State::Expired => "being removed",
            State::Archive => "no manifest",
            State::Damaged if backup.lacks.is_some() => "damaged: a file is missing or cut",
            State::Damaged => "damaged manifest",
        };
        let time = backup.snapshot_time.or(backup.started);
        rows.push([
            backup.name,
            backup.database.unwrap_or_else(unknown),
            time.map_or_else(unknown, |t| t.chars().take(19).collect()),
            size(backup.size),
            state.to_string(),
        ]);
    }
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let [a, b, c, d] = [0, 1, 2, 3].map(width);
    rows.iter().fold(String::new(), |mut text, [name, database, time, size, state]| {
        text += &format!("{name:a$}  {database:b$}  {time:c$}  {size:>d$}  {state}\n");
        text
    })
}
