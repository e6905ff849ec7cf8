//! All that is known of a run so far. Pure: events and moments come in, displays ask.

use super::estimate::{Counts, Estimate, Rates, Running, Window};
use super::timeline::{share, Load, Span, Timeline};
use super::{Costs, Did, Event, Kind, Setback};
use crate::error::Error;
use std::time::Duration;

/// A part of the work and when it was.
#[derive(Clone, Debug)]
pub struct Phase {
    pub name: String,
    pub begin: Duration,
    /// `None`: it goes on.
    pub end: Option<Duration>,
}

impl Phase {
    pub fn length(&self, now: Duration) -> Duration {
        self.end.unwrap_or(now).saturating_sub(self.begin)
    }
}

/// What a connection does now.
#[derive(Clone, Debug)]
pub struct Job {
    pub what: String,
    pub steps: usize,
    pub cost: Costs,
    pub begin: Duration,
    pub rows: u64,
    pub bytes: u64,
}

impl Job {
    pub fn kind(&self) -> Kind {
        self.cost.main().unwrap_or_default()
    }
}

/// A connection.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    pub job: Option<Job>,
    /// When the last job ended.
    pub idle_since: Duration,
    /// The server process.
    pub pid: Option<i32>,
    /// Time spent in jobs that have ended.
    pub busy: Duration,
}

/// The plan in numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planned {
    pub steps: usize,
    pub entries: usize,
    pub statements: u64,
    pub statements_archive: u64,
    pub bytes: u64,
}

/// A batch that took long.
#[derive(Clone, Debug, PartialEq)]
pub struct Slow {
    pub elapsed: Duration,
    pub what: String,
    pub kind: Kind,
    pub worker: usize,
    pub steps: usize,
    pub rows: u64,
    pub bytes: u64,
}

/// A statement that failed for good.
#[derive(Clone, Debug)]
pub struct Failed {
    pub what: String,
    pub statement: String,
    pub error: Error,
}

/// Work of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfKind {
    /// Connection time.
    pub busy: Duration,
    pub batches: u64,
}

/// How many of the slowest batches are kept.
const SLOWEST: usize = 10;
/// Spans and slices of time that are kept for the HTML report.
const SPANS: usize = 3000;
const SLICES: usize = 300;

#[derive(Debug)]
pub struct Progress {
    pub phases: Vec<Phase>,
    pub lanes: Vec<Lane>,
    pub planned: Option<Planned>,
    /// The database, once it is known.
    pub database: Option<String>,
    /// Steps of the phases so far, and those of them that are settled.
    pub steps: usize,
    pub settled: usize,
    /// Steps that an earlier run did.
    pub resumed: usize,
    pub transactions: u64,
    pub batches: u64,
    pub setbacks: [u64; Setback::ALL.len()],
    pub notes: u64,
    /// Errors that were passed over, of those that count.
    pub ignored: usize,
    /// Lines for the summary, by name.
    pub facts: Vec<(&'static str, String)>,
    pub slowest: Vec<Slow>,
    pub failed: Vec<Failed>,
    pub skipped: Vec<String>,
    pub kinds: [OfKind; Kind::ALL.len()],
    pub timeline: Timeline,
    pub load: Load,
    /// When the first batch began and the last ended.
    pub worked: Option<(Duration, Duration)>,
    /// Work was begun that a journal keeps account of.
    pub begun: bool,
    /// There is nothing that a journal would keep account of.
    pub unchanged: bool,
    /// The work is whole, by its own word.
    pub complete: bool,
    counts: Counts,
    window: Window,
    estimate: Estimate,
    /// Once shown, a bar does not go back.
    shown: f64,
}

impl Progress {
    /// `jobs` connections will work.
    pub fn new(jobs: usize) -> Progress {
        Progress {
            phases: Vec::new(),
            lanes: vec![Lane::default(); jobs],
            planned: None,
            database: None,
            steps: 0,
            settled: 0,
            resumed: 0,
            transactions: 0,
            batches: 0,
            setbacks: Default::default(),
            notes: 0,
            ignored: 0,
            facts: Vec::new(),
            slowest: Vec::new(),
            failed: Vec::new(),
            skipped: Vec::new(),
            kinds: Default::default(),
            timeline: Timeline::new(SPANS),
            load: Load::new(SLICES),
            worked: None,
            begun: false,
            unchanged: false,
            complete: false,
            counts: Counts::default(),
            window: Window::default(),
            estimate: Estimate::default(),
            shown: 0.0,
        }
    }

