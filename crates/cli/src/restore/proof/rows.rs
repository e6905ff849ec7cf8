//! Rows, counted: at least as many as the journal says were copied.

use super::in_order;
use crate::error::{ErrorKind, Result};
use crate::pg::{quote_ident, quote_literal, Connection};
use crate::plan::build::{attaches_itself, copies_via_root};
use crate::plan::text::qualified;
use crate::plan::Work;
use crate::report::words::count;
use crate::report::{Costs, Did, Event, Kind};
use crate::restore::data::table_of_copy;
use crate::restore::journal::Done;
use crate::restore::together::together;
use crate::restore::{reload, Job};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};

/// So many tables are counted before an open transaction lets go of what that has locked: the server's lock table is small.
const LOCKED: usize = 500;

/// What came of it.
#[derive(Default)]
pub struct Counted {
    pub tables: usize,
    pub rows: u64,
    pub differences: Vec<String>,
}

/// A table that this restore has made or emptied, and the rows that it has copied into it; or several, of whose rows the sum is known.
#[derive(Debug, PartialEq, Eq)]
struct Table {
    name: Vec<u8>,
    /// What is counted: `ONLY` the tables, or where rows came through them to their partitions these, too.
    counted: Vec<Vec<u8>>,
    rows: u64,
}

/// Tables with rows. Those that were there before, and were not emptied, had rows before, so nobody knows how many there should be.
fn tables(job: &Job, recorded: &Done) -> Vec<Table> {
    let toc = job.archive.toc();
    let mut tables = BTreeMap::<Vec<u8>, (bool, u64)>::new();
    let mut unknown = Vec::new();
    let attachments = toc.entries().filter(|e| e.desc == b"TABLE ATTACH");
    let attached: HashSet<i32> = attachments.flat_map(|e| e.dependencies.to_vec()).collect();
    for (number, step) in job.plan.steps.iter().enumerate() {
        let Work::Data(..) = step.work else { continue };
        let Some(&place) = job.plan.entries(number).first() else { continue };
        let entry = toc.entry(place as usize);
        let own = [&quote_ident(entry.namespace)[..], b".", &quote_ident(entry.tag)].concat();
        let root = copies_via_root(&entry);
        let target = match table_of_copy(entry.copy_stmt) {
            Some(table) if root => qualified(entry.namespace, table),
            _ => own,
        };
        let made = entry.dependencies.iter().filter_map(|d| toc.place(*d)).any(|p| {
            let table = toc.entry(p);
            table.desc == b"TABLE" && job.terms.makes(toc, p) && table.defn.starts_with(b"CREATE ")
        });
        // INSERTs of a partition may be into its parent, from where each row finds a partition by itself.
        let astray = entry.copy_stmt.is_empty()
            && (root
                || entry.dependencies.iter().any(|d| {
                    let itself = || toc.place(*d).is_some_and(|p| attaches_itself(&toc.entry(p)));
                    attached.contains(d) || itself()
                }));
        let rows = recorded.rows.get(&(number as u32)).copied().filter(|_| !astray);
        match rows {
            Some(rows) if made => {
                let found = tables.entry(target).or_default();
                found.0 |= root;
                found.1 += rows;
            }
            // What was copied is not known for each part.
            _ => unknown.push(target),
        }
    }
    for target in unknown {
        tables.remove(&target);
    }
    let tables = tables.into_iter().map(|(name, (root, rows))| {
        let only: &[u8] = if root { b"" } else { b"ONLY " };
        Table { counted: vec![[only, &name].concat()], name, rows }
    });
    // Of tables without rows there may be 100,000.
    tables.chain(emptied(job, recorded)).filter(|table| table.rows > 0).collect()
}

/// Tables that were emptied and filled.
fn emptied(job: &Job, recorded: &Done) -> Vec<Table> {
    let toc = job.archive.toc();
    let mut tables = Vec::new();
    for (number, step) in job.plan.steps.iter().enumerate() {
        let Work::Reload(reload) = step.work else { continue };
        let counted = job.terms.facts.reloads[reload as usize].counted.clone();
        let names: BTreeSet<Vec<u8>> =
            job.plan.entries(number).iter().map(|p| reload::target(toc, *p)).collect();
        let rows = recorded.rows.get(&(number as u32)).copied().unwrap_or(0);
        let name = names.into_iter().collect::<Vec<_>>().join(&b", "[..]);
        tables.push(Table { name, counted, rows });
    }
    tables
}

