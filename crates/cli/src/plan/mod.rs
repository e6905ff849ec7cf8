//! Pure decisions: from an archive's table of contents to steps, what each must wait for, which may not run at
//! the same time, and in which order connections take them. Nothing here speaks to a server.
//!
//! - [`text`]: pg_dump's canonical DDL, recognised by shape.
//! - [`select`]: which entries the flags ask for.
//! - [`family`]: partitions that can be made together with their parent's indexes.
//! - [`build`]: steps and the edges between them.
//! - [`code`]: what runs functions of the archive when it is made.
//! - [`locks`]: what each kind of statement locks.
//! - [`schedule`]: who runs what next; shared by the executor and the simulator.
//! - [`redirect`]: rows and objects that go elsewhere than the archive says.
//! - [`simulate`]: the same in virtual time, for predictions.
//! - [`render`]: the SQL of a step.
//! - [`who`]: who runs it.
//!
//! Problem, rule and proof of each rewrite are in README.md beside this file.

pub mod build;
pub mod code;
pub mod drops;
pub mod family;
pub mod key_order;
pub mod locks;
pub mod names;
pub mod parents;
pub mod redirect;
pub mod render;
pub mod schedule;
pub mod select;
pub mod simulate;
pub mod text;
pub mod who;

use locks::Lock;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// What the planner must know of the server. Stored in the journal, so that a resumed run plans the same.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Facts {
    /// E.g. 150020.
    pub server_version: u32,
    pub superuser: bool,
    /// Why catalogs may not be updated on this server, if so.
    #[serde(default)]
    pub no_staging: Option<String>,
    /// Locks that all transactions together can hold: max_locks_per_transaction × possible transactions.
    pub lock_slots: u64,
    /// Connections of the run that made the plan: a large table is cut into as many parts at most.
    pub jobs: usize,
    /// Tables that are emptied first.
    #[serde(default)]
    pub reloads: Vec<Reload>,
    /// What needed something of schemas whose objects are redirected, before: as oids.
    #[serde(default)]
    pub crossing: BTreeSet<String>,
    /// Rows that go into tables which were there before and have stored generated columns: places of the entries, and oids of what the columns
    /// call and may read other tables.
    #[serde(default)]
    pub generated: BTreeMap<u32, BTreeSet<u32>>,
}

/// Tables that are emptied and filled in one transaction: foreign keys tie them together.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Reload {
    /// The entries of their rows, in an order in which foreign keys hold.
    pub entries: Vec<u32>,
    /// What TRUNCATE names: `ONLY schema.table`, or a partitioned table and so all that is below it.
    pub emptied: Vec<Vec<u8>>,
    /// The oids of these, 0 if unknown.
    #[serde(default)]
    pub oids: Vec<u32>,
    /// What has all of their rows, each once.
    pub counted: Vec<Vec<u8>>,
    /// There is no such order.
    pub in_circle: bool,
}

/// Rewrites, each of which can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Rules {
    /// `CREATE TABLE … PARTITION OF` in place of create and attach.
    pub partition_of: bool,
    /// Partitions made below small staging parents, then moved to their parent in one go.
    pub staged_partitions: bool,
    /// Partitions get their indexes from the parent's.
    pub partition_indexes: bool,
    /// CHECK constraints of partitioned tables after their partitions.
    pub late_checks: bool,
    /// Indexes of partitions attached by one statement for all.
    pub bulk_index_attach: bool,
    /// Foreign keys added NOT VALID, then validated under a weaker lock.
    pub foreign_keys_in_two_steps: bool,
    /// Privileges of tables that are granted alike in one statement.
    pub merge_grants: bool,
    /// No COPY for tables without rows.
    pub skip_empty_data: bool,
    /// COPY with FREEZE into tables made by this restore.
    pub copy_freeze: bool,
    /// A table with a large share of all rows copied over several connections.
    pub split_data: bool,
}

/// Gives a rule's place.
pub type RulePlace = fn(&mut Rules) -> &mut bool;

impl Rules {
    /// Names as the flag `--disable-rule` takes them, with the rule's place.
    pub const NAMES: [(&'static str, RulePlace); 10] = [
        ("partition-of", |r| &mut r.partition_of),
        ("staged-partitions", |r| &mut r.staged_partitions),
        ("partition-indexes", |r| &mut r.partition_indexes),
        ("late-checks", |r| &mut r.late_checks),
        ("bulk-index-attach", |r| &mut r.bulk_index_attach),
        ("foreign-keys-in-two-steps", |r| &mut r.foreign_keys_in_two_steps),
        ("merge-grants", |r| &mut r.merge_grants),
        ("skip-empty-data", |r| &mut r.skip_empty_data),
        ("copy-freeze", |r| &mut r.copy_freeze),
        ("split-data", |r| &mut r.split_data),
    ];

    /// All rules set to `on`.
    pub fn all(on: bool) -> Rules {
        Rules {
            partition_of: on,
            staged_partitions: on,
            partition_indexes: on,
            late_checks: on,
            bulk_index_attach: on,
            foreign_keys_in_two_steps: on,
            merge_grants: on,
            skip_empty_data: on,
            copy_freeze: on,
            split_data: on,
        }
    }
}

/// What a step does. Numbers are places in the table of contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// The archive's statements for these entries, in this order, in one transaction.
    Entries,
    /// Partitions of one family ([`Plan::groups`]).
    Group(u32),
    /// Make the place where a family's bounds are proved disjoint, and remove it.
    BoundsBegin(u32),
    BoundsEnd(u32),
    /// CHECK constraints of a family, for the parent and all partitions.
    Checks(u32),
    /// An index of a family, for the parent and all partitions.
    BulkIndex(u32),
    /// A parent's index that takes up the partitions' indexes: the first entry without ONLY.
    BulkAttach,
    /// Add a foreign key unchecked.
    ForeignKeyAdd,
    /// Check it.
    ForeignKeyValidate,
    /// Privileges of several tables in one.
    Grants,
    /// Rows of a table: part `.0` of `.1`, in blocks of lines taken in turn.
    Data(u16, u16),
    /// Tables emptied and filled ([`Facts::reloads`]).
    Reload(u32),
    LargeObjects,
    /// Nothing: a point that many steps wait for.
    Milestone,
}

