//! What is written is read back: by this crate, as pages and as single values, and by the parquet
//! crate's own reader; and zone maps never rule out a value that is there.

mod common;

use common::{cases, meta_of, same, seed, Case, Cell, Random};
use firn_format::{
    Column, ColumnKind, CompareOp, Constant, Decoder, Dictionary, DirectoryEntry, Filter, Set,
    Stripe, StripeMeta, Value, ZoneMap,
};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use std::cmp::Ordering;
use std::sync::Arc;

fn part(stripe: &Stripe, offset: u64, len: u32) -> &[u8] {
    &stripe.bytes[offset as usize..offset as usize + len as usize]
}

/// Run `check` on random cases; a failure tells which one it was.
fn for_each_case(count: u64, check: impl Fn(&Case, &mut Random)) {
    let seed = seed();
    for n in 0..cases(count) {
        let mut r = Random(seed.wrapping_add(n.wrapping_mul(0x5851_F42D_4C95_7F2D)));
        let case = Case::random(&mut r);
        println!("case {n}: {}", case.describe());
        check(&case, &mut r);
    }
}

fn dictionary(
    decoder: &mut Decoder,
    stripe: &Stripe,
    meta: &StripeMeta,
    column: usize,
) -> Option<Arc<Dictionary>> {
    let (at, len) = meta.dictionary(column)?;
    Some(decoder.decode_dictionary(meta, column, part(stripe, at, len)).expect("a dictionary"))
}

#[test]
fn what_is_written_is_read_back() {
    let mut decoder = Decoder::new();
    let decoder = std::cell::RefCell::new(&mut decoder);
    for_each_case(150, |case, r| {
        let stripe = case.writer().encode().expect("an encoded stripe");
        assert_eq!(stripe.crc32c, crc32c::crc32c(&stripe.bytes));
        assert_eq!(stripe.rows as usize, case.rows);
        let meta = meta_of(&stripe);
        assert_eq!(meta.rows() as usize, case.rows);
        assert_eq!(meta.columns().len(), case.specs.len());
        let mut decoder = decoder.borrow_mut();
        for (column, spec) in case.specs.iter().enumerate() {
            let found = &meta.columns()[column];
            assert_eq!((found.field_id, found.kind), (spec.field_id, spec.kind));
            assert_eq!(found.type_name, spec.type_name);
            assert_eq!(meta.column_by_field_id(spec.field_id), Some(column));
            let dict = dictionary(&mut decoder, &stripe, &meta, column);
            let mut whole: Option<Column> = None;
            let mut at = 0;
            for (p, page) in meta.pages(column).iter().enumerate() {
                assert_eq!(page.first_row as usize, at);
                let bytes = part(&stripe, page.offset, page.len);
                let run = decoder.decode_page(&meta, column, p, bytes, dict.as_ref());
                let run = run.expect("a page");
                for i in 0..page.rows as usize {
                    let expected = case.cells[column][at + i].value();
                    assert!(same(run.value(i), expected), "{spec:?} row {}", at + i);
                    if i % 5 == 0 || i + 1 == page.rows as usize {
                        assert_eq!(meta.page_of(column, (at + i) as u32), p);
                        let (mut out, dict) = (Vec::new(), dict.as_ref());
                        let row = i as u32;
                        let one = decoder.value_at(&meta, column, p, row, bytes, dict, &mut out);
                        assert!(same(one.expect("a value"), expected), "{spec:?} row {}", at + i);
                    }
                }
                at += page.rows as usize;
                match &mut whole {
                    None => whole = Some(run),
                    Some(whole) => whole.append(&run),
                }
            }
            assert_eq!(at, case.rows);
            // Pages joined, and a random part cut out of them.
            let Some(whole) = whole else { continue };
            let from = r.below(case.rows + 1);
            let cut = whole.slice(from, r.below(case.rows + 2));
            assert_eq!(whole.rows, case.rows);
            for row in 0..case.rows {
                assert!(same(whole.value(row), case.cells[column][row].value()), "{spec:?} {row}");
            }
            for i in 0..cut.rows {
                assert!(same(cut.value(i), case.cells[column][from + i].value()), "{spec:?} {i}");
            }
        }
    });
}

