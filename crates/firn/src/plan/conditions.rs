//! From the conditions of a query to the filter of a stripe.

use crate::pg::datum::{
    each_element, fixed_bytes, parse_numeric_rescaled, with_varlena, Datum, EPOCH_DAYS,
    EPOCH_MICROS,
};
use firn_format::{ColumnKind, CompareOp, Constant, Filter, Set};
use std::cell::RefCell;
use std::sync::Arc;

const MICROS_PER_DAY: i64 = 86_400_000_000;

/// The type of a comparison's right-hand side, as far as filters know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    Bool,
    Int2,
    Int4,
    Int8,
    Oid,
    Float4,
    Float8,
    Date,
    Timestamp,
    TimestampTz,
    Time,
    Numeric,
    Text,
    Uuid,
}

/// What is asked of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    Compare(CompareOp, Operand),
    /// Equal to an element of an array.
    AnyOf(Operand),
    IsNull,
    IsNotNull,
}

/// A condition on a column (0 = first); a comparison's right-hand side is evaluated when the scan
/// starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Condition {
    pub column: usize,
    pub test: Test,
}

/// A value of a comparison's right-hand side, free of PostgreSQL's memory.
#[derive(Clone, Debug)]
pub enum Value {
    Bool(bool),
    Int(i64),
    Oid(u32),
    Float(f64),
    Date(i32),
    Timestamp(i64),
    TimestampTz(i64),
    Time(i64),
    /// The payload of a numeric.
    Numeric(Box<[u8]>),
    Text(Box<[u8]>),
    Uuid(Box<[u8]>),
}

impl Value {
    fn of(operand: Operand, value: Datum) -> Value {
        let payload = |value| with_varlena(value, |bytes| Box::from(bytes));
        match operand {
            Operand::Bool => Value::Bool(value as u8 != 0),
            Operand::Int2 => Value::Int(i64::from(value as u16 as i16)),
            Operand::Int4 => Value::Int(i64::from(value as u32 as i32)),
            Operand::Int8 => Value::Int(value as i64),
            Operand::Oid => Value::Oid(value as u32),
            Operand::Float4 => Value::Float(f64::from(f32::from_bits(value as u32))),
            Operand::Float8 => Value::Float(f64::from_bits(value as u64)),
            Operand::Date => Value::Date(value as u32 as i32),
            Operand::Timestamp => Value::Timestamp(value as i64),
            Operand::TimestampTz => Value::TimestampTz(value as i64),
            Operand::Time => Value::Time(value as i64),
            Operand::Numeric => Value::Numeric(payload(value)),
            Operand::Text => Value::Text(payload(value)),
            Operand::Uuid => Value::Uuid(fixed_bytes(value, 16).into()),
        }
    }
}

/// A condition whose right-hand side was evaluated, once for all stripes of a scan.
pub struct Bound {
    pub condition: Condition,
    /// The value, or the elements of the array that are not NULL; None for NULL.
    values: Option<Vec<Value>>,
    /// The array in terms of the kinds of columns met so far; None when it cannot be expressed in one.
    sets: RefCell<Vec<(ColumnKind, Option<Arc<Set>>)>>,
}

/// Kinds of columns remembered per condition: that of the table's column and what it was before.
const KINDS: usize = 4;

impl Bound {
    /// `value` is the right-hand side, None for NULL; it is not referred to afterwards.
    pub fn new(condition: Condition, value: Option<Datum>) -> Bound {
        let values = value.map(|value| match condition.test {
            Test::Compare(_, operand) => vec![Value::of(operand, value)],
            Test::AnyOf(operand) => {
                let mut list = Vec::new();
                each_element(value, |element| list.push(Value::of(operand, element)));
                list
            }
            Test::IsNull | Test::IsNotNull => Vec::new(),
        });
        Bound { condition, values, sets: RefCell::default() }
    }

    fn set(&self, kind: ColumnKind) -> Option<Arc<Set>> {
        let mut sets = self.sets.borrow_mut();
        if let Some((_, set)) = sets.iter().find(|(k, _)| *k == kind) {
            return set.clone();
        }
        let values = self.values.iter().flatten().map(|v| constant(v, kind));
        let set = values.collect::<Option<Vec<_>>>().map(|values| Arc::new(Set::new(values)));
        if sets.len() >= KINDS {
            sets.remove(0);
        }
        sets.push((kind, set.clone()));
        set
    }
}

/// The filter of one condition on column `column` of a stripe, stored as `kind`; None when it cannot be
/// expressed. The filter passes exactly the rows for which the condition is true.
pub fn filter_of(bound: &Bound, column: usize, kind: ColumnKind) -> Option<Filter> {
    // A comparison with NULL is true for no row.
    let never = || Some(Filter::Or(Vec::new()));
    match bound.condition.test {
        Test::IsNull => Some(Filter::IsNull(column)),
        Test::IsNotNull => Some(Filter::IsNotNull(column)),
        Test::Compare(op, _) => {
            let Some(value) = bound.values.as_ref().and_then(|list| list.first()) else {
                return never();
            };
            Some(Filter::Compare { column, op, value: constant(value, kind)? })
        }
        Test::AnyOf(_) if bound.values.is_none() => never(),
        Test::AnyOf(_) => Some(Filter::In { column, values: bound.set(kind)? }),
    }
}

fn constant(value: &Value, kind: ColumnKind) -> Option<Constant> {
    use ColumnKind as K;
    let is_int = matches!(kind, K::Int8 | K::Int16 | K::Int32 | K::Int64);
    Some(match value {
        Value::Bool(v) if kind == K::Bool => Constant::I64(i64::from(*v)),
        Value::Int(v) if is_int => Constant::I64(*v),
        Value::Oid(v) if kind == K::UInt32 => Constant::I64(i64::from(*v)),
        Value::Float(v) if matches!(kind, K::Float32 | K::Float64) => Constant::F64(*v),
        Value::Date(v) if kind == K::Date => Constant::I64(match *v {
            d @ (i32::MIN | i32::MAX) => i64::from(d),
            d => i64::from(d) + i64::from(EPOCH_DAYS),
        }),
        // A day against points in time means its midnight.
        Value::Date(v) if kind == K::Timestamp => Constant::I64(match *v {
            i32::MIN => i64::MIN,
            i32::MAX => i64::MAX,
            d => (i64::from(d) + i64::from(EPOCH_DAYS)).checked_mul(MICROS_PER_DAY)?,
        }),
        // Points in time with and without time zone compare by the session's zone: left to
        // PostgreSQL.
        Value::Timestamp(v) if kind == K::Timestamp => point_in_time(*v)?,
        Value::TimestampTz(v) if kind == K::TimestampTz => point_in_time(*v)?,
        Value::Time(v) if kind == K::Time => Constant::I64(*v),
        Value::Numeric(v) => {
            let K::Decimal { precision, scale } = kind else { return None };
            let scaled = parse_numeric_rescaled(v, scale)?;
            if precision <= 18 {
                Constant::I64(i64::try_from(scaled).ok()?)
            } else {
                Constant::I128(scaled)
            }
        }
        Value::Text(v) if kind == K::Text => Constant::Bytes(v.to_vec()),
        Value::Uuid(v) if kind == K::Uuid => Constant::Bytes(v.to_vec()),
        _ => return None,
    })
}

fn point_in_time(value: i64) -> Option<Constant> {
    Some(Constant::I64(match value {
        t @ (i64::MIN | i64::MAX) => t,
        // The microsecond that infinity's number is of: no stripe has it as a number.
        t => t.checked_add(EPOCH_MICROS).filter(|t| *t != i64::MAX)?,
    }))
}
