//! Callbacks on single rows: fetching by TID, inserting, deleting, updating, locking. Rows of the
//! row store go to heapam's own callbacks at once.

use super::hidden::hidden;
use super::scan::heap;
use super::scandesc::FetchDesc;
use crate::am::fetch::Fetcher;
use crate::am::moved::{home, sees};
use crate::am::tuple as rows;
use crate::entry::copying::is_copying;
use crate::pg::compat;
use crate::pg::ext::callback;
use crate::pg::heap::{am as heapam, check_room, Failure, RowLock};
use crate::pg::lock::Wait;
use crate::pg::memory::{alloc, end_state, slot_for_state};
use crate::pg::slot::Slot;
use crate::pg::snapshot::Snap;
use crate::pg::toast::{raw_tid, tid_of};
use crate::pg::xact::xid_of;
use crate::pg::{toast_indexes, Rel};
use firn_directory::Cid;
use firn_format::{Tid, VIRTUAL_BASE};
use pgrx::pg_sys;

#[inline]
unsafe fn is_virtual(tid: pg_sys::ItemPointer) -> bool {
    // SAFETY: a TID that PostgreSQL has handed in.
    unsafe { (*tid).ip_blkid.bi_hi >= (VIRTUAL_BASE >> 16) as u16 }
}

fn optional(snapshot: pg_sys::Snapshot) -> Option<Snap> {
    (!snapshot.is_null()).then(|| Snap::of(snapshot))
}

pub(super) unsafe extern "C-unwind" fn index_fetch_begin(
    rel: pg_sys::Relation,
) -> *mut pg_sys::IndexFetchTableData {
    // SAFETY: the relation is open; the descriptor is zeroed memory that begins with heapam's.
    unsafe {
        callback(|| {
            let desc = alloc::<FetchDesc>();
            (*desc).heap.xs_base.rel = rel;
            (*desc).context = pg_sys::CurrentMemoryContext;
            (*desc).state = slot_for_state();
            desc as *mut pg_sys::IndexFetchTableData
        })
    }
}

pub(super) unsafe extern "C-unwind" fn index_fetch_reset(data: *mut pg_sys::IndexFetchTableData) {
    // SAFETY: a descriptor that `index_fetch_begin` has made, which begins with heapam's.
    unsafe { heap!(index_fetch_reset(data)) }
}

pub(super) unsafe extern "C-unwind" fn index_fetch_end(data: *mut pg_sys::IndexFetchTableData) {
    // SAFETY: a descriptor that `index_fetch_begin` has made; PostgreSQL ends it once.
    unsafe {
        callback(|| end_state(&mut (*(data as *mut FetchDesc)).state));
        heap!(index_fetch_end(data))
    }
}

pub(super) unsafe extern "C-unwind" fn index_fetch_tuple(
    scan: *mut pg_sys::IndexFetchTableData,
    tid: pg_sys::ItemPointer,
    snapshot: pg_sys::Snapshot,
    slot: *mut pg_sys::TupleTableSlot,
    call_again: *mut bool,
    all_dead: *mut bool,
) -> bool {
    // SAFETY: the descriptor is `index_fetch_begin`'s, and the caller's other pointers lead to variables of its own; only `all_dead` may be null.
    unsafe {
        if !is_virtual(tid) {
            let found = heap!(index_fetch_tuple(scan, tid, snapshot, slot, call_again, all_dead));
            return found && !hidden((*scan).rel, snapshot, slot);
        }
        *call_again = false;
        if !all_dead.is_null() {
            *all_dead = false;
        }
        let desc = scan as *mut FetchDesc;
        // Most rows of an index-only scan need no more.
        if let Some(fetcher) = &*(*desc).state {
            if fetcher.sees_at_once(tid_of(&*tid), Snap::of(snapshot), Slot::of(slot)) {
                return true;
            }
        }
        callback(|| {
            let state = &mut *(*desc).state;
            let rel = Rel::of((*scan).rel);
            crate::pg::memory::within((*desc).context, || {
                let fetcher = state.get_or_insert_with(|| Fetcher::new(rel));
                fetcher.fetch(tid_of(&*tid), Snap::of(snapshot), Slot::of(slot))
            })
        })
    }
}

