//! Tombstones and anchors: one small row per deleted, updated or locked stripe row, under a key
//! computed from its TID, so that those of a stripe are neighbours.

use crate::store::{is_settled, Met};
use crate::{keys, seq_of, unsigned_of, ChunkKey, ChunkStore, Cid, Error, Place, Result, Row, Xid};
use firn_format::{DeleteVector, Slot, Tid, Tombstone, TombstoneState};
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

/// A tombstone or anchor row.
#[derive(Clone, Copy, Debug)]
pub struct Stone {
    pub place: Place,
    /// The transaction that wrote it; [`Xid::FROZEN`] when frozen.
    pub xmin: Xid,
    /// The transaction that wrote it, frozen or not.
    pub raw_xmin: Xid,
    pub cmin: Cid,
    pub tombstone: Tombstone,
}

impl Stone {
    /// The row is deleted, or updated.
    #[inline]
    pub fn is_of_deleted(&self) -> bool {
        self.tombstone.state == TombstoneState::Deleted
    }

    /// The row is deleted for every snapshot, `oldest` being the oldest transaction that some snapshot does not see.
    pub fn is_settled<S: ChunkStore>(&self, store: &S, oldest: Xid) -> bool {
        self.is_of_deleted() && is_settled(store, self.xmin, oldest)
    }
}

#[inline]
fn key_of_linear(linear: u64) -> ChunkKey {
    ChunkKey { id: keys::TOMBSTONES + (linear >> 32) as u32, seq: seq_of(linear as u32) }
}

/// The key of the row at `tid`.
#[inline]
pub fn key_of(tid: Tid) -> ChunkKey {
    key_of_linear(tid.linear())
}

/// Inverse of [`key_of`].
pub fn tid_of(key: ChunkKey) -> Option<Tid> {
    let high = u64::from(key.id.checked_sub(keys::TOMBSTONES)?);
    Tid::from_linear(high << 32 | u64::from(unsigned_of(key.seq)))
}

/// The tombstone or anchor of `tid` that `snap` sees. Under a dirty snapshot, transactions in
/// progress are reported through it.
///
/// # Errors
/// It is damaged: whether the row lives is not known then. So of all that returns a [`Result`] here.
#[inline]
pub fn find<S: ChunkStore>(store: &S, tid: Tid, snap: S::Snap) -> Result<Option<Stone>> {
    let key = key_of(tid);
    let look = || {
        let (found, met) = store.look(key, snap, |row| ControlFlow::Break(stone(key, row)));
        Ok((found.transpose()?, met))
    };
    match store.may_miss(snap) {
        true => again(store, key, look),
        false => look().map(|(found, _)| found),
    }
}

