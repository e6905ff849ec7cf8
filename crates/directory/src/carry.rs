//! What becomes of our rows of the TOAST relation when VACUUM FULL or CLUSTER writes the table anew. Stripes
//! stay as they are, TIDs included, but the rows of the row store get new places, and two kinds of our rows
//! name such places: forwarding lists (where rows were before a move) and tombstones (where an update put the
//! next version).
//!
//! Who can ask for them is a snapshot that does not see the move or the update. What every snapshot sees is
//! not carried: such a list is left out, such a tombstone loses its successor. The places in the others are
//! translated by sorting and merging, as they may be as many as rows were changed since the oldest snapshot:
//! the wants (place, and where it stands) and the moves (old place, new place) are sorted by the old place,
//! the answers by where they belong, which is the order in which our rows are then copied.

use crate::store::is_settled;
use crate::{forward, keys, ChunkStore, Place, Result, Row, Xid};
use firn_format::{Tid, Tombstone};
use std::ops::ControlFlow;

/// What is sorted, by its bytes.
pub type Item = [u8; 16];

/// A sort of what memory may not hold: put everything in, sort, take everything out. Three live at a time.
pub trait Sort {
    fn put(&mut self, item: &Item);
    /// Everything is in.
    fn sort(&mut self);
    /// The next item in order; None after the last.
    fn next(&mut self) -> Option<Item>;
}

fn packed(block: u32, offset: u16) -> [u8; 6] {
    let mut out = [0; 6];
    out[..4].copy_from_slice(&block.to_be_bytes());
    out[4..].copy_from_slice(&offset.to_be_bytes());
    out
}

/// A row of the row store.
fn of_row(tid: Tid) -> [u8; 6] {
    packed(tid.block, tid.offset)
}

/// A row of ours.
fn of_ours(place: Place) -> [u8; 6] {
    packed(place.block, place.offset)
}

fn unpacked(bytes: &[u8]) -> Tid {
    let byte = |i: usize| bytes.get(i).copied().unwrap_or(0);
    Tid {
        block: u32::from_be_bytes([byte(0), byte(1), byte(2), byte(3)]),
        offset: u16::from_be_bytes([byte(4), byte(5)]),
    }
}

/// Two places and the number of an entry.
fn item(first: &[u8; 6], second: &[u8; 6], at: u16) -> Item {
    let mut item = [0; 16];
    item[..6].copy_from_slice(first);
    item[6..12].copy_from_slice(second);
    item[12..14].copy_from_slice(&at.to_be_bytes());
    item
}

/// The second place of an item.
fn second(item: &Item) -> [u8; 6] {
    let [_, _, _, _, _, _, place @ .., _, _, _, _] = *item;
    place
}

/// The places in the row store that our rows name and somebody may still ask for.
pub struct Wants<T>(T);

impl<T: Sort> Wants<T> {
    /// Collect them in a `new` sort; None when there are none.
    ///
    /// # Errors
    /// The key of a row is damaged.
    pub fn collect<S: ChunkStore>(
        store: &S,
        oldest: Xid,
        new: impl Fn() -> T,
    ) -> Result<Option<Wants<T>>> {
        let mut wants = None;
        let mut want = |origin: Tid, place: Place, at: usize| {
            let sorter = wants.get_or_insert_with(&new);
            sorter.put(&item(&of_row(origin), &of_ours(place), at as u16));
        };
        let ids = std::iter::once(keys::FORWARDING).chain(keys::TOMBSTONES..=keys::LAST_TOMBSTONES);
        for id in ids {
            store.scan_sound::<()>(id, i32::MIN, i32::MAX, store.any(), false, |_, row| {
                store.pause();
                if is_settled(store, row.xmin(), oldest) {
                    return ControlFlow::Continue(());
                }
                if id == keys::FORWARDING {
                    for (at, origin) in forward::entries(row.data()).enumerate() {
                        want(origin, row.place(), at);
                    }
                } else if let Some(next) = successor(row.data()) {
                    want(next, row.place(), 0);
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(wants.map(Wants))
    }

    /// Find out where the places are now; the answers are sorted by a third sort.
    pub fn resolve(self, moves: Moves<T>, mut answers: T) -> NewPlaces<T> {
        let (mut wants, mut moves) = (self.0, moves.0);
        wants.sort();
        moves.sort();
        let mut moved = moves.next();
        while let Some(want) = wants.next() {
            while moved.is_some_and(|m| m[..6] < want[..6]) {
                moved = moves.next();
            }
            if let Some(moved) = moved.filter(|m| m[..6] == want[..6]) {
                let at = u16::from_be_bytes([want[12], want[13]]);
                answers.put(&item(&second(&want), &second(&moved), at));
            }
        }
        answers.sort();
        let next = answers.next();
        NewPlaces(Some((answers, next)))
    }
}

/// Which rows of the row store went where.
pub struct Moves<T>(pub T);

impl<T: Sort> Moves<T> {
    pub fn note(&mut self, old: Tid, new: Tid) {
        // The order in which the items are sorted ends with the new place.
        self.0.put(&item(&of_row(old), &of_row(new), 0));
    }
}

/// Places in our rows and what they are now, in the order of our rows' places.
pub struct NewPlaces<T>(Option<(T, Option<Item>)>);

/// What becomes of a row of ours.
pub enum Carried {
    AsItIs,
    With(Vec<u8>),
    Not,
}

impl<T: Sort> NewPlaces<T> {
    /// Nobody asks for any place.
    pub fn none() -> NewPlaces<T> {
        NewPlaces(None)
    }

    /// The new places in the row at `place`: the number of the entry, and where it leads. To be called for
    /// rows in the order of their places.
    fn of(&mut self, place: Place) -> Vec<(usize, Tid)> {
        let mut found = Vec::new();
        let Some((answers, next)) = &mut self.0 else { return found };
        let wanted = of_ours(place);
        while let Some(answer) = next.filter(|a| a[..6] <= wanted[..]) {
            if answer[..6] == wanted {
                let at = u16::from_be_bytes([answer[12], answer[13]]);
                found.push((usize::from(at), unpacked(&answer[6..12])));
            }
            *next = answers.next();
        }
        found
    }

    /// What becomes of the row of ours at `place`, stored under `id`; `settled` when every snapshot sees what inserted it.
    pub fn carry(&mut self, id: u32, place: Place, settled: bool, data: &[u8]) -> Carried {
        match id {
            keys::FORWARDING if settled => Carried::Not,
            keys::FORWARDING => Carried::With(forward::translated(data, &self.of(place))),
            keys::TOMBSTONES..=keys::LAST_TOMBSTONES => match successor(data) {
                None => Carried::AsItIs,
                Some(_) => {
                    let next = self.of(place).first().map(|(_, tid)| *tid).filter(|_| !settled);
                    Carried::With(led_to(data, next))
                }
            },
            _ => Carried::AsItIs,
        }
    }
}

fn successor(data: &[u8]) -> Option<Tid> {
    Tombstone::decode(data).ok()?.successor.filter(|tid| !tid.is_virtual())
}

/// A tombstone with another successor.
fn led_to(data: &[u8], next: Option<Tid>) -> Vec<u8> {
    match (Tombstone::decode(data), next) {
        (Ok(stone), Some(_)) => Tombstone { successor: next, ..stone }.encode().to_vec(),
        (Ok(_), None) => Tombstone::deleted().encode().to_vec(),
        (Err(_), _) => data.to_vec(),
    }
}
