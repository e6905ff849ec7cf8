//! From a connection to the end of the plan, as often as it takes.
//!
//! A pass has a connection that lives from its begin to its end ([`Keeper`]). When it has not lived, the server may have
//! crashed and lost what it had told as committed, and all that the program remembers counts for nothing: the next
//! pass begins with what the journal says, as a resumed run does.

use super::journal::{self, fence};
use super::too_early::TooEarly;
use super::work::{Ended, Found, Keeper, Site};
use super::{facts, remade, tell, unlogged, Job};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{Connection, Ping};
use crate::plan::schedule::{Limits, Scheduler};
use crate::report::{Event, Setback};
use std::time::{Duration, Instant};

/// Passes that were lost without a step being done, in a row, after which one gives up.
const FRUITLESS: u32 = 8;
/// The pause after the first of them; it doubles with each, up to [`LONGEST`]. A server whose process has crashed takes
/// connections for a moment more before it notices.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// How long a server may be silent before one gives up: a restart, on a busy machine, too. One that answers that it is
/// starting is waited for.
const SILENCE: Duration = Duration::from_secs(20);

/// Work until all steps are recorded, or some have failed. Returns a connection that is the only one to restore, and how
/// it ended. `resumed`: steps that were done before.
pub fn all(
    job: &Job,
    mut connection: Connection,
    resumed: &mut usize,
) -> Result<(Connection, Ended)> {
    job.watch.event(&Event::Phase("restoring"));
    let costs =
        |steps: &mut dyn Iterator<Item = u32>| tell::costs(&job.plan, job.archive.toc(), steps);
    job.watch.event(&Event::Work {
        steps: tell::real_steps(&job.plan).count(),
        cost: costs(&mut tell::real_steps(&job.plan)),
    });
    let mut total = Ended::default();
    let mut best = None;
    let mut fruitless = 0;
    loop {
        let pid = connection.backend_pid();
        let mut lost = match one(job, connection, best.is_some(), resumed, &mut total)? {
            Pass::Ended(connection) => return Ok((connection, total)),
            Pass::Lost { error, recorded } => {
                // Fewer than before may be recorded: what the server lost in a crash.
                fruitless = if recorded > best.unwrap_or(0) { 0 } else { fruitless + 1 };
                best = Some(recorded.max(best.unwrap_or(0)));
                error
            }
        };
        connection = loop {
            if job.stop.is_set() {
                return Err(cancelled());
            }
            if fruitless > FRUITLESS {
                return Err(lost.hint("Run the same command with --resume to go on."));
            }
            let message = format!(
                "the connection to the server was lost ({}); what is done is read from the journal",
                lost.message
            );
            let setback = Setback::Reconnected;
            job.watch.event(&Event::Setback { worker: 0, setback, message: &message });
            // What failed is not recorded, so it is done again; what was passed over is found by comparing at the end.
            job.watch.event(&Event::Anew);
            let pause = PAUSE * 2u32.pow(fruitless);
            let until = Instant::now() + pause.min(LONGEST);
            while Instant::now() < until && !job.stop.is_set() {
                std::thread::sleep(Duration::from_millis(50));
            }
            let connection = connect_again(job, &lost)?;
            match take_up(job, &connection, pid) {
                Ok(()) => break connection,
                // It went down again.
                Err(e) if e.kind == ErrorKind::Connection => (lost, fruitless) = (e, fruitless + 1),
                Err(e) => return Err(e),
            }
        };
    }
}

/// A new connection, which is the only restore again, after the one served by the process `before` was lost.
pub fn again(job: &Job, lost: &Error, before: i32) -> Result<Connection> {
    let connection = connect_again(job, lost)?;
    take_up(job, &connection, before)?;
    Ok(connection)
}

/// Be the only restore again, on a new connection; the server process `before` served the one that was lost.
fn take_up(job: &Job, connection: &Connection, before: i32) -> Result<()> {
    fence::be_alone(connection, Some(before), &|| job.stop.is_set())?;
    if !journal::is_there(connection)? {
        return Err(Error::usage("the journal of the restore is gone")
            .detail("The server came back without it: it may be another one, or an older state.")
            .hint("Begin anew in an empty database."));
    }
    let found = journal::find(connection)?;
    journal::check(&found.identity, &super::identity(connection, job.archive, &job.plan)?)
}

enum Pass {
    Ended(Connection),
    /// The connection that the pass began with has not lived to its end.
    Lost {
        error: Error,
        recorded: usize,
    },
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "canceled by user")
        .hint("Run the same command with --resume to go on.")
}

/// The error, or if that is why that the user has stopped it.
fn stopped_or(job: &Job, error: Error) -> Error {
    let found = job.stop.or_stopped(error);
    match found.kind {
        ErrorKind::Cancelled => cancelled(),
        _ => found,
    }
}

