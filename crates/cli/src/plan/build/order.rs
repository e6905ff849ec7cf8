//! The archive's order where its dependencies do not tell. (That of foreign keys is in `keys.rs`.)
//!
//! `pg_restore` makes all of pre-data one after another, with several jobs, too. Most of that order means nothing; what does is here.

use super::*;
use crate::plan::code::Calls;
use crate::plan::parents::Parents;
use crate::plan::text;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// What changes how later statements are understood, though nothing depends on it in the catalogs: with a cast an explicit
/// conversion calls its function, without one it goes through text; a default operator class says how ORDER BY sorts.
/// Extensions may bring any of these, and languages and transforms functions that are called as later ones are made.
pub fn changes_meanings(desc: &[u8]) -> bool {
    matches!(
        desc,
        b"CAST"
            | b"OPERATOR CLASS"
            | b"OPERATOR FAMILY"
            | b"EXTENSION"
            | b"TRANSFORM"
            | b"PROCEDURAL LANGUAGE"
    )
}

/// A table's entry that makes it a partition by itself: until version 13 there were none of TABLE ATTACH.
pub fn attaches_itself(entry: &Entry) -> bool {
    let has = |words: &[u8]| entry.defn.windows(words.len()).any(|w| w == words);
    entry.desc == b"TABLE" && (has(b" ATTACH PARTITION ") || has(b" PARTITION OF "))
}

/// A column's privileges: "COLUMN table.column", until version 10 without the word.
fn is_of_column(entry: &Entry, table: &Entry) -> bool {
    let own = |tag: &[u8]| tag == table.tag || tag == quote_ident(table.tag);
    let tag = entry.tag;
    let named = [&b"TABLE "[..], b"SEQUENCE ", b"VIEW "].iter().find_map(|k| tag.strip_prefix(*k));
    !own(tag) && !named.is_some_and(own)
}

