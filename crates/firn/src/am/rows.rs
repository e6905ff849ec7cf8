//! All rows of a table's stripes that a snapshot sees, in TID order, forwards and backwards. The
//! plain scan, index builds and rewrites read through this; the custom scan has a faster way.

use crate::directory::{tombstones, Directory, Found};
use crate::pg::datum::{BatchRow, Datums, Row, Rows};
use crate::pg::{lock, xact, LockMode, Rel, Snap, SnapKind, Toast, TupleSlot};
use crate::stripe::{
    handle_for, layout, layout_in, pending_row, BatchReader, Layout, Projection, RowBuffer,
    StripeHandle,
};
use crate::write::{pending_of, PendingRef};
use firn_directory::Xid;
use firn_format::{DeleteVector, Filter, Tid};
use firn_scan::{Batch, BATCH_ROWS};
use std::collections::HashMap;
use std::rc::Rc;

/// Hands out the numbers of stripes to the processes of a parallel scan.
pub type Claim = Box<dyn FnMut() -> u32>;

enum Source {
    /// Nothing of it is read before its first row is wanted: whoever is writing it may take that back.
    Stripe(Rc<StripeHandle>, Option<Box<(BatchReader, Projection)>>),
    Pending(PendingRef),
}

struct Current {
    source: Source,
    slot: firn_format::Slot,
    xmin: Xid,
    deleted: Option<DeleteVector>,
    /// For a dirty snapshot: who inserts the stripe still, and who is deleting rows of it.
    unsettled: Option<Unsettled>,
    /// The rows asked for.
    within: std::ops::Range<i64>,
    /// Row last returned, or the one before the first asked for, or the one after the last.
    row: i64,
    /// The batch that was read last.
    batch: Option<Batch>,
    /// Its values, and those of a row of it. Columns that are not wanted are NULL, unless something stands in for that.
    values: BatchRow,
}

#[derive(Default)]
struct Unsettled {
    inserter: Xid,
    deleters: HashMap<u32, Xid>,
}

/// An iteration over stripe rows.
pub struct StripeRows {
    table: Rel,
    snap: Snap,
    layout: Rc<Layout>,
    wanted: Vec<bool>,
    directory: Option<Directory>,
    list: Vec<Found>,
    pending: Vec<PendingRef>,
    /// Index into list followed by pending; -1 before the first.
    at: i64,
    stepped: bool,
    deleted_too: bool,
    /// First and last TID asked for.
    range: Option<(Tid, Tid)>,
    claim: Option<Claim>,
    current: Option<Current>,
    /// A row that is not written yet.
    buffer: RowBuffer,
    /// The directory is closed until a stripe is opened again.
    is_let_go: bool,
}

impl StripeRows {
    /// Start before the first row. Columns for which `wanted` is false are returned as NULL.
    pub fn new(table: Rel, snap: Snap, wanted: Vec<bool>, claim: Option<Claim>) -> StripeRows {
        if snap.is_serializable() {
            lock::predicate_lock_table(table, snap);
        }
        let directory = Directory::open(table, LockMode::AccessShare);
        let listed = |d: &Directory| match snap.kind() {
            SnapKind::Dirty => d.list_dirty(snap),
            _ => d.list(snap),
        };
        let list = directory.as_ref().map(listed).unwrap_or_default();
        directory.as_ref().inspect(|d| d.toast.read_in_bulk());
        // Parallel workers cannot see what their leader has in memory; the leader reads it.
        let pending =
            if xact::is_parallel_worker() { Vec::new() } else { visible_pending(table, snap) };
        StripeRows {
            table,
            snap,
            layout: layout(table),
            wanted,
            directory,
            list,
            pending,
            at: -1,
            stepped: false,
            deleted_too: false,
            range: None,
            claim,
            current: None,
            buffer: RowBuffer::default(),
            is_let_go: false,
        }
    }

    /// Rows of all columns.
    pub fn all(table: Rel, snap: Snap, claim: Option<Claim>) -> StripeRows {
        StripeRows::new(table, snap, vec![true; table.column_count()], claim)
    }

    /// Go to the next (or previous) row; None at the end. Its values are then in [`Self::row`].
    pub fn step(&mut self, forward: bool) -> Option<(Tid, Xid)> {
        self.stepped = true;
        loop {
            if let Some(current) = &mut self.current {
                while let Some(row) = current.advance(forward) {
                    if current.deleted.as_ref().is_some_and(|d| d.contains(row)) {
                        continue;
                    }
                    if current.is_taken_back(row) {
                        break;
                    }
                    let (tid, xmin) = (Tid::of(current.slot, row), current.xmin);
                    if let Some(who) = &current.unsettled {
                        let deleter = who.deleters.get(&row).copied().unwrap_or(Xid::NONE);
                        self.snap.set_dirty(who.inserter, deleter);
                    }
                    self.read(row);
                    return Some((tid, xmin));
                }
                self.current = None;
            }
            xact::check_for_interrupts();
            let stripes = self.list.len() as i64;
            let total = stripes + self.pending.len() as i64;
            self.at = match &mut self.claim {
                // Once the claims are past the last stripe, pending rows follow.
                Some(claim) if self.at < stripes => i64::from(claim()).min(stripes),
                _ => self.at + if forward { 1 } else { -1 },
            };
            if self.at < 0 || self.at >= total {
                self.at = self.at.clamp(-1, total);
                // As `plan/scan.rs` has it: a REINDEX waits for who holds this, and who goes on to write, for that.
                self.is_let_go |= self.directory.take().is_some();
                return None;
            }
            self.open(self.at as usize, forward);
        }
    }

