//! Rows that are refused by an index which a rule has made before them.
//!
//! Partitions of very large tables get their indexes with themselves (rule `partition-indexes`). `pg_restore` makes them
//! after the rows: when these do not fit, since the source's index was damaged, say, the index fails and the rows stay. So
//! here the index goes then, the rows come, and it is the index that failed: its step is recorded as done but for it, and `--resume` makes it
//! by the archive's statement.

use super::attempt::{Attempt, Statements, Tried};
use super::{lock, Worker};
use crate::archive::{Entry, Toc};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::build::{copies_via_root, describe};
use crate::plan::render::EarlyIndex;
use crate::plan::schedule::Outcome;
use crate::plan::text::{self, last_part, unquoted};
use crate::plan::{Plan, Work};
use crate::restore::data::table_of_copy;
use std::cell::RefCell;
use std::collections::HashMap;

/// Two rows with the same key, or (WITHOUT OVERLAPS) with keys that overlap, and one that is too large for the index.
const REFUSED: [&str; 3] = ["23505", "23P01", "54000"];
/// Input that COPY cannot split into columns.
const BAD_FORMAT: &str = "22P04";
/// Others depend on what is to be dropped.
const NEEDED: &str = "2BP01";
/// Classes of errors that no index has a part in: of the connection, transactions, resources, the system.
const OF_OTHERS: [&str; 6] = ["08", "25", "40", "53", "57", "58"];

fn is_of_others(error: &Error) -> bool {
    let class = error.sqlstate.as_deref().and_then(|state| state.get(..2));
    error.kind == ErrorKind::Cancelled || class.is_some_and(|class| OF_OTHERS.contains(&class))
}

fn is_needed(error: &Error) -> bool {
    error.sqlstate.as_deref() == Some(NEEDED)
}

/// The index that refuses rows cannot go, as something that was made before them depends on it.
fn kept(needed: Tried, refused: Tried) -> Tried {
    let by = needed.error.detail.unwrap_or(needed.error.message).replace('\n', "; ");
    let hint = format!("The index has to stay: {by}. Drop what depends on it, go on with --resume, and make it anew.");
    Tried { error: refused.error.hint(hint), ..refused }
}

/// The context that COPY gives an error says which column it was reading, of whatever language: `COPY table, line 1, column a: "x"`.
fn reads_a_column(context: &str, table: &[u8]) -> bool {
    let table = String::from_utf8_lossy(table);
    let last = context.lines().last().and_then(|line| line.strip_prefix("COPY "));
    let rest = last.and_then(|line| line.strip_prefix(&*table));
    let place = rest.and_then(|rest| rest.split_once(':')).map(|(place, _)| place);
    place.is_some_and(|place| place.starts_with(',') && place.matches(',').count() > 1)
}

/// What goes with what it is of.
fn is_description(desc: &[u8]) -> bool {
    matches!(desc, b"COMMENT" | b"SECURITY LABEL")
}

/// Indexes that come before rows.
#[derive(Default)]
pub(in crate::restore::work) struct Early {
    /// By schema and name.
    by_name: HashMap<(Vec<u8>, Vec<u8>), EarlyIndex>,
    /// By the dump id of their table.
    by_table: HashMap<i32, Vec<EarlyIndex>>,
    /// By the place of their table's attachment: places, each with that of its parent's index.
    by_attach: HashMap<u32, Vec<(u32, u32)>>,
    /// By the dump id of the index: the place of its table's rows.
    rows: HashMap<i32, u32>,
    /// By the place of the index: steps that tell something of it, such as its comment.
    described: HashMap<u32, Vec<u32>>,
}

