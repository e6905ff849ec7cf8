//! PostgreSQL values: which column kind stores a type, and the way in (a datum's bytes into a
//! stripe column). The way out needs no PostgreSQL memory and lives in `stripe::datums`.

use super::rel::Attribute;
use super::{json, memory};
use firn_format::{ColumnBuilder, ColumnKind, ColumnSpec};
use pgrx::pg_sys;

/// A PostgreSQL datum: a value or the address of one. Who holds one knows its type and lifetime.
pub type Datum = usize;

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
    pub conversion: Conversion,
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
            let base =
                pg_sys::getBaseTypeAndTypmod(pg_sys::Oid::from(attribute.type_oid), &mut typmod);
            let name = pg_sys::format_type_extended(
                pg_sys::Oid::from(attribute.type_oid),
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
    /// from [`ColumnType::of`]'s where a stripe fell back to another one.
    pub fn conversion_from(&self, kind: ColumnKind) -> Conversion {
        if kind == self.kind {
            return self.conversion;
        }
        if let ColumnKind::Decimal { scale, .. } = kind {
            return Conversion::Numeric { scale };
        }
        let a = &self.attribute;
        match kind {
            ColumnKind::Opaque | ColumnKind::Bytes | ColumnKind::Text | ColumnKind::Uuid => {
                match a.length {
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
    base: pg_sys::Oid,
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

/// Push a datum of this column into a stripe column. False when the value has no place in the
/// column's kind (NaN in numeric(p, s), the last 30 years of timestamps): the caller turns the column into the
/// type's [`ColumnType::fallback`].
///
/// The datum must be a live value of the column's type.
pub fn push(builder: &mut ColumnBuilder, conversion: Conversion, value: Datum, null: bool) -> bool {
    if null {
        builder.push_null();
        return true;
    }
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
                    None => return false,
                }
            }
        }
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
        Conversion::Varlena => with_varlena(value, |bytes| builder.push_bytes(bytes)),
        Conversion::Jsonb => return json::with_text(value, |text| builder.push_bytes(text)),
        Conversion::Fixed(n) => {
            // SAFETY: a by-reference value of fixed length n.
            let bytes = unsafe { std::slice::from_raw_parts(value as *const u8, usize::from(n)) };
            builder.push_bytes(bytes);
        }
        Conversion::CString => {
            // SAFETY: a C string value.
            let text = unsafe { std::ffi::CStr::from_ptr(value as *const core::ffi::c_char) };
            builder.push_bytes(text.to_bytes());
        }
    }
    true
}

/// Call `f` with a varlena's payload, detoasted and decompressed.
pub fn with_varlena<T>(value: Datum, f: impl FnOnce(&[u8]) -> T) -> T {
    // SAFETY: value is a live varlena datum; a detoasted copy is freed after use.
    unsafe {
        let original = value as *mut pg_sys::varlena;
        let plain = pg_sys::pg_detoast_datum_packed(original);
        let len = pgrx::varlena::varsize_any_exhdr(plain);
        let data = pgrx::varlena::vardata_any(plain) as *const u8;
        let result = f(std::slice::from_raw_parts(data, len));
        if plain != original {
            pg_sys::pfree(plain.cast());
        }
        result
    }
}

/// A value as its type's output function writes it.
pub fn text_of(type_oid: u32, value: Datum) -> String {
    let (mut function, mut varlena) = (pg_sys::InvalidOid, false);
    // SAFETY: a live value of that type; the text is palloc'ed and copied.
    unsafe {
        pg_sys::getTypeOutputInfo(pg_sys::Oid::from(type_oid), &mut function, &mut varlena);
        let text = pg_sys::OidOutputFunctionCall(function, pg_sys::Datum::from(value));
        std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

/// Call `f` with the elements of an array that are not NULL; whether others are.
pub fn each_element(array: Datum, mut f: impl FnMut(Datum)) -> bool {
    memory::scratch(|| {
        // SAFETY: a live array datum; deconstruct_array fills both arrays with `count` elements.
        unsafe {
            let array =
                pg_sys::pg_detoast_datum(array as *mut pg_sys::varlena) as *mut pg_sys::ArrayType;
            let kind = (*array).elemtype;
            let (mut length, mut by_value, mut align) = (0, false, 0);
            pg_sys::get_typlenbyvalalign(kind, &mut length, &mut by_value, &mut align);
            let (mut values, mut nulls, mut count) =
                (std::ptr::null_mut(), std::ptr::null_mut(), 0);
            pg_sys::deconstruct_array(
                array,
                kind,
                i32::from(length),
                by_value,
                align,
                &mut values,
                &mut nulls,
                &mut count,
            );
            let mut some_are_null = false;
            for i in 0..count as usize {
                match *nulls.add(i) {
                    true => some_are_null = true,
                    false => f((*values.add(i)).value()),
                }
            }
            some_are_null
        }
    })
}

const NUMERIC_SPECIAL: u16 = 0xC000;
const NUMERIC_SHORT: u16 = 0x8000;

/// The value of a numeric times 10^scale; None when it is NaN or infinite, displays with another
/// scale, or does not fit. Layout: src/backend/utils/adt/numeric.c.
pub fn parse_numeric(bytes: &[u8], scale: u8) -> Option<i128> {
    let word = |at: usize| -> Option<u16> {
        Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
    };
    let header = word(0)?;
    let (negative, display_scale, weight, digits_at) =
        if header & NUMERIC_SPECIAL == NUMERIC_SPECIAL {
            return None;
        } else if header & NUMERIC_SHORT != 0 {
            let magnitude = i32::from(header & 0x3f);
            let weight = if header & 0x40 != 0 { magnitude - 64 } else { magnitude };
            (header & 0x2000 != 0, (header & 0x1f80) >> 7, weight, 2)
        } else {
            (header & 0xC000 == 0x4000, header & 0x3fff, i32::from(word(2)? as i16), 4)
        };
    if display_scale != u16::from(scale) {
        return None;
    }
    let mut sum: i128 = 0;
    let count = (bytes.len() - digits_at) / 2;
    for i in 0..count {
        let digit = i128::from(word(digits_at + 2 * i)?);
        let exponent = 4 * (weight - i as i32) + i32::from(scale);
        let term = if exponent >= 0 {
            digit.checked_mul(10i128.checked_pow(exponent as u32)?)?
        } else {
            let divisor = 10i128.checked_pow((-exponent) as u32)?;
            if digit % divisor != 0 {
                return None;
            }
            digit / divisor
        };
        sum = sum.checked_add(term)?;
    }
    Some(if negative { -sum } else { sum })
}

/// Append the varlena (4-byte header) of `value` / 10^scale to `out`.
pub fn form_numeric(value: i128, scale: u8, out: &mut Vec<u8>) {
    let fraction_digits = usize::from(scale).div_ceil(4);
    let shift = fraction_digits * 4 - usize::from(scale);
    let mut rest = value.unsigned_abs();
    // Least significant digit first. Shifting the whole value could overflow, so the lowest digit
    // takes only the decimals that belong to it.
    let mut digits = [0u16; 12];
    let mut n = 0;
    if shift > 0 {
        let keep = 10u128.pow((4 - shift) as u32);
        let (whole, low) = match u64::try_from(rest) {
            Ok(rest) => (u128::from(rest / keep as u64), u128::from(rest % keep as u64)),
            Err(_) => (rest / keep, rest % keep),
        };
        digits[0] = (low * 10u128.pow(shift as u32)) as u16;
        rest = whole;
        n = 1;
    }
    // Divisions of 128 bits take several times as long.
    while rest > u128::from(u64::MAX) {
        digits[n] = (rest % 10_000) as u16;
        rest /= 10_000;
        n += 1;
    }
    let mut rest = rest as u64;
    while rest > 0 || n < fraction_digits {
        digits[n] = (rest % 10_000) as u16;
        rest /= 10_000;
        n += 1;
    }
    let low = digits[..n].iter().position(|d| *d != 0).unwrap_or(n);
    let high = digits[..n].iter().rposition(|d| *d != 0).map_or(low, |p| p + 1);
    let weight = if high > low { high as i32 - 1 - fraction_digits as i32 } else { 0 };
    let negative = value < 0;
    let count = high - low;
    let len = 4 + 2 + 2 * count;
    out.extend_from_slice(&((len as u32) << 2).to_le_bytes());
    let header = NUMERIC_SHORT
        | if negative { 0x2000 } else { 0 }
        | (u16::from(scale) << 7)
        | if weight < 0 { 0x40 } else { 0 }
        | (weight & 0x3f) as u16;
    out.extend_from_slice(&header.to_le_bytes());
    for d in digits[low..high].iter().rev() {
        out.extend_from_slice(&d.to_le_bytes());
    }
}

/// The value of a numeric times 10^scale whatever scale it displays with; None when it is NaN or
/// infinite, has more decimals, or does not fit.
pub fn parse_numeric_rescaled(bytes: &[u8], scale: u8) -> Option<i128> {
    let header = u16::from_le_bytes(bytes.get(..2)?.try_into().ok()?);
    let display = if header & NUMERIC_SPECIAL == NUMERIC_SPECIAL {
        return None;
    } else if header & NUMERIC_SHORT != 0 {
        (header & 0x1f80) >> 7
    } else {
        header & 0x3fff
    };
    let display = u8::try_from(display).ok()?;
    let value = parse_numeric(bytes, display)?;
    if display <= scale {
        return value.checked_mul(10i128.checked_pow(u32::from(scale - display))?);
    }
    let divisor = 10i128.checked_pow(u32::from(display - scale))?;
    (value % divisor == 0).then_some(value / divisor)
}

/// The bytes of a fixed-length value passed by reference.
pub fn fixed_bytes(value: Datum, len: usize) -> Vec<u8> {
    // SAFETY: a live value of that length.
    unsafe { std::slice::from_raw_parts(value as *const u8, len) }.to_vec()
}

#[cfg(test)]
mod tests {
    use super::{form_numeric, parse_numeric};

    #[test]
    fn numerics_round_trip() {
        let mut values = vec![0i128, 1, -1, 9, 10, 99, 100, 9_999, 10_000, 10_001, 123_456_789];
        values.extend([10i128.pow(37), 10i128.pow(38) - 1, -(10i128.pow(38) - 1), 5_000_000]);
        for scale in [0u8, 1, 2, 3, 4, 5, 7, 8, 18, 37, 38] {
            for value in &values {
                let mut bytes = Vec::new();
                form_numeric(*value, scale, &mut bytes);
                assert_eq!(
                    parse_numeric(&bytes[4..], scale),
                    Some(*value),
                    "{value} scale {scale}"
                );
            }
        }
    }
}
