//! What lies in a table's TOAST relation, row by row, and what of it belongs to nothing: once by page, which
//! needs no index, and once by key, through the index. Both under one snapshot, so that they must agree.

use crate::directory::{chunks, decode_row, directory_row_of, is_misplaced, keys, Found};
use crate::pg::survey::{indexes_of, Entry, Led, Ring, Rows, ToastIndex};
use crate::pg::toast::{unsigned_of, CHUNK_BYTES};
use crate::pg::{attempt, xact, ChunkKey, LockMode, Oid, OpenRel, Snap};
use firn_directory::{allocation, Place};
use firn_format::{EntryState, Location, Slot, ROWS_PER_BLOCK};
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

/// Kinds of rows, by their key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    Directory,
    Allocation,
    Forwarding,
    Intent,
    Default,
    Counted,
    /// Any other note of ours.
    Note,
    Chunk,
    Stone,
    /// PostgreSQL's own: parts of values of the row store.
    Value,
}

pub const CLASSES: [(Class, &str); 10] = [
    (Class::Directory, "directory rows"),
    (Class::Allocation, "allocation rows"),
    (Class::Forwarding, "forwarding lists"),
    (Class::Intent, "intents"),
    (Class::Default, "kept defaults"),
    (Class::Counted, "notes of counts"),
    (Class::Note, "notes"),
    (Class::Chunk, "chunks"),
    (Class::Stone, "tombstones and anchors"),
    (Class::Value, "parts of values"),
];

impl Class {
    fn of(id: u32) -> Class {
        match id {
            keys::DIRECTORY => Class::Directory,
            keys::ALLOCATION => Class::Allocation,
            keys::FORWARDING => Class::Forwarding,
            keys::INTENT => Class::Intent,
            keys::MISSING => Class::Default,
            keys::COUNTED => Class::Counted,
            0..keys::CHUNKS => Class::Note,
            keys::CHUNKS..keys::TOMBSTONES => Class::Chunk,
            keys::TOMBSTONES..16_384 => Class::Stone,
            _ => Class::Value,
        }
    }
    pub fn name(self) -> &'static str {
        CLASSES[self as usize].1
    }
}

/// Anchors belong to no transaction: they come and go while a survey is taken, and those of rolled-back
/// stripes stay until VACUUM. So they are neither counted nor looked for.
fn is_anchor(class: Class, first: Option<u8>) -> bool {
    class == Class::Stone && first == Some(b'L')
}

/// Rows of one class, and their bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    pub rows: u64,
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: usize) {
        self.rows += 1;
        self.bytes += bytes as u64;
    }
}

/// What a survey has found.
#[derive(Default)]
pub struct Survey {
    /// Living stripes, in order of slot.
    pub stripes: Vec<Found>,
    /// Directory rows that cannot be read: slot, why.
    pub unreadable_entries: Vec<(u32, String)>,
    /// Pages that cannot be read, why.
    pub unreadable_pages: Vec<(u32, String)>,
    pub indexes: Vec<ToastIndex>,
    /// Why the rows could not all be gone through by key.
    pub index_trouble: Vec<String>,
    /// The index was read to its end.
    pub by_key: bool,
    /// Next virtual block and next chunk address to be given out.
    pub allocated: Option<(u64, u64)>,
    /// Visible rows of each class, by page and by key.
    pub on_pages: [u64; CLASSES.len()],
    pub in_index: [u64; CLASSES.len()],
    /// Visible rows whose key another visible row has.
    pub doubled: [u64; CLASSES.len()],
    /// Entries that lead to a row of another key.
    pub astray: u64,
    /// Those among them whose row no entry of its own key leads to: either the entry is damaged or the row's key.
    pub doubtful: u64,
    /// Visible rows of keys that nobody gives.
    pub strangers: u64,
    /// These, and others that tell by themselves that their keys are not their own: no index can be built by them.
    pub misplaced: u64,
    /// Rows that belong to no living stripe.
    pub orphans: [Tally; CLASSES.len()],
    /// Forwarding lists older than any snapshot.
    pub stale_lists: u64,
    /// Rows of values that may be directory rows.
    candidates: Vec<Candidate>,
    /// Chunks that each local stripe of `stripes` has among the visible.
    pub chunks: Vec<u32>,
}

