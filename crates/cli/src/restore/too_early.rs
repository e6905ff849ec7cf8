//! Foreign keys that were made before what comes late after all, though the plan has them behind it: they are dropped before that and made again behind
//! it, in its transaction, so that nobody sees the database without them, and all stays as it was if it fails.
//!
//! - One of a partition, when an equal one of a table above it is made: that one would take it up, and no dump has it then as the
//!   partition's own.
//! - One of which others have come, when another constraint is made whose name the server has given to one of these.
//! - One of a partition below such, if that takes it up when it is made again.
//!
//! Only what the journal has as made by this restore before this pass, and is there as it was made, is touched. Which tables are partitions of
//! which the server is asked: archives of post-data alone have no tables. All that come late in one transaction share what is dropped: of a
//! table with many partitions each may need that its key is made again.

use super::finish::all_that_can_be_told;
use super::journal::Done;
use super::remade::altered;
use super::Job;
use crate::archive::Toc;
use crate::error::Result;
use crate::pg::{quote_literal, Connection};
use crate::plan::text::{foreign_key, last_part, unquoted, ForeignKey};
use crate::plan::Work;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Asked in one query.
const ASKED: usize = 10_000;

/// Schema, table and name of a constraint, without quotes.
type Name = (Vec<u8>, Vec<u8>, Vec<u8>);

/// A constraint that is not made yet.
#[derive(Clone)]
pub struct Late<'a> {
    /// As statements name it.
    table: Vec<u8>,
    name: Vec<u8>,
    key: Option<ForeignKey<'a>>,
}

/// The foreign keys that were made before a pass, and which steps have to do with them.
#[derive(Default)]
pub struct TooEarly<'a> {
    /// By place.
    made: BTreeMap<u32, ForeignKey<'a>>,
    by_name: HashMap<Name, u32>,
    /// Constraints that come late, by step, of those that have met some when the pass began.
    late: HashMap<u32, Vec<Late<'a>>>,
}

impl<'a> TooEarly<'a> {
    /// Look for them when a pass begins.
    pub fn of(job: &Job<'a>, connection: &Connection, recorded: &Done) -> Result<TooEarly<'a>> {
        let toc = job.archive.toc();
        let mut found = TooEarly::default();
        if recorded.steps.is_empty() && recorded.entries.is_empty() {
            return Ok(found);
        }
        let steps: HashSet<u32> = recorded.steps.iter().copied().collect();
        let entries: HashSet<u32> = recorded.entries.iter().copied().collect();
        let (mut of_step, mut late) = (Vec::new(), Vec::new());
        for (step, work) in job.plan.steps.iter().enumerate() {
            let step = step as u32;
            for &place in job.plan.entries(step as usize) {
                let entry = toc.entry(place as usize);
                if !matches!(entry.desc, b"FK CONSTRAINT" | b"CONSTRAINT" | b"CHECK CONSTRAINT") {
                    continue;
                }
                let Some(one) = Late::of(toc, place) else { continue };
                match (steps.contains(&step) || entries.contains(&place), &one.key) {
                    (true, Some(_)) => {
                        found.by_name.insert(full_name(&one.table, one.name), place);
                        found.made.extend(one.key.map(|key| (place, key)));
                    }
                    // It is there, and its rows are not looked at yet.
                    (false, Some(_)) if matches!(work.work, Work::ForeignKeyValidate) => {}
                    (false, _) => {
                        of_step.push(step);
                        late.push(one);
                    }
                    (true, None) => {}
                }
            }
        }
        if found.made.is_empty() {
            return Ok(TooEarly::default());
        }
        // Right behind a restore the planner knows nothing of the catalogs.
        let by_index = ["seqscan", "hashjoin", "mergejoin"];
        let set = by_index.map(|s| format!("SET enable_{s} = off;\n")).concat();
        let reset = by_index.map(|s| format!("RESET enable_{s};\n")).concat();
        let set = [set.as_bytes(), connection.not_compiled(false)].concat();
        connection.run(&set).map_err(|failure| failure.error)?;
        let met: BTreeSet<usize> =
            found.met(connection, &late)?.into_iter().map(|(number, _)| number).collect();
        let compiled = if connection.not_compiled(false).is_empty() { "" } else { "RESET jit" };
        connection.run((reset + compiled).as_bytes()).map_err(|failure| failure.error)?;
        for number in met {
            found.late.entry(of_step[number]).or_default().push(late[number].clone());
        }
        Ok(found)
    }

    /// What a step makes that is late, if it may meet what was made too early.
    pub fn late(&self, step: u32) -> &[Late<'a>] {
        self.late.get(&step).map_or(&[], |late| late)
    }

    /// Whether one of these, made again, would take up what comes late.
    pub fn take_up<'p>(&self, made: impl Iterator<Item = &'p u32>, late: &[Late]) -> bool {
        let mut keys = made.filter_map(|place| self.made.get(place));
        keys.any(|key| late.iter().filter_map(|late| late.key.as_ref()).any(|l| key.takes_up(l)))
    }

