//! Intents: durable notes that an object is about to be written, so that a crash leaves no object
//! that nobody knows of. They are written outside the transaction and flushed to disk before the
//! upload begins.
//!
//! A slot has one intent at most, whatever is rolled back: what stays behind when a transaction ends
//! must not be inserted where a deletion of the same transaction may be undone. So an intent that is
//! there is overwritten where it is, and only where none is one is inserted for good.

use crate::directory::{keys, Directory};
use crate::pg::{error, wal, xact, ChunkKey, Fate, Kind, Snap};
use firn_directory::Place;
use firn_format::VIRTUAL_BASE;
use firn_lake::plan::Intent;
use std::ops::{ControlFlow, Range};

/// An intent and where its row is.
pub struct Noted {
    pub intent: Intent,
    pub place: Place,
}

/// Bytes of an intent's row. Every object key fits: 101 are the longest.
const BYTES: usize = 160;

/// Layout: generation (4 bytes), the key, zeros up to `room` bytes. None when the key does not fit.
fn encode(generation: u32, key: &str, room: usize) -> Option<Vec<u8>> {
    let mut bytes = generation.to_le_bytes().to_vec();
    bytes.extend_from_slice(key.as_bytes());
    if bytes.len() > room {
        return None;
    }
    bytes.resize(room, 0);
    Some(bytes)
}

fn decode(data: &[u8]) -> (u32, String) {
    let generation = data.get(..4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    let key = data.get(4..).unwrap_or(&[]);
    let end = key.iter().position(|b| *b == 0).unwrap_or(key.len());
    (generation, String::from_utf8_lossy(&key[..end]).into_owned())
}

/// The intents of stripes at these slots that `snap` sees. `live` says whether their run may be at work.
pub fn list(directory: &Directory, slots: Range<u32>, live: bool, snap: Snap) -> Vec<Noted> {
    let mut list = Vec::new();
    let all = |key: ChunkKey, row: &crate::pg::toast::RowView| {
        let (generation, name) = decode(row.data());
        let intent = Intent { slot: key.seq as u32, generation, key: name, live };
        list.push(Noted { intent, place: row.place() });
        ControlFlow::<()>::Continue(())
    };
    if !slots.is_empty() {
        let (low, high) = (slots.start as i32, (slots.end.min(VIRTUAL_BASE) - 1) as i32);
        directory.toast.scan(keys::INTENT, low, high, snap, false, all);
    }
    list
}

/// Note the intent and make it durable. Returns where it is.
pub fn record(directory: &Directory, slot: u32, generation: u32, key: &str) -> Place {
    let at = ChunkKey { id: keys::INTENT, seq: slot as i32 };
    let place = write(directory, at, generation, key);
    wal::flush();
    place
}

fn write(directory: &Directory, at: ChunkKey, generation: u32, key: &str) -> Place {
    let toast = &directory.toast;
    let mut rows: Vec<(Place, usize)> = Vec::new();
    toast.scan::<()>(at.id, at.seq, at.seq, Snap::any(), false, |_, row| {
        rows.push((row.place(), row.data().len()));
        ControlFlow::Continue(())
    });
    // The table's lock keeps others out: what is being inserted or deleted, is so by this transaction.
    let (mut there, mut deleted_by_us) = (Vec::new(), false);
    for (place, bytes) in rows {
        match toast.fate(place) {
            Some(Fate::Live | Fate::Inserting) => there.push((place, bytes)),
            Some(Fate::Deleting) => deleted_by_us = true,
            _ => (),
        }
    }
    let Some(bytes) = encode(generation, key, BYTES) else {
        error(Kind::Internal, "an object's key is too long for an intent").detail(key).raise()
    };
    let cid = xact::command_id(true);
    let mut there = there.into_iter();
    let Some((place, room)) = there.next() else {
        // One that this transaction has removed comes back if it is rolled back. Then the new one must go,
        // so it is the transaction's.
        return match deleted_by_us {
            true => insert_for_now(directory, at, &bytes),
            false => toast.insert(at, &bytes, cid, true),
        };
    };
    // More than one are of a version that did not overwrite them.
    for (other, _) in there {
        toast.delete(other, cid);
    }
    match encode(generation, key, room) {
        Some(bytes) => {
            toast.overwrite(place, at, &bytes);
            place
        }
        // A row of a version that did not pad them, and too short: it comes back if this is rolled back.
        None => {
            toast.delete(place, cid);
            insert_for_now(directory, at, &bytes)
        }
    }
}

/// Insert an intent that goes if the transaction is rolled back, so that it may be removed at once.
fn insert_for_now(directory: &Directory, at: ChunkKey, bytes: &[u8]) -> Place {
    let place = directory.toast.insert(at, bytes, xact::command_id(true), false);
    xact::next_command();
    place
}

/// Take an intent back in this transaction.
pub fn forget(directory: &Directory, place: Place) {
    directory.toast.delete(place, xact::command_id(true));
}

#[cfg(test)]
mod tests {
    use super::{decode, encode, BYTES};

    #[test]
    fn intents_round_trip() {
        let longest = firn_lake::object_key(
            u64::MAX,
            u32::MAX,
            u32::MAX,
            u32::MAX,
            u32::MAX,
            u32::MAX,
            u64::MAX,
        );
        let bytes = encode(7, &longest, BYTES).unwrap();
        assert_eq!(bytes.len(), BYTES);
        assert_eq!(decode(&bytes), (7, longest.clone()));
        // As older versions wrote them.
        assert_eq!(decode(&bytes[..4 + longest.len()]), (7, longest.clone()));
        assert_eq!(encode(7, &longest, 50), None);
        assert_eq!(decode(&[1]), (0, String::new()));
    }
}
