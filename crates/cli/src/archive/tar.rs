//! The tar format: the files of a directory archive in one file, one after the other.
//!
//! Format: POSIX's ustar as PostgreSQL's `pg_backup_tar.c` writes it. Each file has a header of 512 bytes and is filled up
//! to a multiple of these; a block of zeros ends the archive. `toc.dat` comes first; files are found by name here, so
//! any order will do, also that of an archive that was unpacked and packed again.

use super::member::Member;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;

/// Bytes of a header, and of what files are filled up to.
const BLOCK: u64 = 512;

/// The files of an archive by name.
pub(super) struct Tar {
    member: Member,
    files: HashMap<Vec<u8>, Range<u64>>,
}

/// Whether a file begins as tar archives do.
pub(super) fn is_tar(start: &[u8]) -> bool {
    start.get(257..262) == Some(b"ustar")
}

impl Tar {
    /// Finds all files. Only the headers are read.
    pub fn open(member: Member) -> Result<Tar> {
        let mut files = HashMap::new();
        let mut at = 0;
        while let Some(header) = Header::read(&member, at)? {
            let start = at + BLOCK;
            let end = start.checked_add(header.size).filter(|end| *end <= member.size);
            let end = end.ok_or_else(|| Error::archive("unexpected end of file"))?;
            if header.plain && files.insert(header.name.clone(), start..end).is_some() {
                let name = String::from_utf8_lossy(&header.name).into_owned();
                return Err(Error::archive(format!("it has two files \"{name}\"")));
            }
            at = end.next_multiple_of(BLOCK);
        }
        Ok(Tar { member, files })
    }

    /// The file of a name.
    pub fn find(&self, name: &[u8]) -> Option<Member> {
        let range = self.files.get(name)?.clone();
        Some(self.member.part(String::from_utf8_lossy(name).into_owned(), range))
    }

    pub fn size(&self, name: &[u8]) -> Option<u64> {
        self.files.get(name).map(|range| range.end - range.start)
    }
}

/// What stands before a file.
struct Header {
    name: Vec<u8>,
    size: u64,
    /// It is a file, and no folder, link or note of the program that packed it.
    plain: bool,
}

impl Header {
    /// The header at a place; `None` at the archive's end.
    fn read(member: &Member, at: u64) -> Result<Option<Header>> {
        let wrong = |why: &str| {
            Error::archive(format!("{why} in the header at byte {at} of file \"{}\"", member.name))
        };
        let mut block = Vec::with_capacity(BLOCK as usize);
        let range = at..(at + BLOCK).min(member.size);
        member.read(range).take(BLOCK).read_to_end(&mut block).map_err(crate::error::of_io)?;
        if (block.len() as u64) < BLOCK {
            return Err(Error::archive("unexpected end of file"));
        }
        if block.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        let sum = number(&block[148..156]).ok_or_else(|| wrong("invalid checksum"))?;
        // The checksum's own place counts as blanks.
        let bytes = |range: Range<usize>| block[range].iter().map(|b| u64::from(*b)).sum::<u64>();
        if sum != bytes(0..148) + 8 * u64::from(b' ') + bytes(156..512) {
            return Err(wrong("wrong checksum"));
        }
        let size = number(&block[124..136]).ok_or_else(|| wrong("invalid size"))?;
        let text = |range: Range<usize>| {
            let field = &block[range];
            field.split(|b| *b == 0).next().unwrap_or_default().to_vec()
        };
        let name = text(0..100);
        let name = name.strip_prefix(b"./").map_or(name.clone(), <[u8]>::to_vec);
        Ok(Some(Header { name, size, plain: matches!(block[156], b'0' | 0) }))
    }
}

/// A number in octal digits, or, what no octal number begins with, in bytes.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] == 0x80 {
        let (zeros, value) = field[1..].split_at(field.len() - 9);
        return zeros
            .iter()
            .all(|b| *b == 0)
            .then(|| value.iter().fold(0, |n, b| n << 8 | u64::from(*b)));
    }
    let text = std::str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    match text.is_empty() {
        true => Some(0),
        false => u64::from_str_radix(text, 8).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with its header, filled up.
    fn file(name: &str, kind: u8, data: &[u8]) -> Vec<u8> {
        let mut out = vec![0; 512];
        out[..name.len()].copy_from_slice(name.as_bytes());
        out[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
        out[156] = kind;
        out[257..262].copy_from_slice(b"ustar");
        out[148..156].fill(b' ');
        let sum: u64 = out.iter().map(|b| u64::from(*b)).sum();
        out[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(512), 0);
        out
    }

    fn open(parts: &[Vec<u8>]) -> Result<Tar> {
        Tar::open(Member::memory("x.tar".into(), parts.concat().into()))
    }

    fn read(tar: &Tar, name: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        tar.find(name).unwrap().whole().read_to_end(&mut out).unwrap();
        out
    }

    #[test]
    fn files_by_name() {
        let end = vec![0; 1024];
        let long = vec![b'x'; 200_000];
        let tar = open(&[
            file("./", b'5', b""),
            file("toc.dat", b'0', b"abc"),
            file("./1.dat", 0, &long),
            end,
        ])
        .unwrap();
        assert_eq!(read(&tar, b"toc.dat"), b"abc");
        assert_eq!(read(&tar, b"1.dat"), long);
        assert_eq!(tar.size(b"1.dat"), Some(200_000));
        assert!(tar.find(b"2.dat").is_none());
    }

    #[test]
    fn what_is_damaged() {
        let whole = [file("toc.dat", b'0', b"abc"), vec![0; 1024]].concat();
        for length in [10, 512, 514, 1024, 1300] {
            assert!(open(&[whole[..length].to_vec()]).is_err(), "{length}");
        }
        for place in [0, 130, 150] {
            let mut bad = whole.clone();
            bad[place] ^= 1;
            assert!(open(&[bad]).is_err(), "{place}");
        }
        assert!(open(&[file("a", b'0', b""), file("a", b'0', b""), vec![0; 512]]).is_err());
    }

    #[test]
    fn large_sizes() {
        assert_eq!(number(b"00000000017\0"), Some(15));
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1]), Some((2 << 32) + 1));
        assert_eq!(number(&[0x80, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1]), None);
        assert_eq!(number(b"9"), None);
    }
}
