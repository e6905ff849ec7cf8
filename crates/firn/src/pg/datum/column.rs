//! Which column kind stores a type, and the way in: a row's values into a stripe's columns.

use super::{fixed_bytes, parse_numeric, with_varlena, Datum, Row};
use crate::pg::rel::Attribute;
use crate::pg::{error, json, Kind, Oid};
use firn_format::{ColumnBuilder, ColumnKind, ColumnSpec};
use pgrx::pg_sys;

/// How a column's datums are turned into stored values and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conversion {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt32,
    Float32,
    Float64,
    /// Days; PostgreSQL counts from 2000-01-01, a stripe from 1970-01-01.
    Date,
    /// Microseconds; epochs as for dates.
    Timestamp,
    /// numeric(p, s) as an integer scaled by 10^s.
    Numeric {
        scale: u8,
    },
    /// The payload of a varlena.
    Varlena,
    /// jsonb, kept as its text so that any reader understands it.
    Jsonb,
    /// A fixed-length value passed by reference.
    Fixed(u16),
    /// A C string.
    CString,
}

/// A table column and how it is stored.
#[derive(Clone, Debug)]
pub struct ColumnType {
    pub attribute: Attribute,
    pub kind: ColumnKind,
    conversion: Conversion,
    pub type_name: String,
}

/// Days from 1970-01-01 to 2000-01-01.
pub const EPOCH_DAYS: i32 = 10_957;
/// Microseconds of the same span.
pub const EPOCH_MICROS: i64 = 946_684_800_000_000;

impl ColumnType {
    /// How a column of this type is stored in a new stripe.
    pub fn of(attribute: &Attribute) -> ColumnType {
        let mut typmod = attribute.typmod;
        // SAFETY: plain catalog look-ups.
        let (base, type_name, utf8) = unsafe {
            let base = pg_sys::getBaseTypeAndTypmod(attribute.type_oid, &mut typmod);
            let name = pg_sys::format_type_extended(
                attribute.type_oid,
                attribute.typmod,
                pg_sys::FORMAT_TYPE_TYPEMOD_GIVEN as u16 | pg_sys::FORMAT_TYPE_ALLOW_INVALID as u16,
            );
            let text = std::ffi::CStr::from_ptr(name).to_string_lossy().into_owned();
            pg_sys::pfree(name.cast());
            let utf8 = pg_sys::GetDatabaseEncoding() == pg_sys::pg_enc::PG_UTF8 as i32;
            (base, text, utf8)
        };
        let (kind, conversion) = storage_of(base, typmod, attribute, utf8);
        ColumnType { attribute: attribute.clone(), kind, conversion, type_name }
    }

    /// The kind that holds every value of the type, for stripes with one that [`ColumnType::of`]'s cannot hold. Values
    /// passed by value have no binary form: points in time keep PostgreSQL's own number.
    pub fn fallback(&self) -> ColumnKind {
        match self.kind {
            ColumnKind::Timestamp | ColumnKind::TimestampTz => ColumnKind::Int64,
            _ => ColumnKind::Opaque,
        }
    }

    /// How values of `kind` (found in a stripe) become datums of this column. The kind can differ
    /// from [`ColumnType::of`]'s where a stripe fell back to another one. None: such values are none of the column's type.
    pub fn conversion_from(&self, kind: ColumnKind) -> Option<Conversion> {
        if kind == self.kind {
            return Some(self.conversion);
        }
        let conversion = self.other_conversion(kind);
        self.has_form(conversion).then_some(conversion)
    }

    fn other_conversion(&self, kind: ColumnKind) -> Conversion {
        if let ColumnKind::Decimal { scale, .. } = kind {
            return Conversion::Numeric { scale };
        }
        match kind {
            ColumnKind::Opaque | ColumnKind::Bytes | ColumnKind::Text | ColumnKind::Uuid => {
                match self.attribute.length {
                    -2 => Conversion::CString,
                    -1 => Conversion::Varlena,
                    n => Conversion::Fixed(n as u16),
                }
            }
            ColumnKind::Json if self.conversion == Conversion::Jsonb => Conversion::Jsonb,
            ColumnKind::Json => Conversion::Varlena,
            ColumnKind::Bool => Conversion::Bool,
            ColumnKind::Int8 => Conversion::Int8,
            ColumnKind::Int16 => Conversion::Int16,
            ColumnKind::Int32 => Conversion::Int32,
            ColumnKind::UInt32 => Conversion::UInt32,
            ColumnKind::Float32 => Conversion::Float32,
            ColumnKind::Float64 => Conversion::Float64,
            ColumnKind::Date => Conversion::Date,
            ColumnKind::Timestamp | ColumnKind::TimestampTz => Conversion::Timestamp,
            _ => Conversion::Int64,
        }
    }

