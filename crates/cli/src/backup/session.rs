//! Connections of a backup: their settings, the snapshot they share, the locks that keep tables as they are.

use super::basis::{self, Before};
use super::halt::Halt;
use super::options::Options;
use super::tasks::{Table, Tables};
use crate::archive::rewrite::{Content, DataEntry};
use crate::error::{Error, Result};
use crate::pg::{quote_ident, quote_literal, Connection, For, Login};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Settings that make rows come out as `pg_dump` writes them, and keep sessions from being ended for being long.
/// As by `pg_dump`, TimeZone, `bytea_output` and others stay as they are: see `verify/forms.rs` for who compares.
const SETTINGS: &str = "SET DateStyle = ISO; SET IntervalStyle = postgres; \
     SET extra_float_digits = 3; SET synchronize_seqscans = off; SET statement_timeout = 0; \
     SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0";

/// Connects and applies the settings; nothing is begun.
pub fn connect(login: &Login) -> Result<Connection> {
    let address = login.address.clone().or("fallback_application_name", "firn backup");
    let connection = Connection::open(&address, For::OwnQueries)?;
    let mut sql = SETTINGS.to_string();
    if connection.server_version() >= 170000 {
        sql += "; SET transaction_timeout = 0";
    }
    sql += if login.row_security { "; SET row_security = on" } else { "; SET row_security = off" };
    connection.run(sql.as_bytes())?;
    if let Some(role) = &login.role {
        let sql = [b"SET ROLE ", &quote_ident(role.as_bytes())[..]].concat();
        connection.run(&sql)?;
    }
    Ok(connection)
}

/// When and where in the server's history a backup is.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// By which other sessions take it.
    pub id: String,
    /// UTC, as ISO 8601 has it.
    pub time: String,
    /// All that the snapshot sees was written to WAL before this place.
    pub lsn: String,
    /// The server is a standby.
    pub standby: bool,
    /// Who was writing before it was taken; not known of standbys. No backup needs it, so an error is none yet.
    pub before: Result<Option<Before>>,
}

/// The connection whose transaction exports the snapshot and holds the locks.
pub struct Leader {
    pub connection: Connection,
    deferrable: bool,
}

/// Something changed between the snapshot and the locks: start again with a new snapshot.
#[derive(Debug)]
pub enum Held {
    Locked(Tables),
    Moved(String),
}

/// How often it is looked whether `pg_dump` has its locks.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Tables locked by one statement.
const LOCKS_PER_STATEMENT: usize = 1000;

impl Leader {
    pub fn connect(options: &Options) -> Result<Leader> {
        Ok(Leader { connection: connect(&options.login)?, deferrable: options.deferrable })
    }

    /// The system identifier, which tells clusters apart; none if it may not be known.
    pub fn system_identifier(&self) -> Option<String> {
        let sql = b"SELECT system_identifier FROM pg_catalog.pg_control_system()";
        self.connection.query(sql).ok().map(|rows| rows.text(0, 0)).filter(|s| !s.is_empty())
    }

    /// Asks for something within the transaction that may fail without it. The outer error: the connection is lost.
    pub fn aside<T>(&self, ask: impl FnOnce(&Connection) -> Result<T>) -> Result<Result<T>> {
        self.connection.run(b"SAVEPOINT aside")?;
        let answer = ask(&self.connection);
        let end = match &answer {
            Ok(_) => &b"RELEASE SAVEPOINT aside"[..],
            Err(_) => b"ROLLBACK TO SAVEPOINT aside",
        };
        self.connection.run(end)?;
        Ok(answer)
    }

