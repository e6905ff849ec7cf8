//! Deciding by zone maps whether a run can hold matching rows.

use std::cmp::Ordering;

use super::{exact_float, float_key, CompareOp, Constant, Filter, Set};
use crate::zone::{Bound, ZoneMap};

impl Filter {
    /// False when no row of the run can match. `zone` gives what is known of a column's values in the
    /// run; None means nothing is.
    pub fn may_match(&self, zone: &dyn Fn(usize) -> Option<ZoneMap>) -> bool {
        match self {
            Filter::True => true,
            Filter::And(parts) => parts.iter().all(|p| p.may_match(zone)),
            Filter::Or(parts) => parts.iter().any(|p| p.may_match(zone)),
            Filter::Compare { column, op, value } => {
                zone(*column).is_none_or(|z| compare_may_match(&z, *op, value))
            }
            Filter::In { column, values } => {
                zone(*column).is_none_or(|z| any_may_match(&z, values))
            }
            Filter::NotIn { column, values } => {
                zone(*column).is_none_or(|z| none_may_match(&z, values))
            }
            Filter::StartsWith { column, prefix, negated } => {
                zone(*column).is_none_or(|z| prefix_may_match(&z, prefix, *negated))
            }
            Filter::IsNull(column) => zone(*column).is_none_or(|z| z.nulls > 0),
            Filter::IsNotNull(column) => zone(*column).is_none_or(|z| z.nulls < z.rows),
        }
    }
}

/// Whether a value of the run can equal any of the constants.
fn any_may_match(zone: &ZoneMap, set: &Set) -> bool {
    let may = |value: &Constant| compare_may_match(zone, CompareOp::Eq, value);
    let all = &set.values;
    // Of sorted ones, those below the run's values are left out; the first of the rest is in the run if
    // any is. NaN is above them all and no bound; integers too large for a float are comparable with none.
    let is_float = |v: &Constant| matches!(v, Constant::F64(_));
    let float_bound =
        matches!((&zone.min, &zone.max), (Some(Bound::F64(_)), _) | (_, Some(Bound::F64(_))));
    let ordered = set.is_sorted && all.first().is_none_or(|v| is_float(v) == float_bound);
    if !ordered || zone.has_nan {
        return all.iter().any(may);
    }
    let above = |value: &Constant| {
        let least = zone.min.as_ref().and_then(|b| compare(b, value));
        least == Some(Ordering::Greater)
    };
    all.get(all.partition_point(above)).is_some_and(may)
}

/// Whether a value of the run can differ from all of the constants: not where all values equal one of them.
fn none_may_match(zone: &ZoneMap, set: &Set) -> bool {
    zone.nulls < zone.rows
        && set.values.iter().all(|value| compare_may_match(zone, CompareOp::Ne, value))
}

/// Whether a value of the run can begin with these bytes, or (negated) not.
fn prefix_may_match(zone: &ZoneMap, prefix: &[u8], negated: bool) -> bool {
    if zone.nulls >= zone.rows {
        return false;
    }
    let bytes = |bound: &Option<Bound>| match bound {
        Some(Bound::Bytes(bytes)) => Some(bytes.clone()),
        _ => None,
    };
    let (min, max) = (bytes(&zone.min), bytes(&zone.max));
    if negated {
        // What lies between the prefix and something that begins with it begins with it.
        return !(min.is_some_and(|min| min.as_slice() >= prefix)
            && max.is_some_and(|max| max.starts_with(prefix)));
    }
    min.is_none_or(|min| min.iter().take(prefix.len()).le(prefix))
        && max.is_none_or(|max| max.as_slice() >= prefix)
}

fn compare_may_match(zone: &ZoneMap, op: CompareOp, value: &Constant) -> bool {
    if zone.nulls >= zone.rows {
        return false;
    }
    let min = zone.min.as_ref().and_then(|b| compare(b, value));
    let mut max = zone.max.as_ref().and_then(|b| compare(b, value));
    if zone.has_nan {
        // The greatest value is NaN, however great the number below it.
        let Constant::F64(x) = value else { return true };
        max = Some(if x.is_nan() { Ordering::Equal } else { Ordering::Greater });
    }
    match op {
        CompareOp::Lt => min.is_none_or(|o| o == Ordering::Less),
        CompareOp::Le => min.is_none_or(|o| o != Ordering::Greater),
        CompareOp::Gt => max.is_none_or(|o| o == Ordering::Greater),
        CompareOp::Ge => max.is_none_or(|o| o != Ordering::Less),
        CompareOp::Eq => {
            min.is_none_or(|o| o != Ordering::Greater) && max.is_none_or(|o| o != Ordering::Less)
        }
        CompareOp::Ne => !(min == Some(Ordering::Equal) && max == Some(Ordering::Equal)),
    }
}

/// A bound against a constant; None when they are of different kinds.
fn compare(bound: &Bound, value: &Constant) -> Option<Ordering> {
    match (bound, value) {
        (Bound::I64(a), Constant::I64(b)) => Some(a.cmp(b)),
        (Bound::I64(a), Constant::I128(b)) => Some(i128::from(*a).cmp(b)),
        (Bound::I128(a), Constant::I64(b)) => Some(a.cmp(&i128::from(*b))),
        (Bound::I128(a), Constant::I128(b)) => Some(a.cmp(b)),
        (Bound::F64(a), Constant::F64(b)) => Some(float_key(*a).cmp(&float_key(*b))),
        (Bound::F64(a), Constant::I64(b)) => {
            exact_float(*b).map(|b| float_key(*a).cmp(&float_key(b)))
        }
        (Bound::Bytes(a), Constant::Bytes(b)) => Some(a.as_slice().cmp(b.as_slice())),
        _ => None,
    }
}
