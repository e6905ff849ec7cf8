//! Data in the directory format.
//!
//! Format: PostgreSQL's `pg_backup_directory.c`. `toc.dat` is the table of contents; each entry's data is a file of its own
//! whose name ends in what it is compressed with; `blobs.toc` (from PostgreSQL 17 on one `blobs_NNN.toc`
//! per entry) lists the large objects with their files.

use super::contents::usual_name;
use super::decompress;
use super::fault::{self, damaged, Explained, While};
use super::folder::{Folder, Stored};
use super::{LargeObject, LargeObjects};
use crate::error::Result;
use std::collections::HashMap;
use std::io::{self, BufRead, Read};

/// The longest line of a list of large objects: an oid and a file name.
const LONGEST_LINE: u64 = 10 + 1 + 255 + 1;

/// The data of a directory archive.
pub(super) struct Directory {
    folder: Folder,
    /// File names by place, where they are not the usual ones.
    names: HashMap<u32, Box<[u8]>>,
}

impl Directory {
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

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

    /// An entry's data, and the name of the file that it comes from.
    pub fn data(&self, place: usize, dump_id: i32) -> Result<(Box<dyn Read + Send>, String)> {
        self.file(&self.name(place, dump_id))
    }

    fn file(&self, name: &[u8]) -> Result<(Box<dyn Read + Send>, String)> {
        let Stored { bytes, compression, name } = self.folder.open(name)?;
        Ok((decompress::of_file(bytes, compression).map_err(crate::error::of_io)?, name))
    }

    /// The large objects of an entry; `archive` and `detail` are for errors.
    pub fn large_objects(
        &self,
        place: usize,
        dump_id: i32,
        archive: String,
        detail: String,
    ) -> Result<LargeObjects<'_>> {
        let list = io::BufReader::new(self.file(&self.name(place, dump_id))?.0);
        Ok(Box::new(Objects { directory: self, list, archive, detail, ended: false }))
    }
}

/// Goes through a list of large objects.
struct Objects<'a> {
    directory: &'a Directory,
    list: io::BufReader<Box<dyn Read + Send>>,
    archive: String,
    detail: String,
    ended: bool,
}

impl Objects<'_> {
    fn step(&mut self) -> Result<Option<LargeObject>> {
        let mut line = Vec::new();
        self.list
            .by_ref()
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line)
            .map_err(crate::error::of_io)?;
        if line.is_empty() {
            return Ok(None);
        }
        let (oid, name) = parse_line(&line).map_err(crate::error::of_io)?;
        let shown = String::from_utf8_lossy(name);
        let what = format!("large object {oid} of {}", self.archive);
        let detail = format!("File \"{shown}\" of the archive.");
        let (data, name) = self.directory.file(name).while_reading(&what, &detail)?;
        let detail = format!("File \"{name}\" of the archive.");
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
            false => fault::cut_off(),
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
        let what = format!("large objects of {}", self.archive);
        let object = self.step().while_reading(&what, &self.detail);
        self.ended = !matches!(object, Ok(Some(_)));
        object.transpose()
    }
}
