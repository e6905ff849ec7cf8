//! Key-share locks carried from one version of a row to the next, where the next version is in another
//! relation and its inserter is still running: the one case that `heap_lock_tuple` does not serve.
//!
//! heapam keeps the lockers of a version in its xmax and copies them to the version that an update
//! makes. A stripe row's anchor and the new version in the row store are tuples of different
//! relations, so the copying is done here: by the updater, for those who held the row before, and by
//! whoever locks the old version later, as heapam does along its own chains. What is written is what
//! heapam writes, so that it, VACUUM and standbys read it as theirs.

use super::toast::{place_of, tid_of, Address};
use super::{xact, Rel};
use firn_directory::{Cid, Place, Xid};
use firn_format::keys::is_anchor;
use firn_format::Tid;
use pgrx::pg_sys;
use pgrx::pg_sys::MultiXactStatus as Status;

const EXCLUSIVE: i32 = pg_sys::BUFFER_LOCK_EXCLUSIVE as i32;
const SHARED: i32 = pg_sys::BUFFER_LOCK_SHARE as i32;
/// Line pointer state of a stored tuple.
const NORMAL: u32 = 1;
/// Everything in t_infomask that speaks of xmax.
const XMAX_MASK: u32 = pg_sys::HEAP_XMAX_COMMITTED
    | pg_sys::HEAP_XMAX_INVALID
    | pg_sys::HEAP_XMAX_IS_MULTI
    | pg_sys::HEAP_LOCK_MASK
    | pg_sys::HEAP_XMAX_LOCK_ONLY;

/// A transaction named by a tuple's xmax.
#[derive(Clone, Copy)]
pub(super) struct Member {
    xid: Xid,
    status: Status::Type,
}

impl Member {
    fn is_update(self) -> bool {
        self.status >= Status::MultiXactStatusNoKeyUpdate
    }
    /// Key shares have to wait for it.
    fn excludes_key_share(self) -> bool {
        self.status == Status::MultiXactStatusForUpdate
            || self.status == Status::MultiXactStatusUpdate
    }
}

/// A pinned and locked page with one tuple on it.
pub(super) struct Held {
    buffer: pg_sys::Buffer,
    header: pg_sys::HeapTupleHeader,
    offset: u16,
}

impl Held {
    /// None when there is no such tuple.
    fn take(rel: Rel, at: impl Into<Address>, mode: i32) -> Option<Held> {
        let Address { block, offset } = at.into();
        if offset == 0 || !rel.has_block(block) {
            return None;
        }
        // SAFETY: the block exists; the line pointer is looked at under the page's lock and its
        // tuple used only while that is held.
        unsafe {
            let buffer = pg_sys::ReadBuffer(rel.raw(), block);
            pg_sys::LockBuffer(buffer, mode);
            let mut held = Held { buffer, header: std::ptr::null_mut(), offset };
            let page = pg_sys::BufferGetPage(buffer);
            let head = std::mem::offset_of!(pg_sys::PageHeaderData, pd_linp);
            let lower = usize::from((*(page as pg_sys::PageHeader)).pd_lower);
            let items = lower.saturating_sub(head) / std::mem::size_of::<pg_sys::ItemIdData>();
            if usize::from(offset) > items {
                return None;
            }
            let item = pg_sys::PageGetItemId(page, offset);
            if (*item).lp_flags() != NORMAL {
                return None;
            }
            held.header = page.add((*item).lp_off() as usize).cast();
            Some(held)
        }
    }

    fn xmin(&self) -> Xid {
        // SAFETY: as above.
        unsafe { xact::xid_of((*self.header).t_choice.t_heap.t_xmin) }
    }

    /// Where the next version is: in the same relation, be that the row store or ours, which the caller knows.
    fn next(&self) -> pg_sys::ItemPointerData {
        // SAFETY: as above.
        unsafe { (*self.header).t_ctid }
    }

    /// Who locks, updates or deletes the tuple and matters still.
    fn members(&self) -> Vec<Member> {
        // SAFETY: a tuple under the page's lock.
        unsafe { members(self.header) }
    }

