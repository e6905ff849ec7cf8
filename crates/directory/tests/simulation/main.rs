//! The directory's protocols in random steps, on a chunk store in memory: sessions that take turns at any call, statements that fail and
//! servers that crash between any two calls, beside a plain model of what the table holds. README.md of the crate says what is compared.
//!
//! `FIRN_SEED` repeats a run, `FIRN_STEPS` makes it longer: `FIRN_STEPS=10000000 cargo test --release -p firn-directory`.

mod cases;
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

use firn_directory::{allocation, ChunkStore, Cid, Keep};
use session::{Session, Shared};
use std::any::Any;
use std::collections::BTreeMap;
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
const OF_RUN: u64 = 600_000;
/// Steps of a world with so many rows that forwarding lists have several parts.
const OF_WIDE: u64 = 250;
const WIDE: usize = 1_800;
/// A run of so many steps has seen everything.
const ALL: u64 = 600_000;
/// Rows that a table has about.
const MANY: usize = 50;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What a run has to see to be one.
const TO_SEE: [&str; 22] = [
    "anchors changed under who locks them",
    "anchors removed",
    "changes refused, as they could not be serialized",
    "crashes",
    "dead stripes removed",
    "deadlocks",
    "directory rows moved as they are",
    "errors",
    "index passes",
    "lists pruned",
    "loads back",
    "moved rows hidden, as changed where they went",
    "moves followed",
    "offloads",
    "rewrites",
    "rewrites that translate places",
    "stripes of moved rows",
    "unchanged rows",
    "updates followed",
    "waits for a short lock",
    "waits for a transaction",
    "waits for the allocation lock",
];

/// In this block of virtual addresses the chunk ids of tombstones change, at row 228.
const FAR_BLOCK: u64 = 14_759_337;

/// Tables whose addresses begin just before where their keys go over into the next chunk id.
fn begin_far(session: &Session) {
    let (block, address) = (FAR_BLOCK, (1u64 << 32) - 40);
    let mut row = [0u8; 24];
    row[0] = 1;
    row[8..16].copy_from_slice(&block.to_le_bytes());
    row[16..].copy_from_slice(&address.to_le_bytes());
    session.now(|world| world.backends[session.me].levels.push(Default::default()));
    (&session).insert(allocation::KEY, &row, Cid(0), Keep::ForGood);
    firn_directory::cleaned::make_room(&session);
    session.now(|world| world.commit(session.me));
}

/// A stripe whose tombstones have two chunk ids.
fn begin_astride(session: &Session) {
    session.now(|world| world.backends[session.me].levels.push(Default::default()));
    session.load(270, 280, 0);
    session.commit();
}

/// A table with many rows in the row store, which every snapshot sees.
fn begin_wide(session: &Session) {
    session.now(|world| {
        world.wide = true;
        world.backends[session.me].levels.push(Default::default())
    });
    for _ in 0..WIDE {
        let row = session.new_row(None);
        session.insert_row(row);
    }
    session.now(|world| world.commit(session.me));
}

impl Session {
    fn below(&self, n: u32) -> u32 {
        self.now(|world| world.random.below(n))
    }

    fn some_id(&self) -> u64 {
        self.now(|world| {
            // Often one that others have in hand, too.
            let least = match world.random.one_in(2) {
                true => 0,
                false => world.random.next() % world.next_id,
            };
            let ids = &world.model.versions;
            ids.range(least..).chain(ids.iter()).next().map_or(1, |(id, _)| *id)
        })
    }

    /// A statement, in the transaction that there is.
    fn statement(&self) {
        self.lock_table();
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
            30..=31 => self.check_dirty(),
            _ => self.check(),
        }
        self.now(|world| world.backends[self.me].cid.0 += 1);
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
            // A snapshot that does not lock the table, and outlives what happens to that.
            20..=21 => {
                self.now(|world| {
                    let backend = &mut world.backends[self.me];
                    backend.levels.push(Default::default());
                    backend.repeatable = true;
                });
                drop(self.snapshot());
            }
            22..=36 => {
                self.now(|world| world.backends[self.me].levels.push(Default::default()));
                self.statement();
                self.commit();
            }
            37..=41 => {
                if self.begin_maintenance() {
                    let wide = self.now(|world| world.wide);
                    let most = 1 + self.below(if wide { WIDE as u32 } else { 12 }) as usize;
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
        let waits = self.now(|world| {
            let backend = &world.backends[self.me];
            backend.fixed.is_some() && !backend.touched
        });
        // It does something else for a while.
        if waits && self.below(8) > 0 {
            return;
        }
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
            21 => self.now(|world| {
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
#[derive(Default)]
struct Seen {
    steps: u64,
    calls: u64,
    tally: BTreeMap<&'static str, u64>,
}

/// One table's life.
fn world(seed: u64) -> Result<Seen, String> {
    let is_wide = seed % 64 == 7;
    let steps = if is_wide { OF_WIDE } else { OF_WORLD };
    let shared = Arc::new(Shared::new(World::new(seed, SESSIONS)));
    {
        let session = Session::new(shared.clone(), 0);
        session.quiet.set(true);
        if seed.is_multiple_of(2) {
            begin_far(&session);
        }
        if seed % 16 == 4 {
            begin_astride(&session);
        }
        if is_wide {
            begin_wide(&session);
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
    let mut world = shared.world();
    match ended {
        Ok(()) => {
            let tally = std::mem::take(&mut world.tally);
            Ok(Seen { steps: world.steps, calls: world.calls, tally })
        }
        Err(failure) => {
            world.history.iter().for_each(|line| println!("{line}"));
            Err(failure)
        }
    }
}

/// What VACUUM takes for a lost allocation row is not the first stripe of a table, which comes at any call of it.
#[test]
fn a_first_stripe_is_no_loss() {
    let mut was_loaded = 0;
    for call in 0..20 {
        let shared = Arc::new(Shared::new(World::new(1, 2)));
        let session = |me| {
            let session = Session::new(shared.clone(), me);
            session.quiet.set(true);
            session.now(|world| world.backends[me].levels.push(Default::default()));
            session
        };
        let (vacuum, load) = (session(0), session(1));
        let whole = shared.clone();
        let first_stripe = move || {
            // Nobody hands out while VACUUM looks.
            if whole.world().allocation.is_none() {
                load.load(3, 3, 0);
                load.commit();
            }
        };
        *vacuum.interrupt.borrow_mut() = Some((call, Box::new(first_stripe)));
        let end = allocation::handed_out(&&vacuum);
        assert!(matches!(end, Ok(None | Some(1))), "{end:?}, if a load comes at call {call}");
        was_loaded += u32::from(shared.world().allocated().is_some());
    }
    assert!(was_loaded > 0);
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
        match world(seed) {
            Ok(seen) => {
                all.steps += seen.steps;
                all.calls += seen.calls;
                for (what, times) in seen.tally {
                    *all.tally.entry(what).or_default() += times;
                }
            }
            Err(failure) => panic!("FIRN_SEED={seed} FIRN_STEPS=1: {failure}"),
        }
        seed += 1;
    }
    let minutes = begin.elapsed().as_secs_f64() / 60.0;
    println!(
        "{} worlds, {} steps, {} calls: {:.0} steps a minute",
        seed - first,
        all.steps,
        all.calls,
        all.steps as f64 / minutes
    );
    for (what, times) in &all.tally {
        println!("{times:>9} {what}");
    }
    for what in TO_SEE.iter().filter(|_| steps >= ALL) {
        assert!(all.tally.contains_key(what), "the run has not seen {what}");
    }
}