    /// Take note of an event. For a batch's end, returns what the connection had begun.
    pub fn event(&mut self, now: Duration, event: &Event) -> Option<Job> {
        match event {
            Event::Phase(name) => self.phase(now, name),
            Event::Target { database, .. } => self.database = Some(database.to_string()),
            Event::Planned { steps, entries, statements, statements_archive, bytes } => {
                self.planned = Some(Planned {
                    steps: *steps,
                    entries: *entries,
                    statements: *statements,
                    statements_archive: *statements_archive,
                    bytes: *bytes,
                });
            }
            Event::Work { steps, cost } => {
                (self.steps, self.settled, self.shown) = (*steps, 0, 0.0);
                self.begun = true;
                self.estimate = Estimate { total: *cost, ..Estimate::default() };
                self.window.restart(now, self.counts(now));
            }
            Event::Resumed { done, cost } => {
                self.resumed = *done;
                self.settled += done;
                self.estimate.settled.add_all(cost);
            }
            Event::Connected { worker, pid } => self.lane(*worker).pid = Some(*pid),
            Event::Begin { worker, what, steps, cost } => {
                let job = Job {
                    what: what.to_string(),
                    steps: *steps,
                    cost: *cost,
                    begin: now,
                    rows: 0,
                    bytes: 0,
                };
                self.lane(*worker).job = Some(job);
                self.worked.get_or_insert((now, now));
            }
            Event::Moved { worker, rows, bytes } => {
                self.counts.rows += rows;
                self.counts.bytes += bytes;
                if let Some(job) = worker.and_then(|w| self.lane(w).job.as_mut()) {
                    job.rows += rows;
                    job.bytes += bytes;
                }
            }
            Event::Undone { worker, bytes } => {
                self.counts.bytes = self.counts.bytes.saturating_sub(*bytes);
                if let Some(job) = &mut self.lane(*worker).job {
                    job.bytes = job.bytes.saturating_sub(*bytes);
                }
            }
            Event::End { worker, did } => return self.end(now, *worker, did),
            Event::Failed { what, statement, error } => self.failed.push(Failed {
                what: what.to_string(),
                statement: super::words::cut(statement, 10_000),
                error: (*error).clone(),
            }),
            Event::Skipped { what } => self.skipped.push(what.to_string()),
            Event::Anew => {
                self.failed.clear();
                self.skipped.clear();
            }
            Event::Setback { setback, .. } => self.setbacks[*setback as usize] += 1,
            Event::Fact { name, value } => self.facts.push((name, value.to_string())),
            Event::Note(_) => self.notes += 1,
            Event::Ignored(errors) => self.ignored += *errors,
            Event::Unchanged => self.unchanged = true,
            Event::Finished => {
                self.complete = true;
                self.close(now);
            }
        }
        None
    }

    fn phase(&mut self, now: Duration, name: &str) {
        self.close(now);
        self.phases.push(Phase { name: name.to_string(), begin: now, end: None });
        (self.steps, self.settled, self.shown) = (0, 0, 0.0);
        self.estimate = Estimate::default();
    }

    /// Nothing goes on any more.
    pub fn close(&mut self, now: Duration) {
        if let Some(last) = self.phases.last_mut() {
            last.end.get_or_insert(now);
        }
    }

    fn lane(&mut self, worker: usize) -> &mut Lane {
        if self.lanes.len() <= worker {
            self.lanes.resize_with(worker + 1, Lane::default);
        }
        &mut self.lanes[worker]
    }

    fn end(&mut self, now: Duration, worker: usize, did: &Did) -> Option<Job> {
        let lane = self.lane(worker);
        lane.idle_since = now;
        let mut job = lane.job.take()?;
        let elapsed = now.saturating_sub(job.begin);
        lane.busy += elapsed;
        job.rows += did.rows;
        self.counts.rows += did.rows;
        self.counts.statements += did.statements;
        self.transactions += did.transactions;
        self.batches += 1;
        self.settled += did.steps;
        self.estimate.settled.add_all(&did.cost);
        let busy = share(&job.cost, elapsed);
        // Prices are learned from what went well.
        if did.ok {
            self.estimate.done.add_all(&did.cost);
            self.estimate.busy.add_all(&busy);
        }
        for kind in Kind::ALL {
            self.kinds[kind as usize].busy += Duration::from_micros(busy.0[kind as usize]);
        }
        self.kinds[job.kind() as usize].batches += 1;
        self.load.add(job.begin, now, &job.cost);
        self.slow(worker, elapsed, &job);
        let first = self.worked.map_or(job.begin, |w| w.0);
        self.worked = Some((first, now));
        let span = Span {
            begin: job.begin,
            end: now,
            busy: elapsed,
            kind: job.kind(),
            what: job.what.clone(),
            longest: elapsed,
            batches: 1,
            steps: job.steps as u64,
            rows: job.rows,
            failed: !did.ok,
        };
        self.timeline.add(worker, span);
        let counts = self.counts(now);
        self.window.sample(now, counts);
        Some(job)
    }

