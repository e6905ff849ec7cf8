//! VACUUM removes index entries that lead to stripe rows which nobody can see: of deleted rows, of stripes that
//! are gone, of loads that were rolled back. heapam knows the row store's only. What is garbage is decided by
//! `firn_format::garbage`; the pass over the indexes is PostgreSQL's own bulk deletion.

use crate::directory::{allocation, cleaned, tombstones, Directory};
use crate::pg::index_clean::{bulk_delete, Wish};
use crate::pg::snapshot::DirtySnap;
use crate::pg::toast::FROZEN_XID;
use crate::pg::{guc, wal, xact, LockMode, Rel, Snap};
use firn_format::garbage::{untaken, DeadRows, Garbage, Taken};
use firn_format::{EntryState, Slot, TombstoneState};

/// Entries of so few rows are worth no pass when nobody asked for one.
const WORTH_A_PASS: u64 = 1_000;

/// A stripe, living or in the making, of which `dead` rows are to lose their index entries.
struct Known {
    slot: u32,
    blocks: u32,
    rows: u32,
    dead: u32,
}

/// Clean the indexes of a table that is being vacuumed, if that is worth it or asked for.
pub fn clean(table: Rel, wish: &Wish) {
    // Where ids are scarce, freezing is urgent, and this can wait.
    if wish.index_cleanup_is_off() || !wish.has_indexes(table) || xact::ids_are_scarce() {
        return;
    }
    let Some(directory) = Directory::open(table, LockMode::RowExclusive) else { return };
    if directory.toast.is_empty() {
        return;
    }
    let oldest = xact::oldest_visible(table);
    let note = cleaned::read(&directory.toast);
    let Some(end) = allocation::handed_out(&directory.toast) else { return };
    let AllKnown { list: mut known, first_open, damaged } = known_before(&directory, end);
    let before = note.beside(&damaged);
    let (mut fresh, mut rows, mut latest) = (0u64, 0u64, None);
    for stripe in &mut known {
        xact::delay_vacuum();
        each_dead(&directory, stripe.slot, stripe.rows, oldest, |_, deleter| {
            stripe.dead += 1;
            fresh += u64::from(deleter >= before.before);
            latest = latest.max(Some(deleter));
        });
        rows += u64::from(stripe.rows);
    }
    let holes = untaken(before.blocks, end, known.iter().map(|k| (k.slot, k.blocks)));
    let garbage = fresh + holes * u64::from(firn_format::ROWS_PER_BLOCK);
    let worth = garbage >= WORTH_A_PASS || garbage * 50 >= rows || wish.index_cleanup_is_on();
    if garbage == 0 || !worth {
        return;
    }
    // Whoever deleted the rows of a stripe that is gone is not known any more.
    if holes > 0 {
        latest = latest.max(Some(xact::full(oldest).saturating_sub(1)));
    }
    // A standby's queries may see what this server's cannot any more.
    if let Some(latest) = latest {
        wal::log_snapshot_conflict(table, latest);
    }
    let (mut at, mut from) = (0, 0);
    while from < end {
        let (taken, next) = part(&directory, &known[at..], oldest);
        at += taken.len();
        let to = if at == known.len() { end } else { next };
        let part = Garbage::new(from, to, taken);
        bulk_delete(table, wish, &|tid| part.contains(tid));
        from = to;
    }
    guc::crash_point("vacuum-cleaned");
    let blocks = first_open.unwrap_or(end);
    let (before, damaged) = (xact::full(oldest), damaged.in_short());
    cleaned::write(&directory.toast, cleaned::Cleaned { before, blocks, damaged, ..note });
}

/// What the directory says before some block.
struct AllKnown {
    /// All stripes that are there or may come to be, in the order of their slots.
    list: Vec<Known>,
    /// The first slot of a running transaction, whose rollback would leave more garbage than is known now.
    first_open: Option<u32>,
    /// Damaged rows: of their stripes none is taken for garbage, nor what lies between them and the next ones.
    damaged: cleaned::Damaged,
}

