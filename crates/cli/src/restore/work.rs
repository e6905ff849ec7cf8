//! Workers: each with a connection, each taking batches until nothing is left.

use super::data::{copy_rows, table_of_copy, write_large_objects, Copied, Flow};
use super::session::{prepare, Target};
use super::tell::statement_at;
use super::{journal, tell, Terms};
use crate::archive::Archive;
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{Canceller, Connection};
use crate::plan::build::describe;
use crate::plan::build::merge::foreign_key_name;
use crate::plan::render::{Renderer, Settings};
use crate::plan::schedule::{Batch, Outcome, Scheduler};
use crate::plan::{Plan, Work};
use crate::report::{Costs, Did, Event, Setback, Watch};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A step that could not be done.
#[derive(Debug)]
pub struct Failure {
    pub what: String,
    pub statement: String,
    pub error: Error,
}

/// Lets others stop a run: the signal handler, a test.
#[derive(Clone, Default)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    cancellers: Arc<Mutex<Vec<Option<Canceller>>>>,
}

impl Stop {
    /// End as soon as possible: statements are cancelled, transactions rolled back.
    pub fn stop(&self) {
        self.flag.store(true, Ordering::SeqCst);
        lock(&self.cancellers).iter().flatten().for_each(Canceller::cancel);
    }

    /// The flag that says so.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    pub fn is_set(&self) -> bool {
        self.flag.load(Ordering::SeqCst)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all workers share.
pub struct Site<'a> {
    pub archive: &'a Archive,
    pub plan: &'a Plan,
    pub terms: &'a Terms,
    pub renderer: Renderer<'a>,
    pub target: &'a Target,
    pub dbname: Option<&'a str>,
    pub memory_kb: Option<u64>,
    pub go_on_after_errors: bool,
    pub watch: &'a dyn Watch,
    pub stop: Stop,
    /// Entries that an earlier run did by themselves.
    pub entries_done: HashSet<u32>,
    scheduler: Mutex<Scheduler<'a>>,
    wake: Condvar,
    failures: Mutex<Vec<Failure>>,
    skipped: Mutex<Vec<String>>,
    /// Steps that have had their second try.
    tried: Mutex<HashSet<u32>>,
    /// Entries that failed or were skipped, by place.
    dead: Mutex<HashSet<u32>>,
    dead_schemas: Mutex<HashSet<Vec<u8>>>,
    fatal: Mutex<Option<Error>>,
    bytes: AtomicU64,
    rows: AtomicU64,
}

/// How a run ended.
#[derive(Debug, Default)]
pub struct Ended {
    pub failures: Vec<Failure>,
    pub skipped: Vec<String>,
    pub left: usize,
    pub rows: u64,
    pub bytes: u64,
}