    /// The stripe of this number becomes the current one, unless it is none any more.
    fn open(&mut self, number: usize, forward: bool) {
        if std::mem::take(&mut self.is_let_go) {
            self.directory = Directory::open(self.table, LockMode::AccessShare);
            self.directory.as_ref().inspect(|d| d.toast.read_in_bulk());
        }
        let Some(directory) = &self.directory else { return };
        let (source, slot, rows, xmin) = match self.list.get(number) {
            Some(found) => {
                let handle = handle_for(self.table, &directory.toast, found.slot, &found.entry);
                (Source::Stripe(handle, None), found.slot, found.entry.rows, found.xmin)
            }
            None => match self.pending.get(number - self.list.len()) {
                Some(p) => (Source::Pending(p.clone()), p.slot, p.rows, p.xid),
                None => return,
            },
        };
        let mut unsettled = None;
        let deleted = match self.snap.kind() {
            SnapKind::Any => None,
            _ if self.deleted_too => None,
            SnapKind::Dirty => {
                let inserter = match xmin {
                    _ if xact::is_ours(xmin) => Xid::NONE,
                    _ if xact::is_in_progress(xmin) => xmin,
                    _ if xact::did_commit(xmin) => Xid::NONE,
                    // Whoever was writing it when it was listed has taken that back since, see also `is_taken_back`.
                    _ => return,
                };
                let (deleted, deleters) = tombstones::dirty(&directory.toast, slot, rows);
                unsettled = Some(Unsettled { inserter, deleters });
                deleted
            }
            _ => tombstones::deleted(&directory.toast, slot, rows, self.snap),
        };
        let within = rows_within(self.range, slot, rows);
        let row = if forward { within.start - 1 } else { within.end };
        let (batch, values) = (None, BatchRow::new(self.layout.columns.len()));
        let current =
            Current { source, slot, xmin, deleted, unsettled, within, row, batch, values };
        self.current = Some(current);
    }

    fn read(&mut self, row: u32) {
        let (Some(directory), Some(current)) = (&self.directory, &mut self.current) else { return };
        match &mut current.source {
            Source::Pending(p) => {
                pending_row(&self.layout, &p.writer, row, &mut self.buffer);
            }
            Source::Stripe(handle, reader) => {
                if !has(&current.batch, row) {
                    // Index builds and rewrites ask nowhere else.
                    xact::check_for_interrupts();
                    let toast = &directory.toast;
                    let begin = || Box::new(reader_of(handle, toast, &self.layout, &self.wanted));
                    let (reader, projection) = &mut **reader.get_or_insert_with(begin);
                    let (batch, columns) = load_batch(directory, reader, projection, row);
                    current.batch = Some(batch);
                    current.values.load(columns);
                }
                let Some(batch) = &current.batch else { return };
                current.values.turn_to((row - batch.rows.start) as usize);
            }
        }
    }

