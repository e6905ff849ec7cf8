//! What must not be done, or not for good, while something that comes before it is missing.
//!
//! With `--on-error=continue` a failure ends nothing, and what stands behind it by order only is done. When `--resume` does the
//! rest, that order is gone. For most things it makes no difference. For the others this has two answers, so that what is
//! recorded is as it would be without the failure:
//!
//! - What can be done twice is done, for those who leave it at that, and not recorded ([`Site::comes_again`]).
//! - What would change how the missing things come out is put off ([`Site::puts_off`]) and told as skipped.
//!
//! Why, and what was thought of besides: docs/decisions/0023-order-after-errors.md.

use super::{lock, Site};
use crate::archive::{Entry, Toc};
use crate::error::Result;
use crate::plan::build::{copies_via_root, is_not_valid};
use crate::plan::render::large_objects;
use crate::plan::text::{last_part, unquoted};
use crate::plan::Work;
use crate::report::Event;
use crate::restore::{reload, unlogged};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

/// Told once, with the first that is put off.
const WHY: &str = "something failed, so what may only come after it is skipped, too, until --resume: triggers, rules, foreign keys \
                   and checks of tables without their rows, indexes of partitioned tables without their partitions, default privileges, event triggers, what is of keys of partitions without their rows, and rows, indexes and checks for which functions \
                   look at rows that are missing";

/// Tables that will get rows when those behind them are done already, by dump id.
#[derive(Default)]
pub(super) struct LateRows {
    /// They themselves, or partitions below them.
    tables: HashSet<i32>,
    /// Uppermost partitioned tables, any partition of which may get some.
    trees: HashSet<i32>,
}

