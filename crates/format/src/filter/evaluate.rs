//! Selecting rows of decoded columns.

use super::{exact_float, float_key, CompareOp, Constant, Filter, Selection, Set};
use crate::column::{ByteColumn, Column, Dictionary, Values};

/// What is asked of values: a comparison with the first of some constants, or whether they are among these.
#[derive(Clone, Copy)]
enum Asked {
    Compare(CompareOp),
    In,
    NotIn,
}

/// A test of one value against constants of its own type.
enum Test<T> {
    Compare(CompareOp, T),
    /// Sorted.
    In(Vec<T>),
    /// Sorted.
    NotIn(Vec<T>),
    /// The constant lies beyond all values of the type, so all give the same answer.
    Always(bool),
}

impl Filter {
    /// Drop the rows for which the condition is not definitely true (NULL is not).
    ///
    /// `columns` gives the decoded column; a missing one counts as NULL in every row. `unsigned` says
    /// that a column's 32-bit integers are to be read as unsigned. A constant of another kind than
    /// the column's matches nothing.
    pub fn evaluate<'a>(
        &self,
        columns: &dyn Fn(usize) -> Option<&'a Column>,
        unsigned: &dyn Fn(usize) -> bool,
        selection: &mut Selection,
    ) {
        if selection.is_empty() {
            return;
        }
        match self {
            Filter::True => (),
            Filter::And(parts) => {
                parts.iter().for_each(|p| p.evaluate(columns, unsigned, selection));
            }
            Filter::Or(parts) => any(parts, columns, unsigned, selection),
            Filter::Compare { column, op, value } => match columns(*column) {
                Some(c) => {
                    let values = std::slice::from_ref(value);
                    select(c, Asked::Compare(*op), values, unsigned(*column), selection);
                }
                None => selection.clear(),
            },
            Filter::In { column, values } => match columns(*column) {
                Some(c) => among(c, values, unsigned(*column), selection),
                None => selection.clear(),
            },
            Filter::NotIn { column, values } => match columns(*column) {
                Some(c) => select(c, Asked::NotIn, values.values(), unsigned(*column), selection),
                None => selection.clear(),
            },
            Filter::StartsWith { column, prefix, negated } => match columns(*column) {
                Some(c) => start_with(c, prefix, *negated, selection),
                None => selection.clear(),
            },
            Filter::IsNull(column) => match columns(*column) {
                Some(Column { nulls: Some(nulls), .. }) => {
                    selection.retain(|r| (r as usize) < nulls.len() && nulls.is_null(r as usize));
                }
                Some(_) => selection.clear(),
                None => (),
            },
            Filter::IsNotNull(column) => match columns(*column) {
                Some(c) => drop_nulls(c, selection),
                None => selection.clear(),
            },
        }
    }
}

/// Rows that pass one of the conditions; each is only tried on rows that passed none before.
fn any<'a>(
    parts: &[Filter],
    columns: &dyn Fn(usize) -> Option<&'a Column>,
    unsigned: &dyn Fn(usize) -> bool,
    selection: &mut Selection,
) {
    let mut rest = selection.clone();
    let mut passed: Vec<u32> = Vec::new();
    for part in parts {
        let mut found = rest.clone();
        part.evaluate(columns, unsigned, &mut found);
        let mut next = found.rows.iter().copied().peekable();
        rest.retain(|r| match next.peek() {
            Some(f) if *f == r => {
                next.next();
                false
            }
            _ => true,
        });
        passed.extend_from_slice(&found.rows);
    }
    passed.sort_unstable();
    selection.rows = passed;
}

fn drop_nulls(column: &Column, selection: &mut Selection) {
    if let Some(nulls) = &column.nulls {
        selection.retain(|r| (r as usize) < nulls.len() && nulls.is_valid(r as usize));
    }
}

