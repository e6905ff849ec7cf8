//! Forwarding lists: for each stripe that a move filled from the row store, the row-store TID that
//! each of its rows had. Whoever waited for a row of the row store and finds it gone looks here
//! where it went. Lists live until no snapshot is older than the move.

use crate::store::is_settled;
use crate::{keys, rows, ChunkKey, ChunkStore, Cid, Keep, Result, Row, Xid, CHUNK_BYTES};
use firn_format::{Slot, Tid};
use std::ops::ControlFlow;

/// Bytes of one entry: block (4), offset (2).
const ENTRY: usize = 6;
const PER_ROW: usize = CHUNK_BYTES / ENTRY;
/// Where a row was that is no more, since VACUUM FULL or CLUSTER have written the row store anew: no row is.
const NOWHERE: Tid = Tid { block: u32::MAX, offset: 0 };
/// This bit of a part's first offset says that its entries do not ascend: VACUUM FULL or CLUSTER have translated it.
const UNORDERED: u16 = 0x8000;

/// Remember that row `i` of the stripe at `slot` came from `origins[i]`, in ascending order. The parts of a list lie
/// under the virtual blocks of their first rows, which no other stripe has.
pub fn write<S: ChunkStore>(store: &S, slot: Slot, origins: &[Tid], cid: Cid) {
    for (part, chunk) in origins.chunks(PER_ROW).enumerate() {
        let mut bytes = Vec::with_capacity(chunk.len() * ENTRY);
        for tid in chunk {
            bytes.extend_from_slice(&encode(*tid));
        }
        store.insert(key(slot, part), &bytes, cid, Keep::WithTransaction);
    }
}

/// Delete the lists of moves that every snapshot sees (`oldest` is the oldest transaction that some
/// snapshot does not): who begins now finds the rows where they are. Returns how many rows went.
pub fn prune<S: ChunkStore>(store: &S, oldest: Xid) -> usize {
    let mut places = Vec::new();
    each_readable(store, |row| {
        if is_settled(store, row.xmin(), oldest) {
            places.push(row.place());
        }
    });
    if places.is_empty() {
        return 0;
    }
    let cid = store.command_id();
    for place in &places {
        store.delete(*place, cid);
    }
    places.len()
}

/// Rows in lists of moves that some snapshot does not see (`oldest` as above).
pub fn rows_not_outlived<S: ChunkStore>(store: &S, oldest: Xid) -> u64 {
    let mut rows = 0;
    each_readable(store, |row| {
        if !is_settled(store, row.xmin(), oldest) {
            rows += (row.data().len() / ENTRY) as u64;
        }
    });
    rows
}

/// Visit the parts of all lists but those whose keys are damaged, for VACUUM, which leaves such a one where it is.
fn each_readable<S: ChunkStore>(store: &S, mut visit: impl FnMut(&S::Row)) {
    let (low, high) = (i32::MIN, i32::MAX);
    store.scan::<()>(keys::FORWARDING, low, high, store.own(), false, |key, row| {
        if row.is_under(key) {
            visit(row);
        }
        ControlFlow::Continue(())
    });
}

fn key(slot: Slot, part: usize) -> ChunkKey {
    let block = Tid::of(slot, (part * PER_ROW) as u32).block - firn_format::VIRTUAL_BASE;
    ChunkKey { id: keys::FORWARDING, seq: block as i32 }
}

/// A part of a list: the row-store TIDs at its ends, ascending between them as a move reads the row
/// store from its beginning to its end, and where the part is filed.
struct Part {
    first: Tid,
    last: Tid,
    block: u32,
}

/// What transaction `mover` moved: its lists' parts by the rows that they are about, and the part looked
/// into last. Small, however many rows were moved.
pub struct Moves {
    parts: Vec<Part>,
    at_hand: Option<(u32, Slot, Vec<u8>)>,
}

impl Moves {
    /// Look through the lists for those of `mover`. A frozen list is nobody's: every snapshot has outlived
    /// its move, and the transaction number may have come round.
    ///
    /// # Errors
    /// The key of a part is damaged. So of all that returns a [`Result`] here, or a directory row is.
    pub fn of<S: ChunkStore>(store: &S, mover: Xid) -> Result<Moves> {
        let mut parts = Vec::new();
        let (low, high) = (i32::MIN, i32::MAX);
        store.scan_sound::<()>(keys::FORWARDING, low, high, store.any(), false, |key, row| {
            if row.xmin() == mover {
                let block = key.seq as u32;
                parts.extend(ends(row.data()).map(|(first, last)| Part { first, last, block }));
            }
            ControlFlow::Continue(())
        })?;
        parts.sort_unstable_by_key(|p| p.first);
        Ok(Moves { parts, at_hand: None })
    }

