//! What `firn backup` tells, as events.

use super::{Costs, Did, Event, Kind, Reporter, Watch};
use crate::backup::{Done, Progress};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A backup that is watched.
pub struct Watched {
    reporter: Reporter,
    /// What each connection reads, and its weight.
    open: Mutex<Vec<Option<(String, u64)>>>,
}

/// What reading so many bytes of a table should cost.
fn cost(weight: u64) -> u64 {
    1000 + weight / 60
}

impl Watched {
    pub fn new(reporter: Reporter) -> Watched {
        Watched { reporter, open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, Vec<Option<(String, u64)>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, worker: usize, weight: u64) {
        let cost = Costs::of(Kind::Data, cost(weight));
        let did = Did { steps: 1, cost, statements: 1, ok: true, ..Did::default() };
        self.reporter.event(&Event::End { worker, did });
    }
}

impl Progress for Watched {
    fn phase(&self, name: &str) {
        self.reporter.event(&Event::Phase(name));
    }

    fn total(&self, tables: u64, bytes: u64) {
        let cost = Costs::of(Kind::Data, bytes / 60 + tables * cost(0));
        self.reporter.event(&Event::Work { steps: tables as usize, cost });
    }

    fn advance(&self, worker: Option<usize>, rows: u64, bytes: u64) {
        self.reporter.event(&Event::Moved { worker, rows, bytes });
    }

    fn begin(&self, worker: usize, name: &str, weight: u64) {
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
        self.reporter.event(&Event::Begin { worker, what: name, steps: 1, cost });
    }

    fn done(&self, done: &Done) {
        let ended = {
            let mut open = self.open();
            let place = open.get_mut(done.connection);
            place.and_then(|p| p.take_if(|(name, _)| *name == done.name))
        };
        if let Some((_, weight)) = ended {
            self.end(done.connection, weight);
        }
    }

    fn note(&self, line: &str) {
        self.reporter.event(&Event::Note(line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Settings;
    use std::time::Duration;

    fn done(name: &str, connection: usize) -> Done {
        let (rows, bytes, stored, weight, elapsed) = (0, 0, 0, 600, Duration::ZERO);
        Done { name: name.into(), rows, bytes, stored, weight, elapsed, connection }
    }

    #[test]
    fn a_table_ends_once_whichever_comes_first() {
        let settings = Settings { command: "backup", quiet: true, jobs: 2, ..Settings::default() };
        let reporter = Reporter::start(settings).unwrap();
        let watched = Watched::new(reporter.clone());
        watched.phase("copying");
        watched.total(3, 1800);
        watched.begin(1, "a", 600);
        watched.advance(Some(1), 5, 600);
        // The next is begun before the last block of the one before is written.
        watched.begin(1, "b", 600);
        watched.done(&done("a", 1));
        watched.done(&done("b", 1));
        watched.begin(0, "c", 600);
        watched.advance(None, 7, 600);
        watched.done(&done("c", 0));
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
