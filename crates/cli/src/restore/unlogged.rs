//! Unlogged tables, which a crash of the server empties.
//!
//! The journal is logged, so after a crash it says of such a table that its rows were copied. What was done in one
//! transaction before the crash is gone as a whole: an unlogged table that is empty while rows are recorded has lost all of
//! them, and gets them again.

use super::journal::fence::Session;
use super::journal::{self, Done};
use super::Job;
use crate::error::Result;
use crate::pg::{quote_ident, Connection};
use crate::plan::Work;
use std::collections::{BTreeMap, HashSet};

/// Take back what is recorded of rows that a crash has taken. Returns the entries whose rows come again.
pub fn forget_lost(
    job: &Job,
    connection: &Connection,
    session: Session,
    recorded: &mut Done,
) -> Result<HashSet<u32>> {
    let toc = job.archive.toc();
    // By the entry of the rows: its steps that are recorded, and how many rows they copied.
    let mut tables = BTreeMap::<u32, (Vec<u32>, u64)>::new();
    for &step in &recorded.steps {
        let rows = recorded.rows.get(&step).copied().unwrap_or(0);
        if let (Some(Work::Data(..)), Some(&place)) = (
            job.plan.steps.get(step as usize).map(|s| &s.work),
            job.plan.entries(step as usize).first(),
        ) {
            let found = tables.entry(place).or_default();
            found.0.push(step);
            found.1 += rows;
        }
    }
    let mut again = HashSet::new();
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
        if !connection.query(&sql)?.flag(0, 0) {
            continue;
        }
        let sql = [b"BEGIN;\n", &journal::forget(session, &steps)[..], b"COMMIT;"].concat();
        connection.run(&sql)?;
        recorded.steps.retain(|step| !steps.contains(step));
        again.insert(place);
    }
    Ok(again)
}
