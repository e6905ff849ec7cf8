//! One custom scan: the row store's rows, then batches of stripe rows that pass the zone maps and
//! the filter, with only the wanted columns decoded.

use super::conditions::{filter_of, Bound, Formula, Qual};
use super::kinds::{terms, zone_of};
use crate::am::rows::visible_pending;
use crate::directory::{tombstones, Directory, Found};
use crate::pg::datum::{Datums, Rows};
use crate::pg::jsonb::Fields;
use crate::pg::{lock, xact, LockMode, Rel, Snap, TupleSlot};
use crate::stripe::{handle_for, layout, pending_row, BatchReader, Layout, Projection, RowBuffer};
use crate::write::PendingRef;
use firn_format::{
    ColumnKind, DeleteVector, DirectoryEntry, Filter, StripeMeta, Tid, VIRTUAL_BASE,
};
use firn_scan::{Batch, Narrowing};
use std::ops::ControlFlow;
use std::rc::Rc;

/// Batches that a process of a parallel scan claims at a time.
const CLAIM_BATCHES: u32 = 16;

/// What a scan did, for EXPLAIN ANALYZE.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counters {
    pub stripes_read: u64,
    pub stripes_skipped: u64,
    pub batches_read: u64,
    pub batches_skipped: u64,
    pub pages_read: u64,
    pub rows_filtered: u64,
}

impl Counters {
    /// In the order of the fields.
    pub fn numbers(&self) -> [u64; 6] {
        [
            self.stripes_read,
            self.stripes_skipped,
            self.batches_read,
            self.batches_skipped,
            self.pages_read,
            self.rows_filtered,
        ]
    }
    /// Inverse of [`Counters::numbers`].
    pub fn of(numbers: &[u64]) -> Counters {
        let n = |i: usize| numbers.get(i).copied().unwrap_or(0);
        Counters {
            stripes_read: n(0),
            stripes_skipped: n(1),
            batches_read: n(2),
            batches_skipped: n(3),
            pages_read: n(4),
            rows_filtered: n(5),
        }
    }
    pub fn add(&mut self, other: &Counters) {
        let sum: Vec<u64> =
            self.numbers().iter().zip(other.numbers()).map(|(a, b)| a + b).collect();
        *self = Counters::of(&sum);
    }
}

/// The stripe at work.
struct Current {
    reader: BatchReader,
    projection: Projection,
    found: Found,
    /// The filter states all quals that are not checked again anyway: rows that pass need no further look for these.
    exact: bool,
    /// Which keys the reader narrows by: those that can be expressed.
    keys: Vec<usize>,
    /// Behind the last batch claimed.
    end: u32,
}

/// Keys of a join above the scan, known since it has read its other side: what has none of them is not asked for.
struct Keys {
    formula: Formula<Bound>,
    /// Rows that were looked at, and that had one.
    tested: u64,
    passed: u64,
    /// Of ten rows that are looked at, so many may have one before it does not pay.
    most_of_ten: u64,
}

/// Rows of a batch that passed the filter.
pub struct Ready {
    /// Table column and its values, for every wanted column.
    pub columns: Vec<(usize, Datums)>,
    /// Numbers of the rows in their stripe.
    pub rows: Vec<u32>,
    pub slot: firn_format::Slot,
    /// All quals of the scan that are not checked again anyway hold for these rows.
    pub exact: bool,
}

/// The stripe half of a custom scan.
pub struct FirnScan {
    table: Rel,
    layout: Rc<Layout>,
    wanted: Vec<usize>,
    fields: Rc<Vec<(usize, Fields)>>,
    quals: Vec<Qual>,
    keys: Vec<Keys>,
    directory: Option<Directory>,
    list: Vec<Found>,
    /// First claimable part of each stripe, and their total at the end.
    parts: Vec<u32>,
    claim: Option<Box<dyn FnMut() -> u32>>,
    next_part: u32,
    current: Option<Current>,
    ready: Option<Ready>,
    pending: Vec<PendingRef>,
    pending_at: (usize, u32),
    pending_buffer: RowBuffer,
    pending_deleted: Option<DeleteVector>,
    pub counters: Counters,
    is_let_go: bool,
}

