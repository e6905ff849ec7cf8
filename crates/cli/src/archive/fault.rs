//! Errors on their way through `std::io::Read`, and what is said when an archive is damaged.

use crate::error::{of_io, Error, ErrorKind, Result};
use std::io;

/// An error on its way through a reader; [`of_io`] gives it back.
pub(super) fn to_io(e: Error) -> io::Error {
    io::Error::other(e)
}

/// Bytes that make no sense, on their way through a reader.
pub(super) fn damaged(message: impl Into<String>) -> io::Error {
    to_io(Error::archive(message))
}

/// The end of the input where more should follow, on its way through a reader. Not the system's error of that
/// kind, which some decoders take for an end in good order.
pub(super) fn cut_off() -> io::Error {
    damaged("unexpected end of file")
}

pub(super) const INCOMPLETE: &str =
    "The archive is damaged or incomplete: copy it again from where it was made, or make it again.";

/// Says what was being read: `could not read …: reason`, with what is known of the place as DETAIL. Whoever was
/// closest to the fault said it best: what is said already stays.
pub(super) fn while_reading(e: Error, what: &str, detail: &str) -> Error {
    let message = match e.message.starts_with("could not ") {
        true => e.message,
        false => format!("could not read {what}: {}", e.message),
    };
    let hint = match e.kind {
        ErrorKind::Archive => e.hint.or_else(|| Some(INCOMPLETE.to_string())),
        _ => e.hint,
    };
    let detail = e.detail.or_else(|| Some(detail.to_string()));
    Error { message, detail, hint, ..e }
}

/// A reader whose errors say what was being read.
pub(super) struct Explained<R> {
    pub inner: R,
    /// As in `could not read …`.
    pub what: String,
    pub detail: String,
    /// A stream that failed goes on failing: nobody may take what follows for the rest of it.
    pub failed: Option<Error>,
}

impl<R: io::Read> Explained<R> {
    pub fn new(inner: R, what: String, detail: String) -> Self {
        Explained { inner, what, detail, failed: None }
    }
}

impl<R: io::Read> io::Read for Explained<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Some(e) = &self.failed {
            return Err(to_io(e.clone()));
        }
        loop {
            match self.inner.read(out) {
                Ok(n) => return Ok(n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    let e = while_reading(of_io(e), &self.what, &self.detail);
                    self.failed = Some(e.clone());
                    return Err(to_io(e));
                }
            }
        }
    }
}

/// Adds to an error what was being read.
pub(super) trait While<T> {
    fn while_reading(self, what: &str, detail: &str) -> Result<T>;
}

impl<T> While<T> for Result<T> {
    fn while_reading(self, what: &str, detail: &str) -> Result<T> {
        self.map_err(|e| while_reading(e, what, detail))
    }
}
