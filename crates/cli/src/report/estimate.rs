//! Rates, and when it will be done. Pure: time comes in as durations since the beginning.

use super::{Costs, Kind};
use std::collections::VecDeque;
use std::time::Duration;

/// Things that are counted and shown per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    pub statements: u64,
    pub bytes: u64,
    pub rows: u64,
    /// Connection time spent at work.
    pub busy: Duration,
}

/// The same per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub statements: f64,
    pub bytes: f64,
    pub rows: f64,
    /// Connections that worked at the same time.
    pub busy: f64,
}

/// The recent past, for rates.
#[derive(Debug)]
pub struct Window {
    samples: VecDeque<(Duration, Counts)>,
}

impl Default for Window {
    fn default() -> Window {
        Window { samples: VecDeque::from([(Duration::ZERO, Counts::default())]) }
    }
}

impl Window {
    /// What a rate is taken over.
    pub const LENGTH: Duration = Duration::from_secs(10);
    /// No sample follows another sooner.
    const APART: Duration = Duration::from_millis(250);

    /// Begin anew: what was before says nothing of what comes.
    pub fn restart(&mut self, now: Duration, counts: Counts) {
        self.samples.clear();
        self.samples.push_back((now, counts));
    }

    /// Note the counts at a time; calls in quick succession cost nothing.
    pub fn sample(&mut self, now: Duration, counts: Counts) {
        let last = self.samples.back().map_or(Duration::ZERO, |s| s.0);
        if now < last + Self::APART {
            return;
        }
        self.samples.push_back((now, counts));
        // One sample before the window stays, to begin at.
        while self.samples.get(1).is_some_and(|s| s.0 + Self::LENGTH <= now) {
            self.samples.pop_front();
        }
    }

    /// Rates up to now.
    pub fn rates(&self, now: Duration, counts: Counts) -> Rates {
        let Some((begin, before)) = self.samples.front() else { return Rates::default() };
        let seconds = now.saturating_sub(*begin).as_secs_f64();
        // The first moments would give absurd numbers.
        if seconds < 0.05 {
            return Rates::default();
        }
        let per = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        Rates {
            statements: per(counts.statements, before.statements),
            bytes: per(counts.bytes, before.bytes),
            rows: per(counts.rows, before.rows),
            busy: counts.busy.saturating_sub(before.busy).as_secs_f64() / seconds,
        }
    }
}

/// A batch that runs.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    pub cost: Costs,
    pub elapsed: Duration,
}

/// How far the work is, from estimated costs and the time that such work took so far.
///
/// Costs are estimates of another machine, wrong by a factor that differs by kind of work. So what is left of a kind is
/// priced at what its done part took, and until enough of it is done rather at what all kinds took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Estimate {
    /// What is to be done in all.
    pub total: Costs,
    /// What is settled, in this run and before it.
    pub settled: Costs,
    /// What was done in this run.
    pub done: Costs,
    /// The connection time that took, in microseconds.
    pub busy: Costs,
}

/// Estimated microseconds of work whose measured price counts as much as what was thought before.
const TRUST: f64 = 500_000.0;
/// A batch that takes longer than expected is never taken to be further than this.
const NEARLY: f64 = 0.95;

impl Estimate {
    /// Real microseconds for an estimated one, of a kind.
    fn price(&self, kind: Kind) -> f64 {
        let overall = (self.busy.total() as f64 + TRUST) / (self.done.total() as f64 + TRUST);
        let (busy, done) = (self.busy.0[kind as usize] as f64, self.done.0[kind as usize] as f64);
        (busy + TRUST * overall) / (done + TRUST)
    }

    /// Real microseconds of one connection for costs.
    fn priced(&self, costs: &Costs) -> f64 {
        Kind::ALL.iter().map(|k| costs.0[*k as usize] as f64 * self.price(*k)).sum()
    }

    /// Microseconds that a running batch has behind and before it.
    fn halves(&self, running: &Running) -> (f64, f64) {
        let whole = self.priced(&running.cost);
        let behind = (running.elapsed.as_micros() as f64).min(whole * NEARLY);
        (behind, whole - behind)
    }

    /// The part that is done, from 0 to 1; running batches count as far as they should be.
    pub fn fraction(&self, running: &[Running]) -> f64 {
        let total = self.priced(&self.total);
        if total <= 0.0 {
            return 1.0;
        }
        let behind: f64 = running.iter().map(|r| self.halves(r).0).sum();
        ((self.priced(&self.settled) + behind) / total).clamp(0.0, 1.0)
    }

