//! Building and validating indexes: what heapam does for heap, redone on `heap_getnextslot`, which
//! does not insist on heap's access method.

use super::datum::Row;
use super::parallel::Shared;
use super::slot::Slot;
use super::snapshot::{Registered, Snap};
use super::toast::{raw_tid, tid_of, Address};
use super::Rel;
use super::{compat, Oid};
use firn_directory::Xid;
use firn_format::Tid;
use pgrx::pg_sys;
use std::ops::Range;

/// PostgreSQL's request to build an index.
pub struct Build {
    pub(crate) table: pg_sys::Relation,
    pub(crate) index: pg_sys::Relation,
    pub(crate) info: *mut pg_sys::IndexInfo,
    pub(crate) allow_sync: bool,
    pub(crate) anyvisible: bool,
    /// These blocks only.
    pub(crate) blocks: Option<Range<u32>>,
    pub(crate) call: pg_sys::IndexBuildCallback,
    pub(crate) state: *mut core::ffi::c_void,
    pub(crate) scan: pg_sys::TableScanDesc,
}

impl Rel {
    /// This index knows ranges of blocks, not rows.
    pub(crate) fn is_of_ranges(self) -> bool {
        // SAFETY: an open index.
        is_of_ranges(unsafe { (*(*self.raw()).rd_rel).relam })
    }
}

/// Indexes of this access method know ranges of blocks, not rows: BRIN's, and those of one that somebody has made of BRIN's handler.
pub(crate) fn is_of_ranges(method: Oid) -> bool {
    if method == pg_sys::BRIN_AM_OID || method.to_u32() < pg_sys::FirstNormalObjectId {
        return method == pg_sys::BRIN_AM_OID;
    }
    // SAFETY: access methods that are there; a description is looked at before it is freed.
    unsafe {
        let bitmap = |method| {
            let routine = pg_sys::GetIndexAmRoutineByAmId(method, true);
            let found = routine.as_ref().and_then(|r| r.amgetbitmap).map(|f| f as usize);
            if !routine.is_null() {
                pg_sys::pfree(routine.cast());
            }
            found
        };
        bitmap(method).is_some_and(|f| Some(f) == bitmap(pg_sys::BRIN_AM_OID))
    }
}

/// The table's columns (0 = first) that an index has; None if expressions or a predicate are to be computed, or it has none of the table's own.
fn plain_columns(info: &pg_sys::IndexInfo) -> Option<Vec<usize>> {
    if !info.ii_Expressions.is_null() || !info.ii_Predicate.is_null() {
        return None;
    }
    let numbers = info.ii_IndexAttrNumbers.get(..info.ii_NumIndexAttrs as usize)?;
    numbers.iter().map(|number| usize::try_from(*number).ok()?.checked_sub(1)).collect()
}

/// Executor state for computing index entries.
pub struct Builder {
    request: Build,
    estate: *mut pg_sys::EState,
    econtext: *mut pg_sys::ExprContext,
    slot: *mut pg_sys::TupleTableSlot,
    predicate: *mut pg_sys::ExprState,
    /// The snapshot of a concurrent build: one for both halves of the table, or a row that is deleted from
    /// one and inserted into the other meanwhile would be indexed twice.
    snapshot: Option<Registered>,
    /// The scan is somebody else's.
    is_given: bool,
    /// Rows of stripes are handed over as rows of this block.
    all_in: Option<u32>,
    /// The table's columns (0 = first) that are the index's, where it has no expressions and no predicate.
    plain: Option<Vec<usize>>,
    /// An entry's values.
    values: [pg_sys::Datum; pg_sys::INDEX_MAX_KEYS as usize],
    nulls: [bool; pg_sys::INDEX_MAX_KEYS as usize],
}

