//! ANALYZE at the end, for tables that got rows, unless the archive has their statistics.
//!
//! `pg_class.reltuples` does not tell whether a table was analyzed: building an index sets it, too.

use super::{session, tell, Options};
use crate::archive::Archive;
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{Connection, For};
use crate::plan::select::Selection;
use crate::report::{Costs, Did, Event, Kind, Watch};
use crate::restore::together::together;
use crate::restore::work::Stop;
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Analyze tables of the restore on all connections, the largest first. Partitioned parents come after their
/// partitions. `hint`: what to do when it was stopped.
pub fn analyze(
    options: &Options,
    dbname: Option<&str>,
    archive: &Archive,
    selection: &Selection,
    watch: &dyn Watch,
    stop: &Stop,
    hint: &str,
) -> Result<()> {
    let toc = archive.toc();
    let loaded: HashSet<(&[u8], &[u8])> = selection
        .places()
        .map(|p| toc.entry(p as usize))
        .filter(|e| matches!(e.desc, b"TABLE DATA" | b"MATERIALIZED VIEW DATA"))
        .map(|e| (e.namespace, e.tag))
        .collect();
    // With statistics in the archive (from version 18 on) they are there already.
    let has_statistics =
        selection.places().any(|p| toc.entry(p as usize).desc == b"STATISTICS DATA");
    if loaded.is_empty() || has_statistics {
        return Ok(());
    }
    let connection = first(options, dbname)?;
    session::prepare(&connection, toc, &options.target, None)?;
    let rows = connection.query(
        b"SELECT n.nspname, c.relname, quote_ident(n.nspname) || '.' || quote_ident(c.relname), \
          pg_catalog.pg_relation_size(c.oid) \
          FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
          WHERE c.relkind IN ('r', 'm') AND c.relpersistence <> 't' \
          AND n.nspname !~ '^pg_' AND pg_catalog.pg_relation_size(c.oid) > 0 \
          ORDER BY pg_catalog.pg_relation_size(c.oid) DESC",
    )?;
    let mut tables = Vec::new();
    let mut total = Costs::default();
    for r in 0..rows.len() {
        if let (Some(schema), Some(name), Some(both)) =
            (rows.get(r, 0), rows.get(r, 1), rows.get(r, 2))
        {
            if loaded.contains(&(schema, name)) {
                let cost = cost(rows.number(r, 3).unwrap_or(0));
                total.add_all(&cost);
                tables.push((both.to_vec(), cost));
            }
        }
    }
    watch.event(&Event::Work { steps: tables.len(), cost: total });
    tables.reverse();
    let tables = Mutex::new(tables);
    let next = || tables.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let connect = || {
        let own = options.target.connect(dbname, For::Statements)?;
        session::prepare(&own, toc, &options.target, None)?;
        Ok(own)
    };
    let cancelled = || Error::new(ErrorKind::Cancelled, "canceled by user").hint(hint);
    let work = |worker: usize, connection: &Connection| {
        let _cancels = stop.cancels(connection);
        watch.event(&Event::Connected { worker, pid: connection.backend_pid() });
        while let Some((table, cost)) = next() {
            if stop.is_set() {
                return Err(cancelled());
            }
            let sql = [b"ANALYZE ", &table[..]].concat();
            let what = String::from_utf8_lossy(&sql);
            watch.event(&Event::Begin { worker, what: &what, steps: 1, cost });
            let result = connection.run(&sql);
            tell::notices(connection, watch);
            let (steps, ok) = (1, result.is_ok());
            let (statements, transactions) = (u64::from(ok), u64::from(ok));
            let did = Did { steps, cost, statements, transactions, rows: 0, ok };
            watch.event(&Event::End { worker, did });
            if let Err(failure) = result {
                if stop.is_set() {
                    return Err(cancelled());
                }
                if failure.error.kind == ErrorKind::Connection {
                    return Err(failure.error);
                }
                watch.event(&Event::Note(&format!(
                    "could not analyze {}: {}",
                    String::from_utf8_lossy(&table),
                    failure.error.message
                )));
            }
        }
        Ok(())
    };
    together(options.jobs, &connection, connect, work)
}

/// A connection, if the server takes one soon: it counts a session until its process has ended, and those of the restore
/// were closed just now.
fn first(options: &Options, dbname: Option<&str>) -> Result<Connection> {
    let mut tries = 0;
    loop {
        // ANALYZE runs functions of indexes, as their owners.
        match options.target.connect(dbname, For::Statements) {
            Err(e) if e.kind == ErrorKind::Connection && tries < 20 => tries += 1,
            connection => return connection,
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What ANALYZE of a table of so many bytes should cost: it reads a sample, up to 30,000 pages with the usual settings.
fn cost(bytes: u64) -> Costs {
    Costs::of(Kind::Analyze, 2000 + (bytes / 60).min(1_000_000))
}
