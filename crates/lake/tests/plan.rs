//! The planner, carried out on a model of a table with a real store in a folder, and killed at every step.

mod common;

use bytes::Bytes;
use common::{go_on, no_threads, Folder, Random};
use firn_lake::plan::{
    plan_load, plan_offload, unneeded, Intent, LoadStep, SkipReason, State, Step, Stripe, Table,
    Why,
};
use firn_lake::{random_nonce, ErrorKind, Store, StoreOptions};
use std::collections::BTreeMap;

const TABLE: Table = Table { system_identifier: 7, timeline: 1, database: 5, relation: 16384 };

/// What survives a crash: the directory, the intents, the chunks, and the store.
#[derive(Clone, Default)]
struct Durable {
    directory: BTreeMap<u32, Stripe>,
    intents: BTreeMap<u32, Intent>,
    chunks: BTreeMap<u32, Vec<u8>>,
}

impl Durable {
    fn with(contents: &BTreeMap<u32, Vec<u8>>) -> Durable {
        let mut d = Durable::default();
        for (slot, bytes) in contents {
            d.directory.insert(
                *slot,
                Stripe {
                    slot: *slot,
                    bytes: bytes.len() as u64,
                    state: State::Local,
                    generation: 1,
                },
            );
            d.chunks.insert(*slot, bytes.clone());
        }
        d
    }

    fn stripes(&self) -> Vec<Stripe> {
        self.directory.values().cloned().collect()
    }

    fn intents(&self) -> Vec<Intent> {
        self.intents.values().cloned().collect()
    }

    /// What any reader sees of a stripe.
    fn read(&self, slot: u32, store: &Store) -> Vec<u8> {
        let stripe = &self.directory[&slot];
        match &stripe.state {
            State::Local => self.chunks[&slot].clone(),
            State::Cold { key, .. } => {
                store.get_range(key, 0..stripe.bytes, &go_on).unwrap().to_vec()
            }
        }
    }

    fn carry_out(&mut self, step: &Step, store: &Store) {
        match step {
            Step::RecordIntent { slot, generation, key } => {
                let intent =
                    Intent { slot: *slot, generation: *generation, key: key.clone(), live: false };
                // In place of a dead run's, if there is one.
                self.intents.insert(*slot, intent);
            }
            Step::Upload { slot, key, .. } => {
                let bytes = Bytes::from(self.chunks[slot].clone());
                store.put(key, bytes, &go_on).unwrap();
            }
            Step::Verify { slot, key, bytes } => {
                let crc = crc32c::crc32c(&self.chunks[slot]);
                store.verify(key, *bytes, crc, &go_on).unwrap();
            }
            Step::Flip { slot, generation, key } => {
                let stripe = self.directory.get_mut(slot).unwrap();
                assert_eq!((&stripe.state, stripe.generation), (&State::Local, *generation));
                stripe.state = State::Cold { key: key.clone(), local_copy: true };
                assert_eq!(&self.intents.remove(slot).unwrap().key, key);
            }
            Step::FreeLocal { slot, .. } => {
                let State::Cold { local_copy, .. } =
                    &mut self.directory.get_mut(slot).unwrap().state
                else {
                    panic!("the chunks of a local stripe were freed");
                };
                *local_copy = false;
                self.chunks.remove(slot).unwrap();
            }
            Step::DropIntent { slot, key } => {
                assert_eq!(&self.intents.remove(slot).unwrap().key, key);
            }
        }
    }

    fn offload(&mut self, store: &Store, steps: usize) -> usize {
        let plan = plan_offload(&TABLE, &self.stripes(), &self.intents(), None, &mut random_nonce);
        let plan = plan.unwrap();
        for step in plan.steps.iter().take(steps) {
            self.carry_out(step, store);
        }
        plan.steps.len()
    }

    fn load(&mut self, store: &Store, steps: usize) -> usize {
        let plan = plan_load(&self.stripes());
        // A download belongs to the transaction that ends with its flip: what a crash leaves of it is void.
        let mut written = None;
        for step in plan.steps.iter().take(steps) {
            match step {
                LoadStep::Download { slot, key, bytes } => {
                    let bytes = store.get_range(key, 0..*bytes, &go_on).unwrap();
                    written = Some((*slot, bytes.to_vec()));
                }
                LoadStep::FlipLocal { slot, .. } => {
                    let (s, bytes) = written.take().unwrap();
                    assert_eq!(s, *slot);
                    self.chunks.insert(*slot, bytes);
                    self.directory.get_mut(slot).unwrap().state = State::Local;
                }
            }
        }
        plan.steps.len()
    }
}

fn contents(random: &mut Random, n: u32) -> BTreeMap<u32, Vec<u8>> {
    (0..n)
        .map(|i| {
            let length = 1 + random.usize_below(5000);
            (0x8000_0000 + i * 16, random.bytes(length))
        })
        .collect()
}

