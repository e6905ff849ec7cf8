//! What is read of a stripe first: its columns, and all but what is far. One page of a far column can be found with this alone, and
//! a record of its page map.

use super::meta::{ColumnMeta, PageLocation, PageRef, StripeMeta, MAX_PAGE_ROWS};
use super::page::Decoder;
use crate::column::Dictionary;
use crate::error::{Error, Result};
use crate::page_map::{self, Told, RECORD};
use crate::schema::ColumnSpec;
use std::ops::Range;
use std::sync::Arc;

/// What is said of a column's pages before the metadata at the file's end.
#[derive(Clone, Debug)]
pub(super) struct Far {
    map: Told,
}

/// A stripe's metadata without that of the pages of far columns.
#[derive(Debug)]
pub struct Outline {
    near: Arc<StripeMeta>,
    far: Vec<Option<Far>>,
    meta_offset: u64,
}

/// Where the page of a row is.
pub enum Place<'a> {
    Page(PageRef<'a>),
    /// The page of this number, which has these rows of the stripe, is to be found by the [`RECORD_BYTES`] at `offset` of the file:
    /// [`Outline::page_of_record`].
    Record {
        number: usize,
        rows: Range<u32>,
        offset: u64,
    },
}

impl Place<'_> {
    pub fn number(&self) -> usize {
        match self {
            Place::Page(page) => page.number,
            Place::Record { number, .. } => *number,
        }
    }

    /// The rows of the stripe that the page has.
    pub fn rows(&self) -> Range<u32> {
        match self {
            Place::Page(PageRef { location: at, .. }) => {
                at.first_row..at.first_row.saturating_add(at.rows)
            }
            Place::Record { rows, .. } => rows.clone(),
        }
    }
}

/// Bytes to be read for [`Place::Record`].
pub const RECORD_BYTES: usize = 2 * RECORD;

impl Far {
    pub(super) fn new(map: &str, rows: u32, meta_offset: u64) -> Result<Far> {
        let map = Told::from_text(map)?;
        let end = map.offset.checked_add(map.len()).filter(|end| *end <= meta_offset);
        if map.offset < 4 || end.is_none() {
            return Err(Error::corrupt(
                "what is said of a column's pages lies outside of the file",
            ));
        }
        if map.rows == 0 || map.rows > MAX_PAGE_ROWS || map.pages != rows.div_ceil(map.rows) {
            return Err(Error::corrupt(
                "a page map has not as many pages as the stripe's rows need",
            ));
        }
        Ok(Far { map })
    }

    /// Rows of a page: the first, and how many.
    fn rows_of(&self, number: u32, rows: u32) -> (u32, u32) {
        let first = number.saturating_mul(self.map.rows);
        (first, self.map.rows.min(rows.saturating_sub(first)))
    }
}

impl Outline {
    /// Read what is at a stripe's end: `tail` is the file from byte `meta_offset` on.
    ///
    /// # Errors
    /// Corrupt when the bytes contradict themselves, Unsupported when they are valid Parquet that no
    /// writer of this format version makes.
    pub fn parse(tail: &[u8], meta_offset: u64) -> Result<Outline> {
        let (near, far) = StripeMeta::parse(tail, meta_offset)?;
        Ok(Outline { near: Arc::new(near), far, meta_offset })
    }

    /// Which bytes of the file [`Outline::complete`] needs; none when there are no far columns.
    pub fn far(&self) -> Range<u64> {
        let starts = self.far.iter().flatten().map(|far| far.map.offset);
        starts.min().unwrap_or(self.meta_offset)..self.meta_offset
    }

    /// The metadata, if there is nothing more of it.
    pub fn whole(&self) -> Option<&Arc<StripeMeta>> {
        self.far.iter().all(Option::is_none).then_some(&self.near)
    }

