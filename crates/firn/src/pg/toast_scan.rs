//! Finding rows of a TOAST relation by their keys. Where a row has another key than the index leads to it by, it is found out
//! whether it is damaged or another row at a place that was given out again.

use super::compat;
use super::report::Report;
use super::snapshot::Snap;
use super::survey::key_of_entry;
use super::toast::{place_of, raw_place, ChunkKey, ChunkRow, RowView, Toast};
use super::{error, ext, Kind, Oid, Rel};
use firn_directory::{Met, Place};
use firn_format::keys::{is_overwritten, CHUNKS, LAST, TOMBSTONES};
use pgrx::pg_sys;
use std::collections::HashMap;
use std::ops::ControlFlow;

/// The page of a row that is visited: its buffer, and the row's header there (what is visited may be a copy).
pub(super) struct Pinned {
    pub buffer: pg_sys::Buffer,
    pub header: pg_sys::HeapTupleHeader,
}

impl Toast {
    /// Visit the rows `id`, `low..=high` that `snap` sees, in key order (or backwards). Raises when the key of one is damaged.
    pub fn scan<B>(
        &self,
        id: u32,
        low: i32,
        high: i32,
        snap: Snap,
        backward: bool,
        mut visit: impl FnMut(ChunkKey, &RowView) -> ControlFlow<B>,
    ) -> Option<B> {
        self.scan_damaged(id, low, high, snap, backward, |key, row| {
            if !row.is_under(key) {
                self.raise_damaged_key(key, row);
            }
            visit(key, row)
        })
    }

    pub(crate) fn raise_damaged_key(&self, key: ChunkKey, row: &RowView) -> ! {
        damaged_key(self.rel(), key, row.key(), row.place()).raise()
    }

    /// As [`Toast::scan`] for those who can do without a row whose key is damaged, or have more to say of it: it is visited under the
    /// key that the index has, and [`RowView::is_under`] denies that.
    ///
    /// In a serializable transaction, the rows are judged one by one: predicate locks belong on the
    /// table's rows, not on ours that describe them, which would make neighbours conflict.
    pub fn scan_damaged<B>(
        &self,
        id: u32,
        low: i32,
        high: i32,
        snap: Snap,
        backward: bool,
        visit: impl FnMut(ChunkKey, &RowView) -> ControlFlow<B>,
    ) -> Option<B> {
        self.scan_met(id, low, high, snap, backward, &mut Met::NoEntry, visit)
    }

    /// As [`Toast::scan_damaged`]; `met` is told whether the index has led anywhere.
    #[expect(clippy::too_many_arguments, reason = "a scan's, and one more")]
    pub fn scan_met<B>(
        &self,
        id: u32,
        low: i32,
        high: i32,
        snap: Snap,
        backward: bool,
        met: &mut Met,
        mut visit: impl FnMut(ChunkKey, &RowView) -> ControlFlow<B>,
    ) -> Option<B> {
        let slot = self.slot();
        let mut found = None;
        // SAFETY: index and heap are open; scan keys live on the stack across the scan; the row's
        // bytes are only used while the slot holds its buffer pin.
        unsafe {
            let index = self.valid_index().raw();
            let mut keys: [pg_sys::ScanKeyData; 3] = std::mem::zeroed();
            let n = fill_keys(&mut keys, id, low, high);
            let judge = snap.is_serializable();
            let copies = may_change(id, snap);
            let how = if judge { Snap::any() } else { snap };
            let scan = compat::index_beginscan(self.raw(), index, how.0, n, 0);
            // Where several keys are asked for, the entries themselves tell which of them a row should have. (For whoever scans by an MVCC
            // snapshot that would mean to keep hold of the index's pages, too.)
            let has_entries = low != high && !how.lets_go_of_pages();
            (*scan).xs_want_itup = has_entries;
            pg_sys::index_rescan(scan, keys.as_mut_ptr(), n, std::ptr::null_mut(), 0);
            // The index puts here what it leads to, and nothing else does.
            (*scan).xs_heaptid.ip_posid = 0;
            let direction = if backward {
                pg_sys::ScanDirection::BackwardScanDirection
            } else {
                pg_sys::ScanDirection::ForwardScanDirection
            };
            while pg_sys::index_getnext_slot(scan, direction, slot) {
                let filled = slot as *mut pg_sys::BufferHeapTupleTableSlot;
                let tuple = (*filled).base.tuple;
                if judge && !self.judge(tuple, (*filled).buffer, snap) {
                    continue;
                }
                let copy = copies.then(|| self.copy(&*tuple, (*filled).buffer));
                let mut copied = copy.as_ref().map(|(_, tuple)| *tuple);
                let view = RowView { tuple: copied.as_mut().map_or(tuple, |t| &raw mut *t) };
                let own = view.key();
                let (id, low, high) = match has_entries.then(|| key_of_entry((*scan).xs_itup)) {
                    Some(entry) => (entry.id, entry.seq, entry.seq),
                    None => (id, low, high),
                };
                let is_asked_for = own.id == id && (low..=high).contains(&own.seq);
                let key = match is_asked_for {
                    true => Some(own),
                    false => self.key_by_index(view.place(), id, low, high),
                };
                let Some(key) = key else { continue };
                if let ControlFlow::Break(b) = visit(key, &view) {
                    found = Some(b);
                    break;
                }
            }
            if (*scan).xs_heaptid.ip_posid != 0 {
                *met = Met::Entries;
            }
            pg_sys::index_endscan(scan);
            clear(slot);
        }
        found
    }