/// Values that are among those of the set. It may be large, so integers and bytes are looked up in it as it is.
fn among(column: &Column, set: &Set, unsigned: bool, selection: &mut Selection) {
    let narrow = |x: &i32| if unsigned { i64::from(*x as u32) } else { i64::from(*x) };
    let has_narrow =
        |v: &[i32], r: u32| v.get(r as usize).is_some_and(|x| set.has_integer(narrow(x)));
    let has = |v: &[i64], r: u32| v.get(r as usize).is_some_and(|x| set.has_integer(*x));
    let has_bytes = |v: &ByteColumn, r: u32| (r as usize) < v.len() && set.has(v.get(r as usize));
    let (integers, bytes) = (set.integers.is_some(), set.is_of_bytes());
    drop_nulls(column, selection);
    match &column.values {
        Values::I32(v) if integers => selection.retain(|r| has_narrow(v, r)),
        Values::I64(v) if integers => selection.retain(|r| has(v, r)),
        Values::Bytes(v) if bytes => selection.retain(|r| has_bytes(v, r)),
        // One that has more values than rows are asked for, as it belongs to many batches: row by row.
        Values::Dict { keys, dict } if dict.len() > selection.len() && (integers || bytes) => {
            let key = |r: u32| keys.get(r as usize).copied();
            match dict.as_ref() {
                Dictionary::I32(v) => {
                    selection.retain(|r| key(r).is_some_and(|k| integers && has_narrow(v, k)))
                }
                Dictionary::I64(v) => {
                    selection.retain(|r| key(r).is_some_and(|k| integers && has(v, k)))
                }
                Dictionary::Bytes(v) => {
                    selection.retain(|r| key(r).is_some_and(|k| bytes && has_bytes(v, k)))
                }
                _ => select(column, Asked::In, set.values(), unsigned, selection),
            }
        }
        Values::Dict { keys, dict } => {
            let mut passing = Selection::all(dict.len());
            match dict.as_ref() {
                Dictionary::I32(v) if integers => passing.retain(|r| has_narrow(v, r)),
                Dictionary::I64(v) if integers => passing.retain(|r| has(v, r)),
                Dictionary::Bytes(v) if bytes => passing.retain(|r| has_bytes(v, r)),
                _ => return select(column, Asked::In, set.values(), unsigned, selection),
            }
            look_up(keys, dict.len(), &passing, selection);
        }
        _ => select(column, Asked::In, set.values(), unsigned, selection),
    }
}

/// Values that begin, or do not begin, with these bytes.
fn start_with(column: &Column, prefix: &[u8], negated: bool, selection: &mut Selection) {
    drop_nulls(column, selection);
    let keep = |bytes: &[u8]| bytes.starts_with(prefix) != negated;
    match &column.values {
        Values::Bytes(v) => {
            let rows = v.len();
            selection.retain(|r| (r as usize) < rows && keep(v.get(r as usize)));
        }
        Values::Dict { keys, dict } => match dict.as_ref() {
            Dictionary::Bytes(v) => {
                let mut passing = asked_for(keys, v.len(), selection);
                passing.retain(|r| keep(v.get(r as usize)));
                look_up(keys, v.len(), &passing, selection);
            }
            _ => selection.clear(),
        },
        _ => selection.clear(),
    }
}

/// The values of a dictionary that are to be looked at. One that has more of them than rows are asked for belongs to many batches:
/// then only theirs.
fn asked_for(keys: &[u32], values: usize, selection: &Selection) -> Selection {
    if values <= selection.len() {
        return Selection::all(values);
    }
    let own = selection.rows().iter().filter_map(|r| keys.get(*r as usize).copied());
    Selection::of(own.filter(|key| (*key as usize) < values).collect(), values)
}

/// Keep the rows whose key in a dictionary of so many values is among those that pass.
fn look_up(keys: &[u32], values: usize, passing: &Selection, selection: &mut Selection) {
    if passing.is_all() {
        return;
    }
    if passing.is_empty() {
        return selection.clear();
    }
    let mut table = vec![false; values];
    for key in passing.rows() {
        if let Some(slot) = table.get_mut(*key as usize) {
            *slot = true;
        }
    }
    selection.retain(|r| {
        keys.get(r as usize).and_then(|k| table.get(*k as usize)).copied().unwrap_or(false)
    });
}

/// The rows of which that is true, in relation to `values`.
fn select(
    column: &Column,
    op: Asked,
    values: &[Constant],
    unsigned: bool,
    selection: &mut Selection,
) {
    drop_nulls(column, selection);
    match &column.values {
        Values::Bool(v) => {
            let value = |r: usize| (r < v.len()).then(|| i64::from(v.value(r)));
            keep_by(|r| value(r as usize), &integers(op, values), selection);
        }
        Values::I32(v) => keep_i32(v, op, values, unsigned, selection),
        Values::I64(v) => keep(v, |x| *x, &integers(op, values), selection),
        Values::I128(v) => keep(v, |x| *x, &wide(op, values), selection),
        Values::F32(v) => keep(v, |x| float_key(f64::from(*x)), &floats(op, values), selection),
        Values::F64(v) => keep(v, |x| float_key(*x), &floats(op, values), selection),
        Values::Bytes(v) => {
            let rows = v.len();
            keep_by(
                |r| ((r as usize) < rows).then(|| v.get(r as usize)),
                &bytes(op, values),
                selection,
            );
        }
        Values::Dict { keys, dict } => {
            // Once per distinct value, then one look-up a row.
            let mut passing = asked_for(keys, dict.len(), selection);
            match dict.as_ref() {
                Dictionary::I32(v) => keep_i32(v, op, values, unsigned, &mut passing),
                Dictionary::I64(v) => keep(v, |x| *x, &integers(op, values), &mut passing),
                Dictionary::I128(v) => keep(v, |x| *x, &wide(op, values), &mut passing),
                Dictionary::F32(v) => {
                    keep(v, |x| float_key(f64::from(*x)), &floats(op, values), &mut passing);
                }
                Dictionary::F64(v) => {
                    keep(v, |x| float_key(*x), &floats(op, values), &mut passing);
                }
                Dictionary::Bytes(v) => {
                    keep_by(|r| Some(v.get(r as usize)), &bytes(op, values), &mut passing);
                }
            }
            look_up(keys, dict.len(), &passing, selection);
        }
    }
}