impl<'a> Site<'a> {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        archive: &'a Archive,
        plan: &'a Plan,
        terms: &'a Terms,
        renderer: Renderer<'a>,
        target: &'a Target,
        dbname: Option<&'a str>,
        scheduler: Scheduler<'a>,
        watch: &'a dyn Watch,
        stop: Stop,
    ) -> Site<'a> {
        Site {
            archive,
            plan,
            terms,
            renderer,
            target,
            dbname,
            memory_kb: None,
            go_on_after_errors: false,
            watch,
            stop,
            entries_done: HashSet::new(),
            scheduler: Mutex::new(scheduler),
            wake: Condvar::new(),
            failures: Mutex::default(),
            skipped: Mutex::default(),
            tried: Mutex::default(),
            dead: Mutex::default(),
            dead_schemas: Mutex::default(),
            fatal: Mutex::default(),
            bytes: AtomicU64::new(0),
            rows: AtomicU64::new(0),
        }
    }

    /// Work with `jobs` connections until nothing is left or something stops it.
    pub fn run(&self, jobs: usize) -> Result<Ended> {
        lock(&self.stop.cancellers).resize_with(jobs, || None);
        std::thread::scope(|scope| {
            for number in 0..jobs {
                scope.spawn(move || {
                    let did = Did::default();
                    let worker = Worker { site: self, number, connection: None, did };
                    if let Err(e) = worker.work() {
                        self.fail(e);
                    }
                });
            }
        });
        lock(&self.stop.cancellers).clear();
        if let Some(e) = lock(&self.fatal).take() {
            // That others were stopped follows from the failure of one.
            if e.kind != ErrorKind::Cancelled || lock(&self.failures).is_empty() {
                return Err(e);
            }
        }
        let left = lock(&self.scheduler).left();
        Ok(Ended {
            failures: std::mem::take(&mut lock(&self.failures)),
            skipped: std::mem::take(&mut lock(&self.skipped)),
            left,
            rows: self.rows.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        })
    }

    /// Something ends the whole run.
    fn fail(&self, error: Error) {
        let mut fatal = lock(&self.fatal);
        // What follows from a stop is not worth more than what caused it.
        if fatal.is_none() {
            *fatal = Some(error);
        }
        drop(fatal);
        self.stop.stop();
        self.wake.notify_all();
    }

    /// An entry failed, or cannot be without one that did.
    fn bury(&self, place: u32) -> bool {
        let entry = self.archive.toc().entry(place as usize);
        if entry.desc == b"SCHEMA" {
            lock(&self.dead_schemas).insert(entry.tag.to_vec());
        }
        lock(&self.dead).insert(place)
    }

    /// The entries of a step that can still be done; the others are told as skipped.
    fn living(&self, step: u32) -> Vec<u32> {
        let toc = self.archive.toc();
        let mut all = self.renderer.originals(step);
        if lock(&self.dead).is_empty() {
            return all;
        }
        all.retain(|place| {
            let entry = toc.entry(*place as usize);
            let dead = {
                let dead = lock(&self.dead);
                if dead.contains(place) {
                    return false;
                }
                let needs = |d: &i32| toc.place(*d).is_some_and(|p| dead.contains(&(p as u32)));
                entry.dependencies.iter().any(needs)
            };
            let dead = dead || lock(&self.dead_schemas).contains(entry.namespace);
            if dead && self.bury(*place) {
                let what = describe(&entry);
                self.watch.event(&Event::Skipped { what: &what });
                lock(&self.skipped).push(what);
            }
            !dead
        });
        all
    }

    /// A step's name for messages.
    fn describe(&self, step: u32) -> String {
        tell::name(self.plan, self.archive.toc(), step)
    }

    fn costs(&self, steps: impl IntoIterator<Item = u32>) -> Costs {
        tell::costs(self.plan, self.archive.toc(), steps)
    }
}

struct Worker<'s, 'a> {
    site: &'s Site<'a>,
    number: usize,
    connection: Option<Connection>,
    /// What was done since the last batch began.
    did: Did,
}

/// Which statements are used for a step.
#[derive(Clone, Copy)]
enum Statements<'a> {
    Planned,
    /// The archive's, for all entries.
    Originals(&'a [u32]),
    /// The archive's, for one entry.
    Piece(u32),
}

/// What a try of some steps came to.
struct Tried {
    error: Error,
    statement: String,
}

impl From<Error> for Tried {
    fn from(error: Error) -> Tried {
        Tried { error, statement: String::new() }
    }
}

/// Errors that may go away when what comes earlier in the archive is done, or when nothing else runs: objects not yet
/// there, deadlocks, and catalog rows that two sessions made or changed at once.
fn may_pass(error: &Error) -> bool {
    let Some(state) = error.sqlstate.as_deref() else { return false };
    matches!(
        state,
        "42P01" | "42883" | "42704" | "42703" | "3F000" | "42710" | "42P07" | "23505" | "23503"
    ) || matches!(state, "40P01" | "40001" | "55P03" | "53200")
        || (state == "XX000" && error.message.contains("concurrently"))
}

impl Worker<'_, '_> {
    fn work(mut self) -> Result<()> {
        let site = self.site;
        self.connect()?;
        loop {
            let batch = {
                let mut scheduler = lock(&site.scheduler);
                loop {
                    if site.stop.is_set() || scheduler.finished() {
                        return Ok(());
                    }
                    if let Some(batch) = scheduler.next_batch() {
                        break batch;
                    }
                    if scheduler.stuck() {
                        return Err(Error::new(ErrorKind::Internal, "no step of the plan can run"));
                    }
                    scheduler = site.wake.wait(scheduler).unwrap_or_else(PoisonError::into_inner);
                }
            };
            let what = site.describe(batch.steps[0]);
            let steps = batch.steps.len();
            let cost = site.costs(batch.steps.iter().copied());
            site.watch.event(&Event::Begin { worker: self.number, what: &what, steps, cost });
            self.did = Did::default();
            let outcomes = match self.run_batch(&batch) {
                Ok(outcomes) => outcomes,
                Err(e) => {
                    site.watch.event(&Event::End { worker: self.number, did: self.did });
                    return Err(e);
                }
            };
            let outcome = |step: u32| {
                batch.steps.iter().position(|s| *s == step).map_or(Outcome::NotRun, |n| outcomes[n])
            };
            let settled = |o: Outcome| matches!(o, Outcome::Done | Outcome::Failed);
            let steps = batch.steps.iter().copied().filter(|s| settled(outcome(*s)));
            self.did.steps = steps.clone().count();
            self.did.cost = site.costs(steps);
            self.did.ok = outcomes.iter().all(|o| *o == Outcome::Done);
            // Before others can take what waits for it.
            site.watch.event(&Event::End { worker: self.number, did: self.did });
            lock(&site.scheduler).end_batch(&batch, outcome);
            site.wake.notify_all();
            if !site.go_on_after_errors && outcomes.contains(&Outcome::Failed) {
                site.stop.stop();
                site.wake.notify_all();
                return Ok(());
            }
        }
    }

