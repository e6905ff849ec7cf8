//! A worker: has a connection, and takes batches until nothing is left. Tables that are emptied first: [`reload`].

mod reload;
mod session;

use super::{lock, Failure, Site};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::Connection;
use crate::plan::build::merge::foreign_key_name;
use crate::plan::build::{copies_via_root, describe};
use crate::plan::render::{large_objects, Settings};
use crate::plan::schedule::{Batch, Outcome};
use crate::plan::text::qualified;
use crate::plan::Work;
use crate::report::{Did, Event, Setback};
use crate::restore::data::{copy_rows, table_of_copy, write_large_objects, Copied, Flow};
use crate::restore::journal::{self, fence::Session};
use crate::restore::tell::{notices, statement_at};
use crate::restore::unlogged;
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::PoisonError;

pub(super) struct Worker<'s, 'a> {
    site: &'s Site<'a>,
    number: usize,
    connection: Option<(Connection, Session)>,
    /// The connection was lost and another is not to be had, while others work: they do what is left.
    left_to_others: bool,
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
    /// None: all entries were done as pieces.
    Piecewise,
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
    // A parallel worker that was ended is an error of the statement.
    matches!(
        state,
        "42P01" | "42883" | "42704" | "42703" | "3F000" | "42710" | "42P07" | "23505" | "23503"
    ) || matches!(state, "40P01" | "40001" | "55P03" | "53200" | "57P01" | "57P02")
        || (state == "XX000" && error.message.contains("concurrently"))
}

impl<'s, 'a> Worker<'s, 'a> {
    pub fn new(site: &'s Site<'a>, number: usize) -> Worker<'s, 'a> {
        Worker { site, number, connection: None, left_to_others: false, did: Did::default() }
    }
}

