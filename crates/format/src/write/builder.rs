//! One column's values while they are collected.

use crate::column::{ByteColumn, Value};
use crate::schema::{ColumnKind, Physical};

/// Values by row; a NULL's place holds a default.
pub(super) enum Data {
    Bool(Vec<bool>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    I128(Vec<i128>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bytes(ByteColumn),
}

/// Collects the values of one column.
pub struct ColumnBuilder {
    pub(super) data: Data,
    /// True = NULL.
    pub(super) nulls: Vec<bool>,
    pub(super) null_count: u32,
}

impl ColumnBuilder {
    pub fn new(kind: ColumnKind) -> ColumnBuilder {
        let data = match kind.physical() {
            Physical::Bool => Data::Bool(Vec::new()),
            Physical::I32 => Data::I32(Vec::new()),
            Physical::I64 => Data::I64(Vec::new()),
            Physical::I128 => Data::I128(Vec::new()),
            Physical::F32 => Data::F32(Vec::new()),
            Physical::F64 => Data::F64(Vec::new()),
            Physical::Bytes => Data::Bytes(ByteColumn::new()),
        };
        ColumnBuilder { data, nulls: Vec::new(), null_count: 0 }
    }
    /// Values pushed.
    pub fn len(&self) -> usize {
        self.nulls.len()
    }
    pub fn is_empty(&self) -> bool {
        self.nulls.is_empty()
    }
    /// Values are 128-bit integers.
    pub fn is_i128(&self) -> bool {
        matches!(self.data, Data::I128(_))
    }
    pub(super) fn bytes(&self) -> usize {
        let n = self.nulls.len();
        n + match &self.data {
            Data::Bool(_) => n,
            Data::I32(_) | Data::F32(_) => 4 * n,
            Data::I64(_) | Data::F64(_) => 8 * n,
            Data::I128(_) => 16 * n,
            Data::Bytes(b) => 4 * n + b.data.len(),
        }
    }
    pub fn push_null(&mut self) {
        match &mut self.data {
            Data::Bool(v) => v.push(false),
            Data::I32(v) => v.push(0),
            Data::I64(v) => v.push(0),
            Data::I128(v) => v.push(0),
            Data::F32(v) => v.push(0.0),
            Data::F64(v) => v.push(0.0),
            Data::Bytes(v) => v.push(&[]),
        }
        self.nulls.push(true);
        self.null_count += 1;
    }
    pub fn push_bool(&mut self, value: bool) {
        if let Data::Bool(v) = &mut self.data {
            v.push(value);
            self.nulls.push(false);
        }
    }
    pub fn push_i32(&mut self, value: i32) {
        if let Data::I32(v) = &mut self.data {
            v.push(value);
            self.nulls.push(false);
        }
    }
    pub fn push_i64(&mut self, value: i64) {
        if let Data::I64(v) = &mut self.data {
            v.push(value);
            self.nulls.push(false);
        }
    }
    pub fn push_i128(&mut self, value: i128) {
        if let Data::I128(v) = &mut self.data {
            v.push(value);
            self.nulls.push(false);
        }
    }
    pub fn push_f32(&mut self, value: f32) {
        if let Data::F32(v) = &mut self.data {
            v.push(value);
            self.nulls.push(false);
        }
    }
    pub fn push_f64(&mut self, value: f64) {
        if let Data::F64(v) = &mut self.data {
            v.push(value);
            self.nulls.push(false);
        }
    }
    pub fn push_bytes(&mut self, value: &[u8]) {
        if let Data::Bytes(v) = &mut self.data {
            v.push(value);
            self.nulls.push(false);
        }
    }
    pub(super) fn value(&self, row: usize) -> Value<'_> {
        if self.nulls.get(row).copied().unwrap_or(true) {
            return Value::Null;
        }
        match &self.data {
            Data::Bool(v) => v.get(row).map_or(Value::Null, |x| Value::Bool(*x)),
            Data::I32(v) => v.get(row).map_or(Value::Null, |x| Value::I32(*x)),
            Data::I64(v) => v.get(row).map_or(Value::Null, |x| Value::I64(*x)),
            Data::I128(v) => v.get(row).map_or(Value::Null, |x| Value::I128(*x)),
            Data::F32(v) => v.get(row).map_or(Value::Null, |x| Value::F32(*x)),
            Data::F64(v) => v.get(row).map_or(Value::Null, |x| Value::F64(*x)),
            Data::Bytes(v) => Value::Bytes(v.get(row)),
        }
    }
}
