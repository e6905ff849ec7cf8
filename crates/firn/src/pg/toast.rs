//! A table's TOAST relation as the place of stripes, directory and tombstones: rows of
//! (chunk_id, chunk_seq, chunk_data), found by its unique index on the first two.
//!
//! Our rows live under chunk ids below 16384, which PostgreSQL never gives to a TOASTed value.

use super::compat;
use super::frozen::freeze;
use super::rel::{OpenRel, StorageId};
use super::snapshot::Snap;
use super::toast_indexes::Indexes;
pub use super::toast_row::RowView;
use super::{LockMode, Oid, Rel};
pub use firn_directory::{seq_of, unsigned_of, ChunkKey, ChunkRow, CHUNK_BYTES};
use firn_directory::{Cid, Place};
use firn_format::Tid;
use pgrx::pg_sys;
use std::ops::ControlFlow;

/// An open TOAST relation of a firn table with its indexes.
pub struct Toast {
    rel: OpenRel,
    /// The lock of the indexes that goes with them: as for [`OpenRel`].
    release: LockMode,
    indexes: Indexes,
    slot: std::cell::Cell<*mut pg_sys::TupleTableSlot>,
    /// Blocks the relation had when it was asked last. While it is open its lock keeps it from shrinking.
    pub(super) blocks: std::cell::Cell<u32>,
    /// The ring of buffers that chunks are read into; null for buffers as any.
    pub(super) ring: std::cell::Cell<pg_sys::BufferAccessStrategy>,
    /// How many chunks to ask the system for ahead of reading them.
    pub(super) ahead: std::cell::Cell<u32>,
}

/// Where a tuple of a heap is, be that the row store or a TOAST relation: for those few who treat both alike.
#[derive(Clone, Copy)]
pub struct Address {
    pub(super) block: u32,
    pub(super) offset: u16,
}

impl Address {
    /// From PostgreSQL's form of it.
    #[inline]
    pub(super) fn of(raw: &pg_sys::ItemPointerData) -> Address {
        Address {
            block: (u32::from(raw.ip_blkid.bi_hi) << 16) | u32::from(raw.ip_blkid.bi_lo),
            offset: raw.ip_posid,
        }
    }

    /// PostgreSQL's form of it.
    #[inline]
    pub(super) fn raw(self) -> pg_sys::ItemPointerData {
        pg_sys::ItemPointerData {
            ip_blkid: pg_sys::BlockIdData {
                bi_hi: (self.block >> 16) as u16,
                bi_lo: (self.block & 0xffff) as u16,
            },
            ip_posid: self.offset,
        }
    }
}

impl From<Tid> for Address {
    fn from(Tid { block, offset }: Tid) -> Address {
        Address { block, offset }
    }
}

impl From<Place> for Address {
    fn from(Place { block, offset }: Place) -> Address {
        Address { block, offset }
    }
}

/// The TID of a table's row from PostgreSQL's form of it.
#[inline]
pub(crate) fn tid_of(raw: &pg_sys::ItemPointerData) -> Tid {
    let Address { block, offset } = Address::of(raw);
    Tid { block, offset }
}

/// PostgreSQL's form of a TID.
#[inline]
pub(crate) fn raw_tid(tid: Tid) -> pg_sys::ItemPointerData {
    Address::from(tid).raw()
}

/// Where a row of a TOAST relation is, from PostgreSQL's form of it.
#[inline]
pub(crate) fn place_of(raw: &pg_sys::ItemPointerData) -> Place {
    let Address { block, offset } = Address::of(raw);
    Place { block, offset }
}

/// PostgreSQL's form of a place.
#[inline]
pub(crate) fn raw_place(place: Place) -> pg_sys::ItemPointerData {
    Address::from(place).raw()
}

impl Toast {
    /// Open the TOAST relation of `table`; None when it has none. One that has not been filled at all is opened, too: during
    /// TRUNCATE its index may still hold entries of the emptied heap, so whoever may come then asks [`Toast::is_empty`] first.
    pub fn open(table: Rel, lock: LockMode) -> Option<Toast> {
        let oid = table.toast_oid()?;
        // What is made stronger later may have to wait for a REINDEX, which waits for what is held already.
        let lock = match lock {
            LockMode::AccessShare if super::lock::may_write(table) => LockMode::RowExclusive,
            _ => lock,
        };
        Some(Toast::open_oid(oid, lock))
    }

