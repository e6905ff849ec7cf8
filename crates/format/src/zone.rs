//! Zone maps: what is known of a run of values without reading it.

/// A least or greatest value.
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    /// Booleans, integers, oids (as unsigned), dates, timestamps, times, decimals up to 18 digits.
    I64(i64),
    /// Decimals of more digits.
    I128(i128),
    /// Floats; never NaN.
    F64(f64),
    /// Text, JSON, bytes, uuid: at most [`ZoneMap::MAX_BYTES`] bytes, a maximum rounded up.
    Bytes(Vec<u8>),
}

/// Bounds and counts of a run of values of one column. An absent bound means "unknown", except that
/// a run of NULLs only (`nulls == rows`) has none.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct ZoneMap {
    pub min: Option<Bound>,
    pub max: Option<Bound>,
    pub nulls: u32,
    pub rows: u32,
    /// A NaN is among the values: in PostgreSQL's order it is above every number.
    pub has_nan: bool,
    /// The bounds occur among the values (they were not shortened).
    pub exact: bool,
    /// What kind of values this is about ([`ColumnKind::code`](crate::ColumnKind::code)), where that is noted:
    /// in directory entries, which are read without the stripe, but not in those of older versions.
    pub kind: Option<u8>,
}

impl ZoneMap {
    /// Longest bound kept of byte strings.
    pub const MAX_BYTES: usize = 32;
}
