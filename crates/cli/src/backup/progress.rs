//! What a run tells while it goes on.

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A table, or a group of large objects, whose data is done.
#[derive(Clone, Debug)]
pub struct Done {
    /// `schema.table`, or what else it is.
    pub name: String,
    pub rows: u64,
    /// Bytes of data before compression.
    pub bytes: u64,
    /// Bytes as stored.
    pub stored: u64,
    /// Bytes it was estimated to take in the total.
    pub weight: u64,
    /// From its first to its last byte.
    pub elapsed: Duration,
    /// The number of the connection that read it, from 0.
    pub connection: usize,
}

/// Receives a run's progress; called from many threads.
pub trait Progress: Send + Sync {
    /// A new phase of the work begins.
    fn phase(&self, name: &str);
    /// So much is to be done: tables (and groups of large objects), and bytes as the server estimates them.
    fn total(&self, tables: u64, bytes: u64);
    /// More rows and bytes (before compression) were read, by that connection if it is known.
    fn advance(&self, connection: Option<usize>, rows: u64, bytes: u64);
    /// A connection begins with a table that is estimated to take so many bytes of the total.
    fn begin(&self, connection: usize, name: &str, weight: u64);
    /// A table is done.
    fn done(&self, done: &Done);
    /// Something a person should know.
    fn note(&self, line: &str);
}

/// Says nothing.
pub struct Silent;

impl Progress for Silent {
    fn phase(&self, _: &str) {}
    fn total(&self, _: u64, _: u64) {}
    fn advance(&self, _: Option<usize>, _: u64, _: u64) {}
    fn begin(&self, _: usize, _: &str, _: u64) {}
    fn done(&self, _: &Done) {}
    fn note(&self, _: &str) {}
}

/// Plain lines to a log: phases, finished tables worth mentioning, a summary every few seconds.
pub struct Lines<W> {
    out: Mutex<W>,
    /// A line for every table, however small.
    verbose: bool,
    began: Instant,
    total: AtomicU64,
    tables: AtomicU64,
    tables_done: AtomicU64,
    weight_done: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    /// Milliseconds after the beginning when the last summary was written.
    last: AtomicU64,
}

/// Milliseconds between two summaries.
const EVERY: u64 = 5_000;
/// Tables that took longer get a line of their own.
const LONG: Duration = Duration::from_secs(2);

impl<W: Write + Send> Lines<W> {
    pub fn new(out: W, verbose: bool) -> Self {
        let n = AtomicU64::default;
        Lines {
            out: Mutex::new(out),
            verbose,
            began: Instant::now(),
            total: n(),
            tables: n(),
            tables_done: n(),
            weight_done: n(),
            rows: n(),
            bytes: n(),
            last: n(),
        }
    }

    fn line(&self, line: &str) {
        let mut out = self.out.lock().unwrap_or_else(|e| e.into_inner());
        // A log that cannot be written must not end a backup.
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
            100 * load(&self.weight_done) / load(&self.total).max(1),
        ));
    }
}

impl<W: Write + Send> Progress for Lines<W> {
    fn phase(&self, name: &str) {
        self.line(name);
    }

    fn total(&self, tables: u64, bytes: u64) {
        self.tables.store(tables, Ordering::Relaxed);
        self.total.store(bytes, Ordering::Relaxed);
    }

    fn advance(&self, _: Option<usize>, rows: u64, bytes: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.summary();
    }

    fn begin(&self, _: usize, _: &str, _: u64) {}

    fn done(&self, done: &Done) {
        self.tables_done.fetch_add(1, Ordering::Relaxed);
        self.weight_done.fetch_add(done.weight, Ordering::Relaxed);
        if self.verbose || done.elapsed >= LONG {
            let bytes = match (done.bytes, done.stored) {
                (0, 0) => String::new(),
                (bytes, stored) => format!(", {} as {}", size(bytes), size(stored)),
            };
            let seconds = done.elapsed.as_secs_f64();
            self.line(&format!("{}: {} rows{bytes} in {seconds:.1} s", done.name, done.rows));
        }
    }

    fn note(&self, line: &str) {
        self.line(line);
    }
}

/// A number of bytes for people, as `pg_size_pretty` shows it.
pub fn size(bytes: u64) -> String {
    let mut n = bytes;
    for unit in ["bytes", "kB", "MB", "GB"] {
        if n < 10 * 1024 {
            return format!("{n} {unit}");
        }
        n = (n + 512) / 1024;
    }
    format!("{n} TB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (10_239, "10239 bytes"),
            (10_240, "10 kB"),
            (5 << 20, "5120 kB"),
            (50 << 20, "50 MB"),
            (1 << 40, "1024 GB"),
            (1 << 50, "1024 TB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn lines() {
        let lines = Lines::new(Vec::new(), true);
        lines.phase("reading the schema");
        lines.total(1, 100);
        lines.advance(None, 5, 50);
        lines.done(&Done {
            name: "s.t".into(),
            rows: 5,
            bytes: 50,
            stored: 20,
            weight: 100,
            elapsed: Duration::from_millis(300),
            connection: 0,
        });
        let out = String::from_utf8(lines.out.into_inner().unwrap()).unwrap();
        assert_eq!(
            out,
            "firn: reading the schema\nfirn: s.t: 5 rows, 50 bytes as 20 bytes in 0.3 s\n"
        );
    }
}
