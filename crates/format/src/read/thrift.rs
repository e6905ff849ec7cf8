//! A bounds-checked reader of Thrift's compact protocol, the encoding of Parquet's metadata
//! (<https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md>).

use crate::error::{Error, Result};

/// Deepest nesting that is skipped; Parquet's own structures nest to about ten.
const MAX_DEPTH: u32 = 32;

pub const TRUE: u8 = 1;
pub const FALSE: u8 = 2;
pub const BINARY: u8 = 8;
pub const LIST: u8 = 9;
pub const STRUCT: u8 = 12;

/// A position in bytes that hold compact-protocol values.
#[derive(Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    pos: usize,
}

fn short() -> Error {
    Error::corrupt("metadata ends early")
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, pos: 0 }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.pos
    }

    fn byte(&mut self) -> Result<u8> {
        let b = *self.bytes.get(self.pos).ok_or_else(short)?;
        self.pos += 1;
        Ok(b)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.pos.checked_add(len).ok_or_else(short)?;
        let part = self.bytes.get(self.pos..end).ok_or_else(short)?;
        self.pos = end;
        Ok(part)
    }

    /// An unsigned variable-length integer.
    pub fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let b = self.byte()?;
            if shift < 64 {
                value |= u64::from(b & 0x7f) << shift;
            }
            if b < 0x80 {
                return Ok(value);
            }
        }
        Err(Error::corrupt("a metadata integer is too long"))
    }

    /// A signed integer of any width.
    pub fn int(&mut self) -> Result<i64> {
        let u = self.varint()?;
        Ok((u >> 1) as i64 ^ -((u & 1) as i64))
    }

    /// A signed integer that must fit 32 bits.
    pub fn int32(&mut self) -> Result<i32> {
        i32::try_from(self.int()?).map_err(|_| Error::corrupt("a metadata integer is out of range"))
    }

    /// A byte string or text.
    pub fn binary(&mut self) -> Result<&'a [u8]> {
        let len = usize::try_from(self.varint()?).map_err(|_| short())?;
        self.take(len)
    }

    pub fn text(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.binary()?)
            .map_err(|_| Error::corrupt("metadata text is not UTF-8"))
    }

    /// The next field's identifier and type; None at the end of the struct. `last` is the previous
    /// field's identifier (0 before the first) and is advanced.
    #[inline]
    pub fn field(&mut self, last: &mut i64) -> Result<Option<(i64, u8)>> {
        let head = self.byte()?;
        if head == 0 {
            return Ok(None);
        }
        *last = match head >> 4 {
            0 => self.int()?,
            delta => last.wrapping_add(i64::from(delta)),
        };
        Ok(Some((*last, head & 15)))
    }

    /// A list's length and element type. Each element takes at least one byte, so the length is
    /// bounded by what follows.
    pub fn list(&mut self) -> Result<(usize, u8)> {
        let head = self.byte()?;
        let len = match head >> 4 {
            15 => usize::try_from(self.varint()?).map_err(|_| short())?,
            n => usize::from(n),
        };
        if len > self.bytes.len() - self.pos {
            return Err(short());
        }
        Ok((len, head & 15))
    }

    /// Every element of a list of structs or scalars.
    pub fn each(&mut self, mut f: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        let (len, _) = self.list()?;
        for _ in 0..len {
            f(self)?;
        }
        Ok(())
    }

    /// A list of booleans, one byte each.
    pub fn bools(&mut self) -> Result<Vec<bool>> {
        let (len, _) = self.list()?;
        Ok(self.take(len)?.iter().map(|b| *b == TRUE).collect())
    }

    /// Every field of a struct; `f` must read or skip the value.
    pub fn fields(&mut self, mut f: impl FnMut(&mut Self, i64, u8) -> Result<()>) -> Result<()> {
        let mut last = 0;
        while let Some((id, kind)) = self.field(&mut last)? {
            f(self, id, kind)?;
        }
        Ok(())
    }

    /// Pass over a value of type `kind`.
    pub fn skip(&mut self, kind: u8) -> Result<()> {
        self.skip_nested(kind, 0)
    }

    fn skip_nested(&mut self, kind: u8, depth: u32) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::corrupt("metadata nests too deeply"));
        }
        match kind {
            TRUE | FALSE => (),
            3 => drop(self.byte()?),
            4..=6 => drop(self.varint()?),
            7 => drop(self.take(8)?),
            BINARY => drop(self.binary()?),
            LIST | 10 => {
                let (len, element) = self.list()?;
                if element == TRUE || element == FALSE {
                    self.take(len)?;
                } else {
                    for _ in 0..len {
                        self.skip_nested(element, depth + 1)?;
                    }
                }
            }
            11 => {
                let len = self.varint()?;
                if len > 0 {
                    let kinds = self.byte()?;
                    for _ in 0..len {
                        // Elements of unknown type fail; booleans take a byte inside containers.
                        for k in [kinds >> 4, kinds & 15] {
                            self.skip_nested(if k <= FALSE { 3 } else { k }, depth + 1)?;
                        }
                    }
                }
            }
            STRUCT => {
                let mut last = 0;
                while let Some((_, k)) = self.field(&mut last)? {
                    self.skip_nested(k, depth + 1)?;
                }
            }
            other => return Err(Error::corrupt(format!("unknown metadata type {other}"))),
        }
        Ok(())
    }
}
