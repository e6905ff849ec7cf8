//! What is done, kept in the target database itself.
//!
//! Each transaction of a restore inserts the numbers of its steps here, so that work and record are there together
//! or not at all, whatever dies. A resumed run reads the archive again, makes the same plan (steps have the
//! same numbers, as the plan follows from the archive and from what the first row says) and leaves out what is done.
//! The journal goes in the restore's last transaction, after all that is compared at the end. README.md has rules and crash cases.
//!
//! - [`fence`]: sessions, and how one makes sure that a lost one never commits.
//! - [`owned`]: whether a journal that is found is to be trusted.

pub mod fence;
mod owned;

use super::Terms;
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{quote_literal, Connection};
use crate::plan::render::SCHEMA;
use fence::Session;
use std::collections::HashMap;

/// What a plan belongs to. A journal of another archive, program, plan or server is not gone on with.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// SHA-256 of the archive's header and table of contents.
    pub archive: String,
    /// Of this program.
    pub version: String,
    /// SHA-256 of the steps.
    pub plan: String,
    /// Major version of the server.
    pub server: u32,
    /// `pg_control_system()`, or empty where that may not be asked.
    pub system: String,
    /// Oid of the database.
    pub database: u64,
}

/// How far a restore is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Restoring,
    /// All steps are done, durably; what is left is ANALYZE and comparing.
    Restored,
}

/// What an unfinished restore left.
#[derive(Debug)]
pub struct Found {
    pub identity: Identity,
    pub terms: Terms,
    pub phase: Phase,
}

/// What is recorded as done.
#[derive(Debug, Default)]
pub struct Done {
    pub steps: Vec<u32>,
    /// Rows that a step copied, for those that copy; of large objects the bytes.
    pub rows: HashMap<u32, u64>,
    /// Steps that are recorded more than once. As each is recorded where it is done, it was done more than once.
    pub twice: Vec<u32>,
    /// Entries of steps that were done one by one.
    pub entries: Vec<u32>,
}

/// The name of the journal's schema.
pub fn schema() -> &'static [u8] {
    SCHEMA.as_bytes()
}

/// A digest as text.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Whether there is a journal of an unfinished restore, made by this role. Reads catalogs only.
pub fn is_there(connection: &Connection) -> Result<bool> {
    owned::check(connection)
}

/// A new restore is not begun where there is a journal.
pub fn unfinished() -> Error {
    Error::usage("the target database holds an unfinished restore")
        .hint("Go on with it by --resume, or restore into another database.")
}

fn unreadable(detail: impl Into<String>) -> Error {
    Error::usage("the journal in the target database cannot be read").detail(detail).hint(
        "It may be of another version of this program: use that, or start anew in an empty database.",
    )
}

/// Read the journal of an unfinished restore, which is there.
pub fn find(connection: &Connection) -> Result<Found> {
    let run = connection
        .query(format!("SELECT identity, terms, phase FROM {SCHEMA}.run").as_bytes())
        .map_err(|e| unreadable(e.message))?;
    if run.len() != 1 {
        return Err(unreadable(format!("It has {} rows where one is expected.", run.len())));
    }
    let identity = serde_json::from_str(&run.text(0, 0)).map_err(|e| unreadable(e.to_string()))?;
    let terms = serde_json::from_str(&run.text(0, 1)).map_err(|e| unreadable(e.to_string()))?;
    let phase = match &run.text(0, 2)[..] {
        "restoring" => Phase::Restoring,
        "restored" => Phase::Restored,
        other => return Err(unreadable(format!("Its phase is \"{other}\"."))),
    };
    Ok(Found { identity, terms, phase })
}

/// Read what is recorded of a plan with so many steps.
pub fn done(connection: &Connection, count: usize) -> Result<Done> {
    let mut done = Done::default();
    let rows = connection
        .query(format!("SELECT pg_catalog.unnest(steps), rows FROM {SCHEMA}.journal").as_bytes())?;
    for row in 0..rows.len() {
        let step = rows.number(row, 0).filter(|step| (*step as usize) < count);
        let step: u32 = step.ok_or_else(|| {
            unreadable(format!("It has a step \"{}\", the plan has {count}.", rows.text(row, 0)))
        })?;
        done.steps.push(step);
        if let Some(copied) = rows.number(row, 1) {
            done.rows.insert(step, copied);
        }
    }
    done.steps.sort_unstable();
    done.twice = done.steps.windows(2).filter(|w| w[0] == w[1]).map(|w| w[0]).collect();
    done.steps.dedup();
    let rows = connection.query(format!("SELECT entry FROM {SCHEMA}.entries").as_bytes())?;
    done.entries = (0..rows.len()).filter_map(|r| rows.number(r, 0)).collect();
    Ok(done)
}

