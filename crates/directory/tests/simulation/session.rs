//! A session's thread. One of them runs at a time, and at any call to the server another may go on, the server may crash, or the
//! statement fail; which, the world's random numbers say, so a seed says it all.

use crate::heap::Xid;
use crate::world::{Doom, Snap, Snapshot, Wait, World};
use firn_directory::seen::Seen;
use firn_directory::Place;
use firn_format::Tid;
use std::cell::{Cell, RefCell};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};

/// Of so many calls one is where another session goes on.
const SWITCH: u32 = 24;
/// Of so many calls one is where the server crashes.
const CRASH: u32 = 30_000;
/// Of so many calls one fails.
const FAIL: u32 = 2_000;

/// Bytes that a session's memory of the directory may take: a few entries.
const SEEN_BYTES: usize = 6_000;

pub struct Shared {
    world: Mutex<World>,
    turn: AtomicUsize,
    threads: OnceLock<Vec<Thread>>,
}

impl Shared {
    pub fn new(world: World) -> Shared {
        Shared { world: Mutex::new(world), turn: AtomicUsize::new(0), threads: OnceLock::new() }
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All sessions are there: they begin.
    pub fn begin(&self, threads: Vec<Thread>) {
        for thread in self.threads.get_or_init(|| threads) {
            thread.unpark();
        }
    }
}

/// What somebody else does in the middle of what a session does.
pub type Interrupt = Box<dyn FnOnce()>;

pub struct Session {
    pub shared: Arc<Shared>,
    pub me: usize,
    seen: RefCell<Seen<u32>>,
    /// Nothing happens at its calls: it is the only one that runs.
    pub quiet: Cell<bool>,
    /// But this, at the call after so many.
    pub interrupt: RefCell<Option<(u32, Interrupt)>>,
}

/// Given back when dropped, also while a call unwinds.
pub struct Guard<'a> {
    session: &'a Session,
    held: Held,
}

enum Held {
    Allocation,
    Row(Tid),
    Scan,
    Snapshot,
    Pin,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let me = self.session.me;
        let mut world = self.session.shared.world();
        // What a crash has taken already is not given back.
        match self.held {
            Held::Allocation if world.allocation == Some(me) => {
                world.allocation = None;
                if !thread::panicking() {
                    world.check_handed_out();
                }
            }
            Held::Row(tid) if world.row_locks.get(&tid) == Some(&me) => {
                world.row_locks.remove(&tid);
            }
            Held::Allocation | Held::Row(_) => (),
            Held::Scan => {
                let backend = &mut world.backends[me];
                backend.scans = backend.scans.saturating_sub(1);
            }
            Held::Snapshot => drop(world.backends[me].snapshots.pop()),
            Held::Pin => drop(world.backends[me].pins.pop()),
        }
    }
}

/// A call does not return.
pub fn unwind(doom: Doom) -> ! {
    resume_unwind(Box::new(doom))
}

impl Session {
    pub fn new(shared: Arc<Shared>, me: usize) -> Session {
        Session {
            shared,
            me,
            seen: RefCell::new(Seen::new(SEEN_BYTES)),
            quiet: Cell::new(false),
            interrupt: RefCell::default(),
        }
    }

    /// Look at the server or change it, all at once.
    pub fn now<T>(&self, body: impl FnOnce(&mut World) -> T) -> T {
        body(&mut self.shared.world())
    }

    /// A call: before it anything may happen.
    pub fn call<T>(&self, body: impl FnOnce(&mut World) -> T) -> T {
        self.point();
        self.now(body)
    }

    /// Memory of the session is gone.
    pub fn restart(&self) {
        *self.seen.borrow_mut() = Seen::new(SEEN_BYTES);
    }

    pub fn with_memory<T>(&self, body: impl FnOnce(&mut Seen<u32>) -> T) -> T {
        body(&mut self.seen.borrow_mut())
    }