    /// Open a TOAST relation by its own OID.
    pub fn open_oid(oid: Oid, lock: LockMode) -> Toast {
        let rel = OpenRel::open(oid, lock);
        let indexes = Indexes::open(rel.rel(), lock);
        let release = match lock {
            LockMode::AccessShare => lock,
            _ => LockMode::None,
        };
        Toast {
            rel,
            release,
            indexes,
            slot: std::cell::Cell::new(std::ptr::null_mut()),
            blocks: std::cell::Cell::new(0),
            ring: std::cell::Cell::new(std::ptr::null_mut()),
            ahead: std::cell::Cell::new(0),
        }
    }

    /// Lock a table's TOAST relation and its indexes as who writes values does, to the end of the transaction.
    pub(crate) fn lock(table: Rel) {
        drop(Toast::open(table, LockMode::RowExclusive));
    }

    /// The relation has this block.
    pub(super) fn has_block(&self, block: u32) -> bool {
        block < self.blocks.get() || self.rel().has_block(block)
    }

    pub fn rel(&self) -> Rel {
        self.rel.rel()
    }
    pub fn storage(&self) -> StorageId {
        self.rel.storage()
    }
    /// Nothing has ever been stored here (or TRUNCATE is under way).
    pub fn is_empty(&self) -> bool {
        self.rel.heap_blocks() == 0
    }

    pub(crate) fn raw(&self) -> pg_sys::Relation {
        self.rel.rel().raw()
    }

    pub(crate) fn slot(&self) -> *mut pg_sys::TupleTableSlot {
        if self.slot.get().is_null() {
            // SAFETY: the descriptor belongs to the open relation; dropped in drop().
            let slot = unsafe {
                pg_sys::MakeSingleTupleTableSlot(
                    self.rel.rel().tupdesc(),
                    &raw const pg_sys::TTSOpsBufferHeapTuple,
                )
            };
            self.slot.set(slot);
        }
        self.slot.get()
    }

    pub(crate) fn form(&self, key: ChunkKey, data: &[u8]) -> pg_sys::HeapTuple {
        let mut bytes: Vec<u8> = Vec::with_capacity(data.len() + 4);
        bytes.extend_from_slice(&(((data.len() + 4) as u32) << 2).to_le_bytes());
        bytes.extend_from_slice(data);
        // SAFETY: values match the TOAST descriptor (oid, int4, bytea with a 4-byte header).
        unsafe {
            let mut values = [
                pg_sys::Datum::from(key.id),
                pg_sys::Datum::from(key.seq),
                pg_sys::Datum::from(bytes.as_mut_ptr()),
            ];
            let mut nulls = [false; 3];
            pg_sys::heap_form_tuple(
                self.rel.rel().tupdesc(),
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            )
        }
    }

    pub(crate) fn index(&self, key: ChunkKey, place: &mut pg_sys::ItemPointerData) {
        // SAFETY: indexes are open; values match their columns.
        unsafe {
            let mut values = [pg_sys::Datum::from(key.id), pg_sys::Datum::from(key.seq)];
            let mut nulls = [false; 2];
            for index in self.indexes.ready() {
                pg_sys::index_insert(
                    index,
                    values.as_mut_ptr(),
                    nulls.as_mut_ptr(),
                    place,
                    self.raw(),
                    pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES,
                    false,
                    std::ptr::null_mut(),
                );
            }
        }
    }

    /// A rollback of this transaction, or to a savepoint, would undo what it does to the index, but not to the rows: the index
    /// has got its file later than they have.
    pub fn index_alone_is_undone(&self) -> bool {
        self.valid_index().storage_is_of().1 > self.rel.storage_is_of().0
    }

    /// The index that look-ups use.
    pub fn valid_index(&self) -> Rel {
        self.indexes.valid()
    }