/// Whether `snap` sees a stripe of the table.
pub fn sees_stripes(table: Rel, snap: Snap) -> bool {
    let mut seen = false;
    if let Some(directory) = Directory::open(table, LockMode::AccessShare) {
        directory.each(snap, 0..VIRTUAL_BASE, |_| {
            seen = true;
            ControlFlow::Break(())
        });
    }
    seen
}

impl FirnScan {
    /// `wanted` are the columns that the query uses, `fields` what it looks at of documents in some of them.
    pub fn new(
        table: Rel,
        snap: Snap,
        (wanted, fields): (Vec<usize>, Rc<Vec<(usize, Fields)>>),
        quals: Vec<Qual>,
        claim: Option<Box<dyn FnMut() -> u32>>,
    ) -> FirnScan {
        if snap.is_serializable() {
            lock::predicate_lock_table(table, snap);
        }
        let directory = Directory::open(table, LockMode::AccessShare);
        let list = directory.as_ref().map(|d| d.list(snap)).unwrap_or_default();
        directory.as_ref().inspect(|d| d.toast.read_in_bulk());
        let mut parts = Vec::with_capacity(list.len() + 1);
        let mut total = 0;
        for found in &list {
            parts.push(total);
            total += Batch::count(found.entry.rows).div_ceil(CLAIM_BATCHES);
        }
        parts.push(total);
        let pending =
            if xact::is_parallel_worker() { Vec::new() } else { visible_pending(table, snap) };
        FirnScan {
            table,
            layout: layout(table),
            wanted,
            fields,
            quals,
            keys: Vec::new(),
            directory,
            list,
            parts,
            claim,
            next_part: 0,
            current: None,
            ready: None,
            pending,
            pending_at: (0, 0),
            pending_buffer: RowBuffer::default(),
            pending_deleted: None,
            counters: Counters::default(),
            is_let_go: false,
        }
    }

    /// Rows of the stripes that were listed.
    pub fn stripe_rows(&self) -> u64 {
        self.list.iter().map(|found| u64::from(found.entry.rows)).sum()
    }

    /// From here on, rows without one of these keys are not asked for, though they may come.
    pub fn narrow(&mut self, keys: Bound) {
        // What is no integer is searched for among the keys, which is as much work as the join has with a row.
        let most_of_ten = if keys.is_of_integers() { 9 } else { 4 };
        self.keys.push(Keys { formula: Formula::One(keys), tested: 0, passed: 0, most_of_ten });
        if let Some(mut current) = self.current.take() {
            if let Some(directory) = &self.directory {
                let meta = current.reader.handle().meta(&directory.toast).clone();
                let (keys, narrowings) = self.narrowings(&meta).into_iter().unzip();
                current.keys = keys;
                current.reader.narrow(narrowings);
            }
            self.current = Some(current);
        }
    }

    /// Let go of the TOAST relation, lock and all, until more rows are asked for: what comes behind the scan in this transaction may
    /// need a stronger lock, and a REINDEX that has come in between waits for this one. The snapshot keeps what is listed.
    pub fn let_go(&mut self) {
        self.is_let_go |= self.directory.take().is_some();
    }

    fn take_up(&mut self) {
        if std::mem::take(&mut self.is_let_go) {
            self.directory = Directory::open(self.table, LockMode::AccessShare);
            self.directory.as_ref().inspect(|d| d.toast.read_in_bulk());
        }
    }