    /// As [`Held::take`] for a look.
    pub(super) fn take_shared(rel: Rel, place: Place) -> Option<Held> {
        Held::take(rel, place, SHARED)
    }

    /// It is the anchor of this key, and no one has removed it.
    pub(super) fn is_anchor_of(&self, key: super::ChunkKey) -> bool {
        // SAFETY: a tuple under the page's lock; its length is read from its line pointer.
        unsafe {
            let page = pg_sys::BufferGetPage(self.buffer);
            let mut tuple: pg_sys::HeapTupleData = std::mem::zeroed();
            tuple.t_data = self.header;
            tuple.t_len = (*pg_sys::PageGetItemId(page, self.offset)).lp_len();
            let view = super::toast::RowView::of(&mut tuple);
            let gone = u32::from((*self.header).t_infomask) & pg_sys::HEAP_XMIN_FROZEN
                == pg_sys::HEAP_XMIN_INVALID;
            !gone && view.key() == key && is_anchor(key.id, view.data())
        }
    }

    /// Make `members` the tuple's xmax, WAL-logged as heapam logs it.
    fn write(&self, rel: Rel, members: &[Member]) {
        // SAFETY: the page is locked exclusively. Nothing between the first change and its log record
        // can fail but by a PANIC.
        unsafe {
            let xmax = xmax_of(members);
            let (mask, mask2) = masks_of(members);
            let needs_wal = rel.needs_wal();
            pg_sys::CritSectionCount += 1;
            let header = &mut *self.header;
            header.t_choice.t_heap.t_xmax = xmax;
            header.t_infomask = header.t_infomask & !(XMAX_MASK as u16) | mask as u16;
            header.t_infomask2 =
                header.t_infomask2 & !(pg_sys::HEAP_KEYS_UPDATED as u16) | mask2 as u16;
            pg_sys::MarkBufferDirty(self.buffer);
            if needs_wal {
                let mut record = super::wal::HeapLockUpdated::new(xmax, self.offset, mask, mask2);
                super::wal::log_page_change(self.buffer, &mut record);
            }
            pg_sys::CritSectionCount -= 1;
        }
    }
}

/// Who locks, updates or deletes the tuple and matters still.
///
/// # Safety
/// A tuple under its page's lock.
pub(super) unsafe fn members(header: pg_sys::HeapTupleHeader) -> Vec<Member> {
    // SAFETY: the header is read under its page's lock, as the caller promises; the array of members has as many as PostgreSQL says, and is freed here.
    unsafe {
        let (mask, mask2) = (u32::from((*header).t_infomask), u32::from((*header).t_infomask2));
        // The members' array is palloc'ed by PostgreSQL and copied.
        let xmax = (*header).t_choice.t_heap.t_xmax;
        let lock_only = mask & pg_sys::HEAP_XMAX_LOCK_ONLY != 0;
        let bits = mask & pg_sys::HEAP_LOCK_MASK;
        if mask & pg_sys::HEAP_XMAX_INVALID != 0 || xmax.into_inner() == 0 {
            return Vec::new();
        }
        let mut list = Vec::new();
        if mask & pg_sys::HEAP_XMAX_IS_MULTI != 0 {
            // Lock-only without strength: left by a server before 9.3, long over.
            if lock_only && bits == 0 {
                return list;
            }
            let mut raw: *mut pg_sys::MultiXactMember = std::ptr::null_mut();
            let multi = pg_sys::MultiXactId::from(xmax.into_inner());
            let n = pg_sys::GetMultiXactIdMembers(multi, &mut raw, false, lock_only);
            for i in 0..n.max(0) as usize {
                let m = &*raw.add(i);
                list.push(Member { xid: xact::xid_of(m.xid), status: m.status });
            }
            if !raw.is_null() {
                pg_sys::pfree(raw.cast());
            }
        } else {
            let key = mask2 & pg_sys::HEAP_KEYS_UPDATED != 0;
            let status = match (lock_only, bits) {
                (true, pg_sys::HEAP_XMAX_KEYSHR_LOCK) => Status::MultiXactStatusForKeyShare,
                (true, pg_sys::HEAP_XMAX_SHR_LOCK) => Status::MultiXactStatusForShare,
                (true, _) if key => Status::MultiXactStatusForUpdate,
                (true, _) => Status::MultiXactStatusForNoKeyUpdate,
                (false, _) if key => Status::MultiXactStatusUpdate,
                (false, _) => Status::MultiXactStatusNoKeyUpdate,
            };
            list.push(Member { xid: xact::xid_of(xmax), status });
        }
        list.retain(|m| xact::is_in_progress(m.xid) || m.is_update() && xact::did_commit(m.xid));
        list
    }
}

