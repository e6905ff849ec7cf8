//! The indexes of an open TOAST relation: one, and while REINDEX CONCURRENTLY builds it anew, its copy beside it.
//!
//! What this session knows of an index, whether it takes entries and whether look-ups may use it, comes anew when another session has
//! changed it. Not so for an index of a TOAST relation that is open at that moment: PostgreSQL reads no more than its row in pg_class
//! again then (`RelationReloadIndexInfo` takes such indexes for the system's, which nobody changes), and keeps what it had to the end of the
//! session. The copy would get none of the rows that this session inserts, and once it has taken the index's place, look-ups would miss these,
//! or find no index that they may use. PostgreSQL itself opens these indexes for moments; here they are open while others are locked,
//! which is when such news come. So what is known of them is thrown away when they are closed. (It is right for the transaction that has
//! opened them: REINDEX waits for those who have locked the relation before each of its steps.)

use super::{ext, LockMode, Rel};
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};

thread_local! {
    /// Indexes that were open beside others, and the transaction in which they were.
    static SEEN: RefCell<Vec<(u32, u32)>> = const { RefCell::new(Vec::new()) };
    static ARE_SEEN: Cell<bool> = const { Cell::new(false) };
}

/// Of one TOAST relation, open.
pub(super) struct Indexes {
    list: *mut pg_sys::Relation,
    count: usize,
    /// The one that look-ups use.
    valid: usize,
}

impl Indexes {
    pub(super) fn open(toast: Rel, lock: LockMode) -> Indexes {
        forget_indexes();
        let (mut list, mut count) = (std::ptr::null_mut(), 0);
        // SAFETY: the relation is open; the array is palloc'ed by PostgreSQL, and closed in close().
        let valid =
            unsafe { ext::toast_open_indexes(toast.raw(), lock as i32, &mut list, &mut count) };
        let (count, valid) = (count.max(0) as usize, valid.max(0) as usize);
        let indexes = Indexes { list, count, valid };
        if count > 1 {
            // An error may close them.
            indexes.note();
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

    /// Close them, and give up their lock if it is `release`.
    ///
    /// # Safety
    /// Once, while PostgreSQL has not closed them itself after an error.
    pub(super) unsafe fn close(&self, release: LockMode) {
        // SAFETY: opened in open(), and closed here.
        unsafe {
            ext::toast_close_indexes(self.list, self.count as i32, release as i32);
        }
        forget_indexes();
    }

    fn note(&self) {
        // SAFETY: in a transaction.
        let now = unsafe { ext::local_transaction() };
        let oids = self.all().iter().map(|&index| (Rel::of(index).oid(), now));
        SEEN.with_borrow_mut(|seen| {
            seen.extend(oids);
            seen.sort_unstable();
            seen.dedup();
        });
        ARE_SEEN.set(true);
    }
}

/// There are indexes to be forgotten.
#[inline]
pub(super) fn are_seen() -> bool {
    ARE_SEEN.get()
}

/// Throw away what is known of indexes that were open beside others. Of those that are still open nothing is: it is done again when they are
/// closed, and once more when the transaction is over, as an error may have closed them.
#[inline]
pub(super) fn forget_indexes() {
    if are_seen() {
        forget();
    }
}

#[cold]
fn forget() {
    let seen = SEEN.with_borrow(Vec::clone);
    for &(oid, _) in &seen {
        // SAFETY: a plain call: an entry that nobody uses is removed, and of one that is used the row in pg_class is read again.
        unsafe { pg_sys::RelationCacheInvalidateEntry(oid.into()) }
    }
    // SAFETY: in a transaction.
    let now = unsafe { ext::local_transaction() };
    SEEN.with_borrow_mut(|seen| seen.retain(|&(_, within)| within == now));
    ARE_SEEN.set(SEEN.with_borrow(|seen| !seen.is_empty()));
}
