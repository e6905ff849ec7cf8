//! VACUUM FULL and CLUSTER: the row store is written anew. What heapam does for heap, redone because two
//! things differ: only the row store's rows are to be copied, in whichever order, and somebody must be told
//! where each of them went (see `directory/carry.rs`).
//!
//! Memory: a row at a time; CLUSTER's sort within `maintenance_work_mem`; and what PostgreSQL's rewrite keeps,
//! an entry for each version of a row that was updated after the oldest snapshot, which is kept here a second
//! time while moves are noted.

use crate::directory::carry::{is_settled, Moves};
use crate::pg::compat;
use crate::pg::ext::{self, direct, guarded};
use crate::pg::snapshot::Snap;
use crate::pg::toast::tid_of;
use crate::pg::xact::{is_ours, xid_of};
use crate::pg::{error, Kind, Rel};
use firn_directory::Xid;
use firn_format::Tid;
use pgrx::pg_sys;
use std::collections::{HashMap, HashSet};

/// PostgreSQL's request.
pub(super) struct Request {
    pub old: pg_sys::Relation,
    pub new: pg_sys::Relation,
    /// In the order of this index; null: as the rows lie.
    pub index: pg_sys::Relation,
    pub sort: bool,
    pub oldest: pg_sys::TransactionId,
    pub freeze: pg_sys::TransactionId,
    pub multi: pg_sys::MultiXactId,
}

/// What was found.
#[derive(Clone, Copy, Default)]
pub(super) struct Found {
    pub rows: f64,
    pub vacuumed: f64,
    pub recently_dead: f64,
}

/// A version of a row, by who made it and where.
type Version = (Xid, Tid);

/// Where rows go. A version must be written after the one that replaced it, to be linked to it. PostgreSQL's
/// rewrite sees to that, but does not tell when and where it writes a version that had to wait: so it is not
/// given any before its turn.
struct Trace<'a> {
    moves: &'a mut Moves,
    waiting: HashMap<Version, pg_sys::HeapTuple>,
    written: HashSet<Version>,
}

struct Copy<'a> {
    request: &'a Request,
    rewrite: *mut core::ffi::c_void,
    values: Vec<pg_sys::Datum>,
    nulls: Vec<bool>,
    /// Columns that rows have no value of.
    absent: Vec<usize>,
    trace: Option<Trace<'a>>,
}

/// Copy the rows of the row store that some snapshot may see; note where they went in `moves`.
pub(super) unsafe fn copy(request: &Request, moves: Option<&mut Moves>) -> Found {
    // SAFETY: both relations are open under the strongest lock; the rewrite is ended here, once.
    unsafe {
        let attributes = Rel::of(request.new).attributes();
        let mut copy = Copy {
            request,
            rewrite: ext::begin_heap_rewrite(
                request.old,
                request.new,
                request.oldest,
                request.freeze,
                request.multi,
            ),
            values: vec![pg_sys::Datum::from(0usize); attributes.len()],
            nulls: vec![true; attributes.len()],
            absent: (0..attributes.len()).filter(|i| attributes[*i].absent).collect(),
            trace: moves.map(|moves| Trace {
                moves,
                waiting: HashMap::new(),
                written: HashSet::new(),
            }),
        };
        let found = copy.all();
        copy.left_over();
        ext::end_heap_rewrite(copy.rewrite);
        found
    }
}

