//! The row that a plan is to check again (EvalPlanQual): another session has changed a row that this statement was about to change
//! or lock, and its newest version takes the place of all rows of the table. PostgreSQL's scans do this in
//! ExecScanFetch(), which a custom scan does not come by. What stripes have evaluated was of the old version, so all quals are
//! checked.

use super::exec::{finished, shown, Run};
use crate::pg::ext::direct;
use pgrx::pg_sys;

/// The one row, or that it was refused or given already; null where the relation is read as ever, as those of sub-selects are. As
/// `exec`, it calls PostgreSQL without guards and owns nothing.
pub(super) unsafe fn step(
    node: *mut pg_sys::CustomScanState,
    run: *mut Run,
    check: *mut pg_sys::EPQState,
) -> *mut pg_sys::TupleTableSlot {
    // SAFETY: a node that runs within a re-check, whose state has a slot or a row mark for each relation.
    unsafe {
        let relation = (*((*node).ss.ps.plan as *mut pg_sys::Scan)).scanrelid;
        let at = relation as usize - 1;
        let done = (*check).relsubs_done.add(at);
        if *done {
            return finished(node);
        }
        let given = *(*check).relsubs_slot.add(at);
        let row = if !given.is_null() {
            *done = true;
            given
        } else if !(*(*check).relsubs_rowmark.add(at)).is_null() {
            // A relation that is joined and not changed: its row of before, by its TID.
            *done = true;
            if !direct::EvalPlanQualFetchRowMark(check, relation, (*run).heap_slot) {
                return finished(node);
            }
            (*run).heap_slot
        } else {
            return std::ptr::null_mut();
        };
        if (*row).tts_flags & pg_sys::TTS_FLAG_EMPTY as u16 != 0 {
            return finished(node);
        }
        // Whoever asked for a row before has perhaps made the slot's values its own.
        direct::ExecClearTuple((*node).ss.ss_ScanTupleSlot);
        let slot = shown(node, run, row);
        if slot.is_null() {
            return finished(node);
        }
        slot
    }
}
