//! Rows of stripes by TID: which of them a snapshot sees, and their values.

use super::known::KnownStripes;
use crate::directory::{tombstones, Directory, Found};
use crate::pg::datum::{Blank, Row};
use crate::pg::wanted::Needed;
use crate::pg::{lock, LockMode, Rel, Snap, SnapKind, TupleSlot};
use crate::stripe::{
    handle_for, layout, pending_row, stripe_row, Held, Layout, Places, RowBuffer, StripeHandle,
};
use crate::write::{pending_at, PendingRef};
use firn_directory::Xid;
use firn_format::{DirectoryEntry, EntryState, Slot, Tid, TombstoneState};
use std::ops::Range;
use std::rc::{Rc, Weak};

/// Where a visible row is.
pub enum Place {
    Stripe(Found),
    Pending(PendingRef),
    /// Another session has reserved the row's TID and not written the row yet: there are no values, and nobody waits for them here,
    /// below an index scan that has a page pinned. Tables of which they are computed take no row so (`Rel::conflicts_need_values`).
    Reserved,
}

/// A row that a snapshot sees.
pub struct RowAt {
    pub place: Place,
    pub row: u32,
    /// The transaction that inserted it.
    pub xmin: Xid,
}

/// Find the row at a virtual TID, if `snap` sees it.
pub fn locate(directory: &Directory, tid: Tid, snap: Snap) -> Option<RowAt> {
    let kind = snap.kind();
    let found = match pending_at(directory.table, tid) {
        Some(p) => {
            if kind == SnapKind::Mvcc && p.cid >= snap.curcid() {
                return None;
            }
            let row = tid.row_in(p.slot)?;
            if kind == SnapKind::Dirty {
                snap.set_dirty(Xid::NONE, Xid::NONE);
            }
            let xmin = p.xid;
            RowAt { place: Place::Pending(p), row, xmin }
        }
        None => match kind {
            SnapKind::Dirty => written_or_in_progress(directory, tid, snap)?,
            // The newest version of the directory row is the one whose bytes are surely there.
            SnapKind::Any | SnapKind::NonVacuumable => written(directory, tid, Snap::self_snap())
                .or_else(|| written(directory, tid, snap))?,
            _ => written(directory, tid, snap)?,
        },
    };
    let deleted = match kind {
        SnapKind::Any | SnapKind::NonVacuumable => false,
        SnapKind::Dirty => dirty_deleted(directory, tid, snap),
        _ => tombstones::find(&directory.toast, tid, snap)
            .is_some_and(|s| s.tombstone.state == TombstoneState::Deleted),
    };
    (!deleted).then_some(found)
}

pub(super) fn written(directory: &Directory, tid: Tid, snap: Snap) -> Option<RowAt> {
    let found = directory.find(tid, snap)?;
    let row = tid.row_in(found.slot)?;
    let xmin = found.xmin;
    match found.entry.state {
        EntryState::Reserved if snap.kind() == SnapKind::Dirty => {
            Some(RowAt { place: Place::Reserved, row, xmin })
        }
        EntryState::Reserved => None,
        EntryState::Live => {
            (row < found.entry.rows).then_some(RowAt { place: Place::Stripe(found), row, xmin })
        }
    }
}

/// Under a dirty snapshot. Of a directory row that is being replaced (an offload, VACUUM) it may meet the new version, and take the
/// stripe for one that is being written: whoever looks would wait for that transaction. What is committed is there,
/// whatever becomes of the other.
fn written_or_in_progress(directory: &Directory, tid: Tid, snap: Snap) -> Option<RowAt> {
    match written(directory, tid, Snap::self_snap()) {
        Some(found) => {
            snap.set_dirty(Xid::NONE, Xid::NONE);
            Some(found)
        }
        None => written(directory, tid, snap),
    }
}

/// Under a dirty snapshot: is the row surely deleted? A deletion or lock in progress is reported
/// through the snapshot, as heapam does, beside what the directory row reported.
fn dirty_deleted(directory: &Directory, tid: Tid, snap: Snap) -> bool {
    let (xmin, _) = snap.dirty_found();
    let mut own = crate::pg::snapshot::DirtySnap::new();
    let stone = tombstones::find(&directory.toast, tid, own.snap());
    let (stone_xmin, stone_xmax) = own.snap().dirty_found();
    let mut xmax = Xid::NONE;
    let mut deleted = false;
    if let Some(stone) = stone {
        if stone.tombstone.state == TombstoneState::Deleted {
            if stone_xmin != Xid::NONE {
                xmax = stone_xmin;
            } else {
                deleted = true;
            }
        } else {
            xmax = stone_xmax;
        }
    }
    snap.set_dirty(xmin, xmax);
    deleted
}

