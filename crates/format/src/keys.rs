//! Chunk ids under which our rows live in a TOAST relation. PostgreSQL's own TOASTed values have ids
//! from 16384 (FirstNormalObjectId) on.

use crate::tombstone::{Tombstone, TombstoneState};

/// Directory rows, one per stripe; sequence number = slot.
pub const DIRECTORY: u32 = 1;
/// The allocation row: next free slot and chunk address.
pub const ALLOCATION: u32 = 2;
/// Forwarding lists; sequence number = slot of the stripe that took the rows in.
pub const FORWARDING: u32 = 3;
/// Intents of offloads under way and objects no longer needed.
pub const INTENT: u32 = 4;
/// Defaults given to ADD COLUMN, kept when a rewrite makes PostgreSQL forget them; sequence number =
/// attribute number.
pub const MISSING: u32 = 5;
/// The stripes' part of `pg_class.reltuples`, one row.
pub const COUNTED: u32 = 6;
/// How far the table's indexes are rid of entries of rows that nobody sees, one row.
pub const CLEANED: u32 = 7;
/// First id of the number line of chunk addresses.
pub const CHUNKS: u32 = 100;
/// First id of tombstones.
pub const TOMBSTONES: u32 = 12_000;
/// The id of the last row's.
pub const LAST_TOMBSTONES: u32 =
    TOMBSTONES + (((1u64 << 31) * crate::ROWS_PER_BLOCK as u64) >> 32) as u32;
/// Last id that is ours.
pub const LAST: u32 = 16_383;

/// A row has this id neither from us nor from PostgreSQL.
fn is_nobodys(id: u32) -> bool {
    !matches!(id, DIRECTORY..=CLEANED | CHUNKS..=LAST_TOMBSTONES) && id <= LAST
}

/// As [`is_nobodys`] of a whole key: some kinds have one row, or one for each column.
pub fn is_nobodys_key(id: u32, seq: i32) -> bool {
    is_nobodys(id)
        || match id {
            ALLOCATION | COUNTED | CLEANED => seq != 0,
            DIRECTORY | FORWARDING | INTENT => seq < 0,
            // MaxHeapAttributeNumber
            MISSING => !(1..=1_600).contains(&seq),
            _ => false,
        }
}

/// Rows under this id are overwritten in place: who reads one that may be another transaction's work under
/// way copies it under its page's lock.
pub fn is_overwritten(id: u32) -> bool {
    matches!(id, DIRECTORY | ALLOCATION | COUNTED | CLEANED)
}

/// A row of a kind that is not MVCC: it exists, under a key that it alone has, from when it is inserted to when
/// it is deleted, whatever becomes of the transactions that do so. Snapshots say nothing about it.
pub fn is_pinned(id: u32, data: &[u8]) -> bool {
    match id {
        ALLOCATION | INTENT | COUNTED | CLEANED => true,
        _ => is_anchor(id, data),
    }
}

/// The row is an anchor.
pub fn is_anchor(id: u32, data: &[u8]) -> bool {
    (TOMBSTONES..=LAST).contains(&id)
        && Tombstone::decode(data).is_ok_and(|t| t.state == TombstoneState::Anchor)
}