    /// The next rows of stripes; None when no stripe is left.
    pub fn advance(&mut self, snap: Snap) -> Option<&Ready> {
        self.ready = None;
        self.take_up();
        loop {
            xact::check_for_interrupts();
            if self.next_batch() {
                return self.ready.as_ref();
            }
            if !self.next_stripe(snap) {
                // The node lives on to the end of the query, with those of a thousand other partitions perhaps.
                self.current = None;
                self.keys.clear();
                return None;
            }
        }
    }

    /// The batch that [`FirnScan::advance`] returned last.
    pub fn ready(&self) -> Option<&Ready> {
        self.ready.as_ref()
    }

    /// Claim more batches; false when no stripe is left.
    fn next_stripe(&mut self, snap: Snap) -> bool {
        let total = self.parts.last().copied().unwrap_or(0);
        loop {
            let part = match &mut self.claim {
                Some(claim) => claim(),
                None => self.next_part,
            };
            if part >= total {
                return false;
            }
            self.next_part = part + 1;
            let number = self.parts.partition_point(|p| *p <= part) - 1;
            let (Some(found), Some(first)) = (self.list.get(number), self.parts.get(number)) else {
                return false;
            };
            let batch = (part - first) * CLAIM_BATCHES;
            let end = (batch + CLAIM_BATCHES).min(Batch::count(found.entry.rows));
            // The next part of the stripe at hand goes on with what is decoded.
            if let Some(current) = &mut self.current {
                if current.found.slot == found.slot {
                    current.reader.go_on(batch..end);
                    current.end = end;
                    return true;
                }
            }
            if !self.entry_may_match(&found.entry) {
                self.counters.stripes_skipped += u64::from(part == *first);
                if self.claim.is_none() {
                    self.next_part = self.parts.get(number + 1).copied().unwrap_or(total);
                }
                continue;
            }
            self.counters.stripes_read += u64::from(part == *first);
            let found = found.clone();
            self.open(found, batch, end, snap);
            return true;
        }
    }

    /// Kind of a column as a new stripe would store it.
    fn kind(&self, column: usize) -> Option<ColumnKind> {
        self.layout.columns.get(column)?.as_ref().map(|c| c.kind)
    }

    fn entry_may_match(&self, entry: &DirectoryEntry) -> bool {
        let place = |column| self.kind(column).map(|kind| (column, kind));
        let zone = |i: usize| {
            let column = self.layout.columns.get(i)?.as_ref()?;
            let zone = entry.zone(i32::from(column.attribute.number))?;
            Some(zone_of(zone, column.kind))
        };
        let quals = self.quals.iter().map(|qual| &qual.formula);
        quals.chain(self.keys.iter().map(|keys| &keys.formula)).all(|formula| {
            filter_of(formula, &place).is_none_or(|told| told.filter.may_match(&zone))
        })
    }

    /// Where a stripe has a column of the table, and in terms of what kind.
    fn place(&self, meta: &StripeMeta, column: usize) -> Option<(usize, ColumnKind)> {
        let column = self.layout.columns.get(column)?.as_ref()?;
        let stored = meta.column_by_field_id(i32::from(column.attribute.number))?;
        Some((stored, terms(column.kind, meta.columns().get(stored)?.kind)))
    }

    /// Keys in terms of a stripe's columns, with their numbers.
    fn narrowings(&self, meta: &StripeMeta) -> Vec<(usize, Narrowing)> {
        let narrowing = |(number, keys): (usize, &Keys)| {
            let Keys { formula, tested, passed, most_of_ten } = keys;
            let filter = filter_of(formula, &|column| self.place(meta, column))?.filter;
            let (tested, passed, most_of_ten) = (*tested, *passed, *most_of_ten);
            Some((number, Narrowing { filter, tested, passed, most_of_ten }))
        };
        self.keys.iter().enumerate().filter_map(narrowing).collect()
    }

