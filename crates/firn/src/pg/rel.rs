//! Relations: handles to open ones, and opening them by OID.

use super::xact::Sub;
use super::{compat, Oid};
use pgrx::pg_sys;
use std::ffi::CStr;

/// An open relation.
#[derive(Clone, Copy)]
pub struct Rel(pub(super) pg_sys::Relation);

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = pg_sys::BLCKSZ as u64;

/// Identity of a relation's storage: it changes when the relation is rewritten or truncated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct StorageId {
    pub tablespace: Oid,
    pub database: Oid,
    pub file: u32,
}

/// Kinds of indexes, by what tells how large a new one would be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexKind {
    /// Its pages do.
    BTree,
    /// Nothing does.
    Other,
}

/// Lock levels we take on relations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockMode {
    None = 0,
    AccessShare = 1,
    RowExclusive = 3,
    ShareUpdateExclusive = 4,
    Share = 5,
    AccessExclusive = 8,
}

/// One attribute of a table.
#[derive(Clone, Debug)]
pub struct Attribute {
    pub number: i16,
    pub name: String,
    pub type_oid: Oid,
    pub typmod: i32,
    /// Rows have no value of it: it is dropped, or generated whenever it is read. (PostgreSQL changes the type of such a column without looking at rows.)
    pub absent: bool,
    pub length: i16,
    pub by_value: bool,
}

