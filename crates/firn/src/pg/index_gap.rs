//! Ranges of keys that a TOAST relation's index has no entry of, asked again and again, by statement after statement.
//!
//! Problem: a stripe's rows have no tombstones, mostly, and each look-up has to know it. An index scan that finds nothing costs as much as the rest of the
//! row.
//!
//! Rule: the leaf page that would have the entries is remembered with its LSN. Whatever changes the page's keys, or what keys belong to it, is logged
//! and gives it another LSN under the page's exclusive lock; so while it has that LSN the index has no such entry, and one look at eight bytes tells
//! that. An entry that is seen by a snapshot came before that was taken, and the page is looked at behind it: MVCC snapshots may rely on the answer.
//!
//! Cases: a page that has changed is searched anew, and if it does not tell by itself it is looked for from the root. Another page may come to the buffer, or another
//! file to the index (REINDEX, TRUNCATE, with other LSNs on all its pages): the buffer's tag is compared, and files are told apart by their numbers. A
//! server that crashes takes all sessions along. Where there are entries, they are asked for by a scan, and this asks anew after a while only. What is not logged (unlogged and temporary tables, a table that is made in this transaction under `wal_level = minimal`) has no LSNs that
//! tell anything, and is not remembered. Who is serializable has to leave its predicate locks in the index, and asks there. Who searches has a snapshot in use,
//! so that no page on the way is given to other keys meanwhile.
//!
//! A page that is found again where it was is not counted as used by PostgreSQL, so one that it has counted too seldom is read in the ordinary way (`recent.rs`).
//!
//! Rejected: a note beside the directory row (each deletion of a stripe would write it, and wait for others'); a count in shared memory (needs the
//! library to be loaded with the server); to remember which file the index has and not open it, until PostgreSQL tells that it has changed (a tenth of a look-up's time in a session by itself).
//! Nothing then keeps an index in use that REINDEX CONCURRENTLY replaces: on a standby, which waits for no reader, a session noted one that was dead already, and deleted rows came
//! back; a cursor that needed it later than before met a deadlock; and an error while PostgreSQL reads a relation's definition anew lets it forget to tell.

use super::compat;
use super::glance::has_lsn;
use super::recent::is_used;
use super::rel::StorageId;
use super::{ext, Rel};
use firn_format::hash::MixMap;
use firn_format::toast_index::{asked, asked_alone, root, Key, Says};
use pgrx::pg_sys;
use std::cell::RefCell;
use std::ops::RangeInclusive;

/// Ranges remembered at most, some 300 kB.
const MOST: usize = 4_096;

/// Pages that are looked at on the way to a leaf. A tree is less deep, and splits that have no entry above yet are few.
const WAY: usize = 16;

const PAGE: usize = pg_sys::BLCKSZ as usize;

/// Looks for a range that had entries, or could not be told of, which are answered without asking: where rows are deleted, the pages on the way
/// would be read for nothing each time.
const REST: u32 = 1_000;

/// What was found out of a range.
#[derive(Clone, Copy)]
struct Leaf {
    file: StorageId,
    end: Key,
    /// The leaf that had no entry of it; none where that is not so.
    at: Option<Seen>,
    /// Where there is none, looks that are still answered without asking.
    rest: u32,
}

/// A page, where it was seen, and its LSN then.
#[derive(Clone, Copy, Default)]
struct Seen {
    block: u32,
    buffer: pg_sys::Buffer,
    lsn: u64,
}

type Leaves = MixMap<(u32, Key), Leaf>;

thread_local! {
    static LEAVES: RefCell<Leaves> = RefCell::default();
}