    /// Values of the row last stepped to, one per column.
    pub fn row(&self) -> Row<'_> {
        match &self.current {
            Some(Current { source: Source::Stripe(..), values, .. }) => values.row(),
            Some(Current { source: Source::Pending(_), .. }) => self.buffer.row(),
            None => Row::default(),
        }
    }

    /// Step and store the row in a slot.
    pub fn next_into(&mut self, forward: bool, slot: TupleSlot) -> bool {
        if !self.stepped {
            if let Some(columns) = slot.other_columns(self.table) {
                self.layout = Rc::new(layout_in(self.table, slot, &columns));
                self.wanted = vec![true; columns.len()];
            }
        }
        match self.step(forward) {
            Some((tid, xmin)) => {
                match &mut self.current {
                    Some(Current { source: Source::Stripe(..), values, .. }) => {
                        values.stand_in(slot, &self.wanted)
                    }
                    _ => self.buffer.stand_in(slot, &self.wanted),
                }
                slot.store_row(self.table, self.row(), tid, xmin);
                true
            }
            None => false,
        }
    }

    /// Return deleted rows, too.
    pub fn with_deleted(mut self) -> StripeRows {
        self.deleted_too = true;
        self
    }

    /// Return no rows but those with TIDs from `low` to `high`, and look into no other stripes. To be called
    /// before the first step of a scan that claims nothing.
    pub fn between(mut self, low: Tid, high: Tid) -> StripeRows {
        let range = Some((low, high));
        self.list.retain(|found| !rows_within(range, found.slot, found.entry.rows).is_empty());
        self.pending.retain(|p| !rows_within(range, p.slot, p.rows).is_empty());
        self.range = range;
        self
    }

    /// Continue after (or before) the row at `tid`, without a look at those before it; false when there is none.
    pub fn go_to(&mut self, tid: Tid) -> bool {
        let at = |slot, rows| rows_within(Some((tid, tid)), slot, rows);
        let listed = self.list.iter().map(|found| at(found.slot, found.entry.rows));
        let pending = self.pending.iter().map(|p| at(p.slot, p.rows));
        let mut all = listed.chain(pending).enumerate();
        let Some((number, row)) = all.find(|(_, row)| !row.is_empty()) else { return false };
        (self.stepped, self.at) = (true, number as i64);
        self.open(number, true);
        self.current.as_mut().map(|current| current.row = row.start).is_some()
    }

    /// The stripe of the current row.
    pub fn slot(&self) -> Option<firn_format::Slot> {
        self.current.as_ref().map(|c| c.slot)
    }

    /// No step has been made yet.
    pub fn never_stepped(&self) -> bool {
        !self.stepped
    }

    /// Continue after the last row, for a scan that begins backwards.
    pub fn go_to_end(&mut self) {
        self.at = (self.list.len() + self.pending.len()) as i64;
    }

    /// Before the first row, where a backward scan has run into the row store.
    pub fn is_before_first(&self) -> bool {
        self.at < 0
    }
}

impl Current {
    fn advance(&mut self, forward: bool) -> Option<u32> {
        self.row += if forward { 1 } else { -1 };
        let inside = self.within.contains(&self.row);
        self.row = self.row.clamp(self.within.start - 1, self.within.end);
        inside.then_some(self.row as u32)
    }

    /// Whoever was writing the stripe when it was opened has taken that back since, and VACUUM may have removed what is
    /// to be read next.
    fn is_taken_back(&self, row: u32) -> bool {
        let inserter = self.unsettled.as_ref().map_or(Xid::NONE, |who| who.inserter);
        inserter != Xid::NONE
            && !has(&self.batch, row)
            && !xact::is_in_progress(inserter)
            && !xact::did_commit(inserter)
    }
}

/// The row has been read.
fn has(batch: &Option<Batch>, row: u32) -> bool {
    batch.as_ref().is_some_and(|batch| batch.rows.contains(&row))
}

/// Which rows of a stripe have TIDs in `range`.
fn rows_within(
    range: Option<(Tid, Tid)>,
    slot: firn_format::Slot,
    rows: u32,
) -> std::ops::Range<i64> {
    let Some((low, high)) = range else { return 0..i64::from(rows) };
    let before = |limit: &dyn Fn(Tid) -> bool| {
        // TIDs ascend with the rows.
        let (mut from, mut to) = (0, rows);
        while from < to {
            let middle = from + (to - from) / 2;
            match limit(Tid::of(slot, middle)) {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        i64::from(from)
    };
    before(&|tid| tid < low)..before(&|tid| tid <= high)
}

/// Pending stripes whose rows `snap` sees.
pub fn visible_pending(table: Rel, snap: Snap) -> Vec<PendingRef> {
    let mut list = pending_of(table);
    if snap.kind() == SnapKind::Mvcc {
        list.retain(|p| p.cid < snap.curcid());
    }
    list.sort_by_key(|p| p.slot);
    list
}

/// What reads the wanted columns of a stripe; no batch is asked for yet.
fn reader_of(
    handle: &Rc<StripeHandle>,
    toast: &Toast,
    layout: &Layout,
    wanted: &[bool],
) -> (BatchReader, Projection) {
    let is_wanted = |i: &usize| wanted.get(*i).copied().unwrap_or(true);
    let columns = (0..layout.columns.len()).filter(is_wanted);
    let projection = Projection::new(layout, handle.meta(toast), columns);
    let stored = projection.stored();
    let reader = BatchReader::new(handle.clone(), toast, &stored, Filter::True, None, 0..0);
    (reader, projection)
}

/// Decode the wanted columns of the batch that a row is in.
fn load_batch(
    directory: &Directory,
    reader: &mut BatchReader,
    projection: &Projection,
    row: u32,
) -> (Batch, Vec<(usize, Datums)>) {
    let number = row / BATCH_ROWS;
    reader.go_on(number..number + 1);
    let Some(decoded) = reader.next(&directory.toast) else {
        let what = "a stripe has fewer rows than its directory row says";
        reader.handle().raise(firn_format::Error::corrupt(what))
    };
    let datums = projection.datums(reader.handle(), &decoded, Rows::All);
    (decoded.batch, datums)
}
