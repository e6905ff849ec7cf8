//! How far a long function of a session is, for other sessions to see: the progress slots that every
//! backend has in PostgreSQL's shared status array (docs/decisions/0006-progress.md says why there).
//!
//! A slot carries the number of a command, a relation and twenty integers. PostgreSQL's own views pick
//! the slots of their command, so numbers that PostgreSQL does not know appear in none of them.
//! PostgreSQL empties the slot when a (sub)transaction is rolled back; after a subtransaction of firn's own what was reported before is taken up again.

use super::memory::resources_are_released;
use super::Oid;
use pgrx::pg_sys;
use std::cell::Cell;
use std::fmt;

/// What is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    Compact,
    Offload,
    Load,
    Check,
    Repair,
}

/// "fir" and a digit: far from the numbers that PostgreSQL counts up from 1.
const FIRST_COMMAND: u32 = 0x6669_7230;
const COMMANDS: [Command; 5] =
    [Command::Compact, Command::Offload, Command::Load, Command::Check, Command::Repair];

impl Command {
    fn number(self) -> u32 {
        FIRST_COMMAND + self as u32
    }
    fn of(number: u32) -> Option<Command> {
        COMMANDS.into_iter().find(|c| c.number() == number)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Command::Compact => "compact",
            Command::Offload => "offload",
            Command::Load => "load",
            Command::Check => "check",
            Command::Repair => "repair",
        })
    }
}

/// What it does at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Initializing,
    ReadingRowStore,
    Encoding,
    WritingChunks,
    InsertingIndexEntries,
    ReadingStripe,
    Uploading,
    Verifying,
    Downloading,
    WritingDirectory,
    CheckingStripes,
    CheckingIndexes,
}

const PHASES: [(Phase, &str); 12] = [
    (Phase::Initializing, "initializing"),
    (Phase::ReadingRowStore, "reading the row store"),
    (Phase::Encoding, "encoding"),
    (Phase::WritingChunks, "writing chunks"),
    (Phase::InsertingIndexEntries, "inserting index entries"),
    (Phase::ReadingStripe, "reading a stripe"),
    (Phase::Uploading, "uploading"),
    (Phase::Verifying, "verifying"),
    (Phase::Downloading, "downloading"),
    (Phase::WritingDirectory, "writing the directory"),
    (Phase::CheckingStripes, "checking stripes"),
    (Phase::CheckingIndexes, "checking indexes"),
];

/// What is counted. The order is that of the slot's integers and of the columns of `firn.activity`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    TablesDone,
    TablesTotal,
    StripesDone,
    StripesTotal,
    IndexesDone,
    IndexesTotal,
    RowsDone,
    BytesDone,
    BytesTotal,
}

/// How many things are counted.
pub const COUNTS: usize = 9;
/// The slot's first integer is the phase.
const PHASE: i32 = 0;
const _: () = assert!(Count::BytesTotal as usize + 1 == COUNTS);
const _: () = assert!(COUNTS < pg_sys::PGSTAT_NUM_PROGRESS_PARAM as usize);

/// The report of one function about one table; it ends when this is dropped.
pub struct Progress {
    counts: [Cell<i64>; COUNTS],
    /// The slot is ours. It is not while another command (such as COPY of a query that calls us) reports.
    ours: bool,
}

impl Progress {
    /// Begin to report on the table `table`, the one after the first `done` of `total`.
    pub fn begin(command: Command, table: Oid, done: usize, total: usize) -> Progress {
        // SAFETY: our own entry of the status array; null in a process without one.
        let ours = unsafe {
            !pg_sys::MyBEEntry.is_null()
                && (*pg_sys::MyBEEntry).st_progress_command
                    == pg_sys::ProgressCommandType::PROGRESS_COMMAND_INVALID
        };
        let progress = Progress { counts: Default::default(), ours };
        if ours {
            // SAFETY: plain call; the command is stored and compared, nothing else.
            unsafe { pg_sys::pgstat_progress_start_command(command.number(), table) }
            progress.set(Count::TablesDone, done as u64);
            progress.set(Count::TablesTotal, total as u64);
        }
        progress
    }

    fn store(&self, at: i32, value: i64) {
        if self.ours {
            // SAFETY: the index is within the slot's integers.
            unsafe { pg_sys::pgstat_progress_update_param(at, value) }
        }
    }

    /// Say what is being done now.
    pub fn phase(&self, phase: Phase) {
        self.store(PHASE, phase as i64);
    }

