//! Giving space back. Two things keep a TOAST relation's file from shrinking when VACUUM has removed
//! the chunks of stripes that went cold: forwarding lists that nobody needs any more, and directory
//! rows, whose new versions were put at the end of the file because no page before it had room then.

use crate::directory::{forward, Directory};
use crate::pg::toast::CHUNK_BYTES;
use crate::pg::{xact, LockMode, OpenRel, Snap};
use firn_format::Location;

/// Pages below which a file is not worth the work.
const SMALL: u64 = 64;

/// Tidy a table up in this transaction; returns its TOAST relation when VACUUM has something to do
/// there then. Nothing is done while somebody else vacuums or moves.
pub fn tidy(oid: u32) -> Option<u32> {
    let opened = OpenRel::try_open(oid, LockMode::ShareUpdateExclusive)?;
    let directory = Directory::open(opened.rel(), LockMode::RowExclusive)?;
    if u64::from(directory.toast.rel().heap_blocks()) < SMALL {
        return None;
    }
    let pruned = forward::prune(&directory.toast, xact::oldest_visible(directory.toast.rel()));
    let moved = move_directory_rows(&directory);
    (pruned + moved > 0).then(|| directory.toast.rel().oid())
}

/// When less than half of the file is in use, move directory rows from its end to free pages at its
/// beginning. Returns how many were moved.
fn move_directory_rows(directory: &Directory) -> usize {
    let mut list = directory.list(Snap::self_snap());
    let chunks = list.iter().map(|found| match found.entry.location {
        Location::Chunks { .. } => found.entry.bytes.div_ceil(CHUNK_BYTES as u64),
        Location::Object { .. } => 0,
    });
    // A page for each directory row is more than they need.
    let needed = chunks.sum::<u64>() + list.len() as u64;
    if u64::from(directory.toast.rel().heap_blocks()) < 2 * needed {
        return 0;
    }
    list.sort_by_key(|found| std::cmp::Reverse(found.place.block));
    let cid = xact::command_id(true);
    let (mut moved, mut block) = (0, 0);
    for found in &list {
        xact::check_for_interrupts();
        if u64::from(found.place.block) < needed {
            break;
        }
        let room = directory.row_bytes(found);
        while block < found.place.block && directory.toast.free_bytes(block) < room {
            block += 1;
        }
        if block >= found.place.block {
            break;
        }
        directory.relocate(found, cid, block);
        moved += 1;
    }
    moved
}
