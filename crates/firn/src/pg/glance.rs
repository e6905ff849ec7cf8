//! Bytes of shared buffers, read at a glance: without a pin, and without a lock.
//!
//! **Problem.** A look-up by key looks at four buffers beside the index's: the LSNs of two pages (`witness.rs`, `index_gap.rs`), a record of a page map, and
//! the bytes of a page of a stripe. To pin a buffer, lock it, and let both go costs more than what is read of it: with many sessions most of that code and
//! of what it notes is in no cache of the processor.
//!
//! **Rule.** The buffer's header says before and after that the buffer has that block, whole, and that nobody is giving it to another; what was read between is
//! the block's. That is an LSN, of which it is asked only whether it is the one that is known; or bytes of a chunk, whose reader holds them against a checksum that tells them from all others, and reads
//! them again in the ordinary way if they are not what they should be. Only that raises errors.
//!
//! **Cases.** *The buffer is given to another block meanwhile*: its tag says so before the first byte of that is there, and it is not valid until the last one is. On PostgreSQL 15 the tag changes first, behind a lock of the header: locked ones are not believed. *It comes back to
//! the same block between the two looks*: then what was read may be the other's. Bytes of a chunk are held against their checksum. An LSN that is the known one all the same would be that of a page that the same
//! WAL record changed (a split's, or one of the pages of an index that is built), which came to this buffer and left it, by two reads from the disk, between two instructions' reads of it. *Somebody changes the page*: a transaction that has not committed
//! yet, as it would have given the page its LSN by then; so no MVCC snapshot sees what it does: who takes one comes behind ProcArrayLock, which that transaction has had after its last change, on any processor. *An image of the page is replayed*: it has the LSN from before, until it is given the record's. *An LSN is
//! being written*, the higher half first: the new half with the old one is the known LSN only if the page still has that. *Chunks are moved within their page* (after VACUUM has removed
//! others): the checksum tells. *Line pointers and headers of rows that are being changed* are taken for numbers that may be any: nothing is read beyond the page.
//!
//! PostgreSQL does not count such a look as a use; buffers that it has counted too seldom are read in the ordinary way (`recent.rs`). What is read is counted as a hit in the statistics.
//!
//! **Not for** temporary tables, whose buffers are their session's.
//!
//! **Rejected:** *to pin and not to lock*: what a pin notes, and the frame that its errors need, stay (by reading, not measured by itself).

use super::recent::{self, is_used};
use super::toast::{ChunkKey, Toast};
use super::Rel;
use firn_directory::Place;
use pgrx::pg_sys;
use std::mem::offset_of;
use std::sync::atomic::{fence, Ordering};

const PAGE: usize = pg_sys::BLCKSZ as usize;

/// What `read` makes of the page of a block; None where this buffer may not have had it, or `read` does not know.
#[inline]
fn at<T>(
    buffer: pg_sys::Buffer,
    relation: Rel,
    block: u32,
    read: impl FnOnce(Page) -> Option<T>,
) -> Option<T> {
    between(
        || is_used(buffer, relation, block),
        || {
            // SAFETY: a shared buffer's number that PostgreSQL has given out, as `is_used` has looked at its header.
            let page = unsafe { pg_sys::BufferBlocks.add((buffer as usize - 1) * PAGE) };
            read(Page(page.cast()))
        },
    )
}

/// What `read` finds, if `holds` before and after.
#[inline]
fn between<T>(holds: impl Fn() -> bool, read: impl FnOnce() -> Option<T>) -> Option<T> {
    if !holds() {
        return None;
    }
    fence(Ordering::Acquire);
    let found = read();
    fence(Ordering::Acquire);
    found.filter(|_| holds())
}

/// Numbers, of which any bytes are one.
trait Number: Copy {}
impl Number for u8 {}
impl Number for u16 {}
impl Number for u32 {}
impl Number for i32 {}
impl Number for u64 {}

/// A page that others may change, or take away.
#[derive(Clone, Copy)]
struct Page(*const u8);

