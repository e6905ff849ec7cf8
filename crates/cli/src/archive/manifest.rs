//! The manifest: what a backup consists of. It is written last, so a backup without one is none.
//!
//! A JSON object, one file a line. Its last member is the SHA-256 of all text before that line, by which a damaged
//! or shortened manifest is recognised.

use crate::crypt;
use crate::error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// The manifest's name.
pub const FILE: &str = "manifest.json";
/// A file that is there from the beginning until the manifest is, or longer where nothing may be removed. Without
/// a manifest it tells the rest of an unfinished backup from an archive that `pg_dump` made.
pub const MARKER: &str = "unfinished.json";
/// A file that is there while `firn backup expire`, which alone writes it, removes a backup: what is left of it belongs to nobody. What
/// stands in it, mostly nothing, says nothing.
pub const DOOMED: &str = "expired.json";
/// The name, for an instant, of a file that is needed only during the run.
pub const SCRATCH: &str = "scratch.tmp";
/// The version of the manifest's format.
pub const VERSION: u32 = 1;
/// The same of an encrypted backup, which older programs cannot read.
pub const ENCRYPTED_VERSION: u32 = 2;

/// Whether a backup may have written a file of this name.
pub fn is_backup_file(name: &str) -> bool {
    // Of an encrypted one: all files but the manifest that anybody may read, and the marker.
    if let Some(inner) = name.strip_suffix(crypt::SUFFIX) {
        let own = [FILE, "toc.dat"].contains(&inner);
        return name == crypt::KEY_FILE || own || is_data_file(inner);
    }
    let own = ["toc.dat", FILE, SCRATCH, MARKER, DOOMED];
    is_data_file(name) || own.contains(&name) || is_temporary(name)
}

/// A name for a file while it is written, that no other has: it is to be there whole, or not at all.
pub fn temporary(name: &str) -> String {
    format!("{name}.{:016x}.tmp", firn_lake::random_nonce())
}

/// Whether [`temporary`] may have given the name. Nobody needs such a file when a crash has left it.
pub fn is_temporary(name: &str) -> bool {
    let Some(name) = name.strip_suffix(".tmp") else { return false };
    // The manifest's in builds before it had a number.
    if name == FILE {
        return true;
    }
    [FILE, MARKER]
        .iter()
        .filter_map(|own| name.strip_prefix(own)?.strip_prefix('.'))
        .any(|number| number.len() == 16 && number.bytes().all(|c| c.is_ascii_hexdigit()))
}

/// Whether a file of this name has rows or large objects, or lists these.
fn is_data_file(name: &str) -> bool {
    let plain = ["", ".gz", ".lz4", ".zst"]
        .iter()
        .filter_map(|suffix| name.strip_suffix(suffix))
        .any(|name| {
            let number = name.strip_suffix(".dat").map(|n| n.strip_prefix("blob_").unwrap_or(n));
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|c| c.is_ascii_digit()))
        });
    let list = name.strip_prefix("blobs").and_then(|n| n.strip_suffix(".toc"));
    let list = list.is_some_and(|n| {
        n.is_empty() || n.strip_prefix('_').is_some_and(|n| n.bytes().all(|c| c.is_ascii_digit()))
    });
    plain || list
}

/// By what a later backup may prove that a table has not changed: see [`super::basis`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableBasis {
    pub oid: u32,
    /// What was written to the table before this place in WAL was committed or undone when the rows were copied.
    pub lsn: String,
    /// The file and its pages; of the TOAST relation, too, if there is one.
    pub file: String,
    pub pages: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub toast_file: Option<String>,
    #[serde(skip_serializing_if = "is_zero", default)]
    pub toast_pages: u64,
    /// SHA-256 of what the text of rows depends on besides.
    pub definition: String,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// What all tables' [`TableBasis`] have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Basis {
    /// Of the meaning of all this.
    pub version: u32,
    /// When the server was started, by its clock.
    pub server_started: String,
    pub timeline: String,
    pub settings: String,
}

