//! What to move between a table and an object store, decided by pure functions.
//!
//! A plan is a value: a dry run prints it, the extension carries it out step by step. The protocol and its crash cases
//! are in the crate's README; `tests/plan.rs` kills it at every step.

mod unneeded;

pub use unneeded::{unneeded, Unneeded, Why};

use crate::error::{Error, Result};
use crate::key::ObjectKey;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Where a stripe's bytes are, as its directory row says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// In the table.
    Local,
    /// In an object.
    Cold {
        /// The object's key.
        key: String,
        /// Whether the chunks in the table have not been freed yet.
        local_copy: bool,
    },
}

/// One stripe of a table, as its directory row describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripe {
    /// Its key in the directory.
    pub slot: u32,
    /// The size of its bytes.
    pub bytes: u64,
    /// Where they are.
    pub state: State,
    /// How often the slot's stripe has been made anew; part of the object's key.
    pub generation: u32,
}

/// The durable note that a stripe is about to be uploaded, written before anything is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The stripe's slot.
    pub slot: u32,
    /// The stripe's generation then.
    pub generation: u32,
    /// The key chosen for the object.
    pub key: String,
    /// Whether the run that wrote it is known to be still at work. An intent that is not live was left by a
    /// crash or an error.
    pub live: bool,
}

/// Whose stripes these are: the part of an [`ObjectKey`] that all of a table's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// PostgreSQL's system identifier.
    pub system_identifier: u64,
    /// The timeline now.
    pub timeline: u32,
    /// The database's OID.
    pub database: u32,
    /// The table's OID.
    pub relation: u32,
}

impl Table {
    /// What the keys of this table's objects begin with, those made on the present timeline.
    pub fn prefix(&self) -> String {
        crate::key::relation_prefix(
            self.system_identifier,
            self.timeline,
            self.database,
            self.relation,
        )
    }

    fn key(&self, slot: u32, generation: u32, nonce: u64) -> String {
        ObjectKey {
            system_identifier: self.system_identifier,
            timeline: self.timeline,
            database: self.database,
            relation: self.relation,
            slot,
            generation,
            nonce,
        }
        .to_string()
    }
}

/// One step of an offload. Those of one stripe are carried out in the plan's order, and each is durable before the next
/// begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write an [`Intent`], durably, whatever becomes of the rest. If a dead run left one for the slot, in its
    /// place: there is never more than one.
    RecordIntent {
        /// The stripe.
        slot: u32,
        /// Its generation.
        generation: u32,
        /// The key chosen.
        key: String,
    },
    /// Put the stripe's bytes under the key.
    Upload {
        /// The stripe.
        slot: u32,
        /// Where to.
        key: String,
        /// How many bytes.
        bytes: u64,
    },
    /// Read the object back and compare size and checksum.
    Verify {
        /// The stripe.
        slot: u32,
        /// The object.
        key: String,
        /// Its size.
        bytes: u64,
    },
    /// In one transaction: point the directory row at the object and remove the intent. It must still be local and of this
    /// generation: the extension locks the table from before it plans, and an update of a row that has changed raises.
    Flip {
        /// The stripe.
        slot: u32,
        /// Its generation.
        generation: u32,
        /// The object.
        key: String,
    },
    /// Free the stripe's chunks in the table when no snapshot needs them.
    FreeLocal {
        /// The stripe.
        slot: u32,
        /// How many bytes.
        bytes: u64,
    },
    /// Remove the intent of a dead run for a slot that this run does not upload. Its object, if there is one, stays and
    /// is listed as unneeded.
    DropIntent {
        /// The stripe.
        slot: u32,
        /// The key it had chosen.
        key: String,
    },
}

/// A stripe that an offload leaves where it is, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The stripe.
    pub slot: u32,
    /// Why.
    pub why: SkipReason,
}

/// Why a stripe is left where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// It is in the store already, and nothing is left to free.
    AlreadyCold,
    /// Another run is offloading it.
    InProgress,
    /// The offload's limit of bytes is reached.
    Limit,
}

/// What an offload would do. `Display` prints it for dry runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadPlan {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The stripes left alone.
    pub skipped: Vec<Skipped>,
    /// How many stripes will be uploaded.
    pub uploads: u64,
    /// How many bytes will be uploaded.
    pub upload_bytes: u64,
    /// How many bytes will be freed in the table, now and by earlier runs' unfinished work.
    pub free_bytes: u64,
}

/// Plans the offload of a table's stripes, and the completion of what earlier runs left.
///
/// `limit` bounds the bytes uploaded (`None`: all); the stripes with the lowest slots go first. `nonce` is asked for a fresh
/// random number per upload ([`crate::random_nonce`]). Fails with `InvalidOptions` if two stripes claim one slot.
pub fn plan_offload(
    table: &Table,
    stripes: &[Stripe],
    intents: &[Intent],
    limit: Option<u64>,
    nonce: &mut dyn FnMut() -> u64,
) -> Result<OffloadPlan> {
    let mut by_slot: BTreeMap<u32, &Stripe> = BTreeMap::new();
    for s in stripes {
        if by_slot.insert(s.slot, s).is_some() {
            return Err(Error::invalid(format!("two stripes of the table claim slot {}", s.slot)));
        }
    }
    let live: BTreeSet<u32> = intents.iter().filter(|i| i.live).map(|i| i.slot).collect();
    let mut used: BTreeSet<String> = intents.iter().map(|i| i.key.clone()).collect();
    used.extend(stripes.iter().filter_map(|s| match &s.state {
        State::Cold { key, .. } => Some(key.clone()),
        State::Local => None,
    }));

    let mut plan = OffloadPlan::default();
    let mut left = limit.unwrap_or(u64::MAX);
    for s in by_slot.into_values() {
        let skip = |why| Skipped { slot: s.slot, why };
        match &s.state {
            State::Cold { local_copy, .. } => {
                if *local_copy {
                    plan.free(s);
                } else {
                    plan.skipped.push(skip(SkipReason::AlreadyCold));
                }
            }
            State::Local if live.contains(&s.slot) => {
                plan.skipped.push(skip(SkipReason::InProgress));
            }
            State::Local if s.bytes > left => plan.skipped.push(skip(SkipReason::Limit)),
            State::Local => {
                left -= s.bytes;
                let key = loop {
                    let key = table.key(s.slot, s.generation, nonce());
                    if used.insert(key.clone()) {
                        break key;
                    }
                };
                plan.upload(s, key);
            }
        }
    }
    let uploaded: BTreeSet<u32> = plan
        .steps
        .iter()
        .filter_map(|step| match step {
            Step::RecordIntent { slot, .. } => Some(*slot),
            _ => None,
        })
        .collect();
    let stale = intents.iter().filter(|i| !i.live && !uploaded.contains(&i.slot));
    let drops = stale.map(|i| Step::DropIntent { slot: i.slot, key: i.key.clone() });
    plan.steps.splice(0..0, drops);
    Ok(plan)
}

