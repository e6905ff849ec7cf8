//! Rows and large objects on their way to the server.

use super::pieces::{stopped, Pieces, BLOCK};
use crate::archive::{read_error, Archive};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{quote_literal, Connection, Rows};
use crate::plan::text::{inserted_rows, split_statement, take_name};
use crate::stop::Stop;
use std::collections::HashSet;
use std::io::Read;

/// What was copied.
#[derive(Clone, Debug, Default)]
pub struct Copied {
    pub rows: u64,
    /// Rows that were sent: COPY's lines; of INSERT statements those that stand in them, where that can be read.
    pub sent: u64,
    /// Bytes of text.
    pub bytes: u64,
    pub statements: u64,
    /// Large objects whose contents were not written.
    pub left_out: u64,
}

impl Copied {
    pub fn add(&mut self, more: &Copied) {
        self.rows += more.rows;
        self.sent += more.sent;
        self.bytes += more.bytes;
        self.statements += more.statements;
        self.left_out += more.left_out;
    }
}

/// What a copy looks at and tells.
pub struct Flow<'a> {
    pub stop: &'a Stop,
    /// Told of bytes as they are sent.
    pub moved: &'a dyn Fn(u64),
}

/// How a table's rows are copied; by default all of them, as the archive has it.
pub struct How<'a> {
    /// A part of them: which, of how many.
    pub part: (u16, u16),
    /// Run nothing for a table without rows.
    pub skip_empty: bool,
    /// The table is of this restore and has no rows.
    pub freeze: bool,
    /// Copy into another table than the archive's statement does.
    pub into: Option<&'a [u8]>,
}

impl Default for How<'_> {
    fn default() -> Self {
        How { part: (0, 1), skip_empty: false, freeze: false, into: None }
    }
}

/// Copy a table's rows. The transaction is open.
pub fn copy_rows(
    connection: &Connection,
    archive: &Archive,
    place: usize,
    how: &How,
    flow: &Flow,
) -> Result<Copied> {
    let How { part, skip_empty, freeze, into } = *how;
    let entry = archive.toc().entry(place);
    let elsewhere = into.and_then(|table| copy_into(entry.copy_stmt, table));
    let statement = elsewhere.as_deref().unwrap_or(entry.copy_stmt);
    if !entry.has_data {
        return Ok(Copied::default());
    }
    let mut source = archive.data(place)?;
    if entry.copy_stmt.is_empty() {
        return run_inserts(connection, &mut source, flow);
    }
    let mut pieces = Pieces::of(source, part)?;
    let mut begun = false;
    let mut copied = Copied::default();
    // The last line may lack its end.
    let mut open = false;
    loop {
        let piece = match pieces.next(|| flow.stop.is_set()) {
            Ok(Some(piece)) => piece,
            Ok(None) => break,
            Err(e) => {
                if begun {
                    connection.abort_copy(match e.kind {
                        ErrorKind::Cancelled => "canceled by user",
                        _ => "the archive cannot be read on",
                    });
                }
                return Err(e);
            }
        };
        if !begun {
            copied.statements += begin_copy(connection, statement, freeze)?;
            begun = true;
        }
        if let Err(e) = connection.put_copy(&piece) {
            // The server may have said why it takes no more.
            return Err(connection.finish_copy().err().unwrap_or(e));
        }
        copied.sent += piece.iter().filter(|b| **b == b'\n').count() as u64;
        open = piece.last().is_some_and(|b| *b != b'\n');
        copied.bytes += piece.len() as u64;
        (flow.moved)(piece.len() as u64);
    }
    copied.sent += u64::from(open);
    if begun || !skip_empty {
        if !begun {
            begin_copy(connection, statement, false)?;
        }
        copied.rows = connection.finish_copy()?;
    }
    Ok(copied)
}

/// Returns how many statements that took.
fn begin_copy(connection: &Connection, statement: &[u8], freeze: bool) -> Result<u64> {
    if let Some(frozen) = freeze.then(|| frozen_copy(statement)).flatten() {
        connection.run(&frozen.lock)?;
        // Somebody may have put rows there since the table was made, and they are his.
        if connection.ask(&frozen.is_empty)?.flag(0, 0) {
            connection.run(&frozen.truncate)?;
            connection.start_copy(&frozen.copy)?;
            return Ok(4);
        }
    }
    connection.start_copy(statement)?;
    Ok(1)
}

/// The table that a COPY statement copies into.
pub fn table_of_copy(statement: &[u8]) -> Option<&[u8]> {
    take_name(&mut statement.strip_prefix(b"COPY ")?)
}

/// A COPY statement with another table in it.
fn copy_into(statement: &[u8], table: &[u8]) -> Option<Vec<u8>> {
    let rest = &statement[b"COPY ".len() + table_of_copy(statement)?.len()..];
    Some([b"COPY ", table, rest].concat())
}

