//! Parts of a stripe that are read as a whole.

use firn_format::StripeMeta;

/// What a piece is of its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    Dictionary,
    /// The data page of this number.
    Page(usize),
}

/// A range of a stripe's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The stripe's column.
    pub column: usize,
    pub part: Part,
    /// Bytes from the stripe's beginning.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Piece {
    /// A data page; None when there is no such page.
    pub fn page(meta: &StripeMeta, column: usize, number: usize) -> Option<Piece> {
        let at = meta.pages(column).get(number)?;
        Some(Piece { column, part: Part::Page(number), offset: at.offset, len: at.len })
    }

    /// A column's dictionary; None when it has none.
    pub fn dictionary(meta: &StripeMeta, column: usize) -> Option<Piece> {
        let (offset, len) = meta.dictionary(column)?;
        Some(Piece { column, part: Part::Dictionary, offset, len })
    }
}

/// The pages of a column that single rows (ascending numbers) are on, each with the rows' numbers within it.
pub fn pages_of(meta: &StripeMeta, column: usize, rows: &[u32]) -> Vec<(usize, Vec<u32>)> {
    let mut pages: Vec<(usize, Vec<u32>)> = Vec::new();
    for row in rows {
        let number = meta.page_of(column, *row);
        let first = meta.pages(column).get(number).map_or(0, |p| p.first_row);
        let within = row.saturating_sub(first);
        match pages.last_mut() {
            Some((last, rows)) if *last == number => rows.push(within),
            _ => pages.push((number, vec![within])),
        }
    }
    pages
}
