//! Reading a table's rows out of a database that others own.
//!
//! By COPY of the tables themselves, also where rows are only counted: a query is planned, and what plans it computes
//! whatever is constant in a table's indexes and statistics. Whoever owns the table says what that is, and it would run as
//! whoever compares. (COPY takes about twice as long as `count(*)`.)

use super::super::forms::Forms;
use super::{Depth, Rows};
use crate::backup::halt::Halt;
use crate::error::Result;
use crate::pg::{quote_ident, quote_literal, Connection};
use crate::row_sum::RowSum;
use std::collections::HashMap;

/// By schema and name: the column of a table that takes the least to be sent, quoted.
pub type Columns = HashMap<(Vec<u8>, Vec<u8>), Vec<u8>>;

/// Rows between looks whether to stop.
const LOOK_EVERY: u64 = 4096;

pub fn narrowest(connection: &Connection) -> Result<Columns> {
    let rows = connection.query(
        b"SELECT DISTINCT ON (c.oid) n.nspname, c.relname, pg_catalog.quote_ident(a.attname) FROM pg_catalog.pg_class c \
          JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid \
          WHERE c.relkind IN ('r', 'f') AND c.oid >= 16384 AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' \
          ORDER BY c.oid, a.attlen < 0, a.attlen, a.attnum",
    )?;
    let cell = |row, column| rows.get(row, column).unwrap_or_default().to_vec();
    Ok((0..rows.len()).map(|row| ((cell(row, 0), cell(row, 1)), cell(row, 2))).collect())
}

/// Reads all rows of a table, in the forms that are to be compared.
pub fn read(
    connection: &Connection,
    table: &Rows,
    depth: Depth,
    columns: &Columns,
    forms: &Forms,
    halt: &Halt,
) -> Result<RowSum> {
    let mut all = RowSum::default();
    for (name, relkind) in places(connection, table)? {
        let narrow = || columns.get(&name).cloned().unwrap_or_default();
        let list = if depth == Depth::Counts { narrow() } else { table.columns.clone() };
        let quoted = [&quote_ident(&name.0)[..], b".", &quote_ident(&name.1)].concat();
        let copy = statement(&quoted, &list, &table.condition, relkind == b'f');
        all.merge(match relkind == b'f' {
            true => {
                connection.refusing("view", || copied(connection, &copy, depth, forms, halt))?
            }
            false => copied(connection, &copy, depth, forms, halt)?,
        });
    }
    Ok(all)
}

fn statement(quoted: &[u8], list: &[u8], condition: &[u8], foreign: bool) -> Vec<u8> {
    let parts: [&[u8]; 7] = match (foreign || !condition.is_empty(), list.is_empty()) {
        (true, _) => {
            [b"COPY (SELECT ", list, b" FROM ONLY ", quoted, b" ", condition, b") TO STDOUT"]
        }
        (false, true) => [b"COPY ", quoted, b"", b"", b"", b"", b" TO STDOUT"],
        (false, false) => [b"COPY ", quoted, b" (", list, b")", b"", b" TO STDOUT"],
    };
    parts.concat()
}

/// Schema and name of what has a table's rows, and its kind (`pg_class.relkind`).
type Place = ((Vec<u8>, Vec<u8>), u8);

/// Where a table's rows are: in itself, or in what is below it.
fn places(connection: &Connection, table: &Rows) -> Result<Vec<Place>> {
    if !table.below {
        let (schema, name) = match &table.name[..] {
            [schema, name] => (schema.clone(), name.clone()),
            other => (Vec::new(), other.concat()),
        };
        return Ok(vec![((schema, name), if table.foreign { b'f' } else { b'r' })]);
    }
    let name = quote_literal(&table.quoted());
    // A root that is a plain table here has nothing below it. Foreign partitions count where the archive has rows of such.
    let passed_over: &[u8] = if table.foreign { b"('p')" } else { b"('p', 'f')" };
    let sql = [
        b"SELECT n.nspname, c.relname, c.relkind FROM pg_catalog.pg_class c \
          JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind NOT IN ",
        passed_over,
        b" AND (c.oid = ",
        &name,
        b"::pg_catalog.regclass OR c.oid IN (SELECT relid FROM pg_catalog.pg_partition_tree(",
        &name,
        b"::pg_catalog.regclass))) ORDER BY c.oid",
    ]
    .concat();
    let rows = connection.query(&sql)?;
    let cell = |row, column| rows.get(row, column).unwrap_or_default().to_vec();
    let kind = |row| rows.get(row, 2).and_then(|kind| kind.first()).copied().unwrap_or(b'r');
    let places = (0..rows.len()).map(|row| ((cell(row, 0), cell(row, 1)), kind(row)));
    Ok(places.filter(|(name, _)| !table.apart.contains(name)).collect())
}

fn copied(
    connection: &Connection,
    copy: &[u8],
    depth: Depth,
    forms: &Forms,
    halt: &Halt,
) -> Result<RowSum> {
    connection.start_copy(copy)?;
    let (mut sum, mut rows) = (RowSum::default(), 0u64);
    while let Some(row) = connection.copy_row()? {
        match depth {
            Depth::Checksums => _ = sum.add_rows(&forms.row(&row)),
            Depth::Counts => rows += row.iter().filter(|byte| **byte == b'\n').count() as u64,
        }
        if (rows + sum.rows()).is_multiple_of(LOOK_EVERY) {
            halt.check()?;
        }
    }
    connection.copied()?;
    Ok(if depth == Depth::Counts { RowSum::counted(rows) } else { sum })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements() {
        let of = |list: &str, condition: &str, foreign| {
            let (list, condition) = (list.as_bytes(), condition.as_bytes());
            String::from_utf8(statement(b"\"s\".\"T\"", list, condition, foreign)).unwrap()
        };
        assert_eq!(of("a, b", "", false), "COPY \"s\".\"T\" (a, b) TO STDOUT");
        assert_eq!(of("", "", false), "COPY \"s\".\"T\" TO STDOUT");
        let condition = of("a", "WHERE a > 1", false);
        assert_eq!(condition, "COPY (SELECT a FROM ONLY \"s\".\"T\" WHERE a > 1) TO STDOUT");
        assert_eq!(of("a", "", true), "COPY (SELECT a FROM ONLY \"s\".\"T\" ) TO STDOUT");
    }
}
