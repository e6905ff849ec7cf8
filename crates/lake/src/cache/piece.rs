//! One piece of an object as a file: its layout, its name, how it is read and written.
//!
//! ```text
//! offset  bytes  what
//!      0      8  "FIRNPIEC"
//!      8      4  version, 1
//!     12      4  crc32c of the 4,096 header bytes with this field zero
//!     16      8  length of the whole object
//!     24      8  number of the piece in the object
//!     32      4  length of the piece
//!     36      4  zero
//!     40     64  crc32c of each 64 KiB block of the piece (the last may be shorter)
//!    104      2  length of the store's id
//!    106      2  length of the key
//!    108      …  the store's id, the key; then zeros
//!   4096      …  the piece's bytes
//! ```
//! Integers are little-endian. A checksum per block lets a small read verify only what it reads.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Bytes of an object per piece; the last one is shorter.
pub(super) const PIECE: u64 = 1 << 20;
/// Bytes per checksum.
pub(super) const BLOCK: u64 = 64 << 10;
/// Bytes before the piece's own.
pub(super) const HEADER: u64 = 4096;
const BLOCKS: usize = (PIECE / BLOCK) as usize;
const MAGIC: &[u8; 8] = b"FIRNPIEC";
const VERSION: u32 = 1;
const NAMES_AT: usize = 108;

/// The object a piece belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object<'a> {
    pub store_id: &'a str,
    pub key: &'a str,
    pub length: u64,
    hash: u128,
}

impl<'a> Object<'a> {
    pub fn new(store_id: &'a str, key: &'a str, length: u64) -> Self {
        let mut hash = FNV_OFFSET;
        for part in [store_id.as_bytes(), key.as_bytes()] {
            hash = fnv(hash, &(part.len() as u64).to_le_bytes());
            hash = fnv(hash, part);
        }
        hash = fnv(hash, &length.to_le_bytes());
        Object { store_id, key, length, hash }
    }

    /// A number that stands for one piece. Two pieces may share one: whoever uses it compares identities as well.
    pub fn piece_hash(&self, number: u64) -> u128 {
        fnv(self.hash, &number.to_le_bytes())
    }

    /// Where a piece lies in the object.
    pub fn piece_range(&self, number: u64) -> Range<u64> {
        let start = number.saturating_mul(PIECE).min(self.length);
        start..start.saturating_add(PIECE).min(self.length)
    }

    /// Whether the names fit a header.
    pub fn fits(&self) -> bool {
        NAMES_AT + self.store_id.len() + self.key.len() <= HEADER as usize
    }
}

const FNV_OFFSET: u128 = 0x6c62272e07bb014262b821756295c58d;
const FNV_PRIME: u128 = 0x0000000001000000000000000000013B;

/// FNV-1a of 128 bits, <http://www.isthe.com/chongo/tech/comp/fnv/>: file names must mean the same in
/// every process and version, which the standard library's hashers do not promise.
fn fnv(mut hash: u128, bytes: &[u8]) -> u128 {
    for b in bytes {
        hash = (hash ^ u128::from(*b)).wrapping_mul(FNV_PRIME);
    }
    hash
}

/// Why a piece's file cannot serve a read.
#[derive(Debug)]
pub(super) enum Unusable {
    /// Its bytes are not what was written.
    Damaged,
    /// It holds another piece whose name is the same.
    Other,
    /// It could not be read.
    Io,
}

impl From<io::Error> for Unusable {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::UnexpectedEof => Unusable::Damaged,
            _ => Unusable::Io,
        }
    }
}

/// Reads `range` of a piece (relative to its start, from a block's start to a block's or the piece's end) into `out`,
/// which has that length, and verifies it.
pub(super) fn read(
    file: &File,
    object: &Object,
    number: u64,
    range: Range<u64>,
    out: &mut [u8],
) -> Result<(), Unusable> {
    let mut header = [0u8; HEADER as usize];
    file.read_exact_at(&mut header, 0)?;
    let checksums = check_header(&mut header, object, number)?;
    file.read_exact_at(out, HEADER + range.start)?;
    let first = (range.start / BLOCK) as usize;
    for (block, bytes) in out.chunks(BLOCK as usize).enumerate() {
        if checksums.get(first + block) != Some(&crc32c::crc32c(bytes)) {
            return Err(Unusable::Damaged);
        }
    }
    Ok(())
}

fn check_header(
    header: &mut [u8; HEADER as usize],
    object: &Object,
    number: u64,
) -> Result<[u32; BLOCKS], Unusable> {
    let crc = u32_at(header, 12);
    header[12..16].fill(0);
    if crc != Some(crc32c::crc32c(header)) || header.get(..8) != Some(MAGIC) {
        return Err(Unusable::Damaged);
    }
    let mut checksums = [0u32; BLOCKS];
    for (n, c) in checksums.iter_mut().enumerate() {
        *c = u32_at(header, 40 + 4 * n).ok_or(Unusable::Damaged)?;
    }
    // Beyond here the header is as some process wrote it: what differs is another piece.
    let expected = make_header(object, number, &checksums).ok_or(Unusable::Other)?;
    if expected.get(16..) != header.get(16..) || expected.get(..12) != header.get(..12) {
        return Err(Unusable::Other);
    }
    Ok(checksums)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(four.try_into().ok()?))
}