    /// Time until all is done if `connections` go on working at the same time. `None`: nothing is known yet.
    pub fn left(&self, running: &[Running], connections: f64) -> Option<Duration> {
        if self.done.total() == 0 && running.is_empty() {
            return None;
        }
        let behind: f64 = running.iter().map(|r| self.halves(r).0).sum();
        let all = (self.priced(&self.total) - self.priced(&self.settled) - behind).max(0.0);
        // However many connections there are, one batch has only one.
        let longest = running.iter().map(|r| self.halves(r).1).fold(0.0, f64::max);
        Some(Duration::from_secs_f64((all / connections.max(1.0)).max(longest) / 1e6))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn counts(n: u64) -> Counts {
        Counts { statements: n, bytes: 10 * n, rows: 2 * n, busy: SECOND * n as u32 / 100 }
    }

    #[test]
    fn rates_are_those_of_the_window() {
        let mut window = Window::default();
        assert_eq!(window.rates(Duration::ZERO, counts(5)), Rates::default());
        for s in 0..30 {
            window.sample(SECOND * s, counts(100 * u64::from(s)));
        }
        let found = window.rates(SECOND * 30, counts(3000));
        assert_eq!(found, Rates { statements: 100.0, bytes: 1000.0, rows: 200.0, busy: 1.0 });
        // A standstill is seen in the end, and what came long before it is forgotten.
        for s in 30..45 {
            window.sample(SECOND * s, counts(3000));
        }
        assert_eq!(window.rates(SECOND * 45, counts(3000)).statements, 0.0);
        assert!(window.samples.len() <= 12, "{}", window.samples.len());
    }

    #[test]
    fn quick_samples_are_dropped() {
        let mut window = Window::default();
        for n in 0..10_000 {
            window.sample(Duration::from_micros(n * 100), counts(n));
        }
        assert!(window.samples.len() <= 5);
        window.restart(SECOND * 9, counts(500));
        assert_eq!(window.rates(SECOND * 10, counts(510)).statements, 10.0);
        // Counts that go back (nothing should make them) give no negative rate.
        assert_eq!(window.rates(SECOND * 10, counts(0)).statements, 0.0);
    }

    fn million(schema: u64, data: u64) -> Costs {
        let mut costs = Costs::of(Kind::Schema, schema * 1_000_000);
        costs.add(Kind::Data, data * 1_000_000);
        costs
    }

    #[test]
    fn half_done_is_half() {
        let estimate = Estimate {
            total: million(100, 0),
            settled: million(50, 0),
            done: million(50, 0),
            busy: million(100, 0),
        };
        assert!((estimate.fraction(&[]) - 0.5).abs() < 1e-9);
        // Each estimated second took two, and four connections work.
        let left = estimate.left(&[], 4.0).unwrap();
        assert!((left.as_secs_f64() - 25.0).abs() < 0.3, "{left:?}");
    }

    #[test]
    fn kinds_have_their_own_prices() {
        // Schema took as long as estimated, data three times as long; only data is left.
        let estimate = Estimate {
            total: million(100, 100),
            settled: million(100, 50),
            done: million(100, 50),
            busy: million(100, 150),
        };
        let left = estimate.left(&[], 1.0).unwrap().as_secs_f64();
        assert!((145.0..=151.0).contains(&left), "{left}");
        let fraction = estimate.fraction(&[]);
        assert!((fraction - 250.0 / 400.0).abs() < 0.01, "{fraction}");
    }

    #[test]
    fn what_runs_counts_as_far_as_it_should_be() {
        let mut estimate = Estimate { total: million(0, 10), ..Estimate::default() };
        let running = |s| [Running { cost: million(0, 10), elapsed: SECOND * s }];
        assert!((estimate.fraction(&running(4)) - 0.4).abs() < 1e-9);
        assert_eq!(estimate.left(&running(4), 8.0).unwrap().as_secs(), 6);
        // Overdue: nearly done, for ever.
        assert!((estimate.fraction(&running(1000)) - NEARLY).abs() < 1e-9);
        estimate.settled = estimate.total;
        assert_eq!(estimate.fraction(&[]), 1.0);
    }

    #[test]
    fn nothing_known_yet_and_nothing_to_do() {
        let estimate = Estimate { total: million(1, 1), ..Estimate::default() };
        assert_eq!(estimate.left(&[], 2.0), None);
        assert_eq!(Estimate::default().fraction(&[]), 1.0);
    }

    #[test]
    fn a_resumed_run_knows_what_was_done_before() {
        let estimate = Estimate {
            total: million(100, 0),
            settled: million(90, 0),
            done: million(0, 0),
            busy: million(0, 0),
        };
        assert!((estimate.fraction(&[]) - 0.9).abs() < 1e-9);
    }
}
