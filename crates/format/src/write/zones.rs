//! Zone maps of whole columns.

use super::builder::{ColumnBuilder, Data};
use crate::schema::ColumnKind;
use crate::zone::{Bound, ZoneMap};

/// The zone map of a column; without bounds for kinds that have no order.
pub(super) fn zone_map(kind: ColumnKind, builder: &ColumnBuilder) -> ZoneMap {
    let mut zone = ZoneMap {
        nulls: builder.null_count,
        rows: builder.len() as u32,
        exact: true,
        kind: Some(kind.code()),
        ..ZoneMap::default()
    };
    if !kind.is_ordered() {
        zone.exact = false;
        return zone;
    }
    let nulls = &builder.nulls;
    fn bounds<T: Copy + PartialOrd>(values: &[T], nulls: &[bool]) -> Option<(T, T)> {
        let mut present = values.iter().zip(nulls).filter(|(_, n)| !**n).map(|(v, _)| *v);
        let first = present.next()?;
        Some(present.fold((first, first), |(a, b), v| {
            (if v < a { v } else { a }, if v > b { v } else { b })
        }))
    }
    let pair = match &builder.data {
        Data::Bool(v) => {
            let ints: Vec<i64> = v.iter().map(|b| i64::from(*b)).collect();
            bounds(&ints, nulls).map(|(a, b)| (Bound::I64(a), Bound::I64(b)))
        }
        Data::I32(v) if kind == ColumnKind::UInt32 => {
            let ints: Vec<i64> = v.iter().map(|x| i64::from(*x as u32)).collect();
            bounds(&ints, nulls).map(|(a, b)| (Bound::I64(a), Bound::I64(b)))
        }
        Data::I32(v) => {
            bounds(v, nulls).map(|(a, b)| (Bound::I64(i64::from(a)), Bound::I64(i64::from(b))))
        }
        Data::I64(v) => bounds(v, nulls).map(|(a, b)| (Bound::I64(a), Bound::I64(b))),
        Data::I128(v) => bounds(v, nulls).map(|(a, b)| (Bound::I128(a), Bound::I128(b))),
        Data::F32(v) => {
            let wide: Vec<f64> = v.iter().map(|x| f64::from(*x)).collect();
            floats(&wide, nulls, &mut zone)
        }
        Data::F64(v) => floats(v, nulls, &mut zone),
        Data::Bytes(v) => {
            let mut range: Option<(&[u8], &[u8])> = None;
            for (i, null) in nulls.iter().enumerate() {
                if *null {
                    continue;
                }
                let x = v.get(i);
                range = Some(match range {
                    None => (x, x),
                    Some((a, b)) => (a.min(x), b.max(x)),
                });
            }
            if let Some((min, max)) = range {
                zone.exact = min.len() <= ZoneMap::MAX_BYTES && max.len() <= ZoneMap::MAX_BYTES;
                zone.min = Some(Bound::Bytes(min[..min.len().min(ZoneMap::MAX_BYTES)].to_vec()));
                zone.max = round_up(max).map(Bound::Bytes);
            }
            return zone;
        }
    };
    if let Some((min, max)) = pair {
        zone.min = Some(min);
        zone.max = Some(max);
    }
    zone
}

fn floats(values: &[f64], nulls: &[bool], zone: &mut ZoneMap) -> Option<(Bound, Bound)> {
    let mut range: Option<(f64, f64)> = None;
    for (v, null) in values.iter().zip(nulls) {
        if *null {
            continue;
        }
        if v.is_nan() {
            zone.has_nan = true;
            continue;
        }
        range = Some(match range {
            None => (*v, *v),
            Some((a, b)) => (a.min(*v), b.max(*v)),
        });
    }
    range.map(|(a, b)| (Bound::F64(a), Bound::F64(b)))
}

/// The shortest allowed bound that is not below `max`; None when there is none.
fn round_up(max: &[u8]) -> Option<Vec<u8>> {
    if max.len() <= ZoneMap::MAX_BYTES {
        return Some(max.to_vec());
    }
    let mut bytes = max[..ZoneMap::MAX_BYTES].to_vec();
    while let Some(last) = bytes.pop() {
        if last < u8::MAX {
            bytes.push(last + 1);
            return Some(bytes);
        }
    }
    None
}
