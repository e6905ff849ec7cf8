//! Foreign keys that were made before what comes late after all, though the plan has them behind it: they are dropped before that and made again behind
//! it, in its transaction, so that nobody sees the database without them, and all stays as it was if it fails.
//!
//! - One of a partition, when an equal one of a table above it is made: that one would take it up, and no dump has it then as the
//!   partition's own.
//! - One of which others have come, when another constraint is made whose name the server has given to one of these. If it would take that one up, it comes
//!   before it again, and what has left it no other name comes behind.
//! - One of a partition below such, if that takes it up when it is made again.
//!
//! Only what the journal has as made by this restore, and is there as it was made, is touched. Which tables are partitions of which the server is
//! asked: archives of post-data alone have no tables. All that come late in one transaction share what is dropped: of a table with many
//! partitions each may need that its key is made again.
//!
//! Which steps have to do with any is found out when a pass begins; a step that has failed in it looks anew.

use super::finish::all_that_can_be_told;
use super::journal::{self, Done};
use super::remade::{altered, Early, Table};
use super::Job;
use crate::archive::Toc;
use crate::error::Result;
use crate::pg::{quote_literal, Connection};
use crate::plan::build::{is_inherited, is_other};
use crate::plan::key_order::has_lower_number;
use crate::plan::text::{foreign_key, last_part, may_be_chosen, unquoted, ForeignKey};
use crate::plan::{Plan, Work};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::OnceLock;

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
    /// It is made for what is below its table, too.
    is_inherited: bool,
}

/// A plan's foreign keys.
#[derive(Default)]
struct Keys<'a> {
    /// By place; with the steps that make them.
    all: HashMap<u32, (ForeignKey<'a>, Vec<u32>)>,
    by_name: HashMap<Name, u32>,
}

/// The foreign keys that may have been made too early, and which steps have to do with such.
pub struct TooEarly<'a> {
    toc: &'a Toc,
    plan: &'a Plan,
    keys: OnceLock<Keys<'a>>,
    /// Places of those that were made before the pass.
    made: HashSet<u32>,
    /// Constraints that come late, by step, of those that have met some when the pass began.
    late: HashMap<u32, Vec<Late<'a>>>,
}

