//! Whole pages: header, checksum, decompression and decoding of all values.

use arrow_buffer::{BooleanBuffer, NullBuffer};
use std::sync::Arc;

use super::bits;
use super::meta::{Compression, PageRef, StripeMeta};
use super::thrift::{Reader, TRUE};
use crate::column::{ByteColumn, Column, Dictionary, Values};
use crate::error::{Error, Result};
use crate::schema::{ColumnKind, Physical};

/// Most bytes of an uncompressed page: Parquet's headers have 32 bits with a sign. (A value alone can have a gigabyte.)
const MAX_PAGE_BYTES: usize = i32::MAX as usize;
/// LZ4 makes no more of one byte: it is a part of a match length.
const MAX_LZ4: usize = 255;
/// Zstandard makes no more of one byte: blocks of 128 kB take at least 4 bytes.
const MAX_ZSTD: usize = 1 << 15;
/// Scratch memory kept between pages, bytes.
const MAX_KEPT: usize = 16 << 20;

const DICTIONARY_PAGE: i32 = 2;
const DATA_PAGE_V2: i32 = 3;

/// Parquet's numbers for encodings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Encoding {
    Plain,
    Dictionary,
    Rle,
    Delta,
}

/// Memory in which a small page is decompressed, in place of the decoder's own.
pub trait Workspace: Sync {
    /// Decompress a page of `len` bytes, of which these are zstd's, and show it. False where it cannot be shown: it is too large, it is damaged,
    /// or another uses the memory.
    fn zstd(&self, body: &[u8], len: usize, show: &mut dyn FnMut(&[u8])) -> bool;
}

/// Decodes pages. Holds scratch memory and a decompression context, so that one decoder is best used
/// for many pages. Pages are held against their checksums first.
#[derive(Default)]
pub struct Decoder {
    ignore_checksums: bool,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    scratch: Vec<u8>,
    workspace: Option<&'static dyn Workspace>,
}

/// The parts of a page.
pub(super) struct Page<'a> {
    pub encoding: Encoding,
    /// Values with NULLs.
    pub values: usize,
    pub nulls: usize,
    /// Definition levels.
    pub levels: &'a [u8],
    /// Encoded values as they lie in the page.
    body: &'a [u8],
    /// Uncompressed size of `body`; None when it is not compressed.
    expanded: Option<usize>,
}

#[derive(Default)]
struct Header {
    kind: i32,
    expanded: i32,
    stored: i32,
    crc: Option<i32>,
    values: i32,
    nulls: i32,
    encoding: i32,
    levels: i32,
    repetition: i32,
    plain: bool,
}

fn bad(what: &str) -> Error {
    Error::corrupt(format!("a page is damaged: {what}"))
}

/// Read a page's header; returns its length, too.
fn read_header(bytes: &[u8]) -> Result<(Header, usize)> {
    let mut r = Reader::new(bytes);
    let mut h = Header::default();
    let mut last = 0;
    while let Some((id, kind)) = r.field(&mut last)? {
        match id {
            1 => h.kind = r.int32()?,
            2 => h.expanded = r.int32()?,
            3 => h.stored = r.int32()?,
            4 => h.crc = Some(r.int32()?),
            7 | 8 => {
                let mut last = 0;
                while let Some((inner, kind)) = r.field(&mut last)? {
                    match (id, inner) {
                        (_, 1) => h.values = r.int32()?,
                        (7, 2) | (8, 4) => h.encoding = r.int32()?,
                        (8, 2) => h.nulls = r.int32()?,
                        (8, 5) => h.levels = r.int32()?,
                        (8, 6) => h.repetition = r.int32()?,
                        (8, 7) => h.plain = kind != TRUE,
                        _ => r.skip(kind)?,
                    }
                }
            }
            _ => r.skip(kind)?,
        }
    }
    Ok((h, r.position()))
}

