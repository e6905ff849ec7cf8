//! What stands before the table of contents.
//!
//! Format: PostgreSQL's `pg_backup_archiver.c`, `WriteHead`.

use super::wire::Wire;
use crate::error::{Error, Result};
use std::fmt;
use std::io::Read;

/// How an archive is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One file (`pg_dump -Fc`).
    Custom,
    /// A folder of files (`pg_dump -Fd`).
    Directory,
    /// These files in one (`pg_dump -Ft`).
    Tar,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Custom => "custom",
            Format::Directory => "directory",
            Format::Tar => "tar",
        })
    }
}

/// What the archive's data is compressed with. In directories each file tells by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Lz4,
    Zstd,
}

impl Compression {
    /// What the name of a file ends in, with the dot.
    pub fn suffix(self) -> &'static str {
        match self {
            Compression::None => "",
            Compression::Gzip => ".gz",
            Compression::Lz4 => ".lz4",
            Compression::Zstd => ".zst",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        })
    }
}

/// When the dump was begun, in the local time of the machine that made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Created {
    pub year: i32,
    /// 1 to 12.
    pub month: i32,
    pub day: i32,
    pub hour: i32,
    pub minute: i32,
    pub second: i32,
}

impl fmt::Display for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Created { year, month, day, hour, minute, second } = self;
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
    }
}

/// What an archive says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub format: Format,
    /// The archive's version, e.g. (1, 14, 0): 1.14 up to PostgreSQL 15, 1.15 of 16, 1.16 of 17 and 18.
    pub version: (u8, u8, u8),
    pub compression: Compression,
    /// Bytes of an integer's and of an offset's magnitude in the table of contents.
    pub int_size: u8,
    pub offset_size: u8,
    /// The database that was dumped. Bytes that are not UTF-8 are replaced, here and below.
    pub dbname: String,
    /// The version of the server it was dumped from, e.g. `15.18 (Debian 15.18-0+deb12u1)`.
    pub server_version: String,
    /// The version of the `pg_dump` that made it.
    pub dump_version: String,
    pub created: Created,
}

/// The oldest archives that are read (PostgreSQL 9.0 to 10.2) and the newest known.
const OLDEST: (u8, u8) = (1, 12);
const NEWEST: (u8, u8) = (1, 16);

impl Header {
    pub(super) fn at_least(&self, minor: u8) -> bool {
        (self.version.0, self.version.1) >= (1, minor)
    }

    /// Reads a header; `format` is what the file was found as.
    pub(super) fn read<R: Read>(wire: &mut Wire<R>, format: Format) -> Result<Header> {
        if &wire.array::<5>()? != b"PGDMP" {
            return Err(Error::archive("it does not begin with \"PGDMP\""));
        }
        let [major, minor, revision] = wire.array()?;
        if (major, minor) < OLDEST || (major, minor) > NEWEST {
            return Err(Error::archive(format!("unsupported archive version {major}.{minor}"))
                .hint(format!(
                    "Versions {}.{} to {}.{} are supported, which PostgreSQL 9.0 to 18 write.",
                    OLDEST.0, OLDEST.1, NEWEST.0, NEWEST.1
                )));
        }
        let [int_size, offset_size, format_code] = wire.array()?;
        if !(1..=8).contains(&int_size) {
            return Err(Error::archive(format!("invalid integer size {int_size}")));
        }
        if !(1..=8).contains(&offset_size) {
            return Err(Error::archive(format!("invalid offset size {offset_size}")));
        }
        wire.int_size = usize::from(int_size);
        wire.offset_size = usize::from(offset_size);
        // A directory's table of contents is that of a tar archive.
        let fits = match format {
            Format::Custom => format_code == 1,
            Format::Directory => matches!(format_code, 3 | 5),
            Format::Tar => format_code == 3,
        };
        if !fits {
            return Err(Error::archive(format!(
                "its format code {format_code} is not that of the {format} format"
            )));
        }
        let compression = if (major, minor) >= (1, 15) {
            match wire.byte()? {
                0 => Compression::None,
                1 => Compression::Gzip,
                2 => Compression::Lz4,
                3 => Compression::Zstd,
                code => {
                    return Err(Error::archive(format!("unknown compression algorithm {code}")))
                }
            }
        } else {
            // A level of zlib's.
            match wire.int()? {
                0 => Compression::None,
                -1..=9 => Compression::Gzip,
                level => return Err(Error::archive(format!("invalid compression level {level}"))),
            }
        };
        let mut time = [0; 7];
        for field in &mut time {
            *field = wire.int()?;
        }
        let [second, minute, hour, day, month, year, _daylight_saving] = time;
        let mut text = || -> Result<String> {
            let mut bytes = Vec::new();
            wire.text(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        Ok(Header {
            format,
            version: (major, minor, revision),
            compression,
            int_size,
            offset_size,
            dbname: text()?,
            server_version: text()?,
            dump_version: text()?,
            created: Created {
                year: year.saturating_add(1900),
                month: month.saturating_add(1),
                day,
                hour,
                minute,
                second,
            },
        })
    }
}