    fn slow(&mut self, worker: usize, elapsed: Duration, job: &Job) {
        let at = self.slowest.partition_point(|s| s.elapsed >= elapsed);
        if at >= SLOWEST {
            return;
        }
        let slow = Slow {
            elapsed,
            what: job.what.clone(),
            kind: job.kind(),
            worker,
            steps: job.steps,
            rows: job.rows,
            bytes: job.bytes,
        };
        self.slowest.insert(at, slow);
        self.slowest.truncate(SLOWEST);
    }

    /// Counts up to now; connection time includes that of batches that run.
    pub fn counts(&self, now: Duration) -> Counts {
        let running =
            self.lanes.iter().filter_map(|l| Some(now.saturating_sub(l.job.as_ref()?.begin)));
        let ended = self.lanes.iter().map(|l| l.busy);
        Counts { busy: running.chain(ended).sum(), ..self.counts }
    }

    /// Called now and then, also when no event comes.
    pub fn tick(&mut self, now: Duration) {
        self.window.sample(now, self.counts(now));
        let fraction = self.estimate.fraction(&self.running(now));
        self.shown = self.shown.max(fraction);
    }

    fn running(&self, now: Duration) -> Vec<Running> {
        let jobs = self.lanes.iter().filter_map(|l| l.job.as_ref());
        jobs.map(|j| Running { cost: j.cost, elapsed: now.saturating_sub(j.begin) }).collect()
    }

    pub fn rates(&self, now: Duration) -> Rates {
        self.window.rates(now, self.counts(now))
    }

    /// The part of the phase's work that is done, from 0 to 1; `None` for phases of unknown length.
    pub fn fraction(&self) -> Option<f64> {
        (self.steps > 0).then_some(match self.settled >= self.steps {
            true => 1.0,
            // Not before all is done.
            false => self.shown.min(0.999),
        })
    }