impl OffloadPlan {
    fn upload(&mut self, s: &Stripe, key: String) {
        let (slot, generation, bytes) = (s.slot, s.generation, s.bytes);
        self.uploads += 1;
        self.upload_bytes = self.upload_bytes.saturating_add(bytes);
        self.steps.extend([
            Step::RecordIntent { slot, generation, key: key.clone() },
            Step::Upload { slot, key: key.clone(), bytes },
            Step::Verify { slot, key: key.clone(), bytes },
            Step::Flip { slot, generation, key },
        ]);
        self.free(s);
    }

    fn free(&mut self, s: &Stripe) {
        self.free_bytes = self.free_bytes.saturating_add(s.bytes);
        self.steps.push(Step::FreeLocal { slot: s.slot, bytes: s.bytes });
    }
}

/// One step of a load: the way back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadStep {
    /// Read the object, compare its checksum, and write it into the table as chunks that no directory row names yet.
    Download {
        /// The stripe.
        slot: u32,
        /// The object.
        key: String,
        /// Its size.
        bytes: u64,
    },
    /// In the same transaction: point the directory row at the chunks, if it still names this object.
    FlipLocal {
        /// The stripe.
        slot: u32,
        /// The object, which nothing in the directory names from now on; it stays and is listed as unneeded.
        key: String,
    },
}

/// What a load would do. `Display` prints it for dry runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadPlan {
    /// The steps, in order.
    pub steps: Vec<LoadStep>,
    /// How many stripes will be downloaded.
    pub downloads: u64,
    /// How many bytes will be downloaded.
    pub download_bytes: u64,
}

/// Plans bringing a table's cold stripes back. A crash at any step leaves the stripe cold and the chunks, if any, to the
/// transaction that wrote them: nothing needs to be recorded before.
pub fn plan_load(stripes: &[Stripe]) -> LoadPlan {
    let mut plan = LoadPlan::default();
    let mut sorted: Vec<&Stripe> = stripes.iter().collect();
    sorted.sort_by_key(|s| s.slot);
    for s in sorted {
        let State::Cold { key, .. } = &s.state else {
            continue;
        };
        plan.downloads += 1;
        plan.download_bytes = plan.download_bytes.saturating_add(s.bytes);
        plan.steps.push(LoadStep::Download { slot: s.slot, key: key.clone(), bytes: s.bytes });
        plan.steps.push(LoadStep::FlipLocal { slot: s.slot, key: key.clone() });
    }
    plan
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::RecordIntent { slot, key, .. } => {
                write!(f, "stripe {slot:08x}: record the intent to use {key}")
            }
            Step::Upload { slot, key, bytes } => {
                write!(f, "stripe {slot:08x}: upload {bytes} bytes to {key}")
            }
            Step::Verify { slot, key, .. } => {
                write!(f, "stripe {slot:08x}: read {key} back and compare")
            }
            Step::Flip { slot, key, .. } => {
                write!(f, "stripe {slot:08x}: point the directory at {key}")
            }
            Step::FreeLocal { slot, bytes } => {
                write!(f, "stripe {slot:08x}: free {bytes} bytes in the table")
            }
            Step::DropIntent { slot, key } => {
                write!(f, "stripe {slot:08x}: drop the unfinished intent to use {key}")
            }
        }
    }
}

impl fmt::Display for LoadStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadStep::Download { slot, key, bytes } => {
                write!(f, "stripe {slot:08x}: download {bytes} bytes from {key}")
            }
            LoadStep::FlipLocal { slot, .. } => {
                write!(f, "stripe {slot:08x}: point the directory at the table")
            }
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.why {
            SkipReason::AlreadyCold => "is in the store already",
            SkipReason::InProgress => "is being offloaded by another run",
            SkipReason::Limit => "is beyond the limit of this run",
        };
        write!(f, "stripe {:08x}: {why}", self.slot)
    }
}

impl fmt::Display for OffloadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "upload {} stripes of {} bytes, free {} bytes, leave {} stripes alone",
            self.uploads,
            self.upload_bytes,
            self.free_bytes,
            self.skipped.len()
        )?;
        for s in &self.steps {
            writeln!(f, "{s}")?;
        }
        for s in &self.skipped {
            writeln!(f, "{s}")?;
        }
        Ok(())
    }
}

impl fmt::Display for LoadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "download {} stripes of {} bytes", self.downloads, self.download_bytes)?;
        for s in &self.steps {
            writeln!(f, "{s}")?;
        }
        Ok(())
    }
}
