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
use super::place::Place;
use super::survey::{survey, Lot, Standing};
use crate::archive::manifest::{self, selection, Head};
use crate::error::{Error, ErrorKind, Result};
use crate::stop::Stop;
use crate::store::StoreSettings;
use remove::Removal;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
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
    /// It was to be removed, and could not be, or not wholly.
    Failed,
}

/// A backup and what became of it, or would.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Expired {
    pub name: String,
    pub fate: Fate,
    pub why: String,
    pub database: Option<String>,
    /// What of it, as flags for `pg_dump`.
    pub options: Vec<String>,
    pub snapshot_time: Option<String>,
    /// Bytes and number of the files that there were.
    pub size: u64,
    pub files: u64,
}

/// Removes what the rules do not keep; `each` learns of every backup, in order of name, after its fate is sealed. Answers what could
/// not be looked at.
///
/// Removals that an earlier run began are finished. One that fails does not keep the others from being removed, unless the store
/// does not answer at all any more; the error comes at the end.
pub fn run(
    options: &Options,
    stop: &Stop,
    mut each: impl FnMut(&Expired) -> Result<()>,
) -> Result<Vec<Error>> {
    let halt = Halt::new(stop);
    let place = Place::open(&options.parent, &options.store, &halt, false)?;
    let (lots, unread) = survey(&place, DEPTH, &halt)?;
    let kept = kept(&lots, &options.rules);
    let mut failed = None;
    let mut failures = 0;
    for lot in &lots {
        halt.check()?;
        let (mut fate, mut why) = match (kept.get(&lot.name[..]), &lot.foreign) {
            (Some(Some(why)), _) => (Fate::Kept, why.to_string()),
            (Some(None), None) => (Fate::Removed, "no rule keeps it".to_string()),
            (_, foreign) => other(lot, foreign.as_deref(), options.incomplete_hours),
        };
        let mut answers = Ok(());
        let done = match fate {
            _ if options.dry_run => Ok(Removal::Done),
            Fate::Removed => remove::remove(options, lot, &halt),
            // An earlier run was killed before it began in earnest.
            Fate::Kept if lot.doomed => remove::spare(options, lot, &halt).map(|()| Removal::Done),
            _ => Ok(Removal::Done),
        };
        match done {
            Ok(Removal::Done) => {}
            Ok(Removal::Changed) => {
                (fate, why) = (Fate::Left, "it was changed or finished meanwhile".to_string());
            }
            Err(e) if e.kind == ErrorKind::Cancelled => return Err(e),
            Err(e) => {
                // A store that is gone would be waited for again with each of them.
                answers = match place.has(manifest::DOOMED) {
                    Err(e) if e.kind == ErrorKind::Cancelled => return Err(e),
                    answer => answer.map(|_| ()),
                };
                // What is kept stays, with a note that says nothing as long as the manifest is there.
                if fate != Fate::Kept {
                    (fate, why) = (Fate::Failed, e.message.clone());
                    failures += 1;
                    failed.get_or_insert((format!("could not remove backup \"{}\"", lot.name), e));
                }
            }
        }
        let (database, snapshot_time, selected) = match &lot.standing {
            Standing::Sealed { head, .. } => (
                Some(head.database.clone()),
                Some(head.snapshot_time.clone()),
                selection(&head.options),
            ),
            Standing::Unfinished { marker: Some(marker), .. } => {
                (Some(marker.database.clone()), None, Vec::new())
            }
            _ => (None, None, Vec::new()),
        };
        each(&Expired {
            name: lot.name.clone(),
            fate,
            why,
            database,
            options: selected,
            snapshot_time,
            size: lot.size,
            files: lot.files,
        })?;
        if let Err(e) = answers {
            failed.get_or_insert((format!("could not go on after \"{}\"", lot.name), e));
            break;
        }
    }
    match failed {
        None => Ok(unread),
        Some((what, e)) => {
            let more = match failures {
                0 | 1 => String::new(),
                n => format!(" (and {} others)", n - 1),
            };
            let message = format!("{what}{more}: {}", e.message);
            Err(Error { message, ..e }.hint("Run the command again to remove what is left."))
        }
    }
}

