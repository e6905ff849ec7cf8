//! Reading large objects: many small ones by one statement, the large ones piece by piece.

use super::halt::Halt;
use super::lane::{Lane, NewFile};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::Connection;
use std::fmt::Write;

/// Bytes of a large object read at a time. A large object of more takes statements of its own.
const PIECE: usize = 512 << 10;

/// Copies large objects, together called `name`, each to a file of its own. `suffix` is what compression adds to names.
pub fn copy(
    connection: &Connection,
    oids: &[u32],
    suffix: &str,
    lane: &mut Lane,
    halt: &Halt,
    name: String,
) -> Result<()> {
    let mut list = String::new();
    for oid in oids {
        let _ = write!(list, "{}{oid}", if list.is_empty() { "" } else { "," });
    }
    // Those that are longer than a piece are recognised by a piece being full.
    let sql = format!(
        "COPY (SELECT l.oid, pg_catalog.lo_get(l.oid, 0, {PIECE}) \
         FROM pg_catalog.unnest('{{{list}}}'::pg_catalog.oid[]) l(oid)) TO STDOUT (FORMAT binary)"
    );
    let mut long = Vec::new();
    let mut left = oids.len();
    let mut done = Some(name);
    pieces(connection, &sql, halt, |oid, data| {
        if data.len() >= PIECE {
            long.push(oid);
            return Ok(());
        }
        lane.begin(file(oid, data.len() as u64, suffix))?;
        lane.write(data)?;
        left -= 1;
        lane.end(None, if left == 0 { done.take() } else { None })
    })?;
    for oid in long {
        left -= 1;
        lane.begin(file(oid, PIECE as u64, suffix))?;
        let mut at = 0u64;
        loop {
            let sql = format!(
                "COPY (SELECT '{oid}'::pg_catalog.oid, pg_catalog.lo_get({oid}, {at}, {PIECE})) \
                 TO STDOUT (FORMAT binary)"
            );
            let mut read = 0;
            pieces(connection, &sql, halt, |_, data| {
                read = data.len();
                lane.write(data)
            })?;
            at += read as u64;
            if read < PIECE {
                break;
            }
        }
        lane.end(None, if left == 0 { done.take() } else { None })?;
    }
    match left {
        0 => Ok(()),
        n => Err(Error::new(ErrorKind::Statement, format!("{n} large objects were not sent"))),
    }
}

fn file(oid: u32, expected: u64, suffix: &str) -> NewFile {
    NewFile { name: format!("blob_{oid}.dat{suffix}"), expected, table: None }
}

/// Runs a COPY in binary format of rows (oid, bytea) and hands each row on.
fn pieces(
    connection: &Connection,
    sql: &str,
    halt: &Halt,
    mut row: impl FnMut(u32, &[u8]) -> Result<()>,
) -> Result<()> {
    connection.start_copy(sql.as_bytes())?;
    let mut parser = Binary::default();
    let mut result = Ok(());
    while let Some(data) = connection.copy_row()? {
        // What fails here must not leave the connection in the middle of a COPY that nobody reads.
        if result.is_ok() {
            result = halt.check().and_then(|()| parser.feed(&data, &mut row));
        }
    }
    connection.copied()?;
    result?;
    match parser.ended {
        true => Ok(()),
        false => Err(damaged()),
    }
}

fn damaged() -> Error {
    Error::new(ErrorKind::Connection, "the server sent a COPY in binary format that makes no sense")
}

/// Takes COPY's binary format apart, as its documentation describes it.
#[derive(Default)]
struct Binary {
    /// Bytes of what is not yet complete.
    held: Vec<u8>,
    begun: bool,
    ended: bool,
}

/// Signature, flags, length of the extension.
const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";

impl Binary {
    fn feed(&mut self, data: &[u8], row: &mut impl FnMut(u32, &[u8]) -> Result<()>) -> Result<()> {
        self.held.extend_from_slice(data);
        let mut at = 0;
        while let Some(used) = self.step(at, row)? {
            at += used;
        }
        self.held.drain(..at);
        Ok(())
    }

    /// Uses what is complete at a place: how many bytes; `None` if nothing is.
    fn step(
        &mut self,
        at: usize,
        row: &mut impl FnMut(u32, &[u8]) -> Result<()>,
    ) -> Result<Option<usize>> {
        let rest = &self.held[at..];
        if !self.begun {
            if rest.len() < HEADER.len() {
                return Ok(None);
            }
            if !rest.starts_with(HEADER) {
                return Err(damaged());
            }
            self.begun = true;
            return Ok(Some(HEADER.len()));
        }
        let Some(fields) = rest.first_chunk::<2>().map(|b| i16::from_be_bytes(*b)) else {
            return Ok(None);
        };
        if self.ended || !(fields == -1 || fields == 2) {
            return Err(damaged());
        }
        if fields == -1 {
            self.ended = true;
            return Ok(Some(2));
        }
        let mut place = 2;
        let mut values = [&[][..]; 2];
        for value in &mut values {
            let Some(length) = rest[place..].first_chunk::<4>().map(|b| i32::from_be_bytes(*b))
            else {
                return Ok(None);
            };
            let length = usize::try_from(length).map_err(|_| damaged())?;
            let Some(bytes) = rest[place + 4..].get(..length) else { return Ok(None) };
            *value = bytes;
            place += 4 + length;
        }
        let oid = values[0].try_into().map_err(|_| damaged())?;
        row(u32::from_be_bytes(oid), values[1])?;
        Ok(Some(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(rows: &[(u32, &[u8])]) -> Vec<u8> {
        let mut out = HEADER.to_vec();
        for (oid, data) in rows {
            out.extend(2i16.to_be_bytes());
            out.extend(4i32.to_be_bytes());
            out.extend(oid.to_be_bytes());
            out.extend((data.len() as i32).to_be_bytes());
            out.extend(*data);
        }
        out.extend((-1i16).to_be_bytes());
        out
    }

    #[test]
    fn rows_come_out_however_they_are_cut() {
        let rows: [(u32, &[u8]); 3] = [(1, b"abc"), (70_000, b""), (3, &[0xff; 300])];
        let whole = copy(&rows);
        for step in [1, 2, 7, 100, whole.len()] {
            let mut parser = Binary::default();
            let mut seen = Vec::new();
            for part in whole.chunks(step) {
                let mut row = |oid, data: &[u8]| {
                    seen.push((oid, data.to_vec()));
                    Ok(())
                };
                parser.feed(part, &mut row).unwrap();
            }
            assert!(parser.ended);
            let expected: Vec<_> = rows.iter().map(|(o, d)| (*o, d.to_vec())).collect();
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn nonsense_is_an_error_or_incomplete() {
        let whole = copy(&[(1, b"abc")]);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x80;
            let _ = Binary::default().feed(&damaged, &mut |_, _| Ok(()));
            let mut cut = Binary::default();
            let _ = cut.feed(&whole[..at], &mut |_, _| Ok(()));
            assert!(!cut.ended, "cut at {at}");
        }
        let after = [&whole[..], b"\0\0"].concat();
        assert!(Binary::default().feed(&after, &mut |_, _| Ok(())).is_err());
    }
}
