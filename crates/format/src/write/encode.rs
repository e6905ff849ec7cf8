//! From collected columns to the bytes of a Parquet file.

use super::builder::{ColumnBuilder, Data};
use super::choose::{choose, Choice};
use super::zones::zone_map;
use super::{far, Codec, WriteOptions};
use crate::error::{Error, Result};
use crate::schema::{ColumnKind, ColumnSpec, Physical};
use crate::zone::ZoneMap;
use crate::FORMAT_VERSION;
use bytes::Bytes;
use parquet::basic::{
    Compression, Encoding, LogicalType, Repetition, TimeUnit, Type as PhysicalType, ZstdLevel,
};
use parquet::column::writer::ColumnWriterImpl;
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArray,
    FixedLenByteArrayType, FloatType, Int32Type, Int64Type,
};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::writer::{
    SerializedFileWriter, SerializedPageWriter, SerializedRowGroupWriter, TrackedWrite,
};
use parquet::schema::types::{ColumnDescPtr, ColumnPath, SchemaDescriptor, Type};
use std::sync::Arc;

/// An encoded stripe.
#[derive(Clone, Debug)]
pub struct Stripe {
    /// The Parquet file.
    pub bytes: Vec<u8>,
    pub rows: u32,
    /// Where data pages end and page index and footer begin.
    pub meta_offset: u64,
    /// CRC-32C of all bytes.
    pub crc32c: u32,
    /// CRC-32C of the bytes from `meta_offset` on.
    pub meta_crc32c: u32,
    /// Size of the values before encoding, bytes.
    pub raw_bytes: u64,
    /// Zone map of each column.
    pub zones: Vec<Option<ZoneMap>>,
    /// Field id of each column.
    pub field_ids: Vec<i32>,
}

/// Largest stripe file, bytes: offsets within it are stored in 32 bits in several places.
const MAX_BYTES: usize = 2_000_000_000;

/// Bytes of a value that Parquet's statistics keep, if they can round a maximum of so many up.
const STATISTICS_BYTES: usize = 64;

pub(super) fn failed(e: parquet::errors::ParquetError) -> Error {
    Error::too_large(format!("the Parquet writer refused a stripe: {e}"))
}

fn parquet_type(spec: &ColumnSpec) -> Result<Type> {
    use ColumnKind as K;
    let (physical, logical, length) = match spec.kind {
        K::Bool => (PhysicalType::BOOLEAN, None, 0),
        K::Int8 => (PhysicalType::INT32, Some(LogicalType::integer(8, true)), 0),
        K::Int16 => (PhysicalType::INT32, Some(LogicalType::integer(16, true)), 0),
        K::Int32 => (PhysicalType::INT32, Some(LogicalType::integer(32, true)), 0),
        K::Int64 => (PhysicalType::INT64, Some(LogicalType::integer(64, true)), 0),
        K::UInt32 => (PhysicalType::INT32, Some(LogicalType::integer(32, false)), 0),
        K::Float32 => (PhysicalType::FLOAT, None, 0),
        K::Float64 => (PhysicalType::DOUBLE, None, 0),
        K::Decimal { precision, scale } => {
            let logical = LogicalType::decimal(i32::from(scale), i32::from(precision));
            if precision <= 18 {
                (PhysicalType::INT64, Some(logical), 0)
            } else {
                (PhysicalType::FIXED_LEN_BYTE_ARRAY, Some(logical), 16)
            }
        }
        K::Date => (PhysicalType::INT32, Some(LogicalType::Date), 0),
        K::Timestamp => {
            (PhysicalType::INT64, Some(LogicalType::timestamp(false, TimeUnit::MICROS)), 0)
        }
        K::TimestampTz => {
            (PhysicalType::INT64, Some(LogicalType::timestamp(true, TimeUnit::MICROS)), 0)
        }
        K::Time => (PhysicalType::INT64, Some(LogicalType::time(false, TimeUnit::MICROS)), 0),
        K::Uuid => (PhysicalType::FIXED_LEN_BYTE_ARRAY, Some(LogicalType::Uuid), 16),
        K::Text => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String), 0),
        K::Json => (PhysicalType::BYTE_ARRAY, Some(LogicalType::Json), 0),
        K::Bytes | K::Opaque => (PhysicalType::BYTE_ARRAY, None, 0),
    };
    let mut builder = Type::primitive_type_builder(&spec.name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical)
        .with_id(Some(spec.field_id))
        .with_length(length);
    if let K::Decimal { precision, scale } = spec.kind {
        builder = builder.with_precision(i32::from(precision)).with_scale(i32::from(scale));
    }
    builder.build().map_err(failed)
}

