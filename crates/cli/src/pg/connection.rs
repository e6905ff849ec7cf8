//! A connection, blocking; one thread uses it at a time.

use super::conninfo::Address;
use super::result::{bytes, text, Failure, Raw, Rows};
use crate::error::{Error, ErrorKind, Result};
use std::ffi::{c_char, c_int, CString};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, PoisonError};

/// What a connection is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// Queries of this program alone. They are about tables, and whoever owns one by then may have put something else in its place: a
    /// view, whose functions would run as the role that we are, or a foreign table, which would have the server connect to others
    /// as that role. As `pg_dump` has it both are refused, by servers that know the setting (from the minor releases of August 2024 on).
    OwnQueries,
    /// Statements of an archive as well, for which views are as good as tables. Own queries about tables of users go by
    /// [`Connection::ask`] there.
    Statements,
}

const RESTRICT: &str = "restrict_nonsystem_relation_kind";
/// The kinds that own queries are not about.
const REFUSED: &str = "view, foreign-table";

fn restriction(local: bool) -> String {
    let scope = if local { "LOCAL " } else { "" };
    format!("SET {scope}{RESTRICT} = '{REFUSED}';\n")
}

/// A connection to a server. Closed when dropped.
pub struct Connection {
    /// The server can be told which kinds of relations to refuse.
    restricts: bool,
    purpose: For,
    raw: *mut pq_sys::PGconn,
    /// What the server has told besides results. At a fixed address, which libpq knows.
    notices: Box<Mutex<Vec<String>>>,
}

// SAFETY: libpq allows a connection to be used by any thread, one at a time; `Connection` is not `Sync`.
unsafe impl Send for Connection {}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the pointer came from libpq and is finished once.
        unsafe { pq_sys::PQfinish(self.raw) }
    }
}

/// Asks the server to stop what a connection does. Any thread may use it.
pub struct Canceller {
    raw: *mut pq_sys::PGcancel,
}

// SAFETY: PQcancel only reads the structure.
unsafe impl Send for Canceller {}
// SAFETY: as above.
unsafe impl Sync for Canceller {}

impl Drop for Canceller {
    fn drop(&mut self) {
        // SAFETY: the pointer came from libpq and is freed once.
        unsafe { pq_sys::PQfreeCancel(self.raw) }
    }
}

impl Canceller {
    /// Sends the request. It may come too late: then nothing happens.
    pub fn cancel(&self) {
        let mut message: [c_char; 256] = [0; 256];
        // SAFETY: a live structure and a buffer of the length given.
        unsafe { pq_sys::PQcancel(self.raw, message.as_mut_ptr(), 256) };
    }
}

fn c_string(text: &[u8]) -> Result<CString> {
    CString::new(text).map_err(|_| {
        Error::new(ErrorKind::Archive, "a statement holds a zero byte")
            .detail(String::from_utf8_lossy(&text[..text.len().min(200)]).replace('\0', "\\0"))
    })
}

impl Connection {
    /// Connects. What is not given comes from the environment, service files and defaults.
    pub fn open(address: &Address, purpose: For) -> Result<Connection> {
        let mut connection = Connection::attempt(address)?;
        if !connection.is_alive() {
            return Err(Error::new(ErrorKind::Connection, connection.message()));
        }
        // The database's owner may have set a path on which his functions and operators come before PostgreSQL's. And archives are
        // written for who reads NULL in arrays as null, whatever the archive or the owner sets.
        connection.run(
            b"SELECT pg_catalog.set_config('search_path', '', false), pg_catalog.set_config('array_nulls', 'on', false)",
        )?;
        let set = match purpose {
            For::OwnQueries => restriction(false),
            For::Statements => format!("SHOW {RESTRICT}"),
        };
        connection.purpose = purpose;
        connection.restricts = connection.run(set.as_bytes()).is_ok();
        Ok(connection)
    }

