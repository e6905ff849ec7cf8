//! Slots and chunk addresses are handed out from one row that is overwritten in place, outside of
//! any transaction: what a rolled-back load was given is never given again, because index entries
//! outlive the load that made them.

use super::{chunks, keys, Directory};
use crate::pg::lock::AllocationLock;
use crate::pg::rel::index_oids;
use crate::pg::report::Report;
use crate::pg::{error, xact, ChunkKey, Kind, LockMode, OpenRel, Rel, Snap, Toast};
use firn_format::{blocks_for, Slot, Tid};

const KEY: ChunkKey = ChunkKey { id: keys::ALLOCATION, seq: 0 };
const VERSION: u8 = 1;
const LEN: usize = 24;
/// Virtual blocks there are.
const BLOCKS: u64 = 1 << 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    next_block: u64,
    next_address: u64,
}

impl State {
    fn encode(self) -> [u8; LEN] {
        let mut out = [0u8; LEN];
        out[0] = VERSION;
        out[8..16].copy_from_slice(&self.next_block.to_le_bytes());
        out[16..24].copy_from_slice(&self.next_address.to_le_bytes());
        out
    }
    fn decode(bytes: &[u8]) -> Option<State> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if bytes.len() != LEN || bytes[0] != VERSION {
            return None;
        }
        Some(State { next_block: word(8)?, next_address: word(16)? })
    }
}

/// Change the allocation row; then do `next` with what `change` gave, before anybody else can look at it.
fn update<T, U>(
    toast: &Toast,
    change: impl FnOnce(&mut State) -> T,
    next: impl FnOnce(T) -> U,
) -> U {
    let _lock = AllocationLock::take(toast.rel());
    let Some(row) = toast.find(KEY, Snap::self_snap()) else {
        // What has been handed out already would be handed out again.
        if is_lost(toast) {
            lost(toast).raise()
        }
        let mut state = State { next_block: 0, next_address: 0 };
        let result = change(&mut state);
        // Frozen: it must outlive this transaction's rollback.
        toast.insert(KEY, &state.encode(), xact::command_id(true), true);
        super::counted::prepare(toast);
        super::cleaned::prepare(toast);
        return next(result);
    };
    let Some(mut state) = State::decode(&row.data) else { damaged(toast, row.data.len()).raise() };
    let result = change(&mut state);
    toast.overwrite(row.place, KEY, &state.encode());
    next(result)
}

fn damaged(toast: &Toast, bytes: usize) -> Report {
    error(Kind::Corrupt, "the allocation row of a firn table is damaged")
        .detail(format!("TOAST relation {}, {bytes} bytes.", toast.rel().oid()))
        .hint("Restore the table from a backup or standby.")
}

/// Whoever asks has found no allocation row, but slots or chunks have been given out.
fn is_lost(toast: &Toast) -> bool {
    toast.has_entry(keys::DIRECTORY, i32::MIN, i32::MAX)
        || toast.has_entry(keys::CHUNKS, i32::MIN, i32::MAX)
}

fn lost(toast: &Toast) -> Report {
    let oid = toast.rel().oid();
    error(Kind::Corrupt, "the allocation row of a firn table is missing")
        .detail(format!("TOAST relation {oid} has index entries of stripes, but not of this row."))
        .hint("Run firn.check() on the table; restore it from a backup or standby.")
}

/// A slot is given out where a rollback would forget that, and the table's indexes would not.
fn refuse_to_be_forgotten(directory: &Directory) {
    if would_be_forgotten(directory) {
        error(Kind::Unsupported, "cannot write stripes of a table in this transaction")
            .detail("The transaction has reindexed or moved the table's TOAST relation, and not all of the table's indexes since the same savepoint.")
            .hint("Commit first.")
            .raise()
    }
}