/// In which epochs the steps of a plan with so many were done, and the entries that were done one by one.
pub fn epochs(
    connection: &Connection,
    count: usize,
) -> Result<(HashMap<u32, i32>, HashMap<u32, i32>)> {
    let steps = format!("SELECT pg_catalog.unnest(steps), session FROM {SCHEMA}.journal");
    let entries = format!("SELECT entry, session FROM {SCHEMA}.entries");
    let read = |sql: &str| -> Result<HashMap<u32, i32>> {
        let rows = connection.query(sql.as_bytes())?;
        let one = |row| Some((rows.number(row, 0)?, Session::epoch(rows.number(row, 1)?)));
        Ok((0..rows.len()).filter_map(one).collect())
    };
    let (mut steps, entries) = (read(&steps)?, read(&entries)?);
    steps.retain(|step, _| (*step as usize) < count);
    Ok((steps, entries))
}

/// Event triggers are for what is restored, not for the journal: one that refuses DROP, from the archive perhaps, would keep it
/// there for ever. Without the right to it, which superusers have, they fire.
const UNSEEN: &str = "SELECT pg_catalog.set_config('session_replication_role', 'replica', true) \
     WHERE pg_catalog.has_parameter_privilege('session_replication_role', 'SET');";

/// What stands around statements about the journal's tables, in their transaction. Event triggers that are ENABLE ALWAYS
/// fire under [`UNSEEN`], too: newer servers have a setting against them, elsewhere they are off until the transaction ends,
/// for nobody else.
fn unseen(connection: &Connection) -> Result<[String; 2]> {
    if connection.server_version() >= 170_000 {
        let off = "SELECT pg_catalog.set_config('event_triggers', 'off', true) \
                   WHERE pg_catalog.has_parameter_privilege('event_triggers', 'SET');";
        return Ok([format!("{UNSEEN} {off}"), String::new()]);
    }
    let always = connection.query(
        b"SELECT pg_catalog.quote_ident(evtname) FROM pg_catalog.pg_event_trigger WHERE evtenabled = 'A' \
          AND (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = CURRENT_USER)",
    )?;
    let alter = |how: &str| -> String {
        let names = (0..always.len()).map(|row| always.text(row, 0));
        names.map(|name| format!(" ALTER EVENT TRIGGER {name} {how};")).collect()
    };
    Ok([format!("{UNSEEN}{}", alter("DISABLE")), alter("ENABLE ALWAYS")])
}

/// A value of the run's row.
fn text(value: serde_json::Result<String>) -> Result<Vec<u8>> {
    let text = value.map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
    Ok(quote_literal(text.as_bytes()))
}

/// Begin a journal. A publication of all tables has its tables, too, and lets only such with a replica identity change.
pub fn begin(connection: &Connection, identity: &Identity, terms: &Terms) -> Result<()> {
    let [unseen, seen] = unseen(connection)?;
    let mut sql = format!(
        "BEGIN; SET LOCAL synchronous_commit = on; SET LOCAL default_table_access_method = heap;\n\
         {unseen} CREATE SCHEMA {SCHEMA};\n\
         COMMENT ON SCHEMA {SCHEMA} IS 'journal of an unfinished firn restore; gone when it is finished';\n\
         CREATE TABLE {SCHEMA}.run (identity text NOT NULL, terms text NOT NULL, epoch integer NOT NULL, \
         phase text NOT NULL, begun timestamptz NOT NULL);\n\
         CREATE TABLE {SCHEMA}.sessions (session integer NOT NULL);\n\
         CREATE TABLE {SCHEMA}.journal (steps integer[] NOT NULL, rows bigint, session integer NOT NULL);\n\
         CREATE TABLE {SCHEMA}.entries (entry integer NOT NULL, session integer NOT NULL);\n\
         CREATE TABLE {SCHEMA}.without_rows (entry integer NOT NULL, session integer NOT NULL);\n\
         CREATE TABLE {SCHEMA}.emptied (entry integer NOT NULL, session integer NOT NULL);\n\
         ALTER TABLE {SCHEMA}.run REPLICA IDENTITY FULL; ALTER TABLE {SCHEMA}.sessions REPLICA IDENTITY FULL;\n\
         ALTER TABLE {SCHEMA}.journal REPLICA IDENTITY FULL; ALTER TABLE {SCHEMA}.entries REPLICA IDENTITY FULL;\n\
         ALTER TABLE {SCHEMA}.without_rows REPLICA IDENTITY FULL; ALTER TABLE {SCHEMA}.emptied REPLICA IDENTITY FULL;\n\
         INSERT INTO {SCHEMA}.run VALUES ("
    )
    .into_bytes();
    sql.extend(text(serde_json::to_string(identity))?);
    sql.extend_from_slice(b", ");
    sql.extend(text(serde_json::to_string(terms))?);
    sql.extend(format!(", 0, 'restoring', pg_catalog.now());{seen} COMMIT;").into_bytes());
    connection.run(&sql).map_err(|failure| {
        let _ = connection.run(b"ROLLBACK");
        failure.error.hint("The restoring role needs CREATE on the database, for the journal.")
    })?;
    Ok(())
}

