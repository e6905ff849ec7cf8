//! Filters: conditions on columns that prune by zone maps and select rows of decoded columns.

use std::cmp::Ordering;
use std::sync::Arc;

mod evaluate;
mod prune;
#[cfg(test)]
mod tests;

/// A comparison with a constant on its right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompareOp {
    Lt,
    Le,
    Eq,
    Ne,
    Ge,
    Gt,
}

/// A value that columns are compared with.
#[derive(Clone, PartialEq, Debug)]
pub enum Constant {
    /// For booleans (0 and 1), integers, oids, dates, timestamps, times and decimals (scaled to the
    /// column's scale).
    I64(i64),
    /// For decimals beyond 18 digits.
    I128(i128),
    /// For floats; NaN is equal to itself and above every number, as in PostgreSQL.
    F64(f64),
    /// For text, JSON, bytes and uuids; ordered byte by byte.
    Bytes(Vec<u8>),
}

impl Constant {
    /// The order of constants of one kind, which is that of the values compared with them; None for two
    /// of different kinds.
    fn order(&self, other: &Constant) -> Option<Ordering> {
        match (self, other) {
            (Constant::I64(a), Constant::I64(b)) => Some(a.cmp(b)),
            (Constant::I128(a), Constant::I128(b)) => Some(a.cmp(b)),
            (Constant::F64(a), Constant::F64(b)) => Some(float_key(*a).cmp(&float_key(*b))),
            (Constant::Bytes(a), Constant::Bytes(b)) => Some(a.cmp(b)),
            _ => None,
        }
    }
}

/// Constants of which a value may equal any.
#[derive(Clone, PartialEq, Debug)]
pub struct Set {
    values: Vec<Constant>,
    /// All are of one kind, ascending and distinct.
    is_sorted: bool,
    /// Where all are [`Constant::I64`].
    integers: Option<Integers>,
}

/// Distinct integers, ascending.
#[derive(Clone, PartialEq, Debug)]
struct Integers {
    values: Vec<i64>,
    /// A bit for each number from the first value on, where they are close together.
    bits: Vec<u64>,
}

impl Integers {
    fn of(values: &[Constant]) -> Option<Integers> {
        let integer = |v: &Constant| match v {
            Constant::I64(x) => Some(*x),
            _ => None,
        };
        let values: Vec<i64> = values.iter().map(integer).collect::<Option<_>>()?;
        let (first, last) = (*values.first()?, *values.last()?);
        let range = last.abs_diff(first);
        let mut bits = Vec::new();
        if range < 64 * values.len() as u64 + 65_536 {
            bits.resize(range as usize / 64 + 1, 0_u64);
            for place in values.iter().map(|v| v.abs_diff(first) as usize) {
                if let Some(word) = bits.get_mut(place / 64) {
                    *word |= 1 << (place % 64);
                }
            }
        }
        Some(Integers { values, bits })
    }

    #[inline]
    fn contains(&self, value: i64) -> bool {
        if self.bits.is_empty() {
            return self.values.binary_search(&value).is_ok();
        }
        let place = value.wrapping_sub(self.values.first().copied().unwrap_or(0)) as u64;
        self.bits.get((place / 64) as usize).is_some_and(|word| word >> (place % 64) & 1 != 0)
    }
}

impl Set {
    pub fn new(mut values: Vec<Constant>) -> Set {
        let is_sorted = match values.first() {
            Some(first) => values.iter().all(|v| v.order(first).is_some()),
            None => true,
        };
        if is_sorted {
            values.sort_unstable_by(|a, b| a.order(b).unwrap_or(Ordering::Equal));
            values.dedup_by(|a, b| a.order(b) == Some(Ordering::Equal));
        }
        let integers = if is_sorted { Integers::of(&values) } else { None };
        Set { values, is_sorted, integers }
    }

    /// They are byte strings in order.
    fn is_of_bytes(&self) -> bool {
        self.is_sorted && matches!(self.values.first(), Some(Constant::Bytes(_)))
    }

