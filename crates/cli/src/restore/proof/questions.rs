//! A kind of question to the catalogs, asked for many entries at once.

use crate::pg::quote_literal;

/// Questions in one statement.
pub const CHUNK: usize = 2000;

/// A kind of question: rows of values, and the query that answers the first value of those that are not as they should
/// be, with what is wrong.
pub struct Questions {
    /// Names of the values, the first of which is the entry's place. `x::name` is an identifier, which the server may have cut: see
    /// [`Questions::asked`].
    columns: &'static str,
    /// From `asked`.
    pub query: String,
    pub rows: Vec<(u32, Vec<u8>)>,
}

impl Questions {
    pub fn new(columns: &'static str, query: impl Into<String>) -> Questions {
        Questions { columns, query: query.into(), rows: Vec::new() }
    }

    /// Some rows as `asked`. The archive's names are those of its database: where the target's encoding needs more bytes for them the
    /// server cuts them in every statement, as it does in a cast.
    pub fn asked(&self, rows: &[(u32, Vec<u8>)]) -> Vec<u8> {
        let rows: Vec<&[u8]> = rows.iter().map(|(_, row)| &row[..]).collect();
        let columns = || self.columns.split(", ");
        let names: Vec<_> = columns().map(|c| c.split("::").next().unwrap_or(c)).collect();
        let values: Vec<_> = columns()
            .map(|column| match column.strip_suffix("::name") {
                Some(name) => format!("{name}::pg_catalog.name"),
                None => column.to_string(),
            })
            .collect();
        let before =
            format!("asked({0}) AS (SELECT {1} FROM (VALUES ", names.join(", "), values.join(", "));
        let after = format!(") given({}))", names.join(", "));
        [before.as_bytes(), &rows.join(&b", "[..]), after.as_bytes()].concat()
    }

    pub fn ask(&mut self, place: u32, values: &[&[u8]]) {
        let literals: Vec<Vec<u8>> = values.iter().map(|v| quote_literal(v)).collect();
        let row = [format!("({place}, ").as_bytes(), &literals.join(&b", "[..]), b")"].concat();
        self.rows.push((place, row));
    }

    /// The same, with a number as the last value.
    pub fn ask_with(&mut self, place: u32, values: &[&[u8]], number: u32) {
        self.ask(place, values);
        if let Some((_, row)) = self.rows.last_mut() {
            row.pop();
            row.extend_from_slice(format!(", {number})").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_by_the_server() {
        let mut questions = Questions::new("n, name, part::name", "");
        questions.ask(7, &[b"s.t", b"it's"]);
        let asked = String::from_utf8(questions.asked(&questions.rows)).unwrap();
        assert_eq!(
            asked,
            "asked(n, name, part) AS (SELECT n, name, part::pg_catalog.name FROM (VALUES (7, 's.t', 'it''s')) given(n, name, part))"
        );
    }
}