/// The table whose data a file holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableData {
    /// Names in UTF-8; of names that are not, the bytes that do not fit as `\xNN`.
    pub schema: String,
    pub name: String,
    /// The entry of the archive's table of contents.
    pub dump_id: i32,
    pub rows: u64,
    /// Bytes before compression, with the end mark of 5 bytes.
    pub bytes: u64,
    /// Sum of the rows' checksums; see [`crate::row_sum::RowSum`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub checksum: Option<String>,
    /// If the file is an earlier backup's: when the snapshot was taken that the rows were copied by.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub unchanged_since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub basis: Option<TableBasis>,
}

/// A file of the backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    pub name: String,
    /// Bytes as stored.
    pub size: u64,
    /// In hexadecimal.
    pub sha256: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub table: Option<TableData>,
}

/// Whole objects beside tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LargeObjects {
    pub count: u64,
    /// Bytes before compression.
    pub bytes: u64,
    pub stored: u64,
}

/// Whether the manifest in the clear of an encrypted backup has this flag for `pg_dump`: not if it may name a table or a role.
fn is_told(flag: &str) -> bool {
    const NAMELESS: [&str; 3] = ["--encoding", "--section", "--lock-wait-timeout"];
    flag.split_once('=').is_none_or(|(name, _)| NAMELESS.contains(&name))
}

/// Whether flags that are not told choose what is in a backup, or whose rows these are.
pub fn has_secret_choice(options: &[String]) -> bool {
    options.iter().any(|flag| {
        let superuser = flag.starts_with("--superuser=");
        !superuser && !is_told(flag) || flag == "--enable-row-security"
    })
}

/// How a backup is encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encryption {
    /// The format of the files.
    pub format: String,
    /// For how many recipients. For whom is not told: who may only write to where the backup lies need not know.
    pub recipients: usize,
    /// With a passphrase, which protects the key in the file [`crypt::KEY_FILE`].
    pub passphrase: bool,
    /// Flags chose what is in it that are not told: see [`is_told`].
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub selected: bool,
}

/// What a manifest tells of the backup as a whole. Times are UTC in ISO 8601.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Version of this format.
    pub firn_backup: u32,
    pub database: String,
    /// Tells one cluster, with its standbys and clones, from others.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub system_identifier: Option<String>,
    /// The encoding of the archive's text.
    pub encoding: String,
    pub server_version: String,
    pub pg_dump_version: String,
    pub firn_version: String,
    pub started: String,
    /// When the snapshot was taken, by the server's clock, and its place in WAL.
    pub snapshot_time: String,
    pub snapshot_lsn: String,
    pub standby: bool,
    pub finished: String,
    pub compression: String,
    pub jobs: usize,
    /// Flags that were passed on to `pg_dump`.
    pub options: Vec<String>,
    /// SHA-256 of what stood in the files of `--filter`: their names tell nothing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub filter_sha256: Option<String>,
    /// Entries of the table of contents.
    pub entries: u32,
    #[serde(default)]
    pub large_objects: LargeObjects,
    /// The name of the earlier backup that files of unchanged tables were taken from.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub base: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub basis: Option<Basis>,
    /// Of an encrypted backup, in the manifest that anybody may read.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub encryption: Option<Encryption>,
}

impl Head {
    /// What of it anybody may read, of an encrypted backup.
    pub fn public(&self, encryption: &Encryption) -> Head {
        // Each by its name: what is new is secret until somebody decides otherwise.
        let Head {
            firn_backup: _,
            database,
            system_identifier,
            encoding,
            server_version,
            pg_dump_version,
            firn_version,
            started,
            snapshot_time,
            snapshot_lsn,
            standby,
            finished,
            compression,
            jobs,
            // Some may name tables.
            options,
            filter_sha256: _,
            entries: _,
            large_objects: _,
            base: _,
            basis: _,
            encryption: _,
        } = self.clone();
        Head {
            firn_backup: ENCRYPTED_VERSION,
            database,
            system_identifier,
            encoding,
            server_version,
            pg_dump_version,
            firn_version,
            started,
            snapshot_time,
            snapshot_lsn,
            standby,
            finished,
            compression,
            jobs,
            options: options.into_iter().filter(|flag| is_told(flag)).collect(),
            filter_sha256: None,
            entries: 0,
            large_objects: LargeObjects::default(),
            base: None,
            basis: None,
            encryption: Some(encryption.clone()),
        }
    }
}