/// Some value begins with nothing but what has no successor of its length: bytes of 0xFF, or, in text, such characters.
fn has_unbounded(kind: ColumnKind, values: &ColumnBuilder) -> bool {
    let Data::Bytes(values) = &values.data else { return false };
    let is_last = |c| matches!(c, '\u{7f}' | '\u{7ff}' | '\u{d7ff}' | '\u{ffff}' | '\u{10ffff}');
    let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok_and(|t| t.chars().all(is_last));
    let is_unbounded = |value: &[u8]| {
        let Some(first) = value.get(..STATISTICS_BYTES) else { return false };
        match first[0] {
            0xFF => first.iter().all(|b| *b == 0xFF),
            // What those characters begin with. Parquet cuts text between characters.
            0x7F | 0xDF | 0xED | 0xEF | 0xF4 if kind == ColumnKind::Text => {
                (STATISTICS_BYTES - 3..=STATISTICS_BYTES).any(|end| is_text(&first[..end]))
            }
            _ => false,
        }
    };
    (0..values.len()).any(|row| is_unbounded(values.get(row)))
}

fn properties(
    columns: &[ColumnSpec],
    choices: &[Choice],
    builders: &[ColumnBuilder],
    options: &WriteOptions,
    rows: u32,
) -> Result<WriterProperties> {
    let compression = match options.codec {
        Codec::None => Compression::UNCOMPRESSED,
        Codec::Lz4 => Compression::LZ4_RAW,
        Codec::Zstd(level) => Compression::ZSTD(ZstdLevel::try_new(level).map_err(failed)?),
    };
    let page_rows = options.page_rows.max(1);
    let mut keys =
        vec![KeyValue::new("firn.format_version".to_owned(), FORMAT_VERSION.to_string())];
    for c in columns {
        keys.push(KeyValue::new(
            format!("firn.column.{}", c.field_id),
            format!("{}|{}", c.kind.to_text(), c.type_name),
        ));
    }
    if columns.is_empty() {
        // Parquet counts the rows of columns, and here are none.
        keys.push(KeyValue::new("firn.rows".to_owned(), rows.to_string()));
    }
    let mut builder = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_created_by(concat!("firn ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(keys))
        .set_compression(compression)
        // A page is stored as it is where compression saves less than three hundredths.
        .set_data_page_v2_compression_ratio_threshold(0.97)
        .set_data_page_row_count_limit(page_rows)
        .set_write_batch_size(page_rows.min(1_024))
        .set_data_page_size_limit(1 << 30)
        .set_dictionary_page_size_limit(1 << 30)
        .set_max_row_group_row_count(None)
        .set_max_row_group_bytes(None)
        .set_statistics_enabled(EnabledStatistics::Page);
    for ((c, choice), values) in columns.iter().zip(choices).zip(builders) {
        let path = ColumnPath::new(vec![c.name.clone()]);
        // Parquet would keep the values whole where it cannot round a maximum up. Of documents nobody asks which text comes first, and
        // what is known of each of their many small pages would be most of what a look-up reads of a stripe at first.
        if c.kind == ColumnKind::Json || has_unbounded(c.kind, values) {
            let none = EnabledStatistics::None;
            builder = builder.set_column_statistics_enabled(path.clone(), none);
        }
        builder = match choice {
            Choice::Dictionary => builder.set_column_dictionary_enabled(path, true),
            Choice::Delta => builder
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED),
            Choice::Plain => builder
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::PLAIN),
            Choice::Wide => builder
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_data_page_size_limit(path.clone(), options.page_bytes(c))
                .set_column_encoding(path, Encoding::PLAIN),
        };
    }
    Ok(builder.build())
}

