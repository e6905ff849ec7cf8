//! What each connection did when, in bounded memory: a run may have millions of batches.

use super::{Costs, Kind};
use std::time::Duration;

/// A stretch of one connection's work.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub begin: Duration,
    pub end: Duration,
    /// Time within it at work, as merged spans have pauses between them.
    pub busy: Duration,
    /// By which it is coloured: the kind most of its time went to.
    pub kind: Kind,
    /// Its longest part.
    pub what: String,
    /// How long that took.
    pub longest: Duration,
    pub batches: u64,
    pub steps: u64,
    pub rows: u64,
    /// Not everything in it was done.
    pub failed: bool,
}

impl Span {
    fn length(&self) -> Duration {
        self.end.saturating_sub(self.begin)
    }

    /// Add what the same connection did next.
    fn take_up(&mut self, next: Span) {
        if next.busy > self.busy {
            self.kind = next.kind;
        }
        if next.longest > self.longest {
            self.longest = next.longest;
            self.what = next.what;
        }
        self.end = next.end;
        self.busy += next.busy;
        self.batches += next.batches;
        self.steps += next.steps;
        self.rows += next.rows;
        self.failed |= next.failed;
    }
}

/// The spans of all connections. More than about `most` of them are never kept: then neighbours are merged.
#[derive(Clone, Debug)]
pub struct Timeline {
    lanes: Vec<Vec<Span>>,
    count: usize,
    most: usize,
    /// Spans shorter than this have been merged with neighbours.
    grain: Duration,
}

impl Timeline {
    pub fn new(most: usize) -> Timeline {
        Timeline { lanes: Vec::new(), count: 0, most, grain: Duration::from_millis(1) }
    }

    /// A copy that keeps so many.
    pub fn to_most(&self, most: usize) -> Timeline {
        Timeline { most, ..self.clone() }
    }

    /// By connection, in order of time.
    pub fn lanes(&self) -> &[Vec<Span>] {
        &self.lanes
    }

    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn add(&mut self, worker: usize, span: Span) {
        if self.lanes.len() <= worker {
            self.lanes.resize_with(worker + 1, Vec::new);
        }
        self.lanes[worker].push(span);
        self.count += 1;
        // Twice as many may come before they are gone through, so that this costs little.
        if self.count > 2 * self.most {
            self.thin();
        }
    }

    /// Merge until there are no more than should be. A lane keeps at least one span.
    pub fn thin(&mut self) {
        let floor = self.lanes.iter().filter(|l| !l.is_empty()).count();
        while self.count > self.most.max(floor) {
            for lane in &mut self.lanes {
                merge(lane, self.grain);
            }
            self.count = self.lanes.iter().map(Vec::len).sum();
            if self.count > self.most {
                self.grain *= 2;
            }
        }
    }
}

/// Merge neighbours that a drawing with steps of `grain` could not tell apart: of one kind with a short pause between
/// them, or of whatever kinds if they are short together.
fn merge(lane: &mut Vec<Span>, grain: Duration) {
    let mut out: Vec<Span> = Vec::with_capacity(lane.len());
    for span in lane.drain(..) {
        if let Some(last) = out.last_mut() {
            let together = span.end.saturating_sub(last.begin);
            let pause = span.begin.saturating_sub(last.end);
            let alike = span.kind == last.kind && span.failed == last.failed;
            // Long ones stay by themselves as long as can be: they are what one looks for.
            let short = span.length() < grain * 4 || last.length() < grain * 4;
            if together <= grain || alike && short && pause <= grain / 2 {
                last.take_up(span);
                continue;
            }
        }
        out.push(span);
    }
    *lane = out;
}

/// How much connection time went to which kind, over time, in a fixed number of slices.
#[derive(Debug)]
pub struct Load {
    slices: Vec<Costs>,
    width: Duration,
    most: usize,
}

impl Load {
    /// `most` slices at most, which become wider as time goes on.
    pub fn new(most: usize) -> Load {
        Load { slices: Vec::new(), width: Duration::from_millis(10), most: most.max(2) }
    }

    pub fn width(&self) -> Duration {
        self.width
    }

    /// Busy microseconds by kind of each slice of time.
    pub fn slices(&self) -> &[Costs] {
        &self.slices
    }

    /// A connection was at work from `begin` to `end`; `cost` says at what.
    pub fn add(&mut self, begin: Duration, end: Duration, cost: &Costs) {
        while end.as_nanos() / self.width.as_nanos() >= self.most as u128 {
            self.double();
        }
        let width = self.width.as_nanos();
        let (from, to) = (begin.as_nanos(), end.as_nanos());
        let mut at = from;
        while at < to {
            let slice = (at / width) as usize;
            let until = to.min((slice as u128 + 1) * width);
            if self.slices.len() <= slice {
                self.slices.resize(slice + 1, Costs::default());
            }
            let part = share(cost, Duration::from_nanos((until - at) as u64));
            self.slices[slice].add_all(&part);
            at = until;
        }
    }

    fn double(&mut self) {
        self.width *= 2;
        let pairs = self.slices.chunks(2).map(|pair| {
            let mut sum = Costs::default();
            pair.iter().for_each(|c| sum.add_all(c));
            sum
        });
        self.slices = pairs.collect();
    }
}

