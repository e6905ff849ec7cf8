//! Makes the table of contents of a directory archive from that of a custom archive.
//!
//! In custom format `pg_dump` writes the table of contents before the data, in directory format after it. The two
//! differ in the format code, the compression, and in what ends each entry: an offset there, a file name here. All
//! else is passed on as it is, so that nothing `pg_dump` has to say is lost, whether we know it or not.
//!
//! Format: PostgreSQL's `pg_backup_archiver.c`, `pg_backup_custom.c` and `pg_backup_directory.c`.

use super::contents::usual_name;
use super::header::Compression;
use super::wire::{Offset, Wire};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::io::{Read, Write};

/// An entry that has data, and the file that the data belongs into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataEntry {
    pub dump_id: i32,
    /// The table's oid.
    pub oid: u32,
    pub namespace: Vec<u8>,
    /// The table's name.
    pub name: Vec<u8>,
    pub content: Content,
    /// Without what compression adds to a name.
    pub file: String,
}

/// What the data of an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A table, with its `COPY … FROM stdin` statement.
    Table { copy_stmt: Vec<u8> },
    /// All large objects (archives up to version 1.15), or those listed. The file is the list of them.
    LargeObjects { oids: Option<Vec<u32>> },
}

/// What the table of contents says about the data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// The archive's version, e.g. (1, 14).
    pub version: (u8, u8),
    /// Versions of the server and of `pg_dump` in their own words.
    pub server_version: String,
    pub dump_version: String,
    /// The encoding of all text in the archive, e.g. `UTF8`.
    pub encoding: String,
    /// Number of entries.
    pub entries: u32,
    /// Entries with data, in the archive's order.
    pub data: Vec<DataEntry>,
}

/// Reads a custom archive up to the end of its table of contents and writes the directory archive's to `out`.
///
/// `level` is the compression's level for archives up to version 1.14, which note it (-1: the default).
pub fn to_directory(
    input: impl Read,
    out: impl Write,
    compression: Compression,
    level: i32,
) -> Result<Rewritten> {
    let mut copy = Copy {
        wire: Wire::new(input, u64::MAX),
        out,
        unwritten: Vec::with_capacity(FLUSH * 2),
        int_size: 4,
    };
    let version = copy.header(compression, level)?;
    let mut done = Rewritten { version, ..Rewritten::default() };
    copy.text_through()?;
    done.server_version = copy.utf8_through()?;
    done.dump_version = copy.utf8_through()?;
    let count = copy.int_through()?;
    done.entries = u32::try_from(count)
        .map_err(|_| Error::archive(format!("invalid number of entries {count}")))?;
    let mut objects = HashMap::new();
    for _ in 0..done.entries {
        copy.entry(&mut done, &mut objects)?;
        if copy.unwritten.len() > FLUSH {
            copy.flush()?;
        }
    }
    copy.flush()?;
    // Only now all entries are known that others refer to.
    for entry in &mut done.data {
        if let Content::LargeObjects { oids } = &mut entry.content {
            *oids = objects.remove(&entry.dump_id).flatten();
        }
    }
    if done.encoding.is_empty() {
        return Err(Error::archive("the archive does not tell its encoding"));
    }
    Ok(done)
}

/// Bytes collected before they are written.
const FLUSH: usize = 64 << 10;
/// The code of the directory format. `pg_dump` itself writes that of tar archives (3), and so do we.
const FORMAT_CODE: u8 = 3;

struct Copy<R, W> {
    wire: Wire<R>,
    out: W,
    unwritten: Vec<u8>,
    int_size: usize,
}

/// Large objects by the dump id of the `BLOBS` entry with their data.
type Objects = HashMap<i32, Option<Vec<u32>>>;

impl<R: Read, W: Write> Copy<R, W> {
    fn flush(&mut self) -> Result<()> {
        self.out
            .write_all(&self.unwritten)
            .map_err(|e| Error::io("could not write the table of contents", &e))?;
        self.unwritten.clear();
        Ok(())
    }

    fn put_int(&mut self, value: i32) {
        self.unwritten.push(u8::from(value < 0));
        let magnitude = u64::from(value.unsigned_abs()).to_le_bytes();
        self.unwritten.extend_from_slice(&magnitude[..self.int_size]);
    }

    fn put_text(&mut self, text: Option<&[u8]>) -> Result<()> {
        let Some(text) = text else {
            self.put_int(-1);
            return Ok(());
        };
        let length = i32::try_from(text.len())
            .map_err(|_| Error::archive("a text in the archive is longer than 2 GiB"))?;
        self.put_int(length);
        self.unwritten.extend_from_slice(text);
        Ok(())
    }

    fn int_through(&mut self) -> Result<i32> {
        let value = self.wire.int()?;
        self.put_int(value);
        Ok(value)
    }

