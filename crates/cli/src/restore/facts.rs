//! What the planner wants to know of the server.

use super::probe::{self, Verdict};
use crate::archive::Toc;
use crate::error::Result;
use crate::pg::Connection;
use crate::plan::build::{too_many_at_once, STAGE_FROM};
use crate::plan::{Facts, Rules};

/// Ask the server. For an archive with so many partitions that some could be made below staging parents, or get their indexes with
/// themselves, which may have to be taken away again, it is tried, too, whether that gives here what plain statements give, unless
/// the rule is off.
pub fn of(connection: &Connection, toc: &Toc, rules: Rules, jobs: usize) -> Result<Facts> {
    let facts = of_server(connection, jobs)?;
    let count = |desc: &[u8]| toc.entries().filter(|e| e.desc == desc).count();
    let (partitions, indexes) = (count(b"TABLE ATTACH"), count(b"INDEX ATTACH"));
    let with_table = rules.partition_indexes
        && indexes > 0
        && too_many_at_once(partitions as u64, indexes as u64, facts.lock_slots);
    let no_staging = match (partitions >= STAGE_FROM || with_table) && rules.staged_partitions {
        true if !facts.superuser => Some("the restoring role is no superuser".to_string()),
        true => match probe::probe(connection)? {
            Verdict::Same => None,
            Verdict::Off(reason) => Some(reason),
        },
        false => None,
    };
    Ok(Facts { no_staging, ..facts })
}

/// What can be asked; nothing is tried.
pub fn of_server(connection: &Connection, jobs: usize) -> Result<Facts> {
    // The lock table has room for max_locks_per_transaction for each possible transaction (documentation of that
    // setting), and background workers count as well.
    let rows = connection.query(
        b"SELECT current_setting('max_locks_per_transaction')::bigint * (current_setting('max_connections')::bigint \
          + current_setting('max_prepared_transactions')::bigint + current_setting('autovacuum_max_workers')::bigint \
          + current_setting('max_worker_processes')::bigint + current_setting('max_wal_senders')::bigint + 1), \
          (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user)",
    )?;
    Ok(Facts {
        server_version: connection.server_version(),
        superuser: rows.flag(0, 1),
        no_staging: None,
        lock_slots: rows.number(0, 0).unwrap_or(6400),
        jobs,
        reloads: Vec::new(),
        crossing: Default::default(),
        generated: Default::default(),
    })
}

/// Facts of a server that nobody has asked, for plans without one: a superuser on a server as it comes.
pub fn assumed(jobs: usize) -> Facts {
    Facts {
        server_version: 150_000,
        superuser: true,
        no_staging: None,
        lock_slots: 64 * 122,
        jobs,
        reloads: Vec::new(),
        crossing: Default::default(),
        generated: Default::default(),
    }
}

/// Processors of the server, if it is on this machine; nothing says how many another has.
pub fn processors(connection: &Connection) -> Result<Option<usize>> {
    let here = connection.query(b"SELECT pg_catalog.inet_server_addr() IS NULL")?.flag(0, 0);
    let count = std::thread::available_parallelism().ok().map(usize::from);
    Ok(count.filter(|_| here))
}

/// Processes beside its own that a connection may build an index with, where `busy` connections share so many processors. More
/// than there are processors would only take time from each other, and a sort in parts is more work than one.
pub fn index_workers(processors: usize, busy: usize) -> usize {
    (processors / busy.max(1)).saturating_sub(1)
}

/// Kilobytes of maintenance_work_mem for each of `jobs` connections that may build indexes at the same time: a share
/// of a quarter of the shared buffers, but no less than the server's setting. `None`: leave the setting.
pub fn memory_for_each(connection: &Connection, jobs: usize) -> Result<Option<u64>> {
    let rows = connection.query(
        b"SELECT pg_size_bytes(current_setting('maintenance_work_mem')) / 1024, \
          pg_size_bytes(current_setting('shared_buffers')) / 1024",
    )?;
    let set: u64 = rows.number(0, 0).unwrap_or(0);
    let buffers: u64 = rows.number(0, 1).unwrap_or(0);
    Ok(Some((buffers / 4 / jobs.max(1) as u64).min(2 << 20)).filter(|kb| *kb > set))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_shared() {
        assert_eq!(index_workers(2, 2), 0);
        assert_eq!(index_workers(2, 1), 1);
        assert_eq!(index_workers(2, 8), 0);
        assert_eq!(index_workers(1, 1), 0);
        assert_eq!(index_workers(64, 8), 7);
        assert_eq!(index_workers(10, 4), 1);
    }
}
