use std::collections::HashSet;
use std::sync::Arc;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

use super::page::open;
use super::*;
use crate::column::{Column, Dictionary, Value, Values};
use crate::schema::{ColumnKind, ColumnSpec, Physical};
use crate::write::{Codec, ColumnBuilder, Stripe, StripeWriter, WriteOptions};
use crate::zone::Bound;

const KINDS: [ColumnKind; 19] = [
    ColumnKind::Bool,
    ColumnKind::Int8,
    ColumnKind::Int16,
    ColumnKind::Int32,
    ColumnKind::Int64,
    ColumnKind::UInt32,
    ColumnKind::Float32,
    ColumnKind::Float64,
    ColumnKind::Decimal { precision: 12, scale: 2 },
    ColumnKind::Decimal { precision: 38, scale: 9 },
    ColumnKind::Date,
    ColumnKind::Timestamp,
    ColumnKind::TimestampTz,
    ColumnKind::Time,
    ColumnKind::Uuid,
    ColumnKind::Text,
    ColumnKind::Json,
    ColumnKind::Bytes,
    ColumnKind::Opaque,
];

/// How the values of a test column are spread; each leads the writer to another encoding.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Few,
    Rising,
    Random,
}

/// Which rows of a test column are NULL.
#[derive(Clone, Copy, PartialEq)]
enum Nulls {
    No,
    Some,
    Runs,
    All,
}