/// Do something that changes what holds for the restore.
pub fn change_terms(connection: &Connection, sql: &[u8], terms: &Terms) -> Result<()> {
    let update = format!(" UPDATE {SCHEMA}.run SET terms = ").into_bytes();
    let sql = [sql, &update, &text(serde_json::to_string(terms))?, b";"].concat();
    transaction(connection, &sql)
}

/// The journal is of what is to be gone on with.
pub fn check(found: &Identity, now: &Identity) -> Result<()> {
    let differs = |what: &str, hint: &str| {
        let message = format!("the unfinished restore in the target database is of another {what}");
        Err(Error::usage(message).hint(hint))
    };
    if found.archive != now.archive {
        return differs(
            "archive",
            "Resume with the archive that it was begun with, or restore into another database.",
        );
    }
    if found.version != now.version {
        let hint = format!("Resume with the firn {} that it was begun with.", found.version);
        return differs("version of firn", &hint);
    }
    let known = !found.system.is_empty() && !now.system.is_empty();
    if found.server != now.server
        || found.database != now.database
        || known && found.system != now.system
    {
        return differs(
            "server or database",
            "This database seems to be a copy of that one. Restore into an empty database.",
        );
    }
    if found.plan != now.plan {
        return differs("plan", "Resume with the same build of firn that it was begun with.");
    }
    Ok(())
}

/// The session's number, as an expression that is null when the session has been shut out; while the transaction goes
/// on nobody can shut it out.
fn own(session: Session) -> String {
    let number = session.number();
    format!(
        "(SELECT session FROM {SCHEMA}.sessions WHERE session OPERATOR(pg_catalog.=) {number} FOR KEY SHARE)"
    )
}

/// The statement that records steps, and for each that copied rows their number.
pub fn record(session: Session, steps: &[u32], rows: &[(u32, u64)]) -> Vec<u8> {
    let own = own(session);
    let plain: Vec<String> = steps
        .iter()
        .filter(|s| !rows.iter().any(|(step, _)| step == *s))
        .map(u32::to_string)
        .collect();
    let mut values: Vec<String> =
        rows.iter().map(|(step, rows)| format!("('{{{step}}}', {rows}, {own})")).collect();
    if !plain.is_empty() {
        values.push(format!("('{{{}}}', NULL, {own})", plain.join(",")));
    }
    format!("INSERT INTO {SCHEMA}.journal VALUES {};\n", values.join(", ")).into_bytes()
}

/// The statement that records one entry of a step that is done one by one.
pub fn record_entry(session: Session, entry: u32) -> Vec<u8> {
    format!("INSERT INTO {SCHEMA}.entries VALUES ({entry}, {});\n", own(session)).into_bytes()
}

/// An array of numbers, as an expression.
fn array(numbers: &[u32]) -> String {
    let list: Vec<String> = numbers.iter().map(u32::to_string).collect();
    format!("'{{{}}}'::pg_catalog.int4[]", list.join(","))
}

/// The statement that notes which entries are done while rows are missing that they may look at.
pub fn record_without_rows(session: Session, entries: &[u32]) -> Vec<u8> {
    let (list, own) = (array(entries), own(session));
    format!("INSERT INTO {SCHEMA}.without_rows SELECT e, {own} FROM pg_catalog.unnest({list}) e;\n")
        .into_bytes()
}

/// The statement that notes whose rows a crash has taken, for the transaction that forgets them.
pub fn record_emptied(session: Session, entries: &[u32]) -> Vec<u8> {
    let (list, own) = (array(entries), own(session));
    format!("INSERT INTO {SCHEMA}.emptied SELECT e, {own} FROM pg_catalog.unnest({list}) e;\n")
        .into_bytes()
}