    /// Insert one row; returns its place. A frozen one stays even if the transaction is rolled back,
    /// unless it would stay without its index entry.
    pub fn insert(&self, key: ChunkKey, data: &[u8], cid: Cid, frozen: bool) -> Place {
        let (cid, frozen) = match frozen && self.index_alone_is_undone() {
            // As if an earlier command had inserted it: it may be locked and changed at once, as a
            // frozen one. The REINDEX was one.
            true => (Cid(0), false),
            false => (cid, frozen),
        };
        let options = pg_sys::HEAP_INSERT_NO_LOGICAL as i32;
        // SAFETY: the tuple was formed for this relation and is freed after use.
        let place = unsafe {
            let tuple = self.form(key, data);
            pg_sys::heap_insert(self.raw(), tuple, cid.0, options, std::ptr::null_mut());
            let mut place = (*tuple).t_self;
            if frozen {
                super::guc::crash_point("row-unindexed");
            }
            self.index(key, &mut place);
            pg_sys::heap_freetuple(tuple);
            place_of(&place)
        };
        if frozen {
            super::guc::crash_point("row-indexed");
            freeze(self.rel.rel(), place);
        }
        place
    }

    /// Free the row at `place`, which this transaction has inserted, from the transaction's fate: of a relation that comes
    /// and goes with it.
    pub fn freeze(&self, place: Place) {
        freeze(self.rel.rel(), place)
    }

    /// Insert `data` as consecutive chunks of [`CHUNK_BYTES`] from sequence number `first` on. Returns
    /// the place of the first. One by one, though a page has room for a single one anyway:
    /// heap_multi_insert would hand them to logical decoding, which takes rows of a TOAST relation
    /// for parts of a value.
    pub fn insert_chunks(&self, id: u32, first: u32, data: &[u8], cid: Cid) -> Option<Place> {
        let mut first_place = None;
        let bulk = BulkInsert::new();
        for (i, chunk) in data.chunks(CHUNK_BYTES).enumerate() {
            super::xact::check_for_interrupts();
            let key = ChunkKey { id, seq: seq_of(first + i as u32) };
            // SAFETY: the tuple was formed for this relation and is freed after use.
            unsafe {
                let tuple = self.form(key, chunk);
                let options = pg_sys::HEAP_INSERT_NO_LOGICAL as i32;
                pg_sys::heap_insert(self.raw(), tuple, cid.0, options, bulk.0);
                let mut place = (*tuple).t_self;
                self.index(key, &mut place);
                first_place.get_or_insert(place_of(&place));
                pg_sys::heap_freetuple(tuple);
            }
        }
        bulk.finish();
        first_place
    }

    /// Replace the row at `place`; raises when someone else changed it (callers hold a lock that
    /// excludes that).
    pub fn update(&self, place: Place, key: ChunkKey, data: &[u8], cid: Cid) -> Place {
        // SAFETY: the tuple is formed for this relation; outputs are plain structs.
        unsafe {
            let tuple = self.form(key, data);
            let mut old = raw_place(place);
            let mut failure: pg_sys::TM_FailureData = std::mem::zeroed();
            let mut mode = pg_sys::LockTupleMode::LockTupleExclusive;
            let result =
                compat::heap_update(self.raw(), &mut old, tuple, cid.0, &mut failure, &mut mode);
            if result != pg_sys::TM_Result::TM_Ok {
                super::error(
                    super::Kind::Internal,
                    format!(
                        "row {key:?} of TOAST relation {} changed meanwhile ({result})",
                        self.rel.oid()
                    ),
                )
                .raise();
            }
            let mut new_place = (*tuple).t_self;
            // A heap-only tuple is found through its predecessor's index entry.
            if (*(*tuple).t_data).t_infomask2 as u32 & pg_sys::HEAP_ONLY_TUPLE == 0 {
                self.index(key, &mut new_place);
            }
            pg_sys::heap_freetuple(tuple);
            place_of(&new_place)
        }
    }

    /// Delete the row at `place`; raises as [`Toast::update`].
    pub fn delete(&self, place: Place, cid: Cid) {
        // SAFETY: outputs are plain structs.
        unsafe {
            let mut old = raw_place(place);
            let mut failure: pg_sys::TM_FailureData = std::mem::zeroed();
            let result = pg_sys::heap_delete(
                self.raw(),
                &mut old,
                cid.0,
                std::ptr::null_mut(),
                true,
                &mut failure,
                false,
            );
            if result != pg_sys::TM_Result::TM_Ok {
                super::error(
                    super::Kind::Internal,
                    format!(
                        "row of TOAST relation {} changed meanwhile ({result})",
                        self.rel.oid()
                    ),
                )
                .raise();
            }
        }
    }