    fn connect(&mut self) -> Result<()> {
        let site = self.site;
        let connection = site.target.connect(site.dbname)?;
        super::journal::join(&connection)?;
        prepare(&connection, site.archive.toc(), site.target, site.memory_kb)?;
        if let Some(place) = lock(&site.stop.cancellers).get_mut(self.number) {
            *place = Some(connection.canceller());
        }
        let pid = connection.backend_pid();
        site.watch.event(&Event::Connected { worker: self.number, pid });
        self.connection = Some(connection);
        Ok(())
    }

    /// Connect again after the connection broke. Tells whether the steps were committed all the same.
    fn recover(&mut self, step: u32, piece: Option<u32>, error: &Error) -> Result<bool> {
        let site = self.site;
        self.connection = None;
        let number = self.number + 1;
        let message = format!("connection {number} was lost ({}); connecting again", error.message);
        self.setback(Setback::Reconnected, &message);
        let mut last = None;
        for wait in [0, 200, 500, 1000, 2000] {
            if site.stop.is_set() {
                return Err(cancelled());
            }
            std::thread::sleep(Duration::from_millis(wait));
            match self.connect() {
                Ok(()) => {
                    if let Some(connection) = &self.connection {
                        return journal::has(connection, step, piece);
                    }
                }
                Err(e) => last = Some(e),
            }
        }
        let error = last.unwrap_or_else(|| error.clone());
        Err(error.hint("Run the same command with --resume when the server can be reached again."))
    }

    fn setback(&self, setback: Setback, message: &str) {
        self.site.watch.event(&Event::Setback { worker: self.number, setback, message });
    }

