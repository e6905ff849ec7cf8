//! The tuple mover: settled rows of the row store become stripes. Today it runs when
//! `firn.compact()` is called; README.md states the protocol that lets writers go on meanwhile.

mod tidy;

pub use tidy::{shrink, tidy};

use crate::directory::{allocation, forward, Directory};
use crate::pg::heap::{Outcome, RowStoreScan};
use crate::pg::index::Indexes;
use crate::pg::slot::OwnedSlot;
use crate::pg::statistics::count_moved;
use crate::pg::tableam_tuple::delete_row_store;
use crate::pg::{
    error, guc, lock, snapshot, xact, Count, Kind, LockMode, OpenRel, Phase, Progress, Rel,
};
use crate::stripe::{layout, pending_row, Layout, RowBuffer};
use crate::write::{push_row, store, write_options};
use firn_format::{ColumnSpec, StripeWriter, Tid};
use std::rc::Rc;

/// Raw bytes after which a stripe is written, however few rows it has.
const STRIPE_BYTES: usize = 128 << 20;
/// Bytes of a block of the row store.
const BLOCK_BYTES: u64 = 8_192;

/// Move the settled rows of a table's row store into stripes. Returns the number of rows moved.
pub fn compact(oid: u32, progress: &Progress) -> i64 {
    // Excludes VACUUM, CREATE INDEX CONCURRENTLY and other moves; readers and writers go on.
    let opened = OpenRel::open(oid, LockMode::ShareUpdateExclusive);
    let table = opened.rel();
    refuse_published(table, "compact");
    // A moved row has a new TID: an outer statement or a cursor that has read the old one could not
    // change the row any more.
    table.check_not_in_use(c"compact");
    crate::write::flush_table(table);
    let Some(directory) = Directory::open(table, LockMode::RowExclusive) else { return 0 };
    let snapshot = snapshot::Registered::latest();
    let oldest = xact::oldest_visible(table);
    forward::prune(&directory.toast, xact::oldest_visible(directory.toast.rel()));
    let mut scan = RowStoreScan::begin(table, snapshot.snap());
    let slot = OwnedSlot::for_table(table);
    let mut batch = Batch::new(table);
    let mut moved = 0;
    let cid = xact::command_id(true);
    let bytes_before = |block: u32| u64::from(block) * BLOCK_BYTES;
    progress.set(Count::BytesTotal, bytes_before(table.heap_blocks()));
    progress.phase(Phase::ReadingRowStore);
    while scan.next(slot.slot()) {
        xact::check_for_interrupts();
        let row = slot.slot();
        progress.set(Count::BytesDone, bytes_before(row.tid().block));
        // Only what every snapshot sees: whoever holds an older snapshot finds the row where it was,
        // and nobody gets an error that heap would not give.
        let settled = row.xmin().is_some_and(|x| x == 2 || xact::precedes(x, oldest));
        if !settled {
            continue;
        }
        let tid = row.tid();
        batch.push(row);
        // Locked or just changed rows are skipped, not waited for.
        if delete_row_store(table, tid, cid).0 != Outcome::Ok {
            batch.forget_last();
            continue;
        }
        batch.keep(tid);
        if batch.is_full() {
            moved += batch.write(&directory, cid, progress);
            progress.phase(Phase::ReadingRowStore);
            batch = Batch::new(table);
        }
    }
    moved += batch.write(&directory, cid, progress);
    count_moved(table, moved as u64);
    guc::crash_point("compact-deleted");
    moved
}

/// Logical decoding takes a move for a deletion and does not see what happens to stripe rows at all:
/// rather no change than one that subscribers miss.
pub fn refuse_published(table: Rel, what: &str) {
    if table.is_published() {
        error(
            Kind::Unsupported,
            format!("cannot {what} table \"{}\" because it is published", table.name()),
        )
        .detail("Logical decoding sees changes of rows in the row store only.")
        .hint("Remove the table from its publications, or change its access method to heap.")
        .raise()
    }
}

/// Rows on their way into one stripe.
struct Batch {
    table: Rel,
    layout: Rc<Layout>,
    writer: StripeWriter,
    /// Where each row of the stripe came from.
    origins: Vec<Tid>,
    /// The row pushed last, until its deletion has succeeded.
    undecided: Option<(Vec<usize>, Vec<bool>)>,
}

impl Batch {
    fn new(table: Rel) -> Batch {
        let layout = layout(table);
        let specs: Vec<ColumnSpec> = layout.columns.iter().flatten().map(|c| c.spec()).collect();
        let writer = StripeWriter::new(specs, write_options(table));
        Batch { table, layout, writer, origins: Vec::new(), undecided: None }
    }

    /// Look at a row; its values live in the slot until [`Batch::keep`] or [`Batch::forget_last`].
    fn push(&mut self, row: crate::pg::TupleSlot) {
        let (values, nulls) = row.values();
        self.undecided = Some((values.to_vec(), nulls.to_vec()));
    }

    fn forget_last(&mut self) {
        self.undecided = None;
    }

    fn keep(&mut self, origin: Tid) {
        if let Some((values, nulls)) = self.undecided.take() {
            push_row(&mut self.writer, &self.layout, &values, &nulls);
            self.origins.push(origin);
        }
    }

    fn is_full(&self) -> bool {
        self.writer.rows() >= guc::stripe_rows() || self.writer.raw_bytes() >= STRIPE_BYTES
    }

    /// Write the stripe, its forwarding list and its index entries.
    fn write(self, directory: &Directory, cid: u32, progress: &Progress) -> i64 {
        let rows = self.writer.rows();
        if rows == 0 {
            return 0;
        }
        let slot = allocation::slot_for(directory, rows);
        let place = directory.reserve(slot, rows, cid);
        progress.phase(Phase::Encoding);
        let (writer, stripe) = crate::write::encode_now(self.writer);
        progress.phase(Phase::WritingChunks);
        let entry = store(directory, &stripe, cid);
        directory.publish(slot, place, &entry);
        forward::write(&directory.toast, slot, &self.origins, cid);
        lock::widen_predicate_locks(self.table);
        guc::crash_point("compact-written");
        progress.phase(Phase::InsertingIndexEntries);
        let mut indexes = Indexes::open(self.table);
        let mut buffer = RowBuffer::default();
        let xid = xact::xid();
        for row in 0..rows {
            if row % 256 == 0 {
                xact::check_for_interrupts();
                progress.add(Count::RowsDone, u64::from(256.min(rows - row)));
            }
            pending_row(&self.layout, &writer, row, &mut buffer);
            indexes.insert(Tid::of(slot, row), &buffer.values, &buffer.nulls, xid);
        }
        indexes.finish();
        progress.add(Count::StripesDone, 1);
        i64::from(rows)
    }
}
