//! Sessions of a restore, and how a lost one is shut out.
//!
//! A client that has lost its connection does not know whether the server still works on what it sent: a COMMIT may be
//! on its way. Nothing may be concluded from the journal before the session can no longer commit. So each connection that
//! changes the target has
//! - a row in `sessions`, without which its record of what it did is refused (the column is NOT NULL), and which a
//!   transaction that has recorded something holds until its end. Who deletes the row has waited for such a
//!   transaction, and none comes later;
//! - an advisory lock with its number, by which others find its server process to end it: what it does may take hours, and
//!   holds locks.
//!
//! The program that works has an advisory lock of its own, and an epoch in `run`: who takes over counts it up, and no
//! connection of an earlier epoch can enter a session.

use crate::error::{Error, ErrorKind, Result};
use crate::pg::Connection;
use crate::plan::render::SCHEMA;
use std::time::{Duration, Instant};

/// The first key of all advisory locks of a restore: "firn" in ASCII. The second is [`PROGRAM`], or a session's number.
const LOCK: &str = "1718186606";
/// The first key of locks on names of databases that are created; the second is the name's hash. They are taken in the
/// database that the creating connection is in, until that ends, and looked for in all.
const NAME_LOCK: &str = "1718186607";
/// Held by the program that works, for as long as it does.
const PROGRAM: &str = "1";
/// Sessions of one epoch. Numbers below are no sessions.
const SESSIONS: i32 = 10_000;

/// How long a lock may stay with a program that was killed, or with one that has not asked for anything since.
const GONE: Duration = Duration::from_secs(3);

/// A connection that may change the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session(i32);

impl Session {
    /// The `n`th session of an epoch, which count from 1.
    pub fn of(epoch: i32, n: i32) -> Result<Session> {
        let number = epoch.checked_mul(SESSIONS).and_then(|e| e.checked_add(n));
        match number {
            Some(number) if epoch > 0 && (0..SESSIONS).contains(&n) => Ok(Session(number)),
            _ => Err(Error::new(ErrorKind::Connection, "too many connections were lost")
                .hint("Run the same command with --resume to go on.")),
        }
    }

    /// The epoch of a session's number.
    pub fn epoch(number: i32) -> i32 {
        number / SESSIONS
    }

    pub fn number(self) -> i32 {
        self.0
    }
}

