//! Rows on their way into stripes. A pending stripe belongs to one command's inserts into one table; its
//! rows have their TIDs already and are read from memory by this session until the stripe is written.

use super::builder::StripeBuilder;
use super::flush;
use crate::directory::{allocation, Directory};
use crate::pg::slot::Slot as TupleSlot;
use crate::pg::tuple_size::TupleSize;
use crate::pg::xact::Sub;
use crate::pg::{guc, lock, xact, ChangeLog, LockMode, Oid, Rel};
use firn_directory::{Cid, Place, Xid};
use firn_format::{Slot, StripeWriter, Tid};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// Raw bytes after which a stripe is written, however few rows it has.
const STRIPE_BYTES: usize = 128 << 20;
/// Commands of one table that are remembered without having collected anything.
const REMEMBERED: usize = 32;

/// Who inserts: a command of a subtransaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    pub sub: Sub,
    pub cid: Cid,
}

/// A stripe being collected or encoded.
pub(super) struct Pending {
    pub table: Oid,
    pub owner: Owner,
    /// The subtransaction's id, which its rows get.
    pub xid: Xid,
    pub slot: Slot,
    /// Rows there are TIDs for.
    pub capacity: u32,
    /// The reserved directory row.
    pub place: Place,
    pub stripe: StripeBuilder,
    /// Every snapshot sees its rows, as those that heapam inserts frozen.
    pub frozen: bool,
}

/// The inserts of one command into one table.
struct Command {
    owner: Owner,
    /// Rows so far.
    rows: u64,
    /// How large rows may be that go to stripes, or that none may; None when it was not looked for yet.
    stripes: Option<Option<Rc<TupleSize>>>,
    /// The stripe that takes the next rows.
    open: Option<Box<Pending>>,
    /// The stripe before that, while it is encoded.
    encoding: Option<Box<Pending>>,
    /// Raw bytes of both.
    bytes: usize,
}

impl Command {
    fn new(owner: Owner) -> Command {
        Command { owner, rows: 0, stripes: None, open: None, encoding: None, bytes: 0 }
    }
    fn pending(&self) -> impl Iterator<Item = &Pending> {
        [&self.encoding, &self.open].into_iter().flatten().map(|p| &**p)
    }
    fn is_idle(&self) -> bool {
        self.open.is_none() && self.encoding.is_none()
    }
    fn take(&mut self) -> impl Iterator<Item = Pending> {
        self.bytes = 0;
        [self.encoding.take(), self.open.take()].into_iter().flatten().map(|p| *p)
    }
}

#[derive(Default)]
struct State {
    /// By table: the commands that insert into it, a few at most, the one at work last.
    tables: HashMap<Oid, Vec<Command>>,
    /// Raw bytes of the pending stripes of each subtransaction that has some.
    bytes: Vec<(Sub, usize)>,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

impl State {
    fn command(&mut self, table: Oid, owner: Owner) -> &mut Command {
        let list = self.tables.entry(table).or_default();
        let at = list.iter().rposition(|c| c.owner == owner).unwrap_or_else(|| {
            // Those of commands that have ended without our being told.
            if list.len() >= REMEMBERED {
                list.retain(|c| !c.is_idle());
            }
            list.push(Command::new(owner));
            list.len() - 1
        });
        &mut list[at]
    }

    fn all(&self) -> impl Iterator<Item = &Command> {
        self.tables.values().flatten()
    }

    /// Raw bytes pending in all, and of one subtransaction.
    fn held(&self, sub: Sub) -> (usize, usize) {
        let own = self.bytes.iter().find(|(s, _)| *s == sub).map_or(0, |(_, n)| *n);
        (self.bytes.iter().map(|(_, n)| n).sum(), own)
    }

