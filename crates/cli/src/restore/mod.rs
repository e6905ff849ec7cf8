//! `firn restore`: read the archive, plan, work, finish.
//!
//! - [`asked`]: what the flags ask for that scripts ask for, too.
//! - [`source`]: the archive as the flags name it.
//! - [`session`]: connections set up for restoring.
//! - [`facts`]: what the planner wants to know of the server.
//! - [`journal`]: what is done, kept in the target database.
//! - [`work`]: workers that carry batches out.
//! - [`data`]: rows and large objects.
//! - [`left_out`]: rows that tables did not take.
//! - [`database`]: creating the target, dropping what is in the way.
//! - [`tell`]: steps in words and by kind, for those who watch.
//! - [`together`]: what all connections do at the end.
//! - [`pieces`]: a table's rows, read ahead.
//! - [`unlogged`]: tables that a crash of the server empties.
//! - [`probe`]: whether partitions may be moved in the catalogs of this server.
//! - [`finish`]: ANALYZE at the end.
//! - [`reload`]: tables that are emptied and filled anew.
//! - [`pass`]: from a connection to the end of the plan, and again when the connection was lost.
//! - [`proof`]: comparing the result with the plan, the journal and the archive, by the catalogs: always done.
//! - [`check`]: comparing the result with the archive or the source, by a dump of it.

mod asked;
mod behind;
pub mod check;
mod cut;
pub mod data;
pub mod database;
pub mod facts;
pub mod finish;
mod generated;
pub mod journal;
pub mod left_out;
mod pass;
pub mod pieces;
pub mod probe;
pub mod proof;
pub mod reload;
mod remade;
pub mod session;
pub mod source;
pub mod tell;
mod together;
mod too_early;
mod unlogged;
pub mod work;

use crate::archive::{Archive, Format, Toc};
use crate::crypt::Keys;
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{Connection, For, Login};
use crate::plan::build::{build, Input};
use crate::plan::family::Sizes;
use crate::plan::redirect::Redirects;
use crate::plan::render::{Refused, Renderer};
use crate::plan::select::{select, unmatched, Filter, Selection};
use crate::plan::{Facts, Plan, Rules};
use crate::report::{Event, Watch};
use crate::stop::{Cancels, Stop};
pub use asked::Asked;
use journal::{Done, Identity};
use left_out::LeftOut;
use std::sync::{Arc, OnceLock};
use work::Ended;

/// All that a plan follows from, besides the archive. Kept in the journal.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Terms {
    pub filter: Filter,
    pub rules: Rules,
    pub facts: Facts,
    #[serde(flatten)]
    pub asked: Asked,
    #[serde(default)]
    pub strict_names: bool,
    #[serde(default)]
    pub row_security: bool,
    /// Tables are emptied before they get their rows.
    #[serde(default)]
    pub truncate: bool,
    #[serde(default)]
    pub redirects: Redirects,
    /// The database had objects before.
    #[serde(default)]
    pub had_objects: bool,
    /// The role that the database was made for, without its owner.
    #[serde(default)]
    pub made_for: Option<u32>,
    #[serde(skip)]
    chosen: OnceLock<Selection>,
}

impl Terms {
    /// The entry at a place is made by this restore.
    fn makes(&self, toc: &Toc, place: usize) -> bool {
        place < toc.len() && self.selection(toc).has(place as u32)
    }

    fn selection(&self, toc: &Toc) -> &Selection {
        self.chosen.get_or_init(|| select(toc, &self.filter))
    }

    /// Triggers do not fire while rows are loaded: of tables that were there before. As in `pg_restore`, an archive or a list
    /// without definitions says that as well as -a does.
    fn silences_triggers(&self, toc: &Toc) -> bool {
        self.asked.disable_triggers && self.selection(toc).rows_only()
    }