    /// The column's datums are words, or point to what these are: a number that is taken for an address ends the server.
    fn has_form(&self, conversion: Conversion) -> bool {
        let Attribute { by_value, length, .. } = self.attribute;
        match conversion {
            Conversion::Varlena | Conversion::Jsonb | Conversion::Numeric { .. } => {
                !by_value && length == -1
            }
            Conversion::Fixed(n) => !by_value && i32::from(length) == i32::from(n),
            Conversion::CString => !by_value && length == -2,
            _ => by_value,
        }
    }

    /// The column's description in a stripe.
    pub fn spec(&self) -> ColumnSpec {
        ColumnSpec {
            field_id: i32::from(self.attribute.number),
            name: self.attribute.name.clone(),
            kind: self.kind,
            type_name: self.type_name.clone(),
        }
    }
}

fn storage_of(
    base: Oid,
    typmod: i32,
    attribute: &Attribute,
    utf8: bool,
) -> (ColumnKind, Conversion) {
    use Conversion as V;
    let text = if utf8 { ColumnKind::Text } else { ColumnKind::Opaque };
    let json = if utf8 { ColumnKind::Json } else { ColumnKind::Opaque };
    match base {
        pg_sys::BOOLOID => (ColumnKind::Bool, V::Bool),
        pg_sys::INT2OID => (ColumnKind::Int16, V::Int16),
        pg_sys::INT4OID => (ColumnKind::Int32, V::Int32),
        pg_sys::INT8OID => (ColumnKind::Int64, V::Int64),
        pg_sys::FLOAT4OID => (ColumnKind::Float32, V::Float32),
        pg_sys::FLOAT8OID => (ColumnKind::Float64, V::Float64),
        pg_sys::DATEOID => (ColumnKind::Date, V::Date),
        pg_sys::TIMESTAMPOID => (ColumnKind::Timestamp, V::Timestamp),
        pg_sys::TIMESTAMPTZOID => (ColumnKind::TimestampTz, V::Timestamp),
        pg_sys::TIMEOID => (ColumnKind::Time, V::Int64),
        pg_sys::UUIDOID => (ColumnKind::Uuid, V::Fixed(16)),
        pg_sys::TEXTOID | pg_sys::VARCHAROID | pg_sys::BPCHAROID | pg_sys::XMLOID => {
            (text, V::Varlena)
        }
        pg_sys::BYTEAOID => (ColumnKind::Bytes, V::Varlena),
        pg_sys::JSONOID => (json, V::Varlena),
        pg_sys::JSONBOID if utf8 => (ColumnKind::Json, V::Jsonb),
        pg_sys::NUMERICOID => match numeric_precision(typmod) {
            Some((precision, scale)) => {
                (ColumnKind::Decimal { precision, scale }, V::Numeric { scale })
            }
            None => (ColumnKind::Opaque, V::Varlena),
        },
        _ => match (attribute.by_value, attribute.length) {
            (true, 1) => (ColumnKind::Int8, V::Int8),
            (true, 2) => (ColumnKind::Int16, V::Int16),
            (true, 4) => (ColumnKind::UInt32, V::UInt32),
            (true, _) => (ColumnKind::Int64, V::Int64),
            (false, -2) => (ColumnKind::Opaque, V::CString),
            (false, -1) => (ColumnKind::Opaque, V::Varlena),
            (false, n) => (ColumnKind::Opaque, V::Fixed(n as u16)),
        },
    }
}

/// Precision and scale of a numeric typmod that Parquet's DECIMAL can hold.
fn numeric_precision(typmod: i32) -> Option<(u8, u8)> {
    if typmod < 4 {
        return None;
    }
    let packed = typmod - 4;
    let precision = (packed >> 16) & 0xffff;
    // The scale is an 11-bit signed number since PostgreSQL 15.
    let scale = ((packed & 0x7ff) ^ 1024) - 1024;
    let fits = (1..=38).contains(&precision) && (0..=precision).contains(&scale);
    fits.then_some((precision as u8, scale as u8))
}

