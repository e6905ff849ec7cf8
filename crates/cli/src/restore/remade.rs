//! Constraints that were made too early for what comes late: they are dropped before it and made again behind it, in its transaction, so that
//! nobody sees the database without them, and all stays as it was if it fails.
//!
//! - A foreign key of a partition, when an equal one of a table above it is made: that one would take it up, and no dump has it then as
//!   the partition's own.
//! - A foreign key of a table, or of one above it, when another one of the table is made whose name the server has given meanwhile to what
//!   comes of the first.
//! - A key that is DEFERRABLE, when rows come as INSERTs with ON CONFLICT, which do not go with it.
//!
//! Only what the journal has as made by this restore, and is there as it was made, is touched.

use super::journal::Done;
use super::Job;
use crate::archive::Entry;
use crate::error::Result;
use crate::pg::{quote_literal, Connection};
use crate::plan::build::own_table;
use crate::plan::parents::Parents;
use crate::plan::text::{added, foreign_key, qualified, unquoted, ForeignKey};
use crate::plan::Work;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Places of such constraints.
#[derive(Default)]
pub(super) struct Remade {
    /// By the step that makes a foreign key: those of partitions below its table.
    pub keys: HashMap<u32, Vec<u32>>,
    /// By the step that makes a foreign key: those of its table and of tables above it, which may have its name there.
    pub names: HashMap<u32, Vec<Namesake>>,
    /// By the dump id of their table.
    pub deferrable: HashMap<i32, Vec<u32>>,
}

/// A foreign key of which others may come, with names that the server chooses.
pub(super) struct Namesake {
    pub place: u32,
    /// Those that it would take up when it is made again, from above.
    pub below: Arc<[u32]>,
}

impl Remade {
    /// Those that were made before this pass.
    pub(super) fn of(job: &Job, recorded: &Done) -> Remade {
        let mut remade = Remade::default();
        if recorded.steps.is_empty() && recorded.entries.is_empty() {
            return remade;
        }
        let toc = job.archive.toc();
        let steps: HashSet<u32> = recorded.steps.iter().copied().collect();
        let entries: HashSet<u32> = recorded.entries.iter().copied().collect();
        let (mut made, mut missing) = (Vec::new(), HashMap::<i32, Vec<(u32, ForeignKey)>>::new());
        for (step, found) in job.plan.steps.iter().enumerate() {
            let step = step as u32;
            let done = |place: &u32| steps.contains(&step) || entries.contains(place);
            for place in job.plan.entries(step as usize) {
                let entry = toc.entry(*place as usize);
                let key = entry.desc == b"FK CONSTRAINT";
                if !(key || entry.desc == b"CONSTRAINT" && is_deferrable(entry.defn)) {
                    continue;
                }
                let Some(table) = own_table(toc, &entry) else { continue };
                let table = toc.entry(table as usize).dump_id;
                if !key {
                    if done(place) {
                        remade.deferrable.entry(table).or_default().push(*place);
                    }
                    continue;
                }
                let Some(key) = foreign_key(entry.defn) else { continue };
                match done(place) {
                    _ if matches!(found.work, Work::ForeignKeyValidate) => {}
                    true => made.push((*place, table, key)),
                    false => missing.entry(table).or_default().push((step, key)),
                }
            }
        }
        if missing.is_empty() || made.is_empty() {
            return remade;
        }
        let parents = Parents::of(toc);
        // From above: a key of a table in the middle would take up those below it.
        made.sort_by_key(|(_, table, _)| parents.above(*table).count());
        for (place, table, key) in &made {
            let late = parents.above(*table).skip(1).filter_map(|above| missing.get(&above));
            for (step, _) in late.flatten().filter(|(_, late)| late.takes_up(key)) {
                remade.keys.entry(*step).or_default().push(*place);
            }
        }
        let mut of_table = HashMap::<i32, Vec<usize>>::new();
        for (number, (_, table, _)) in made.iter().enumerate() {
            of_table.entry(*table).or_default().push(number);
        }
        let mut of_number = HashMap::<usize, Arc<[u32]>>::new();
        for (table, late) in &missing {
            let above = parents.above(*table).filter_map(|table| of_table.get(&table)).flatten();
            for number in above {
                let (place, own, key) = &made[*number];
                // Once for all of the late ones: of a table with very many partitions each may have one.
                let below = of_number.entry(*number).or_insert_with(|| {
                    let is_below = |table: i32| parents.above(table).skip(1).any(|t| t == *own);
                    let below =
                        made.iter().filter(|(_, t, other)| key.takes_up(other) && is_below(*t));
                    below.map(|(place, ..)| *place).collect::<Arc<[u32]>>()
                });
                for (step, _) in late {
                    let namesake = Namesake { place: *place, below: below.clone() };
                    remade.names.entry(*step).or_default().push(namesake);
                }
            }
        }
        remade
    }
}

