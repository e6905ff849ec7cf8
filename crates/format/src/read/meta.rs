//! A stripe's metadata: its columns, where their pages are, and the pages' zone maps.

use super::outline::{Far, Outline};
use super::thrift::{self, Reader};
use crate::checksum;
use crate::error::{Error, Result};
use crate::page_map;
use crate::schema::{ColumnKind, ColumnSpec, Physical};
use crate::zone::{Bound, ZoneMap};

/// Most rows of one page; bounds what decoding a page of few bytes can allocate.
pub(super) const MAX_PAGE_ROWS: u32 = 1 << 22;

/// Parquet's numbers for physical types.
mod parquet_type {
    pub const BOOLEAN: i32 = 0;
    pub const INT32: i32 = 1;
    pub const INT64: i32 = 2;
    pub const FLOAT: i32 = 4;
    pub const DOUBLE: i32 = 5;
    pub const BYTE_ARRAY: i32 = 6;
    pub const FIXED: i32 = 7;
}

/// How a column's pages are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Compression {
    None,
    Zstd,
    Lz4,
}

/// A data page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageLocation {
    /// Where its header starts in the file.
    pub offset: u64,
    /// Bytes with its header.
    pub len: u32,
    /// Its first row, counted in the stripe.
    pub first_row: u32,
    pub rows: u32,
}

#[derive(Clone, Debug)]
pub(super) struct ColumnMeta {
    pub compression: Compression,
    pub pages: Vec<PageLocation>,
    dictionary: Option<(u64, u32)>,
    pub zones: Vec<Option<ZoneMap>>,
    /// Of the dictionary page, if there is one, and the data pages; empty in files without.
    pub checksums: Vec<u32>,
    pub is_far: bool,
}

/// What a stripe file says about itself.
#[derive(Clone, Debug)]
pub struct StripeMeta {
    pub(super) rows: u32,
    pub(super) specs: Vec<ColumnSpec>,
    pub(super) columns: Vec<ColumnMeta>,
}

/// A data page: all that is needed to decode it.
#[derive(Clone, Copy, Debug)]
pub struct PageRef<'a> {
    /// Counted in its column.
    pub number: usize,
    pub location: PageLocation,
    pub(super) column: &'a str,
    pub(super) kind: ColumnKind,
    pub(super) compression: Compression,
    /// Files of older versions have none.
    pub(super) checksum: Option<u32>,
    /// Field id of a far column, which is in its checksums.
    pub(super) far: Option<i32>,
}

impl PageRef<'_> {
    /// Its bytes can be held against a checksum.
    pub fn has_checksum(&self) -> bool {
        self.checksum.is_some()
    }

    /// Hold the page as stored against its checksum.
    ///
    /// # Errors
    /// Corrupt when they differ; the message names the page.
    pub fn verify(&self, bytes: &[u8]) -> Result<()> {
        let Some(expected) = self.checksum else { return Ok(()) };
        let found = match self.far {
            Some(field_id) => page_map::checksum_of(bytes, field_id, self.number as u32),
            None => crc32c::crc32c(bytes),
        };
        checksum::compare(found, expected, || {
            let (page, at) = (self.number, self.location.offset);
            format!("page {page} of column \"{}\", at byte {at},", self.column)
        })
    }
}

/// A leaf of the file's schema.
struct Leaf {
    physical: i32,
    length: i32,
    optional: bool,
    name: String,
    field_id: Option<i32>,
    children: i32,
}

#[derive(Default)]
struct Chunk {
    physical: Option<i32>,
    codec: Option<i32>,
    data_offset: i64,
    dictionary_offset: Option<i64>,
    offset_index: Option<(i64, i32)>,
    column_index: Option<(i64, i32)>,
}

struct Footer<'a> {
    rows: i64,
    schema: Vec<Leaf>,
    groups: usize,
    chunks: Vec<Chunk>,
    key_values: Vec<(&'a str, &'a str)>,
}

impl StripeMeta {
    /// The metadata of a stripe file that is there whole.
    ///
    /// # Errors
    /// As [`Outline::parse`] and [`Outline::complete`].
    pub fn of_file(file: &[u8], meta_offset: u64) -> Result<StripeMeta> {
        let part = |from: u64, to: u64| {
            let range = usize::try_from(from).ok()?..usize::try_from(to).ok()?;
            file.get(range)
        };
        let short = || Error::corrupt("a stripe's metadata is too short");
        let tail = part(meta_offset, file.len() as u64).ok_or_else(short)?;
        let outline = Outline::parse(tail, meta_offset)?;
        let far = outline.far();
        outline.complete(part(far.start, far.end).ok_or_else(short)?)
    }

