//! Blocks that are looked up, in the buffers that had them last.
//!
//! **Problem.** To find the buffer of a block PostgreSQL searches a table in shared memory: with many sessions and large `shared_buffers` four lines of memory one after the other, none of
//! which is in the processor's caches; a microsecond of a look-up's twenty.
//!
//! **Rule.** The number of the buffer that had the block last is remembered in shared memory, for all sessions, at a place that is computed from file and block. PostgreSQL
//! pins the buffer if it has that block (`ReadRecentBuffer`), and else it is searched for as ever. So whatever is remembered, the block that is pinned is
//! the one asked for: places are shared by many blocks, and are written without a lock.
//!
//! A buffer that is found so does not count as used again by PostgreSQL, and would be the first to leave; so each so many looks are made in the ordinary way.
//! They are counted in the statistics as others are.
//!
//! **Not for** temporary tables (whose buffers are their session's), reading through a ring of buffers, and VACUUM, whose delay counts what it reads.
//!
//! **Rejected:** *to remember it in the session* (78,000 chunks are 300 kB for each, as cold as PostgreSQL's table, and each session has to find all of them first).

use super::{compat, shared, Rel};
use pgrx::pg_sys;
use std::cell::Cell;
use std::sync::atomic::{AtomicI32, Ordering};

/// Of so many looks one is made in the ordinary way.
const USED: u32 = 16;

thread_local! {
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

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
        // SAFETY: PostgreSQL's variable.
        let none = relation.is_temporary() || unsafe { pg_sys::VacuumCostActive };
        let file = compat::parts_of(compat::file_of(relation.data())).2;
        let place = if none { None } else { shared::recent(file, block) };
        let looks = LOOKS.get().wrapping_add(1);
        LOOKS.set(looks);
        // (What nobody has counted of this relation yet PostgreSQL is to begin with.)
        let may = !looks.is_multiple_of(USED) && compat::are_counted(relation.data());
        let known = place.map_or(0, |place| place.load(Ordering::Relaxed));
        Recent { place, buffer: if may { known } else { 0 } }
    }

    /// The block is in this buffer, where it was remembered to be or was searched for.
    #[inline]
    pub(super) fn is_in(self, buffer: pg_sys::Buffer, was_remembered: bool, relation: Rel) {
        if was_remembered {
            compat::count_hit(relation.data());
        } else if let Some(place) = self.place {
            // Written only if it is another: others read the same line of memory.
            if place.load(Ordering::Relaxed) != buffer {
                place.store(buffer, Ordering::Relaxed);
            }
        }
    }
}