    /// Anything may happen here.
    pub fn point(&self) {
        if self.quiet.get() {
            return self.interrupted();
        }
        let mut world = self.shared.world();
        world.calls += 1;
        // Who has the table for himself goes on, as the others would wait.
        let is_alone = world.exclusive == Some(self.me);
        if !is_alone && world.random.one_in(SWITCH) {
            drop(world);
            return self.give_way();
        }
        if world.random.one_in(CRASH) {
            world.crash(self.me);
            drop(world);
            unwind(Doom::Crash);
        }
        if world.random.one_in(FAIL) {
            world.saw("errors");
            world.note(self.me, || "an error".to_owned());
            drop(world);
            unwind(Doom::Error);
        }
    }

    /// Do at this call what was to be done at it.
    fn interrupted(&self) {
        let Some((left, what)) = self.interrupt.take() else { return };
        match left {
            0 => what(),
            _ => *self.interrupt.borrow_mut() = Some((left - 1, what)),
        }
    }

    /// Once in so many times.
    pub fn maybe_give_way(&self, n: u32) {
        let gives = self.now(|world| {
            !self.quiet.get() && world.exclusive != Some(self.me) && world.random.one_in(n)
        });
        if gives {
            self.give_way();
        }
    }

    /// Let some session go on that can; maybe this one.
    pub fn give_way(&self) {
        let mut world = self.shared.world();
        match self.choose(&mut world) {
            Some(next) => {
                drop(world);
                self.pass(next);
            }
            None => {
                // Everybody waits: somebody who waits for a transaction is sent an error, as PostgreSQL does after a while.
                let waits_for_end =
                    |at: &usize| matches!(world.backends[*at].waiting, Some(Wait::End(_)));
                let victims: Vec<usize> = (0..world.backends.len()).filter(waits_for_end).collect();
                assert!(!victims.is_empty(), "everybody waits for short locks");
                let victim = victims[world.random.below(victims.len() as u32) as usize];
                world.backends[victim].doomed = Some(Doom::Error);
                world.saw("deadlocks");
                world.note(victim, || "a deadlock".to_owned());
                drop(world);
                self.pass(victim);
            }
        }
        self.resumed();
    }

    fn choose(&self, world: &mut World) -> Option<usize> {
        let can = |at: &usize| {
            let backend = &world.backends[*at];
            let may = backend.doomed.is_some()
                || backend.waiting.is_none_or(|w| world.is_satisfied(w, *at));
            !backend.is_over && may
        };
        let able: Vec<usize> = (0..world.backends.len()).filter(can).collect();
        match able.len() {
            0 => None,
            n => Some(able[world.random.below(n as u32) as usize]),
        }
    }

    /// It is the turn of another one; returns when it is this one's again.
    fn pass(&self, next: usize) {
        if next == self.me {
            return;
        }
        self.shared.turn.store(next, Ordering::Release);
        if let Some(threads) = self.shared.threads.get() {
            threads[next].unpark();
        }
        self.await_turn();
    }

    pub fn await_turn(&self) {
        while self.shared.turn.load(Ordering::Acquire) != self.me
            || self.shared.threads.get().is_none()
        {
            if self.shared.world().backends[self.me].is_over {
                return;
            }
            thread::park();
        }
    }

    fn resumed(&self) {
        let mut world = self.shared.world();
        if world.is_over {
            drop(world);
            unwind(Doom::End);
        }
        if let Some(doom) = world.backends[self.me].doomed.take() {
            drop(world);
            unwind(doom);
        }
    }

    /// This session has done all it had to.
    pub fn end(&self) {
        let next = {
            let mut world = self.shared.world();
            world.backends[self.me].is_over = true;
            world.backends.iter().position(|b| !b.is_over)
        };
        if let Some(next) = next {
            self.shared.turn.store(next, Ordering::Release);
            if let Some(threads) = self.shared.threads.get() {
                threads[next].unpark();
            }
        }
    }

