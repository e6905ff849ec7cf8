//! Rows that are refused by an index which a rule has made before them.
//!
//! Partitions of very large tables get their indexes with themselves (rule `partition-indexes`). `pg_restore` makes them
//! after the rows: when these do not fit, since the source's index was damaged, say, the index fails and the rows stay. So
//! here the index goes then, the rows come, and it is the index that failed: its step is recorded as done but for it, and `--resume` makes it
//! by the archive's statement.

use super::attempt::{Attempt, Statements, Tried};
use super::{lock, Worker};
use crate::archive::Toc;
use crate::error::{Error, Result};
use crate::plan::build::{copies_via_root, describe};
use crate::plan::render::EarlyIndex;
use crate::plan::schedule::Outcome;
use crate::plan::text::{self, unquoted};
use crate::plan::{Plan, Work};
use std::cell::RefCell;
use std::collections::HashMap;

/// Two rows with the same key, or (WITHOUT OVERLAPS) with keys that overlap, and one that is too large for the index.
const REFUSED: [&str; 3] = ["23505", "23P01", "54000"];
/// Classes of errors that no index has a part in: of the connection, transactions, resources, the system.
const OF_OTHERS: [&str; 6] = ["08", "25", "40", "53", "57", "58"];

/// Indexes that come before rows.
#[derive(Default)]
pub(in crate::restore::work) struct Early {
    /// By schema and name.
    by_name: HashMap<(Vec<u8>, Vec<u8>), EarlyIndex>,
    /// By the dump id of their table.
    by_table: HashMap<i32, Vec<EarlyIndex>>,
    /// By the place of their table's attachment: places, each with that of its parent's index.
    by_attach: HashMap<u32, Vec<(u32, u32)>>,
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
        early
    }

    /// The early indexes of the partition that is attached there.
    pub(in crate::restore::work) fn of_attachment(&self, place: u32) -> &[(u32, u32)] {
        self.by_attach.get(&place).map_or(&[], |indexes| indexes)
    }
}

impl Worker<'_, '_> {
    /// An index that a rule made before the rows of a step may be why they fail.
    pub(super) fn may_be_refused(&self, step: u32, error: &Error) -> bool {
        let class = error.sqlstate.as_deref().and_then(|state| state.get(..2));
        class.is_some_and(|class| !OF_OTHERS.contains(&class))
            && (self.refusing_index(step, error).is_some() || !self.early_indexes(step).is_empty())
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

    /// Copy rows without the indexes that refuse them. `None` if that is not what keeps them away.
    pub(super) fn without_indexes(&mut self, step: u32, tried: &Tried) -> Result<Option<Outcome>> {
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
            return Ok(None);
        }
        let (mut indexes, mut errors) = (Vec::new(), Vec::new());
        let mut last = Tried { error: tried.error.clone(), statement: tried.statement.clone() };
        let mut blamed = false;
        loop {
            match self.refusing_index(step, &last.error) {
                // Rows may be filed elsewhere here than where they come from: they are not copied into another partition by itself, where nothing
                // would look at its bound.
                Some(index) if !by_catalogs && !self.early_indexes(step).contains(&index) => {
                    return Ok(None);
                }
                Some(index) if !blamed && !indexes.contains(&index) => {
                    indexes.push(index);
                    errors.push(last);
                }
                _ if blamed => return Ok(None),
                // Not all refusals name their index: all are taken away, and made again behind the rows.
                _ => {
                    blamed = true;
                    let mut all = self.early_indexes(step).to_vec();
                    all.retain(|early| !lock(&site.dead).contains(early.index));
                    let found = RefCell::new(Vec::new());
                    if all.is_empty() {
                        return Ok(None);
                    }
                    match self.attempt_surely(&[step], Statements::Blame(&all, &found))? {
                        Attempt::Done if found.borrow().is_empty() => return Ok(None),
                        Attempt::Done => {}
                        Attempt::Failed(_) => return Ok(None),
                        Attempt::Left => return Ok(Some(Outcome::NotRun)),
                    }
                    (indexes, errors) = found.into_inner().into_iter().unzip();
                }
            }
            match self.attempt_surely(&[step], Statements::Without(&indexes))? {
                Attempt::Done => break,
                Attempt::Failed(tried) => last = tried,
                Attempt::Left => return Ok(Some(Outcome::NotRun)),
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
        Ok(Some(Outcome::Failed))
    }
}
