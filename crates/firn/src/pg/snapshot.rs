//! Snapshots: what a row's reader may see.

use super::xact::{raw_xid, xid_of};
use firn_directory::{Cid, Xid};
use pgrx::pg_sys;

/// A snapshot handle; the caller keeps it registered or active.
#[derive(Clone, Copy)]
pub struct Snap(pub(super) pg_sys::Snapshot);

/// The rule by which a snapshot judges visibility.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapKind {
    Mvcc,
    Dirty,
    Any,
    SelfSnap,
    NonVacuumable,
    Other,
}

/// By what a snapshot is known again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SnapshotId {
    at: usize,
    xmin: Xid,
    xmax: Xid,
    curcid: Cid,
    /// How many transactions and subtransactions were.
    running: (u32, u32),
}

impl Snap {
    pub(crate) fn of(raw: pg_sys::Snapshot) -> Snap {
        Snap(raw)
    }
    pub(crate) fn raw(self) -> pg_sys::Snapshot {
        self.0
    }

    /// Everything, dead or alive.
    pub fn any() -> Snap {
        Snap(&raw mut pg_sys::SnapshotAnyData)
    }

    /// What is committed, or done by this transaction (earlier commands and this one).
    pub fn self_snap() -> Snap {
        Snap(&raw mut pg_sys::SnapshotSelfData)
    }

    pub fn kind(self) -> SnapKind {
        use pg_sys::SnapshotType as T;
        // SAFETY: handles are made from live snapshots only.
        match unsafe { (*self.0).snapshot_type } {
            T::SNAPSHOT_MVCC => SnapKind::Mvcc,
            T::SNAPSHOT_DIRTY => SnapKind::Dirty,
            T::SNAPSHOT_ANY => SnapKind::Any,
            T::SNAPSHOT_SELF => SnapKind::SelfSnap,
            T::SNAPSHOT_NON_VACUUMABLE => SnapKind::NonVacuumable,
            _ => SnapKind::Other,
        }
    }

    /// An index scan by this snapshot keeps no page of a B-tree pinned (IsMVCCSnapshot(), _bt_drop_lock_and_maybe_pin()).
    pub fn lets_go_of_pages(self) -> bool {
        matches!(self.kind(), SnapKind::Mvcc | SnapKind::Other)
    }

    /// What is read under this snapshot must be reported to serializable isolation.
    pub fn is_serializable(self) -> bool {
        super::xact::is_serializable() && self.kind() == SnapKind::Mvcc
    }

    /// Transactions before this one were over when an MVCC snapshot was taken.
    pub fn xmin(self) -> Xid {
        // SAFETY: as above.
        xid_of(unsafe { (*self.0).xmin })
    }

    /// Commands of this transaction from this number on are invisible to an MVCC snapshot.
    pub fn curcid(self) -> Cid {
        // SAFETY: as above.
        Cid(unsafe { (*self.0).curcid })
    }

    /// What it sees, in short; None unless it is an MVCC snapshot of a transaction that is not serializable. For those who live no
    /// longer than the snapshot that they were made for, as a scan does: it tells whether they are asked
    /// under another one. (Two snapshots that were at one place one after the other can be equal in this, and see different rows.)
    pub fn id(self) -> Option<SnapshotId> {
        if self.kind() != SnapKind::Mvcc || super::xact::is_serializable() {
            return None;
        }
        // SAFETY: as above.
        let snap = unsafe { &*self.0 };
        Some(SnapshotId {
            at: self.0 as usize,
            xmin: xid_of(snap.xmin),
            xmax: xid_of(snap.xmax),
            curcid: Cid(snap.curcid),
            running: (snap.xcnt, snap.subxcnt as u32),
        })
    }

    /// What a dirty snapshot found: transactions in progress that inserted (xmin) or deleted or
    /// locked (xmax) the tuple just looked at; [`Xid::NONE`] when none.
    pub fn dirty_found(self) -> (Xid, Xid) {
        // SAFETY: as above.
        unsafe { (xid_of((*self.0).xmin), xid_of((*self.0).xmax)) }
    }

    /// Report back through a dirty snapshot, as heapam does.
    pub fn set_dirty(self, xmin: Xid, xmax: Xid) {
        // SAFETY: as above; a dirty snapshot's xmin and xmax are output fields.
        unsafe {
            (*self.0).xmin = raw_xid(xmin);
            (*self.0).xmax = raw_xid(xmax);
            (*self.0).speculativeToken = 0;
        }
    }

    /// The snapshot of the running statement; error when there is none.
    pub fn active() -> Option<Snap> {
        // SAFETY: plain call.
        unsafe { pg_sys::ActiveSnapshotSet().then(|| Snap(pg_sys::GetActiveSnapshot())) }
    }
}

/// Let go of the snapshot under which this session has looked into the catalogs: who is about to wait holds nobody
/// back by it.
pub fn forget_catalog() {
    // SAFETY: plain call; PostgreSQL takes another when it looks again.
    unsafe { pg_sys::InvalidateCatalogSnapshot() }
}

/// A dirty snapshot of our own (PostgreSQL's InitDirtySnapshot).
pub struct DirtySnap(Box<pg_sys::SnapshotData>);

impl DirtySnap {
    pub fn new() -> DirtySnap {
        // SAFETY: an all-zero SnapshotData with its type set is what InitDirtySnapshot makes.
        let mut data: Box<pg_sys::SnapshotData> = Box::new(unsafe { std::mem::zeroed() });
        data.snapshot_type = pg_sys::SnapshotType::SNAPSHOT_DIRTY;
        DirtySnap(data)
    }
    pub fn snap(&mut self) -> Snap {
        Snap(&mut *self.0)
    }
}

/// A registered snapshot, unregistered on drop.
pub struct Registered(Snap);

impl Registered {
    /// The newest committed state.
    pub fn latest() -> Registered {
        // SAFETY: plain calls; ownership is with the current resource owner.
        unsafe { Registered(Snap(pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot()))) }
    }
    /// The transaction's snapshot (a new one under READ COMMITTED).
    pub fn transaction() -> Registered {
        // SAFETY: as above.
        unsafe { Registered(Snap(pg_sys::RegisterSnapshot(pg_sys::GetTransactionSnapshot()))) }
    }
    pub fn snap(&self) -> Snap {
        self.0
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // While an error unwinds the resource owner releases it.
        if !super::memory::resources_are_released() {
            // SAFETY: registered in the constructor.
            unsafe { pg_sys::UnregisterSnapshot(self.0 .0) }
        }
    }
}