pub(super) unsafe extern "C-unwind" fn fetch_row_version(
    rel: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    snapshot: pg_sys::Snapshot,
    slot: *mut pg_sys::TupleTableSlot,
) -> bool {
    // SAFETY: an open relation, a TID of the caller's, a snapshot that is registered or static, and a slot for the table's rows.
    unsafe {
        if !is_virtual(tid) {
            if heap!(tuple_fetch_row_version(rel, tid, snapshot, slot)) {
                return !hidden(rel, snapshot, slot);
            }
            if (*snapshot).snapshot_type != pg_sys::SnapshotType::SNAPSHOT_MVCC {
                return false;
            }
        }
        callback(|| {
            let (rel, tid, snap) = (Rel::of(rel), tid_of(&*tid), Snap::of(snapshot));
            // A moved row is the same row.
            let tid = if tid.is_virtual() { Some(tid) } else { home(rel, tid, snap) };
            let Some(tid) = tid else { return false };
            let mut fetcher = Fetcher::new(rel);
            fetcher.fetch(tid, snap, Slot::of(slot))
                || snap.kind() == crate::pg::SnapKind::Mvcc
                    && sees(rel, tid, snap)
                    && fetcher.fetch(tid, Snap::any(), Slot::of(slot))
        })
    }
}

pub(super) unsafe extern "C-unwind" fn tid_valid(
    scan: pg_sys::TableScanDesc,
    tid: pg_sys::ItemPointer,
) -> bool {
    // SAFETY: a scan of ours, and a TID of the caller's.
    unsafe {
        if is_virtual(tid) {
            return (*tid).ip_posid != 0;
        }
        heap!(tuple_tid_valid(scan, tid))
    }
}

pub(super) unsafe extern "C-unwind" fn get_latest_tid(
    scan: pg_sys::TableScanDesc,
    tid: pg_sys::ItemPointer,
) {
    // SAFETY: a scan of ours; the TID is the caller's, to be changed.
    unsafe {
        // A stripe row's TID is its last one as long as it is alive; once updated, the successor is the
        // start of a chain in the row store, whose end a move may have taken into a stripe again.
        loop {
            if !is_virtual(tid) {
                heap!(tuple_get_latest_tid(scan, tid));
            }
            let next = callback(|| {
                let (rel, snap) = (Rel::of((*scan).rs_rd), Snap::of((*scan).rs_snapshot));
                match tid_of(&*tid) {
                    at if at.is_virtual() => rows::successor(rel, at, snap),
                    at => home(rel, at, snap),
                }
            });
            match next {
                Some(next) => *tid = raw_tid(next),
                None => return,
            }
        }
    }
}

pub(super) unsafe extern "C-unwind" fn satisfies_snapshot(
    rel: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    snapshot: pg_sys::Snapshot,
) -> bool {
    // SAFETY: the slot holds a row that the table has given out, so its TID is set.
    unsafe {
        let tid = &raw mut (*slot).tts_tid;
        if !is_virtual(tid) {
            return heap!(tuple_satisfies_snapshot(rel, slot, snapshot));
        }
        callback(|| sees(Rel::of(rel), tid_of(&*tid), Snap::of(snapshot)))
    }
}

/// Index entries of stripe rows are never reported deletable here: whether a row is dead to all is
/// not a matter of one session. heapam sees the row store's entries only.
pub(super) unsafe extern "C-unwind" fn index_delete_tuples(
    rel: pg_sys::Relation,
    state: *mut pg_sys::TM_IndexDeleteOp,
) -> pg_sys::TransactionId {
    // SAFETY: PostgreSQL hands in as many TIDs as it says, of one index page, in memory of its own that it lets us reorder.
    unsafe {
        let all = std::slice::from_raw_parts_mut((*state).deltids, (*state).ndeltids as usize);
        let is_stripe =
            |d: &pg_sys::TM_IndexDelete| d.tid.ip_blkid.bi_hi >= (VIRTUAL_BASE >> 16) as u16;
        // Row store entries first; the order within each half stays.
        let mut heap_count = 0;
        for i in 0..all.len() {
            if !is_stripe(&all[i]) {
                all[heap_count..=i].rotate_right(1);
                heap_count += 1;
            }
        }
        let total = all.len() as i32;
        if heap_count == 0 {
            // Bottom-up callers may be told "nothing"; the others keep their own marks.
            if (*state).bottomup {
                (*state).ndeltids = 0;
            }
            return pg_sys::InvalidTransactionId;
        }
        (*state).ndeltids = heap_count as i32;
        let horizon = heap!(index_delete_tuples(rel, state));
        if !(*state).bottomup {
            (*state).ndeltids = total;
        }
        horizon
    }
}

/// Before the row store takes a row, and the indexes after it.
unsafe fn prepare_row(rel: pg_sys::Relation) {
    // SAFETY: the relation is open, as for every insertion.
    unsafe {
        check_room(rel);
        crate::pg::lock::before_indexes(rel);
    }
}

fn is_frozen(options: i32) -> bool {
    options & pg_sys::TABLE_INSERT_FROZEN as i32 != 0
}

