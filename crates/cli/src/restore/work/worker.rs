//! A worker: has a connection, and takes batches until nothing is left.
//!
//! - [`session`]: its connection, made again when it breaks.
//! - [`attempt`]: one transaction.
//! - [`again`]: constraints that it drops and makes again behind what comes late.
//! - [`keys`]: rows that an index refuses which was there before them.
//! - [`reload`]: tables that are emptied first.

mod again;
mod attempt;
pub(super) mod keys;
mod reload;
mod session;

use super::dead::passes;
use super::{lock, Failure, Site};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::Connection;
use crate::plan::build::describe;
use crate::plan::build::merge::foreign_key_name;
use crate::plan::schedule::{Batch, Outcome};
use crate::plan::text::qualified;
use crate::plan::Work;
use crate::report::{Did, Event, Setback};
use crate::restore::data::table_of_copy;
use crate::restore::journal::{self, fence::Session};
use crate::restore::tell::notices;
use crate::stop::Cancels;
use attempt::{Attempt, Statements, Tried};
use std::cell::Cell;
use std::sync::PoisonError;

pub(super) struct Worker<'s, 'a> {
    site: &'s Site<'a>,
    number: usize,
    /// None before there is one, and when it was lost and another is not to be had.
    connection: Option<(Connection, Session)>,
    cancels: Option<Cancels>,
    /// Connections at work when the batch began ([`Batch::busy`]).
    busy: usize,
    /// What was done since the last batch began.
    did: Did,
    /// The first step that the last transaction has recorded, or tried to.
    records: Cell<Option<u32>>,
    /// Bytes of data that the last transaction has sent.
    moved: Cell<u64>,
}

/// Errors that may go away when what comes earlier in the archive is done, or when nothing else runs: objects not yet
/// there, deadlocks, and catalog rows that two sessions made or changed at once. The function of a CHECK constraint may look at other
/// tables, whatever it says of itself.
fn may_pass(error: &Error) -> bool {
    let Some(state) = error.sqlstate.as_deref() else { return false };
    // A parallel worker that was ended is an error of the statement.
    matches!(
        state,
        "42P01"
            | "42883"
            | "42704"
            | "42703"
            | "3F000"
            | "42710"
            | "42P07"
            | "23505"
            | "23503"
            | "23514"
    ) || matches!(state, "40P01" | "40001" | "55P03" | "53200" | "57P01" | "57P02")
        || (state == "XX000" && error.message.contains("concurrently"))
}