/// Be the only restore of this database: fails if another works on it. `before` is the server process of the
/// connection that this program had, and lost.
pub fn be_alone(
    connection: &Connection,
    before: Option<i32>,
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    let begun = Instant::now();
    let take = format!("SELECT pg_catalog.pg_try_advisory_lock({LOCK}, {PROGRAM})");
    // The session of a program that was killed is gone a moment later.
    while !connection.query(take.as_bytes())?.flag(0, 0) {
        if let Some(pid) = before {
            // Its own, on a connection that the server believes in for longer than we do.
            end_holders(connection, &format!("objid = {PROGRAM} AND pid = {pid}"));
        }
        if stopped() {
            return Err(cancelled());
        }
        if begun.elapsed() >= GONE {
            return Err(Error::usage("another restore is working on the target database")
                .hint("Wait until it is finished, or stop it and use --resume (-1 and --transaction-size have none)."));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Holders of the lock of a name. A lock is of the database that its holder is in, but all see it.
fn namers(name: &[u8]) -> Vec<u8> {
    let sql = format!(
        "pg_catalog.pg_locks l WHERE l.locktype = 'advisory' AND l.classid = {NAME_LOCK} AND l.objsubid = 2 AND l.granted \
         AND l.pid <> pg_catalog.pg_backend_pid() AND l.objid = pg_catalog.hashtext("
    );
    [sql.as_bytes(), &crate::pg::quote_literal(name), b")::pg_catalog.oid"].concat()
}

/// Be the only restore that creates a database of this name, until the connection ends; false while another is. The server may
/// be about to for a program that was killed: whether the database is there is known when it has ended.
pub fn name_database(connection: &Connection, name: &[u8]) -> Result<bool> {
    let ask = |function: &str| {
        let sql = format!("SELECT pg_catalog.{function}({NAME_LOCK}, pg_catalog.hashtext(");
        let sql = [sql.as_bytes(), &crate::pg::quote_literal(name), b"))"].concat();
        Ok::<bool, Error>(connection.query(&sql)?.flag(0, 0))
    };
    if !ask("pg_try_advisory_lock")? {
        return Ok(false);
    }
    // Who is connected to another database has taken the lock there. Each takes his first and then looks for others'.
    let others = [b"SELECT EXISTS (SELECT FROM ", &namers(name)[..], b")"].concat();
    let alone = !connection.query(&others)?.flag(0, 0);
    if !alone {
        ask("pg_advisory_unlock")?;
    }
    Ok(alone)
}

/// End those who hold the lock of a name and do nothing: a program that makes or removes a database asks for one thing after the other,
/// so they have lost theirs, which the server may notice in hours only. Without the right to do so one waits until they end.
pub fn end_idle_namers(connection: &Connection, name: &[u8]) {
    let idle = format!(
        "SELECT pg_catalog.pg_terminate_backend(a.pid) FROM pg_catalog.pg_stat_activity a WHERE a.state = 'idle' \
         AND a.state_change < pg_catalog.now() - '{} s'::pg_catalog.interval AND EXISTS (SELECT FROM ",
        GONE.as_secs()
    );
    let sql = [idle.as_bytes(), &namers(name), b" AND l.pid = a.pid AND l.database = a.datid)"];
    let _ = connection.query(&sql.concat());
}

pub fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "canceled by user")
        .hint("Run the same command with --resume to go on.")
}

/// Locks of a restore of this database that others hold.
fn holders(condition: &str) -> String {
    format!(
        "FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_catalog.pg_database \
         WHERE datname = pg_catalog.current_database()) AND classid = {LOCK} AND objsubid = 2 AND {condition} AND granted \
         AND pid <> pg_catalog.pg_backend_pid()"
    )
}

/// End the sessions that hold such locks. Without the right to do so one waits until they end. It is asked for as who has
/// logged in, as they have: a role of `--role` is no member of that one. Both statements are one transaction.
fn end_holders(connection: &Connection, condition: &str) {
    let sql = format!(
        "SET LOCAL ROLE NONE; SELECT pg_catalog.pg_terminate_backend(pid) {}",
        holders(condition)
    );
    let _ = connection.query(sql.as_bytes());
}

/// Wait until nobody holds such a lock.
fn wait_for(connection: &Connection, condition: &str, stopped: &dyn Fn() -> bool) -> Result<()> {
    let there = format!("SELECT EXISTS (SELECT 1 {})", holders(condition));
    let mut pause = Duration::from_millis(2);
    while connection.query(there.as_bytes())?.flag(0, 0) {
        end_holders(connection, condition);
        if stopped() {
            return Err(cancelled());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(200));
    }
    Ok(())
}

/// Take a restore over: no session of before commits anything from now on, and none is left. Returns the new epoch.
pub fn take_over(connection: &Connection, stopped: &dyn Fn() -> bool) -> Result<i32> {
    let sql =
        format!("UPDATE {SCHEMA}.run SET epoch = epoch OPERATOR(pg_catalog.+) 1 RETURNING epoch");
    let epoch = connection.query(sql.as_bytes())?.number(0, 0).unwrap_or(0);
    wait_for(connection, &format!("objid >= {SESSIONS}::oid"), stopped)?;
    connection.run(format!("DELETE FROM {SCHEMA}.sessions").as_bytes())?;
    Ok(epoch)
}

/// Make sure that a session of this program, whose connection was lost, commits nothing from now on.
pub fn shut_out(
    connection: &Connection,
    session: Session,
    stopped: &dyn Fn() -> bool,
) -> Result<()> {
    let number = session.number();
    wait_for(connection, &format!("objid = {number}::oid"), stopped)?;
    let sql =
        format!("DELETE FROM {SCHEMA}.sessions WHERE session OPERATOR(pg_catalog.=) {number}");
    connection.run(sql.as_bytes())?;
    Ok(())
}

/// Enter a session: what a connection does before it changes anything. Fails when another program has taken over.
pub fn enter(connection: &Connection, epoch: i32, session: Session) -> Result<()> {
    let number = session.number();
    connection.run(format!("SELECT pg_catalog.pg_advisory_lock({LOCK}, {number})").as_bytes())?;
    let sql = format!(
        "INSERT INTO {SCHEMA}.sessions SELECT {number} FROM {SCHEMA}.run WHERE epoch OPERATOR(pg_catalog.=) {epoch} \
         FOR SHARE"
    );
    match connection.query(sql.as_bytes())?.touched {
        1 => Ok(()),
        _ => Err(Error::usage("another restore has taken over the target database")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_sessions() {
        assert_eq!(Session::of(1, 0).unwrap().number(), 10_000);
        assert_eq!(Session::of(3, 17).unwrap().number(), 30_017);
        assert!(Session::of(0, 1).is_err());
        assert!(Session::of(1, 10_000).is_err());
        assert!(Session::of(i32::MAX, 1).is_err());
    }
}
