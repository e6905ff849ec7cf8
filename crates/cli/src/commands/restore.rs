//! `firn restore`.

use crate::archive::Archive;
use crate::args::restore::Args;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::build::describe;
use crate::plan::select::select;
use crate::plan::simulate::{components, simulate};
use crate::plan::{Rules, Work};
use crate::report::{Event, Reporter, Watch};
use crate::restore::work::Stop;
use crate::restore::{self, facts, Options};
use std::io::{self, Write};
use std::process::ExitCode;

pub fn run(args: &Args) -> Result<ExitCode> {
    let options = args.options()?;
    if args.list {
        return list(&options);
    }
    if args.dry_run {
        return dry_run(args, &options);
    }
    if options.target.dbname.is_none() && std::env::var_os("PGDATABASE").is_none() {
        return Err(Error::usage("no target database was given")
            .hint("Name it with -d; with -C that is a database to connect to first, such as \"postgres\"."));
    }
    let reporter = Reporter::start(args.output.settings("restore", &args.archive, options.jobs))?;
    let stop = Stop::default();
    let (handle, screen) = (stop.clone(), reporter.clone());
    ctrlc::set_handler(move || {
        if handle.is_set() {
            std::process::exit(130);
        }
        screen.say("stopping; press Ctrl-C again to leave at once");
        handle.stop();
    })
    .map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
    let result = restore::run(&options, &reporter, &stop);
    if let Ok(report) = &result {
        for what in &report.ignored {
            reporter.event(&Event::Note(&format!("warning: could not drop {what}")));
        }
    }
    let complete = reporter.finish(result.as_ref().err());
    result?;
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The table of contents, in the form that --use-list takes.
fn list(options: &Options) -> Result<ExitCode> {
    let archive = Archive::open(&options.archive)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    super::printed(write_list(&archive, options, &mut out).and_then(|()| out.flush()))
}

fn write_list(archive: &Archive, options: &Options, out: &mut impl Write) -> io::Result<()> {
    let toc = archive.toc();
    let selection = select(toc, &options.filter);
    let text = |t: &[u8]| match t {
        b"" => "-".to_string(),
        t => String::from_utf8_lossy(t).replace(['\n', '\r'], " "),
    };
    let header = archive.header();
    writeln!(
        out,
        ";\n; Archive created at {}\n;     dbname: {}\n;     TOC Entries: {}",
        header.created,
        header.dbname,
        toc.len()
    )?;
    writeln!(
        out,
        ";     Dumped from database version: {}\n;     Dumped by pg_dump version: {}\n;",
        header.server_version, header.dump_version
    )?;
    for place in selection.places() {
        let e = toc.entry(place as usize);
        writeln!(
            out,
            "{}; {} {} {} {} {} {}",
            e.dump_id,
            e.catalog_oid,
            e.oid,
            text(e.desc),
            text(e.namespace),
            text(e.tag),
            String::from_utf8_lossy(e.owner)
        )?;
    }
    Ok(())
}

/// The plan, and what numbers of connections would bring.
fn dry_run(args: &Args, options: &Options) -> Result<ExitCode> {
    let archive = Archive::open(&options.archive)?;
    let facts = match &options.target.dbname {
        Some(_) => facts::of(&options.target.connect(None)?, archive.toc(), options.jobs)?,
        None => facts::assumed(options.jobs),
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
