//! What the server answers.

use crate::error::{Error, ErrorKind};
use std::ffi::{c_char, c_int, CStr};

/// A result of libpq, freed when dropped.
pub(super) struct Raw(pub(super) *mut pq_sys::PGresult);

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: the pointer came from libpq and is freed once.
        unsafe { pq_sys::PQclear(self.0) }
    }
}

/// Text that libpq owns, as bytes.
///
/// # Safety
/// `text` is null or a C string that lives as long as `'a`.
pub(super) unsafe fn bytes<'a>(text: *const c_char) -> &'a [u8] {
    match text.is_null() {
        true => &[],
        // SAFETY: by the caller's promise.
        false => unsafe { CStr::from_ptr(text) }.to_bytes(),
    }
}

pub(super) fn text(text: &[u8]) -> String {
    String::from_utf8_lossy(text).trim_end().to_string()
}

impl Raw {
    pub(super) fn status(&self) -> pq_sys::ExecStatusType {
        // SAFETY: a live result (null is allowed by libpq).
        unsafe { pq_sys::PQresultStatus(self.0) }
    }

    fn field(&self, code: u8) -> Option<String> {
        self.field_bytes(code).map(text)
    }

    fn field_bytes(&self, code: u8) -> Option<&[u8]> {
        // SAFETY: a live result; the text lives as long as it.
        let found = unsafe { pq_sys::PQresultErrorField(self.0, c_int::from(code)) };
        // SAFETY: as above.
        (!found.is_null()).then(|| unsafe { bytes(found) })
    }

    /// The rows that the command touched, for COPY and DML.
    pub(super) fn rows_touched(&self) -> u64 {
        // SAFETY: a live result; the text lives as long as it.
        text(unsafe { bytes(pq_sys::PQcmdTuples(self.0)) }).parse().unwrap_or(0)
    }

    pub(super) fn error(&self) -> Error {
        // SAFETY: a live result; the text lives as long as it.
        let whole = || text(unsafe { bytes(pq_sys::PQresultErrorMessage(self.0)) });
        let sqlstate = self.field(b'C');
        let kind = match sqlstate.as_deref() {
            None => ErrorKind::Connection,
            // Connection exceptions, admin shutdown, crash shutdown, cannot connect now, idle timeouts. As a mere ERROR
            // they are about another connection, which a statement wanted: a subscription's, a foreign server's.
            Some(s) if s.starts_with("08") || (s.starts_with("57P") && s != "57P04") => {
                match self.field(b'V').as_deref() {
                    Some("ERROR") => ErrorKind::Statement,
                    _ => ErrorKind::Connection,
                }
            }
            Some(_) => ErrorKind::Statement,
        };
        Error {
            kind,
            message: self.field(b'M').unwrap_or_else(whole),
            detail: self.field(b'D'),
            hint: self.field(b'H'),
            sqlstate,
            position: self.field(b'P').and_then(|p| p.parse().ok()),
            context: self.field(b'W'),
            constraint: self
                .field_bytes(b's')
                .zip(self.field_bytes(b'n'))
                .map(|(schema, name)| Box::new((schema.to_vec(), name.to_vec()))),
            of_table: self.field_bytes(b't').is_some(),
        }
    }

    pub(super) fn rows(&self) -> Rows {
        // SAFETY: a live result; rows and columns are within its bounds, values live as long as it.
        unsafe {
            let (rows, columns) = (pq_sys::PQntuples(self.0), pq_sys::PQnfields(self.0));
            let cell = |row, column| {
                if pq_sys::PQgetisnull(self.0, row, column) == 1 {
                    return None;
                }
                let length = usize::try_from(pq_sys::PQgetlength(self.0, row, column)).ok()?;
                let value = pq_sys::PQgetvalue(self.0, row, column);
                Some(std::slice::from_raw_parts(value.cast::<u8>(), length).to_vec())
            };
            let rows = (0..rows).map(|r| (0..columns).map(|c| cell(r, c)).collect()).collect();
            Rows { rows, touched: self.rows_touched() }
        }
    }
}

/// The rows of a statement in text form, and how many rows it touched.
#[derive(Debug, Default)]
pub struct Rows {
    rows: Vec<Vec<Option<Vec<u8>>>>,
    pub touched: u64,
}

impl Rows {
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A value; `None` for NULL and for what is not there.
    pub fn get(&self, row: usize, column: usize) -> Option<&[u8]> {
        self.rows.get(row)?.get(column)?.as_deref()
    }

    /// A value as text; the empty string for NULL.
    pub fn text(&self, row: usize, column: usize) -> String {
        String::from_utf8_lossy(self.get(row, column).unwrap_or_default()).into_owned()
    }

    /// A value as a number; `None` if it is none.
    pub fn number<T: std::str::FromStr>(&self, row: usize, column: usize) -> Option<T> {
        std::str::from_utf8(self.get(row, column)?).ok()?.parse().ok()
    }

    /// A value of type boolean.
    pub fn flag(&self, row: usize, column: usize) -> bool {
        self.get(row, column) == Some(b"t")
    }
}

/// A failure among several statements sent at once: those before the one at `index` succeeded.
#[derive(Debug)]
pub struct Failure {
    pub index: usize,
    pub error: Error,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        failure.error
    }
}
