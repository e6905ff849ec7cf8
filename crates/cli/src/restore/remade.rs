//! Constraints that are dropped before what comes late and made again behind it, in its transaction: foreign keys that were made too early
//! (`too_early.rs`), and keys that are DEFERRABLE when rows come as INSERTs with ON CONFLICT, which do not go with such.
//!
//! Only what the journal has as made by this restore, and is there as it was made, is touched.

use super::journal::Done;
use super::Job;
use crate::archive::Entry;
use crate::error::Result;
use crate::pg::{quote_literal, Connection};
use crate::plan::build::own_table;
use crate::plan::text::{constrained, foreign_key, qualified, unquoted};
use std::collections::{HashMap, HashSet};

/// Keys that are DEFERRABLE and were made before this pass: places, by the dump id of their table.
pub(super) fn deferrable(job: &Job, recorded: &Done) -> HashMap<i32, Vec<u32>> {
    let mut found = HashMap::<i32, Vec<u32>>::new();
    if recorded.steps.is_empty() && recorded.entries.is_empty() {
        return found;
    }
    let toc = job.archive.toc();
    let steps: HashSet<u32> = recorded.steps.iter().copied().collect();
    let entries: HashSet<u32> = recorded.entries.iter().copied().collect();
    for step in 0..job.plan.steps.len() {
        let done = |place: &&u32| steps.contains(&(step as u32)) || entries.contains(*place);
        for place in job.plan.entries(step).iter().filter(done) {
            let entry = toc.entry(*place as usize);
            if entry.desc != b"CONSTRAINT" || !is_deferrable(entry.defn) {
                continue;
            }
            let Some(table) = own_table(toc, &entry) else { continue };
            found.entry(toc.entry(table as usize).dump_id).or_default().push(*place);
        }
    }
    found
}

/// A constraint that is there.
pub struct Early {
    /// The statement that drops it.
    pub drop: Vec<u8>,
    /// Those that say of it, and of its index, what was said.
    pub said: Vec<u8>,
    /// Its own table, and those above it, from below.
    pub tables: Vec<Table>,
    /// It refers to a partitioned table.
    pub splits: bool,
}

/// A table, as the catalogs have it.
pub struct Table {
    pub oid: u32,
    pub schema: Vec<u8>,
    pub name: Vec<u8>,
}

/// What keeps others from saying anything of a table's constraints until the transaction ends. Who may change a table may not be allowed to
/// say LOCK: no table has such a constraint.
pub fn lock(entry: &Entry) -> Vec<u8> {
    let table = altered(entry).map(|(table, _)| table);
    table.map_or_else(Vec::new, |table| {
        let none = b" DROP CONSTRAINT IF EXISTS \"firn: no such constraint (7380145926384)\";\n";
        [b"ALTER TABLE ONLY ", &table[..], none].concat()
    })
}

