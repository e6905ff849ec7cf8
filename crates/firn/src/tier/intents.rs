//! Intents: durable notes that an object is about to be written, so that a crash leaves no object
//! that nobody knows of. They are written outside the transaction and flushed to disk before the
//! upload begins.

use crate::directory::{keys, Directory};
use crate::pg::{wal, xact, ChunkKey, Snap};
use firn_format::Tid;
use firn_lake::plan::Intent;
use std::ops::ControlFlow;

/// An intent and where its row is.
pub struct Noted {
    pub intent: Intent,
    pub place: Tid,
}

/// Layout: generation (4 bytes), then the key.
fn encode(generation: u32, key: &str) -> Vec<u8> {
    let mut bytes = generation.to_le_bytes().to_vec();
    bytes.extend_from_slice(key.as_bytes());
    bytes
}

/// All intents of a table. The table's lock excludes other offloads, so each is a dead run's.
pub fn list(directory: &Directory) -> Vec<Noted> {
    let mut list = Vec::new();
    let all = |key: ChunkKey, row: &crate::pg::toast::RowView| {
        let data = row.data();
        let generation =
            data.get(..4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        let name = String::from_utf8_lossy(data.get(4..).unwrap_or(&[])).into_owned();
        let intent = Intent { slot: key.seq as u32, generation, key: name, live: false };
        list.push(Noted { intent, place: row.place() });
        ControlFlow::<()>::Continue(())
    };
    directory.toast.scan(keys::INTENT, 0, i32::MAX, Snap::self_snap(), false, all);
    list
}

/// Note the intent and make it durable.
pub fn record(directory: &Directory, slot: u32, generation: u32, key: &str) -> Tid {
    let at = ChunkKey { id: keys::INTENT, seq: slot as i32 };
    let bytes = encode(generation, key);
    let place = directory.toast.insert(at, &bytes, xact::command_id(true), true);
    wal::flush();
    place
}

/// Take an intent back in this transaction.
pub fn forget(directory: &Directory, place: Tid) {
    directory.toast.delete(place, xact::command_id(true));
}