#[test]
fn the_parquet_crate_reads_the_same() {
    for_each_case(100, |case, _| {
        let stripe = case.writer().encode().expect("an encoded stripe");
        let reader = SerializedFileReader::new(bytes::Bytes::from(stripe.bytes)).expect("a file");
        let file = reader.metadata().file_metadata();
        // Parquet counts the rows of columns.
        let rows = if case.specs.is_empty() { 0 } else { case.rows };
        assert_eq!(file.num_rows() as usize, rows);
        assert_eq!(file.schema_descr().num_columns(), case.specs.len());
        let groups = reader.num_row_groups();
        assert!(groups <= 1);
        for (column, spec) in case.specs.iter().enumerate() {
            let field = file.schema_descr().column(column);
            assert_eq!(field.self_type().get_basic_info().id(), spec.field_id);
            let found = match groups {
                0 => Vec::new(),
                _ => foreign(reader.get_row_group(0).expect("a group").as_ref(), column, spec.kind),
            };
            assert_eq!(found.len(), case.rows, "{spec:?}");
            for (row, (a, b)) in found.iter().zip(&case.cells[column]).enumerate() {
                assert!(same(a.value(), b.value()), "{spec:?} row {row}: {a:?}, written {b:?}");
            }
        }
    });
}

/// All values of a column as the parquet crate reads them.
fn foreign(group: &dyn RowGroupReader, column: usize, kind: ColumnKind) -> Vec<Cell> {
    let i128_of = |b: &[u8]| i128::from_be_bytes(b.try_into().expect("16 bytes"));
    match group.get_column_reader(column).expect("a column") {
        ColumnReader::BoolColumnReader(r) => read(r, |x| Cell::Bool(*x)),
        ColumnReader::Int32ColumnReader(r) => read(r, |x| Cell::I32(*x)),
        ColumnReader::Int64ColumnReader(r) => read(r, |x| Cell::I64(*x)),
        ColumnReader::FloatColumnReader(r) => read(r, |x| Cell::F32(*x)),
        ColumnReader::DoubleColumnReader(r) => read(r, |x| Cell::F64(*x)),
        ColumnReader::ByteArrayColumnReader(r) => read(r, |x| Cell::Bytes(x.data().to_vec())),
        ColumnReader::FixedLenByteArrayColumnReader(r) if kind == ColumnKind::Uuid => {
            read(r, |x| Cell::Bytes(x.data().to_vec()))
        }
        ColumnReader::FixedLenByteArrayColumnReader(r) => {
            read(r, |x| Cell::I128(i128_of(x.data())))
        }
        ColumnReader::Int96ColumnReader(_) => panic!("no column is of 96 bits"),
    }
}

fn read<T: DataType>(mut reader: ColumnReaderImpl<T>, cell: impl Fn(&T::T) -> Cell) -> Vec<Cell> {
    let (mut out, mut levels, mut values) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        levels.clear();
        values.clear();
        let (records, _, _) = reader
            .read_records(1_000, Some(&mut levels), None, &mut values)
            .expect("pages that another reader accepts");
        if records == 0 {
            return out;
        }
        let mut next = values.iter();
        for level in &levels {
            out.push(match level {
                0 => Cell::Null,
                _ => cell(next.next().expect("a value for each level")),
            });
        }
    }
}

/// PostgreSQL's order of two values of a column, written anew from its documentation; None for NULL.
fn order(a: &Cell, b: &Cell, kind: ColumnKind) -> Option<Ordering> {
    let float = |a: f64, b: f64| match (a.is_nan(), b.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) => a.partial_cmp(&b).expect("numbers"),
    };
    Some(match (a, b) {
        (Cell::Bool(a), Cell::Bool(b)) => a.cmp(b),
        (Cell::I32(a), Cell::I32(b)) if kind == ColumnKind::UInt32 => (*a as u32).cmp(&(*b as u32)),
        (Cell::I32(a), Cell::I32(b)) => a.cmp(b),
        (Cell::I64(a), Cell::I64(b)) => a.cmp(b),
        (Cell::I128(a), Cell::I128(b)) => a.cmp(b),
        (Cell::F32(a), Cell::F32(b)) => float(f64::from(*a), f64::from(*b)),
        (Cell::F64(a), Cell::F64(b)) => float(*a, *b),
        (Cell::Bytes(a), Cell::Bytes(b)) => a.cmp(b),
        _ => return None,
    })
}