impl<'a> TooEarly<'a> {
    /// Nothing was made before this pass.
    pub fn new(toc: &'a Toc, plan: &'a Plan) -> TooEarly<'a> {
        let (keys, made, late) = (OnceLock::new(), HashSet::new(), HashMap::new());
        TooEarly { toc, plan, keys, made, late }
    }

    /// Look for them when a pass begins.
    pub fn of(job: &'a Job, connection: &Connection, recorded: &Done) -> Result<TooEarly<'a>> {
        let toc = job.archive.toc();
        let mut found = TooEarly::new(toc, &job.plan);
        if recorded.steps.is_empty() && recorded.entries.is_empty() {
            return Ok(found);
        }
        let steps: HashSet<u32> = recorded.steps.iter().copied().collect();
        let entries: HashSet<u32> = recorded.entries.iter().copied().collect();
        let (mut of_step, mut late) = (Vec::new(), Vec::new());
        for (step, work) in job.plan.steps.iter().enumerate() {
            let step = step as u32;
            for &place in job.plan.entries(step as usize) {
                let Some(one) = Late::of(toc, place) else { continue };
                match (steps.contains(&step) || entries.contains(&place), &one.key) {
                    (true, Some(_)) => drop(found.made.insert(place)),
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
            return Ok(found);
        }
        // (All else as the server plans it: where the planner may not join by hash it looks through all for each.)
        connection.run(connection.not_compiled(false)).map_err(|failure| failure.error)?;
        let met = [found.below(connection, &late)?, found.named(connection, &late)?].concat();
        if !connection.not_compiled(false).is_empty() {
            connection.run(b"RESET jit").map_err(|failure| failure.error)?;
        }
        let met = met.into_iter().filter(|(_, place)| found.made.contains(place));
        for number in met.map(|(number, _)| number).collect::<BTreeSet<usize>>() {
            found.late.entry(of_step[number]).or_default().push(late[number].clone());
        }
        Ok(found)
    }

    /// What a step makes that is late, if it has to do with what was made before the pass.
    pub fn late(&self, step: u32) -> &[Late<'a>] {
        self.late.get(&step).map_or(&[], |late| late)
    }

    /// All constraints that a step makes.
    pub fn constraints(&self, step: u32) -> Vec<Late<'a>> {
        let places = self.plan.entries(step as usize).iter();
        places.filter_map(|place| Late::of(self.toc, *place)).collect()
    }

    /// Of what was dropped, that which is made again before what comes late: if some would take that up, all but what comes behind it.
    pub fn before(
        &self,
        dropped: &mut BTreeMap<u32, Early>,
        late: &[Late],
    ) -> BTreeMap<u32, Early> {
        let late: Vec<_> = late
            .iter()
            .filter_map(|late| {
                Some((late.key.as_ref()?, full_name(&late.table, late.name.clone())))
            })
            .collect();
        let is = |table: &Table, (schema, name, _): &Name| {
            table.schema == *schema && table.name == *name
        };
        let is_below =
            |found: &Early, name: &Name| found.tables.iter().any(|above| is(above, name));
        let key = |place: &u32| self.keys().all.get(place).map(|(key, _)| key);
        let is_before = |(place, found): (&u32, &Early)| {
            let takes_up = |key: &ForeignKey| {
                late.iter().any(|(late, name)| key.takes_up(late) && !is_below(found, name))
            };
            key(place).is_some_and(takes_up)
        };
        if !dropped.iter().any(is_before) {
            return BTreeMap::new();
        }
        let is_behind = |place: &u32, found: &Early| {
            let Some(key) = key(place) else { return false };
            late.iter().any(|(late, name)| {
                let own = found.tables.iter().map(|table| table.name.clone());
                let tables: Vec<Vec<u8>> = own.chain([name.1.clone()]).collect();
                key.takes_up(late) && is_below(found, name) || key.may_choose(&name.2, &tables)
            })
        };
        let (behind, first) = std::mem::take(dropped)
            .into_iter()
            .partition(|(place, found)| !is_before((place, found)) && is_behind(place, found));
        *dropped = behind;
        first
    }

    /// The keys that are to be made again behind what comes late, and behind those that were dropped just now, by place; not those that are dropped. `before`:
    /// what this transaction has made itself. `taken`: the server had given away its name, though what had it was dropped before.
    pub fn of_late(
        &self,
        connection: &Connection,
        late: &[Late<'a>],
        taken: bool,
        just_now: Vec<u32>,
        is_dropped: impl Fn(u32) -> bool,
        before: &HashSet<u32>,
    ) -> Result<BTreeSet<u32>> {
        let mut found = BTreeSet::new();
        let mut met = self.named(connection, late)?;
        // Of what takes up what comes late, nothing would have its name if others had left it one.
        let has_left_none = |(number, place): &(usize, u32)| {
            self.takes_up(*place, &late[*number]).then_some(*number)
        };
        let numbers: BTreeSet<usize> = met.iter().filter_map(has_left_none).collect();
        let behind = match taken {
            true => late.to_vec(),
            false => numbers.into_iter().map(|number| late[number].clone()).collect(),
        };
        met.extend(self.behind(connection, &behind)?);
        met.extend(self.below(connection, late)?);
        let mut next = just_now;
        loop {
            for (_, place) in met.drain(..) {
                let is_new = !found.contains(&place) && !is_dropped(place);
                if is_new && self.is_made(connection, place, before)? {
                    found.insert(place);
                    next.push(place);
                }
            }
            if next.is_empty() {
                return Ok(found);
            }
            let again = next.drain(..).filter_map(|place| Late::of(self.toc, place));
            let again: Vec<Late> = again.collect();
            met = self.below(connection, &again)?;
            if taken {
                met.extend(self.behind(connection, &again)?);
            }
        }
    }

    /// A key of another table takes up what comes late.
    fn takes_up(&self, place: u32, late: &Late) -> bool {
        let Some((key, _)) = self.keys().all.get(&place) else { return false };
        let other = Late::of(self.toc, place).is_some_and(|key| key.table != late.table);
        other && late.key.as_ref().is_some_and(|late| key.takes_up(late))
    }

    /// This restore has made it.
    fn is_made(&self, connection: &Connection, place: u32, before: &HashSet<u32>) -> Result<bool> {
        if self.made.contains(&place) || before.contains(&place) {
            return Ok(true);
        }
        let Some((_, steps)) = self.keys().all.get(&place) else { return Ok(false) };
        for step in steps {
            if journal::has(connection, *step, None)? {
                return Ok(true);
            }
        }
        journal::has(connection, 0, Some(place))
    }

    fn keys(&self) -> &Keys<'a> {
        self.keys.get_or_init(|| {
            let mut keys = Keys::default();
            for step in 0..self.plan.steps.len() {
                for &place in self.plan.entries(step) {
                    let Some(Late { table, name, key: Some(key), .. }) = Late::of(self.toc, place)
                    else {
                        continue;
                    };
                    keys.by_name.insert(full_name(&table, name), place);
                    keys.all.entry(place).or_insert((key, Vec::new())).1.push(step as u32);
                }
            }
            keys
        })
    }

    /// Foreign keys of the plan of which others have come that have the name of one of these, each with its number.
    fn named(&self, connection: &Connection, late: &[Late<'a>]) -> Result<Vec<(usize, u32)>> {
        let mut offspring = ask(connection, late, |_| true, &[OF_TABLE, OFFSPRING])?;
        // Below its table no constraint has its name but one that the server has chosen.
        let inherited = |late: &Late| late.is_inherited && may_be_chosen(&late.name);
        offspring.extend(ask(connection, late, inherited, &[BELOW, OF_BELOW, OFFSPRING])?);
        let place = |(n, name): &(usize, Name)| Some((*n, *self.keys().by_name.get(name)?));
        Ok(offspring.iter().filter_map(place).collect())
    }

    /// Those of the same table, and of tables above it, that would come behind it for the name that the server may choose for what comes of them: that depends on all
    /// that has such names.
    fn behind(&self, connection: &Connection, late: &[Late<'a>]) -> Result<Vec<(usize, u32)>> {
        let found = ask(connection, late, |_| true, &[ABOVE, KEYS_ABOVE])?;
        let mut tables = HashMap::<usize, Vec<Vec<u8>>>::new();
        for (number, (_, table, _)) in &found {
            let own = || vec![unquoted(last_part(&late[*number].table))];
            tables.entry(*number).or_insert_with(own).push(table.clone());
        }
        let behind = |(number, name): &(usize, Name)| {
            let place = self.keys().by_name.get(name)?;
            let (key, _) = self.keys().all.get(place)?;
            let (late, tables) = (&late[*number], tables.get(number)?);
            // One that would take it up comes before it, and one of its table with a lower number, as they are made.
            let table = Late::of(self.toc, *place).map(|key| key.table);
            let is_first = late.key.as_ref().is_some_and(|their| {
                table.as_ref() == Some(&late.table)
                    && has_lower_number(&key.name, &their.name) == Ordering::Less
                    && their.may_choose(&key.name, tables)
            });
            let is_behind =
                !is_first && !self.takes_up(*place, late) && key.may_choose(&late.name, tables);
            is_behind.then_some((*number, *place))
        };
        Ok(found.iter().filter_map(behind).collect())
    }

    /// Those of partitions that keys above them take up.
    fn below(&self, connection: &Connection, above: &[Late<'a>]) -> Result<Vec<(usize, u32)>> {
        let below = ask(connection, above, |late| late.key.is_some(), &[BELOW, KEYS])?;
        let taken_up = |(number, name): &(usize, Name)| {
            let place = self.keys().by_name.get(name)?;
            let key = above[*number].key.as_ref()?;
            key.takes_up(&self.keys().all.get(place)?.0).then_some((*number, *place))
        };
        Ok(below.iter().filter_map(taken_up).collect())
    }
}

impl<'a> Late<'a> {
    fn of(toc: &'a Toc, place: u32) -> Option<Late<'a>> {
        let entry = toc.entry(place as usize);
        let key = match entry.desc {
            b"FK CONSTRAINT" => foreign_key(entry.defn),
            desc if is_other(desc) => None,
            _ => return None,
        };
        let (table, name) = altered(&entry)?;
        Some(Late { table, name: unquoted(name), key, is_inherited: is_inherited(&entry) })
    }
}

/// The tables below the asked one: its partitions, and what inherits from it.
const BELOW: &[u8] =
    b", below AS (SELECT w.i, w.name, h.inhrelid AS oid FROM w JOIN pg_catalog.pg_inherits h ON h.inhparent OPERATOR(pg_catalog.=) w.oid \
      UNION SELECT b.i, b.name, h.inhrelid FROM below b JOIN pg_catalog.pg_inherits h ON h.inhparent OPERATOR(pg_catalog.=) b.oid)";

/// Own foreign keys of those that are partitions: nothing goes down to what inherits.
const KEYS: &[u8] = b" SELECT b.i, n.nspname, c.relname, k.conname FROM below b \
      JOIN pg_catalog.pg_class p ON p.oid OPERATOR(pg_catalog.=) b.oid AND p.relispartition \
      JOIN pg_catalog.pg_constraint k ON k.conrelid OPERATOR(pg_catalog.=) b.oid AND k.contype OPERATOR(pg_catalog.=) 'f'::pg_catalog.\"char\" AND k.conparentid OPERATOR(pg_catalog.=) 0::pg_catalog.oid ";

/// The asked table, and those that it is a partition of.
const ABOVE: &[u8] =
    b", above AS (SELECT w.i, w.oid, false AS is_above FROM w UNION SELECT a.i, h.inhparent, true FROM above a JOIN pg_catalog.pg_inherits h ON h.inhrelid OPERATOR(pg_catalog.=) a.oid \
      JOIN pg_catalog.pg_class r ON r.oid OPERATOR(pg_catalog.=) a.oid AND r.relispartition)";

/// Their own foreign keys of which something comes in the asked table.
const KEYS_ABOVE: &[u8] = b" SELECT a.i, n.nspname, c.relname, k.conname FROM above a \
      JOIN pg_catalog.pg_constraint k ON k.conrelid OPERATOR(pg_catalog.=) a.oid AND k.contype OPERATOR(pg_catalog.=) 'f'::pg_catalog.\"char\" AND k.conparentid OPERATOR(pg_catalog.=) 0::pg_catalog.oid \
      AND (a.is_above OR EXISTS (SELECT FROM pg_catalog.pg_class r WHERE r.oid OPERATOR(pg_catalog.=) k.confrelid AND r.relkind OPERATOR(pg_catalog.=) 'p'::pg_catalog.\"char\")) ";

/// Which tables it is about.
const OF_TABLE: &[u8] = b", asked AS (SELECT i, name, oid FROM w)";
const OF_BELOW: &[u8] = b", asked AS (SELECT i, name, oid FROM below)";

/// Of constraints that have the asked name on these and come of another one: that one, at the top.
const OFFSPRING: &[u8] =
    b", up AS (SELECT o.i, k.conparentid AS oid FROM asked o JOIN pg_catalog.pg_constraint k ON k.conrelid OPERATOR(pg_catalog.=) o.oid AND k.conname OPERATOR(pg_catalog.=) o.name \
        WHERE k.conparentid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid \
      UNION ALL SELECT up.i, k.conparentid FROM up JOIN pg_catalog.pg_constraint k ON k.oid OPERATOR(pg_catalog.=) up.oid WHERE k.conparentid OPERATOR(pg_catalog.<>) 0::pg_catalog.oid) \
    SELECT up.i, n.nspname, c.relname, k.conname FROM up JOIN pg_catalog.pg_constraint k ON k.oid OPERATOR(pg_catalog.=) up.oid AND k.conparentid OPERATOR(pg_catalog.=) 0::pg_catalog.oid ";

const NAMED: &[u8] = b"JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) k.conrelid JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace";

/// Constraints that have to do with these, each with the number of the one it has to do with.
fn ask(
    connection: &Connection,
    late: &[Late],
    which: impl Fn(&Late) -> bool,
    what: &[&[u8]],
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
    what: &[&[u8]],
) -> Result<Vec<(usize, Name)>> {
    // Not to_regclass(), which refuses names of schemas that the role may not use.
    let (mut schemas, mut tables, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for (_, late) in late {
        let (schema, table, name) = full_name(&late.table, late.name.clone());
        schemas.push(quote_literal(&schema));
        tables.push(quote_literal(&table));
        names.push(quote_literal(&name));
    }
    let list = |names: &[Vec<u8>]| names.join(&b", "[..]);
    let sql = [
        b"WITH RECURSIVE w AS (SELECT c.oid, u.name, u.i FROM ROWS FROM (pg_catalog.unnest(ARRAY[",
        &list(&schemas)[..],
        b"]::pg_catalog.name[]), pg_catalog.unnest(ARRAY[",
        &list(&tables),
        b"]::pg_catalog.name[]), pg_catalog.unnest(ARRAY[",
        &list(&names),
        b"]::pg_catalog.name[])) WITH ORDINALITY u (nsp, rel, name, i) \
          JOIN pg_catalog.pg_namespace n ON n.nspname OPERATOR(pg_catalog.=) u.nsp \
          JOIN pg_catalog.pg_class c ON c.relnamespace OPERATOR(pg_catalog.=) n.oid AND c.relname OPERATOR(pg_catalog.=) u.rel)",
        &what.concat(),
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
