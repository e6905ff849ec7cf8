//! One transaction of a worker, and whether it was done.

use super::{cancelled, Worker};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{quote_literal, Connection};
use crate::plan::build::copies_via_root;
use crate::plan::render::{EarlyIndex, Settings};
use crate::plan::who::Who;
use crate::plan::Work;
use crate::report::{Event, Kind};
use crate::restore::data::{copy_rows, write_large_objects, Copied, Flow, How};
use crate::restore::journal::fence::Session;
use crate::restore::tell::{self, statement_at};
use crate::restore::unlogged;
use crate::restore::work::lock;
use crate::restore::{facts, journal, reload};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;

/// Which statements are used for a step.
#[derive(Clone, Copy)]
pub(super) enum Statements<'a> {
    Planned,
    /// The archive's, for all entries.
    Originals(&'a [u32]),
    /// The archive's, for one entry.
    Piece(u32),
    /// None: all entries were done as pieces.
    Piecewise,
    /// The planned ones, for rows, without these indexes.
    Without(&'a [EarlyIndex]),
    /// The same, and then each of these again, to see which of them fail. Nothing of it stays.
    Blame(&'a [EarlyIndex], &'a RefCell<Vec<(EarlyIndex, Tried)>>),
}

/// A table and its partition constraint.
type Bound<'t> = (&'t [u8], Vec<u8>);

/// The name of a partition's bound while it is detached.
const BOUND: &[u8] = b"firn_restore_bound";

/// How a try of some steps failed.
pub(super) struct Tried {
    pub error: Error,
    pub statement: String,
}

impl From<Error> for Tried {
    fn from(error: Error) -> Tried {
        Tried { error, statement: String::new() }
    }
}

/// What a try of some steps came to.
pub(super) enum Attempt {
    Done,
    Failed(Tried),
    /// Not done: the connection was lost, and another is not to be had. Those who have one do what is left.
    Left,
}