/// Look once more where nothing was found although a version of the row is there: a look that judges each
/// version as it comes to it can miss a row that is replaced meanwhile, when it has read the index before the new
/// version's entry came and looks at the old version after that was committed. The next look reads the
/// index anew; to miss the row, too, it would have to be replaced again. Most
/// rows have none, of which there is no entry that `look` could have met.
fn again<S: ChunkStore, T>(
    store: &S,
    key: ChunkKey,
    mut look: impl FnMut() -> Result<(Option<T>, Met)>,
) -> Result<Option<T>> {
    for _ in 0..LOOKS {
        let (found, met) = look()?;
        if found.is_some() || met == Met::NoEntry || store.find_damaged(key, store.any()).is_none()
        {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Looks for a row that may be replaced meanwhile.
pub(crate) const LOOKS: usize = 4;

/// The stone of `tid` that a locker has to do with, and the running transaction that made it
/// ([`Xid::NONE`] when that is over). While a transaction turns an anchor into a tombstone, both can be found: the anchor
/// then, as it carries the locks.
pub fn to_lock<S: ChunkStore>(store: &S, tid: Tid) -> Result<Option<(Stone, Xid)>> {
    let key = key_of(tid);
    again(store, key, || store.with_dirty(|snap| look_to_lock(store, key, snap)))
}

fn look_to_lock<S: ChunkStore>(
    store: &S,
    key: ChunkKey,
    snap: S::Snap,
) -> Result<(Option<(Stone, Xid)>, Met)> {
    let mut tombstone = None;
    let (anchor, met) = store.look(key, snap, |row| {
        let writer = store.writer(snap);
        match stone(key, row) {
            Ok(stone) if stone.is_of_deleted() => {
                tombstone = Some((stone, writer));
                ControlFlow::Continue(())
            }
            other => ControlFlow::Break(other.map(|anchor| (anchor, writer))),
        }
    });
    Ok((anchor.transpose()?.or(tombstone), met))
}

/// The tombstone that the update of an anchor made: at `place`, by transaction `updater`.
pub fn made_by<S: ChunkStore>(
    store: &S,
    tid: Tid,
    place: Place,
    updater: Xid,
) -> Result<Option<Tombstone>> {
    let key = key_of(tid);
    let stone = store.at(place, key, store.any(), |row| stone(key, row)).transpose()?;
    let is_it = |stone: &Stone| stone.raw_xmin == updater && stone.is_of_deleted();
    Ok(stone.filter(is_it).map(|stone| stone.tombstone))
}

#[inline]
fn decode(key: ChunkKey, row: &impl Row) -> firn_format::Result<Stone> {
    if !row.is_under(key) {
        let own = row.key();
        let why = format!("its key says ({}, {})", own.id, own.seq);
        return Err(firn_format::Error::corrupt(why));
    }
    let tombstone = Tombstone::decode(row.data())?;
    Ok(Stone {
        place: row.place(),
        xmin: row.xmin(),
        raw_xmin: row.raw_xmin(),
        cmin: row.cmin(),
        tombstone,
    })
}

/// The tombstone or anchor that a row is.
#[inline]
fn stone(key: ChunkKey, row: &impl Row) -> Result<Stone> {
    decode(key, row).map_err(|why| Error::Tombstone { key, place: row.place(), why })
}

/// Visit the tombstones and anchors of a stripe's rows that `snap` sees, in row order.
pub fn each<S: ChunkStore>(
    store: &S,
    slot: Slot,
    rows: u32,
    snap: S::Snap,
    visit: impl FnMut(u32, Stone),
) -> Result<()> {
    each_of(store, slot, 0..rows, snap, visit)
}

fn each_of<S: ChunkStore>(
    store: &S,
    slot: Slot,
    rows: Range<u32>,
    snap: S::Snap,
    mut visit: impl FnMut(u32, Stone),
) -> Result<()> {
    let ended = within(store, slot, rows, snap, |key, row, at| match stone(key, row) {
        Ok(stone) => {
            visit(at, stone);
            ControlFlow::Continue(())
        }
        Err(e) => ControlFlow::Break(e),
    });
    ended.map_or(Ok(()), Err)
}

/// As [`each`] for those who need not know of every row: damaged ones are passed over.
pub fn each_readable<S: ChunkStore>(
    store: &S,
    slot: Slot,
    rows: u32,
    snap: S::Snap,
    mut visit: impl FnMut(u32, Stone),
) {
    within::<S, ()>(store, slot, 0..rows, snap, |key, row, at| {
        if let Ok(stone) = decode(key, row) {
            visit(at, stone);
        }
        ControlFlow::Continue(())
    });
}

/// The rows under the keys of some of a stripe's rows, until `visit` breaks. It is told the row's number, too.
fn within<S: ChunkStore, B>(
    store: &S,
    slot: Slot,
    rows: Range<u32>,
    snap: S::Snap,
    mut visit: impl FnMut(ChunkKey, &S::Row, u32) -> ControlFlow<B>,
) -> Option<B> {
    let base = Tid::of(slot, 0).linear();
    spans(slot, rows).find_map(|(from, low, high)| {
        store.scan(low.id, low.seq, high.seq, snap, false, |key, row| {
            let linear = (from >> 32 << 32) | u64::from(unsigned_of(key.seq));
            store.reached("tombstone-seen");
            visit(key, row, (linear - base) as u32)
        })
    })
}

/// The keys of some of a stripe's rows: the first row's place in the number line, its key, and the last one's. A stripe can straddle
/// two chunk ids.
fn spans(slot: Slot, rows: Range<u32>) -> impl Iterator<Item = (u64, ChunkKey, ChunkKey)> {
    let base = Tid::of(slot, 0).linear();
    let end = base + u64::from(rows.end);
    let mut next = base + u64::from(rows.start);
    std::iter::from_fn(move || {
        let from = next;
        if from >= end {
            return None;
        }
        let to = (end - 1).min(from | u64::from(u32::MAX));
        next = to + 1;
        Some((from, key_of_linear(from), key_of_linear(to)))
    })
}

/// Whether there may be a tombstone or anchor of a stripe's rows, seen by whomever. The index alone is asked, for one entry: those of
/// deletions that were rolled back are many, lead nowhere, and stay until VACUUM.
pub fn may_be_any<S: ChunkStore>(store: &S, slot: Slot, rows: u32) -> bool {
    spans(slot, 0..rows).any(|(_, low, high)| store.has_entry(low.id, low.seq, high.seq))
}

/// It is known at once that there is no tombstone or anchor of a stripe's rows, seen by whomever. False says nothing. Who asks has an MVCC snapshot in
/// use, which keeps pages of the index from being given to other keys meanwhile.
#[inline]
pub fn is_known_to_be_whole<S: ChunkStore>(store: &S, slot: Slot, rows: u32) -> bool {
    spans(slot, 0..rows).all(|(_, low, high)| store.lacks(low.id, low.seq, high.seq))
}

/// Which rows of a stripe are deleted for `snap`, ascending, if the index has no more than `most` entries of tombstones and anchors of it, whatever
/// they lead to, and none of those that are seen is damaged: who looks for a damaged one is told of it, and nobody else.
pub fn few_deleted<S: ChunkStore>(
    store: &S,
    slot: Slot,
    rows: u32,
    snap: S::Snap,
    most: u32,
) -> Option<Vec<u32>> {
    let mut left = most;
    for (_, low, high) in spans(slot, 0..rows) {
        let count = store.entries(low.id, low.seq, high.seq, left.saturating_add(1));
        left = left.checked_sub(count)?;
    }
    deleted_of(store, slot, 0..rows, snap).ok()
}

/// Which of some rows of a stripe are deleted for `snap`, ascending.
pub fn deleted_of<S: ChunkStore>(
    store: &S,
    slot: Slot,
    rows: Range<u32>,
    snap: S::Snap,
) -> Result<Vec<u32>> {
    let mut list = Vec::new();
    each_of(store, slot, rows, snap, |row, stone| {
        if stone.is_of_deleted() {
            list.push(row);
        }
    })?;
    list.dedup();
    Ok(list)
}

/// How many rows of a stripe are known to be deleted for `snap`; damaged tombstones count for none.
pub fn deleted_readable<S: ChunkStore>(store: &S, slot: Slot, rows: u32, snap: S::Snap) -> u32 {
    let mut vector = DeleteVector::new(rows);
    each_readable(store, slot, rows, snap, |row, stone| {
        if stone.is_of_deleted() {
            vector.set(row);
        }
    });
    vector.count()
}

/// Rows of a stripe that are deleted for `snap`; None when there is none.
pub fn deleted<S: ChunkStore>(
    store: &S,
    slot: Slot,
    rows: u32,
    snap: S::Snap,
) -> Result<Option<DeleteVector>> {
    let mut vector = None;
    each(store, slot, rows, snap, |row, stone| {
        if stone.is_of_deleted() {
            vector.get_or_insert_with(|| DeleteVector::new(rows)).set(row);
        }
    })?;
    Ok(vector)
}

/// Rows that are surely deleted, and of those that others are deleting, who does.
pub type Unsettled = (Option<DeleteVector>, HashMap<u32, Xid>);

/// What a dirty snapshot is told of a stripe's rows.
pub fn dirty<S: ChunkStore>(store: &S, slot: Slot, rows: u32) -> Result<Unsettled> {
    let (mut deleted, mut deleters) = (None::<DeleteVector>, HashMap::new());
    store.with_dirty(|snap| {
        each(store, slot, rows, snap, |row, stone| {
            if !stone.is_of_deleted() {
                return;
            }
            match store.writer(snap) {
                Xid::NONE => deleted.get_or_insert_with(|| DeleteVector::new(rows)).set(row),
                writer => drop(deleters.insert(row, writer)),
            }
        })
    })?;
    Ok((deleted, deleters))
}