fn size(x: i32) -> Result<usize> {
    usize::try_from(x).map_err(|_| bad("a size is negative"))
}

/// Length of the page that `bytes` begin with, header included, and how many rows it has.
pub(crate) fn page_len_and_rows(bytes: &[u8]) -> Result<(usize, u32)> {
    let (header, len) = read_header(bytes)?;
    let len = len.checked_add(size(header.stored)?).filter(|n| *n <= bytes.len());
    Ok((len.ok_or_else(|| bad("it ends early"))?, size(header.values)? as u32))
}

/// Read a page's header and find its parts.
pub(super) fn open(bytes: &[u8], compression: Compression, dictionary: bool) -> Result<Page<'_>> {
    let (h, header_len) = read_header(bytes)?;
    let expected = if dictionary { DICTIONARY_PAGE } else { DATA_PAGE_V2 };
    if h.kind != expected {
        return Err(Error::unsupported(format!("page type {} where {expected} belongs", h.kind)));
    }
    let rest = bytes.get(header_len..).unwrap_or(&[]);
    let stored = rest.get(..size(h.stored)?).ok_or_else(|| bad("it ends early"))?;
    if h.crc.is_some_and(|crc| crc as u32 != crc32(stored)) {
        return Err(bad("its checksum does not match"));
    }
    let encoding = match h.encoding {
        0 => Encoding::Plain,
        2 if dictionary => Encoding::Plain,
        2 | 8 => Encoding::Dictionary,
        3 => Encoding::Rle,
        5 => Encoding::Delta,
        other => return Err(Error::unsupported(format!("page encoding {other} is not known"))),
    };
    if h.repetition != 0 {
        return Err(Error::unsupported("a page has repetition levels"));
    }
    let (levels, body) =
        stored.split_at_checked(size(h.levels)?).ok_or_else(|| bad("it ends early"))?;
    // An empty body is never a compressed one: some writers do not compress nothing.
    let packed = compression != Compression::None && !h.plain && !body.is_empty();
    let growth = match compression {
        _ if !packed => 1,
        Compression::Zstd => MAX_ZSTD,
        Compression::Lz4 | Compression::None => MAX_LZ4,
    };
    let expanded = size(h.expanded)?
        .checked_sub(levels.len())
        .filter(|n| *n <= MAX_PAGE_BYTES && *n <= body.len().saturating_mul(growth))
        .ok_or_else(|| bad("its size is out of range"))?;
    Ok(Page {
        encoding,
        values: size(h.values)?,
        nulls: size(h.nulls)?,
        levels,
        body,
        expanded: packed.then_some(expanded),
    })
}

impl<'a> Page<'a> {
    /// The encoded values; None when they are compressed.
    pub fn stored(&self) -> Option<&'a [u8]> {
        match self.expanded {
            None => Some(self.body),
            Some(_) => None,
        }
    }
}

impl Decoder {
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// A decoder of whatever bytes it is given: for trying what decoding makes of damaged pages.
    pub fn ignoring_checksums() -> Decoder {
        Decoder { ignore_checksums: true, ..Decoder::default() }
    }

    /// Hold a page against its checksum.
    pub(super) fn verify(&self, page: &PageRef<'_>, bytes: &[u8]) -> Result<()> {
        match self.ignore_checksums {
            true => Ok(()),
            false => page.verify(bytes),
        }
    }

    /// Single values' pages are decompressed in this workspace where that can be.
    pub fn in_workspace(workspace: Option<&'static dyn Workspace>) -> Decoder {
        Decoder { workspace, ..Decoder::default() }
    }

