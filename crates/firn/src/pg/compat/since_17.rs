//! As it is from PostgreSQL 17 on.

use super::super::{wal, Oid};
use pgrx::pg_sys;

/// Build an index anew, as REINDEX INDEX does it.
///
/// # Safety
/// As for PostgreSQL's function of this name.
pub(crate) unsafe fn reindex_index(oid: Oid, persistence: core::ffi::c_char) {
    // SAFETY: as the caller promises; the options are plain values.
    unsafe {
        let options: pg_sys::ReindexParams = std::mem::zeroed();
        pg_sys::reindex_index(std::ptr::null(), oid, false, persistence, &options)
    }
}

/// Ask the system for so many blocks of a relation's main fork, which has them: together, by one request for each 128 kB or so.
///
/// # Safety
/// An open relation whose storage manager has been asked for something since.
pub(crate) unsafe fn prefetch(relation: pg_sys::Relation, first: pg_sys::BlockNumber, count: u32) {
    // SAFETY: as the caller promises.
    unsafe {
        let manager = (*relation).rd_smgr;
        if !manager.is_null() {
            let main = pg_sys::ForkNumber::MAIN_FORKNUM;
            pg_sys::smgrprefetch(manager, main, first, count as i32);
        }
    }
}

/// The current role may maintain the relation: who has the privilege, as its owner has, and the database's owner.
pub(crate) fn may_maintain(oid: Oid) -> bool {
    // SAFETY: plain look-up.
    let granted = unsafe {
        let maintain = pg_sys::ACL_MAINTAIN as u64 as _;
        pg_sys::pg_class_aclcheck(oid, pg_sys::GetUserId(), maintain)
    };
    granted == pg_sys::AclResult::ACLCHECK_OK || super::owns_database()
}

/// This session holds a lock in just this mode.
///
/// # Safety
/// A plain call.
pub(crate) unsafe fn holds_lock(tag: &pg_sys::LOCKTAG, mode: pg_sys::LOCKMODE) -> bool {
    // SAFETY: a plain call.
    unsafe { pg_sys::LockHeldByMe(tag, mode, false) }
}

/// The session of a prepared transaction.
pub(crate) const NO_SESSION: i32 = pg_sys::INVALID_PROC_NUMBER;

/// Session and number of a transaction that a lock is waited for.
pub(crate) fn transaction_of(id: &pg_sys::VirtualTransactionId) -> (i32, u32) {
    (id.procNumber, id.localTransactionId)
}

/// Of the one that a session is in.
pub(crate) fn transaction_in(session: &pg_sys::PGPROC) -> (i32, u32) {
    (session.vxid.procNumber, session.vxid.lxid)
}

/// The id from which on PostgreSQL warns that few are left.
///
/// # Safety
/// In a session.
pub(crate) unsafe fn warning_xid() -> pg_sys::TransactionId {
    // SAFETY: shared memory that is set up at start.
    unsafe { (*pg_sys::TransamVariables).xidWarnLimit }
}

/// Read a block of a heap for TABLESAMPLE, in place of the one read before.
///
/// # Safety
/// A scan that heapam has begun, and a block that it has.
pub(crate) unsafe fn read_sampled(scan: pg_sys::TableScanDesc, block: pg_sys::BlockNumber) {
    // As heapam does: samples may come to many blocks without a row.
    crate::pg::xact::check_for_interrupts();
    // SAFETY: as the caller promises: the page that the scan holds is let go of once.
    unsafe {
        let heap = scan as pg_sys::HeapScanDesc;
        if (*heap).rs_cbuf != 0 {
            pg_sys::ReleaseBuffer((*heap).rs_cbuf);
            (*heap).rs_cbuf = 0;
        }
        (*heap).rs_cblock = block;
        (*heap).rs_cbuf = pg_sys::ReadBufferExtended(
            (*scan).rs_rd,
            pg_sys::ForkNumber::MAIN_FORKNUM,
            block,
            pg_sys::ReadBufferMode::RBM_NORMAL,
            (*heap).rs_strategy,
        );
        if (*scan).rs_flags & pg_sys::ScanOptions::SO_ALLOW_PAGEMODE != 0 {
            pg_sys::heap_prepare_pagescan(scan);
        }
    }
}

/// Statistics targets of a relation's columns; -1 for the default. The descriptor does not have them any more.
///
/// # Safety
/// An open relation.
pub(crate) unsafe fn statistics_targets(relation: pg_sys::Relation) -> Vec<i32> {
    // SAFETY: open, as the caller promises; the catalog's rows are released once they are read.
    unsafe {
        let target = |a: &pg_sys::FormData_pg_attribute| {
            let row = pg_sys::SearchSysCacheAttNum((*relation).rd_id, a.attnum);
            if row.is_null() {
                return -1;
            }
            let (mut null, number) = (false, pg_sys::Anum_pg_attribute_attstattarget as i16);
            let cache = pg_sys::SysCacheIdentifier::ATTNUM as i32;
            let value = pg_sys::SysCacheGetAttr(cache, row, number, &mut null).value() as i16;
            pg_sys::ReleaseSysCache(row);
            if null {
                -1
            } else {
                i32::from(value)
            }
        };
        let attributes = super::attributes((*relation).rd_att);
        attributes.iter().filter(|a| !a.attisdropped).map(target).collect()
    }
}

/// Log that the tuple at `offset` of the page in `buffer` has got the state it is in.
///
/// # Safety
/// In a critical section that has made the change, holding the page's exclusive lock.
pub(crate) unsafe fn log_frozen(rel: pg_sys::Relation, buffer: pg_sys::Buffer, offset: u16) {
    // SAFETY: the tuple is found through its line pointer under the page's exclusive lock; what is registered outlives the insertion.
    unsafe {
        let header = wal::header_of(buffer, offset);
        let mut tuple = pg_sys::HeapTupleFreeze {
            xmax: (*header).t_choice.t_heap.t_xmax,
            t_infomask2: (*header).t_infomask2,
            t_infomask: (*header).t_infomask,
            frzflags: 0,
            checkflags: 0,
            offset,
        };
        // Without an id that standbys' snapshots would be compared with: there are to be no conflicts.
        let (nobody, none) = (pg_sys::InvalidTransactionId, std::ptr::null_mut());
        let reason = pg_sys::PruneReason::PRUNE_VACUUM_SCAN;
        pg_sys::log_heap_prune_and_freeze(
            rel, buffer, nobody, false, reason, &mut tuple, 1, none, 0, none, 0, none, 0,
        );
    }
}
