//! Removing backups that are not to be kept any longer.
//!
//! What is kept is decided from manifests (`rules`), backup by backup and never two into one: every backup has all its files
//! itself, so none needs another (docs/decisions/0019-incremental.md). What is removed goes in an order in which no crash leaves
//! half a backup that looks whole (`remove`).

mod remove;
mod rules;

pub use rules::Rules;

use super::halt::Halt;
use super::list::DEPTH;
use super::manifest::{self, Manifest, Marker};
use super::place::{Found, Place};
use crate::crypt::KEY_FILE;
use crate::error::{Error, ErrorKind, Result};
use crate::store::StoreSettings;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Everything `firn backup expire` is told.
#[derive(Clone)]
pub struct Options {
    /// A folder or prefix, as `firn backup list` takes it.
    pub parent: String,
    pub store: StoreSettings,
    pub rules: Rules,
    /// Unfinished backups that were begun so many hours ago are removed; nothing is if it is not said.
    pub incomplete_hours: Option<u32>,
    pub dry_run: bool,
    /// Files removed at the same time.
    pub jobs: usize,
}

/// What becomes of a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    Kept,
    Removed,
    /// It is no matter of rules: unfinished, damaged, not ours.
    Left,
}

/// A backup and what became of it, or would.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Expired {
    pub name: String,
    pub fate: Fate,
    pub why: String,
    pub database: Option<String>,
    pub snapshot_time: Option<String>,
    /// Bytes and number of the files that there were.
    pub size: u64,
    pub files: u64,
}

/// What lies in a folder.
struct Lot {
    name: String,
    files: Vec<Found>,
    /// A removal was begun.
    doomed: bool,
    standing: Standing,
}

impl Lot {
    /// Whether a file of this name may go with the rest. A key that somebody keeps beside backups that it opens may have the name that
    /// the key of a backup with a passphrase has.
    fn owns(&self, name: &str) -> bool {
        match &self.standing {
            Standing::Whole(manifest) if name == KEY_FILE => {
                manifest.files.iter().any(|file| file.name == KEY_FILE)
            }
            _ => manifest::is_backup_file(name),
        }
    }
}

enum Standing {
    /// Complete, and all files are there with the sizes they should have.
    Whole(Box<Manifest>),
    /// Complete by its manifest only, or the manifest is damaged.
    Broken(String),
    Unfinished(Option<Marker>),
    /// Without a manifest or marker.
    Archive,
}

/// Removes what the rules do not keep; `each` learns of every backup, in order of name, after its fate is sealed.
///
/// Removals that an earlier run began are finished. A failure ends it; running it again goes on.
pub fn run(
    options: &Options,
    stop: Arc<AtomicBool>,
    mut each: impl FnMut(&Expired) -> Result<()>,
) -> Result<()> {
    let halt = Halt::new(stop);
    let place = Place::open(&options.parent, &options.store, &halt, false)?;
    let lots = survey(&place, &halt)?;
    let kept = kept(&lots, &options.rules);
    for lot in &lots {
        halt.check()?;
        let (fate, why) = match kept.get(&lot.name[..]) {
            Some(Some(why)) => (Fate::Kept, why.to_string()),
            Some(None) => (Fate::Removed, "no rule keeps it".to_string()),
            None => other(lot, options.incomplete_hours),
        };
        let foreign = lot.files.iter().find(|file| !lot.owns(own_name(file)));
        let (fate, why) = match foreign {
            Some(file) if fate == Fate::Removed => {
                let name = own_name(file).escape_debug().to_string();
                (Fate::Left, format!("it holds \"{name}\", which is not part of a backup"))
            }
            _ => (fate, why),
        };
        if fate == Fate::Removed && !options.dry_run {
            remove::remove(options, &lot.name, &halt).map_err(|e| unfinished(e, lot))?;
        }
        let (database, snapshot_time) = match &lot.standing {
            Standing::Whole(m) => {
                (Some(m.head.database.clone()), Some(m.head.snapshot_time.clone()))
            }
            Standing::Unfinished(Some(marker)) => (Some(marker.database.clone()), None),
            _ => (None, None),
        };
        each(&Expired {
            name: lot.name.clone(),
            fate,
            why,
            database,
            snapshot_time,
            size: lot.files.iter().map(|file| file.size).sum(),
            files: lot.files.len() as u64,
        })?;
    }
    Ok(())
}

fn unfinished(e: Error, lot: &Lot) -> Error {
    match e.kind {
        ErrorKind::Cancelled => e,
        _ => Error {
            message: format!("could not remove backup \"{}\": {}", lot.name, e.message),
            ..e
        }
        .hint(
            "What is left of it is no backup any more. Run the command again to remove the rest.",
        ),
    }
}