/// Look for a constraint; `None` if it is not there, or not as it was made.
pub fn look(connection: &Connection, entry: &Entry) -> Result<Option<Early>> {
    let Some((table, name)) = altered(entry) else { return Ok(None) };
    let as_made = match entry.desc {
        b"FK CONSTRAINT" => "contype OPERATOR(pg_catalog.=) 'f'::pg_catalog.\"char\"",
        _ => "condeferrable AND k.contype OPERATOR(pg_catalog.=) ANY ('{p,u,x}'::pg_catalog.\"char\"[])",
    };
    // The index of a foreign key is another table's.
    let sql = [
        b"SELECT pg_catalog.quote_literal(pg_catalog.obj_description(k.oid, 'pg_constraint')), \
          CASE WHEN k.contype OPERATOR(pg_catalog.<>) 'f'::pg_catalog.\"char\" \
          THEN pg_catalog.quote_literal(pg_catalog.obj_description(k.conindid, 'pg_class')) END, \
          (SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n \
          ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE c.oid OPERATOR(pg_catalog.=) k.conindid), \
          pg_catalog.current_setting('search_path'), pg_catalog.pg_get_constraintdef(k.oid), t.oid, t.nspname, t.relname, \
          (SELECT c.relkind OPERATOR(pg_catalog.=) 'p'::pg_catalog.\"char\" FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) k.confrelid) FROM pg_catalog.pg_constraint k \
          CROSS JOIN LATERAL (WITH RECURSIVE up AS (SELECT k.conrelid AS rel, 0 AS level UNION SELECT h.inhparent, up.level OPERATOR(pg_catalog.+) 1 FROM pg_catalog.pg_inherits h \
          JOIN up ON h.inhrelid OPERATOR(pg_catalog.=) up.rel JOIN pg_catalog.pg_class r ON r.oid OPERATOR(pg_catalog.=) up.rel AND r.relispartition) SELECT c.oid, n.nspname, c.relname, up.level FROM up JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) up.rel \
          JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace) t \
          WHERE k.conrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(",
        &quote_literal(&table)[..],
        b")::pg_catalog.oid AND k.conname OPERATOR(pg_catalog.=) ",
        &quote_literal(&unquoted(name)),
        b"::pg_catalog.name AND k.conparentid OPERATOR(pg_catalog.=) 0::pg_catalog.oid AND k.",
        as_made.as_bytes(),
        b" ORDER BY t.level",
    ];
    let found = connection.query(&sql.concat())?;
    if found.is_empty() {
        return Ok(None);
    }
    if !is_as_made(entry, found.get(0, 3), found.get(0, 4)) {
        return Ok(None);
    }
    let drop = [b"ALTER TABLE ", &table[..], b" DROP CONSTRAINT ", name, b";\n"].concat();
    let mut said = Vec::new();
    if let Some(comment) = found.get(0, 0) {
        let parts = [b"COMMENT ON CONSTRAINT ", name, b" ON ", &table, b" IS ", comment, b";\n"];
        said.extend(parts.concat());
    }
    if let (Some(comment), Some(index)) = (found.get(0, 1), found.get(0, 2)) {
        said.extend([b"COMMENT ON INDEX ", index, b" IS ", comment, b";\n"].concat());
    }
    let name = |row, column| found.get(row, column).unwrap_or_default().to_vec();
    let of =
        |row| Some(Table { oid: found.number(row, 5)?, schema: name(row, 6), name: name(row, 7) });
    let tables = (0..found.len()).filter_map(of).collect();
    Ok(Some(Early { drop, said, tables, splits: found.flag(0, 8) }))
}

/// Whether a foreign key is the one that its entry makes, and nobody has put another one in its place. With another search path than the archive's its text may
/// name tables otherwise, as it does in archives from before 10.3.
fn is_as_made(entry: &Entry, path: Option<&[u8]>, definition: Option<&[u8]>) -> bool {
    let (Some(made), Some(definition)) = (foreign_key(entry.defn), definition) else { return true };
    let start = [b"ALTER TABLE t ADD CONSTRAINT c ", definition, b";"].concat();
    let qualified = made.table.contains(&b'.');
    !qualified
        || path.is_none_or(|path| !matches!(path, b"" | b"\"\""))
        || foreign_key(&start).is_none_or(|found| {
            without_quotes(&found.definition) == without_quotes(&made.definition)
        })
}

/// What has quotes is not the same in all servers, nor under `quote_all_identifiers`.
fn without_quotes(definition: &[u8]) -> Vec<u8> {
    definition.iter().copied().filter(|byte| *byte != b'"').collect()
}

/// Table, with its schema, and name of the constraint that a statement adds.
pub fn altered<'a>(entry: &Entry<'a>) -> Option<(Vec<u8>, &'a [u8])> {
    let (table, name) = constrained(entry.defn)?;
    Some((qualified(entry.namespace, table), name))
}

fn is_deferrable(defn: &[u8]) -> bool {
    let words = b" DEFERRABLE";
    defn.windows(words.len()).any(|part| part == words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraints() {
        let of = |defn: &'static str| {
            let entry = Entry { defn: defn.as_bytes(), namespace: b"s", ..Entry::default() };
            let (table, name) = altered(&entry)?;
            Some(format!("{} {}", String::from_utf8_lossy(&table), String::from_utf8_lossy(name)))
        };
        let own = "ALTER TABLE ONLY s.\"T t\"\n    ADD CONSTRAINT \"k k\" FOREIGN KEY (a) REFERENCES s.u(a);\n";
        assert_eq!(of(own).unwrap(), "s.\"T t\" \"k k\"");
        let old = "ALTER TABLE t\n    ADD CONSTRAINT k UNIQUE (a) DEFERRABLE;\n";
        assert_eq!(of(old).unwrap(), "\"s\".t k");
        assert_eq!(of("CREATE UNIQUE INDEX k ON s.t USING btree (a);\n"), None);
    }
}
