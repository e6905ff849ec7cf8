//! Amounts of money. Their text is read as the session's `lc_monetary` has it, and an archive does not say under which it was written:
//! with `12,50 $` under C the server reads 1,250 dollars, without a word.
//!
//! What was written in one session looks the same throughout, and every amount shows how decimals are written. So some amounts of the
//! archive are read again, where the rows were, and must come out with the same digits.

use super::in_order;
use crate::archive::{read_error, Entry, Toc};
use crate::backup::tasks::copy_target;
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{quote_literal, Connection, Rows};
use crate::plan::build::describe;
use crate::plan::text::{inserted, last_part, split_statement, take_name, unquoted, Inserted};
use crate::restore::Job;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};

/// Amounts that are read again.
const ASKED: usize = 20;
/// Bytes of an entry's rows in which some are looked for.
const LOOKED_AT: u64 = 16 << 20;
/// Bytes of INSERT statements.
const OF_INSERTS: u64 = 1 << 20;

/// A column with money in it.
struct Column {
    name: Vec<u8>,
    /// Its place among the columns.
    number: usize,
    /// Its values are arrays.
    array: bool,
}

/// An amount as the archive has it.
struct Amount {
    place: u32,
    text: Vec<u8>,
    array: bool,
}

/// Whether there is anything to compare.
pub(in crate::restore) fn may_be(job: &Job) -> bool {
    job.terms.filter.wants_data() && may_have_money(job.archive.toc())
}

/// Compare some. An error if any was read as something else. The connection's session is as those that loaded.
pub(in crate::restore) fn compare(job: &Job, connection: &Connection) -> Result<()> {
    let toc = job.archive.toc();
    let columns = columns(&in_order::question(job, connection, || connection.query(COLUMNS))?);
    let amounts = amounts(job, &columns)?;
    for array in [false, true] {
        let asked: Vec<&Amount> = amounts.iter().filter(|amount| amount.array == array).collect();
        if asked.is_empty() {
            continue;
        }
        let values: Vec<Vec<u8>> = asked.iter().map(|amount| quote_literal(&amount.text)).collect();
        // To the type itself: a domain's checks are somebody's functions.
        let of = if array { "money[]" } else { "money" };
        let cast = format!(")::pg_catalog.{of}::pg_catalog.text");
        let each: Vec<Vec<u8>> =
            values.iter().map(|value| [b"(", &value[..], cast.as_bytes()].concat()).collect();
        let sql = [b"SELECT ", &each.join(&b", "[..])[..]].concat();
        let found = match in_order::question(job, connection, || connection.query(&sql)) {
            Ok(found) => found,
            Err(e) if e.kind == ErrorKind::Statement => {
                return Err(differs(toc, asked[0], &e.message));
            }
            Err(e) => return Err(e),
        };
        for (column, amount) in asked.into_iter().enumerate() {
            let read = found.get(0, column).unwrap_or_default();
            if digits(read) != digits(&amount.text) {
                let read = String::from_utf8_lossy(read);
                return Err(differs(toc, amount, &format!("it was read as \"{read}\"")));
            }
        }
    }
    Ok(())
}

fn differs(toc: &Toc, amount: &Amount, how: &str) -> Error {
    let what = describe(&toc.entry(amount.place as usize));
    let text = String::from_utf8_lossy(&amount.text);
    let message = "amounts of money are others than in the archive, which was written under another lc_monetary";
    Error::new(ErrorKind::Verify, message)
        .detail(format!("{what} has \"{text}\": {how}."))
        .hint("Restore again into an empty database with the setting that the archive was made under: PGOPTIONS=\"-c lc_monetary=…\".")
}

fn digits(text: &[u8]) -> Vec<u8> {
    text.iter().copied().filter(u8::is_ascii_digit).collect()
}

/// Some type or table says so, or the archive has rows of tables that it does not define.
fn may_have_money(toc: &Toc) -> bool {
    let is_table = |entry: &Entry| matches!(entry.desc, b"TABLE" | b"FOREIGN TABLE");
    let says = |entry: &Entry| {
        (is_table(entry) || matches!(entry.desc, b"DOMAIN" | b"TYPE"))
            && entry.defn.windows(5).any(|part| part == b"money")
    };
    let mut rows_alone = toc.entries().any(|entry| entry.desc == b"TABLE DATA");
    for entry in toc.entries() {
        rows_alone &= !is_table(&entry);
        if says(&entry) {
            return true;
        }
    }
    rows_alone
}

/// Columns of money, of domains over it, and of arrays of those.
const COLUMNS: &[u8] =
    b"WITH RECURSIVE kind(oid, many) AS (SELECT 790::pg_catalog.oid, false UNION SELECT t.oid, many OR t.typtype <> 'd' \
      FROM pg_catalog.pg_type t JOIN kind k ON t.typtype = 'd' AND t.typbasetype = k.oid \
      OR t.typtype = 'b' AND t.typlen = -1 AND t.typelem = k.oid AND NOT many) \
      SELECT n.nspname, c.relname, a.attname, many, (SELECT pg_catalog.count(*) FROM pg_catalog.pg_attribute b \
      WHERE b.attrelid = a.attrelid AND b.attnum > 0 AND NOT b.attisdropped AND b.attnum < a.attnum) \
      FROM pg_catalog.pg_attribute a JOIN kind k ON k.oid = a.atttypid JOIN pg_catalog.pg_class c ON c.oid = a.attrelid \
      JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
      WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p', 'f')";

