//! Comparing tables' rows: how many, and on request which.

use super::{Difference, RowSum};
use crate::archive::rewrite::{Content, DataEntry};
use crate::archive::{read_error, Archive, Toc};
use crate::backup::halt::Halt;
use crate::backup::manifest::Manifest;
use crate::backup::session;
use crate::backup::tasks::{copy_target, Table};
use crate::backup::{Done, Login, Progress};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{quote_ident, quote_literal, Connection};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// A table whose rows are compared.
#[derive(Clone, Debug)]
pub struct Rows {
    /// Schema and name.
    pub name: Vec<Vec<u8>>,
    /// The entries with its data; several if partitions are loaded through it.
    pub places: Vec<usize>,
    /// Copies its rows out.
    pub copy: Vec<u8>,
    /// Counts them.
    pub count: Vec<u8>,
}

impl Rows {
    fn shown(&self) -> String {
        let parts: Vec<_> = self.name.iter().map(|part| String::from_utf8_lossy(part)).collect();
        format!("TABLE {}", parts.join("."))
    }
}

/// The tables with data among the selected entries. `connection` tells of which not all rows are data.
pub fn tables(
    toc: &Toc,
    selected: &dyn Fn(usize) -> bool,
    connection: &Connection,
) -> Result<Vec<Rows>> {
    let special = special(connection)?;
    let mut tables = BTreeMap::<Vec<Vec<u8>>, Rows>::new();
    for place in (0..toc.len()).filter(|&place| selected(place)) {
        let entry = toc.entry(place);
        if entry.desc != b"TABLE DATA" || entry.copy_stmt.is_empty() {
            continue;
        }
        let own = vec![entry.namespace.to_vec(), entry.tag.to_vec()];
        let (target, columns) = copy_target(entry.copy_stmt).ok_or_else(|| {
            Error::archive(format!("entry {} has an unknown COPY statement", entry.dump_id))
        })?;
        if let Some(rows) = tables.get_mut(&target) {
            rows.places.push(place);
            continue;
        }
        let quoted: Vec<Vec<u8>> = target.iter().map(|part| quote_ident(part)).collect();
        let quoted = quoted.join(&b"."[..]);
        let (copy, count) = if target == own {
            let (relkind, condition) = special.get(&own).cloned().unwrap_or((b'r', Vec::new()));
            let data = DataEntry {
                dump_id: entry.dump_id,
                oid: entry.oid,
                namespace: entry.namespace.to_vec(),
                name: entry.tag.to_vec(),
                content: Content::Table { copy_stmt: entry.copy_stmt.to_vec() },
                file: String::new(),
            };
            let table = Table::new(place, &data, entry.copy_stmt, relkind, &condition)?;
            let count = [b"SELECT count(*) FROM ONLY ", &quoted[..], b" ", &condition].concat();
            (table.copy, count)
        } else {
            // Partitions are loaded through their root: where their rows are is the root's choice.
            let list = columns.strip_prefix(b"(").and_then(|c| c.strip_suffix(b")")).unwrap_or(b"");
            let copy = [b"COPY (SELECT ", list, b" FROM ", &quoted, b") TO STDOUT"].concat();
            (copy, [b"SELECT count(*) FROM ", &quoted[..]].concat())
        };
        tables.insert(target.clone(), Rows { name: target, places: vec![place], copy, count });
    }
    Ok(tables.into_values().collect())
}

/// By schema and name: `pg_class.relkind` and a condition that rows must meet.
type Special = HashMap<Vec<Vec<u8>>, (u8, Vec<u8>)>;

