//! The server: transactions, snapshots, the two relations of a table with their indexes, the log that a crash leaves.

use crate::heap::{first, tid_of, Cid, Heap, Tuple, Xid};
use crate::model::Model;
use firn_directory::{keys, ChunkKey, Place};
use firn_format::Tid;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// The first transaction's number.
const FIRST: u32 = 10;

/// Numbers that look random, from a seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }
    pub fn below(&mut self, n: u32) -> u32 {
        (self.next() % u64::from(n.max(1))) as u32
    }
    pub fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    Running,
    Committed,
    Aborted,
}

struct Xact {
    status: Status,
    owner: usize,
}

/// What an MVCC snapshot sees.
#[derive(Clone)]
pub struct Snapshot {
    /// Transactions from this number on are not seen.
    pub xmax: Xid,
    /// Those before it that were running.
    pub running: Arc<[Xid]>,
    /// Commands of the own transaction from this number on are not seen.
    pub curcid: Cid,
}

impl Snapshot {
    pub fn xmin(&self) -> Xid {
        self.running.first().copied().unwrap_or(self.xmax)
    }
}

/// A handle of what is seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Snap {
    Any,
    Own,
    Dirty,
    /// The session's snapshot of this number.
    Mvcc(usize),
}

/// A row of the TOAST relation.
#[derive(Clone, Debug)]
pub struct Ours {
    pub key: ChunkKey,
    pub data: Arc<[u8]>,
}

/// A row of the row store: its identity, and a number that no other version has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub id: u64,
    pub value: u64,
}

/// An entry of the TOAST relation's index.
pub type Entry = (u32, i32, u32);

/// What was there before something was logged.
enum Undo {
    Ours(u32, Option<Tuple<Ours>>),
    Entry(Entry, bool),
    Row(u32, Option<Tuple<Row>>),
    Index(u64, Tid, bool),
    Commit(Vec<Xid>),
}

/// What a session waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    Allocation,
    Row(Tid),
    End(Xid),
    /// No other session is in the middle of a scan that keeps its page of the index.
    Scans,
    /// Nobody has the table for himself, or waits for that.
    Table,
    /// No other session has locked the table.
    Alone,
}

/// Why a session's work ends in its middle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doom {
    /// The server has crashed.
    Crash,
    /// The statement fails.
    Error,
    /// The simulation is over.
    End,
}

/// A transaction, or a subtransaction of it.
#[derive(Default)]
pub struct Level {
    pub xid: Option<Xid>,
    /// Those of subtransactions that were released into it.
    pub merged: Vec<Xid>,
}

/// What the server knows of a session.
#[derive(Default)]
pub struct Backend {
    /// Empty outside of a transaction.
    pub levels: Vec<Level>,
    pub cid: Cid,
    /// The transaction's only snapshot, under REPEATABLE READ.
    pub fixed: Option<Snapshot>,
    pub repeatable: bool,
    pub snapshots: Vec<Snapshot>,
    /// It has locked the table, to the end of the transaction.
    pub touched: bool,
    /// It has changed rows of stripes.
    pub changed: bool,
    /// The running transaction that the dirty snapshot has last met.
    pub met: Xid,
    pub scans: u32,
    pub pins: Vec<Place>,
    pub waiting: Option<Wait>,
    pub doomed: Option<Doom>,
    pub is_over: bool,
}

pub struct World {
    pub random: Random,
    xacts: Vec<Xact>,
    pub ours: Heap<Ours>,
    pub entries: BTreeSet<Entry>,
    pub rows: Heap<Row>,
    /// The table's index on the rows' identity.
    pub index: BTreeMap<u64, BTreeSet<Tid>>,
    /// The object store.
    pub objects: BTreeMap<String, Arc<[u8]>>,
    /// Names the files of the two relations.
    pub storage: u32,
    undo: Vec<(u64, Undo)>,
    record: u64,
    /// What each place's last change was, of all changes: as the LSN of its page.
    pub versions: BTreeMap<u32, u64>,
    changes: u64,
    pub backends: Vec<Backend>,
    pub allocation: Option<usize>,
    /// The next block when that lock was taken.
    pub first_free: u64,
    pub row_locks: BTreeMap<Tid, usize>,
    /// Who vacuums or moves.
    pub maintainer: Option<usize>,
    /// Who has the table for himself, or waits until he has.
    pub exclusive: Option<usize>,
    pub model: Model,
    pub next_id: u64,
    /// A table of many rows.
    pub wide: bool,
    pub next_value: u64,
    pub steps: u64,
    pub calls: u64,
    /// What has happened, and how often.
    pub tally: BTreeMap<&'static str, u64>,
    pub failure: Option<String>,
    pub is_over: bool,
    pub history: VecDeque<String>,
}