/// The statements of a COPY with FREEZE.
struct Frozen {
    lock: Vec<u8>,
    is_empty: Vec<u8>,
    /// Lets rows be frozen, and the log be skipped where the server is set so. Nothing must refer to the table, as it does where
    /// rows come late.
    truncate: Vec<u8>,
    copy: Vec<u8>,
}

fn frozen_copy(statement: &[u8]) -> Option<Frozen> {
    let statement = statement.trim_ascii();
    let copy = statement.strip_suffix(b" FROM stdin;")?;
    let table = table_of_copy(copy)?;
    let on = |before: &[u8], after: &[u8]| [before, table, after].concat();
    Some(Frozen {
        lock: on(b"LOCK TABLE ONLY ", b" IN ACCESS EXCLUSIVE MODE"),
        is_empty: [
            b"SELECT NOT EXISTS (SELECT FROM ONLY ",
            table,
            b") AND NOT EXISTS (SELECT FROM pg_catalog.pg_constraint WHERE contype OPERATOR(pg_catalog.=) 'f'::\"char\" \
              AND confrelid OPERATOR(pg_catalog.=) ",
            &quote_literal(table),
            b"::pg_catalog.regclass)",
        ]
        .concat(),
        truncate: on(b"TRUNCATE TABLE ONLY ", b""),
        copy: [copy, b" FROM stdin WITH (FREEZE)"].concat(),
    })
}

/// Rows that were dumped as INSERT statements.
fn run_inserts(connection: &Connection, source: &mut dyn Read, flow: &Flow) -> Result<Copied> {
    let mut buffer = Vec::new();
    let mut ended = false;
    let mut copied = Copied::default();
    while !ended {
        // In one go: uncompressed archives give a row at a time. Of a long statement, which is looked at from its beginning each time,
        // as much again as there is.
        let more = buffer.len().max(BLOCK) as u64;
        let read = source.take(more).read_to_end(&mut buffer).map_err(read_error)?;
        ended = read == 0;
        if flow.stop.is_set() {
            return Err(stopped());
        }
        // As many whole statements as there are.
        let mut rest = &buffer[..];
        let mut rows = Vec::new();
        while let Some((statement, after)) = split_statement(rest) {
            rows.push(inserted_rows(statement.trim_ascii()));
            rest = after;
        }
        let whole = buffer.len() - rest.len();
        if whole > 0 {
            let results = connection.run(&buffer[..whole])?;
            copied.rows += results.iter().map(|r| r.touched).sum::<u64>();
            // Each has one row at least.
            let known = |n: usize| rows.get(n).copied().flatten().unwrap_or(1);
            let sent = |(n, r): (usize, &Rows)| r.touched.max(known(n));
            copied.sent += results.iter().enumerate().map(sent).sum::<u64>();
            copied.statements += results.len() as u64;
            copied.bytes += whole as u64;
            (flow.moved)(whole as u64);
            buffer.drain(..whole);
        }
    }
    match buffer.trim_ascii().is_empty() {
        true => Ok(copied),
        false => Err(Error::archive("the data of a table ends in the middle of a statement")),
    }
}

/// Write the contents of large objects that exist already, but for some.
pub fn write_large_objects(
    connection: &Connection,
    archive: &Archive,
    place: usize,
    except: &HashSet<u32>,
    flow: &Flow,
) -> Result<Copied> {
    let mut copied = Copied::default();
    for object in archive.large_objects(place)? {
        let mut object = object?;
        if except.contains(&object.oid) {
            copied.left_out += 1;
            continue;
        }
        let mut buffer = vec![0; BLOCK / 2];
        let mut offset = 0u64;
        loop {
            if flow.stop.is_set() {
                return Err(stopped());
            }
            let read = object.data.read(&mut buffer).map_err(read_error)?;
            if read == 0 {
                break;
            }
            let mut sql =
                format!("SELECT pg_catalog.lo_put({}, {offset}, pg_catalog.decode('", object.oid)
                    .into_bytes();
            for byte in &buffer[..read] {
                sql.extend([byte >> 4, byte & 15].map(|n| b"0123456789abcdef"[usize::from(n)]));
            }
            // Not as '\x…', which means something else with standard_conforming_strings = off.
            sql.extend_from_slice(b"', 'hex'))");
            connection.run(&sql)?;
            copied.statements += 1;
            offset += read as u64;
            (flow.moved)(read as u64);
        }
        copied.rows += 1;
        copied.bytes += offset;
    }
    Ok(copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frozen_copies() {
        let frozen = frozen_copy(b"COPY s.\"a b\" (x, y) FROM stdin;\n").unwrap();
        assert_eq!(frozen.truncate, b"TRUNCATE TABLE ONLY s.\"a b\"");
        assert!(frozen
            .is_empty
            .starts_with(b"SELECT NOT EXISTS (SELECT FROM ONLY s.\"a b\") AND "));
        assert!(frozen.is_empty.ends_with(b"'s.\"a b\"'::pg_catalog.regclass)"));
        assert_eq!(frozen.copy, b"COPY s.\"a b\" (x, y) FROM stdin WITH (FREEZE)");
    }
}
