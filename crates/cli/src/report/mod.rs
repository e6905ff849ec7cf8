//! What a person sees of the work.

use crate::error::Error;
use std::time::Duration;

/// Something that happened during a restore.
#[derive(Debug)]
pub enum Event<'a> {
    /// A new part of the work: reading the archive, planning, restoring, analyzing …
    Phase(&'a str),
    /// The plan is made.
    Planned {
        steps: usize,
        entries: usize,
        statements: u64,
        statements_archive: u64,
        jobs: usize,
        bytes: u64,
    },
    /// An earlier run has done so many steps.
    Resumed { done: usize },
    /// A connection begins a batch. `what` names its first step.
    Begin { worker: usize, what: &'a str, steps: usize },
    /// It ended. `work` is by kind of work for the summary.
    End { worker: usize, what: &'a str, steps: usize, elapsed: Duration, rows: u64, ok: bool },
    /// Bytes of rows sent so far, and steps left.
    Progress { bytes: u64, left: usize },
    /// A statement failed for good.
    Failed { what: &'a str, statement: &'a str, error: &'a Error },
    /// Not done as something that it needs failed.
    Skipped { what: &'a str },
    /// Something worth knowing, such as a connection that was made again.
    Note(&'a str),
    /// All is over.
    Finished,
}

/// Looks on while a restore works. Called by many threads.
pub trait Watch: Send + Sync {
    fn event(&self, event: &Event);
}

/// Looks at nothing.
pub struct Quiet;

impl Watch for Quiet {
    fn event(&self, _: &Event) {}
}
