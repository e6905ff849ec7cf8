use std::cmp::Ordering;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::column::{ByteColumn, Column, Dictionary, Value, Values};
use crate::zone::{Bound, ZoneMap};

/// Columns of the model: 0 Bool, 1 I32, 2 I32 unsigned, 3 I64, 4 I128, 5 F32, 6 F64, 7 Bytes.
const COLUMNS: usize = 8;

#[derive(Clone, Debug)]
enum Cell {
    Null,
    Integer(i128),
    Float(f64),
    Bytes(Vec<u8>),
}

const FLOATS: [f64; 7] = [f64::NAN, f64::NEG_INFINITY, f64::INFINITY, -0.0, 0.0, -1.5, 2.0];

fn cell(column: usize, seed: u8) -> Cell {
    let x = i128::from(seed % 9) - 4;
    match (column, seed) {
        (_, 0..=39) => Cell::Null,
        (0, _) => Cell::Integer(x & 1),
        (1, _) => Cell::Integer(x),
        // Around 2^31, where signed and unsigned order part.
        (2, _) => Cell::Integer((1 << 31) + x),
        (3, 250..) => Cell::Integer(i128::from(i64::MAX)),
        (3, _) => Cell::Integer(x),
        (4, 200..) => Cell::Integer(x << 100),
        (4, _) => Cell::Integer(x),
        (5 | 6, _) => Cell::Float(FLOATS[usize::from(seed) % FLOATS.len()]),
        _ => Cell::Bytes(vec![b'a' + seed % 3; usize::from(seed) % 4]),
    }
}

fn float_order(a: f64, b: f64) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        _ => a.partial_cmp(&b).unwrap(),
    }
}