    /// Read what `tail`, the file from byte `meta_offset` to its end, says: column indexes and offset indexes but for those of far
    /// columns, footer, footer length and magic number. And what is said of far columns elsewhere, where that is.
    pub(super) fn parse(tail: &[u8], meta_offset: u64) -> Result<(StripeMeta, Vec<Option<Far>>)> {
        let (rest, end) = tail
            .split_last_chunk::<8>()
            .ok_or_else(|| Error::corrupt("a stripe's metadata is too short"))?;
        let [l0, l1, l2, l3, magic @ ..] = *end;
        if &magic != b"PAR1" {
            return Err(Error::corrupt("a stripe does not end with Parquet's magic number"));
        }
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let start = rest
            .len()
            .checked_sub(len)
            .ok_or_else(|| Error::corrupt("a stripe's footer begins before its metadata"))?;
        let footer = read_footer(rest.get(start..).unwrap_or(&[]))?;
        let version = footer.value("firn.format_version");
        if version.is_none() {
            return Err(Error::unsupported("it does not say which version of the format it has"));
        }
        if version != Some("1") {
            return Err(Error::newer(format!(
                "it has format version {}, this firn knows up to {}",
                version.unwrap_or("(none)"),
                crate::FORMAT_VERSION
            )));
        }
        let rows = match footer.groups {
            // Of a table without columns: Parquet counts the rows of columns.
            0 | 1 if footer.schema.is_empty() => {
                footer.value("firn.rows").and_then(|n| n.parse().ok())
            }
            0 | 1 => u32::try_from(footer.rows).ok(),
            n => return Err(Error::newer(format!("a stripe has {n} row groups"))),
        }
        .ok_or_else(|| Error::corrupt("a stripe's row count is out of range"))?;
        if footer.schema.len() != footer.chunks.len() && (rows > 0 || footer.groups == 1) {
            return Err(Error::corrupt("a stripe's columns do not match its schema"));
        }
        let mut specs = Vec::with_capacity(footer.schema.len());
        let mut columns = Vec::with_capacity(footer.schema.len());
        let mut far = Vec::with_capacity(footer.schema.len());
        let any_far = footer.key_values.iter().any(|(key, _)| key.starts_with(page_map::KEY));
        for (i, leaf) in footer.schema.iter().enumerate() {
            let spec = column_spec(leaf, &footer)?;
            let map = match any_far {
                true => footer.value(&format!("{}{}", page_map::KEY, spec.field_id)),
                false => None,
            };
            let (column, own) = match (footer.chunks.get(i), map) {
                (Some(chunk), None) => {
                    (column_meta(&spec, leaf, chunk, rows, tail, meta_offset)?, None)
                }
                (Some(chunk), Some(map)) => far_column(leaf, chunk, map, rows, meta_offset)?,
                (None, _) => (ColumnMeta::empty(Compression::None), None),
            };
            specs.push(spec);
            columns.push(column);
            far.push(own);
        }
        if let Some(text) = footer.value(checksum::KEY) {
            distribute(&checksum::from_text(text)?, &mut columns, &far)?;
        }
        Ok((StripeMeta { rows, specs, columns }, far))
    }

    pub fn rows(&self) -> u32 {
        self.rows
    }

    pub fn columns(&self) -> &[ColumnSpec] {
        &self.specs
    }

    /// Position of the column with this field identifier.
    pub fn column_by_field_id(&self, field_id: i32) -> Option<usize> {
        self.specs.iter().position(|s| s.field_id == field_id)
    }

    /// The column's pages in row order; empty when there is no such column.
    pub fn pages(&self, column: usize) -> &[PageLocation] {
        self.columns.get(column).map_or(&[], |c| &c.pages)
    }

    /// The page that holds a row (the last one for rows beyond the stripe).
    pub fn page_of(&self, column: usize, row: u32) -> usize {
        let pages = self.pages(column);
        // Most columns have pages of as many rows.
        let guess = pages.first().map_or(0, |first| row / first.rows.max(1)) as usize;
        let is_it = |p: &PageLocation| p.first_row <= row && row - p.first_row < p.rows;
        if pages.get(guess).is_some_and(is_it) {
            return guess;
        }
        pages.partition_point(|p| p.first_row <= row).saturating_sub(1)
    }