/// The file's name within its folder.
fn own_name(file: &Found) -> &str {
    file.name.rsplit_once('/').map_or(&file.name, |(_, name)| name)
}

/// What becomes of what is no whole backup.
fn other(lot: &Lot, incomplete_hours: Option<u32>) -> (Fate, String) {
    match &lot.standing {
        Standing::Broken(why) => (Fate::Left, why.clone()),
        _ if lot.doomed => (Fate::Removed, "its removal was begun before".to_string()),
        Standing::Unfinished(marker) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
            let begun = marker.as_ref().and_then(|m| rules::seconds(&m.started));
            match (incomplete_hours, begun) {
                (Some(hours), Some(begun))
                    if begun.saturating_add(u64::from(hours) * 3600) < now =>
                {
                    (
                        Fate::Removed,
                        format!("it was begun more than {hours} hours ago and never finished"),
                    )
                }
                _ => (Fate::Left, "it is not finished, and may be being made".to_string()),
            }
        }
        _ => (Fate::Left, "it has no manifest: pg_dump made it".to_string()),
    }
}

/// Whether and why each whole backup is kept. Those of each database of each cluster are for themselves.
fn kept<'a>(lots: &'a [Lot], rules: &Rules) -> HashMap<&'a str, Option<&'static str>> {
    let mut families = BTreeMap::<_, Vec<(u64, &str)>>::new();
    let mut kept = HashMap::new();
    for lot in lots {
        let Standing::Whole(manifest) = &lot.standing else { continue };
        let head = &manifest.head;
        match rules::seconds(&head.snapshot_time) {
            Some(time) => families
                .entry((&head.database, &head.system_identifier))
                .or_default()
                .push((time, &lot.name)),
            None => {
                kept.insert(&lot.name[..], Some("its time is not known"));
            }
        }
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    for family in families.values_mut() {
        // The latest first.
        family.sort_by(|a, b| b.cmp(a));
        let times: Vec<u64> = family.iter().map(|(time, _)| *time).collect();
        for ((_, name), why) in family.iter().zip(rules.keep(&times, now)) {
            kept.insert(name, why);
        }
    }
    kept
}

/// All folders with a file of a backup.
fn survey(place: &Place, halt: &Halt) -> Result<Vec<Lot>> {
    let mut folders = BTreeMap::<String, Vec<Found>>::new();
    for file in place.list(DEPTH)? {
        let (folder, name) = file.name.rsplit_once('/').unwrap_or((".", &file.name));
        // Deeper folders are listed by name only.
        if !name.is_empty() {
            folders.entry(folder.to_string()).or_default().push(file);
        }
    }
    let tells = |name: &str| name != KEY_FILE && manifest::is_backup_file(name);
    folders.retain(|_, files| files.iter().any(|file| tells(own_name(file))));
    let mut lots = Vec::new();
    for (name, files) in folders {
        halt.check()?;
        let has = |wanted| files.iter().find(|file| own_name(file) == wanted);
        let doomed = has(manifest::DOOMED).is_some();
        let standing = match (has(manifest::FILE), has(manifest::MARKER)) {
            (Some(file), _) => match read(place, file)? {
                Some(text) => standing(&text, &files),
                // Another run has just removed it.
                None => Standing::Archive,
            },
            (None, Some(file)) => Standing::Unfinished(
                read(place, file)?.and_then(|text| serde_json::from_slice(&text).ok()),
            ),
            (None, None) => Standing::Archive,
        };
        lots.push(Lot { name, files, doomed, standing });
    }
    Ok(lots)
}

/// A file's text; `None` if it is gone meanwhile.
fn read(place: &Place, file: &Found) -> Result<Option<Vec<u8>>> {
    match place.read_all(&file.name) {
        Ok(text) => Ok(Some(text)),
        Err(_) if !place.has(&file.name)? => Ok(None),
        Err(e) => Err(e),
    }
}

fn standing(text: &[u8], files: &[Found]) -> Standing {
    let manifest = match Manifest::from_text(text) {
        Ok(manifest) => manifest,
        Err(e) => return Standing::Broken(e.message),
    };
    let sizes: HashMap<&str, u64> = files.iter().map(|file| (own_name(file), file.size)).collect();
    match manifest.files.iter().find(|file| sizes.get(&file.name[..]) != Some(&file.size)) {
        Some(file) => {
            Standing::Broken(format!("its file \"{}\" is missing or has another size", file.name))
        }
        None => Standing::Whole(Box::new(manifest)),
    }
}
