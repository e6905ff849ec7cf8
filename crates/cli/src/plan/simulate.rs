//! The schedule in virtual time: what a number of connections would bring.

use super::schedule::{Limits, Outcome, Scheduler};
use super::Plan;
use std::collections::HashMap;

/// What a simulated run gives, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    pub jobs: usize,
    pub elapsed: f64,
    /// The sum of all work.
    pub work: f64,
}

impl Prediction {
    /// How many connections worked at the same time on average.
    pub fn parallelism(&self) -> f64 {
        if self.elapsed == 0.0 {
            1.0
        } else {
            self.work / self.elapsed
        }
    }
}

/// What a transaction costs beyond its steps.
const COMMIT: f64 = 300.0;

/// Run the plan in virtual time on `jobs` connections to a server that has `cores` processors (`None`: enough).
pub fn simulate(plan: &Plan, jobs: usize, lock_slots: u64, cores: Option<usize>) -> Prediction {
    let mut scheduler = Scheduler::new(plan, jobs, lock_slots, &[], Limits::default());
    let mut now = 0.0;
    let mut work = 0.0;
    // Batches that run, with the work that is left of each.
    let mut running = Vec::new();
    loop {
        while running.len() < jobs.max(1) {
            let Some(batch) = scheduler.next_batch() else { break };
            let costs = batch.steps.iter().map(|s| f64::from(plan.steps[*s as usize].cost));
            let cost = COMMIT + costs.sum::<f64>();
            work += cost;
            running.push((cost, batch));
        }
        // All progress alike, slower if they are more than the processors.
        let rate = cores.map_or(1.0, |c| (c as f64 / running.len().max(1) as f64).min(1.0));
        let next = running.iter().map(|(left, _)| *left).fold(f64::INFINITY, f64::min);
        if running.is_empty() {
            break;
        }
        now += next / rate;
        for (left, _) in &mut running {
            *left -= next;
        }
        let mut still = Vec::with_capacity(running.len());
        for (left, batch) in running {
            if left > 1e-6 {
                still.push((left, batch));
            } else {
                scheduler.end_batch(&batch, |_| Outcome::Done);
            }
        }
        running = still;
    }
    Prediction { jobs, elapsed: now, work }
}

/// For comparison: what grouping by connected components of the dependencies gives, each component on one
/// connection, the largest first, as gprestore does it. Milestones, which are this planner's own, connect nothing.
pub fn components(plan: &Plan, jobs: usize) -> Prediction {
    let mut root: Vec<u32> = (0..plan.steps.len() as u32).collect();
    fn find(root: &mut [u32], mut n: u32) -> u32 {
        while root[n as usize] != n {
            root[n as usize] = root[root[n as usize] as usize];
            n = root[n as usize];
        }
        n
    }
    for step in 0..plan.steps.len() {
        for &f in plan.followers(step) {
            let milestone = |s: usize| plan.steps[s].work == super::Work::Milestone;
            if !milestone(step) && !milestone(f as usize) {
                let (a, b) = (find(&mut root, step as u32), find(&mut root, f));
                root[a as usize] = b;
            }
        }
    }
    let mut sizes = HashMap::<u32, f64>::new();
    let mut work = 0.0;
    for step in 0..plan.steps.len() as u32 {
        let cost = f64::from(plan.steps[step as usize].cost);
        work += cost;
        *sizes.entry(find(&mut root, step)).or_default() += cost;
    }
    let mut sizes: Vec<f64> = sizes.into_values().collect();
    sizes.sort_unstable_by(|a, b| b.total_cmp(a));
    let mut workers = vec![0.0f64; jobs.max(1)];
    for size in sizes {
        if let Some(least) = workers.iter_mut().min_by(|a, b| a.total_cmp(b)) {
            *least += size;
        }
    }
    let elapsed = workers.into_iter().fold(0.0, f64::max);
    Prediction { jobs, elapsed, work }
}