impl Builder {
    pub(crate) fn new(request: Build) -> Builder {
        // SAFETY: executor set-up as heapam's index build does it; released in finish().
        unsafe {
            let estate = pg_sys::CreateExecutorState();
            let econtext = pg_sys::MakePerTupleExprContext(estate);
            let slot = pg_sys::table_slot_create(request.table, std::ptr::null_mut());
            (*econtext).ecxt_scantuple = slot;
            let predicate = pg_sys::ExecPrepareQual((*request.info).ii_Predicate, estate);
            let given = !request.scan.is_null();
            let snapshot = (!given && (*request.info).ii_Concurrent).then(Registered::transaction);
            let plain = plain_columns(&*request.info);
            let (values, nulls) = ([pg_sys::Datum::from(0usize); _], [false; _]);
            Builder {
                request,
                estate,
                econtext,
                slot,
                predicate,
                snapshot,
                is_given: given,
                all_in: None,
                plain,
                values,
                nulls,
            }
        }
    }

    pub fn table(&self) -> Rel {
        Rel::of(self.request.table)
    }
    /// Somebody looks at the table's rows as a build would, in a scan of his own: a process of a parallel build, or amcheck, which builds
    /// nothing, and may do so on a standby.
    pub fn is_of_given_scan(&self) -> bool {
        self.is_given
    }
    /// The blocks that are asked for, of the row store and of stripes; None: all are.
    pub fn blocks(&self) -> Option<Range<u32>> {
        self.request.blocks.clone()
    }
    /// The index's.
    pub fn name(&self) -> String {
        Rel::of(self.request.index).name()
    }
    pub fn is_of_ranges(&self) -> bool {
        Rel::of(self.request.index).is_of_ranges()
    }
    /// Rows of stripes that come are handed over as rows of this block of the row store.
    pub fn put_all_into(&mut self, block: u32) {
        self.all_in = Some(block);
    }
    /// The index is being created, not built anew in place. (One that is built concurrently is a new one; so is one whose building failed, and that of a
    /// materialized view which is given other rows, or is rewritten with those that it has, which nothing tells apart.)
    pub fn is_new(&self) -> bool {
        let table = self.table();
        let is_view = table.kind() == pg_sys::RELKIND_MATVIEW;
        if is_view && compat::file_subtransactions(table.data()) != (0, 0) {
            return true;
        }
        // SAFETY: the index is open, and its descriptions are live.
        unsafe {
            let (index, known) = (&*self.request.index, &*(*self.request.index).rd_index);
            let is_made = known.indisvalid && known.indisready;
            index.rd_createSubid != 0 || (*self.request.info).ii_Concurrent || !is_made
        }
    }
    /// The index is being created, not rebuilt, and not as that of a partition whose parent has one.
    pub fn is_asked_for(&self) -> bool {
        // SAFETY: the index is open.
        unsafe {
            let index = self.request.index;
            (*index).rd_createSubid != 0 && !(*(*index).rd_rel).relispartition
        }
    }
    /// The shared state of a parallel build.
    pub fn shared(&self) -> Option<Shared> {
        let scan = self.request.scan;
        // SAFETY: a scan given by PostgreSQL is live.
        let parallel = unsafe { scan.as_ref().map(|s| s.rs_parallel) }?;
        // SAFETY: what a scan of a firn table shares is ours, and outlives the build.
        (!parallel.is_null()).then(|| unsafe { Shared::of(parallel) })
    }
    /// Columns whose values the index needs.
    pub fn wanted(&self) -> Vec<bool> {
        let columns = self.table().column_count();
        // SAFETY: live IndexInfo; its expressions are of one table, whose number in them is 1.
        unsafe {
            let info = &*self.request.info;
            let nodes = [info.ii_Expressions.cast(), info.ii_Predicate.cast()];
            let (mut wanted, _) = super::nodes::marks_of(&nodes, 1, columns);
            for number in &info.ii_IndexAttrNumbers[..info.ii_NumIndexAttrs as usize] {
                // (0 is an expression's.)
                let column = usize::try_from(*number).ok().and_then(|n| n.checked_sub(1));
                if let Some(w) = column.and_then(|c| wanted.get_mut(c)) {
                    *w = true;
                }
            }
            wanted
        }
    }
    /// The snapshot under which rows are looked at: None means all that might be visible to anyone.
    pub fn mvcc_snapshot(&self) -> Option<Snap> {
        // SAFETY: live scan or IndexInfo.
        unsafe {
            if !self.request.scan.is_null() {
                let snap = Snap::of((*self.request.scan).rs_snapshot);
                return (snap.kind() == super::SnapKind::Mvcc).then_some(snap);
            }
        }
        self.snapshot.as_ref().map(Registered::snap)
    }
    /// Hand one stripe row to the index build. `alive` is false for a row that only older
    /// snapshots see.
    pub fn offer(&mut self, tid: Tid, xmin: Xid, row: Row<'_>, alive: bool) -> bool {
        // (A block's first row would have BRIN ask for a summary of the range before, each time.)
        let known_as = self.all_in.map_or(tid, |block| Tid { block, offset: 2 });
        // The row's bytes must outlive the call only: the index copies what it needs.
        if let Some(columns) = &self.plain {
            // Neither a tuple nor the executor is needed for values that are there.
            let (values, nulls) = row.words();
            for (i, column) in columns.iter().enumerate() {
                self.values[i] = pg_sys::Datum::from(values.get(*column).copied().unwrap_or(0));
                self.nulls[i] = nulls.get(*column).copied().unwrap_or(true);
            }
            self.hand_over(raw_tid(known_as), alive);
            return true;
        }
        // SAFETY: a slot of the table's, until the build ends.
        let slot = unsafe { Slot::of(self.slot) };
        if !slot.lend_row(self.table(), row, tid) {
            slot.store_row(self.table(), row, tid, xmin);
        }
        self.offer_slot(raw_tid(known_as), alive)
    }

