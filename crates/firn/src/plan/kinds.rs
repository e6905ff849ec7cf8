//! Columns whose type was changed without a rewrite of the table, as PostgreSQL does where the bytes of the
//! values stay (int4 to oid, varchar to text, timestamp to timestamptz under UTC). Stripes from before keep
//! the kind and the order that the values had then.

use firn_format::{Bound, ColumnKind, ZoneMap};

/// The kind in whose terms a condition on a column, of kind `now`, is put to values that are stored as
/// `stored`. Opaque, which has no terms, when their order or meaning is another one.
pub fn terms(now: ColumnKind, stored: ColumnKind) -> ColumnKind {
    use ColumnKind as K;
    match (now, stored) {
        (K::Timestamp | K::TimestampTz, K::Timestamp | K::TimestampTz) => now,
        (K::Decimal { scale: a, .. }, K::Decimal { scale: b, .. }) if a == b => stored,
        _ if now == stored => stored,
        _ => K::Opaque,
    }
}

/// What a stripe's zone map tells of a column that is of kind `now`: without bounds when they are another
/// kind's.
pub fn zone_of(zone: &ZoneMap, now: ColumnKind) -> ZoneMap {
    let unsure = |bound: &Option<Bound>, fits: fn(i64) -> bool| match bound {
        Some(Bound::I64(v)) => !fits(*v),
        _ => false,
    };
    let holds = match (zone.kind, now) {
        // Older entries do not say. Of the changes of type that PostgreSQL knows only those between signed and
        // unsigned integers change the order, and only where a bound lies outside of what both can hold.
        (None, ColumnKind::UInt32) => !unsure(&zone.min, |v| v >= 0),
        (None, ColumnKind::Int32) => !unsure(&zone.max, |v| v <= i64::from(i32::MAX)),
        (None, _) => true,
        (Some(code), now) => {
            let pair = [ColumnKind::Timestamp.code(), ColumnKind::TimestampTz.code()];
            code == now.code() || (pair.contains(&code) && pair.contains(&now.code()))
        }
    };
    if holds {
        return zone.clone();
    }
    ZoneMap { min: None, max: None, has_nan: false, exact: false, ..zone.clone() }
}
