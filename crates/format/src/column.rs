//! Decoded columns: row-aligned, so that the value of row r is found in one step. They lie in memory as
//! [Arrow](https://arrow.apache.org/docs/format/Columnar.html)'s arrays do: NULLs and booleans are bits, byte strings are offsets and data,
//! dictionaries are keys and values; so whoever speaks Arrow can take them as they are.

use arrow_buffer::{BooleanBuffer, BooleanBufferBuilder, NullBuffer};
use std::sync::Arc;

/// One value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    I32(i32),
    I64(i64),
    I128(i128),
    F32(f32),
    F64(f64),
    Bytes(&'a [u8]),
}

/// Byte strings one after the other; `offsets` has one entry more than there are strings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ByteColumn {
    pub offsets: Vec<u32>,
    pub data: Vec<u8>,
}

/// Values of a column, one per row (a NULL's is a default).
#[derive(Clone, Debug)]
pub enum Values {
    Bool(BooleanBuffer),
    I32(Vec<i32>),
    I64(Vec<i64>),
    I128(Vec<i128>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bytes(ByteColumn),
    /// Positions in a dictionary; every key is below the dictionary's length (0 when it is empty).
    Dict {
        keys: Vec<u32>,
        dict: Arc<Dictionary>,
    },
}

/// Distinct values of a stripe column.
#[derive(Clone, Debug)]
pub enum Dictionary {
    I32(Vec<i32>),
    I64(Vec<i64>),
    I128(Vec<i128>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bytes(ByteColumn),
}

/// A decoded run of rows of one column.
#[derive(Clone, Debug)]
pub struct Column {
    pub rows: usize,
    /// Which rows have a value; None when all have.
    pub nulls: Option<NullBuffer>,
    pub values: Values,
}

impl ByteColumn {
    pub fn new() -> ByteColumn {
        ByteColumn { offsets: vec![0], data: Vec::new() }
    }
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The bytes of entry `i`; empty when there is no such entry.
    #[inline]
    pub fn get(&self, i: usize) -> &[u8] {
        match (self.offsets.get(i), self.offsets.get(i + 1)) {
            (Some(a), Some(b)) => self.data.get(*a as usize..*b as usize).unwrap_or(&[]),
            _ => &[],
        }
    }
    pub fn push(&mut self, bytes: &[u8]) {
        if self.offsets.is_empty() {
            self.offsets.push(0);
        }
        self.data.extend_from_slice(bytes);
        self.offsets.push(self.data.len() as u32);
    }
}

impl Dictionary {
    pub fn len(&self) -> usize {
        match self {
            Dictionary::I32(v) => v.len(),
            Dictionary::I64(v) => v.len(),
            Dictionary::I128(v) => v.len(),
            Dictionary::F32(v) => v.len(),
            Dictionary::F64(v) => v.len(),
            Dictionary::Bytes(v) => v.len(),
        }
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn value(&self, key: usize) -> Value<'_> {
        match self {
            Dictionary::I32(v) => v.get(key).map_or(Value::Null, |x| Value::I32(*x)),
            Dictionary::I64(v) => v.get(key).map_or(Value::Null, |x| Value::I64(*x)),
            Dictionary::I128(v) => v.get(key).map_or(Value::Null, |x| Value::I128(*x)),
            Dictionary::F32(v) => v.get(key).map_or(Value::Null, |x| Value::F32(*x)),
            Dictionary::F64(v) => v.get(key).map_or(Value::Null, |x| Value::F64(*x)),
            Dictionary::Bytes(v) => Value::Bytes(v.get(key)),
        }
    }
    /// Memory it takes, bytes.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Dictionary::I32(v) => v.len() * 4,
            Dictionary::I64(v) => v.len() * 8,
            Dictionary::I128(v) => v.len() * 16,
            Dictionary::F32(v) => v.len() * 4,
            Dictionary::F64(v) => v.len() * 8,
            Dictionary::Bytes(v) => v.offsets.len() * 4 + v.data.len(),
        }
    }
}