impl<'s, 'a> Worker<'s, 'a> {
    pub fn new(site: &'s Site<'a>, number: usize) -> Worker<'s, 'a> {
        Worker {
            site,
            number,
            connection: None,
            cancels: None,
            busy: 1,
            did: Did::default(),
            records: Cell::new(None),
            moved: Cell::new(0),
        }
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
            self.busy = batch.busy;
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
            // A second try that was none is one that is to come.
            for step in batch.steps.iter().filter(|s| outcome(**s) == Outcome::NotRun) {
                lock(&site.tried).remove(step);
            }
            let ends = !site.options.go_on_after_errors && outcomes.contains(&Outcome::Failed);
            if ends {
                // Before others can take what waits for it: nothing is begun after a failure.
                site.stop.stop();
            }
            let settled = |o: Outcome| matches!(o, Outcome::Done | Outcome::Failed);
            let steps = batch.steps.iter().copied().filter(|s| settled(outcome(*s)));
            self.did.steps = steps.clone().count();
            self.did.cost = site.costs(steps);
            self.did.ok = outcomes.iter().all(|o| *o == Outcome::Done);
            // Before others can take what waits for it.
            site.watch.event(&Event::End { worker: self.number, did: self.did });
            lock(&site.scheduler).end_batch(&batch, outcome);
            site.wake.notify_all();
            if ends {
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
        let (site, steps) = (self.site, &batch.steps);
        let whole = |step: &u32| {
            !site.in_pieces(*step)
                && site.living(*step).len() == site.plan.entries(*step as usize).len()
        };
        let none = lock(&site.dead).is_empty() && lock(&site.entries_done).is_empty();
        if none || steps.iter().all(whole) {
            let tried = match self.attempt_surely(steps, Statements::Planned)? {
                Attempt::Done => return Ok(vec![Outcome::Done; steps.len()]),
                Attempt::Failed(tried) => tried,
                Attempt::Left => return Ok(vec![Outcome::NotRun; steps.len()]),
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
                    && site.plan.followers(*before as usize).contains(step)
            });
            let entries = site.plan.entries(*step as usize).len();
            if site.stop.is_set()
                || !site.options.go_on_after_errors && outcomes.contains(&Outcome::Failed)
            {
                outcomes.push(Outcome::NotRun);
                continue;
            }
            let living = site.living(*step);
            let outcome = if waits_for_undone {
                Outcome::NotRun
            } else if site.in_pieces(*step) && lock(&site.tried).insert(*step) {
                // The rest of it, as the beginning was done.
                Outcome::Again
            } else if living.len() < entries || site.in_pieces(*step) {
                self.piecewise(*step, &living)?
            } else {
                match self.attempt_surely(&[*step], Statements::Planned)? {
                    Attempt::Done => Outcome::Done,
                    Attempt::Failed(tried) => self.single(*step, tried)?,
                    Attempt::Left => Outcome::NotRun,
                }
            };
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// A step failed by itself: try it again when nothing else runs, try the archive's own statements, together and
    /// one by one, then give up what fails.
    fn single(&mut self, step: u32, mut tried: Tried) -> Result<Outcome> {
        let site = self.site;
        let early = self.may_be_refused(step, &tried.error);
        let is_new = (may_pass(&tried.error) || early)
            && (lock(&site.tried).insert(step) || self.has_no_name(step, &tried.error));
        if is_new {
            let (what, why) = (site.describe(step), &tried.error.message);
            let message =
                format!("{what} failed ({why}), to be tried again when nothing else runs");
            self.setback(Setback::Later, &message);
            return Ok(Outcome::Again);
        }
        if early {
            match self.without_indexes(step, tried)? {
                Ok(outcome) => return Ok(outcome),
                Err(why) => tried = why,
            }
        }
        if self.do_without(step, &tried) {
            return match self.attempt_surely(&[step], Statements::Planned)? {
                Attempt::Done => Ok(Outcome::Done),
                Attempt::Failed(tried) => self.single(step, tried),
                Attempt::Left => Ok(Outcome::NotRun),
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
            match self.attempt_surely(&[step], Statements::Originals(&order))? {
                Attempt::Done => return Ok(Outcome::Done),
                Attempt::Failed(_) => {}
                Attempt::Left => return Ok(Outcome::NotRun),
            }
        }
        if order.len() > 1 && !matches!(work, Work::Reload(_)) {
            return self.piecewise(step, &order);
        }
        for place in &order {
            // A schema that is there already will do for what is in it.
            if tried.error.sqlstate.as_deref() != Some("42P06") {
                site.bury(*place, passes(&tried.error));
            }
        }
        self.take_back(step, order.first().copied());
        self.give_up(site.describe(step), tried);
        Ok(Outcome::Failed)
    }

    /// A name was still taken when what had it had been dropped: all that may get it is to come behind. Once.
    fn has_no_name(&self, step: u32, error: &Error) -> bool {
        // (Made by two at once it is a row of a catalog, and else rows of the user's.)
        let of_catalog = || error.constraint.as_ref().is_some_and(|name| name.0 == b"pg_catalog");
        let is_taken = match error.sqlstate.as_deref() {
            Some("42710") => true,
            Some("23505") => of_catalog(),
            _ => false,
        };
        is_taken
            && !self.site.too_early.constraints(step).is_empty()
            && lock(&self.site.taken).insert(step)
    }

    /// Go on without a tablespace or an access method that is not there, as pg_restore does after an error: what was to be in it comes
    /// where the server has it by default.
    fn do_without(&self, step: u32, tried: &Tried) -> bool {
        let site = self.site;
        // There is none of this name, no right to it, or a partitioned table has none on this server.
        let state = tried.error.sqlstate.as_deref();
        let is_new = match site.options.go_on_after_errors
            && state.is_some_and(|state| WITHOUT.contains(&state))
        {
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
        let Some((connection, session)) = &self.connection else { return };
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
                    &connection.guarded(&journal::only_own_rows(&table, &steps_of_rows)),
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
        let sql = [
            b"BEGIN;\n",
            &undo[..],
            &journal::forget(*session, &steps, &plan.looking(&steps)),
            b"COMMIT;",
        ]
        .concat();
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
            let missing = |place: &u32| lock(&site.dead).passes(*place);
            let all = site.plan.entries(step as usize).iter();
            let passes = all.filter_map(missing).all(|passes| passes);
            entries.iter().for_each(|place| site.skip(*place, passes));
            return Ok(Outcome::Done);
        }
        let mut failed = false;
        for &place in entries {
            // What failed just now may be needed.
            if !site.living(step).contains(&place) || lock(&site.entries_done).contains(&place) {
                continue;
            }
            let attempt = loop {
                match self.attempt_surely(&[step], Statements::Piece(place))? {
                    Attempt::Failed(tried) if self.do_without(step, &tried) => {}
                    other => break other,
                }
            };
            match attempt {
                Attempt::Done => {
                    lock(&site.entries_done).insert(place);
                }
                Attempt::Failed(tried) => {
                    failed = true;
                    site.bury(place, passes(&tried.error));
                    self.give_up(describe(&toc.entry(place as usize)), tried);
                    if !site.options.go_on_after_errors {
                        break;
                    }
                }
                // What is left of it is done by others, unless this has ended all.
                Attempt::Left if failed && !site.options.go_on_after_errors => {
                    return Ok(Outcome::Failed)
                }
                Attempt::Left => return Ok(Outcome::NotRun),
            }
        }
        if failed || entries.len() < site.plan.entries(step as usize).len() {
            return Ok(if failed { Outcome::Failed } else { Outcome::Done });
        }
        // All of its entries are there, so it is.
        match self.attempt_surely(&[step], Statements::Piecewise)? {
            Attempt::Done => Ok(Outcome::Done),
            Attempt::Failed(tried) => {
                self.give_up(site.describe(step), tried);
                Ok(Outcome::Failed)
            }
            Attempt::Left => Ok(Outcome::NotRun),
        }
    }
}

/// A tablespace or an access method that is not there, may not be used, or is nothing for this kind of table.
const WITHOUT: [&str; 5] = ["22023", "42704", "42501", "42809", "0A000"];

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "canceled by user")
        .hint("Run the same command with --resume to go on.")
}
