//! The archive's order where its dependencies do not tell.
//!
//! `pg_restore` makes all of pre-data one after another, with several jobs, too. Most of that order means nothing; what does is here.

use super::*;
use crate::plan::code::Calls;
use crate::plan::parents::Parents;
use crate::plan::text::{self, foreign_key, ForeignKey};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

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

/// A foreign key that is to be made.
struct Key<'a> {
    /// The place of its table.
    table: u32,
    step: u32,
    key: ForeignKey<'a>,
}

/// Numbers from 0 in an order in which all of these pairs are, and else as they are; in a circle as they are, too.
fn ranks(count: usize, must: &[(usize, usize)]) -> Vec<usize> {
    let (mut waits, mut behind) = (vec![0_usize; count], HashMap::<usize, Vec<usize>>::new());
    for (before, after) in must {
        waits[*after] += 1;
        behind.entry(*before).or_default().push(*after);
    }
    let mut ready: BinaryHeap<_> = (0..count).filter(|n| waits[*n] == 0).map(Reverse).collect();
    let mut rank = vec![usize::MAX; count];
    let (mut next, mut left) = (0, 0);
    while next < count {
        let number = match ready.pop() {
            Some(Reverse(number)) => number,
            None => {
                while rank[left] != usize::MAX {
                    left += 1;
                }
                left
            }
        };
        if rank[number] != usize::MAX {
            continue;
        }
        rank[number] = next;
        next += 1;
        for after in behind.remove(&number).into_iter().flatten() {
            waits[after] -= 1;
            if waits[after] == 0 {
                ready.push(Reverse(after));
            }
        }
    }
    rank
}

/// A table's entry that makes it a partition by itself: until version 13 there were none of TABLE ATTACH.
pub fn attaches_itself(entry: &Entry) -> bool {
    let has = |words: &[u8]| entry.defn.windows(words.len()).any(|w| w == words);
    entry.desc == b"TABLE" && (has(b" ATTACH PARTITION ") || has(b" PARTITION OF "))
}

