//! What proves that a table has not changed since an earlier backup: docs/decisions/0019-incremental.md.
//!
//! Before a snapshot is taken, a place in WAL is noted, and then who writes to which table ([`before`]). A table that nobody was
//! writing to then, and none of whose pages was changed in WAL after that place, has the same rows for every later snapshot,
//! as long as the server has not been started anew. The facts of each such table stand in the manifest ([`TableBasis`]); a later
//! backup compares them with its own and reads the pages' places in WAL (`pages`).

mod pages;
mod types;

pub use pages::Pages;

use super::tasks::Table;
use crate::archive::manifest::{hex, Basis, TableBasis};
use crate::archive::rewrite::{Content, DataEntry};
use crate::error::Result;
use crate::pg::{quote_literal, Connection};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use types::Types;

/// Changes whenever what the facts mean changes.
const VERSION: u32 = 1;
/// How long to wait until what the snapshot sees is durable.
const DURABLE: Duration = Duration::from_secs(10);

/// A place in WAL, as it is written there: `16/B374D848`.
pub fn lsn(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    let part = |text| u32::from_str_radix(text, 16).ok().map(u64::from);
    Some(part(high)? << 32 | part(low)?)
}

/// What was so before a snapshot was taken.
#[derive(Clone, Debug)]
pub struct Before {
    /// The end of WAL.
    lsn: String,
    /// Tables that transactions, prepared ones too, then held locks on that allow writing.
    busy: HashSet<u32>,
}

/// To be asked before the snapshot is taken, outside of its transaction. `None` on a standby, where others' locks are not known.
///
/// The order matters. Whoever wrote to a table before the noted place held its lock by then; if the snapshot does not see him as
/// ended, he holds it still when locks are looked at. The other way round he might begin in between.
pub fn before(connection: &Connection) -> Result<Option<Before>> {
    let rows = connection.query(
        b"SELECT CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_current_wal_insert_lsn() END",
    )?;
    if rows.get(0, 0).is_none() {
        return Ok(None);
    }
    // VACUUM and ANALYZE (SHARE UPDATE EXCLUSIVE) change no row.
    let held = connection.query(
        b"SELECT DISTINCT relation FROM pg_catalog.pg_locks WHERE locktype = 'relation' AND granted \
          AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()) \
          AND mode NOT IN ('AccessShareLock', 'RowShareLock', 'ShareUpdateExclusiveLock')",
    )?;
    let busy = (0..held.len()).filter_map(|row| held.number(row, 0)).collect();
    Ok(Some(Before { lsn: rows.text(0, 0), busy }))
}

/// What holds for all tables: the life of the server, settings that rows' text depends on, and which database of its name and oid it is
/// (one that was made anew with an old oid, from files that were copied, has old pages).
pub fn server(connection: &Connection) -> Result<Option<Basis>> {
    let rows = connection.query(
        b"SELECT pg_catalog.to_char(pg_catalog.pg_postmaster_start_time() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), \
          CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_insert_lsn()), 1, 8) END, \
          pg_catalog.concat_ws('; ', pg_catalog.version(), pg_catalog.current_setting('server_encoding'), \
          pg_catalog.current_setting('client_encoding'), pg_catalog.current_setting('TimeZone'), pg_catalog.current_setting('DateStyle'), \
          pg_catalog.current_setting('IntervalStyle'), pg_catalog.current_setting('extra_float_digits'), \
          pg_catalog.current_setting('bytea_output'), pg_catalog.current_setting('quote_all_identifiers'), \
          pg_catalog.current_setting('lc_monetary'), pg_catalog.current_setting('row_security'), \
          (SELECT pg_catalog.concat_ws('.', d.oid, d.xmin) FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()))",
    )?;
    Ok(rows.get(0, 1).is_some().then(|| Basis {
        version: VERSION,
        server_started: rows.text(0, 0),
        timeline: rows.text(0, 1),
        settings: rows.text(0, 2),
    }))
}

/// The facts of the tables that can be proven unchanged later, by their place among the entries with data.
#[derive(Debug, Default)]
pub struct Facts {
    pub tables: HashMap<usize, TableBasis>,
    /// Those of `tables` that nobody was writing to: only they can be the basis of a later backup.
    quiet: HashSet<usize>,
}