    /// Offset and length of the column's dictionary page.
    pub fn dictionary(&self, column: usize) -> Option<(u64, u32)> {
        self.columns.get(column)?.dictionary
    }

    /// What is known of a page's values. Nothing of those of far columns: their pages are smaller than what scans ask for.
    pub fn page_zone(&self, column: usize, page: usize) -> Option<ZoneMap> {
        self.columns.get(column)?.zones.get(page)?.clone()
    }

    /// Hold a data page as stored, or without a number the dictionary page, against its checksum.
    /// Files of older versions have none.
    ///
    /// # Errors
    /// Corrupt when they differ; the message names the page.
    pub fn verify_page(&self, column: usize, page: Option<usize>, bytes: &[u8]) -> Result<()> {
        if let Some(number) = page {
            return self.page(column, number)?.verify(bytes);
        }
        let (Some(spec), Some(meta)) = (self.specs.get(column), self.columns.get(column)) else {
            return Err(Error::corrupt("a stripe has no such column"));
        };
        let Some(expected) = meta.checksums.first() else { return Ok(()) };
        checksum::verify(bytes, *expected, || format!("the dictionary of column \"{}\"", spec.name))
    }

    /// Memory it takes, bytes.
    pub fn memory_bytes(&self) -> usize {
        let bound = |b: &Option<Bound>| match b {
            Some(Bound::Bytes(v)) => v.capacity(),
            _ => 0,
        };
        let mut sum = std::mem::size_of::<StripeMeta>();
        for s in &self.specs {
            sum += std::mem::size_of::<ColumnSpec>() + s.name.capacity() + s.type_name.capacity();
        }
        for c in &self.columns {
            sum += std::mem::size_of::<ColumnMeta>()
                + c.pages.capacity() * std::mem::size_of::<PageLocation>()
                + c.checksums.capacity() * std::mem::size_of::<u32>()
                + c.zones.capacity() * std::mem::size_of::<Option<ZoneMap>>()
                + c.zones.iter().flatten().map(|z| bound(&z.min) + bound(&z.max)).sum::<usize>();
        }
        sum
    }

    /// A data page of a column.
    ///
    /// # Errors
    /// Corrupt when there is no such page.
    pub fn page(&self, column: usize, number: usize) -> Result<PageRef<'_>> {
        let missing = || Error::corrupt("a column has no such page");
        let (kind, compression) = self.kind(column)?;
        let location = *self.pages(column).get(number).ok_or_else(missing)?;
        let (Some(spec), Some(meta)) = (self.specs.get(column), self.columns.get(column)) else {
            return Err(missing());
        };
        let checksum = match meta.checksums.is_empty() {
            true => None,
            false => {
                let first = usize::from(meta.dictionary.is_some());
                Some(*meta.checksums.get(first + number).ok_or_else(missing)?)
            }
        };
        let far = meta.is_far.then_some(spec.field_id);
        Ok(PageRef { number, location, column: &spec.name, kind, compression, checksum, far })
    }

    pub(super) fn kind(&self, column: usize) -> Result<(ColumnKind, Compression)> {
        match (self.specs.get(column), self.columns.get(column)) {
            (Some(spec), Some(meta)) => Ok((spec.kind, meta.compression)),
            _ => Err(Error::corrupt("a stripe has no such column")),
        }
    }
}

impl ColumnMeta {
    /// Of a column of whose pages nothing is known.
    fn empty(compression: Compression) -> ColumnMeta {
        ColumnMeta {
            compression,
            pages: Vec::new(),
            dictionary: None,
            zones: Vec::new(),
            checksums: Vec::new(),
            is_far: false,
        }
    }
}

impl Footer<'_> {
    fn value(&self, key: &str) -> Option<&str> {
        self.key_values.iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
    }
}

fn read_footer(bytes: &[u8]) -> Result<Footer<'_>> {
    let mut footer = Footer {
        rows: -1,
        schema: Vec::new(),
        groups: 0,
        chunks: Vec::new(),
        key_values: Vec::new(),
    };
    let mut r = Reader::new(bytes);
    let mut root = true;
    r.fields(|r, id, kind| match id {
        2 => r.each(|r| {
            let leaf = read_leaf(r)?;
            if std::mem::take(&mut root) {
                return Ok(());
            }
            if leaf.children > 0 {
                return Err(Error::newer("a stripe has nested columns"));
            }
            footer.schema.push(leaf);
            Ok(())
        }),
        3 => {
            footer.rows = r.int()?;
            Ok(())
        }
        4 => r.each(|r| {
            footer.groups += 1;
            r.fields(|r, id, kind| match id {
                1 => r.each(|r| {
                    footer.chunks.push(read_chunk(r)?);
                    Ok(())
                }),
                _ => r.skip(kind),
            })
        }),
        5 => r.each(|r| {
            let (mut key, mut value) = ("", "");
            r.fields(|r, id, kind| match id {
                1 => r.text().map(|t| key = t),
                2 => r.text().map(|t| value = t),
                _ => r.skip(kind),
            })?;
            footer.key_values.push((key, value));
            Ok(())
        }),
        _ => r.skip(kind),
    })?;
    Ok(footer)
}

