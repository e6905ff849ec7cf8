//! The tuple mover: settled rows of the row store become stripes. Today it runs when
//! `firn.compact()` is called; README.md states the protocol that lets writers go on meanwhile.

mod part;
mod reindex;
mod tidy;

pub use part::Part;
pub use reindex::{rebuild_after_command, rebuild_wanted, Rounds};
pub use tidy::{shrink, tidy_or_leave, tidy_what_was_left};

use crate::directory::{allocation, cleaned, forward, Directory};
use crate::pg::heap::RowStoreScan;
use crate::pg::index::Indexes;
use crate::pg::mark_moved::Marker;
use crate::pg::rel::BLOCK_BYTES;
use crate::pg::slot::OwnedSlot;
use crate::pg::statistics::count_moved;
use crate::pg::tuple_size::TupleSize;
use crate::pg::{
    error, guc, lock, snapshot, xact, Count, Kind, LockMode, Oid, OpenRel, Phase, Progress, Rel,
    TupleSlot,
};
use crate::stripe::RowBuffer;
use crate::write::{most_bytes, store, StripeBuilder};
use firn_directory::{Cid, Xid};
use firn_format::{Tid, ROWS_PER_BLOCK};

/// Move the settled rows of a part of a table's row store into stripes. Returns the number of rows moved.
pub fn compact(oid: Oid, part: &mut Part, progress: &Progress) -> i64 {
    // Excludes VACUUM, CREATE INDEX CONCURRENTLY and other moves; readers and writers go on.
    let opened = OpenRel::open(oid, LockMode::ShareUpdateExclusive);
    let table = opened.rel();
    // A moved row has a new TID: an outer statement or a cursor that has read the old one could not
    // change the row any more.
    table.check_not_in_use(c"compact");
    if table.is_user_catalog() {
        error(Kind::Unsupported, format!("cannot compact table \"{}\"", table.name()))
            .detail("It is a catalog of output plugins (user_catalog_table), which read rows of the row store only.")
            .raise()
    }
    crate::write::flush_table(table);
    let Some(directory) = Directory::open(table, LockMode::RowExclusive) else { return 0 };
    let snapshot = snapshot::Registered::latest();
    let oldest = xact::oldest_visible(table);
    let blocks = part.begin_pages(table.storage(), table.heap_blocks());
    // Lists are all looked at for that.
    if part.is_first() {
        forward::prune(&directory.toast, xact::oldest_visible(directory.toast.rel()));
    }
    if blocks.is_empty() {
        return 0;
    }
    let mut scan = RowStoreScan::of_blocks(table, snapshot.snap(), blocks);
    let slot = OwnedSlot::for_table(table);
    let size = TupleSize::of(table);
    let cid = xact::command_id(true);
    let mut moving = Moving {
        directory: &directory,
        progress,
        cid,
        marker: Marker::new(table, cid),
        slot: OwnedSlot::for_table(table),
        batch: Batch::new(table),
        moved: 0,
        stripes: 0,
    };
    // The settled rows of the page that the scan is at.
    let (mut block, mut offsets) = (0, Vec::new());
    let bytes_before = |block: u32| u64::from(block) * BLOCK_BYTES;
    progress.set(Count::BytesTotal, bytes_before(table.heap_blocks()));
    progress.phase(Phase::ReadingRowStore);
    while scan.next(slot.slot()) {
        xact::check_for_interrupts();
        let row = slot.slot();
        let tid = row.tid();
        if tid.block != block {
            moving.take(block, &offsets);
            (block, offsets) = (tid.block, Vec::new());
            progress.set(Count::BytesDone, bytes_before(block));
            if moving.is_enough(part.stripes()) {
                part.stop_before(block);
                break;
            }
        }
        // Only what every snapshot sees: whoever holds an older snapshot finds the row where it was,
        // and nobody gets an error that heap would not give. Nor what could not be read as a whole.
        let is_settled = row.xmin().is_some_and(|x| x == Xid::FROZEN || xact::precedes(x, oldest));
        if is_settled && size.suits_stored(row) {
            offsets.push(tid.offset);
        }
    }
    moving.take(block, &offsets);
    moving.write();
    count_moved(table, moving.moved as u64);
    cleaned::count_moved(&directory.toast, moving.moved as u64);
    guc::crash_point("compact-deleted");
    moving.moved
}

/// A move at work.
struct Moving<'a> {
    directory: &'a Directory,
    progress: &'a Progress,
    cid: Cid,
    marker: Marker,
    slot: OwnedSlot,
    batch: Batch,
    moved: i64,
    /// Stripes written so far.
    stripes: usize,
}

impl Moving<'_> {
    /// Take the rows at these offsets of a page; locked or just changed ones stay, and are not waited for.
    fn take(&mut self, block: u32, offsets: &[u16]) {
        if offsets.is_empty() {
            return;
        }
        let taken = self.marker.take(block, offsets);
        let slot = self.slot.slot();
        taken.each(slot, |row| {
            self.batch.push(row);
            if self.batch.is_full() {
                self.write();
            }
        });
    }

    /// A piece of so many stripes has them, or might have more with the rows of another page, all of which are taken
    /// at once.
    fn is_enough(&self, most: usize) -> bool {
        let rows = self.batch.stripe.rows();
        match most.saturating_sub(self.stripes) {
            0 => true,
            1 => rows > 0 && rows + ROWS_PER_BLOCK > guc::stripe_rows(),
            _ => false,
        }
    }

    /// Write the stripe collected so far.
    fn write(&mut self) {
        let batch = std::mem::replace(&mut self.batch, Batch::new(self.directory.table));
        let rows = batch.write(self.directory, self.cid, self.progress);
        self.moved += rows;
        self.stripes += usize::from(rows > 0);
        self.progress.phase(Phase::ReadingRowStore);
    }
}

/// Rows on their way into one stripe.
struct Batch {
    table: Rel,
    stripe: StripeBuilder,
    /// Where each row of the stripe came from.
    origins: Vec<Tid>,
}

impl Batch {
    fn new(table: Rel) -> Batch {
        Batch { table, stripe: StripeBuilder::new(table), origins: Vec::new() }
    }

    fn push(&mut self, row: TupleSlot) {
        self.stripe.push(row);
        self.origins.push(row.tid());
    }

    fn is_full(&self) -> bool {
        self.stripe.is_full(guc::stripe_rows(), most_bytes())
    }

    /// Write the stripe, its forwarding list and its index entries.
    fn write(mut self, directory: &Directory, cid: Cid, progress: &Progress) -> i64 {
        let rows = self.stripe.rows();
        if rows == 0 {
            return 0;
        }
        let (slot, place) = allocation::slot_for(directory, rows, cid);
        progress.phase(Phase::Encoding);
        let stripe = self.stripe.finish();
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
            self.stripe.row(row, &mut buffer);
            indexes.insert(Tid::of(slot, row), buffer.row(), xid);
        }
        indexes.finish();
        progress.add(Count::StripesDone, 1);
        i64::from(rows)
    }
}
