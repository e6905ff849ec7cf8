//! Bit-packed integers, Parquet's RLE/bit-packed hybrid and DELTA_BINARY_PACKED
//! (<https://parquet.apache.org/docs/file-format/data-pages/encodings/>).

use super::thrift::Reader;
use crate::error::{Error, Result};

fn short() -> Error {
    Error::corrupt("a page ends before its values do")
}

/// The `width`-bit value that starts at bit `bit`; bits beyond the end read as zero.
#[inline]
pub fn bits_at(bytes: &[u8], bit: usize, width: u32) -> u64 {
    if width == 0 {
        return 0;
    }
    let (at, shift) = (bit >> 3, (bit & 7) as u32);
    let rest = bytes.get(at..).unwrap_or(&[]);
    let value = match rest.first_chunk::<8>() {
        Some(word) if width + shift <= 64 => u64::from_le_bytes(*word) >> shift,
        _ => {
            let mut word = [0u8; 16];
            for (to, from) in word.iter_mut().zip(rest) {
                *to = *from;
            }
            (u128::from_le_bytes(word) >> shift) as u64
        }
    };
    value & (u64::MAX >> (64 - width.min(64)))
}

/// Unpack 32 values of a width known at compile time; false when too few bytes are left to load
/// whole words, or the width is above 56 bits.
#[inline]
fn unpack32<const W: usize, T: Copy>(
    bytes: &[u8],
    out: &mut [T; 32],
    to: impl Fn(u64) -> T,
) -> bool {
    let Some(bytes) = bytes.get(..W * 4 + 8) else { return false };
    if W == 0 || W > 56 {
        return false;
    }
    for (i, slot) in out.iter_mut().enumerate() {
        let bit = i * W;
        if let Some(word) = bytes.get(bit >> 3..).and_then(|b| b.first_chunk::<8>()) {
            *slot = to((u64::from_le_bytes(*word) >> (bit & 7)) & ((1u64 << (W & 63)) - 1));
        }
    }
    true
}

macro_rules! by_width {
    ($width:expr, $bytes:expr, $out:expr, $to:expr; $($w:literal)*) => {
        match $width { $($w => unpack32::<$w, _>($bytes, $out, $to),)* _ => false }
    };
}

/// Append `count` values of `width` bits (at most 32).
pub fn unpack_u32(bytes: &[u8], width: u32, count: usize, out: &mut Vec<u32>) -> Result<()> {
    let need = count.checked_mul(width as usize).ok_or_else(short)?.div_ceil(8);
    if need > bytes.len() || width > 32 {
        return Err(short());
    }
    let mut group = [0u32; 32];
    let mut padded = [0u8; 32 * 4 + 8];
    for done in (0..count).step_by(32) {
        let rest = bytes.get(done / 8 * width as usize..).unwrap_or(&[]);
        let from = with_slack(rest, width, &mut padded);
        let fast = by_width!(width, from, &mut group, |x| x as u32;
            1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
        if !fast {
            // Width 0: all values are 0.
            out.resize(out.len() + (count - done), 0);
            break;
        }
        out.extend_from_slice(group.get(..count - done).unwrap_or(&group));
    }
    Ok(())
}

/// `bytes`, or a copy in `padded` followed by zeros when they are too few for [`unpack32`].
#[inline]
fn with_slack<'a>(bytes: &'a [u8], width: u32, padded: &'a mut [u8]) -> &'a [u8] {
    if bytes.len() >= width as usize * 4 + 8 {
        return bytes;
    }
    let len = bytes.len().min(padded.len());
    if let (Some(to), Some(from)) = (padded.get_mut(..len), bytes.get(..len)) {
        to.copy_from_slice(from);
    }
    padded
}

/// Unpack `count` (at most 32) values of `width` bits (at most 64) of one miniblock part.
fn unpack_u64(bytes: &[u8], width: u32, count: usize, out: &mut [u64; 32]) -> Result<()> {
    if width > 64 || (count * width as usize).div_ceil(8) > bytes.len() {
        return Err(short());
    }
    let mut padded = [0u8; 56 * 4 + 8];
    let from = with_slack(bytes, width.min(56), &mut padded);
    let fast = by_width!(width, from, out, |x| x;
            1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32
            33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56);
    if !fast {
        // Width 0, or more bits than one load at any bit position can give.
        for (i, slot) in out.iter_mut().take(count).enumerate() {
            *slot = bits_at(bytes, i * width as usize, width);
        }
    }
    Ok(())
}

/// A run of the hybrid encoding.
pub enum Run<'a> {
    /// One value, so many times.
    Same(u32, usize),
    /// Bit-packed values: their bytes and how many.
    Packed(&'a [u8], usize),
}

/// Runs of the RLE/bit-packed hybrid, cut to `left` values.
pub struct Runs<'a> {
    bytes: &'a [u8],
    width: u32,
    left: usize,
}