impl Page {
    /// The number at this place; None where that is beyond the page, or not aligned.
    #[inline]
    fn get<T: Number>(self, at: usize) -> Option<T> {
        let fits = at.checked_add(size_of::<T>()).is_some_and(|end| end <= PAGE);
        // SAFETY: within the page, which is mapped as long as the server runs, and aligned, as the page is.
        (fits && at.is_multiple_of(align_of::<T>()))
            .then(|| unsafe { self.0.add(at).cast::<T>().read_volatile() })
    }

    /// Append `len` bytes of the page; false where they are beyond it.
    #[inline]
    fn copy(self, at: usize, len: usize, out: &mut Vec<u8>) -> bool {
        let fits = at.checked_add(len).is_some_and(|end| end <= PAGE);
        if fits {
            out.reserve(len);
            // SAFETY: within the page, as above; to room that was made for so many bytes, which are there then. (Others may write what is copied: it may be any bytes, which are
            // copied once, before the fence behind the reading.)
            unsafe {
                let to = out.as_mut_ptr().add(out.len());
                std::ptr::copy_nonoverlapping(self.0.add(at), to, len);
                out.set_len(out.len() + len);
            }
        }
        fits
    }
}

/// This buffer has the block, and the page this LSN. False says nothing.
#[inline]
pub(super) fn has_lsn(buffer: pg_sys::Buffer, relation: Rel, block: u32, lsn: u64) -> bool {
    // Two numbers of four bytes, the higher one first, read at once.
    let read = |page: Page| Some(page.get::<u64>(0)?.rotate_left(32));
    let has = at(buffer, relation, block, read) == Some(lsn);
    if has {
        count(relation);
    }
    has
}

/// A block was found in its buffer.
pub(super) fn count(relation: Rel) {
    relation.count_hit();
    // SAFETY: a counter of this process.
    unsafe { pg_sys::pgBufferUsage.shared_blks_hit += 1 }
}

/// Where the data of a row of a TOAST relation is in its page, if it is one of this key.
#[inline]
fn data_of(page: Page, offset: u16, key: ChunkKey) -> Option<std::ops::Range<usize>> {
    let lower: u16 = page.get(offset_of!(pg_sys::PageHeaderData, pd_lower))?;
    let number = usize::from(offset).checked_sub(1)?;
    let place =
        offset_of!(pg_sys::PageHeaderData, pd_linp) + number * size_of::<pg_sys::ItemIdData>();
    let item = pg_sys::ItemIdData {
        _bitfield_align_1: [],
        _bitfield_1: pg_sys::__BindgenBitfieldUnit::new(page.get::<u32>(place)?.to_ne_bytes()),
    };
    let is_row = place + size_of::<pg_sys::ItemIdData>() <= usize::from(lower)
        && item.lp_flags() == pg_sys::LP_NORMAL;
    let (start, len) = (item.lp_off() as usize, item.lp_len() as usize);
    let hoff: u8 = page.get(start + offset_of!(pg_sys::HeapTupleHeaderData, t_hoff))?;
    let chunk = start + usize::from(hoff);
    let (id, seq): (u32, i32) = (page.get(chunk)?, page.get(chunk + 4)?);
    let varlena: u32 = page.get(chunk + 8)?;
    // (Of a chunk that is a row's whole page the header is the one of four bytes.)
    let range = chunk + 12..(chunk + 8).checked_add((varlena >> 2) as usize)?;
    let fits = is_row && varlena & 3 == 0 && range.start <= range.end && range.end <= start + len;
    (ChunkKey { id, seq } == key && fits).then_some(range)
}