impl Worker<'_, '_> {
    /// Work until nothing is left.
    pub fn work(mut self) -> Result<()> {
        let site = self.site;
        loop {
            if self.connection.is_none() && !self.join()? {
                return Ok(());
            }
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

    /// Tell what the server has said beside its answers.
    fn pass_on_notices(&self) {
        let Some((connection, _)) = &self.connection else { return };
        notices(connection, self.site.watch);
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
            let tried = match self.attempt_surely(steps, Statements::Planned) {
                Ok(None) => return Ok(vec![Outcome::Done; steps.len()]),
                Ok(Some(tried)) => tried,
                Err(_) if self.left_to_others => return Ok(vec![Outcome::NotRun; steps.len()]),
                Err(e) => return Err(e),
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
            let outcome = if waits_for_undone || self.left_to_others {
                Outcome::NotRun
            } else if living.len() < entries {
                self.piecewise(*step, &living)?
            } else {
                match self.attempt_surely(&[*step], Statements::Planned) {
                    Ok(None) => Outcome::Done,
                    Ok(Some(tried)) => self.single(*step, tried)?,
                    Err(_) if self.left_to_others => Outcome::NotRun,
                    Err(e) => return Err(e),
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
        if self.do_without(step, &tried) {
            return match self.attempt_surely(&[step], Statements::Planned)? {
                None => Ok(Outcome::Done),
                Some(tried) => self.single(step, tried),
            };
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
        if order.len() > 1 && !matches!(work, Work::Reload(_)) {
            return self.piecewise(step, &order);
        }
        for place in &order {
            // A schema that is there already will do for what is in it.
            if tried.error.sqlstate.as_deref() != Some("42P06") {
                site.bury(*place);
            }
        }
        self.take_back(step, order.first().copied());
        self.give_up(site.describe(step), tried);
        Ok(Outcome::Failed)
    }

    /// Go on without a tablespace or an access method that is not there, as pg_restore does after an error: what was to be in it comes
    /// where the server has it by default.
    fn do_without(&self, step: u32, tried: &Tried) -> bool {
        let site = self.site;
        // There is none of this name, no right to it, or a partitioned table has none on this server.
        let state = tried.error.sqlstate.as_deref();
        let is_new =
            match site.go_on_after_errors && state.is_some_and(|state| WITHOUT.contains(&state)) {
                true => site.renderer.refused.add(tried.statement.as_bytes()),
                false => None,
            };
        if is_new == Some(true) {
            let error = tried.error.clone();
            self.give_up(site.describe(step), Tried { error, statement: tried.statement.clone() });
        }
        // Once for each step: another worker may have met it first.
        is_new.is_some() && lock(&site.without).insert((step, tried.statement.clone()))
    }

    /// What cannot stay when a step has failed for good is undone, and forgotten, in one transaction: what is recorded
    /// is there, and a resumed run does what is not.
    fn take_back(&self, step: u32, place: Option<u32>) {
        let (plan, toc) = (self.site.plan, self.site.archive.toc());
        let Some(place) = place else { return };
        let entry = toc.entry(place as usize);
        let others = |wanted: fn(&Work) -> bool| -> Vec<u32> {
            let covers = |s: &u32| {
                let other = &plan.steps[*s as usize].work;
                wanted(other) && plan.entries(*s as usize) == [place]
            };
            (0..plan.steps.len() as u32).filter(covers).collect()
        };
        let (undo, steps) = match &plan.steps[step as usize].work {
            // As in pg_restore a table has all of its rows or none. Only tables that this restore has made are loaded
            // in parts. The lock waits for parts that are being committed; later ones see that one has failed.
            Work::Data(_, 2..) => {
                let Some(table) = table_of_copy(entry.copy_stmt) else { return };
                let table = qualified(entry.namespace, table);
                let steps_of_rows = others(|work| matches!(work, Work::Data(..)));
                let undo = [
                    &b"LOCK TABLE ONLY "[..],
                    &table,
                    b" IN ACCESS EXCLUSIVE MODE;\n",
                    &journal::only_own_rows(&table, &steps_of_rows),
                    b"TRUNCATE TABLE ONLY ",
                    &table,
                    b";\n",
                ];
                (undo.concat(), steps_of_rows)
            }
            // Nor may a foreign key stay that does not hold.
            Work::ForeignKeyValidate => {
                let Some((table, name, _)) = foreign_key_name(entry.defn) else { return };
                let table = qualified(entry.namespace, table);
                let drop: [&[u8]; 5] =
                    [b"ALTER TABLE ONLY ", &table, b" DROP CONSTRAINT ", name, b";\n"];
                (drop.concat(), others(|work| matches!(work, Work::ForeignKeyAdd)))
            }
            _ => return,
        };
        let Some((connection, session)) = &self.connection else { return };
        let sql = [b"BEGIN;\n", &undo[..], &journal::forget(*session, &steps), b"COMMIT;"].concat();
        if let Err(failure) = connection.run(&sql) {
            // Then it is recorded, and a resumed run does the rest.
            let _ = connection.run(b"ROLLBACK");
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
        if let Work::Reload(_) = site.plan.steps[step as usize].work {
            // All of them or none.
            entries.iter().for_each(|place| site.skip(*place));
            return Ok(Outcome::Done);
        }
        let mut failed = false;
        let mut done = Vec::new();
        for &place in entries {
            // What failed just now may be needed.
            if !site.living(step).contains(&place) || site.entries_done.contains(&place) {
                continue;
            }
            let mut result = self.attempt_surely(&[step], Statements::Piece(place))?;
            while result.as_ref().is_some_and(|tried| self.do_without(step, tried)) {
                result = self.attempt_surely(&[step], Statements::Piece(place))?;
            }
            match result {
                None => done.push(place),
                Some(tried) => {
                    failed = true;
                    site.bury(place);
                    self.give_up(describe(&toc.entry(place as usize)), tried);
                }
            }
        }
        if failed || entries.len() < site.plan.entries(step as usize).len() {
            return Ok(if failed { Outcome::Failed } else { Outcome::Done });
        }
        // All of its entries are there, so it is.
        match self.attempt_surely(&[step], Statements::Piecewise)? {
            None => Ok(Outcome::Done),
            Some(tried) => {
                self.give_up(site.describe(step), tried);
                Ok(Outcome::Failed)
            }
        }
    }

    /// Try steps in one transaction; connections that break are made again. `None`: done.
    fn attempt_surely(&mut self, steps: &[u32], statements: Statements) -> Result<Option<Tried>> {
        for round in 0.. {
            let result = self.attempt(steps, statements);
            self.pass_on_notices();
            let tried = match result {
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
            let alive = self.connection.as_ref().is_some_and(|(c, _)| c.is_alive());
            if alive && tried.error.kind != ErrorKind::Connection {
                if let Some((connection, _)) = &self.connection {
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
            if self.recover(steps, piece, &tried.error)? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// One transaction. Returns what it copied, and how many statements the server ran besides BEGIN and COMMIT.
    fn attempt(&self, steps: &[u32], statements: Statements) -> Result<Copied, Tried> {
        let site = self.site;
        let (connection, session) = self.connection.as_ref().ok_or_else(cancelled)?;
        let moved = |bytes: u64| {
            site.bytes.fetch_add(bytes, Ordering::Relaxed);
            site.watch.event(&Event::Moved { worker: Some(self.number), rows: 0, bytes });
        };
        let flow = Flow { stop: &site.stop, moved: &moved };
        let mut sql = b"BEGIN;\n".to_vec();
        let mut settings = Settings::default();
        let mut copied = Copied::default();
        let mut rows = Vec::new();
        for &step in steps {
            let part = match &site.plan.steps[step as usize].work {
                Work::Data(part, parts) => Some((*part, *parts)),
                Work::LargeObjects => None,
                Work::Reload(number) => {
                    let found = self.reload(step, *number, &mut sql, &mut settings, &flow)?;
                    rows.push((step, found.rows));
                    copied.add(&found);
                    continue;
                }
                _ => {
                    let more = match statements {
                        Statements::Planned => site.renderer.step(step, &mut settings),
                        Statements::Originals(order) => {
                            site.renderer.statements(order, &mut settings)
                        }
                        Statements::Piece(place) => {
                            site.renderer.statements(&[place], &mut settings)
                        }
                        Statements::Piecewise => Vec::new(),
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
            let again = site.again.contains(&(place as u32)) && self.table_made(place).is_some();
            if again {
                sql.extend_from_slice(unlogged::BEFORE_ROWS);
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
                None => {
                    let others = self.objects_of_others();
                    write_large_objects(connection, site.archive, place, &others, &flow)
                }
            };
            let found =
                result.map_err(|error| Tried { error, statement: self.copy_statement(place) })?;
            if let Some(table) = silent {
                sql.extend([&b"ALTER TABLE "[..], table, b" ENABLE TRIGGER ALL;\n"].concat());
            }
            if again {
                sql.extend_from_slice(unlogged::AFTER_ROWS);
            }
            if found.rows < found.sent && self.table_made(place).is_some() {
                let (rows, sent) = (found.rows, found.sent);
                let message = format!("the server took {rows} of {sent} rows");
                return Err(Error::new(ErrorKind::Statement, message).into());
            }
            rows.push((step, found.rows));
            copied.add(&found);
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
            Statements::Piece(place) => sql.extend(journal::record_entry(*session, place)),
            _ => {
                let kept = |step: &u32| self.is_refill(*step);
                let new: Vec<u32> = steps.iter().copied().filter(|step| !kept(step)).collect();
                rows.retain(|(step, _)| !kept(step));
                if !new.is_empty() {
                    sql.extend(journal::record(*session, &new, &rows));
                }
            }
        }
        sql.extend_from_slice(b"COMMIT;");
        copied.statements += self.send(connection, &mut sql)?.saturating_sub(2);
        Ok(copied)
    }

    fn copy_statement(&self, place: usize) -> String {
        String::from_utf8_lossy(self.site.archive.toc().entry(place).copy_stmt).into_owned()
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

    /// Large objects that could not be made: what is there by their numbers was there before.
    fn objects_of_others(&self) -> HashSet<u32> {
        let toc = self.site.archive.toc();
        let mut oids = HashSet::new();
        for place in lock(&self.site.dead).iter() {
            let entry = toc.entry(*place as usize);
            match entry.desc {
                b"BLOB" => oids.extend(oid(entry.tag)),
                b"BLOB METADATA" => oids.extend(large_objects(entry.defn).filter_map(oid)),
                _ => {}
            }
        }
        oids
    }

    /// The table whose rows an entry has, if this restore has made it.
    fn table_made(&self, place: usize) -> Option<usize> {
        let toc = self.site.archive.toc();
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
        tables.filter(own).find(|p| made(p) && self.site.terms.makes(toc, *p))
    }

    /// Rows may be frozen: the table was made by this restore, is large enough to be worth a TRUNCATE, is of PostgreSQL's
    /// own kind, and is itself what the rows are copied into.
    fn can_freeze(&self, place: usize) -> bool {
        let toc = self.site.archive.toc();
        let entry = toc.entry(place);
        let table = self.table_made(place).map(|place| toc.entry(place));
        // A table whose rows come again has its indexes already, and others may refer to it.
        !copies_via_root(&entry)
            && !self.site.again.contains(&(place as u32))
            && self.site.archive.data_size(place).is_some_and(|size| size > 256 << 10)
            && table.is_some_and(|table| {
                matches!(table.tableam, b"heap" | b"") && table.defn.starts_with(b"CREATE TABLE ")
            })
    }
}

/// A tablespace or an access method that is not there, may not be used, or is nothing for this kind of table.
const WITHOUT: [&str; 5] = ["22023", "42704", "42501", "42809", "0A000"];

fn oid(digits: &[u8]) -> Option<u32> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "canceled by user")
        .hint("Run the same command with --resume to go on.")
}
