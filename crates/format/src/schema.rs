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
    Decimal {
        precision: u8,
        scale: u8,
    },
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

impl ColumnKind {
    /// The kind's number in zone maps, from 1 to 31; precision and scale are no part of it.
    pub fn code(self) -> u8 {
        use ColumnKind as K;
        match self {
            K::Bool => 1,
            K::Int8 => 2,
            K::Int16 => 3,
            K::Int32 => 4,
            K::Int64 => 5,
            K::UInt32 => 6,
            K::Float32 => 7,
            K::Float64 => 8,
            K::Decimal { .. } => 9,
            K::Date => 10,
            K::Timestamp => 11,
            K::TimestampTz => 12,
            K::Time => 13,
            K::Uuid => 14,
            K::Text => 15,
            K::Json => 16,
            K::Bytes => 17,
            K::Opaque => 18,
        }
    }

    /// The kind's stable name in a stripe's key-value metadata.
    pub fn to_text(self) -> String {
        use ColumnKind as K;
        match self {
            K::Bool => "bool".into(),
            K::Int8 => "int8".into(),
            K::Int16 => "int16".into(),
            K::Int32 => "int32".into(),
            K::Int64 => "int64".into(),
            K::UInt32 => "uint32".into(),
            K::Float32 => "float32".into(),
            K::Float64 => "float64".into(),
            K::Decimal { precision, scale } => format!("decimal({precision},{scale})"),
            K::Date => "date".into(),
            K::Timestamp => "timestamp".into(),
            K::TimestampTz => "timestamptz".into(),
            K::Time => "time".into(),
            K::Uuid => "uuid".into(),
            K::Text => "text".into(),
            K::Json => "json".into(),
            K::Bytes => "bytes".into(),
            K::Opaque => "postgres-binary".into(),
        }
    }

    /// Inverse of [`ColumnKind::to_text`].
    pub fn parse(text: &str) -> Option<ColumnKind> {
        use ColumnKind as K;
        Some(match text {
            "bool" => K::Bool,
            "int8" => K::Int8,
            "int16" => K::Int16,
            "int32" => K::Int32,
            "int64" => K::Int64,
            "uint32" => K::UInt32,
            "float32" => K::Float32,
            "float64" => K::Float64,
            "date" => K::Date,
            "timestamp" => K::Timestamp,
            "timestamptz" => K::TimestampTz,
            "time" => K::Time,
            "uuid" => K::Uuid,
            "text" => K::Text,
            "json" => K::Json,
            "bytes" => K::Bytes,
            "postgres-binary" => K::Opaque,
            other => {
                let inner = other.strip_prefix("decimal(")?.strip_suffix(')')?;
                let (p, s) = inner.split_once(',')?;
                let (precision, scale) = (p.parse().ok()?, s.parse().ok()?);
                if precision == 0 || precision > 38 || scale > precision {
                    return None;
                }
                K::Decimal { precision, scale }
            }
        })
    }
}