fn open(folder: &Folder) -> Store {
    Store::open(&StoreOptions::new(folder.url()), no_threads).unwrap()
}

#[test]
fn killed_at_every_step_nothing_is_lost() {
    let mut random = Random::new("killed_at_every_step");
    let whole = contents(&mut random, 3);
    let check = |d: &Durable, store: &Store, when: &str| {
        for (slot, bytes) in &whole {
            assert!(d.read(*slot, store) == *bytes, "{when}: stripe {slot:08x}");
        }
    };
    let steps = {
        let folder = Folder::new("plan-count");
        Durable::with(&whole).offload(&open(&folder), usize::MAX)
    };
    assert_eq!(steps, 15);
    // Killed after `first` steps, then again after `second` steps of the next run, then left to finish.
    for first in 0..=steps {
        for second in 0..=steps {
            let folder = Folder::new("plan");
            let store = open(&folder);
            let mut d = Durable::with(&whole);
            d.offload(&store, first);
            check(&d, &store, "after the first kill");
            d.offload(&store, second);
            check(&d, &store, "after the second kill");
            d.offload(&store, usize::MAX);
            check(&d, &store, "in the end");
            assert!(d.intents.is_empty() && d.chunks.is_empty());
            assert_eq!(d.offload(&store, usize::MAX), 0, "there was something left to do");
            // Every object is either named or listed as unneeded.
            let listed = store.list(&TABLE.prefix(), &go_on).unwrap();
            let spare = unneeded(&TABLE, &listed, &d.stripes(), &d.intents());
            assert_eq!(listed.len(), whole.len() + spare.len());
            assert!(spare.len() <= 2);
            assert!(spare.iter().all(|u| u.why == Why::StripeIsElsewhere));
        }
    }
}

/// What a database keeps of a run: intents are recorded at once, all else with the transaction.
#[test]
fn rolled_back_runs_leave_one_intent_for_a_slot() {
    let folder = Folder::new("plan-rolled-back");
    let store = open(&folder);
    let whole = contents(&mut Random::new("rolled_back_runs"), 3);
    let mut d = Durable::with(&whole);
    for steps in (0..=15).chain([usize::MAX, usize::MAX]) {
        let mut run = d.clone();
        let before = d.intents();
        let plan = plan_offload(&TABLE, &d.stripes(), &before, None, &mut random_nonce).unwrap();
        for step in plan.steps.iter().take(steps) {
            // Only where nothing was may a run take an intent away before it is at its flip.
            assert!(!matches!(step, Step::DropIntent { .. }), "{step}");
            run.carry_out(step, &store);
            if let Step::RecordIntent { slot, .. } = step {
                d.intents.insert(*slot, run.intents[slot].clone());
            }
        }
        assert!(d.intents().len() <= whole.len());
    }
    d.offload(&store, usize::MAX);
    assert!(d.intents.is_empty());
}

#[test]
fn back_and_forth_with_kills_at_random() {
    let mut random = Random::new("back_and_forth");
    let whole = contents(&mut random, 5);
    let folder = Folder::new("plan-random");
    let store = open(&folder);
    let mut d = Durable::with(&whole);
    for _ in 0..200 {
        let steps = random.usize_below(30);
        if random.below(2) == 0 {
            d.offload(&store, steps);
        } else {
            // The executor frees what is left to free before it loads.
            let plan = plan_offload(&TABLE, &d.stripes(), &d.intents(), Some(0), &mut random_nonce);
            for step in plan.unwrap().steps {
                d.carry_out(&step, &store);
            }
            d.load(&store, steps);
        }
        for (slot, bytes) in &whole {
            assert!(d.read(*slot, &store) == *bytes);
        }
        let listed = store.list("", &go_on).unwrap();
        for u in unneeded(&TABLE, &listed, &d.stripes(), &d.intents()) {
            let named = |s: &Stripe| matches!(&s.state, State::Cold { key, .. } if *key == u.key);
            assert!(!d.directory.values().any(named));
        }
    }
}

fn stripe(slot: u32, bytes: u64, state: State) -> Stripe {
    Stripe { slot, bytes, state, generation: 2 }
}

fn cold(key: &str, local_copy: bool) -> State {
    State::Cold { key: key.into(), local_copy }
}