    fn count_bytes(&mut self, sub: Sub, before: usize, after: usize) {
        match self.bytes.iter_mut().find(|(s, _)| *s == sub) {
            Some((_, n)) => *n = (*n + after).saturating_sub(before),
            None if after > 0 => self.bytes.push((sub, after)),
            None => {}
        }
        self.bytes.retain(|(_, n)| *n != 0);
    }
}

fn current(cid: Cid) -> Owner {
    Owner { sub: xact::subtransaction(), cid }
}

/// Count `rows` more rows of the running command; how large they may be when it is past the threshold and the table can
/// take stripes.
fn counts_as_bulk(table: Rel, cid: Cid, rows: u64) -> Option<Rc<TupleSize>> {
    let owner = current(cid);
    let (total, stripes) = STATE.with_borrow_mut(|state| {
        let c = state.command(table.oid(), owner);
        c.rows += rows;
        (c.rows, c.stripes.clone())
    });
    if total <= guc::bulk_threshold() || table.toast_oid().is_none() {
        return None;
    }
    // A rollback may forget a first stripe. And who looks for a conflict by a row's values, before he waits for who is inserting it,
    // finds none while the row is only collected.
    stripes.unwrap_or_else(|| {
        // Output plugins see rows of the row store as they were at the change that is decoded.
        let none = table.conflicts_need_values()
            || table.is_user_catalog()
            || is_forgotten_by_rollback(table);
        let found = (!none).then(|| Rc::new(TupleSize::of(table)));
        STATE.with_borrow_mut(|state| {
            state.command(table.oid(), owner).stripes = Some(found.clone())
        });
        found
    })
}

fn is_forgotten_by_rollback(table: Rel) -> bool {
    let directory = Directory::open(table, LockMode::RowExclusive);
    directory.is_some_and(|directory| allocation::would_be_forgotten(&directory))
}

/// Insert one row: true when it went to a stripe and its slot has a TID; false when the caller is to
/// put it into the row store, or to refuse it.
///
/// `frozen`: every snapshot is to see it, PostgreSQL having made sure that nobody else can look at the table before this
/// transaction commits (REFRESH MATERIALIZED VIEW, COPY FREEZE).
pub fn insert(table: Rel, slot: TupleSlot, cid: Cid, frozen: bool) -> bool {
    insert_many(table, &[slot], cid, frozen)
}

/// Insert many rows, as [`insert`].
pub fn insert_many(table: Rel, slots: &[TupleSlot], cid: Cid, frozen: bool) -> bool {
    let size = counts_as_bulk(table, cid, slots.len() as u64);
    let bulk = size.is_some_and(|size| slots.iter().all(|slot| size.suits(*slot)));
    if bulk {
        append(table, slots, cid, frozen);
    }
    bulk
}

fn append(table: Rel, slots: &[TupleSlot], cid: Cid, frozen: bool) {
    if xact::is_serializable() {
        lock::check_serializable_insert(table);
    }
    let owner = current(cid);
    // Taken out, so that nothing is borrowed while PostgreSQL runs. An error undoes the subtransaction, and
    // the stripe with it.
    let mut open = STATE.with_borrow_mut(|state| state.command(table.oid(), owner).open.take());
    for slot in slots {
        let mut pending = match open.take() {
            Some(pending) if !pending.stripe.is_held() => pending,
            Some(held) => {
                // A cursor holds the rows collected so far: it keeps them, we go on with a new stripe.
                begin_encoding(table, held);
                Box::new(start(table, owner, frozen))
            }
            None => Box::new(start(table, owner, frozen)),
        };
        let row = pending.stripe.rows();
        pending.stripe.push(*slot);
        slot.set_inserted(table.oid(), Tid::of(pending.slot, row), pending.xid, cid);
        if pending.stripe.is_full(pending.capacity, STRIPE_BYTES) {
            begin_encoding(table, pending);
        } else {
            open = Some(pending);
        }
    }
    // As heapam, in their order among all that this transaction changes.
    if let Some(log) = ChangeLog::of(table) {
        log.insert(slots);
    }
    STATE.with_borrow_mut(|state| {
        let command = state.command(table.oid(), owner);
        command.open = open;
        let before = command.bytes;
        command.bytes = command.pending().map(|p| p.stripe.raw_bytes()).sum();
        let after = command.bytes;
        state.count_bytes(owner.sub, before, after);
    });
    table.count_inserts(slots.len() as u64);
    bound_memory();
}

/// Start to encode a stripe that takes no more rows. The one before it is written first, so that memory
/// holds two of a command at most.
fn begin_encoding(table: Rel, mut full: Box<Pending>) {
    let owner = full.owner;
    let before = STATE.with_borrow_mut(|state| state.command(table.oid(), owner).encoding.take());
    if let Some(before) = before {
        flush::write(table, *before);
    }
    full.stripe.begin_encoding();
    STATE.with_borrow_mut(|state| state.command(table.oid(), owner).encoding = Some(full));
}

/// Raw bytes after which a stripe is written that is collected beside what this session has pending: as for a command
/// below, what others hold leaves it an eighth of `firn.write_memory` at least.
pub(crate) fn most_bytes() -> usize {
    let limit = guc::write_memory();
    let held: usize = STATE.with_borrow(|state| state.bytes.iter().map(|(_, n)| n).sum());
    limit.saturating_sub(held).max(limit / 8).min(STRIPE_BYTES)
}

/// When this session holds more than `firn.write_memory`, write what the running subtransaction's command
/// with the most of it holds: only that can be written now. What outer subtransactions hold leaves it an
/// eighth of the setting at least, so that it does not end up writing a stripe per row.
fn bound_memory() {
    let sub = xact::subtransaction();
    let largest = STATE.with_borrow(|state| {
        let limit = guc::write_memory();
        let (all, own) = state.held(sub);
        if all <= limit || own <= limit.saturating_sub(all - own).max(limit / 8) {
            return None;
        }
        let own =
            state.tables.iter().flat_map(|(table, list)| list.iter().map(move |c| (table, c)));
        own.filter(|(_, c)| c.owner.sub == sub)
            .max_by_key(|(_, c)| c.bytes)
            .map(|(table, c)| (*table, c.owner.cid))
    });
    if let Some((table, cid)) = largest {
        flush::flush_where(|t, owner| (t, owner.cid) == (table, cid));
    }
}

fn start(table: Rel, owner: Owner, frozen: bool) -> Pending {
    let Some(directory) = Directory::open(table, LockMode::RowExclusive) else {
        crate::pg::error(crate::pg::Kind::Internal, "a firn table without TOAST relation").raise()
    };
    let capacity = guc::stripe_rows();
    let (slot, place) = allocation::slot_for(&directory, capacity, owner.cid);
    guc::crash_point("bulk-reserved");
    let (stripe, table, xid) = (StripeBuilder::new(table), table.oid(), xact::xid());
    Pending { table, owner, xid, slot, capacity, place, stripe, frozen }
}

/// Rows of a pending stripe, kept alive for a reader even when the stripe is written meanwhile.
#[derive(Clone)]
pub struct PendingRef {
    pub slot: Slot,
    pub rows: u32,
    pub cid: Cid,
    /// The (sub)transaction that inserted them.
    pub xid: Xid,
    pub writer: Arc<StripeWriter>,
}

fn reference(p: &Pending) -> PendingRef {
    let (slot, rows) = (p.slot, p.stripe.rows());
    PendingRef { slot, rows, cid: p.owner.cid, xid: p.xid, writer: p.stripe.writer() }
}

fn pending_in(state: &State, table: Rel) -> impl Iterator<Item = &Pending> {
    state.tables.get(&table.oid()).into_iter().flatten().flat_map(Command::pending)
}

/// The pending stripe that holds `tid`, if it is one of this session's.
pub fn pending_at(table: Rel, tid: Tid) -> Option<PendingRef> {
    STATE.with_borrow(|state| {
        pending_in(state, table)
            .find(|p| tid.row_in(p.slot).is_some_and(|r| r < p.stripe.rows()))
            .map(reference)
    })
}

/// All pending stripes of a table.
pub fn pending_of(table: Rel) -> Vec<PendingRef> {
    STATE.with_borrow(|state| pending_in(state, table).map(reference).collect())
}

/// This session has rows that are not written yet.
pub fn any_pending() -> bool {
    STATE.with_borrow(|state| !state.bytes.is_empty() || state.all().any(|c| !c.is_idle()))
}

/// Take out the pending stripes of the running subtransaction for which `which` holds, to write them. No
/// others can be taken: a row gets the id of the subtransaction that writes it, and dies with that.
pub(super) fn take_own(which: impl Fn(Oid, Owner) -> bool) -> Vec<Pending> {
    let mut taken = Vec::new();
    // Most statements have inserted nothing.
    if STATE.with_borrow(|state| state.tables.is_empty()) {
        return taken;
    }
    let sub = xact::subtransaction();
    STATE.with_borrow_mut(|state| {
        let mut bytes = 0;
        for (table, list) in &mut state.tables {
            for c in list.iter_mut().filter(|c| c.owner.sub == sub && which(*table, c.owner)) {
                bytes += c.bytes;
                taken.extend(c.take());
            }
        }
        state.count_bytes(sub, bytes, 0);
    });
    taken.sort_by_key(|p| p.slot);
    taken
}

/// Forget the commands for which `which` holds, and what they have collected.
fn discard(which: impl Fn(Oid, Owner) -> bool) {
    STATE.with_borrow_mut(|state| {
        state.tables.retain(|table, list| {
            list.retain(|c| !which(*table, c.owner));
            !list.is_empty()
        });
        state.bytes.clear();
        let held: Vec<(Sub, usize)> = state.all().map(|c| (c.owner.sub, c.bytes)).collect();
        for (sub, bytes) in held {
            state.count_bytes(sub, 0, bytes);
        }
    });
}

/// The running subtransaction's commands from `cid` on have ended, and their stripes are written.
pub(super) fn forget_from(cid: Cid) {
    let sub = xact::subtransaction();
    discard(|_, owner| owner.sub == sub && owner.cid >= cid);
}

/// A subtransaction is undone: its rows never were.
pub fn discard_subtransaction(sub: Sub) {
    // Numbers of subtransactions grow: those opened inside this one have greater ones.
    discard(|_, owner| owner.sub >= sub);
}

/// The table is emptied where it is.
pub(crate) fn discard_table(table: Rel) {
    discard(|of, _| of == table.oid());
}

/// The transaction is over.
pub fn discard_all() {
    STATE.with_borrow_mut(|state| *state = State::default());
}