impl<'a> Runs<'a> {
    /// `count` values of `width` bits, at most 32.
    pub fn new(bytes: &'a [u8], width: u32, count: usize) -> Result<Runs<'a>> {
        if width > 32 {
            return Err(Error::corrupt("a bit width is above 32"));
        }
        Ok(Runs { bytes, width, left: count })
    }

    /// The next run; None when all values have been seen.
    #[inline]
    pub fn next_run(&mut self) -> Result<Option<Run<'a>>> {
        // Empty runs are allowed; each takes at least a byte, so this ends.
        while self.left > 0 {
            let mut head = Reader::new(self.bytes);
            let mark = head.varint()?;
            let rest = self.bytes.get(head.position()..).ok_or_else(short)?;
            let length = usize::try_from(mark >> 1).map_err(|_| short())?;
            if mark & 1 == 1 {
                // Groups of eight values; a writer may cut the last one's unused bytes.
                let count = length.saturating_mul(8).min(self.left);
                let whole = length.saturating_mul(self.width as usize).min(rest.len());
                if (count * self.width as usize).div_ceil(8) > whole {
                    return Err(short());
                }
                let (packed, after) = rest.split_at(whole);
                self.bytes = after;
                self.left -= count;
                if count > 0 {
                    return Ok(Some(Run::Packed(packed, count)));
                }
            } else {
                let size = self.width.div_ceil(8) as usize;
                let (value, after) = rest.split_at_checked(size).ok_or_else(short)?;
                let value = value.iter().rev().fold(0u32, |v, b| v << 8 | u32::from(*b));
                self.bytes = after;
                let count = length.min(self.left);
                self.left -= count;
                if count > 0 {
                    return Ok(Some(Run::Same(value, count)));
                }
            }
        }
        Ok(None)
    }
}

/// Append `count` values of the hybrid encoding.
pub fn hybrid(bytes: &[u8], width: u32, count: usize, out: &mut Vec<u32>) -> Result<()> {
    let mut runs = Runs::new(bytes, width, count)?;
    while let Some(run) = runs.next_run()? {
        match run {
            Run::Same(value, n) => out.resize(out.len() + n, value),
            Run::Packed(packed, n) => unpack_u32(packed, width, n, out)?,
        }
    }
    Ok(())
}

/// Append `count` one-bit values of the hybrid encoding as bytes 0 and 1.
pub fn hybrid_bools(bytes: &[u8], count: usize, out: &mut Vec<u8>) -> Result<()> {
    let mut runs = Runs::new(bytes, 1, count)?;
    while let Some(run) = runs.next_run()? {
        match run {
            Run::Same(value, n) => out.resize(out.len() + n, (value & 1) as u8),
            Run::Packed(packed, n) => unpack_bools(packed, n, out)?,
        }
    }
    Ok(())
}

/// Append `count` bits, least significant first, as bytes 0 and 1.
pub fn unpack_bools(bytes: &[u8], count: usize, out: &mut Vec<u8>) -> Result<()> {
    let bytes = bytes.get(..count.div_ceil(8)).ok_or_else(short)?;
    let end = out.len() + count;
    out.reserve(bytes.len() * 8);
    for b in bytes {
        let mut eight = [0u8; 8];
        for (i, bit) in eight.iter_mut().enumerate() {
            *bit = b >> i & 1;
        }
        out.extend_from_slice(&eight);
    }
    out.truncate(end);
    Ok(())
}

/// Value `index` of the hybrid encoding.
pub fn hybrid_at(bytes: &[u8], width: u32, index: usize) -> Result<u32> {
    let mut runs = Runs::new(bytes, width, index + 1)?;
    let mut last = None;
    let mut seen = 0;
    while let Some(run) = runs.next_run()? {
        last = Some(match run {
            Run::Same(value, n) => {
                seen += n;
                value
            }
            Run::Packed(packed, n) => {
                seen += n;
                if seen <= index {
                    continue;
                }
                bits_at(packed, (n - 1) * width as usize, width) as u32
            }
        });
    }
    last.ok_or_else(short)
}

/// Definition levels (0 or 1): how many values stand before row `row`, and whether it has one.
pub fn rank(levels: &[u8], row: usize) -> Result<(usize, bool)> {
    let mut runs = Runs::new(levels, 1, row + 1)?;
    let (mut before, mut left, mut set) = (0, row + 1, false);
    while let Some(run) = runs.next_run()? {
        match run {
            Run::Same(value, n) => {
                set = value & 1 == 1;
                before += if set { n } else { 0 };
                left -= n;
            }
            Run::Packed(packed, n) => {
                before += ones(packed, n);
                set = bits_at(packed, n - 1, 1) == 1;
                left -= n;
            }
        }
    }
    if left > 0 {
        return Err(short());
    }
    Ok((before - usize::from(set), set))
}

/// Set bits among the first `count`.
fn ones(bytes: &[u8], count: usize) -> usize {
    let whole = bytes.get(..count / 8).unwrap_or(bytes);
    let words = whole.chunks_exact(8);
    let tail: u32 = words.remainder().iter().map(|b| b.count_ones()).sum();
    let sum: u32 = words
        .filter_map(|w| w.first_chunk::<8>())
        .map(|w| u64::from_le_bytes(*w).count_ones())
        .sum();
    let rest = match count % 8 {
        0 => 0,
        n => bytes.get(count / 8).map_or(0, |b| (b & ((1u8 << n) - 1)).count_ones()),
    };
    (tail + sum + rest) as usize
}

