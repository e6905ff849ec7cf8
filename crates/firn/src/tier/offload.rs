//! Offload and load: the steps of `firn_lake::plan`, carried out on one table.

use super::intents::{self, Noted};
use crate::directory::{allocation, Directory, Found};
use crate::mover::Part;
use crate::pg::snapshot::Registered;
use crate::pg::{
    catalog, error, guc, lock, xact, Count, Kind, LockMode, Phase, Progress, Rel, Snap,
};
use crate::stores::{self, call, cancelled, raise, Open};
use crate::stripe::handle_for;
use bytes::Bytes;
use firn_format::{DirectoryEntry, Location, Tid, VIRTUAL_BASE};
use firn_lake::plan::{self, State, Step, Stripe, Table};
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

fn open_directory(table: Rel, lock: LockMode) -> Option<Directory> {
    Directory::open(table, lock).filter(|d| !d.toast.is_empty()).inspect(|d| d.toast.read_in_bulk())
}

fn identity(table: Rel) -> Table {
    let (system_identifier, timeline, database) = catalog::cluster_identity();
    let (database, relation) = (database.to_u32(), table.oid().to_u32());
    Table { system_identifier, timeline, database, relation }
}

fn describe(found: &Found) -> Stripe {
    let state = match &found.entry.location {
        Location::Chunks { .. } => State::Local,
        Location::Object { key, .. } => State::Cold { key: key.clone(), local_copy: false },
    };
    let entry = &found.entry;
    Stripe { slot: found.slot.0, bytes: entry.bytes, state, generation: entry.generation }
}

/// Whether a directory row may be replaced by this transaction. A snapshot sees what its own transaction writes: one that is kept, and is
/// older than the row, would see rows then that are not of its time, or see them twice.
fn may_replace(directory: &Directory, found: &Found) -> bool {
    let Some(kept) = Snap::active().filter(|_| xact::keeps_snapshot()) else { return true };
    directory.find(Tid::of(found.slot, 0), kept).is_some_and(|seen| seen.place == found.place)
}

