//! The directory's protocols in random steps, on a chunk store in memory: sessions that take turns at any call, statements that fail and
//! servers that crash between any two calls, beside a plain model of what the table holds. README.md of the crate says what is compared.
//!
//! `FIRN_SEED` repeats a run, `FIRN_STEPS` makes it longer: `FIRN_STEPS=10000000 cargo test --release -p firn-directory`.

mod heap;
mod invariants;
mod maintenance;
mod memory;
mod model;
mod reader;
mod rewrite;
mod session;
mod world;
mod writer;

use firn_directory::{allocation, ChunkStore, Keep};
use session::{Session, Shared};
use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::channel;
use std::sync::Arc;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use world::{Doom, World};
use writer::Change;

/// Sessions of a world.
const SESSIONS: usize = 4;
/// Steps of a world, and of a run if nobody says otherwise.
const OF_WORLD: u64 = 4_000;
const OF_RUN: u64 = 400_000;
/// Rows that a table has about.
const MANY: usize = 50;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Tables whose addresses begin just before where their keys go over into the next chunk id.
fn begin_far(session: &Session) {
    let (block, address) = (14_759_160u64, (1u64 << 32) - 40);
    let mut row = [0u8; 24];
    row[0] = 1;
    row[8..16].copy_from_slice(&block.to_le_bytes());
    row[16..].copy_from_slice(&address.to_le_bytes());
    session.now(|world| world.backends[session.me].levels.push(Default::default()));
    (&session).insert(allocation::KEY, &row, 0, Keep::ForGood);
    firn_directory::cleaned::make_room(&session);
    session.now(|world| world.commit(session.me));
}

impl Session {
    fn below(&self, n: u32) -> u32 {
        self.now(|world| world.random.below(n))
    }

    fn some_id(&self) -> u64 {
        self.now(|world| {
            let least = world.random.next() % world.next_id;
            let ids = &world.model.versions;
            ids.range(least..).chain(ids.iter()).next().map_or(1, |(id, _)| *id)
        })
    }

    /// A statement, in the transaction that there is.
    fn statement(&self) {
        self.now(|world| world.backends[self.me].touched = true);
        let is_full = self.now(|world| world.model.versions.len() > MANY);
        let more = match self.below(8) {
            0 => self.below(20_000) as usize,
            _ => 0,
        };
        match self.below(40) {
            0..=6 if !is_full => {
                for _ in 0..=self.below(3) {
                    let row = self.new_row(None);
                    self.insert_row(row);
                }
            }
            7..=9 if !is_full => {
                let capacity = [1, 8, 291, 292, 600][self.below(5) as usize];
                self.load(1 + self.below(capacity.min(9)), capacity, more);
            }
            0..=14 => self.change(self.some_id(), Change::Delete),
            15..=24 => self.change(self.some_id(), Change::Update),
            25..=29 => self.change(self.some_id(), Change::Lock),
            _ => self.check(),
        }
        self.now(|world| world.backends[self.me].cid += 1);
    }

    /// A step outside of a transaction.
    fn step_outside(&self) {
        match self.below(60) {
            0..=19 => self.now(|world| {
                let repeatable = world.random.one_in(3);
                let backend = &mut world.backends[self.me];
                backend.levels.push(Default::default());
                backend.repeatable = repeatable;
            }),
            20..=36 => {
                self.now(|world| world.backends[self.me].levels.push(Default::default()));
                self.statement();
                self.commit();
            }
            37..=41 => {
                if self.begin_maintenance() {
                    let most = 1 + self.below(12) as usize;
                    self.compact(most, self.below(3) as usize * 7_000);
                    match self.below(6) {
                        0 => self.now(|world| world.rollback(self.me)),
                        _ => self.commit(),
                    }
                }
            }
            42..=46 => {
                if self.begin_maintenance() {
                    self.move_stripe();
                    match self.below(6) {
                        0 => self.now(|world| world.rollback(self.me)),
                        _ => self.commit(),
                    }
                }
            }
            47..=51 => {
                if self.begin_maintenance() {
                    self.vacuum(self.below(2) == 0);
                }
            }
            52..=54 => {
                if self.begin_maintenance() {
                    self.count();
                    self.commit();
                }
            }
            55..=56 => {
                if self.begin_rewrite() {
                    self.rewrite();
                }
            }
            57 => self.now(|world| world.model_prune()),
            _ => self.now(|world| world.check_invariants()),
        }
    }

    fn step_inside(&self) {
        match self.below(30) {
            0..=17 => self.statement(),
            18 => self.now(|world| {
                if world.backends[self.me].levels.len() < 4 {
                    world.backends[self.me].levels.push(Default::default());
                }
            }),
            19 => self.now(|world| {
                if world.backends[self.me].levels.len() > 1 {
                    world.release(self.me);
                }
            }),
            20 => self.now(|world| {
                if world.backends[self.me].levels.len() > 1 {
                    world.rollback(self.me);
                }
            }),
            // Only a snapshot: the table is not locked by it.
            21 => drop(self.snapshot()),
            22 => self.now(|world| {
                while !world.backends[self.me].levels.is_empty() {
                    world.rollback(self.me);
                }
            }),
            _ => self.commit(),
        }
    }