impl Builder<'_> {
    /// Whatever stands behind something that changes meanings waits for it. What that itself waits for does not: there the
    /// archive's dependencies count.
    ///
    /// Edges go from the k-th of these to steps that none of the first k waits for, so that no circle comes of them: each
    /// way from one of them to another leads to a later one.
    pub(super) fn order_meanings(&mut self) {
        let toc = self.input.toc;
        let chosen = self.input.selection.places();
        let makers: Vec<u32> =
            chosen.filter(|p| changes_meanings(toc.entry(*p as usize).desc)).collect();
        if makers.is_empty() {
            return;
        }
        let first = self.first_that_needs(&makers);
        let mut reached = NONE;
        let milestones: Vec<u32> = makers
            .iter()
            .map(|place| {
                let milestone = self.add_step(Work::Milestone, &[]);
                self.edge(self.step_of[*place as usize], milestone);
                self.edge(reached, milestone);
                reached = milestone;
                milestone
            })
            .collect();
        for (number, needed) in first.into_iter().enumerate() {
            let last = self.plan.entries(number).iter().max();
            let before = last.map_or(0, |place| makers.partition_point(|m| m < place));
            if let Some(at) = before.min(needed).checked_sub(1) {
                self.edge(milestones[at], number as u32);
            }
        }
    }

    /// For each step the number of the first of some entries that waits for it, or how many there are.
    fn first_that_needs(&self, makers: &[u32]) -> Vec<usize> {
        let mut before = vec![Vec::new(); self.plan.steps.len()];
        for &(earlier, later) in &self.edges {
            before[later as usize].push(earlier);
        }
        let mut first = vec![makers.len(); before.len()];
        for (n, place) in makers.iter().enumerate() {
            let mut stack = vec![self.step_of[*place as usize]];
            while let Some(step) = stack.pop() {
                // Those of earlier ones have been walked already.
                if first[step as usize] == makers.len() {
                    first[step as usize] = n;
                    stack.extend(&before[step as usize]);
                }
            }
        }
        first
    }

    /// Rows of a table whose generated columns call functions of the archive, which may read other tables, come after the rows that stand
    /// before them in the archive, as in `pg_restore` without `-j`: what they generate is stored. So do rows that go through a partitioned
    /// table whose partition key calls such: where they are filed is kept. Tables that call the same functions,
    /// such as partitions, do not wait for each other. (Tables that are emptied and filled together have no such order.)
    ///
    /// Rows that stand behind such a table are not kept back for it on several connections, nor does `pg_restore -j`: nearly everything would
    /// wait. On one connection they are.
    pub(super) fn order_generated(&mut self) {
        let toc = self.input.toc;
        let calling = self.code.generating();
        let filing = self.code.filing();
        let parents = match filing.is_empty() {
            true => Parents::default(),
            false => Parents::of(toc),
        };
        // Tables that were there before are told by the server.
        let there: HashMap<u32, Calls> = (self.input.facts.generated.iter())
            .map(|(place, calls)| (*place, Calls::there(calls.iter().copied())))
            .collect();
        if calling.is_empty() && there.is_empty() && filing.is_empty() {
            return;
        }
        let serial = self.input.facts.jobs == 1;
        let ordered = self.input.facts.reloads.is_empty();
        // Rows since the last milestone, of tables that call the same functions, and of others.
        let (mut like, mut others) = (Vec::new(), Vec::new());
        let (mut calls, mut before) = (None::<Cow<Calls>>, NONE);
        for place in self.input.selection.places() {
            let entry = toc.entry(place as usize);
            if entry.desc != b"TABLE DATA" {
                continue;
            }
            let step = self.step_of[place as usize];
            let found = entry.dependencies.iter().find_map(|id| calling.get(id));
            let mut found = found.or_else(|| there.get(&place)).map(Cow::Borrowed);
            if self.via_root.contains(&place) {
                let above = entry.dependencies.iter().flat_map(|table| parents.above(*table));
                for more in above.filter_map(|table| filing.get(&table)) {
                    found = Some(match found {
                        Some(calls) => Cow::Owned(calls.and(more, entry.dump_id)),
                        None => Cow::Borrowed(more),
                    });
                }
            }
            self.plan.looks.extend(found.as_ref().filter(|calls| calls.looks).map(|_| place));
            if !ordered {
                continue;
            }
            let behind = match &found {
                Some(found) if calls.as_ref() != Some(found) => {
                    others.append(&mut like);
                    calls = Some(found.clone());
                    &mut others
                }
                Some(_) => &mut others,
                None if serial => {
                    calls = None;
                    &mut like
                }
                None => {
                    others.push(step);
                    continue;
                }
            };
            if !behind.is_empty() {
                let steps = std::mem::take(behind);
                let milestone = self.add_step(Work::Milestone, &[]);
                self.edge(before, milestone);
                steps.into_iter().for_each(|other| self.edge(other, milestone));
                before = milestone;
            }
            self.edge(before, step);
            match found {
                Some(_) => like.push(step),
                None => others.push(step),
            }
        }
    }

    /// The server gives a NOT NULL constraint without a name that of table and column, unless one of its schema has that already, as that of a
    /// table that was the other's partition may: so they are made in the archive's order. (Names that are cut, as they would be too
    /// long, are not known again.)
    ///
    /// An edge leads only from a step all of whose entries stand before those of the other one, so that no circle comes of it.
    pub(super) fn order_not_null_names(&mut self) {
        let toc = self.input.toc;
        let is_table = |place: &u32| {
            matches!(toc.entry(*place as usize).desc, b"TABLE" | b"FOREIGN TABLE" | b"DOMAIN")
        };
        let tables: Vec<u32> = self.input.selection.places().filter(is_table).collect();
        let named: Vec<(u32, Vec<Vec<u8>>)> = (tables.iter())
            .map(|place| (*place, text::named_as_not_nulls(toc.entry(*place as usize).defn)))
            .filter(|(_, names)| !names.is_empty())
            .collect();
        if named.is_empty() {
            return;
        }
        let by_name: HashMap<(&[u8], &[u8]), u32> = (tables.iter())
            .map(|place| (toc.entry(*place as usize), *place))
            .map(|(entry, place)| ((entry.namespace, entry.tag), place))
            .collect();
        let mut pairs = BTreeSet::new();
        for (place, names) in &named {
            let namespace = toc.entry(*place as usize).namespace;
            for name in names {
                // A name has at most 63 bytes, in another encoding more.
                let cuts = (0..name.len().min(256)).filter(|at| name[*at] == b'_');
                let likely = cuts.filter_map(|at| by_name.get(&(namespace, &name[..at])));
                for other in likely.filter(|other| *other != place) {
                    pairs.insert((*place.min(other), *place.max(other)));
                }
            }
        }
        let steps: BTreeSet<(u32, u32)> = (pairs.into_iter())
            .map(|(first, second)| (self.step_of[first as usize], self.step_of[second as usize]))
            .filter(|(before, after)| before != after && *before != NONE && *after != NONE)
            .collect();
        for (before, after) in steps {
            let last = self.plan.entries(before as usize).iter().max();
            if last < self.plan.entries(after as usize).iter().min() {
                self.edge(before, after);
            }
        }
    }

    /// Privileges of a table come before those of its columns: they begin with a REVOKE that takes these, too. Those that a
    /// role grants that is not the owner come after those of the schema, without which it may not look there. Archives of some
    /// versions tell neither.
    pub(super) fn order_privileges(&mut self) {
        let toc = self.input.toc;
        let acls: Vec<u32> = (self.input.selection.places())
            .filter(|place| toc.entry(*place as usize).desc == b"ACL")
            .collect();
        let mut schemas = HashMap::new();
        let mut tables = HashMap::new();
        let mut columns = Vec::new();
        for &place in &acls {
            let entry = toc.entry(place as usize);
            for at in entry.dependencies.iter().filter_map(|d| toc.place(*d)) {
                let other = toc.entry(at);
                if other.desc == b"SCHEMA" {
                    schemas.insert(other.tag, self.step_of[place as usize]);
                } else if is_relation(other.desc) {
                    match is_of_column(&entry, &other) {
                        true => columns.push((at, place)),
                        false => drop(tables.insert(at, self.step_of[place as usize])),
                    }
                }
            }
        }
        for (table, place) in columns {
            if let Some(&before) = tables.get(&table) {
                self.edge(before, self.step_of[place as usize]);
            }
        }
        for place in acls {
            let entry = toc.entry(place as usize);
            let words = b"SET SESSION AUTHORIZATION ";
            let by_others = entry.defn.windows(words.len()).any(|w| w == words);
            if let Some(&before) = schemas.get(entry.namespace).filter(|_| by_others) {
                self.edge(before, self.step_of[place as usize]);
            }
        }
    }
}
