//! The journal: what of a plan is done, in the target database itself.
//!
//! Each transaction of a restore inserts the numbers of its steps here, so that work and record are there together
//! or not at all, whatever dies. A resumed run reads the archive again, makes the same plan (steps have the
//! same numbers, as the plan follows from the archive and from what the first row says) and leaves out what is done.
//! The journal goes in the restore's last transaction.

use super::Terms;
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{quote_literal, Connection};
use crate::plan::render::SCHEMA;

/// What an unfinished restore left.
#[derive(Debug)]
pub struct Found {
    pub fingerprint: String,
    pub terms: Terms,
    pub done: Vec<u32>,
    /// Entries of steps that were done one by one.
    pub entries: Vec<u32>,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Advisory locks of a restore: "firn" in ASCII, and what it is for. The program holds the first for as long as it works,
/// each of its connections shares the second.
const LOCK: &str = "1718186606";

/// Be the only restore of this database: fails if another works on it. Transactions of a killed one, which the server may
/// still be busy with, are ended first, so that none of them is committed later.
pub fn be_alone(connection: &Connection, stopped: &dyn Fn() -> bool) -> Result<()> {
    let busy = || {
        Error::usage("another restore is working on the target database")
            .hint("Wait until it is finished, or stop it and use --resume.")
    };
    let begun = std::time::Instant::now();
    let take = format!("SELECT pg_catalog.pg_try_advisory_lock({LOCK}, 1)");
    // The session of a program that was killed is gone a moment later.
    while !connection.query(take.as_bytes())?.flag(0, 0) {
        if begun.elapsed().as_secs() >= 3 {
            return Err(busy());
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let end = format!(
        "SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_locks WHERE locktype = 'advisory' \
         AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()) \
         AND classid = {LOCK} AND objid = 2 AND granted AND pid <> pg_catalog.pg_backend_pid()"
    );
    let take = format!("SELECT pg_catalog.pg_try_advisory_lock({LOCK}, 2)");
    loop {
        if connection.query(take.as_bytes())?.flag(0, 0) {
            connection
                .query(format!("SELECT pg_catalog.pg_advisory_unlock({LOCK}, 2)").as_bytes())?;
            return Ok(());
        }
        // Without the right to end them one waits until they end.
        let _ = connection.query(end.as_bytes());
        if stopped() {
            return Err(Error::new(ErrorKind::Cancelled, "canceled by user"));
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// What each connection that changes the target holds.
pub fn join(connection: &Connection) -> Result<()> {
    connection.query(format!("SELECT pg_catalog.pg_advisory_lock_shared({LOCK}, 2)").as_bytes())?;
    Ok(())
}

/// Nothing is recorded yet.
pub fn is_empty(connection: &Connection) -> Result<bool> {
    let sql = format!(
        "SELECT NOT EXISTS (SELECT 1 FROM {SCHEMA}.journal) AND NOT EXISTS (SELECT 1 FROM {SCHEMA}.entries)"
    );
    Ok(connection.query(sql.as_bytes())?.flag(0, 0))
}

/// Look for the journal of an unfinished restore.
pub fn find(connection: &Connection) -> Result<Option<Found>> {
    let there = connection.query(
        format!(
            "SELECT pg_catalog.to_regclass('{SCHEMA}.run') IS NOT NULL, \
             EXISTS (SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = '{SCHEMA}')"
        )
        .as_bytes(),
    )?;
    match (there.flag(0, 0), there.flag(0, 1)) {
        (false, false) => return Ok(None),
        (false, true) => {
            return Err(Error::usage(format!("schema \"{SCHEMA}\" exists in the target database"))
                .detail("It is the name of the journal's schema, but holds no journal.")
                .hint(format!("Drop or rename schema \"{SCHEMA}\".")))
        }
        _ => {}
    }
    let run =
        connection.query(format!("SELECT fingerprint, terms FROM {SCHEMA}.run").as_bytes())?;
    let terms = serde_json::from_str(&run.text(0, 1)).map_err(|e| {
        Error::usage("the journal in the target database cannot be read")
            .detail(e.to_string())
            .hint("It may be of another version of this program: use that, or start anew in an empty database.")
    })?;
    let rows = connection
        .query(format!("SELECT pg_catalog.unnest(steps) FROM {SCHEMA}.journal").as_bytes())?;
    let done = (0..rows.len()).filter_map(|r| rows.number(r, 0)).collect();
    let rows = connection.query(format!("SELECT entry FROM {SCHEMA}.entries").as_bytes())?;
    let entries = (0..rows.len()).filter_map(|r| rows.number(r, 0)).collect();
    Ok(Some(Found { fingerprint: run.text(0, 0), terms, done, entries }))
}

/// Begin a journal.
pub fn begin(connection: &Connection, fingerprint: &[u8; 32], terms: &Terms) -> Result<()> {
    let terms =
        serde_json::to_string(terms).map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
    let mut sql = format!(
        "BEGIN; SET LOCAL synchronous_commit = on; SET LOCAL default_table_access_method = heap;\n\
         CREATE SCHEMA {SCHEMA};\n\
         COMMENT ON SCHEMA {SCHEMA} IS 'journal of an unfinished firn restore; gone when it is finished';\n\
         CREATE TABLE {SCHEMA}.run (fingerprint text NOT NULL, terms text NOT NULL, begun timestamptz NOT NULL \
         DEFAULT now(), version text NOT NULL);\n\
         CREATE TABLE {SCHEMA}.journal (steps integer[] NOT NULL);\n\
         CREATE TABLE {SCHEMA}.entries (entry integer NOT NULL);\n\
         INSERT INTO {SCHEMA}.run VALUES ('{}', ",
        hex(fingerprint)
    )
    .into_bytes();
    sql.extend(quote_literal(terms.as_bytes()));
    sql.extend_from_slice(
        format!(", DEFAULT, '{}'); COMMIT;", env!("CARGO_PKG_VERSION")).as_bytes(),
    );
    connection.run(&sql).map_err(|failure| {
        let _ = connection.run(b"ROLLBACK");
        failure.error.hint("The restoring role needs CREATE on the database, for the journal.")
    })?;
    Ok(())
}

/// The archive is the one that the journal is of.
pub fn check(found: &Found, fingerprint: &[u8; 32]) -> Result<()> {
    match found.fingerprint == hex(fingerprint) {
        true => Ok(()),
        false => Err(Error::usage(
            "the unfinished restore in the target database is of another archive",
        )
        .hint("Resume with the archive that it was begun with, or restore into another database.")),
    }
}

/// The statement that records steps.
pub fn record(steps: &[u32]) -> Vec<u8> {
    let list: Vec<String> = steps.iter().map(u32::to_string).collect();
    format!("INSERT INTO {SCHEMA}.journal VALUES ('{{{}}}');\n", list.join(",")).into_bytes()
}

/// The statement that records one entry of a step that is done one by one.
pub fn record_entry(entry: u32) -> Vec<u8> {
    format!("INSERT INTO {SCHEMA}.entries VALUES ({entry});\n").into_bytes()
}

/// Whether a step, or one entry of it, is recorded: asked when a connection broke while a transaction was being
/// committed.
pub fn has(connection: &Connection, step: u32, entry: Option<u32>) -> Result<bool> {
    let sql = match entry {
        Some(entry) => {
            format!("SELECT EXISTS (SELECT 1 FROM {SCHEMA}.entries WHERE entry = {entry})")
        }
        None => {
            format!("SELECT EXISTS (SELECT 1 FROM {SCHEMA}.journal WHERE steps @> '{{{step}}}')")
        }
    };
    Ok(connection.query(sql.as_bytes())?.flag(0, 0))
}

/// Remove the journal, durably: everything before it is then durable too.
pub fn end(connection: &Connection) -> Result<()> {
    let sql = format!(
        "BEGIN; SET LOCAL synchronous_commit = on; SET LOCAL client_min_messages = error; \
         DROP TABLE {SCHEMA}.run, {SCHEMA}.journal, {SCHEMA}.entries; DROP SCHEMA {SCHEMA}; COMMIT;"
    );
    connection.run(sql.as_bytes()).map_err(|failure| {
        let _ = connection.run(b"ROLLBACK");
        failure.error
    })?;
    Ok(())
}