    /// The keys that are made again behind what comes late, by place.
    pub fn of_late(
        &self,
        toc: &'a Toc,
        connection: &Connection,
        late: &[Late<'a>],
    ) -> Result<BTreeSet<u32>> {
        let met = self.met(connection, late)?;
        let mut found: BTreeSet<u32> = met.into_iter().map(|(_, place)| place).collect();
        let mut next: Vec<u32> = found.iter().copied().collect();
        while !next.is_empty() {
            let again: Vec<Late> =
                next.drain(..).filter_map(|place| Late::of(toc, place)).collect();
            let below = self.below(connection, &again)?;
            next.extend(below.into_iter().map(|(_, place)| place).filter(|p| found.insert(*p)));
        }
        Ok(found)
    }

    /// Keys that were made, each with the number of what it meets.
    fn met(&self, connection: &Connection, late: &[Late<'a>]) -> Result<Vec<(usize, u32)>> {
        let mut found = self.below(connection, late)?;
        let offspring = ask(connection, late, |_| true, OFFSPRING)?;
        let places = offspring.iter().filter_map(|(n, name)| Some((*n, *self.by_name.get(name)?)));
        found.extend(places);
        Ok(found)
    }

    /// Those of partitions that keys above them take up.
    fn below(&self, connection: &Connection, above: &[Late<'a>]) -> Result<Vec<(usize, u32)>> {
        let below = ask(connection, above, |late| late.key.is_some(), BELOW)?;
        let taken_up = |(number, name): &(usize, Name)| {
            let place = self.by_name.get(name)?;
            let key = above[*number].key.as_ref()?;
            key.takes_up(self.made.get(place)?).then_some((*number, *place))
        };
        Ok(below.iter().filter_map(taken_up).collect())
    }
}

impl<'a> Late<'a> {
    fn of(toc: &'a Toc, place: u32) -> Option<Late<'a>> {
        let entry = toc.entry(place as usize);
        let (table, name) = altered(&entry)?;
        let key = match entry.desc {
            b"FK CONSTRAINT" => foreign_key(entry.defn),
            _ => None,
        };
        Some(Late { table, name: unquoted(name), key })
    }
}

/// Of constraints that have the asked name on the asked table and come of another one: that one, at the top.
const OFFSPRING: &[u8] =
    b", up AS (SELECT w.i, k.conparentid AS oid FROM w JOIN pg_catalog.pg_constraint k ON k.conrelid OPERATOR(pg_catalog.=) w.oid AND k.conname OPERATOR(pg_catalog.=) w.name \
        WHERE k.conparentid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid \
      UNION ALL SELECT up.i, k.conparentid FROM up JOIN pg_catalog.pg_constraint k ON k.oid OPERATOR(pg_catalog.=) up.oid WHERE k.conparentid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid) \
    SELECT up.i, n.nspname, c.relname, k.conname FROM up JOIN pg_catalog.pg_constraint k ON k.oid OPERATOR(pg_catalog.=) up.oid AND k.conparentid OPERATOR(pg_catalog.=) 0::pg_catalog.oid ";

/// The own foreign keys of partitions below the asked table.
const BELOW: &[u8] =
    b", down AS (SELECT w.i, h.inhrelid AS oid FROM w JOIN pg_catalog.pg_inherits h ON h.inhparent OPERATOR(pg_catalog.=) w.oid \
      UNION ALL SELECT down.i, h.inhrelid FROM down JOIN pg_catalog.pg_inherits h ON h.inhparent OPERATOR(pg_catalog.=) down.oid) \
    SELECT down.i, n.nspname, c.relname, k.conname FROM down \
      JOIN pg_catalog.pg_constraint k ON k.conrelid OPERATOR(pg_catalog.=) down.oid AND k.contype OPERATOR(pg_catalog.=) 'f'::pg_catalog.\"char\" AND k.conparentid OPERATOR(pg_catalog.=) 0::pg_catalog.oid ";

const NAMED: &[u8] = b"JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) k.conrelid JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace";

/// Constraints that have to do with these, each with the number of the one it has to do with.
fn ask(
    connection: &Connection,
    late: &[Late],
    which: impl Fn(&Late) -> bool,
    what: &[u8],
) -> Result<Vec<(usize, Name)>> {
    let numbered: Vec<(usize, &Late)> = late.iter().enumerate().filter(|(_, l)| which(l)).collect();
    let mut found = Vec::new();
    for part in numbered.chunks(ASKED) {
        found.extend(all_that_can_be_told(part, &|part| ask_at_once(connection, part, what))?);
    }
    Ok(found)
}

fn ask_at_once(
    connection: &Connection,
    late: &[(usize, &Late)],
    what: &[u8],
) -> Result<Vec<(usize, Name)>> {
    let literals = |(_, late): &(_, &Late)| (quote_literal(&late.table), quote_literal(&late.name));
    let (tables, names): (Vec<_>, Vec<_>) = late.iter().map(literals).unzip();
    let sql = [
        b"WITH RECURSIVE w AS (SELECT pg_catalog.to_regclass(u.rel)::pg_catalog.oid AS oid, u.name, u.i FROM ROWS FROM (pg_catalog.unnest(ARRAY[",
        &tables.join(&b", "[..])[..],
        b"]::pg_catalog.text[]), pg_catalog.unnest(ARRAY[",
        &names.join(&b", "[..]),
        b"]::pg_catalog.name[])) WITH ORDINALITY u (rel, name, i))",
        what,
        NAMED,
    ];
    let rows = connection.query(&sql.concat())?;
    let part = |row, column| rows.get(row, column).unwrap_or_default().to_vec();
    let found = |row| {
        let number: usize = rows.number(row, 0)?;
        let (number, _) = late.get(number.checked_sub(1)?)?;
        Some((*number, (part(row, 1), part(row, 2), part(row, 3))))
    };
    Ok((0..rows.len()).filter_map(found).collect())
}

fn full_name(table: &[u8], name: Vec<u8>) -> Name {
    let last = last_part(table);
    let schema = table[..table.len() - last.len()].strip_suffix(b".").unwrap_or_default();
    (unquoted(schema), unquoted(last), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let name = |table: &[u8]| full_name(table, b"k".to_vec());
        let parts = |schema: &[u8], table: &[u8]| (schema.to_vec(), table.to_vec(), b"k".to_vec());
        assert_eq!(name(b"s.t"), parts(b"s", b"t"));
        assert_eq!(name(b"\"s.x\".\"a\"\"b\""), parts(b"s.x", b"a\"b"));
        assert_eq!(name(b"t"), parts(b"", b"t"));
    }
}
