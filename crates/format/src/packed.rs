//! Pages for whoever keeps many of them and asks for single values: in less memory than decoded, and still with the value of row r found in one step. Integers
//! and keys of dictionaries take as many bits as the widest of them needs above the least ("frame of reference"); keys that are stored so are taken as they are.

use crate::column::{Column, Dictionary, Value, Values};
use crate::error::{Error, Result};
use crate::read::{bits_at, Run, Runs};
use arrow_buffer::NullBuffer;
use std::cell::Cell;
use std::sync::Arc;

/// A run of rows of one column, packed where that makes it smaller.
#[derive(Clone, Debug)]
pub struct PackedColumn {
    rows: usize,
    values: Packed,
    /// Nobody has tried yet whether it becomes smaller.
    may_pack: Cell<bool>,
}

#[derive(Clone, Debug)]
enum Packed {
    /// As it was decoded.
    Plain(Column),
    Bits(Bits),
}

/// Values of so many bits each.
#[derive(Clone, Debug)]
struct Bits {
    nulls: Option<NullBuffer>,
    /// Little-endian, the first value's bits first, and behind them as many bytes as a load at the last one may reach.
    bytes: Box<[u8]>,
    width: u32,
    /// What is added to each.
    least: i64,
    of: Of,
}

/// What the values are.
#[derive(Clone, Debug)]
enum Of {
    I32,
    I64,
    Keys(Arc<Dictionary>),
}

/// Bits of a key, at most, that is taken as it is stored: what is not a quarter smaller than a decoded one may have been written too wide.
const MOST_STORED: u32 = 24;

impl PackedColumn {
    /// Pack a column. What would not become a quarter smaller stays as it is.
    pub fn of(column: Column) -> PackedColumn {
        let plain = PackedColumn::plain(column);
        plain.packed().unwrap_or(plain)
    }

    /// A column as it was decoded.
    pub fn plain(column: Column) -> PackedColumn {
        let may_pack = Cell::new(true);
        PackedColumn { rows: column.rows, values: Packed::Plain(column), may_pack }
    }

    /// The same values packed; None where they are, or would not become a quarter smaller.
    pub fn packed(&self) -> Option<PackedColumn> {
        let Packed::Plain(column) = &self.values else { return None };
        if !self.may_pack.replace(false) {
            return None;
        }
        let bits = match &column.values {
            Values::I32(v) => Bits::pack(v, 4, |x| i64::from(*x), column, || Of::I32),
            Values::I64(v) => Bits::pack(v, 8, |x| *x, column, || Of::I64),
            Values::Dict { keys, dict } => {
                Bits::pack(keys, 4, |x| i64::from(*x), column, || Of::Keys(dict.clone()))
            }
            _ => None,
        };
        Some(PackedColumn::of_bits(self.rows, bits?))
    }

    fn of_bits(rows: usize, bits: Bits) -> PackedColumn {
        PackedColumn { rows, values: Packed::Bits(bits), may_pack: Cell::new(false) }
    }

    /// Keys of rows of which none is NULL, as a page stores them, without a look at each; None where they do not lie one after the other, in whole
    /// bytes.
    ///
    /// # Errors
    /// Corrupt when the runs end early.
    pub(crate) fn of_runs(
        rows: usize,
        mut runs: Runs<'_>,
        width: u32,
        dictionary: &Arc<Dictionary>,
    ) -> Result<Option<PackedColumn>> {
        if width > MOST_STORED {
            return Ok(None);
        }
        let len = (rows * width as usize).div_ceil(8);
        let mut bytes = Vec::with_capacity(len + size_of::<u64>());
        let mut seen = 0;
        while let Some(run) = runs.next_run()? {
            if seen % 8 != 0 {
                return Ok(None);
            }
            match run {
                Run::Packed(packed, count) => {
                    let whole = (count * width as usize).div_ceil(8);
                    bytes.extend_from_slice(packed.get(..whole).unwrap_or(packed));
                    seen += count;
                }
                // (Eight of them take as many bytes as one has bits.)
                Run::Same(key, count) => {
                    let mut eight = 0u128;
                    if width > 16 || key >> width != 0 {
                        return Ok(None);
                    }
                    (0..8).for_each(|_| eight = eight << width | u128::from(key));
                    for _ in 0..count.div_ceil(8) {
                        bytes.extend(eight.to_le_bytes().iter().take(width as usize));
                    }
                    seen += count;
                }
            }
        }
        bytes.resize(len + size_of::<u64>(), 0);
        let of = Of::Keys(dictionary.clone());
        let bits = Bits { nulls: None, bytes: bytes.into_boxed_slice(), width, least: 0, of };
        Ok(Some(PackedColumn::of_bits(rows, bits)))
    }

