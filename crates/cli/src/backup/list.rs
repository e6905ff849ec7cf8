//! Finding backups.

use super::halt::Halt;
use super::place::Place;
use super::survey::{survey, Standing};
use crate::archive::manifest;
use crate::archive::Archive;
use crate::crypt::Keys;
use crate::error::{Error, ErrorKind, Result};
use crate::stop::Stop;
use crate::store::StoreSettings;
use serde::Serialize;

/// Whether a backup is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Complete,
    /// It was not finished, or is being made.
    Incomplete,
    /// It is being removed, or its removal was broken off.
    Expired,
    /// There is no manifest: `pg_dump` made it.
    Archive,
    /// There is a manifest that cannot be used, or a file is missing or cut.
    Damaged,
}

/// A backup that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Backup {
    /// Relative to where was searched; `.` for the place itself.
    pub name: String,
    pub state: State,
    pub database: Option<String>,
    /// When it was begun, of one that is not finished.
    pub started: Option<String>,
    /// When its snapshot was taken.
    pub snapshot_time: Option<String>,
    pub server_version: Option<String>,
    /// A file that is missing or has another size than it should.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
    /// Bytes of all files there are.
    pub size: u64,
    /// Files there are.
    pub files: u64,
    /// Whether it is encrypted, of one with a manifest that can be used.
    pub encrypted: bool,
    /// Whether the keys that were given open it, of an encrypted one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opens: Option<bool>,
}

/// Folders below the place that are searched.
pub const DEPTH: usize = 5;

/// Finds the backups at or below a place, in order of name, and folders that could not be read. Folders without a file of a backup
/// are passed over.
pub fn list(
    location: &str,
    settings: &StoreSettings,
    keys: Option<&Keys>,
    stop: &Stop,
) -> Result<(Vec<Backup>, Vec<Error>)> {
    let halt = Halt::new(stop);
    let place = Place::open(location, settings, &halt, false)?;
    let (lots, mut notes) = survey(&place, DEPTH, &halt)?;
    let mut found = Vec::new();
    for lot in lots {
        halt.check()?;
        let mut backup = Backup {
            name: lot.name,
            state: State::Archive,
            database: None,
            started: None,
            snapshot_time: None,
            server_version: None,
            encrypted: false,
            opens: None,
            lacks: None,
            size: lot.size,
            files: lot.files,
        };
        match lot.standing {
            Standing::Sealed { head, lacks, .. } => {
                backup.state = if lacks.is_some() { State::Damaged } else { State::Complete };
                backup.lacks = lacks;
                backup.encrypted = head.encryption.is_some();
                if let Some(keys) = keys.filter(|_| backup.encrypted) {
                    let (at, manifest) = match &backup.name[..] {
                        "." => (location.to_string(), manifest::FILE.to_string()),
                        folder => (
                            format!("{}/{folder}", location.trim_end_matches('/')),
                            format!("{folder}/{}", manifest::FILE),
                        ),
                    };
                    match Archive::open_locked(&at, settings, keys) {
                        Ok(_) => backup.opens = Some(true),
                        Err(e) if e.kind == ErrorKind::Key => backup.opens = Some(false),
                        Err(e) => match place.has(&manifest) {
                            // Another run has just begun to remove it.
                            Ok(false) => backup.state = State::Expired,
                            Ok(true) if e.kind == ErrorKind::Archive => {
                                backup.state = State::Damaged;
                            }
                            Ok(true) if e.kind == ErrorKind::Storage => notes.push(e),
                            _ => return Err(e),
                        },
                    }
                }
                backup.database = Some(head.database);
                backup.snapshot_time = Some(head.snapshot_time);
                backup.server_version = Some(head.server_version);
            }
            Standing::Damaged(why) => {
                backup.state = State::Damaged;
                if why.kind == ErrorKind::Storage {
                    notes.push(why);
                }
            }
            Standing::Unfinished { marker, .. } => {
                backup.state = State::Incomplete;
                if let Some(marker) = marker {
                    backup.database = Some(marker.database);
                    backup.started = Some(marker.started);
                }
            }
            Standing::Bare if lot.doomed => backup.state = State::Expired,
            Standing::Bare => {}
        }
        found.push(backup);
    }
    Ok((found, notes))
}