/// Something that is done whole, in one transaction, or not at all.
#[derive(Clone, Debug)]
pub struct Step {
    pub work: Work,
    /// The entries that are done with it, in [`Plan::covered`].
    pub entries: Range<u32>,
    /// In [`Plan::locks`].
    pub locks: Range<u32>,
    /// Entries of the server's lock table that it takes.
    pub lock_count: u32,
    /// Estimated microseconds.
    pub cost: u32,
    /// Estimated microseconds from its begin to the end of all that waits for it.
    pub rank: u64,
}

/// Partitions of one family that are made in one step.
#[derive(Clone, Debug)]
pub struct Group {
    pub family: u32,
    /// Places in the family's members.
    pub members: Range<u32>,
    /// Made below a staging parent.
    pub staged: bool,
}

/// Steps, edges and what belongs to them.
#[derive(Default)]
pub struct Plan {
    pub steps: Vec<Step>,
    pub covered: Vec<u32>,
    pub locks: Vec<Lock>,
    pub families: Vec<family::Family>,
    pub groups: Vec<Group>,
    /// `followers[ends[s-1]..ends[s]]` wait for step s.
    pub followers: Vec<u32>,
    pub ends: Vec<u32>,
    /// How many steps each step waits for.
    pub waits: Vec<u32>,
    /// NOT NULL constraints have names that partitions inherit (from version 18 on).
    pub names_not_null: bool,
    /// Partitions inherit identity columns (from version 17 on).
    pub inherits_identity: bool,
    /// The archive says for no session where names are looked up (before versions 10.3, 9.6.8 and so on): each entry's are
    /// meant in its own schema.
    pub selects_schemas: bool,
    /// Places of rows, indexes and constraints for which functions of the archive may look at other tables' rows.
    pub looks: HashSet<u32>,
    /// Of NOT NULL constraints that are NOT VALID, by place, those that come before (`plan/build/not_nulls.rs`).
    pub not_nulls_first: HashMap<u32, Vec<u32>>,
    /// Statements that the archive has for the entries of this plan, and those that the plan runs.
    pub statements_archive: u64,
    pub statements_planned: u64,
}

impl Plan {
    /// The entries of some steps for which functions may look at other tables' rows ([`Plan::looks`]).
    pub fn looking(&self, steps: &[u32]) -> Vec<u32> {
        let entries = steps.iter().flat_map(|step| self.entries(*step as usize)).copied();
        entries.filter(|place| self.looks.contains(place)).collect()
    }

    /// SHA-256 of what the steps are: another plan has other numbers for the same work.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        for (number, step) in self.steps.iter().enumerate() {
            hash.update(format!("{:?}", step.work));
            self.entries(number).iter().for_each(|place| hash.update(place.to_le_bytes()));
            // No place is this large.
            hash.update(u32::MAX.to_le_bytes());
        }
        for group in &self.groups {
            hash.update(format!("{} {:?} {}", group.family, group.members, group.staged));
        }
        hash.finalize().into()
    }

    /// The steps that wait for a step.
    pub fn followers(&self, step: usize) -> &[u32] {
        let begin = step.checked_sub(1).map_or(0, |s| self.ends[s]);
        &self.followers[begin as usize..self.ends[step] as usize]
    }

    /// The steps that decide how long a run takes at least, whatever the number of connections.
    pub fn longest_chain(&self) -> Vec<usize> {
        let rank = |step: &usize| self.steps[*step].rank;
        let mut chain = Vec::new();
        let mut next = (0..self.steps.len()).max_by_key(rank);
        while let Some(step) = next {
            chain.push(step);
            next = self.followers(step).iter().map(|f| *f as usize).max_by_key(rank);
        }
        chain
    }

    /// The entries that are done with a step.
    pub fn entries(&self, step: usize) -> &[u32] {
        let range = &self.steps[step].entries;
        &self.covered[range.start as usize..range.end as usize]
    }

    pub fn locks(&self, step: usize) -> &[Lock] {
        let range = &self.steps[step].locks;
        &self.locks[range.start as usize..range.end as usize]
    }
}
