//! `--truncate-table`: tables that are there are emptied and filled anew, in one transaction, so that whoever looks, and whatever
//! dies, there are the old rows or the new ones.
//!
//! Tables that foreign keys tie together are emptied by one TRUNCATE, as the server wants it, and so in one transaction. CASCADE
//! is never used: a table that was not chosen and refers to a chosen one is a reason to refuse, by name.

use super::data::table_of_copy;
use crate::archive::Toc;
use crate::error::{Error, Result};
use crate::pg::{quote_ident, quote_literal, Connection};
use crate::plan::build::{copies_via_root, describe};
use crate::plan::select::Selection;
use crate::plan::text::qualified;
use crate::plan::Reload;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Names in one statement.
const CHUNK: usize = 5000;
/// Names in a message.
const SHOWN: usize = 10;

/// The table that an entry's rows go into, as SQL names it.
pub fn target(toc: &Toc, place: u32) -> Vec<u8> {
    let entry = toc.entry(place as usize);
    match table_of_copy(entry.copy_stmt) {
        Some(table) => qualified(entry.namespace, table),
        None => [&quote_ident(entry.namespace)[..], b".", &quote_ident(entry.tag)].concat(),
    }
}

struct Table {
    /// `pg_class.relkind`.
    kind: u8,
    name: Vec<u8>,
}

/// What the server's catalogs say of tables, by oid.
#[derive(Default)]
struct Catalogs {
    tables: HashMap<u32, Table>,
    parent: HashMap<u32, u32>,
    children: HashMap<u32, Vec<u32>>,
    /// Who refers to whom.
    keys: Vec<(u32, u32)>,
}

impl Catalogs {
    fn read(connection: &Connection) -> Result<Catalogs> {
        let mut found = Catalogs::default();
        let rows = connection.query(
            b"SELECT c.oid, c.relkind, pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) \
              FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
              WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm')",
        )?;
        for row in 0..rows.len() {
            let kind = rows.get(row, 1).and_then(|kind| kind.first()).copied().unwrap_or(0);
            let name = rows.get(row, 2).unwrap_or_default().to_vec();
            found.tables.insert(rows.number(row, 0).unwrap_or(0), Table { kind, name });
        }
        let rows = connection.query(
            b"SELECT i.inhrelid, i.inhparent FROM pg_catalog.pg_inherits i \
              JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = i.inhparent",
        )?;
        for row in 0..rows.len() {
            let [child, parent] = [0, 1].map(|column| rows.number(row, column).unwrap_or(0));
            found.parent.insert(child, parent);
            found.children.entry(parent).or_default().push(child);
        }
        let rows = connection.query(
            b"SELECT conrelid, confrelid FROM pg_catalog.pg_constraint WHERE contype = 'f' AND conrelid <> confrelid",
        )?;
        for row in 0..rows.len() {
            let [from, to] = [0, 1].map(|column| rows.number(row, column).unwrap_or(0));
            found.keys.push((from, to));
        }
        Ok(found)
    }

    fn root(&self, mut table: u32) -> u32 {
        while let Some(above) = self.parent.get(&table) {
            table = *above;
        }
        table
    }

    /// All that is below a partitioned table.
    fn below(&self, table: u32) -> Vec<u32> {
        let mut all = Vec::new();
        let mut stack = vec![table];
        while let Some(table) = stack.pop() {
            let children = self.children.get(&table).into_iter().flatten().copied();
            stack.extend(children.clone());
            all.extend(children);
        }
        all
    }

    fn name(&self, table: u32) -> String {
        let name = self.tables.get(&table).map_or(&b""[..], |t| &t.name);
        String::from_utf8_lossy(name).into_owned()
    }
}

/// Sets of tables that belong together.
#[derive(Default)]
struct Sets(HashMap<u32, u32>);

impl Sets {
    fn of(&self, mut table: u32) -> u32 {
        while let Some(above) = self.0.get(&table) {
            table = *above;
        }
        table
    }

    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.of(a), self.of(b));
        if a != b {
            // The smaller leads, so that it does not matter who comes first.
            self.0.insert(a.max(b), a.min(b));
        }
    }
}

fn shown(names: impl IntoIterator<Item = String>) -> String {
    let names: BTreeSet<String> = names.into_iter().collect();
    let more = names.len().saturating_sub(SHOWN);
    let first: Vec<String> = names.into_iter().take(SHOWN).collect();
    match more {
        0 => first.join(", "),
        _ => format!("{} and {more} more", first.join(", ")),
    }
}