impl Early {
    pub(in crate::restore::work) fn of(plan: &Plan, toc: &Toc) -> Early {
        let mut early = Early::default();
        for (step, found) in plan.steps.iter().enumerate() {
            let Work::Group(group) = found.work else { continue };
            let group = &plan.groups[group as usize];
            let family = &plan.families[group.family as usize];
            for member in &family.members[group.members.start as usize..group.members.end as usize]
            {
                let table = toc.entry(member.table as usize).dump_id;
                let pairs = family.pairs_with_table(member).iter().zip(&family.indexes);
                for (&(index, attach), &above) in pairs {
                    let (family, table_attach) = (group.family, member.attach);
                    let one = EarlyIndex {
                        step: step as u32,
                        family,
                        table_attach,
                        index,
                        attach,
                        above,
                    };
                    early.by_attach.entry(table_attach).or_default().push((index, above));
                    early.by_table.entry(table).or_default().push(one);
                    let entry = toc.entry(index as usize);
                    if let Some(index) = text::index(entry.defn) {
                        let name = (entry.namespace.to_vec(), unquoted(index.name));
                        early.by_name.insert(name, one);
                    }
                }
            }
        }
        if early.by_table.is_empty() {
            return early;
        }
        let indexes: HashMap<i32, u32> = early
            .by_table
            .values()
            .flatten()
            .map(|one| (toc.entry(one.index as usize).dump_id, one.index))
            .collect();
        for (step, found) in plan.steps.iter().enumerate() {
            let needed = |place: &u32| toc.entry(*place as usize).dependencies.iter().copied();
            match found.work {
                Work::Data(..) => {
                    let place = plan.entries(step)[0];
                    let own = needed(&place).filter_map(|table| early.by_table.get(&table));
                    let ids = own.flatten().map(|one| toc.entry(one.index as usize).dump_id);
                    early.rows.extend(ids.map(|id| (id, place)));
                }
                Work::Entries => {
                    let describes = |place: &&u32| is_description(toc.entry(**place as usize).desc);
                    let all = plan.entries(step).iter().filter(describes).flat_map(needed);
                    for index in all.filter_map(|id| indexes.get(&id)) {
                        early.described.entry(*index).or_default().push(step as u32);
                    }
                }
                _ => {}
            }
        }
        early
    }

    /// The rows that decide whether an early index stays, if an entry is of one, such as its comment, a view that groups by a key, or a foreign
    /// key that refers to it.
    pub(in crate::restore::work) fn rows_of(&self, entry: &Entry) -> Option<u32> {
        // What ties it to its parent's goes with it.
        let own = matches!(entry.desc, b"INDEX ATTACH" | b"TABLE ATTACH");
        entry.dependencies.iter().filter(|_| !own).find_map(|id| self.rows.get(id)).copied()
    }

    /// Steps that tell something of an early index and go with it.
    pub(super) fn described(&self, index: u32) -> &[u32] {
        self.described.get(&index).map_or(&[], |steps| steps)
    }

    /// The early indexes of the partition that is attached there.
    pub(in crate::restore::work) fn of_attachment(&self, place: u32) -> &[(u32, u32)] {
        self.by_attach.get(&place).map_or(&[], |indexes| indexes)
    }
}

impl Worker<'_, '_> {
    /// An index that a rule made before the rows of a step may be why they fail.
    pub(super) fn may_be_refused(&self, step: u32, error: &Error) -> bool {
        error.sqlstate.is_some()
            && !is_of_others(error)
            && (self.refusing_index(step, error).is_some()
                || !self.early_indexes(step).is_empty() && !self.is_no_row(step, error))
    }

    /// The server had no row yet that an index could refuse, or the table itself refuses it.
    fn is_no_row(&self, step: u32, error: &Error) -> bool {
        let site = self.site;
        let entry = site.archive.toc().entry(site.plan.entries(step as usize)[0] as usize);
        let table = table_of_copy(entry.copy_stmt).map(|table| unquoted(last_part(table)));
        let reads = table.zip(error.context.as_deref());
        error.sqlstate.as_deref() == Some(BAD_FORMAT)
            || matches!(error.sqlstate.as_deref(), Some("23502" | "23514")) && error.of_table
            || reads.is_some_and(|(table, context)| reads_a_column(context, &table))
    }

    /// Those of the table that the step's rows are of.
    fn early_indexes(&self, step: u32) -> &[EarlyIndex] {
        let site = self.site;
        if !matches!(site.plan.steps[step as usize].work, Work::Data(..)) {
            return &[];
        }
        let entry = site.archive.toc().entry(site.plan.entries(step as usize)[0] as usize);
        let mut tables = entry.dependencies.iter();
        tables.find_map(|id| site.early().by_table.get(id)).map_or(&[], |all| all)
    }

    /// The index that a rule made before the rows of a step, which it refuses by its name.
    fn refusing_index(&self, step: u32, error: &Error) -> Option<EarlyIndex> {
        let site = self.site;
        let state = error.sqlstate.as_deref().unwrap_or_default();
        let named = error.constraint.as_ref().filter(|_| REFUSED.contains(&state))?;
        if !matches!(site.plan.steps[step as usize].work, Work::Data(..)) {
            return None;
        }
        site.early().by_name.get(&(named.0.clone(), named.1.clone())).copied()
    }