    /// What `take` makes of a page's encoded values, which are decompressed for it when need be.
    pub(super) fn with_expanded<T>(
        &mut self,
        page: &Page<'_>,
        compression: Compression,
        take: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let mut take = Some(take);
        if let (Some(len), Compression::Zstd, Some(workspace)) =
            (page.expanded, compression, self.workspace)
        {
            let mut taken = None;
            let mut show = |body: &[u8]| taken = take.take().map(|take| take(body));
            if workspace.zstd(page.body, len, &mut show) {
                if let Some(taken) = taken {
                    return taken;
                }
            }
        }
        let body = self.expand(page, compression)?;
        take.map_or_else(|| Err(bad("it was shown before")), |take| take(body))
    }

    /// A page's encoded values, decompressed when need be.
    pub(super) fn expand<'s>(
        &'s mut self,
        page: &Page<'s>,
        compression: Compression,
    ) -> Result<&'s [u8]> {
        let Some(len) = page.expanded else { return Ok(page.body) };
        if self.scratch.len() > MAX_KEPT && len <= MAX_KEPT {
            self.scratch.truncate(MAX_KEPT);
            self.scratch.shrink_to_fit();
        }
        if self.scratch.len() < len {
            self.scratch.resize(len, 0);
        }
        let out = self.scratch.get_mut(..len).unwrap_or(&mut []);
        let written = match compression {
            Compression::None => return Ok(page.body),
            Compression::Lz4 => {
                lz4_flex::block::decompress_into(page.body, out).map_err(|e| bad(&e.to_string()))?
            }
            Compression::Zstd => {
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    empty => empty
                        .insert(zstd::bulk::Decompressor::new().map_err(|e| bad(&e.to_string()))?),
                };
                zstd.decompress_to_buffer(page.body, out).map_err(|e| bad(&e.to_string()))?
            }
        };
        if written != len {
            return Err(bad("its size is not the stated one"));
        }
        self.scratch.get(..len).ok_or_else(|| bad("its size is out of range"))
    }

    /// Decode a column's dictionary page; `bytes` starts with its header.
    pub fn decode_dictionary(
        &mut self,
        meta: &StripeMeta,
        column: usize,
        bytes: &[u8],
    ) -> Result<Arc<Dictionary>> {
        let (kind, compression) = meta.kind(column)?;
        if !self.ignore_checksums {
            meta.verify_page(column, None, bytes)?;
        }
        let page = open(bytes, compression, true)?;
        if page.encoding != Encoding::Plain {
            return Err(Error::unsupported("a dictionary is not plain"));
        }
        let body = self.expand(&page, compression)?;
        let dict = match plain(kind, body, page.values)? {
            Values::I32(v) => Dictionary::I32(v),
            Values::I64(v) => Dictionary::I64(v),
            Values::I128(v) => Dictionary::I128(v),
            Values::F32(v) => Dictionary::F32(v),
            Values::F64(v) => Dictionary::F64(v),
            Values::Bytes(v) => Dictionary::Bytes(v),
            _ => return Err(Error::unsupported("a column of booleans has a dictionary")),
        };
        Ok(Arc::new(dict))
    }

    /// Decode a data page into row-aligned values; `bytes` starts with its header. `dict` is the
    /// column's dictionary, needed when the page refers to it.
    pub fn decode_page(
        &mut self,
        meta: &StripeMeta,
        column: usize,
        page: usize,
        bytes: &[u8],
        dict: Option<&Arc<Dictionary>>,
    ) -> Result<Column> {
        self.decode(&meta.page(column, page)?, bytes, dict)
    }

    /// As [`Decoder::decode_page`] of a page that was found already.
    ///
    /// # Errors
    /// Of that.
    pub fn decode(
        &mut self,
        page: &PageRef<'_>,
        bytes: &[u8],
        dict: Option<&Arc<Dictionary>>,
    ) -> Result<Column> {
        self.verify(page, bytes)?;
        self.decode_verified(page, bytes, dict)
    }

    /// As [`Decoder::decode`] of a page that was held against its checksum.
    pub(super) fn decode_verified(
        &mut self,
        page: &PageRef<'_>,
        bytes: &[u8],
        dict: Option<&Arc<Dictionary>>,
    ) -> Result<Column> {
        let (kind, compression, rows) = (page.kind, page.compression, page.location.rows as usize);
        let page = open(bytes, compression, false)?;
        if page.values != rows || page.nulls > rows {
            return Err(bad("its row count is not the index's"));
        }
        let levels = match page.nulls {
            0 => None,
            n => Some(levels(page.levels, rows, n)?),
        };
        let count = rows - page.nulls;
        let mut values = match (count, page.encoding) {
            // Writers differ in what they store for no values at all.
            (0, _) => no_values(kind),
            (_, Encoding::Dictionary) => {
                let dict = fitting(kind, dict)?;
                let body = self.expand(&page, compression)?;
                let (width, body) = body.split_first().ok_or_else(|| bad("it is empty"))?;
                let mut keys = Vec::with_capacity(rows);
                bits::hybrid(body, u32::from(*width), count, &mut keys)?;
                let top = keys.iter().fold(0, |top, k| top.max(*k));
                if top as usize >= dict.len() {
                    return Err(bad("a key is beyond the dictionary"));
                }
                Values::Dict { keys, dict: dict.clone() }
            }
            (_, encoding) => {
                let body = self.expand(&page, compression)?;
                values_of(kind, encoding, body, count)?
            }
        };
        if let Some(levels) = &levels {
            spread_values(&mut values, levels, count);
        }
        let nulls = levels.map(|levels| NullBuffer::new(packed(&levels)));
        Ok(Column { rows, nulls, values })
    }
}

