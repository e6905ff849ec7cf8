//! Rows that own what their values point to.

use super::arena::{one_value, One};
use super::{Conversion, Datums, Missing, Row, Word};
use crate::pg::slot::Slot;
use firn_format::Value;
use std::rc::Rc;

/// The words of a row: a part of who owns what they point to.
#[derive(Default)]
pub(in crate::pg) struct Words {
    pub values: Vec<Word>,
    pub nulls: Vec<bool>,
}

impl Words {
    fn of_nulls(columns: usize) -> Words {
        Words { values: vec![0; columns], nulls: vec![true; columns] }
    }
    fn lend(&self) -> Row<'_> {
        Row { values: &self.values, nulls: &self.nulls }
    }
}

/// A row without values, but for what stands for them where nobody asks for them ([`Slot::unasked`]).
#[derive(Default)]
pub struct Blank(Words);

impl Blank {
    /// All columns are NULL.
    pub fn nulls(columns: usize) -> Blank {
        Blank(Words::of_nulls(columns))
    }
    pub fn row(&self) -> Row<'_> {
        self.0.lend()
    }
    pub(in crate::pg) fn words(&mut self) -> &mut Words {
        &mut self.0
    }
}

/// Columns of a run of rows, and one of these rows.
pub struct BatchRow {
    /// The table's columns and their values; the others have what stands for them.
    columns: Vec<(usize, Datums)>,
    words: Words,
}

impl BatchRow {
    /// For a table of so many columns; they are NULL.
    pub fn new(columns: usize) -> BatchRow {
        BatchRow { columns: Vec::new(), words: Words::of_nulls(columns) }
    }

    /// Of other rows from now on.
    pub fn load(&mut self, columns: Vec<(usize, Datums)>) {
        for (i, _) in &self.columns {
            self.words.nulls[*i] = true;
        }
        self.columns = columns;
    }

    /// Go to the row of this number among them.
    #[inline]
    pub fn turn_to(&mut self, at: usize) {
        for (i, column) in &self.columns {
            (self.words.values[*i], self.words.nulls[*i]) = column.word(at);
        }
    }

    pub fn row(&self) -> Row<'_> {
        self.words.lend()
    }

    /// As [`Slot::unasked`].
    pub fn stand_in(&mut self, slot: Slot, wanted: &[bool]) {
        slot.stand_in(&mut self.words, wanted)
    }
}

/// A row, and the bytes that its values point to.
#[derive(Default)]
pub struct OwnRow {
    words: Words,
    /// What values of columns that a stripe lacks point to.
    missing: Vec<Rc<[u64]>>,
    memory: Memory,
}

/// What a row keeps its values in, for the next that does.
#[derive(Default)]
pub struct Memory {
    bytes: Vec<u8>,
    /// The bytes once more, where those do not lie as they must.
    aligned: Vec<u64>,
    /// Columns, and where in the bytes their values are.
    by_reference: Vec<(usize, usize)>,
}

impl Memory {
    /// Bytes of the largest part.
    pub fn largest(&self) -> usize {
        let references = self.by_reference.capacity() * size_of::<(usize, usize)>();
        self.bytes.capacity().max(self.aligned.capacity() * size_of::<u64>()).max(references)
    }
}

impl OwnRow {
    pub fn new(memory: Memory) -> OwnRow {
        OwnRow { memory, ..OwnRow::default() }
    }

    /// The memory, of a row that is done with.
    pub fn take_memory(&mut self) -> Memory {
        self.words = Words::default();
        let mut left = std::mem::take(&mut self.memory);
        left.bytes.clear();
        left.by_reference.clear();
        left
    }

    /// What is in the columns that are not filled.
    pub fn begin(&mut self, blank: Blank) {
        self.words = blank.0;
        self.missing.clear();
        self.forget();
    }

    /// All columns are NULL.
    pub fn clear(&mut self, columns: usize) {
        self.words.values.clear();
        self.words.values.resize(columns, 0);
        self.words.nulls.clear();
        self.words.nulls.resize(columns, true);
        self.missing.clear();
        self.forget();
    }

    fn forget(&mut self) {
        self.memory.bytes.clear();
        self.memory.by_reference.clear();
    }