/// The index surely has no entry of these keys, dead or alive. False says nothing.
pub fn lacks(index: Rel, keys: &RangeInclusive<Key>) -> bool {
    if !index.needs_wal() {
        return false;
    }
    let file = index.storage();
    let name = (file.file, *keys.start());
    let known = LEAVES.with_borrow_mut(|leaves| {
        let leaf =
            leaves.get_mut(&name).filter(|leaf| leaf.file == file && leaf.end == *keys.end())?;
        let found = *leaf;
        leaf.rest = leaf.rest.saturating_sub(1);
        Some(found)
    });
    let end = *keys.end();
    match known {
        Some(Leaf { at: Some(before), .. }) => {
            let (seen, says) = look(index, before, |page| asked_alone(page, keys));
            if says == Says::Nothing {
                if seen.lsn != before.lsn || seen.buffer != before.buffer {
                    remember(name, Leaf { file, end, at: Some(seen), rest: 0 });
                }
                return true;
            }
        }
        Some(Leaf { rest: 1.., .. }) => return false,
        _ => {}
    }
    let found = search(index, keys);
    let at = found.filter(|seen| seen.lsn != 0);
    let rest = if at.is_some() { 0 } else { REST };
    remember(name, Leaf { file, end, at, rest });
    found.is_some()
}

/// The leaf, from the root, if it has no entry of these keys.
fn search(index: Rel, keys: &RangeInclusive<Key>) -> Option<Seen> {
    let first = |page: &[u8]| root(page).map_or(Says::Unknown, Says::Ask);
    let (mut seen, mut says) = look(index, Seen::default(), first);
    for _ in 0..WAY {
        let Says::Ask(block) = says else { break };
        (seen, says) = look(index, Seen { block, ..Seen::default() }, |page| asked(page, keys));
    }
    (says == Says::Nothing).then_some(seen)
}

fn remember(name: (u32, Key), leaf: Leaf) {
    LEAVES.with_borrow_mut(|leaves| {
        if leaves.len() >= MOST {
            leaves.clear();
        }
        leaves.insert(name, leaf);
    });
}

/// Ask a page. One that has the LSN with which it was seen before says what it said then: nothing is there.
fn look(index: Rel, before: Seen, ask: impl Fn(&[u8]) -> Says) -> (Seen, Says) {
    let (file, share) = (compat::file_of(index.data()), pg_sys::BUFFER_LOCK_SHARE as i32);
    let buffer = before.buffer;
    if before.lsn != 0 && has_lsn(buffer, index, before.block, before.lsn) {
        return (before, Says::Nothing);
    }
    // (The LSN by its function, as hints of others may give the page another one just now.)
    let may_be_there = is_used(buffer, index, before.block);
    if may_be_there {
        index.prepare_to_count();
    }
    let there = match may_be_there {
        false => None,
        // SAFETY: the buffer is asked whether it has that page of the relation, and is pinned and locked then.
        true => unsafe {
            ext::guarded(|| {
                let main = pg_sys::ForkNumber::MAIN_FORKNUM;
                if !ext::direct::ReadRecentBuffer(file, main, before.block, buffer) {
                    return None;
                }
                ext::direct::LockBuffer(buffer, share);
                Some((buffer, ext::direct::BufferGetLSNAtomic(buffer)))
            })
        },
    };
    match there {
        Some(_) => index.count_hit(),
        None if !index.has_block(before.block) => return (before, Says::Unknown),
        None => {}
    }
    // SAFETY: an open relation's page is pinned, looked at under its shared lock, and let go; what is called between cannot fail.
    unsafe {
        let (buffer, lsn) = match there {
            Some(found) => found,
            None => ext::guarded(|| {
                let buffer = ext::direct::ReadBuffer(index.raw(), before.block);
                ext::direct::LockBuffer(buffer, share);
                (buffer, ext::direct::BufferGetLSNAtomic(buffer))
            }),
        };
        let page = std::slice::from_raw_parts(pg_sys::BufferGetPage(buffer) as *const u8, PAGE);
        let says = match before.lsn != 0 && lsn == before.lsn {
            true => Says::Nothing,
            false => ask(page),
        };
        ext::UnlockReleaseBuffer(buffer);
        (Seen { buffer, lsn, ..before }, says)
    }
}
