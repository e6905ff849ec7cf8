//! What a backup is asked to be.

use crate::archive::Compression;
use crate::crypt::Sealing;
use crate::error::{Error, Result};
use crate::pg::Login;
use crate::store::StoreSettings;
use std::fmt;
use std::path::PathBuf;

/// A compression and its level, as `pg_dump --compress` spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    pub method: Compression,
    /// `None`: the method's default.
    pub level: Option<i32>,
}

impl Spec {
    /// No compression.
    pub const NONE: Spec = Spec { method: Compression::None, level: None };

    /// Parses `METHOD`, `METHOD:LEVEL`, `METHOD:level=LEVEL` or `LEVEL`; a mere level is gzip's, 0 none.
    pub fn parse(text: &str) -> Result<Spec> {
        let usage = |message: String| {
            Error::usage(message).hint(
                "Give none, gzip, lz4 or zstd, and a level after a colon if you like: zstd:5.",
            )
        };
        let (method, detail) = match text.split_once(':') {
            Some((method, detail)) => (method, Some(detail)),
            None if text.parse::<i32>().is_ok() => ("gzip", Some(text)),
            None => (text, None),
        };
        let (method, levels) = match method {
            "none" => (Compression::None, 0..=0),
            "gzip" => (Compression::Gzip, 0..=9),
            "lz4" => (Compression::Lz4, 0..=0),
            "zstd" => (Compression::Zstd, 1..=22),
            _ => return Err(usage(format!("unrecognized compression algorithm: \"{method}\""))),
        };
        let Some(detail) = detail else { return Ok(Spec { method, level: None }) };
        let level = detail.strip_prefix("level=").unwrap_or(detail);
        let level: i32 = level.parse().map_err(|_| {
            usage(format!("unrecognized compression option: \"{}\"", level.escape_debug()))
        })?;
        if method == Compression::Gzip && level == 0 {
            return Ok(Spec::NONE);
        }
        if method == Compression::Gzip && level == -1 {
            return Ok(Spec { method, level: None });
        }
        if !levels.contains(&level) {
            return Err(usage(match method {
                Compression::None | Compression::Lz4 => {
                    format!("compression algorithm \"{method}\" does not take a level here")
                }
                _ => format!(
                    "compression algorithm \"{method}\" expects a level between {} and {}",
                    levels.start(),
                    levels.end()
                ),
            }));
        }
        Ok(Spec { method, level: Some(level).filter(|_| method != Compression::Lz4) })
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            Some(level) => write!(f, "{}:{level}", self.method),
            None => write!(f, "{}", self.method),
        }
    }
}

/// Everything a backup is told.
#[derive(Clone)]
pub struct Options {
    pub login: Login,
    /// A path, `file:///path` or `s3://bucket/prefix`.
    pub destination: String,
    pub store: StoreSettings,
    /// Connections that copy data.
    pub jobs: usize,
    /// `None`: the best that the restoring `pg_restore` knows.
    pub compression: Option<Spec>,
    /// For whom to encrypt.
    pub sealing: Option<Sealing>,
    /// The `pg_dump` to use; `None`: the one that fits the server.
    pub pg_dump: Option<PathBuf>,
    /// Flags for `pg_dump`: what to select and to leave out.
    pub selection: Vec<String>,
    /// Wait for a snapshot that no serialization anomaly can be seen in.
    pub deferrable: bool,
    /// Remove what an unfinished backup left at the destination, first.
    pub overwrite_incomplete: bool,
    /// Note a checksum of each table's rows.
    pub checksums: bool,
    /// Wait until all is on stable storage (local destinations).
    pub sync: bool,
    /// Take the files of tables that have not changed from an earlier backup beside this one: from the latest, or from the one
    /// of that name.
    pub incremental: Option<Base>,
}

/// The earlier backup that an incremental one goes by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    Latest,
    Named(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications_as_pg_dump_spells_them() {
        let spec = |method, level| Spec { method, level };
        for (text, expected) in [
            ("none", Spec::NONE),
            ("0", Spec::NONE),
            ("gzip:0", Spec::NONE),
            ("6", spec(Compression::Gzip, Some(6))),
            ("gzip", spec(Compression::Gzip, None)),
            ("-1", spec(Compression::Gzip, None)),
            ("gzip:9", spec(Compression::Gzip, Some(9))),
            ("lz4", spec(Compression::Lz4, None)),
            ("zstd:level=5", spec(Compression::Zstd, Some(5))),
        ] {
            assert_eq!(Spec::parse(text).unwrap(), expected, "{text}");
        }
        for bad in ["", "10", "zip", "zstd:0", "zstd:long", "zstd:99", "lz4:9", "none:1", "gzip:x"]
        {
            assert!(Spec::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(Spec::parse("zstd:level=5").unwrap().to_string(), "zstd:5");
    }
}
