//! As it is from PostgreSQL 16 on.

use super::super::ext::postgres_functions;
use super::super::Oid;
use pgrx::pg_sys;

/// Where a relation's file is.
pub(crate) type FileName = pg_sys::RelFileLocator;

pub(crate) fn file_of(relation: &pg_sys::RelationData) -> FileName {
    relation.rd_locator
}

/// Tablespace, database and number of a file.
pub(crate) fn parts_of(file: FileName) -> (Oid, Oid, u32) {
    (file.spcOid, file.dbOid, file.relNumber.to_u32())
}

/// File and block of the page that a buffer has.
pub(crate) fn page_of(tag: &pg_sys::BufferTag) -> (FileName, pg_sys::ForkNumber::Type, u32) {
    let (spc_oid, db_oid, number) = (tag.spcOid, tag.dbOid, tag.relNumber);
    let file = FileName { spcOid: spc_oid, dbOid: db_oid, relNumber: number };
    (file, tag.forkNum, tag.blockNum)
}

/// Subtransactions that gave the relation a new file: the last, and the first of this transaction.
pub(crate) fn file_subtransactions(relation: &pg_sys::RelationData) -> (u32, u32) {
    (relation.rd_newRelfilelocatorSubid, relation.rd_firstRelfilelocatorSubid)
}

/// The callback that gives a relation a new file.
pub(crate) type NewFile = Option<
    unsafe extern "C-unwind" fn(
        pg_sys::Relation,
        *const FileName,
        core::ffi::c_char,
        *mut pg_sys::TransactionId,
        *mut pg_sys::MultiXactId,
    ),
>;

pub(crate) fn new_file(routine: &pg_sys::TableAmRoutine) -> NewFile {
    routine.relation_set_new_filelocator
}

pub(crate) fn set_new_file(routine: &mut pg_sys::TableAmRoutine, callback: NewFile) {
    routine.relation_set_new_filelocator = callback;
}

/// A ring of few buffers for what is read in bulk, in the current memory context. Of the size that PostgreSQL's rings have up to version 17:
/// that of 18 has room for reads that are under way, and many of them, one after the other, would take what others use.
///
/// # Safety
/// A plain call.
pub(crate) unsafe fn ring_of_buffers() -> pg_sys::BufferAccessStrategy {
    /// Kilobytes.
    const SIZE: i32 = 256;
    // SAFETY: a plain call.
    unsafe {
        pg_sys::GetAccessStrategyWithSize(pg_sys::BufferAccessStrategyType::BAS_BULKREAD, SIZE)
    }
}

/// Which indexes an update has to be told of.
pub(crate) type IndexesToUpdate = pg_sys::TU_UpdateIndexes::Type;
pub(crate) const ALL_INDEXES: IndexesToUpdate = pg_sys::TU_UpdateIndexes::TU_All;

/// Nothing is in the set.
///
/// # Safety
/// Null or a live set.
pub(crate) unsafe fn is_empty(set: *const pg_sys::Bitmapset) -> bool {
    set.is_null()
}

/// Which attribute of one descriptor is which of another, by their names.
///
/// # Safety
/// Live descriptors.
pub(crate) unsafe fn map_by_name(
    from: pg_sys::TupleDesc,
    to: pg_sys::TupleDesc,
) -> *mut pg_sys::AttrMap {
    // SAFETY: live, as the caller promises.
    unsafe { pg_sys::build_attrmap_by_name(from, to, false) }
}

/// The next datum of a sort, a copy; false behind the last.
///
/// # Safety
/// A sort of datums that is done.
pub(crate) unsafe fn sorted_datum(
    sort: *mut pg_sys::Tuplesortstate,
    value: &mut pg_sys::Datum,
    null: &mut bool,
) -> bool {
    // SAFETY: as the caller promises.
    unsafe { pg_sys::tuplesort_getdatum(sort, true, true, value, null, std::ptr::null_mut()) }
}

pub(crate) fn owns_relation(oid: Oid) -> bool {
    // SAFETY: plain look-up.
    unsafe { pg_sys::object_ownercheck(pg_sys::RelationRelationId, oid, pg_sys::GetUserId()) }
}

pub(crate) fn owns_database() -> bool {
    // SAFETY: plain look-up.
    unsafe {
        pg_sys::object_ownercheck(
            pg_sys::DatabaseRelationId,
            pg_sys::MyDatabaseId,
            pg_sys::GetUserId(),
        )
    }
}

pub(crate) fn owns_server(oid: Oid) -> bool {
    // SAFETY: plain look-up.
    unsafe { pg_sys::object_ownercheck(pg_sys::ForeignServerRelationId, oid, pg_sys::GetUserId()) }
}