/// Count the rows of all tables that got some, on all connections.
pub fn compare(job: &Job, connection: &Connection, recorded: &Done) -> Result<Counted> {
    let mut tables = tables(job, recorded);
    tables.sort_by_key(|table| table.rows);
    let cost = |table: &Table| Costs::of(Kind::Verify, 300 + table.rows / 5);
    let mut total = Costs::default();
    tables.iter().for_each(|table| total.add_all(&cost(table)));
    job.watch.event(&Event::Work { steps: tables.len(), cost: total });
    let all = Mutex::new(Counted::default());
    let tables = Mutex::new(tables);
    let next = || tables.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let count_all = |worker: usize, connection: &Connection| -> Result<()> {
        // Rows that a policy hides are not missing: counting fails then, and says so.
        in_order::set(job, connection, b"SET row_security = off")?;
        let _cancels = job.stop.cancels(connection);
        for number in 1.. {
            let Some(table) = next() else { break };
            if job.stop.is_set() {
                return Err(super::cancelled());
            }
            let what = format!("counting {}", String::from_utf8_lossy(&table.name));
            let cost = cost(&table);
            job.watch.event(&Event::Begin { worker, what: &what, steps: 1, cost });
            let difference = one(job, connection, &table);
            if job.stop.is_set() {
                return Err(super::cancelled());
            }
            let ok = matches!(difference, Ok(None));
            let did = Did { steps: 1, cost, statements: 1, ok, ..Did::default() };
            job.watch.event(&Event::End { worker, did });
            if number % LOCKED == 0 {
                in_order::let_go(job, connection)?;
            }
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.tables += 1;
            all.rows += table.rows;
            all.differences.extend(difference?);
        }
        Ok(())
    };
    let jobs = job.options.jobs.min(all_len(&tables));
    together(jobs, connection, || job.connect(), count_all)?;
    Ok(all.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn all_len(tables: &Mutex<Vec<Table>>) -> usize {
    tables.lock().unwrap_or_else(PoisonError::into_inner).len()
}

/// Count one table; what is wrong with it, if anything is.
fn one(job: &Job, connection: &Connection, table: &Table) -> Result<Option<String>> {
    let each: Vec<Vec<u8>> = table
        .counted
        .iter()
        .map(|name| [b"(SELECT pg_catalog.count(*) FROM ", &name[..], b")"].concat())
        .collect();
    let sql = [b"SELECT ", &each.join(&b" OPERATOR(pg_catalog.+) "[..])[..]].concat();
    let name = String::from_utf8_lossy(&table.name).into_owned();
    match in_order::question(job, connection, || connection.query(&sql)) {
        Ok(found) => {
            let found: u64 = found.number(0, 0).unwrap_or(0);
            let (there, copied) = (count(found), count(table.rows));
            let text = format!("TABLE {name}: it has {there} rows, {copied} were copied");
            // What this program copies it records in the same transaction, so that rows that are too many are somebody
            // else's: a row that was missing for a foreign key, before --resume.
            if found > table.rows {
                job.watch.event(&Event::Note(&text));
            }
            Ok((found < table.rows).then_some(text))
        }
        // The table's new owner lets us write, but not read, or forces row-level security on us.
        Err(e) if e.sqlstate.as_deref() == Some("42501") => {
            job.watch
                .event(&Event::Note(&format!("rows of {name} were not counted: {}", e.message)));
            Ok(None)
        }
        // Own queries do not go to other servers, and nobody knows how many rows went there.
        Err(e) if e.sqlstate.as_deref() == Some("55000") && goes_elsewhere(connection, table)? => {
            job.watch
                .event(&Event::Note(&format!("rows of {name} were not counted: {}", e.message)));
            Ok(None)
        }
        Err(e) if e.kind == ErrorKind::Statement => {
            Ok(Some(format!("TABLE {name}: {}", e.message)))
        }
        Err(e) => Err(e),
    }
}

/// Some of what is counted has partitions that are foreign tables.
fn goes_elsewhere(connection: &Connection, table: &Table) -> Result<bool> {
    for name in table.counted.iter().filter(|name| !name.starts_with(b"ONLY ")) {
        let sql = [
            b"SELECT EXISTS (SELECT FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass(",
            &quote_literal(name)[..],
            b")) t JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) t.relid \
              WHERE c.relkind OPERATOR(pg_catalog.=) 'f'::\"char\")",
        ];
        if connection.query(&sql.concat())?.flag(0, 0) {
            return Ok(true);
        }
    }
    Ok(false)
}