/// The stripes of a part that are wanted, and the slots that it is about. Counts all that are left with the first.
fn stripes_of(
    directory: &Directory,
    part: &mut Part,
    progress: &Progress,
    wanted: fn(&Location) -> bool,
) -> (Vec<Found>, Range<u32>) {
    let toast = &directory.toast;
    let slots = part.begin_slots(toast.storage(), allocation::next_block(toast));
    let (mut list, mut left, mut bytes) = (Vec::new(), 0, 0);
    let (most, count_all) = (part.stripes(), part.is_first());
    directory.each(Snap::self_snap(), slots.clone(), |found| {
        if wanted(&found.entry.location) && may_replace(directory, &found) {
            left += 1;
            bytes += found.entry.bytes;
            if list.len() < most {
                list.push(found);
            }
        }
        match list.len() >= most && !count_all {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    if count_all {
        progress.set(Count::StripesTotal, left);
        progress.set(Count::BytesTotal, bytes);
    }
    let Some(last) = list.last().filter(|_| list.len() >= most) else { return (list, slots) };
    let end = last.slot.0 + 1;
    part.stop_before(end);
    (list, slots.start..end)
}

/// Move the stripes of a part of a table to the store behind `server`. Returns how many were moved.
/// The table's lock excludes other moves and VACUUM; readers and writers go on.
pub fn offload_table(table: Rel, server: &str, part: &mut Part, progress: &Progress) -> i64 {
    if table.is_temporary() {
        error(
            Kind::Unsupported,
            format!("temporary table \"{}\" cannot be offloaded", table.name()),
        )
        .raise()
    }
    if !table.is_permanent() {
        error(Kind::Unsupported, format!("unlogged table \"{}\" cannot be offloaded", table.name()))
            .detail("Its rows do not survive a crash, so its objects would be left behind.")
            .hint("Use ALTER TABLE ... SET LOGGED first.")
            .raise()
    }
    let Some(directory) = open_directory(table, LockMode::RowExclusive) else { return 0 };
    let store = stores::open(server, table.owner());
    progress.phase(Phase::Uploading);
    let is_local = |location: &Location| matches!(location, Location::Chunks { .. });
    let (local, slots) = stripes_of(&directory, part, progress, is_local);
    let described: Vec<Stripe> = local.iter().map(describe).collect();
    let stripes: HashMap<u32, Found> = local.into_iter().map(|f| (f.slot.0, f)).collect();
    // The table's lock excludes other offloads, so each is a dead run's.
    let noted = intents::list(&directory, slots, false, Snap::self_snap());
    let known: Vec<_> = noted.iter().map(|n| n.intent.clone()).collect();
    let mut nonce = firn_lake::random_nonce;
    let plan = plan::plan_offload(&identity(table), &described, &known, None, &mut nonce)
        .unwrap_or_else(|e| raise(e));
    if plan.uploads > 0 {
        stores::confirm_to_write(&store);
        catalog::depend_on_server(table.oid(), store.server);
    }
    let mut run = Run { directory, table, server, store: &store, stripes, noted, progress };
    for step in &plan.steps {
        xact::check_for_interrupts();
        run.step(step);
    }
    plan.uploads as i64
}

struct Run<'a> {
    directory: Directory,
    table: Rel,
    server: &'a str,
    store: &'a Open,
    stripes: HashMap<u32, Found>,
    noted: Vec<Noted>,
    progress: &'a Progress,
}

impl Run<'_> {
    fn found(&self, slot: u32) -> Found {
        self.stripes.get(&slot).cloned().unwrap_or_else(|| {
            error(Kind::Internal, format!("an offload plan names unknown stripe {slot}")).raise()
        })
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::DropIntent { key, .. } => {
                if let Some(at) = self.noted.iter().position(|n| n.intent.key == *key) {
                    intents::forget(&self.directory, self.noted.swap_remove(at).place);
                }
            }
            Step::RecordIntent { slot, generation, key } => {
                let place = intents::record(&self.directory, *slot, *generation, key);
                self.noted.retain(|n| n.intent.slot != *slot);
                let intent = plan::Intent {
                    slot: *slot,
                    generation: *generation,
                    key: key.clone(),
                    live: true,
                };
                self.noted.push(Noted { intent, place });
                guc::crash_point("offload-intent");
            }
            Step::Upload { slot, key, .. } => {
                let found = self.found(*slot);
                self.progress.phase(Phase::ReadingStripe);
                let bytes = Bytes::from(read_stripe(self.table, &self.directory, &found));
                self.progress.phase(Phase::Uploading);
                call(|| self.store.store.put(key, bytes, &cancelled));
                guc::crash_point("offload-uploaded");
            }
            Step::Verify { slot, key, bytes } => {
                let crc = self.found(*slot).entry.crc32c;
                self.progress.phase(Phase::Verifying);
                call(|| self.store.store.verify(key, *bytes, crc, &cancelled));
                // What was verified may be an object in the folder that a mount was on until just now.
                stores::confirm(self.store);
                guc::crash_point("offload-verified");
            }
            Step::Flip { slot, key, .. } => {
                self.progress.phase(Phase::WritingDirectory);
                let found = self.found(*slot);
                let entry = DirectoryEntry {
                    location: Location::Object { server: self.server.to_owned(), key: key.clone() },
                    generation: found.entry.generation + 1,
                    ..(*found.entry).clone()
                };
                self.directory.replace(&found, &entry, xact::command_id(true));
                if let Some(at) = self.noted.iter().position(|n| n.intent.key == *key) {
                    intents::forget(&self.directory, self.noted.swap_remove(at).place);
                }
                guc::crash_point("offload-flipped");
            }
            Step::FreeLocal { slot, .. } => {
                let found = self.found(*slot);
                self.directory.free_chunks(&found);
                self.progress.add(Count::StripesDone, 1);
                self.progress.add(Count::BytesDone, found.entry.bytes);
                guc::crash_point("offload-freed");
            }
        }
    }
}