/// A part of a user's value whose bytes are those of a directory row. They may be meant to be, so something else has to say the same: the
/// index, or chunks that belong to nothing and are those that it names.
struct Candidate {
    slot: Slot,
    key: ChunkKey,
    /// Address of its first chunk.
    address: Option<u64>,
    is_one: bool,
}

/// What a row that should not be there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waste {
    Orphan,
    Stale,
    /// A second row under its key.
    Double,
}

/// Is told of each row that should not be there.
pub type Sink<'a> = &'a mut dyn FnMut(Class, ChunkKey, Place, Waste);

/// Pages and index entries looked at within one subtransaction.
const PAGES_AT_ONCE: u32 = 64;
const ENTRIES_AT_ONCE: usize = 1_024;

/// Take the survey of the TOAST relation `toast`.
pub fn take(toast: Oid, snap: Snap, sink: Sink<'_>) -> Survey {
    let mut survey = Survey::default();
    pages(toast, snap, &mut survey);
    survey.stripes.sort_by_key(|f| f.slot.0);
    survey.chunks = vec![0; survey.stripes.len()];
    let opened = OpenRel::open(toast, LockMode::AccessShare);
    survey.indexes = indexes_of(opened.rel());
    if let Some(index) = survey.indexes.iter().find(|i| i.valid).map(|i| i.oid) {
        survey.by_key = by_key(toast, index, snap, &mut survey, sink);
    }
    let found = std::mem::take(&mut survey.candidates).into_iter().filter(|c| c.is_one);
    survey.unreadable_entries.extend(found.map(|c| (c.slot.0, key_says(c.key))));
    survey
}

/// What some pages hold.
#[derive(Default)]
struct Part {
    stripes: Vec<Found>,
    unreadable: Vec<(u32, String)>,
    allocated: Option<(u64, u64)>,
    counts: [u64; CLASSES.len()],
    strangers: u64,
    misplaced: u64,
    candidates: Vec<Candidate>,
}

fn key_says(key: ChunkKey) -> String {
    format!("is damaged: its key says ({}, {})", key.id, key.seq)
}

fn pages(toast: Oid, snap: Snap, survey: &mut Survey) {
    let blocks = OpenRel::open(toast, LockMode::AccessShare).rel().heap_blocks();
    let ring = Ring::new();
    let look = |range: Range<u32>| {
        attempt(|| {
            let opened = OpenRel::open(toast, LockMode::AccessShare);
            let mut part = Part::default();
            Rows(opened.rel(), &ring).on_pages(range, snap, &mut |met| {
                if !met.visible {
                    return;
                }
                let class = Class::of(met.key.id);
                part.counts[class as usize] +=
                    u64::from(!is_anchor(class, met.row.data().first().copied()));
                part.strangers += u64::from(keys::is_nobodys_key(met.key.id, met.key.seq));
                part.misplaced += u64::from(is_misplaced(met.key, met.row.data()));
                match class {
                    Class::Directory => part.directory_row(met.key, met.row),
                    _ => part.displaced(met.key, met.row.data()),
                }
                if class == Class::Allocation {
                    part.allocated = allocation::given_out(met.row.data());
                }
            });
            part
        })
    };
    let mut first = 0;
    while first < blocks {
        let end = (first + PAGES_AT_ONCE).min(blocks);
        match look(first..end) {
            Ok(part) => survey.add(part),
            // One of them: look at each.
            Err(_) => {
                for block in first..end {
                    match look(block..block + 1) {
                        Ok(part) => survey.add(part),
                        Err(e) => survey.unreadable_pages.push((block, e.text)),
                    }
                }
            }
        }
        first = end;
    }
}

impl Part {
    fn directory_row(&mut self, key: ChunkKey, row: &crate::pg::toast::RowView) {
        let slot = key.seq as u32;
        match decode_row(Slot(slot), row.data()) {
            // Under another's slot it is that one's.
            Err(e) => {
                let of = directory_row_of(row.data()).map_or(slot, |of| of.0);
                let what = if e.is_of_newer() { "of a newer version of firn" } else { "damaged" };
                self.unreadable.push((of, format!("is {what}: {e}")));
            }
            Ok(entry) if entry.state == EntryState::Live => self.stripes.push(Found {
                slot: Slot(slot),
                entry: Rc::new(entry),
                place: row.place(),
                xmin: row.xmin(),
            }),
            Ok(_) => (),
        }
    }