/// The xmax that names these transactions.
unsafe fn xmax_of(members: &[Member]) -> pg_sys::TransactionId {
    // SAFETY: as many members as there are; PostgreSQL copies them.
    unsafe {
        if let [one] = members {
            return xact::raw_xid(one.xid);
        }
        let member =
            |m: &Member| pg_sys::MultiXactMember { xid: xact::raw_xid(m.xid), status: m.status };
        let mut raw: Vec<pg_sys::MultiXactMember> = members.iter().map(member).collect();
        let multi = pg_sys::MultiXactIdCreateFromMembers(raw.len() as i32, raw.as_mut_ptr());
        pg_sys::TransactionId::from_inner(multi.into_inner())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // While an error unwinds, PostgreSQL releases locks and pins.
        if !super::memory::resources_are_released() {
            // SAFETY: pinned and locked in take().
            unsafe { pg_sys::UnlockReleaseBuffer(self.buffer) }
        }
    }
}

/// Bits of t_infomask and t_infomask2 for these members of an xmax, one of whom is a locker.
fn masks_of(members: &[Member]) -> (u32, u32) {
    let mut mask = if members.len() > 1 { pg_sys::HEAP_XMAX_IS_MULTI } else { 0 };
    if !members.iter().any(|m| m.is_update()) {
        mask |= pg_sys::HEAP_XMAX_LOCK_ONLY;
    }
    let strongest = members.iter().map(|m| m.status).max();
    mask |= match strongest {
        Some(Status::MultiXactStatusForKeyShare) => pg_sys::HEAP_XMAX_KEYSHR_LOCK,
        Some(Status::MultiXactStatusForShare) => pg_sys::HEAP_XMAX_SHR_LOCK,
        _ => pg_sys::HEAP_XMAX_EXCL_LOCK,
    };
    let key = members.iter().any(|m| m.excludes_key_share());
    (mask, if key { pg_sys::HEAP_KEYS_UPDATED } else { 0 })
}

/// How far [`share_key`] came.
pub enum Step {
    /// There is no version to protect: it is another row's, or its inserter has aborted.
    End,
    /// The inserter has committed: `heap_lock_tuple` does the rest.
    Settled,
    /// This transaction changes the row's key or deletes it.
    Wait(Xid),
    /// Locked; the next version and the transaction that made it, if there is one.
    Locked(Option<(Tid, Xid)>),
}

/// Add `lockers` (running transactions) to those who hold the key of the version at `tid` of the row store, which the
/// running transaction `inserter` made.
pub fn share_key(rel: Rel, tid: Tid, inserter: Xid, lockers: &[Xid]) -> Step {
    // SAFETY: plain call; to be made before a multixact is formed.
    unsafe { pg_sys::MultiXactIdSetOldestMember() }
    let Some(held) = Held::take(rel, tid, EXCLUSIVE) else { return Step::End };
    if held.xmin() != inserter {
        return Step::End;
    }
    if !xact::is_in_progress(inserter) {
        return if xact::did_commit(inserter) { Step::Settled } else { Step::End };
    }
    let mut members = held.members();
    if let Some(other) = members.iter().find(|m| m.excludes_key_share() && !xact::is_ours(m.xid)) {
        return Step::Wait(other.xid);
    }
    let before = members.len();
    for xid in lockers {
        // Whoever holds it in any strength holds the key, too.
        if xact::is_in_progress(*xid) && members.iter().all(|m| m.xid != *xid) {
            members.push(Member { xid: *xid, status: Status::MultiXactStatusForKeyShare });
        }
    }
    let update = members.iter().find(|m| m.is_update()).copied();
    if members.len() > before {
        held.write(rel, &members);
    }
    let next = tid_of(&held.next());
    let goes_on = next != tid && next != OTHER_PARTITION;
    Step::Locked(update.filter(|_| goes_on).map(|u| (next, u.xid)))
}

