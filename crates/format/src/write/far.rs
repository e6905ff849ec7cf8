//! Far columns: what is said of their many pages is put before the metadata at the file's end, so that this stays small.

use super::encode::failed;
use crate::checksum;
use crate::error::{Error, Result};
use crate::page_map::{self, Told, FAR_PAGES};
use crate::read::page_len_and_rows;
use crate::schema::ColumnSpec;
use parquet::file::metadata::{
    ColumnChunkMetaData, FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataBuilder,
    ParquetMetaDataWriter, RowGroupMetaData,
};
use std::ops::Range;

/// A page as stored.
struct Page {
    offset: u32,
    rows: u32,
    checksum: u32,
}

/// The pages of a column's chunk, dictionary page included.
pub(super) struct Pages {
    list: Vec<Page>,
    /// Rows of each page but the last, if the column is far.
    far: Option<u32>,
    end: u32,
}

/// The pages of each column of a file that is whole but for its metadata. `even` are the columns that were written in pages of as many
/// rows each; those of them with many pages are far.
pub(super) fn pages(
    file: &[u8],
    group: &RowGroupMetaData,
    columns: &[ColumnSpec],
    even: &[bool],
) -> Result<Vec<Pages>> {
    let of = |((chunk, spec), even): ((&ColumnChunkMetaData, &ColumnSpec), &bool)| {
        let (start, len) = chunk.byte_range();
        let mut pages = Pages { list: Vec::new(), far: None, end: (start + len) as u32 };
        let mut at = start as usize;
        while at < pages.end as usize {
            let bytes = file.get(at..pages.end as usize).unwrap_or(&[]);
            let (len, rows) = page_len_and_rows(bytes)?;
            let checksum = crc32c::crc32c(bytes.get(..len).unwrap_or(&[]));
            pages.list.push(Page { offset: at as u32, rows, checksum });
            at += len;
        }
        if *even && chunk.dictionary_page_offset().is_none() {
            pages.far = pages.far_rows();
        }
        if pages.far.is_some() {
            pages.number(spec.field_id);
        }
        Ok(pages)
    };
    group.columns().iter().zip(columns).zip(even).map(of).collect()
}

impl Pages {
    /// Rows of each page, if the column is far: it has many pages, and all but the last have as many.
    fn far_rows(&self) -> Option<u32> {
        let (last, others) = self.list.split_last()?;
        let rows = self.list.first()?.rows;
        let is_far = self.list.len() >= FAR_PAGES
            && others.iter().all(|page| page.rows == rows)
            && last.rows <= rows;
        is_far.then_some(rows)
    }

    /// The checksums of a far column are of whose page it is, too.
    fn number(&mut self, field_id: i32) {
        for (number, page) in self.list.iter_mut().enumerate() {
            page.checksum = page_map::continued(page.checksum, field_id, number as u32);
        }
    }

    fn map(&self) -> Vec<u8> {
        page_map::encode(self.list.iter().map(|page| (page.offset, page.checksum)), self.end)
    }
}

/// The checksums of columns that are not far, for the footer.
pub(super) fn checksums(pages: &[Pages]) -> KeyValue {
    let near = pages.iter().filter(|column| column.far.is_none());
    let sums: Vec<u32> = near.flat_map(|column| &column.list).map(|page| page.checksum).collect();
    KeyValue::new(checksum::KEY.to_owned(), checksum::to_text(&sums))
}

/// Any column is far.
pub(super) fn is_any(pages: &[Pages]) -> bool {
    pages.iter().any(|column| column.far.is_some())
}

/// Give a file another end: what is said of pages of far columns comes before the metadata. `meta_offset` is where its
/// metadata begins; returns where it does then.
pub(super) fn put_before_metadata(
    file: &mut Vec<u8>,
    meta_offset: usize,
    metadata: ParquetMetaData,
    columns: &[ColumnSpec],
    pages: &[Pages],
) -> Result<usize> {
    let bad = || Error::too_large("the Parquet writer made metadata that is not understood");
    let end = file.split_off(meta_offset);
    let part = |offset: Option<i64>, len: Option<i32>| -> Result<Option<&[u8]>> {
        let (Some(offset), Some(len)) = (offset, len) else { return Ok(None) };
        let start = usize::try_from(offset).ok().and_then(|at| at.checked_sub(meta_offset));
        let range = start.zip(usize::try_from(len).ok()).map(|(start, len)| start..start + len);
        range.and_then(|range| end.get(range)).map(Some).ok_or_else(bad)
    };
    let [group] = metadata.row_groups() else { return Err(bad()) };
    let mut chunks = group.columns().to_vec();
    let mut keys = metadata.file_metadata().key_value_metadata().cloned().unwrap_or_default();
    let is_far = |i: usize| pages.get(i).is_some_and(|column| column.far.is_some());
    // Others read those of far columns, we have the maps: so they come before what we read.
    let order: [(bool, Index); 4] = [
        (true, Index::Offset),
        (true, Index::Column),
        (false, Index::Column),
        (false, Index::Offset),
    ];
    let mut new_offset = 0;
    for (far, index) in order {
        let same = chunks.iter_mut().enumerate().filter(|(i, _)| is_far(*i) == far);
        for (_, chunk) in same {
            let (offset, len) = index.range(chunk);
            let start = file.len();
            if let Some(bytes) = part(offset, len)? {
                file.extend_from_slice(bytes);
                *chunk = index.moved(chunk.clone(), start..file.len())?;
            }
        }
        if (far, index) == (true, Index::Column) {
            for (column, spec) in pages.iter().zip(columns) {
                let Some(rows) = column.far else { continue };
                let told =
                    Told { offset: file.len() as u64, pages: column.list.len() as u32, rows };
                file.extend_from_slice(&column.map());
                let key = format!("{}{}", page_map::KEY, spec.field_id);
                keys.push(KeyValue::new(key, told.to_text()));
            }
            new_offset = file.len();
        }
    }
    keys.push(checksums(pages));
    let group = group.clone().into_builder().set_column_metadata(chunks).build().map_err(failed)?;
    let said = metadata.file_metadata();
    let said = FileMetaData::new(
        said.version(),
        said.num_rows(),
        said.created_by().map(str::to_owned),
        Some(keys),
        said.schema_descr_ptr(),
        said.column_orders().cloned(),
    );
    let metadata = ParquetMetaDataBuilder::new(said).add_row_group(group).build();
    ParquetMetaDataWriter::new(file, &metadata).finish().map_err(failed)?;
    Ok(new_offset)
}

/// The two indexes of a column's pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Index {
    Column,
    Offset,
}

impl Index {
    fn range(self, chunk: &ColumnChunkMetaData) -> (Option<i64>, Option<i32>) {
        match self {
            Index::Column => (chunk.column_index_offset(), chunk.column_index_length()),
            Index::Offset => (chunk.offset_index_offset(), chunk.offset_index_length()),
        }
    }

    fn moved(self, chunk: ColumnChunkMetaData, to: Range<usize>) -> Result<ColumnChunkMetaData> {
        let (offset, len) = (Some(to.start as i64), Some(to.len() as i32));
        let builder = chunk.into_builder();
        let builder = match self {
            Index::Column => builder.set_column_index_offset(offset).set_column_index_length(len),
            Index::Offset => builder.set_offset_index_offset(offset).set_offset_index_length(len),
        };
        builder.build().map_err(failed)
    }
}
