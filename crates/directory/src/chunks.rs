//! The number line of chunk addresses: one address per chunk of a stripe, never used twice.

use crate::keys;

/// Chunk id and first (unsigned) sequence number of an address.
pub fn key_of(address: u64) -> (u32, u32) {
    (keys::CHUNKS + (address >> 32) as u32, address as u32)
}

/// Addresses that one chunk id covers.
pub const PER_ID: u64 = 1 << 32;
/// Last address + 1.
pub const END: u64 = (keys::TOMBSTONES - keys::CHUNKS) as u64 * PER_ID;
