//! Columns of a stripe: what a column holds and how it is described in the file.

/// What a column holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ColumnKind {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    /// PostgreSQL oids and enum values.
    UInt32,
    Float32,
    Float64,
    /// Fixed-point numbers; `precision` at most 38.
    Decimal { precision: u8, scale: u8 },
    /// Days since 1970-01-01; `i32::MIN` and `i32::MAX` are the infinities.
    Date,
    /// Microseconds since 1970-01-01 without time zone; `i64::MIN` and `i64::MAX` are the infinities.
    Timestamp,
    /// Microseconds since 1970-01-01 UTC; infinities as for `Timestamp`.
    TimestampTz,
    /// Microseconds since midnight.
    Time,
    Uuid,
    Text,
    Json,
    Bytes,
    /// PostgreSQL's own binary form of a value.
    Opaque,
}

/// How values of a kind lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Physical {
    Bool,
    I32,
    I64,
    I128,
    F32,
    F64,
    Bytes,
}

impl ColumnKind {
    pub fn physical(self) -> Physical {
        use ColumnKind as K;
        match self {
            K::Bool => Physical::Bool,
            K::Int8 | K::Int16 | K::Int32 | K::UInt32 | K::Date => Physical::I32,
            K::Int64 | K::Timestamp | K::TimestampTz | K::Time => Physical::I64,
            K::Decimal { precision, .. } if precision <= 18 => Physical::I64,
            K::Decimal { .. } => Physical::I128,
            K::Float32 => Physical::F32,
            K::Float64 => Physical::F64,
            K::Uuid | K::Text | K::Json | K::Bytes | K::Opaque => Physical::Bytes,
        }
    }

    /// Values have an order that zone maps and filters use.
    pub fn is_ordered(self) -> bool {
        self != ColumnKind::Opaque
    }
}

/// A column of a stripe.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnSpec {
    /// Identity through renames: the table's attribute number, from 1.
    pub field_id: i32,
    pub name: String,
    pub kind: ColumnKind,
    /// The PostgreSQL type, for people and other readers.
    pub type_name: String,
}
