//! What the archive tells of tables and their sequences.

use crate::archive::{Entry, Toc};
use crate::plan::build::goes_down;
use crate::plan::text::{attach, last_part, split_statement, take_name, unquoted};
use std::collections::{HashMap, HashSet};

/// By dump ids.
pub(super) struct Uses {
    /// Of a sequence: the tables that it belongs to, or whose columns have it in their defaults.
    pub sequences: HashMap<i32, Vec<i32>>,
    /// Of a partition: the table that it is attached to.
    pub parents: HashMap<i32, i32>,
    /// Tables a statement about which may go down to others that are no partitions of theirs.
    pub go_down: HashSet<i32>,
}

impl Uses {
    pub fn of(toc: &Toc) -> Uses {
        let desc = |id: i32| toc.place(id).map(|p| toc.entry(p).desc);
        let mut uses =
            Uses { sequences: HashMap::new(), parents: HashMap::new(), go_down: HashSet::new() };
        for entry in toc.entries() {
            let of = |wanted: &'static [u8]| {
                entry.dependencies.iter().copied().filter(move |d| desc(*d) == Some(wanted))
            };
            let users = &mut uses.sequences;
            match entry.desc {
                b"SEQUENCE" => users.entry(entry.dump_id).or_default().extend(of(b"TABLE")),
                b"TABLE" => {
                    of(b"SEQUENCE").for_each(|s| users.entry(s).or_default().push(entry.dump_id));
                    // Until 13 pg_dump attaches in the partition's own entry, which may need other tables, too: the type of
                    // their rows, for one.
                    if let Some(name) = attached_to(entry.defn) {
                        let is_parent = |id: &i32| {
                            toc.place(*id).is_some_and(|p| is_called(&toc.entry(p), name, &entry))
                        };
                        let parent = of(b"TABLE").find(is_parent);
                        uses.parents.extend(parent.map(|parent| (entry.dump_id, parent)));
                    }
                }
                b"DEFAULT" => {
                    let tables: Vec<i32> = of(b"TABLE").collect();
                    of(b"SEQUENCE").for_each(|s| users.entry(s).or_default().extend(&tables));
                }
                b"TABLE ATTACH" => {
                    let is_part = |id: &i32| {
                        let table = toc.place(*id).map(|p| toc.entry(p));
                        table.is_some_and(|t| (t.namespace, t.tag) == (entry.namespace, entry.tag))
                    };
                    let (parts, parents): (Vec<i32>, Vec<i32>) = of(b"TABLE").partition(is_part);
                    if let ([part], [parent]) = (&parts[..], &parents[..]) {
                        uses.parents.insert(*part, *parent);
                    }
                }
                _ => {}
            }
        }
        let parts = &uses.parents;
        uses.go_down = goes_down(toc.entries().filter(|e| !parts.contains_key(&e.dump_id)));
        uses
    }

    /// A table and what it is attached to, from below.
    pub fn above(&self, table: i32) -> impl Iterator<Item = i32> + '_ {
        // A hostile archive may attach in circles.
        let most = self.parents.len() + 1;
        let parent = |table: &i32| self.parents.get(table).copied();
        std::iter::successors(Some(table), parent).take(most)
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
        let mut made = statement.strip_prefix(b"CREATE TABLE ").unwrap_or_default();
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
            assert_eq!(Uses::of(&toc).parents, HashMap::from([(4, parent)]));
        }
    }
}