    /// The table whose rows an entry has, if this restore makes it.
    pub fn table_made(&self, toc: &Toc, place: usize) -> Option<usize> {
        let entry = toc.entry(place);
        let tables = entry.dependencies.iter().filter_map(|d| toc.place(*d));
        let own = |p: &usize| {
            let table = toc.entry(*p);
            table.desc == b"TABLE" && table.tag == entry.tag && table.namespace == entry.namespace
        };
        let made = |p: &usize| {
            // What may have been there before was not made.
            let defn = toc.entry(*p).defn;
            defn.starts_with(b"CREATE ") && !defn.starts_with(b"CREATE TABLE IF NOT EXISTS ")
        };
        tables.filter(own).find(|p| made(p) && self.makes(toc, *p))
    }
}

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    pub archive: String,
    /// The archive must have this format.
    pub format: Option<Format>,
    /// What opens an encrypted backup.
    pub keys: Keys,
    /// A list file of what is restored.
    pub use_list: Option<String>,
    pub login: Login,
    /// `-d` was given. What it does not say, or all without it, comes from the environment.
    pub named: bool,
    pub jobs: usize,
    pub filter: Filter,
    pub rules: Rules,
    pub asked: Asked,
    pub create: bool,
    pub resume: bool,
    pub go_on_after_errors: bool,
    /// What cannot be dropped, with --clean, ends it.
    pub stop_at_drops: bool,
    pub analyze: bool,
    pub strict_names: bool,
    /// With rows only: tables are emptied before they get theirs.
    pub truncate: bool,
    pub redirects: Redirects,
    /// Count the rows of each table that got some, at the end.
    pub count_rows: bool,
    /// Compare the result with the archive or the source by a dump of it.
    pub verify: Option<check::Check>,
}

/// How a restore ended.
#[derive(Debug, Default)]
pub struct Report {
    pub ended: Ended,
    pub resumed: usize,
    pub statements_archive: u64,
    pub statements_planned: u64,
    /// Commands that failed and were passed over: dropping what was there, with --clean; the owner of a new database.
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

impl Terms {
    /// What differs from other terms, by the names of the fields; what was found on the server is no matter of choice.
    fn differences(&self, other: &Terms) -> Vec<String> {
        let fields = |terms: &Terms| {
            let value = serde_json::to_value(terms).unwrap_or_default();
            let mut all = value.as_object().cloned().unwrap_or_default();
            all.remove("facts");
            all.remove("had_objects");
            all.remove("made_for");
            let mut flat = Vec::new();
            for (name, value) in all {
                match value.as_object() {
                    Some(inner) => flat.extend(inner.clone()),
                    None => flat.push((name, value)),
                }
            }
            flat
        };
        let (own, others) = (fields(self), fields(other));
        own.into_iter().filter(|field| !others.contains(field)).map(|(name, _)| name).collect()
    }
}

impl Options {
    pub fn terms(&self, facts: Facts) -> Terms {
        let filter = Filter { create: self.create, ..self.filter.clone() };
        Terms {
            filter,
            rules: self.rules,
            facts,
            asked: self.asked.clone(),
            strict_names: self.strict_names,
            row_security: self.login.row_security,
            truncate: self.truncate,
            redirects: self.redirects.clone(),
            had_objects: false,
            made_for: None,
            chosen: OnceLock::new(),
        }
    }
}

/// All that passes have in common.
struct Job<'a> {
    archive: &'a Archive,
    options: &'a Options,
    dbname: Option<&'a str>,
    terms: Terms,
    selection: Selection,
    plan: Plan,
    left_out: Arc<LeftOut>,
    /// The connection that is asked is within a transaction, which goes on whatever comes of a question.
    open: bool,
    watch: &'a dyn Watch,
    stop: &'a Stop,
}

impl Job<'_> {
    fn connect(&self) -> Result<Connection> {
        let connection = self.options.connect(self.dbname, For::OwnQueries)?;
        session::prepare(&connection, self.archive.toc(), self.options, None)?;
        Ok(connection)
    }

    fn renderer(&self) -> Renderer<'_> {
        let style = self.terms.asked.style;
        let role = self.options.login.role.as_ref().map(|role| role.as_bytes());
        let (toc, plan) = (self.archive.toc(), &self.plan);
        Renderer { toc, plan, style, role, refused: Refused::default() }
    }
}