/// A new connection, when the server takes one again.
pub fn connect_again(job: &Job, lost: &Error) -> Result<Connection> {
    let mut silent = Instant::now();
    loop {
        if job.stop.is_set() {
            return Err(cancelled());
        }
        match job.options.ping(job.dbname)? {
            Ping::NotYet => silent = Instant::now(),
            Ping::Ready | Ping::Silent => match job.connect() {
                Ok(connection) => return Ok(connection),
                Err(e) if silent.elapsed() > SILENCE => {
                    let e = if e.kind == ErrorKind::Connection { lost.clone() } else { e };
                    return Err(e.hint(
                        "Run the same command with --resume when the server can be reached again.",
                    ));
                }
                Err(_) => {}
            },
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn one(
    job: &Job,
    connection: Connection,
    begun: bool,
    resumed: &mut usize,
    total: &mut Ended,
) -> Result<Pass> {
    let stopped = || job.stop.is_set();
    let start = || -> Result<_> {
        let _cancels = job.stop.cancels(&connection);
        let epoch = fence::take_over(&connection, &stopped)?;
        let session = fence::Session::of(epoch, 0)?;
        fence::enter(&connection, epoch, session)?;
        let mut recorded = journal::done(&connection, job.plan.steps.len())?;
        let again = unlogged::forget_lost(job, &connection, session, &mut recorded)?;
        let too_early = TooEarly::of(job, &connection, &recorded)?;
        let memory = facts::memory_for_each(&connection, job.options.jobs)?;
        Ok((epoch, recorded, again, too_early, memory, facts::processors(&connection)?))
    };
    let (epoch, recorded, again, too_early, memory_kb, processors) = match start() {
        Ok(found) => found,
        Err(error) if error.kind == ErrorKind::Connection => {
            return Ok(Pass::Lost { error, recorded: 0 })
        }
        Err(e) => return Err(stopped_or(job, e)),
    };
    if !begun && !recorded.steps.is_empty() {
        *resumed = recorded.steps.len();
        let cost = tell::costs(&job.plan, job.archive.toc(), recorded.steps.iter().copied());
        job.watch.event(&Event::Resumed { done: recorded.steps.len(), cost });
    }
    let slots = job.terms.facts.lock_slots;
    let scheduler =
        Scheduler::new(&job.plan, job.options.jobs, slots, &recorded.steps, Limits::default());
    let keeper = Keeper::new(connection, epoch);
    let deferrable = remade::deferrable(job, &recorded);
    let entries_done = recorded.entries.into_iter().collect();
    let found = Found { memory_kb, processors, again, too_early, deferrable, entries_done };
    let site = Site::new(job, &keeper, scheduler, found);
    let ended = site.run(job.options.jobs);
    drop(site);
    let now = keeper.with(|c| journal::done(c, job.plan.steps.len()));
    let connection = keeper.into_connection();
    // What has done nothing leaves nothing behind; dropping is something.
    let stopped = job.stop.is_set();
    let failed = stopped || ended.as_ref().map_or(true, |e| !e.failures.is_empty());
    if !job.terms.asked.clean && failed && journal::end_if_empty(&connection).unwrap_or(false) {
        job.watch.event(&Event::Unchanged);
        if stopped {
            job.stop.check().map_err(|e| e.hint("Nothing was changed."))?;
        }
        let ended = ended?;
        total.add(ended);
        return Ok(Pass::Ended(connection));
    }
    let before = recorded.steps.len();
    let ended = match (ended, &now) {
        (Err(error), _) if error.kind == ErrorKind::Connection => {
            return Ok(Pass::Lost { error, recorded: now.map_or(before, |now| now.steps.len()) })
        }
        (Err(error), _) => return Err(error),
        (Ok(ended), _) => ended,
    };
    let now = match now {
        Ok(now) => now,
        Err(error) if error.kind == ErrorKind::Connection => {
            return Ok(Pass::Lost { error, recorded: before })
        }
        Err(error) => return Err(error),
    };
    let failed = !ended.failures.is_empty();
    total.add(ended);
    if failed {
        return Ok(Pass::Ended(connection));
    }
    if job.stop.is_set() {
        return Err(cancelled());
    }
    // Complete is what is recorded, not what is remembered.
    let missing =
        tell::real_steps(&job.plan).filter(|step| now.steps.binary_search(step).is_err()).count();
    if missing > 0 {
        let error = Error::new(
            ErrorKind::Internal,
            format!("{missing} steps that were done are not in the journal"),
        );
        return Ok(Pass::Lost { error, recorded: now.steps.len() });
    }
    let cancels = job.stop.cancels(&connection);
    let told = journal::all_done(&connection);
    drop(cancels);
    match told {
        Ok(()) => Ok(Pass::Ended(connection)),
        Err(error) if error.kind == ErrorKind::Connection => {
            Ok(Pass::Lost { error, recorded: now.steps.len() })
        }
        Err(e) => Err(stopped_or(job, e)),
    }
}