    /// Takes a new snapshot; gives up one taken before, and all locks.
    pub fn begin(&self) -> Result<Snapshot> {
        let mode = match self.deferrable {
            true => "ISOLATION LEVEL SERIALIZABLE, READ ONLY, DEFERRABLE",
            false => "ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        };
        self.connection.run(b"ROLLBACK")?;
        let before = basis::before(&self.connection);
        self.connection.run(format!("BEGIN; SET TRANSACTION {mode}").as_bytes())?;
        let rows = self.connection.query(
            b"SELECT pg_catalog.pg_export_snapshot(), \
              pg_catalog.to_char(pg_catalog.clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"'), \
              CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() \
              ELSE pg_catalog.pg_current_wal_insert_lsn() END, pg_catalog.pg_is_in_recovery()",
        )?;
        Ok(Snapshot {
            id: rows.text(0, 0),
            time: rows.text(0, 1),
            lsn: rows.text(0, 2),
            standby: rows.flag(0, 3),
            before,
        })
    }

    /// Waits until `pg_dump`, known by its application name, has locked its tables, and locks them, too.
    ///
    /// Somebody who waits to change a table keeps all others from locking it, until `pg_dump` ends. So we lock soon
    /// after it and not when it has written everything down, which may take minutes. Answers why that failed; nothing
    /// if it did not, or if `over` was set before.
    pub fn follow(
        &self,
        application: &str,
        over: &AtomicBool,
        halt: &Halt,
    ) -> Result<Option<String>> {
        let activity = [
            b"SELECT pid, query LIKE 'LOCK TABLE%' FROM pg_catalog.pg_stat_activity \
              WHERE datname = pg_catalog.current_database() AND application_name = ",
            &quote_literal(application.as_bytes())[..],
        ]
        .concat();
        while !over.load(Ordering::Relaxed) && !halt.is_set() {
            std::thread::sleep(LOOK_EVERY);
            // The list of sessions stays as it is within a transaction, unless told otherwise.
            self.connection.run(b"SELECT pg_catalog.pg_stat_clear_snapshot()")?;
            let rows = self.connection.query(&activity)?;
            let Some(pid) = rows.number::<i32>(0, 0).filter(|_| !rows.flag(0, 1)) else { continue };
            let sql = format!(
                "SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname) \
                 FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_class c ON c.oid = l.relation \
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                 WHERE l.pid = {pid} AND l.locktype = 'relation' AND l.mode = 'AccessShareLock' AND l.granted \
                 AND c.relkind = 'r' AND c.oid >= 16384"
            );
            let rows = self.connection.query(sql.as_bytes())?;
            if !rows.is_empty() {
                return self.lock((0..rows.len()).filter_map(|row| rows.get(row, 0)));
            }
        }
        Ok(None)
    }

    /// Locks tables without waiting; answers why that failed.
    fn lock<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> Result<Option<String>> {
        let mut names = names.peekable();
        while names.peek().is_some() {
            let chunk: Vec<&[u8]> = names.by_ref().take(LOCKS_PER_STATEMENT).collect();
            let sql = [
                b"LOCK TABLE ONLY ",
                &chunk.join(&b", ONLY "[..])[..],
                b" IN ACCESS SHARE MODE NOWAIT",
            ]
            .concat();
            match self.connection.run(&sql) {
                Ok(_) => {}
                Err(failure) if is_change(&failure.error) => {
                    return Ok(Some(failure.error.message));
                }
                Err(failure) => return Err(failure.error),
            }
        }
        Ok(None)
    }

    /// Locks the tables of the entries and learns what is needed to copy them.
    ///
    /// `pg_dump` has locked them too, but its locks end with it. It reads the names of tables by the snapshot, and
    /// the server opens tables as they are now; so look whether they are still the same, and whether one was
    /// emptied or rewritten in between, whose rows the snapshot would miss. `present`: a connection without a snapshot.
    pub fn hold(
        &self,
        entries: &[DataEntry],
        encoding: &str,
        present: &Connection,
    ) -> Result<Held> {
        let encoding =
            [b"SET client_encoding = ", &quote_literal(encoding.as_bytes())[..]].concat();
        self.connection.run(&encoding)?;
        present.run(&encoding)?;
        let mut tables = self.describe(entries)?;
        let lockable = tables.list.iter().filter(|table| table.lockable());
        if let Some(why) = self.lock(lockable.map(|table| &table.quoted[..]))? {
            return Ok(Held::Moved(why));
        }
        if let Some(name) = self.measure(&mut tables, present)? {
            return Ok(Held::Moved(format!(
                "table {name} was altered, emptied or rewritten meanwhile"
            )));
        }
        Ok(Held::Locked(tables))
    }

    /// What the snapshot knows about the tables of the entries.
    fn describe(&self, entries: &[DataEntry]) -> Result<Tables> {
        let mut oids = String::new();
        for entry in entries {
            if matches!(entry.content, Content::Table { .. }) {
                oids += if oids.is_empty() { "" } else { "," };
                oids += &entry.oid.to_string();
            }
        }
        // Rows of an extension's tables that belong to the extension itself are left out by its condition.
        let sql = format!(
            "SELECT c.oid, c.relkind, x.cond, n.nspname, c.relname \
             FROM pg_catalog.unnest('{{{oids}}}'::pg_catalog.oid[]) w(oid) \
             JOIN pg_catalog.pg_class c ON c.oid = w.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             LEFT JOIN (SELECT u.oid, u.cond FROM pg_catalog.pg_extension e, \
             ROWS FROM (pg_catalog.unnest(e.extconfig), pg_catalog.unnest(e.extcondition)) u(oid, cond)) x ON x.oid = c.oid"
        );
        let rows = self.connection.query(sql.as_bytes())?;
        let mut known = HashMap::with_capacity(rows.len());
        for row in 0..rows.len() {
            known.insert(rows.number::<u32>(row, 0).unwrap_or(0), row);
        }
        let mut tables = Tables::default();
        for (place, entry) in entries.iter().enumerate() {
            let Content::Table { copy_stmt } = &entry.content else { continue };
            let row = known.get(&entry.oid).copied();
            let cell = |column| row.and_then(|row| rows.get(row, column));
            let relkind = cell(1).and_then(|k| k.first()).copied().unwrap_or(b'r');
            let condition = cell(2).unwrap_or_default();
            tables.list.push(Table::new(place, entry, copy_stmt, relkind, condition)?);
        }
        Ok(tables)
    }

    /// Learns sizes. Answers the name of a table that is not any more what the snapshot sees: the same statement is run
    /// in the snapshot and in the present.
    fn measure(&self, tables: &mut Tables, present: &Connection) -> Result<Option<String>> {
        let mut oids = String::new();
        for table in &tables.list {
            oids += if oids.is_empty() { "" } else { "," };
            oids += &table.oid.to_string();
        }
        // Sizes are asked for in the snapshot only: what measures a table locks it, for which only we need not queue.
        let sql = |size: &str| {
            format!(
                "SELECT pg_catalog.concat_ws('|', n.nspname, c.relname, c.relfilenode, \
                 (SELECT sum(pg_catalog.hashtextextended(pg_catalog.concat_ws('|', a.attname, a.attnum, a.atttypid, \
                  a.atttypmod, a.attisdropped, a.attgenerated), 0)) FROM pg_catalog.pg_attribute a \
                  WHERE a.attrelid = c.oid AND a.attnum > 0)), {size} \
                 FROM pg_catalog.unnest('{{{oids}}}'::pg_catalog.oid[]) WITH ORDINALITY w(oid, n) \
                 LEFT JOIN pg_catalog.pg_class c ON c.oid = w.oid \
                 LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace ORDER BY w.n"
            )
        };
        let rows = self.connection.query(sql("pg_catalog.pg_table_size(c.oid)").as_bytes())?;
        let now = present.query(sql("NULL").as_bytes())?;
        let cold = self.cold_bytes();
        for (row, table) in tables.list.iter_mut().enumerate() {
            if table.lockable() && rows.get(row, 0) != now.get(row, 0) {
                return Ok(Some(table.shown()));
            }
            table.weight = rows.number::<u64>(row, 1).unwrap_or(0)
                + cold.get(&table.oid).copied().unwrap_or(0);
        }
        Ok(None)
    }

    /// Bytes that tables of the extension firn have in object stores: they count for which table is large. A server
    /// that does not tell is no hindrance.
    fn cold_bytes(&self) -> HashMap<u32, u64> {
        let mut cold = HashMap::new();
        // A view of the extension's own, which belongs to a superuser: nobody else can have put anything in its place.
        let own = self.connection.query(
            b"SELECT 1 FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_depend d ON d.refobjid = e.oid AND d.deptype = 'e' \
              AND d.refclassid = 'pg_catalog.pg_extension'::pg_catalog.regclass AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass \
              JOIN pg_catalog.pg_class c ON c.oid = d.objid JOIN pg_catalog.pg_roles r ON r.oid = c.relowner \
              WHERE e.extname = 'firn' AND c.oid = pg_catalog.to_regclass('firn.tables') AND r.rolsuper",
        );
        if !own.is_ok_and(|rows| !rows.is_empty()) {
            return cold;
        }
        let ask =
            b"SELECT relation::pg_catalog.oid, cold_bytes FROM firn.tables WHERE cold_bytes > 0";
        let look = || {
            self.connection.run(b"SAVEPOINT firn")?;
            self.connection.refusing("foreign-table", || self.connection.query(ask))
        };
        match look() {
            Ok(rows) => {
                for row in 0..rows.len() {
                    if let (Some(oid), Some(bytes)) = (rows.number(row, 0), rows.number(row, 1)) {
                        cold.insert(oid, bytes);
                    }
                }
            }
            Err(_) => {
                let _ = self.connection.run(b"ROLLBACK TO SAVEPOINT firn");
            }
        }
        cold
    }

    /// All large objects that the snapshot sees, in order, and about how many bytes they all take.
    pub fn large_objects(&self) -> Result<(Vec<u32>, u64)> {
        let rows = self
            .connection
            .query(b"SELECT oid FROM pg_catalog.pg_largeobject_metadata ORDER BY oid")?;
        let oids = (0..rows.len()).filter_map(|row| rows.number(row, 0)).collect();
        let size = b"SELECT pg_catalog.pg_table_size('pg_catalog.pg_largeobject')";
        let bytes = self.connection.query(size)?.number(0, 0).unwrap_or(0);
        Ok((oids, bytes))
    }
}

/// Whether an error says that a table is being changed or is not there any more.
fn is_change(e: &Error) -> bool {
    let state = e.sqlstate.as_deref().unwrap_or("");
    // lock_not_available, undefined_table, undefined_schema, undefined_column
    matches!(state, "55P03" | "42P01" | "3F000" | "42703")
}

/// A connection that copies data with the leader's snapshot.
pub struct Follower {
    pub connection: Connection,
    begin: Vec<u8>,
    /// Tables copied, and so locked, in the present transaction.
    tables: u32,
}

/// After so many tables a new transaction gives up their locks: the server's lock table is for all.
const TABLES_PER_TRANSACTION: u32 = 64;

impl Follower {
    pub fn connect(options: &Options, snapshot: &Snapshot, encoding: &str) -> Result<Follower> {
        let connection = connect(&options.login)?;
        let encoding = quote_literal(encoding.as_bytes());
        connection.run(&[b"SET client_encoding = ", &encoding[..]].concat())?;
        let begin = format!(
            "BEGIN; SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET TRANSACTION SNAPSHOT '{}'",
            snapshot.id
        );
        connection.run(begin.as_bytes())?;
        Ok(Follower { connection, begin: begin.into_bytes(), tables: 0 })
    }

    /// Begins a new transaction with the same snapshot.
    pub fn begin_again(&mut self) -> Result<()> {
        self.tables = 0;
        self.connection.run(&[b"ROLLBACK; ", &self.begin[..]].concat())?;
        Ok(())
    }

    /// Counts a table as locked.
    pub fn count_table(&mut self) -> Result<()> {
        self.tables += 1;
        match self.tables >= TABLES_PER_TRANSACTION {
            true => self.begin_again(),
            false => Ok(()),
        }
    }
}
