//! Data in the directory format.
//!
//! Format: PostgreSQL's `pg_backup_directory.c`. `toc.dat` is the table of contents; each entry's data is a file of its own
//! whose name ends in what it is compressed with; `blobs.toc` (from PostgreSQL 17 on one `blobs_NNN.toc`
//! per entry) lists the large objects with their files.

use super::contents::usual_name;
use super::decompress;
use super::fault::{self, damaged, Explained, While};
use super::header::Compression;
use super::member::Member;
use super::{LargeObject, LargeObjects};
use crate::error::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The order in which `pg_restore` looks for a file.
const SUFFIXES: [Compression; 4] =
    [Compression::None, Compression::Gzip, Compression::Lz4, Compression::Zstd];

/// The longest line of a list of large objects: an oid and a file name.
const LONGEST_LINE: u64 = 10 + 1 + 255 + 1;

/// A folder of files.
pub(super) struct Directory {
    folder: Folder,
    /// File names by place, where they are not the usual ones.
    names: HashMap<u32, Box<[u8]>>,
}

/// Where the files are.
pub(super) enum Folder {
    /// A local folder; its path has no symbolic links.
    Local(PathBuf),
    /// Files that lie in memory.
    Memory(Files),
}

/// Files by name.
pub(super) type Files = BTreeMap<Vec<u8>, Arc<[u8]>>;

/// A name of a file right within the folder.
fn check_name(name: &[u8]) -> Result<&[u8]> {
    let plain = !name.is_empty()
        && name.len() <= 255
        && name != b"."
        && name != b".."
        && !name.iter().any(|&c| c == b'/' || c == b'\\' || c < b' ' || c == 0x7f);
    if plain {
        return Ok(name);
    }
    Err(Error::archive(format!(
        "\"{}\" is not the name of a file within the archive",
        String::from_utf8_lossy(name).escape_debug()
    )))
}

fn no_such_file(name: &str) -> Error {
    Error::archive(format!("file \"{name}\" does not exist"))
}

impl Folder {
    /// The file with a name as the archive's lists give it, or that name with a compression's suffix.
    pub fn open(&self, name: &[u8]) -> Result<(Member, Compression)> {
        let name = check_name(name)?;
        for compression in SUFFIXES {
            let mut full = name.to_vec();
            full.extend_from_slice(compression.suffix().as_bytes());
            if let Some(member) = self.open_exactly(&full)? {
                return Ok((member, by_suffix(&full)));
            }
        }
        Err(no_such_file(&String::from_utf8_lossy(name)))
    }

    fn open_exactly(&self, name: &[u8]) -> Result<Option<Member>> {
        match self {
            Folder::Local(folder) => open_local(folder, name),
            Folder::Memory(files) => Ok(files.get(name).map(|bytes| {
                Member::memory(String::from_utf8_lossy(name).into_owned(), bytes.clone())
            })),
        }
    }

    fn size(&self, name: &[u8]) -> Option<u64> {
        let name = check_name(name).ok()?;
        SUFFIXES.iter().find_map(|compression| {
            let mut full = name.to_vec();
            full.extend_from_slice(compression.suffix().as_bytes());
            match self {
                Folder::Local(folder) => {
                    fs::metadata(folder.join(OsStr::from_bytes(&full))).ok().map(|m| m.len())
                }
                Folder::Memory(files) => files.get(&full).map(|bytes| bytes.len() as u64),
            }
        })
    }
}

fn by_suffix(name: &[u8]) -> Compression {
    let with = |c: &Compression| *c != Compression::None && name.ends_with(c.suffix().as_bytes());
    SUFFIXES.into_iter().find(with).unwrap_or(Compression::None)
}

/// Opens a file within a folder. Links that lead out of it are refused: an archive from elsewhere must not make
/// us read what its maker could not.
fn open_local(folder: &Path, name: &[u8]) -> Result<Option<Member>> {
    let path = folder.join(OsStr::from_bytes(name));
    let shown = String::from_utf8_lossy(name).into_owned();
    let failed =
        |e: &io::Error| Error::io(format!("could not open file \"{}\"", path.display()), e);
    let real = match path.canonicalize() {
        Ok(real) => real,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            if path.is_symlink() {
                return Err(Error::archive(format!("\"{shown}\" is a symbolic link to nothing")));
            }
            return Ok(None);
        }
        Err(e) => return Err(failed(&e)),
    };
    if !real.starts_with(folder) {
        return Err(Error::archive(format!(
            "\"{shown}\" is a symbolic link that leaves the archive"
        ))
        .hint("Files of an archive must lie within its directory."));
    }
    // Opening something else than a file, a pipe for one, might wait for ever.
    if !fs::metadata(&real).map_err(|e| failed(&e))?.is_file() {
        return Err(Error::archive(format!("\"{shown}\" is not a regular file")));
    }
    Member::local(shown, File::open(&real).map_err(|e| failed(&e))?).map(Some)
}