    /// The entry's values to the access method.
    fn hand_over(&mut self, mut tid: pg_sys::ItemPointerData, alive: bool) {
        let Some(f) = self.request.call else { return };
        let (values, nulls) = (self.values.as_mut_ptr(), self.nulls.as_mut_ptr());
        let (index, state, tid) = (self.request.index, self.request.state, &raw mut tid);
        // SAFETY: as heapam calls it: arrays of as many values as an index may have, which outlive the call.
        unsafe { super::ext::guarded(|| f(index, tid, values, nulls, alive, state)) }
    }

    fn offer_slot(&mut self, tid: pg_sys::ItemPointerData, alive: bool) -> bool {
        // SAFETY: as heapam: predicate, then values, then the access method's callback.
        unsafe {
            pg_sys::MemoryContextReset((*self.econtext).ecxt_per_tuple_memory);
            if !self.predicate.is_null() {
                let mut null = false;
                let null = &raw mut null;
                let old = pg_sys::MemoryContextSwitchTo((*self.econtext).ecxt_per_tuple_memory);
                let pass = match (*self.predicate).evalfunc {
                    Some(f) => super::ext::guarded(|| f(self.predicate, self.econtext, null)),
                    None => pg_sys::Datum::from(0usize),
                };
                pg_sys::MemoryContextSwitchTo(old);
                if pass.value() as u8 == 0 {
                    return false;
                }
            }
            let (values, nulls) = (self.values.as_mut_ptr(), self.nulls.as_mut_ptr());
            pg_sys::FormIndexDatum(self.request.info, self.slot, self.estate, values, nulls);
            self.hand_over(tid, alive);
            true
        }
    }

    /// Index the row store. Returns the number of rows.
    pub fn row_store(&mut self) -> f64 {
        self.heap_rows(|_| false)
    }

