//! Rows of a TOAST relation that are known to be as they were, at one look at their page's LSN.
//!
//! Problem: each look-up has to know that its stripe's directory row is still there, and the same, and seen by the snapshot. To fetch it costs a search
//! for its buffer, a lock on its page, a question for its visibility and a checksum of its bytes.
//!
//! Rule: whoever has looked at the row notes its page's LSN of a moment before, if by then its inserter had committed and nobody had deleted, replaced
//! or locked it. Whatever changes the row is logged and gives the page another LSN under the page's exclusive lock. While the page has that LSN the
//! row is as it was, for all MVCC snapshots that see its inserter: those that were taken when no transaction was running that is as old.
//! A deletion that such a snapshot sees was committed before it was taken, and so the page had its LSN by then. So the LSN is read
//! at a glance (`glance.rs`): who changes the page at that moment has not committed yet. A buffer whose use PostgreSQL has counted too seldom is not asked (`recent.rs`):
//! the row is fetched then, which counts it.
//!
//! Cases: as in `index_gap.rs`, whose page is another's: another page in the buffer or another file has another tag; what is not logged, and
//! serializable transactions, which leave their predicate locks, ask in the ordinary way. Hints, pruning and freezing give the page another LSN or leave the
//! row as it is. On a standby the same holds of what is replayed.

use super::ext;
use super::glance::has_lsn;
use super::snapshot::Snap;
use super::toast::{ChunkKey, RowView, Toast};
use super::toast_scan::Pinned;
use super::xact;
use firn_directory::{Place, Witness, Xid};
use pgrx::pg_sys;

impl Toast {
    /// MVCC snapshots tell from a page's LSN, of a relation that is logged.
    pub fn gives_witnesses(&self, snap: Snap) -> bool {
        snap.id().is_some() && self.rel().needs_wal()
    }

    /// As [`Toast::at`], and a witness of the row as it was before it was visited.
    pub fn at_witnessed<T>(
        &self,
        place: Place,
        key: ChunkKey,
        snap: Snap,
        visit: impl FnOnce(&RowView) -> T,
    ) -> Option<(T, Option<Witness>)> {
        let can = self.gives_witnesses(snap);
        let mut witness = None;
        let found = self.at_pinned(place, key, snap, |row, pinned| {
            witness = can.then(|| witness_of(&pinned)).flatten();
            visit(row)
        });
        found.map(|found| (found, witness))
    }

    /// The row at `place` is as this witness has it, and `snap` sees it. False says nothing.
    pub fn is_unchanged(&self, place: Place, snap: Snap, witness: &Witness) -> bool {
        if !self.gives_witnesses(snap) {
            return false;
        }
        let is_old = witness.xmin == Xid::FROZEN || xact::precedes(witness.xmin, snap.xmin());
        is_old && has_lsn(witness.hint, self.rel(), place.block, witness.version)
    }
}

/// What tells of a row that was just seen whether it is as it is now.
fn witness_of(pinned: &Pinned) -> Option<Witness> {
    let (buffer, header) = (pinned.buffer, pinned.header);
    // SAFETY: the page is pinned, so the row stays where it is; its header and the page's LSN belong together while nobody may change them.
    let (lsn, mask, xmin) = unsafe {
        ext::guarded(|| {
            ext::direct::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let lsn = ext::direct::BufferGetLSNAtomic(buffer);
            let (mask, xmin) = (u32::from((*header).t_infomask), (*header).t_choice.t_heap.t_xmin);
            ext::direct::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
            (lsn, mask, xmin)
        })
    };
    let is_settled =
        mask & pg_sys::HEAP_XMIN_COMMITTED != 0 && mask & pg_sys::HEAP_XMAX_INVALID != 0;
    let xmin = match mask & pg_sys::HEAP_XMIN_FROZEN {
        pg_sys::HEAP_XMIN_FROZEN => Xid::FROZEN,
        _ => xact::xid_of(xmin),
    };
    (is_settled && lsn != 0).then_some(Witness { hint: buffer, version: lsn, xmin })
}
