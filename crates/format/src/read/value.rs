//! Single values out of a page without decoding the others.

use std::sync::Arc;

use super::bits::{self, Runs};
use super::meta::{PageRef, StripeMeta};
use super::page::{fitting, next_bytes, open, rle_body, Decoder, Encoding};
use crate::column::{Dictionary, Value};
use crate::error::{Error, Result};
use crate::packed::PackedColumn;
use crate::schema::{ColumnKind, Physical};

fn short() -> Error {
    Error::corrupt("a page ends before its values do")
}

impl Decoder {
    /// A page for whoever keeps it and asks for single values. Keys that are stored packed stay so. To pack what is not takes as long as to decode it: it pays for who
    /// comes to the page `again`, not for who goes from page to page.
    ///
    /// # Errors
    /// As of [`Decoder::decode`]; but a key is held against the dictionary when its value is asked for.
    pub fn pack(
        &mut self,
        page: &PageRef<'_>,
        bytes: &[u8],
        dict: Option<&Arc<Dictionary>>,
        again: bool,
    ) -> Result<PackedColumn> {
        self.verify(page, bytes)?;
        let parts = open(bytes, page.compression, false)?;
        let rows = page.location.rows as usize;
        // (Writers differ in what they store for no rows.)
        let is_plain = parts.values == rows && parts.nulls == 0 && rows > 0;
        if let (Encoding::Dictionary, Some(body), true) = (parts.encoding, parts.stored(), is_plain)
        {
            let dict = fitting(page.kind, dict)?;
            let (width, keys) = body.split_first().ok_or_else(short)?;
            let width = u32::from(*width);
            let runs = Runs::new(keys, width, rows)?;
            if let Some(packed) = PackedColumn::of_runs(rows, runs, width, dict)? {
                return Ok(packed);
            }
        }
        let column = self.decode_verified(page, bytes, dict)?;
        Ok(if again { PackedColumn::of(column) } else { PackedColumn::plain(column) })
    }

    /// The value of row `row`, counted in the page. `bytes` starts with the page's header. Bytes that
    /// the value refers to lie in the page, the dictionary, or `out`, which is overwritten.
    #[allow(clippy::too_many_arguments)]
    pub fn value_at<'a>(
        &mut self,
        meta: &StripeMeta,
        column: usize,
        page: usize,
        row: u32,
        bytes: &'a [u8],
        dict: Option<&'a Arc<Dictionary>>,
        out: &'a mut Vec<u8>,
    ) -> Result<Value<'a>> {
        self.value_in(&meta.page(column, page)?, row, bytes, dict, out)
    }

    /// As [`Decoder::value_at`] of a page that was found already.
    ///
    /// # Errors
    /// Of that.
    pub fn value_in<'a>(
        &mut self,
        page: &PageRef<'_>,
        row: u32,
        bytes: &'a [u8],
        dict: Option<&'a Arc<Dictionary>>,
        out: &'a mut Vec<u8>,
    ) -> Result<Value<'a>> {
        self.verify(page, bytes)?;
        let (kind, compression, location) = (page.kind, page.compression, page.location);
        let page = open(bytes, compression, false)?;
        if page.values != location.rows as usize || page.nulls > page.values {
            return Err(Error::corrupt("a page's row count is not the index's"));
        }
        if row >= location.rows {
            return Err(Error::corrupt("a page has no such row"));
        }
        let mut index = row as usize;
        if page.nulls > 0 {
            let (before, set) = bits::rank(page.levels, index)?;
            if !set {
                return Ok(Value::Null);
            }
            index = before;
        }
        if page.encoding == Encoding::Dictionary {
            let dict = fitting(kind, dict)?;
            let key = self.with_expanded(&page, compression, |body| {
                let (width, body) = body.split_first().ok_or_else(short)?;
                Ok(bits::hybrid_at(body, u32::from(*width), index)? as usize)
            })?;
            if key >= dict.len() {
                return Err(Error::corrupt("a key is beyond the dictionary"));
            }
            return Ok(dict.value(key));
        }
        if kind.physical() == Physical::Bytes {
            if page.encoding != Encoding::Plain {
                return Err(Error::unsupported(format!("{:?} pages of {kind:?}", page.encoding)));
            }
            // What lies in the page itself is lent; what is decompressed must be copied.
            return Ok(Value::Bytes(match page.stored() {
                Some(body) => bytes_at(kind, body, index)?,
                None => {
                    self.with_expanded(&page, compression, |body| {
                        out.clear();
                        out.extend_from_slice(bytes_at(kind, body, index)?);
                        Ok(())
                    })?;
                    out
                }
            }));
        }
        let encoding = page.encoding;
        self.with_expanded(&page, compression, |body| scalar_at(kind, encoding, body, index))
    }
}

fn bytes_at(kind: ColumnKind, body: &[u8], index: usize) -> Result<&[u8]> {
    if kind == ColumnKind::Uuid {
        let start = index.checked_mul(16).ok_or_else(short)?;
        return body.get(start..start + 16).ok_or_else(short);
    }
    let mut rest = body;
    for _ in 0..index {
        rest = next_bytes(rest)?.1;
    }
    Ok(next_bytes(rest)?.0)
}

fn fixed_at<const N: usize>(body: &[u8], index: usize) -> Result<[u8; N]> {
    let start = index.checked_mul(N).ok_or_else(short)?;
    let rest = body.get(start..).ok_or_else(short)?;
    rest.first_chunk::<N>().copied().ok_or_else(short)
}

fn scalar_at(
    kind: ColumnKind,
    encoding: Encoding,
    body: &[u8],
    index: usize,
) -> Result<Value<'static>> {
    Ok(match (encoding, kind.physical()) {
        (Encoding::Plain, Physical::Bool) => {
            let byte = body.get(index / 8).ok_or_else(short)?;
            Value::Bool(byte >> (index % 8) & 1 == 1)
        }
        (Encoding::Plain, Physical::I32) => Value::I32(i32::from_le_bytes(fixed_at(body, index)?)),
        (Encoding::Plain, Physical::I64) => Value::I64(i64::from_le_bytes(fixed_at(body, index)?)),
        (Encoding::Plain, Physical::I128) => {
            Value::I128(i128::from_be_bytes(fixed_at(body, index)?))
        }
        (Encoding::Plain, Physical::F32) => Value::F32(f32::from_le_bytes(fixed_at(body, index)?)),
        (Encoding::Plain, Physical::F64) => Value::F64(f64::from_le_bytes(fixed_at(body, index)?)),
        (Encoding::Rle, Physical::Bool) => {
            Value::Bool(bits::hybrid_at(rle_body(body)?, 1, index)? & 1 == 1)
        }
        (Encoding::Delta, Physical::I32) => Value::I32(bits::delta_at(body, index)? as i32),
        (Encoding::Delta, Physical::I64) => Value::I64(bits::delta_at(body, index)?),
        _ => return Err(Error::unsupported(format!("{encoding:?} pages of {kind:?}"))),
    })
}
