//! Blocks that are looked up, in the buffers that had them last.
//!
//! **Problem.** To find the buffer of a block PostgreSQL searches a table in shared memory: with many sessions and large `shared_buffers` four lines of memory one after the other, none of
//! which is in the processor's caches; a microsecond of a look-up's twenty.
//!
//! **Rule.** The number of the buffer that had the block last is remembered in shared memory, for all sessions, at a place that is computed from file and block. PostgreSQL
//! pins the buffer if it has that block (`ReadRecentBuffer`), and else it is searched for as ever. So whatever is remembered, the block that is pinned is
//! the one asked for (and who pins none looks whether it is: `glance.rs`): places are shared by many blocks, and are written without a lock.
//!
//! A buffer that is found so does not count as used again by PostgreSQL, here as where a session has kept its number (`witness.rs`, `index_gap.rs`). One whose use has been counted less than [`USED`] times since the sweep for free buffers came by is
//! asked for in the ordinary way, which counts it: so a chunk that is asked for stays, and only the most used ones, of which PostgreSQL counts five uses, are told
//! less well from those used often. That and whether it has the block is looked at before the buffer is locked for it, without a lock, as a hint. Those found are counted in the statistics as others are.
//!
//! **Not for** temporary tables (whose buffers are their session's), reading through a ring of buffers; nor, for chunks, where VACUUM counts what it costs.
//!
//! **Rejected:** *to remember it in the session* (78,000 chunks are 300 kB for each, as cold as PostgreSQL's table, and each session has to find all of them first); *to
//! count one look of so many*: a chunk asked for three times between two sweeps was counted as used with one of six, and went like one that nobody asks for.

use super::{compat, shared, Rel};
use pgrx::pg_sys;
use std::sync::atomic::{fence, AtomicI32, Ordering};

/// Uses that PostgreSQL has to have counted of a buffer for more of them to go uncounted.
const USED: u32 = 3;

/// Where the buffer of a block is remembered.
#[derive(Clone, Copy)]
pub(super) struct Recent {
    place: Option<&'static AtomicI32>,
    /// The buffer that may have the block; 0 where it is to be searched for.
    pub buffer: pg_sys::Buffer,
}

impl Recent {
    /// Of a block of a relation's main fork.
    #[inline]
    pub(super) fn of(relation: Rel, block: u32) -> Recent {
        let place = place_of(relation, block);
        let known = place.map_or(0, |place| place.load(Ordering::Relaxed));
        let may = is_used(known, relation, block);
        if may {
            relation.prepare_to_count();
        }
        Recent { place, buffer: if may { known } else { 0 } }
    }

    /// The block is in this buffer, where it was remembered to be or was searched for.
    #[inline]
    pub(super) fn is_in(self, buffer: pg_sys::Buffer, was_remembered: bool, relation: Rel) {
        if was_remembered {
            relation.count_hit();
        } else if let Some(place) = self.place {
            // Written only if it is another: others read the same line of memory.
            if place.load(Ordering::Relaxed) != buffer {
                place.store(buffer, Ordering::Relaxed);
            }
        }
    }
}

/// Where it is remembered which buffer has the block.
#[inline]
fn place_of(relation: Rel, block: u32) -> Option<&'static AtomicI32> {
    // SAFETY: PostgreSQL's variable.
    if relation.is_temporary() || unsafe { pg_sys::VacuumCostActive } {
        return None;
    }
    shared::recent(compat::parts_of(compat::file_of(relation.data())).2, block)
}

/// The buffer that may have the block, or another by now; 0 where none is remembered.
#[inline]
pub(super) fn remembered(relation: Rel, block: u32) -> pg_sys::Buffer {
    place_of(relation, block).map_or(0, |place| place.load(Ordering::Relaxed))
}

/// The shared buffer, of a number that PostgreSQL has given out or 0, has that block of the relation's main fork, whole, and was used often: another
/// session may be about to change that. So it may be taken without PostgreSQL's counting that (`ReadRecentBuffer`, `glance.rs`).
pub(super) fn is_used(buffer: pg_sys::Buffer, relation: Rel, block: u32) -> bool {
    header_of(buffer, relation, block).is_some_and(is_settled)
}

/// A header of this state belongs to a page that is there, was used often, and is locked by nobody: on PostgreSQL 15 who gives the buffer to another block changes the tag first, and
/// the state when the lock goes. (Who wanted the lock would have one more behind him, too; the ordinary way only waits for it.)
fn is_settled(state: u32) -> bool {
    state & pg_sys::BM_VALID != 0
        && state & pg_sys::BM_LOCKED == 0
        && (state & pg_sys::BUF_USAGECOUNT_MASK) >> pg_sys::BUF_USAGECOUNT_SHIFT >= USED
}

/// What the header of the buffer says of its state, if the buffer has that block.
fn header_of(buffer: pg_sys::Buffer, relation: Rel, block: u32) -> Option<u32> {
    if buffer <= 0 {
        return None;
    }
    // SAFETY: a buffer's number that PostgreSQL has given out. What is read may be written at the same time: who relies on it looks twice.
    let (tag, state) = unsafe {
        let known = pg_sys::BufferDescriptors.add(buffer as usize - 1);
        let tag = std::ptr::read_volatile(&raw const (*known).bufferdesc.tag);
        // Whoever writes a tag has locked the header by then: the state is looked at behind it.
        fence(Ordering::Acquire);
        (tag, std::ptr::read_volatile(&raw const (*known).bufferdesc.state.value))
    };
    let (file, fork, number) = compat::page_of(&tag);
    let has = number == block
        && fork == pg_sys::ForkNumber::MAIN_FORKNUM
        && compat::parts_of(file) == compat::parts_of(compat::file_of(relation.data()));
    has.then_some(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_are_believed() {
        let uses = |n: u32| n << pg_sys::BUF_USAGECOUNT_SHIFT;
        let whole = pg_sys::BM_VALID | pg_sys::BM_TAG_VALID;
        assert!(is_settled(whole | uses(3)) && is_settled(whole | uses(5) | pg_sys::BM_DIRTY | 7));
        assert!(!is_settled(whole | uses(2)));
        assert!(!is_settled(pg_sys::BM_TAG_VALID | uses(5)));
        assert!(!is_settled(whole | uses(5) | pg_sys::BM_LOCKED));
    }
}