    /// A row of another class may be a directory row whose key is damaged.
    fn displaced(&mut self, key: ChunkKey, data: &[u8]) {
        if is_misplaced(key, data) {
            let slot = directory_row_of(data);
            self.unreadable.extend(slot.map(|slot| (slot.0, key_says(key))));
            return;
        }
        if Class::of(key.id) != Class::Value {
            return;
        }
        let Some(slot) = directory_row_of(data) else { return };
        let address = decode_row(slot, data).ok().and_then(|entry| match entry.location {
            Location::Chunks { address, .. } => Some(address),
            Location::Object { .. } => None,
        });
        self.candidates.push(Candidate { slot, key, address, is_one: false });
    }
}

impl Survey {
    fn add(&mut self, part: Part) {
        self.strangers += part.strangers;
        self.misplaced += part.misplaced;
        self.candidates.extend(part.candidates);
        self.stripes.extend(part.stripes);
        self.unreadable_entries.extend(part.unreadable);
        self.allocated = self.allocated.or(part.allocated);
        for (sum, count) in self.on_pages.iter_mut().zip(part.counts) {
            *sum += count;
        }
    }

    /// The living stripe whose blocks hold `block`.
    fn at_block(&self, block: u64) -> Option<usize> {
        let at = self.stripes.partition_point(|f| u64::from(f.slot.0) <= block).checked_sub(1)?;
        let found = &self.stripes[at];
        (block < u64::from(found.slot.0) + u64::from(found.entry.blocks)).then_some(at)
    }

    /// Entries that the index lacks.
    pub fn unindexed(&self) -> u64 {
        if !self.by_key {
            return 0;
        }
        let lacking = self.on_pages.iter().zip(&self.in_index).map(|(p, i)| p.saturating_sub(*i));
        lacking.sum()
    }
}

/// Chunks of a stripe.
pub fn chunk_count(found: &Found) -> u32 {
    match found.entry.location {
        Location::Chunks { .. } => found.entry.bytes.div_ceil(CHUNK_BYTES as u64) as u32,
        Location::Object { .. } => 0,
    }
}

/// First chunk address, the one behind the last, and the stripe's number; in order.
fn runs(stripes: &[Found]) -> Vec<(u64, u64, usize)> {
    let mut runs: Vec<_> = stripes
        .iter()
        .enumerate()
        .filter_map(|(at, found)| match found.entry.location {
            Location::Chunks { address, .. } => {
                Some((address, address.saturating_add(chunk_count(found).into()), at))
            }
            Location::Object { .. } => None,
        })
        .collect();
    runs.sort_unstable();
    runs
}

/// Go through the rows by key. False when the index could not be read to its end.
fn by_key(toast: Oid, index: Oid, snap: Snap, survey: &mut Survey, sink: Sink<'_>) -> bool {
    let runs = runs(&survey.stripes);
    let by_address = survey.candidates_by_address();
    let ring = Ring::new();
    let mut after: Option<Entry> = None;
    let mut last: Option<(ChunkKey, Place)> = None;
    loop {
        xact::check_for_interrupts();
        let entries = attempt(|| {
            let opened = OpenRel::open(toast, LockMode::AccessShare);
            let index = OpenRel::any_kind(index, LockMode::AccessShare);
            Rows(opened.rel(), &ring).next_entries(index.rel(), after, ENTRIES_AT_ONCE)
        });
        let entries = match entries {
            Ok(entries) => entries,
            Err(e) => {
                survey.index_trouble.push(format!("it cannot be read any further: {}", e.text));
                return false;
            }
        };
        let follow = |entries: &[Entry]| {
            attempt(|| {
                let opened = OpenRel::open(toast, LockMode::AccessShare);
                entries
                    .iter()
                    .map(|e| Rows(opened.rel(), &ring).led_to(*e, snap))
                    .collect::<Vec<Led>>()
            })
        };
        let led = follow(&entries).unwrap_or_else(|_| {
            // Pages that cannot be read are reported already.
            let each = entries.iter().map(|e| follow(std::slice::from_ref(e)));
            each.map(|led| led.ok().and_then(|l| l.first().copied()).unwrap_or(Led::Nowhere))
                .collect()
        });
        for (entry, led) in entries.iter().zip(led) {
            match led {
                Led::Nowhere => (),
                // Read at two moments: VACUUM may have removed the entry meanwhile, and a row that is frozen from its
                // begin, which all snapshots see, may have its place.
                Led::Astray(own) if is_there(toast, index, *entry, &ring) => {
                    let of_its_own = Entry { key: own, ..*entry };
                    survey.astray += 1;
                    survey.is_led_to(entry.key, own);
                    survey.doubtful += u64::from(!is_there(toast, index, of_its_own, &ring));
                }
                Led::Astray(_) => (),
                Led::Row { place, .. } if last == Some((entry.key, place)) => {
                    survey.astray += 1;
                }
                Led::Row { frozen, bytes, place, first, .. } => {
                    let class = Class::of(entry.key.id);
                    survey.in_index[class as usize] += u64::from(!is_anchor(class, Some(first)));
                    if last.is_some_and(|(key, _)| key == entry.key) {
                        survey.doubled[class as usize] += 1;
                        sink(class, entry.key, place, Waste::Double);
                    } else {
                        let waste = survey.judge(class, entry.key, &runs, frozen, first);
                        if let Some(waste) = waste {
                            match waste {
                                Waste::Stale => survey.stale_lists += 1,
                                _ => survey.orphans[class as usize].add(bytes),
                            }
                            if class == Class::Chunk {
                                let named = by_address.get(&address_of(entry.key));
                                named
                                    .into_iter()
                                    .flatten()
                                    .for_each(|at| survey.candidates[*at].is_one = true);
                            }
                            sink(class, entry.key, place, waste);
                        }
                    }
                    last = Some((entry.key, place));
                }
            }
        }
        if entries.len() < ENTRIES_AT_ONCE {
            return true;
        }
        after = entries.last().copied();
    }
}