/// A rollback of this transaction, or to a savepoint, would forget that a slot is given out now, and would leave an index of the
/// table as it is. The slot would be given out again, and entries of the rows that are undone would lead to others.
pub fn would_be_forgotten(directory: &Directory) -> bool {
    let toast = &directory.toast;
    let any_index = |outlives: &dyn Fn(Rel) -> bool| {
        let opened = |oid| OpenRel::any_kind(oid, LockMode::AccessShare);
        index_oids(directory.table).into_iter().any(|oid| outlives(opened(oid).rel()))
    };
    // The note goes with a file that is younger than an index: ALTER TABLE SET TABLESPACE gives the TOAST relation one, but not
    // the table's indexes.
    let (_, given) = toast.rel().storage_is_of();
    if given != 0 && any_index(&|index| index.storage_is_of().0 < given) {
        return true;
    }
    // After a REINDEX of the TOAST relation, the first note goes with a rollback though the file does not.
    if !toast.index_alone_is_undone() || toast.find(KEY, Snap::self_snap()).is_some() {
        return false;
    }
    !toast.valid_index().has_storage_of_savepoint()
        || any_index(&|index| !index.has_storage_of_savepoint())
}

/// The next virtual block to be given out; None when there is no allocation row that can be read.
pub fn next_block(toast: &Toast) -> Option<u64> {
    let row = toast.find_damaged(KEY, Snap::self_snap()).filter(|row| !row.key_is_damaged)?;
    State::decode(&row.data).map(|state| state.next_block)
}

/// Hand out a range of virtual blocks for up to `rows` rows and reserve its directory row, both in one:
/// whoever has read the next block under the allocation lock finds a directory row, dead or alive, of every slot
/// before it that index entries may ever point to. Returns the slot and where the directory row is.
pub fn slot_for(directory: &Directory, rows: u32, cid: u32) -> (Slot, Tid) {
    let blocks = u64::from(blocks_for(rows));
    refuse_to_be_forgotten(directory);
    directory.expect_stripe();
    // What takes locks of its own comes before the allocation lock.
    xact::xid();
    let hand_out = |state: &mut State| {
        let first = state.next_block;
        if first + blocks > BLOCKS {
            error(Kind::Limit, "no virtual row addresses are left in a firn table")
                .detail(format!("All {BLOCKS} virtual blocks have been handed out."))
                .hint("VACUUM FULL or a dump and restore gives the table new addresses.")
                .raise()
        }
        state.next_block = first + blocks;
        Slot(first as u32)
    };
    update(&directory.toast, hand_out, |slot| (slot, directory.reserve(slot, rows, cid)))
}

/// The first virtual block that is not handed out; None when there is no allocation row that can be read, which is
/// said of a damaged one, and of one that must have been there. Who asks afterwards finds a directory row of every slot before it that anybody has: slots are handed out, and their
/// directory rows inserted, under the lock that this takes for a moment.
pub fn handed_out(toast: &Toast) -> Option<u32> {
    let row = {
        let _lock = AllocationLock::take(toast.rel());
        toast.find_damaged(KEY, Snap::self_snap())
    };
    let Some(row) = row else {
        if is_lost(toast) {
            lost(toast).warn();
        }
        return None;
    };
    let state = State::decode(&row.data).filter(|_| !row.key_is_damaged);
    if state.is_none() {
        damaged(toast, row.data.len()).warn();
    }
    state.map(|state| state.next_block.min(BLOCKS) as u32)
}

/// `count` consecutive chunk addresses. Returns the first.
pub fn addresses(toast: &Toast, count: u64) -> u64 {
    let hand_out = |state: &mut State| {
        let mut first = state.next_address;
        // A run stays within one chunk id, so that its sequence numbers are consecutive.
        if first % chunks::PER_ID + count > chunks::PER_ID {
            first = (first / chunks::PER_ID + 1) * chunks::PER_ID;
        }
        if first + count > chunks::END {
            error(Kind::Limit, "no chunk addresses are left in a firn table")
                .hint("A dump and restore gives the table new addresses.")
                .raise()
        }
        state.next_address = first + count;
        first
    };
    update(toast, hand_out, |first| first)
}

#[cfg(test)]
mod tests {
    use super::State;

    #[test]
    fn state_round_trips() {
        let state = State { next_block: 123_456, next_address: u64::MAX - 5 };
        assert_eq!(State::decode(&state.encode()), Some(state));
        assert_eq!(State::decode(&[0; 24]), None);
        assert_eq!(State::decode(&[1; 23]), None);
    }
}