impl Site<'_> {
    /// A step is done but not recorded, as part of what it looks at is missing: the next run does it again, after that.
    pub(super) fn comes_again(&self, step: u32) -> bool {
        let toc = self.archive.toc();
        let entries = self.plan.entries(step as usize);
        match self.plan.steps[step as usize].work {
            Work::LargeObjects => !self.objects_of_others().is_empty(),
            Work::Entries => {
                let again =
                    |desc: &[u8]| matches!(desc, b"MATERIALIZED VIEW DATA" | b"STATISTICS DATA");
                entries.iter().any(|place| again(toc.entry(*place as usize).desc))
                    && self.is_missing(|desc| !describes(desc))
            }
            _ => false,
        }
    }

    /// An entry is left out until what failed is done: it would change how that comes out.
    pub(super) fn puts_off(&self, entry: &Entry) -> bool {
        let waits = match entry.desc {
            // Rows that come late are not for them: they were there when these were written.
            b"TRIGGER" | b"RULE" | b"FK CONSTRAINT" | b"CHECK CONSTRAINT" => self.lacks_rows(entry),
            b"CONSTRAINT" if is_not_valid(entry.defn) => {
                self.lacks_rows(entry)
                    || self.lacks_partitions(entry)
                    || self.is_before_its_turn(entry)
            }
            b"CONSTRAINT" | b"INDEX" => self.lacks_partitions(entry),
            // What is made late would get them beside its own.
            b"DEFAULT ACL" => self.is_missing(has_privileges),
            // It may refuse or change whatever is done late.
            b"EVENT TRIGGER" => self.is_missing(|_| true),
            _ => false,
        };
        let own = self.archive.toc().place(entry.dump_id).map(|place| place as u32);
        let waits = waits
            || own.is_some_and(|place| self.looks_at_missing(place, true))
            || self.is_of_unsure_index(entry);
        if waits && !self.put_off.swap(true, Ordering::Relaxed) {
            self.watch.event(&Event::Note(WHY));
        }
        waits
    }

    /// A function that an entry runs may look at rows that are missing, and it keeps what that makes of it: an index, a check, and the rows of
    /// a table with generated columns, if these are such as stand before them. Rows that are missing for a reason that passes come by
    /// `--resume`, and it is put off until then. Others may never come: it is made without them, as by `pg_restore`, and the journal
    /// notes that, for the case that they come after all (`restore/behind.rs`).
    /// `passing`: only for such a reason.
    pub(super) fn looks_at_missing(&self, own: u32, passing: bool) -> bool {
        if !self.plan.looks.contains(&own) {
            return false;
        }
        let before = match self.archive.toc().entry(own as usize).desc {
            b"TABLE DATA" => own,
            _ => u32::MAX,
        };
        lock(&self.dead).lacks_rows_before(before, passing)
    }

    /// An index that came before its rows may refuse them when they come, and goes then: with it what was made of it meanwhile, such as a comment,
    /// or it could not go, because of a view that groups by it, say.
    fn is_of_unsure_index(&self, entry: &Entry) -> bool {
        let rows = self.early().rows_of(entry);
        rows.is_some_and(|rows| lock(&self.dead).passes(rows) == Some(true))
    }

    /// Some partitions of a partitioned table are not attached because something went wrong that passes, such as a full disk. They come by
    /// `--resume`; an index of the table that was there before would give each an index of its own then, in the place of the
    /// archive's, for good. What fails for another reason may always fail: the index is made without those partitions, as `pg_restore` does.
    fn lacks_partitions(&self, entry: &Entry) -> bool {
        let without = lock(&self.without_partitions);
        !without.is_empty() && entry.dependencies.iter().any(|table| without.contains(table))
    }

    /// A NOT NULL constraint that goes down to where another of the same column has failed: that one, made late, would find its name given.
    fn is_before_its_turn(&self, entry: &Entry) -> bool {
        let place = self.archive.toc().place(entry.dump_id).map(|place| place as u32);
        let first = place.and_then(|place| self.plan.not_nulls_first.get(&place));
        let Some(first) = first else { return false };
        let dead = lock(&self.dead);
        first.iter().any(|place| dead.passes(*place) == Some(true))
    }

    /// A partition is not attached, for a reason that passes: its parent is one without it.
    pub(super) fn note_unattached(&self, entry: &Entry) {
        let tables = match entry.desc {
            b"TABLE" => &[entry.dump_id][..],
            b"TABLE ATTACH" => entry.dependencies,
            _ => return,
        };
        // An attachment depends on both, and on the parent as on the partition's.
        let parents = tables.iter().filter_map(|table| self.uses().parents.get(*table));
        let own = parents.filter(|parent| entry.desc == b"TABLE" || tables.contains(parent));
        lock(&self.without_partitions).extend(own);
    }

    /// Something of these kinds has failed or was left out.
    fn is_missing(&self, counts: fn(&[u8]) -> bool) -> bool {
        let toc = self.archive.toc();
        lock(&self.dead).places().any(|place| counts(toc.entry(place as usize).desc))
    }

    /// The table that something belongs to, or another that a constraint is about as well, lacks rows.
    fn lacks_rows(&self, entry: &Entry) -> bool {
        let late = lock(&self.late_rows);
        if late.tables.is_empty() {
            return false;
        }
        let toc = self.archive.toc();
        let is_constraint = matches!(entry.desc, b"CHECK CONSTRAINT" | b"CONSTRAINT");
        // A constraint of a domain is about all tables that have it, one of a parent goes down to all that inherit it.
        let is_spread = |id: &i32| {
            let domain = toc.place(*id).is_some_and(|place| toc.entry(place).desc == b"DOMAIN");
            is_constraint && (domain || self.uses().go_down.contains(id))
        };
        let is_own = |id: &&i32| {
            let table = toc.place(**id).map(|place| toc.entry(place));
            table.is_some_and(|table| {
                let rest = entry.tag.strip_prefix(table.tag);
                table.namespace == entry.namespace && rest.is_some_and(|r| r.starts_with(b" "))
            })
        };
        let lacks = |id: &i32| {
            late.tables.contains(id)
                || self.uses().parents.above(*id).any(|id| late.trees.contains(&id))
                || is_spread(id)
        };
        entry.dependencies.iter().filter(is_own).any(lacks)
    }

    /// The table that an entry's rows go into, if this restore makes it and its row security, which may be there already when they come
    /// late, binds its owner, too. That is not put off: nobody is to see meanwhile what it hides.
    pub(super) fn forced(&self, place: usize) -> Result<Option<Vec<u8>>> {
        let toc = self.archive.toc();
        let forced = self.forced.get_or_init(|| forced(toc));
        let table = match forced.is_empty() {
            true => return Ok(None),
            false => self.terms.table_made(toc, place),
        };
        let Some(table) = table else { return Ok(None) };
        let is_forced = |into: &[u8]| {
            let table = last_part(into);
            let schema = into[..into.len() - table.len()].strip_suffix(b".").unwrap_or_default();
            let made = forced.get(&(unquoted(schema), unquoted(table)));
            made.and_then(|id| toc.place(*id)).is_some_and(|table| self.terms.makes(toc, table))
        };
        // Rows are only looked at where it may concern their table: that is reading the archive twice. INSERTs tell their table
        // themselves, which is the entry's own or one above it.
        let may_be = match toc.entry(place).copy_stmt {
            b"" => {
                let by_name = |table: Entry| {
                    forced.contains_key(&(table.namespace.to_vec(), table.tag.to_vec()))
                };
                let mut above = self.uses().parents.above(toc.entry(table).dump_id);
                above.any(|id| toc.place(id).is_some_and(|place| by_name(toc.entry(place))))
            }
            _ => is_forced(&reload::target(toc, place as u32)),
        };
        if !may_be {
            return Ok(None);
        }
        Ok(unlogged::filled(self.archive, place as u32)?.filter(|into| is_forced(into)))
    }

    /// Rows of an entry that failed or was left out will come late.
    pub(super) fn note_late_rows(&self, entry: &Entry) {
        let tables = match entry.desc {
            b"TABLE" => &[entry.dump_id][..],
            b"TABLE DATA" | b"TABLE ATTACH" => entry.dependencies,
            _ => return,
        };
        // INSERTs do not tell where they go before they are read.
        let anywhere =
            entry.desc == b"TABLE DATA" && (entry.copy_stmt.is_empty() || copies_via_root(entry));
        let mut late = lock(&self.late_rows);
        for table in tables {
            let tree = self.uses().parents.above(*table).last();
            // What is above one that is known already is known as well.
            for table in self.uses().parents.above(*table) {
                if !late.tables.insert(table) {
                    break;
                }
            }
            late.trees.extend(tree.filter(|root| anywhere && root != table));
        }
    }

    /// Large objects that could not be made: what is there by their numbers was there before.
    pub(super) fn objects_of_others(&self) -> HashSet<u32> {
        let toc = self.archive.toc();
        let mut oids = HashSet::new();
        for place in lock(&self.dead).places() {
            let entry = toc.entry(place as usize);
            match entry.desc {
                b"BLOB" => oids.extend(oid(entry.tag)),
                b"BLOB METADATA" => oids.extend(large_objects(entry.defn).filter_map(oid)),
                _ => {}
            }
        }
        oids
    }
}

