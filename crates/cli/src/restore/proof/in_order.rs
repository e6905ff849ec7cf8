//! The same for what was restored on one connection, in the archive's order: with neither a plan nor a journal, by what this program
//! remembers.

use super::{money, of};
use crate::archive::Archive;
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{quote_ident, Connection, Rows};
use crate::plan::select::Selection;
use crate::plan::{Plan, Step, Work};
use crate::report::{Event, Watch};
use crate::restore::journal::Done;
use crate::restore::{Job, Options, Terms};
use crate::stop::Stop;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What was restored.
pub struct InOrder<'a> {
    pub archive: &'a Archive,
    pub options: &'a Options,
    pub terms: &'a Terms,
    pub selection: &'a Selection,
    /// Rows that were copied, by the place of their entry.
    pub rows: &'a BTreeMap<u32, u64>,
    /// Bytes of large objects that were written, likewise.
    pub bytes: &'a BTreeMap<u32, u64>,
    /// The transaction that did it all is open: nobody else sees it yet, and no question may spoil it.
    pub open: bool,
    pub watch: &'a dyn Watch,
    pub stop: &'a Stop,
}

/// As of a session that has just begun: whoever the statements have become, and wherever they looked for names. `local`: until the
/// transaction, or a part of it, is rolled back.
fn settings(connection: &Connection, options: &Options, local: bool) -> Vec<u8> {
    let scope = if local { "LOCAL " } else { "" };
    let mut sql =
        format!("SET {scope}SESSION AUTHORIZATION DEFAULT; SET {scope}search_path = '';\n");
    sql += &connection.restriction(local);
    let mut sql = sql.into_bytes();
    if let Some(role) = &options.login.role {
        let role = quote_ident(role.as_bytes());
        sql.extend([b"SET ", scope.as_bytes(), b"ROLE ", &role, b";\n"].concat());
    }
    sql
}

/// Compare. An error of kind `Verify` if anything differs; questions that cannot be answered are told, and prove nothing.
pub fn compare(restored: &InOrder, connection: &Connection) -> Result<()> {
    let InOrder { archive, options, rows, bytes, open, watch, stop, .. } = *restored;
    let of_rows = rows.iter().map(|done| (Work::Data(0, 1), done));
    let done = of_rows.chain(bytes.iter().map(|done| (Work::LargeObjects, done)));
    let (mut plan, mut recorded) = (Plan::default(), Done::default());
    for (number, (work, (place, copied))) in (0..).zip(done) {
        plan.steps.push(Step {
            work,
            entries: number..number + 1,
            locks: 0..0,
            lock_count: 0,
            cost: 0,
            rank: 0,
        });
        plan.covered.push(*place);
        recorded.steps.push(number);
        recorded.rows.insert(number, *copied);
    }
    let job = Job {
        archive,
        // What is not committed is seen by this connection alone.
        options: &Options { jobs: 1, ..options.clone() },
        dbname: None,
        // What crosses redirected schemas is asked elsewhere.
        terms: Terms { redirects: Default::default(), ..restored.terms.clone() },
        selection: restored.selection.clone(),
        plan,
        left_out: Arc::default(),
        open,
        watch,
        stop,
    };
    let ask = || {
        set(&job, connection, &settings(connection, options, open))?;
        of(&job, connection, &recorded)?;
        match money::may_be(&job) {
            true => money::compare(&job, connection),
            false => Ok(()),
        }
    };
    let compared = match open {
        true => apart(connection, ask),
        false => ask(),
    };
    compared.or_else(|error| match error.kind {
        _ if stop.is_set() => Err(cancelled(open)),
        ErrorKind::Verify if open => {
            Err(error.hint("Nothing was changed. Without -1 what differs can be looked at."))
        }
        ErrorKind::Verify => Err(error.hint(
            "What was restored stays. If others have worked in the database meanwhile, that may be why.",
        )),
        ErrorKind::Statement => {
            let note = format!("warning: the result could not be compared: {}", error.message);
            watch.event(&Event::Note(&note));
            Ok(())
        }
        _ if open => Err(error),
        _ => Err(error.hint("All is restored, but not compared.")),
    })
}

fn cancelled(open: bool) -> Error {
    let error = Error::new(ErrorKind::Cancelled, "canceled by user");
    match open {
        true => error,
        false => error.hint("All is restored, but not compared."),
    }
}

/// What a question came to.
pub(super) enum Asked<T> {
    Told(T),
    /// Who restores may not read what it is about, in the server's words.
    Refused(String),
}

/// Ask something that may be refused: all else is asked nevertheless, also within a transaction.
pub(super) fn ask(job: &Job, connection: &Connection, sql: &[u8]) -> Result<Asked<Rows>> {
    match question(job, connection, || connection.query(sql)) {
        Err(e) if e.sqlstate.as_deref() == Some("42501") => Ok(Asked::Refused(e.message)),
        found => Ok(Asked::Told(found?)),
    }
}

/// Ask something that may fail: the transaction goes on. Only then is anything rolled back: each end of a part of a transaction has the
/// server walk through all relations that it knows, after a large restore hundreds of thousands.
pub(super) fn question<T>(
    job: &Job,
    connection: &Connection,
    body: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let asked = body();
    if asked.is_err() {
        let_go(job, connection)?;
    }
    asked
}

/// Back to where the questions began: what they have locked is free again.
pub(super) fn let_go(job: &Job, connection: &Connection) -> Result<()> {
    if job.open && connection.is_alive() {
        connection.run(b"ROLLBACK TO SAVEPOINT question")?;
    }
    Ok(())
}

/// Settings for the questions to come, those behind one that fails included.
pub(super) fn set(job: &Job, connection: &Connection, sql: &[u8]) -> Result<()> {
    connection.run(sql)?;
    if job.open {
        connection.run(b"SAVEPOINT question")?;
    }
    Ok(())
}

/// Do what leaves nothing behind, neither settings nor, where it fails, a transaction that is of no use.
fn apart<T>(connection: &Connection, body: impl FnOnce() -> Result<T>) -> Result<T> {
    connection.run(b"SAVEPOINT comparison")?;
    let done = body();
    if connection.is_alive() {
        connection.run(b"ROLLBACK TO SAVEPOINT comparison; RELEASE SAVEPOINT comparison")?;
    }
    done
}
