//! What a person sees of the work.
//!
//! - [`words`]: numbers and names as people read them.
//! - [`estimate`]: rates, and when it will be done.
//! - [`timeline`]: what each connection did when, in bounded memory.
//! - [`progress`]: all that is known of a run so far; fed by events, asked by the displays.
//! - [`live`], [`lines`], [`json`]: a display on a terminal, lines in a log, objects for programs; [`plain`]: lines and nothing besides.
//! - [`summary`], [`html`]: how it went.
//! - [`secret`]: passwords are not told; [`file`]: who may read what is written.
//! - [`reporter`]: the watcher that puts these together.

pub mod estimate;
pub mod file;
pub mod html;
pub mod json;
pub mod lines;
pub mod live;
pub mod plain;
pub mod progress;
pub mod reporter;
pub mod secret;
pub mod summary;
pub mod timeline;
pub mod words;

use crate::error::Error;

pub use crate::say::{print, say};
pub use reporter::{Format, Reporter, Settings};

/// Kinds of work, by which time is accounted and timelines are coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Objects without rows and without partitions: types, functions, tables, views.
    #[default]
    Schema,
    Partitions,
    /// Rows and large objects.
    Data,
    Indexes,
    /// CHECK constraints and foreign keys.
    Constraints,
    /// Privileges, comments, labels, statistics of the archive.
    Descriptions,
    Analyze,
    /// Comparing what is there with what should be.
    Verify,
}

impl Kind {
    pub const ALL: [Kind; 8] = [
        Kind::Schema,
        Kind::Partitions,
        Kind::Data,
        Kind::Indexes,
        Kind::Constraints,
        Kind::Descriptions,
        Kind::Analyze,
        Kind::Verify,
    ];

    /// One word, stable: displays, JSON and the HTML report use it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Schema => "schema",
            Kind::Partitions => "partitions",
            Kind::Data => "data",
            Kind::Indexes => "indexes",
            Kind::Constraints => "constraints",
            Kind::Descriptions => "descriptions",
            Kind::Analyze => "analyze",
            Kind::Verify => "verify",
        }
    }
}

/// Estimated work by kind, in microseconds of one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs(pub [u64; Kind::ALL.len()]);

impl Costs {
    pub fn of(kind: Kind, cost: u64) -> Costs {
        let mut costs = Costs::default();
        costs.add(kind, cost);
        costs
    }

    pub fn add(&mut self, kind: Kind, cost: u64) {
        let place = &mut self.0[kind as usize];
        *place = place.saturating_add(cost);
    }

    pub fn add_all(&mut self, other: &Costs) {
        Kind::ALL.iter().for_each(|k| self.add(*k, other.0[*k as usize]));
    }

    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, c| sum.saturating_add(*c))
    }

    /// The kind with the largest part; `None` if there is no cost.
    pub fn main(&self) -> Option<Kind> {
        Kind::ALL
            .into_iter()
            .filter(|k| self.0[*k as usize] > 0)
            .max_by_key(|k| self.0[*k as usize])
    }
}

/// Trouble that the program helped itself out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setback {
    /// A connection was lost and made again.
    Reconnected,
    /// A batch failed and was done step by step.
    OneByOne,
    /// A rewrite failed, and the archive's own statements were taken.
    Fallback,
    /// A step was put off until nothing else runs.
    Later,
}

impl Setback {
    pub const ALL: [Setback; 4] =
        [Setback::Reconnected, Setback::OneByOne, Setback::Fallback, Setback::Later];

    /// Stable names for JSON.
    pub fn name(self) -> &'static str {
        match self {
            Setback::Reconnected => "reconnected",
            Setback::OneByOne => "one_by_one",
            Setback::Fallback => "fallback",
            Setback::Later => "later",
        }
    }
}

/// What a connection has done of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Did {
    /// Steps that are settled, whether done or failed.
    pub steps: usize,
    /// Their estimated cost.
    pub cost: Costs,
    /// Statements that the server ran, without BEGIN and COMMIT.
    pub statements: u64,
    /// Transactions that were committed.
    pub transactions: u64,
    pub rows: u64,
    /// Everything of the batch was done.
    pub ok: bool,
}

/// Something that happened during a restore, a backup or a comparison. Workers are counted from 0.
#[derive(Debug)]
pub enum Event<'a> {
    /// A new part of the work: reading the archive, planning, restoring, analyzing …
    Phase(&'a str),
    /// Connected with this database.
    Target { database: &'a str, server_version: u32 },
    /// The plan is made.
    Planned {
        steps: usize,
        entries: usize,
        statements: u64,
        statements_archive: u64,
        /// Stored bytes of rows.
        bytes: u64,
    },
    /// So much is to be done in this phase.
    Work { steps: usize, cost: Costs },
    /// An earlier run has done so much of it.
    Resumed { done: usize, cost: Costs },
    /// A connection is there; `pid` is that of its server process.
    Connected { worker: usize, pid: i32 },
    /// A connection begins a batch. `what` names its first step, `cost` is that of all.
    Begin { worker: usize, what: &'a str, steps: usize, cost: Costs },
    /// Rows and bytes of data moved since the last such event, by that connection if it is known.
    Moved { worker: Option<usize>, rows: u64, bytes: u64 },
    /// Bytes that this connection has moved came to nothing: their transaction failed.
    Undone { worker: usize, bytes: u64 },
    /// The batch that this connection began last has ended.
    End { worker: usize, did: Did },
    /// A statement failed for good.
    Failed { what: &'a str, statement: &'a str, error: &'a Error },
    /// Not done as something that it needs failed.
    Skipped { what: &'a str },
    /// Nobody knows what was done: all that has failed or was skipped so far is tried again.
    Anew,
    /// Trouble that was overcome.
    Setback { worker: usize, setback: Setback, message: &'a str },
    /// A line for the summary.
    Fact { name: &'static str, value: &'a str },
    /// The work has come to nothing, and nothing of it is left behind.
    Unchanged,
    /// Something worth knowing.
    Note(&'a str),
    /// So many errors were passed over, of which each has been told, and that count.
    Ignored(usize),
    /// All is over and complete.
    Finished,
}

/// Looks on while one of them works. Called by many threads.
pub trait Watch: Send + Sync {
    fn event(&self, event: &Event);
}

/// Looks at nothing.
pub struct Quiet;

impl Watch for Quiet {
    fn event(&self, _: &Event) {}
}