/// Tables whose row security binds their owner, too: schema and name.
pub(super) type Forced = HashMap<(Vec<u8>, Vec<u8>), i32>;

fn forced(toc: &Toc) -> Forced {
    let force = b" FORCE ROW LEVEL SECURITY";
    let is_forced = |entry: &Entry| {
        entry.desc == b"TABLE" && entry.defn.windows(force.len()).any(|w| w == force)
    };
    let tables = toc.entries().filter(is_forced);
    tables.map(|t| ((t.namespace.to_vec(), t.tag.to_vec()), t.dump_id)).collect()
}

fn oid(digits: &[u8]) -> Option<u32> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Nothing that is read depends on these.
fn describes(desc: &[u8]) -> bool {
    matches!(desc, b"COMMENT" | b"SECURITY LABEL" | b"ACL" | b"ACL LANGUAGE" | b"DEFAULT ACL")
}

/// What ALTER DEFAULT PRIVILEGES knows, and what brings such things along.
fn has_privileges(desc: &[u8]) -> bool {
    matches!(
        desc,
        b"SCHEMA"
            | b"EXTENSION"
            | b"TABLE"
            | b"VIEW"
            | b"MATERIALIZED VIEW"
            | b"FOREIGN TABLE"
            | b"SEQUENCE"
            | b"FUNCTION"
            | b"PROCEDURE"
            | b"AGGREGATE"
            | b"TYPE"
            | b"SHELL TYPE"
            | b"DOMAIN"
            | b"BLOB"
            | b"BLOB METADATA"
    )
}