/// Tables whose rows come through their partitioned table are emptied by emptying that: all of them must be chosen.
fn check_roots(toc: &Toc, selection: &Selection) -> Result<()> {
    let mut roots = HashMap::<Vec<u8>, (bool, bool)>::new();
    for (place, entry) in toc.entries().enumerate() {
        if entry.desc == b"TABLE DATA" && !entry.copy_stmt.is_empty() && copies_via_root(&entry) {
            let found = roots.entry(target(toc, place as u32)).or_default();
            match selection.has(place as u32) {
                true => found.0 = true,
                false => found.1 = true,
            }
        }
    }
    let others: Vec<String> = roots
        .iter()
        .filter(|(_, (some, others))| *some && *others)
        .map(|(name, _)| String::from_utf8_lossy(name).into_owned())
        .collect();
    match others.is_empty() {
        true => Ok(()),
        false => Err(partly(&others)),
    }
}

fn partly(roots: &[String]) -> Error {
    Error::usage("some partitions cannot be emptied without others")
        .detail(format!(
            "The archive loads partitions through their partitioned table: {}.",
            shown(roots.iter().cloned())
        ))
        .hint("Choose all partitions.")
}

/// What is emptied and filled together, for all rows that are chosen.
pub fn groups(connection: &Connection, toc: &Toc, selection: &Selection) -> Result<Vec<Reload>> {
    let data =
        |p: &u32| toc.entry(*p as usize).desc == b"TABLE DATA" && toc.entry(*p as usize).has_data;
    let places: Vec<u32> = selection.places().filter(data).collect();
    check_roots(toc, selection)?;
    let catalogs = Catalogs::read(connection)?;
    let mut groups = Vec::new();
    // By table, in the archive's order.
    let mut chosen = BTreeMap::<u32, Vec<u32>>::new();
    for chunk in places.chunks(CHUNK) {
        let rows: Vec<Vec<u8>> = chunk
            .iter()
            .map(|p| {
                [format!("({p}, ").as_bytes(), &quote_literal(&target(toc, *p)), b")"].concat()
            })
            .collect();
        let sql = [
            b"SELECT n, pg_catalog.to_regclass(name)::pg_catalog.oid FROM (VALUES ",
            &rows.join(&b", "[..])[..],
            b") v(n, name) ORDER BY n",
        ];
        let found = connection.query(&sql.concat())?;
        for row in 0..found.len() {
            let place: u32 = found.number(row, 0).unwrap_or(0);
            match found.number::<u32>(row, 1) {
                Some(table) => chosen.entry(table).or_default().push(place),
                // It is not there: the transaction will say so.
                None => {
                    let table = [b"ONLY ", &target(toc, place)[..]].concat();
                    let emptied = vec![table.clone()];
                    let (entries, counted) = (vec![place], vec![table]);
                    let oids = vec![0];
                    groups.push(Reload { entries, emptied, oids, counted, in_circle: false });
                }
            }
        }
    }
    refuse_others(&catalogs, toc, &chosen)?;
    groups.extend(tied(&catalogs, toc, &chosen)?);
    Ok(groups)
}

/// Only tables can be emptied, and put back by a rollback.
fn refuse_others(catalogs: &Catalogs, toc: &Toc, chosen: &BTreeMap<u32, Vec<u32>>) -> Result<()> {
    for (table, places) in chosen {
        let mut all = catalogs.below(*table);
        all.push(*table);
        for table in all {
            let kind = catalogs.tables.get(&table).map_or(0, |t| t.kind);
            if !matches!(kind, b'r' | b'p') {
                let what = if kind == b'f' { "foreign table" } else { "table" };
                let not = if kind == b'f' { "is a" } else { "is no" };
                return Err(Error::usage(format!(
                    "{} {not} {what}, and cannot be emptied",
                    catalogs.name(table)
                ))
                .detail(format!("It is to get {}.", describe(&toc.entry(places[0] as usize))))
                .hint("Leave it out, or restore it without --truncate-table."));
            }
        }
    }
    Ok(())
}