/// Nobody looks at the row's values, so that a cold stripe is not to be read for them: the planner looks for the ends of an index
/// (get_actual_variable_endpoint() in selfuncs.c, alone with its snapshot), and who asks for a row of an equal key has the
/// index's page in his hands (_bt_check_unique() in nbtinsert.c).
fn is_asked_whether_only(snap: Snap, slot: TupleSlot) -> bool {
    match snap.kind() {
        SnapKind::NonVacuumable => true,
        SnapKind::Dirty | SnapKind::SelfSnap => !slot.is_marked() && lock::holds_light(),
        _ => false,
    }
}

/// A stripe that was read: its directory entry, and its handle. They belong to the session's caches.
#[derive(Default)]
struct Open {
    slot: u32,
    entry: Weak<DirectoryEntry>,
    handle: Weak<StripeHandle>,
}

impl Open {
    fn is_of(&self, entry: &Rc<DirectoryEntry>) -> bool {
        std::ptr::eq(self.entry.as_ptr(), Rc::as_ptr(entry))
    }
}

/// Those that a scan comes back to.
#[derive(Default)]
struct OpenStripes {
    last: Open,
    /// By their slots.
    others: Places<Open>,
}

impl OpenStripes {
    /// Another stripe is the last one from now on.
    fn turn_to(&mut self, found: &Found) {
        let (slot, entry) = (found.slot.0, Rc::downgrade(&found.entry));
        let last = std::mem::replace(&mut self.last, Open { slot, entry, handle: Weak::new() });
        if last.handle.strong_count() > 0 {
            let number = u64::from(last.slot);
            if let Some(place) = self.others.leave(number, Slot(last.slot), found.slot) {
                *place = last;
            }
        }
        let other = self.others.find(u64::from(slot));
        if let Some(other) = other.filter(|other| other.is_of(&found.entry)) {
            self.last.handle = std::mem::take(other).handle;
        }
    }
}

/// What fetching rows by TID needs; kept for the length of an index scan.
pub struct Fetcher {
    table: Rel,
    layout: Rc<Layout>,
    directory: Option<Directory>,
    known: KnownStripes,
    open: OpenStripes,
    /// The handle of the last one, where there is room to keep it for the next row.
    held: Option<Held>,
    buffer: RowBuffer,
    /// What the slot last filled needs, once it is known.
    wanted: Option<(TupleSlot, Option<Rc<Needed>>)>,
    /// The conditions that rows are found by are not checked again.
    unchecked: bool,
}

impl Fetcher {
    pub fn new(table: Rel) -> Fetcher {
        Fetcher::within(table, Directory::open(table, LockMode::AccessShare))
    }

    /// As [`Fetcher::new`], where the directory is open already.
    pub fn within(table: Rel, directory: Option<Directory>) -> Fetcher {
        Fetcher {
            table,
            layout: layout(table),
            directory,
            known: KnownStripes::default(),
            open: OpenStripes::default(),
            held: None,
            buffer: RowBuffer::default(),
            wanted: None,
            unchecked: false,
        }
    }

    /// The directory that it was made with.
    pub fn end(self) -> Option<Directory> {
        self.directory
    }

    /// As [`Fetcher::fetch`]; whether the conditions of a bitmap are checked again on the row.
    pub fn fetch_of_bitmap(&mut self, tid: Tid, snap: Snap, slot: TupleSlot, check: bool) -> bool {
        self.unchecked = !check;
        self.fetch(tid, snap, slot)
    }

    /// The slot's scan asks of rows only whether they are there, and it is known already that `snap` sees this one. False says nothing. Calls
    /// nothing of PostgreSQL's, and cannot fail.
    #[inline]
    pub fn sees_at_once(&self, tid: Tid, snap: Snap, slot: TupleSlot) -> bool {
        let only_whether = match &self.wanted {
            Some((known, Some(needed))) => {
                needed.only_whether && *known == slot && slot.is_marked()
            }
            _ => false,
        };
        only_whether && self.known.is_seen(tid, snap)
    }

