//! The indexes of an open TOAST relation: one, and while REINDEX CONCURRENTLY builds it anew, its copy beside it.
//!
//! **The problem.** What a session knows of an index, whether it takes entries and whether look-ups may use it, comes anew when another
//! session has changed it. Not so for an index of a TOAST relation that is open at that moment: PostgreSQL reads its row in pg_class again then,
//! but not that in pg_index (`RelationReloadIndexInfo` takes these indexes for the system's, which nobody changes), and goes on with what it
//! had, also when the index is opened again. The copy would get none of the rows that this session inserts, and once it has taken the index's
//! place, look-ups would miss them: a changed row is seen twice, large values lack chunks; or no index is found that may be used. PostgreSQL itself
//! opens these indexes for moments; here a scan or a cursor has them open, while REINDEX, which waits for none that only reads, goes on.
//!
//! **The rule.** Who opens indexes of which there are several asks the catalog. That is enough for the transaction: before each step after which
//! entries could be missed REINDEX waits for those who have locked the relation as writers do, and these open the indexes when they do so
//! (`lock::before_indexes`), before PostgreSQL, which goes by what is known, stores a large value. Who closes them asks once more, as PostgreSQL does
//! not. Whom an error takes them from cannot ask: what is known of them is thrown away by the next who comes (`forget_after_error`). Under a page's
//! lock, where nobody may wait, neither is done: whoever is there has locked the relation before.
//!
//! **Rejected:** to throw away what is known whenever they are closed (of those that are open elsewhere, in a cursor, PostgreSQL keeps it; and a copy
//! that an interrupted REINDEX has left would cost each statement two entries of the cache).

use super::{catalog, ext, lock, xact, LockMode, Oid, Rel};
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};

thread_local! {
    /// Those that errors have closed.
    static LEFT: RefCell<Vec<Oid>> = const { RefCell::new(Vec::new()) };
    static ARE_LEFT: Cell<bool> = const { Cell::new(false) };
    /// How many relations are open whose indexes are several.
    static OPEN: Cell<u32> = const { Cell::new(0) };
}

/// Of one TOAST relation, open.
pub(super) struct Indexes {
    toast: Rel,
    list: *mut pg_sys::Relation,
    count: usize,
    /// The one that look-ups use.
    valid: usize,
    /// If there are several.
    oids: Vec<Oid>,
    /// What is known of them is as the catalog has it, and they are closed.
    is_done: Cell<bool>,
}

impl Indexes {
    pub(super) fn open(toast: Rel, lock: LockMode) -> Indexes {
        forget_after_error();
        let (mut list, mut count) = (std::ptr::null_mut(), 0);
        // SAFETY: the relation is open; the array is palloc'ed by PostgreSQL, and closed in close().
        let valid =
            unsafe { ext::toast_open_indexes(toast.raw(), lock as i32, &mut list, &mut count) };
        let (count, valid) = (count.max(0) as usize, valid.max(0) as usize);
        let (oids, is_done) = (Vec::new(), Cell::new(false));
        let mut indexes = Indexes { toast, list, count, valid, oids, is_done };
        if count > 1 {
            OPEN.set(OPEN.get() + 1);
            indexes.oids = indexes.all().iter().map(|&index| Rel::of(index).oid()).collect();
            indexes.ask_catalog();
            // SAFETY: open indexes.
            let first = |&index: &pg_sys::Relation| unsafe { (*(*index).rd_index).indisvalid };
            indexes.valid = indexes.all().iter().position(first).unwrap_or(valid);
        }
        indexes
    }

    fn all(&self) -> &[pg_sys::Relation] {
        // SAFETY: the array holds as many open indexes.
        unsafe { std::slice::from_raw_parts(self.list, self.count) }
    }

    pub(super) fn valid(&self) -> Rel {
        Rel::of(self.all()[self.valid])
    }

    /// Those that take entries.
    pub(super) fn ready(&self) -> impl Iterator<Item = pg_sys::Relation> + '_ {
        // SAFETY: open indexes, whose row in pg_index stays with them.
        self.all().iter().copied().filter(|&index| unsafe { (*(*index).rd_index).indisready })
    }

    /// Bring what is known of them up to date, as PostgreSQL does it for indexes of tables. False where that cannot be done.
    fn ask_catalog(&self) -> bool {
        if lock::holds_light() || !xact::may_look_up() {
            return false;
        }
        for &index in self.all() {
            let Some(now) = catalog::index_state(Rel::of(index).oid()) else { continue };
            // SAFETY: an open index, whose row in pg_index is its own copy.
            let known = unsafe { &mut *(*index).rd_index };
            known.indisvalid = now.valid;
            known.indisready = now.ready;
            known.indislive = now.live;
        }
        true
    }

    /// Close them, and give up their lock if it is `release`.
    ///
    /// # Safety
    /// Once, while PostgreSQL has not closed them itself after an error.
    pub(super) unsafe fn close(&self, release: LockMode) {
        // SAFETY: opened in open(), and closed here; the relation is open as well.
        unsafe {
            let several = self.count > 1 || !(*self.toast.raw()).rd_indexvalid;
            let is_done = !several || self.ask_catalog();
            ext::toast_close_indexes(self.list, self.count as i32, release as i32);
            self.is_done.set(is_done);
        }
    }
}

impl Drop for Indexes {
    fn drop(&mut self) {
        if self.count > 1 {
            OPEN.set(OPEN.get().saturating_sub(1));
            if !self.is_done.get() {
                LEFT.with_borrow_mut(|left| left.extend(&self.oids));
                ARE_LEFT.set(true);
            }
        }
    }
}

/// A relation is open whose indexes are several.
#[inline]
pub(super) fn are_several_open() -> bool {
    OPEN.get() > 0
}

/// There are indexes to be forgotten.
#[inline]
pub(crate) fn are_left() -> bool {
    ARE_LEFT.get()
}

/// Throw away what is known of indexes that errors have closed.
#[inline]
pub(crate) fn forget_after_error() {
    if are_left() && !lock::holds_light() {
        forget();
    }
}

#[cold]
fn forget() {
    while let Some(oid) = LEFT.with_borrow(|left| left.last().copied()) {
        // SAFETY: an entry that nobody uses is removed. Of one that is in use the row in pg_class is read again, which may raise: then it is still
        // in the list. Who has it in use asks the catalog when he closes it.
        unsafe { pg_sys::RelationCacheInvalidateEntry(oid) }
        LEFT.with_borrow_mut(|left| left.retain(|other| *other != oid));
    }
    ARE_LEFT.set(false);
}
