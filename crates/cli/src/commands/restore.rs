//! `firn restore`.

use super::signals::Signals;
use crate::archive::{Absent, Archive};
use crate::args::restore::Args;
use crate::error::{Error, Result};
use crate::pg::For;
use crate::plan::build::describe;
use crate::plan::select::{choose, unmatched, Filter};
use crate::plan::simulate::{components, simulate};
use crate::plan::{Rules, Work};
use crate::report::file::{NewFile, Readers};
use crate::report::{say, Event, Reporter, Watch};
use crate::restore::{self, facts, journal, session, Options};
use crate::script::server;
use crate::script::text::Text;
use crate::script::walk::walk;
use crate::store::StoreSettings;
use std::io::{self, Write};
use std::process::ExitCode;

pub fn run(args: &Args) -> Result<ExitCode> {
    let signals = Signals::default();
    signals.handle()?;
    let options = args.options()?;
    if args.list {
        return list(&options, args.file.as_deref().unwrap_or("-"));
    }
    if args.dry_run {
        return dry_run(args, &options);
    }
    if let Some(file) = &args.file {
        return script(args, &options, file);
    }
    if !options.named && std::env::var_os("PGDATABASE").is_none() {
        return Err(Error::usage("no target database was given")
            .hint("Name it with -d; with -C that is a database to connect to first, such as \"postgres\"."));
    }
    let reporter =
        Reporter::start(args.output.settings("restore", &options.archive, options.jobs))?;
    let screen = reporter.clone();
    let stop = signals.begin(move |text| screen.say(text));
    let result = match args.one_connection() {
        true => server::run(&options, &args.wishes(options.filter.clone())?, &reporter, &stop),
        false => restore::run(&options, &reporter, &stop),
    };
    let mut ignored = 0;
    if let Ok(report) = &result {
        for what in &report.ignored {
            reporter.event(&Event::Note(&format!("warning: {what}")));
        }
        // Who goes on after errors learns of all of them by the exit code, as from pg_restore.
        if options.go_on_after_errors {
            ignored = report.ignored.len() + report.ended.failures.len();
            reporter.event(&Event::Ignored(report.ignored.len()));
        }
    }
    let told = reporter.finish(result.as_ref().err());
    result?;
    if ignored > 0 {
        say(&format!("firn: warning: errors ignored on restore: {ignored}"));
    }
    let complete = told?;
    Ok(if complete && ignored == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// See [`Options::moment`].
fn tell_moment(options: &Options, archive: &Archive) -> Result<()> {
    if let Some(moment) = options.moment(archive)? {
        say(&format!("firn: backup of {moment}"));
    }
    Ok(())
}

/// The archive as a script for psql.
fn script(args: &Args, options: &Options, file: &str) -> Result<ExitCode> {
    let mut archive = options.open(&StoreSettings::default())?;
    tell_moment(options, &archive)?;
    let filter = options.filter_for(archive.toc(), &mut |line| say(&format!("firn: {line}")))?;
    let options = &Options { filter: filter.clone(), ..options.clone() };
    options.redirect(&mut archive, &mut |line| say(&format!("firn: {line}")))?;
    if let Some(missing) = unmatched(archive.toc(), &filter).filter(|_| options.strict_names) {
        return Err(Error::usage(missing));
    }
    let wishes = args.wishes(filter)?;
    let mut text = Text::create(file)?;
    match walk(&archive, &wishes, &mut text).and_then(|()| text.finish()) {
        Err(e) if !text.closed => Err(e),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// The table of contents, in the form that --use-list takes.
fn list(options: &Options, file: &str) -> Result<ExitCode> {
    let archive = options.open(&StoreSettings::default())?;
    let filter = options.filter_for(archive.toc(), &mut |line| say(&format!("firn: {line}")))?;
    let code = if file == "-" {
        let mut out = io::BufWriter::new(io::stdout().lock());
        super::printed(write_list(&archive, &filter, &mut out).and_then(|()| out.flush()))?
    } else {
        let failed = |e| Error::io(format!("could not write output file \"{file}\""), &e);
        let new = NewFile::create(file, Readers::Usual).map_err(failed)?;
        let mut out = io::BufWriter::new(new);
        let written = write_list(&archive, &filter, &mut out).and_then(|()| out.flush());
        written.and_then(|()| out.get_mut().keep()).map_err(failed)?;
        ExitCode::SUCCESS
    };
    match unmatched(archive.toc(), &filter).filter(|_| options.strict_names) {
        Some(missing) => Err(Error::usage(missing)),
        None => Ok(code),
    }
}

fn write_list(archive: &Archive, filter: &Filter, out: &mut impl Write) -> io::Result<()> {
    let toc = archive.toc();
    let header = archive.header();
    let (major, minor, revision) = header.version;
    let (created, dbname) = (header.created, sanitized(header.dbname.as_bytes()));
    writeln!(out, ";\n; Archive created at {created}\n;     dbname: {dbname}")?;
    writeln!(out, ";     TOC Entries: {}\n;     Compression: {}", toc.len(), header.compression)?;
    writeln!(out, ";     Dump Version: {major}.{minor}-{revision}")?;
    writeln!(out, ";     Format: {}", header.format.to_string().to_ascii_uppercase())?;
    writeln!(
        out,
        ";     Integer: {} bytes\n;     Offset: {} bytes",
        header.int_size, header.offset_size
    )?;
    writeln!(out, ";     Dumped from database version: {}", header.server_version)?;
    writeln!(out, ";     Dumped by pg_dump version: {}", header.dump_version)?;
    writeln!(out, ";\n;\n; Selected TOC Entries:\n;")?;
    let choice = choose(toc, filter);
    for place in choice.order {
        let place = place as usize;
        if !choice.parts[place].any() {
            continue;
        }
        let e = toc.entry(place);
        let schema = e.given(Absent::NAMESPACE).map_or_else(|| "-".to_string(), sanitized);
        writeln!(
            out,
            "{}; {} {} {} {schema} {} {}",
            e.dump_id,
            e.catalog_oid,
            e.oid,
            String::from_utf8_lossy(e.desc),
            sanitized(e.tag),
            sanitized(e.owner)
        )?;
    }
    Ok(())
}

/// A name in one line.
fn sanitized(name: &[u8]) -> String {
    String::from_utf8_lossy(name).replace(['\n', '\r'], " ")
}

/// The plan, and what numbers of connections would bring.
fn dry_run(args: &Args, options: &Options) -> Result<ExitCode> {
    let mut archive = options.open(&StoreSettings::default())?;
    tell_moment(options, &archive)?;
    let filter = options.filter_for(archive.toc(), &mut |line| say(&format!("firn: {line}")))?;
    let options = &Options { filter, ..options.clone() };
    options.redirect(&mut archive, &mut |line| say(&format!("firn: {line}")))?;
    let facts = match options.named {
        true => {
            // As the restore begins: who restores, in which encoding the archive names tables, and what is there.
            let connection = options.connect(None, For::OwnQueries)?;
            session::prepare(&connection, archive.toc(), options, None)?;
            match !options.create && journal::is_there(&connection)? {
                true if options.resume => journal::find(&connection)?.terms.facts,
                true => return Err(journal::unfinished()),
                false => {
                    let mut facts =
                        facts::of(&connection, archive.toc(), options.rules, options.jobs)?;
                    options.add_reloads(&connection, archive.toc(), &mut facts)?;
                    facts
                }
            }
        }
        false => facts::assumed(options.jobs),
    };
    let terms = options.terms(facts);
    let (selection, plan) = restore::plan(&archive, &terms)?;
    let mut out = String::new();
    out += &format!("Entries to restore: {} of {}\n", selection.len(), archive.toc().len());
    out += &format!("Steps: {}\n", plan.steps.len());
    out += &format!(
        "Statements: {} in the archive, {} planned\n",
        plan.statements_archive, plan.statements_planned
    );
    out += "\nRules:\n";
    for (name, place) in Rules::NAMES {
        out += &format!(
            "  {name:28} {}\n",
            if *place(&mut terms.rules.clone()) { "on" } else { "off" }
        );
    }
    let groups: usize = plan.groups.iter().map(|g| g.members.len()).sum();
    let staged: usize = plan.groups.iter().filter(|g| g.staged).map(|g| g.members.len()).sum();
    out += &format!(
        "\nPartitions made by PARTITION OF: {groups}, of these below staging parents: {staged}\n"
    );
    out += &format!(
        "\n{:>5} {:>12} {:>9} {:>12} {:>22}\n",
        "jobs", "seconds", "speed-up", "parallelism", "connected components"
    );
    let slots = terms.facts.lock_slots;
    let one = simulate(&plan, 1, slots, args.server_cores);
    for jobs in [1, 2, 4, 8, 16, 32, 64] {
        let found = simulate(&plan, jobs, slots, args.server_cores);
        let other = components(&plan, jobs);
        out += &format!(
            "{jobs:>5} {:>12.1} {:>9.2} {:>12.2} {:>22.2}\n",
            found.elapsed / 1e6,
            one.elapsed / found.elapsed.max(1.0),
            found.parallelism(),
            other.parallelism()
        );
    }
    if args.output.verbose {
        out += "\nThe longest chain of steps, each waiting for the one before:\n";
        let name = |step: usize| {
            let first = plan.entries(step).first();
            first.map_or(String::new(), |p| describe(&archive.toc().entry(*p as usize)))
        };
        for step in plan.longest_chain() {
            let found = &plan.steps[step];
            if found.work != Work::Milestone {
                let entries = plan.entries(step).len();
                let seconds = f64::from(found.cost) / 1e6;
                out += &format!(
                    "{seconds:>10.3} s {entries:>6} entries  {:?} {}\n",
                    found.work,
                    name(step)
                );
            }
        }
    }
    super::print(out.as_bytes())
}
