//! Which calls do not fail, and why.

use pgrx::pg_sys;
use std::ffi::CStr;

/// Whether a call of a function counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spared {
    /// It may fail.
    No,
    /// It only gives something back: PostgreSQL has no error for it.
    Always,
    /// LockBuffer: not when it unlocks.
    Unlock,
    /// It may fail, but not before it has begun: the error comes after it.
    After,
    /// standard_ProcessUtility: not when it sets or shows the library's own settings.
    Setting,
    /// No stub at all: it raises errors, or is told of its caller's frame.
    Untouched,
}

impl Spared {
    /// A call with these registers counts (r10, r9, r8, rcx, rdx, rsi, rdi, rax).
    pub unsafe fn counts(self, registers: *const usize) -> bool {
        match self {
            Spared::No | Spared::After => true,
            Spared::Unlock => *registers.add(5) as u32 != 0,
            Spared::Setting => {
                let statement = *registers.add(6) as *const pg_sys::PlannedStmt;
                !is_own((*statement).utilityStmt)
            }
            _ => false,
        }
    }
}

unsafe fn is_own(statement: *mut pg_sys::Node) -> bool {
    let name = match (*statement).type_ {
        pg_sys::NodeTag::T_VariableSetStmt => (*statement.cast::<pg_sys::VariableSetStmt>()).name,
        pg_sys::NodeTag::T_VariableShowStmt => (*statement.cast::<pg_sys::VariableShowStmt>()).name,
        _ => return false,
    };
    !name.is_null() && CStr::from_ptr(name).to_bytes().starts_with(b"faults.")
}

/// Errors on their way: they end calls, they do not fail themselves.
const ERRORS: &[&str] = &[
    "errstart",
    "errstart_cold",
    "errfinish",
    "errcode",
    "errmsg",
    "errmsg_internal",
    "errdetail",
    "errdetail_internal",
    "errhint",
    "errcontext_msg",
    "set_errcontext_domain",
    "err_generic_string",
    "CopyErrorData",
    "FreeErrorData",
    "FlushErrorState",
    "ThrowErrorData",
    "ReThrowError",
    "pg_re_throw",
    "geterrcode",
    "GetHeapamTableAmRoutine",
    "pg_snprintf",
    "message_level_is_interesting",
];

/// They release what was taken, or read or set a field. (A process that cannot even do that is ended by
/// PANIC.)
const RELEASES: &[&str] = &[
    "pfree",
    "MemoryContextReset",
    "MemoryContextDelete",
    "list_free",
    "bms_free",
    "heap_freetuple",
    "relation_close",
    "table_close",
    "index_close",
    "toast_close_indexes",
    "ReleaseBuffer",
    "UnlockReleaseBuffer",
    "ReleaseSysCache",
    "UnregisterSnapshot",
    "PopActiveSnapshot",
    "LockRelease",
    "UnlockTuple",
    "UnlockPage",
    "UnlockRelationOid",
    "ExecDropSingleTupleTableSlot",
    "FreeExecutorState",
    "FreeBulkInsertState",
    "ExecCloseIndices",
    "index_endscan",
    "heap_endscan",
    "table_endscan",
    "systable_endscan",
    "pgstat_unlock_entry",
    "pgstat_progress_end_command",
    "pgstat_report_wait_end",
    "pgstat_progress_update_param",
    "LWLockRelease",
    "TransactionIdPrecedes",
    "IsInParallelMode",
    "GetCurrentSubTransactionId",
    "ActiveSnapshotSet",
    "bms_next_member",
    "CheckRelationLockedByMe",
    "bms_is_member",
    "GetUserId",
    "SetUserIdAndSecContext",
    "GetUserIdAndSecContext",
    "GetCurrentTimestamp",
    "PageGetHeapFreeSpace",
    "ItemPointerCompare",
    "MemoryContextRegisterResetCallback",
    "XactLockTableDelete",
    "AtEOXact_GUC",
    "pgstat_count_heap_delete",
    "pgstat_count_heap_update",
    "pgstat_count_io_op",
];

pub fn of(name: &CStr) -> Spared {
    let name = name.to_str().unwrap_or("");
    if ERRORS.contains(&name) {
        Spared::Untouched
    } else if RELEASES.contains(&name) {
        Spared::Always
    } else if name == "LockBuffer" {
        Spared::Unlock
    } else if name == "StartTransactionCommand" {
        // It says that a transaction is beginning before anything else, so that there is always one to roll back.
        Spared::After
    } else if name == "standard_ProcessUtility" {
        Spared::Setting
    } else {
        Spared::No
    }
}

/// heapam's callbacks: names, places in its table, and whether they are spared.
pub fn callbacks() -> Vec<(&'static str, usize, Spared)> {
    macro_rules! fields {
        ($($spared:ident: $($name:ident)*;)*) => {
            vec![$($((
                concat!("heapam.", stringify!($name)),
                std::mem::offset_of!(pg_sys::TableAmRoutine, $name),
                Spared::$spared,
            ),)*)*]
        };
    }
    let mut all = fields! {
        No: scan_begin scan_rescan scan_getnextslot scan_set_tidrange scan_getnextslot_tidrange
            parallelscan_initialize parallelscan_reinitialize index_fetch_begin index_fetch_tuple
            tuple_fetch_row_version tuple_tid_valid tuple_get_latest_tid tuple_satisfies_snapshot
            index_delete_tuples tuple_insert tuple_insert_speculative tuple_complete_speculative multi_insert
            tuple_delete tuple_update tuple_lock relation_nontransactional_truncate
            relation_copy_data relation_copy_for_cluster relation_vacuum scan_analyze_next_block
            scan_analyze_next_tuple relation_size relation_toast_am relation_fetch_toast_slice
            relation_estimate_size scan_bitmap_next_tuple scan_sample_next_block
            scan_sample_next_tuple;
        Always: scan_end index_fetch_reset index_fetch_end finish_bulk_insert;
    };
    #[cfg(feature = "pg15")]
    all.extend(fields! { No: relation_set_new_filenode; });
    #[cfg(not(feature = "pg15"))]
    all.extend(fields! { No: relation_set_new_filelocator; });
    #[cfg(not(feature = "pg18"))]
    all.extend(fields! { No: scan_bitmap_next_block; });
    all
}