    /// Index the heap's rows except those for which `skip` holds. Returns the number of rows.
    pub(crate) fn heap_rows(&mut self, skip: fn(&super::toast::RowView) -> bool) -> f64 {
        // SAFETY: scan, page and tuple handling as in heapam_index_build_range_scan.
        unsafe {
            let (scan, own) = self.begin_row_store();
            if let Some(asked) = &self.request.blocks {
                // heap_setscanlimits() believes what it is told.
                let end = asked.end.min((*(scan as pg_sys::HeapScanDesc)).rs_nblocks);
                let start = asked.start.min(end);
                let first = if start < end { start } else { 0 };
                pg_sys::heap_setscanlimits(scan, first, end - start);
            }
            // PostgreSQL takes a relation made by this transaction for one that nobody else reads. The TOAST
            // relation that VACUUM FULL fills is one, and takes the old one's place: with rows that are
            // dead to us alone.
            let local = (*self.request.table).rd_createSubid != 0;
            let rel = if local { std::ptr::null_mut() } else { self.request.table };
            let oldest = pg_sys::GetOldestNonRemovableTransactionId(rel);
            let any = (*(*scan).rs_snapshot).snapshot_type == pg_sys::SnapshotType::SNAPSHOT_ANY;
            let mut roots = Roots::new();
            let mut rows = 0.0;
            let Some(next) = super::heap::am().scan_getnextslot else { return 0.0 };
            let forward = pg_sys::ScanDirection::ForwardScanDirection;
            while super::ext::guarded(|| next(scan, forward, self.slot)) {
                super::xact::check_for_interrupts();
                let buffered = self.slot as *mut pg_sys::BufferHeapTupleTableSlot;
                let tuple = (*buffered).base.tuple;
                let buffer = (*buffered).buffer;
                let verdict = if any { self.judge(tuple, buffer, oldest) } else { Some(true) };
                let Some(alive) = verdict else { continue };
                if skip(&super::toast::RowView::of(tuple)) {
                    continue;
                }
                if alive {
                    rows += 1.0;
                }
                let mut tid = (*tuple).t_self;
                if (*(*tuple).t_data).t_infomask2 as u32 & pg_sys::HEAP_ONLY_TUPLE != 0 {
                    tid.ip_posid = roots.of(buffer, Address::of(&tid));
                }
                self.offer_slot(tid, alive);
            }
            if own {
                pg_sys::heap_endscan(scan);
            }
            rows
        }
    }

    /// Index it, and as what? None: not at all. As heapam decides, for SnapshotAny.
    unsafe fn judge(
        &mut self,
        tuple: pg_sys::HeapTuple,
        buffer: pg_sys::Buffer,
        oldest: pg_sys::TransactionId,
    ) -> Option<bool> {
        // SAFETY: the scan's slot holds tuple and pin; the header is read under the page's lock, which is given back before anything is waited for.
        unsafe {
            use pg_sys::HTSV_Result as V;
            loop {
                pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
                let state = pg_sys::HeapTupleSatisfiesVacuum(tuple, oldest, buffer);
                let header = (*tuple).t_data;
                let xmin = (*header).t_choice.t_heap.t_xmin;
                let xmax = super::ext::update_xid(header);
                let hot_updated = super::ext::is_hot_updated(header);
                pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
                let unique = (*self.request.info).ii_Unique
                    || !(*self.request.info).ii_ExclusionOps.is_null();
                let superseded = |builder: &mut Builder| {
                    // A heap-only successor is indexed under this row's root; older snapshots must not
                    // use the index then.
                    if hot_updated {
                        (*builder.request.info).ii_BrokenHotChain = true;
                        None
                    } else {
                        Some(false)
                    }
                };
                return match state {
                    V::HEAPTUPLE_DEAD => None,
                    V::HEAPTUPLE_LIVE => Some(true),
                    V::HEAPTUPLE_RECENTLY_DEAD => superseded(self),
                    V::HEAPTUPLE_INSERT_IN_PROGRESS => {
                        let foreign = !pg_sys::TransactionIdIsCurrentTransactionId(xmin);
                        if foreign && !self.request.anyvisible && unique {
                            self.wait(xmin, tuple);
                            continue;
                        }
                        Some(true)
                    }
                    V::HEAPTUPLE_DELETE_IN_PROGRESS => {
                        let foreign = !pg_sys::TransactionIdIsCurrentTransactionId(xmax);
                        if self.request.anyvisible {
                            Some(true)
                        } else if foreign && (unique || hot_updated) {
                            self.wait(xmax, tuple);
                            continue;
                        } else if foreign {
                            Some(true)
                        } else {
                            superseded(self)
                        }
                    }
                    _ => None,
                };
            }
        }
    }