    /// Fill it, all anew or with more columns. Should that fail on the way, all of it is NULL.
    #[inline]
    pub fn fill(&mut self, anew: bool) -> Filling<'_> {
        if anew {
            self.forget();
        }
        Filling { row: self }
    }

    #[inline]
    pub fn row(&self) -> Row<'_> {
        self.words.lend()
    }

    /// As [`Slot::unasked`].
    pub fn stand_in(&mut self, slot: Slot, wanted: &[bool]) {
        slot.stand_in(&mut self.words, wanted)
    }
}

/// A row that is being filled. Nobody sees it meanwhile: addresses are known once nothing moves any more. Who fills it anew gives each
/// column that he has filled before a value, or takes it out.
pub struct Filling<'a> {
    row: &'a mut OwnRow,
}

impl Filling<'_> {
    /// A column gets a value that is stored so.
    #[inline]
    pub fn put(&mut self, column: usize, value: &Value<'_>, conversion: Conversion) {
        let one = one_value(value, conversion, &mut self.row.memory.bytes);
        self.place(column, one);
    }

    /// (Of one filling a column is given one value.)
    #[inline]
    fn place(&mut self, column: usize, one: One) {
        let OwnRow { words, memory, .. } = &mut *self.row;
        words.nulls[column] = matches!(one, One::Null);
        match one {
            One::Null => words.values[column] = 0,
            One::Direct(word) => words.values[column] = word,
            One::At(offset) => memory.by_reference.push((column, offset)),
        }
    }

    /// A column gets the value that rows have which lack it.
    pub fn put_missing(&mut self, column: usize, value: &Missing) {
        let (word, null, bytes) = value.word();
        (self.row.words.values[column], self.row.words.nulls[column]) = (word, null);
        self.row.missing.extend(bytes.cloned());
    }

    /// All columns with values of [`Filling::put_missing`] will get others.
    pub fn forget_missing(&mut self) {
        self.row.missing.clear();
    }

    /// A column is NULL for now.
    #[inline]
    pub fn take_out(&mut self, column: usize) {
        self.row.words.nulls[column] = true;
    }

    /// Until the next stage, or the next row.
    #[inline]
    pub fn finish(self) {
        let mut done = std::mem::ManuallyDrop::new(self);
        let OwnRow { words, memory, .. } = &mut *done.row;
        memory.bytes.reserve(8);
        let mut base = memory.bytes.as_ptr() as usize;
        if !base.is_multiple_of(8) {
            // No allocator that is known gives such memory.
            memory.aligned.clear();
            memory.aligned.resize(memory.bytes.len().div_ceil(8), 0);
            for (word, bytes) in memory.aligned.iter_mut().zip(memory.bytes.chunks(8)) {
                let mut whole = [0; 8];
                whole[..bytes.len()].copy_from_slice(bytes);
                *word = u64::from_ne_bytes(whole);
            }
            base = memory.aligned.as_ptr() as usize;
        }
        for (column, offset) in &memory.by_reference {
            words.values[*column] = base + offset;
        }
    }
}