/// Foreign tables, and tables of extensions.
fn special(connection: &Connection) -> Result<Special> {
    let rows = connection.query(
        b"SELECT n.nspname, c.relname, c.relkind, x.cond FROM pg_catalog.pg_class c \
          JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
          LEFT JOIN (SELECT u.oid, u.cond FROM pg_catalog.pg_extension e, \
          ROWS FROM (pg_catalog.unnest(e.extconfig), pg_catalog.unnest(e.extcondition)) u(oid, cond)) x ON x.oid = c.oid \
          WHERE c.relkind = 'f' OR x.cond <> ''",
    )?;
    let cell = |row, column| rows.get(row, column).unwrap_or_default().to_vec();
    let kind = |row| rows.get(row, 2).and_then(|k| k.first()).copied().unwrap_or(b'r');
    Ok((0..rows.len())
        .map(|row| (vec![cell(row, 0), cell(row, 1)], (kind(row), cell(row, 3))))
        .collect())
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Numbers of rows.
    Counts,
    /// Their checksums, too.
    Checksums,
}

/// How to go about it.
pub struct Work<'a> {
    pub depth: Depth,
    pub jobs: usize,
    pub progress: &'a dyn Progress,
    pub halt: &'a Arc<Halt>,
}

/// Does something for each table, on several threads with a state of their own each, and tells of it. `whose` rows
/// they are goes before the table's name.
fn each<S, T: Send>(
    tables: &[Rows],
    whose: &str,
    Work { jobs, progress, halt, .. }: &Work,
    begin: impl Fn() -> Result<S> + Sync,
    one: impl Fn(&S, &Rows) -> Result<(T, u64)> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(tables.len()));
    std::thread::scope(|scope| {
        let (next, results, begin, one) = (&next, &results, &begin, &one);
        for connection in 0..(*jobs).clamp(1, tables.len().max(1)) {
            scope.spawn(move || {
                halt.watch(|| {
                    let state = begin()?;
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(table) = tables.get(at) else { return Ok(()) };
                        halt.check()?;
                        let (name, start) = (format!("{whose}{}", table.shown()), Instant::now());
                        progress.begin(connection, &name, 1);
                        let (result, rows) = one(&state, table)?;
                        let (bytes, stored, weight, elapsed) = (0, 0, 1, start.elapsed());
                        progress.done(&Done {
                            name,
                            rows,
                            bytes,
                            stored,
                            weight,
                            elapsed,
                            connection,
                        });
                        results.lock().unwrap_or_else(|e| e.into_inner()).push((at, result));
                    }
                })
            });
        }
    });
    halt.check()?;
    let mut results = results.into_inner().unwrap_or_else(|e| e.into_inner());
    results.sort_by_key(|(at, _)| *at);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

/// What a database holds: for each table its rows. `None`: the table is not there, or cannot be read.
pub fn of_database(
    login: &Login,
    encoding: &str,
    tables: &[Rows],
    work: &Work,
) -> Result<Vec<Result<RowSum>>> {
    let begin = || {
        let connection = session::connect(login)?;
        let encoding = quote_literal(encoding.as_bytes());
        connection.run(&[b"SET client_encoding = ", &encoding[..]].concat())?;
        Ok(connection)
    };
    let one = |connection: &Connection, table: &Rows| -> Result<(Result<RowSum>, u64)> {
        let sum = match work.depth {
            Depth::Counts => connection
                .query(&table.count)
                .map(|rows| RowSum::counted(rows.number(0, 0).unwrap_or(0))),
            Depth::Checksums => copied(connection, table, work.halt),
        };
        match sum {
            Ok(sum) => Ok((Ok(sum), sum.rows())),
            // What is wrong with one table is a difference, not the end.
            Err(e) if e.kind == ErrorKind::Statement => Ok((Err(e), 0)),
            Err(e) => Err(e),
        }
    };
    each(tables, "rows of ", work, begin, one)
}

fn copied(connection: &Connection, table: &Rows, halt: &Halt) -> Result<RowSum> {
    connection.start_copy(&table.copy)?;
    let mut sum = RowSum::default();
    while let Some(row) = connection.copy_row()? {
        sum.add_rows(&row);
        if sum.rows().is_multiple_of(4096) {
            halt.check()?;
        }
    }
    connection.copied()?;
    Ok(sum)
}