    /// Set a count. Costs little, and nothing when it has not changed.
    pub fn set(&self, count: Count, value: u64) {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        let cell = &self.counts[count as usize];
        if cell.replace(value) != value {
            self.store(count as i32 + 1, value);
        }
    }

    /// Add to a count.
    pub fn add(&self, count: Count, more: u64) {
        self.set(count, (self.counts[count as usize].get() as u64).saturating_add(more));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // After an error, the end of the (sub)transaction does it.
        if self.ours && !resources_are_released() {
            // SAFETY: plain call.
            unsafe { pg_sys::pgstat_progress_end_command() }
        }
    }
}

/// What this backend's slot reports, of whatever command. The end of a subtransaction that fails, also of one within a body that succeeds, clears the
/// slot, though the command that reports (COPY, say) goes on after it.
pub(super) struct Report {
    command: pg_sys::ProgressCommandType::Type,
    table: Oid,
    values: [i64; pg_sys::PGSTAT_NUM_PROGRESS_PARAM as usize],
}

impl Report {
    /// What it reports now; none in a process without a slot.
    pub fn of_this_backend() -> Option<Report> {
        // SAFETY: our own entry of the status array, which nobody else writes to; null in a process without one.
        unsafe { pg_sys::MyBEEntry.as_ref() }.map(|entry| Report {
            command: entry.st_progress_command,
            table: entry.st_progress_command_target,
            values: entry.st_progress_param,
        })
    }

    /// Report it again, if the slot has been cleared since.
    pub fn take_up(&self) {
        const NOTHING: pg_sys::ProgressCommandType::Type =
            pg_sys::ProgressCommandType::PROGRESS_COMMAND_INVALID;
        let now = Report::of_this_backend().map(|now| now.command);
        if self.command == NOTHING || now != Some(NOTHING) {
            return;
        }
        // SAFETY: plain calls; the indexes are those of the slot's integers.
        unsafe {
            pg_sys::pgstat_progress_start_command(self.command, self.table);
            // All together: there is nothing for a moment, and nothing half.
            let places: [i32; pg_sys::PGSTAT_NUM_PROGRESS_PARAM as usize] =
                std::array::from_fn(|at| at as i32);
            let (count, values) = (places.len() as i32, self.values.as_ptr());
            pg_sys::pgstat_progress_update_multi_param(count, places.as_ptr(), values);
        }
    }
}

/// A session at work.
pub struct Activity {
    pub pid: i32,
    pub database: Oid,
    /// None when the current role may not know.
    pub work: Option<Work>,
}

/// What a session is at.
pub struct Work {
    pub command: Command,
    pub table: Oid,
    pub phase: &'static str,
    pub counts: [i64; COUNTS],
}

/// All sessions at work on one of our commands. As in PostgreSQL's own progress views everybody may know of
/// a session that it works; on what, only its own role, and who may read all statistics.
pub fn activities() -> Vec<Activity> {
    let mut list = Vec::new();
    // SAFETY: the status functions make copies of all entries, which live to the end of the transaction.
    unsafe {
        let me = pg_sys::GetUserId();
        let all = pg_sys::has_privs_of_role(me, Oid::from(pg_sys::ROLE_PG_READ_ALL_STATS));
        for number in 1..=pg_sys::pgstat_fetch_stat_numbackends() {
            let Some(entry) = super::ext::local_status(number).as_ref() else { continue };
            let Some(command) = Command::of(entry.st_progress_command) else { continue };
            let may_know = all || pg_sys::has_privs_of_role(me, entry.st_userid);
            let integers = &entry.st_progress_param;
            let phase = PHASES.iter().find(|(p, _)| *p as i64 == integers[PHASE as usize]);
            let work = may_know.then(|| Work {
                command,
                table: entry.st_progress_command_target,
                phase: phase.map_or("unknown", |(_, name)| *name),
                counts: std::array::from_fn(|i| integers[i + 1]),
            });
            list.push(Activity { pid: entry.st_procpid, database: entry.st_databaseid, work });
        }
    }
    list
}

/// Run `body`, which waits for something outside of PostgreSQL; `pg_stat_activity` shows that.
pub fn waiting<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: plain stores to our own entry.
    unsafe { pg_sys::pgstat_report_wait_start(pg_sys::PG_WAIT_EXTENSION) }
    let result = body();
    // SAFETY: as above. After an error, PostgreSQL does this.
    unsafe { pg_sys::pgstat_report_wait_end() }
    result
}
