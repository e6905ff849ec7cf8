//! Directory rows seen before, per session. What is remembered is checked at each use, against its page's LSN or the row itself; the gain is not to search the index and not to decode.

use crate::{Found, Witness};
use firn_format::hash::MixMap;
use firn_format::{Bound, DirectoryEntry, ZoneMap};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::hash::Hash;
use std::rc::Rc;

/// Bytes kept of a row as they are: length word and the fields before the zone maps, by which rows of
/// one slot differ (state, sizes, checksums, time, generation).
const HEAD: usize = 64;

/// A row's bytes in short: none of another content is taken for it.
#[derive(Clone, PartialEq, Eq)]
pub struct Print {
    head: [u8; HEAD],
    len: u32,
    crc32c: u32,
}

impl Print {
    /// Of a directory row's data.
    pub fn of(data: &[u8]) -> Print {
        let mut head = [0; HEAD];
        let n = data.len().min(HEAD);
        head[..n].copy_from_slice(&data[..n]);
        Print { head, len: data.len() as u32, crc32c: crc32c::crc32c(data) }
    }
}

/// A row seen before.
pub struct Remembered {
    pub found: Found,
    pub print: Print,
    /// The witness that was given last.
    pub witness: Cell<Option<Witness>>,
}

/// Rows of one table's directory by slot.
#[derive(Default)]
struct OfTable {
    rows: BTreeMap<u32, Rc<Remembered>>,
    bytes: usize,
}

/// What a session remembers, of tables that are named by what they are stored in.
pub struct Seen<I> {
    tables: MixMap<I, OfTable>,
    bytes: usize,
    /// Bytes that all of it may take.
    pub most: usize,
}

impl<I> Default for Seen<I> {
    fn default() -> Seen<I> {
        Seen { tables: MixMap::default(), bytes: 0, most: 0 }
    }
}

/// Heap memory of an entry and what is kept beside it, about.
fn weight(entry: &DirectoryEntry) -> usize {
    let bound = |b: &Option<Bound>| match b {
        Some(Bound::Bytes(v)) => v.capacity() + 16,
        _ => 0,
    };
    let zones: usize = entry.zones.iter().map(|(_, z)| bound(&z.min) + bound(&z.max)).sum();
    let maps = entry.zones.capacity() * std::mem::size_of::<(i32, ZoneMap)>();
    let fixed = std::mem::size_of::<Remembered>() + std::mem::size_of::<DirectoryEntry>() + 128;
    fixed + maps + zones
}

impl<I: Copy + Eq + Hash> Seen<I> {
    /// Nothing is remembered yet, and never more than so many bytes will be.
    pub fn new(most: usize) -> Seen<I> {
        Seen { most, ..Seen::default() }
    }

    /// What is remembered of a slot.
    pub fn at(&self, storage: I, slot: u32) -> Option<Rc<Remembered>> {
        self.tables.get(&storage)?.rows.get(&slot).cloned()
    }

    /// The remembered stripe that holds a virtual block.
    pub fn covering(&self, storage: I, block: u32) -> Option<Rc<Remembered>> {
        let (slot, row) = self.tables.get(&storage)?.rows.range(..=block).next_back()?;
        (block - slot < row.found.entry.blocks).then(|| row.clone())
    }

    /// Remember a row, in place of what was known of its slot. Where there is no room, other tables' rows go;
    /// what does not fit then is not remembered: a walk through a directory larger than that would only
    /// drive out what the next one asks for first.
    pub fn remember(&mut self, storage: I, found: &Found, print: Print) {
        let new = weight(&found.entry);
        self.remove(storage, found.slot.0);
        if self.bytes + new > self.most {
            self.tables.retain(|id, _| *id == storage);
            self.bytes = self.tables.get(&storage).map_or(0, |t| t.bytes);
        }
        if self.bytes + new > self.most {
            return;
        }
        let row = Rc::new(Remembered { found: found.clone(), print, witness: Cell::default() });
        let table = self.tables.entry(storage).or_default();
        table.rows.insert(found.slot.0, row);
        table.bytes += new;
        self.bytes += new;
    }

    /// The storage was emptied, and its slots will be given out anew.
    pub fn forget(&mut self, storage: I) {
        if let Some(table) = self.tables.remove(&storage) {
            self.bytes -= table.bytes;
        }
    }

    fn remove(&mut self, storage: I, slot: u32) {
        let Some(table) = self.tables.get_mut(&storage) else { return };
        let Some(old) = table.rows.remove(&slot) else { return };
        let weight = weight(&old.found.entry);
        table.bytes -= weight;
        self.bytes -= weight;
    }
}
