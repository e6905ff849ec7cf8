//! Unlogged tables and sequences, which a crash of the server empties and sets back.
//!
//! The journal is logged, so after a crash it says of such a table that its rows were copied. What was done in one
//! transaction before the crash is gone as a whole: an unlogged table that is empty while rows are recorded has lost all of
//! them, and gets them again. What an unlogged sequence has lost cannot be seen: its value is set again, which changes nothing
//! if it was there. (From 15 on serial and identity columns of unlogged tables have such.)

use super::journal::fence::Session;
use super::journal::{self, Done};
use super::{reload, Job};
use crate::error::Result;
use crate::pg::{quote_ident, quote_literal, Connection};
use crate::plan::Work;
use std::collections::{BTreeMap, HashSet};

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
    for (place, (steps, rows)) in tables {
        let entry = toc.entry(place as usize);
        let tables = entry.dependencies.iter().filter_map(|d| toc.place(*d));
        let unlogged = tables
            .map(|p| toc.entry(p))
            .any(|t| t.tag == entry.tag && t.defn.starts_with(b"CREATE UNLOGGED TABLE "));
        if !unlogged || rows == 0 {
            continue;
        }
        let name = [&quote_ident(entry.namespace)[..], b".", &quote_ident(entry.tag)].concat();
        let sql = [b"SELECT NOT EXISTS (SELECT FROM ONLY ", &name[..], b")"].concat();
        if connection.query(&sql)?.flag(0, 0) {
            all.extend(steps.into_iter().map(|step| (step, place)));
        }
    }
    for (step, places) in reloads {
        // They are emptied and filled again as a whole.
        for place in places {
            let sql = [
                b"SELECT relpersistence OPERATOR(pg_catalog.=) 'u'::\"char\" FROM pg_catalog.pg_class WHERE oid \
                  OPERATOR(pg_catalog.=) pg_catalog.to_regclass(",
                &quote_literal(&reload::target(toc, *place))[..],
                b")",
            ];
            let unlogged = connection.query(&sql.concat())?;
            if unlogged.is_empty() || !unlogged.flag(0, 0) {
                continue;
            }
            let sql = [b"SELECT NOT EXISTS (SELECT FROM ", &reload::target(toc, *place)[..], b")"];
            if connection.query(&sql.concat())?.flag(0, 0) {
                all.push((step, *place));
                break;
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

/// Take back what is recorded of rows that a crash has taken. Returns the entries that come again.
pub fn forget_lost(
    job: &Job,
    connection: &Connection,
    session: Session,
    recorded: &mut Done,
) -> Result<HashSet<u32>> {
    let (steps, places): (HashSet<u32>, HashSet<u32>) =
        lost(job, connection, recorded)?.into_iter().unzip();
    if !steps.is_empty() {
        let list: Vec<u32> = steps.iter().copied().collect();
        let sql = [b"BEGIN;\n", &journal::forget(session, &list)[..], b"COMMIT;"].concat();
        connection.run(&sql)?;
        recorded.steps.retain(|step| !steps.contains(step));
    }
    Ok(places)
}