/// Encode columns as one Parquet file of one row group.
pub(super) fn encode(
    columns: &[ColumnSpec],
    builders: &[ColumnBuilder],
    options: &WriteOptions,
    rows: u32,
) -> Result<Stripe> {
    let raw_bytes: usize = builders.iter().map(ColumnBuilder::bytes).sum();
    if builders.iter().any(|b| b.len() != rows as usize) {
        return Err(Error::corrupt("columns of a stripe have different numbers of rows"));
    }
    // Parquet paths are names: dropped and re-added columns may share one, field ids never do.
    let mut named: Vec<ColumnSpec> = columns.to_vec();
    let mut seen = std::collections::HashSet::new();
    for c in &mut named {
        if !seen.insert(c.name.clone()) {
            c.name = format!("{}.{}", c.name, c.field_id);
            seen.insert(c.name.clone());
        }
    }
    let choices: Vec<Choice> = builders.iter().map(choose).collect();
    let fields = named.iter().map(|c| parquet_type(c).map(Arc::new)).collect::<Result<Vec<_>>>()?;
    let schema = Type::group_type_builder("firn").with_fields(fields).build().map_err(failed)?;
    let pages: Vec<PagesBy> = named
        .iter()
        .zip(builders)
        .zip(&choices)
        .map(|((spec, builder), choice)| pages_by(spec, builder, *choice, options))
        .collect();
    let (schema, properties) =
        (Arc::new(schema), properties(&named, &choices, builders, options, rows)?);
    let parquet_columns = SchemaDescriptor::new(schema.clone());
    let mut sink: Vec<u8> = Vec::with_capacity(raw_bytes / 4 + 4_096);
    let mut file = SerializedFileWriter::new(&mut sink, schema, Arc::new(properties.clone()))
        .map_err(failed)?;
    let mut group = file.next_row_group().map_err(failed)?;
    for (i, (spec, builder)) in named.iter().zip(builders).enumerate() {
        let pages = pages.get(i).copied().unwrap_or(PagesBy::Default);
        let column = (parquet_columns.column(i), &properties);
        write_column(&mut group, spec, builder, (pages, column))?;
    }
    let group = group.close().map_err(failed)?;
    let mut meta_offset = file.bytes_written();
    let mut stored = Vec::new();
    if rows > 0 && !columns.is_empty() {
        file.flush().map_err(|e| Error::too_large(format!("a stripe could not be kept: {e}")))?;
        if meta_offset <= MAX_BYTES {
            let even: Vec<bool> = pages.iter().map(|p| matches!(p, PagesBy::Rows(_))).collect();
            stored = far::pages(file.inner(), &group, &named, &even)?;
        }
        if !far::is_any(&stored) {
            file.append_key_value_metadata(far::checksums(&stored));
        }
    }
    let metadata = file.close().map_err(failed)?;
    if far::is_any(&stored) {
        meta_offset = far::put_before_metadata(&mut sink, meta_offset, metadata, &named, &stored)?;
    }
    if sink.len() > MAX_BYTES {
        return Err(Error::too_large(format!("a stripe of {} bytes is too large", sink.len())));
    }
    Ok(Stripe {
        rows,
        meta_offset: meta_offset as u64,
        meta_crc32c: crc32c::crc32c(sink.get(meta_offset..).unwrap_or(&[])),
        crc32c: crc32c::crc32c(&sink),
        raw_bytes: raw_bytes as u64,
        zones: columns.iter().zip(builders).map(|(c, b)| Some(zone_map(c.kind, b))).collect(),
        field_ids: columns.iter().map(|c| c.field_id).collect(),
        bytes: sink,
    })
}

fn write_column<W: std::io::Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    spec: &ColumnSpec,
    builder: &ColumnBuilder,
    pages: (PagesBy, Column<'_>),
) -> Result<()> {
    match &builder.data {
        Data::Bool(v) => typed::<BoolType, W>(group, &present(v, builder), builder, pages),
        Data::I32(v) => typed::<Int32Type, W>(group, &present(v, builder), builder, pages),
        Data::I64(v) => typed::<Int64Type, W>(group, &present(v, builder), builder, pages),
        Data::F32(v) => typed::<FloatType, W>(group, &present(v, builder), builder, pages),
        Data::F64(v) => typed::<DoubleType, W>(group, &present(v, builder), builder, pages),
        Data::I128(v) => {
            let values: Vec<FixedLenByteArray> = present(v, builder)
                .iter()
                .map(|x| FixedLenByteArray::from(x.to_be_bytes().to_vec()))
                .collect();
            typed::<FixedLenByteArrayType, W>(group, &values, builder, pages)
        }
        Data::Bytes(v) => {
            // One shared buffer; every value is a slice of it.
            let shared = Bytes::from(v.data.clone());
            let slices = (0..v.len()).filter(|i| !builder.nulls[*i]).map(|i| {
                let start = v.offsets[i] as usize;
                shared.slice(start..start + v.get(i).len())
            });
            if spec.kind.physical() == Physical::Bytes && spec.kind == ColumnKind::Uuid {
                let values: Vec<FixedLenByteArray> =
                    slices.map(|s| FixedLenByteArray::from(ByteArray::from(s))).collect();
                return typed::<FixedLenByteArrayType, W>(group, &values, builder, pages);
            }
            let values: Vec<ByteArray> = slices.map(ByteArray::from).collect();
            typed::<ByteArrayType, W>(group, &values, builder, pages)
        }
    }
}

fn present<'a, T: Copy>(values: &'a [T], builder: &ColumnBuilder) -> std::borrow::Cow<'a, [T]> {
    if builder.null_count == 0 {
        return std::borrow::Cow::Borrowed(values);
    }
    values.iter().zip(&builder.nulls).filter(|(_, n)| !**n).map(|(v, _)| *v).collect()
}

