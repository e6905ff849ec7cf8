//! The primitives that `pg_dump` writes headers and tables of contents with: signed integers, texts, offsets.
//!
//! The format is that of PostgreSQL's `pg_backup_archiver.c` (`WriteInt`, `WriteStr`, `WriteOffset`). An integer is a sign
//! byte and a magnitude, lowest byte first, as wide as the header says; a text is its length and its bytes, with
//! length -1 for none; an offset is a state byte and an unsigned integer.

use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::io::Read;

/// Bytes read from the file at a time.
const BUFFER: usize = 256 << 10;

/// Where an entry's data is, as the archive tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offset {
    /// The archive was written to a pipe: the data has to be searched for.
    Unknown,
    At(u64),
    NoData,
}

/// Reads primitives, counts and hashes the bytes, and never believes a length that the file has no room for.
pub(super) struct Wire<R> {
    inner: R,
    buffer: Vec<u8>,
    /// The part of `buffer` that is filled and not used yet.
    at: usize,
    filled: usize,
    /// Bytes of the file before `buffer`.
    before: u64,
    /// The file's size if it is known; no text is longer than what is left of it.
    limit: u64,
    ended: bool,
    hash: Sha256,
    pub int_size: usize,
    pub offset_size: usize,
}

/// The file ends too early; the caller knows what was being read and completes the error.
pub(super) fn cut_off() -> Error {
    Error::archive("unexpected end of file")
}

impl<R: Read> Wire<R> {
    /// Read from `inner`, which gives at most `limit` bytes.
    pub fn new(inner: R, limit: u64) -> Self {
        Wire {
            inner,
            buffer: vec![0; BUFFER],
            at: 0,
            filled: 0,
            before: 0,
            limit,
            ended: false,
            hash: Sha256::new(),
            int_size: 4,
            offset_size: 8,
        }
    }

    /// Bytes used so far.
    pub fn position(&self) -> u64 {
        self.before + self.at as u64
    }

    /// The file's size if it is known, else the largest number.
    pub fn size(&self) -> u64 {
        self.limit
    }