impl Copy<'_> {
    unsafe fn all(&mut self) -> Found {
        // SAFETY: rows are looked at while the source holds their page; the sort copies what it is given.
        unsafe {
            let mut found = Found::default();
            let mut source = Source::begin(self.request);
            let sort = self.request.sort.then(|| {
                pg_sys::tuplesort_begin_cluster(
                    (*self.request.old).rd_att,
                    self.request.index,
                    pg_sys::maintenance_work_mem,
                    std::ptr::null_mut(),
                    pg_sys::TUPLESORT_NONE as i32,
                )
            });
            let table = Rel::of(self.request.old);
            while let Some((tuple, state)) = source.next(self.request.oldest) {
                use pg_sys::HTSV_Result as V;
                crate::pg::xact::check_for_interrupts();
                let header = (*tuple).t_data;
                match state {
                    V::HEAPTUPLE_DEAD => {
                        found.vacuumed += 1.0;
                        if self.forget(tuple) {
                            found.vacuumed += 1.0;
                            found.recently_dead -= 1.0;
                        }
                        continue;
                    }
                    V::HEAPTUPLE_RECENTLY_DEAD => found.recently_dead += 1.0,
                    V::HEAPTUPLE_INSERT_IN_PROGRESS => {
                        expect_own((*header).t_choice.t_heap.t_xmin, "insert", table)
                    }
                    V::HEAPTUPLE_DELETE_IN_PROGRESS => {
                        expect_own(ext::update_xid(header), "delete", table);
                        found.recently_dead += 1.0;
                    }
                    _ => (),
                }
                found.rows += 1.0;
                let rows = found.rows as i64;
                let stays = staying(tuple, state);
                let tuple = if stays.is_null() { tuple } else { stays };
                match sort {
                    Some(sort) => {
                        pg_sys::tuplesort_putheaptuple(sort, tuple);
                        progress(&[(pg_sys::PROGRESS_CLUSTER_HEAP_TUPLES_SCANNED, rows)]);
                    }
                    None => {
                        self.write(tuple);
                        progress(&[
                            (pg_sys::PROGRESS_CLUSTER_HEAP_TUPLES_SCANNED, rows),
                            (pg_sys::PROGRESS_CLUSTER_HEAP_TUPLES_WRITTEN, rows),
                        ]);
                    }
                }
                if !stays.is_null() {
                    pg_sys::heap_freetuple(stays);
                }
            }
            source.end();
            if let Some(sort) = sort {
                self.write_sorted(sort);
            }
            found
        }
    }

    unsafe fn write_sorted(&mut self, sort: *mut pg_sys::Tuplesortstate) {
        // SAFETY: the sort is ours, and ended once; a tuple of it is used before the next one is asked for.
        unsafe {
            use pg_sys::{PROGRESS_CLUSTER_PHASE, PROGRESS_CLUSTER_PHASE_WRITE_NEW_HEAP};
            progress(&[(
                PROGRESS_CLUSTER_PHASE,
                pg_sys::PROGRESS_CLUSTER_PHASE_SORT_TUPLES.into(),
            )]);
            pg_sys::tuplesort_performsort(sort);
            progress(&[(PROGRESS_CLUSTER_PHASE, PROGRESS_CLUSTER_PHASE_WRITE_NEW_HEAP.into())]);
            let mut written = 0;
            loop {
                crate::pg::xact::check_for_interrupts();
                let tuple = pg_sys::tuplesort_getheaptuple(sort, true);
                if tuple.is_null() {
                    break;
                }
                self.write(tuple);
                written += 1;
                progress(&[(pg_sys::PROGRESS_CLUSTER_HEAP_TUPLES_WRITTEN, written)]);
            }
            pg_sys::tuplesort_end(sort);
        }
    }

    /// Write a row, now or when the version that replaced it is written, and those that waited for it.
    unsafe fn write(&mut self, tuple: pg_sys::HeapTuple) {
        // SAFETY: the tuple is there until the next one is asked for, and a copy is made of one that has to wait longer.
        unsafe {
            if let Some(trace) = &mut self.trace {
                if let Some(next) = next_version(tuple).filter(|next| !trace.written.remove(next)) {
                    trace.waiting.insert(next, pg_sys::heap_copytuple(tuple));
                    return;
                }
            }
            let (mut tuple, mut ours) = (tuple, false);
            loop {
                let new = self.put(tuple);
                let earlier = self.trace.as_mut().and_then(|t| t.wrote(tuple, new, self.request));
                if ours {
                    pg_sys::heap_freetuple(tuple);
                }
                match earlier {
                    Some(earlier) => (tuple, ours) = (earlier, true),
                    None => return,
                }
            }
        }
    }

    /// Form the row anew, with NULL in columns that have no values, and have it written. Returns its new place.
    unsafe fn put(&mut self, tuple: pg_sys::HeapTuple) -> Tid {
        // SAFETY: the arrays have a place for each column of the tables, of which the old tuple and the new one are.
        unsafe {
            let (old, new) = ((*self.request.old).rd_att, (*self.request.new).rd_att);
            let (values, nulls) = (self.values.as_mut_ptr(), self.nulls.as_mut_ptr());
            let (absent, rewrite) = (self.absent.as_slice(), self.rewrite);
            // One guard around all; what it captures owns nothing.
            let place = guarded(|| {
                direct::heap_deform_tuple(tuple, old, values, nulls);
                for i in absent {
                    *nulls.add(*i) = true;
                }
                let copy = direct::heap_form_tuple(new, values, nulls);
                direct::rewrite_heap_tuple(rewrite, tuple, copy);
                let place = (*copy).t_self;
                direct::heap_freetuple(copy);
                place
            });
            tid_of(&place)
        }
    }

    /// A dead row is not copied, nor is the version before it that waits for it: that is dead, too. True
    /// when there was one.
    unsafe fn forget(&mut self, tuple: pg_sys::HeapTuple) -> bool {
        // SAFETY: a tuple of the source's at hand; a copy that waited is ours, and freed once.
        unsafe {
            let Some(trace) = &mut self.trace else {
                return ext::rewrite_heap_dead_tuple(self.rewrite, tuple);
            };
            let earlier = trace.waiting.remove(&version(tuple));
            if let Some(earlier) = earlier {
                pg_sys::heap_freetuple(earlier);
            }
            earlier.is_some()
        }
    }

    /// Versions whose successor was not met should be dead. PostgreSQL writes them all the same.
    unsafe fn left_over(&mut self) {
        // SAFETY: copies of our own, freed once.
        unsafe {
            let waiting = self.trace.as_mut().map(|t| std::mem::take(&mut t.waiting));
            for tuple in waiting.unwrap_or_default().into_values() {
                self.put(tuple);
                pg_sys::heap_freetuple(tuple);
            }
        }
    }
}