    /// Wait until something is so, and then do what `take` does about it before anybody else can.
    fn wait(&self, wait: Wait, take: impl FnOnce(&mut World)) {
        loop {
            let mut world = self.shared.world();
            if world.is_satisfied(wait, self.me) {
                world.backends[self.me].waiting = None;
                take(&mut world);
                return;
            }
            assert!(!self.quiet.get(), "a wait for {wait:?} where nobody else runs");
            world.saw(match wait {
                Wait::Allocation => "waits for the allocation lock",
                Wait::Row(_) => "waits for a short lock",
                Wait::End(_) => "waits for a transaction",
                Wait::Scans => "waits of VACUUM for a scan",
                Wait::Table => "waits for a rewrite",
                Wait::Alone => "waits of a rewrite",
            });
            world.backends[self.me].waiting = Some(wait);
            drop(world);
            self.give_way();
        }
    }

    pub fn lock_allocation_row(&self) -> Guard<'_> {
        self.point();
        self.wait(Wait::Allocation, |world| {
            world.allocation = Some(self.me);
            world.first_free = world.allocated().map_or(0, |next| next.block);
        });
        Guard { session: self, held: Held::Allocation }
    }

    /// The short lock of a row.
    pub fn lock_row(&self, tid: Tid) -> Guard<'_> {
        self.point();
        self.wait(Wait::Row(tid), |world| {
            world.row_locks.insert(tid, self.me);
        });
        Guard { session: self, held: Held::Row(tid) }
    }

    /// The same, if it is free.
    pub fn try_lock_row(&self, tid: Tid) -> Option<Guard<'_>> {
        self.call(|world| {
            let free = !world.row_locks.contains_key(&tid);
            free.then(|| world.row_locks.insert(tid, self.me))
        })?;
        Some(Guard { session: self, held: Held::Row(tid) })
    }

    pub fn wait_for(&self, xid: Xid) {
        self.wait(Wait::End(xid), |_| ());
    }

    /// Lock the table as who uses it does, to the end of the transaction.
    pub fn lock_table(&self) {
        if !self.now(|world| world.backends[self.me].touched) {
            self.wait(Wait::Table, |world| world.backends[self.me].touched = true);
        }
    }

    /// Wait until nobody else uses the table; whoever comes later waits.
    pub fn be_alone(&self) {
        self.wait(Wait::Alone, |_| ());
    }

    pub fn wait_for_scans(&self) {
        self.wait(Wait::Scans, |_| ());
    }

    /// Its page of the index is kept, so that no place of it is given out again.
    pub fn hold_page(&self) -> Guard<'_> {
        self.now(|world| world.backends[self.me].scans += 1);
        Guard { session: self, held: Held::Scan }
    }

    /// VACUUM leaves the row at `place` where it is.
    pub fn pin(&self, place: Place) -> Guard<'_> {
        self.now(|world| world.backends[self.me].pins.push(place));
        Guard { session: self, held: Held::Pin }
    }

    /// A command's snapshot: the transaction's, or one of now.
    pub fn snapshot(&self) -> (Snap, Guard<'_>) {
        self.point();
        let at = self.now(|world| {
            let cid = world.backends[self.me].cid;
            let fixed = world.backends[self.me].fixed.clone();
            let fixed = fixed.map(|s| Snapshot { curcid: cid, ..s });
            let snapshot = fixed.unwrap_or_else(|| world.take_snapshot(self.me));
            if world.backends[self.me].repeatable {
                world.backends[self.me].fixed = Some(snapshot.clone());
            }
            world.backends[self.me].snapshots.push(snapshot);
            world.backends[self.me].snapshots.len() - 1
        });
        (Snap::Mvcc(at), Guard { session: self, held: Held::Snapshot })
    }

    /// A snapshot of now, whatever the transaction has.
    pub fn latest(&self) -> (Snap, Guard<'_>) {
        let at = self.now(|world| {
            let snapshot = world.take_snapshot(self.me);
            world.backends[self.me].snapshots.push(snapshot);
            world.backends[self.me].snapshots.len() - 1
        });
        (Snap::Mvcc(at), Guard { session: self, held: Held::Snapshot })
    }
}