/// The table that a foreign key belongs to, by its place: the one that its statement alters.
pub fn own_table(toc: &Toc, key: &Entry) -> Option<u32> {
    let altered = key.defn.trim_ascii().strip_prefix(b"ALTER TABLE ")?;
    let mut altered = altered.strip_prefix(b"ONLY ").unwrap_or(altered);
    let name = text::unquoted(text::last_part(text::take_name(&mut altered)?));
    let mut tables = key.dependencies.iter().filter_map(|id| toc.place(*id));
    let is_own = |place: &usize| {
        let table = toc.entry(*place);
        table.desc == b"TABLE" && table.namespace == key.namespace && table.tag == name
    };
    tables.find(is_own).map(|place| place as u32)
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

    /// Foreign keys of one table, and of those above and below it, come one after another. (They wait for the same locks in any case.)
    ///
    /// - A partition's own key comes behind one above that would take it up, under the partition's name, in the place of one of its own.
    /// - One with the name of a key above comes before that one, as do other constraints: what goes down to the partition has this name only if
    ///   it is free there.
    /// - Else it is the archive's order: the server names what it makes itself, for a partition or to one, as is free, and so it was named where the
    ///   archive is from.
    ///
    /// Edges of keys lead from lower ranks to higher ones, so that no circle comes of them.
    pub(super) fn order_foreign_keys(&mut self) {
        let toc = self.input.toc;
        let (mut keys, mut unknown) = (Vec::new(), Vec::new());
        for place in self.input.selection.places() {
            let entry = toc.entry(place as usize);
            if entry.desc != b"FK CONSTRAINT" {
                continue;
            }
            let step = self.step_of[place as usize];
            let Some(key) = foreign_key(entry.defn) else { continue };
            match own_table(toc, &entry) {
                Some(table) => keys.push(Key { table, step, key }),
                None => unknown.push((step, key)),
            }
        }
        self.order_keys_of_unknown(unknown);
        if keys.is_empty() {
            return;
        }
        let mut of_table = HashMap::<u32, Vec<usize>>::new();
        for (number, key) in keys.iter().enumerate() {
            of_table.entry(key.table).or_default().push(number);
        }
        let parents = Parents::of(toc);
        let above = |table: u32| {
            let above = parents.above(toc.entry(table as usize).dump_id).skip(1);
            let above = above.filter_map(|id| toc.place(id)).map(|place| place as u32);
            above.filter_map(|table| of_table.get(&table))
        };
        let mut must = Vec::new();
        for (number, own) in keys.iter().enumerate() {
            for other in above(own.table).flatten() {
                let theirs = &keys[*other].key;
                if theirs.takes_up(&own.key) {
                    must.push((*other, number));
                } else if theirs.name == own.key.name {
                    must.push((number, *other));
                }
            }
        }
        let rank = ranks(keys.len(), &must);
        let sorted = |table: &Vec<usize>| {
            let mut table = table.clone();
            table.sort_unstable_by_key(|number| rank[*number]);
            table
        };
        let by_rank: HashMap<u32, Vec<usize>> =
            of_table.iter().map(|(table, numbers)| (*table, sorted(numbers))).collect();
        let mut edges = Vec::new();
        for (table, own) in &by_rank {
            edges.extend(own.windows(2).map(|pair| (keys[pair[0]].step, keys[pair[1]].step)));
            for theirs in above(*table) {
                let theirs = &by_rank[&keys[theirs[0]].table];
                for number in own {
                    let step = keys[*number].step;
                    let next = theirs.partition_point(|other| rank[*other] < rank[*number]);
                    edges.extend(next.checked_sub(1).map(|n| (keys[theirs[n]].step, step)));
                    edges.extend(theirs.get(next).map(|other| (step, keys[*other].step)));
                }
            }
        }
        for place in self.input.selection.places() {
            let entry = toc.entry(place as usize);
            if !matches!(entry.desc, b"CONSTRAINT" | b"CHECK CONSTRAINT") {
                continue;
            }
            let (Some(table), Some((_, name, _))) =
                (own_table(toc, &entry), text::added(entry.defn))
            else {
                continue;
            };
            let name = text::unquoted(name);
            let theirs = above(table).flatten().filter(|other| keys[**other].key.name == name);
            edges.extend(theirs.map(|n| (self.step_of[place as usize], keys[*n].step)));
        }
        edges.sort_unstable();
        edges.iter().for_each(|(before, after)| self.edge(*before, *after));
    }

    /// Keys whose tables are not in the archive: nobody knows what is above what. Those of one table, of one name, and of
    /// equal columns keep its order.
    fn order_keys_of_unknown(&mut self, keys: Vec<(u32, ForeignKey)>) {
        let mut last = HashMap::<(u8, Vec<u8>), u32>::new();
        for (step, key) in keys {
            let columns = key.columns().to_vec();
            let marks = [(0, key.table.to_vec()), (1, key.name), (2, columns)];
            for before in marks.into_iter().filter_map(|mark| last.insert(mark, step)) {
                self.edge(before, step);
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

#[cfg(test)]
mod tests {
    use super::ranks;

    #[test]
    fn pairs_come_in_order_and_others_as_they_are() {
        let order = |count: usize, must: &[(usize, usize)]| {
            let rank = ranks(count, must);
            let mut numbers: Vec<usize> = (0..count).collect();
            numbers.sort_by_key(|n| rank[*n]);
            numbers
        };
        assert_eq!(order(4, &[]), [0, 1, 2, 3]);
        assert_eq!(order(4, &[(3, 1), (3, 1)]), [0, 2, 3, 1]);
        assert_eq!(order(4, &[(2, 0), (3, 2)]), [1, 3, 2, 0]);
        // A circle is as it is, and what waits for it comes behind.
        assert_eq!(order(4, &[(1, 0), (0, 1), (1, 2)]), [3, 0, 1, 2]);
        assert_eq!(order(1, &[(0, 0)]), [0]);
    }
}