/// The dictionary, when it is one of the column's kind.
pub(super) fn fitting(
    kind: ColumnKind,
    dict: Option<&Arc<Dictionary>>,
) -> Result<&Arc<Dictionary>> {
    let dict = dict.ok_or_else(|| bad("it needs a dictionary"))?;
    let fits = matches!(
        (kind.physical(), dict.as_ref()),
        (Physical::I32, Dictionary::I32(_))
            | (Physical::I64, Dictionary::I64(_))
            | (Physical::I128, Dictionary::I128(_))
            | (Physical::F32, Dictionary::F32(_))
            | (Physical::F64, Dictionary::F64(_))
            | (Physical::Bytes, Dictionary::Bytes(_))
    );
    fits.then_some(dict).ok_or_else(|| bad("its dictionary is of another kind"))
}

/// For each row 1, or 0 where it is NULL, of which there must be `expected`.
fn levels(bytes: &[u8], rows: usize, expected: usize) -> Result<Vec<u8>> {
    let mut levels = Vec::with_capacity(rows + 8);
    bits::hybrid_bools(bytes, rows, &mut levels)?;
    let set = levels.iter().map(|level| usize::from(*level)).sum::<usize>();
    if levels.len() != rows || rows - set != expected {
        return Err(bad("its count of NULLs does not match"));
    }
    Ok(levels)
}

/// Zeros and ones as bits.
fn packed(ones: &[u8]) -> BooleanBuffer {
    BooleanBuffer::collect_bool(ones.len(), |at| ones.get(at).is_some_and(|one| *one != 0))
}

fn no_values(kind: ColumnKind) -> Values {
    match kind.physical() {
        Physical::Bool => Values::Bool(BooleanBuffer::new_unset(0)),
        Physical::I32 => Values::I32(Vec::new()),
        Physical::I64 => Values::I64(Vec::new()),
        Physical::I128 => Values::I128(Vec::new()),
        Physical::F32 => Values::F32(Vec::new()),
        Physical::F64 => Values::F64(Vec::new()),
        Physical::Bytes => Values::Bytes(ByteColumn::new()),
    }
}