/// What an archive holds, by the manifest where it tells, else by reading the data.
pub fn of_archive(
    archive: &Archive,
    manifest: Option<&Manifest>,
    tables: &[Rows],
    work: &Work,
) -> Result<Vec<RowSum>> {
    let mut told = HashMap::new();
    for (_, table) in manifest.iter().flat_map(|manifest| manifest.tables()) {
        let sum = match (&table.checksum, work.depth) {
            (_, Depth::Counts) => Some(RowSum::counted(table.rows)),
            (Some(text), Depth::Checksums) => RowSum::parse(table.rows, text),
            (None, Depth::Checksums) => None,
        };
        told.extend(sum.map(|sum| (table.dump_id, sum)));
    }
    let one = |_: &(), table: &Rows| {
        let mut whole = RowSum::default();
        for &place in &table.places {
            whole.merge(match told.get(&archive.toc().entry(place).dump_id) {
                Some(sum) => *sum,
                None => read(archive, place, work.halt)?,
            });
        }
        Ok((whole, whole.rows()))
    };
    each(tables, "archived rows of ", work, || Ok(()), one)
}

/// Reads the rows of an entry.
fn read(archive: &Archive, place: usize, halt: &Halt) -> Result<RowSum> {
    let mut data = BufReader::with_capacity(256 << 10, archive.data(place)?);
    let mut sum = RowSum::default();
    let mut row = Vec::new();
    while data.read_until(b'\n', &mut row).map_err(read_error)? > 0 {
        sum.add_rows(&row);
        row.clear();
        if sum.rows().is_multiple_of(4096) {
            halt.check()?;
        }
    }
    Ok(sum)
}

/// What differs.
pub fn compare(
    tables: &[Rows],
    expected: &[RowSum],
    found: &[Result<RowSum>],
    depth: Depth,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    for ((table, expected), found) in tables.iter().zip(expected).zip(found) {
        let problem = match found {
            Err(e) => format!("its rows cannot be read: {}", e.message),
            Ok(found) if found.rows() != expected.rows() => {
                format!("it has {} rows instead of {}", found.rows(), expected.rows())
            }
            Ok(found) if depth == Depth::Checksums && found != expected => {
                format!("its {} rows differ: checksum {found} instead of {expected}", found.rows())
            }
            Ok(_) => continue,
        };
        differences.push(Difference::new(table.shown(), problem));
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_of_rows() {
        let table = |name: &str| Rows {
            name: vec![b"s".to_vec(), name.as_bytes().to_vec()],
            places: vec![],
            copy: vec![],
            count: vec![],
        };
        let sum = |text: &str| {
            let mut sum = RowSum::default();
            sum.add_rows(text.as_bytes());
            sum
        };
        let tables = ["a", "b", "c", "d"].map(table);
        let expected = [sum("1\n2\n"), sum("1\n"), sum("1\n"), sum("1\n")];
        let gone = Error::new(ErrorKind::Statement, "relation \"d\" does not exist");
        let found = [Ok(sum("2\n1\n")), Ok(sum("1\n1\n")), Ok(sum("2\n")), Err(gone)];
        let of = |depth| -> Vec<String> {
            compare(&tables, &expected, &found, depth).iter().map(|d| d.to_string()).collect()
        };
        let counts = of(Depth::Counts);
        assert_eq!(counts.len(), 2);
        assert_eq!(counts[0], "TABLE s.b: it has 2 rows instead of 1");
        assert_eq!(counts[1], "TABLE s.d: its rows cannot be read: relation \"d\" does not exist");
        let checksums = of(Depth::Checksums);
        assert_eq!(checksums.len(), 3);
        assert!(checksums[1].starts_with("TABLE s.c: its 1 rows differ"), "{checksums:?}");
    }
}