impl Trace<'_> {
    /// A row has been written. Returns the version before it, if that was waiting.
    unsafe fn wrote(
        &mut self,
        tuple: pg_sys::HeapTuple,
        new: Tid,
        request: &Request,
    ) -> Option<pg_sys::HeapTuple> {
        // SAFETY: a tuple of the source's at hand, or a copy of one.
        unsafe {
            let header = (*tuple).t_data;
            let oldest = xid_of(request.oldest);
            let me = version(tuple);
            let young = !is_settled(me.0, oldest);
            // Who is gone for nobody and was there before every snapshot is not asked for.
            if young || is_replaced(header) {
                self.moves.note(me.1, new);
            }
            if !young || u32::from((*header).t_infomask) & pg_sys::HEAP_UPDATED == 0 {
                return None;
            }
            let earlier = self.waiting.remove(&me);
            if earlier.is_none() {
                self.written.insert(me);
            }
            earlier
        }
    }
}

/// A copy, to be freed, of a row that only seems to have been replaced, which says that it was not; null where nothing has to be said. Whoever
/// tried has been rolled back, and of a row of this very transaction nobody may have noted that: `HeapTupleSatisfiesVacuum` does not. PostgreSQL's rewrite would have the row wait for
/// the version that was to replace it, and drop it with that, which is dead. So heapam does where nothing else has noted it (18.6, and 15.18 by its source; 15.20 notes it): CLUSTER in a transaction that has inserted rows, and rolled back updates of them, loses them.
pub(super) unsafe fn staying(
    tuple: pg_sys::HeapTuple,
    state: pg_sys::HTSV_Result::Type,
) -> pg_sys::HeapTuple {
    use pg_sys::HTSV_Result as V;
    // SAFETY: a tuple of the source's at hand, of a table that nobody else changes; the copy is ours.
    unsafe {
        let stays = matches!(state, V::HEAPTUPLE_LIVE | V::HEAPTUPLE_INSERT_IN_PROGRESS);
        if !stays || !is_replaced((*tuple).t_data) {
            return std::ptr::null_mut();
        }
        let copy = pg_sys::heap_copytuple(tuple);
        (*(*copy).t_data).t_infomask |= pg_sys::HEAP_XMAX_INVALID as u16;
        copy
    }
}

