//! From the conditions of a query to the filter of a stripe.

use crate::pg::datum::{
    array_elements, fixed_bytes, parse_numeric_rescaled, with_varlena, Datum, EPOCH_DAYS,
    EPOCH_MICROS,
};
use firn_format::{ColumnKind, CompareOp, Constant, Filter};

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

/// The filter of one condition on a column stored as `kind`; None when it cannot be expressed. The
/// filter passes exactly the rows for which the condition is true.
pub fn filter_of(condition: &Condition, value: Option<Datum>, kind: ColumnKind) -> Option<Filter> {
    let column = condition.column;
    // A comparison with NULL is true for no row.
    let never = || Some(Filter::Or(Vec::new()));
    match condition.test {
        Test::IsNull => Some(Filter::IsNull(column)),
        Test::IsNotNull => Some(Filter::IsNotNull(column)),
        Test::Compare(op, operand) => {
            let Some(value) = value else { return never() };
            let value = constant(operand, value, kind)?;
            Some(Filter::Compare { column, op, value })
        }
        Test::AnyOf(operand) => {
            let Some(array) = value else { return never() };
            let values = array_elements(array)
                .into_iter()
                .map(|element| constant(operand, element, kind))
                .collect::<Option<Vec<_>>>()?;
            Some(Filter::In { column, values })
        }
    }
}

fn constant(operand: Operand, value: Datum, kind: ColumnKind) -> Option<Constant> {
    use ColumnKind as K;
    let is_int = matches!(kind, K::Int8 | K::Int16 | K::Int32 | K::Int64);
    Some(match operand {
        Operand::Bool if kind == K::Bool => Constant::I64(i64::from(value as u8 != 0)),
        Operand::Int2 if is_int => Constant::I64(i64::from(value as u16 as i16)),
        Operand::Int4 if is_int => Constant::I64(i64::from(value as u32 as i32)),
        Operand::Int8 if is_int => Constant::I64(value as i64),
        Operand::Oid if kind == K::UInt32 => Constant::I64(i64::from(value as u32)),
        Operand::Float4 if matches!(kind, K::Float32 | K::Float64) => {
            Constant::F64(f64::from(f32::from_bits(value as u32)))
        }
        Operand::Float8 if matches!(kind, K::Float32 | K::Float64) => {
            Constant::F64(f64::from_bits(value as u64))
        }
        Operand::Date if kind == K::Date => Constant::I64(match value as u32 as i32 {
            d @ (i32::MIN | i32::MAX) => i64::from(d),
            d => i64::from(d) + i64::from(EPOCH_DAYS),
        }),
        // A day against points in time means its midnight.
        Operand::Date if kind == K::Timestamp => Constant::I64(match value as u32 as i32 {
            i32::MIN => i64::MIN,
            i32::MAX => i64::MAX,
            d => (i64::from(d) + i64::from(EPOCH_DAYS)).checked_mul(MICROS_PER_DAY)?,
        }),
        // Points in time with and without time zone compare by the session's zone: left to
        // PostgreSQL.
        Operand::Timestamp if kind == K::Timestamp => point_in_time(value)?,
        Operand::TimestampTz if kind == K::TimestampTz => point_in_time(value)?,
        Operand::Time if kind == K::Time => Constant::I64(value as i64),
        Operand::Numeric => {
            let K::Decimal { precision, scale } = kind else { return None };
            let scaled = with_varlena(value, |b| parse_numeric_rescaled(b, scale))?;
            if precision <= 18 {
                Constant::I64(i64::try_from(scaled).ok()?)
            } else {
                Constant::I128(scaled)
            }
        }
        Operand::Text if kind == K::Text => Constant::Bytes(with_varlena(value, |b| b.to_vec())),
        Operand::Uuid if kind == K::Uuid => Constant::Bytes(fixed_bytes(value, 16)),
        _ => return None,
    })
}

fn point_in_time(value: Datum) -> Option<Constant> {
    Some(Constant::I64(match value as i64 {
        t @ (i64::MIN | i64::MAX) => t,
        t => t.checked_add(EPOCH_MICROS)?,
    }))
}
