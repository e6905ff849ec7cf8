//! Finding backups.

use super::halt::Halt;
use super::manifest::{self, Manifest, Marker};
use super::place::Place;
use crate::archive::Archive;
use crate::crypt::{Keys, KEY_FILE};
use crate::error::{ErrorKind, Result};
use crate::store::StoreSettings;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

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
    /// There is a manifest that cannot be used.
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

/// Finds the backups at or below a place, in order of name. Folders without a file of a backup are passed over.
pub fn list(
    location: &str,
    settings: &StoreSettings,
    keys: Option<&Keys>,
    stop: Arc<AtomicBool>,
) -> Result<Vec<Backup>> {
    let halt = Halt::new(stop);
    let place = Place::open(location, settings, &halt, false)?;
    let mut found = BTreeMap::<String, Backup>::new();
    let mut key_files = BTreeMap::new();
    for file in place.list(DEPTH)? {
        let (folder, name) = file.name.rsplit_once('/').unwrap_or((".", &file.name));
        if !manifest::is_backup_file(name) {
            continue;
        }
        // By itself it is no backup: somebody may keep a key of this name.
        if name == KEY_FILE {
            key_files.insert(folder.to_string(), file.size);
            continue;
        }
        let backup = found.entry(folder.to_string()).or_insert_with(|| Backup {
            name: folder.to_string(),
            state: State::Archive,
            database: None,
            started: None,
            snapshot_time: None,
            server_version: None,
            size: 0,
            files: 0,
            encrypted: false,
            opens: None,
        });
        backup.size += file.size;
        backup.files += 1;
        if name == manifest::FILE {
            backup.state = State::Damaged;
        } else if name == manifest::DOOMED && backup.state != State::Damaged {
            backup.state = State::Expired;
        } else if name == manifest::MARKER && backup.state == State::Archive {
            backup.state = State::Incomplete;
        }
    }
    for (folder, size) in key_files {
        if let Some(backup) = found.get_mut(&folder) {
            backup.size += size;
            backup.files += 1;
        }
    }
    for backup in found.values_mut() {
        halt.check()?;
        let path = |name: &str| match &backup.name[..] {
            "." => name.to_string(),
            folder => format!("{folder}/{name}"),
        };
        if backup.state == State::Incomplete {
            // It may just be finished now.
            let text = place.read_all(&path(manifest::MARKER)).unwrap_or_default();
            if let Ok(marker) = serde_json::from_slice::<Marker>(&text) {
                backup.database = Some(marker.database);
                backup.started = Some(marker.started);
            }
        }
        if backup.state != State::Damaged {
            continue;
        }
        let text = place.read_all(&path(manifest::FILE))?;
        if let Ok(public) = Manifest::from_text(&text) {
            backup.state = State::Complete;
            backup.encrypted = public.head.encryption.is_some();
            if let Some(keys) = keys.filter(|_| backup.encrypted) {
                let at = match &backup.name[..] {
                    "." => location.to_string(),
                    folder => format!("{}/{folder}", location.trim_end_matches('/')),
                };
                match Archive::open_locked(&at, settings, keys) {
                    Ok(_) => backup.opens = Some(true),
                    Err(e) if e.kind == ErrorKind::Key => backup.opens = Some(false),
                    Err(e) if e.kind == ErrorKind::Archive => backup.state = State::Damaged,
                    Err(e) => return Err(e),
                }
            }
            let head = public.head;
            backup.database = Some(head.database);
            backup.snapshot_time = Some(head.snapshot_time);
            backup.server_version = Some(head.server_version);
        }
    }
    Ok(found.into_values().collect())
}