fn mix(seed: u64) -> u64 {
    let x = (seed ^ (seed >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ (x >> 17)
}

fn number(shape: Shape, row: u64, salt: u64) -> i64 {
    let random = mix(row.wrapping_mul(1_000_003).wrapping_add(salt));
    match shape {
        Shape::Few => (random % 7) as i64 * 1_001 - 3_000,
        Shape::Rising => 1_000_000 + row as i64 * 3 + (random % 5) as i64,
        // Widths up to the full one, so that differences need up to 64 bits.
        Shape::Random => random as i64 >> (row % 3 * 8),
    }
}

fn push(b: &mut ColumnBuilder, kind: ColumnKind, shape: Shape, row: u64, salt: u64) {
    let x = number(shape, row, salt);
    match kind.physical() {
        Physical::Bool => b.push_bool(match shape {
            Shape::Few => row % 300 < 200,
            _ => x & 1 == 1,
        }),
        Physical::I32 => b.push_i32(match kind {
            ColumnKind::Int8 => i32::from(x as i8),
            ColumnKind::Int16 => i32::from(x as i16),
            _ => x as i32,
        }),
        Physical::I64 => b.push_i64(match kind {
            ColumnKind::Decimal { .. } => x % 1_000_000_000_000,
            _ => x,
        }),
        Physical::I128 => b.push_i128(i128::from(x) * 1_000_000_007),
        Physical::F32 => b.push_f32(if row % 97 == 3 { f32::NAN } else { x as f32 / 8.0 }),
        Physical::F64 => b.push_f64(if row % 97 == 3 { -0.0 } else { x as f64 / 8.0 }),
        Physical::Bytes => match kind {
            ColumnKind::Uuid => {
                b.push_bytes(&(i128::from(x) * 0x1_0000_0001_0000_0001).to_be_bytes())
            }
            _ if row % 211 == 5 => b.push_bytes("ü".repeat(50).as_bytes()),
            _ => b.push_bytes(format!("{{\"v\": {x}}}").as_bytes()),
        },
    }
}

fn is_null(nulls: Nulls, row: u64) -> bool {
    match nulls {
        Nulls::No => false,
        Nulls::Some => mix(row + 7).is_multiple_of(5),
        Nulls::Runs => row / 700 % 2 == 1,
        Nulls::All => true,
    }
}

fn writer(codec: Codec, nulls: Nulls, rows: u64) -> StripeWriter {
    let mut specs = Vec::new();
    for shape in 0..3 {
        for kind in KINDS {
            let field_id = specs.len() as i32 + 1;
            let name = format!("c{field_id}_{shape}");
            specs.push(ColumnSpec { field_id, name, kind, type_name: "some|type".to_owned() });
        }
    }
    let options =
        WriteOptions { codec, page_rows: 1_000, text_page_bytes: 4_096, ..WriteOptions::default() };
    let mut w = StripeWriter::new(specs.clone(), options);
    for row in 0..rows {
        for (i, spec) in specs.iter().enumerate() {
            let shape = [Shape::Few, Shape::Rising, Shape::Random][i / KINDS.len()];
            match is_null(nulls, row) {
                true => w.column_mut(i).push_null(),
                false => push(w.column_mut(i), spec.kind, shape, row, i as u64),
            }
        }
        w.end_row();
    }
    w
}

fn meta_of(stripe: &Stripe) -> StripeMeta {
    StripeMeta::of_file(&stripe.bytes, stripe.meta_offset).unwrap()
}

fn part(stripe: &Stripe, offset: u64, len: u32) -> &[u8] {
    &stripe.bytes[offset as usize..offset as usize + len as usize]
}

fn dictionary(
    d: &mut Decoder,
    s: &Stripe,
    m: &StripeMeta,
    column: usize,
) -> Option<Arc<Dictionary>> {
    m.dictionary(column).map(|(at, len)| d.decode_dictionary(m, column, part(s, at, len)).unwrap())
}

/// Equal bit by bit, so that NaN is equal to itself and -0 is not 0.
fn same(a: Value<'_>, b: Value<'_>) -> bool {
    match (a, b) {
        (Value::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits(),
        (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    }
}

#[test]
fn all_kinds_encodings_and_codecs_are_read_back() {
    let mut seen = HashSet::new();
    let mut decoder = Decoder::new();
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd(1)] {
        for nulls in [Nulls::No, Nulls::Some, Nulls::Runs, Nulls::All] {
            let rows = 2_345;
            let w = writer(codec, nulls, rows);
            let stripe = w.encode().unwrap();
            let meta = meta_of(&stripe);
            assert_eq!(u64::from(meta.rows()), rows);
            assert_eq!(meta.columns(), w.columns());
            for column in 0..meta.columns().len() {
                let dict = dictionary(&mut decoder, &stripe, &meta, column);
                let kind = meta.columns()[column].kind;
                let mut at = 0;
                for (p, page) in meta.pages(column).iter().enumerate() {
                    assert_eq!(page.first_row, at);
                    let bytes = part(&stripe, page.offset, page.len);
                    let opened = open(bytes, meta.kind(column).unwrap().1, false).unwrap();
                    seen.insert((kind.physical() as u8, opened.encoding as u8));
                    let decoded =
                        decoder.decode_page(&meta, column, p, bytes, dict.as_ref()).unwrap();
                    assert_eq!(decoded.rows, page.rows as usize);
                    let found = meta.page(column, p).unwrap();
                    let kept = decoder.pack(&found, bytes, dict.as_ref(), false).unwrap();
                    let packed = decoder.pack(&found, bytes, dict.as_ref(), true).unwrap();
                    assert_eq!(
                        decoded.nulls.is_some(),
                        (0..page.rows).any(|r| { is_null(nulls, u64::from(at + r)) })
                    );
                    for r in 0..page.rows {
                        let expected = w.value(column, (at + r) as usize);
                        let value = decoded.value(r as usize);
                        assert!(same(value, expected), "{kind:?} row {}: {value:?}", at + r);
                        for kept in [&kept, &packed] {
                            let kept = kept.value(r as usize).unwrap();
                            assert!(same(kept, expected), "{kind:?} row {}: {kept:?}", at + r);
                        }
                        assert_eq!(meta.page_of(column, at + r), p);
                        if r % 7 == 0 || r + 1 == page.rows {
                            let mut out = Vec::new();
                            let dict = dict.as_ref();
                            let one = decoder.value_at(&meta, column, p, r, bytes, dict, &mut out);
                            let one = one.unwrap();
                            assert!(same(one, expected), "{kind:?} row {}: {one:?}", at + r);
                        }
                    }
                    at += page.rows;
                }
                assert_eq!(u64::from(at), rows);
            }
        }
    }
    // Plain 0, dictionary 1, RLE 2, delta 3: the test means something only when each was met.
    for (physical, encodings) in [
        (Physical::I32, [0, 1, 3].as_slice()),
        (Physical::I64, &[0, 1, 3]),
        (Physical::I128, &[0]),
        (Physical::F64, &[0]),
        (Physical::Bytes, &[0, 1]),
    ] {
        for e in encodings {
            assert!(seen.contains(&(physical as u8, *e)), "{physical:?} {e} was not met: {seen:?}");
        }
    }
}

/// The rows as the parquet crate's own reader sees them are those that were decoded here.
#[test]
fn another_reader_sees_the_same_values() {
    let stripe = writer(Codec::Lz4, Nulls::Some, 1_500).encode().unwrap();
    let meta = meta_of(&stripe);
    let reader = SerializedFileReader::new(bytes::Bytes::from(stripe.bytes.clone())).unwrap();
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(|r| r.unwrap()).collect();
    let mut decoder = Decoder::new();
    for column in 0..meta.columns().len() {
        let dict = dictionary(&mut decoder, &stripe, &meta, column);
        for (p, page) in meta.pages(column).iter().enumerate() {
            let bytes = part(&stripe, page.offset, page.len);
            let decoded = decoder.decode_page(&meta, column, p, bytes, dict.as_ref()).unwrap();
            for r in 0..page.rows as usize {
                let row = &rows[page.first_row as usize + r];
                let field = row.get_column_iter().nth(column).unwrap().1.clone();
                let equal = match (decoded.value(r), field) {
                    (Value::Null, Field::Null) => true,
                    (Value::Bool(a), Field::Bool(b)) => a == b,
                    (Value::I32(a), Field::Byte(b)) => a == i32::from(b),
                    (Value::I32(a), Field::Short(b)) => a == i32::from(b),
                    (Value::I32(a), Field::Int(b) | Field::Date(b)) => a == b,
                    (Value::I32(a), Field::UInt(b)) => a as u32 == b,
                    (Value::I64(a), Field::Long(b) | Field::TimestampMicros(b)) => a == b,
                    (Value::I64(a), Field::TimeMicros(b)) => a == b,
                    (Value::I64(a), Field::Decimal(b)) => a.to_be_bytes() == *b.data(),
                    (Value::I128(a), Field::Decimal(b)) => a.to_be_bytes() == *b.data(),
                    (Value::F32(a), Field::Float(b)) => a.to_bits() == b.to_bits(),
                    (Value::F64(a), Field::Double(b)) => a.to_bits() == b.to_bits(),
                    (Value::Bytes(a), Field::Str(b)) => a == b.as_bytes(),
                    (Value::Bytes(a), Field::Bytes(b)) => a == b.data(),
                    _ => false,
                };
                assert!(equal, "{:?} row {r}", meta.columns()[column].kind);
            }
        }
    }
}

fn inside(value: Value<'_>, unsigned: bool, min: &Bound, max: &Bound) -> bool {
    let integer =
        |x: i64| matches!((min, max), (Bound::I64(a), Bound::I64(b)) if *a <= x && x <= *b);
    let float = |x: f64| {
        x.is_nan() || matches!((min, max), (Bound::F64(a), Bound::F64(b)) if *a <= x && x <= *b)
    };
    match value {
        Value::Null => true,
        Value::Bool(x) => integer(i64::from(x)),
        Value::I32(x) if unsigned => integer(i64::from(x as u32)),
        Value::I32(x) => integer(i64::from(x)),
        Value::I64(x) => integer(x),
        Value::I128(x) => {
            matches!((min, max), (Bound::I128(a), Bound::I128(b)) if *a <= x && x <= *b)
        }
        Value::F32(x) => float(f64::from(x)),
        Value::F64(x) => float(x),
        Value::Bytes(x) => {
            matches!((min, max), (Bound::Bytes(a), Bound::Bytes(b)) if a.as_slice() <= x && x <= b.as_slice())
        }
    }
}

#[test]
fn page_zones_hold_their_values() {
    for nulls in [Nulls::No, Nulls::Runs, Nulls::All] {
        let w = writer(Codec::Lz4, nulls, 3_000);
        let stripe = w.encode().unwrap();
        let meta = meta_of(&stripe);
        for (column, spec) in meta.columns().iter().enumerate() {
            for (p, page) in meta.pages(column).iter().enumerate() {
                let rows = page.first_row..page.first_row + page.rows;
                let zone = meta.page_zone(column, p);
                if spec.kind == ColumnKind::Json {
                    assert!(zone.is_none(), "nothing is kept of documents' pages");
                    continue;
                }
                let zone = zone.expect("a page has a zone map");
                let count = rows.clone().filter(|r| is_null(nulls, u64::from(*r))).count();
                assert_eq!((zone.nulls as usize, zone.rows), (count, page.rows));
                match (&zone.min, &zone.max) {
                    (Some(min), Some(max)) => {
                        for r in rows {
                            let value = w.value(column, r as usize);
                            let unsigned = spec.kind == ColumnKind::UInt32;
                            assert!(
                                inside(value, unsigned, min, max),
                                "{:?}: {value:?}",
                                spec.kind
                            );
                        }
                    }
                    _ => assert!(!spec.kind.is_ordered() || count == page.rows as usize),
                }
            }
        }
    }
}

/// Values that no maximum can be rounded up for are not kept whole among the metadata, and are read back.
#[test]
fn metadata_is_small_beside_values_without_bound() {
    let text = |t: &str| (ColumnKind::Text, t.as_bytes().to_vec());
    let texts = ["\u{7f}", "\u{7ff}", "\u{d7ff}", "\u{ffff}", "\u{10ffff}", "\u{7f}\u{ffff}"];
    let mut units = vec![(ColumnKind::Bytes, vec![0xFF]), (ColumnKind::Json, vec![0xFF])];
    units.extend(texts.map(text));
    for (kind, unit) in units {
        let spec = |field_id, name: &str, kind| ColumnSpec {
            field_id,
            name: name.to_owned(),
            kind,
            type_name: "some".to_owned(),
        };
        let specs = vec![spec(1, "id", ColumnKind::Int32), spec(2, "v", kind)];
        let mut w = StripeWriter::new(specs, WriteOptions::default());
        for row in 0..500 {
            w.column_mut(0).push_i32(row);
            w.column_mut(1).push_bytes(&[unit.repeat(5_000), row.to_string().into()].concat());
            w.end_row();
        }
        let stripe = w.encode().unwrap();
        let tail = stripe.bytes.len() - stripe.meta_offset as usize;
        assert!(tail < 40_000, "{kind:?}: {tail} bytes of metadata");
        let (meta, mut decoder, mut row) = (meta_of(&stripe), Decoder::new(), 0);
        assert!(meta.page_zone(0, 0).is_some());
        for (p, page) in meta.pages(1).iter().enumerate() {
            let bytes = part(&stripe, page.offset, page.len);
            let decoded = decoder.decode_page(&meta, 1, p, bytes, None).unwrap();
            for i in 0..decoded.rows {
                assert!(same(decoded.value(i), w.value(1, row)), "{kind:?} {row}");
                row += 1;
            }
        }
        assert_eq!(row, 500);
    }
}

/// Bytes are no text: those that are a last character's have successors.
#[test]
fn bytes_keep_their_bounds() {
    let spec = ColumnSpec {
        field_id: 1,
        name: "v".to_owned(),
        kind: ColumnKind::Bytes,
        type_name: "bytea".to_owned(),
    };
    let mut w = StripeWriter::new(vec![spec], WriteOptions::default());
    for _ in 0..10 {
        w.column_mut(0).push_bytes(&[0x7F; 100]);
        w.end_row();
    }
    assert!(meta_of(&w.encode().unwrap()).page_zone(0, 0).is_some());
}

/// Read everything that can be reached; only panics matter.
fn read_all(bytes: &[u8], meta_offset: u64) {
    let Ok(meta) = StripeMeta::of_file(bytes, meta_offset) else { return };
    read_pages(bytes, &meta);
}

fn read_pages(bytes: &[u8], meta: &StripeMeta) {
    let mut decoder = Decoder::ignoring_checksums();
    let cut = |offset: u64, len: u32| {
        let start = (offset as usize).min(bytes.len());
        &bytes[start..start.saturating_add(len as usize).min(bytes.len())]
    };
    for column in 0..meta.columns().len() {
        let dict = meta
            .dictionary(column)
            .and_then(|(at, len)| decoder.decode_dictionary(meta, column, cut(at, len)).ok());
        for (p, page) in meta.pages(column).iter().enumerate() {
            let bytes = cut(page.offset, page.len);
            let whole = decoder.decode_page(meta, column, p, bytes, dict.as_ref());
            let keys_fit = |c: &Column| match &c.values {
                Values::Dict { keys, dict } => {
                    keys.iter().all(|k| (*k as usize) < dict.len().max(1))
                }
                _ => true,
            };
            assert!(whole.as_ref().map_or(true, keys_fit));
            for row in [0, 1, page.rows / 2, page.rows.saturating_sub(1), page.rows] {
                let mut out = Vec::new();
                let dict = dict.as_ref();
                let _ = decoder.value_at(meta, column, p, row, bytes, dict, &mut out);
            }
        }
    }
}

#[test]
fn damaged_bytes_never_panic() {
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd(1)] {
        let stripe = writer(codec, Nulls::Some, 150).encode().unwrap();
        let meta = meta_of(&stripe);
        let len = stripe.bytes.len();
        let mut bytes = stripe.bytes.clone();
        for round in 0..1_500u64 {
            // Metadata and pages in turn, one to four bytes at a time.
            let (from, to) = match round % 2 {
                0 => (stripe.meta_offset as usize, len),
                _ => (4, stripe.meta_offset as usize),
            };
            let mut undo = Vec::new();
            for k in 0..1 + round % 4 {
                let at = from + mix(round * 8 + k) as usize % (to - from);
                undo.push((at, bytes[at]));
                bytes[at] ^= (mix(round * 8 + k + 77) as u8).max(1);
            }
            match round % 2 {
                0 => read_all(&bytes, stripe.meta_offset),
                _ => read_pages(&bytes, &meta),
            }
            for (at, old) in undo.into_iter().rev() {
                bytes[at] = old;
            }
        }
        for cut in (0..len).step_by(53) {
            read_all(&stripe.bytes[..cut], stripe.meta_offset);
            read_pages(&stripe.bytes[..cut], &meta);
        }
    }
}

#[test]
fn an_unknown_version_is_refused() {
    let mut stripe = writer(Codec::Lz4, Nulls::No, 10).encode().unwrap();
    let key = b"firn.format_version";
    let at = stripe.bytes.windows(key.len()).rposition(|w| w == key).unwrap() + key.len() + 2;
    assert_eq!(stripe.bytes[at], b'1');
    stripe.bytes[at] = b'2';
    let error = StripeMeta::of_file(&stripe.bytes, stripe.meta_offset).unwrap_err();
    assert_eq!(error.kind, crate::error::ErrorKind::Newer);
}

/// Checksums that are not as many as the pages are a contradiction.
#[test]
fn checksums_and_pages_are_counted() {
    use crate::checksum;
    let stripe = writer(Codec::Lz4, Nulls::No, 10).encode().unwrap();
    let tail = stripe.bytes[stripe.meta_offset as usize..].to_vec();
    let key = checksum::KEY.as_bytes();
    let at = tail.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 1;
    // The value's length is a variable-length integer of two bytes.
    let len = usize::from(tail[at] & 127) | usize::from(tail[at + 1]) << 7;
    let value = at + 2..at + 2 + len;
    let checksums =
        checksum::from_text(std::str::from_utf8(&tail[value.clone()]).unwrap()).unwrap();
    for count in [0, 1, checksums.len() - 1, checksums.len(), checksums.len() + 1] {
        let mut others = checksums.clone();
        others.resize(count, 0);
        let text = checksum::to_text(&others);
        let mut changed = tail[..at].to_vec();
        changed.extend_from_slice(&[text.len() as u8 | 128, (text.len() >> 7) as u8]);
        changed.extend_from_slice(text.as_bytes());
        changed.extend_from_slice(&tail[value.end..]);
        let end = changed.len() - 8;
        let footer = u32::from_le_bytes(changed[end..end + 4].try_into().unwrap());
        let footer = footer as usize + text.len() - len;
        changed[end..end + 4].copy_from_slice(&(footer as u32).to_le_bytes());
        let parsed = Outline::parse(&changed, stripe.meta_offset);
        assert_eq!(parsed.is_ok(), count == checksums.len(), "{count}");
    }
}

/// `cargo test --release -p firn-format speed -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn decode_speed() {
    let rows = 100_000;
    for codec in [Codec::None, Codec::Lz4] {
        let w = writer(codec, Nulls::No, rows);
        let stripe = w.encode().unwrap();
        let meta = meta_of(&stripe);
        let mut decoder = Decoder::new();
        for (column, spec) in meta.columns().iter().enumerate() {
            let dict = dictionary(&mut decoder, &stripe, &meta, column);
            let start = std::time::Instant::now();
            let mut n = 0;
            for _ in 0..10 {
                for (p, page) in meta.pages(column).iter().enumerate() {
                    let bytes = part(&stripe, page.offset, page.len);
                    let page = decoder.decode_page(&meta, column, p, bytes, dict.as_ref()).unwrap();
                    n += page.rows;
                }
            }
            let whole = start.elapsed().as_nanos() as f64 / n as f64;
            let start = std::time::Instant::now();
            let mut out = Vec::new();
            for i in 0..1_000u64 {
                let row = (mix(i) % rows) as u32;
                let p = meta.page_of(column, row);
                let page = meta.pages(column)[p];
                let bytes = part(&stripe, page.offset, page.len);
                let at = row - page.first_row;
                let dict = dict.as_ref();
                decoder.value_at(&meta, column, p, at, bytes, dict, &mut out).unwrap();
            }
            let one = start.elapsed().as_nanos() as f64 / 1e6;
            let shape = ["few", "rising", "random"][column / KINDS.len()];
            println!("{codec:?} {shape} {:?}: {whole:.2} ns/row, {one:.2} us/look-up", spec.kind);
        }
    }
}