    /// A setting after which own queries are not compiled, until the end or, `local`, until the transaction's: right after a restore the
    /// planner takes catalogs for far larger than they are, and compiling takes longer than the answer.
    pub fn not_compiled(&self, local: bool) -> &'static [u8] {
        match (self.server_version() >= 110_000, local) {
            (true, true) => b"SET LOCAL jit = off;\n",
            (true, false) => b"SET jit = off;\n",
            (false, _) => b"",
        }
    }

    /// Own queries have to say so.
    fn guards(&self) -> bool {
        self.restricts && self.purpose == For::Statements
    }

    /// A statement after which only own queries come, until the end or, `local`, until it is rolled back: that they are guarded.
    pub fn restriction(&self, local: bool) -> String {
        match self.restricts {
            true => restriction(local),
            false => String::new(),
        }
    }

    /// An own query, as text to be sent among others within a transaction.
    pub fn guarded(&self, sql: &[u8]) -> Vec<u8> {
        let [before, after] = match self.guards() {
            true => [restriction(true), format!("SET LOCAL {RESTRICT} = DEFAULT;\n")],
            false => [String::new(), String::new()],
        };
        [before.as_bytes(), sql, after.as_bytes()].concat()
    }

    /// An own query about users' tables on a connection that is there for statements as well.
    pub fn ask(&self, sql: &[u8]) -> Result<Rows> {
        let sql = self.guarded(&[sql, b";\n"].concat());
        let mut results = self.run(&sql)?;
        let at = usize::from(self.guards());
        Ok(if at < results.len() { results.swap_remove(at) } else { Rows::default() })
    }

    /// On a connection for own queries: do something for which only these kinds of relations are refused.
    pub fn refusing<T>(&self, kinds: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.restricts {
            return work();
        }
        self.run(format!("SET {RESTRICT} = '{kinds}'").as_bytes())?;
        let done = work();
        let back = self.run(restriction(false).as_bytes());
        // In a transaction that has failed that is rolled back with it.
        let done = done?;
        back?;
        Ok(done)
    }

    /// The server asks for a password that nobody has given.
    pub fn lacks_password(address: &Address) -> Result<bool> {
        let connection = Connection::attempt(address)?;
        // SAFETY: libpq's structure, connected or not.
        Ok(!connection.is_alive()
            && unsafe { pq_sys::PQconnectionNeedsPassword(connection.raw) } != 0)
    }

    /// A connection, or what is left of the attempt.
    fn attempt(address: &Address) -> Result<Connection> {
        let conninfo = c_conninfo(address)?;
        // SAFETY: a C string that outlives the call.
        let raw = unsafe { pq_sys::PQconnectdb(conninfo.as_ptr()) };
        if raw.is_null() {
            return Err(Error::new(ErrorKind::Connection, "out of memory"));
        }
        let connection =
            Connection { restricts: false, purpose: For::Statements, raw, notices: Box::default() };
        let notices: *const Mutex<Vec<String>> = &*connection.notices;
        // SAFETY: libpq's structure, connected or not; the function gets the address of the list, which lives until
        // after the connection is closed.
        unsafe {
            pq_sys::PQsetNoticeProcessor(raw, Some(keep_notice), notices.cast_mut().cast());
        }
        Ok(connection)
    }

    /// Whether a server would take such a connection: it answers, answers that it cannot yet (it starts, recovers or
    /// stops), or does not answer.
    pub fn ping(address: &Address) -> Result<Ping> {
        let conninfo = c_conninfo(address)?;
        // SAFETY: a C string that outlives the call.
        let answer = unsafe { pq_sys::PQping(conninfo.as_ptr()) };
        Ok(match answer {
            pq_sys::PGPing::PQPING_OK => Ping::Ready,
            pq_sys::PGPing::PQPING_REJECT => Ping::NotYet,
            _ => Ping::Silent,
        })
    }

    /// The server's notices and warnings since the last time, as libpq words them.
    pub fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn message(&self) -> String {
        // SAFETY: a live connection; the text is copied at once.
        text(unsafe { bytes(pq_sys::PQerrorMessage(self.raw)) })
    }

    fn broken(&self) -> Error {
        Error::new(ErrorKind::Connection, self.message())
    }

    /// The connection can still be used.
    pub fn is_alive(&self) -> bool {
        // SAFETY: a live connection.
        unsafe { pq_sys::PQstatus(self.raw) == pq_sys::ConnStatusType::CONNECTION_OK }
    }

    /// The server's version as a number, e.g. 150020.
    pub fn server_version(&self) -> u32 {
        // SAFETY: a live connection.
        u32::try_from(unsafe { pq_sys::PQserverVersion(self.raw) }).unwrap_or(0)
    }

    /// The server process's id.
    pub fn backend_pid(&self) -> i32 {
        // SAFETY: a live connection.
        unsafe { pq_sys::PQbackendPID(self.raw) }
    }

    /// The name of the database connected to.
    pub fn database(&self) -> String {
        // SAFETY: a live connection; the text is copied at once.
        text(unsafe { bytes(pq_sys::PQdb(self.raw)) })
    }

    /// A handle by which others may cancel what this connection does.
    pub fn canceller(&self) -> Canceller {
        // SAFETY: a live connection.
        Canceller { raw: unsafe { pq_sys::PQgetCancel(self.raw) } }
    }

    /// Send one or more statements in one message and wait for all of them. Returns one result for each.
    ///
    /// Without transaction commands among them they are one transaction.
    pub fn run(&self, sql: &[u8]) -> Result<Vec<Rows>, Failure> {
        let failure = |index, error| Failure { index, error };
        let sql = c_string(sql).map_err(|e| failure(0, e))?;
        // SAFETY: a live connection and a C string.
        if unsafe { pq_sys::PQsendQuery(self.raw, sql.as_ptr()) } != 1 {
            return Err(failure(0, self.broken()));
        }
        let mut done = Vec::new();
        let mut failed = None;
        while let Some(result) = self.next_result() {
            use pq_sys::ExecStatusType::*;
            match result.status() {
                PGRES_COMMAND_OK | PGRES_EMPTY_QUERY | PGRES_TUPLES_OK => done.push(result.rows()),
                PGRES_COPY_IN => {
                    // A statement that was not expected to ask for data: refuse, and read the error.
                    self.end_copy(Some("unexpected COPY")).map_err(|e| failure(done.len(), e))?;
                }
                PGRES_COPY_OUT => while matches!(self.copy_row(), Ok(Some(_))) {},
                _ => {
                    failed.get_or_insert_with(|| failure(done.len(), result.error()));
                    // A lost connection may answer with errors for ever.
                    if !self.is_alive() {
                        break;
                    }
                }
            }
        }
        match failed {
            Some(failure) => Err(failure),
            None if !self.is_alive() => Err(failure(done.len(), self.broken())),
            None => Ok(done),
        }
    }

    /// Run one statement for its rows.
    pub fn query(&self, sql: &[u8]) -> Result<Rows> {
        Ok(self.run(sql)?.pop().unwrap_or_default())
    }

    fn next_result(&self) -> Option<Raw> {
        // SAFETY: a live connection.
        let raw = unsafe { pq_sys::PQgetResult(self.raw) };
        (!raw.is_null()).then_some(Raw(raw))
    }

    /// Start a `COPY … FROM STDIN` or `COPY … TO STDOUT`.
    pub fn start_copy(&self, sql: &[u8]) -> Result<()> {
        let sql = c_string(sql)?;
        // SAFETY: a live connection and a C string.
        if unsafe { pq_sys::PQsendQuery(self.raw, sql.as_ptr()) } != 1 {
            return Err(self.broken());
        }
        let mut failed = None;
        while let Some(result) = self.next_result() {
            use pq_sys::ExecStatusType::*;
            match result.status() {
                PGRES_COPY_IN | PGRES_COPY_OUT => return Ok(()),
                PGRES_FATAL_ERROR => {
                    failed.get_or_insert_with(|| result.error());
                    if !self.is_alive() {
                        break;
                    }
                }
                _ => {}
            }
        }
        Err(failed
            .unwrap_or_else(|| Error::new(ErrorKind::Archive, "a COPY statement copies nothing")))
    }

    /// Send data of a `COPY … FROM STDIN`. An error means that the connection is lost; what the server thinks
    /// of the data is told by [`Connection::end_copy`].
    pub fn put_copy(&self, data: &[u8]) -> Result<()> {
        for part in data.chunks(1 << 20) {
            let length = c_int::try_from(part.len()).unwrap_or(c_int::MAX);
            // SAFETY: a live connection and a buffer of the length given.
            if unsafe { pq_sys::PQputCopyData(self.raw, part.as_ptr().cast(), length) } != 1 {
                return Err(self.broken());
            }
        }
        Ok(())
    }

    /// End a `COPY … FROM STDIN`, or abort it with a message. Returns the number of rows copied; the error of
    /// an aborted COPY is the server's answer to it.
    pub fn finish_copy(&self) -> Result<u64> {
        self.end_copy(None)?;
        self.copy_result()
    }

    /// Abort a `COPY … FROM STDIN`.
    pub fn abort_copy(&self, why: &str) {
        if self.end_copy(Some(why)).is_ok() {
            let _ = self.copy_result();
        }
    }

    fn end_copy(&self, why: Option<&str>) -> Result<()> {
        let why = why.map(|w| c_string(w.as_bytes())).transpose()?;
        let pointer = why.as_ref().map_or(null(), |w| w.as_ptr());
        // SAFETY: a live connection and a C string or null.
        match unsafe { pq_sys::PQputCopyEnd(self.raw, pointer) } {
            1 => Ok(()),
            _ => Err(self.broken()),
        }
    }

    fn copy_result(&self) -> Result<u64> {
        let mut rows = Ok(0);
        while let Some(result) = self.next_result() {
            match result.status() {
                pq_sys::ExecStatusType::PGRES_COMMAND_OK => {
                    rows = rows.map(|_| result.rows_touched());
                }
                _ => {
                    if rows.is_ok() {
                        rows = Err(result.error());
                    }
                    if !self.is_alive() {
                        break;
                    }
                }
            }
        }
        rows
    }

    /// The next piece of a `COPY … TO STDOUT`: whole rows; `None` after the last. The number of rows is then told
    /// by [`Connection::copied`].
    pub fn copy_row(&self) -> Result<Option<CopyData>> {
        let mut data = null_mut();
        // SAFETY: a live connection and a place for a pointer.
        match unsafe { pq_sys::PQgetCopyData(self.raw, &mut data, 0) } {
            -1 => Ok(None),
            length => match usize::try_from(length) {
                Ok(length) if !data.is_null() => Ok(Some(CopyData { data, length })),
                _ => Err(self.broken()),
            },
        }
    }

    /// After the last piece of a `COPY … TO STDOUT`: the number of rows, or the error that ended it.
    pub fn copied(&self) -> Result<u64> {
        self.copy_result()
    }
}