impl Rel {
    pub(crate) fn of(raw: pg_sys::Relation) -> Rel {
        Rel(raw)
    }
    pub(crate) fn raw(self) -> pg_sys::Relation {
        self.0
    }
    pub(super) fn data(&self) -> &pg_sys::RelationData {
        // SAFETY: handles are made from open relations only.
        unsafe { &*self.0 }
    }
    fn form(&self) -> &pg_sys::FormData_pg_class {
        // SAFETY: rd_rel is valid while the relation is open.
        unsafe { &*self.data().rd_rel }
    }
    pub fn oid(self) -> Oid {
        self.data().rd_id
    }
    pub fn name(self) -> String {
        // SAFETY: relname is NUL-terminated.
        unsafe { CStr::from_ptr(self.form().relname.data.as_ptr()) }.to_string_lossy().into_owned()
    }
    /// OID of its TOAST relation, None when it has none.
    pub fn toast_oid(self) -> Option<Oid> {
        let oid = self.form().reltoastrelid;
        (oid != pg_sys::InvalidOid).then_some(oid)
    }
    pub fn kind(self) -> u8 {
        self.form().relkind as u8
    }
    pub fn owner(self) -> Oid {
        self.form().relowner
    }
    pub fn access_method(self) -> Oid {
        self.form().relam
    }
    pub fn is_temporary(self) -> bool {
        self.form().relpersistence as u8 == pg_sys::RELPERSISTENCE_TEMP
    }
    /// A temporary relation of another session, whose rows are out of our reach.
    pub fn is_of_other_session(self) -> bool {
        // SAFETY: plain call.
        self.is_temporary() && unsafe { pg_sys::isOtherTempNamespace(self.form().relnamespace) }
    }
    /// The kind of this index, if it is in use, is one of PostgreSQL's own and may be built concurrently: those of
    /// exclusion constraints may not, and what a build of others' kinds costs is not known.
    pub fn rebuildable(self) -> Option<IndexKind> {
        // SAFETY: rd_index of an open index is valid.
        let index = unsafe { &*self.data().rd_index };
        let used = index.indisvalid && index.indisready && index.indislive;
        let kind = match self.form().relam {
            pg_sys::BTREE_AM_OID => IndexKind::BTree,
            pg_sys::HASH_AM_OID
            | pg_sys::GIST_AM_OID
            | pg_sys::GIN_AM_OID
            | pg_sys::SPGIST_AM_OID => IndexKind::Other,
            _ => return None,
        };
        (used && !index.indisexclusion).then_some(kind)
    }
    /// Not a materialized view that waits to be filled.
    pub fn is_populated(self) -> bool {
        self.form().relispopulated
    }
    pub fn is_permanent(self) -> bool {
        self.form().relpersistence as u8 == pg_sys::RELPERSISTENCE_PERMANENT
    }
    pub fn storage(self) -> StorageId {
        let (tablespace, database, file) = compat::parts_of(compat::file_of(self.data()));
        StorageId { tablespace, database, file }
    }
    /// The table access method of this relation is ours.
    pub fn is_firn(self) -> bool {
        std::ptr::eq(self.data().rd_tableam, super::method::routine())
    }
    pub fn column_count(self) -> usize {
        // SAFETY: an open relation has a descriptor.
        unsafe { (*self.data().rd_att).natts as usize }
    }
    pub(super) fn tupdesc(self) -> pg_sys::TupleDesc {
        self.data().rd_att
    }
    /// All attributes, dropped ones too, in their order.
    pub fn attributes(self) -> Vec<Attribute> {
        super::slot::attributes_of(self.tupdesc())
    }
    /// Blocks of the row store (the main fork), without any addition for stripes.
    pub fn heap_blocks(self) -> u32 {
        // SAFETY: an open relation with storage.
        let bytes =
            unsafe { pg_sys::table_block_relation_size(self.0, pg_sys::ForkNumber::MAIN_FORKNUM) };
        (bytes / BLOCK_BYTES) as u32
    }
    /// The row store has this block. Who asks holds a lock: until that goes nothing is cut off, so what was the size at some time since is
    /// proof, and the file is asked only for blocks behind it.
    #[inline]
    pub fn has_block(self, block: u32) -> bool {
        // SAFETY: an open relation; what storage manager it has, if any, is valid as long as no invalidation comes, and its note of the size
        // goes with a truncation's.
        let noted = unsafe {
            let manager = (*self.0).rd_smgr;
            if manager.is_null() {
                0
            } else {
                match (*manager).smgr_cached_nblocks[pg_sys::ForkNumber::MAIN_FORKNUM as usize] {
                    pg_sys::InvalidBlockNumber => 0,
                    blocks => blocks,
                }
            }
        };
        block < noted || block < self.heap_blocks()
    }
    /// `pg_class.reltuples` and `relpages`: what VACUUM or ANALYZE counted last.
    pub fn counted(self) -> (f32, u32) {
        (self.form().reltuples, self.form().relpages.max(0) as u32)
    }
    /// Numbers of the columns that a foreign key could refer to; None when that depends on more than
    /// columns.
    pub fn key_columns(self) -> Option<Vec<i16>> {
        let list = self.columns_of(pg_sys::IndexAttrBitmapKind::INDEX_ATTR_BITMAP_KEY);
        list.iter().all(|n| *n > 0).then_some(list)
    }
    /// Numbers of the columns that PostgreSQL has noted for this of its purposes.
    pub(super) fn columns_of(self, kind: pg_sys::IndexAttrBitmapKind::Type) -> Vec<i16> {
        let mut list = Vec::new();
        // SAFETY: the set is a copy of our own.
        unsafe {
            let set = pg_sys::RelationGetIndexAttrBitmap(self.0, kind);
            let mut at = -1;
            loop {
                at = pg_sys::bms_next_member(set, at);
                if at < 0 {
                    break;
                }
                list.push((at + pg_sys::FirstLowInvalidHeapAttributeNumber) as i16);
            }
            pg_sys::bms_free(set);
        }
        list
    }
    /// How the table's rows are told apart by who decodes its changes (`pg_class.relreplident`).
    pub(super) fn replica_identity(self) -> u8 {
        self.form().relreplident as u8
    }
    /// Output plugins read the table while they decode (`user_catalog_table`).
    pub fn is_user_catalog(self) -> bool {
        let options = self.data().rd_options as *const pg_sys::StdRdOptions;
        // SAFETY: the options of a table or materialized view are of this kind, where it has some.
        unsafe {
            matches!(self.kind(), b'r' | b'm')
                && options.as_ref().is_some_and(|o| o.user_catalog_table)
        }
    }
    /// This index is partial.
    pub fn has_predicate(self) -> bool {
        // SAFETY: an open index; the list is cached by the relcache.
        unsafe { !pg_sys::RelationGetIndexPredicate(self.0).is_null() }
    }
    /// Tell all sessions, at the end of this transaction, to look at this relation anew and to make
    /// new plans of statements that read it.
    pub fn invalidate(self) {
        // SAFETY: plain call.
        unsafe { pg_sys::CacheInvalidateRelcache(self.0) }
    }
    /// Count rows inserted behind heapam's back.
    pub fn count_inserts(self, n: u64) {
        // SAFETY: plain call.
        unsafe { pg_sys::pgstat_count_heap_insert(self.0, n as i64) }
    }
    pub fn count_delete(self) {
        // SAFETY: plain call.
        unsafe { pg_sys::pgstat_count_heap_delete(self.0) }
    }
    /// Count rows that a scan has read from stripes.
    #[inline]
    pub fn count_reads(self, n: u64) {
        self.count(|counters| compat::count_read(counters, n as i64));
    }
    /// Count a block that was found in its buffer by a way that PostgreSQL does not count.
    #[inline]
    pub(super) fn count_hit(self) {
        self.count(compat::count_hit);
        compat::count_io_hit();
    }
    /// Change the session's counters of this relation, if it is counted. PostgreSQL takes them away when it reports them, so they are asked for each time.
    #[inline]
    pub(super) fn count(self, change: impl FnOnce(&mut pg_sys::PgStat_TableStatus)) {
        // SAFETY: what PostgreSQL's macro for its own counting does, for an open relation; the counters are only used by this process.
        unsafe {
            let rel = self.0;
            if (*rel).pgstat_info.is_null() && (*rel).pgstat_enabled {
                pg_sys::pgstat_assoc_relation(rel);
            }
            if let Some(counters) = (*rel).pgstat_info.as_mut() {
                change(counters);
            }
        }
    }
    /// Have counters at hand where they must not be made, which may need memory: while a page is locked.
    #[inline]
    pub(super) fn prepare_to_count(self) {
        self.count(|_| ());
    }
    /// An update whose new version was counted as an insert by heapam.
    pub fn count_update_not_insert(self) {
        // SAFETY: plain calls.
        unsafe {
            pg_sys::pgstat_count_heap_insert(self.0, -1);
            compat::count_update(self.0)
        }
    }
    /// This transaction has given the relation its storage; a rollback takes it away again.
    pub fn has_new_storage(self) -> bool {
        self.data().rd_createSubid != 0 || compat::file_subtransactions(self.data()).1 != 0
    }
    /// Which subtransaction has given the relation its storage: the outermost and the innermost that it may have been, as
    /// PostgreSQL forgets it when one has given it another and was undone. [`Sub::NONE`] stands for another transaction.
    pub fn storage_is_of(self) -> (Sub, Sub) {
        let data = self.data();
        let (new, first) = compat::file_subtransactions(data);
        let (created, new, first) = (Sub(data.rd_createSubid), Sub(new), Sub(first));
        match (created, new, first) {
            (created, Sub::NONE, Sub::NONE) => (created, created),
            (created, Sub::NONE, first) => (created.max(first), super::xact::subtransaction()),
            (_, new, _) => (new, new),
        }
    }
    /// A rollback to the current savepoint takes the relation's storage away, and none to an inner one would.
    pub fn has_storage_of_savepoint(self) -> bool {
        self.storage_is_of().0 == super::xact::subtransaction()
    }
    /// Raise when a cursor or an outer statement of this session works on the relation. `doing` is the
    /// word for what is about to be done.
    pub fn check_not_in_use(self, doing: &std::ffi::CStr) {
        // SAFETY: plain call on an open relation.
        unsafe { pg_sys::CheckTableNotInUse(self.0, doing.as_ptr()) }
    }
    /// A number that stays the same as long as the relation's definition does.
    pub fn definition_token(self) -> u64 {
        static mut NEXT: u64 = 0;
        // SAFETY: rd_amcache is ours for relations of our access method and must be one palloc chunk
        // of the cache's memory; PostgreSQL frees it when it rebuilds the entry.
        unsafe {
            let cache = (*self.0).rd_amcache as *mut u64;
            if !cache.is_null() {
                return *cache;
            }
            NEXT += 1;
            let chunk = pg_sys::MemoryContextAlloc(pg_sys::CacheMemoryContext, 8) as *mut u64;
            *chunk = NEXT;
            (*self.0).rd_amcache = chunk.cast();
            NEXT
        }
    }
}