pub(super) unsafe extern "C-unwind" fn insert(
    rel: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    cid: pg_sys::CommandId,
    options: i32,
    bistate: *mut pg_sys::BulkInsertStateData,
) {
    // SAFETY: PostgreSQL hands in an open relation and a slot with a row for it.
    unsafe {
        let (table, row) = (Rel::of(rel), Slot::of(slot));
        if callback(|| crate::write::insert(table, row, Cid(cid), is_frozen(options))) {
            return;
        }
        prepare_row(rel);
        heap!(tuple_insert(rel, slot, cid, options, bistate))
    }
}

pub(super) unsafe extern "C-unwind" fn insert_speculative(
    rel: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    cid: pg_sys::CommandId,
    options: i32,
    bistate: *mut pg_sys::BulkInsertStateData,
    token: u32,
) {
    // SAFETY: PostgreSQL hands in an open relation and a slot with a row for it.
    unsafe {
        prepare_row(rel);
        heap!(tuple_insert_speculative(rel, slot, cid, options, bistate, token))
    }
}

pub(super) unsafe extern "C-unwind" fn multi_insert(
    rel: pg_sys::Relation,
    slots: *mut *mut pg_sys::TupleTableSlot,
    count: i32,
    cid: pg_sys::CommandId,
    options: i32,
    bistate: *mut pg_sys::BulkInsertStateData,
) {
    // SAFETY: PostgreSQL hands in an open relation and as many slots as it says.
    unsafe {
        let taken = callback(|| {
            let list: Vec<Slot> = (0..count as usize).map(|i| Slot::of(*slots.add(i))).collect();
            crate::write::insert_many(Rel::of(rel), &list, Cid(cid), is_frozen(options))
        });
        if !taken {
            prepare_row(rel);
            heap!(multi_insert(rel, slots, count, cid, options, bistate))
        }
    }
}

pub(super) unsafe extern "C-unwind" fn finish_bulk_insert(rel: pg_sys::Relation, options: i32) {
    // SAFETY: an open relation; heapam's callback, if it has one, takes the same.
    unsafe {
        if !is_copying() {
            callback(|| crate::write::flush_table(Rel::of(rel)));
        }
        if let Some(f) = heapam().finish_bulk_insert {
            f(rel, options)
        }
    }
}

/// A row-store row was found deleted: if a move took it into a stripe, this is where it is.
unsafe fn moved(
    rel: pg_sys::Relation,
    tid: Tid,
    result: pg_sys::TM_Result::Type,
    tmfd: *mut pg_sys::TM_FailureData,
) -> Option<Tid> {
    // SAFETY: heapam has filled the failure, as its result is not "done".
    unsafe {
        if result != pg_sys::TM_Result::TM_Deleted && result != pg_sys::TM_Result::TM_Updated {
            return None;
        }
        callback(|| rows::moved_to(Rel::of(rel), tid, xid_of((*tmfd).xmax)))
    }
}

unsafe fn report(
    result: (crate::pg::heap::Outcome, Failure),
    tmfd: *mut pg_sys::TM_FailureData,
) -> pg_sys::TM_Result::Type {
    // SAFETY: the caller's own place for a failure.
    unsafe {
        result.1.write(&mut *tmfd);
        result.0.raw()
    }
}

pub(super) unsafe extern "C-unwind" fn delete(
    rel: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    cid: pg_sys::CommandId,
    snapshot: pg_sys::Snapshot,
    mut crosscheck: pg_sys::Snapshot,
    wait: bool,
    tmfd: *mut pg_sys::TM_FailureData,
    changing_part: bool,
) -> pg_sys::TM_Result::Type {
    // SAFETY: PostgreSQL hands in an open relation, the TID and the failure to be written to, and a snapshot to check by or null.
    unsafe {
        let mut target = tid_of(&*tid);
        if !target.is_virtual() {
            if toast_indexes::are_left() {
                callback(toast_indexes::forget_after_error);
            }
            let result =
                heap!(tuple_delete(rel, tid, cid, snapshot, crosscheck, wait, tmfd, changing_part));
            // A moved row is the same row, which every snapshot saw: go on where it is now.
            match moved(rel, target, result, tmfd) {
                Some(place) => (target, crosscheck) = (place, std::ptr::null_mut()),
                None => return result,
            }
        }
        let result = callback(|| {
            let (table, cid, crosscheck) = (Rel::of(rel), Cid(cid), optional(crosscheck));
            report(rows::delete(table, target, cid, crosscheck, wait, changing_part), tmfd)
        });
        tell_place(result, tid, target);
        result
    }
}