/// A piece of copied data in libpq's memory.
pub struct CopyData {
    data: *mut c_char,
    length: usize,
}

impl std::ops::Deref for CopyData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: libpq gave so many bytes, which live until they are freed.
        unsafe { std::slice::from_raw_parts(self.data.cast(), self.length) }
    }
}

impl Drop for CopyData {
    fn drop(&mut self) {
        // SAFETY: the pointer came from libpq and is freed once.
        unsafe { pq_sys::PQfreemem(self.data.cast()) }
    }
}

/// What a server says to the question whether it takes connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ping {
    Ready,
    /// It starts, recovers or stops.
    NotYet,
    /// It does not answer, or the question could not be asked.
    Silent,
}

fn c_conninfo(address: &Address) -> Result<CString> {
    let text = address.conninfo(|_| true);
    CString::new(text).map_err(|_| Error::usage("a connection's parameter holds a zero byte"))
}

/// Notices that are kept until somebody asks; a server that says more says it again.
const NOTICES: usize = 1000;

extern "C" fn keep_notice(list: *mut std::ffi::c_void, message: *const c_char) {
    // SAFETY: the address was given with the function, and the list lives as long as the connection.
    let list = unsafe { &*list.cast::<Mutex<Vec<String>>>() };
    // SAFETY: libpq gives a C string, which is copied at once.
    let message = text(unsafe { bytes(message) });
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    if list.len() < NOTICES {
        list.push(message);
    }
}