/// A table's definition as far as the text of its rows depends on it.
struct Definition {
    sum: String,
    file: String,
    toast: Option<(u32, String)>,
}

/// Reads the facts in the leader's transaction, which has locked the tables.
pub fn facts(
    leader: &Connection,
    before: &Before,
    tables: &[Table],
    entries: &[DataEntry],
) -> Result<Facts> {
    let definitions = definitions(leader, tables, entries)?;
    let oids: Vec<u32> = tables
        .iter()
        .filter_map(|table| definitions.get(&table.place).map(|found| (table.oid, found)))
        .flat_map(|(oid, found)| [Some(oid), found.toast.as_ref().map(|(oid, _)| *oid)])
        .flatten()
        .collect();
    let sizes = sizes(leader, &oids)?;
    let pages = |oid: u32| sizes.get(&oid).copied();
    let mut facts = Facts::default();
    for table in tables {
        let Some(found) = definitions.get(&table.place) else { continue };
        let toast = found.toast.as_ref();
        let (Some(size), Some(toast_size)) =
            (pages(table.oid), toast.map_or(Some(0), |(oid, _)| pages(*oid)))
        else {
            continue;
        };
        let basis = TableBasis {
            oid: table.oid,
            lsn: before.lsn.clone(),
            file: found.file.clone(),
            pages: size,
            toast_file: toast.map(|(_, file)| file.clone()),
            toast_pages: toast_size,
            definition: found.sum.clone(),
        };
        if !before.busy.contains(&table.oid) {
            facts.quiet.insert(table.place);
        }
        facts.tables.insert(table.place, basis);
    }
    Ok(facts)
}

impl Facts {
    /// What goes into the manifest: to be asked when everything is copied. `end`: the end of WAL when the snapshot was there;
    /// `present`: a connection of its own. Empty if what the snapshot saw is not durable in the end.
    ///
    /// Rows are shown by the catalogs as they are, not as the snapshot has them: labels of enum types might have been
    /// renamed after it. And what a crash took away again the snapshot must not have seen.
    pub fn confirmed(
        mut self,
        present: &Connection,
        end: &str,
        tables: &[Table],
        entries: &[DataEntry],
    ) -> Result<HashMap<usize, TableBasis>> {
        if self.quiet.is_empty() || !durable(present, end)? {
            return Ok(HashMap::new());
        }
        let quiet: Vec<Table> =
            tables.iter().filter(|table| self.quiet.contains(&table.place)).cloned().collect();
        let now = definitions(present, &quiet, entries)?;
        self.tables.retain(|place, basis| {
            now.get(place).is_some_and(|now| now.sum == basis.definition && now.file == basis.file)
        });
        Ok(self.tables)
    }
}