/// Restore.
pub fn run(options: &Options, watch: &dyn Watch, stop: &Stop) -> Result<Report> {
    restore(options, watch, stop).map_err(|e| stop.or_stopped(e))
}

fn restore(options: &Options, watch: &dyn Watch, stop: &Stop) -> Result<Report> {
    watch.event(&Event::Phase("reading the archive"));
    let archive = options.open(&stop.settings())?;
    options.tell_moment(&archive, watch)?;
    let filter = options.filter_for(archive.toc(), &mut |line| watch.event(&Event::Note(line)))?;
    let options = &Options { filter, ..options.clone() };
    let mut archive = archive;
    options.redirect(&mut archive, &mut |line| watch.event(&Event::Note(line)))?;
    let archive = archive;
    let created = match options.create {
        true => Some(database::create(&archive, options, watch, stop)?),
        false => None,
    };
    let dbname = created.as_ref().map(|made| &made.name[..]);
    let ownerless = created.as_ref().and_then(|made| made.ownerless.clone());
    let connection = options.connect(dbname, For::OwnQueries)?;
    let cancels = stop.cancels(&connection);
    session::prepare(&connection, archive.toc(), options, None)?;
    journal::fence::be_alone(&connection, None, &|| stop.is_set())?;
    let (database, server_version) = (&connection.database(), connection.server_version());
    watch.event(&Event::Target { database, server_version });
    let found = match (journal::is_there(&connection)?, options.resume) {
        (true, true) => Some(journal::find(&connection)?),
        (true, false) => return Err(journal::unfinished()),
        (false, _) => None,
    };
    let now = |facts| options.terms(facts);
    let terms = match &found {
        Some(found) => {
            let differ = found.terms.differences(&now(found.terms.facts.clone()));
            if !differ.is_empty() {
                return Err(Error::usage("the unfinished restore was begun with other options")
                    .detail(format!("They differ in: {}.", differ.join(", ")))
                    .hint("Use --resume with the options that it was begun with."));
            }
            found.terms.clone()
        }
        None => {
            if let Some(check) = &options.verify {
                check::can(check, server_version)?;
            }
            let mut facts = facts::of(&connection, archive.toc(), options.rules, options.jobs)?;
            // A trial that is cancelled is one that failed.
            stop.check()?;
            options.add_reloads(&connection, archive.toc(), &mut facts)?;
            let had_objects = check::has_objects(&connection)?;
            let made_for = match &ownerless {
                Some(_) => database::maker(&connection)?,
                None => None,
            };
            Terms { had_objects, made_for, ..now(facts) }
        }
    };
    if let Some(reason) = terms.facts.no_staging.as_ref().filter(|_| terms.rules.staged_partitions)
    {
        watch.event(&Event::Note(&format!("the rule staged-partitions is off: {reason}")));
    }
    watch.event(&Event::Phase("planning"));
    let (selection, plan) = plan(&archive, &terms)?;
    let identity = identity(&connection, &archive, &plan)?;
    if let Some(found) = &found {
        journal::check(&found.identity, &identity)?;
    }
    if options.strict_names {
        if let Some(name) = unmatched(archive.toc(), &terms.filter) {
            return Err(Error::usage(name));
        }
    }
    let ours = journal::schema();
    if selection
        .places()
        .map(|p| archive.toc().entry(p as usize))
        .any(|e| e.desc == b"SCHEMA" && e.tag == ours)
    {
        return Err(Error::usage("the archive has a schema of the name of a restore's journal")
            .detail("It was made while a restore into its database was unfinished.")
            .hint("Leave the schema out: --exclude-schema=firn_restore."));
    }
    let mut report = Report {
        statements_archive: plan.statements_archive,
        statements_planned: plan.statements_planned,
        ignored: ownerless.into_iter().collect(),
        ..Report::default()
    };
    if selection.is_empty() {
        // As in pg_restore no error; --strict-names makes it one.
        watch.event(&Event::Note("nothing in the archive matches what is to be restored"));
        watch.event(&Event::Finished);
        return Ok(report);
    }
    watch.event(&Event::Planned {
        steps: tell::real_steps(&plan).count(),
        entries: selection.len(),
        statements: plan.statements_planned,
        statements_archive: plan.statements_archive,
        bytes: selection.places().filter_map(|p| archive.data_size(p as usize)).sum(),
    });
    if found.is_none() {
        if options.resume {
            // It may have been complete already. To do it again would double rows.
            if let Some(what) = check::already_there(&connection, &archive, &terms, &selection)? {
                return Err(Error::usage("there is no unfinished restore in the target database")
                    .detail(what)
                    .hint(begin_anew(&terms)));
            }
            if options.create {
                database::tell_owner(&connection, &archive, options, watch)?;
            }
        }
        if terms.asked.clean {
            watch.event(&Event::Phase("dropping"));
            let failed = database::clean(&connection, &archive, &selection, options, watch, stop)?;
            report.ignored.extend(failed.into_iter().map(|what| format!("could not drop {what}")));
        }
        journal::begin(&connection, &identity, &terms)?;
    } else if terms.made_for.is_some() {
        report.ignored.extend(database::give(&connection, &archive, options, &terms, watch)?);
    }
    database::settings(&connection, &archive, &selection)?;
    let left_out = Arc::default();
    let archive = &archive;
    let open = false;
    let job = Job { archive, options, dbname, terms, selection, plan, left_out, open, watch, stop };
    // What is asked after a stop is what to tell of it.
    drop(cancels);
    let mut connection = connection;
    for again in 0.. {
        let (alone, ended) = pass::all(&job, connection, &mut report.resumed)?;
        report.ended = ended;
        // The journal stays: when the cause is gone, --resume does what is missing.
        if !report.ended.failures.is_empty() {
            job.left_out.sum_up(watch);
            return Ok(report);
        }
        let before = alone.backend_pid();
        match finish(&job, alone).map_err(|e| stop.or_stopped(e)) {
            Ok(()) => break,
            Err(e) if e.kind == ErrorKind::Cancelled && e.hint.is_none() => {
                return Err(e.hint("All is restored: --resume does what is left."));
            }
            // A crash may have emptied unlogged tables.
            Err(e)
                if e.kind == ErrorKind::Connection && e.message != UNHEARD && again < FINISHES =>
            {
                connection = pass::again(&job, &e, before)?;
            }
            Err(e) => return Err(e),
        }
    }
    job.left_out.sum_up(watch);
    watch.event(&Event::Finished);
    Ok(report)
}

