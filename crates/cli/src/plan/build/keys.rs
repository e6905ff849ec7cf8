//! The order of foreign keys that belong together: those of a table and of its partitions.

use super::*;
use crate::plan::parents::Parents;
use crate::plan::text::{self, foreign_key, ForeignKey};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

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

/// The table that a constraint belongs to, by its place: the one that its statement alters.
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

impl Builder<'_> {
    /// Foreign keys of one table, and of those above and below it, come one after another. (They wait for the same locks in any case.)
    ///
    /// - A partition's own key comes behind one above that would take it up, under the partition's name, in the place of one of its own.
    /// - One with the name of a key above comes before that one: what goes down to the partition has this name only if it is free there.
    /// - Other constraints come before keys of their table, or above it, to whose offspring the server may give their names.
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
            let theirs = of_table.get(&table).into_iter().chain(above(table)).flatten();
            let theirs = theirs.filter(|other| keys[**other].key.may_give(&name));
            edges.extend(theirs.map(|n| (self.step_of[place as usize], keys[*n].step)));
        }
        edges.sort_unstable();
        edges.iter().for_each(|(before, after)| self.edge(*before, *after));
    }

    /// Keys whose tables are not in the archive: nobody knows what is above what. Those of one table, of one name, and of
    /// equal columns keep its order.
    /// Behind them all come the keys that may give one of those names that other constraints have.
    fn order_keys_of_unknown(&mut self, keys: Vec<(u32, ForeignKey)>) {
        let toc = self.input.toc;
        let names: HashSet<&[u8]> = keys.iter().map(|(_, key)| &key.name[..]).collect();
        let others = self.input.selection.places().filter(|place| {
            let entry = toc.entry(*place as usize);
            let name = match entry.desc {
                b"CONSTRAINT" | b"CHECK CONSTRAINT" => text::added(entry.defn),
                _ => None,
            };
            let name = name.map(|(_, name, _)| text::unquoted(name));
            name.is_some_and(|name| names.contains(&name[..]) || text::may_be_chosen(&name))
        });
        let others: Vec<u32> = others.map(|place| self.step_of[place as usize]).collect();
        if !others.is_empty() && !keys.is_empty() {
            let milestone = self.add_step(Work::Milestone, &[]);
            others.iter().for_each(|step| self.edge(*step, milestone));
            keys.iter().for_each(|(step, _)| self.edge(milestone, *step));
        }
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