/// The header, checksum field zero; `None` if the names are too long for one.
fn make_header(object: &Object, number: u64, checksums: &[u32; BLOCKS]) -> Option<Vec<u8>> {
    if !object.fits() {
        return None;
    }
    let range = object.piece_range(number);
    let mut h = Vec::with_capacity(HEADER as usize);
    h.extend_from_slice(MAGIC);
    h.extend_from_slice(&VERSION.to_le_bytes());
    h.extend_from_slice(&[0; 4]);
    h.extend_from_slice(&object.length.to_le_bytes());
    h.extend_from_slice(&number.to_le_bytes());
    h.extend_from_slice(&((range.end - range.start) as u32).to_le_bytes());
    h.extend_from_slice(&[0; 4]);
    for c in checksums {
        h.extend_from_slice(&c.to_le_bytes());
    }
    h.extend_from_slice(&(object.store_id.len() as u16).to_le_bytes());
    h.extend_from_slice(&(object.key.len() as u16).to_le_bytes());
    h.extend_from_slice(object.store_id.as_bytes());
    h.extend_from_slice(object.key.as_bytes());
    h.resize(HEADER as usize, 0);
    Some(h)
}

/// Writes a piece's file. Not synced: what a crash of the machine leaves half-written fails its checksum.
pub(super) fn write(file: &mut File, object: &Object, number: u64, bytes: &[u8]) -> io::Result<()> {
    let mut checksums = [0u32; BLOCKS];
    for (c, block) in checksums.iter_mut().zip(bytes.chunks(BLOCK as usize)) {
        *c = crc32c::crc32c(block);
    }
    let mut header = make_header(object, number, &checksums)
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let crc = crc32c::crc32c(&header);
    if let Some(field) = header.get_mut(12..16) {
        field.copy_from_slice(&crc.to_le_bytes());
    }
    file.write_all(&header)?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scratch() -> File {
        static N: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = N.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("firn-piece-{}-{n}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let _ = std::fs::remove_file(&path);
        file.unwrap()
    }

    fn sample(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 31 % 253) as u8).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn any_damaged_byte_that_a_read_depends_on_is_noticed(
            length in 1usize..300_000, at in any::<prop::sample::Index>(), bit in 0u8..8,
            block in any::<prop::sample::Index>(),
        ) {
            let bytes = sample(length);
            let object = Object::new("store", "key", length as u64);
            let mut file = scratch();
            write(&mut file, &object, 0, &bytes).unwrap();

            let start = block.index(length.div_ceil(BLOCK as usize)) * BLOCK as usize;
            let end = (start + BLOCK as usize).min(length);
            let mut out = vec![0; end - start];
            read(&file, &object, 0, start as u64..end as u64, &mut out).unwrap();
            prop_assert_eq!(&out, &bytes[start..end]);

            let at = at.index(length + HEADER as usize);
            let mut byte = [0u8];
            file.read_exact_at(&mut byte, at as u64).unwrap();
            file.write_all_at(&[byte[0] ^ (1 << bit)], at as u64).unwrap();
            let result = read(&file, &object, 0, start as u64..end as u64, &mut out);
            let matters = at < HEADER as usize
                || (HEADER as usize + start..HEADER as usize + end).contains(&at);
            prop_assert_eq!(result.is_err(), matters, "{}", at);
        }
    }

    #[test]
    fn truncated_files_are_damaged_and_strangers_are_others() {
        let object = Object::new("store", "key", 100_000);
        let mut file = scratch();
        write(&mut file, &object, 0, &sample(100_000)).unwrap();
        let mut out = vec![0; 100_000];
        for stranger in [
            Object::new("store", "other", 100_000),
            Object::new("storek", "ey", 100_000),
            Object::new("store", "key", 100_001),
        ] {
            let result = read(&file, &stranger, 0, 0..100_000, &mut out);
            assert!(matches!(result, Err(Unusable::Other)), "{result:?}");
        }
        for length in [0, 100, 4096, 50_000, 104_095] {
            file.set_len(length).unwrap();
            let result = read(&file, &object, 0, 0..100_000, &mut out);
            assert!(matches!(result, Err(Unusable::Damaged)), "{length} {result:?}");
        }
    }

    #[test]
    fn names_that_are_too_long_do_not_fit() {
        let long = "x".repeat(4000);
        assert!(!Object::new(&long, "key", 1).fits());
        assert!(Object::new("store", &long[..3900], 1).fits());
    }
}
