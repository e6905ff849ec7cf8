//! From decoded columns to PostgreSQL datums, whole columns at a time and without PostgreSQL's
//! memory: by-reference values live in an arena beside the datums.

use super::{form_numeric, Conversion, Missing, Word, EPOCH_DAYS, EPOCH_MICROS};
use crate::pg::json::push_jsonb;
use crate::pg::jsonb::Fields;
use firn_format::{ByteColumn, Column, Dictionary, Value, Values};
use std::rc::Rc;

/// Datums of one column for a run of rows, with what they point to.
#[derive(Default)]
pub struct Datums {
    values: Vec<Word>,
    /// True = NULL; empty when there is none.
    nulls: Vec<bool>,
    owner: Owner,
}

/// What owns the bytes that datums point to: they are only kept.
#[derive(Default)]
enum Owner {
    /// There are none.
    #[default]
    Nobody,
    Arena(Arena),
    Dictionary(#[allow(dead_code)] Rc<Datums>),
    Missing(#[allow(dead_code)] Missing),
    /// Several columns one behind the other.
    Parts(#[allow(dead_code)] Vec<Owner>),
}

impl Datums {
    /// The word in a row, and whether it is NULL.
    #[inline]
    pub(super) fn word(&self, row: usize) -> (Word, bool) {
        match self.values.get(row) {
            Some(word) => (*word, self.nulls.get(row).copied().unwrap_or(false)),
            None => (0, true),
        }
    }
    /// The words, and which of them are NULL, or null when none is: for who copies them into PostgreSQL's arrays, and holds this for as long
    /// as they are looked at there.
    pub(crate) fn as_raw(&self) -> (*const Word, *const bool) {
        let nulls = if self.nulls.is_empty() { std::ptr::null() } else { self.nulls.as_ptr() };
        (self.values.as_ptr(), nulls)
    }
    pub fn memory_bytes(&self) -> usize {
        let arena = match &self.owner {
            Owner::Arena(arena) => arena.bytes.len(),
            _ => 0,
        };
        self.values.len() * 8 + self.nulls.len() + arena
    }
    /// The same value in every row.
    pub fn constant(value: &Missing, rows: usize) -> Datums {
        let (word, null, _) = value.word();
        Datums {
            values: vec![word; rows],
            nulls: if null { vec![true; rows] } else { Vec::new() },
            owner: Owner::Missing(value.clone()),
        }
    }
    /// Those of each part, one behind the other.
    pub fn joined(parts: Vec<Datums>) -> Datums {
        let mut all = Datums::default();
        let mut owners = Vec::with_capacity(parts.len());
        for part in parts {
            let some_are_null = part.nulls.contains(&true);
            if some_are_null || !all.nulls.is_empty() {
                all.nulls.resize(all.values.len(), false);
                all.nulls.extend_from_slice(&part.nulls);
                all.nulls.resize(all.values.len() + part.values.len(), false);
            }
            all.values.extend_from_slice(&part.values);
            owners.push(part.owner);
        }
        all.owner = Owner::Parts(owners);
        all
    }
}

/// Which rows of a decoded column are wanted.
#[derive(Clone, Copy)]
pub enum Rows<'a> {
    All,
    Some(&'a [u32]),
}

impl Rows<'_> {
    pub fn len(&self, all: usize) -> usize {
        match self {
            Rows::All => all,
            Rows::Some(rows) => rows.len(),
        }
    }
    #[inline]
    fn map<T>(&self, all: usize, mut f: impl FnMut(usize) -> T) -> Vec<T> {
        match self {
            Rows::All => (0..all).map(f).collect(),
            Rows::Some(rows) => rows.iter().map(|r| f(*r as usize)).collect(),
        }
    }
}

/// Bytes that do not move, handed out in pieces aligned to 8.
#[derive(Default)]
struct Arena {
    bytes: Vec<u8>,
}

/// Collects by-reference values; addresses are known at the end.
struct ArenaBuilder {
    bytes: Vec<u8>,
    offsets: Vec<usize>,
}

impl ArenaBuilder {
    fn with_capacity(values: usize, bytes: usize) -> ArenaBuilder {
        ArenaBuilder {
            // Room for alignment of the base and of every value.
            bytes: Vec::with_capacity(bytes + 12 * values + 16),
            offsets: Vec::with_capacity(values),
        }
    }
    fn align(&mut self) {
        let rest = self.bytes.len() % 8;
        if rest != 0 {
            self.bytes.resize(self.bytes.len() + 8 - rest, 0);
        }
        self.offsets.push(self.bytes.len());
    }
    fn raw(&mut self, value: &[u8]) {
        self.align();
        self.bytes.extend_from_slice(value);
    }
    /// As many bytes as the type has are looked at, whatever is stored.
    fn fixed(&mut self, value: &[u8], len: u16) {
        self.raw(value);
        pad(&mut self.bytes, value.len(), len);
    }
    fn varlena(&mut self, payload: &[u8]) {
        self.align();
        self.bytes.extend_from_slice(&(((payload.len() + 4) as u32) << 2).to_le_bytes());
        self.bytes.extend_from_slice(payload);
    }
    fn numeric(&mut self, value: i128, scale: u8) {
        self.align();
        form_numeric(value, scale, &mut self.bytes);
    }
    fn finish(mut self) -> (Vec<Word>, Arena) {
        let misaligned = self.bytes.as_ptr() as usize % 8;
        if misaligned != 0 {
            // The allocator aligns to 8 and more in practice; if not, shift the contents once.
            let shift = 8 - misaligned;
            self.bytes.reserve(16);
            let again = self.bytes.as_ptr() as usize % 8;
            let shift = if again == 0 { 0 } else { shift.max(8 - again) };
            self.bytes.splice(0..0, std::iter::repeat_n(0, shift));
            for o in &mut self.offsets {
                *o += shift;
            }
        }
        let base = self.bytes.as_ptr() as usize;
        let values = self.offsets.iter().map(|o| base + o).collect();
        (values, Arena { bytes: self.bytes })
    }
}

fn pad(bytes: &mut Vec<u8>, stored: usize, len: u16) {
    if let Some(rest @ 1..) = usize::from(len).checked_sub(stored) {
        bytes.resize(bytes.len() + rest, 0);
    }
}

#[inline]
fn date(days: i32) -> Word {
    let v = match days {
        i32::MIN | i32::MAX => days,
        d => d.wrapping_sub(EPOCH_DAYS),
    };
    // PostgreSQL widens all integers of four bytes with their sign, and compares images of datums.
    v as i64 as Word
}

/// PostgreSQL's number of a stored point in time.
#[inline]
pub fn timestamp(micros: i64) -> i64 {
    match micros {
        i64::MIN | i64::MAX => micros,
        m => m.wrapping_sub(EPOCH_MICROS),
    }
}

#[inline]
fn int32(conversion: Conversion, v: i32) -> Word {
    match conversion {
        Conversion::Date => date(v),
        Conversion::Int16 => v as i16 as i64 as Word,
        Conversion::Int8 => v as i8 as i64 as Word,
        // Unsigned ones, too: that is how they come out of a heap tuple.
        _ => v as i64 as Word,
    }
}

#[inline]
fn int64(conversion: Conversion, v: i64) -> Word {
    if conversion == Conversion::Timestamp {
        timestamp(v) as Word
    } else {
        v as Word
    }
}

/// As PostgreSQL makes the datum, with its sign: there are those who compare all of it.
#[inline]
fn float4(v: f32) -> Word {
    v.to_bits() as i32 as i64 as Word
}

fn numeric_scale(conversion: Conversion) -> Option<u8> {
    match conversion {
        Conversion::Numeric { scale } => Some(scale),
        _ => None,
    }
}

fn by_reference(
    count: usize,
    bytes: usize,
    mut add: impl FnMut(&mut ArenaBuilder),
) -> (Vec<Word>, Arena) {
    let mut arena = ArenaBuilder::with_capacity(count, bytes);
    add(&mut arena);
    arena.finish()
}

fn bytes_datums(
    column: &ByteColumn,
    (conversion, fields): (Conversion, Option<&Fields>),
    is_null: impl Fn(usize) -> bool,
    rows: Rows<'_>,
    all: usize,
) -> (Vec<Word>, Arena) {
    let count = rows.len(all);
    let one = |arena: &mut ArenaBuilder, row: usize| {
        if is_null(row) {
            arena.align();
            return;
        }
        let value = column.get(row);
        match conversion {
            Conversion::Fixed(n) => arena.fixed(value, n),
            Conversion::CString => {
                arena.raw(value);
                arena.bytes.push(0);
            }
            Conversion::Jsonb => {
                arena.align();
                push_jsonb(value, fields, &mut arena.bytes);
            }
            _ => arena.varlena(value),
        }
    };
    let bytes = match fields {
        Some(_) => 64 * count,
        None => column.data.len() * count / all.max(1),
    };
    by_reference(count, bytes, |arena| match rows {
        Rows::All => (0..all).for_each(|r| one(arena, r)),
        Rows::Some(list) => list.iter().for_each(|r| one(arena, *r as usize)),
    })
}

/// Datums of the wanted rows of a decoded column. `dictionary` gives the datums of the column's
/// dictionary, made once per stripe. Of documents, these fields are enough, if any are given.
pub fn column_datums(
    column: &Column,
    (conversion, fields): (Conversion, Option<&Fields>),
    rows: Rows<'_>,
    dictionary: impl FnOnce(&Dictionary) -> Rc<Datums>,
) -> Datums {
    let all = column.rows;
    let mut owner = Owner::Nobody;
    let values = match &column.values {
        Values::Bool(v) => rows.map(all, |r| Word::from(v.value(r))),
        Values::I32(v) => match conversion {
            Conversion::Int32 => rows.map(all, |r| v[r] as i64 as Word),
            c => rows.map(all, |r| int32(c, v[r])),
        },
        Values::I64(v) => match numeric_scale(conversion) {
            Some(scale) => {
                let (d, a) = by_reference(rows.len(all), rows.len(all) * 16, |arena| match rows {
                    Rows::All => v.iter().for_each(|x| arena.numeric(i128::from(*x), scale)),
                    Rows::Some(list) => {
                        list.iter().for_each(|r| arena.numeric(i128::from(v[*r as usize]), scale))
                    }
                });
                owner = Owner::Arena(a);
                d
            }
            None => rows.map(all, |r| int64(conversion, v[r])),
        },
        Values::I128(v) => {
            let scale = numeric_scale(conversion).unwrap_or(0);
            let (d, a) = by_reference(rows.len(all), rows.len(all) * 24, |arena| match rows {
                Rows::All => v.iter().for_each(|x| arena.numeric(*x, scale)),
                Rows::Some(list) => list.iter().for_each(|r| arena.numeric(v[*r as usize], scale)),
            });
            owner = Owner::Arena(a);
            d
        }
        Values::F32(v) => rows.map(all, |r| float4(v[r])),
        Values::F64(v) => rows.map(all, |r| v[r].to_bits() as Word),
        Values::Bytes(v) => {
            let how = (conversion, fields);
            let (d, a) = bytes_datums(v, how, |row| column.is_null(row), rows, all);
            owner = Owner::Arena(a);
            d
        }
        Values::Dict { keys, dict } => {
            let known = dictionary(dict);
            let d = rows.map(all, |r| known.values.get(keys[r] as usize).copied().unwrap_or(0));
            owner = Owner::Dictionary(known);
            d
        }
    };
    let nulls = match (&column.nulls, rows) {
        (None, _) => Vec::new(),
        (Some(_), Rows::All) => column.null_flags(),
        (Some(n), Rows::Some(_)) => rows.map(all, |r| n.is_null(r)),
    };
    Datums { values, nulls, owner }
}

/// Datums of all values of a dictionary.
pub fn dictionary_datums(dictionary: &Dictionary, conversion: Conversion) -> Datums {
    let (values, arena) = match dictionary {
        Dictionary::I32(v) => (v.iter().map(|x| int32(conversion, *x)).collect(), Arena::default()),
        Dictionary::I64(v) => match numeric_scale(conversion) {
            Some(scale) => by_reference(v.len(), v.len() * 16, |arena| {
                v.iter().for_each(|x| arena.numeric(i128::from(*x), scale))
            }),
            None => (v.iter().map(|x| int64(conversion, *x)).collect(), Arena::default()),
        },
        Dictionary::I128(v) => {
            let scale = numeric_scale(conversion).unwrap_or(0);
            by_reference(v.len(), v.len() * 24, |arena| {
                v.iter().for_each(|x| arena.numeric(*x, scale))
            })
        }
        Dictionary::F32(v) => (v.iter().map(|x| float4(*x)).collect(), Arena::default()),
        Dictionary::F64(v) => (v.iter().map(|x| x.to_bits() as Word).collect(), Arena::default()),
        Dictionary::Bytes(v) => bytes_datums(v, (conversion, None), |_| false, Rows::All, v.len()),
    };
    Datums { values, nulls: Vec::new(), owner: Owner::Arena(arena) }
}

/// One value as a word, its bytes (if by reference) appended to `out` with the offset noted.
pub(super) enum One {
    Null,
    Direct(Word),
    /// Offset in the buffer of a value by reference.
    At(usize),
}

/// Convert a single value; by-reference ones go to `out`, 8-aligned relative to its start.
pub(super) fn one_value(value: &Value<'_>, conversion: Conversion, out: &mut Vec<u8>) -> One {
    let rest = out.len() % 8;
    let mut start = || {
        if rest != 0 {
            out.resize(out.len() + 8 - rest, 0);
        }
        out.len()
    };
    match value {
        Value::Null => One::Null,
        Value::Bool(b) => One::Direct(Word::from(*b)),
        Value::I32(v) => One::Direct(int32(conversion, *v)),
        Value::F32(v) => One::Direct(float4(*v)),
        Value::F64(v) => One::Direct(v.to_bits() as Word),
        Value::I64(v) => match numeric_scale(conversion) {
            Some(scale) => {
                let at = start();
                form_numeric(i128::from(*v), scale, out);
                One::At(at)
            }
            None => One::Direct(int64(conversion, *v)),
        },
        Value::I128(v) => {
            let at = start();
            form_numeric(*v, numeric_scale(conversion).unwrap_or(0), out);
            One::At(at)
        }
        Value::Bytes(bytes) => {
            let at = start();
            match conversion {
                Conversion::Fixed(n) => {
                    out.extend_from_slice(bytes);
                    pad(out, bytes.len(), n);
                }
                Conversion::CString => {
                    out.extend_from_slice(bytes);
                    out.push(0);
                }
                Conversion::Jsonb => push_jsonb(bytes, None, out),
                _ => {
                    out.extend_from_slice(&(((bytes.len() + 4) as u32) << 2).to_le_bytes());
                    out.extend_from_slice(bytes);
                }
            }
            One::At(at)
        }
    }
}