/// Position in DELTA_BINARY_PACKED values.
struct Delta<'a> {
    reader: &'a [u8],
    miniblocks: usize,
    per_miniblock: usize,
    value: i64,
}

impl<'a> Delta<'a> {
    /// Read the header of at least `count` values.
    fn new(bytes: &'a [u8], count: usize) -> Result<Delta<'a>> {
        let mut r = Reader::new(bytes);
        let block = r.varint()?;
        let miniblocks = r.varint()?;
        let total = r.varint()?;
        let value = r.int()?;
        // The bound on a block keeps the arithmetic below far from overflow.
        let valid = miniblocks > 0
            && (1..=1 << 20).contains(&block)
            && block % miniblocks == 0
            && (block / miniblocks) % 32 == 0
            && total >= count as u64;
        if !valid {
            return Err(Error::corrupt("a delta-coded page has a bad header"));
        }
        Ok(Delta {
            reader: bytes.get(r.position()..).ok_or_else(short)?,
            miniblocks: miniblocks as usize,
            per_miniblock: (block / miniblocks) as usize,
            value,
        })
    }

    /// Visit `count` deltas: `f` gets the miniblock part's least delta and the packed differences.
    fn walk(&mut self, count: usize, mut f: impl FnMut(&mut i64, i64, &[u64])) -> Result<()> {
        let mut left = count;
        let mut group = [0u64; 32];
        while left > 0 {
            let mut r = Reader::new(self.reader);
            let least = r.int()?;
            let rest = self.reader.get(r.position()..).ok_or_else(short)?;
            let (widths, mut body) = rest.split_at_checked(self.miniblocks).ok_or_else(short)?;
            for width in widths {
                if left == 0 {
                    break;
                }
                let width = u32::from(*width);
                let mut part = body;
                for _ in 0..self.per_miniblock / 32 {
                    let n = left.min(32);
                    unpack_u64(part, width, n, &mut group)?;
                    f(&mut self.value, least, group.get(..n).unwrap_or(&[]));
                    left -= n;
                    part = part.get(4 * width as usize..).unwrap_or(&[]);
                }
                let size = self.per_miniblock / 8 * width as usize;
                body = body.get(size..).unwrap_or(&[]);
            }
            self.reader = body;
        }
        Ok(())
    }
}

/// Append `count` DELTA_BINARY_PACKED values.
pub fn delta<T>(bytes: &[u8], count: usize, out: &mut Vec<T>, to: impl Fn(i64) -> T) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let mut delta = Delta::new(bytes, count)?;
    out.push(to(delta.value));
    delta.walk(count - 1, |value, least, packed| {
        out.extend(packed.iter().map(|x| {
            *value = value.wrapping_add(least).wrapping_add(*x as i64);
            to(*value)
        }));
    })
}

/// Value `index` of DELTA_BINARY_PACKED values.
pub fn delta_at(bytes: &[u8], index: usize) -> Result<i64> {
    let mut delta = Delta::new(bytes, index + 1)?;
    delta.walk(index, |value, least, packed| {
        let sum = packed.iter().fold(0u64, |s, x| s.wrapping_add(*x));
        *value =
            value.wrapping_add(least.wrapping_mul(packed.len() as i64)).wrapping_add(sum as i64);
    })?;
    Ok(delta.value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pack values bit by bit.
    fn pack(values: &[u64], width: u32) -> Vec<u8> {
        let mut out = vec![0u8; (values.len() * width as usize).div_ceil(8)];
        for (i, v) in values.iter().enumerate() {
            for b in 0..width as usize {
                let at = i * width as usize + b;
                out[at / 8] |= ((v >> b & 1) as u8) << (at % 8);
            }
        }
        out
    }

    proptest! {
        #[test]
        fn packed_values_are_unpacked(width in 0u32..=64, seeds in prop::collection::vec(any::<u64>(), 1..150)) {
            let mask = if width == 0 { 0 } else { u64::MAX >> (64 - width) };
            let values: Vec<u64> = seeds.iter().map(|x| x & mask).collect();
            let bytes = pack(&values, width);
            for (i, v) in values.iter().enumerate() {
                prop_assert_eq!(bits_at(&bytes, i * width as usize, width), *v);
            }
            let first = &values[..values.len().min(32)];
            let mut group = [0u64; 32];
            unpack_u64(&bytes, width, first.len(), &mut group).unwrap();
            prop_assert_eq!(&group[..first.len()], first);
            if width <= 32 {
                let mut out = Vec::new();
                unpack_u32(&bytes, width, values.len(), &mut out).unwrap();
                prop_assert!(out.iter().map(|x| u64::from(*x)).eq(values.iter().copied()));
                if width > 0 {
                    let cut = &bytes[..bytes.len() - 1];
                    prop_assert!(unpack_u32(cut, width, values.len(), &mut out).is_err());
                }
            }
        }
    }
}