type Tables = HashMap<(Vec<u8>, Vec<u8>), Vec<Column>>;

fn columns(found: &Rows) -> Tables {
    let mut tables = Tables::new();
    for row in 0..found.len() {
        let text = |column| found.get(row, column).unwrap_or_default().to_vec();
        let column = Column {
            name: text(2),
            number: found.number(row, 4).unwrap_or(usize::MAX),
            array: found.flag(row, 3),
        };
        tables.entry((text(0), text(1))).or_default().push(column);
    }
    tables
}

/// Amounts of the rows that were restored, as many as are asked for.
fn amounts(job: &Job, tables: &Tables) -> Result<Vec<Amount>> {
    let toc = job.archive.toc();
    let mut amounts = Vec::new();
    if tables.is_empty() {
        return Ok(amounts);
    }
    for place in job.selection.places() {
        let entry = toc.entry(place as usize);
        if amounts.len() >= ASKED || job.stop.is_set() {
            break;
        }
        if entry.desc != b"TABLE DATA" || !entry.has_data {
            continue;
        }
        match entry.copy_stmt {
            b"" => of_inserts(job, place, tables, &mut amounts)?,
            _ => of_copy(job, place, tables, &mut amounts)?,
        }
    }
    Ok(amounts)
}

fn of_copy(job: &Job, place: u32, tables: &Tables, amounts: &mut Vec<Amount>) -> Result<()> {
    let entry = job.archive.toc().entry(place as usize);
    let Some((mut name, list)) = copy_target(entry.copy_stmt) else { return Ok(()) };
    let Some(table) = name.pop() else { return Ok(()) };
    // Until 10.2 statements leave out their schema.
    let schema = name.pop().unwrap_or_else(|| entry.namespace.to_vec());
    let Some(money) = tables.get(&(schema, table)) else { return Ok(()) };
    let mut list = list.strip_prefix(b"(").and_then(|l| l.strip_suffix(b")")).unwrap_or_default();
    let mut columns = Vec::new();
    while let Some(name) = take_name(&mut list) {
        let name = unquoted(name);
        columns.push(money.iter().find(|column| column.name == name).map(|c| c.array));
        list = list.strip_prefix(b",").unwrap_or(list).trim_ascii_start();
    }
    let mut rows = BufReader::new(job.archive.data(place as usize)?.take(LOOKED_AT));
    let mut row = Vec::new();
    while amounts.len() < ASKED && rows.read_until(b'\n', &mut row).map_err(read_error)? > 0 {
        // The last one may be cut off.
        if let Some(whole) = row.strip_suffix(b"\n") {
            for (value, column) in whole.split(|b| *b == b'\t').zip(&columns) {
                note(place, value, *column, amounts);
            }
        }
        row.clear();
    }
    Ok(())
}

fn of_inserts(job: &Job, place: u32, tables: &Tables, amounts: &mut Vec<Amount>) -> Result<()> {
    let mut text = Vec::new();
    job.archive
        .data(place as usize)?
        .take(OF_INSERTS)
        .read_to_end(&mut text)
        .map_err(read_error)?;
    let namespace = job.archive.toc().entry(place as usize).namespace;
    let mut rest = &text[..];
    while let Some((statement, after)) = split_statement(rest).filter(|_| amounts.len() < ASKED) {
        rest = after;
        let Some(Inserted { table: name, columns: list, values }) = inserted(statement) else {
            continue;
        };
        let table = last_part(name);
        let schema = name[..name.len() - table.len()].strip_suffix(b".");
        let schema = schema.map_or_else(|| namespace.to_vec(), unquoted);
        let Some(money) = tables.get(&(schema, unquoted(table))) else { continue };
        for column in money {
            let number = match list.is_empty() {
                true => Some(column.number),
                false => list.iter().position(|name| unquoted(name) == column.name),
            };
            let value = number.and_then(|number| values.get(number)).map(|v| v.trim_ascii());
            let value = value.and_then(|v| v.strip_prefix(b"'")?.strip_suffix(b"'"));
            note(place, value.unwrap_or_default(), Some(column.array), amounts);
        }
    }
    Ok(())
}

/// An amount that is not zero; nothing shows in one that is.
fn note(place: u32, value: &[u8], column: Option<bool>, amounts: &mut Vec<Amount>) {
    let Some(array) = column else { return };
    // What has to be unescaped first is none of the amounts that are looked for.
    let plain = !value.contains(&b'\\') && !value.contains(&b'\'');
    if plain && amounts.len() < ASKED && value.iter().any(|b| matches!(b, b'1'..=b'9')) {
        amounts.push(Amount { place, text: value.to_vec(), array });
    }
}
