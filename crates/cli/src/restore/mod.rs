//! `firn restore`: read the archive, plan, work, finish.
//!
//! - [`source`]: the archive as the flags name it.
//! - [`session`]: connections set up for restoring.
//! - [`facts`]: what the planner wants to know of the server.
//! - [`journal`]: what is done, kept in the target database.
//! - [`work`]: workers that carry batches out.
//! - [`data`]: rows and large objects.
//! - [`database`]: creating the target, dropping what is in the way.
//! - [`tell`]: steps in words and by kind, for those who watch.
//! - [`pieces`]: a table's rows, read ahead.
//! - [`probe`]: whether partitions may be moved in the catalogs of this server.
//! - [`finish`]: ANALYZE at the end.
//! - [`check`]: comparing the result with the archive or the source.

pub mod check;
pub mod data;
pub mod database;
pub mod facts;
pub mod finish;
pub mod journal;
pub mod pieces;
pub mod probe;
pub mod session;
pub mod source;
pub mod tell;
pub mod work;

use crate::archive::{Archive, Format, Toc};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::build::{build, Input};
use crate::plan::family::Sizes;
use crate::plan::render::{Renderer, Style};
use crate::plan::schedule::{Limits, Scheduler};
use crate::plan::select::{select, unmatched, Filter, Selection};
use crate::plan::{Facts, Plan, Rules};
use crate::report::{Event, Watch};
use crate::store::StoreSettings;
use session::Target;
use std::sync::{Arc, OnceLock};
use work::{Ended, Site, Stop};

/// All that a plan follows from, besides the archive. Kept in the journal.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Terms {
    pub filter: Filter,
    pub rules: Rules,
    pub facts: Facts,
    pub no_owner: bool,
    pub no_tablespaces: bool,
    pub no_table_access_method: bool,
    pub clean: bool,
    pub disable_triggers: bool,
    /// The database had objects before.
    #[serde(default)]
    pub had_objects: bool,
    #[serde(skip)]
    chosen: OnceLock<Vec<bool>>,
}

impl Terms {
    /// The entry at a place is made by this restore.
    fn makes(&self, toc: &Toc, place: usize) -> bool {
        let chosen = self.chosen.get_or_init(|| {
            let selection = select(toc, &self.filter);
            (0..toc.len()).map(|p| selection.has(p as u32)).collect()
        });
        chosen.get(place).copied().unwrap_or(false)
    }
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    pub archive: String,
    /// The archive must have this format.
    pub format: Option<Format>,
    /// A list file of what is restored.
    pub use_list: Option<String>,
    pub target: Target,
    pub jobs: usize,
    pub filter: Filter,
    pub rules: Rules,
    pub no_owner: bool,
    pub no_tablespaces: bool,
    pub no_table_access_method: bool,
    pub clean: bool,
    pub if_exists: bool,
    pub create: bool,
    pub resume: bool,
    pub go_on_after_errors: bool,
    pub analyze: bool,
    pub strict_names: bool,
    /// With rows only: triggers of the tables do not fire.
    pub disable_triggers: bool,
    /// Compare the result.
    pub verify: Option<check::Check>,
}

/// How a restore ended.
#[derive(Debug, Default)]
pub struct Report {
    pub ended: Ended,
    pub resumed: usize,
    pub statements_archive: u64,
    pub statements_planned: u64,
    /// Commands that failed while dropping what was there, with --clean.
    pub ignored: Vec<String>,
}

struct DataSizes<'a>(&'a Archive);

impl Sizes for DataSizes<'_> {
    fn data_bytes(&self, place: usize) -> u64 {
        self.0.data_size(place).unwrap_or(0)
    }
}

/// The plan for an archive under given terms.
pub fn plan(archive: &Archive, terms: &Terms) -> Result<(Selection, Plan)> {
    let selection = select(archive.toc(), &terms.filter);
    let sizes = DataSizes(archive);
    let input = Input {
        toc: archive.toc(),
        selection: &selection,
        facts: &terms.facts,
        rules: terms.rules,
        sizes: &sizes,
    };
    let plan = build(&input)?;
    Ok((selection, plan))
}

impl Options {
    pub fn terms(&self, facts: Facts) -> Terms {
        let filter = Filter { create: self.create, ..self.filter.clone() };
        Terms {
            filter,
            rules: self.rules,
            facts,
            no_owner: self.no_owner,
            no_tablespaces: self.no_tablespaces,
            no_table_access_method: self.no_table_access_method,
            clean: self.clean,
            disable_triggers: self.disable_triggers,
            had_objects: false,
            chosen: OnceLock::new(),
        }
    }
}