    /// Bytes of memory it takes.
    pub fn memory_bytes(&self) -> usize {
        self.parts.capacity() * std::mem::size_of::<Part>() + CHUNK_BYTES
    }

    /// Where the row-store row `origin` went; None when it was not moved.
    pub fn home<S: ChunkStore>(&mut self, store: &S, origin: Tid) -> Result<Option<Tid>> {
        // Parts of one move do not overlap before they are translated: one is looked into.
        let mut after = self.parts.partition_point(|p| p.first <= origin);
        while let Some(part) = after.checked_sub(1).and_then(|i| self.parts.get(i)) {
            after -= 1;
            if origin > part.last {
                continue;
            }
            let block = part.block;
            if self.at_hand.as_ref().is_none_or(|(known, ..)| *known != block) {
                let tid = Tid { block: block + firn_format::VIRTUAL_BASE, offset: 1 };
                let Some(stripe) = rows::find(store, tid, store.any())? else { return Ok(None) };
                let key = ChunkKey { id: keys::FORWARDING, seq: block as i32 };
                let Some(list) = store.find_sound(key, store.any())? else { return Ok(None) };
                self.at_hand = Some((block, stripe.slot, list.data));
            }
            let Some((_, slot, list)) = &self.at_hand else { continue };
            if let Some(at) = position(list, origin) {
                return Ok(Some(Tid::of(*slot, first_row(block, *slot) + at as u32)));
            }
        }
        Ok(None)
    }
}

/// Least and greatest entry of a part.
type Ends = Option<(Tid, Tid)>;

fn ascends(part: &[u8]) -> bool {
    part.get(ENTRY - 1).is_some_and(|high| *high & (UNORDERED >> 8) as u8 == 0)
}

fn ends(part: &[u8]) -> Ends {
    if !ascends(part) {
        let known = || entries(part).filter(|origin| *origin != NOWHERE);
        return Some((known().min()?, known().max()?));
    }
    let mut all = part.chunks_exact(ENTRY);
    let first = all.next()?;
    Some((decode(first), decode(all.next_back().unwrap_or(first))))
}

/// Which entry of a part is `origin`.
fn position(part: &[u8], origin: Tid) -> Option<usize> {
    if !ascends(part) {
        return entries(part).position(|entry| entry == origin);
    }
    let entry = |i: usize| part.get(i * ENTRY..(i + 1) * ENTRY).map(decode);
    let (mut low, mut high) = (0, part.len() / ENTRY);
    while low < high {
        let middle = low + (high - low) / 2;
        match entry(middle)?.cmp(&origin) {
            std::cmp::Ordering::Equal => return Some(middle),
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    None
}

/// Where row `row` of the stripe at `slot` was before a move; None when none has brought it there.
pub fn origin<S: ChunkStore>(store: &S, slot: Slot, row: u32) -> Result<Option<Tid>> {
    let (part, at) = (row as usize / PER_ROW, row as usize % PER_ROW);
    let list = store.find_sound(key(slot, part), store.own())?;
    let origin = list.and_then(|list| entries(&list.data).nth(at));
    Ok(origin.filter(|origin| *origin != NOWHERE))
}

/// The row-store TIDs of a part of a list, in order.
pub fn entries(data: &[u8]) -> impl Iterator<Item = Tid> + '_ {
    data.chunks_exact(ENTRY).map(decode)
}

/// A part of a list after the row store's rows got new places: of the entries in `places` (number, TID), the
/// others' rows are gone.
pub fn translated(data: &[u8], places: &[(usize, Tid)]) -> Vec<u8> {
    let mut out = encode(NOWHERE).repeat(data.len() / ENTRY);
    for (at, tid) in places {
        if let Some(entry) = out.get_mut(at * ENTRY..(at + 1) * ENTRY) {
            entry.copy_from_slice(&encode(*tid));
        }
    }
    if let Some(high) = out.get_mut(ENTRY - 1) {
        *high |= (UNORDERED >> 8) as u8;
    }
    out
}

pub(crate) fn encode(tid: Tid) -> [u8; ENTRY] {
    let mut out = [0; ENTRY];
    out[..4].copy_from_slice(&tid.block.to_le_bytes());
    out[4..].copy_from_slice(&tid.offset.to_le_bytes());
    out
}

fn decode(entry: &[u8]) -> Tid {
    let byte = |i: usize| entry.get(i).copied().unwrap_or(0);
    Tid {
        block: u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)]),
        offset: u16::from_le_bytes([byte(4), byte(5)]) & !UNORDERED,
    }
}