    fn run_batch(&mut self, batch: &Batch) -> Result<Vec<Outcome>> {
        let steps = &batch.steps;
        let whole = |step: &u32| {
            self.site.living(*step).len() == self.site.plan.entries(*step as usize).len()
        };
        if lock(&self.site.dead).is_empty() || steps.iter().all(whole) {
            let Some(tried) = self.attempt_surely(steps, Statements::Planned)? else {
                return Ok(vec![Outcome::Done; steps.len()]);
            };
            if steps.len() == 1 {
                return Ok(vec![self.single(steps[0], tried)?]);
            }
            let (count, why) = (steps.len(), &tried.error.message);
            let message = format!("a batch of {count} steps failed ({why}), doing them one by one");
            self.setback(Setback::OneByOne, &message);
        }
        // One by one, to find the one to blame and keep the others.
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(steps.len());
        for (n, step) in steps.iter().enumerate() {
            let waits_for_undone = steps[..n].iter().zip(&outcomes).any(|(before, outcome)| {
                !matches!(outcome, Outcome::Done | Outcome::Failed)
                    && self.site.plan.followers(*before as usize).contains(step)
            });
            let entries = self.site.plan.entries(*step as usize).len();
            let living = self.site.living(*step);
            let outcome = if waits_for_undone {
                Outcome::NotRun
            } else if living.len() < entries {
                self.piecewise(*step, &living)?
            } else {
                match self.attempt_surely(&[*step], Statements::Planned)? {
                    None => Outcome::Done,
                    Some(tried) => self.single(*step, tried)?,
                }
            };
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// A step failed by itself: try it again when nothing else runs, try the archive's own statements, together and
    /// one by one, then give up what fails.
    fn single(&mut self, step: u32, tried: Tried) -> Result<Outcome> {
        let site = self.site;
        if may_pass(&tried.error) && lock(&site.tried).insert(step) {
            let (what, why) = (site.describe(step), &tried.error.message);
            let message =
                format!("{what} failed ({why}), to be tried again when nothing else runs");
            self.setback(Setback::Later, &message);
            return Ok(Outcome::Again);
        }
        let order = site.renderer.originals(step);
        let work = &site.plan.steps[step as usize].work;
        let rewritten =
            matches!(work, Work::Group(_) | Work::BulkIndex(_) | Work::BulkAttach | Work::Grants);
        if rewritten {
            let (what, why) = (site.describe(step), &tried.error.message);
            let message =
                format!("{what}: a rewrite failed ({why}), using the archive's statements");
            self.setback(Setback::Fallback, &message);
            if self.attempt_surely(&[step], Statements::Originals(&order))?.is_none() {
                return Ok(Outcome::Done);
            }
        }
        if order.len() > 1 {
            return self.piecewise(step, &order);
        }
        for place in &order {
            // A schema that is there already will do for what is in it.
            if tried.error.sqlstate.as_deref() != Some("42P06") {
                site.bury(*place);
            }
        }
        match (work, order.first()) {
            // Rows of the other parts must not stay without these.
            (Work::Data(_, 2..), Some(place)) => {
                let copy = site.archive.toc().entry(*place as usize).copy_stmt;
                if let Some(table) = table_of_copy(copy) {
                    self.undo(&[b"TRUNCATE TABLE ONLY ", table].concat());
                }
            }
            // Nor may a foreign key that does not hold.
            (Work::ForeignKeyValidate, Some(place)) => {
                let defn = site.archive.toc().entry(*place as usize).defn;
                if let Some((table, name, _)) = foreign_key_name(defn) {
                    let drop = [b"ALTER TABLE ONLY ", table, b" DROP CONSTRAINT ", name]
                        .map(<[u8]>::to_vec)
                        .concat();
                    self.undo(&drop);
                }
            }
            _ => {}
        }
        self.give_up(site.describe(step), tried);
        Ok(Outcome::Failed)
    }

    /// Take back what an earlier step did.
    fn undo(&self, sql: &[u8]) {
        let Some(connection) = &self.connection else { return };
        if let Err(failure) = connection.run(sql) {
            let message = failure.error.message;
            self.site.watch.event(&Event::Note(&format!("could not undo: {message}")));
        }
    }

    fn give_up(&self, what: String, tried: Tried) {
        let Tried { error, statement } = tried;
        self.site.watch.event(&Event::Failed { what: &what, statement: &statement, error: &error });
        lock(&self.site.failures).push(Failure { what, statement, error });
    }

    /// Some entries of a step, each in a transaction of its own, by the archive's statements.
    fn piecewise(&mut self, step: u32, entries: &[u32]) -> Result<Outcome> {
        let site = self.site;
        let toc = site.archive.toc();
        let mut failed = false;
        let mut done = Vec::new();
        for &place in entries {
            // What failed just now may be needed.
            if !site.living(step).contains(&place) || site.entries_done.contains(&place) {
                continue;
            }
            match self.attempt_surely(&[step], Statements::Piece(place))? {
                None => done.push(place),
                Some(tried) => {
                    failed = true;
                    site.bury(place);
                    self.give_up(describe(&toc.entry(place as usize)), tried);
                }
            }
        }
        Ok(if failed { Outcome::Failed } else { Outcome::Done })
    }

    /// Try steps in one transaction; connections that break are made again. `None`: done.
    fn attempt_surely(&mut self, steps: &[u32], statements: Statements) -> Result<Option<Tried>> {
        for round in 0.. {
            let tried = match self.attempt(steps, statements) {
                Ok(copied) => {
                    self.site.rows.fetch_add(copied.rows, Ordering::Relaxed);
                    self.did.rows += copied.rows;
                    self.did.statements += copied.statements;
                    self.did.transactions += 1;
                    return Ok(None);
                }
                Err(tried) => tried,
            };
            if self.site.stop.is_set() {
                return Err(cancelled());
            }
            let alive = self.connection.as_ref().is_some_and(Connection::is_alive);
            if alive && tried.error.kind != ErrorKind::Connection {
                if let Some(connection) = &self.connection {
                    if connection.run(b"ROLLBACK").is_ok() {
                        return Ok(Some(tried));
                    }
                }
            }
            if round == 3 {
                return Err(tried.error.hint("Run the same command with --resume to go on."));
            }
            let piece = match statements {
                Statements::Piece(place) => Some(place),
                _ => None,
            };
            if self.recover(steps[0], piece, &tried.error)? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// One transaction. Returns what it copied, and how many statements the server ran besides BEGIN and COMMIT.
    fn attempt(&self, steps: &[u32], statements: Statements) -> Result<Copied, Tried> {
        let site = self.site;
        let connection = self.connection.as_ref().ok_or_else(cancelled)?;
        let moved = |bytes: u64| {
            site.bytes.fetch_add(bytes, Ordering::Relaxed);
            site.watch.event(&Event::Moved { worker: Some(self.number), rows: 0, bytes });
        };
        let flow = Flow { stop: &site.stop.flag, moved: &moved };
        let mut sql = b"BEGIN;\n".to_vec();
        let mut settings = Settings::default();
        let mut copied = Copied::default();
        for &step in steps {
            let part = match &site.plan.steps[step as usize].work {
                Work::Data(part, parts) => Some((*part, *parts)),
                Work::LargeObjects => None,
                _ => {
                    let more = match statements {
                        Statements::Planned => site.renderer.step(step, &mut settings),
                        Statements::Originals(order) => {
                            site.renderer.statements(order, &mut settings)
                        }
                        Statements::Piece(place) => {
                            site.renderer.statements(&[place], &mut settings)
                        }
                    };
                    sql.extend(more);
                    continue;
                }
            };
            let place = site.plan.entries(step as usize)[0] as usize;
            let silent = match site.terms.disable_triggers {
                true => table_of_copy(site.archive.toc().entry(place).copy_stmt),
                false => None,
            };
            if let Some(table) = silent {
                sql.extend([&b"ALTER TABLE "[..], table, b" DISABLE TRIGGER ALL;\n"].concat());
            }
            copied.statements += self.send(connection, &mut sql)?;
            let result = match part {
                Some(part) => {
                    let rules = &site.terms.rules;
                    let freeze = rules.copy_freeze && part.1 == 1 && self.can_freeze(place);
                    copy_rows(
                        connection,
                        site.archive,
                        place,
                        part,
                        rules.skip_empty_data,
                        freeze,
                        &flow,
                    )
                }
                None => write_large_objects(connection, site.archive, place, &flow),
            };
            let found = result.map_err(|error| Tried {
                error,
                statement: String::from_utf8_lossy(site.archive.toc().entry(place).copy_stmt)
                    .into_owned(),
            })?;
            if let Some(table) = silent {
                sql.extend([&b"ALTER TABLE "[..], table, b" ENABLE TRIGGER ALL;\n"].concat());
            }
            copied.rows += found.rows;
            copied.bytes += found.bytes;
            copied.statements += found.statements;
        }
        // Another part of the same table may have failed meanwhile.
        let parts =
            steps.iter().any(|s| matches!(site.plan.steps[*s as usize].work, Work::Data(_, 2..)));
        if parts
            && steps.iter().any(|s| lock(&site.dead).contains(&site.plan.entries(*s as usize)[0]))
        {
            return Err(Error::new(ErrorKind::Statement, "another part of the table failed").into());
        }
        match statements {
            Statements::Piece(place) => sql.extend(journal::record_entry(place)),
            _ => sql.extend(journal::record(steps)),
        }
        sql.extend_from_slice(b"COMMIT;");
        copied.statements += self.send(connection, &mut sql)?.saturating_sub(2);
        Ok(copied)
    }

    /// Send what has gathered. Returns how many statements it was.
    fn send(&self, connection: &Connection, sql: &mut Vec<u8>) -> Result<u64, Tried> {
        let sent = std::mem::take(sql);
        if sent.is_empty() {
            return Ok(0);
        }
        connection.run(&sent).map(|results| results.len() as u64).map_err(|failure| {
            let mut error = failure.error;
            let (statement, begin) = statement_at(&sent, failure.index, error.position);
            error.position = error.position.and_then(|p| p.checked_sub(begin)).filter(|p| *p > 0);
            Tried { statement, error }
        })
    }

    /// Rows may be frozen: the table was made by this restore, is large enough to be worth a TRUNCATE, and is of
    /// PostgreSQL's own kind.
    fn can_freeze(&self, place: usize) -> bool {
        let toc = self.site.archive.toc();
        let entry = toc.entry(place);
        let tables = entry.dependencies.iter().filter_map(|d| toc.place(*d));
        let own = tables
            .map(|p| (p, toc.entry(p)))
            .find(|(_, e)| e.desc == b"TABLE" && e.tag == entry.tag);
        self.site.archive.data_size(place).is_some_and(|size| size > 256 << 10)
            && own.is_some_and(|(place, table)| {
                self.site.terms.makes(self.site.archive.toc(), place)
                    && matches!(table.tableam, b"heap" | b"")
                    && table.defn.starts_with(b"CREATE TABLE ")
            })
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "canceled by user")
        .hint("Run the same command with --resume to go on.")
}