/// Waits until WAL is on the disk up to that place. Answers false if it takes too long.
fn durable(connection: &Connection, end: &str) -> Result<bool> {
    let end = quote_literal(end.as_bytes());
    let ask = [b"SELECT pg_catalog.pg_current_wal_flush_lsn() >= ", &end[..]].concat();
    let began = Instant::now();
    let mut asked = false;
    loop {
        if connection.query(&ask)?.flag(0, 0) {
            return Ok(true);
        }
        if began.elapsed() > DURABLE {
            return Ok(false);
        }
        // Nobody may be writing: the WAL writer then waits for a transaction to end that has a number.
        if !asked {
            connection.run(b"BEGIN READ WRITE; SELECT pg_catalog.pg_current_xact_id(); COMMIT")?;
            asked = true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn list(oids: impl Iterator<Item = u32>) -> String {
    oids.map(|oid| oid.to_string()).collect::<Vec<_>>().join(",")
}

/// Pages by relation. It locks them for a moment, so it is for the connection that has locked their tables.
fn sizes(leader: &Connection, oids: &[u32]) -> Result<HashMap<u32, u64>> {
    let sql = format!(
        "SELECT o.oid, pg_catalog.pg_relation_size(o.oid::pg_catalog.regclass, 'main') \
         / pg_catalog.current_setting('block_size')::pg_catalog.int8 \
         FROM pg_catalog.unnest('{{{}}}'::pg_catalog.oid[]) o(oid)",
        list(oids.iter().copied())
    );
    let rows = leader.query(sql.as_bytes())?;
    Ok((0..rows.len())
        .filter_map(|row| Some((rows.number(row, 0)?, rows.number(row, 1)?)))
        .collect())
}

/// The definitions of those tables whose rows' text depends on nothing but pages and definition. Takes no lock.
fn definitions(
    connection: &Connection,
    tables: &[Table],
    entries: &[DataEntry],
) -> Result<HashMap<usize, Definition>> {
    let plain: HashMap<u32, &Table> =
        tables.iter().filter(|table| table.is_plain()).map(|table| (table.oid, table)).collect();
    let oids = list(plain.keys().copied());
    let types = Types::read(connection, &oids)?;
    // xmin: a definition that was changed and changed back is another one. Heap is the access method 2. Extensions write to their own
    // tables by code that may give locks up before it commits.
    let own = types::summed(
        "pg_catalog.json_build_array(n.nspname, c.relname, c.relkind, c.relrowsecurity, c.relforcerowsecurity)",
    );
    let columns = types::summed(
        "pg_catalog.json_agg(pg_catalog.json_build_array(a.attnum, a.attname, a.atttypid, a.atttypmod, a.attlen, \
         a.attbyval, a.attalign, a.attisdropped, a.attgenerated, a.atthasmissing, a.attmissingval::pg_catalog.text, \
         a.xmin::pg_catalog.text) ORDER BY a.attnum)",
    );
    let sql = format!(
        "SELECT c.oid, pg_catalog.pg_relation_filepath(c.oid), NULLIF(c.reltoastrelid, 0), \
         pg_catalog.pg_relation_filepath(NULLIF(c.reltoastrelid, 0)), \
         {own}, (SELECT {columns} FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0), \
         (SELECT pg_catalog.array_to_string(pg_catalog.array_agg(DISTINCT a.atttypid), ',') FROM pg_catalog.pg_attribute a \
          WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '') \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.oid = ANY ('{{{oids}}}'::pg_catalog.oid[]) AND c.relkind = 'r' AND c.relpersistence = 'p' AND c.relam = 2 \
         AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass \
          AND d.objid = c.oid AND d.objsubid = 0 AND d.deptype = 'e')"
    );
    let rows = connection.query(sql.as_bytes())?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in 0..rows.len() {
        let Some(table) = rows.number::<u32>(row, 0).and_then(|oid| plain.get(&oid)) else {
            continue;
        };
        let (Some(file), Some(entry)) = (rows.get(row, 1), entries.get(table.place)) else {
            continue;
        };
        let Content::Table { copy_stmt } = &entry.content else { continue };
        let used: Vec<u32> =
            rows.text(row, 6).split(',').filter_map(|oid| oid.parse().ok()).collect();
        let Some(labels) = types.labels(&used) else { continue };
        let mut sum = Sha256::new();
        // Each with its length before it, so that no two of them can be taken for others.
        let (own, columns) = (rows.text(row, 4), rows.text(row, 5));
        for part in
            [&copy_stmt[..], &table.copy, own.as_bytes(), columns.as_bytes(), labels.as_bytes()]
        {
            sum.update((part.len() as u64).to_le_bytes());
            sum.update(part);
        }
        let toast = match (rows.number(row, 2), rows.get(row, 3)) {
            (Some(oid), Some(_)) => Some((oid, rows.text(row, 3))),
            (None, _) => None,
            _ => continue,
        };
        let file = String::from_utf8_lossy(file).into_owned();
        found.insert(table.place, Definition { sum: hex(&sum.finalize()), file, toast });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_wal() {
        assert_eq!(lsn("0/0"), Some(0));
        assert_eq!(lsn("16/B374D848"), Some(0x16_B374_D848));
        assert_eq!(lsn("FFFFFFFF/FFFFFFFF"), Some(u64::MAX));
        for bad in ["", "1", "1/", "/1", "1/100000000", "g/1", "1/2/3"] {
            assert_eq!(lsn(bad), None, "{bad}");
        }
    }
}
