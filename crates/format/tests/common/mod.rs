//! Random stripes for tests: columns of every kind in shapes that lead the writer to each encoding and
//! to its limits, together with the values that were put in.

#![allow(dead_code)]

use firn_format::{
    Codec, ColumnKind, ColumnSpec, Physical, StripeMeta, StripeWriter, Value, WriteOptions,
};

/// A value that owns its bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Null,
    Bool(bool),
    I32(i32),
    I64(i64),
    I128(i128),
    F32(f32),
    F64(f64),
    Bytes(Vec<u8>),
}

impl Cell {
    pub fn value(&self) -> Value<'_> {
        match self {
            Cell::Null => Value::Null,
            Cell::Bool(x) => Value::Bool(*x),
            Cell::I32(x) => Value::I32(*x),
            Cell::I64(x) => Value::I64(*x),
            Cell::I128(x) => Value::I128(*x),
            Cell::F32(x) => Value::F32(*x),
            Cell::F64(x) => Value::F64(*x),
            Cell::Bytes(x) => Value::Bytes(x),
        }
    }
}

/// Equal bit by bit, so that NaN is equal to itself and -0 is not 0.
pub fn same(a: Value<'_>, b: Value<'_>) -> bool {
    match (a, b) {
        (Value::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits(),
        (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    }
}

/// A generator of random numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }
    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// The seed of a run: FIRN_SEED, or one from the clock. A failing test shows it with its output.
pub fn seed() -> u64 {
    let clock = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |t| t.as_nanos() as u64)
    };
    let seed =
        std::env::var("FIRN_SEED").map_or_else(|_| clock(), |s| s.parse().expect("a number"));
    println!("seed: run again with FIRN_SEED={seed}");
    seed
}

/// How many random cases to try: FIRN_CASES, or `default`.
pub fn cases(default: u64) -> u64 {
    std::env::var("FIRN_CASES").map_or(default, |s| s.parse().expect("a number"))
}

/// A stripe to be written, and what it must contain.
pub struct Case {
    pub specs: Vec<ColumnSpec>,
    pub options: WriteOptions,
    /// Values by column, then row.
    pub cells: Vec<Vec<Cell>>,
    pub rows: usize,
}

impl Case {
    pub fn random(r: &mut Random) -> Case {
        let options = WriteOptions {
            codec: match r.below(4) {
                0 => Codec::None,
                1 => Codec::Lz4,
                2 => Codec::Zstd(3),
                _ => Codec::Zstd(1 + r.below(9) as i32),
            },
            page_rows: r.pick(&[1, 2, 31, 64, 100, 1_000, 2_048, 5_000]),
            text_page_bytes: r.pick(&[1, 100, 4_096, 16_384, 1 << 20]),
            json_page_bytes: r.pick(&[1, 100, 4_096]),
        };
        let edge = options.page_rows;
        let rows = match r.below(10) {
            0 => r.below(3),
            1 => r.pick(&[31, 32, 33, 127, 128, 129, 130, 257]),
            2 => (edge + 1).saturating_sub(r.below(3)),
            3 => edge * 2 + r.below(3),
            4 => r.below(6_000),
            _ => r.below(700),
        };
        // One row a page makes a page index much larger than the data; keep that small.
        let rows = rows.min(edge * 300);
        let columns = match r.below(8) {
            0 => 0,
            1 => 1,
            _ => 1 + r.below(12),
        };
        let mut case = Case { specs: Vec::new(), options, cells: Vec::new(), rows };
        let mut field_id = 0;
        for _ in 0..columns {
            field_id += 1 + if r.one_in(5) { r.below(100) as i32 } else { 0 };
            let spec = ColumnSpec {
                field_id,
                name: r.pick(&["id", "a.b", "ü and \"quotes\"", "", "firn", "id", "x"]).to_owned(),
                kind: any_kind(r),
                type_name: r.pick(&["integer", "numeric(10,2)", "a|b", ""]).to_owned(),
            };
            case.cells.push(column(r, spec.kind, rows));
            case.specs.push(spec);
        }
        case
    }