    /// Put the row at `tid` into `slot` if `snap` sees it.
    pub fn fetch(&mut self, tid: Tid, snap: Snap, slot: TupleSlot) -> bool {
        let Some(directory) = &self.directory else { return false };
        if self.sees_at_once(tid, snap, slot) {
            return true;
        }
        if snap.is_serializable() {
            lock::predicate_lock_row(self.table, tid, snap);
        }
        let Some(at) = self.known.locate(directory, tid, snap) else { return false };
        if is_asked_whether_only(snap, slot) {
            let blank = slot.unasked(&vec![false; self.layout.columns.len()]);
            slot.store_row(self.table, blank.row(), tid, at.xmin);
            return true;
        }
        match self.wanted_in(slot) {
            None => {
                self.buffer.ask_for_all(self.layout.columns.len());
                self.read(&at, 0..usize::MAX);
                slot.store_row(self.table, self.buffer.row(), tid, at.xmin);
            }
            Some(mut needed) => {
                if let Some(less) = needed.unchecked.as_ref().filter(|_| self.unchecked) {
                    needed = less.clone();
                }
                let stages = needed.first.as_ref().map_or(&[][..], |first| &first.stages);
                if !self.buffer.asks_for(&needed.columns, stages) {
                    self.buffer.ask_for(&needed.columns, slot.unasked(&needed.columns));
                    self.buffer.read_first(stages);
                }
                let mut read = 0;
                // A row that is not written yet is whole already.
                let is_written = matches!(at.place, Place::Stripe(_));
                if let Some(first) = needed.first.as_ref().filter(|f| is_written && f.pay()) {
                    for number in 0..stages.len() {
                        self.read(&at, number..number + 1);
                        read = number + 1;
                        if !slot.lend_row(self.table, self.buffer.row(), tid) {
                            break;
                        }
                        if !first.pass(number, slot) {
                            return false;
                        }
                    }
                }
                // Who looks at the row's visibility alone has it.
                if needed.some {
                    self.read(&at, read..usize::MAX);
                }
                let row = self.buffer.row();
                if !needed.plain || !slot.lend_row(self.table, row, tid) {
                    slot.store_row(self.table, row, tid, at.xmin);
                }
            }
        }
        true
    }

    fn wanted_in(&mut self, slot: TupleSlot) -> Option<Rc<Needed>> {
        match &self.wanted {
            Some((known, wanted)) if *known == slot && slot.is_marked() => wanted.clone(),
            _ => {
                let wanted = slot.wanted();
                self.wanted = Some((slot, wanted.clone()));
                wanted
            }
        }
    }

    /// Some columns (by attribute number) of the row at `tid`, whoever sees it; the others are NULL.
    pub fn columns(&mut self, tid: Tid, numbers: &[i16]) -> Option<Row<'_>> {
        let at = locate(self.directory.as_ref()?, tid, Snap::any())?;
        let mut wanted = vec![false; self.layout.columns.len()];
        let places = numbers.iter().filter_map(|n| usize::try_from(n - 1).ok());
        places.for_each(|i| wanted.get_mut(i).into_iter().for_each(|w| *w = true));
        if !self.buffer.asks_for(&wanted, &[]) {
            self.buffer.ask_for(&wanted, Blank::nulls(wanted.len()));
        }
        self.read(&at, 0..usize::MAX);
        Some(self.buffer.row())
    }

    /// Read the columns that the buffer is to have, of these stages.
    fn read(&mut self, at: &RowAt, stages: Range<usize>) {
        let Some(directory) = &self.directory else { return };
        match &at.place {
            Place::Stripe(found) => {
                let is_last = self.open.last.is_of(&found.entry);
                if !is_last {
                    // Before the new one, which may need its room.
                    self.held = None;
                    self.open.turn_to(found);
                }
                let handle = match self.open.last.handle.upgrade() {
                    Some(handle) => {
                        handle.touch(!is_last);
                        handle
                    }
                    None => {
                        let (toast, entry) = (&directory.toast, &found.entry);
                        let handle = handle_for(self.table, toast, found.slot, entry);
                        self.open.last.handle = Rc::downgrade(&handle);
                        handle
                    }
                };
                stripe_row(
                    &self.layout,
                    &directory.toast,
                    &handle,
                    at.row,
                    stages,
                    &mut self.buffer,
                );
                self.held = Held::new(&handle);
            }
            Place::Pending(p) => pending_row(&self.layout, &p.writer, at.row, &mut self.buffer),
            Place::Reserved => {
                self.buffer.start(self.layout.columns.len());
            }
        }
    }

    /// Is there a row at `tid` that `snap` sees?
    pub fn exists(&self, tid: Tid, snap: Snap) -> bool {
        self.directory.as_ref().is_some_and(|d| locate(d, tid, snap).is_some())
    }
}
