//! Who runs what next.
//!
//! Workers take batches: the ready step with the longest way to the end first, and further ones with it until the
//! transaction is as large as it should be. There are no tiers: a step is ready as soon as all that it
//! waits for is done. A step whose locks conflict with a batch that runs is parked until that batch ends.

use super::locks::{Mode, Resource};
use super::{Plan, Work};
use std::collections::{BinaryHeap, HashMap};

/// Steps for one transaction, in the order in which they must run.
#[derive(Debug, Default)]
pub struct Batch {
    pub steps: Vec<u32>,
    lock_count: u64,
    /// Connections that have work of such a size when it begins, its own among them.
    pub busy: usize,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// To be tried again when nothing else runs.
    Again,
    /// Not run, because a step before it in the batch was not done.
    NotRun,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Running,
    Ended,
}

/// How large batches get.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Estimated microseconds of a batch of several steps.
    pub cost: u64,
    /// Locks of a batch of several steps: the server walks the list at each statement's end.
    pub locks: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { cost: 100_000, locks: 500 }
    }
}

pub struct Scheduler<'a> {
    plan: &'a Plan,
    limits: Limits,
    jobs: usize,
    waits: Vec<u32>,
    states: Vec<State>,
    ready: BinaryHeap<(u64, std::cmp::Reverse<u32>)>,
    ready_cost: u64,
    parked: HashMap<Resource, Vec<u32>>,
    held: HashMap<Resource, Vec<(Mode, u32)>>,
    again: Vec<u32>,
    running: usize,
    /// A step that is tried again runs alone.
    alone: bool,
    locks_held: u64,
    lock_budget: u64,
    left: usize,
}