    pub fn writer(&self) -> StripeWriter {
        let mut w = StripeWriter::new(self.specs.clone(), self.options.clone());
        for row in 0..self.rows {
            for (i, cells) in self.cells.iter().enumerate() {
                let builder = w.column_mut(i);
                match &cells[row] {
                    Cell::Null => builder.push_null(),
                    Cell::Bool(x) => builder.push_bool(*x),
                    Cell::I32(x) => builder.push_i32(*x),
                    Cell::I64(x) => builder.push_i64(*x),
                    Cell::I128(x) => builder.push_i128(*x),
                    Cell::F32(x) => builder.push_f32(*x),
                    Cell::F64(x) => builder.push_f64(*x),
                    Cell::Bytes(x) => builder.push_bytes(x),
                }
            }
            w.end_row();
        }
        w
    }

    /// What a failing test says of the case.
    pub fn describe(&self) -> String {
        let kinds: Vec<_> = self.specs.iter().map(|s| s.kind).collect();
        format!("{} rows, {:?}, {kinds:?}", self.rows, self.options)
    }
}

pub fn meta_of(stripe: &firn_format::Stripe) -> StripeMeta {
    StripeMeta::of_file(&stripe.bytes, stripe.meta_offset).expect("metadata that was just written")
}

fn any_kind(r: &mut Random) -> ColumnKind {
    use ColumnKind as K;
    let precision = 1 + r.below(38) as u8;
    let scale = r.below(usize::from(precision) + 1) as u8;
    r.pick(&[
        K::Bool,
        K::Int8,
        K::Int16,
        K::Int32,
        K::Int64,
        K::UInt32,
        K::Float32,
        K::Float64,
        K::Decimal { precision, scale },
        K::Decimal { precision: 18, scale: 4 },
        K::Decimal { precision: 38, scale },
        K::Date,
        K::Timestamp,
        K::TimestampTz,
        K::Time,
        K::Uuid,
        K::Text,
        K::Json,
        K::Bytes,
        K::Opaque,
    ])
}

/// The values of a column: a shape, some of them the kind's extremes, some of them NULL.
fn column(r: &mut Random, kind: ColumnKind, rows: usize) -> Vec<Cell> {
    let shape = r.below(6);
    let extremes = r.pick(&[0, 0, 3, 50]);
    let nulls = r.below(7);
    let few: Vec<Cell> = (0..1 + r.below(20)).map(|_| any_value(r, kind)).collect();
    let start = r.next() as i64 >> r.below(60);
    let step = (r.next() as i64 >> r.below(64)) as i128;
    (0..rows)
        .map(|row| {
            let null = match nulls {
                0 => r.one_in(2),
                1 => r.one_in(20),
                2 => row / 50 % 2 == 0,
                3 => row > 0,
                4 if rows > 1 => row + 1 < rows,
                5 if r.one_in(3) => true,
                _ => false,
            };
            if null {
                return Cell::Null;
            }
            if extremes > 0 && r.one_in(extremes) {
                return extreme(r, kind);
            }
            match shape {
                0 => few[r.below(few.len())].clone(),
                1 => few[0].clone(),
                2 | 3 => {
                    let jitter = if shape == 3 { r.below(9) as i128 } else { 0 };
                    number(kind, i128::from(start) + step * row as i128 + jitter)
                        .unwrap_or_else(|| any_value(r, kind))
                }
                _ => any_value(r, kind),
            }
        })
        .collect()
}

/// The kind's value that `x` stands for, wrapped around; None for strings.
fn number(kind: ColumnKind, x: i128) -> Option<Cell> {
    Some(match (kind, kind.physical()) {
        (ColumnKind::Int8, _) => Cell::I32(i32::from(x as i8)),
        (ColumnKind::Int16, _) => Cell::I32(i32::from(x as i16)),
        (ColumnKind::Decimal { precision, .. }, physical) => {
            let x = x % 10i128.pow(u32::from(precision));
            match physical {
                Physical::I64 => Cell::I64(x as i64),
                _ => Cell::I128(x),
            }
        }
        (_, Physical::Bool) => Cell::Bool(x & 1 == 1),
        (_, Physical::I32) => Cell::I32(x as i32),
        (_, Physical::I64) => Cell::I64(x as i64),
        (_, Physical::I128) => Cell::I128(x),
        (_, Physical::F32) => Cell::F32(x as f32 / 16.0),
        (_, Physical::F64) => Cell::F64(x as f64 / 16.0),
        (_, Physical::Bytes) => return None,
    })
}