/// Address of the chunk under `key`.
fn address_of(key: ChunkKey) -> u64 {
    u64::from(key.id - keys::CHUNKS) * chunks::PER_ID + u64::from(unsigned_of(key.seq))
}

/// Whether the index has this entry, still. It is there itself: the caller has the TOAST relation open.
fn is_there(toast: Oid, index: Oid, entry: Entry, ring: &Ring) -> bool {
    let place = Place { offset: entry.place.offset - 1, ..entry.place };
    let found = attempt(|| {
        let opened = OpenRel::open(toast, LockMode::AccessShare);
        let index = OpenRel::any_kind(index, LockMode::AccessShare);
        let after = Some(Entry { place, ..entry });
        Rows(opened.rel(), ring).next_entries(index.rel(), after, 1)
    });
    found.map_or(true, |found| found.first() == Some(&entry))
}

impl Survey {
    fn candidates_by_address(&self) -> HashMap<u64, Vec<usize>> {
        let mut all: HashMap<u64, Vec<usize>> = HashMap::new();
        for (at, candidate) in self.candidates.iter().enumerate() {
            if let Some(address) = candidate.address {
                all.entry(address).or_default().push(at);
            }
        }
        all
    }

    /// The index leads to the row of key `own` by this one.
    fn is_led_to(&mut self, key: ChunkKey, own: ChunkKey) {
        let found =
            self.candidates.iter_mut().filter(|c| c.key == own && key.id == keys::DIRECTORY);
        found.filter(|c| c.slot.0 as i32 == key.seq).for_each(|c| c.is_one = true);
    }

    /// Whether a visible row belongs to no living stripe.
    fn judge(
        &mut self,
        class: Class,
        key: ChunkKey,
        runs: &[(u64, u64, usize)],
        frozen: bool,
        first: u8,
    ) -> Option<Waste> {
        match class {
            Class::Chunk => {
                let address = address_of(key);
                let at = runs.partition_point(|(first, _, _)| *first <= address).checked_sub(1);
                match at.map(|at| runs[at]).filter(|(_, end, _)| address < *end) {
                    Some((_, _, stripe)) => {
                        self.chunks[stripe] += 1;
                        None
                    }
                    None => Some(Waste::Orphan),
                }
            }
            Class::Stone if is_anchor(class, Some(first)) => None,
            Class::Stone => {
                let linear =
                    u64::from(key.id - keys::TOMBSTONES) << 32 | u64::from(unsigned_of(key.seq));
                let lost = self.at_block(linear / u64::from(ROWS_PER_BLOCK)).is_none();
                lost.then_some(Waste::Orphan)
            }
            Class::Forwarding => match self.at_block(u64::from(key.seq as u32)) {
                None => Some(Waste::Orphan),
                Some(_) => frozen.then_some(Waste::Stale),
            },
            _ => None,
        }
    }
}