    fn open(&mut self, found: Found, batch: u32, end: u32, snap: Snap) {
        let Some(directory) = &self.directory else { return };
        let handle = handle_for(self.table, &directory.toast, found.slot, &found.entry);
        let meta = handle.meta(&directory.toast);
        let deleted = tombstones::deleted(&directory.toast, found.slot, found.entry.rows, snap);
        // The filter in terms of this stripe's columns; conditions on columns it lacks are left to
        // the executor.
        let place = |column| self.place(meta, column);
        let (mut parts, mut exact) = (Vec::new(), true);
        for qual in &self.quals {
            let told = filter_of(&qual.formula, &place);
            exact &= qual.is_checked_again || told.as_ref().is_some_and(|told| told.is_exact);
            parts.extend(told.map(|told| told.filter));
        }
        let projection = Projection::new(&self.layout, meta, self.wanted.iter().copied())
            .with_fields(&self.fields);
        let (toast, columns) = (&directory.toast, projection.stored());
        let (keys, narrowings) = self.narrowings(meta).into_iter().unzip();
        let filter = Filter::And(parts);
        let mut reader = BatchReader::new(handle, toast, &columns, filter, deleted, batch..end);
        reader.narrow(narrowings);
        self.current = Some(Current { reader, projection, found, exact, keys, end });
    }

    /// Decode the next batch of the current stripe that has rows to return.
    fn next_batch(&mut self) -> bool {
        let (Some(directory), Some(current)) = (&self.directory, &mut self.current) else {
            return false;
        };
        let decoded = current.reader.next(&directory.toast);
        for (number, narrowing) in current.keys.iter().zip(current.reader.narrowings()) {
            let keys = self.keys.get_mut(*number).into_iter();
            keys.for_each(|k| (k.tested, k.passed) = (narrowing.tested, narrowing.passed));
        }
        let done = current.reader.take_counters();
        self.counters.batches_read += done.batches_read;
        self.counters.batches_skipped += done.batches_skipped;
        self.counters.pages_read += done.pages_read;
        self.counters.rows_filtered += done.rows_filtered;
        let Some(decoded) = decoded else {
            // In a parallel scan the next part claimed may belong to the same stripe.
            if self.claim.is_none() && current.end >= Batch::count(current.found.entry.rows) {
                self.current = None;
            }
            return false;
        };
        let selection = &decoded.selection;
        let chosen = match selection.is_all() {
            true => Rows::All,
            false => Rows::Some(selection.rows()),
        };
        let columns = current.projection.datums(current.reader.handle(), &decoded, chosen);
        let base = decoded.batch.rows.start;
        let rows = match chosen {
            Rows::All => decoded.batch.rows.clone().collect(),
            Rows::Some(list) => list.iter().map(|r| base + r).collect(),
        };
        self.table.count_reads(selection.len() as u64);
        let (slot, exact) = (current.found.slot, current.exact);
        self.ready = Some(Ready { columns, rows, slot, exact });
        true
    }

    /// Put the next row that this session has not written yet into the (virtual) slot; false at the
    /// end. For after the stripes.
    pub fn next_pending(&mut self, snap: Snap, slot: TupleSlot) -> bool {
        loop {
            let (number, row) = self.pending_at;
            if number >= self.pending.len() {
                return false;
            }
            self.take_up();
            let (Some(p), Some(directory)) = (self.pending.get(number), &self.directory) else {
                return false;
            };
            if row == 0 {
                self.pending_deleted = tombstones::deleted(&directory.toast, p.slot, p.rows, snap);
            }
            if row >= p.rows {
                self.pending_at = (number + 1, 0);
                continue;
            }
            self.pending_at.1 += 1;
            if self.pending_deleted.as_ref().is_some_and(|d| d.contains(row)) {
                continue;
            }
            pending_row(&self.layout, &p.writer, row, &mut self.pending_buffer);
            slot.fill(self.pending_buffer.row(), &self.wanted);
            slot.set_tid(self.table.oid(), Tid::of(p.slot, row));
            self.table.count_reads(1);
            return true;
        }
    }
}