/// A time in microseconds, shared out among kinds as their costs are.
pub fn share(cost: &Costs, time: Duration) -> Costs {
    let micros = time.as_micros() as u64;
    let total = cost.total();
    let main = cost.main().unwrap_or_default();
    if total == 0 {
        return Costs::of(main, micros);
    }
    let mut out = Costs::default();
    for kind in Kind::ALL {
        let part = u128::from(micros) * u128::from(cost.0[kind as usize]) / u128::from(total);
        out.add(kind, part as u64);
    }
    // What rounding left over.
    out.add(main, micros - out.total());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn span(begin: u32, end: u32, kind: Kind) -> Span {
        Span {
            begin: MS * begin,
            end: MS * end,
            busy: MS * (end - begin),
            kind,
            what: format!("{begin}"),
            longest: MS * (end - begin),
            batches: 1,
            steps: 2,
            rows: 3,
            failed: false,
        }
    }

    #[test]
    fn few_spans_stay_as_they_are() {
        let mut timeline = Timeline::new(10);
        timeline.add(1, span(0, 5, Kind::Schema));
        timeline.add(1, span(5, 6, Kind::Schema));
        timeline.thin();
        assert_eq!(timeline.lanes()[0], []);
        assert_eq!(timeline.lanes()[1].len(), 2);
    }

    #[test]
    fn many_spans_are_merged_and_nothing_is_lost() {
        let mut timeline = Timeline::new(500);
        let mut busy = Duration::ZERO;
        for n in 0..100_000u32 {
            let kind = Kind::ALL[(n / 700) as usize % 3];
            let one = span(n * 10, n * 10 + 3 + n % 7, kind);
            busy += one.busy;
            timeline.add(n as usize % 4, one);
            assert!(timeline.len() <= 1001);
        }
        timeline.thin();
        assert!(timeline.len() <= 500 && timeline.len() > 100, "{}", timeline.len());
        let all: Vec<&Span> = timeline.lanes().iter().flatten().collect();
        assert_eq!(all.len(), timeline.len());
        assert_eq!(all.iter().map(|s| s.batches).sum::<u64>(), 100_000);
        assert_eq!(all.iter().map(|s| s.steps).sum::<u64>(), 200_000);
        assert_eq!(all.iter().map(|s| s.rows).sum::<u64>(), 300_000);
        assert_eq!(all.iter().map(|s| s.busy).sum::<Duration>(), busy);
        for lane in timeline.lanes() {
            assert!(lane.windows(2).all(|w| w[0].end <= w[1].begin));
            assert!(lane.iter().all(|s| s.busy <= s.length() && s.longest <= s.busy));
        }
    }

    #[test]
    fn a_long_span_among_short_ones_keeps_its_name() {
        let mut lane: Vec<Span> = (0..50).map(|n| span(n * 2, n * 2 + 1, Kind::Schema)).collect();
        lane.push(span(100, 900, Kind::Indexes));
        lane.extend((0..50).map(|n| span(900 + n * 2, 901 + n * 2, Kind::Schema)));
        merge(&mut lane, MS * 64);
        let long: Vec<&Span> = lane.iter().filter(|s| s.kind == Kind::Indexes).collect();
        assert_eq!(long.len(), 1);
        assert_eq!((long[0].what.as_str(), long[0].length()), ("100", MS * 800));
        assert!(lane.len() < 10, "{}", lane.len());
    }

    #[test]
    fn failures_stay_visible() {
        let mut lane =
            vec![span(0, 10, Kind::Data), span(10, 20, Kind::Data), span(20, 30, Kind::Data)];
        lane[1].failed = true;
        merge(&mut lane, MS * 15);
        assert_eq!(lane.iter().map(|s| s.failed).collect::<Vec<_>>(), [false, true, false]);
    }

    #[test]
    fn more_connections_than_spans() {
        let mut timeline = Timeline::new(3);
        for n in 0..40 {
            timeline.add(n % 8, span(n as u32, n as u32 + 1, Kind::Data));
        }
        timeline.thin();
        assert_eq!(timeline.len(), 8);
    }

    #[test]
    fn load_keeps_the_sum() {
        let mut load = Load::new(64);
        let mut cost = Costs::of(Kind::Data, 3);
        cost.add(Kind::Indexes, 1);
        for n in 0..1000 {
            load.add(MS * n * 50, MS * (n * 50 + 40), &cost);
            load.add(MS * n * 50, MS * (n * 50 + 20), &Costs::default());
        }
        assert!(load.slices().len() <= 64);
        let mut sum = Costs::default();
        load.slices().iter().for_each(|s| sum.add_all(s));
        assert_eq!(sum.total(), 60_000_000);
        assert_eq!(sum.0[Kind::Schema as usize], 20_000_000);
        assert_eq!(sum.0[Kind::Indexes as usize], 10_000_000);
        // No slice has more than two connections.
        let most = load.slices().iter().map(Costs::total).max().unwrap();
        assert!(u128::from(most) <= 2 * load.width().as_micros());
    }

    #[test]
    fn shares_add_up() {
        let mut cost = Costs::of(Kind::Data, 1);
        cost.add(Kind::Schema, 1);
        cost.add(Kind::Indexes, 1);
        assert_eq!(share(&cost, MS).total(), 1000);
        assert_eq!(share(&Costs::default(), MS), Costs::of(Kind::Schema, 1000));
    }
}