#[test]
fn the_plan_as_a_dry_run_prints_it() {
    let stripes = [
        stripe(0x8000_0030, 400, State::Local),
        stripe(0x8000_0000, 100, State::Local),
        stripe(0x8000_0010, 200, cold("k", true)),
        stripe(0x8000_0020, 300, cold("l", false)),
        stripe(0x8000_0040, 50, State::Local),
    ];
    let intent = |slot, live| Intent { slot, generation: 1, key: format!("old-{slot:08x}"), live };
    let intents =
        [intent(0x8000_0000, false), intent(0x8000_0030, false), intent(0x8000_0040, true)];
    let plan = plan_offload(&TABLE, &stripes, &intents, Some(450), &mut || 0xab).unwrap();
    assert_eq!(
        plan.to_string(),
        "upload 1 stripes of 100 bytes, free 300 bytes, leave 3 stripes alone\n\
         stripe 80000030: drop the unfinished intent to use old-80000030\n\
         stripe 80000000: record the intent to use firn/7/00000001/5/16384/80000000-2-00000000000000ab.parquet\n\
         stripe 80000000: upload 100 bytes to firn/7/00000001/5/16384/80000000-2-00000000000000ab.parquet\n\
         stripe 80000000: read firn/7/00000001/5/16384/80000000-2-00000000000000ab.parquet back and compare\n\
         stripe 80000000: point the directory at firn/7/00000001/5/16384/80000000-2-00000000000000ab.parquet\n\
         stripe 80000000: free 100 bytes in the table\n\
         stripe 80000010: free 200 bytes in the table\n\
         stripe 80000020: is in the store already\n\
         stripe 80000030: is beyond the limit of this run\n\
         stripe 80000040: is being offloaded by another run\n"
    );
    assert_eq!(
        plan_load(&stripes).to_string(),
        "download 2 stripes of 500 bytes\n\
         stripe 80000010: download 200 bytes from k\n\
         stripe 80000010: point the directory at the table\n\
         stripe 80000020: download 300 bytes from l\n\
         stripe 80000020: point the directory at the table\n"
    );
}

#[test]
fn a_key_is_never_chosen_twice() {
    let key = |nonce| firn_lake::object_key(7, 1, 5, 16384, 0x8000_0000, 2, nonce);
    let stripes =
        [stripe(0x8000_0000, 1, State::Local), stripe(0x8000_0010, 1, cold(&key(2), false))];
    let intents = [Intent { slot: 0x8000_0000, generation: 2, key: key(1), live: false }];
    // A generator that repeats itself meets the crashed run's key and another stripe's.
    let mut nonces = [1, 2, 2, 3].into_iter();
    let plan = plan_offload(&TABLE, &stripes, &intents, None, &mut || nonces.next().unwrap());
    let chosen: Vec<String> = plan
        .unwrap()
        .steps
        .into_iter()
        .filter_map(|s| match s {
            Step::RecordIntent { key, .. } => Some(key),
            _ => None,
        })
        .collect();
    assert_eq!(chosen, vec![key(3)]);
}

#[test]
fn limits_and_nonsense() {
    let stripes: Vec<_> = (0..4).map(|n| stripe(n, 10, State::Local)).collect();
    let plan = |limit| plan_offload(&TABLE, &stripes, &[], limit, &mut random_nonce).unwrap();
    assert_eq!(plan(None).uploads, 4);
    assert_eq!(plan(Some(25)).upload_bytes, 20);
    assert_eq!(plan(Some(9)).steps, vec![]);
    assert!(plan(Some(9)).skipped.iter().all(|s| s.why == SkipReason::Limit));
    let twice = [stripes[0].clone(), stripes[0].clone()];
    let e = plan_offload(&TABLE, &twice, &[], None, &mut random_nonce).unwrap_err();
    assert_eq!(e.kind, ErrorKind::InvalidOptions);
}

#[test]
fn what_is_in_doubt_is_not_called_unneeded() {
    let key = |timeline, relation, slot, nonce| {
        firn_lake::object_key(7, timeline, 5, relation, slot, 1, nonce)
    };
    let listed: Vec<(String, u64)> = [
        key(1, 16384, 0x10, 1), // named
        key(1, 16384, 0x10, 2), // an earlier attempt
        key(1, 16384, 0x20, 3), // loaded back
        key(1, 16384, 0x30, 4), // rewritten
        key(1, 16384, 0x40, 5), // being uploaded
        key(1, 16384, 0x40, 6), // of a slot in progress
        key(2, 16384, 0x30, 7), // another timeline's
        key(1, 16385, 0x30, 8), // another table's
        "somebody/elses.parquet".into(),
        "firn/7/00000001/5/16384/notes.txt".into(),
    ]
    .into_iter()
    .map(|k| (k, 9))
    .collect();
    let stripes = [
        stripe(0x10, 9, cold(&listed[0].0, false)),
        stripe(0x20, 9, State::Local),
        stripe(0x40, 9, State::Local),
    ];
    let intents = [Intent { slot: 0x40, generation: 1, key: listed[4].0.clone(), live: true }];
    let found: Vec<(String, Why)> =
        unneeded(&TABLE, &listed, &stripes, &intents).into_iter().map(|u| (u.key, u.why)).collect();
    assert_eq!(
        found,
        vec![
            (listed[1].0.clone(), Why::StripeIsElsewhere),
            (listed[2].0.clone(), Why::StripeIsLocal),
            (listed[3].0.clone(), Why::StripeIsGone),
        ]
    );
}