/// Triggers come back for the row that was changed, at the end of the transaction even: nobody keeps the place that it has moved from.
unsafe fn tell_place(result: pg_sys::TM_Result::Type, tid: pg_sys::ItemPointer, place: Tid) {
    // SAFETY: the TID is the caller's, to be changed.
    unsafe {
        if result == pg_sys::TM_Result::TM_Ok {
            *tid = raw_tid(place);
        }
    }
}

pub(super) unsafe extern "C-unwind" fn update(
    rel: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    slot: *mut pg_sys::TupleTableSlot,
    cid: pg_sys::CommandId,
    snapshot: pg_sys::Snapshot,
    mut crosscheck: pg_sys::Snapshot,
    wait: bool,
    tmfd: *mut pg_sys::TM_FailureData,
    lockmode: *mut pg_sys::LockTupleMode::Type,
    update_indexes: *mut compat::IndexesToUpdate,
) -> pg_sys::TM_Result::Type {
    // SAFETY: PostgreSQL hands in an open relation, a slot with the new row, and variables of its own that are to be written to.
    unsafe {
        let mut target = tid_of(&*tid);
        if !target.is_virtual() {
            prepare_row(rel);
            let result = heap!(tuple_update(
                rel,
                tid,
                slot,
                cid,
                snapshot,
                crosscheck,
                wait,
                tmfd,
                lockmode,
                update_indexes
            ));
            match moved(rel, target, result, tmfd) {
                Some(place) => (target, crosscheck) = (place, std::ptr::null_mut()),
                None => return result,
            }
        }
        *update_indexes = compat::ALL_INDEXES;
        let result = callback(|| {
            let (table, row, cid) = (Rel::of(rel), Slot::of(slot), Cid(cid));
            let (outcome, failure, mode) =
                rows::update(table, target, row, cid, optional(crosscheck), wait);
            *lockmode = mode.raw();
            report((outcome, failure), tmfd)
        });
        tell_place(result, tid, target);
        result
    }
}

pub(super) unsafe extern "C-unwind" fn lock(
    rel: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    snapshot: pg_sys::Snapshot,
    slot: *mut pg_sys::TupleTableSlot,
    cid: pg_sys::CommandId,
    mode: pg_sys::LockTupleMode::Type,
    policy: pg_sys::LockWaitPolicy::Type,
    flags: u8,
    tmfd: *mut pg_sys::TM_FailureData,
) -> pg_sys::TM_Result::Type {
    // SAFETY: PostgreSQL hands in an open relation, a slot for the row, and the TID and the failure to be written to.
    unsafe {
        // A subscription's worker names the row that it has found by a copy of the scan's slot.
        if (*tid).ip_posid == 0 {
            callback(|| Slot::of(slot).restore_tid());
        }
        let find_last = flags & pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION as u8 != 0;
        let mut traversed = false;
        loop {
            let target = tid_of(&*tid);
            if !target.is_virtual() {
                // First without following: a row that a move took away would raise an error there.
                let plain = flags & !(pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION as u8);
                let result =
                    heap!(tuple_lock(rel, tid, snapshot, slot, cid, mode, policy, plain, tmfd));
                if let Some(place) = moved(rel, target, result, tmfd) {
                    *tid = raw_tid(place);
                    continue;
                }
                let again = find_last
                    && matches!(
                        result,
                        pg_sys::TM_Result::TM_Updated | pg_sys::TM_Result::TM_Deleted
                    );
                let result = if again {
                    heap!(tuple_lock(rel, tid, snapshot, slot, cid, mode, policy, flags, tmfd))
                } else {
                    result
                };
                (*tmfd).traversed |= traversed;
                return result;
            }
            let step = callback(|| {
                let wait = match policy {
                    pg_sys::LockWaitPolicy::LockWaitBlock => Wait::Block,
                    pg_sys::LockWaitPolicy::LockWaitSkip => Wait::Skip,
                    _ => Wait::Error,
                };
                rows::lock(
                    Rel::of(rel),
                    target,
                    Slot::of(slot),
                    Cid(cid),
                    RowLock::of(mode),
                    wait,
                    find_last,
                )
            });
            match step {
                rows::LockResult::Done(outcome, failure) => {
                    let failure = Failure { traversed, ..failure };
                    return report((outcome, failure), tmfd);
                }
                rows::LockResult::Follow(next) => {
                    traversed = true;
                    let to = if next.is_virtual() {
                        rows::FollowedTo::Lock(next)
                    } else {
                        callback(|| rows::follow_own(Rel::of(rel), next, Cid(cid)))
                    };
                    match to {
                        rows::FollowedTo::Lock(newest) => *tid = raw_tid(newest),
                        rows::FollowedTo::Done(outcome, failure) => {
                            return report((outcome, Failure { traversed, ..failure }), tmfd);
                        }
                    }
                }
            }
        }
    }
}