    unsafe fn wait(&self, xid: pg_sys::TransactionId, tuple: pg_sys::HeapTuple) {
        // SAFETY: the table is open; the TID is copied.
        unsafe {
            pg_sys::XactLockTableWait(
                xid,
                self.request.table,
                &mut (*tuple).t_self,
                pg_sys::XLTW_Oper::XLTW_InsertIndexUnique,
            );
            super::xact::check_for_interrupts();
        }
    }

    unsafe fn begin_row_store(&self) -> (pg_sys::TableScanDesc, bool) {
        // SAFETY: the table is open; a snapshot of the builder's is registered until its end.
        unsafe {
            if !self.request.scan.is_null() {
                return (self.request.scan, false);
            }
            let snapshot = self.snapshot.as_ref().map_or(Snap::any(), Registered::snap).0;
            let mut flags =
                pg_sys::ScanOptions::SO_TYPE_SEQSCAN | pg_sys::ScanOptions::SO_ALLOW_STRAT;
            if self.request.allow_sync && self.request.blocks.is_none() {
                flags |= pg_sys::ScanOptions::SO_ALLOW_SYNC;
            }
            let scan = pg_sys::heap_beginscan(
                self.request.table,
                snapshot,
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                flags,
            );
            (scan, true)
        }
    }

    /// End the scan that PostgreSQL handed in, as heapam does.
    pub fn end_scan(&mut self) {
        if !self.request.scan.is_null() {
            // SAFETY: a live scan, ended once by its own access method.
            unsafe { pg_sys::table_endscan(self.request.scan) };
            self.request.scan = std::ptr::null_mut();
        }
    }

    /// Release the executor state.
    pub fn finish(mut self) {
        self.end_scan();
        // SAFETY: created in new().
        unsafe {
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::FreeExecutorState(self.estate);
            (*self.request.info).ii_ExpressionsState = std::ptr::null_mut();
            (*self.request.info).ii_PredicateState = std::ptr::null_mut();
        }
    }
}

/// Root line pointers of the page last looked at.
struct Roots {
    block: Option<u32>,
    offsets: [u16; firn_format::ROWS_PER_BLOCK as usize],
}

impl Roots {
    fn new() -> Roots {
        Roots { block: None, offsets: [0; firn_format::ROWS_PER_BLOCK as usize] }
    }
    /// Offset under which the index knows the heap-only tuple at `place`.
    unsafe fn of(&mut self, buffer: pg_sys::Buffer, place: Address) -> u16 {
        // SAFETY: a pinned page, looked at under its lock; the array has a place for each line pointer that a page can have.
        unsafe {
            let at = usize::from(place.offset) - 1;
            if self.block != Some(place.block) || self.offsets[at] == 0 {
                pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
                pg_sys::heap_get_root_tuples(
                    pg_sys::BufferGetPage(buffer),
                    self.offsets.as_mut_ptr(),
                );
                pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
                self.block = Some(place.block);
            }
            if self.offsets[at] == 0 {
                super::error(
                    super::Kind::Corrupt,
                    "failed to find parent tuple for heap-only tuple",
                )
                .detail(format!("At ({},{}).", place.block, place.offset))
                .raise()
            }
            self.offsets[at]
        }
    }
}

/// Indexes of a table opened for inserting entries of rows that the executor does not insert.
pub struct Indexes {
    estate: *mut pg_sys::EState,
    result: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    table: pg_sys::Relation,
}

impl Indexes {
    pub fn open(table: Rel) -> Indexes {
        // SAFETY: executor set-up as COPY does it; closed in finish().
        unsafe {
            let estate = pg_sys::CreateExecutorState();
            let result = super::memory::alloc::<pg_sys::ResultRelInfo>();
            (*result).type_ = pg_sys::NodeTag::T_ResultRelInfo;
            pg_sys::InitResultRelInfo(result, table.raw(), 0, std::ptr::null_mut(), 0);
            pg_sys::ExecOpenIndices(result, false);
            let slot = pg_sys::table_slot_create(table.raw(), std::ptr::null_mut());
            Indexes { estate, result, slot, table: table.raw() }
        }
    }