    /// Time until the phase's work is done.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        if self.steps == 0 {
            return None;
        }
        let busy = self.rates(now).busy;
        let connections = if busy > 0.0 { busy } else { self.lanes.len() as f64 };
        self.estimate.left(&self.running(now), connections)
    }

    /// Connections at work now.
    pub fn busy(&self) -> usize {
        self.lanes.iter().filter(|l| l.job.is_some()).count()
    }

    /// How many connections worked at the same time on average, from the first batch's begin to the last one's end.
    pub fn parallelism(&self) -> Option<f64> {
        let (begin, end) = self.worked?;
        let wall = end.saturating_sub(begin).as_secs_f64();
        let busy: Duration = self.lanes.iter().map(|l| l.busy).sum();
        (wall > 0.0).then(|| busy.as_secs_f64() / wall)
    }

    /// The phase that goes on.
    pub fn current(&self) -> Option<&Phase> {
        self.phases.last().filter(|p| p.end.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn cost(n: u64) -> Costs {
        Costs::of(Kind::Data, n)
    }

    fn begin(p: &mut Progress, at: u64, worker: usize, c: u64) {
        p.event(ms(at), &Event::Begin { worker, what: "TABLE DATA a.b", steps: 1, cost: cost(c) });
    }

    fn end(p: &mut Progress, at: u64, worker: usize, c: u64) -> Option<Job> {
        let did =
            Did { steps: 1, cost: cost(c), statements: 3, transactions: 1, rows: 5, ok: true };
        p.event(ms(at), &Event::End { worker, did })
    }

    /// Two connections, each at work for half of ten seconds.
    fn run() -> Progress {
        let mut p = Progress::new(2);
        p.event(ms(0), &Event::Phase("restoring"));
        p.event(ms(0), &Event::Work { steps: 10, cost: cost(10_000_000) });
        for n in 0..10 {
            begin(&mut p, n * 1000, (n % 2) as usize, 1_000_000);
            p.event(
                ms(n * 1000 + 500),
                &Event::Moved { worker: Some((n % 2) as usize), rows: 0, bytes: 1700 },
            );
            // Of a transaction that failed.
            p.event(ms(n * 1000 + 500), &Event::Undone { worker: (n % 2) as usize, bytes: 700 });
            p.tick(ms(n * 1000 + 500));
            let job = end(&mut p, n * 1000 + 1000, (n % 2) as usize, 1_000_000).unwrap();
            assert_eq!((job.rows, job.bytes), (5, 1000));
        }
        p
    }

    #[test]
    fn a_run_adds_up() {
        let mut p = run();
        let counts = p.counts(ms(10_000));
        assert_eq!((counts.rows, counts.bytes, counts.statements), (50, 10_000, 30));
        assert_eq!(counts.busy, ms(10_000));
        assert_eq!(p.parallelism(), Some(1.0));
        assert_eq!(p.fraction(), Some(1.0));
        assert_eq!((p.transactions, p.batches, p.timeline.len()), (10, 10, 10));
        assert_eq!(p.kinds[Kind::Data as usize].busy, ms(10_000));
        assert_eq!(p.left(ms(10_000)), Some(ms(0)));
        p.event(ms(11_000), &Event::Finished);
        assert!(p.complete && p.current().is_none());
        assert_eq!(p.phases[0].length(ms(50_000)), ms(11_000));
    }

    #[test]
    fn the_bar_never_goes_back_nor_ends_early() {
        let mut p = Progress::new(1);
        p.event(ms(0), &Event::Work { steps: 2, cost: cost(2_000_000) });
        begin(&mut p, 0, 0, 1_000_000);
        let mut last = 0.0;
        for t in 0..100 {
            p.tick(ms(t * 100));
            let found = p.fraction().unwrap();
            assert!(found >= last && found < 0.5, "{found}");
            last = found;
        }
        // It took ten times as long as estimated, so the other will, too.
        end(&mut p, 10_000, 0, 1_000_000);
        p.tick(ms(10_000));
        assert!((p.fraction().unwrap() - 0.5).abs() < 0.01);
        let left = p.left(ms(10_000)).unwrap();
        assert!(left > ms(6_000) && left < ms(11_000), "{left:?}");
        begin(&mut p, 10_000, 0, 1_000_000);
        p.tick(ms(90_000));
        assert!(p.fraction().unwrap() < 1.0);
    }

    #[test]
    fn phases_without_known_work_have_no_bar() {
        let mut p = run();
        p.event(ms(12_000), &Event::Phase("checking"));
        assert_eq!((p.fraction(), p.left(ms(12_500))), (None, None));
        assert_eq!(p.phases[0].end, Some(ms(12_000)));
        assert_eq!(p.current().unwrap().name, "checking");
    }

    #[test]
    fn what_was_done_before_counts_as_settled() {
        let mut p = Progress::new(2);
        p.event(ms(0), &Event::Work { steps: 4, cost: cost(4_000_000) });
        p.event(ms(0), &Event::Resumed { done: 2, cost: cost(2_000_000) });
        p.tick(ms(1));
        assert!((p.fraction().unwrap() - 0.5).abs() < 1e-6);
        for n in 0..2 {
            begin(&mut p, n * 10 + 1, 0, 1_000_000);
            end(&mut p, n * 10 + 2, 0, 1_000_000);
        }
        assert_eq!(p.fraction(), Some(1.0));
        assert_eq!(p.resumed, 2);
    }

    #[test]
    fn the_slowest_are_kept_in_order() {
        let mut p = Progress::new(1);
        let mut at = 0;
        for n in 0..100u64 {
            begin(&mut p, at, 0, 1);
            at += 1 + n * 7 % 100;
            end(&mut p, at, 0, 1);
        }
        let found: Vec<u64> = p.slowest.iter().map(|s| s.elapsed.as_millis() as u64).collect();
        assert_eq!(found, (91..=100).rev().collect::<Vec<_>>());
    }

    #[test]
    fn an_end_without_a_begin_is_nothing() {
        let mut p = Progress::new(1);
        assert!(end(&mut p, 5, 7, 1).is_none());
        assert_eq!(p.batches, 0);
    }
}