fn constant(cell: &Cell, kind: ColumnKind) -> Constant {
    match cell {
        Cell::Null => panic!("a constant is never NULL"),
        Cell::Bool(x) => Constant::I64(i64::from(*x)),
        Cell::I32(x) if kind == ColumnKind::UInt32 => Constant::I64(i64::from(*x as u32)),
        Cell::I32(x) => Constant::I64(i64::from(*x)),
        Cell::I64(x) => Constant::I64(*x),
        Cell::I128(x) => Constant::I128(*x),
        Cell::F32(x) => Constant::F64(f64::from(*x)),
        Cell::F64(x) => Constant::F64(*x),
        Cell::Bytes(x) => Constant::Bytes(x.clone()),
    }
}

const OPS: [CompareOp; 6] =
    [CompareOp::Lt, CompareOp::Le, CompareOp::Eq, CompareOp::Ne, CompareOp::Ge, CompareOp::Gt];

fn holds(op: CompareOp, o: Ordering) -> bool {
    match op {
        CompareOp::Lt => o == Ordering::Less,
        CompareOp::Le => o != Ordering::Greater,
        CompareOp::Eq => o == Ordering::Equal,
        CompareOp::Ne => o != Ordering::Equal,
        CompareOp::Ge => o != Ordering::Less,
        CompareOp::Gt => o == Ordering::Greater,
    }
}

/// No value of `run` is ruled out by `zone`, whatever it is compared with.
fn zone_allows(zone: &ZoneMap, run: &[Cell], kind: ColumnKind, constants: &[&Cell]) {
    assert_eq!(zone.rows as usize, run.len());
    let nulls = run.iter().filter(|c| **c == Cell::Null).count();
    assert_eq!(zone.nulls as usize, nulls);
    let known = |_: usize| Some(zone.clone());
    assert_eq!(Filter::IsNull(0).may_match(&known), nulls > 0);
    assert_eq!(Filter::IsNotNull(0).may_match(&known), nulls < run.len());
    if !kind.is_ordered() {
        assert!(zone.min.is_none() && zone.max.is_none());
        return;
    }
    for c in constants {
        for op in OPS {
            let matches = run.iter().any(|v| order(v, c, kind).is_some_and(|o| holds(op, o)));
            let filter = Filter::Compare { column: 0, op, value: constant(c, kind) };
            assert!(
                !matches || filter.may_match(&known),
                "{kind:?}: {op:?} {c:?} is ruled out by {zone:?}"
            );
        }
        let filter = Filter::In { column: 0, values: Set::new(vec![constant(c, kind)]).into() };
        let matches = run.iter().any(|v| order(v, c, kind) == Some(Ordering::Equal));
        assert!(!matches || filter.may_match(&known), "{kind:?}: in {c:?}, {zone:?}");
    }
    // Bounds said to occur do occur, so that they may answer min() and max().
    if zone.exact && nulls < run.len() {
        for bound in [&zone.min, &zone.max].into_iter().flatten() {
            let value = |c: &Cell| match constant(c, kind) {
                Constant::I64(x) => firn_format::Bound::I64(x),
                Constant::I128(x) => firn_format::Bound::I128(x),
                Constant::F64(x) => firn_format::Bound::F64(x),
                Constant::Bytes(x) => firn_format::Bound::Bytes(x),
            };
            assert!(
                run.iter().any(|c| *c != Cell::Null && value(c) == *bound),
                "{kind:?}: {bound:?} is not among the values"
            );
        }
    }
}