    /// By which key of `id`, `low..=high` the index leads to the row at `place`, which was found to have another; None when it does
    /// not any more.
    ///
    /// A scan by an MVCC snapshot lets go of the index's page and trusts that it sees no row that is put at a place which VACUUM has
    /// freed since. Pinned rows everybody sees, at once. But no place is given out again as long as the index has an entry of it, and this
    /// scan, which is by no such snapshot, keeps hold of the entry while it looks at the row.
    unsafe fn key_by_index(&self, place: Place, id: u32, low: i32, high: i32) -> Option<ChunkKey> {
        // SAFETY: the relation and its index are open; keys, scan and slot are ended here, and a row is looked at while the slot holds its page.
        unsafe {
            let slot = pg_sys::MakeSingleTupleTableSlot(
                self.rel().tupdesc(),
                &raw const pg_sys::TTSOpsBufferHeapTuple,
            );
            let mut keys: [pg_sys::ScanKeyData; 3] = std::mem::zeroed();
            let n = fill_keys(&mut keys, id, low, high);
            let index = self.valid_index().raw();
            let scan = compat::index_beginscan(self.raw(), index, Snap::any().0, n, 0);
            (*scan).xs_want_itup = true;
            pg_sys::index_rescan(scan, keys.as_mut_ptr(), n, std::ptr::null_mut(), 0);
            let forward = pg_sys::ScanDirection::ForwardScanDirection;
            let mut found = None;
            while found.is_none() && pg_sys::index_getnext_slot(scan, forward, slot) {
                super::xact::check_for_interrupts();
                let tuple = (*(slot as *mut pg_sys::BufferHeapTupleTableSlot)).base.tuple;
                let (key, row) = (key_of_entry((*scan).xs_itup), RowView::of(tuple));
                found = (row.place() == place && !row.is_under(key)).then_some(key);
            }
            pg_sys::index_endscan(scan);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            found
        }
    }

    /// Rows of ours but chunks, living or dead, that the index leads to by other keys than they have, and these keys. (A stripe whose chunk
    /// is not found says so to whoever reads it; to look at them all is to read them all.) Some, when there are many.
    pub(crate) fn misplaced(&self) -> HashMap<Place, ChunkKey> {
        let mut found = HashMap::new();
        for (low, high) in [(0, CHUNKS - 1), (TOMBSTONES, LAST)] {
            // SAFETY: as `scan_damaged`; this scan keeps hold of the entry while it looks at the row.
            unsafe {
                let mut keys = id_keys(low, high);
                let index = self.valid_index().raw();
                let scan = compat::index_beginscan(self.raw(), index, Snap::any().0, 2, 0);
                (*scan).xs_want_itup = true;
                pg_sys::index_rescan(scan, keys.as_mut_ptr(), 2, std::ptr::null_mut(), 0);
                let slot = self.slot();
                let forward = pg_sys::ScanDirection::ForwardScanDirection;
                while found.len() < 1_000 && pg_sys::index_getnext_slot(scan, forward, slot) {
                    super::xact::check_for_interrupts();
                    let tuple = (*(slot as *mut pg_sys::BufferHeapTupleTableSlot)).base.tuple;
                    let (key, row) = (key_of_entry((*scan).xs_itup), RowView::of(tuple));
                    if !row.is_under(key) {
                        found.insert(row.place(), key);
                    }
                }
                pg_sys::index_endscan(scan);
                clear(slot);
            }
        }
        found
    }

