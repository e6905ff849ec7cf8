//! What there is to copy, and in which order.

use crate::archive::rewrite::DataEntry;
use crate::error::{Error, Result};
use crate::pg::quote_ident;

/// A table to copy.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its place among the entries with data.
    pub place: usize,
    pub oid: u32,
    relkind: u8,
    /// All rows of an ordinary table.
    plain: bool,
    /// Its name for SQL, with its schema's.
    pub quoted: Vec<u8>,
    /// Without end of statement.
    pub copy: Vec<u8>,
    /// Bytes that the server believes it to have.
    pub weight: u64,
}

impl Table {
    /// `copy_stmt` is the archive's `COPY … FROM stdin`; `condition` restricts the rows (empty: all).
    pub fn new(
        place: usize,
        entry: &DataEntry,
        copy_stmt: &[u8],
        relkind: u8,
        condition: &[u8],
    ) -> Result<Table> {
        let quoted = [&quote_ident(&entry.namespace)[..], b".", &quote_ident(&entry.name)].concat();
        let (_, columns) = copy_target(copy_stmt).ok_or_else(|| {
            Error::archive(format!(
                "could not make out the columns of \"{}\"",
                String::from_utf8_lossy(copy_stmt).trim_end()
            ))
        })?;
        let copy = if condition.is_empty() && relkind != b'f' {
            [b"COPY ", &quoted[..], b" ", columns, b" TO STDOUT"].concat()
        } else {
            let list = columns.strip_prefix(b"(").and_then(|c| c.strip_suffix(b")"));
            let list = list.unwrap_or(b"");
            [b"COPY (SELECT ", list, b" FROM ONLY ", &quoted, b" ", condition, b") TO STDOUT"]
                .concat()
        };
        let plain = condition.is_empty() && relkind == b'r';
        Ok(Table { place, oid: entry.oid, relkind, plain, quoted, copy, weight: 0 })
    }

    /// Foreign tables cannot be locked; what they show is not the server's to hold.
    pub fn lockable(&self) -> bool {
        self.relkind != b'f'
    }

    /// An ordinary table of which all rows are copied.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// Its name for people.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.quoted).into_owned()
    }
}

/// All tables to copy.
#[derive(Debug, Default)]
pub struct Tables {
    pub list: Vec<Table>,
}

/// The name of a `COPY name (columns) FROM stdin;` in its parts, and the column list in parentheses, which is empty
/// for a table without columns.
pub fn copy_target(copy_stmt: &[u8]) -> Option<(Vec<Vec<u8>>, &[u8])> {
    let mut rest = copy_stmt.strip_prefix(b"COPY ")?;
    let mut name = Vec::new();
    loop {
        let after = skip_identifier(rest)?;
        name.push(unquoted(&rest[..rest.len() - after.len()]));
        rest = after;
        match rest.strip_prefix(b".") {
            Some(next) => rest = next,
            None => break,
        }
    }
    let columns = rest.trim_ascii().strip_suffix(b"FROM stdin;").map(<[u8]>::trim_ascii)?;
    Some((name, columns))
}

/// An identifier without its quotes.
fn unquoted(identifier: &[u8]) -> Vec<u8> {
    let inner = identifier.strip_prefix(b"\"").and_then(|i| i.strip_suffix(b"\""));
    let Some(inner) = inner else { return identifier.to_vec() };
    let mut name = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(&byte) = bytes.next() {
        name.push(byte);
        if byte == b'"' {
            bytes.next();
        }
    }
    name
}

/// What follows the identifier at the beginning.
fn skip_identifier(text: &[u8]) -> Option<&[u8]> {
    let Some(mut rest) = text.strip_prefix(b"\"") else {
        let end = text.iter().position(|c| b" .(".contains(c))?;
        return (end > 0).then_some(&text[end..]);
    };
    loop {
        let end = rest.iter().position(|&c| c == b'"')?;
        rest = &rest[end + 1..];
        match rest.strip_prefix(b"\"") {
            Some(next) => rest = next,
            None => return Some(rest),
        }
    }
}