/// What becomes of what is no whole backup, or is none of ours.
fn other(lot: &Lot, foreign: Option<&str>, incomplete_hours: Option<u32>) -> (Fate, String) {
    let left = |why: String| (Fate::Left, why);
    match &lot.standing {
        Standing::Damaged(e) => return left(e.message.clone()),
        Standing::Sealed { lacks: Some(file), .. } => {
            return left(format!("its file \"{file}\" is missing or has another size"))
        }
        _ => {}
    }
    if let Some(name) = foreign {
        let name = name.escape_debug();
        return left(format!("it holds \"{name}\", which is not part of a backup"));
    }
    // With a marker it is a backup as long as its removal has not begun in earnest.
    if lot.doomed && matches!(lot.standing, Standing::Bare) {
        return (Fate::Removed, "its removal was begun before".to_string());
    }
    let Standing::Unfinished { marker, written, .. } = &lot.standing else {
        return left("it has no manifest: pg_dump made it".to_string());
    };
    let begun = marker.as_ref().map_or(*written, |marker| rules::seconds(&marker.started));
    match incomplete_hours {
        Some(hours) if begun.is_some_and(|begun| is_old(begun, hours)) => {
            (Fate::Removed, format!("it was begun more than {hours} hours ago and never finished"))
        }
        _ => left("it is not finished, and may be being made".to_string()),
    }
}

/// A run was begun so long ago that it is taken for dead.
fn is_old(begun: u64, hours: u32) -> bool {
    begun.saturating_add(u64::from(hours) * 3600) < now()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// How far clocks may be apart.
const SKEW: u64 = 86_400;

/// Database, cluster, flags, and what stood in files of `--filter`.
type Family<'a> = (&'a str, Option<&'a str>, Vec<String>, Option<&'a str>);

/// What is counted together. `None`: that is not known by its manifest, as it is encrypted, or an earlier version wrote it. Nor is it with
/// row security: policies go by roles, settings, addresses and whatever else a function can find out.
fn family(head: &Head) -> Option<Family<'_>> {
    let mut flags = selection(&head.options);
    let has = |wanted: &str| flags.iter().any(|flag| flag.starts_with(wanted));
    if has("--filter=") && head.filter_sha256.is_none()
        || has("--enable-row-security")
        || head.encryption.as_ref().is_some_and(|encryption| encryption.selected)
    {
        return None;
    }
    // The same file may say something else today, and another the same.
    flags.retain(|flag| !flag.starts_with("--filter="));
    let cluster = head.system_identifier.as_deref();
    Some((&head.database, cluster, flags, head.filter_sha256.as_deref()))
}

/// Whether and why each whole backup is kept. Those of each database of each cluster are for themselves, and so is each selection of
/// what is in them: part of a database is no later state of the whole.
fn kept<'a>(lots: &'a [Lot], rules: &Rules) -> HashMap<&'a str, Option<&'static str>> {
    let now = now();
    let mut families = BTreeMap::<_, Vec<(u64, &str)>>::new();
    let mut kept = HashMap::new();
    for lot in lots {
        let Standing::Sealed { head, lacks: None, .. } = &lot.standing else { continue };
        let Some(family) = family(head) else {
            // It may be another part than all others, and the only one of it.
            kept.insert(
                &lot.name[..],
                Some("it does not tell which part of the database it holds"),
            );
            continue;
        };
        match rules::seconds(&head.snapshot_time) {
            // Made while the server's clock was wrong, it would be the latest for ever.
            Some(time) if time > now + SKEW => {
                kept.insert(&lot.name[..], Some("its time is in the future"));
            }
            Some(time) => families.entry(family).or_default().push((time, &lot.name)),
            None => {
                kept.insert(&lot.name[..], Some("its time is not known"));
            }
        }
    }
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