    /// The metadata, with the bytes of [`Outline::far`].
    ///
    /// # Errors
    /// As [`Outline::parse`].
    pub fn complete(&self, bytes: &[u8]) -> Result<StripeMeta> {
        let mut meta = StripeMeta::clone(&self.near);
        let start = self.far().start;
        let part = |range: Range<u64>| {
            let range = range.start.checked_sub(start)?..range.end.checked_sub(start)?;
            bytes.get(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
        };
        let short = || Error::corrupt("a stripe's page maps end early");
        for (far, column) in self.far.iter().zip(&mut meta.columns) {
            let Some(far) = far else { continue };
            let map = far.map.offset..far.map.offset.saturating_add(far.map.len());
            far.fill(column, part(map).ok_or_else(short)?, meta.rows, self.meta_offset)?;
        }
        Ok(meta)
    }

    pub fn rows(&self) -> u32 {
        self.near.rows()
    }

    pub fn columns(&self) -> &[ColumnSpec] {
        self.near.columns()
    }

    /// Offset and length of the column's dictionary page. Far columns have none.
    pub fn dictionary(&self, column: usize) -> Option<(u64, u32)> {
        self.near.dictionary(column)
    }

    /// As [`Decoder::decode_dictionary`].
    ///
    /// # Errors
    /// Of that.
    pub fn decode_dictionary(
        &self,
        decoder: &mut Decoder,
        column: usize,
        bytes: &[u8],
    ) -> Result<Arc<Dictionary>> {
        decoder.decode_dictionary(&self.near, column, bytes)
    }

    /// Where the page is that holds a row of a column.
    ///
    /// # Errors
    /// Corrupt when there is no such row or column.
    pub fn place(&self, column: usize, row: u32) -> Result<Place<'_>> {
        match self.far.get(column).and_then(Option::as_ref) {
            None => {
                let number = self.near.page_of(column, row);
                Ok(Place::Page(self.near.page(column, number)?))
            }
            Some(far) => {
                let number = row / far.map.rows;
                if number >= far.map.pages {
                    return Err(Error::corrupt("a column has no such page"));
                }
                let offset = far.map.offset + u64::from(number) * RECORD as u64;
                let (first, count) = far.rows_of(number, self.rows());
                let rows = first..first.saturating_add(count);
                Ok(Place::Record { number: number as usize, rows, offset })
            }
        }
    }

    /// The page of a far column whose record and the next one these are.
    ///
    /// # Errors
    /// Corrupt when they cannot be records of a page of this stripe. Those of another page are found out when the page is
    /// held against its checksum, which is of its number, too.
    pub fn page_of_record(
        &self,
        column: usize,
        number: usize,
        records: &[u8; RECORD_BYTES],
    ) -> Result<PageRef<'_>> {
        let missing = || Error::corrupt("a column has no such page");
        let (kind, compression) = self.near.kind(column)?;
        let far = self.far.get(column).and_then(Option::as_ref).ok_or_else(missing)?;
        let spec = self.columns().get(column).ok_or_else(missing)?;
        let (offset, len, checksum) = page_map::page(records)?;
        if u64::from(offset) + u64::from(len) > self.meta_offset {
            return Err(Error::corrupt("a page map is damaged: a page lies in the metadata"));
        }
        let (first_row, rows) =
            far.rows_of(u32::try_from(number).map_err(|_| missing())?, self.rows());
        let location = PageLocation { offset: offset.into(), len, first_row, rows };
        let (checksum, far) = (Some(checksum), Some(spec.field_id));
        Ok(PageRef { number, location, column: &spec.name, kind, compression, checksum, far })
    }

    /// Memory it takes, bytes.
    pub fn memory_bytes(&self) -> usize {
        self.near.memory_bytes() + self.far.capacity() * std::mem::size_of::<Option<Far>>()
    }
}

impl Far {
    /// Tell a column where its pages are.
    fn fill(&self, column: &mut ColumnMeta, map: &[u8], rows: u32, meta_offset: u64) -> Result<()> {
        let pages = page_map::decode(map)?;
        if pages.last().is_some_and(|(at, len, _)| u64::from(*at) + u64::from(*len) > meta_offset) {
            return Err(Error::corrupt("a page map is damaged: a page lies in the metadata"));
        }
        column.checksums = pages.iter().map(|(.., checksum)| *checksum).collect();
        let location = |(number, (offset, len, _)): (usize, &(u32, u32, u32))| {
            let (first_row, rows) = self.rows_of(number as u32, rows);
            PageLocation { offset: u64::from(*offset), len: *len, first_row, rows }
        };
        column.pages = pages.iter().enumerate().map(location).collect();
        Ok(())
    }
}