fn tied(catalogs: &Catalogs, toc: &Toc, chosen: &BTreeMap<u32, Vec<u32>>) -> Result<Vec<Reload>> {
    // All that is emptied: chosen tables, what is below them, and partitioned tables of which all partitions are.
    let mut emptied: HashSet<u32> = chosen.keys().copied().collect();
    let mut sets = Sets::default();
    for table in chosen.keys() {
        for part in catalogs.below(*table) {
            emptied.insert(part);
            sets.join(*table, part);
        }
    }
    let mut waiting: Vec<u32> = emptied.iter().copied().collect();
    let mut parts = HashMap::<u32, usize>::new();
    while let Some(table) = waiting.pop() {
        let Some(parent) = catalogs.parent.get(&table) else { continue };
        let found = parts.entry(*parent).or_default();
        *found += 1;
        if *found == catalogs.children[parent].len() && emptied.insert(*parent) {
            waiting.push(*parent);
        }
    }
    let referring: Vec<String> = catalogs
        .keys
        .iter()
        .filter(|(from, to)| emptied.contains(to) && !emptied.contains(from))
        .map(|(from, to)| format!("{} refers to {}", catalogs.name(*from), catalogs.name(*to)))
        .collect();
    if !referring.is_empty() {
        return Err(Error::usage(
            "tables that are not chosen refer to tables that are to be emptied",
        )
        .detail(format!("{}.", shown(referring)))
        .hint("Choose them as well, or remove their foreign keys."));
    }
    let mut in_keys = HashSet::new();
    for (from, to) in catalogs.keys.iter().filter(|(_, to)| emptied.contains(to)) {
        sets.join(*from, *to);
        in_keys.extend([*from, *to]);
    }
    for table in &emptied {
        // Who empties a partitioned table empties what is below it.
        if in_keys.contains(table) {
            catalogs.below(*table).into_iter().for_each(|part| sets.join(*table, part));
        }
    }
    // INSERTs of a partition may go through its partitioned table, and into any other partition.
    let mut trees = HashMap::<u32, u32>::new();
    for (table, places) in chosen {
        if places.iter().any(|p| toc.entry(*p as usize).copy_stmt.is_empty()) {
            let root = catalogs.root(*table);
            let first = *trees.entry(root).or_insert(*table);
            sets.join(first, *table);
            let via_root = places.iter().any(|p| copies_via_root(&toc.entry(*p as usize)));
            if via_root && root != *table && !emptied.contains(&root) {
                return Err(partly(&[catalogs.name(root)]));
            }
        }
    }
    let mut groups = BTreeMap::<u32, Vec<u32>>::new();
    let mut sorted: Vec<u32> = emptied.into_iter().collect();
    sorted.sort_unstable();
    for table in sorted {
        groups.entry(sets.of(table)).or_default().push(table);
    }
    let mut found = Vec::new();
    for tables in groups.into_values() {
        let of_archive: Vec<u32> =
            tables.iter().copied().filter(|t| chosen.contains_key(t)).collect();
        if of_archive.is_empty() {
            continue;
        }
        let (order, in_circle) = in_order(&tables, catalogs);
        let entries = order.iter().filter_map(|t| chosen.get(t)).flatten().copied().collect();
        let clause = |table: &u32| {
            let Table { kind, name } = &catalogs.tables[table];
            let only: &[u8] = if *kind == b'p' { b"" } else { b"ONLY " };
            [only, name].concat()
        };
        let emptied = tables.iter().map(clause).collect();
        let above = |table: u32| {
            std::iter::successors(catalogs.parent.get(&table), |t| catalogs.parent.get(t))
                .any(|above| chosen.contains_key(above))
        };
        let counted = of_archive.iter().filter(|t| !above(**t)).map(clause).collect();
        found.push(Reload { entries, emptied, oids: tables, counted, in_circle });
    }
    Ok(found)
}

