//! The stripes of which there are golden files: each kind of column in each encoding, with what is out of the ordinary.

use crate::common::{Case, Cell, Random};
use firn_format::{Codec, ColumnKind, ColumnSpec, Physical, WriteOptions};

/// All kinds, and a number that a column of it may have: those that are cut by their precision at each of its forms.
const KINDS: [ColumnKind; 21] = {
    use ColumnKind as K;
    [
        K::Bool,
        K::Int8,
        K::Int16,
        K::Int32,
        K::Int64,
        K::UInt32,
        K::Float32,
        K::Float64,
        K::Decimal { precision: 1, scale: 0 },
        K::Decimal { precision: 18, scale: 4 },
        K::Decimal { precision: 19, scale: 19 },
        K::Decimal { precision: 38, scale: 2 },
        K::Date,
        K::Timestamp,
        K::TimestampTz,
        K::Time,
        K::Uuid,
        K::Text,
        K::Json,
        K::Bytes,
        K::Opaque,
    ]
};

/// All of them, by name.
pub fn all() -> Vec<(&'static str, Case)> {
    let zstd = Codec::Zstd(3);
    let mut r = Random(15);
    vec![
        ("values", of_kinds(100, zstd, |kind, row| any(&mut r, kind, row))),
        // Differences that are small, and few values: what the writer chooses other encodings for.
        ("steps", of_kinds(100, zstd, |kind, row| of(kind, row as i128 * 3 - 100, row))),
        ("repeated", of_kinds(100, zstd, |kind, row| of(kind, row as i128 % 5 - 2, row % 5))),
        ("same", of_kinds(70, zstd, |kind, _| of(kind, 1, 1))),
        ("extremes", of_kinds(12, zstd, extreme)),
        (
            "nulls",
            of_kinds(100, zstd, |kind, row| match (row / 32 % 2, row % 3) {
                (0, _) | (_, 0) => Cell::Null,
                _ => of(kind, row as i128, row),
            }),
        ),
        ("only-nulls", of_kinds(40, zstd, |_, _| Cell::Null)),
        (
            "last-value",
            of_kinds(100, zstd, |kind, row| match row {
                99 => of(kind, 7, 7),
                _ => Cell::Null,
            }),
        ),
        ("plain", of_kinds(80, Codec::None, |kind, row| of(kind, (row * row) as i128, row * 7))),
        ("lz4", of_kinds(80, Codec::Lz4, |kind, row| of(kind, (row * row) as i128, row * 7))),
        ("no-rows", of_kinds(0, zstd, |_, _| Cell::Null)),
        ("no-columns", Case { specs: vec![], options: options(zstd), cells: vec![], rows: 7 }),
        ("nothing", Case { specs: vec![], options: options(zstd), cells: vec![], rows: 0 }),
        ("texts", texts()),
        ("far", far()),
        ("many-columns", many_columns()),
    ]
}

fn options(codec: Codec) -> WriteOptions {
    WriteOptions { codec, page_rows: 32, text_page_bytes: 1_024, json_page_bytes: 512 }
}

fn spec(field_id: i32, name: &str, kind: ColumnKind, type_name: &str) -> ColumnSpec {
    ColumnSpec { field_id, name: name.to_owned(), kind, type_name: type_name.to_owned() }
}

/// A column of each kind; every seventh was dropped.
fn of_kinds(rows: usize, codec: Codec, mut cell: impl FnMut(ColumnKind, usize) -> Cell) -> Case {
    let ids = (1..).filter(|id| id % 7 != 0);
    let specs: Vec<_> =
        KINDS.iter().zip(ids).map(|(k, id)| spec(id, &k.to_text(), *k, &k.to_text())).collect();
    let cells = KINDS.iter().map(|kind| (0..rows).map(|row| cell(*kind, row)).collect()).collect();
    Case { specs, options: options(codec), cells, rows }
}

/// The value of a kind that stands for a number, or for text number `n`.
fn of(kind: ColumnKind, x: i128, n: usize) -> Cell {
    match (kind, kind.physical()) {
        (ColumnKind::Int8, _) => Cell::I32(i32::from(x as i8)),
        (ColumnKind::Int16, _) => Cell::I32(i32::from(x as i16)),
        (ColumnKind::Decimal { precision, .. }, Physical::I64) => {
            Cell::I64((x % 10i128.pow(u32::from(precision))) as i64)
        }
        (ColumnKind::Decimal { precision, .. }, _) => {
            Cell::I128(x * 1_000_000_007 % 10i128.pow(u32::from(precision)))
        }
        (ColumnKind::Uuid, _) => Cell::Bytes((x * 0x1_0000_0001_0000_0001).to_be_bytes().to_vec()),
        (ColumnKind::Json, _) => {
            Cell::Bytes(format!("{{\"n\": {x}, \"t\": [null, \"x{n}\"]}}").into_bytes())
        }
        (ColumnKind::Text, _) => Cell::Bytes(format!("text ü {n}").into_bytes()),
        (_, Physical::Bool) => Cell::Bool(x & 1 == 1),
        (_, Physical::I32) => Cell::I32(x as i32),
        (_, Physical::I64) => Cell::I64(x as i64 * 86_400),
        (_, Physical::I128) => Cell::I128(x),
        (_, Physical::F32) => Cell::F32(x as f32 / 8.0),
        (_, Physical::F64) => Cell::F64(x as f64 / 8.0),
        (_, Physical::Bytes) => Cell::Bytes(vec![n as u8; n % 9]),
    }
}

