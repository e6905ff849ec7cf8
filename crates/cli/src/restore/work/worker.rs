//! A worker: has a connection, and takes batches until nothing is left.

use super::{lock, Failure, Site};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::Connection;
use crate::plan::build::merge::foreign_key_name;
use crate::plan::build::{copies_via_root, describe};
use crate::plan::render::Settings;
use crate::plan::schedule::{Batch, Outcome};
use crate::plan::Work;
use crate::report::{Did, Event, Setback};
use crate::restore::data::{copy_rows, table_of_copy, write_large_objects, Copied, Flow};
use crate::restore::journal;
use crate::restore::session::prepare;
use crate::restore::tell::statement_at;
use std::sync::atomic::Ordering;
use std::sync::PoisonError;
use std::time::Duration;

pub(super) struct Worker<'s, 'a> {
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

impl<'s, 'a> Worker<'s, 'a> {
    pub fn new(site: &'s Site<'a>, number: usize) -> Worker<'s, 'a> {
        Worker { site, number, connection: None, did: Did::default() }
    }
}

impl Worker<'_, '_> {
    /// Work until nothing is left.
    pub fn work(mut self) -> Result<()> {
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
        journal::join(&connection)?;
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
            sql.extend(site.renderer.before_rows(place as u32, &mut settings));
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
        if copies_via_root(&entry) {
            return false;
        }
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