fn read_leaf(r: &mut Reader<'_>) -> Result<Leaf> {
    let mut leaf = Leaf {
        physical: -1,
        length: 0,
        optional: false,
        name: String::new(),
        field_id: None,
        children: 0,
    };
    r.fields(|r, id, kind| {
        match id {
            1 => leaf.physical = r.int32()?,
            2 => leaf.length = r.int32()?,
            3 => leaf.optional = r.int32()? == 1,
            4 => leaf.name = r.text()?.to_owned(),
            5 => leaf.children = r.int32()?,
            9 => leaf.field_id = Some(r.int32()?),
            _ => r.skip(kind)?,
        }
        Ok(())
    })?;
    Ok(leaf)
}

fn read_chunk(r: &mut Reader<'_>) -> Result<Chunk> {
    let mut chunk = Chunk::default();
    let (mut offset_at, mut column_at) = (None, None);
    r.fields(|r, id, kind| {
        match id {
            3 => r.fields(|r, id, kind| {
                match id {
                    1 => chunk.physical = Some(r.int32()?),
                    4 => chunk.codec = Some(r.int32()?),
                    9 => chunk.data_offset = r.int()?,
                    11 => chunk.dictionary_offset = Some(r.int()?),
                    _ => r.skip(kind)?,
                }
                Ok(())
            })?,
            4 => offset_at = Some(r.int()?),
            5 => chunk.offset_index = Some((offset_at.unwrap_or(-1), r.int32()?)),
            6 => column_at = Some(r.int()?),
            7 => chunk.column_index = Some((column_at.unwrap_or(-1), r.int32()?)),
            _ => r.skip(kind)?,
        }
        Ok(())
    })?;
    Ok(chunk)
}

fn column_spec(leaf: &Leaf, footer: &Footer<'_>) -> Result<ColumnSpec> {
    let field_id = leaf
        .field_id
        .ok_or_else(|| Error::corrupt(format!("column {} has no field id", leaf.name)))?;
    let text = footer
        .value(&format!("firn.column.{field_id}"))
        .ok_or_else(|| Error::corrupt(format!("column {} is not described", leaf.name)))?;
    let (kind, type_name) = text.split_once('|').unwrap_or((text, ""));
    let kind = ColumnKind::parse(kind)
        .ok_or_else(|| Error::newer(format!("column {} is of unknown kind {kind}", leaf.name)))?;
    use parquet_type as t;
    let expected = match (kind, kind.physical()) {
        (ColumnKind::Uuid, _) | (_, Physical::I128) => t::FIXED,
        (_, Physical::Bool) => t::BOOLEAN,
        (_, Physical::I32) => t::INT32,
        (_, Physical::I64) => t::INT64,
        (_, Physical::F32) => t::FLOAT,
        (_, Physical::F64) => t::DOUBLE,
        (_, Physical::Bytes) => t::BYTE_ARRAY,
    };
    if leaf.physical != expected || (expected == t::FIXED && leaf.length != 16) {
        return Err(Error::corrupt(format!("column {} has a wrong physical type", leaf.name)));
    }
    if !leaf.optional {
        return Err(Error::newer(format!("column {} is not optional", leaf.name)));
    }
    Ok(ColumnSpec { field_id, name: leaf.name.clone(), kind, type_name: type_name.to_owned() })
}

/// The part of `tail` that an index occupies.
fn index_bytes(at: (i64, i32), tail: &[u8], meta_offset: u64) -> Result<&[u8]> {
    let part = || {
        let start = u64::try_from(at.0).ok()?.checked_sub(meta_offset)?;
        let start = usize::try_from(start).ok()?;
        tail.get(start..start.checked_add(usize::try_from(at.1).ok()?)?)
    };
    part().ok_or_else(|| Error::corrupt("a page index lies outside of the metadata"))
}