    /// Whether all of the file was used.
    pub fn at_end(&mut self) -> Result<bool> {
        if self.at < self.filled {
            return Ok(false);
        }
        match self.refill(1) {
            Ok(()) => Ok(false),
            Err(_) if self.ended => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// At most this many bytes are left.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.position())
    }

    /// SHA-256 of the bytes used so far.
    pub fn finish(mut self) -> [u8; 32] {
        self.hash.update(&self.buffer[..self.at]);
        self.hash.finalize().into()
    }

    /// The next `n` bytes, few enough for the buffer.
    fn bytes(&mut self, n: usize) -> Result<&[u8]> {
        if self.filled - self.at < n {
            self.refill(n)?;
        }
        let start = self.at;
        self.at += n;
        Ok(&self.buffer[start..self.at])
    }

    fn refill(&mut self, n: usize) -> Result<()> {
        self.hash.update(&self.buffer[..self.at]);
        self.before += self.at as u64;
        self.buffer.copy_within(self.at..self.filled, 0);
        self.filled -= self.at;
        self.at = 0;
        while self.filled < n {
            match self.inner.read(&mut self.buffer[self.filled..]) {
                Ok(0) => {
                    self.ended = true;
                    return Err(cut_off());
                }
                Ok(more) => self.filled += more,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(crate::error::of_io(e)),
            }
        }
        Ok(())
    }

    pub fn byte(&mut self) -> Result<u8> {
        Ok(self.bytes(1)?[0])
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    /// An integer; none is larger than what PostgreSQL's `int` holds.
    pub fn int(&mut self) -> Result<i32> {
        let size = self.int_size;
        decode_int(self.bytes(1 + size)?)
    }

    /// Append a text to `out`; nothing for none. Answers whether there was one.
    pub fn text(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let length = match self.int()? {
            -1 => return Ok(false),
            n => usize::try_from(n).map_err(|_| Error::archive(format!("invalid length {n}")))?,
        };
        if length as u64 > self.left() {
            return Err(cut_off());
        }
        let mut missing = length;
        while missing > 0 {
            let step = missing.min(BUFFER);
            out.extend_from_slice(self.bytes(step)?);
            missing -= step;
        }
        Ok(true)
    }

    pub fn offset(&mut self) -> Result<Offset> {
        let state = self.byte()?;
        let size = self.offset_size;
        let bytes = self.bytes(size)?;
        let mut value = 0u64;
        for (i, &b) in bytes.iter().enumerate() {
            match i {
                0..8 => value |= u64::from(b) << (8 * i),
                _ if b == 0 => {}
                _ => return Err(Error::archive("an offset is too large")),
            }
        }
        match state {
            1 => Ok(Offset::Unknown),
            2 => Ok(Offset::At(value)),
            3 => Ok(Offset::NoData),
            _ => Err(Error::archive(format!("invalid offset state {state}"))),
        }
    }
}

/// An integer from its sign byte and magnitude.
pub(super) fn decode_int(bytes: &[u8]) -> Result<i32> {
    let (sign, magnitude) = bytes.split_first().ok_or_else(cut_off)?;
    let mut value = 0i64;
    for (i, &b) in magnitude.iter().enumerate() {
        match i {
            0..4 => value |= i64::from(b) << (8 * i),
            _ if b == 0 => {}
            _ => return Err(Error::archive("an integer is too large")),
        }
    }
    if *sign != 0 {
        value = -value;
    }
    i32::try_from(value).map_err(|_| Error::archive(format!("an integer is too large: {value}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(bytes: &[u8]) -> Wire<&[u8]> {
        Wire::new(bytes, bytes.len() as u64)
    }

    #[test]
    fn integers() {
        for value in [0, 1, -1, 255, 256, -65536, i32::MAX, i32::MIN] {
            let mut bytes = vec![u8::from(value < 0)];
            bytes.extend_from_slice(&value.unsigned_abs().to_le_bytes());
            assert_eq!(wire(&bytes).int().unwrap(), value);
        }
        assert!(wire(&[0, 0, 0, 0, 0x80]).int().is_err());
        assert!(wire(&[0, 0, 0]).int().is_err());
        let mut wide = wire(&[0, 7, 0, 0, 0, 0, 0, 0, 0]);
        wide.int_size = 8;
        assert_eq!(wide.int().unwrap(), 7);
    }

    #[test]
    fn texts_are_no_longer_than_the_file() {
        let mut out = Vec::new();
        assert!(!wire(&[1, 1, 0, 0, 0]).text(&mut out).unwrap());
        assert!(wire(&[0, 2, 0, 0, 0, b'a', b'b']).text(&mut out).unwrap());
        assert_eq!(out, b"ab");
        assert!(wire(&[0, 3, 0, 0, 0, b'a', b'b']).text(&mut out).is_err());
        assert!(wire(&[0, 0xff, 0xff, 0xff, 0x7f, b'a']).text(&mut out).is_err());
        assert!(wire(&[1, 2, 0, 0, 0, b'a', b'b']).text(&mut out).is_err());
        assert!(out.capacity() < 100);
    }

    #[test]
    fn the_hash_covers_what_was_used() {
        let bytes: Vec<u8> = (0..3 * BUFFER).map(|i| (i % 251) as u8).collect();
        let mut wire = wire(&bytes);
        for _ in 0..300_000 {
            wire.array::<2>().unwrap();
        }
        assert_eq!(wire.position(), 600_000);
        assert_eq!(wire.finish()[..], Sha256::digest(&bytes[..600_000])[..]);
    }

    #[test]
    fn offsets() {
        let with = |state| {
            let mut bytes = vec![state];
            bytes.extend_from_slice(&77u64.to_le_bytes());
            wire(&bytes).offset()
        };
        assert_eq!(with(1).unwrap(), Offset::Unknown);
        assert_eq!(with(2).unwrap(), Offset::At(77));
        assert_eq!(with(3).unwrap(), Offset::NoData);
        assert!(with(4).is_err());
    }
}