impl<'a> Scheduler<'a> {
    /// `done`: steps that an earlier run has done. `lock_slots` as in [`super::Facts`].
    pub fn new(
        plan: &'a Plan,
        jobs: usize,
        lock_slots: u64,
        done: &[u32],
        limits: Limits,
    ) -> Scheduler<'a> {
        let mut scheduler = Scheduler {
            plan,
            limits,
            jobs: jobs.max(1),
            waits: plan.waits.clone(),
            states: vec![State::Waiting; plan.steps.len()],
            ready: BinaryHeap::new(),
            ready_cost: 0,
            parked: HashMap::new(),
            held: HashMap::new(),
            again: Vec::new(),
            running: 0,
            alone: false,
            locks_held: 0,
            lock_budget: lock_slots * 7 / 10,
            left: plan.steps.len(),
        };
        for &step in done {
            scheduler.states[step as usize] = State::Ended;
            scheduler.left -= 1;
        }
        // Followers of what was done before are released; milestones run by themselves.
        for &step in done {
            for &f in plan.followers(step as usize) {
                scheduler.waits[f as usize] -= 1;
            }
        }
        for step in 0..plan.steps.len() as u32 {
            if scheduler.waits[step as usize] == 0 {
                scheduler.make_ready(step);
            }
        }
        scheduler
    }

    /// Everything has ended.
    pub fn finished(&self) -> bool {
        self.left == 0
    }

    /// Steps that have not ended.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Nothing runs and nothing can: only with a plan that has a circle.
    pub fn stuck(&self) -> bool {
        self.left > 0 && self.running == 0 && self.ready.is_empty() && self.again.is_empty()
    }

    fn make_ready(&mut self, step: u32) {
        if self.states[step as usize] != State::Waiting {
            return;
        }
        let found = &self.plan.steps[step as usize];
        if found.work == Work::Milestone {
            self.settle(step);
            return;
        }
        self.ready.push((found.rank, std::cmp::Reverse(step)));
        self.ready_cost += u64::from(found.cost);
    }

    /// A step has ended for good; release those that wait for it. Iterative: milestones can follow each other.
    fn settle(&mut self, step: u32) {
        let mut stack = vec![step];
        while let Some(step) = stack.pop() {
            self.states[step as usize] = State::Ended;
            self.left -= 1;
            for &f in self.plan.followers(step as usize) {
                self.waits[f as usize] -= 1;
                if self.waits[f as usize] == 0 && self.states[f as usize] == State::Waiting {
                    match self.plan.steps[f as usize].work {
                        Work::Milestone => stack.push(f),
                        _ => self.make_ready(f),
                    }
                }
            }
        }
    }

    /// The resource that keeps a step from running now.
    fn conflict(&self, step: u32) -> Option<Resource> {
        let conflicting = self.plan.locks(step as usize).iter().find(|lock| {
            self.held
                .get(&lock.resource)
                .is_some_and(|held| held.iter().any(|(mode, _)| mode.conflicts(lock.mode)))
        });
        conflicting.map(|lock| lock.resource)
    }

    fn waits_at_its_end(&self, step: u32) -> bool {
        let work = &self.plan.steps[step as usize].work;
        matches!(work, Work::Group(group) if self.plan.groups[*group as usize].staged)
    }

    fn hold(&mut self, step: u32) {
        for lock in self.plan.locks(step as usize) {
            let held = self.held.entry(lock.resource).or_default();
            match held.iter_mut().find(|(mode, _)| *mode == lock.mode) {
                Some((_, count)) => *count += 1,
                None => held.push((lock.mode, 1)),
            }
        }
    }

    fn release(&mut self, step: u32) {
        for lock in self.plan.locks(step as usize) {
            if let Some(held) = self.held.get_mut(&lock.resource) {
                if let Some(at) = held.iter().position(|(mode, _)| *mode == lock.mode) {
                    held[at].1 -= 1;
                    if held[at].1 == 0 {
                        held.swap_remove(at);
                    }
                }
                if held.is_empty() {
                    self.held.remove(&lock.resource);
                }
            }
            for step in self.parked.remove(&lock.resource).unwrap_or_default() {
                let found = &self.plan.steps[step as usize];
                self.ready.push((found.rank, std::cmp::Reverse(step)));
                self.ready_cost += u64::from(found.cost);
            }
        }
    }

    /// The next batch for a free worker; `None` if nothing can run now.
    pub fn next_batch(&mut self) -> Option<Batch> {
        if self.alone {
            return None;
        }
        let mut batch = Batch::default();
        let mut cost = 0;
        // Few and cheap steps are spread over the workers, many go together.
        let share = (self.ready_cost / self.jobs as u64 / 2).min(self.limits.cost);
        let mut local: BinaryHeap<(u64, std::cmp::Reverse<u32>)> = BinaryHeap::new();
        let mut released: HashMap<u32, u32> = HashMap::new();
        let mut blocked = Vec::new();
        loop {
            let from_local = match (local.peek(), self.ready.peek()) {
                (None, None) => break,
                (Some(l), Some(r)) => l > r,
                (l, _) => l.is_some(),
            };
            let next = if from_local { local.pop() } else { self.ready.pop() };
            let Some((rank, std::cmp::Reverse(step))) = next else { break };
            let found = &self.plan.steps[step as usize];
            let (step_cost, locks) = (u64::from(found.cost), u64::from(found.lock_count));
            if !from_local {
                self.ready_cost -= step_cost;
            }
            if let Some(resource) = self.conflict(step) {
                // Steps whose turn comes only with this batch stay with those that wait.
                if !from_local {
                    self.parked.entry(resource).or_default().push(step);
                }
                continue;
            }
            let fits = batch.steps.is_empty()
                || (cost + step_cost <= share && batch.lock_count + locks <= self.limits.locks);
            let room = self.locks_held + batch.lock_count + locks <= self.lock_budget
                || (self.running == 0 && batch.steps.is_empty());
            // At its end a staged group waits for a lock that others of its family hold; a second one in the same
            // transaction would do so while it holds the first one's.
            let waits = self.waits_at_its_end(step);
            if !fits || !room || waits && batch.steps.iter().any(|s| self.waits_at_its_end(*s)) {
                if !from_local {
                    blocked.push((rank, step));
                }
                // Smaller steps further down may fit, but order counts for more.
                break;
            }
            cost += step_cost;
            batch.lock_count += locks;
            batch.steps.push(step);
            for &f in self.plan.followers(step as usize) {
                let count = released.entry(f).or_default();
                *count += 1;
                let follower = &self.plan.steps[f as usize];
                if self.waits[f as usize] == *count
                    && follower.work != Work::Milestone
                    && self.states[f as usize] == State::Waiting
                {
                    local.push((follower.rank, std::cmp::Reverse(f)));
                }
            }
        }
        for (rank, step) in blocked {
            self.ready.push((rank, std::cmp::Reverse(step)));
            self.ready_cost += u64::from(self.plan.steps[step as usize].cost);
        }
        if batch.steps.is_empty() {
            return self.again_batch();
        }
        self.start(&batch);
        batch.busy = self.busy(cost);
        Some(batch)
    }

    /// Connections that something of such a cost runs beside, itself included: what runs counts, and what is ready and not much
    /// smaller.
    fn busy(&self, cost: u64) -> usize {
        if cost < self.limits.cost {
            return self.jobs;
        }
        let free = self.jobs.saturating_sub(self.running);
        let large =
            |step: &&(u64, std::cmp::Reverse<u32>)| u64::from(self.cost(step.1 .0)) >= cost / 8;
        self.running + self.ready.iter().filter(large).take(free).count()
    }

    fn cost(&self, step: u32) -> u32 {
        self.plan.steps[step as usize].cost
    }

    /// Steps to be tried again, one at a time and alone, when nothing else can run.
    fn again_batch(&mut self) -> Option<Batch> {
        if self.running > 0 || self.again.is_empty() {
            return None;
        }
        let step = self.again.remove(0);
        let lock_count = u64::from(self.plan.steps[step as usize].lock_count);
        let batch = Batch { steps: vec![step], lock_count, busy: 1 };
        self.alone = true;
        self.start(&batch);
        Some(batch)
    }

    fn start(&mut self, batch: &Batch) {
        self.running += 1;
        self.locks_held += batch.lock_count;
        for &step in &batch.steps {
            self.states[step as usize] = State::Running;
            self.hold(step);
        }
    }

    /// A batch has ended; `outcome` tells of each of its steps. Steps that waited for a failed one are released as well:
    /// whether they can be done without it depends on what of it failed, which is for the executor to know.
    pub fn end_batch(&mut self, batch: &Batch, outcome: impl Fn(u32) -> Outcome) {
        self.running -= 1;
        self.alone = false;
        self.locks_held -= batch.lock_count;
        batch.steps.iter().for_each(|s| self.release(*s));
        let mut back = Vec::new();
        for &step in &batch.steps {
            if outcome(step) == Outcome::NotRun {
                self.states[step as usize] = State::Waiting;
                // The others become ready when what they wait for is done.
                if self.waits[step as usize] == 0 {
                    back.push(step);
                }
            }
        }
        for &step in &batch.steps {
            match outcome(step) {
                Outcome::NotRun => {}
                Outcome::Done | Outcome::Failed => self.settle(step),
                Outcome::Again => {
                    self.states[step as usize] = State::Waiting;
                    self.again.push(step);
                }
            }
        }
        back.into_iter().for_each(|s| self.make_ready(s));
        // In the archive's order.
        self.again.sort_unstable_by_key(|s| self.plan.entries(*s as usize).first().copied());
    }
}