fn compression_of(leaf: &Leaf, chunk: &Chunk) -> Result<Compression> {
    if chunk.physical != Some(leaf.physical) {
        return Err(Error::corrupt("a column chunk's type is not its column's"));
    }
    match chunk.codec {
        Some(0) => Ok(Compression::None),
        Some(6) => Ok(Compression::Zstd),
        Some(7) => Ok(Compression::Lz4),
        other => Err(Error::newer(format!("compression {other:?} is not known"))),
    }
}

/// A column whose pages are told elsewhere.
fn far_column(
    leaf: &Leaf,
    chunk: &Chunk,
    map: &str,
    rows: u32,
    meta_offset: u64,
) -> Result<(ColumnMeta, Option<Far>)> {
    if chunk.dictionary_offset.is_some() {
        return Err(Error::newer("a column with a page map has a dictionary"));
    }
    let column = ColumnMeta { is_far: true, ..ColumnMeta::empty(compression_of(leaf, chunk)?) };
    Ok((column, Some(Far::new(map, rows, meta_offset)?)))
}

fn column_meta(
    spec: &ColumnSpec,
    leaf: &Leaf,
    chunk: &Chunk,
    rows: u32,
    tail: &[u8],
    meta_offset: u64,
) -> Result<ColumnMeta> {
    let compression = compression_of(leaf, chunk)?;
    let index = chunk.offset_index.ok_or_else(|| Error::newer("a stripe has no offset index"))?;
    let pages = read_pages(index_bytes(index, tail, meta_offset)?, rows, meta_offset)?;
    let first = pages.first().map(|p| p.offset);
    let dictionary = match (chunk.dictionary_offset, first) {
        (Some(at), Some(first)) => {
            let len = u64::try_from(at).ok().filter(|a| *a >= 4).and_then(|a| first.checked_sub(a));
            let len = len.and_then(|l| u32::try_from(l).ok()).filter(|l| *l > 0);
            let len = len.ok_or_else(|| Error::corrupt("a dictionary page is misplaced"))?;
            Some((at as u64, len))
        }
        _ => None,
    };
    let zones = match chunk.column_index {
        Some(at) => read_zones(index_bytes(at, tail, meta_offset)?, spec.kind, &pages)?,
        None => Vec::new(),
    };
    Ok(ColumnMeta { pages, dictionary, zones, ..ColumnMeta::empty(compression) })
}

/// Give each column the checksums of its pages; columns follow each other in the file. Far columns have their own.
fn distribute(
    mut checksums: &[u32],
    columns: &mut [ColumnMeta],
    far: &[Option<Far>],
) -> Result<()> {
    let bad = || Error::corrupt("a stripe has not as many checksums as pages");
    for (column, far) in columns.iter_mut().zip(far) {
        if far.is_some() {
            continue;
        }
        let count = usize::from(column.dictionary.is_some()) + column.pages.len();
        let (own, rest) = checksums.split_at_checked(count).ok_or_else(bad)?;
        column.checksums = own.to_vec();
        checksums = rest;
    }
    checksums.is_empty().then_some(()).ok_or_else(bad)
}

fn read_pages(bytes: &[u8], rows: u32, meta_offset: u64) -> Result<Vec<PageLocation>> {
    let bad = || Error::corrupt("an offset index is inconsistent");
    let mut pages: Vec<PageLocation> = Vec::new();
    Reader::new(bytes).fields(|r, id, kind| match id {
        1 => r.each(|r| {
            let (mut offset, mut len, mut first) = (-1, -1, -1);
            r.fields(|r, id, kind| {
                match id {
                    1 => offset = r.int()?,
                    2 => len = r.int32()?,
                    3 => first = r.int()?,
                    _ => r.skip(kind)?,
                }
                Ok(())
            })?;
            pages.push(PageLocation {
                offset: u64::try_from(offset).map_err(|_| bad())?,
                len: u32::try_from(len).map_err(|_| bad())?,
                first_row: u32::try_from(first).map_err(|_| bad())?,
                rows: 0,
            });
            Ok(())
        }),
        _ => r.skip(kind),
    })?;
    // From the last to the first: each page ends where the next one starts.
    let (mut next_row, mut next_offset) = (rows, meta_offset);
    for page in pages.iter_mut().rev() {
        page.rows = next_row.checked_sub(page.first_row).ok_or_else(bad)?;
        let end = page.offset.checked_add(u64::from(page.len)).ok_or_else(bad)?;
        if page.offset < 4 || end > next_offset || page.rows > MAX_PAGE_ROWS {
            return Err(bad());
        }
        if page.rows == 0 && rows > 0 {
            return Err(bad());
        }
        (next_row, next_offset) = (page.first_row, page.offset);
    }
    if next_row != 0 {
        return Err(bad());
    }
    Ok(pages)
}

