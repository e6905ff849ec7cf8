//! Rows that are refused by an index which a rule has made before them.
//!
//! Partitions of very large tables get their indexes with themselves (rule `partition-indexes`). `pg_restore` makes them
//! after the rows: when these do not fit, since the source's index was damaged, say, the index fails and the rows stay. So
//! here the index goes then, the rows come, and it is the index that failed: its step is recorded as done but for it, and `--resume` makes it
//! by the archive's statement.

use super::attempt::{Attempt, Statements, Tried};
use super::Worker;
use crate::error::{Error, Result};
use crate::plan::build::{copies_via_root, describe};
use crate::plan::family::IndexMode;
use crate::plan::render::EarlyIndex;
use crate::plan::schedule::Outcome;
use crate::plan::text::{self, unquoted};
use crate::plan::Work;

/// Two rows with the same key, or (WITHOUT OVERLAPS) with keys that overlap, and one that is too large for the index.
const REFUSED: [&str; 3] = ["23505", "23P01", "54000"];

impl Worker<'_, '_> {
    /// The index that a rule made before the rows of a step, which it refuses.
    pub(super) fn refusing_index(&self, step: u32, error: &Error) -> Option<EarlyIndex> {
        let site = self.site;
        let (plan, toc) = (site.plan, site.archive.toc());
        let state = error.sqlstate.as_deref().unwrap_or_default();
        let named = error.constraint.as_ref().filter(|_| REFUSED.contains(&state))?;
        if !matches!(plan.steps[step as usize].work, Work::Data(..)) {
            return None;
        }
        let is_named = |place: u32| {
            let entry = toc.entry(place as usize);
            entry.namespace == &named.0[..]
                && text::index(entry.defn).is_some_and(|index| unquoted(index.name) == named.1)
        };
        let early =
            |family: &&crate::plan::family::Family| family.index_mode == IndexMode::WithTable;
        for family in plan.families.iter().filter(early) {
            for member in &family.members {
                let pairs = family.pairs_with_table(member);
                let Some(n) = pairs.iter().position(|(index, _)| is_named(*index)) else {
                    continue;
                };
                let (index, attach) = pairs[n];
                let makes = |step: &u32| {
                    matches!(plan.steps[*step as usize].work, Work::Group(_))
                        && plan.entries(*step as usize).contains(&index)
                };
                let step = (0..plan.steps.len() as u32).find(makes)?;
                let number = match plan.steps[step as usize].work {
                    Work::Group(group) => plan.groups[group as usize].family,
                    _ => return None,
                };
                let above = family.indexes[n];
                let table_attach = member.attach;
                return Some(EarlyIndex {
                    step,
                    family: number,
                    table_attach,
                    index,
                    attach,
                    above,
                });
            }
        }
        None
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
        // A partition that is detached gets no rows through its parent.
        let entry = toc.entry(place as usize);
        if !by_catalogs && (copies_via_root(&entry) || entry.copy_stmt.is_empty()) {
            return Ok(None);
        }
        let (mut indexes, mut errors) = (Vec::new(), Vec::new());
        let mut last = Tried { error: tried.error.clone(), statement: tried.statement.clone() };
        loop {
            match self.refusing_index(step, &last.error) {
                Some(index) if !indexes.contains(&index) => indexes.push(index),
                _ => return Ok(None),
            }
            errors.push(last);
            match self.attempt_surely(&[step], Statements::Without(&indexes))? {
                Attempt::Done => break,
                Attempt::Failed(tried) => last = tried,
                Attempt::Left => return Ok(Some(Outcome::NotRun)),
            }
        }
        for (early, tried) in indexes.iter().zip(errors) {
            site.bury(early.index);
            site.skip(early.attach);
            let hint = match by_catalogs {
                true => "The rows are there. Remove what the index refuses, and make it by --resume --no-count.",
                false => {
                    site.skip(early.table_attach);
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