fn any(r: &mut Random, kind: ColumnKind, row: usize) -> Cell {
    match r.below(9) {
        0 => Cell::Null,
        _ => of(kind, i128::from(r.next() as i64), row + r.below(1_000)),
    }
}

/// The ends of a kind's values, two of each, and NULLs between.
fn extreme(kind: ColumnKind, row: usize) -> Cell {
    let pick = |of: &[i128]| of[row % of.len()];
    match (kind, kind.physical()) {
        _ if row % 6 == 5 => Cell::Null,
        (ColumnKind::Int8, _) => Cell::I32(pick(&[-128, 127, 0]) as i32),
        (ColumnKind::Int16, _) => Cell::I32(pick(&[-32_768, 32_767, 0]) as i32),
        (ColumnKind::Decimal { precision, .. }, physical) => {
            let most = 10i128.pow(u32::from(precision)) - 1;
            match (physical, pick(&[most, -most, 0])) {
                (Physical::I64, x) => Cell::I64(x as i64),
                (_, x) => Cell::I128(x),
            }
        }
        (ColumnKind::Uuid, _) => Cell::Bytes(vec![pick(&[0, 255]) as u8; 16]),
        (_, Physical::Bool) => Cell::Bool(row.is_multiple_of(2)),
        (_, Physical::I32) => Cell::I32(pick(&[i32::MIN.into(), i32::MAX.into(), 0, -1]) as i32),
        (_, Physical::I64) => Cell::I64(pick(&[i64::MIN.into(), i64::MAX.into(), 0, -1]) as i64),
        (_, Physical::I128) => Cell::I128(pick(&[0, -1])),
        (_, Physical::F32) => {
            let of = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, f32::MIN, 1e-45];
            Cell::F32(of[row % of.len()])
        }
        (_, Physical::F64) => {
            let of = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0, f64::MAX, 5e-324];
            Cell::F64(of[row % of.len()])
        }
        (ColumnKind::Text | ColumnKind::Json, _) => {
            let of = ["", "\u{10FFFF}", "ü\n\t\"'\\", "a", "\u{1}"];
            Cell::Bytes(of[row % of.len()].as_bytes().to_vec())
        }
        (_, Physical::Bytes) => Cell::Bytes([vec![], vec![0; 3], vec![255; 40]][row % 3].clone()),
    }
}

/// Texts around the longest bound that is kept, of a page each, and columns named as anybody may name them.
fn texts() -> Case {
    let names = ["a.b", "ü and \"quotes\"", "", "id", "x"];
    let specs =
        (1..).zip(names).map(|(id, name)| spec(id, name, ColumnKind::Text, "a|b")).collect();
    let text = |n: usize, row: usize| {
        let c = ["z", "ü", "\u{10FFFF}", "漢"][row % 4];
        Cell::Bytes(c.repeat(n).into_bytes())
    };
    let cells = vec![
        (0..60).map(|row| text(row, row)).collect(),
        (0..60).map(|row| text(2 + row % 3 * 4_000, row)).collect(),
        (0..60).map(|row| text(32, row / 4)).collect(),
        (0..60).map(|row| if row == 30 { text(30_000, 3) } else { Cell::Null }).collect(),
        (0..60).map(|_| text(0, 0)).collect(),
    ];
    Case { specs, options: options(Codec::Zstd(3)), cells, rows: 60 }
}

/// So many pages that what is said of them lies elsewhere; and one column that has few.
fn far() -> Case {
    let specs = vec![
        spec(1, "id", ColumnKind::Int32, "integer"),
        spec(3, "doc", ColumnKind::Json, "jsonb"),
        spec(4, "note", ColumnKind::Text, "text"),
    ];
    let mut r = Random(256);
    let mut words = |row: usize, n: usize, nulls: usize| match row % nulls {
        0 => Cell::Null,
        _ => {
            let words: Vec<_> = (0..n + r.below(4)).map(|_| r.below(999).to_string()).collect();
            Cell::Bytes(format!("{{\"{row}\": \"{}\"}}", words.join(" ")).into_bytes())
        }
    };
    let rows = 530;
    let cells = vec![
        (0..rows).map(|row| Cell::I32(row as i32 * 2)).collect(),
        (0..rows).map(|row| words(row, 16, 11)).collect(),
        (0..rows).map(|row| words(row, 19, 1_000)).collect(),
    ];
    let options =
        WriteOptions { text_page_bytes: 200, json_page_bytes: 150, ..options(Codec::Zstd(3)) };
    Case { specs, options, cells, rows }
}

fn many_columns() -> Case {
    let specs = (0..100)
        .map(|i| spec(i + 1, &format!("c{i}"), KINDS[i as usize % KINDS.len()], "t"))
        .collect();
    let cells = (0..100)
        .map(|i| (0..2).map(|row| of(KINDS[i % KINDS.len()], i as i128, i + row)).collect())
        .collect();
    Case { specs, options: options(Codec::Zstd(3)), cells, rows: 2 }
}
