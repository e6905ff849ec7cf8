//! Which objects nothing seems to need. They are listed, never deleted.

use super::{Intent, State, Stripe, Table};
use crate::key::ObjectKey;
use std::collections::{HashMap, HashSet};
use std::fmt;

/// An object that the table's directory does not name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unneeded {
    /// Its key.
    pub key: String,
    /// Its size.
    pub bytes: u64,
    /// How it came to be there.
    pub why: Why,
}

/// How an object came to be there that the directory does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// The slot's stripe is local: it was loaded back, or an offload ended before its flip.
    StripeIsLocal,
    /// The slot's stripe is in another object.
    StripeIsElsewhere,
    /// The directory has no such slot: the stripe was rewritten or its rows deleted.
    StripeIsGone,
}

impl fmt::Display for Unneeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            Why::StripeIsLocal => "its stripe is in the table",
            Why::StripeIsElsewhere => "its stripe is in another object",
            Why::StripeIsGone => "its stripe is gone",
        };
        write!(f, "{} ({} bytes): {why}", self.key, self.bytes)
    }
}

/// Of the objects a store lists, those of this table, made on this timeline, that neither the directory nor a live
/// intent names.
///
/// This is no permission to delete: a snapshot, a standby, a backup or a clone may need what the directory no longer
/// names. Whatever is in doubt is left out: keys that are not ours in form, of another cluster, timeline, database
/// or table (an earlier timeline's objects are shared with whoever was restored from it), and those of slots with a
/// live intent.
pub fn unneeded(
    table: &Table,
    listed: &[(String, u64)],
    stripes: &[Stripe],
    intents: &[Intent],
) -> Vec<Unneeded> {
    let directory: HashMap<u32, &Stripe> = stripes.iter().map(|s| (s.slot, s)).collect();
    let named: HashSet<&str> = stripes
        .iter()
        .filter_map(|s| match &s.state {
            State::Cold { key, .. } => Some(key.as_str()),
            State::Local => None,
        })
        .chain(intents.iter().filter(|i| i.live).map(|i| i.key.as_str()))
        .collect();
    let in_progress: HashSet<u32> = intents.iter().filter(|i| i.live).map(|i| i.slot).collect();
    let mut found: Vec<Unneeded> = listed
        .iter()
        .filter_map(|(key, bytes)| {
            let parsed = ObjectKey::parse(key)?;
            let ours = Table {
                system_identifier: parsed.system_identifier,
                timeline: parsed.timeline,
                database: parsed.database,
                relation: parsed.relation,
            } == *table;
            if !ours || named.contains(key.as_str()) || in_progress.contains(&parsed.slot) {
                return None;
            }
            let why = match directory.get(&parsed.slot).map(|s| &s.state) {
                Some(State::Local) => Why::StripeIsLocal,
                Some(State::Cold { .. }) => Why::StripeIsElsewhere,
                None => Why::StripeIsGone,
            };
            Some(Unneeded { key: key.clone(), bytes: *bytes, why })
        })
        .collect();
    found.sort_by(|a, b| a.key.cmp(&b.key));
    found
}