    /// What a step leaves behind that has not come to its end.
    fn recover(&self, doom: Doom) {
        match doom {
            Doom::Crash => self.restart(),
            Doom::Error | Doom::End => self.now(|world| {
                let backend = &mut world.backends[self.me];
                backend.waiting = None;
                backend.doomed = None;
                let levels = backend.levels.len();
                let back = if levels > 1 { world.random.below(levels as u32) } else { 0 };
                while world.backends[self.me].levels.len() > back as usize {
                    world.rollback(self.me);
                }
            }),
        }
    }

    /// All steps of a session.
    fn live(&self, steps: u64) {
        loop {
            let step = catch_unwind(AssertUnwindSafe(|| {
                self.give_way();
                let outside = self.now(|world| {
                    world.steps += 1;
                    world.backends[self.me].levels.is_empty()
                });
                match outside {
                    true => self.step_outside(),
                    false => self.step_inside(),
                }
            }));
            if let Err(panic) = step {
                match panic.downcast_ref::<Doom>() {
                    Some(doom) => self.recover(*doom),
                    None => self.now(|world| {
                        world.is_over = true;
                        world.failure.get_or_insert_with(|| text_of(panic.as_ref()));
                    }),
                }
            }
            let is_over = self.now(|world| {
                world.is_over |= world.steps >= steps;
                world.is_over
            });
            if is_over {
                return;
            }
        }
    }

    /// Everybody else is gone: what is there is what has to be there, and after VACUUM nothing else.
    fn check_at_end(&self) {
        self.quiet.set(true);
        self.now(|world| {
            world.is_over = false;
            for me in 0..world.backends.len() {
                world.backends[me].doomed = None;
                world.backends[me].waiting = None;
                while !world.backends[me].levels.is_empty() {
                    world.rollback(me);
                }
                world.backends[me] = Default::default();
            }
            world.check_invariants();
            world.backends[self.me].levels.push(Default::default());
        });
        self.check();
        self.check_counts();
        self.commit();
        // What an index pass has removed is known to be gone only when it has been noted, so twice.
        for _ in 0..2 {
            assert!(self.begin_maintenance(), "the table is still being maintained");
            self.vacuum(true);
        }
        self.now(|world| {
            world.check_invariants();
            world.check_nothing_is_left();
            world.backends[self.me].levels.push(Default::default());
        });
        self.check();
        self.commit();
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "a panic".to_owned())
}

/// What a world has seen.
#[derive(Default, Debug)]
struct Seen {
    steps: u64,
    calls: u64,
    crashes: u64,
}

/// One table's life.
fn world(seed: u64, steps: u64) -> Result<Seen, String> {
    let shared = Arc::new(Shared::new(World::new(seed, SESSIONS)));
    {
        let session = Session::new(shared.clone(), 0);
        session.quiet.set(true);
        if seed.is_multiple_of(2) {
            begin_far(&session);
        }
    }
    let (send, receive) = channel();
    let mut handles = Vec::new();
    for me in 0..SESSIONS {
        let (shared, send) = (shared.clone(), send.clone());
        handles.push(thread::spawn(move || {
            let session = Session::new(shared, me);
            drop(send);
            session.await_turn();
            session.live(steps);
            session.end();
        }));
    }
    drop(send);
    // All have begun to wait when all have let go of the channel.
    let _: Result<(), _> = receive.recv();
    shared.begin(handles.iter().map(|h| h.thread().clone()).collect());
    for handle in handles {
        handle.join().map_err(|panic| text_of(panic.as_ref()))?;
    }
    let failure = shared.world().failure.take();
    let ended = match failure {
        Some(failure) => Err(failure),
        None => catch_unwind(AssertUnwindSafe(|| Session::new(shared.clone(), 0).check_at_end()))
            .map_err(|panic| text_of(panic.as_ref())),
    };
    let world = shared.world();
    match ended {
        Ok(()) => Ok(Seen { steps: world.steps, calls: world.calls, crashes: world.crashes }),
        Err(failure) => {
            world.history.iter().for_each(|line| println!("{line}"));
            Err(failure)
        }
    }
}

#[test]
fn random_steps() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.as_nanos() as u64);
    let first = setting("FIRN_SEED").unwrap_or(now % 1_000_000_000);
    let steps = setting("FIRN_STEPS").unwrap_or(OF_RUN);
    println!("FIRN_SEED={first} FIRN_STEPS={steps}");
    let begin = Instant::now();
    let (mut all, mut seed) = (Seen::default(), first);
    while all.steps < steps {
        match world(seed, OF_WORLD) {
            Ok(seen) => {
                all.steps += seen.steps;
                all.calls += seen.calls;
                all.crashes += seen.crashes;
            }
            Err(failure) => panic!("FIRN_SEED={seed} FIRN_STEPS=1: {failure}"),
        }
        seed += 1;
    }
    let minutes = begin.elapsed().as_secs_f64() / 60.0;
    println!(
        "{} worlds, {} steps, {} calls, {} crashes: {:.0} steps a minute",
        seed - first,
        all.steps,
        all.calls,
        all.crashes,
        all.steps as f64 / minutes
    );
}
