//! What all workers of a restore share, and how they are started. What each does: [`worker`]. Sequences of
//! tables: [`uses`]. What is put off as something before it failed: [`order`].

mod dead;
mod order;
mod uses;
mod worker;

use super::journal::fence::{self, Session};
use super::too_early::TooEarly;
use super::{left_out::LeftOut, tell, Job, Options, Terms};
use crate::archive::{Archive, Entry};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::Connection;
use crate::plan::build::describe;
use crate::plan::render::Renderer;
use crate::plan::schedule::Scheduler;
use crate::plan::Plan;
use crate::report::{Costs, Event, Watch};
use crate::stop::Stop;
use dead::Dead;
use order::LateRows;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use uses::Uses;
use worker::keys::Early;
use worker::Worker;

/// A step that could not be done.
#[derive(Debug)]
pub struct Failure {
    pub what: String,
    pub statement: String,
    pub error: Error,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connection that a pass begins and ends with.
///
/// When a server process crashes the server ends all of them, and with `synchronous_commit = off` the last transactions
/// are lost, also of connections whose clients have been told of a commit. So as long as this connection lives nothing
/// that was committed since it was made is lost; when it does not, only the journal says what is done.
pub struct Keeper {
    connection: Mutex<Connection>,
    /// Of the journal, see [`fence`].
    epoch: i32,
    sessions: AtomicI32,
}

impl Keeper {
    /// The connection has entered the epoch's session 0.
    pub fn new(connection: Connection, epoch: i32) -> Keeper {
        Keeper { connection: Mutex::new(connection), epoch, sessions: AtomicI32::new(1) }
    }

    /// Do something on the connection.
    pub fn with<T>(&self, body: impl FnOnce(&Connection) -> T) -> T {
        body(&lock(&self.connection))
    }

    /// The connection, when the pass is over.
    pub fn into_connection(self) -> Connection {
        self.connection.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enter a session with a new connection. It may be one to a server that has crashed since the pass began, and has lost what the
    /// pass goes by, the epoch too: not if the keeper answers now that this one is there.
    fn enter(&self, connection: &Connection) -> Result<Session> {
        self.with(|keeper| keeper.query(b"SELECT 1"))?;
        let session = Session::of(self.epoch, self.sessions.fetch_add(1, Ordering::SeqCst))?;
        fence::enter(connection, self.epoch, session)?;
        Ok(session)
    }
}

/// What a pass finds on the server and in the journal before it begins.
pub(super) struct Found<'a> {
    /// For each connection.
    pub memory_kb: Option<u64>,
    /// Of the server, where they are known.
    pub processors: Option<usize>,
    /// Entries of rows that were there already, and were lost.
    pub again: HashSet<u32>,
    pub too_early: TooEarly<'a>,
    /// Keys that are made again behind rows that come late, by the dump id of their table.
    pub deferrable: HashMap<i32, Vec<u32>>,
    /// Entries that were done by themselves, of steps that are not done.
    pub entries_done: HashSet<u32>,
}

/// What all workers share.
pub struct Site<'a> {
    pub keeper: &'a Keeper,
    pub archive: &'a Archive,
    pub plan: &'a Plan,
    pub terms: &'a Terms,
    pub renderer: Renderer<'a>,
    pub options: &'a Options,
    pub dbname: Option<&'a str>,
    pub memory_kb: Option<u64>,
    /// Of the server, where they are known.
    pub processors: Option<usize>,
    pub left_out: Arc<LeftOut>,
    pub watch: &'a dyn Watch,
    pub stop: Stop,
    /// Entries that were done by themselves, of steps that are not done.
    pub entries_done: Mutex<HashSet<u32>>,
    /// Entries of rows that were there already, and were lost.
    pub again: HashSet<u32>,
    pub(super) too_early: TooEarly<'a>,
    /// Keys that are made again behind rows that come late, by the dump id of their table.
    pub(super) deferrable: HashMap<i32, Vec<u32>>,
    scheduler: Mutex<Scheduler<'a>>,
    wake: Condvar,
    failures: Mutex<Vec<Failure>>,
    skipped: Mutex<Vec<String>>,
    /// Steps that have had their second try.
    tried: Mutex<HashSet<u32>>,
    /// Those of them whose name was another constraint's.
    taken: Mutex<HashSet<u32>>,
    /// Steps that have been tried without what this statement of theirs would have set.
    without: Mutex<HashSet<(u32, String)>>,
    /// Entries that failed or were skipped.
    dead: Mutex<Dead>,
    fatal: Mutex<Option<Error>>,
    bytes: AtomicU64,
    rows: AtomicU64,
    /// With `--truncate-table`: tables that have kept their old rows, and those that they are partitions of, by dump id.
    old_rows: Mutex<HashSet<i32>>,
    late_rows: Mutex<LateRows>,
    /// It was told why something is put off.
    put_off: AtomicBool,
    /// Partitioned tables some partitions of which are not attached for a reason that passes, by dump id.
    without_partitions: Mutex<HashSet<i32>>,
    /// Made when it is needed.
    uses: OnceLock<Uses>,
    forced: OnceLock<order::Forced>,
    early: OnceLock<Early>,
    /// How many workers have a connection.
    connected: AtomicUsize,
    /// It was told that there are fewer connections than were asked for.
    fewer: AtomicBool,
}

