//! Which tables are partitions of which, by what the archive tells: an entry that attaches one, or, until version 13, the partition's own.

use super::text::{attach, last_part, split_statement, take_name, unquoted};
use crate::archive::{Entry, Toc};
use std::collections::HashMap;

/// Of a partition the table that it is attached to, by dump ids.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Parents(HashMap<i32, i32>);

impl Parents {
    pub fn of(toc: &Toc) -> Parents {
        let desc = |id: i32| toc.place(id).map(|p| toc.entry(p).desc);
        let mut parents = HashMap::new();
        for entry in toc.entries() {
            let tables =
                || entry.dependencies.iter().copied().filter(|d| desc(*d) == Some(b"TABLE"));
            match entry.desc {
                b"TABLE" => {
                    // It may need other tables, too: the type of their rows, for one.
                    if let Some(name) = attached_to(entry.defn) {
                        let is_parent = |id: &i32| {
                            toc.place(*id).is_some_and(|p| is_called(&toc.entry(p), name, &entry))
                        };
                        parents.extend(tables().find(is_parent).map(|p| (entry.dump_id, p)));
                    }
                }
                b"TABLE ATTACH" => {
                    let is_part = |id: &i32| {
                        let table = toc.place(*id).map(|p| toc.entry(p));
                        table.is_some_and(|t| (t.namespace, t.tag) == (entry.namespace, entry.tag))
                    };
                    let (own, above): (Vec<i32>, Vec<i32>) = tables().partition(is_part);
                    if let ([own], [above]) = (&own[..], &above[..]) {
                        parents.insert(*own, *above);
                    }
                }
                _ => {}
            }
        }
        open_circles(&mut parents);
        Parents(parents)
    }

    pub fn get(&self, table: i32) -> Option<i32> {
        self.0.get(&table).copied()
    }

    /// A table and what it is attached to, from below.
    pub fn above(&self, table: i32) -> impl Iterator<Item = i32> + '_ {
        std::iter::successors(Some(table), |table| self.get(*table))
    }
}

/// A hostile archive may attach in circles: of each one attachment does not count.
fn open_circles(parents: &mut HashMap<i32, i32>) {
    let mut walked = HashMap::new();
    let mut tables: Vec<i32> = parents.keys().copied().collect();
    tables.sort_unstable();
    for begin in tables {
        let mut table = begin;
        // By the walk that came there first.
        while *walked.entry(table).or_insert(begin) == begin {
            let Some(&above) = parents.get(&table) else { break };
            if walked.get(&above) == Some(&begin) {
                parents.remove(&table);
                break;
            }
            table = above;
        }
    }
}

/// Whether a name, as a statement of the entry `user` has it, is that of a table. Old archives leave out the user's own schema.
fn is_called(table: &Entry, name: &[u8], user: &Entry) -> bool {
    let last = last_part(name);
    let schema = match name[..name.len() - last.len()].strip_suffix(b".") {
        Some(schema) => unquoted(schema),
        None => user.namespace.to_vec(),
    };
    table.namespace == schema && table.tag == unquoted(last)
}

/// The table of which statements that make a table make it a partition.
fn attached_to(defn: &[u8]) -> Option<&[u8]> {
    let mut rest = defn;
    while let Some((statement, after)) = split_statement(rest) {
        let made = statement.strip_prefix(b"CREATE ").unwrap_or_default();
        let made = made.strip_prefix(b"UNLOGGED ").unwrap_or(made);
        let mut made = made.strip_prefix(b"TABLE ").unwrap_or_default();
        if take_name(&mut made).is_some() {
            if let Some(mut parent) = made.strip_prefix(b" PARTITION OF ") {
                return take_name(&mut parent);
            }
        }
        // With the semicolon.
        let whole = &rest[..rest.len() - after.len()];
        if let Some(found) = attach(whole.trim_ascii()) {
            return Some(found.parent);
        }
        rest = after;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_in_one_entry() {
        for (defn, of) in [
            ("CREATE TABLE s.c (\n    i integer\n);\nALTER TABLE ONLY s.p ATTACH PARTITION s.c FOR VALUES IN (1);\n\n\n", Some("s.p")),
            ("CREATE TABLE s.c PARTITION OF s.p\nFOR VALUES IN (1);\n", Some("s.p")),
            ("CREATE UNLOGGED TABLE s.c PARTITION OF s.p\nFOR VALUES IN (1);\n", Some("s.p")),
            ("CREATE TABLE s.c (\n    t text DEFAULT ' PARTITION OF ; ATTACH PARTITION '::text\n);\n", None),
            ("CREATE TABLE s.c (\n)\nINHERITS (s.p);\n", None),
        ] {
            assert_eq!(attached_to(defn.as_bytes()), of.map(str::as_bytes), "{defn}");
        }
    }

    #[test]
    fn partitions_that_need_other_tables() {
        let table = |dump_id, namespace: &'static str, tag: &'static str, defn, dependencies| {
            let (namespace, tag) = (namespace.as_bytes(), tag.as_bytes());
            Entry {
                dump_id,
                desc: b"TABLE",
                namespace,
                tag,
                defn,
                dependencies,
                ..Entry::default()
            }
        };
        for (attach, parent) in [
            (&b"CREATE TABLE s.c (\n    t s.t\n);\nALTER TABLE ONLY s.\"P p\" ATTACH PARTITION s.c DEFAULT;\n"[..], 3),
            (b"CREATE TABLE c (\n    t t\n);\nALTER TABLE ONLY \"P p\" ATTACH PARTITION c DEFAULT;\n", 3),
            (b"CREATE TABLE c (\n    t t\n);\nALTER TABLE ONLY o.\"P p\" ATTACH PARTITION c DEFAULT;\n", 2),
        ] {
            let mut toc = Toc::default();
            for entry in [
                table(1, "s", "t", b"CREATE TABLE s.t (\n);\n", &[]),
                table(2, "o", "P p", b"", &[]),
                table(3, "s", "P p", b"", &[]),
                table(4, "s", "c", attach, &[1, 2, 3]),
            ] {
                toc.push(&entry).unwrap();
            }
            assert_eq!(Parents::of(&toc).0, HashMap::from([(4, parent)]));
        }
    }

    #[test]
    fn circles() {
        let mut parents = HashMap::from([(1, 2), (2, 3), (3, 1), (4, 2), (5, 6), (7, 7)]);
        open_circles(&mut parents);
        assert_eq!(parents, HashMap::from([(1, 2), (2, 3), (4, 2), (5, 6)]));
    }
}