    /// Insert entries for a row at `tid` that is known not to violate uniqueness (it exists
    /// already, elsewhere).
    pub fn insert(&mut self, tid: Tid, row: Row<'_>, xmin: Xid) {
        let table = Rel::of(self.table);
        // SAFETY: as ExecInsertIndexTuples, without uniqueness checks; the slot is the table's.
        unsafe {
            Slot::of(self.slot).store_row(table, row, tid, xmin);
            let econtext = match (*self.estate).es_per_tuple_exprcontext.is_null() {
                true => pg_sys::MakePerTupleExprContext(self.estate),
                false => (*self.estate).es_per_tuple_exprcontext,
            };
            (*econtext).ecxt_scantuple = self.slot;
            let mut raw = raw_tid(tid);
            for i in 0..(*self.result).ri_NumIndices as usize {
                let index = *(*self.result).ri_IndexRelationDescs.add(i);
                let info = *(*self.result).ri_IndexRelationInfo.add(i);
                if index.is_null() || !(*info).ii_ReadyForInserts {
                    continue;
                }
                let old = pg_sys::MemoryContextSwitchTo((*econtext).ecxt_per_tuple_memory);
                if !(*info).ii_Predicate.is_null() {
                    if (*info).ii_PredicateState.is_null() {
                        (*info).ii_PredicateState =
                            pg_sys::ExecPrepareQual((*info).ii_Predicate, self.estate);
                    }
                    let state = (*info).ii_PredicateState;
                    let mut null = false;
                    let null = &raw mut null;
                    let pass = match (*state).evalfunc {
                        Some(f) => super::ext::guarded(|| f(state, econtext, null)).value() as u8,
                        None => 0,
                    };
                    if pass == 0 {
                        pg_sys::MemoryContextSwitchTo(old);
                        continue;
                    }
                }
                let mut index_values =
                    [pg_sys::Datum::from(0usize); pg_sys::INDEX_MAX_KEYS as usize];
                let mut index_nulls = [false; pg_sys::INDEX_MAX_KEYS as usize];
                pg_sys::FormIndexDatum(
                    info,
                    self.slot,
                    self.estate,
                    index_values.as_mut_ptr(),
                    index_nulls.as_mut_ptr(),
                );
                pg_sys::index_insert(
                    index,
                    index_values.as_mut_ptr(),
                    index_nulls.as_mut_ptr(),
                    &mut raw,
                    self.table,
                    pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO,
                    false,
                    info,
                );
                pg_sys::MemoryContextSwitchTo(old);
            }
            pg_sys::MemoryContextReset((*econtext).ecxt_per_tuple_memory);
        }
    }

    pub fn finish(self) {
        // SAFETY: opened in open().
        unsafe {
            pg_sys::ExecCloseIndices(self.result);
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::FreeExecutorState(self.estate);
        }
    }
}

/// What kind of index it is.
pub struct IndexKind {
    pub is_btree: bool,
    pub is_valid: bool,
    pub is_partial: bool,
}

pub fn index_kind(index: Rel) -> IndexKind {
    // SAFETY: an open index.
    unsafe {
        IndexKind {
            is_btree: index.access_method() == pg_sys::BTREE_AM_OID,
            is_valid: (*(*index.raw()).rd_index).indisvalid,
            is_partial: index.has_predicate(),
        }
    }
}

/// Visit the TIDs of all entries of a B-tree, dead ones too.
pub fn entries_of(table: Rel, index: Rel, visit: &mut dyn FnMut(Tid)) {
    // SAFETY: a full index scan that never looks at the table.
    unsafe {
        let scan = compat::index_beginscan(table.raw(), index.raw(), Snap::any().0, 0, 0);
        (*scan).kill_prior_tuple = false;
        pg_sys::index_rescan(scan, std::ptr::null_mut(), 0, std::ptr::null_mut(), 0);
        loop {
            super::xact::check_for_interrupts();
            let tid = pg_sys::index_getnext_tid(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tid.is_null() {
                break;
            }
            visit(tid_of(&*tid));
        }
        pg_sys::index_endscan(scan);
    }
}
