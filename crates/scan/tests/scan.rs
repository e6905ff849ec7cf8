//! Scans of stripes in memory, compared with a look at each row as it was written.

use firn_format::{
    ColumnKind, ColumnSpec, CompareOp, Constant, Decoder, DeleteVector, Filter, Stripe, StripeMeta,
    StripeWriter, Value, WriteOptions,
};
use firn_scan::{
    pages_of, Batch, DecodedBatch, FrozenStripe, Narrowing, Need, Part, Step, StripeScan,
};
use proptest::prelude::*;
use std::sync::Arc;

/// A number that looks random, and is the same for the same row.
fn mixed(row: u32, salt: u64) -> u64 {
    let x = (u64::from(row) + salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ (x >> 31)
}

/// Rising, few values with NULLs, wide text on small pages, unsigned.
const KINDS: [ColumnKind; 4] =
    [ColumnKind::Int64, ColumnKind::Int32, ColumnKind::Text, ColumnKind::UInt32];

#[derive(Clone, Debug, PartialEq)]
enum Cell {
    Null,
    Number(i64),
    Text(Vec<u8>),
}

fn written(row: u32) -> [Cell; 4] {
    let few = mixed(row, 7) % 12;
    let text = || (0..mixed(row, 3) % 90).map(|i| b'a' + (mixed(row, i) % 26) as u8).collect();
    [
        Cell::Number(i64::from(row) * 3),
        if few == 0 { Cell::Null } else { Cell::Number(few as i64) },
        if few == 5 { Cell::Null } else { Cell::Text(text()) },
        Cell::Number(i64::from(mixed(row, 11) as u32)),
    ]
}

fn read(value: &Value<'_>, column: usize) -> Cell {
    match value {
        Value::Null => Cell::Null,
        Value::I32(v) if column == 3 => Cell::Number(i64::from(*v as u32)),
        Value::I32(v) => Cell::Number(i64::from(*v)),
        Value::I64(v) => Cell::Number(*v),
        Value::Bytes(v) => Cell::Text(v.to_vec()),
        other => panic!("{other:?}"),
    }
}

struct Made {
    stripe: Stripe,
    meta: Arc<StripeMeta>,
}

fn made(rows: u32, options: WriteOptions) -> Made {
    let specs = KINDS.iter().enumerate().map(|(i, kind)| ColumnSpec {
        field_id: i as i32 + 1,
        name: format!("c{i}"),
        kind: *kind,
        type_name: String::from("t"),
    });
    let mut writer = StripeWriter::new(specs.collect(), options);
    for row in 0..rows {
        for (i, cell) in written(row).into_iter().enumerate() {
            let column = writer.column_mut(i);
            match (cell, KINDS[i]) {
                (Cell::Null, _) => column.push_null(),
                (Cell::Number(n), ColumnKind::Int64) => column.push_i64(n),
                (Cell::Number(n), _) => column.push_i32(n as i32),
                (Cell::Text(t), _) => column.push_bytes(&t),
            }
        }
        writer.end_row();
    }
    let stripe = writer.encode().expect("a stripe");
    let meta = StripeMeta::of_file(&stripe.bytes, stripe.meta_offset).expect("its metadata");
    let meta = Arc::new(meta);
    Made { stripe, meta }
}

impl Made {
    fn frozen(&self, deleted: Option<DeleteVector>) -> FrozenStripe {
        FrozenStripe { meta: self.meta.clone(), deleted: deleted.map(Arc::new) }
    }

    fn supply(&self, scan: &mut StripeScan, need: &Need, decoder: &mut Decoder) {
        for piece in &need.pieces {
            let from = piece.offset as usize;
            let bytes = &self.stripe.bytes[from..from + piece.len as usize];
            scan.supply(piece, bytes, decoder).expect("a piece");
        }
    }

    fn drive(&self, scan: &mut StripeScan) -> Vec<DecodedBatch> {
        let (mut batches, mut decoder) = (Vec::new(), Decoder::new());
        loop {
            match scan.step().expect("a step") {
                Step::Need(need) => self.supply(scan, &need, &mut decoder),
                Step::Batch(batch) => batches.push(batch),
                Step::Done => return batches,
            }
        }
    }
}

fn rows_of(batches: &[DecodedBatch], columns: &[usize]) -> Vec<(u32, Vec<Cell>)> {
    let mut rows = Vec::new();
    for b in batches {
        assert!(!b.selection.is_empty() && b.columns.len() == columns.len());
        for row in b.selection.rows() {
            let cell = |(c, column): (&usize, &Arc<firn_format::Column>)| {
                read(&column.value(*row as usize), *c)
            };
            rows.push((
                b.batch.rows.start + row,
                columns.iter().zip(&b.columns).map(cell).collect(),
            ));
        }
    }
    rows
}

fn compare(column: usize, op: CompareOp, value: i64) -> Filter {
    Filter::Compare { column, op, value: Constant::I64(value) }
}

/// What a filter means, row by row.
type Meaning = Box<dyn Fn(&[Cell; 4]) -> bool>;

/// The filters of the test.
fn filter(which: usize, bound: i64) -> (Filter, Meaning) {
    let number = |cell: &Cell| match cell {
        Cell::Number(n) => Some(*n),
        _ => None,
    };
    let is = move |test: fn(i64, i64) -> bool, cell: &Cell, b: i64| {
        number(cell).is_some_and(|n| test(n, b))
    };
    match which {
        0 => (Filter::True, Box::new(|_| true)),
        1 => (compare(0, CompareOp::Ge, bound), Box::new(move |r| is(|n, b| n >= b, &r[0], bound))),
        2 => {
            let few = bound % 12;
            let parts = vec![compare(1, CompareOp::Eq, few), compare(0, CompareOp::Lt, bound)];
            let means = move |r: &[Cell; 4]| {
                is(|n, b| n == b, &r[1], few) && is(|n, b| n < b, &r[0], bound)
            };
            (Filter::And(parts), Box::new(means))
        }
        3 => {
            let parts = vec![Filter::IsNull(1), compare(3, CompareOp::Lt, bound * 1000)];
            let means =
                move |r: &[Cell; 4]| r[1] == Cell::Null || is(|n, b| n < b, &r[3], bound * 1000);
            (Filter::Or(parts), Box::new(means))
        }
        _ => (compare(0, CompareOp::Lt, -1), Box::new(|_| false)),
    }
}

fn options(page_rows: usize) -> WriteOptions {
    WriteOptions { page_rows, text_page_bytes: 3_000, ..WriteOptions::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever pages, columns, conditions, deleted rows and batches: what comes out is what was written.
    #[test]
    fn as_written(
        rows in 1u32..9_000, page_rows in 50usize..3_000, which in 0usize..5, bound in 0i64..27_000,
        columns in proptest::collection::vec(0usize..4, 0..5), deleted in proptest::option::of(2u32..9),
        from in 0u32..4, to in 0u32..6,
    ) {
        let made = made(rows, options(page_rows));
        let (filter, means) = filter(which, bound);
        let vector = deleted.map(|every| {
            let mut vector = DeleteVector::new(rows);
            (0..rows).filter(|r| mixed(*r, 1).is_multiple_of(u64::from(every))).for_each(|r| vector.set(r));
            vector
        });
        let is_deleted = |row: u32| deleted.is_some_and(|every| mixed(row, 1).is_multiple_of(u64::from(every)));
        let mut scan = StripeScan::new(made.frozen(vector), &columns, filter, from..to);
        let got = rows_of(&made.drive(&mut scan), &columns);
        let wanted: Vec<(u32, Vec<Cell>)> = (0..rows)
            .filter(|r| (from..to).contains(&(r / firn_scan::BATCH_ROWS)))
            .map(|r| (r, written(r)))
            .filter(|(r, cells)| means(cells) && !is_deleted(*r))
            .map(|(r, cells)| (r, columns.iter().map(|c| cells[*c].clone()).collect()))
            .collect();
        prop_assert_eq!(got, wanted);
    }

    /// In any order of batches, with what is decoded kept between them.
    #[test]
    fn batch_by_batch(rows in 1u32..9_000, page_rows in 50usize..3_000, order in proptest::collection::vec(0u32..6, 1..8)) {
        let made = made(rows, options(page_rows));
        let mut scan = StripeScan::new(made.frozen(None), &[2, 0], Filter::True, 0..0);
        for n in order {
            scan.go_on(n..n + 1);
            let got = rows_of(&made.drive(&mut scan), &[2, 0]);
            let wanted: Vec<(u32, Vec<Cell>)> =
                Batch::number(n, rows).rows.map(|r| { let c = written(r); (r, vec![c[2].clone(), c[0].clone()]) }).collect();
            prop_assert_eq!(got, wanted);
        }
    }

    /// Single rows are on the pages that the metadata say.
    #[test]
    fn single_rows(rows in 1u32..9_000, mut some in proptest::collection::vec(0u32..9_000, 0..40)) {
        let made = made(rows, options(700));
        some.retain(|r| *r < rows);
        some.sort_unstable();
        for column in 0..4 {
            let mut again = Vec::new();
            for (page, within) in pages_of(&made.meta, column, &some) {
                let at = &made.meta.pages(column)[page];
                again.extend(within.iter().map(|w| at.first_row + w));
                prop_assert!(within.iter().all(|w| *w < at.rows));
            }
            prop_assert_eq!(&again, &some);
        }
    }
}

#[test]
fn only_what_is_wanted_is_asked_for() {
    let made = made(6_000, options(2_048));
    let mut decoder = Decoder::new();
    // Rows 3000 and up: the first batch is dropped by the page index, the second's filter column is read before the other one.
    let filter = compare(0, CompareOp::Ge, 9_000);
    let mut scan = StripeScan::new(made.frozen(None), &[3, 0], filter, 0..3);
    let Step::Need(first) = scan.step().expect("a step") else { panic!("no need") };
    assert!(first.pieces.iter().all(|p| p.column == 0), "{first:?}");
    assert_eq!(first.pieces.iter().filter(|p| p.part == Part::Page(1)).count(), 1);
    made.supply(&mut scan, &first, &mut decoder);
    let Step::Need(second) = scan.step().expect("a step") else { panic!("no need") };
    assert!(second.pieces.iter().all(|p| p.column == 3), "{second:?}");
    made.supply(&mut scan, &second, &mut decoder);
    let Step::Batch(batch) = scan.step().expect("a step") else { panic!("no batch") };
    assert_eq!((batch.batch.rows.clone(), batch.selection.len()), (2_048..4_096, 1_096));
    let counters = scan.counters();
    assert_eq!((counters.batches_skipped, counters.batches_read, counters.pages_read), (1, 1, 2));
    assert_eq!(counters.rows_filtered, 952);
    // No row is left of the filter: its column is all that is asked for.
    let mut nothing = DeleteVector::new(6_000);
    (0..6_000).for_each(|r| nothing.set(r));
    let mut scan =
        StripeScan::new(made.frozen(Some(nothing)), &[3], compare(0, CompareOp::Ge, 0), 0..1);
    let Step::Need(need) = scan.step().expect("a step") else { panic!("no need") };
    made.supply(&mut scan, &need, &mut decoder);
    assert!(matches!(scan.step(), Ok(Step::Done)));
    assert_eq!(scan.counters().pages_read, 1);
    // In the order of pages the next is told of beforehand.
    let mut scan = StripeScan::new(made.frozen(None), &[0], Filter::True, 0..3);
    let Step::Need(need) = scan.step().expect("a step") else { panic!("no need") };
    assert!(need.soon.is_empty());
    made.supply(&mut scan, &need, &mut decoder);
    assert!(matches!(scan.step(), Ok(Step::Batch(_))));
    let Step::Need(need) = scan.step().expect("a step") else { panic!("no need") };
    assert_eq!(need.soon.iter().map(|p| p.part).collect::<Vec<_>>(), [Part::Page(2)]);
}

#[test]
fn narrowings_narrow_where_that_pays() {
    let made = made(30_000, options(2_048));
    let narrowing = |filter| Narrowing { filter, tested: 0, passed: 0, most_of_ten: 4 };
    let none = compare(3, CompareOp::Lt, 0);
    // Its column is read, and tells that no row is left; the other column never is.
    let mut scan = StripeScan::new(made.frozen(None), &[2], compare(0, CompareOp::Ge, 0), 0..2);
    scan.narrow(vec![narrowing(Filter::Or(vec![none, Filter::IsNull(1)]))]);
    let few = rows_of(&made.drive(&mut scan), &[2]);
    let wanted = (0..4_096).filter(|r| written(*r)[1] == Cell::Null);
    assert_eq!(few.iter().map(|(r, _)| *r).collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
    assert_eq!(scan.narrowings()[0].tested, 4_096);
    assert_eq!(scan.narrowings()[0].passed, few.len() as u64);
    assert_eq!(scan.counters().rows_filtered, 4_096 - few.len() as u64);
    // The page index drops batches by it.
    let mut scan = StripeScan::new(made.frozen(None), &[2], Filter::True, 0..2);
    scan.narrow(vec![narrowing(compare(0, CompareOp::Lt, 3_000))]);
    assert_eq!(rows_of(&made.drive(&mut scan), &[2]).len(), 1_000);
    assert_eq!(scan.counters().batches_skipped, 1);
    // One that nearly all rows pass is given up; all rows come.
    let mut scan = StripeScan::new(made.frozen(None), &[2], Filter::True, 0..15);
    scan.narrow(vec![narrowing(compare(1, CompareOp::Ge, 2))]);
    let rows = rows_of(&made.drive(&mut scan), &[2]).len();
    let (tested, passed) = (scan.narrowings()[0].tested, scan.narrowings()[0].passed);
    assert_eq!((tested, rows as u64), (8_192, 30_000 - (tested - passed)));
}

#[test]
fn wrong_bytes_and_wrong_pieces_are_errors() {
    let made = made(3_000, options(2_048));
    let mut decoder = Decoder::new();
    let begun = || {
        let mut scan = StripeScan::new(made.frozen(None), &[0, 2], Filter::True, 0..2);
        let Step::Need(need) = scan.step().expect("a step") else { panic!("no need") };
        (scan, need)
    };
    let (mut scan, need) = begun();
    assert!(need.pieces.len() > 1);
    let bytes = |p: &firn_scan::Piece| {
        made.stripe.bytes[p.offset as usize..p.offset as usize + p.len as usize].to_vec()
    };
    // Not its turn.
    assert!(scan.supply(&need.pieces[1], &bytes(&need.pieces[1]), &mut decoder).is_err());
    // Another piece's bytes, damaged ones, too few.
    let (mut scan, need) = begun();
    assert!(scan.supply(&need.pieces[0], &bytes(&need.pieces[1]), &mut decoder).is_err());
    let (mut scan, need) = begun();
    let mut damaged = bytes(&need.pieces[0]);
    damaged[20] ^= 1;
    assert!(scan.supply(&need.pieces[0], &damaged, &mut decoder).is_err());
    let (mut scan, need) = begun();
    assert!(scan.supply(&need.pieces[0], &bytes(&need.pieces[0])[..9], &mut decoder).is_err());
    // Asked again, it needs the same.
    let (mut scan, need) = begun();
    let Step::Need(again) = scan.step().expect("a step") else { panic!("no need") };
    assert_eq!(again, need);
}

#[test]
fn batches_beyond_the_end_are_none() {
    let made = made(100, options(2_048));
    let mut scan = StripeScan::new(made.frozen(None), &[0], Filter::True, 1..u32::MAX);
    scan.go_on(1..4);
    assert!(made.drive(&mut scan).is_empty());
}

#[test]
fn a_scan_may_go_to_another_thread() {
    fn sent<T: Send + 'static>(_: &T) {}
    let made = made(2_500, options(500));
    let mut scan = StripeScan::new(made.frozen(None), &[1], Filter::True, 0..2);
    sent(&scan);
    sent(&made.frozen(None));
    let rows = std::thread::spawn(move || rows_of(&made.drive(&mut scan), &[1]).len());
    assert_eq!(rows.join().expect("no panic"), 2_500);
}