fn read_zones(
    bytes: &[u8],
    kind: ColumnKind,
    pages: &[PageLocation],
) -> Result<Vec<Option<ZoneMap>>> {
    let (mut empty, mut mins, mut maxs, mut nulls) = (Vec::new(), Vec::new(), Vec::new(), None);
    Reader::new(bytes).fields(|r, id, field| {
        match id {
            1 => empty = r.bools()?,
            2 => r.each(|r| r.binary().map(|b| mins.push(b)))?,
            3 => r.each(|r| r.binary().map(|b| maxs.push(b)))?,
            5 if field == thrift::LIST => {
                let mut counts = Vec::new();
                r.each(|r| r.int().map(|n| counts.push(n)))?;
                nulls = Some(counts);
            }
            _ => r.skip(field)?,
        }
        Ok(())
    })?;
    let Some(nulls) = nulls else { return Ok(Vec::new()) };
    if [empty.len(), mins.len(), maxs.len(), nulls.len()].iter().any(|n| *n != pages.len()) {
        return Err(Error::corrupt("a column index does not match the offset index"));
    }
    let bounds = mins.iter().zip(&maxs);
    let counts = empty.iter().zip(&nulls).zip(pages);
    bounds
        .zip(counts)
        .map(|((min, max), ((empty, nulls), page))| {
            let bad = || Error::corrupt("a column index is inconsistent");
            let nulls = u32::try_from(*nulls).map_err(|_| bad())?;
            if nulls > page.rows || *empty != (nulls == page.rows) {
                return Err(bad());
            }
            let float = matches!(kind.physical(), Physical::F32 | Physical::F64);
            let (min, max) = match *empty {
                true => (None, None),
                false => (bound(kind, min, false), bound(kind, max, true)),
            };
            // Parquet's bounds of floats leave NaNs out without a word of their presence.
            Ok(Some(ZoneMap {
                exact: !matches!(min, None | Some(Bound::Bytes(_))) || kind == ColumnKind::Uuid,
                min,
                max,
                nulls,
                rows: page.rows,
                has_nan: float && !*empty,
                kind: Some(kind.code()),
            }))
        })
        .collect()
}

/// A bound as Parquet stores it: the PLAIN encoding of one value without a length. None when it is
/// not one of the kind, or cannot be kept as short as zone maps are.
fn bound(kind: ColumnKind, bytes: &[u8], upper: bool) -> Option<Bound> {
    let i32_of = |b: &[u8]| b.try_into().ok().map(i32::from_le_bytes);
    let number = |x: f64| (!x.is_nan()).then_some(Bound::F64(x));
    match kind.physical() {
        _ if !kind.is_ordered() => None,
        Physical::Bool => bytes.first().map(|b| Bound::I64(i64::from(*b & 1))),
        Physical::I32 if kind == ColumnKind::UInt32 => {
            i32_of(bytes).map(|x| Bound::I64(i64::from(x as u32)))
        }
        Physical::I32 => i32_of(bytes).map(|x| Bound::I64(i64::from(x))),
        Physical::I64 => bytes.try_into().ok().map(|b| Bound::I64(i64::from_le_bytes(b))),
        Physical::I128 => bytes.try_into().ok().map(|b| Bound::I128(i128::from_be_bytes(b))),
        Physical::F32 => {
            bytes.try_into().ok().map(f32::from_le_bytes).and_then(|x| number(f64::from(x)))
        }
        Physical::F64 => bytes.try_into().ok().map(f64::from_le_bytes).and_then(number),
        Physical::Bytes => short_bound(bytes, upper).map(Bound::Bytes),
    }
}

/// A byte-string bound cut to [`ZoneMap::MAX_BYTES`]; an upper one is rounded up, and is None when
/// that is impossible.
fn short_bound(bytes: &[u8], upper: bool) -> Option<Vec<u8>> {
    let mut short = bytes.get(..ZoneMap::MAX_BYTES).unwrap_or(bytes).to_vec();
    if upper && short.len() < bytes.len() {
        while let Some(last) = short.pop() {
            if let Some(next) = last.checked_add(1) {
                short.push(next);
                return Some(short);
            }
        }
        return None;
    }
    Some(short)
}
