//! Zone maps as people read them: JSON with the bounds in the column's own terms.

use crate::pg::datum::{text_of_word, EPOCH_DAYS, EPOCH_MICROS};
use crate::pg::{Oid, Rel};
use crate::plan::kinds::zone_of;
use crate::stripe::layout;
use firn_format::{Bound, ColumnKind, ZoneMap};
use std::fmt::Write;

/// `{"column": {"min": …, "max": …, "nulls": n}, …}` of a table's columns by field id. A bound that is
/// not known is null; `"exact": false` says that the bounds were shortened.
pub fn describe(table: Rel, zones: &[(i32, ZoneMap)]) -> String {
    let layout = layout(table);
    let mut out = String::from("{");
    for (id, zone) in zones {
        let column = layout.columns.iter().flatten().find(|c| i32::from(c.attribute.number) == *id);
        let Some(column) = column else { continue };
        // The stripe may have the column as another kind, whose bounds would say something else in this one's terms.
        let zone = zone_of(zone, column.kind);
        if out.len() > 1 {
            out.push_str(", ");
        }
        string(&column.attribute.name, &mut out);
        for (label, bound) in [(": {\"min\": ", &zone.min), (", \"max\": ", &zone.max)] {
            out.push_str(label);
            match bound.as_ref().and_then(|b| text(b, column.kind, column.attribute.type_oid)) {
                None => out.push_str("null"),
                Some(Shown::Number(n)) => out.push_str(&n),
                Some(Shown::Text(t)) => string(&t, &mut out),
            }
        }
        let _ = write!(out, ", \"nulls\": {}", zone.nulls);
        if zone.has_nan {
            out.push_str(", \"nan\": true");
        }
        if !zone.exact && (zone.min.is_some() || zone.max.is_some()) {
            out.push_str(", \"exact\": false");
        }
        out.push('}');
    }
    out.push('}');
    out
}

enum Shown {
    Number(String),
    Text(String),
}

fn text(bound: &Bound, kind: ColumnKind, type_oid: Oid) -> Option<Shown> {
    use ColumnKind as K;
    Some(match (kind, bound) {
        (K::Bool, Bound::I64(v)) => Shown::Number((*v != 0).to_string()),
        (K::Int8 | K::Int16 | K::Int32 | K::Int64, Bound::I64(v)) => Shown::Number(v.to_string()),
        // Oids, and the labels of enums.
        (K::UInt32, Bound::I64(v)) => Shown::Text(text_of_word(type_oid, i64::from(*v as u32))),
        (K::Decimal { scale, .. }, Bound::I64(v)) => Shown::Number(decimal(i128::from(*v), scale)),
        (K::Decimal { scale, .. }, Bound::I128(v)) => Shown::Number(decimal(*v, scale)),
        (K::Float32, Bound::F64(v)) if v.is_finite() => Shown::Number((*v as f32).to_string()),
        (K::Float64, Bound::F64(v)) if v.is_finite() => Shown::Number(v.to_string()),
        (_, Bound::F64(v)) => {
            Shown::Text(if *v > 0.0 { "Infinity" } else { "-Infinity" }.to_owned())
        }
        (K::Date, Bound::I64(v)) => {
            let days = match i32::try_from(*v).ok()? {
                d @ (i32::MIN | i32::MAX) => d,
                d => d.checked_sub(EPOCH_DAYS)?,
            };
            Shown::Text(text_of_word(type_oid, i64::from(days as u32)))
        }
        (K::Timestamp | K::TimestampTz, Bound::I64(v)) => {
            let micros = match *v {
                t @ (i64::MIN | i64::MAX) => t,
                t => t.checked_sub(EPOCH_MICROS)?,
            };
            Shown::Text(text_of_word(type_oid, micros))
        }
        (K::Time, Bound::I64(v)) => Shown::Text(text_of_word(type_oid, *v)),
        (K::Uuid, Bound::Bytes(b)) if b.len() == 16 => Shown::Text(uuid(b)),
        (K::Text | K::Json, Bound::Bytes(b)) => {
            Shown::Text(String::from_utf8_lossy(b).into_owned())
        }
        (_, Bound::Bytes(b)) => Shown::Text(format!("\\x{}", hex(b))),
        _ => return None,
    })
}

fn decimal(value: i128, scale: u8) -> String {
    let scale = usize::from(scale);
    let digits = format!("{:0>width$}", value.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let sign = if value < 0 { "-" } else { "" };
    if fraction.is_empty() {
        format!("{sign}{whole}")
    } else {
        format!("{sign}{whole}.{fraction}")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn uuid(b: &[u8]) -> String {
    let h = hex(b);
    format!("{}-{}-{}-{}-{}", &h[..8], &h[8..12], &h[12..16], &h[16..20], &h[20..])
}

/// A JSON string.
fn string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