fn keep_i32(v: &[i32], op: Asked, values: &[Constant], unsigned: bool, selection: &mut Selection) {
    let test = integers(op, values);
    match unsigned {
        true => keep(v, |x| i64::from(*x as u32), &test, selection),
        false => keep(v, |x| i64::from(*x), &test, selection),
    }
}

fn keep<S, T: Ord>(v: &[S], to: impl Fn(&S) -> T, test: &Test<T>, selection: &mut Selection) {
    keep_by(|r| v.get(r as usize).map(&to), test, selection);
}

/// One loop per comparison, so that the comparison is not decided again for every row.
fn keep_by<T: Ord>(get: impl Fn(u32) -> Option<T>, test: &Test<T>, selection: &mut Selection) {
    match test {
        Test::Always(true) => (),
        Test::Always(false) => selection.clear(),
        Test::In(set) if set.len() <= 8 => {
            selection.retain(|r| get(r).is_some_and(|x| set.contains(&x)));
        }
        Test::In(set) => {
            selection.retain(|r| get(r).is_some_and(|x| set.binary_search(&x).is_ok()))
        }
        Test::NotIn(set) => {
            selection.retain(|r| get(r).is_some_and(|x| set.binary_search(&x).is_err()))
        }
        Test::Compare(CompareOp::Lt, c) => selection.retain(|r| get(r).is_some_and(|x| x < *c)),
        Test::Compare(CompareOp::Le, c) => selection.retain(|r| get(r).is_some_and(|x| x <= *c)),
        Test::Compare(CompareOp::Eq, c) => selection.retain(|r| get(r).is_some_and(|x| x == *c)),
        Test::Compare(CompareOp::Ne, c) => selection.retain(|r| get(r).is_some_and(|x| x != *c)),
        Test::Compare(CompareOp::Ge, c) => selection.retain(|r| get(r).is_some_and(|x| x >= *c)),
        Test::Compare(CompareOp::Gt, c) => selection.retain(|r| get(r).is_some_and(|x| x > *c)),
    }
}

/// Constants to a test; those that `to` does not convert are equal to no value.
fn test<'c, T: Ord>(
    op: Asked,
    values: &'c [Constant],
    to: impl Fn(&'c Constant) -> Option<T>,
) -> Test<T> {
    match op {
        Asked::Compare(op) => match values.first().and_then(to) {
            Some(c) => Test::Compare(op, c),
            None => Test::Always(false),
        },
        Asked::In | Asked::NotIn => {
            let mut set: Vec<T> = values.iter().filter_map(to).collect();
            set.sort_unstable();
            match op {
                Asked::NotIn => Test::NotIn(set),
                _ => Test::In(set),
            }
        }
    }
}

fn integers(op: Asked, values: &[Constant]) -> Test<i64> {
    // A constant beyond 64 bits is above or below every value.
    if let (Asked::Compare(op), Some(Constant::I128(c))) = (op, values.first()) {
        if i64::try_from(*c).is_err() {
            return Test::Always(match op {
                CompareOp::Lt | CompareOp::Le => *c > 0,
                CompareOp::Gt | CompareOp::Ge => *c < 0,
                CompareOp::Eq => false,
                CompareOp::Ne => true,
            });
        }
    }
    test(op, values, |c| match c {
        Constant::I64(x) => Some(*x),
        Constant::I128(x) => i64::try_from(*x).ok(),
        _ => None,
    })
}

fn wide(op: Asked, values: &[Constant]) -> Test<i128> {
    test(op, values, |c| match c {
        Constant::I64(x) => Some(i128::from(*x)),
        Constant::I128(x) => Some(*x),
        _ => None,
    })
}

fn floats(op: Asked, values: &[Constant]) -> Test<i64> {
    test(op, values, |c| match c {
        Constant::F64(x) => Some(float_key(*x)),
        Constant::I64(x) => exact_float(*x).map(float_key),
        _ => None,
    })
}

fn bytes(op: Asked, values: &[Constant]) -> Test<&[u8]> {
    test(op, values, |c| match c {
        Constant::Bytes(x) => Some(x.as_slice()),
        _ => None,
    })
}