/// A row of a slot, to go into columns of a stripe that are of these types.
pub struct TypedRow<'a> {
    row: Row<'a>,
    attributes: &'a [pg_sys::FormData_pg_attribute],
    columns: &'a [Option<ColumnType>],
}

impl<'a> TypedRow<'a> {
    /// # Safety
    /// The row's values are of the attributes' types.
    pub(in crate::pg) unsafe fn of(
        row: Row<'a>,
        attributes: &'a [pg_sys::FormData_pg_attribute],
        columns: &'a [Option<ColumnType>],
    ) -> TypedRow<'a> {
        TypedRow { row, attributes, columns }
    }

    /// Push the value of a column (0 = first) into a stripe column of this kind. False when the value has no place in
    /// it (NaN in numeric(p, s), the last 30 years of timestamps): the caller turns the stripe column into the
    /// type's [`ColumnType::fallback`].
    pub fn push(&self, column: usize, kind: ColumnKind, builder: &mut ColumnBuilder) -> bool {
        let (Some(value), Some(Some(to))) = (self.row.get(column), self.columns.get(column)) else {
            builder.push_null();
            return true;
        };
        let Some(conversion) = to.conversion_from(kind) else { no_such_column() };
        match push_word(builder, conversion, value.word()) {
            Some(has_place) => has_place,
            None => {
                let own = self.attributes.get(column).map(|a| a.atttypid);
                if own != Some(to.attribute.type_oid) {
                    no_such_column();
                }
                // SAFETY: of the column's type, which has the conversion's form.
                unsafe { push_referred(builder, conversion, value) }
            }
        }
    }
}

#[cold]
fn no_such_column() -> ! {
    error(Kind::Internal, "a row has other columns than its table").raise()
}

/// Push a value that is its word; None for those by reference.
#[inline]
fn push_word(builder: &mut ColumnBuilder, conversion: Conversion, value: usize) -> Option<bool> {
    match conversion {
        Conversion::Bool => builder.push_bool(value as u8 != 0),
        Conversion::Int8 => builder.push_i32(i32::from(value as u8 as i8)),
        Conversion::Int16 => builder.push_i32(i32::from(value as u16 as i16)),
        Conversion::Int32 | Conversion::UInt32 => builder.push_i32(value as u32 as i32),
        Conversion::Int64 => builder.push_i64(value as i64),
        Conversion::Float32 => builder.push_f32(f32::from_bits(value as u32)),
        Conversion::Float64 => builder.push_f64(f64::from_bits(value as u64)),
        Conversion::Date => builder.push_i32(match value as u32 as i32 {
            i32::MIN => i32::MIN,
            i32::MAX => i32::MAX,
            days => days + EPOCH_DAYS,
        }),
        Conversion::Timestamp => {
            let micros = value as i64;
            if micros == i64::MIN || micros == i64::MAX {
                builder.push_i64(micros);
            } else {
                match micros.checked_add(EPOCH_MICROS).filter(|v| *v != i64::MAX) {
                    Some(v) => builder.push_i64(v),
                    None => return Some(false),
                }
            }
        }
        Conversion::Numeric { .. }
        | Conversion::Varlena
        | Conversion::Jsonb
        | Conversion::Fixed(_)
        | Conversion::CString => return None,
    }
    Some(true)
}

/// Push a value by reference.
///
/// # Safety
/// It is one of a type that the conversion is for.
unsafe fn push_referred(
    builder: &mut ColumnBuilder,
    conversion: Conversion,
    value: Datum<'_>,
) -> bool {
    // SAFETY: each reads what the caller promises.
    unsafe {
        match conversion {
            Conversion::Numeric { scale } => {
                return with_varlena(value, |bytes| match parse_numeric(bytes, scale) {
                    Some(v) if builder.is_i128() => {
                        builder.push_i128(v);
                        true
                    }
                    Some(v) => match i64::try_from(v) {
                        Ok(v) => {
                            builder.push_i64(v);
                            true
                        }
                        Err(_) => false,
                    },
                    None => false,
                });
            }
            Conversion::Jsonb => return json::with_text(value, |text| builder.push_bytes(text)),
            Conversion::Fixed(n) => builder.push_bytes(fixed_bytes(value, usize::from(n))),
            Conversion::CString => {
                builder.push_bytes(std::ffi::CStr::from_ptr(value.at()).to_bytes());
            }
            _ => with_varlena(value, |bytes| builder.push_bytes(bytes)),
        }
    }
    true
}