    /// How many rows it has.
    #[inline]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The value of row `row`.
    ///
    /// # Errors
    /// Corrupt when it has no such row, or what is stored for it is no key of the dictionary.
    #[inline]
    pub fn value(&self, row: usize) -> Result<Value<'_>> {
        if row >= self.rows {
            return Err(Error::corrupt("a page has no such row"));
        }
        match &self.values {
            Packed::Plain(column) => Ok(column.value(row)),
            Packed::Bits(bits) => bits.value(row),
        }
    }

    /// Memory it takes, bytes; a dictionary is others' too.
    pub fn memory_bytes(&self) -> usize {
        match &self.values {
            Packed::Plain(column) => column.memory_bytes(),
            Packed::Bits(bits) => {
                bits.bytes.len() + bits.nulls.as_ref().map_or(0, |n| n.buffer().capacity())
            }
        }
    }
}

impl Bits {
    /// Pack values that take `size` bytes each otherwise; None where that does not pay.
    fn pack<T>(
        values: &[T],
        size: usize,
        number: impl Fn(&T) -> i64,
        column: &Column,
        of: impl FnOnce() -> Of,
    ) -> Option<Bits> {
        // (What stands where there is no value would make the others wider.)
        let some = column.nulls.is_some();
        let is_null = |row: usize| some && column.is_null(row);
        let (mut least, mut most) = (i64::MAX, i64::MIN);
        for (row, value) in values.iter().enumerate() {
            if !is_null(row) {
                (least, most) = (least.min(number(value)), most.max(number(value)));
            }
        }
        if least > most {
            (least, most) = (0, 0);
        }
        let width = u64::BITS - (most.wrapping_sub(least) as u64).leading_zeros();
        // Eight bytes from any bit on have such a value whole.
        let is_smaller = width as usize <= size * 6;
        if !is_smaller || values.len() != column.rows {
            return None;
        }
        let len = (values.len() * width as usize).div_ceil(8) + size_of::<u64>();
        let mut bytes = Vec::with_capacity(len);
        let (mut held, mut bits) = (0u64, 0);
        for (row, value) in values.iter().enumerate() {
            let above = if is_null(row) { 0 } else { number(value).wrapping_sub(least) as u64 };
            held |= above << bits;
            bits += width;
            if bits >= u64::BITS {
                bytes.extend_from_slice(&held.to_le_bytes());
                bits -= u64::BITS;
                // (Some of its bits are in the word that is full.)
                held = above >> (width - bits);
            }
        }
        bytes.extend_from_slice(&held.to_le_bytes());
        bytes.resize(len, 0);
        let nulls = column.nulls.clone();
        Some(Bits { nulls, bytes: bytes.into_boxed_slice(), width, least, of: of() })
    }

