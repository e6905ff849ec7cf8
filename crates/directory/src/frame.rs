//! The bytes of a directory row: an entry with its length before it, and after it which slot it is of.

use crate::{keys, ChunkKey, CHUNK_BYTES};
use firn_format::{DirectoryEntry, Error, Slot};

/// Bytes of the note of a row's slot.
const NOTE: usize = 8;

/// Room for the entry of a table with `columns` columns, length word included.
pub fn reserved_bytes(columns: usize) -> usize {
    (200 + 96 * columns).min(CHUNK_BYTES - 100)
}

/// The entry in the data of the directory row under this slot. The key is not what has a checksum, so
/// the row says itself which slot it is of.
pub fn decode(slot: Slot, data: &[u8]) -> firn_format::Result<DirectoryEntry> {
    let entry = DirectoryEntry::decode(body(data))?;
    match written_for(data)? {
        Some(other) if other != slot => {
            Err(Error::corrupt(format!("the directory row is that of slot {}", other.0)))
        }
        _ => Ok(entry),
    }
}

fn body(data: &[u8]) -> &[u8] {
    let len = data.get(..4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    data.get(4..4 + len as usize).unwrap_or(&[])
}

/// The slot that a directory row was written for; None in rows of before it was noted.
pub(crate) fn written_for(data: &[u8]) -> firn_format::Result<Option<Slot>> {
    let body = body(data);
    let Some(note) = data.get(4 + body.len()..4 + body.len() + NOTE) else { return Ok(None) };
    if note.iter().all(|b| *b == 0) {
        return Ok(None);
    }
    let slot = Slot(note[..4].try_into().map_or(0, u32::from_le_bytes));
    match note == note_of(slot, body) {
        true => Ok(Some(slot)),
        false => Err(Error::corrupt("the note of a directory row's slot does not match")),
    }
}

/// The slot of the directory row that these data are, whatever the row's key says; None of one that has no note of it, and
/// of anything else.
pub fn directory_row_of(data: &[u8]) -> Option<Slot> {
    let slot = written_for(data).ok()??;
    DirectoryEntry::decode(body(data)).is_ok().then_some(slot)
}

/// Whether a row of ours has a key that it was not given, going by the row alone: nobody gives that key, or the row is another one's
/// directory row. (Chunks are bytes that users have chosen, but of a length that no directory row has, or with the end of a stripe.
/// Parts of values, which may be anything, are never recognised.)
pub fn is_misplaced(key: ChunkKey, data: &[u8]) -> bool {
    let is_another = || match key.id {
        keys::CHUNKS..keys::TOMBSTONES if data.len() == CHUNK_BYTES || data.ends_with(b"PAR1") => {
            false
        }
        keys::DIRECTORY => directory_row_of(data).is_some_and(|slot| slot.0 as i32 != key.seq),
        _ => directory_row_of(data).is_some(),
    };
    key.id <= keys::LAST && (keys::is_nobodys_key(key.id, key.seq) || is_another())
}

/// The slot and a checksum of it and the entry.
fn note_of(slot: Slot, body: &[u8]) -> [u8; NOTE] {
    let mut note = [0; NOTE];
    note[..4].copy_from_slice(&slot.0.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(body), &note[..4]);
    // Never all zeros.
    note[4..].copy_from_slice(&crc.max(1).to_le_bytes());
    note
}

/// An entry with its length before it, its slot after it, padded so that it can be overwritten in place later.
pub(crate) fn frame(slot: Slot, entry: &DirectoryEntry, room: usize) -> Vec<u8> {
    let body = entry.encode(room - 4 - NOTE);
    let mut bytes = Vec::with_capacity(room);
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes.extend_from_slice(&note_of(slot, &body));
    bytes.resize(room.max(bytes.len()), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_whose_it_is() {
        let entry = DirectoryEntry::reserved(7);
        let data = frame(Slot(5), &entry, reserved_bytes(2));
        assert_eq!(data.len(), reserved_bytes(2));
        assert_eq!(decode(Slot(5), &data).unwrap(), entry);
        assert!(decode(Slot(6), &data).is_err());
        assert_eq!(directory_row_of(&data), Some(Slot(5)));
        let key = |id, seq| ChunkKey { id, seq };
        assert!(!is_misplaced(key(keys::DIRECTORY, 5), &data));
        assert!(is_misplaced(key(keys::DIRECTORY, 6), &data));
        assert!(is_misplaced(key(keys::FORWARDING, 5), &data));
    }
}
