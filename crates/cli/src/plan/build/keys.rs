//! The order of foreign keys that belong together: those of a table and of its partitions.

use super::*;
use crate::plan::key_order::{ranks, Placed};
use crate::plan::parents::Parents;
use crate::plan::text::{self, foreign_key, ForeignKey};

/// A foreign key that is to be made.
struct Key<'a> {
    /// The place of its table.
    table: u32,
    step: u32,
    key: ForeignKey<'a>,
    /// See [`Placed`].
    splits: bool,
}

/// The table that a constraint belongs to, by its place: the one that its statement alters.
pub fn own_table(toc: &Toc, key: &Entry) -> Option<u32> {
    let name = text::unquoted(text::last_part(text::constrained(key.defn)?.0));
    let mut tables = key.dependencies.iter().filter_map(|id| toc.place(*id));
    let is_own = |place: &usize| {
        let table = toc.entry(*place);
        matches!(table.desc, b"TABLE" | b"FOREIGN TABLE")
            && table.namespace == key.namespace
            && table.tag == name
    };
    tables.find(is_own).map(|place| place as u32)
}

/// It may be a constraint that is no foreign key.
pub fn is_other(desc: &[u8]) -> bool {
    matches!(desc, b"CONSTRAINT" | b"CHECK CONSTRAINT" | b"TRIGGER")
}

/// It is made for what is below its table, too: partitions, and what inherits from it.
pub fn is_inherited(entry: &Entry) -> bool {
    match text::added(entry.defn) {
        Some((_, _, rest)) => {
            let rest = rest.trim_ascii_start();
            rest.starts_with(b"CHECK ") || rest.starts_with(b"NOT NULL ")
        }
        None => entry.desc == b"TRIGGER",
    }
}

impl Builder<'_> {
    /// Foreign keys of one table, and of those above and below it, come one after another. (They wait for the same locks in any case.)
    ///
    /// - Among each other they are ordered by `plan/key_order.rs`.
    /// - Other constraints, and triggers that are constraints, come before keys of their table, or above it, to whose offspring the server may give their names.
    /// - Those of them that go down to partitions and heirs come before all keys, if the server may choose such a name for what comes of one below.
    ///
    /// Edges of keys lead from lower ranks to higher ones, so that no circle comes of them.
    pub(super) fn order_foreign_keys(&mut self) {
        let toc = self.input.toc;
        let (mut keys, mut unknown) = (Vec::new(), Vec::new());
        let parents = Parents::of(toc);
        let with_parts: HashSet<i32> =
            toc.entries().filter_map(|table| parents.get(table.dump_id)).collect();
        for place in self.input.selection.places() {
            let entry = toc.entry(place as usize);
            if entry.desc != b"FK CONSTRAINT" {
                continue;
            }
            let step = self.step_of[place as usize];
            let Some(key) = foreign_key(entry.defn) else { continue };
            match own_table(toc, &entry) {
                Some(table) => {
                    let is_table = |place: &usize| toc.entry(*place).desc == b"TABLE";
                    let places = entry.dependencies.iter().filter_map(|id| toc.place(*id));
                    let mut others =
                        places.filter(|place| *place as u32 != table).filter(is_table).peekable();
                    let splits = others.peek().is_none()
                        || others.any(|place| with_parts.contains(&toc.entry(place).dump_id));
                    keys.push(Key { table, step, key, splits })
                }
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
        let tables_above = |table: u32| {
            let above = parents.above(toc.entry(table as usize).dump_id).skip(1);
            above.filter_map(|id| toc.place(id)).map(|place| place as u32)
        };
        let above = |table: u32| tables_above(table).filter_map(|table| of_table.get(&table));
        let placed = keys.iter().map(|Key { table, key, splits, .. }| Placed {
            key,
            table: *table,
            splits: *splits,
        });
        let placed: Vec<_> = placed.collect();
        let named = |place: u32| (place, toc.entry(place as usize).tag.to_vec());
        let rank = ranks(&placed, |table| tables_above(table).map(named).collect());
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
        let mut inherited = Vec::new();
        for place in self.input.selection.places() {
            let entry = toc.entry(place as usize);
            if !is_other(entry.desc) {
                continue;
            }
            let (Some(table), Some((_, name))) =
                (own_table(toc, &entry), text::constrained(entry.defn))
            else {
                continue;
            };
            let name = text::unquoted(name);
            let theirs = of_table.get(&table).into_iter().chain(above(table)).flatten();
            let theirs = theirs.filter(|other| keys[**other].key.may_give(&name));
            let step = self.step_of[place as usize];
            edges.extend(theirs.map(|n| (step, keys[*n].step)));
            if is_inherited(&entry) && text::may_be_chosen(&name) {
                inherited.push((toc.entry(table as usize).dump_id, step));
            }
        }
        if !inherited.is_empty() {
            let mut with_heirs = goes_down(toc.entries());
            let tables = of_table.keys().map(|table| toc.entry(*table as usize).dump_id);
            with_heirs.extend(tables.flat_map(|id| parents.above(id).skip(1)));
            inherited.retain(|(table, _)| with_heirs.contains(table));
            let steps = inherited.into_iter().map(|(_, step)| step);
            self.before_all(steps, keys.iter().map(|key| key.step));
        }
        edges.sort_unstable();
        edges.iter().for_each(|(before, after)| self.edge(*before, *after));
    }

    /// All of these steps come before all of those.
    fn before_all(&mut self, before: impl Iterator<Item = u32>, after: impl Iterator<Item = u32>) {
        let (mut before, mut after) = (before.peekable(), after.peekable());
        if before.peek().is_some() && after.peek().is_some() {
            let milestone = self.add_step(Work::Milestone, &[]);
            before.for_each(|step| self.edge(step, milestone));
            after.for_each(|step| self.edge(milestone, step));
        }
    }

    /// Keys whose tables are not in the archive: nobody knows what is above what. Those of one table, of one name, and of
    /// equal columns keep its order.
    /// Behind them all come the keys that may give one of those names that other constraints have.
    fn order_keys_of_unknown(&mut self, keys: Vec<(u32, ForeignKey)>) {
        let toc = self.input.toc;
        let names: HashSet<&[u8]> = keys.iter().map(|(_, key)| &key.name[..]).collect();
        let others = self.input.selection.places().filter(|place| {
            let entry = toc.entry(*place as usize);
            let name = match is_other(entry.desc) {
                true => text::constrained(entry.defn),
                false => None,
            };
            let name = name.map(|(_, name)| text::unquoted(name));
            name.is_some_and(|name| names.contains(&name[..]) || text::may_be_chosen(&name))
        });
        let others: Vec<u32> = others.map(|place| self.step_of[place as usize]).collect();
        self.before_all(others.into_iter(), keys.iter().map(|(step, _)| *step));
        let mut last = HashMap::<(u8, Vec<u8>), u32>::new();
        for (step, key) in keys {
            let columns = key.columns().to_vec();
            let marks = [(0, key.table.to_vec()), (1, key.name), (2, columns)];
            for before in marks.into_iter().filter_map(|mark| last.insert(mark, step)) {
                self.edge(before, step);
            }
        }
    }
}