fn values_of(kind: ColumnKind, encoding: Encoding, body: &[u8], count: usize) -> Result<Values> {
    match (encoding, kind.physical()) {
        (Encoding::Plain, _) => plain(kind, body, count),
        (Encoding::Rle, Physical::Bool) => {
            let mut out = Vec::with_capacity(count + 8);
            bits::hybrid_bools(rle_body(body)?, count, &mut out)?;
            Ok(Values::Bool(packed(&out)))
        }
        (Encoding::Delta, Physical::I32) => {
            let mut out = Vec::with_capacity(count);
            bits::delta(body, count, &mut out, |x| x as i32)?;
            Ok(Values::I32(out))
        }
        (Encoding::Delta, Physical::I64) => {
            let mut out = Vec::with_capacity(count);
            bits::delta(body, count, &mut out, |x| x)?;
            Ok(Values::I64(out))
        }
        (encoding, _) => Err(Error::unsupported(format!("{encoding:?} pages of {kind:?}"))),
    }
}

/// RLE-coded booleans follow their length in four bytes.
pub(super) fn rle_body(body: &[u8]) -> Result<&[u8]> {
    let (len, rest) = body.split_first_chunk::<4>().ok_or_else(|| bad("it ends early"))?;
    rest.get(..u32::from_le_bytes(*len) as usize).ok_or_else(|| bad("it ends early"))
}

fn fixed<const N: usize, T>(
    body: &[u8],
    count: usize,
    to: impl Fn([u8; N]) -> T,
) -> Result<Vec<T>> {
    let len = count.checked_mul(N).ok_or_else(|| bad("it ends early"))?;
    let body = body.get(..len).ok_or_else(|| bad("it ends early"))?;
    Ok(body.as_chunks::<N>().0.iter().map(|b| to(*b)).collect())
}

fn plain(kind: ColumnKind, body: &[u8], count: usize) -> Result<Values> {
    Ok(match kind.physical() {
        Physical::Bool => {
            // Parquet packs them as Arrow does.
            let bytes = body.get(..count.div_ceil(8)).ok_or_else(|| bad("it ends early"))?;
            Values::Bool(BooleanBuffer::new(bytes.to_vec().into(), 0, count))
        }
        Physical::I32 => Values::I32(fixed(body, count, i32::from_le_bytes)?),
        Physical::I64 => Values::I64(fixed(body, count, i64::from_le_bytes)?),
        Physical::I128 => Values::I128(fixed(body, count, i128::from_be_bytes)?),
        Physical::F32 => Values::F32(fixed(body, count, f32::from_le_bytes)?),
        Physical::F64 => Values::F64(fixed(body, count, f64::from_le_bytes)?),
        Physical::Bytes if kind == ColumnKind::Uuid => {
            let len = count.checked_mul(16).filter(|l| *l <= MAX_PAGE_BYTES);
            let data = len.and_then(|l| body.get(..l)).ok_or_else(|| bad("it ends early"))?;
            let offsets = (0..=count).map(|i| i as u32 * 16).collect();
            Values::Bytes(ByteColumn { offsets, data: data.to_vec() })
        }
        Physical::Bytes => Values::Bytes(plain_bytes(body, count)?),
    })
}

fn plain_bytes(body: &[u8], count: usize) -> Result<ByteColumn> {
    // Each value takes four bytes of length at least.
    let sum = count.checked_mul(4).and_then(|n| body.len().checked_sub(n));
    let sum = sum.ok_or_else(|| bad("it ends early"))?;
    let mut out =
        ByteColumn { offsets: Vec::with_capacity(count + 1), data: Vec::with_capacity(sum) };
    out.offsets.push(0);
    let mut rest = body;
    for _ in 0..count {
        let (value, after) = next_bytes(rest)?;
        out.data.extend_from_slice(value);
        out.offsets.push(out.data.len() as u32);
        rest = after;
    }
    Ok(out)
}

/// The first of PLAIN byte strings, and what follows it.
#[inline]
pub(super) fn next_bytes(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>().ok_or_else(|| bad("it ends early"))?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(|| bad("it ends early"))
}