pub(crate) fn may_use_server(oid: Oid) -> bool {
    // SAFETY: plain look-up.
    unsafe {
        let usage = pg_sys::ACL_USAGE as u64 as _;
        let (of, user) = (pg_sys::ForeignServerRelationId, pg_sys::GetUserId());
        let found = pg_sys::object_aclcheck(of, oid, user, usage);
        found == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Entry `number` (from 1) of this transaction's copy of what sessions do; null when there is none.
///
/// # Safety
/// A plain call.
pub(crate) unsafe fn local_entry(number: i32) -> *mut pg_sys::LocalPgBackendStatus {
    // SAFETY: a plain call.
    unsafe { pg_sys::pgstat_get_local_beentry_by_index(number) }
}

/// Rows that a scan has read.
pub(crate) fn count_read(table: &mut pg_sys::PgStat_TableStatus, rows: i64) {
    table.counts.tuples_returned += rows;
}

/// Rows that have become dead.
pub(crate) fn count_dead(table: &mut pg_sys::PgStat_TableStatus, rows: i64) {
    table.counts.delta_dead_tuples += rows;
}

/// Count an update that is not heap-only.
///
/// # Safety
/// An open relation.
pub(crate) unsafe fn count_update(relation: pg_sys::Relation) {
    // SAFETY: open, as the caller promises.
    unsafe { pg_sys::pgstat_count_heap_update(relation, false, false) }
}

/// Rows of a table, living and dead, as the cumulative statistics have it.
pub(crate) fn counted_rows(table: &mut pg_sys::PgStat_StatTabEntry) -> (&mut i64, &mut i64) {
    (&mut table.live_tuples, &mut table.dead_tuples)
}

/// What bulk deletion from an index is told.
pub(crate) fn index_vacuum_info(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    rows: f64,
    strategy: pg_sys::BufferAccessStrategy,
) -> pg_sys::IndexVacuumInfo {
    pg_sys::IndexVacuumInfo {
        index,
        heaprel: table,
        analyze_only: false,
        report_progress: false,
        estimated_count: true,
        message_level: pgrx::PgLogLevel::DEBUG2 as i32,
        num_heap_tuples: rows,
        strategy,
    }
}

/// Update a row of a heap. Which indexes are to be told follows from the new row.
///
/// # Safety
/// As for PostgreSQL's function of this name.
pub(crate) unsafe fn heap_update(
    relation: pg_sys::Relation,
    old: pg_sys::ItemPointer,
    new: pg_sys::HeapTuple,
    cid: pg_sys::CommandId,
    failure: &mut pg_sys::TM_FailureData,
    mode: &mut pg_sys::LockTupleMode::Type,
) -> pg_sys::TM_Result::Type {
    // SAFETY: as the caller promises.
    unsafe {
        let none = std::ptr::null_mut();
        let mut indexes = ALL_INDEXES;
        pg_sys::heap_update(relation, old, new, cid, none, true, failure, mode, &mut indexes)
    }
}

/// B-tree's record "a deleted page is used again", whose only effect is on a standby: queries whose snapshots could
/// see what `removed` has deleted are cancelled.
#[repr(C)]
pub(crate) struct BtreeReusePage {
    file: FileName,
    block: u32,
    removed: u64,
    is_catalog: bool,
}

impl BtreeReusePage {
    pub(crate) const BYTES: usize = 25;

    pub(crate) fn new(file: FileName, removed: u64) -> BtreeReusePage {
        BtreeReusePage { file, block: u32::MAX, removed, is_catalog: false }
    }
}

/// A function to be told of the tables that a statement may insert into.
pub(crate) type Look = unsafe extern "C-unwind" fn(Oid);

static mut LOOK: Option<Look> = None;
static mut PREVIOUS: pg_sys::ExecutorCheckPerms_hook_type = None;

/// Install the hook that is called when permissions are checked. Called once at library load.
///
/// # Safety
/// On the main thread, at load.
pub(crate) unsafe fn look_at_inserts(look: Look) {
    // SAFETY: as the caller promises.
    unsafe {
        LOOK = Some(look);
        PREVIOUS = pg_sys::ExecutorCheckPerms_hook;
        pg_sys::ExecutorCheckPerms_hook = Some(check_permissions);
    }
}

unsafe extern "C-unwind" fn check_permissions(
    tables: *mut pg_sys::List,
    permissions: *mut pg_sys::List,
    may_raise: bool,
) -> bool {
    // SAFETY: the second list is of RTEPermissionInfo, one for each relation whose permissions are checked.
    unsafe {
        let count = if permissions.is_null() { 0 } else { (*permissions).length as usize };
        for i in 0..count {
            let of = (*(*permissions).elements.add(i)).ptr_value as *mut pg_sys::RTEPermissionInfo;
            if (*of).requiredPerms & pg_sys::ACL_INSERT as u64 != 0 {
                if let Some(look) = LOOK {
                    look((*of).relid);
                }
            }
        }
        match PREVIOUS {
            Some(f) => f(tables, permissions, may_raise),
            None => true,
        }
    }
}

postgres_functions! {
    fn expression_tree_mutator_impl(
        node: *mut pg_sys::Node,
        mutator: Option<
            unsafe extern "C-unwind" fn(
                *mut pg_sys::Node,
                *mut core::ffi::c_void,
            ) -> *mut pg_sys::Node,
        >,
        context: *mut core::ffi::c_void,
    ) -> *mut pg_sys::Node;
}
pub(crate) use expression_tree_mutator_impl as expression_tree_mutator;

/// See `ext::direct`.
pub(crate) mod direct {
    use pgrx::pg_sys;
    unsafe extern "C-unwind" {
        #[link_name = "planstate_tree_walker_impl"]
        pub fn planstate_tree_walker(
            state: *mut pg_sys::PlanState,
            walker: Option<
                unsafe extern "C-unwind" fn(*mut pg_sys::PlanState, *mut core::ffi::c_void) -> bool,
            >,
            context: *mut core::ffi::c_void,
        ) -> bool;
    }
}

/// A join by hash that gives the rows of its hashed side that have no match.
pub(crate) const RIGHT_ANTI: Option<pg_sys::JoinType::Type> =
    Some(pg_sys::JoinType::JOIN_RIGHT_ANTI);

/// A block was found in its buffer.
pub(crate) fn count_hit(status: &mut pg_sys::PgStat_TableStatus) {
    status.counts.blocks_fetched += 1;
    status.counts.blocks_hit += 1;
}
