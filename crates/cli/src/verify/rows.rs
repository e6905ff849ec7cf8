//! Comparing tables' rows: how many, and on request which.

mod order;
mod reader;

use super::forms::{Forms, Settings};
use super::Difference;
use crate::archive::manifest::Manifest;
use crate::archive::{read_error, Archive, Entry};
use crate::backup::halt::Halt;
use crate::backup::session;
use crate::backup::tasks::copy_target;
use crate::error::{Error, ErrorKind, Result};
use crate::pg::Login;
use crate::pg::{quote_ident, quote_literal, Connection};
use crate::plan::text::{inserted_rows, last_part, split_statement, take_name, unquoted};
use crate::report::{Costs, Did, Event, Kind, Watch};
use crate::row_sum::RowSum;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A table whose rows are compared.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Schema and name.
    pub name: Vec<Vec<u8>>,
    /// The entries with its data; several if partitions are loaded through it.
    pub places: Vec<usize>,
    /// Its columns as COPY names them, separated by commas; none of a table without any.
    columns: Vec<u8>,
    /// Where these stand in entries that have them in another order, by place.
    orders: HashMap<usize, Vec<usize>>,
    /// Rows were loaded through it: they are its own or those of its partitions.
    below: bool,
    /// Of these the archive has the rows by themselves, also where they are among those partitions: schemas and names.
    apart: Arc<HashSet<(Vec<u8>, Vec<u8>)>>,
    /// The archive has rows of foreign tables, which are read then.
    foreign: bool,
    /// Which rows are data, if not all are.
    condition: Vec<u8>,
    /// The archive has its rows as INSERT statements: they are counted.
    pub inserts: bool,
}

impl Rows {
    fn shown(&self) -> String {
        let parts: Vec<_> = self.name.iter().map(|part| String::from_utf8_lossy(part)).collect();
        format!("TABLE {}", parts.join("."))
    }

    fn quoted(&self) -> Vec<u8> {
        let parts: Vec<Vec<u8>> = self.name.iter().map(|part| quote_ident(part)).collect();
        parts.join(&b"."[..])
    }

    /// What its rows are compared by.
    fn depth(&self, depth: Depth) -> Depth {
        if self.inserts {
            Depth::Counts
        } else {
            depth
        }
    }
}

/// The tables with data among the selected entries. `connection` tells of which not all rows are data.
pub fn tables(
    archive: &Archive,
    selected: &dyn Fn(usize) -> bool,
    connection: &Connection,
) -> Result<Vec<Rows>> {
    let toc = archive.toc();
    let conditions = conditions(connection)?;
    let attachments = toc.entries().filter(|entry| entry.desc == b"TABLE ATTACH");
    let attached: HashSet<i32> =
        attachments.flat_map(|entry| entry.dependencies.to_vec()).collect();
    let mut tables = BTreeMap::<Vec<Vec<u8>>, Rows>::new();
    for place in (0..toc.len()).filter(|&place| selected(place)) {
        let entry = toc.entry(place);
        if entry.desc != b"TABLE DATA" {
            continue;
        }
        let inserts = entry.copy_stmt.is_empty();
        let own = vec![entry.namespace.to_vec(), entry.tag.to_vec()];
        let (mut target, columns) = match inserts {
            false => copy_target(entry.copy_stmt).ok_or_else(|| {
                Error::archive(format!("entry {} has an unknown COPY statement", entry.dump_id))
            })?,
            true => match first_insert(archive, place)? {
                Some(name) => (name, &b""[..]),
                // Rows of others may be loaded through its root, and come here.
                None if entry.dependencies.iter().any(|id| attached.contains(id)) => continue,
                None => (own.clone(), &b""[..]),
            },
        };
        // Until 10.2 statements leave out their schema.
        if target.len() == 1 {
            target.insert(0, entry.namespace.to_vec());
        }
        let of = entry.dependencies.iter().filter_map(|&id| Some(toc.entry(toc.place(id)?)));
        let is_foreign = of.into_iter().any(|table| table.desc == b"FOREIGN TABLE");
        let columns = columns.strip_prefix(b"(").and_then(|c| c.strip_suffix(b")"));
        let columns = columns.unwrap_or_default();
        let rows = tables.entry(target.clone()).or_insert_with(|| Rows {
            columns: columns.to_vec(),
            below: target != own,
            condition: conditions.get(&own).filter(|_| target == own).cloned().unwrap_or_default(),
            name: target,
            ..Rows::default()
        });
        rows.places.push(place);
        rows.orders.extend(order::of(&rows.columns, columns).map(|order| (place, order)));
        rows.foreign |= is_foreign;
        rows.inserts |= inserts;
    }
    if tables.values().any(|rows| rows.below) {
        let own = tables.values().filter(|rows| !rows.below);
        let names = own.filter_map(|rows| <[Vec<u8>; 2]>::try_from(rows.name.clone()).ok());
        let apart: Arc<HashSet<_>> = Arc::new(names.map(|[schema, name]| (schema, name)).collect());
        tables.values_mut().for_each(|rows| rows.apart = apart.clone());
    }
    Ok(tables.into_values().collect())
}

