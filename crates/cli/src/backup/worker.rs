//! What each connection does: take the heaviest task that is left, copy it, and so on.

use super::halt::Halt;
use super::lane::{Lane, NewFile, Work};
use super::objects;
use super::session::{Follower, Snapshot};
use super::tasks::{Table, Task};
use super::Options;
use crate::archive::manifest::{self, TableData};
use crate::archive::rewrite::DataEntry;
use crate::error::{Error, ErrorKind, Result};
use crate::pg::Connection;
use crate::stop::Cancels;
use std::collections::VecDeque;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long connections may take to notice that the run is over.
const PATIENCE: Duration = Duration::from_secs(15);

/// What all connections share.
pub struct Plan {
    pub work: Arc<Work>,
    pub tasks: Mutex<VecDeque<Task>>,
    /// Entries with data, by the place that tables know.
    pub entries: Vec<DataEntry>,
    /// What compression adds to names.
    pub suffix: &'static str,
    /// The connection that holds the locks.
    pub leader: Mutex<Connection>,
}

impl Plan {
    fn next(&self) -> Option<Task> {
        self.tasks.lock().unwrap_or_else(|e| e.into_inner()).pop_front()
    }
}

/// Copies everything on several connections.
pub fn copy(
    plan: Plan,
    options: &Options,
    snapshot: &Snapshot,
    encoding: &str,
    halt: &Arc<Halt>,
) -> Result<()> {
    let jobs = {
        let tasks = plan.tasks.lock().unwrap_or_else(|e| e.into_inner());
        options.jobs.min(tasks.len())
    };
    let plan = Arc::new(plan);
    // As long as it takes: a connection may just have begun with the next table.
    let _cancels = halt.cancels(&plan.leader.lock().unwrap_or_else(|e| e.into_inner()));
    let (ended, ends) = channel();
    for number in 0..jobs {
        // What those before it have begun ends with this one's failure.
        let connected = Follower::connect(options, snapshot, encoding);
        let follower = connected.inspect_err(|e| halt.fail(e.clone()))?;
        let cancels = halt.cancels(&follower.connection);
        let (plan, halt, ended) = (Arc::clone(&plan), Arc::clone(halt), ended.clone());
        std::thread::Builder::new()
            .name(format!("firn-copy-{number}"))
            .spawn(move || {
                // The guard goes before the connection: nothing is cancelled that is gone.
                halt.watch(|| run(&plan, follower, cancels, number));
                let _ = ended.send(());
            })
            .map_err(|e| Error::io("could not start a thread", &e))?;
    }
    drop(ended);
    let mut left = jobs;
    let mut deadline = None;
    while left > 0 {
        match ends.recv_timeout(Duration::from_millis(100)) {
            Ok(()) => left -= 1,
            Err(RecvTimeoutError::Disconnected) => {
                halt.fail(Error::new(ErrorKind::Internal, "a thread panicked"));
                break;
            }
            Err(RecvTimeoutError::Timeout) if !halt.is_set() => {}
            Err(RecvTimeoutError::Timeout) => {
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + PATIENCE);
                if Instant::now() > deadline {
                    break;
                }
            }
        }
    }
    halt.check()
}

/// Works until there is nothing left to do. `number` is the connection's, from 0.
fn run(plan: &Plan, follower: Follower, cancels: Cancels, number: usize) -> Result<()> {
    // In the order in which they go.
    let (mut follower, _cancels) = (follower, cancels);
    let mut lane = Lane::start(Arc::clone(&plan.work), number)?;
    let work = &plan.work;
    while let Some(task) = plan.next() {
        work.halt.check()?;
        let name = task.shown();
        work.progress.begin(number, &name, task.weight());
        match task {
            Task::Table(table) => copy_table(plan, &mut follower, &mut lane, &table, &name)?,
            Task::Objects { oids, .. } => {
                let from = &follower.connection;
                objects::copy(from, &oids, plan.suffix, &mut lane, &work.halt, name)
                    .map_err(|e| about(e, "large objects"))?;
            }
        }
    }
    lane.finish()
}

fn copy_table(
    plan: &Plan,
    follower: &mut Follower,
    lane: &mut Lane,
    table: &Table,
    name: &str,
) -> Result<()> {
    let lock: [&[u8]; 3] = [b"LOCK TABLE ONLY ", &table.quoted, b" IN ACCESS SHARE MODE NOWAIT; "];
    let lock = if table.lockable() { lock.concat() } else { Vec::new() };
    let statement = [&lock[..], &table.copy].concat();
    if !table.lockable() {
        // What foreign tables show was asked for, by --include-foreign-data.
        let connection = &follower.connection;
        return connection.refusing("view", || {
            connection.start_copy(&statement).map_err(|e| about(e, name))?;
            stream(plan, connection, lane, table, name).map_err(|e| about(e, name))
        });
    }
    match follower.connection.start_copy(&statement) {
        Ok(()) => {
            stream(plan, &follower.connection, lane, table, name).map_err(|e| about(e, name))?;
            follower.count_table()
        }
        // Somebody waits to change the table, and new locks queue behind. The leader has its lock already.
        Err(e) if e.sqlstate.as_deref() == Some("55P03") => {
            let leader = plan.leader.lock().unwrap_or_else(|e| e.into_inner());
            plan.work.halt.check()?;
            leader.start_copy(&table.copy).map_err(|e| about(e, name))?;
            stream(plan, &leader, lane, table, name).map_err(|e| about(e, name))?;
            drop(leader);
            follower.begin_again()
        }
        Err(e) => Err(about(e, name)),
    }
}

/// Takes the rows of a COPY that has begun.
fn stream(
    plan: &Plan,
    connection: &Connection,
    lane: &mut Lane,
    table: &Table,
    name: &str,
) -> Result<()> {
    let entry = &plan.entries[table.place];
    lane.begin(NewFile {
        name: format!("{}{}", entry.file, plan.suffix),
        expected: table.weight,
        table: Some(TableData {
            schema: manifest::name(&entry.namespace),
            name: manifest::name(&entry.name),
            dump_id: entry.dump_id,
            rows: 0,
            bytes: 0,
            checksum: None,
            unchanged_since: None,
            basis: None,
        }),
    })?;
    while let Some(row) = connection.copy_row()? {
        lane.write(&row)?;
    }
    let rows = connection.copied()?;
    lane.end(Some(rows), Some(name.to_string()))
}

/// Says what was being copied.
fn about(e: Error, what: &str) -> Error {
    match e.kind {
        ErrorKind::Connection | ErrorKind::Statement => {
            let message = format!("could not copy {what}: {}", e.message);
            Error { message, ..e }
        }
        _ => e,
    }
}