/// A relation opened by us; closed on drop. A lock for reading goes with it, as heap's on its TOAST relation does, so
/// that a transaction which reads many tables holds few locks; others stay to the end of the transaction.
pub struct OpenRel {
    rel: Rel,
    release: LockMode,
}

impl OpenRel {
    fn of(raw: pg_sys::Relation, lock: LockMode) -> OpenRel {
        let release = match lock {
            LockMode::AccessShare => lock,
            _ => LockMode::None,
        };
        OpenRel { rel: Rel(raw), release }
    }
    /// Open and lock.
    pub fn open(oid: Oid, lock: LockMode) -> OpenRel {
        // SAFETY: table_open checks the OID and raises when it is gone.
        let raw = unsafe { super::ext::table_open(oid, lock as i32) };
        OpenRel::of(raw, lock)
    }
    /// Open and lock; None when the table is gone or somebody else holds a conflicting lock.
    pub fn try_open(oid: Oid, lock: LockMode) -> Option<OpenRel> {
        // SAFETY: the lock is taken before the relation is looked up.
        unsafe {
            if !pg_sys::ConditionalLockRelationOid(oid, lock as i32) {
                return None;
            }
            let raw = pg_sys::try_relation_open(oid, pg_sys::NoLock as i32);
            if raw.is_null() {
                pg_sys::UnlockRelationOid(oid, lock as i32);
                return None;
            }
            Some(OpenRel::of(raw, lock))
        }
    }
    /// Open any kind of relation (an index, a partitioned table).
    pub fn any_kind(oid: Oid, lock: LockMode) -> OpenRel {
        // SAFETY: as above.
        let raw = unsafe { pg_sys::relation_open(oid, lock as i32) };
        OpenRel::of(raw, lock)
    }
    /// Open any kind of relation, waiting for the lock; None when it is gone.
    pub fn if_there(oid: Oid, lock: LockMode) -> Option<OpenRel> {
        // SAFETY: the relation is looked up once it is locked.
        let raw = unsafe { pg_sys::try_relation_open(oid, lock as i32) };
        (!raw.is_null()).then(|| OpenRel::of(raw, lock))
    }
    /// Close it and keep its lock to the end of the transaction.
    pub fn keep_lock(mut self) {
        self.release = LockMode::None;
    }
    pub fn rel(&self) -> Rel {
        self.rel
    }
}

impl std::ops::Deref for OpenRel {
    type Target = Rel;
    fn deref(&self) -> &Rel {
        &self.rel
    }
}

impl Drop for OpenRel {
    fn drop(&mut self) {
        // While an error unwinds, the resource owner closes it.
        if !super::memory::resources_are_released() {
            // SAFETY: opened in the constructor.
            unsafe { super::ext::relation_close(self.rel.0, self.release as i32) }
        }
    }
}

/// OIDs of the table's indexes.
pub fn index_oids(table: Rel) -> Vec<Oid> {
    // SAFETY: the list is a copy in the current context.
    unsafe {
        let list = pg_sys::RelationGetIndexList(table.raw());
        if list.is_null() {
            return Vec::new();
        }
        let all = (0..(*list).length as usize).map(|i| (*(*list).elements.add(i)).oid_value);
        let all = all.collect();
        pg_sys::list_free(list);
        all
    }
}