#[test]
fn zone_maps_allow_every_value() {
    for_each_case(150, |case, r| {
        let stripe = case.writer().encode().expect("an encoded stripe");
        let meta = meta_of(&stripe);
        let entry = DirectoryEntry {
            zones: stripe
                .field_ids
                .iter()
                .copied()
                .zip(stripe.zones.iter().flatten().cloned())
                .collect(),
            ..DirectoryEntry::reserved(1)
        };
        let entry = DirectoryEntry::decode(&entry.encode(1 << 20)).expect("an entry");
        for (column, spec) in case.specs.iter().enumerate() {
            let cells = &case.cells[column];
            // Constants from the column and from another of its kind, so that some are not in it.
            let present: Vec<&Cell> = cells.iter().filter(|c| **c != Cell::Null).collect();
            let others: Vec<&Cell> = case
                .specs
                .iter()
                .zip(&case.cells)
                .filter(|(s, _)| s.kind == spec.kind)
                .flat_map(|(_, cells)| cells.iter().filter(|c| **c != Cell::Null).take(5))
                .collect();
            let mut constants: Vec<&Cell> = others;
            if !present.is_empty() {
                constants.extend((0..12).map(|_| present[r.below(present.len())]));
            }
            let zone = entry.zone(spec.field_id).expect("a zone map of the stripe");
            zone_allows(zone, cells, spec.kind, &constants);
            // Some of the pages: each looks at all of its rows for each constant.
            for (p, page) in meta.pages(column).iter().enumerate().filter(|(p, _)| p % 7 < 3) {
                let rows = page.first_row as usize..(page.first_row + page.rows) as usize;
                if let Some(zone) = meta.page_zone(column, p) {
                    let mut near = constants.clone();
                    near.extend(cells[rows.clone()].iter().filter(|c| **c != Cell::Null).take(9));
                    zone_allows(&zone, &cells[rows], spec.kind, &near);
                }
            }
        }
    });
}

/// A table may have 1,600 columns, and values may be far larger than a page.
#[test]
fn limits_are_reached() {
    let mut r = Random(7);
    let kinds = [ColumnKind::Int32, ColumnKind::Text, ColumnKind::Float64, ColumnKind::Bool];
    let specs = (0..1_600)
        .map(|i| firn_format::ColumnSpec {
            field_id: i + 1,
            name: format!("c{i}"),
            kind: kinds[i as usize % 4],
            type_name: String::new(),
        })
        .collect();
    let cells = (0..1_600)
        .map(|i| {
            let cell = |_| match i % 4 {
                0 => Cell::I32(r.next() as i32),
                1 => Cell::Bytes(format!("value {}", r.below(10)).into_bytes()),
                2 => Cell::Null,
                _ => Cell::Bool(true),
            };
            (0..3).map(cell).collect()
        })
        .collect();
    check(&Case { specs, options: firn_format::WriteOptions::default(), cells, rows: 3 });
    let wide = |n: usize| Cell::Bytes((0..n).map(|i| ((i * i) >> 8) as u8).collect());
    let spec = firn_format::ColumnSpec {
        field_id: 1,
        name: "wide".into(),
        kind: ColumnKind::Bytes,
        type_name: "bytea".into(),
    };
    for codec in [firn_format::Codec::None, firn_format::Codec::Lz4, firn_format::Codec::Zstd(3)] {
        let options = firn_format::WriteOptions { codec, ..Default::default() };
        let zeros = Cell::Bytes(vec![0; 20_000_000]);
        let cells = vec![vec![wide(10_000_000), Cell::Null, wide(3), zeros, wide(40)]];
        check(&Case { specs: vec![spec.clone()], options, cells, rows: 5 });
    }
}

/// Written and read back by both readers.
fn check(case: &Case) {
    let stripe = case.writer().encode().expect("an encoded stripe");
    let meta = meta_of(&stripe);
    let reader =
        SerializedFileReader::new(bytes::Bytes::from(stripe.bytes.clone())).expect("a file");
    let group = reader.get_row_group(0).expect("a group");
    let mut decoder = Decoder::new();
    for (column, spec) in case.specs.iter().enumerate() {
        let dict = dictionary(&mut decoder, &stripe, &meta, column);
        let others = foreign(group.as_ref(), column, spec.kind);
        for (p, page) in meta.pages(column).iter().enumerate() {
            let bytes = part(&stripe, page.offset, page.len);
            for i in 0..page.rows {
                let row = (page.first_row + i) as usize;
                let (mut out, dict) = (Vec::new(), dict.as_ref());
                let one: Value<'_> =
                    decoder.value_at(&meta, column, p, i, bytes, dict, &mut out).expect("a value");
                assert!(same(one, case.cells[column][row].value()), "{spec:?} row {row}");
                assert!(same(one, others[row].value()), "{spec:?} row {row}");
            }
        }
    }
}