/// Somebody has deleted or updated the row, or tried to.
unsafe fn is_replaced(header: pg_sys::HeapTupleHeader) -> bool {
    // SAFETY: a header that the caller has a tuple of.
    unsafe {
        u32::from((*header).t_infomask) & pg_sys::HEAP_XMAX_INVALID == 0
            && !pg_sys::HeapTupleHeaderIsOnlyLocked(header)
    }
}

unsafe fn version(tuple: pg_sys::HeapTuple) -> Version {
    // SAFETY: a tuple of the source's at hand, or a copy of one.
    unsafe {
        let header = (*tuple).t_data;
        let frozen = pg_sys::HEAP_XMIN_FROZEN;
        let xmin = match u32::from((*header).t_infomask) & frozen == frozen {
            true => Xid::FROZEN,
            false => xid_of((*header).t_choice.t_heap.t_xmin),
        };
        (xmin, tid_of(&(*tuple).t_self))
    }
}

/// The version that has replaced this one, in the row store.
unsafe fn next_version(tuple: pg_sys::HeapTuple) -> Option<Version> {
    // SAFETY: a tuple of the source's at hand, or a copy of one.
    unsafe {
        let header = (*tuple).t_data;
        let next = (*header).t_ctid;
        let moved_away = u32::from(next.ip_posid) == pg_sys::MovedPartitionsOffsetNumber;
        let chained =
            !moved_away && tid_of(&next) != tid_of(&(*tuple).t_self) && is_replaced(header);
        chained.then(|| (xid_of(ext::update_xid(header)), tid_of(&next)))
    }
}

/// Nobody else changes the table now.
fn expect_own(xid: pg_sys::TransactionId, what: &str, table: Rel) {
    if !is_ours(xid_of(xid)) {
        let name = table.name();
        error(Kind::Skipped, format!("concurrent {what} in progress within table \"{name}\""))
            .warn();
    }
}

fn progress(what: &[(u32, i64)]) {
    for (index, value) in what {
        // SAFETY: a store to our own entry of the status array.
        unsafe { pg_sys::pgstat_progress_update_param(*index as i32, *value) }
    }
}

/// The row store's rows, dead or alive.
struct Source {
    table: pg_sys::TableScanDesc,
    index: pg_sys::IndexScanDesc,
    slot: *mut pg_sys::TupleTableSlot,
    block: Option<u32>,
}

