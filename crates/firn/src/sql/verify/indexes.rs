//! The table's B-trees: every living stripe row has one entry in each, and no entry leads to an address that
//! was never given out.

use super::survey::Survey;
use super::{gather, Report};
use crate::directory::{allocation, tombstones, Directory};
use crate::pg::index::{entries_of, index_kind};
use crate::pg::rel::index_oids;
use crate::pg::{xact, Count, LockMode, OpenRel, Progress, Rel, Snap};
use firn_format::{DeleteVector, Tid, VIRTUAL_BASE};

/// Entries that come twice, of which it is remembered which they are.
const REMEMBERED: usize = 10_000;

/// Check all B-tree indexes of a table.
pub fn check(table: Rel, survey: &Survey, progress: &Progress, report: Report<'_>) {
    let indexes = index_oids(table);
    progress.set(Count::IndexesTotal, indexes.len() as u64);
    for (done, oid) in indexes.into_iter().enumerate() {
        progress.set(Count::IndexesDone, done as u64);
        // It may have been dropped concurrently.
        let Some(name) = OpenRel::if_there(oid, LockMode::AccessShare).map(|i| i.rel().name())
        else {
            continue;
        };
        let name = format!("index {name}");
        gather(&name, report, |report| {
            if let Some(index) = OpenRel::if_there(oid, LockMode::AccessShare) {
                check_index(table, index.rel(), survey, &name, report)
            }
        });
    }
}

fn check_index(table: Rel, index: Rel, survey: &Survey, name: &str, report: Report<'_>) {
    let kind = index_kind(index);
    if !kind.is_btree || !kind.is_valid {
        return;
    }
    let stripes = &survey.stripes;
    // One bit per row of the table, however many entries there are.
    let mut present: Vec<DeleteVector> =
        stripes.iter().map(|f| DeleteVector::new(f.entry.rows)).collect();
    let mut twice: Vec<(usize, u32)> = Vec::new();
    let mut furthest: Option<Tid> = None;
    entries_of(table, index, &mut |tid| {
        if !tid.is_virtual() {
            return;
        }
        if furthest.is_none_or(|f| f.block < tid.block) {
            furthest = Some(tid);
        }
        let block = tid.block - VIRTUAL_BASE;
        let at = stripes.partition_point(|f| f.slot.0 <= block);
        let Some(at) = at.checked_sub(1) else { return };
        let (found, rows) = (&stripes[at], &mut present[at]);
        if block - found.slot.0 >= found.entry.blocks {
            return;
        }
        match tid.row_in(found.slot) {
            Some(row) if row < found.entry.rows => {
                if rows.contains(row) && twice.len() < REMEMBERED {
                    twice.push((at, row));
                }
                rows.set(row)
            }
            _ => {
                let text = format!(
                    "an entry points to ({},{}), past the last row of stripe {}",
                    tid.block, tid.offset, found.slot.0
                );
                report("error", name, &text)
            }
        }
    });
    let Some(directory) = Directory::open(table, LockMode::AccessShare) else { return };
    if let Some(tid) = furthest {
        // As it is now: bulk writes have gone on meanwhile.
        let next = allocation::next_block(&directory.toast).unwrap_or(0);
        if u64::from(tid.block - VIRTUAL_BASE) >= next {
            let text = format!(
                "an entry points to ({},{}), an address that was never given out",
                tid.block, tid.offset
            );
            report("error", name, &text);
        }
    }
    for (at, (found, present)) in stripes.iter().zip(&present).enumerate() {
        xact::check_for_interrupts();
        let snap = Snap::self_snap();
        let deleted = tombstones::deleted(&directory.toast, found.slot, found.entry.rows, snap);
        let lives = |row: &u32| !deleted.as_ref().is_some_and(|d| d.contains(*row));
        let again = twice.iter().filter(|(of, row)| *of == at && lives(row)).count();
        let missing = (0..found.entry.rows).filter(|r| !present.contains(*r)).filter(lives).count();
        // VACUUM may just have removed the stripe, as none of its rows lived: then its tombstones went in the same
        // transaction. So this is looked at after them.
        let first = Tid { block: VIRTUAL_BASE + found.slot.0, offset: 1 };
        if (again > 0 || missing > 0) && directory.find(first, Snap::self_snap()).is_none() {
            continue;
        }
        if again > 0 {
            let text = format!("it has {again} more entries than rows of stripe {}", found.slot.0);
            report("error", name, &text);
        }
        if missing > 0 && !kind.is_partial {
            let text = format!("it lacks entries of {missing} rows of stripe {}", found.slot.0);
            report("error", name, &text);
        }
    }
}