/// What to do where there is no journal. With these flags what is there need not be of a complete restore.
fn begin_anew(terms: &Terms) -> &'static str {
    match (terms.asked.clean, terms.truncate) {
        (true, _) => {
            "The restore may be complete, or have ended before it had dropped all. Without --resume a new one begins, and drops first."
        }
        (_, true) => {
            "The restore may be complete, or have ended before it changed anything. Without --resume a new one begins, and empties the tables first."
        }
        _ => "The restore may be complete. Without --resume a new one begins.",
    }
}

/// How often the end of a restore is begun again when the connection is lost meanwhile.
const FINISHES: usize = 3;

/// What comes when all steps are done: ANALYZE, and comparing. The journal goes last, so that a run that is ended
/// meanwhile is resumed here.
fn finish(job: &Job, connection: Connection) -> Result<()> {
    let Job { archive, options, dbname, terms, selection, watch, stop, .. } = job;
    let cancels = stop.cancels(&connection);
    let recorded = journal::done(&connection, job.plan.steps.len())?;
    proof::of(job, &connection, &recorded)?;
    // Since the first connection began the archive may have set something for sessions in the database.
    if proof::money::may_be(job) {
        proof::money::compare(job, &job.connect()?)?;
    }
    let restored = check::Restored { archive, terms, selection, dbname: *dbname };
    if options.analyze && terms.filter.wants_data() {
        watch.event(&Event::Phase("analyzing"));
        let hint = "All is restored; run ANALYZE yourself, or the command with --resume.";
        let witness = finish::Witness::Kept(&connection);
        finish::analyze(&restored, options, witness, *watch, stop, hint)?;
    }
    let verify = options.verify.as_ref();
    let compared = verify.map(|check| check::check(check, &restored, options, *watch, stop));
    if let Some(Err(e)) = &compared {
        // Whoever has been told of differences need not be told again; other errors may go away.
        if e.kind != ErrorKind::Verify {
            return Err(e.clone());
        }
    }
    let without = behind::look(job, &connection)?;
    let told = behind::joined(compared.and_then(Result::err), without);
    // The journal, which alone knows what is told, may be gone when its removal is said to have failed.
    let ended = end(job, connection, cancels, &recorded).err();
    behind::joined(ended, told).map_or(Ok(()), Err)
}