impl Toast {
    /// Append bytes of the chunk at `place`, if it has this key, as they seem to be. False says nothing, and nothing is appended. Whoever uses them counts the look ([`count`]).
    #[inline]
    pub(super) fn glance(
        &self,
        place: Place,
        key: ChunkKey,
        (within, len): (usize, usize),
        out: &mut Vec<u8>,
    ) -> bool {
        let before = out.len();
        let buffer = recent::remembered(self.rel(), place.block);
        let copied = at(buffer, self.rel(), place.block, |page| {
            let data = data_of(page, place.offset, key)?;
            let (from, end) = (data.start + within, data.start + within + len);
            (end <= data.end && page.copy(from, len, out)).then_some(())
        });
        if copied.is_none() {
            out.truncate(before);
        }
        copied.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const KEY: ChunkKey = ChunkKey { id: 7, seq: -3 };
    const DATA: &[u8] = b"bytes of a stripe";

    /// A page aligned as in the buffers, with one row of TOAST at its end.
    fn page() -> Vec<u64> {
        let mut bytes = vec![0u8; PAGE];
        let (hoff, len) = (24, 24 + 12 + DATA.len());
        let start = PAGE - 72;
        bytes[12..14].copy_from_slice(&28u16.to_le_bytes());
        let item = start as u32 | 1 << 15 | (len as u32) << 17;
        bytes[24..28].copy_from_slice(&item.to_le_bytes());
        bytes[start + 22] = hoff;
        let chunk = start + usize::from(hoff);
        bytes[chunk..chunk + 4].copy_from_slice(&KEY.id.to_le_bytes());
        bytes[chunk + 4..chunk + 8].copy_from_slice(&KEY.seq.to_le_bytes());
        let varlena = (DATA.len() as u32 + 4) << 2;
        bytes[chunk + 8..chunk + 12].copy_from_slice(&varlena.to_le_bytes());
        bytes[chunk + 12..chunk + 12 + DATA.len()].copy_from_slice(DATA);
        let words = bytes.as_chunks::<8>().0.iter();
        words.map(|word| u64::from_ne_bytes(*word)).collect()
    }

    fn data(page: &[u64], offset: u16, key: ChunkKey) -> Option<Vec<u8>> {
        let page = Page(page.as_ptr().cast());
        let range = data_of(page, offset, key)?;
        let mut out = b"before".to_vec();
        let is_within = page.copy(range.start, range.len(), &mut out);
        assert!(is_within || out == b"before");
        is_within.then(|| out.split_off(6))
    }

    #[test]
    fn what_changes_meanwhile_is_not_believed() {
        let looks = |answers: [bool; 2]| {
            let (asked, read) = (Cell::new(0), Cell::new(0));
            let holds = || {
                asked.set(asked.get() + 1);
                answers[asked.get() - 1]
            };
            let found = between(holds, || {
                // After the first look, and before the second.
                read.set(asked.get());
                Some(7)
            });
            (found, asked.get(), read.get())
        };
        assert_eq!(looks([true, true]), (Some(7), 2, 1));
        assert_eq!(looks([true, false]), (None, 2, 1));
        assert_eq!(looks([false, true]), (None, 1, 0));
        assert_eq!(between(|| true, || None::<u8>), None);
    }

    #[test]
    fn a_chunk_is_found_by_its_key_alone() {
        let page = page();
        assert_eq!(data(&page, 1, KEY).as_deref(), Some(DATA));
        assert_eq!(data(&page, 0, KEY), None);
        assert_eq!(data(&page, 2, KEY), None);
        assert_eq!(data(&page, u16::MAX, KEY), None);
        assert_eq!(data(&page, 1, ChunkKey { seq: 3, ..KEY }), None);
        assert_eq!(data(&page, 1, ChunkKey { id: 8, ..KEY }), None);
    }

    /// Whatever the page's numbers say, nothing is read beyond it, and no row beyond its end.
    #[test]
    fn a_page_may_say_anything() {
        let whole = page();
        let mut x = 5u64;
        let mut random = move || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            x >> 33
        };
        let (mut found, mut not) = (0, 0);
        for _ in 0..200_000 {
            let mut page = whole.clone();
            for _ in 0..1 + random() % 3 {
                // Where there is something.
                let word = match random() % 3 {
                    0 => random() as usize % 4,
                    _ => PAGE / 8 - 9 + random() as usize % 9,
                };
                page[word] ^= 1 << (random() % 64);
            }
            match data(&page, 1, KEY) {
                Some(data) => {
                    assert!(data.len() <= 72 - 36);
                    found += 1;
                }
                None => not += 1,
            }
        }
        assert!(found > 1_000 && not > 1_000, "{found} {not}");
        let page = Page(whole.as_ptr().cast());
        assert_eq!(page.get::<u32>(PAGE - 2), None);
        assert_eq!(page.get::<u32>(2), None);
        assert_eq!(page.get::<u8>(usize::MAX), None);
        assert!(
            !page.copy(PAGE - 4, 5, &mut Vec::new()) && !page.copy(usize::MAX, 2, &mut Vec::new())
        );
    }
}
