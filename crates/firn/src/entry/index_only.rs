//! Index-only scans of B-trees: what the executor does for each entry, without its question to the visibility map.
//!
//! Problem: PostgreSQL asks the visibility map of each row, has no answer for those of stripes, and fetches them: that costs half as much again as
//! all else of such a row, though the scan knows already that its snapshot sees all of the stripe.
//!
//! Rule: a node's scan goes on here once it has begun (its first row is the executor's own, which also sets the scan up). A row of a
//! stripe that is known to be seen as a whole is taken at once. Of all others is done what the executor does: the visibility map is asked, and the row
//! fetched where that does not know.
//!
//! `next` is to be compared with nodeIndexonlyscan.c of each version that is supported: it does for each entry what that does, of 15 and of 18.
//!
//! Left to the executor: other access methods (they may want rows checked again), indexes whose entries have other types than their columns (name),
//! checks of changed rows. What is counted is as of a heap: fetches, not rows.
//!
//! Rejected: pages of the visibility map for the virtual blocks of stripes (one for each 32,672, in a file of half a gigabyte of holes); a custom scan
//! (it would have to be priced, put into plans and rescanned anew for what the node has already).

use super::tableam::scandesc::FetchDesc;
use crate::pg::compat;
use crate::pg::ext::{callback, direct};
use crate::pg::slot::Slot;
use crate::pg::toast::tid_of;
use crate::pg::{error, Kind, Rel, Snap};
use pgrx::pg_sys;

/// The executor's function for these nodes, by the first of them. (Should another extension have put its own into that one, as none is known to
/// do, it is called for first rows alone.)
static mut USUAL: pg_sys::ExecProcNodeMtd = None;

/// See to it that a node's rows are taken by [`next`], if it is one of these and has the same function as all of them.
///
/// # Safety
/// A node of a query that has been started.
pub(super) unsafe fn prepare(state: *mut pg_sys::PlanState) {
    // SAFETY: a node of the type that its tag says, with its relation and index, unless the query is only explained.
    unsafe {
        if (*state).type_ != pg_sys::NodeTag::T_IndexOnlyScanState {
            return;
        }
        let node = state as *mut pg_sys::IndexOnlyScanState;
        let (table, index) = ((*node).ss.ss_currentRelation, (*node).ioss_RelationDesc);
        if table.is_null() || index.is_null() || !Rel::of(table).is_firn() || !is_plain(index) {
            return;
        }
        let own = (*state).ExecProcNodeReal;
        let usual = match USUAL {
            Some(f) => Some(f),
            None => own,
        };
        USUAL = usual;
        if own.map(|f| f as usize) == usual.map(|f| f as usize) {
            (*state).ExecProcNodeReal = Some(exec);
        }
    }
}

/// A B-tree whose entries are of its columns' types.
unsafe fn is_plain(index: pg_sys::Relation) -> bool {
    // SAFETY: an open index; its descriptor has natts attributes behind its header.
    unsafe {
        let attributes = compat::attributes((*index).rd_att);
        (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID
            && !attributes.iter().any(|a| a.atttypid == pg_sys::CSTRINGOID)
    }
}

unsafe extern "C-unwind" fn exec(state: *mut pg_sys::PlanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: a node that `prepare` has taken over.
    unsafe {
        let node = state as *mut pg_sys::IndexOnlyScanState;
        let begins = (*node).ioss_ScanDesc.is_null()
            || (*node).ioss_NumRuntimeKeys != 0 && !(*node).ioss_RuntimeKeysReady;
        if begins || !(*(*state).state).es_epq_active.is_null() {
            return match USUAL {
                Some(f) => f(state),
                None => std::ptr::null_mut(),
            };
        }
        direct::ExecScan(&raw mut (*node).ss, Some(next), Some(recheck))
    }
}

/// The next row that the snapshot sees, in the node's slot, which is empty at the end.
unsafe extern "C-unwind" fn next(scan: *mut pg_sys::ScanState) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: a node whose scan has begun; what the scan leads to lives until it is asked for the next entry.
    unsafe {
        let node = scan as *mut pg_sys::IndexOnlyScanState;
        let slot = (*scan).ss_ScanTupleSlot;
        let desc = (*node).ioss_ScanDesc;
        let direction = direction_of(scan);
        let snap = Snap::of((*desc).xs_snapshot);
        let row = Slot::of((*node).ioss_TableSlot);
        loop {
            let tid = direct::index_getnext_tid(desc, direction);
            if tid.is_null() {
                direct::ExecClearTuple(slot);
                return slot;
            }
            if pg_sys::InterruptPending != 0 {
                direct::ProcessInterrupts();
            }
            let fetch = (*desc).xs_heapfetch as *mut FetchDesc;
            let known = match &*(*fetch).state {
                Some(fetcher) => fetcher.sees_at_once(tid_of(&*tid), snap, row),
                None => false,
            };
            if !known && !is_seen(node, desc, tid) {
                continue;
            }
            if (*desc).xs_itup.is_null() {
                callback(|| -> () {
                    error(Kind::Internal, "an index-only scan got no entry").raise()
                });
            }
            direct::ExecClearTuple(slot);
            let (values, nulls) = ((*slot).tts_values, (*slot).tts_isnull);
            direct::index_deform_tuple((*desc).xs_itup, (*desc).xs_itupdesc, values, nulls);
            direct::ExecStoreVirtualTuple(slot);
            return slot;
        }
    }
}

/// What the executor does of a row that it knows nothing of.
unsafe fn is_seen(
    node: *mut pg_sys::IndexOnlyScanState,
    desc: pg_sys::IndexScanDesc,
    tid: pg_sys::ItemPointer,
) -> bool {
    // SAFETY: as for `next`.
    unsafe {
        let (table, tid) = ((*desc).heapRelation, tid_of(&*tid));
        // For rows of stripes there is no map, and to ask for one would be to let go of the row store's.
        if !tid.is_virtual() {
            let map = &raw mut (*node).ioss_VMBuffer;
            let seen = direct::visibilitymap_get_status(table, tid.block, map);
            if u32::from(seen) & pg_sys::VISIBILITYMAP_ALL_VISIBLE != 0 {
                direct::PredicateLockPage(table, tid.block, (*desc).xs_snapshot);
                return true;
            }
        }
        let instrument = (*node).ss.ps.instrument;
        if !instrument.is_null() {
            (*instrument).ntuples2 += 1.0;
        }
        let row = (*node).ioss_TableSlot;
        let found = direct::index_fetch_heap(desc, row);
        if found {
            direct::ExecClearTuple(row);
        }
        found
    }
}

unsafe fn direction_of(scan: *mut pg_sys::ScanState) -> pg_sys::ScanDirection::Type {
    use pg_sys::ScanDirection::{
        BackwardScanDirection as BACKWARD, ForwardScanDirection as FORWARD,
    };
    // SAFETY: a node with its plan and its query's state.
    unsafe {
        let plan = (*scan).ps.plan as *mut pg_sys::IndexOnlyScan;
        let asked = (*(*scan).ps.state).es_direction;
        match ((*plan).indexorderdir == BACKWARD, asked) {
            (true, FORWARD) => BACKWARD,
            (true, BACKWARD) => FORWARD,
            _ => asked,
        }
    }
}

/// Asked of rows that are checked again, which [`exec`] leaves to the executor.
unsafe extern "C-unwind" fn recheck(
    _: *mut pg_sys::ScanState,
    _: *mut pg_sys::TupleTableSlot,
) -> bool {
    true
}