impl World {
    pub fn new(seed: u64, sessions: usize) -> World {
        World {
            random: Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            xacts: Vec::new(),
            ours: Heap::default(),
            entries: BTreeSet::new(),
            rows: Heap::default(),
            index: BTreeMap::new(),
            objects: BTreeMap::new(),
            storage: 1,
            undo: Vec::new(),
            record: 0,
            versions: BTreeMap::new(),
            changes: 0,
            backends: (0..sessions).map(|_| Backend::default()).collect(),
            allocation: None,
            first_free: 0,
            row_locks: BTreeMap::new(),
            maintainer: None,
            exclusive: None,
            model: Model::default(),
            next_id: 1,
            wide: false,
            next_value: 1,
            steps: 0,
            calls: 0,
            tally: BTreeMap::new(),
            failure: None,
            is_over: false,
            history: VecDeque::new(),
        }
    }

    pub fn note(&mut self, me: usize, what: impl FnOnce() -> String) {
        if self.history.len() >= 120 {
            self.history.pop_front();
        }
        let line = format!("{:>6} session {me}: {}", self.steps, what());
        self.history.push_back(line);
    }

    pub fn saw(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    // Transactions.

    pub fn next_xid(&self) -> Xid {
        Xid(FIRST + self.xacts.len() as u32)
    }

    pub fn status(&self, xid: Xid) -> Status {
        match xid.0.checked_sub(FIRST).and_then(|i| self.xacts.get(i as usize)) {
            Some(xact) => xact.status,
            None => Status::Aborted,
        }
    }

    pub fn is_committed(&self, xid: Xid) -> bool {
        self.status(xid) == Status::Committed
    }

    /// It runs, and is the session's.
    pub fn is_ours(&self, xid: Xid, me: usize) -> bool {
        self.is_running(xid) && self.xacts[(xid.0 - FIRST) as usize].owner == me
    }

    pub fn is_running(&self, xid: Xid) -> bool {
        self.status(xid) == Status::Running
    }

    pub fn is_running_elsewhere(&self, xid: Xid, me: usize) -> bool {
        self.is_running(xid) && !self.is_ours(xid, me)
    }

    /// The id of the session's subtransaction; its parents get theirs before it.
    pub fn xid(&mut self, me: usize) -> Xid {
        let mut last = Xid::NONE;
        for at in 0..self.backends[me].levels.len() {
            last = match self.backends[me].levels[at].xid {
                Some(xid) => xid,
                None => {
                    let xid = self.next_xid();
                    self.xacts.push(Xact { status: Status::Running, owner: me });
                    self.backends[me].levels[at].xid = Some(xid);
                    xid
                }
            };
        }
        assert!(last != Xid::NONE, "session {me} writes outside of a transaction");
        last
    }

    fn end(&mut self, level: Level, status: Status) -> Vec<Xid> {
        let all: Vec<Xid> = level.xid.into_iter().chain(level.merged).collect();
        self.set(&all, status);
        all
    }

    fn set(&mut self, xids: &[Xid], status: Status) {
        for xid in xids {
            self.xacts[(xid.0 - FIRST) as usize].status = status;
        }
    }

    pub fn commit(&mut self, me: usize) {
        while self.backends[me].levels.len() > 1 {
            self.release(me);
        }
        if let Some(level) = self.backends[me].levels.pop() {
            let all = self.end(level, Status::Committed);
            if !all.is_empty() {
                self.new_record();
                self.log(Undo::Commit(all));
                // The log is on disk up to here, unless nobody waits for that (synchronous_commit = off).
                if self.random.one_in(2) {
                    self.flush();
                }
            }
        }
        self.left(me);
    }

    pub fn flush(&mut self) {
        self.undo.clear();
    }

    /// Merge a subtransaction into its parent.
    pub fn release(&mut self, me: usize) {
        let Some(level) = self.backends[me].levels.pop() else { return };
        if let Some(parent) = self.backends[me].levels.last_mut() {
            parent.merged.extend(level.xid.into_iter().chain(level.merged));
        }
    }

    /// Undo the innermost subtransaction, or the transaction.
    pub fn rollback(&mut self, me: usize) {
        if let Some(level) = self.backends[me].levels.pop() {
            self.end(level, Status::Aborted);
        }
        if self.backends[me].levels.is_empty() {
            self.left(me);
        }
    }

    /// The transaction is over.
    fn left(&mut self, me: usize) {
        let doomed = self.backends[me].doomed;
        self.backends[me] = Backend { doomed, ..Backend::default() };
        self.row_locks.retain(|_, holder| *holder != me);
        for holder in [&mut self.allocation, &mut self.maintainer, &mut self.exclusive] {
            if *holder == Some(me) {
                *holder = None;
            }
        }
    }

    pub fn take_snapshot(&self, me: usize) -> Snapshot {
        let numbered = self.xacts.iter().enumerate();
        let running = numbered.filter(|(_, x)| x.status == Status::Running);
        Snapshot {
            xmax: self.next_xid(),
            running: running.map(|(i, _)| Xid(FIRST + i as u32)).collect(),
            curcid: self.backends[me].cid,
        }
    }

    /// The oldest transaction that some snapshot does not see.
    pub fn horizon(&self) -> Xid {
        let mut oldest = self.next_xid();
        for backend in &self.backends {
            let ids = backend.levels.iter().flat_map(|l| l.xid.iter().chain(&l.merged));
            oldest = ids.fold(oldest, |a, b| first(a, *b));
            let held = backend.snapshots.iter().chain(&backend.fixed);
            oldest = held.fold(oldest, |a, s| first(a, s.xmin()));
        }
        oldest
    }

    pub fn is_settled(&self, xmin: Xid, frozen: bool, oldest: Xid) -> bool {
        frozen || (self.is_committed(xmin) && xmin.0 < oldest.0)
    }

    // What is seen.

    fn is_committed_for(&self, xid: Xid, snapshot: &Snapshot) -> bool {
        xid.0 < snapshot.xmax.0 && self.is_committed(xid) && !snapshot.running.contains(&xid)
    }

    /// An MVCC snapshot of the session sees what `xmin` inserted by command `cmin`, and `xmax` (0 for nobody) deleted.
    pub fn is_seen(
        &self,
        (xmin, frozen, cmin): (Xid, bool, Cid),
        (xmax, cmax): (Xid, Cid),
        snapshot: &Snapshot,
        me: usize,
    ) -> bool {
        let inserted = frozen
            || (self.is_ours(xmin, me) && cmin < snapshot.curcid)
            || self.is_committed_for(xmin, snapshot);
        let deleted = (self.is_ours(xmax, me) && cmax < snapshot.curcid)
            || self.is_committed_for(xmax, snapshot);
        inserted && !deleted
    }

    /// Whether `snap` sees a row. A dirty one is told which running transaction has inserted it.
    pub fn sees<P>(&mut self, tuple: &Tuple<P>, snap: Snap, me: usize) -> bool {
        let (xmin, deleter) = (tuple.xmin, tuple.deleter());
        match snap {
            Snap::Any => true,
            Snap::Mvcc(at) => {
                let snapshot = &self.backends[me].snapshots[at];
                let inserted = (xmin, tuple.frozen, tuple.cmin);
                self.is_seen(inserted, (deleter, tuple.cmax), snapshot, me)
            }
            Snap::Own | Snap::Dirty => {
                let inserted = tuple.frozen || self.is_committed(xmin) || self.is_ours(xmin, me);
                let is_new = !tuple.frozen && self.is_running_elsewhere(xmin, me);
                let deleted = self.is_committed(deleter) || self.is_ours(deleter, me);
                if snap == Snap::Own {
                    return inserted && !deleted;
                }
                self.backends[me].met = if is_new { xmin } else { Xid::NONE };
                (inserted || is_new) && !deleted
            }
        }
    }

    /// No snapshot sees the row, now or later.
    pub fn is_dead<P>(&self, tuple: &Tuple<P>, oldest: Xid) -> bool {
        let gone = !tuple.frozen && self.status(tuple.xmin) == Status::Aborted;
        let deleter = tuple.deleter();
        gone || (self.is_committed(deleter) && deleter.0 < oldest.0)
    }

    // What is logged. One record for each call.

    fn log(&mut self, undo: Undo) {
        self.undo.push((self.record, undo));
    }

    pub fn new_record(&mut self) {
        self.record += 1;
    }

    pub fn put_ours(&mut self, place: u32, tuple: Option<Tuple<Ours>>) {
        self.changes += 1;
        self.versions.insert(place, self.changes);
        let before = self.ours.put(place, tuple);
        self.log(Undo::Ours(place, before));
    }

    pub fn put_row(&mut self, place: u32, tuple: Option<Tuple<Row>>) {
        let before = self.rows.put(place, tuple);
        self.log(Undo::Row(place, before));
    }

    pub fn add_entry(&mut self, key: ChunkKey, place: u32) {
        self.new_record();
        let entry = (key.id, key.seq, place);
        if self.entries.insert(entry) {
            self.log(Undo::Entry(entry, true));
        }
    }

    pub fn remove_entry(&mut self, entry: Entry) {
        if self.entries.remove(&entry) {
            self.log(Undo::Entry(entry, false));
        }
    }

    pub fn add_index(&mut self, id: u64, tid: Tid) {
        self.new_record();
        if self.index.entry(id).or_default().insert(tid) {
            self.log(Undo::Index(id, tid, true));
        }
    }

    pub fn remove_index(&mut self, garbage: impl Fn(Tid) -> bool) {
        self.new_record();
        let mut gone = Vec::new();
        for (id, tids) in &mut self.index {
            tids.retain(|tid| {
                let stays = !garbage(*tid);
                if !stays {
                    gone.push((*id, *tid));
                }
                stays
            });
        }
        self.index.retain(|_, tids| !tids.is_empty());
        for (id, tid) in gone {
            self.log(Undo::Index(id, tid, false));
        }
    }

    /// The server crashes: of what was logged since the last commit a part has come to the disk.
    pub fn crash(&mut self, me: usize) {
        self.saw("crashes");
        let first = self.undo.first().map_or(self.record + 1, |(record, _)| *record);
        let span = (self.record + 1).saturating_sub(first) as u32;
        // All of it, often: then whatever is not done is left in the middle.
        let kept = match self.random.one_in(2) {
            true => u64::MAX,
            false => first + u64::from(self.random.below(span + 1)),
        };
        while self.undo.last().is_some_and(|(record, _)| *record >= kept) {
            match self.undo.pop() {
                Some((_, Undo::Ours(place, before))) => drop(self.ours.put(place, before)),
                Some((_, Undo::Row(place, before))) => drop(self.rows.put(place, before)),
                Some((_, Undo::Entry(entry, true))) => drop(self.entries.remove(&entry)),
                Some((_, Undo::Entry(entry, false))) => drop(self.entries.insert(entry)),
                Some((_, Undo::Commit(all))) => self.set(&all, Status::Aborted),
                Some((_, Undo::Index(id, tid, true))) => {
                    if let Some(tids) = self.index.get_mut(&id) {
                        tids.remove(&tid);
                    }
                }
                Some((_, Undo::Index(id, tid, false))) => {
                    self.index.entry(id).or_default().insert(tid);
                }
                None => break,
            }
        }
        self.index.retain(|_, tids| !tids.is_empty());
        self.undo.clear();
        for xact in &mut self.xacts {
            if xact.status == Status::Running {
                xact.status = Status::Aborted;
            }
        }
        for at in 0..self.backends.len() {
            let is_over = self.backends[at].is_over;
            let doomed = (at != me).then_some(Doom::Crash);
            self.backends[at] = Backend { doomed, is_over, ..Backend::default() };
        }
        self.allocation = None;
        self.maintainer = None;
        self.exclusive = None;
        self.row_locks.clear();
        self.note(me, || "CRASH".to_owned());
    }

    // The TOAST relation.

    /// A row as `snap` sees it.
    pub fn fetch(&mut self, place: u32, snap: Snap, me: usize) -> Option<Tuple<Ours>> {
        let tuple = self.ours.get(place)?.clone();
        self.sees(&tuple, snap, me).then_some(tuple)
    }

    /// The index is unique: two living rows of one key are an error, as it would be in PostgreSQL.
    pub fn check_unique(&self, key: ChunkKey, place: u32, me: usize) {
        let of_key = (key.id, key.seq, 0)..=(key.id, key.seq, u32::MAX);
        for (.., other) in self.entries.range(of_key).filter(|(.., other)| *other != place) {
            let Some(tuple) = self.ours.get(*other).filter(|t| t.payload.key == key) else {
                continue;
            };
            let lives = tuple.frozen || self.status(tuple.xmin) != Status::Aborted;
            let deleter = tuple.deleter();
            let goes = self.is_committed(deleter) || self.is_ours(deleter, me);
            assert!(!lives || goes, "two rows under {key:?}: {tuple:?} and one by session {me}");
        }
    }

    pub fn is_satisfied(&self, wait: Wait, me: usize) -> bool {
        match wait {
            Wait::Allocation => self.allocation.is_none(),
            Wait::Row(tid) => !self.row_locks.contains_key(&tid),
            Wait::End(xid) => !self.is_running(xid),
            Wait::Table => self.exclusive.is_none_or(|who| who == me),
            Wait::Alone => {
                let others = self.backends.iter().enumerate().filter(|(at, _)| *at != me);
                !others.into_iter().any(|(_, b)| b.touched)
            }
            Wait::Scans => self.backends.iter().enumerate().all(|(at, b)| at == me || b.scans == 0),
        }
    }

    /// Places of tombstones and anchors.
    pub fn stones(&self) -> Vec<u32> {
        let ids = (keys::TOMBSTONES, i32::MIN, 0)..=(keys::LAST, i32::MAX, u32::MAX);
        self.entries.range(ids).map(|(.., place)| *place).collect()
    }

    pub fn tid_of(place: u32) -> Tid {
        tid_of(place)
    }
}