/// What the marker of an unfinished backup tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Marker {
    pub database: String,
    pub started: String,
    pub firn_version: String,
    /// Tells this run from all others.
    #[serde(default)]
    pub run: String,
    /// It is encrypted with a passphrase, and so a file [`crypt::KEY_FILE`] is its own.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub passphrase: bool,
}

impl Marker {
    /// What a marker's text tells, if it is one.
    pub fn from_text(text: &[u8]) -> Option<Marker> {
        serde_json::from_slice(text).ok()
    }

    pub fn to_text(&self) -> Result<Vec<u8>> {
        let mut text = serde_json::to_vec(self).map_err(|e| {
            Error::new(ErrorKind::Internal, format!("could not write a marker: {e}"))
        })?;
        text.push(b'\n');
        Ok(text)
    }
}

/// A backup's manifest.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Manifest {
    #[serde(flatten)]
    pub head: Head,
    pub files: Vec<FileRecord>,
}

/// What the last member's line begins with.
const SUM: &str = "\"sha256\": \"";

impl Manifest {
    /// The manifest's text.
    pub fn to_text(&self) -> Result<Vec<u8>> {
        let failed = |e: serde_json::Error| {
            Error::new(ErrorKind::Internal, format!("could not write a manifest: {e}"))
        };
        let mut text = serde_json::to_string_pretty(&self.head).map_err(failed)?;
        let members = text.strip_suffix("\n}").map_or(text.len(), str::len);
        text.truncate(members);
        text.push_str(",\n  \"files\": [\n");
        for (n, file) in self.files.iter().enumerate() {
            text.push_str(&serde_json::to_string(file).map_err(failed)?);
            text.push_str(if n + 1 < self.files.len() { ",\n" } else { "\n" });
        }
        text.push_str("],\n");
        let sum = hex(&Sha256::digest(text.as_bytes()));
        let _ = writeln!(text, "{SUM}{sum}\"\n}}");
        Ok(text.into_bytes())
    }

    /// Reads a manifest's text and checks its own checksum.
    pub fn from_text(text: &[u8]) -> Result<Manifest> {
        let damaged = |detail: &str| {
            Error::archive("the backup's manifest is damaged").detail(detail.to_string())
        };
        let line = text
            .windows(SUM.len() + 1)
            .rposition(|w| w[0] == b'\n' && &w[1..] == SUM.as_bytes())
            .ok_or_else(|| damaged("It does not end with its checksum."))?;
        let (covered, rest) = text.split_at(line + 1);
        let expected = format!("{SUM}{}\"\n}}\n", hex(&Sha256::digest(covered)));
        if rest != expected.as_bytes() {
            return Err(damaged("Its text does not have the checksum that it ends with."));
        }
        let manifest: Manifest = serde_json::from_slice(text)
            .map_err(|e| damaged(&format!("It cannot be understood: {e}.")))?;
        if manifest.head.firn_backup > ENCRYPTED_VERSION {
            return Err(Error::archive(format!(
                "the backup has format version {}, this program knows up to {ENCRYPTED_VERSION}",
                manifest.head.firn_backup
            )));
        }
        Ok(manifest)
    }

