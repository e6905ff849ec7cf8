//! A kind of question to the catalogs, asked for many entries at once.

use crate::pg::quote_literal;

/// Questions in one statement.
pub const CHUNK: usize = 2000;

/// A kind of question: rows of values, and the query that answers the first value of those that are not as they should
/// be, with what is wrong.
pub struct Questions {
    /// Names of the values, the first of which is the entry's place.
    pub columns: &'static str,
    /// From `asked`.
    pub query: String,
    pub rows: Vec<(u32, Vec<u8>)>,
}

impl Questions {
    pub fn new(columns: &'static str, query: impl Into<String>) -> Questions {
        Questions { columns, query: query.into(), rows: Vec::new() }
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