/// How a column is cut into pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PagesBy {
    /// As many rows as most columns have.
    Default,
    /// As many rows each as make pages of the size that is wanted.
    Rows(usize),
    /// When they have so many bytes: where values of different sizes come in turns.
    Bytes(usize),
}

/// A column as Parquet knows it, and how the file is written.
type Column<'a> = (ColumnDescPtr, &'a WriterProperties);

/// How a column of these values is to be cut into pages.
fn pages_by(
    spec: &ColumnSpec,
    builder: &ColumnBuilder,
    choice: Choice,
    options: &WriteOptions,
) -> PagesBy {
    let (Choice::Wide, Data::Bytes(values)) = (choice, &builder.data) else {
        return PagesBy::Default;
    };
    let wanted = options.page_bytes(spec);
    let rows = values.len().max(1);
    // To the nearest, as one value of three fifths of a page would else be alone.
    let average = (values.data.len() / rows).max(1);
    let even = ((wanted + average / 2) / average).clamp(1, options.page_rows.max(1));
    let sizes = (0..values.len()).step_by(even).map(|first| {
        let end = (first + even).min(values.len());
        (values.offsets.get(end).copied().unwrap_or(0) - values.offsets[first]) as usize
    });
    let mut sizes: Vec<usize> = sizes.collect();
    sizes.sort_unstable();
    let (median, most) = (sizes.get(sizes.len() / 2), sizes.last());
    let small = median.is_some_and(|bytes| *bytes < wanted / 4 && even < options.page_rows);
    if small || even > 1 && most.is_some_and(|bytes| *bytes > 4 * wanted) {
        return PagesBy::Bytes(wanted);
    }
    PagesBy::Rows(even)
}

/// Write one column.
fn typed<T: DataType, W: std::io::Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    builder: &ColumnBuilder,
    (pages, column): (PagesBy, Column<'_>),
) -> Result<()> {
    let levels: Vec<i16> = builder.nulls.iter().map(|n| i16::from(!*n)).collect();
    let parts = match pages {
        PagesBy::Rows(rows) => return in_pages::<T, W>(group, values, &levels, rows, column),
        PagesBy::Bytes(bytes) => parts_of(builder, bytes),
        PagesBy::Default => vec![levels.len()],
    };
    let mut column = group
        .next_column()
        .map_err(failed)?
        .ok_or_else(|| Error::corrupt("a stripe's schema lacks a column"))?;
    let writer = column.typed::<T>();
    let mut at = 0;
    let mut rest = &levels[..];
    for rows in parts {
        let (part, behind) = rest.split_at(rows.min(rest.len()));
        let count = part.iter().filter(|level| **level == 1).count();
        let slice = values.get(at..at + count).unwrap_or(&[]);
        writer.write_batch(slice, Some(part), None).map_err(failed)?;
        (at, rest) = (at + count, behind);
    }
    column.close().map_err(failed)
}

/// Numbers of rows that have at least so many bytes together, each as few as that. Parquet's writer ends a page within a batch where
/// it guesses that this is enough, by the first values of the batch; after each of these it does.
fn parts_of(builder: &ColumnBuilder, bytes: usize) -> Vec<usize> {
    let Data::Bytes(values) = &builder.data else { return vec![builder.len()] };
    let (mut parts, mut rows, mut sum) = (Vec::new(), 0, 0);
    for row in 0..values.len() {
        (rows, sum) = (rows + 1, sum + values.get(row).len());
        if sum >= bytes {
            parts.push(rows);
            (rows, sum) = (0, 0);
        }
    }
    parts.push(rows);
    parts.retain(|rows| *rows > 0);
    parts
}

/// Write a column in pages of as many rows each. Parquet's writer has one such number for all columns of a file, so this one is written
/// beside it and put in.
fn in_pages<T: DataType, W: std::io::Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: &[i16],
    rows: usize,
    (column, properties): Column<'_>,
) -> Result<()> {
    let properties = properties
        .clone()
        .into_builder()
        .set_data_page_row_count_limit(rows)
        .set_column_data_page_size_limit(column.path().clone(), 1 << 30)
        .set_write_batch_size(rows)
        .build();
    let mut bytes = TrackedWrite::new(Vec::new());
    let page_writer = Box::new(SerializedPageWriter::new(&mut bytes));
    let mut writer = ColumnWriterImpl::<T>::new(column, Arc::new(properties), page_writer);
    writer.write_batch(values, Some(levels), None).map_err(failed)?;
    let closed = writer.close().map_err(failed)?;
    let bytes = bytes.into_inner().map_err(failed)?;
    group.append_column(&Bytes::from(bytes), closed).map_err(failed)
}