/// The table that the first INSERT of an entry is into; none without rows.
fn first_insert(archive: &Archive, place: usize) -> Result<Option<Vec<Vec<u8>>>> {
    let entry = archive.toc().entry(place);
    if !entry.has_data {
        return Ok(None);
    }
    let mut begin = Vec::new();
    archive.data(place)?.take(4096).read_to_end(&mut begin).map_err(read_error)?;
    let begin = begin.trim_ascii_start();
    if begin.is_empty() {
        return Ok(None);
    }
    let name = begin.strip_prefix(b"INSERT INTO ").and_then(|mut text| take_name(&mut text));
    let name = name.ok_or_else(|| unknown_insert(&entry))?;
    let table = last_part(name);
    let schema = name[..name.len() - table.len()].strip_suffix(b".");
    let schema = schema.map_or_else(|| entry.namespace.to_vec(), unquoted);
    Ok(Some(vec![schema, unquoted(table)]))
}

fn unknown_insert(entry: &Entry) -> Error {
    let (id, name) = (entry.dump_id, String::from_utf8_lossy(entry.tag));
    Error::archive(format!("entry {id}, rows of {name}, has an unknown INSERT statement"))
}

/// By schema and name: a condition that rows of tables of extensions must meet to be data.
fn conditions(connection: &Connection) -> Result<HashMap<Vec<Vec<u8>>, Vec<u8>>> {
    let rows = connection.query(
        b"SELECT n.nspname, c.relname, x.cond FROM pg_catalog.pg_class c \
          JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
          JOIN (SELECT u.oid, u.cond FROM pg_catalog.pg_extension e, \
          ROWS FROM (pg_catalog.unnest(e.extconfig), pg_catalog.unnest(e.extcondition)) u(oid, cond)) x ON x.oid = c.oid \
          WHERE x.cond <> ''",
    )?;
    let cell = |row, column| rows.get(row, column).unwrap_or_default().to_vec();
    Ok((0..rows.len()).map(|row| (vec![cell(row, 0), cell(row, 1)], cell(row, 2))).collect())
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Numbers of rows.
    Counts,
    /// Their checksums, too.
    Checksums,
}

/// Bytes of INSERT statements that are read at once.
const AT_ONCE: u64 = 1 << 20;

/// What looking at so many tables is guessed to cost.
fn costs(tables: usize) -> Costs {
    Costs::of(Kind::Verify, 1000 * tables as u64)
}

/// So many tables are to be looked at.
pub fn work(tables: usize) -> Event<'static> {
    Event::Work { steps: tables, cost: costs(tables) }
}

/// How to go about it.
pub struct Work<'a> {
    pub depth: Depth,
    pub jobs: usize,
    pub watch: &'a dyn Watch,
    pub halt: &'a Arc<Halt>,
}