    /// Visit the places of all rows with chunk ids `low..=high`, living or dead, as the index has them.
    pub fn each_place(&self, low: u32, high: u32, mut visit: impl FnMut(Place)) {
        // SAFETY: an index scan that never looks at the heap; keys live on the stack across it.
        unsafe {
            let index = self.valid_index().raw();
            let mut keys = id_keys(low, high);
            let scan = compat::index_beginscan(self.raw(), index, Snap::any().0, 2, 0);
            pg_sys::index_rescan(scan, keys.as_mut_ptr(), 2, std::ptr::null_mut(), 0);
            loop {
                super::xact::check_for_interrupts();
                let forward = pg_sys::ScanDirection::ForwardScanDirection;
                let tid = pg_sys::index_getnext_tid(scan, forward);
                if tid.is_null() {
                    break;
                }
                visit(place_of(&*tid));
            }
            pg_sys::index_endscan(scan);
        }
    }

    /// How many entries the index has for `id`, `low..=high`, whatever they lead to. No more than `most` are counted.
    pub fn entries(&self, id: u32, low: i32, high: i32, most: u32) -> u32 {
        // SAFETY: an index scan that never looks at the heap; keys live on the stack across it.
        unsafe {
            let index = self.valid_index().raw();
            let mut keys: [pg_sys::ScanKeyData; 3] = std::mem::zeroed();
            let n = fill_keys(&mut keys, id, low, high);
            let scan = compat::index_beginscan(self.raw(), index, Snap::any().0, n, 0);
            // Those that are known to lead nowhere are not passed over: that may be a long way.
            (*scan).ignore_killed_tuples = false;
            pg_sys::index_rescan(scan, keys.as_mut_ptr(), n, std::ptr::null_mut(), 0);
            let forward = pg_sys::ScanDirection::ForwardScanDirection;
            let mut count = 0;
            while count < most && !pg_sys::index_getnext_tid(scan, forward).is_null() {
                count += 1;
            }
            pg_sys::index_endscan(scan);
            count
        }
    }

    /// Whether it is known at once that the index has no entry for `id`, `low..=high`; false says nothing.
    pub fn lacks(&self, id: u32, low: i32, high: i32) -> bool {
        super::index_gap::lacks(self.valid_index(), &((id, low)..=(id, high)))
    }

    /// The row under `key` that `snap` sees. Raises when its key is damaged.
    pub fn find(&self, key: ChunkKey, snap: Snap) -> Option<ChunkRow> {
        self.scan(key.id, key.seq, key.seq, snap, false, |key, row| {
            ControlFlow::Break(row.to_row(key))
        })
    }

    /// The row at a remembered place, if it is still the row of `key` and `snap` sees it. The
    /// visitor gets its bytes.
    pub fn at<T>(
        &self,
        place: Place,
        key: ChunkKey,
        snap: Snap,
        visit: impl FnOnce(&RowView) -> T,
    ) -> Option<T> {
        self.at_pinned(place, key, snap, |row, _| visit(row))
    }

    /// As [`Toast::at`], for who looks at the page as well.
    pub(super) fn at_pinned<T>(
        &self,
        place: Place,
        key: ChunkKey,
        snap: Snap,
        visit: impl FnOnce(&RowView, Pinned) -> T,
    ) -> Option<T> {
        if !self.has_block(place.block) {
            return None;
        }
        // SAFETY: the buffer is released before return; heap_fetch fills tuple or reports none.
        unsafe {
            let mut tuple: pg_sys::HeapTupleData = std::mem::zeroed();
            tuple.t_self = raw_place(place);
            let mut buffer: pg_sys::Buffer = 0;
            let judge = snap.is_serializable();
            let how = if judge { Snap::any() } else { snap };
            if !ext::heap_fetch(self.raw(), how.0, &mut tuple, &mut buffer, false) {
                return None;
            }
            let header = tuple.t_data;
            let view = RowView { tuple: &mut tuple };
            let hit = view.key() == key && (!judge || self.judge(&mut tuple, buffer, snap));
            let copy = (hit && may_change(key.id, snap)).then(|| self.copy(&tuple, buffer));
            if let Some((_, copied)) = &copy {
                tuple = *copied;
            }
            let view = RowView { tuple: &mut tuple };
            let result = hit.then(|| visit(&view, Pinned { buffer, header }));
            ext::ReleaseBuffer(buffer);
            result
        }
    }

