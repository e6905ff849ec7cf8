//! The values that a condition compares a column with, copied out of PostgreSQL's memory.

use super::{each_element, fixed_bytes, with_varlena, Datum};

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

/// What stands on the right-hand side of a condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    Nothing,
    One(Operand),
    /// An array of such values.
    Array(Operand),
}

/// A right-hand side that was evaluated and is not NULL.
#[derive(Default)]
pub struct RightValue {
    /// The value, or the elements of the array that are not NULL.
    pub values: Vec<Value>,
    /// Elements of the array are NULL.
    pub some_are_null: bool,
}

impl RightValue {
    /// # Safety
    /// The value is of the type that `right` says, or an array of such values.
    pub(crate) unsafe fn of(right: Right, value: Datum<'_>) -> RightValue {
        let mut list = Vec::new();
        // SAFETY: as the caller promises; an array's elements are of its type.
        let some_are_null = unsafe {
            match right {
                Right::Nothing => false,
                Right::One(operand) => {
                    list.push(Value::of(operand, value));
                    false
                }
                Right::Array(operand) => {
                    each_element(value, |element| list.push(Value::of(operand, element)))
                }
            }
        };
        RightValue { values: list, some_are_null }
    }
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
    /// # Safety
    /// The value is of that type.
    pub(crate) unsafe fn of(operand: Operand, value: Datum<'_>) -> Value {
        // SAFETY: numeric and text are of variable length, as the caller promises that the value is.
        let payload = |value| unsafe { with_varlena(value, |bytes| Box::from(bytes)) };
        let word = value.word();
        match operand {
            Operand::Bool => Value::Bool(word as u8 != 0),
            Operand::Int2 => Value::Int(i64::from(word as u16 as i16)),
            Operand::Int4 => Value::Int(i64::from(word as u32 as i32)),
            Operand::Int8 => Value::Int(word as i64),
            Operand::Oid => Value::Oid(word as u32),
            Operand::Float4 => Value::Float(f64::from(f32::from_bits(word as u32))),
            Operand::Float8 => Value::Float(f64::from_bits(word as u64)),
            Operand::Date => Value::Date(word as u32 as i32),
            Operand::Timestamp => Value::Timestamp(word as i64),
            Operand::TimestampTz => Value::TimestampTz(word as i64),
            Operand::Time => Value::Time(word as i64),
            Operand::Numeric => Value::Numeric(payload(value)),
            Operand::Text => Value::Text(payload(value)),
            // SAFETY: a uuid is sixteen bytes by reference.
            Operand::Uuid => Value::Uuid(unsafe { fixed_bytes(value, 16) }.into()),
        }
    }
}
