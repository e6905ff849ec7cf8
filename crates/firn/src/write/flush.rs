//! Writing stripes: chunks and the directory row, by the session itself.

use super::pending::{self, Owner, Pending};
use crate::directory::{allocation, chunks, Directory};
use crate::pg::toast::CHUNK_BYTES;
use crate::pg::{error, guc, lock, xact, Kind, LockMode, Oid, OpenRel, Rel};
use firn_directory::Cid;
use firn_format::{blocks_for, DirectoryEntry, EntryState, Location, Stripe};

/// Write all pending stripes of a table that belong to the current subtransaction.
pub fn flush_table(table: Rel) {
    let oid = table.oid();
    for p in pending::take_own(|t, _| t == oid) {
        write(table, p);
    }
}

/// Write everything the current subtransaction has pending: before it is merged into its parent, before
/// the transaction commits.
pub fn flush_subtransaction() {
    flush_where(|_, _| true);
}

/// The command `cid` has inserted all its rows, and whatever it has called is over: write its stripes, and
/// those that were left by commands within it.
pub fn end_command(cid: Cid) {
    flush_where(|_, owner| owner.cid >= cid);
    pending::forget_from(cid);
}

/// Write the current subtransaction's stripes for which `which` holds, of the table and the inserter.
pub(super) fn flush_where(which: impl Fn(Oid, Owner) -> bool) {
    for p in pending::take_own(which) {
        let table = OpenRel::open(p.table, LockMode::RowExclusive);
        write(table.rel(), p);
    }
}

/// Write one stripe. Its rows belong to the current subtransaction, whose id they get.
pub(super) fn write(table: Rel, mut p: Pending) {
    if p.owner.sub != xact::subtransaction() {
        error(Kind::Internal, "a stripe of another subtransaction cannot be written").raise()
    }
    if p.stripe.rows() == 0 {
        return;
    }
    let stripe = p.stripe.finish();
    let Some(directory) = Directory::open(table, LockMode::RowExclusive) else {
        error(Kind::Internal, "a firn table lost its TOAST relation").raise()
    };
    // It keeps the blocks that were reserved for it: what nobody has is somebody's who was rolled back.
    let entry = DirectoryEntry {
        blocks: blocks_for(p.capacity),
        ..store(&directory, &stripe, p.owner.cid)
    };
    guc::crash_point("bulk-chunks");
    directory.publish(p.slot, p.place, &entry);
    if p.frozen {
        directory.toast.freeze(p.place);
    }
    guc::crash_point("bulk-directory");
    // Whoever has looked at the directory before this has taken a predicate lock before that.
    lock::check_serializable_insert(table);
}

/// Store bytes as chunks; returns their address.
pub(crate) fn store_bytes(directory: &Directory, bytes: &[u8], cid: Cid) -> u64 {
    let count = bytes.len().div_ceil(CHUNK_BYTES) as u64;
    let address = allocation::addresses(&directory.toast, count);
    let (id, first) = chunks::key_of(address);
    directory.toast.insert_chunks(id, first, bytes, cid);
    address
}

/// Store a stripe's bytes as chunks; returns its directory entry.
pub(crate) fn store(directory: &Directory, stripe: &Stripe, cid: Cid) -> DirectoryEntry {
    let address = store_bytes(directory, &stripe.bytes, cid);
    let columns = stripe.zones.iter().zip(stripe.field_ids.iter());
    DirectoryEntry {
        state: EntryState::Live,
        blocks: blocks_for(stripe.rows),
        rows: stripe.rows,
        bytes: stripe.bytes.len() as u64,
        raw_bytes: stripe.raw_bytes,
        meta_offset: stripe.meta_offset,
        crc32c: stripe.crc32c,
        meta_crc32c: stripe.meta_crc32c,
        created_at: xact::now_unix_micros(),
        location: Location::Chunks { address, chunk_bytes: CHUNK_BYTES as u32 },
        zones: columns.filter_map(|(z, id)| z.clone().map(|z| (*id, z))).collect(),
        ..DirectoryEntry::reserved(blocks_for(stripe.rows))
    }
}