/// What is known before the block `end`. No stripe is missed: `end` was read when all of them had their directory
/// rows, and nobody waits for us meanwhile. Nor does the dirty snapshot miss a row that is replaced while we look:
/// whoever replaces or moves directory rows holds ShareUpdateExclusiveLock to the end of its transaction, as VACUUM
/// does now.
fn known_before(directory: &Directory, end: u32) -> AllKnown {
    let mut dirty = DirtySnap::new();
    let snap = dirty.snap();
    let mut list: Vec<Known> = Vec::new();
    let (mut first_open, mut damaged, mut strays) = (None, cleaned::Damaged::default(), Vec::new());
    directory.each_row(snap, |slot, entry| {
        xact::delay_vacuum();
        let slot = slot.0;
        if slot >= end {
            return;
        }
        let (writer, _) = snap.dirty_found();
        if writer != 0 && first_open.is_none() {
            first_open = Some(slot);
        }
        if let Err(of) = entry {
            damaged.meet(slot);
            strays.extend(of.filter(|of| of.0 != slot && of.0 < end));
        }
        // How far a stripe reaches whose row is damaged is not known: it may be up to the next one.
        let blocks = entry.map_or(u32::MAX, |e| e.blocks);
        let live = entry.ok().filter(|e| e.state == EntryState::Live);
        let rows = live.map_or(0, |e| e.rows);
        match list.last_mut() {
            // Two versions of one row, one of them written by a running transaction.
            Some(last) if last.slot == slot => last.blocks = blocks.max(last.blocks),
            last => {
                if let Some(last) = last {
                    last.blocks = last.blocks.min(slot.saturating_sub(last.slot));
                }
                list.push(Known { slot, blocks, rows, dead: 0 });
            }
        }
    });
    if let Some(last) = list.last_mut() {
        last.blocks = last.blocks.min(end - last.slot);
    }
    // A row whose key is damaged stands for the stripe that it was written for as well: that one's blocks are no hole.
    for Slot(slot) in strays {
        let Err(at) = list.binary_search_by_key(&slot, |k| k.slot) else { continue };
        let next = list.get(at).map_or(end, |k| k.slot);
        if let Some(before) = at.checked_sub(1).and_then(|i| list.get_mut(i)) {
            before.blocks = before.blocks.min(slot - before.slot);
        }
        list.insert(at, Known { slot, blocks: next - slot, rows: 0, dead: 0 });
    }
    AllKnown { list, first_open, damaged }
}

/// Visit the rows of a stripe that nobody can see any more, in order, with who deleted them.
fn each_dead(
    directory: &Directory,
    slot: u32,
    rows: u32,
    oldest: u32,
    mut visit: impl FnMut(u32, u64),
) {
    let mut last = None;
    tombstones::each_readable(
        &directory.toast,
        Slot(slot),
        rows,
        Snap::self_snap(),
        |row, stone| {
            let settled = stone.xmin == FROZEN_XID || xact::precedes(stone.xmin, oldest);
            let deleted = stone.tombstone.state == TombstoneState::Deleted;
            if settled && deleted && last != Some(row) {
                last = Some(row);
                visit(row, xact::full(stone.raw_xmin));
            }
        },
    );
}

/// As many stripes from the first of `known` on as VACUUM has memory for, at least one, and the first block of
/// what is left.
fn part(directory: &Directory, known: &[Known], oldest: u32) -> (Vec<Taken>, u32) {
    let (mut taken, mut memory) = (Vec::new(), 0);
    for k in known {
        if memory > guc::vacuum_memory() {
            return (taken, k.slot);
        }
        xact::delay_vacuum();
        let mut dead = Vec::new();
        if k.dead > 0 {
            each_dead(directory, k.slot, k.rows, oldest, |row, _| dead.push(row));
        }
        let dead = DeadRows::of(dead, k.rows);
        memory += dead.memory() + std::mem::size_of::<Taken>();
        taken.push(Taken { slot: Slot(k.slot), blocks: k.blocks, dead });
    }
    (taken, u32::MAX)
}