    fn text_through(&mut self) -> Result<Option<Vec<u8>>> {
        let mut text = Vec::new();
        let found = self.wire.text(&mut text)?.then_some(text);
        self.put_text(found.as_deref())?;
        Ok(found)
    }

    fn utf8_through(&mut self) -> Result<String> {
        let text = self.text_through()?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Copies the header up to the time.
    fn header(&mut self, compression: Compression, level: i32) -> Result<(u8, u8)> {
        let magic: [u8; 5] = self.wire.array()?;
        let [major, minor, revision, int_size, offset_size, format] = self.wire.array()?;
        if &magic != b"PGDMP" || format != 1 {
            return Err(Error::archive("pg_dump did not write an archive in custom format"));
        }
        if (major, minor) < (1, 14) || (major, minor) > (1, 16) {
            return Err(Error::archive(format!("unsupported archive version {major}.{minor}"))
                .hint("Backups are made with the pg_dump of PostgreSQL 12 to 18."));
        }
        if !(4..=8).contains(&int_size) || !(1..=8).contains(&offset_size) {
            return Err(Error::archive("the archive's header makes no sense"));
        }
        self.int_size = usize::from(int_size);
        self.wire.int_size = self.int_size;
        self.wire.offset_size = usize::from(offset_size);
        self.unwritten.extend_from_slice(&magic);
        self.unwritten.extend([major, minor, revision, int_size, offset_size, FORMAT_CODE]);
        if (major, minor) >= (1, 15) {
            self.wire.byte()?;
            self.unwritten.push(match compression {
                Compression::None => 0,
                Compression::Gzip => 1,
                Compression::Lz4 => 2,
                Compression::Zstd => 3,
            });
        } else {
            self.wire.int()?;
            let level = match compression {
                Compression::None => 0,
                Compression::Gzip => level,
                other => {
                    return Err(Error::usage(format!(
                        "pg_dump and pg_restore up to version 15 do not know compression {other}"
                    ))
                    .hint("Use --compress=gzip or --compress=none."))
                }
            };
            self.put_int(level);
        }
        for _ in 0..7 {
            self.int_through()?;
        }
        Ok((major, minor))
    }

    fn entry(&mut self, done: &mut Rewritten, objects: &mut Objects) -> Result<()> {
        let dump_id = self.int_through()?;
        self.int_through()?;
        self.text_through()?;
        let oid = self.text_through()?;
        let name = self.text_through()?.unwrap_or_default();
        let desc = self.text_through()?.unwrap_or_default();
        self.int_through()?;
        let defn = self.text_through()?.unwrap_or_default();
        self.text_through()?;
        let copy_stmt = self.text_through()?;
        let namespace = self.text_through()?.unwrap_or_default();
        self.text_through()?;
        self.text_through()?;
        if done.version >= (1, 16) {
            self.int_through()?;
        }
        self.text_through()?;
        self.text_through()?;
        let mut dependencies = Vec::new();
        while let Some(id) = self.text_through()? {
            dependencies.push(number(&id)?);
        }
        let has_data = self.wire.offset()? != Offset::NoData;
        match &desc[..] {
            b"ENCODING" => done.encoding = encoding(&defn)?,
            b"BLOB METADATA" => {
                objects.insert(dump_id, Some(oids(&defn)?));
            }
            _ => {}
        }
        if !has_data {
            return self.put_text(Some(b""));
        }
        let (content, file) = match (&desc[..], copy_stmt) {
            (b"TABLE DATA", Some(copy_stmt)) => (Content::Table { copy_stmt }, usual_name(dump_id)),
            (b"BLOBS", _) if done.version < (1, 16) => {
                (Content::LargeObjects { oids: None }, "blobs.toc".to_string())
            }
            (b"BLOBS", _) => {
                let listed = dependencies.iter().find_map(|id| objects.get(id).cloned().flatten());
                let listed = listed.ok_or_else(|| {
                    Error::archive(format!("entry {dump_id} does not tell its large objects"))
                })?;
                objects.insert(dump_id, Some(listed));
                (Content::LargeObjects { oids: None }, format!("blobs_{dump_id}.toc"))
            }
            _ => {
                return Err(Error::archive(format!(
                    "entry {dump_id} has data of an unknown kind: {}",
                    String::from_utf8_lossy(&desc)
                )))
            }
        };
        self.put_text(Some(file.as_bytes()))?;
        let oid = oid.map(|text| number(&text)).transpose()?.unwrap_or(0);
        done.data.push(DataEntry { dump_id, oid, namespace, name, content, file });
        Ok(())
    }
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Result<T> {
    std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()).ok_or_else(|| {
        Error::archive(format!("\"{}\" is not a number", String::from_utf8_lossy(text)))
    })
}

/// The oids in the text of a `BLOB METADATA` entry: one a line.
fn oids(defn: &[u8]) -> Result<Vec<u32>> {
    defn.split(|&c| c == b'\n').filter(|line| !line.is_empty()).map(number).collect()
}

/// The encoding's name in the text of an `ENCODING` entry: `SET client_encoding = 'UTF8';`.
fn encoding(defn: &[u8]) -> Result<String> {
    let text = String::from_utf8_lossy(defn);
    let name = text.split('\'').nth(1).filter(|name| {
        !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || b"_-".contains(&c))
    });
    name.map(str::to_string)
        .ok_or_else(|| Error::archive(format!("the archive's encoding is unknown: {text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Writer {
        bytes: Vec<u8>,
        minor: u8,
    }

    impl Writer {
        fn int(&mut self, value: i32) {
            self.bytes.push(u8::from(value < 0));
            self.bytes.extend(value.unsigned_abs().to_le_bytes());
        }

        fn text(&mut self, text: &str) {
            self.int(text.len() as i32);
            self.bytes.extend(text.as_bytes());
        }

        fn header(minor: u8, custom: bool, entries: i32) -> Writer {
            let mut w = Writer { bytes: b"PGDMP\x01".to_vec(), minor };
            w.bytes.extend([minor, 0, 4, 8, if custom { 1 } else { 3 }]);
            match (minor, custom) {
                (15.., true) => w.bytes.push(0),
                (15.., false) => w.bytes.push(1),
                (_, true) => w.int(0),
                (_, false) => w.int(-1),
            }
            (0..7).for_each(|n| w.int(n));
            for text in ["db", "16.1", "16.2"] {
                w.text(text);
            }
            w.int(entries);
            w
        }

        #[allow(clippy::too_many_arguments)]
        fn entry(&mut self, id: i32, desc: &str, tag: &str, defn: &str, deps: &[&str], file: &str) {
            self.int(id);
            self.int(i32::from(!file.is_empty()));
            self.text("1259");
            self.text("777");
            self.text(tag);
            self.text(desc);
            self.int(3);
            self.text(defn);
            self.int(-1);
            self.text(if desc == "TABLE DATA" { "COPY s.t (a) FROM stdin;\n" } else { "" });
            self.text("s");
            self.int(-1);
            self.int(-1);
            if self.minor >= 16 {
                self.int(114);
            }
            self.text("owner");
            self.text("false");
            deps.iter().for_each(|d| self.text(d));
            self.int(-1);
        }

        fn archive(minor: u8, custom: bool) -> Vec<u8> {
            let mut w = Writer::header(minor, custom, 4);
            let blobs = if minor >= 16 { "blobs_9.toc" } else { "blobs.toc" };
            for (id, desc, tag, defn, deps, file) in [
                (1, "ENCODING", "ENCODING", "SET client_encoding = 'LATIN1';\n", &[][..], ""),
                (7, "TABLE DATA", "t", "", &["1"][..], "7.dat"),
                (8, "BLOB METADATA", "5..6", "5\n6\n", &[][..], ""),
                (9, "BLOBS", "5..6", "", &["8", "1"][..], blobs),
            ] {
                w.entry(id, desc, tag, defn, deps, file);
                if custom {
                    w.bytes.push(if file.is_empty() { 3 } else { 1 });
                    w.bytes.extend([0; 8]);
                } else {
                    w.text(file);
                }
            }
            w.bytes
        }
    }

    #[test]
    fn becomes_what_pg_dump_would_have_written() {
        for minor in [14, 15, 16] {
            let mut custom = Writer::archive(minor, true);
            custom.extend(b"data that follows");
            let mut out = Vec::new();
            let done = to_directory(&custom[..], &mut out, Compression::Gzip, -1).unwrap();
            assert_eq!(out, Writer::archive(minor, false));
            assert_eq!(done.encoding, "LATIN1");
            assert_eq!(
                (done.entries, &done.server_version[..], &done.dump_version[..]),
                (4, "16.1", "16.2")
            );
            assert_eq!(done.data.len(), 2);
            assert_eq!((done.data[0].dump_id, done.data[0].oid), (7, 777));
            assert_eq!(done.data[0].namespace, b"s");
            let oids = if minor >= 16 { Some(vec![5, 6]) } else { None };
            assert_eq!(done.data[1].content, Content::LargeObjects { oids });
        }
    }

    #[test]
    fn every_cut_is_an_error() {
        for minor in [14, 16] {
            let custom = Writer::archive(minor, true);
            for end in 0..custom.len() {
                let mut out = Vec::new();
                assert!(to_directory(&custom[..end], &mut out, Compression::None, 0).is_err());
            }
        }
    }

    #[test]
    fn old_versions_know_gzip_only() {
        let custom = Writer::archive(14, true);
        let e = to_directory(&custom[..], Vec::new(), Compression::Zstd, 3).unwrap_err();
        assert!(e.to_string().contains("zstd"), "{e}");
    }
}