/// Restore.
pub fn run(options: &Options, watch: &dyn Watch, stop: &Stop) -> Result<Report> {
    watch.event(&Event::Phase("reading the archive"));
    let asked = stop.clone();
    let cancelled = Some(Arc::new(move || asked.is_set()) as _);
    let settings = StoreSettings { cancelled, ..StoreSettings::default() };
    let archive = options.open(&settings)?;
    let filter = options.filter_for(archive.toc(), &mut |line| watch.event(&Event::Note(line)))?;
    let options = &Options { filter, ..options.clone() };
    let created = match options.create {
        true => Some(database::create(&archive, options)?),
        false => None,
    };
    let dbname = created.as_deref();
    let connection = options.target.connect(dbname)?;
    session::prepare(&connection, archive.toc(), &options.target, None)?;
    journal::be_alone(&connection, &|| stop.is_set())?;
    let (database, server_version) = (&connection.database(), connection.server_version());
    watch.event(&Event::Target { database, server_version });
    let found = journal::find(&connection)?;
    let resumed = found.is_some();
    let (terms, done, entries_done) = match (found, options.resume) {
        (Some(found), true) => {
            journal::check(&found, &archive.fingerprint())?;
            (found.terms, found.done, found.entries)
        }
        (Some(_), false) => {
            return Err(Error::usage("the target database holds an unfinished restore")
                .hint("Go on with it by --resume, or restore into another database."))
        }
        (None, _) => {
            if let Some(check) = &options.verify {
                check::can(check, server_version)?;
            }
            let terms = Terms {
                had_objects: check::has_objects(&connection)?,
                ..options.terms(facts::of(&connection, archive.toc(), options.jobs)?)
            };
            (terms, Vec::new(), Vec::new())
        }
    };
    if let Some(reason) = terms.facts.no_staging.as_ref().filter(|_| terms.rules.staged_partitions)
    {
        watch.event(&Event::Note(&format!("the rule staged-partitions is off: {reason}")));
    }
    let fresh = !resumed;
    let mut report = Report { resumed: done.len(), ..Report::default() };
    watch.event(&Event::Phase("planning"));
    let (selection, plan) = plan(&archive, &terms)?;
    if options.strict_names {
        if let Some(name) = unmatched(archive.toc(), &terms.filter) {
            return Err(Error::usage(name));
        }
    }
    if selection.is_empty() {
        // As in pg_restore no error; --strict-names makes it one.
        watch.event(&Event::Note("nothing in the archive matches what is to be restored"));
        watch.event(&Event::Finished);
        return Ok(report);
    }
    report.statements_archive = plan.statements_archive;
    report.statements_planned = plan.statements_planned;
    watch.event(&Event::Planned {
        steps: tell::real_steps(&plan).count(),
        entries: selection.len(),
        statements: plan.statements_planned,
        statements_archive: plan.statements_archive,
        bytes: selection.places().filter_map(|p| archive.data_size(p as usize)).sum(),
    });
    if fresh {
        if terms.clean {
            watch.event(&Event::Phase("dropping"));
            report.ignored = database::clean(&connection, &archive, &selection, options)?;
        }
        journal::begin(&connection, &archive.fingerprint(), &terms)?;
    }
    watch.event(&Event::Phase("restoring"));
    let costs = |steps: &mut dyn Iterator<Item = u32>| tell::costs(&plan, archive.toc(), steps);
    watch.event(&Event::Work {
        steps: tell::real_steps(&plan).count(),
        cost: costs(&mut tell::real_steps(&plan)),
    });
    if !done.is_empty() {
        let cost = costs(&mut done.iter().copied());
        watch.event(&Event::Resumed { done: done.len(), cost });
    }
    let style = Style {
        no_owner: terms.no_owner,
        no_tablespaces: terms.no_tablespaces,
        no_table_access_method: terms.no_table_access_method,
    };
    let renderer = Renderer { toc: archive.toc(), plan: &plan, style };
    let slots = terms.facts.lock_slots;
    let scheduler = Scheduler::new(&plan, options.jobs, slots, &done, Limits::default());
    let mut site = Site::new(
        &archive,
        &plan,
        &terms,
        renderer,
        &options.target,
        dbname,
        scheduler,
        watch,
        stop.clone(),
    );
    site.memory_kb = facts::memory_for_each(&connection, options.jobs)?;
    site.entries_done = entries_done.into_iter().collect();
    site.go_on_after_errors = options.go_on_after_errors;
    let ended = site.run(options.jobs);
    // What has done nothing leaves nothing behind; dropping is something.
    if !terms.clean
        && ended.as_ref().map_or(true, |e| !e.failures.is_empty())
        && connection.is_alive()
        && journal::is_empty(&connection).unwrap_or(false)
    {
        journal::end(&connection)?;
        watch.event(&Event::Unchanged);
    }
    report.ended = ended?;
    if stop.is_set() && report.ended.failures.is_empty() {
        return Err(Error::new(ErrorKind::Cancelled, "canceled by user")
            .hint("Run the same command with --resume to go on."));
    }
    // The journal stays: when the cause is gone, --resume does what is missing.
    if !report.ended.failures.is_empty() {
        return Ok(report);
    }
    if options.analyze && terms.filter.wants_data() {
        watch.event(&Event::Phase("analyzing"));
        finish::analyze(options, dbname, &archive, &selection, watch, stop)?;
    }
    // The connection of the beginning may be gone by now.
    let connection = match connection.is_alive() && connection.query(b"SELECT 1").is_ok() {
        true => connection,
        false => options.target.connect(dbname)?,
    };
    journal::end(&connection)?;
    if let Some(check) = &options.verify {
        let (archive, terms, selection) = (&archive, &terms, &selection);
        let restored = check::Restored { archive, terms, selection, dbname };
        check::check(check, &restored, options, watch, stop)?;
    }
    watch.event(&Event::Finished);
    Ok(report)
}