    #[inline]
    fn value(&self, row: usize) -> Result<Value<'_>> {
        if self.nulls.as_ref().is_some_and(|n| row < n.len() && n.is_null(row)) {
            return Ok(Value::Null);
        }
        let above = bits_at(&self.bytes, row * self.width as usize, self.width);
        let number = self.least.wrapping_add(above as i64);
        Ok(match &self.of {
            Of::I32 => Value::I32(number as i32),
            Of::I64 => Value::I64(number),
            Of::Keys(dictionary) => match number as usize {
                key if key < dictionary.len() => dictionary.value(key),
                _ => return Err(Error::corrupt("a key is beyond the dictionary")),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn column(values: Values, rows: usize, nulls: &[bool]) -> Column {
        let nulls = nulls.contains(&true).then(|| (0..rows).map(|r| !nulls[r]).collect());
        Column { rows, nulls, values }
    }

    fn check(column: Column) -> PackedColumn {
        let packed = PackedColumn::of(column.clone());
        assert_eq!(packed.rows(), column.rows);
        assert!(packed.value(column.rows).is_err());
        // Packed later it is the same, once.
        let plain = PackedColumn::plain(column.clone());
        let later = plain.packed();
        assert_eq!(later.is_some(), matches!(packed.values, Packed::Bits(_)));
        assert!(packed.packed().is_none() && plain.packed().is_none());
        let later = later.unwrap_or_else(|| plain.clone());
        assert_eq!(later.memory_bytes(), packed.memory_bytes());
        for row in 0..column.rows {
            assert_eq!(packed.value(row).unwrap(), column.value(row), "row {row}");
            assert_eq!(plain.value(row).unwrap(), column.value(row), "row {row}");
            assert_eq!(later.value(row).unwrap(), column.value(row), "row {row}");
        }
        packed
    }

    proptest! {
        /// Values of any range, from any least one on.
        #[test]
        fn values_are_as_before(
            seeds in prop::collection::vec(any::<i64>(), 0..200),
            nulls in prop::collection::vec(prop::bool::weighted(0.1), 200),
            least in any::<i64>(),
            bits in 0u32..=64,
        ) {
            let rows = seeds.len();
            let mask = if bits == 0 { 0 } else { u64::MAX >> (64 - bits) };
            let wide: Vec<i64> =
                seeds.iter().map(|x| least.wrapping_add((*x as u64 & mask) as i64)).collect();
            let narrow: Vec<i32> = wide.iter().map(|x| *x as i32).collect();
            let keys: Vec<u32> = seeds.iter().map(|x| (*x as u64 & mask) as u32 % 999).collect();
            let texts: Vec<i32> = (0..999).map(|x| x * 7 - 3).collect();
            let dict = Arc::new(Dictionary::I32(texts));
            let packed = check(column(Values::I64(wide), rows, &nulls[..rows]));
            if bits <= 48 {
                // (Those that run over the end of the numbers have a wide range.)
                prop_assert!(least.checked_add(mask as i64).is_none() || packed.memory_bytes() <= rows * 6 + 8 + 128);
            }
            check(column(Values::I32(narrow), rows, &nulls[..rows]));
            let packed = check(column(Values::Dict { keys, dict }, rows, &nulls[..rows]));
            if rows > 0 {
                let is_narrow = matches!(packed.values, Packed::Bits(Bits { width: ..=10, .. }));
                prop_assert!(is_narrow);
            }
        }
    }

    /// Runs of both kinds, as they come in a page: taken as they are where they lie in whole bytes.
    #[test]
    fn keys_are_taken_as_they_are_stored() {
        let dict = Arc::new(Dictionary::I32((0..8).map(|x| x * 10).collect()));
        let take = |keys: &[u8], rows| {
            let runs = Runs::new(keys, 3, rows).unwrap();
            PackedColumn::of_runs(rows, runs, 3, &dict).unwrap()
        };
        let values = |packed: Option<PackedColumn>| -> Vec<i32> {
            let packed = packed.expect("whole bytes");
            let value = |row| match packed.value(row).unwrap() {
                Value::I32(x) => x / 10,
                other => panic!("{other:?}"),
            };
            (0..packed.rows()).map(value).collect()
        };
        // Eight packed, 0 to 7; 16 times a 5; four packed, and four bits of nothing.
        let keys = [3, 0x88, 0xC6, 0xFA, 32, 5, 3, 0x88, 0xC6, 0xFA];
        let expected: Vec<i32> = (0..8).chain([5; 16]).chain(0..4).collect();
        assert_eq!(values(take(&keys, 28)), expected);
        assert_eq!(values(take(&[22, 6], 11)), [6; 11]);
        // Three of one value, and then others: they do not begin with a byte.
        assert!(take(&[6, 5, 3, 0x88, 0xC6, 0xFA], 11).is_none());
        // A key of more bits than keys have is none of eight side by side.
        assert!(take(&[16, 0x0D], 8).is_none());
        let runs = Runs::new(&[3, 0x88], 3, 8).unwrap();
        assert!(PackedColumn::of_runs(8, runs, 3, &dict).is_err());
        // Wider than what is kept as it is.
        let runs = Runs::new(&[16, 1, 0, 0, 0], 25, 8).unwrap();
        assert!(PackedColumn::of_runs(8, runs, 25, &dict).unwrap().is_none());
        // Beyond the dictionary.
        let few = Arc::new(Dictionary::I32(vec![0; 5]));
        let runs = Runs::new(&[3, 0x88, 0xC6, 0xFA], 3, 8).unwrap();
        let packed = PackedColumn::of_runs(8, runs, 3, &few).unwrap().expect("whole bytes");
        assert!(packed.value(4).is_ok() && packed.value(5).is_err());
    }

    /// What stands for a NULL does not count.
    #[test]
    fn nulls_take_no_room() {
        let mut values: Vec<i64> = (0..2_048).map(|x| 800_000_000_000_000 + x).collect();
        let whole = check(column(Values::I64(values.clone()), 2_048, &[])).memory_bytes();
        (values[5], values[2_047]) = (0, 0);
        let nulls: Vec<bool> = values.iter().map(|x| *x == 0).collect();
        let packed = check(column(Values::I64(values), 2_048, &nulls));
        assert!(packed.memory_bytes() <= whole + 512, "{} of {whole}", packed.memory_bytes());
        let none = check(column(Values::I64(vec![0; 99]), 99, &[true; 99]));
        assert!(none.memory_bytes() < 99);
    }

    #[test]
    fn others_are_kept_as_they_are() {
        check(column(Values::F64(vec![1.5, -0.0, f64::MAX]), 3, &[]));
        check(column(Values::I128(vec![i128::MIN, 0]), 2, &[false, true]));
        check(column(Values::I64(vec![i64::MIN, i64::MAX]), 2, &[]));
        check(column(Values::I64(Vec::new()), 0, &[]));
        // Keys into an empty dictionary: all rows are NULL.
        let dict = Arc::new(Dictionary::I64(Vec::new()));
        check(column(Values::Dict { keys: vec![0; 3], dict }, 3, &[true; 3]));
    }
}