/// A stripe's bytes, checked against its directory entry. What a cache has of a damaged object is not the last word: it may have been put back.
pub fn read_stripe(table: Rel, directory: &Directory, found: &Found) -> Vec<u8> {
    let handle = handle_for(table, &directory.toast, found.slot, &found.entry);
    let mut bytes = Vec::new();
    handle.read(&directory.toast, 0, found.entry.bytes as usize, &mut bytes);
    let mut crc = crc32c::crc32c(&bytes);
    if crc != found.entry.crc32c && handle.is_cold() {
        // (Not both at once: a stripe may be large.)
        drop(bytes);
        bytes = handle.read_afresh();
        crc = crc32c::crc32c(&bytes);
    }
    if crc != found.entry.crc32c {
        error(
            Kind::Corrupt,
            format!("stripe {} of table \"{}\" is damaged", found.slot.0, table.name()),
        )
        .detail(format!("Its CRC-32C is {crc:08x}, the directory says {:08x}.", found.entry.crc32c))
        .hint("Restore the stripe from a backup or standby.")
        .raise()
    }
    bytes
}

/// Bring the cold stripes of a part of a table back. Returns how many.
pub fn load_table(table: Rel, part: &mut Part, progress: &Progress) -> i64 {
    let Some(directory) = open_directory(table, LockMode::RowExclusive) else { return 0 };
    let is_cold = |location: &Location| matches!(location, Location::Object { .. });
    let (cold, _) = stripes_of(&directory, part, progress, is_cold);
    let count = cold.len() as i64;
    for found in cold {
        progress.phase(Phase::Downloading);
        xact::check_for_interrupts();
        let bytes = read_stripe(table, &directory, &found);
        guc::crash_point("load-object-read");
        progress.phase(Phase::WritingChunks);
        let cid = xact::command_id(true);
        let address = crate::write::store_bytes(&directory, &bytes, cid);
        let entry = DirectoryEntry {
            location: Location::Chunks {
                address,
                chunk_bytes: crate::pg::toast::CHUNK_BYTES as u32,
            },
            generation: found.entry.generation + 1,
            ..(*found.entry).clone()
        };
        directory.replace(&found, &entry, cid);
        guc::crash_point("load-flipped");
        progress.add(Count::StripesDone, 1);
        progress.add(Count::BytesDone, found.entry.bytes);
    }
    count
}

/// Objects of a table that nothing seems to need: server, key, reason.
///
/// The store is listed first: an object in the list whose offload is running then has an intent, and is named
/// by the directory later if its offload has committed meanwhile. One snapshot sees either, and each row of the
/// directory that VACUUM moves meanwhile.
pub fn unneeded(table: Rel) -> Vec<(String, String, String)> {
    let Some(directory) = open_directory(table, LockMode::AccessShare) else { return Vec::new() };
    let identity = identity(table);
    let mut lists = Vec::new();
    for server in catalog::servers_of(table.oid()) {
        let open = stores::open(&server, table.owner());
        stores::confirm(&open);
        let listed = call(|| open.store.list(&identity.prefix(), &cancelled));
        lists.push((server, listed));
    }
    let at_work = lock::is_held_by_others(table, LockMode::ShareUpdateExclusive);
    let snapshot = Registered::latest();
    let stripes: Vec<Stripe> = directory.list(snapshot.snap()).iter().map(describe).collect();
    let noted = intents::list(&directory, 0..VIRTUAL_BASE, at_work, snapshot.snap());
    let known: Vec<_> = noted.into_iter().map(|n| n.intent).collect();
    let mut result = Vec::new();
    for (server, listed) in lists {
        for u in plan::unneeded(&identity, &listed, &stripes, &known) {
            result.push((server.clone(), u.key.clone(), u.to_string()));
        }
    }
    result
}
