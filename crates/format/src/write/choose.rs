//! The encoding of a column, chosen from its data: delta for what is ordered, dictionary for what
//! repeats, plain for the rest. docs/decisions/0002 has the measurements.

use super::builder::{ColumnBuilder, Data};
use crate::hash::Mix;
use std::collections::HashSet;
use std::hash::BuildHasherDefault;

/// How a column is encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Choice {
    Plain,
    Dictionary,
    Delta,
    /// Plain in pages bounded by bytes.
    Wide,
}

/// Distinct values counted at most.
const DISTINCT_CAP: usize = 65_536;
/// Average bytes from which a value counts as wide.
const WIDE_BYTES: usize = 64;

type Set<T> = HashSet<T, BuildHasherDefault<Mix>>;

/// Distinct values; None when there are more than the cap.
fn distinct<T: Eq + std::hash::Hash>(values: impl Iterator<Item = T>) -> Option<usize> {
    let mut set: Set<T> = Set::default();
    for v in values {
        set.insert(v);
        if set.len() > DISTINCT_CAP {
            return None;
        }
    }
    Some(set.len())
}

/// Bits that a dictionary takes: keys and the values themselves.
fn dictionary_bits(rows: usize, distinct: usize, value_bits: usize) -> usize {
    let width = usize::BITS as usize - distinct.saturating_sub(1).leading_zeros() as usize;
    rows * width + distinct * value_bits
}

/// Bits that DELTA_BINARY_PACKED takes: miniblocks of 32 deltas above their block's least.
fn delta_bits(values: &[i64]) -> usize {
    let mut bits = 0;
    for block in values.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect::<Vec<_>>().chunks(128)
    {
        let min = block.iter().copied().min().unwrap_or(0);
        bits += 64;
        for mini in block.chunks(32) {
            let max = mini.iter().map(|d| d.wrapping_sub(min) as u64).max().unwrap_or(0);
            bits += 32 * (64 - max.leading_zeros() as usize);
        }
    }
    bits
}

fn integers(values: &[i64], width: usize) -> Choice {
    let plain = values.len() * width;
    let delta = delta_bits(values);
    // Rows of a page are looked up one by one: a dictionary key is found at once, a delta is summed
    // up, so delta must pay.
    let dictionary = distinct(values.iter().map(|v| *v as u64))
        .map_or(usize::MAX, |d| dictionary_bits(values.len(), d, width));
    if dictionary <= delta.saturating_mul(9) / 8 && dictionary < plain {
        Choice::Dictionary
    } else if delta < plain * 15 / 16 {
        Choice::Delta
    } else {
        Choice::Plain
    }
}

/// Choose the encoding of a column.
pub(super) fn choose(builder: &ColumnBuilder) -> Choice {
    let present = |row: usize| !builder.nulls.get(row).copied().unwrap_or(true);
    let rows = builder.len() - builder.null_count as usize;
    match &builder.data {
        Data::Bool(_) => Choice::Plain,
        Data::I32(v) => {
            let values: Vec<i64> = if builder.null_count == 0 {
                v.iter().map(|x| i64::from(*x)).collect()
            } else {
                (0..v.len()).filter(|r| present(*r)).map(|r| i64::from(v[r])).collect()
            };
            integers(&values, 32)
        }
        Data::I64(v) if builder.null_count == 0 => integers(v, 64),
        Data::I64(v) => {
            let values: Vec<i64> = (0..v.len()).filter(|r| present(*r)).map(|r| v[r]).collect();
            integers(&values, 64)
        }
        Data::I128(v) => by_repetition(rows, distinct(v.iter().map(|x| *x as u128)), 128),
        Data::F32(v) => by_repetition(rows, distinct(v.iter().map(|x| x.to_bits())), 32),
        Data::F64(v) => by_repetition(rows, distinct(v.iter().map(|x| x.to_bits())), 64),
        Data::Bytes(v) => {
            let average = v.data.len() / rows.max(1);
            match distinct_bytes(v, rows) {
                Some((count, bytes)) if count * 3 < rows && bytes + count * 4 < 1 << 20 => {
                    Choice::Dictionary
                }
                _ if average > WIDE_BYTES => Choice::Wide,
                _ => Choice::Plain,
            }
        }
    }
}

/// Distinct strings and the bytes that they have together, giving up early when nearly all differ.
fn distinct_bytes(v: &crate::column::ByteColumn, rows: usize) -> Option<(usize, usize)> {
    let mut set: Set<&[u8]> = Set::default();
    let mut bytes = 0;
    for i in 0..v.len() {
        if set.insert(v.get(i)) {
            bytes += v.get(i).len();
        }
        if set.len() > DISTINCT_CAP || (i == 4_096 && set.len() > 3_500 && rows > 8_192) {
            return None;
        }
    }
    Some((set.len(), bytes))
}

fn by_repetition(rows: usize, distinct: Option<usize>, bits: usize) -> Choice {
    match distinct {
        Some(d) if dictionary_bits(rows, d, bits) < rows * bits * 7 / 8 => Choice::Dictionary,
        _ => Choice::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::{choose, Choice};
    use crate::schema::ColumnKind;
    use crate::write::builder::ColumnBuilder;

    /// What a dictionary takes is what its values take, not what values take on average.
    #[test]
    fn a_few_large_values_are_no_dictionary() {
        let column = |large: usize| {
            let mut all = ColumnBuilder::new(ColumnKind::Text);
            let large = vec![b'x'; large];
            for row in 0..4_000 {
                all.push_bytes(if row == 1_000 { &large } else { b"" });
            }
            all
        };
        assert_eq!(choose(&column(2 << 20)), Choice::Wide);
        assert_eq!(choose(&column(1 << 19)), Choice::Dictionary);
    }
}