fn any_value(r: &mut Random, kind: ColumnKind) -> Cell {
    let wide = i128::from(r.next() as i64) << 64 | i128::from(r.next());
    let wide = wide >> r.below(120);
    if let Some(cell) = number(kind, wide) {
        return cell;
    }
    if kind == ColumnKind::Uuid {
        return Cell::Bytes(wide.to_be_bytes().to_vec());
    }
    let len = match r.below(12) {
        0 => 0,
        1..=7 => r.below(20),
        // Around the longest bound that a zone map keeps.
        8 | 9 => 30 + r.below(5),
        10 => r.below(300),
        _ => r.below(6_000),
    };
    string(r, kind, len)
}

/// A string of about `len` bytes: UTF-8 where the kind says so.
fn string(r: &mut Random, kind: ColumnKind, len: usize) -> Cell {
    let text = matches!(kind, ColumnKind::Text | ColumnKind::Json);
    let alphabet = r.below(4);
    let mut bytes = Vec::with_capacity(len + 4);
    while bytes.len() < len {
        if text {
            let c = match alphabet {
                0 => 'a',
                1 => (b'a' + r.below(26) as u8) as char,
                2 => r.pick(&['ü', 'z', '\u{10FFFF}', '\0', '漢']),
                _ => char::from_u32(r.below(0x800) as u32).unwrap_or('x'),
            };
            bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            bytes.push(match alphabet {
                0 => 0xFF,
                1 => 0,
                2 => r.pick(&[0, 0x7F, 0x80, 0xFE, 0xFF]),
                _ => r.next() as u8,
            });
        }
    }
    Cell::Bytes(bytes)
}

/// One of the values at the ends of a kind's range, or else out of the ordinary.
fn extreme(r: &mut Random, kind: ColumnKind) -> Cell {
    match (kind, kind.physical()) {
        (ColumnKind::Int8, _) => Cell::I32(r.pick(&[-128, 127, 0])),
        (ColumnKind::Int16, _) => Cell::I32(r.pick(&[-32_768, 32_767, 0])),
        (ColumnKind::Decimal { precision, .. }, physical) => {
            let most = 10i128.pow(u32::from(precision)) - 1;
            let x = r.pick(&[most, -most, 0, 1, -1]);
            match physical {
                Physical::I64 => Cell::I64(x as i64),
                _ => Cell::I128(x),
            }
        }
        (_, Physical::Bool) => Cell::Bool(r.one_in(2)),
        (_, Physical::I32) => Cell::I32(r.pick(&[i32::MIN, i32::MAX, 0, -1, 1])),
        (_, Physical::I64) => Cell::I64(r.pick(&[i64::MIN, i64::MAX, 0, -1, 1])),
        (_, Physical::I128) => Cell::I128(r.pick(&[i128::MIN, i128::MAX, 0, -1])),
        (_, Physical::F32) => Cell::F32(r.pick(&[
            f32::NAN,
            f32::from_bits(0xFFC0_0001),
            f32::INFINITY,
            f32::NEG_INFINITY,
            -0.0,
            0.0,
            f32::MAX,
            f32::MIN,
            f32::MIN_POSITIVE / 2.0,
        ])),
        (_, Physical::F64) => Cell::F64(r.pick(&[
            f64::NAN,
            f64::from_bits(0xFFF8_0000_0000_0001),
            f64::INFINITY,
            f64::NEG_INFINITY,
            -0.0,
            0.0,
            f64::MAX,
            f64::MIN,
            f64::MIN_POSITIVE / 2.0,
        ])),
        (ColumnKind::Uuid, _) => Cell::Bytes(vec![r.pick(&[0, 0xFF]); 16]),
        (_, Physical::Bytes) => {
            let len = match r.below(20) {
                0 => 200_000,
                n => r.pick(&[0, 1, 31, 32, 33, 64, 65]) + n % 2,
            };
            string(r, kind, len)
        }
    }
}