impl Directory {
    pub fn new(folder: Folder, mut names: HashMap<u32, Box<[u8]>>) -> Directory {
        names.shrink_to_fit();
        Directory { folder, names }
    }

    /// The name of the file with an entry's data.
    pub fn name(&self, place: usize, dump_id: i32) -> Vec<u8> {
        match u32::try_from(place).ok().and_then(|place| self.names.get(&place)) {
            Some(name) => name.to_vec(),
            None => usual_name(dump_id).into_bytes(),
        }
    }

    /// Stored bytes of an entry's data.
    pub fn size(&self, place: usize, dump_id: i32) -> Option<u64> {
        self.folder.size(&self.name(place, dump_id))
    }

    pub fn data(&self, place: usize, dump_id: i32) -> Result<Box<dyn Read + Send>> {
        self.file(&self.name(place, dump_id))
    }

    fn file(&self, name: &[u8]) -> Result<Box<dyn Read + Send>> {
        let (member, compression) = self.folder.open(name)?;
        let stored = member.read(0..member.size);
        decompress::of_file(stored, compression).map_err(fault::of_io)
    }

    /// The large objects of an entry; `what` and `detail` are for errors.
    pub fn large_objects(
        &self,
        place: usize,
        dump_id: i32,
        what: String,
        detail: String,
    ) -> Result<LargeObjects<'_>> {
        let list = io::BufReader::new(self.file(&self.name(place, dump_id))?);
        Ok(Box::new(Objects { directory: self, list, what, detail, ended: false }))
    }
}

/// Goes through a list of large objects.
struct Objects<'a> {
    directory: &'a Directory,
    list: io::BufReader<Box<dyn Read + Send>>,
    what: String,
    detail: String,
    ended: bool,
}

impl Objects<'_> {
    fn step(&mut self) -> Result<Option<LargeObject>> {
        let mut line = Vec::new();
        self.list.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line).map_err(fault::of_io)?;
        if line.is_empty() {
            return Ok(None);
        }
        let (oid, name) = parse_line(&line).map_err(fault::of_io)?;
        let shown = String::from_utf8_lossy(name).into_owned();
        let what = format!("large object {oid} of {}", self.what);
        let detail = format!("File \"{shown}\" of the archive.");
        let data = self.directory.file(name).while_reading(&what, &detail)?;
        Ok(Some(LargeObject { oid, data: Box::new(Explained::new(data, what, detail)) }))
    }
}

/// The oid and the file name in a line of a list of large objects.
fn parse_line(line: &[u8]) -> io::Result<(u32, &[u8])> {
    let bad = || {
        let line = String::from_utf8_lossy(line);
        damaged(format!("invalid line in the list of large objects: \"{}\"", line.escape_debug()))
    };
    let Some(text) = line.strip_suffix(b"\n") else {
        return Err(match line.len() as u64 == LONGEST_LINE {
            true => bad(),
            false => io::ErrorKind::UnexpectedEof.into(),
        });
    };
    let space = text.iter().position(|&c| c == b' ').ok_or_else(bad)?;
    let digits = &text[..space];
    let oid = std::str::from_utf8(digits)
        .ok()
        .filter(|d| d.bytes().all(|c| c.is_ascii_digit()))
        .and_then(|d| d.parse::<u32>().ok())
        .filter(|&oid| oid != 0)
        .ok_or_else(bad)?;
    Ok((oid, &text[space + 1..]))
}

impl Iterator for Objects<'_> {
    type Item = Result<LargeObject>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let object = self.step().while_reading(&self.what, &self.detail);
        self.ended = !matches!(object, Ok(Some(_)));
        object.transpose()
    }
}

/// A local folder's real path.
pub(super) fn local(path: &Path) -> Result<Folder> {
    let real = path.canonicalize().map_err(|e| {
        let mut error = Error::io(format!("could not open directory \"{}\"", path.display()), &e);
        error.kind = ErrorKind::Storage;
        error
    })?;
    Ok(Folder::Local(real))
}
