//! Which types of an archive have values that name objects: `regclass` and its like, and whatever has one of these in it.

use super::sql::{has_names, qualified};
use crate::archive::Toc;
use std::collections::{HashMap, HashSet};

/// A schema and a name.
type Name = (Vec<u8>, Vec<u8>);

/// The archive's types, and relations, which are types as well.
#[derive(Default)]
pub struct Types {
    /// Each with all names that its statement has in it.
    all: HashMap<Name, Vec<Name>>,
    /// Those that name objects, or may.
    names: HashSet<Name>,
    /// Those that are made of others.
    made: HashSet<Name>,
    /// Partitioned tables with a key that is an expression, of which the archive does not tell the type.
    computed: HashSet<Name>,
}

impl Types {
    pub fn of(toc: &Toc) -> Types {
        let mut types = Types::default();
        for entry in toc.entries() {
            let view = matches!(entry.desc, b"VIEW" | b"MATERIALIZED VIEW");
            if !view && !matches!(entry.desc, b"TYPE" | b"DOMAIN" | b"TABLE" | b"FOREIGN TABLE") {
                continue;
            }
            let name = (entry.namespace.to_vec(), entry.tag.to_vec());
            let has = |word: &[u8]| entry.defn.windows(word.len()).any(|w| w == word);
            // Keys of partitions may be expressions, as all columns of views.
            const KEY: &[u8] = b"PARTITION BY ";
            let key = entry.defn.windows(KEY.len()).rposition(|w| w == KEY && !view);
            let (columns, key) = entry.defn.split_at(key.unwrap_or(entry.defn.len()));
            if has_names(columns, view) || has_names(key, true) {
                types.names.insert(name.clone());
            }
            // A key has one parenthesis around it, an expression one more.
            if key.iter().filter(|b| **b == b'(').count() > 1 {
                types.computed.insert(name.clone());
            }
            // Functions read the values of others.
            let made = has(b" AS ENUM (") || has(b" AS RANGE (") || has(b" AS (");
            if entry.desc == b"DOMAIN" || entry.desc == b"TYPE" && made {
                types.made.insert(name.clone());
            }
            types.all.insert(name, qualified(entry.defn));
        }
        loop {
            let has = |(name, of): &(&Name, &Vec<Name>)| {
                !types.names.contains(*name) && of.iter().any(|n| types.names.contains(n))
            };
            let more: Vec<Name> = types.all.iter().filter(has).map(|(n, _)| n.clone()).collect();
            if more.is_empty() {
                return types;
            }
            types.names.extend(more);
        }
    }

    /// Types with values that certainly name nothing, down to those that they are made of.
    pub fn plain(&self) -> HashSet<Name> {
        let mut plain = &self.made - &self.names;
        loop {
            let unknown = |name: &&Name| {
                let of = &self.all[*name];
                of.iter().any(|n| n != *name && n.0 != b"pg_catalog" && !plain.contains(n))
            };
            let less: Vec<Name> = plain.iter().filter(unknown).cloned().collect();
            if less.is_empty() {
                return plain;
            }
            less.iter().for_each(|name| {
                plain.remove(name);
            });
        }
    }

    /// Bounds of a table's partitions may.
    pub fn bounds_name_objects(&self, name: &Name) -> bool {
        self.names.contains(name) || self.computed.contains(name)
    }

    pub fn is_known(&self, name: &Name) -> bool {
        self.all.contains_key(name)
    }

    /// Rows of a table, or values of a type, may name objects.
    pub fn names_objects(&self, name: &Name) -> bool {
        self.names.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Entry;

    #[test]
    fn names_within_types() {
        let mut toc = Toc::default();
        for (n, (desc, tag, defn)) in [
            ("TYPE", "e", "CREATE TYPE s.e AS ENUM (\n    'a'\n);"),
            ("TYPE", "c", "CREATE TYPE s.c AS (\n\tx s.e,\n\ty integer\n);"),
            ("DOMAIN", "d", "CREATE DOMAIN s.d AS regclass;"),
            ("TYPE", "cd", "CREATE TYPE s.cd AS (\n\tx s.d\n);"),
            ("TABLE", "t", "CREATE TABLE s.t (\n    x s.cd[]\n);"),
            ("TABLE", "u", "CREATE TABLE s.u (\n    x s.c DEFAULT ('s.q'::regclass)::text\n);"),
            ("VIEW", "v", "CREATE VIEW s.v AS\n SELECT ('a'::text)::regclass AS r;"),
            ("TABLE", "w", "CREATE TABLE s.w (\n    x s.v\n);"),
            ("TABLE", "p", "CREATE TABLE s.p (\n    x text DEFAULT ('a'::regclass)::text\n)\nPARTITION BY LIST (x);"),
            ("TABLE", "q", "CREATE TABLE s.q (\n    x text\n)\nPARTITION BY LIST (((x)::regclass));"),
            ("TABLE", "f", "CREATE TABLE s.f (\n    x text\n)\nPARTITION BY LIST (s.f(x));"),
            ("TYPE", "b", "CREATE TYPE s.b (\n    INTERNALLENGTH = 4,\n    INPUT = s.b_in\n);"),
            ("DOMAIN", "db", "CREATE DOMAIN s.db AS s.b;"),
        ]
        .into_iter()
        .enumerate()
        {
            toc.push(&Entry {
                dump_id: n as i32 + 1,
                desc: desc.as_bytes(),
                tag: tag.as_bytes(),
                namespace: b"s",
                defn: defn.as_bytes(),
                ..Entry::default()
            })
            .unwrap();
        }
        let types = Types::of(&toc);
        let shown = |names: &HashSet<Name>| {
            let mut all: Vec<_> =
                names.iter().map(|n| String::from_utf8_lossy(&n.1).into_owned()).collect();
            all.sort();
            all.join(" ")
        };
        assert_eq!(shown(&types.names), "cd d q t v w");
        assert_eq!(shown(&types.plain()), "c e");
        assert_eq!(shown(&types.computed), "f q");
    }
}
