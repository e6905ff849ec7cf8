//! Plain lines to a log, without a summary at the end: of `firn backup verify`.

use super::words::size;
use super::{Event, Watch};
use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Phases, finished tables worth mentioning, and how far it is every few seconds.
pub struct Lines<W> {
    out: Mutex<W>,
    /// Tables that took longer get a line of their own.
    long: Duration,
    began: Instant,
    /// Estimated costs.
    total: AtomicU64,
    settled: AtomicU64,
    tables: AtomicU64,
    tables_done: AtomicU64,
    /// What each connection has begun, and when.
    open: Mutex<HashMap<usize, (String, Instant)>>,
    rows: AtomicU64,
    bytes: AtomicU64,
    /// Milliseconds after the beginning when the last summary was written.
    last: AtomicU64,
}

/// Milliseconds between two summaries.
const EVERY: u64 = 5_000;
/// See [`Lines::long`].
const LONG: Duration = Duration::from_secs(2);

impl<W: Write + Send> Lines<W> {
    pub fn new(out: W) -> Self {
        let n = AtomicU64::default;
        Lines {
            out: Mutex::new(out),
            long: LONG,
            began: Instant::now(),
            total: n(),
            tables: n(),
            tables_done: n(),
            settled: n(),
            open: Mutex::default(),
            rows: n(),
            bytes: n(),
            last: n(),
        }
    }

    fn line(&self, line: &str) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // A log that cannot be written must not end a verification.
        let _ = writeln!(out, "firn: {line}");
    }

    fn summary(&self) {
        let now = self.began.elapsed().as_millis() as u64;
        let last = self.last.load(Ordering::Relaxed);
        let due = now >= last + EVERY
            && self.last.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !due {
            return;
        }
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let seconds = (now as f64 / 1000.0).max(0.001);
        let bytes = load(&self.bytes);
        self.line(&format!(
            "{} of {} tables, {} rows, {} ({}/s), about {} %",
            load(&self.tables_done),
            load(&self.tables),
            load(&self.rows),
            size(bytes),
            size((bytes as f64 / seconds) as u64),
            100 * load(&self.settled) / load(&self.total).max(1),
        ));
    }
}

impl<W: Write + Send> Watch for Lines<W> {
    fn event(&self, event: &Event) {
        match *event {
            Event::Phase(text) | Event::Note(text) => self.line(text),
            Event::Work { steps, cost } => {
                self.tables.store(steps as u64, Ordering::Relaxed);
                self.total.store(cost.total(), Ordering::Relaxed);
            }
            Event::Moved { rows, bytes, .. } => {
                self.rows.fetch_add(rows, Ordering::Relaxed);
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
                self.summary();
            }
            Event::Begin { worker, what, .. } => {
                let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
                open.insert(worker, (what.to_string(), Instant::now()));
            }
            Event::End { worker, did } => {
                self.tables_done.fetch_add(did.steps as u64, Ordering::Relaxed);
                self.settled.fetch_add(did.cost.total(), Ordering::Relaxed);
                let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&worker);
                let Some((name, began)) = open else { return };
                let elapsed = began.elapsed();
                if elapsed >= self.long {
                    let seconds = elapsed.as_secs_f64();
                    self.line(&format!("{name}: {} rows in {seconds:.1} s", did.rows));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Costs, Did, Kind};

    #[test]
    fn lines() {
        let lines = Lines { long: Duration::ZERO, ..Lines::new(Vec::new()) };
        let cost = Costs::of(Kind::Verify, 100);
        lines.event(&Event::Phase("comparing rows"));
        lines.event(&Event::Work { steps: 2, cost: Costs::of(Kind::Verify, 200) });
        lines.event(&Event::Begin { worker: 0, what: "s.t", steps: 1, cost });
        lines.event(&Event::End {
            worker: 0,
            did: Did { steps: 1, cost, rows: 5, ..Did::default() },
        });
        // Its time has come.
        let lines = Lines { began: Instant::now() - 2 * Duration::from_millis(EVERY), ..lines };
        lines.event(&Event::Moved { worker: None, rows: 0, bytes: 55 });
        let out = String::from_utf8(lines.out.into_inner().unwrap()).unwrap();
        assert_eq!(
            out,
            "firn: comparing rows\nfirn: s.t: 5 rows in 0.0 s\n\
             firn: 1 of 2 tables, 0 rows, 55 bytes (5 bytes/s), about 50 %\n"
        );
    }
}
