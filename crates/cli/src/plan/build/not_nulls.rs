//! The order of NOT NULL constraints that are NOT VALID (from version 18 on). A column has one, which goes down to partitions and to what inherits; there a
//! constraint that was first keeps its name, and later none of another name can be made.

use super::keys::own_table;
use super::*;
use crate::plan::key_order::{sorted, Why};
use crate::plan::parents::Parents;
use crate::plan::text;
use std::collections::BTreeMap;

impl Builder<'_> {
    /// Those of tables below come before those above, of the same column; of several above one table each goes down to, it is the archive's order.
    pub(super) fn order_not_nulls(&mut self) {
        let toc = self.input.toc;
        // By column: places, and tables where they are known.
        let mut of_column = BTreeMap::<Vec<u8>, Vec<(u32, Option<i32>)>>::new();
        for place in self.input.selection.places() {
            let entry = toc.entry(place as usize);
            let column = match entry.desc {
                b"CONSTRAINT" => text::not_null(entry.defn),
                _ => None,
            };
            let Some(column) = column else { continue };
            let table = own_table(toc, &entry).map(|table| toc.entry(table as usize).dump_id);
            of_column.entry(column).or_default().push((place, table));
        }
        of_column.retain(|_, all| all.len() > 1);
        if of_column.is_empty() {
            return;
        }
        let (parents, with_heirs) = (Parents::of(toc), goes_down(toc.entries()));
        for all in of_column.values() {
            let numbers: HashMap<i32, usize> =
                all.iter().enumerate().filter_map(|(n, (_, table))| Some(((*table)?, n))).collect();
            let mut pairs = Vec::new();
            for (number, (_, table)) in all.iter().enumerate() {
                let above = table.map(|table| above(toc, &parents, table)).unwrap_or_default();
                pairs.extend(
                    above
                        .iter()
                        .filter_map(|table| Some((number, *numbers.get(table)?, Why::Sure))),
                );
            }
            let rank = sorted(all.len(), pairs.clone());
            let mut pairs: Vec<(usize, usize)> =
                pairs.into_iter().map(|(a, b, _)| (a, b)).collect();
            let mut chain: Vec<usize> = (0..all.len()).collect();
            chain.retain(|n| all[*n].1.is_none_or(|table| with_heirs.contains(&table)));
            chain.sort_by_key(|n| rank[*n]);
            pairs.extend(chain.windows(2).map(|pair| (pair[0], pair[1])));
            pairs.retain(|(a, b)| rank[*a] < rank[*b]);
            for (before, after) in pairs {
                let (before, after) = (all[before].0, all[after].0);
                let (first, second) = (self.step_of[before as usize], self.step_of[after as usize]);
                if first != second {
                    self.edge(first, second);
                }
                self.plan.not_nulls_first.entry(after).or_default().push(before);
            }
        }
    }
}

/// What a table is a partition of, or inherits from, or has a row of: what it depends on.
fn above(toc: &Toc, parents: &Parents, table: i32) -> HashSet<i32> {
    let (mut found, mut next) = (HashSet::new(), vec![table]);
    while let Some(id) = next.pop() {
        let entry = toc.place(id).map(|place| toc.entry(place));
        let needs = entry.map_or(&[][..], |entry| entry.dependencies);
        let is_table = |id: &i32| {
            let desc = toc.place(*id).map(|place| toc.entry(place).desc);
            matches!(desc, Some(b"TABLE" | b"FOREIGN TABLE"))
        };
        let tables = needs.iter().copied().filter(is_table).chain(parents.get(id));
        next.extend(tables.filter(|id| *id != table && found.insert(*id)));
    }
    found
}