/// Entries whose rows a crash has taken, in this run or an earlier one, be they there again or not.
pub fn emptied(connection: &Connection) -> Result<Vec<u32>> {
    let sql = format!("SELECT DISTINCT entry FROM {SCHEMA}.emptied ORDER BY 1");
    let rows = connection.query(sql.as_bytes())?;
    Ok((0..rows.len()).filter_map(|row| rows.number(row, 0)).collect())
}

/// The statement that takes such notes back, for the transaction that undoes what they are of.
fn forget_without_rows(entries: &[u32]) -> Vec<u8> {
    if entries.is_empty() {
        return Vec::new();
    }
    let list = array(entries);
    format!("DELETE FROM {SCHEMA}.without_rows WHERE entry OPERATOR(pg_catalog.=) ANY ({list});\n")
        .into_bytes()
}

/// Entries that were done while rows were missing that they may look at ([`record_without_rows`]).
pub fn without_rows(connection: &Connection) -> Result<Vec<u32>> {
    let sql = format!("SELECT DISTINCT entry FROM {SCHEMA}.without_rows ORDER BY 1");
    let rows = connection.query(sql.as_bytes())?;
    Ok((0..rows.len()).filter_map(|row| rows.number(row, 0)).collect())
}

/// The statement that takes steps back, for the transaction that undoes them, with what is noted of their entries (of those that may
/// look at rows). The others of their row stay of the session that did them.
pub fn forget(session: Session, steps: &[u32], looking: &[u32]) -> Vec<u8> {
    let list = array(steps);
    let mut sql = format!(
        "UPDATE {SCHEMA}.journal SET steps = ARRAY(SELECT s FROM pg_catalog.unnest(steps) s \
         WHERE s OPERATOR(pg_catalog.<>) ALL ({list})), session = session OPERATOR(pg_catalog.+) (0 OPERATOR(pg_catalog.*) {}) \
         WHERE EXISTS (SELECT FROM pg_catalog.unnest(steps) s WHERE s OPERATOR(pg_catalog.=) ANY ({list}));\n",
        own(session)
    );
    sql += &format!("DELETE FROM {SCHEMA}.journal WHERE steps OPERATOR(pg_catalog.=) '{{}}';\n");
    [sql.into_bytes(), forget_without_rows(looking)].concat()
}

/// The statements that take some entries of a step back, for the transaction that undoes them: the others stay done, one by one, by the
/// session that did them.
pub fn reopen(session: Session, step: u32, entries: &[u32], left: &[u32]) -> Vec<u8> {
    // It may be done one by one already.
    let mut sql = format!(
        "INSERT INTO {SCHEMA}.entries SELECT e, j.session OPERATOR(pg_catalog.+) (0 OPERATOR(pg_catalog.*) {}) \
         FROM pg_catalog.unnest({}) e, (SELECT pg_catalog.min(session) AS session FROM {SCHEMA}.journal \
         WHERE steps OPERATOR(pg_catalog.@>) {}) j WHERE j.session IS NOT NULL;\n",
        own(session),
        array(entries),
        array(&[step])
    )
    .into_bytes();
    sql.extend(forget(session, &[step], left));
    let delete = format!(
        "DELETE FROM {SCHEMA}.entries WHERE entry OPERATOR(pg_catalog.=) ANY ({});\n",
        array(left)
    );
    sql.extend(delete.into_bytes());
    sql
}

/// A statement that fails, by a division by zero, if a table has other rows than those that steps are recorded to have
/// copied: somebody's own, which may not be removed.
pub fn only_own_rows(table: &[u8], steps: &[u32]) -> Vec<u8> {
    let list: Vec<String> = steps.iter().map(u32::to_string).collect();
    let recorded = format!(
        ") OPERATOR(pg_catalog.=) (SELECT COALESCE(pg_catalog.sum(rows), 0) FROM {SCHEMA}.journal \
         WHERE steps OPERATOR(pg_catalog.&&) '{{{}}}'::pg_catalog.int4[]))::pg_catalog.int4 AS rows_are_of_this_restore;\n",
        list.join(",")
    );
    [
        b"SELECT 1 OPERATOR(pg_catalog./) ((SELECT pg_catalog.count(*) FROM ONLY ",
        table,
        recorded.as_bytes(),
    ]
    .concat()
}