/// Tables after those that they refer to; whether some refer to each other in a circle.
fn in_order(tables: &[u32], catalogs: &Catalogs) -> (Vec<u32>, bool) {
    let ours: HashSet<u32> = tables.iter().copied().collect();
    let mut needs = BTreeMap::<u32, HashSet<u32>>::new();
    for table in tables {
        needs.insert(*table, HashSet::new());
    }
    let parts = |table: u32| {
        let mut all = catalogs.below(table);
        all.push(table);
        all
    };
    for (from, to) in
        catalogs.keys.iter().filter(|(from, to)| ours.contains(from) && ours.contains(to))
    {
        for to in parts(*to).into_iter().filter(|to| to != from) {
            if let Some(needs) = needs.get_mut(from) {
                needs.insert(to);
            }
        }
    }
    let mut order = Vec::with_capacity(tables.len());
    let mut done = HashSet::new();
    let mut in_circle = false;
    while !needs.is_empty() {
        let free: Vec<u32> = needs
            .iter()
            .filter(|(_, needs)| needs.iter().all(|n| done.contains(n) || !ours.contains(n)))
            .map(|(table, _)| *table)
            .collect();
        let next = match free.is_empty() {
            false => free,
            true => {
                in_circle = true;
                needs.keys().take(1).copied().collect()
            }
        };
        for table in next {
            needs.remove(&table);
            done.insert(table);
            order.push(table);
        }
    }
    (order, in_circle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogs(tables: &[(u32, u8)], parents: &[(u32, u32)], keys: &[(u32, u32)]) -> Catalogs {
        let mut found = Catalogs { keys: keys.to_vec(), ..Catalogs::default() };
        for (table, kind) in tables {
            let name = format!("s.t{table}").into_bytes();
            found.tables.insert(*table, Table { kind: *kind, name });
        }
        for (child, parent) in parents {
            found.parent.insert(*child, *parent);
            found.children.entry(*parent).or_default().push(*child);
        }
        found
    }

    fn groups(catalogs: &Catalogs, chosen: &[u32]) -> Result<Vec<(Vec<u32>, String, bool)>> {
        let mut toc = Toc::default();
        for table in chosen {
            let entry = crate::archive::Entry {
                dump_id: *table as i32,
                desc: b"TABLE DATA",
                copy_stmt: b"COPY s.t FROM stdin;",
                ..crate::archive::Entry::default()
            };
            toc.push(&entry).unwrap();
        }
        let chosen = chosen.iter().enumerate().map(|(n, t)| (*t, vec![n as u32])).collect();
        let text = |names: &[Vec<u8>]| String::from_utf8(names.join(&b' ')).unwrap();
        let found = tied(catalogs, &toc, &chosen)?;
        Ok(found.into_iter().map(|r| (r.entries, text(&r.emptied), r.in_circle)).collect())
    }

    #[test]
    fn keys_tie_tables_together() {
        // 1 refers to 3, 3 to 2; 4 stands alone.
        let plain = [(1, b'r'), (2, b'r'), (3, b'r'), (4, b'r')];
        let found = catalogs(&plain, &[], &[(1, 3), (3, 2)]);
        let all = groups(&found, &[1, 2, 3, 4]).unwrap();
        assert_eq!(all[0], (vec![1, 2, 0], "ONLY s.t1 ONLY s.t2 ONLY s.t3".into(), false));
        assert_eq!(all[1], (vec![3], "ONLY s.t4".into(), false));
        let refused = groups(&found, &[2, 4]).unwrap_err();
        assert_eq!(refused.detail.unwrap(), "s.t3 refers to s.t2.");
        // Who refers to others may be emptied alone.
        assert_eq!(groups(&found, &[1]).unwrap().len(), 1);
        let circle = catalogs(&plain, &[], &[(1, 2), (2, 1)]);
        assert!(groups(&circle, &[1, 2]).unwrap()[0].2);
    }

    #[test]
    fn partitioned_tables() {
        // 10 has 11 and 12; 1 refers to 10, which the server also notes for each part.
        let tables = [(1, b'r'), (10, b'p'), (11, b'r'), (12, b'r')];
        let parents = [(11, 10), (12, 10)];
        let found = catalogs(&tables, &parents, &[(1, 10), (1, 11), (1, 12)]);
        let all = groups(&found, &[1, 11, 12]).unwrap();
        assert_eq!(all, [(vec![1, 2, 0], "ONLY s.t1 s.t10 ONLY s.t11 ONLY s.t12".into(), false)]);
        assert!(groups(&found, &[1, 11]).is_ok());
        assert!(groups(&found, &[11]).is_err());
        // Without keys each part is by itself.
        let loose = catalogs(&tables, &parents, &[]);
        assert_eq!(groups(&loose, &[11, 12]).unwrap().len(), 2);
        assert_eq!(groups(&loose, &[10, 11]).unwrap().len(), 1);
    }
}