    /// All bytes stored in files.
    pub fn stored(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// The files that are not among these, by name and size.
    pub fn lacking(&self, found: &HashMap<&str, u64>) -> Vec<&FileRecord> {
        let lacks = |file: &&FileRecord| found.get(&file.name[..]) != Some(&file.size);
        self.files.iter().filter(lacks).collect()
    }

    /// The files with tables' data.
    pub fn tables(&self) -> impl Iterator<Item = (&FileRecord, &TableData)> {
        self.files.iter().filter_map(|file| file.table.as_ref().map(|table| (file, table)))
    }
}

/// Bytes in lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A name for a manifest: what is no UTF-8 as `\xNN`.
pub fn name(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// A time in UTC as ISO 8601 has it, to the second.
pub fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years from 1 March of a year 0, in cycles of 400 years.
    let days = days + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = cycle * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Flags for `pg_dump` that change nothing of what a backup holds.
const EMPTY: [&str; 2] = ["--lock-wait-timeout=", "--strict-names"];

/// The flags by which a backup's contents were chosen, in one order.
pub fn selection(options: &[String]) -> Vec<String> {
    let empty = |flag: &&String| !EMPTY.iter().any(|empty| flag.starts_with(empty));
    let mut flags: Vec<String> = options.iter().filter(empty).cloned().collect();
    flags.sort();
    flags.dedup();
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn example() -> Manifest {
        let table = TableData {
            schema: "odd \"schema".into(),
            name: name(b"t\xff\xc3\xa4"),
            dump_id: 7,
            rows: 3,
            bytes: 20,
            checksum: Some("ab".into()),
            unchanged_since: Some("1".into()),
            basis: Some(TableBasis {
                oid: 16400,
                lsn: "0/1".into(),
                file: "base/5/16400".into(),
                pages: 3,
                toast_file: None,
                toast_pages: 0,
                definition: "ff".into(),
            }),
        };
        let file = |name: &str, table| FileRecord {
            name: name.into(),
            size: 10,
            sha256: hex(&[1, 0xab]),
            table,
        };
        Manifest {
            head: Head {
                firn_backup: VERSION,
                database: "db".into(),
                system_identifier: None,
                encoding: "UTF8".into(),
                server_version: "15".into(),
                pg_dump_version: "15".into(),
                firn_version: "0".into(),
                started: "1".into(),
                snapshot_time: "2".into(),
                snapshot_lsn: "0/0".into(),
                standby: false,
                finished: "3".into(),
                compression: "gzip".into(),
                jobs: 2,
                options: vec!["-t".into(), "x}".into()],
                filter_sha256: None,
                entries: 4,
                large_objects: LargeObjects::default(),
                base: Some("a".into()),
                basis: Some(Basis {
                    version: 1,
                    server_started: "0".into(),
                    timeline: "00000001".into(),
                    settings: "x".into(),
                }),
                encryption: None,
            },
            files: vec![file("7.dat.gz", Some(table)), file("toc.dat", None)],
        }
    }

    #[test]
    fn round_trip() {
        let manifest = example();
        let text = manifest.to_text().unwrap();
        assert_eq!(Manifest::from_text(&text).unwrap(), manifest);
        assert_eq!(manifest.files[0].table.as_ref().unwrap().name, "t\\xffä");
        assert_eq!(manifest.stored(), 20);
        let empty = Manifest { files: vec![], ..manifest };
        assert_eq!(Manifest::from_text(&empty.to_text().unwrap()).unwrap(), empty);
    }

    #[test]
    fn every_damage_is_noticed() {
        let text = example().to_text().unwrap();
        for at in 0..text.len() {
            let mut damaged = text.clone();
            damaged[at] ^= 1;
            assert!(Manifest::from_text(&damaged).is_err(), "byte {at}");
            assert!(Manifest::from_text(&text[..at]).is_err(), "cut at {at}");
        }
        assert!(Manifest::from_text(&[&text[..], b" "].concat()).is_err());
    }

    #[test]
    fn newer_formats_are_refused() {
        let mut manifest = example();
        manifest.head.firn_backup += 2;
        let e = Manifest::from_text(&manifest.to_text().unwrap()).unwrap_err();
        assert!(e.message.contains("format version 3"), "{e}");
    }

    #[test]
    fn names_of_files() {
        for good in
            ["1.dat", "1.dat.gz", "blob_7.dat.zst", "blobs.toc", "blobs_3.toc", "toc.dat", FILE]
        {
            assert!(is_backup_file(good), "{good}");
            assert!(is_backup_file(&format!("{good}.age")), "{good}");
        }
        assert!(is_backup_file("key.age") && !is_backup_file("key"));
        assert!(is_backup_file("manifest.json.tmp") && !is_backup_file("toc.dat.tmp"));
        for bad in
            ["", ".dat", "x.dat", "1.dat.bz2", "blob_.dat", "blobs_x.toc", "toc.dat.gz", "a/1.dat"]
        {
            assert!(!is_backup_file(&format!("{bad}.age")), "{bad}");
            assert!(!is_backup_file(bad), "{bad}");
        }
        for bad in ["unfinished.json.age", "scratch.tmp.age", "1.dat.age.age", "key.age.age"] {
            assert!(!is_backup_file(bad), "{bad}");
        }
    }

    #[test]
    fn times() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
