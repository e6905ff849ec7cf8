//! How a table's data ends: the end-of-data marker of COPY's text format, and what comes after the last INSERT.
//!
//! `pg_dump` ends each table's data with a line `\.` and two empty lines. It is the only sign in uncompressed data
//! that nothing is missing at the end, so it must be there; and it is taken off, since COPY's own protocol says
//! where data ends. INSERT statements, be they none, are followed by two empty lines.

use super::fault::damaged;
use std::io::{self, Read};

/// Bytes held back: the marker, the line end before it, and some empty lines.
const HELD: usize = 16;

/// Bytes of the buffer.
const SIZE: usize = 64 << 10;

/// The rows of a COPY's text, without the end-of-data marker; an error at the end if it is missing.
pub(super) struct Rows<R> {
    inner: R,
    /// What was read and not given out yet is what lies between `used` and `filled`. At the input's end, it has passed the
    /// check. The buffer is not cleared for what is read next: uncompressed archives come in chunks of a row each.
    buffer: Box<[u8]>,
    used: usize,
    filled: usize,
    ended: bool,
}

impl<R: Read> Rows<R> {
    pub fn new(inner: R) -> Self {
        Rows { inner, buffer: vec![0; SIZE].into(), used: 0, filled: 0, ended: false }
    }

    /// Reads on until the buffer is half full at least, or the input ends.
    fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.used..self.filled, 0);
        self.filled -= self.used;
        self.used = 0;
        while self.filled < SIZE / 2 {
            let read = self.inner.read(&mut self.buffer[self.filled..])?;
            self.filled += read;
            if read == 0 {
                self.ended = true;
                let rows = rows_before_marker(&self.buffer[..self.filled]);
                self.filled = rows.unwrap_or(0);
                return rows.map(|_| ()).ok_or_else(|| damaged("unexpected end of file"));
            }
        }
        Ok(())
    }
}

/// How much of the last bytes of a COPY's text comes before its marker; `None` without one.
///
/// `tail` is all of the text, or more than the marker and its empty lines take.
fn rows_before_marker(tail: &[u8]) -> Option<usize> {
    let text = tail.len() - tail.iter().rev().take_while(|&&c| c == b'\n').count();
    if text == tail.len() {
        return None;
    }
    let rows = tail[..text].strip_suffix(b"\\.")?;
    (rows.is_empty() || rows.ends_with(b"\n")).then_some(rows.len())
}

impl<R: Read> Read for Rows<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let held = |ended| if ended { 0 } else { HELD };
        if !self.ended && self.filled - self.used <= HELD {
            self.fill()?;
        }
        let ready = (self.filled - self.used).saturating_sub(held(self.ended));
        let n = ready.min(out.len());
        out[..n].copy_from_slice(&self.buffer[self.used..self.used + n]);
        self.used += n;
        Ok(n)
    }
}

/// A table's INSERT statements; an error at the end if they end otherwise than `pg_dump` lets them.
pub(super) struct Statements<R> {
    inner: R,
    /// The last bytes, as many as there are.
    tail: Vec<u8>,
}

/// Line ends after a statement's semicolon: its own, and those of two empty lines.
const AFTER_STATEMENT: &[u8] = b";\n\n\n";

impl<R: Read> Statements<R> {
    pub fn new(inner: R) -> Self {
        Statements { inner, tail: Vec::new() }
    }
}

impl<R: Read> Read for Statements<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(out)?;
        if read == 0 && !out.is_empty() && self.tail != AFTER_STATEMENT && self.tail != b"\n\n" {
            return Err(damaged("unexpected end of file"));
        }
        let new = &out[..read];
        self.tail.extend_from_slice(&new[read.saturating_sub(AFTER_STATEMENT.len())..]);
        let old = self.tail.len().saturating_sub(AFTER_STATEMENT.len());
        self.tail.drain(..old);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Gives a few bytes at a time.
    struct Drops<'a>(&'a [u8], usize);

    impl Read for Drops<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(self.0.len()).min(out.len());
            out[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    fn rows(text: &[u8], step: usize) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        Rows::new(Drops(text, step)).read_to_end(&mut out).ok().map(|_| out)
    }

    #[test]
    fn the_marker_goes_and_must_be_there() {
        for step in [1, 2, 7, 100] {
            assert_eq!(rows(b"\\.\n\n\n", step).unwrap(), b"");
            assert_eq!(rows(b"1\ta\n\\.\n\n\n", step).unwrap(), b"1\ta\n");
            assert_eq!(rows(b"\n\n\n\\.\n", step).unwrap(), b"\n\n\n");
            for bad in [&b""[..], b"1\n", b"1\\.\n\n\n", b"1\n\\.", b"1\n\\\n\n", b"\n\n\n"] {
                assert_eq!(rows(bad, step), None, "{bad:?}");
            }
        }
    }

    #[test]
    fn statements_end_with_empty_lines() {
        for step in [1, 2, 7, 100] {
            let read = |text: &[u8]| {
                let mut out = Vec::new();
                Statements::new(Drops(text, step)).read_to_end(&mut out).ok().map(|_| out)
            };
            let two = b"INSERT INTO t VALUES (1);\nINSERT INTO t VALUES (';\n\n\n');\n\n\n";
            assert_eq!(read(two).unwrap(), two);
            assert_eq!(read(b"\n\n").unwrap(), b"\n\n");
            for cut in (0..two.len()).filter(|cut| !two[..*cut].ends_with(AFTER_STATEMENT)) {
                assert_eq!(read(&two[..cut]), None, "{cut}");
            }
            assert_eq!(read(b"\n\n\n"), None);
        }
    }

    proptest! {
        #[test]
        fn rows_come_back(lines in prop::collection::vec("[a-z\t]{0,30}", 0..50), step in 1usize..90) {
            let mut text: String = lines.iter().map(|l| format!("{l}\n")).collect();
            let whole = text.clone();
            text.push_str("\\.\n\n\n");
            prop_assert_eq!(rows(text.as_bytes(), step).unwrap(), whole.as_bytes());
            for cut in 0..text.len() - 2 {
                prop_assert!(rows(&text.as_bytes()[..cut], step).is_none());
            }
        }
    }
}