    /// Delete the chunks `first..first + count` of a run, but for those whose keys are damaged.
    pub fn delete_run(&self, id: u32, first: u32, count: u32, cid: Cid) {
        let mut at = 0;
        while at < count {
            super::xact::check_for_interrupts();
            // Collected in parts, so that no scan is open while rows are deleted.
            let end = (at + 1_024).min(count);
            let mut places = Vec::new();
            let (low, high) = (seq_of(first + at), seq_of(first + end - 1));
            self.scan_damaged::<()>(id, low, high, Snap::self_snap(), false, |key, row| {
                if row.is_under(key) {
                    places.push(row.place());
                }
                ControlFlow::Continue(())
            });
            for place in places {
                self.delete(place, cid);
            }
            at = end;
        }
    }

    /// Overwrite a row's bytes where they are, outside of any transaction, WAL-logged. The length
    /// must not change. As `heap_inplace_update`, which refuses to while parallel workers run (of a query
    /// that fills a table, say): they look at other tables, and no command id is made here.
    pub fn overwrite(&self, place: Place, key: ChunkKey, data: &[u8]) {
        let wrong = |what: &str| -> ! {
            super::error(super::Kind::Internal, "a row to be overwritten is not the one expected")
                .detail(format!(
                    "{key:?} at {place:?} of TOAST relation {}: {what}.",
                    self.rel.oid()
                ))
                .raise()
        };
        if !self.rel().has_block(place.block) {
            wrong("no such page");
        }
        // SAFETY: the block exists; the line pointer is looked at under the page's exclusive lock, and what
        // is written has the length of what was there. Between the change and its log record nothing can
        // fail but by a PANIC. Pin and lock are released, by PostgreSQL where an error is raised.
        unsafe {
            let new = self.form(key, data);
            let buffer = pg_sys::ReadBuffer(self.raw(), place.block);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_EXCLUSIVE as i32);
            let page = pg_sys::BufferGetPage(buffer);
            if place.offset == 0 || place.offset > pg_sys::PageGetMaxOffsetNumber(page) {
                wrong("no such line pointer");
            }
            let item = pg_sys::PageGetItemId(page, place.offset);
            if (*item).lp_flags() != pg_sys::LP_NORMAL {
                wrong("no tuple");
            }
            let header = pg_sys::PageGetItem(page, item) as pg_sys::HeapTupleHeader;
            let (skip, len) = (usize::from((*header).t_hoff), (*item).lp_len() as usize);
            let new_skip = usize::from((*(*new).t_data).t_hoff);
            let old = RowView {
                tuple: &mut pg_sys::HeapTupleData {
                    t_len: len as u32,
                    t_data: header,
                    ..Default::default()
                },
            };
            if (skip, len) != (new_skip, (*new).t_len as usize) || old.key() != key {
                wrong("another length or key");
            }
            let bytes =
                std::slice::from_raw_parts(((*new).t_data as *const u8).add(skip), len - skip);
            let logged = self.rel().needs_wal();
            pg_sys::CritSectionCount += 1;
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                (header as *mut u8).add(skip),
                bytes.len(),
            );
            pg_sys::MarkBufferDirty(buffer);
            if logged {
                super::wal::log_overwriting(buffer, place.offset, bytes);
            }
            pg_sys::CritSectionCount -= 1;
            pg_sys::UnlockReleaseBuffer(buffer);
            pg_sys::heap_freetuple(new);
        }
    }
}

impl Drop for Toast {
    fn drop(&mut self) {
        // While an error unwinds, the resource owner releases everything.
        if super::memory::resources_are_released() {
            return;
        }
        // SAFETY: opened in the constructor; the slot is ours.
        unsafe {
            if !self.slot.get().is_null() {
                pg_sys::ExecDropSingleTupleTableSlot(self.slot.get());
            }
            if !self.ring.get().is_null() {
                pg_sys::FreeAccessStrategy(self.ring.get());
            }
            self.indexes.close(self.release);
        }
    }
}

/// PostgreSQL's bulk insert state: a ring of buffers and a remembered target block.
struct BulkInsert(pg_sys::BulkInsertState);

impl BulkInsert {
    fn new() -> BulkInsert {
        // SAFETY: plain allocation in the current memory context.
        BulkInsert(unsafe { pg_sys::GetBulkInsertState() })
    }
    fn finish(self) {
        // SAFETY: made in new().
        unsafe { pg_sys::FreeBulkInsertState(self.0) }
    }
}