/// Whether a step, or one entry of it, is recorded: asked when a connection broke while a transaction was being
/// committed, after its session was shut out.
pub fn has(connection: &Connection, step: u32, entry: Option<u32>) -> Result<bool> {
    let sql = match entry {
        Some(entry) => format!(
            "SELECT EXISTS (SELECT 1 FROM {SCHEMA}.entries WHERE entry OPERATOR(pg_catalog.=) {entry})"
        ),
        None => format!(
            "SELECT EXISTS (SELECT 1 FROM {SCHEMA}.journal WHERE steps OPERATOR(pg_catalog.@>) \
             '{{{step}}}'::pg_catalog.int4[])"
        ),
    };
    Ok(connection.query(sql.as_bytes())?.flag(0, 0))
}

/// All steps are done: say so durably. What was committed before is durable then, too.
pub fn all_done(connection: &Connection) -> Result<()> {
    transaction(connection, format!("UPDATE {SCHEMA}.run SET phase = 'restored';").as_bytes())
}

/// Remove the journal, durably.
pub fn end(connection: &Connection) -> Result<()> {
    transaction(connection, removal(&unseen(connection)?).as_bytes())
}

fn removal([unseen, seen]: &[String; 2]) -> String {
    format!(
        "SET LOCAL client_min_messages = error; {unseen} \
         DROP TABLE {SCHEMA}.run, {SCHEMA}.sessions, {SCHEMA}.journal, {SCHEMA}.entries, {SCHEMA}.without_rows, {SCHEMA}.emptied; \
         DROP SCHEMA {SCHEMA};{seen}"
    )
}

/// Remove the journal if nothing is recorded. A session that was lost may still commit something: the lock waits for it,
/// though not for long, and what comes later finds no journal.
pub fn end_if_empty(connection: &Connection) -> Result<bool> {
    let around = unseen(connection)?;
    let look = format!(
        "BEGIN; SET LOCAL lock_timeout = '3s'; LOCK TABLE {SCHEMA}.journal, {SCHEMA}.entries IN ACCESS EXCLUSIVE MODE; \
         SELECT NOT EXISTS (SELECT 1 FROM {SCHEMA}.journal) AND NOT EXISTS (SELECT 1 FROM {SCHEMA}.entries)"
    );
    let empty = connection.query(look.as_bytes()).map(|rows| rows.flag(0, 0));
    if !*empty.as_ref().unwrap_or(&false) {
        let _ = connection.run(b"ROLLBACK");
        return empty;
    }
    let sql = format!("SET LOCAL synchronous_commit = on; {} COMMIT;", removal(&around));
    connection.run(sql.as_bytes()).map_err(|failure| {
        let _ = connection.run(b"ROLLBACK");
        failure.error
    })?;
    Ok(true)
}

fn transaction(connection: &Connection, sql: &[u8]) -> Result<()> {
    let sql = [b"BEGIN; SET LOCAL synchronous_commit = on; ", sql, b" COMMIT;"].concat();
    connection.run(&sql).map_err(|failure| {
        let _ = connection.run(b"ROLLBACK");
        failure.error
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(sql: Vec<u8>) -> String {
        String::from_utf8(sql).unwrap()
    }

    #[test]
    fn steps_with_and_without_rows() {
        let session = Session::of(7, 3).unwrap();
        let sql = text(record(session, &[1, 2, 3], &[(2, 50)]));
        assert!(
            sql.contains("('{2}', 50, (SELECT") && sql.contains("('{1,3}', NULL, (SELECT"),
            "{sql}"
        );
        let sql = text(record(session, &[2], &[(2, 0)]));
        assert!(sql.contains("('{2}', 0, ") && !sql.contains("NULL"), "{sql}");
    }

    #[test]
    fn identities() {
        let identity = Identity {
            archive: "a".into(),
            version: "1".into(),
            plan: "p".into(),
            server: 15,
            system: "7".into(),
            database: 5,
        };
        let with = |change: fn(&mut Identity)| {
            let mut other = identity.clone();
            change(&mut other);
            check(&identity, &other).map_err(|e| e.message)
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert!(with(|i| i.archive.push('b')).unwrap_err().ends_with("archive"));
        assert!(with(|i| i.version.push('b')).unwrap_err().ends_with("version of firn"));
        assert!(with(|i| i.plan.push('b')).unwrap_err().ends_with("plan"));
        assert!(with(|i| i.server = 16).is_err());
        assert!(with(|i| i.database = 6).is_err());
        assert!(with(|i| i.system.push('1')).is_err());
        assert_eq!(with(|i| i.system.clear()), Ok(()));
    }
}