/// The TID that PostgreSQL gives as the successor of a row now in another partition.
pub const OTHER_PARTITION: Tid =
    Tid { block: u32::MAX, offset: pg_sys::MovedPartitionsOffsetNumber as u16 };

/// Other running transactions that hold the key of the tuple at `place`.
pub fn key_sharers(rel: Rel, place: Place) -> Vec<Xid> {
    let Some(held) = Held::take(rel, place, SHARED) else { return Vec::new() };
    let members = held.members();
    members.iter().map(|m| m.xid).filter(|x| !xact::is_ours(*x)).collect()
}

/// As which (sub)transactions this one holds the tuple at `place`.
pub fn own_lockers(rel: Rel, place: Place) -> Vec<Xid> {
    let Some(held) = Held::take(rel, place, SHARED) else { return Vec::new() };
    let own = held.members().into_iter().filter(|m| !m.is_update() && xact::is_ours(m.xid));
    own.map(|m| m.xid).collect()
}

/// Give the row in the slot the xmax that it has where it is stored, in the row store.
pub fn copy_xmax(rel: Rel, slot: super::slot::Slot) {
    let Some(held) = Held::take(rel, slot.tid(), SHARED) else { return };
    // SAFETY: a tuple under the page's lock, and the slot's copy of it, which heapam inserted.
    unsafe {
        let Some(copy) = slot.heap_tuple() else { return };
        let stored = &*held.header;
        (*copy).t_choice.t_heap.t_xmax = stored.t_choice.t_heap.t_xmax;
        (*copy).t_infomask =
            (*copy).t_infomask & !(XMAX_MASK as u16) | stored.t_infomask & XMAX_MASK as u16;
    }
}

/// The transaction, running or committed, that has updated the tuple at `place`, and where the new
/// version is.
pub fn update_of(rel: Rel, place: Place) -> Option<(Place, Xid)> {
    let held = Held::take(rel, place, SHARED)?;
    let next = place_of(&held.next());
    let update = held.members().into_iter().find(|m| m.is_update())?;
    (next != place).then_some((next, update.xid))
}

/// A running transaction holds the tuple at `place`, in whatever strength.
pub fn is_held(rel: Rel, place: Place) -> bool {
    Held::take(rel, place, SHARED)
        .is_some_and(|held| held.members().iter().any(|m| xact::is_in_progress(m.xid)))
}

/// A running transaction holds the tuple at `place` FOR UPDATE.
pub fn is_locked_for_update(rel: Rel, place: Place) -> bool {
    Held::take(rel, place, SHARED).is_some_and(|held| {
        held.members().iter().any(|m| m.status == Status::MultiXactStatusForUpdate)
    })
}

/// The newest version of a row that this transaction may have updated several times.
pub enum Newest {
    /// The version here is the one to look at.
    At(Tid),
    /// The newest version was made by this command or a later one; its command.
    Own(Cid),
    /// This transaction has deleted the row.
    Deleted,
    /// This transaction has moved the row to another partition.
    Elsewhere,
}

/// Follow the versions that this transaction has made of the row whose version is at `tid` of the row store.
pub fn newest_of_own(rel: Rel, mut tid: Tid, cid: Cid) -> Newest {
    loop {
        let Some(held) = Held::take(rel, tid, SHARED) else { return Newest::Deleted };
        let own = held.members().into_iter().any(|m| m.is_update() && xact::is_ours(m.xid));
        if own {
            match tid_of(&held.next()) {
                OTHER_PARTITION => return Newest::Elsewhere,
                next if next == tid => return Newest::Deleted,
                next => tid = next,
            }
            continue;
        }
        if xact::is_ours(held.xmin()) {
            // SAFETY: a tuple under the page's lock that this transaction inserted.
            let cmin = Cid(unsafe { pg_sys::HeapTupleHeaderGetCmin(held.header) });
            if cmin >= cid {
                return Newest::Own(cmin);
            }
        }
        return Newest::At(tid);
    }
}