    #[inline]
    fn has_integer(&self, value: i64) -> bool {
        self.integers.as_ref().is_some_and(|integers| integers.contains(value))
    }

    /// These bytes are among its constants, which are byte strings in order.
    fn has(&self, bytes: &[u8]) -> bool {
        let order = |value: &Constant| match value {
            Constant::Bytes(value) => value.as_slice().cmp(bytes),
            _ => Ordering::Less,
        };
        self.values.binary_search_by(order).is_ok()
    }

    /// Its constants; each of them once if they are of one kind.
    pub fn values(&self) -> &[Constant] {
        &self.values
    }
}

/// A condition on a row. Columns are numbered as the caller likes.
#[derive(Clone, PartialEq, Debug)]
pub enum Filter {
    True,
    And(Vec<Filter>),
    Or(Vec<Filter>),
    Compare {
        column: usize,
        op: CompareOp,
        value: Constant,
    },
    In {
        column: usize,
        values: Arc<Set>,
    },
    /// Equal to none of them, and not NULL.
    NotIn {
        column: usize,
        values: Arc<Set>,
    },
    /// The bytes begin with these; negated: they do not, and are not NULL.
    StartsWith {
        column: usize,
        prefix: Vec<u8>,
        negated: bool,
    },
    IsNull(usize),
    IsNotNull(usize),
}

impl Filter {
    /// The columns it refers to, sorted and distinct.
    pub fn columns(&self) -> Vec<usize> {
        let mut found = Vec::new();
        self.collect_columns(&mut found);
        found.sort_unstable();
        found.dedup();
        found
    }

    fn collect_columns(&self, found: &mut Vec<usize>) {
        match self {
            Filter::True => (),
            Filter::And(parts) | Filter::Or(parts) => {
                parts.iter().for_each(|p| p.collect_columns(found));
            }
            Filter::Compare { column, .. }
            | Filter::In { column, .. }
            | Filter::NotIn { column, .. }
            | Filter::StartsWith { column, .. } => found.push(*column),
            Filter::IsNull(column) | Filter::IsNotNull(column) => found.push(*column),
        }
    }
}

/// Rows of a run that are still wanted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Selection {
    rows: Vec<u32>,
    total: usize,
}

impl Selection {
    /// All of `n` rows (at most 2^32).
    pub fn all(n: usize) -> Selection {
        Selection { rows: (0..n).map(|r| r as u32).collect(), total: n }
    }
    /// Some of `total` rows, in any order, perhaps more than once.
    fn of(mut rows: Vec<u32>, total: usize) -> Selection {
        rows.sort_unstable();
        rows.dedup();
        Selection { rows, total }
    }
    /// Rows selected.
    pub fn len(&self) -> usize {
        self.rows.len()
    }
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
    /// No row has been dropped.
    pub fn is_all(&self) -> bool {
        self.rows.len() == self.total
    }
    /// The selected rows in order.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }
    /// Drop the rows for which `keep` is false.
    #[inline]
    pub fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        // Every row is written and the end moves by 0 or 1: no branch depends on the data.
        let mut kept = 0;
        for i in 0..self.rows.len() {
            let Some(row) = self.rows.get(i).copied() else { break };
            if let Some(slot) = self.rows.get_mut(kept) {
                *slot = row;
            }
            kept += usize::from(keep(row));
        }
        self.rows.truncate(kept);
    }
    fn clear(&mut self) {
        self.rows.clear();
    }
}

/// A place of `x` in PostgreSQL's order of floats: zeros are equal, NaNs are equal and above all.
fn float_key(x: f64) -> i64 {
    if x.is_nan() {
        return i64::MAX;
    }
    // Adding zero makes -0 into 0.
    let bits = (x + 0.0).to_bits() as i64;
    bits ^ ((bits >> 63) as u64 >> 1) as i64
}

/// The integer as a float, when it is one exactly.
fn exact_float(x: i64) -> Option<f64> {
    (x.unsigned_abs() <= 1 << 53).then_some(x as f64)
}