/// A piece of work for one connection.
#[derive(Clone, Debug)]
pub enum Task {
    Table(Table),
    /// Some large objects, all of the list at a place among the entries with data.
    Objects {
        oids: Vec<u32>,
        weight: u64,
    },
}

impl Task {
    pub fn weight(&self) -> u64 {
        match self {
            Task::Table(table) => table.weight,
            Task::Objects { weight, .. } => *weight,
        }
    }

    pub fn shown(&self) -> String {
        match self {
            Task::Table(table) => table.shown(),
            Task::Objects { oids, .. } => format!("{} large objects", oids.len()),
        }
    }
}

/// Large objects that are copied by one task.
const OBJECTS_PER_TASK: usize = 200;

/// All tasks, the heaviest first, so that none of the long ones is left alone at the end.
pub fn tasks(tables: Tables, objects: &[u32], objects_bytes: u64) -> Vec<Task> {
    let mut tasks: Vec<Task> = tables.list.into_iter().map(Task::Table).collect();
    let each = objects_bytes / (objects.len() as u64).max(1);
    for oids in objects.chunks(OBJECTS_PER_TASK) {
        tasks.push(Task::Objects { oids: oids.to_vec(), weight: each * oids.len() as u64 });
    }
    tasks.sort_by_key(|task| std::cmp::Reverse(task.weight()));
    tasks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::rewrite::Content;

    #[test]
    fn column_lists() {
        for (statement, expected) in [
            ("COPY public.t (a, b) FROM stdin;\n", "(a, b)"),
            ("COPY public.t  FROM stdin;\n", ""),
            (
                "COPY \"a.b \"\" (\".\"(c)\" (\"x)\", \"FROM stdin;\") FROM stdin;\n",
                "(\"x)\", \"FROM stdin;\")",
            ),
            ("COPY s.\"T\" (\"a\") FROM stdin;\n", "(\"a\")"),
        ] {
            let (_, columns) = copy_target(statement.as_bytes()).unwrap();
            assert_eq!(columns, expected.as_bytes(), "{statement}");
        }
        for bad in
            ["", "COPY ", "COPY t", "COPY \"t (a) FROM stdin;", "INSERT INTO t", "COPY t (a) TO x;"]
        {
            assert_eq!(copy_target(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn names_of_targets() {
        let (name, _) = copy_target(b"COPY \"a.b \"\" (\".\"(c)\" FROM stdin;\n").unwrap();
        assert_eq!(name, [&b"a.b \" ("[..], b"(c)"]);
        let (name, _) = copy_target(b"COPY public.t_1 (x) FROM stdin;\n").unwrap();
        assert_eq!(name, [&b"public"[..], b"t_1"]);
    }

    fn table(relkind: u8, columns: &str, condition: &str) -> String {
        let copy_stmt = format!("COPY s.\"T\" {columns} FROM stdin;\n").into_bytes();
        let entry = DataEntry {
            dump_id: 1,
            oid: 2,
            namespace: b"s".to_vec(),
            name: b"T".to_vec(),
            content: Content::Table { copy_stmt: copy_stmt.clone() },
            file: "1.dat".into(),
        };
        let table = Table::new(0, &entry, &copy_stmt, relkind, condition.as_bytes()).unwrap();
        String::from_utf8(table.copy).unwrap()
    }

    #[test]
    fn statements() {
        assert_eq!(table(b'r', "(a, b)", ""), "COPY \"s\".\"T\" (a, b) TO STDOUT");
        assert_eq!(table(b'r', "", ""), "COPY \"s\".\"T\"  TO STDOUT");
        assert_eq!(
            table(b'r', "(a, b)", "WHERE a > 1"),
            "COPY (SELECT a, b FROM ONLY \"s\".\"T\" WHERE a > 1) TO STDOUT"
        );
        assert_eq!(table(b'f', "(a)", ""), "COPY (SELECT a FROM ONLY \"s\".\"T\" ) TO STDOUT");
    }

    #[test]
    fn the_heaviest_first() {
        let oids: Vec<u32> = (1..=450).collect();
        let tasks = tasks(Tables::default(), &oids, 4500);
        let weights: Vec<u64> = tasks.iter().map(Task::weight).collect();
        assert_eq!(weights, [2000, 2000, 500]);
    }
}