/// Some of the bits, in memory of their own.
fn copied(bits: &BooleanBuffer, start: usize, end: usize) -> BooleanBuffer {
    let mut part = BooleanBufferBuilder::new(end.saturating_sub(start));
    part.append_packed_range(bits.offset() + start..bits.offset() + end.max(start), bits.values());
    part.finish()
}

/// The bits, to add others to: in their own memory if nobody else has it.
fn builder(bits: BooleanBuffer) -> BooleanBufferBuilder {
    let len = bits.len();
    if bits.offset() == 0 {
        match bits.into_inner().into_mutable() {
            Ok(own) => return BooleanBufferBuilder::new_from_buffer(own, len),
            Err(shared) => {
                let mut copy = BooleanBufferBuilder::new(len);
                copy.append_packed_range(0..len, &shared);
                return copy;
            }
        }
    }
    let mut copy = BooleanBufferBuilder::new(len);
    copy.append_buffer(&bits);
    copy
}

/// So many bits, all of them set.
fn set(rows: usize) -> BooleanBufferBuilder {
    let mut bits = BooleanBufferBuilder::new(rows);
    bits.append_n(rows, true);
    bits
}

impl Column {
    /// True where the value is NULL, row by row; nothing when none is.
    pub fn null_flags(&self) -> Vec<bool> {
        let Some(nulls) = &self.nulls else { return Vec::new() };
        let mut flags = Vec::with_capacity(nulls.len() + 64);
        let chunks = nulls.inner().bit_chunks();
        for bits in chunks.iter_padded() {
            let flag = |at: usize| bits >> at & 1 == 0;
            flags.extend_from_slice(&std::array::from_fn::<bool, 64, _>(flag));
        }
        flags.truncate(nulls.len());
        flags
    }

    /// Memory it takes, bytes; a dictionary is others' too.
    pub fn memory_bytes(&self) -> usize {
        let values = match &self.values {
            Values::Bool(v) => v.inner().capacity(),
            Values::I32(v) => v.capacity() * 4,
            Values::I64(v) => v.capacity() * 8,
            Values::I128(v) => v.capacity() * 16,
            Values::F32(v) => v.capacity() * 4,
            Values::F64(v) => v.capacity() * 8,
            Values::Bytes(v) => v.offsets.capacity() * 4 + v.data.capacity(),
            Values::Dict { keys, .. } => keys.capacity() * 4,
        };
        values + self.nulls.as_ref().map_or(0, |n| n.buffer().capacity())
    }

