//! Rows that a move has taken from the row store into a stripe, for snapshots that are older than the move and read after
//! it: they see such a row at its old place, where heapam knows nothing of what happens to it at its new one. They are
//! those of REPEATABLE READ and SERIALIZABLE, and in READ COMMITTED those that several commands share, as the
//! statements of a rule do. See mover/README.md.

use super::fetch::Fetcher;
use super::tuple::{moved_to, successor};
use crate::directory::forward::{self, Moves};
use crate::directory::{tombstones, Directory};
use crate::pg::rel::StorageId;
use crate::pg::{heap, lock, xact, LockMode, Oid, Rel, Snap};
use firn_directory::Xid;
use firn_format::{Tid, TombstoneState};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

/// Moves remembered within a transaction, whether the deletions looked up were moves or not.
const REMEMBERED: usize = 16;
/// Bytes of memory that they may take, the last one apart.
const REMEMBERED_BYTES: usize = 4 << 20;

/// Moves of a table by a transaction.
type Named = ((StorageId, Xid), Rc<RefCell<Moves>>);

/// What the running transaction knows; forgotten at its end.
#[derive(Default)]
struct Own {
    /// Tables of which it has deleted or updated stripe rows.
    changed: HashSet<Oid>,
    moves: Vec<Named>,
}

thread_local! {
    static OWN: RefCell<Own> = RefCell::default();
    /// It has changed stripe rows of some table.
    static HAS_CHANGED: Cell<bool> = const { Cell::new(false) };
}

/// This transaction is about to delete or update a stripe row of the table.
pub fn note_change(table: Rel) {
    OWN.with_borrow_mut(|own| own.changed.insert(table.oid()));
    HAS_CHANGED.set(true);
}

/// The transaction is over.
pub fn forget() {
    OWN.take();
    HAS_CHANGED.set(false);
}

/// [`hides`] is to be asked. For each row that is read: most readers have changed nothing.
#[inline]
pub fn may_hide() -> bool {
    HAS_CHANGED.get() || xact::is_serializable() || (xact::is_parallel_worker() && xact::has_xid())
}

/// This transaction may have deleted or updated a stripe row of the table, be it in a subtransaction that is
/// rolled back.
fn may_have_changed(table: Rel) -> bool {
    // What the leader of a parallel query has changed is known to have an xid only.
    xact::has_xid()
        && (xact::is_parallel_worker() || OWN.with_borrow(|own| own.changed.contains(&table.oid())))
}

/// Old and new TIDs of the rows that transaction `mover` has moved.
fn moves_of(directory: &Directory, mover: Xid) -> Rc<RefCell<Moves>> {
    let name = (directory.toast.storage(), mover);
    let known = OWN.with_borrow(|own| {
        own.moves.iter().find(|(n, _)| *n == name).map(|(_, moves)| moves.clone())
    });
    if let Some(moves) = known {
        return moves;
    }
    // A running move may write more of them.
    let running = xact::is_in_progress(mover);
    let moves = Rc::new(RefCell::new(Moves::of(&directory.toast, mover)));
    if !running {
        OWN.with_borrow_mut(|own| {
            let bytes = |own: &Own| -> usize {
                own.moves.iter().map(|(_, m)| m.borrow().memory_bytes()).sum()
            };
            while own.moves.len() >= REMEMBERED
                || (bytes(own) > REMEMBERED_BYTES && !own.moves.is_empty())
            {
                own.moves.remove(0);
            }
            own.moves.push((name, moves.clone()));
        });
    }
    moves
}

/// The storage was emptied.
pub(super) fn forget_storage(storage: StorageId) {
    OWN.with_borrow_mut(|own| own.moves.retain(|((of, _), _)| *of != storage));
}

/// `snap` sees the row-store row at `origin`, which `deleter` has deleted meanwhile. Was that a move,
/// and has this transaction itself deleted or updated the row at its new place? Then it is gone. What
/// others do to it there is made known to serializable isolation.
pub fn hides(table: Rel, origin: Tid, deleter: Xid, snap: Snap) -> bool {
    // Who has changed no stripe row has nothing to hide, and only serializable isolation wants to know
    // what others change.
    if !xact::reports_reads() && !may_have_changed(table) {
        return false;
    }
    // Nobody has followed a move that has not been committed.
    if !xact::reports_reads() && xact::is_in_progress(deleter) {
        return false;
    }
    let Some(directory) = Directory::open(table, LockMode::AccessShare) else { return false };
    if directory.toast.is_empty() {
        return false;
    }
    let moves = moves_of(&directory, deleter);
    let home = moves.borrow_mut().home(&directory, origin);
    let Some(home) = home else { return false };
    if snap.is_serializable() {
        lock::predicate_lock_row(table, home, snap);
    }
    // Tombstones of others are younger than the move, and so than the snapshot.
    tombstones::find(&directory.toast, home, snap)
        .is_some_and(|stone| stone.tombstone.state == TombstoneState::Deleted)
}

/// Does `snap` see the stripe row at `tid`, here or where it was before a move?
pub fn sees(table: Rel, tid: Tid, snap: Snap) -> bool {
    if Fetcher::new(table).exists(tid, snap) {
        return true;
    }
    let Some(directory) = Directory::open(table, LockMode::AccessShare) else { return false };
    // This transaction may have deleted it here.
    let stone = tombstones::find(&directory.toast, tid, snap);
    if stone.is_some_and(|stone| stone.tombstone.state == TombstoneState::Deleted) {
        return false;
    }
    let Some(found) = directory.find(tid, Snap::self_snap()) else { return false };
    let origin = tid
        .row_in(found.slot)
        .and_then(|row| forward::origin(&directory.toast, found.slot, row))
        .filter(|_| !xact::is_ours(found.xmin));
    origin.is_some_and(|origin| heap::sees(table, origin, snap))
}

/// Where a move has taken the row that was at `place` in the row store, or the newest version of it, if
/// `snap` sees it, or a version later still, there. For cursors and whoever has remembered a ctid.
pub fn home(table: Rel, place: Tid, snap: Snap) -> Option<Tid> {
    let mut at = place;
    let mut fate = heap::fate(table, at)?;
    loop {
        if !xact::is_ours(fate.deleter) && !xact::did_commit(fate.deleter) {
            return None;
        }
        if let Some(home) = moved_to(table, at, fate.deleter) {
            let seen = sees(table, home, snap) || successor(table, home, snap).is_some();
            return seen.then_some(home);
        }
        at = fate.next?;
        fate = heap::fate(table, at)?;
    }
}
