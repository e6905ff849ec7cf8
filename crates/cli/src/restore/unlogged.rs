//! Unlogged tables and sequences, which a crash of the server empties and sets back.
//!
//! The journal is logged, so after a crash it says of such a table that its rows were copied. What was done in one
//! transaction before the crash is gone as a whole: an unlogged table that is empty while rows are recorded has lost all of
//! them, and gets them again. What an unlogged sequence has lost cannot be seen: its value is set again, which changes nothing
//! if it was there. (From 15 on serial and identity columns of unlogged tables have such.)

use super::journal::fence::Session;
use super::journal::{self, Done};
use super::pieces::Pieces;
use super::{reload, Job};
use crate::archive::read_error;
use crate::error::Result;
use crate::pg::Connection;
use crate::plan::build::copies_via_root;
use crate::plan::Work;
use std::collections::{BTreeMap, HashSet};
use std::io::Read;

/// Before rows come again into a table that has its triggers and foreign keys by now, and after that: they came before those.
/// Without the right to it, which superusers have, triggers fire.
pub const BEFORE_ROWS: &[u8] =
    b"SELECT pg_catalog.set_config('session_replication_role', 'replica', true) \
    WHERE pg_catalog.has_parameter_privilege('session_replication_role', 'SET');\n";
pub const AFTER_ROWS: &[u8] =
    b"SELECT pg_catalog.set_config(name, reset_val, true) FROM pg_catalog.pg_settings \
    WHERE name OPERATOR(pg_catalog.=) 'session_replication_role' \
    AND pg_catalog.has_parameter_privilege('session_replication_role', 'SET');\n";

/// Steps that are recorded, and what they did is not there, or may not be; with their entry.
pub fn lost(job: &Job, connection: &Connection, recorded: &Done) -> Result<Vec<(u32, u32)>> {
    let toc = job.archive.toc();
    // By the entry of the rows: its steps that are recorded, and how many rows they copied.
    let mut tables = BTreeMap::<u32, (Vec<u32>, u64)>::new();
    let (mut values, mut reloads) = (Vec::new(), Vec::new());
    for &step in &recorded.steps {
        let rows = recorded.rows.get(&step).copied().unwrap_or(0);
        match (job.plan.steps.get(step as usize).map(|s| &s.work), job.plan.entries(step as usize))
        {
            (Some(Work::Data(..)), [place, ..]) => {
                let found = tables.entry(*place).or_default();
                found.0.push(step);
                found.1 += rows;
            }
            (Some(Work::Reload(_)), places) if rows > 0 => reloads.push((step, places)),
            (_, [place]) if toc.entry(*place as usize).desc == b"SEQUENCE SET" => {
                values.push((step, *place));
            }
            _ => {}
        }
    }
    let mut all = Vec::new();
    let unlogged = match tables.is_empty() && reloads.is_empty() {
        true => HashSet::new(),
        false => unlogged_tables(connection)?,
    };
    let is_lost = |place: u32| -> Result<bool> {
        let entry = toc.entry(place as usize);
        if !unlogged.contains(&(entry.namespace.to_vec(), entry.tag.to_vec())) {
            return Ok(false);
        }
        // Where rows have come through the partitioned table, a partition may have none.
        let only: &[u8] = if copies_via_root(&entry) { b"" } else { b"ONLY " };
        let target = reload::target(toc, place);
        let sql = [b"SELECT NOT EXISTS (SELECT FROM ", only, &target, b")"];
        Ok(connection.query(&sql.concat())?.flag(0, 0))
    };
    for (place, (steps, rows)) in tables {
        if rows > 0 && is_lost(place)? {
            all.extend(steps.into_iter().map(|step| (step, place)));
        }
    }
    for (step, places) in reloads {
        // What is recorded is the sum of the rows of all.
        for &place in places {
            if is_lost(place)? && has_rows(job, place as usize)? {
                all.push((step, place));
            }
        }
    }
    if !values.is_empty() {
        let found = connection.query(
            b"SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n \
              ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE c.relkind OPERATOR(pg_catalog.=) 'S'::\"char\" \
              AND c.relpersistence OPERATOR(pg_catalog.=) 'u'::\"char\"",
        )?;
        let unlogged: HashSet<_> =
            (0..found.len()).map(|r| (found.get(r, 0), found.get(r, 1))).collect();
        values.retain(|(_, place)| {
            let entry = toc.entry(*place as usize);
            unlogged.contains(&(Some(entry.namespace), Some(entry.tag)))
        });
        all.extend(values);
    }
    Ok(all)
}

/// Tables that are not logged, whatever the archive says of them: schema and name.
fn unlogged_tables(connection: &Connection) -> Result<HashSet<(Vec<u8>, Vec<u8>)>> {
    let found = connection.query(
        b"SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n \
          ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE c.relkind OPERATOR(pg_catalog.=) 'r'::\"char\" \
          AND c.relpersistence OPERATOR(pg_catalog.=) 'u'::\"char\"",
    )?;
    let text = |row, column| found.get(row, column).unwrap_or_default().to_vec();
    Ok((0..found.len()).map(|row| (text(row, 0), text(row, 1))).collect())
}

/// The archive has rows for a table.
fn has_rows(job: &Job, place: usize) -> Result<bool> {
    let entry = job.archive.toc().entry(place);
    let source = job.archive.data(place)?;
    if entry.copy_stmt.is_empty() {
        let mut some = Vec::new();
        source.take(4096).read_to_end(&mut some).map_err(read_error)?;
        return Ok(!some.trim_ascii().is_empty());
    }
    Ok(Pieces::of(source, (0, 1))?.next(|| false)?.is_some())
}

/// Take back what is recorded of rows that a crash has taken. Returns the entries that come again.
pub fn forget_lost(
    job: &Job,
    connection: &Connection,
    session: Session,
    recorded: &mut Done,
) -> Result<HashSet<u32>> {
    let (steps, places): (HashSet<u32>, HashSet<u32>) =
        lost(job, connection, recorded)?.into_iter().unzip();
    // Of tables that were emptied and filled together others stay as they are: their step stays recorded.
    let reload = |step: &u32| matches!(job.plan.steps[*step as usize].work, Work::Reload(_));
    let list: Vec<u32> = steps.iter().copied().filter(|step| !reload(step)).collect();
    if !list.is_empty() {
        let sql = [b"BEGIN;\n", &journal::forget(session, &list)[..], b"COMMIT;"].concat();
        connection.run(&sql)?;
    }
    recorded.steps.retain(|step| !steps.contains(step));
    Ok(places)
}