impl Drop for Filling<'_> {
    /// What has failed.
    fn drop(&mut self) {
        self.row.words.nulls.fill(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pg::rel::Attribute;

    /// Text of a row's column, as PostgreSQL would find it.
    fn text(row: Row<'_>, column: usize) -> Option<String> {
        let value = row.get(column)?;
        // SAFETY: these tests put texts with headers of four bytes there.
        unsafe {
            let header = *value.at::<u32>();
            let len = (header >> 2) as usize - 4;
            let bytes = std::slice::from_raw_parts(value.at::<u8>().add(4), len);
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
    }

    /// As [`Filling::put`], which knows types that cannot be tested without a server.
    fn put_text(filling: &mut Filling<'_>, column: usize, text: &str) {
        let bytes = &mut filling.row.memory.bytes;
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let at = bytes.len();
        bytes.extend_from_slice(&((text.len() as u32 + 4) << 2).to_ne_bytes());
        bytes.extend_from_slice(text.as_bytes());
        filling.place(column, One::At(at));
    }

    fn missing(length: i16, bytes: &[u8]) -> Missing {
        Missing::of(&attribute(length), bytes).unwrap_or_default()
    }

    fn attribute(length: i16) -> Attribute {
        let (name, dropped, by_value) = (String::from("c"), false, length > 0);
        let type_oid = pgrx::pg_sys::TEXTOID;
        Attribute { number: 1, name, type_oid, typmod: -1, absent: dropped, length, by_value }
    }

    #[test]
    fn rows_are_filled_in_stages() {
        let mut own = OwnRow::default();
        own.begin(Blank::nulls(3));
        for n in 0..100 {
            let long = "x".repeat(n * 100);
            let mut filling = own.fill(true);
            put_text(&mut filling, 1, "first");
            filling.take_out(2);
            filling.take_out(0);
            filling.finish();
            assert_eq!(text(own.row(), 1).as_deref(), Some("first"));
            // Not the last row's.
            assert!(own.row().get(2).is_none() && own.row().get(0).is_none());
            let mut filling = own.fill(false);
            put_text(&mut filling, 2, &long);
            filling.place(0, One::Direct(n));
            filling.finish();
            assert_eq!(text(own.row(), 1).as_deref(), Some("first"));
            assert_eq!(text(own.row(), 2), Some(long));
            assert_eq!(own.row().get(0).map(|d| d.word()), Some(n));
        }
    }

    #[test]
    fn what_fails_on_the_way_is_null() {
        let mut own = OwnRow::default();
        own.begin(Blank::nulls(2));
        let mut filling = own.fill(true);
        put_text(&mut filling, 0, "a");
        filling.finish();
        let mut filling = own.fill(true);
        put_text(&mut filling, 1, "b");
        drop(filling);
        assert!(own.row().get(0).is_none() && own.row().get(1).is_none());
    }

    #[test]
    fn defaults_outlive_their_layout() {
        let default = missing(-1, &[24, 0, 0, 0, b'o', b'k']);
        let mut own = OwnRow::default();
        own.begin(Blank::nulls(2));
        let mut filling = own.fill(true);
        filling.put_missing(1, &default);
        filling.finish();
        let mut batch = BatchRow::new(2);
        batch.load(vec![(0, Datums::constant(&default, 2))]);
        drop(default);
        batch.turn_to(1);
        assert_eq!(text(own.row(), 1).as_deref(), Some("ok"));
        assert_eq!(text(batch.row(), 0).as_deref(), Some("ok"));
        batch.turn_to(2);
        assert!(batch.row().get(0).is_none(), "there are two rows");
        let number = missing(4, &7_u64.to_le_bytes());
        batch.load(vec![(0, Datums::constant(&number, 1))]);
        assert!(batch.row().get(0).is_none(), "no row of these has been turned to");
        batch.turn_to(0);
        assert_eq!(batch.row().get(0).map(|d| d.word()), Some(7));
    }

    #[test]
    fn defaults_are_of_their_type() {
        let reads = |length, bytes: &[u8]| Missing::of(&attribute(length), bytes).is_some();
        let fixed = Attribute { by_value: false, ..attribute(16) };
        assert!(reads(-1, &[24, 0, 0, 0, b'o', b'k']) && reads(-1, &[3]) && reads(-2, b"c\0"));
        assert!(!reads(-1, &[24, 0, 0, 0, b'o']) && !reads(-1, &[]) && !reads(-2, b"c"));
        assert!(Missing::of(&fixed, &[0; 16]).is_some());
        assert!(Missing::of(&fixed, &[0; 15]).is_none());
    }

    #[test]
    fn parts_one_behind_the_other() {
        let part = |bytes: &[u8]| Datums::constant(&missing(4, bytes), 2);
        let null = Datums::constant(&Missing::default(), 1);
        let all = Datums::joined(vec![part(&[1]), null, part(&[2])]);
        let mut batch = BatchRow::new(1);
        batch.load(vec![(0, all)]);
        let values = (0..6).map(|at| {
            batch.turn_to(at);
            batch.row().get(0).map(|d| d.word())
        });
        assert_eq!(
            values.collect::<Vec<_>>(),
            [Some(1), Some(1), None, Some(2), Some(2), None],
            "the last is beyond them"
        );
    }
}