    /// The value of row `row`.
    pub fn value(&self, row: usize) -> Value<'_> {
        if self.is_null(row) {
            return Value::Null;
        }
        match &self.values {
            Values::Bool(v) if row < v.len() => Value::Bool(v.value(row)),
            Values::Bool(_) => Value::Null,
            Values::I32(v) => v.get(row).map_or(Value::Null, |x| Value::I32(*x)),
            Values::I64(v) => v.get(row).map_or(Value::Null, |x| Value::I64(*x)),
            Values::I128(v) => v.get(row).map_or(Value::Null, |x| Value::I128(*x)),
            Values::F32(v) => v.get(row).map_or(Value::Null, |x| Value::F32(*x)),
            Values::F64(v) => v.get(row).map_or(Value::Null, |x| Value::F64(*x)),
            Values::Bytes(v) => Value::Bytes(v.get(row)),
            Values::Dict { keys, dict } => {
                keys.get(row).map_or(Value::Null, |k| dict.value(*k as usize))
            }
        }
    }

    #[inline]
    pub fn is_null(&self, row: usize) -> bool {
        self.nulls.as_ref().is_some_and(|n| row < n.len() && n.is_null(row))
    }

    /// A copy of `len` rows from `start` on (fewer when the column ends before).
    pub fn slice(&self, start: usize, len: usize) -> Column {
        let start = start.min(self.rows);
        let end = start.saturating_add(len).min(self.rows);
        fn cut<T: Copy>(v: &[T], start: usize, end: usize) -> Vec<T> {
            v.get(start..end.min(v.len())).unwrap_or(&[]).to_vec()
        }
        let values = match &self.values {
            Values::Bool(v) => Values::Bool(copied(v, start.min(v.len()), end.min(v.len()))),
            Values::I32(v) => Values::I32(cut(v, start, end)),
            Values::I64(v) => Values::I64(cut(v, start, end)),
            Values::I128(v) => Values::I128(cut(v, start, end)),
            Values::F32(v) => Values::F32(cut(v, start, end)),
            Values::F64(v) => Values::F64(cut(v, start, end)),
            Values::Bytes(v) => {
                let mut part = ByteColumn::new();
                for i in start..end {
                    part.push(v.get(i));
                }
                Values::Bytes(part)
            }
            Values::Dict { keys, dict } => {
                Values::Dict { keys: cut(keys, start, end), dict: dict.clone() }
            }
        };
        let nulls =
            self.nulls.as_ref().map(|n| copied(n.inner(), start.min(n.len()), end.min(n.len())));
        let nulls = nulls.map(NullBuffer::new).filter(|n| n.null_count() > 0);
        Column { rows: end - start, nulls, values }
    }

    /// Append the rows of `other`, a column of the same kind. A run that is dictionary-coded and one
    /// that is not are joined as plain values.
    pub fn append(&mut self, other: &Column) {
        if self.nulls.is_some() || other.nulls.is_some() {
            let valid = |column: &mut Column| column.nulls.take().map(NullBuffer::into_inner);
            let mut bits = valid(self).map_or_else(|| set(self.rows), builder);
            match &other.nulls {
                Some(n) => bits.append_buffer(n.inner()),
                None => bits.append_n(other.rows, true),
            }
            self.nulls = Some(NullBuffer::new(bits.finish()));
        }
        let joined = match (&mut self.values, &other.values) {
            (Values::Bool(a), Values::Bool(b)) => {
                let mut bits = builder(std::mem::replace(a, BooleanBuffer::new_unset(0)));
                bits.append_buffer(b);
                *a = bits.finish();
                true
            }
            (Values::I32(a), Values::I32(b)) => {
                a.extend_from_slice(b);
                true
            }
            (Values::I64(a), Values::I64(b)) => {
                a.extend_from_slice(b);
                true
            }
            (Values::I128(a), Values::I128(b)) => {
                a.extend_from_slice(b);
                true
            }
            (Values::F32(a), Values::F32(b)) => {
                a.extend_from_slice(b);
                true
            }
            (Values::F64(a), Values::F64(b)) => {
                a.extend_from_slice(b);
                true
            }
            (Values::Bytes(a), Values::Bytes(b)) => {
                (0..b.len()).for_each(|i| a.push(b.get(i)));
                true
            }
            (Values::Dict { keys: a, dict: x }, Values::Dict { keys: b, dict: y })
                if Arc::ptr_eq(x, y) =>
            {
                a.extend_from_slice(b);
                true
            }
            _ => false,
        };
        if !joined {
            let mut plain = self.to_plain();
            plain.extend_plain(other);
            self.values = plain.values;
        }
        self.rows += other.rows;
    }

    /// The same rows without a dictionary.
    fn to_plain(&self) -> Column {
        let empty = match &self.values {
            Values::Dict { dict, .. } => match dict.as_ref() {
                Dictionary::I32(_) => Values::I32(Vec::new()),
                Dictionary::I64(_) => Values::I64(Vec::new()),
                Dictionary::I128(_) => Values::I128(Vec::new()),
                Dictionary::F32(_) => Values::F32(Vec::new()),
                Dictionary::F64(_) => Values::F64(Vec::new()),
                Dictionary::Bytes(_) => Values::Bytes(ByteColumn::new()),
            },
            other => return Column { rows: self.rows, nulls: None, values: other.clone() },
        };
        let mut plain = Column { rows: 0, nulls: None, values: empty };
        plain.extend_plain(self);
        plain
    }

    fn extend_plain(&mut self, other: &Column) {
        for row in 0..other.rows {
            let value = match &other.values {
                Values::Dict { keys, dict } => {
                    keys.get(row).map_or(Value::Null, |k| dict.value(*k as usize))
                }
                _ => Column { nulls: None, ..other.slice(row, 1) }.owned_first(&mut self.values),
            };
            match (&mut self.values, value) {
                (Values::I32(v), Value::I32(x)) => v.push(x),
                (Values::I64(v), Value::I64(x)) => v.push(x),
                (Values::I128(v), Value::I128(x)) => v.push(x),
                (Values::F32(v), Value::F32(x)) => v.push(x),
                (Values::F64(v), Value::F64(x)) => v.push(x),
                (Values::Bytes(v), Value::Bytes(x)) => v.push(x),
                // A NULL's key into an empty dictionary.
                (target, Value::Null) if matches!(other.values, Values::Dict { .. }) => {
                    match target {
                        // A boolean has no dictionary.
                        Values::Bool(_) => (),
                        Values::I32(v) => v.push(0),
                        Values::I64(v) => v.push(0),
                        Values::I128(v) => v.push(0),
                        Values::F32(v) => v.push(0.0),
                        Values::F64(v) => v.push(0.0),
                        Values::Bytes(v) => v.push(&[]),
                        Values::Dict { .. } => (),
                    }
                }
                _ => (),
            }
        }
    }

    /// Push the first row's plain value into `target`; nothing remains to be pushed by the caller.
    fn owned_first(&self, target: &mut Values) -> Value<'static> {
        match (target, &self.values) {
            (Values::I32(v), Values::I32(x)) => v.extend_from_slice(x),
            (Values::I64(v), Values::I64(x)) => v.extend_from_slice(x),
            (Values::I128(v), Values::I128(x)) => v.extend_from_slice(x),
            (Values::F32(v), Values::F32(x)) => v.extend_from_slice(x),
            (Values::F64(v), Values::F64(x)) => v.extend_from_slice(x),
            (Values::Bytes(v), Values::Bytes(x)) => (0..x.len()).for_each(|i| v.push(x.get(i))),
            _ => (),
        }
        Value::Null
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn column(cells: &[Option<bool>]) -> Column {
        let nulls = cells.contains(&None);
        Column {
            rows: cells.len(),
            nulls: nulls.then(|| cells.iter().map(Option::is_some).collect()),
            values: Values::Bool(cells.iter().map(|c| c.unwrap_or_default()).collect()),
        }
    }

    fn cells(column: &Column) -> Vec<Option<bool>> {
        let cell = |row| match column.value(row) {
            Value::Bool(x) => Some(x),
            _ => None,
        };
        (0..column.rows).map(cell).collect()
    }

    proptest! {
        /// Parts of columns, put together again, whoever else has what they are parts of: bits begin anywhere within a byte.
        #[test]
        fn bits_are_cut_and_joined(
            cells_ in prop::collection::vec(prop::option::weighted(0.9, any::<bool>()), 0..300),
            cuts in prop::collection::vec((0usize..320, 0usize..320), 0..6),
            shared in any::<bool>(),
        ) {
            let whole = column(&cells_);
            let mut joined = column(&[]);
            let mut expected = Vec::new();
            let mut others = Vec::new();
            for (start, len) in cuts {
                let part = whole.slice(start, len);
                let end = start.saturating_add(len).min(cells_.len());
                let of_part = cells_.get(start..end).unwrap_or(&[]);
                prop_assert_eq!(cells(&part), of_part);
                prop_assert_eq!(part.nulls.is_some(), of_part.contains(&None));
                if shared {
                    others.push((joined.clone(), expected.clone()));
                }
                joined.append(&part);
                expected.extend_from_slice(of_part);
                prop_assert_eq!(cells(&joined), expected.clone());
                let flags: Vec<bool> = expected.iter().map(Option::is_none).collect();
                prop_assert_eq!(joined.null_flags(), if joined.nulls.is_some() { flags } else { Vec::new() });
            }
            for (other, before) in others {
                prop_assert_eq!(cells(&other), before);
            }
        }
    }
}