impl Worker<'_, '_> {
    /// Try steps in one transaction; connections that break are made again.
    pub(super) fn attempt_surely(
        &mut self,
        steps: &[u32],
        statements: Statements,
    ) -> Result<Attempt> {
        for round in 0.. {
            // It is lost since what was done before: others do this as well.
            if self.connection.is_none() {
                break;
            }
            self.moved.set(0);
            let result = self.attempt(steps, statements);
            self.pass_on_notices();
            let tried = match result {
                Ok(_) if matches!(statements, Statements::Blame(..)) => {
                    self.undo_moved();
                    return Ok(Attempt::Done);
                }
                Ok(copied) => {
                    self.site.rows.fetch_add(copied.rows, Ordering::Relaxed);
                    self.did.rows += copied.rows;
                    self.did.statements += copied.statements;
                    self.did.transactions += 1;
                    self.tell_left_out(steps);
                    return Ok(Attempt::Done);
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
                        self.undo_moved();
                        return Ok(Attempt::Failed(tried));
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
            if self.recover(piece, &tried.error)? {
                self.tell_left_out(steps);
                return Ok(Attempt::Done);
            }
            self.undo_moved();
        }
        Ok(Attempt::Left)
    }

    /// What the last try has sent does not count, as it was for nothing.
    fn undo_moved(&self) {
        let bytes = self.moved.take();
        if bytes > 0 {
            self.site.bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.site.watch.event(&Event::Undone { worker: self.number, bytes });
        }
    }

    fn tell_left_out(&self, steps: &[u32]) {
        let site = self.site;
        let places: Vec<u32> =
            steps.iter().flat_map(|s| site.plan.entries(*s as usize).iter().copied()).collect();
        site.left_out.tell(site.archive.toc(), &places, site.watch);
    }

    /// One transaction. Returns what it copied, and how many statements the server ran besides BEGIN and COMMIT.
    fn attempt(&self, steps: &[u32], statements: Statements) -> Result<Copied, Tried> {
        let site = self.site;
        let (connection, session) = self.connection.as_ref().ok_or_else(cancelled)?;
        let moved = |bytes: u64| {
            site.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.moved.set(self.moved.get() + bytes);
            site.watch.event(&Event::Moved { worker: Some(self.number), rows: 0, bytes });
        };
        let flow = Flow { stop: &site.stop, moved: &moved };
        let mut sql = b"BEGIN;\n".to_vec();
        sql.extend(self.index_workers(steps));
        let mut settings = Settings::default();
        let mut copied = Copied::default();
        let (mut rows, mut not_recorded) = (Vec::new(), Vec::new());
        let (mut dropped, mut made) = (BTreeMap::new(), HashSet::new());
        self.records.set(None);
        let without = match statements {
            Statements::Without(indexes) | Statements::Blame(indexes, _) => indexes,
            _ => &[],
        };
        let attached = |place: u32| !lock(&site.dead).contains(place);
        let by_catalogs = self.updates_catalogs();
        let (without_them, detached) =
            site.renderer.without_indexes(without, by_catalogs, attached);
        let bounds = self.bounds(connection, &detached)?;
        sql.extend(bounds.iter().flat_map(|(table, bound)| {
            [b"ALTER TABLE ", *table, b" ADD CONSTRAINT ", BOUND, b" CHECK (", bound, b");\n"]
                .concat()
        }));
        sql.extend(without_them);
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
                    copied.statements += self.behind_late(
                        connection,
                        step,
                        &mut dropped,
                        &made,
                        &mut sql,
                        &mut settings,
                    )?;
                    made.extend(site.plan.entries(step as usize));
                    let more = match statements {
                        Statements::Planned | Statements::Without(_) | Statements::Blame(..) => {
                            site.renderer.step(step, &mut settings)
                        }
                        Statements::Originals(order) => {
                            self.originals(connection, step, order, &mut settings)?
                        }
                        Statements::Piece(place) => {
                            self.originals(connection, step, &[place], &mut settings)?
                        }
                        Statements::Piecewise => Vec::new(),
                    };
                    sql.extend(more);
                    continue;
                }
            };
            let place = site.plan.entries(step as usize)[0] as usize;
            let toc = site.archive.toc();
            let silent = match part.is_some() && site.terms.silences_triggers(toc) {
                true => Some(reload::target(toc, place as u32)),
                false => None,
            };
            let again = site.again.contains(&(place as u32)) && self.table_made(place).is_some();
            if let Some(table) = &silent {
                sql.extend(self.become_superuser(&mut settings));
                sql.extend([b"ALTER TABLE ", &table[..], b" DISABLE TRIGGER ALL;\n"].concat());
            }
            let into = match again {
                true => unlogged::filled(site.archive, place as u32)?,
                false if part.is_some() => site.forced(place)?,
                false => None,
            };
            if again || into.is_some() {
                sql.extend(site.renderer.become_user(Who::Restores, &mut settings));
            }
            copied.statements += self.send(connection, &mut sql)?;
            let mut after = Vec::new();
            if let Some(table) = into {
                let quiet = match again {
                    true => unlogged::quiet(connection, &table)?,
                    false => unlogged::unforced(connection, &table)?,
                };
                sql.extend(quiet.before);
                after = quiet.after;
            }
            // Rows as INSERTs may have ON CONFLICT, which goes with no key that is DEFERRABLE.
            let mut early = BTreeMap::new();
            if toc.entry(place).copy_stmt.is_empty() && part.is_some() {
                let tables = toc.entry(place).dependencies.iter();
                let keys = tables.filter_map(|table| site.deferrable.get(table)).flatten();
                let (found, sent) = self.early(connection, keys, &mut sql, &mut settings)?;
                copied.statements += sent;
                early = found;
            }
            if !early.is_empty() {
                sql.extend(site.renderer.become_user(Who::Restores, &mut settings));
                sql.extend(early.values().flat_map(|found| found.drop.iter()));
            }
            sql.extend(site.renderer.before_rows(place as u32, &mut settings));
            copied.statements += self.send(connection, &mut sql)?;
            let result = match part {
                Some(part) => {
                    let rules = &site.terms.rules;
                    let freeze = rules.copy_freeze && part.1 == 1 && self.can_freeze(place);
                    // Whether a table is there that was to be is for the server to say, rows or none.
                    // A partition that is detached gets no rows through its parent.
                    let detached = without.first().filter(|_| !by_catalogs);
                    let into = detached.and_then(|early| self.site.renderer.table_of(early));
                    let skip_empty = rules.skip_empty_data && self.table_made(place).is_some();
                    let how = How { part, skip_empty, freeze, into };
                    copy_rows(connection, site.archive, place, &how, &flow)
                }
                None => {
                    let others = site.objects_of_others();
                    write_large_objects(connection, site.archive, place, &others, &flow)
                }
            };
            let found = result.map_err(|error| {
                let of_bound = error.constraint.as_ref().is_some_and(|named| named.1 == BOUND);
                let error = match of_bound {
                    true => error.hint("That is the bound of the partition, which is detached for the sake of its rows. This row belongs into another one here."),
                    false => error,
                };
                Tried { error, statement: self.copy_statement(place) }
            })?;
            if let Some(table) = &silent {
                sql.extend(self.become_superuser(&mut settings));
                sql.extend([b"ALTER TABLE ", &table[..], b" ENABLE TRIGGER ALL;\n"].concat());
            }
            if !early.is_empty() {
                // A table with what is still to be looked at is not altered.
                sql.extend_from_slice(b"SET CONSTRAINTS ALL IMMEDIATE;\n");
                sql.extend(self.anew(&mut early, &mut settings));
            }
            if !after.is_empty() {
                sql.extend(site.renderer.become_user(Who::Restores, &mut settings));
                sql.extend(after);
            }
            let noted = site.left_out.note(site.archive.toc(), site.terms, place as u32, &found);
            noted.map_err(|error| Tried { error, statement: self.copy_statement(place) })?;
            match part {
                Some(_) => rows.push((step, found.rows)),
                // Of large objects the bytes are recorded. Those of others may be gone when it is resumed, and this comes again then.
                None if found.left_out > 0 => not_recorded.push(step),
                None => rows.push((step, found.bytes)),
            }
            copied.add(&found);
        }
        sql.extend(self.anew(&mut dropped, &mut settings));
        // Another part of the same table may have failed meanwhile.
        let parts =
            steps.iter().any(|s| matches!(site.plan.steps[*s as usize].work, Work::Data(_, 2..)));
        if parts
            && steps.iter().any(|s| lock(&site.dead).contains(site.plan.entries(*s as usize)[0]))
        {
            return Err(Error::new(ErrorKind::Statement, "another part of the table failed").into());
        }
        // The journal is of who restores.
        sql.extend(site.renderer.become_user(Who::Restores, &mut settings));
        sql.extend(bounds.iter().flat_map(|(table, _)| {
            [b"ALTER TABLE ", *table, b" DROP CONSTRAINT ", BOUND, b";\n"].concat()
        }));
        if let Statements::Blame(indexes, found) = statements {
            self.send(connection, &mut sql)?;
            *found.borrow_mut() = self.failing(connection, indexes)?;
            connection.run(b"ROLLBACK").map_err(|failure| failure.error)?;
            return Ok(Copied::default());
        }
        let mut looked = Vec::new();
        match statements {
            Statements::Piece(place) => {
                self.records.set(steps.first().copied());
                sql.extend(journal::record_entry(*session, place));
                looked.extend(site.looks_at_missing(place, false).then_some(place));
            }
            _ => {
                let unrecorded = |step: &u32| {
                    self.is_refill(*step) || site.comes_again(*step) || not_recorded.contains(step)
                };
                let (_, new): (Vec<u32>, _) = steps.iter().partition(|step| unrecorded(step));
                rows.retain(|(step, _)| new.contains(step));
                self.records.set(new.first().copied());
                if !new.is_empty() {
                    sql.extend(journal::record(*session, &new, &rows));
                }
                let entries = new.iter().flat_map(|step| site.plan.entries(*step as usize));
                looked.extend(entries.filter(|place| site.looks_at_missing(**place, false)));
                for index in without {
                    let mut left = vec![index.index, index.attach];
                    left.extend(Some(index.table_attach).filter(|_| !by_catalogs));
                    let entries = site.plan.entries(index.step as usize);
                    sql.extend(journal::reopen(*session, index.step, entries, &left));
                    sql.extend(self.reopen_descriptions(*session, index));
                }
            }
        }
        if !looked.is_empty() {
            sql.extend(journal::record_without_rows(*session, &looked));
        }
        sql.extend_from_slice(b"COMMIT;");
        copied.statements += self.send(connection, &mut sql)?.saturating_sub(2);
        Ok(copied)
    }

    /// The partition constraints of tables that are about to be detached. What belongs into another partition here is refused as if each were still
    /// one, or it could never be attached again.
    fn bounds<'t>(
        &self,
        connection: &Connection,
        detached: &[&'t [u8]],
    ) -> Result<Vec<Bound<'t>>, Tried> {
        let mut bounds = Vec::new();
        for table in detached {
            let table_oid = [&quote_literal(table)[..], b"::pg_catalog.regclass"].concat();
            let ask = [b"SELECT pg_catalog.pg_get_partition_constraintdef(", &table_oid[..], b")"];
            let found = connection.ask(&ask.concat())?;
            bounds.extend(found.get(0, 0).map(|bound| (*table, bound.to_vec())));
        }
        Ok(bounds)
    }

    /// What was told of an index that goes comes again with it.
    fn reopen_descriptions(&self, session: Session, index: &EarlyIndex) -> Vec<u8> {
        let site = self.site;
        let toc = site.archive.toc();
        let id = toc.entry(index.index as usize).dump_id;
        let mut sql = Vec::new();
        for &step in site.early().described(index.index) {
            let entries = site.plan.entries(step as usize);
            let of_it = |place: &&u32| toc.entry(**place as usize).dependencies.contains(&id);
            let left: Vec<u32> = entries.iter().filter(of_it).copied().collect();
            sql.extend(journal::reopen(session, step, entries, &left));
        }
        sql
    }

    /// Which of some indexes cannot be made, within a transaction.
    fn failing(
        &self,
        connection: &Connection,
        indexes: &[EarlyIndex],
    ) -> Result<Vec<(EarlyIndex, Tried)>, Tried> {
        let run = |sql: &[u8]| connection.run(sql).map(drop).map_err(|failure| failure.error);
        let mut failing = Vec::new();
        for early in indexes {
            run(b"SAVEPOINT firn_index")?;
            let mut sql = self.site.renderer.statements(&[early.index], &mut Settings::default());
            match self.send(connection, &mut sql) {
                Ok(_) => {}
                Err(tried) if tried.error.kind == ErrorKind::Connection => return Err(tried),
                Err(tried) => failing.push((*early, tried)),
            }
            run(b"ROLLBACK TO SAVEPOINT firn_index")?;
        }
        Ok(failing)
    }

    /// The archive's own statements. Those of a group whose rewrite failed are noted for the groups to come, as long as there may be some.
    fn originals(
        &self,
        connection: &Connection,
        step: u32,
        entries: &[u32],
        settings: &mut Settings,
    ) -> Result<Vec<u8>, Tried> {
        let renderer = &self.site.renderer;
        let there = match renderer.bounds_of(step) {
            Some(table) => {
                let look = [
                    b"SELECT pg_catalog.to_regclass(",
                    &quote_literal(&table)[..],
                    b") IS NOT NULL",
                ];
                connection.query(&look.concat())?.flag(0, 0)
            }
            None => false,
        };
        let statements = |settings: &mut Settings| renderer.statements(entries, settings);
        Ok(match there {
            true => renderer.bounded(step, entries, statements, settings),
            false => statements(settings),
        })
    }

    /// Let indexes be built by no more processes than there are processors for; the server's setting remains the most.
    fn index_workers(&self, steps: &[u32]) -> Vec<u8> {
        let site = self.site;
        let builds = |step: &u32| tell::kind(site.plan, site.archive.toc(), *step) == Kind::Indexes;
        match site.processors {
            Some(processors) if steps.iter().any(builds) => format!(
                "SELECT pg_catalog.set_config('max_parallel_maintenance_workers', LEAST({}, \
                 pg_catalog.current_setting('max_parallel_maintenance_workers')::pg_catalog.int4)::pg_catalog.text, true);\n",
                facts::index_workers(processors, self.busy)
            )
            .into_bytes(),
            _ => Vec::new(),
        }
    }

    /// As `pg_restore` has it: triggers are switched off by the user of `--superuser`, or by who has logged in.
    pub(super) fn become_superuser(&self, settings: &mut Settings) -> Vec<u8> {
        let who = Who::superuser(self.site.terms.asked.superuser.as_deref());
        self.site.renderer.become_user(who, settings)
    }

    pub(super) fn copy_statement(&self, place: usize) -> String {
        String::from_utf8_lossy(self.site.archive.toc().entry(place).copy_stmt).into_owned()
    }

    /// Send what has gathered. Returns how many statements it was.
    pub(super) fn send(&self, connection: &Connection, sql: &mut Vec<u8>) -> Result<u64, Tried> {
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

    /// The table whose rows an entry has, if this restore has made it.
    fn table_made(&self, place: usize) -> Option<usize> {
        self.site.terms.table_made(self.site.archive.toc(), place)
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
