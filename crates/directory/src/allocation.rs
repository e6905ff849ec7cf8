//! Slots and chunk addresses are handed out from one row that is overwritten in place, outside of
//! any transaction: what a rolled-back bulk write was given is never given again, because index entries
//! outlive the bulk write that made them.

use crate::{
    chunks, cleaned, counted, keys, rows, ChunkKey, ChunkStore, Cid, Error, Keep, Place, Result,
};
use firn_format::{blocks_for, Slot};

/// The allocation row's key.
pub const KEY: ChunkKey = ChunkKey { id: keys::ALLOCATION, seq: 0 };
const VERSION: u8 = 1;
const LEN: usize = 24;
/// Virtual blocks there are.
pub const BLOCKS: u64 = 1 << 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) next_block: u64,
    pub(crate) next_address: u64,
}

impl State {
    pub(crate) fn encode(self) -> [u8; LEN] {
        let mut out = [0u8; LEN];
        out[0] = VERSION;
        out[8..16].copy_from_slice(&self.next_block.to_le_bytes());
        out[16..24].copy_from_slice(&self.next_address.to_le_bytes());
        out
    }
    pub(crate) fn decode(bytes: &[u8]) -> Option<State> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if bytes.len() != LEN || bytes[0] != VERSION {
            return None;
        }
        Some(State { next_block: word(8)?, next_address: word(16)? })
    }
}

/// Why an allocation row does not decode. Rows of every version begin with its number and seven zeros, as nothing else tells a damaged one.
fn unreadable(data: &[u8]) -> Error {
    match *data {
        [version, 0, 0, 0, 0, 0, 0, 0, ..] if version > VERSION => {
            Error::AllocationNewer { version }
        }
        _ => Error::AllocationDamaged { bytes: data.len() },
    }
}

/// Change the allocation row; then do `next` with what `change` gave, before anybody else can look at it.
fn update<S: ChunkStore, T, U>(
    store: &S,
    change: impl FnOnce(&mut State) -> Result<T>,
    next: impl FnOnce(T) -> U,
) -> Result<U> {
    let _lock = store.lock_allocation();
    let Some(row) = store.find_sound(KEY, store.own())? else {
        // What has been handed out already would be handed out again.
        if is_lost(store) {
            return Err(Error::AllocationLost);
        }
        let mut state = State { next_block: 0, next_address: 0 };
        let result = change(&mut state)?;
        // It must outlive this transaction's rollback.
        store.insert(KEY, &state.encode(), store.command_id(), Keep::ForGood);
        counted::prepare(store);
        cleaned::prepare(store);
        return Ok(next(result));
    };
    let mut state = State::decode(&row.data).ok_or_else(|| unreadable(&row.data))?;
    let result = change(&mut state)?;
    store.overwrite(row.place, KEY, &state.encode());
    Ok(next(result))
}

/// Whoever asks has found no allocation row, but slots or chunks have been given out.
fn is_lost<S: ChunkStore>(store: &S) -> bool {
    store.has_entry(keys::DIRECTORY, i32::MIN, i32::MAX)
        || store.has_entry(keys::CHUNKS, i32::MIN, i32::MAX)
}

/// What the data of an allocation row say: the next virtual block and chunk address to be given out; None when they are damaged or of a
/// newer version.
pub fn given_out(data: &[u8]) -> Option<(u64, u64)> {
    State::decode(data).map(|state| (state.next_block, state.next_address))
}

/// There is an allocation row.
pub fn is_there<S: ChunkStore>(store: &S) -> Result<bool> {
    Ok(store.find_sound(KEY, store.own())?.is_some())
}

/// The next virtual block to be given out; None when there is no allocation row that can be read.
pub fn next_block<S: ChunkStore>(store: &S) -> Option<u64> {
    let row = store.find_damaged(KEY, store.own()).filter(|row| !row.key_is_damaged)?;
    State::decode(&row.data).map(|state| state.next_block)
}

/// Hand out a range of virtual blocks for up to `rows` rows and reserve its directory row of `room` bytes, both in one:
/// whoever has read the next block under the allocation lock finds a directory row, dead or alive, of every slot
/// before it that index entries may ever point to. Returns the slot and where the directory row is.
///
/// # Errors
/// The allocation row is damaged or lost, or no block is left.
pub fn slot_for<S: ChunkStore>(
    store: &S,
    rows: u32,
    cid: Cid,
    room: usize,
) -> Result<(Slot, Place)> {
    let blocks = u64::from(blocks_for(rows));
    // What takes locks of its own comes before the allocation lock.
    store.assign_xid();
    let hand_out = |state: &mut State| {
        let first = state.next_block;
        if first + blocks > BLOCKS {
            return Err(Error::NoBlocksLeft);
        }
        state.next_block = first + blocks;
        Ok(Slot(first as u32))
    };
    update(store, hand_out, |slot| (slot, rows::reserve(store, slot, rows, cid, room)))
}

/// The first virtual block that is not handed out; None when there are none and never were. Who asks afterwards finds a directory row
/// of every slot before it that anybody has: slots are handed out, and their directory rows inserted, under the lock that
/// this takes for a moment.
///
/// # Errors
/// The allocation row is damaged or lost.
pub fn handed_out<S: ChunkStore>(store: &S) -> Result<Option<u32>> {
    let lock = store.lock_allocation();
    let Some(row) = store.find_damaged(KEY, store.own()) else {
        // Under the lock, too: who makes the row goes on to what would speak for its loss.
        return if is_lost(store) { Err(Error::AllocationLost) } else { Ok(None) };
    };
    drop(lock);
    match State::decode(&row.data).filter(|_| !row.key_is_damaged) {
        Some(state) => Ok(Some(state.next_block.min(BLOCKS) as u32)),
        None => Err(unreadable(&row.data)),
    }
}

/// `count` consecutive chunk addresses. Returns the first.
///
/// # Errors
/// The allocation row is damaged or lost, or no addresses are left.
pub fn addresses<S: ChunkStore>(store: &S, count: u64) -> Result<u64> {
    let hand_out = |state: &mut State| {
        let mut first = state.next_address;
        // A run stays within one chunk id, so that its sequence numbers are consecutive.
        if first % chunks::PER_ID + count > chunks::PER_ID {
            first = (first / chunks::PER_ID + 1) * chunks::PER_ID;
        }
        if first + count > chunks::END {
            return Err(Error::NoAddressesLeft);
        }
        state.next_address = first + count;
        Ok(first)
    };
    update(store, hand_out, |first| first)
}

#[cfg(test)]
mod tests {
    use super::{unreadable, State};
    use crate::Error;

    #[test]
    fn state_round_trips() {
        let state = State { next_block: 123_456, next_address: u64::MAX - 5 };
        assert_eq!(State::decode(&state.encode()), Some(state));
        assert_eq!(State::decode(&[0; 24]), None);
        assert_eq!(State::decode(&[1; 23]), None);
    }

    #[test]
    fn rows_of_newer_versions_are_told_from_damaged_ones() {
        let mut newer = State { next_block: 5, next_address: 6 }.encode().to_vec();
        newer[0] = 2;
        assert_eq!(State::decode(&newer), None);
        assert!(matches!(unreadable(&newer), Error::AllocationNewer { version: 2 }));
        newer.push(0);
        assert!(matches!(unreadable(&newer), Error::AllocationNewer { version: 2 }));
        newer[7] = 1;
        assert!(matches!(unreadable(&newer), Error::AllocationDamaged { bytes: 25 }));
        assert!(matches!(unreadable(&[2, 0]), Error::AllocationDamaged { bytes: 2 }));
    }
}