/// Does something for each table, on several threads with a state of their own each, and tells of it. `whose` rows
/// they are goes before the table's name.
fn each<S, T: Send>(
    tables: &[Rows],
    whose: &str,
    Work { jobs, watch, halt, .. }: &Work,
    begin: impl Fn() -> Result<S> + Sync,
    one: impl Fn(&S, &Rows) -> Result<(T, u64)> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(tables.len()));
    std::thread::scope(|scope| {
        let (next, results, begin, one) = (&next, &results, &begin, &one);
        for worker in 0..(*jobs).clamp(1, tables.len().max(1)) {
            scope.spawn(move || {
                halt.watch(|| {
                    let state = begin()?;
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(table) = tables.get(at) else { return Ok(()) };
                        halt.check()?;
                        let (what, cost) = (&format!("{whose}{}", table.shown()), costs(1));
                        watch.event(&Event::Begin { worker, what, steps: 1, cost });
                        let (result, rows) = one(&state, table)?;
                        let did = Did { steps: 1, cost, rows, ok: true, ..Did::default() };
                        watch.event(&Event::End { worker, did });
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
/// `settings` are those of its sessions.
pub fn of_database(
    login: &Login,
    encoding: &str,
    settings: &Settings,
    tables: &[Rows],
    work: &Work,
) -> Result<Vec<Result<RowSum>>> {
    let connect = || {
        let connection = connect(login, encoding)?;
        settings.set(&connection)?;
        Ok(connection)
    };
    let columns = match tables.iter().any(|table| table.depth(work.depth) == Depth::Counts) {
        true => reader::narrowest(&connect()?)?,
        false => HashMap::new(),
    };
    let as_is = Forms::default();
    let one = |connection: &Connection, table: &Rows| -> Result<(Result<RowSum>, u64)> {
        let depth = table.depth(work.depth);
        match reader::read(connection, table, depth, &columns, &as_is, work.halt) {
            Ok(sum) => Ok((Ok(sum), sum.rows())),
            // What is wrong with one table is a difference, not the end.
            Err(e) if e.kind == ErrorKind::Statement => Ok((Err(e), 0)),
            Err(e) => Err(e),
        }
    };
    each(tables, "rows of ", work, connect, one)
}

fn connect(login: &Login, encoding: &str) -> Result<Connection> {
    let connection = session::connect(login)?;
    let encoding = quote_literal(encoding.as_bytes());
    connection.run(&[b"SET client_encoding = ", &encoding[..]].concat())?;
    Ok(connection)
}

/// Looks again at tables whose rows differ and have columns whose text depends on settings, which an archive does not
/// tell: in `found` those become what is `expected` whose rows are the same under some.
pub fn under_others(
    archive: &Archive,
    login: &Login,
    encoding: &str,
    tables: &[Rows],
    (expected, found): (&[RowSum], &mut [Result<RowSum>]),
    work: &Work,
) -> Result<()> {
    let differs = |at: &usize| {
        let same_number =
            |found: &RowSum| found.rows() == expected[*at].rows() && *found != expected[*at];
        tables[*at].depth(work.depth) == Depth::Checksums
            && found[*at].as_ref().is_ok_and(same_number)
    };
    let places: Vec<usize> = (0..tables.len()).filter(differs).collect();
    if places.is_empty() {
        return Ok(());
    }
    work.watch.event(&Event::Phase("comparing rows again that differ, by their values"));
    work.watch.event(&self::work(places.len()));
    let again: Vec<Rows> = places.iter().map(|&at| tables[at].clone()).collect();
    let made = archive.toc().entries().filter(|entry| entry.desc == b"TABLE");
    let made: HashMap<_, _> =
        made.map(|table| ([table.namespace, table.tag], table.defn)).collect();
    let same = |connection: &Connection, table: &Rows| -> Result<bool> {
        let name: Vec<&[u8]> = table.name.iter().map(|part| &part[..]).collect();
        let name: Option<[&[u8]; 2]> = name.try_into().ok();
        let defn = name.and_then(|name| made.get(&name)).copied().unwrap_or_default();
        let forms = Forms::of(connection, &table.quoted(), &table.columns, defn)?;
        if forms.none() {
            return Ok(false);
        }
        let mut wanted = RowSum::default();
        for &place in &table.places {
            wanted.merge(read(archive, table, place, &forms, work.halt)?);
        }
        for settings in forms.settings() {
            settings.set(connection)?;
            let (columns, depth) = (HashMap::new(), Depth::Checksums);
            if reader::read(connection, table, depth, &columns, &forms, work.halt)? == wanted {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let one = |connection: &Connection, table: &Rows| match same(connection, table) {
        Ok(same) => Ok((same, 0)),
        Err(e) if e.kind == ErrorKind::Statement => Ok((false, 0)),
        Err(e) => Err(e),
    };
    let results = each(&again, "values of ", work, || connect(login, encoding), one)?;
    for (at, _) in places.into_iter().zip(results).filter(|(_, same)| *same) {
        found[at] = Ok(expected[at]);
    }
    Ok(())
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
            // What is told is of the lines as they are.
            let as_is = work.depth == Depth::Counts || !table.orders.contains_key(&place);
            let told = told.get(&archive.toc().entry(place).dump_id).filter(|_| as_is);
            whole.merge(match told {
                Some(sum) => *sum,
                None if table.inserts => inserted(archive, place, work.halt)?,
                None => read(archive, table, place, &Forms::default(), work.halt)?,
            });
        }
        Ok((whole, whole.rows()))
    };
    each(tables, "archived rows of ", work, || Ok(()), one)
}

/// Reads the rows of an entry of a table.
fn read(
    archive: &Archive,
    table: &Rows,
    place: usize,
    forms: &Forms,
    halt: &Halt,
) -> Result<RowSum> {
    let order = table.orders.get(&place);
    let mut data = BufReader::with_capacity(256 << 10, archive.data(place)?);
    let mut sum = RowSum::default();
    let mut row = Vec::new();
    while data.read_until(b'\n', &mut row).map_err(read_error)? > 0 {
        let values = order.map_or(Cow::Borrowed(&row[..]), |order| order::row(&row, order));
        sum.add_rows(&forms.row(&values));
        row.clear();
        if sum.rows().is_multiple_of(4096) {
            halt.check()?;
        }
    }
    Ok(sum)
}

/// Counts the rows of an entry with INSERT statements.
fn inserted(archive: &Archive, place: usize, halt: &Halt) -> Result<RowSum> {
    let entry = archive.toc().entry(place);
    let (mut rows, mut buffer) = (0, Vec::new());
    let mut ended = !entry.has_data;
    let mut source = archive.data(place)?;
    while !ended {
        let read = source.by_ref().take(AT_ONCE).read_to_end(&mut buffer).map_err(read_error)?;
        ended = read == 0;
        halt.check()?;
        let mut rest = &buffer[..];
        while let Some((statement, after)) = split_statement(rest) {
            rows += inserted_rows(statement).ok_or_else(|| unknown_insert(&entry))?;
            rest = after;
        }
        let whole = buffer.len() - rest.len();
        buffer.drain(..whole);
    }
    match buffer.trim_ascii().is_empty() {
        true => Ok(RowSum::counted(rows)),
        false => Err(unknown_insert(&entry)),
    }
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
            Ok(found) if table.depth(depth) == Depth::Checksums && found != expected => {
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
            ..Rows::default()
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