/// How a run ended.
#[derive(Debug, Default)]
pub struct Ended {
    pub failures: Vec<Failure>,
    pub skipped: Vec<String>,
    pub left: usize,
    pub rows: u64,
    pub bytes: u64,
}

impl Ended {
    /// Add what a further pass came to.
    pub fn add(&mut self, other: Ended) {
        self.failures.extend(other.failures);
        self.skipped.extend(other.skipped);
        self.left = other.left;
        self.rows += other.rows;
        self.bytes += other.bytes;
    }
}

impl<'a> Site<'a> {
    pub(super) fn new(
        job: &'a Job,
        keeper: &'a Keeper,
        scheduler: Scheduler<'a>,
        found: Found<'a>,
    ) -> Site<'a> {
        let Found { memory_kb, processors, again, too_early, deferrable, entries_done } = found;
        Site {
            keeper,
            archive: job.archive,
            plan: &job.plan,
            terms: &job.terms,
            renderer: job.renderer(),
            options: job.options,
            dbname: job.dbname,
            memory_kb,
            processors,
            left_out: Arc::clone(&job.left_out),
            watch: job.watch,
            stop: job.stop.within(),
            entries_done: Mutex::new(entries_done),
            again,
            too_early,
            deferrable,
            scheduler: Mutex::new(scheduler),
            wake: Condvar::new(),
            failures: Mutex::default(),
            skipped: Mutex::default(),
            tried: Mutex::default(),
            taken: Mutex::default(),
            without: Mutex::default(),
            dead: Mutex::default(),
            fatal: Mutex::default(),
            bytes: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            old_rows: Mutex::default(),
            late_rows: Mutex::default(),
            put_off: AtomicBool::new(false),
            without_partitions: Mutex::default(),
            uses: OnceLock::new(),
            forced: OnceLock::new(),
            early: OnceLock::new(),
            connected: AtomicUsize::new(0),
            fewer: AtomicBool::new(false),
        }
    }

    /// Work with `jobs` connections until nothing is left or something stops it.
    pub fn run(&self, jobs: usize) -> Result<Ended> {
        std::thread::scope(|scope| {
            for number in 0..jobs {
                scope.spawn(move || {
                    if let Err(e) = Worker::new(self, number).work() {
                        self.fail(e);
                    }
                });
            }
        });
        if let Some(e) = lock(&self.fatal).take() {
            // That others were stopped follows from the failure of one.
            if e.kind != ErrorKind::Cancelled || lock(&self.failures).is_empty() {
                return Err(e);
            }
        }
        let left = lock(&self.scheduler).left();
        Ok(Ended {
            failures: std::mem::take(&mut lock(&self.failures)),
            skipped: std::mem::take(&mut lock(&self.skipped)),
            left,
            rows: self.rows.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        })
    }

    /// Something ends the whole run.
    fn fail(&self, error: Error) {
        // A statement may be cancelled wherever a worker is, on its way to a session, too: that follows from the stop.
        let error = match self.stop.or_stopped(error) {
            e if e.kind == ErrorKind::Cancelled => fence::cancelled(),
            e => e,
        };
        let mut fatal = lock(&self.fatal);
        // What follows from a stop is not worth more than what caused it.
        if fatal.is_none() {
            *fatal = Some(error);
        }
        drop(fatal);
        self.stop.stop();
        self.wake.notify_all();
    }

    /// An entry failed, or cannot be without one that did; `passes`: for a reason that passes.
    fn bury(&self, place: u32, passes: bool) -> bool {
        let entry = self.archive.toc().entry(place as usize);
        if self.terms.truncate && entry.desc == b"TABLE DATA" {
            let mut old = lock(&self.old_rows);
            // Rows of an archive without definitions are of a table that is nowhere in it.
            old.insert(0);
            for table in entry.dependencies {
                let mut above = Some(*table);
                while let Some(table) = above.filter(|table| old.insert(*table)) {
                    above = self.uses().parents.get(table);
                }
            }
        }
        self.note_late_rows(&entry);
        if passes {
            self.note_unattached(&entry);
        }
        lock(&self.dead).insert(self.archive.toc(), place, passes)
    }

    /// An entry is left out, as it cannot be without one that failed.
    fn skip(&self, place: u32, passes: bool) {
        if self.bury(place, passes) {
            let what = describe(&self.archive.toc().entry(place as usize));
            self.watch.event(&Event::Skipped { what: &what });
            lock(&self.skipped).push(what);
        }
    }

    /// Some of the step's entries were done by themselves, by whoever had it before.
    fn in_pieces(&self, step: u32) -> bool {
        let done = lock(&self.entries_done);
        !done.is_empty() && self.plan.entries(step as usize).iter().any(|p| done.contains(p))
    }

    /// The entries of a step that are done or can still be; the others are told as skipped.
    fn living(&self, step: u32) -> Vec<u32> {
        let toc = self.archive.toc();
        let mut all = self.renderer.originals(step);
        if lock(&self.dead).is_empty() {
            return all;
        }
        all.retain(|place| {
            let entry = toc.entry(*place as usize);
            // Why it cannot be: whether each of these passes.
            let mut causes = Vec::new();
            {
                let dead = lock(&self.dead);
                if dead.contains(*place) {
                    return false;
                }
                let missing = |d: &i32| toc.place(*d).and_then(|p| dead.passes(p as u32));
                causes.extend(entry.dependencies.iter().filter_map(missing));
                causes.extend(dead.schema_passes(entry.namespace));
            }
            if lock(&self.entries_done).contains(place) {
                return true;
            }
            // A value that stays set however this ends is not to come where the old rows have stayed.
            if causes.is_empty() && entry.desc == b"SEQUENCE SET" && self.counts_old_rows(&entry) {
                causes.push(false);
            }
            if causes.is_empty() && self.puts_off(&entry) {
                causes.push(true);
            }
            if causes.is_empty() && entry.desc == b"TABLE ATTACH" {
                causes.extend(self.lacks_index(*place));
            }
            if !causes.is_empty() {
                self.skip(*place, causes.iter().all(|passes| *passes));
            }
            causes.is_empty()
        });
        all
    }

    /// An index that comes before rows could not be made of the partition that is attached there, and its parent's is there: attached, the
    /// partition would get another than the archive's. Whether what it failed of passes.
    fn lacks_index(&self, attach: u32) -> Option<bool> {
        let indexes = self.early().of_attachment(attach);
        let dead = lock(&self.dead);
        let own = indexes.iter().filter(|(_, above)| !dead.contains(*above));
        own.filter_map(|(index, _)| dead.passes(*index)).reduce(|one, other| one && other)
    }

    /// A table has kept its old rows, and the sequence gives numbers to it, or nobody knows to which it does.
    fn counts_old_rows(&self, value: &Entry) -> bool {
        let old = lock(&self.old_rows);
        if old.is_empty() {
            return false;
        }
        let users = &self.uses().sequences;
        let mut users = value.dependencies.iter().filter_map(|d| users.get(d)).flatten().peekable();
        users.peek().is_none() || users.any(|table| old.contains(table))
    }

    fn early(&self) -> &Early {
        self.early.get_or_init(|| Early::of(self.plan, self.archive.toc()))
    }

    fn uses(&self) -> &Uses {
        self.uses.get_or_init(|| Uses::of(self.archive.toc()))
    }

    /// A step's name for messages.
    fn describe(&self, step: u32) -> String {
        tell::name(self.plan, self.archive.toc(), step)
    }

    fn costs(&self, steps: impl IntoIterator<Item = u32>) -> Costs {
        tell::costs(self.plan, self.archive.toc(), steps)
    }
}
