//! The places in WAL of a table's pages, read from its files.

use super::super::session;
use super::lsn;
use crate::archive::manifest::TableBasis;
use crate::error::{Error, ErrorKind, Result};
use crate::hex;
use crate::pg::{quote_literal, Connection, Login};

/// Reads pages' headers on the server.
pub struct Pages {
    pub connection: Connection,
    page: u64,
    segment: u64,
}

/// Why pages cannot be read.
pub type Unread = Error;

/// Bytes of a page's header up to what tells its size.
const HEADER: usize = 20;
/// The version of the pages' layout, PostgreSQL 8.3 to 18.
const LAYOUT: u16 = 4;
/// Pages asked for at once: 20 bytes each.
const AT_ONCE: u64 = 16_384;

impl Pages {
    /// The inner error: the role may not read them.
    pub fn open(login: &Login) -> Result<Result<Pages, Unread>> {
        let connection = session::connect(login)?;
        let rows = connection.query(
            b"SELECT pg_catalog.current_setting('block_size'), \
              (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'segment_size'), \
              pg_catalog.has_function_privilege('pg_catalog.pg_read_binary_file(pg_catalog.text, pg_catalog.int8, pg_catalog.int8, pg_catalog.bool)', 'EXECUTE')",
        )?;
        let (Some(page), Some(segment)) = (rows.number(0, 0), rows.number(0, 1)) else {
            return Err(Error::new(
                ErrorKind::Internal,
                "the server does not tell the size of its pages",
            ));
        };
        Ok(match rows.flag(0, 2) {
            true => Ok(Pages { connection, page, segment }),
            false => Err(Error::new(
                ErrorKind::Statement,
                "permission denied for function pg_read_binary_file",
            )),
        })
    }

    /// Sees to it that all that is visible by now is in the files: pages in memory may be newer. The inner error: the role may not.
    pub fn settle(&self) -> Result<Result<(), Unread>> {
        match self.connection.run(b"CHECKPOINT") {
            Ok(_) => Ok(Ok(())),
            Err(failure) if failure.error.sqlstate.as_deref() == Some("42501") => {
                Ok(Err(failure.error))
            }
            Err(failure) => Err(failure.error),
        }
    }

    /// Whether no page of a table, or of its TOAST relation, was changed after the place in WAL that is noted.
    pub fn unchanged(&self, table: &TableBasis) -> Result<bool> {
        let Some(limit) = lsn(&table.lsn) else { return Ok(false) };
        Ok(self.file(&table.file, table.pages, limit)?
            && match &table.toast_file {
                Some(file) => self.file(file, table.toast_pages, limit)?,
                None => true,
            })
    }

    /// From the end, as most tables grow there.
    fn file(&self, path: &str, pages: u64, limit: u64) -> Result<bool> {
        let mut end = pages;
        while end > 0 {
            let segment = (end - 1) / self.segment;
            let begin = (segment * self.segment).max(end.saturating_sub(AT_ONCE));
            let name = match segment {
                0 => path.to_string(),
                n => format!("{path}.{n}"),
            };
            let (name, page) = (quote_literal(name.as_bytes()), self.page);
            let (first, last) = (begin - segment * self.segment, end - 1 - segment * self.segment);
            let sql = [
                b"SELECT pg_catalog.encode(pg_catalog.string_agg(pg_catalog.pg_read_binary_file(",
                &name[..],
                format!(
                    ", n * {page}, {HEADER}, true), ''::pg_catalog.bytea), 'hex') \
                     FROM pg_catalog.generate_series({first}::pg_catalog.int8, {last}::pg_catalog.int8) n"
                )
                .as_bytes(),
            ]
            .concat();
            let rows = self.connection.query(&sql)?;
            let read = rows.get(0, 0).and_then(hex::decode).unwrap_or_default();
            if read.len() as u64 != (end - begin) * HEADER as u64 {
                return Ok(false);
            }
            if !read.chunks(HEADER).all(|header| is_before(header, self.page, limit)) {
                return Ok(false);
            }
            end = begin;
        }
        Ok(true)
    }
}

/// Whether a page was changed last at or before a place in WAL.
///
/// The page's size and layout tell in which order the server's machine writes bytes. A page that has never been written to WAL
/// (made while `wal_level` was minimal), or never at all, says nothing: what was there before may have been cut off.
fn is_before(header: &[u8], page: u64, limit: u64) -> bool {
    let word =
        |at: usize| header.get(at..at + 4).and_then(|b| b.try_into().ok()).unwrap_or_default();
    let half =
        |at: usize| header.get(at..at + 2).and_then(|b| b.try_into().ok()).unwrap_or_default();
    let Ok(layout) = u16::try_from(page | u64::from(LAYOUT)) else { return false };
    let read: fn([u8; 4]) -> u32 = if u16::from_le_bytes(half(18)) == layout {
        u32::from_le_bytes
    } else if u16::from_be_bytes(half(18)) == layout {
        u32::from_be_bytes
    } else {
        return false;
    };
    let place = u64::from(read(word(0))) << 32 | u64::from(read(word(4)));
    place != 0 && place <= limit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(high: [u8; 4], low: [u8; 4], layout: [u8; 2]) -> Vec<u8> {
        [&high[..], &low, &[0; 10], &layout].concat()
    }

    #[test]
    fn places_of_pages() {
        let little = header([2, 0, 0, 0], [0x10, 0, 0, 0x80], [4, 0x20]);
        let big = header([0, 0, 0, 2], [0x80, 0, 0, 0x10], [0x20, 4]);
        for page in [&little, &big] {
            assert!(is_before(page, 8192, 0x2_8000_0010));
            assert!(!is_before(page, 8192, 0x2_8000_000f));
            assert!(!is_before(page, 4096, u64::MAX));
            assert!(!is_before(&page[..19], 8192, u64::MAX));
        }
        // Never written, without WAL, of another layout, not there.
        for other in [
            vec![0; 20],
            header([0; 4], [0; 4], [4, 0x20]),
            header([1; 4], [1; 4], [5, 0x20]),
            vec![],
        ] {
            assert!(!is_before(&other, 8192, u64::MAX));
        }
    }
}