    /// Who restores may update catalogs, of a version whose catalogs are known, and it is not switched off.
    pub(super) fn updates_catalogs(&self) -> bool {
        let terms = self.site.terms;
        let version = terms.facts.server_version / 10_000;
        terms.facts.superuser
            && terms.facts.no_staging.is_none()
            && terms.rules.staged_partitions
            && crate::restore::probe::KNOWN.contains(&version)
    }

    /// Copy rows without the indexes that refuse them. If that is not what keeps them away, what does: the error of the last try without
    /// indexes, if there was one.
    pub(super) fn without_indexes(
        &mut self,
        step: u32,
        tried: Tried,
    ) -> Result<std::result::Result<Outcome, Tried>> {
        let site = self.site;
        let toc = site.archive.toc();
        let place = site.plan.entries(step as usize)[0];
        let by_catalogs = self.updates_catalogs();
        // A partition that is detached gets its rows by itself, which is not for INSERTs through its parent, nor by hash, as the hash may
        // be another one here.
        let entry = toc.entry(place as usize);
        let by_hash = |early: &EarlyIndex| {
            let attach = text::attach(toc.entry(early.table_attach as usize).defn);
            attach.is_none_or(|attach| attach.bound.starts_with(b"FOR VALUES WITH "))
        };
        let hashed = || self.early_indexes(step).iter().any(by_hash);
        if !by_catalogs && (entry.copy_stmt.is_empty() || copies_via_root(&entry) && hashed()) {
            return Ok(Err(tried));
        }
        let (mut indexes, mut errors) = (Vec::new(), Vec::new());
        let mut last = tried;
        let mut blamed = false;
        loop {
            if blamed || is_of_others(&last.error) {
                return Ok(Err(last));
            }
            match self.refusing_index(step, &last.error) {
                // Rows may be filed elsewhere here than where they come from: they are not copied into another partition by itself, where nothing
                // would look at its bound.
                Some(index) if !by_catalogs && !self.early_indexes(step).contains(&index) => {
                    return Ok(Err(last));
                }
                Some(index) if !indexes.contains(&index) => {
                    indexes.push(index);
                    errors.push(last);
                }
                None if self.is_no_row(step, &last.error) => return Ok(Err(last)),
                // Not all refusals name their index: all are taken away, and made again behind the rows.
                _ => {
                    blamed = true;
                    let mut all = self.early_indexes(step).to_vec();
                    all.retain(|early| !lock(&site.dead).contains(early.index));
                    let found = RefCell::new(Vec::new());
                    if all.is_empty() {
                        return Ok(Err(last));
                    }
                    match self.attempt_surely(&[step], Statements::Blame(&all, &found))? {
                        Attempt::Done if found.borrow().is_empty() => return Ok(Err(last)),
                        Attempt::Done => {}
                        Attempt::Failed(tried) if is_needed(&tried.error) => {
                            return Ok(Err(kept(tried, last)));
                        }
                        Attempt::Failed(tried) => return Ok(Err(tried)),
                        Attempt::Left => return Ok(Ok(Outcome::NotRun)),
                    }
                    (indexes, errors) = found.into_inner().into_iter().unzip();
                }
            }
            match self.attempt_surely(&[step], Statements::Without(&indexes))? {
                Attempt::Done => break,
                Attempt::Failed(tried) => match errors.pop() {
                    Some(refused) if is_needed(&tried.error) => {
                        return Ok(Err(kept(tried, refused)));
                    }
                    refused => {
                        errors.extend(refused);
                        last = tried;
                    }
                },
                Attempt::Left => return Ok(Ok(Outcome::NotRun)),
            }
        }
        for (early, tried) in indexes.iter().zip(errors) {
            site.bury(early.index, false);
            site.skip(early.attach, false);
            let hint = match by_catalogs {
                true => "The rows are there. Remove what the index refuses, and make it by --resume --no-count.",
                false => {
                    site.skip(early.table_attach, false);
                    "The rows are in the partition, which is detached. Remove what the index refuses; --resume --no-count makes it and attaches the partition."
                }
            };
            let statement = String::from_utf8_lossy(toc.entry(early.index as usize).defn);
            let statement = statement.trim_end().to_string();
            let error = Error { position: None, ..tried.error.hint(hint) };
            self.give_up(describe(&toc.entry(early.index as usize)), Tried { error, statement });
        }
        Ok(Ok(Outcome::Failed))
    }
}