/// The first row of a part that is filed under `block`.
fn first_row(block: u32, slot: Slot) -> u32 {
    let rows_before = (block - slot.0) * firn_format::ROWS_PER_BLOCK;
    rows_before.div_ceil(PER_ROW as u32) * PER_ROW as u32
}

/// Where did the row-store row `origin`, deleted by transaction `mover`, go? None when that
/// transaction did not move it.
pub fn find<S: ChunkStore>(store: &S, origin: Tid, mover: Xid) -> Result<Option<Tid>> {
    let (low, high) = (i32::MIN, i32::MAX);
    let hit = store.scan_sound(keys::FORWARDING, low, high, store.own(), true, |key, row| {
        // Frozen lists are nobody's, see [`Moves::of`].
        let inside = || {
            let (first, last) = ends(row.data())?;
            (first <= origin && origin <= last).then(|| position(row.data(), origin))?
        };
        match (row.xmin() == mover).then(inside).flatten() {
            Some(at) => ControlFlow::Break((key.seq as u32, at)),
            None => ControlFlow::Continue(()),
        }
    })?;
    let Some((block, at)) = hit else { return Ok(None) };
    // The list part begins at a row whose virtual block it is filed under; which row of the stripe
    // that is follows from the stripe's slot.
    let tid = Tid { block: block + firn_format::VIRTUAL_BASE, offset: 1 };
    let stripe = rows::find(store, tid, store.own())?;
    Ok(stripe.map(|s| Tid::of(s.slot, first_row(block, s.slot) + at as u32)))
}

#[cfg(test)]
mod tests {
    use super::{ends, entries, position, translated, Tid, ENTRY, NOWHERE};

    #[test]
    fn translated_parts_do_not_ascend_and_are_found_all_the_same() {
        let places: Vec<(usize, Tid)> = [(0, 9, 1), (2, 3, 7), (3, 3, 2)]
            .map(|(at, block, offset)| (at, Tid { block, offset }))
            .to_vec();
        for places in [&places[..], &places[1..]] {
            let part = translated(&[0; 4 * ENTRY], places);
            assert_eq!(part.len(), 4 * ENTRY);
            for (at, tid) in places {
                assert_eq!(position(&part, *tid), Some(*at));
                assert_eq!(entries(&part).nth(*at), Some(*tid));
            }
            let (least, greatest) = ends(&part).unwrap();
            assert_eq!(least, Tid { block: 3, offset: 2 });
            assert_eq!(greatest, places.iter().map(|(_, tid)| *tid).max().unwrap());
            assert_eq!(entries(&part).nth(1), Some(NOWHERE));
        }
        assert_eq!(ends(&translated(&[0; 2 * ENTRY], &[])), None);
    }

    #[test]
    fn entries_are_found_in_their_part() {
        let tids: Vec<Tid> = (0..700u32)
            .map(|i| Tid { block: i / 7 * 256, offset: (i % 7) as u16 * 2 + 1 })
            .collect();
        let mut part = Vec::new();
        for tid in &tids {
            part.extend_from_slice(&tid.block.to_le_bytes());
            part.extend_from_slice(&tid.offset.to_le_bytes());
        }
        for (i, tid) in tids.iter().enumerate() {
            assert_eq!(position(&part, *tid), Some(i));
            assert_eq!(position(&part, Tid { offset: tid.offset + 1, ..*tid }), None);
        }
        assert_eq!(ends(&part), Some((tids[0], tids[699])));
        assert_eq!(ends(&part[..ENTRY]), Some((tids[0], tids[0])));
        assert_eq!((ends(&[]), position(&[], tids[0])), (None, None));
    }
}