impl Source {
    unsafe fn begin(request: &Request) -> Source {
        // SAFETY: the relations of the request are open; what is begun here is ended in `end`.
        unsafe {
            let (mut table, mut index) = (std::ptr::null_mut(), std::ptr::null_mut());
            if request.index.is_null() || request.sort {
                let flags =
                    pg_sys::ScanOptions::SO_TYPE_SEQSCAN | pg_sys::ScanOptions::SO_ALLOW_STRAT;
                let none = std::ptr::null_mut();
                // heapam's scan by itself: through the access method it would go on with the stripes.
                table = pg_sys::heap_beginscan(
                    request.old,
                    Snap::any().raw(),
                    0,
                    none,
                    none.cast(),
                    flags,
                );
                let blocks = (*(table as pg_sys::HeapScanDesc)).rs_nblocks;
                progress(&[
                    (
                        pg_sys::PROGRESS_CLUSTER_PHASE,
                        pg_sys::PROGRESS_CLUSTER_PHASE_SEQ_SCAN_HEAP.into(),
                    ),
                    (pg_sys::PROGRESS_CLUSTER_TOTAL_HEAP_BLKS, blocks.into()),
                ]);
            } else {
                let oid = (*request.index).rd_id.to_u32();
                progress(&[
                    (
                        pg_sys::PROGRESS_CLUSTER_PHASE,
                        pg_sys::PROGRESS_CLUSTER_PHASE_INDEX_SCAN_HEAP.into(),
                    ),
                    (pg_sys::PROGRESS_CLUSTER_INDEX_RELID, oid.into()),
                ]);
                index =
                    compat::index_beginscan(request.old, request.index, Snap::any().raw(), 0, 0);
                let none = std::ptr::null_mut();
                pg_sys::index_rescan(index, none, 0, none, 0);
            }
            let slot = pg_sys::table_slot_create(request.old, std::ptr::null_mut());
            Source { table, index, slot, block: None }
        }
    }

    /// The next row, and whether it is dead to all who see `oldest`.
    unsafe fn next(
        &mut self,
        oldest: pg_sys::TransactionId,
    ) -> Option<(pg_sys::HeapTuple, pg_sys::HTSV_Result::Type)> {
        // SAFETY: the slot is one for heap tuples in buffers; after a row was found it holds it, and the page's pin.
        unsafe {
            if self.index.is_null() {
                let forward = pg_sys::ScanDirection::ForwardScanDirection;
                let (scan, slot) = (self.table, self.slot);
                let found = guarded(|| direct::heap_getnextslot(scan, forward, slot));
                self.tell_block(found);
                found.then_some(())?;
            } else {
                self.next_by_index().then_some(())?;
            }
            let filled = self.slot as *mut pg_sys::BufferHeapTupleTableSlot;
            let (tuple, buffer) = ((*filled).base.tuple, (*filled).buffer);
            let state = guarded(|| {
                direct::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
                let state = direct::HeapTupleSatisfiesVacuum(tuple, oldest, buffer);
                direct::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
                state
            });
            Some((tuple, state))
        }
    }

    /// As index_getnext_slot, which would also fetch what the index knows of stripe rows.
    unsafe fn next_by_index(&mut self) -> bool {
        // SAFETY: a scan that `begin` has begun, whose index is there.
        unsafe {
            let scan = self.index;
            loop {
                if !(*scan).xs_heap_continue {
                    crate::pg::xact::check_for_interrupts();
                    let forward = pg_sys::ScanDirection::ForwardScanDirection;
                    let tid = pg_sys::index_getnext_tid(scan, forward);
                    if tid.is_null() {
                        return false;
                    }
                    if tid_of(&*tid).is_virtual() {
                        continue;
                    }
                }
                if pg_sys::index_fetch_heap(scan, self.slot) {
                    break;
                }
            }
            if (*scan).xs_recheck {
                error(Kind::Unsupported, "CLUSTER does not support lossy index conditions").raise()
            }
            true
        }
    }

    unsafe fn tell_block(&mut self, found: bool) {
        // SAFETY: a scan that `begin` has begun, of heapam.
        unsafe {
            let scan = self.table as pg_sys::HeapScanDesc;
            let scanned = if found { (*scan).rs_cblock + 1 } else { (*scan).rs_nblocks };
            if self.block.replace(scanned) != Some(scanned) {
                progress(&[(pg_sys::PROGRESS_CLUSTER_HEAP_BLKS_SCANNED, scanned.into())]);
            }
        }
    }

    unsafe fn end(self) {
        // SAFETY: what `begin` has begun, ended once.
        unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            if self.index.is_null() {
                pg_sys::heap_endscan(self.table);
            } else {
                pg_sys::index_endscan(self.index);
            }
        }
    }
}