/// A constraint that is there.
pub struct TooEarly {
    /// The statement that drops it.
    pub drop: Vec<u8>,
    /// Those that say of it, and of its index, what was said.
    pub said: Vec<u8>,
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

/// Whether what comes of the foreign key `of` has the name of another one on that one's table.
pub fn has_name(connection: &Connection, of: &Entry, late: &Entry) -> Result<bool> {
    let (Some((above, of)), Some((table, name))) = (altered(of), altered(late)) else {
        return Ok(false);
    };
    let sql = [
        b"WITH RECURSIVE up AS (SELECT conparentid FROM pg_catalog.pg_constraint WHERE conrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(",
        &quote_literal(&table)[..],
        b")::pg_catalog.oid AND conname OPERATOR(pg_catalog.=) ",
        &quote_literal(&unquoted(name)),
        b"::pg_catalog.name UNION ALL SELECT c.conparentid FROM up JOIN pg_catalog.pg_constraint c \
          ON c.oid OPERATOR(pg_catalog.=) up.conparentid) SELECT FROM up JOIN pg_catalog.pg_constraint c \
          ON c.oid OPERATOR(pg_catalog.=) up.conparentid WHERE c.conrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(",
        &quote_literal(&above),
        b")::pg_catalog.oid AND c.conname OPERATOR(pg_catalog.=) ",
        &quote_literal(&unquoted(of)),
        b"::pg_catalog.name",
    ];
    Ok(!connection.query(&sql.concat())?.is_empty())
}

/// Look for a constraint; `None` if it is not there, or not as it was made.
pub fn look(connection: &Connection, entry: &Entry) -> Result<Option<TooEarly>> {
    let Some((table, name)) = altered(entry) else { return Ok(None) };
    let as_made = match entry.desc {
        b"FK CONSTRAINT" => "contype OPERATOR(pg_catalog.=) 'f'::pg_catalog.\"char\"",
        _ => "condeferrable AND contype OPERATOR(pg_catalog.=) ANY ('{p,u,x}'::pg_catalog.\"char\"[])",
    };
    // The index of a foreign key is another table's.
    let sql = [
        b"SELECT pg_catalog.quote_literal(pg_catalog.obj_description(oid, 'pg_constraint')), \
          CASE WHEN contype OPERATOR(pg_catalog.<>) 'f'::pg_catalog.\"char\" \
          THEN pg_catalog.quote_literal(pg_catalog.obj_description(conindid, 'pg_class')) END, \
          (SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n \
          ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE c.oid OPERATOR(pg_catalog.=) conindid) FROM pg_catalog.pg_constraint \
          WHERE conrelid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(",
        &quote_literal(&table)[..],
        b")::pg_catalog.oid AND conname OPERATOR(pg_catalog.=) ",
        &quote_literal(&unquoted(name)),
        b"::pg_catalog.name AND conparentid OPERATOR(pg_catalog.=) 0::pg_catalog.oid AND ",
        as_made.as_bytes(),
    ];
    let found = connection.query(&sql.concat())?;
    if found.is_empty() {
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
    Ok(Some(TooEarly { drop, said }))
}

/// Table, with its schema, and name of the constraint that a statement adds.
pub fn altered<'a>(entry: &Entry<'a>) -> Option<(Vec<u8>, &'a [u8])> {
    let (table, name, _) = added(entry.defn)?;
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