/// Remove the journal. When the answer to that was lost, it is looked for. An error of kind `Connection`: what was compared may
/// have been lost since.
///
/// The connection was there before anything was compared. A crash takes it along, so when it has brought the answer there was none.
fn end(job: &Job, mut connection: Connection, mut cancels: Cancels, recorded: &Done) -> Result<()> {
    // The connection may be gone since it was used last. If that was a crash, unlogged tables are empty again.
    if let Err(lost) = connection.query(b"SELECT 1") {
        connection = pass::again(job, &lost, connection.backend_pid())?;
        cancels = job.stop.cancels(&connection);
        if !unlogged::lost(job, &connection, recorded)?.is_empty() {
            return Err(lost);
        }
    }
    let before = connection.backend_pid();
    let error = match journal::end(&connection) {
        Err(e) if e.kind == ErrorKind::Connection => e,
        other => return other,
    };
    drop((cancels, connection));
    let look = || {
        let connection = pass::connect_again(job, &error)?;
        let _cancels = job.stop.cancels(&connection);
        journal::fence::be_alone(&connection, Some(before), &|| job.stop.is_set())?;
        match journal::is_there(&connection)? {
            true => Ok(Err(error.clone())),
            false => unlogged::all_there(job, &connection, recorded).map(Ok),
        }
    };
    // A server that is about to crash may have let us in once more. What matters is what it says when it is back.
    for _ in 0..=FINISHES {
        match look() {
            Err(e) if e.kind == ErrorKind::Connection => {}
            found => return found?,
        }
    }
    Err(Error { message: UNHEARD.into(), ..error }.hint(
        "If the journal, schema firn_restore, is there when the server can be reached again, --resume does what is left. If not, the restore is \
         complete; tables that are not logged may have been emptied by a crash.",
    ))
}

/// Nobody knows whether it is: no server has answered.
const UNHEARD: &str = "the connection was lost while the journal of a complete restore was removed";

/// What the journal is of.
fn identity(connection: &Connection, archive: &Archive, plan: &Plan) -> Result<Identity> {
    let database = connection.query(
        b"SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()",
    )?;
    // It may be that only superusers may ask; a database is known by its oid then.
    let system = connection.query(b"SELECT system_identifier FROM pg_catalog.pg_control_system()");
    Ok(Identity {
        archive: journal::hex(&archive.fingerprint()),
        version: env!("CARGO_PKG_VERSION").into(),
        plan: journal::hex(&plan.fingerprint()),
        server: connection.server_version() / 10_000,
        system: system.map_or(String::new(), |rows| rows.text(0, 0)),
        database: database.number(0, 0).unwrap_or(0),
    })
}