    /// The tuple as it is at one moment; it leads to the words beside it.
    unsafe fn copy(
        &self,
        tuple: &pg_sys::HeapTupleData,
        buffer: pg_sys::Buffer,
    ) -> (Vec<u64>, pg_sys::HeapTupleData) {
        // SAFETY: the tuple's page is pinned, and its bytes are copied under the page's lock to words that live as long as the copy.
        unsafe {
            let len = tuple.t_len as usize;
            let mut words = vec![0u64; len.div_ceil(8)];
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            std::ptr::copy_nonoverlapping(
                tuple.t_data.cast(),
                words.as_mut_ptr().cast::<u8>(),
                len,
            );
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
            let copy = pg_sys::HeapTupleData { t_data: words.as_mut_ptr().cast(), ..*tuple };
            (words, copy)
        }
    }

    /// Does `snap` see the tuple? Conflicts with other serializable transactions are noted.
    unsafe fn judge(&self, tuple: pg_sys::HeapTuple, buffer: pg_sys::Buffer, snap: Snap) -> bool {
        // SAFETY: the tuple's page is pinned, and locked while it is asked about.
        unsafe {
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let visible = pg_sys::HeapTupleSatisfiesVisibility(tuple, snap.0, buffer);
            pg_sys::HeapCheckForSerializableConflictOut(visible, self.raw(), tuple, buffer, snap.0);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
            visible
        }
    }
}

/// What is said of a row that the index leads to by `key` and that says that its key is `own`.
pub(crate) fn damaged_key(toast: Rel, key: ChunkKey, own: ChunkKey, place: Place) -> Report {
    let Place { block, offset } = place;
    error(Kind::Corrupt, format!("a row of TOAST relation {} is damaged", toast.oid()))
        .detail(format!(
            "The index leads to ({block},{offset}) by the key ({}, {}), the row says ({}, {}).",
            key.id, key.seq, own.id, own.seq
        ))
        .hint("Run firn.check() on the table; restore it from a backup or standby.")
}

/// The row under `id` that `snap` has found may be overwritten by another session while it is looked at. What
/// an MVCC snapshot sees is committed, and directory rows are completed before that. Intents are overwritten, too, and
/// not copied: one that is being written tells by its slot what is needed, and nobody asks for its key.
fn may_change(id: u32, snap: Snap) -> bool {
    is_overwritten(id) && snap.kind() != super::SnapKind::Mvcc
}

pub(crate) unsafe fn fill_keys(
    keys: &mut [pg_sys::ScanKeyData; 3],
    id: u32,
    low: i32,
    high: i32,
) -> i32 {
    // SAFETY: three keys of a TOAST relation's index: an OID and a number, by functions of these types.
    unsafe {
        let mut add = |n: usize, column, strategy: u32, function: u32, value| {
            pg_sys::ScanKeyInit(&mut keys[n], column, strategy as u16, Oid::from(function), value);
        };
        let equal = pg_sys::BTEqualStrategyNumber;
        add(0, 1, equal, pg_sys::F_OIDEQ, pg_sys::Datum::from(id));
        if low == high {
            add(1, 2, equal, pg_sys::F_INT4EQ, pg_sys::Datum::from(low));
            return 2;
        }
        add(1, 2, pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_INT4GE, pg_sys::Datum::from(low));
        add(2, 2, pg_sys::BTLessEqualStrategyNumber, pg_sys::F_INT4LE, pg_sys::Datum::from(high));
        3
    }
}

/// Scan keys of the ids `low..=high`.
unsafe fn id_keys(low: u32, high: u32) -> [pg_sys::ScanKeyData; 2] {
    // SAFETY: two keys of the first column of a TOAST relation's index, an OID; all zeros is a key not yet filled.
    unsafe {
        let mut keys: [pg_sys::ScanKeyData; 2] = std::mem::zeroed();
        let bounds = [
            (pg_sys::BTGreaterEqualStrategyNumber, pg_sys::F_OIDGE, low),
            (pg_sys::BTLessEqualStrategyNumber, pg_sys::F_OIDLE, high),
        ];
        for (key, (strategy, function, id)) in keys.iter_mut().zip(bounds) {
            let value = pg_sys::Datum::from(id);
            pg_sys::ScanKeyInit(key, 1, strategy as u16, Oid::from(function), value);
        }
        keys
    }
}

pub(crate) unsafe fn clear(slot: *mut pg_sys::TupleTableSlot) {
    // SAFETY: a live slot; what is guarded owns nothing.
    unsafe { ext::guarded(|| ext::direct::ExecClearTuple(slot)) }
}