/// Move `count` values apart so that each lies at its row; a NULL's is a default.
fn spread<T: Copy + Default>(values: &mut Vec<T>, levels: &[u8], count: usize) {
    values.truncate(count);
    values.resize(levels.len(), T::default());
    let mut from = count;
    for (row, level) in levels.iter().enumerate().rev() {
        if from > row {
            // No NULL before here: the rest is in place.
            break;
        }
        let value = match level {
            0 => T::default(),
            _ => {
                from = from.saturating_sub(1);
                values.get(from).copied().unwrap_or_default()
            }
        };
        if let Some(slot) = values.get_mut(row) {
            *slot = value;
        }
    }
}

fn spread_values(values: &mut Values, levels: &[u8], count: usize) {
    match values {
        Values::Bool(v) => {
            let mut ones: Vec<u8> = v.iter().map(u8::from).collect();
            spread(&mut ones, levels, count);
            *v = packed(&ones);
        }
        Values::I32(v) => spread(v, levels, count),
        Values::I64(v) => spread(v, levels, count),
        Values::I128(v) => spread(v, levels, count),
        Values::F32(v) => spread(v, levels, count),
        Values::F64(v) => spread(v, levels, count),
        Values::Dict { keys, .. } => spread(keys, levels, count),
        Values::Bytes(v) => {
            let mut offsets = Vec::with_capacity(levels.len() + 1);
            offsets.push(0);
            let mut ends = v.offsets.iter().skip(1);
            let mut end = 0;
            for level in levels {
                if *level != 0 {
                    end = ends.next().copied().unwrap_or(end);
                }
                offsets.push(end);
            }
            v.offsets = offsets;
        }
    }
}

/// Tables of the CRC-32 that Parquet and gzip use (reflected polynomial 0xEDB88320), for eight
/// bytes a step.
const CRC_TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0u32; 256]; 8];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
            bit += 1;
        }
        tables[0][i] = crc;
        i += 1;
    }
    let mut t = 1;
    while t < 8 {
        let mut i = 0;
        while i < 256 {
            let crc = tables[t - 1][i];
            tables[t][i] = (crc >> 8) ^ tables[0][(crc & 255) as usize];
            i += 1;
        }
        t += 1;
    }
    tables
};

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        let word = (u64::from_le_bytes(*word) ^ u64::from(crc)).to_le_bytes();
        crc = 0;
        for (byte, table) in word.iter().zip(CRC_TABLES.iter().rev()) {
            crc ^= table[usize::from(*byte)];
        }
    }
    for byte in tail {
        crc = (crc >> 8) ^ CRC_TABLES[0][usize::from(crc as u8 ^ byte)];
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other writers store booleans as runs; ours store them bit by bit, as Arrow has them.
    #[test]
    fn booleans() {
        // Five times 1, then eight values of their own, then three times 0.
        let runs = [5 << 1, 1, 1 << 1 | 1, 0b1010_0110, 3 << 1, 0];
        let body = [&6u32.to_le_bytes()[..], &runs].concat();
        let expected = [1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0].map(|bit| bit == 1);
        let values =
            |encoding, body: &[u8], count| match values_of(ColumnKind::Bool, encoding, body, count)
            {
                Ok(Values::Bool(values)) => values.iter().collect::<Vec<bool>>(),
                other => panic!("{other:?}"),
            };
        assert_eq!(values(Encoding::Rle, &body, 16), expected);
        // What is beyond the end says nothing.
        assert_eq!(values(Encoding::Plain, &[0b1101_1111, 0b1111_0100], 11), {
            [1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 1].map(|bit| bit == 1)
        });
        assert!(values_of(ColumnKind::Bool, Encoding::Plain, &[0], 9).is_err());
    }

    #[test]
    fn crc_has_its_check_value() {
        // The check value of CRC-32 in the catalogue of parametrised CRC algorithms.
        assert_eq!(super::crc32(b"123456789"), 0xCBF4_3926);
    }
}
