//! What a backup tells while it goes on, as events.

use crate::report::{Costs, Did, Event, Kind, Watch};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A backup that is watched; told by many threads.
pub struct Watched {
    watch: Arc<dyn Watch>,
    /// What each connection reads, and its weight.
    open: Mutex<Vec<Option<(String, u64)>>>,
}

/// What reading so many bytes of a table should cost.
fn cost(weight: u64) -> u64 {
    1000 + weight / 60
}

impl Watched {
    pub fn new(watch: Arc<dyn Watch>) -> Watched {
        Watched { watch, open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, Vec<Option<(String, u64)>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, worker: usize, weight: u64) {
        let cost = Costs::of(Kind::Data, cost(weight));
        let did = Did { steps: 1, cost, statements: 1, ok: true, ..Did::default() };
        self.watch.event(&Event::End { worker, did });
    }

    /// A new phase of the work begins.
    pub fn phase(&self, name: &str) {
        self.watch.event(&Event::Phase(name));
    }

    /// So much is to be done: tables (and groups of large objects), and bytes as the server estimates them.
    pub fn total(&self, tables: u64, bytes: u64) {
        let cost = Costs::of(Kind::Data, bytes / 60 + tables * cost(0));
        self.watch.event(&Event::Work { steps: tables as usize, cost });
    }

    /// A connection has read more rows and bytes (before compression).
    pub fn advance(&self, worker: usize, rows: u64, bytes: u64) {
        self.watch.event(&Event::Moved { worker: Some(worker), rows, bytes });
    }

    /// A connection begins with a table that is estimated to take so many bytes of the total.
    pub fn begin(&self, worker: usize, name: &str, weight: u64) {
        let before = {
            let mut open = self.open();
            if open.len() <= worker {
                open.resize(worker + 1, None);
            }
            open[worker].replace((name.to_string(), weight))
        };
        // All of it was read; the rest of its blocks is compressed and written while the next table is read.
        if let Some((_, weight)) = before {
            self.end(worker, weight);
        }
        let cost = Costs::of(Kind::Data, cost(weight));
        self.watch.event(&Event::Begin { worker, what: name, steps: 1, cost });
    }

    /// All of a table is written.
    pub fn done(&self, worker: usize, name: &str) {
        let ended = {
            let mut open = self.open();
            let place = open.get_mut(worker);
            place.and_then(|p| p.take_if(|(open, _)| open == name))
        };
        if let Some((_, weight)) = ended {
            self.end(worker, weight);
        }
    }

    /// Something a person should know.
    pub fn note(&self, line: &str) {
        self.watch.event(&Event::Note(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Reporter, Settings};
    use std::time::Duration;

    #[test]
    fn a_table_ends_once_whichever_comes_first() {
        let settings = Settings { command: "backup", quiet: true, jobs: 2, ..Settings::default() };
        let reporter = Reporter::start(settings).unwrap();
        let watched = Watched::new(Arc::new(reporter.clone()));
        watched.phase("copying");
        watched.total(3, 1800);
        watched.begin(1, "a", 600);
        watched.advance(1, 5, 600);
        // The next is begun before the last block of the one before is written.
        watched.begin(1, "b", 600);
        watched.done(1, "a");
        watched.done(1, "b");
        watched.begin(0, "c", 600);
        watched.advance(0, 7, 600);
        watched.done(0, "c");
        reporter.look(|progress| {
            assert_eq!((progress.steps, progress.settled, progress.batches), (3, 3, 3));
            assert_eq!(progress.fraction(), Some(1.0));
            let counts = progress.counts(Duration::ZERO);
            assert_eq!((counts.rows, counts.bytes), (12, 1200));
            assert_eq!(progress.busy(), 0);
        });
        assert!(!reporter.finish(None).unwrap());
    }
}