fn order(a: &Cell, c: &Constant) -> Option<Ordering> {
    match (a, c) {
        (Cell::Integer(a), Constant::I64(b)) => Some(a.cmp(&i128::from(*b))),
        (Cell::Integer(a), Constant::I128(b)) => Some(a.cmp(b)),
        (Cell::Float(a), Constant::F64(b)) => Some(float_order(*a, *b)),
        (Cell::Float(a), Constant::I64(b)) => Some(float_order(*a, *b as f64)),
        (Cell::Bytes(a), Constant::Bytes(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

fn holds(op: CompareOp, o: Ordering) -> bool {
    match op {
        CompareOp::Lt => o.is_lt(),
        CompareOp::Le => o.is_le(),
        CompareOp::Eq => o.is_eq(),
        CompareOp::Ne => o.is_ne(),
        CompareOp::Ge => o.is_ge(),
        CompareOp::Gt => o.is_gt(),
    }
}

/// SQL's answer, row by row.
fn model(f: &Filter, row: &[Cell]) -> bool {
    match f {
        Filter::True => true,
        Filter::And(p) => p.iter().all(|p| model(p, row)),
        Filter::Or(p) => p.iter().any(|p| model(p, row)),
        Filter::Compare { column, op, value } => {
            order(&row[*column], value).is_some_and(|o| holds(*op, o))
        }
        Filter::In { column, values } => {
            values.values().iter().any(|v| order(&row[*column], v) == Some(Ordering::Equal))
        }
        Filter::NotIn { column, values } => {
            !matches!(row[*column], Cell::Null)
                && values.values().iter().all(|v| order(&row[*column], v) != Some(Ordering::Equal))
        }
        Filter::StartsWith { column, prefix, negated } => match &row[*column] {
            Cell::Bytes(bytes) => bytes.starts_with(prefix) != *negated,
            _ => false,
        },
        Filter::IsNull(c) => matches!(row[*c], Cell::Null),
        Filter::IsNotNull(c) => !matches!(row[*c], Cell::Null),
    }
}

fn integer(c: &Cell) -> i128 {
    match c {
        Cell::Integer(x) => *x,
        _ => 0,
    }
}

fn float(c: &Cell) -> f64 {
    match c {
        Cell::Float(x) => *x,
        _ => 0.0,
    }
}

fn column(i: usize, cells: &[Cell], dictionary: bool) -> Column {
    let nulls: Vec<bool> = cells.iter().map(|c| matches!(c, Cell::Null)).collect();
    let mut bytes = ByteColumn::new();
    cells.iter().for_each(|c| match c {
        Cell::Bytes(b) => bytes.push(b),
        _ => bytes.push(&[]),
    });
    let plain = match i {
        0 => Values::Bool(cells.iter().map(|c| integer(c) != 0).collect()),
        1 | 2 => Values::I32(cells.iter().map(|c| integer(c) as u32 as i32).collect()),
        3 => Values::I64(cells.iter().map(|c| integer(c) as i64).collect()),
        4 => Values::I128(cells.iter().map(integer).collect()),
        5 => Values::F32(cells.iter().map(|c| float(c) as f32).collect()),
        6 => Values::F64(cells.iter().map(float).collect()),
        _ => Values::Bytes(bytes),
    };
    // A dictionary in which row r's value has key n - 1 - r.
    let keys = (0..cells.len() as u32).rev().collect();
    let dict = |d| Values::Dict { keys, dict: Arc::new(d) };
    let values = match plain {
        plain if !dictionary => plain,
        Values::I32(v) => dict(Dictionary::I32(v.into_iter().rev().collect())),
        Values::I64(v) => dict(Dictionary::I64(v.into_iter().rev().collect())),
        Values::I128(v) => dict(Dictionary::I128(v.into_iter().rev().collect())),
        Values::F32(v) => dict(Dictionary::F32(v.into_iter().rev().collect())),
        Values::F64(v) => dict(Dictionary::F64(v.into_iter().rev().collect())),
        Values::Bytes(v) => {
            let mut turned = ByteColumn::new();
            (0..v.len()).rev().for_each(|i| turned.push(v.get(i)));
            dict(Dictionary::Bytes(turned))
        }
        plain => plain,
    };
    let nulls = nulls.contains(&true).then(|| nulls.iter().map(|null| !null).collect());
    Column { rows: cells.len(), nulls, values }
}

fn zone(i: usize, cells: &[Cell]) -> ZoneMap {
    let nulls = cells.iter().filter(|c| matches!(c, Cell::Null)).count() as u32;
    let mut z = ZoneMap { nulls, rows: cells.len() as u32, exact: true, ..ZoneMap::default() };
    let some: Vec<&Cell> = cells.iter().filter(|c| !matches!(c, Cell::Null)).collect();
    match i {
        0..=4 => {
            let bound = |x: i128| match i {
                4 => Bound::I128(x),
                _ => Bound::I64(x as i64),
            };
            z.min = some.iter().map(|c| integer(c)).min().map(bound);
            z.max = some.iter().map(|c| integer(c)).max().map(bound);
        }
        5 | 6 => {
            let numbers = || some.iter().map(|c| float(c)).filter(|x| !x.is_nan());
            z.has_nan = some.iter().any(|c| float(c).is_nan());
            z.min = numbers().reduce(f64::min).map(Bound::F64);
            z.max = numbers().reduce(f64::max).map(Bound::F64);
        }
        _ => {
            let bytes = || {
                some.iter().filter_map(|c| match c {
                    Cell::Bytes(b) => Some(b.clone()),
                    _ => None,
                })
            };
            z.min = bytes().min().map(Bound::Bytes);
            z.max = bytes().max().map(Bound::Bytes);
        }
    }
    z
}

fn constant(column: usize, seed: u8) -> Constant {
    match cell(column, seed.max(40)) {
        Cell::Integer(x) if column == 4 || seed.is_multiple_of(11) => {
            Constant::I128(x << (seed % 2 * 3))
        }
        Cell::Integer(_) if seed.is_multiple_of(13) => Constant::I128(i128::MIN),
        Cell::Integer(x) => Constant::I64(x as i64),
        Cell::Float(_) if seed.is_multiple_of(5) => Constant::I64(i64::from(seed % 3)),
        Cell::Float(x) => Constant::F64(x),
        Cell::Bytes(b) => Constant::Bytes(b),
        Cell::Null => Constant::I64(0),
    }
}

fn filters() -> impl Strategy<Value = Filter> {
    let op = prop_oneof![
        Just(CompareOp::Lt),
        Just(CompareOp::Le),
        Just(CompareOp::Eq),
        Just(CompareOp::Ne),
        Just(CompareOp::Ge),
        Just(CompareOp::Gt)
    ];
    let leaf = prop_oneof![
        6 => (0..COLUMNS, op, any::<u8>()).prop_map(|(column, op, s)| Filter::Compare {
            column,
            op,
            value: constant(column, s)
        }),
        3 => (0..COLUMNS, prop::collection::vec(any::<u8>(), 0..14)).prop_map(|(column, s)| {
            let values = s.into_iter().map(|s| constant(column, s)).collect();
            Filter::In { column, values: Arc::new(Set::new(values)) }
        }),
        2 => (0..COLUMNS, prop::collection::vec(any::<u8>(), 0..14)).prop_map(|(column, s)| {
            let values = s.into_iter().map(|s| constant(column, s)).collect();
            Filter::NotIn { column, values: Arc::new(Set::new(values)) }
        }),
        3 => (6..COLUMNS, any::<u8>(), any::<bool>()).prop_map(|(column, s, negated)| {
            let prefix = match constant(7, s) {
                Constant::Bytes(b) => b,
                _ => Vec::new(),
            };
            Filter::StartsWith { column, prefix, negated }
        }),
        1 => (0..COLUMNS).prop_map(Filter::IsNull),
        1 => (0..COLUMNS).prop_map(Filter::IsNotNull),
        1 => Just(Filter::True),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Filter::And),
            prop::collection::vec(inner, 0..4).prop_map(Filter::Or),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn filters_agree_with_the_model(
        filter in filters(),
        seeds in prop::collection::vec(prop::array::uniform8(any::<u8>()), 1..40),
        dictionary: bool,
    ) {
        let rows: Vec<Vec<Cell>> = seeds
            .iter()
            .map(|s| s.iter().enumerate().map(|(i, s)| cell(i, *s)).collect())
            .collect();
        let by_column: Vec<Vec<Cell>> =
            (0..COLUMNS).map(|i| rows.iter().map(|r| r[i].clone()).collect()).collect();
        let columns: Vec<Column> =
            by_column.iter().enumerate().map(|(i, c)| column(i, c, dictionary)).collect();
        let expected: Vec<u32> =
            (0..rows.len() as u32).filter(|r| model(&filter, &rows[*r as usize])).collect();

        let mut selection = Selection::all(rows.len());
        filter.evaluate(&|i| columns.get(i), &|i| i == 2, &mut selection);
        prop_assert_eq!(selection.rows(), &expected);
        prop_assert_eq!(selection.is_all(), expected.len() == rows.len());

        // Rows dropped before stay dropped.
        let mut odd = Selection::all(rows.len());
        odd.retain(|r| r % 2 == 1);
        filter.evaluate(&|i| columns.get(i), &|i| i == 2, &mut odd);
        let expected_odd: Vec<u32> = expected.iter().copied().filter(|r| r % 2 == 1).collect();
        prop_assert_eq!(odd.rows(), &expected_odd);

        let may = filter.may_match(&|i| by_column.get(i).map(|c| zone(i, c)));
        prop_assert!(may || expected.is_empty(), "a run with matches was pruned");
        prop_assert!(filter.may_match(&|_| None) || !has_leaf(&filter));
    }
}

/// The condition refers to a column outside of empty disjunctions.
fn has_leaf(f: &Filter) -> bool {
    match f {
        Filter::True => true,
        Filter::And(p) => p.iter().all(has_leaf),
        Filter::Or(p) => p.iter().any(has_leaf),
        _ => true,
    }
}

fn compare(op: CompareOp, value: Constant) -> Filter {
    Filter::Compare { column: 0, op, value }
}

#[test]
fn bounds_prune() {
    let z = ZoneMap {
        min: Some(Bound::I64(10)),
        max: Some(Bound::I64(20)),
        nulls: 0,
        rows: 5,
        ..ZoneMap::default()
    };
    for (op, x, expected) in [
        (CompareOp::Lt, 10, false),
        (CompareOp::Lt, 11, true),
        (CompareOp::Le, 9, false),
        (CompareOp::Le, 10, true),
        (CompareOp::Eq, 9, false),
        (CompareOp::Eq, 15, true),
        (CompareOp::Eq, 21, false),
        (CompareOp::Ge, 21, false),
        (CompareOp::Ge, 20, true),
        (CompareOp::Gt, 20, false),
        (CompareOp::Ne, 10, true),
    ] {
        let f = compare(op, Constant::I64(x));
        assert_eq!(f.may_match(&|_| Some(z.clone())), expected, "{op:?} {x}");
    }
    assert!(!Filter::IsNull(0).may_match(&|_| Some(z.clone())));
    let one = ZoneMap { max: Some(Bound::I64(10)), ..z.clone() };
    assert!(!compare(CompareOp::Ne, Constant::I64(10)).may_match(&|_| Some(one.clone())));
    let nulls = ZoneMap { nulls: 5, rows: 5, ..ZoneMap::default() };
    assert!(!compare(CompareOp::Ne, Constant::I64(1)).may_match(&|_| Some(nulls.clone())));
    assert!(!Filter::IsNotNull(0).may_match(&|_| Some(nulls.clone())));
}

#[test]
fn prefixes_prune() {
    let between = |min: &str, max: &str| ZoneMap {
        min: Some(Bound::Bytes(min.into())),
        max: Some(Bound::Bytes(max.into())),
        nulls: 1,
        rows: 5,
        ..ZoneMap::default()
    };
    for (min, max, prefix, expected, expected_negated) in [
        ("b", "d", "a", false, true),
        ("b", "d", "bc", true, true),
        ("b", "d", "c", true, true),
        ("b", "d", "d", true, true),
        ("b", "d", "dd", false, true),
        ("b", "d", "e", false, true),
        ("bca", "bcz", "bc", true, false),
        ("bca", "bcz", "bca", true, true),
        ("bca", "bcz", "bcaa", true, true),
        ("bc", "bcz", "bca", true, true),
        ("b", "bcz", "bc", true, true),
        ("b", "d", "", true, false),
    ] {
        let z = between(min, max);
        let prefix = Vec::from(prefix);
        for (negated, expected) in [(false, expected), (true, expected_negated)] {
            let f = Filter::StartsWith { column: 0, prefix: prefix.clone(), negated };
            assert_eq!(f.may_match(&|_| Some(z.clone())), expected, "{min} {max} {f:?}");
        }
    }
}

#[test]
fn sets_of_integers() {
    let spread: Vec<i64> = (0..500).map(|i| i * 1_000_000_007).collect();
    let ends = vec![i64::MIN, -1, 0, i64::MAX];
    for values in [(-300..300).step_by(3).collect(), spread, ends, vec![7], vec![i64::MIN]] {
        let set = Set::new(values.iter().rev().map(|v| Constant::I64(*v)).collect());
        let integers = set.integers.as_ref().unwrap();
        for v in values.iter().flat_map(|v| [*v, v.wrapping_add(1), v.wrapping_sub(1)]) {
            assert_eq!(integers.contains(v), values.contains(&v), "{v} among {}", values.len());
        }
    }
    assert!(Set::new(vec![Constant::I64(1), Constant::I128(2)]).integers.is_none());
    assert!(Set::new(Vec::new()).integers.is_none());
}

#[test]
fn missing_columns_are_null() {
    let mut s = Selection::all(3);
    Filter::IsNull(9).evaluate(&|_| None, &|_| false, &mut s);
    assert!(s.is_all());
    Filter::IsNotNull(9).evaluate(&|_| None, &|_| false, &mut s);
    assert!(s.is_empty());
    assert_eq!(
        Filter::And(vec![Filter::IsNull(4), Filter::IsNull(2), Filter::IsNull(4)]).columns(),
        [2, 4]
    );
    assert_eq!(
        Column { rows: 1, nulls: None, values: Values::I32(vec![3]) }.value(0),
        Value::I32(3)
    );
}
