//! A stripe that is being read: its directory entry, its decoded metadata and dictionaries. Handles
//! are kept in a session-wide cache within `firn.metadata_cache`; a stripe never changes, so a handle
//! is right as long as its key is, and its bytes are where the directory row says: a move that is rolled back, and done
//! again, gives the same stripe of the same generation other chunks, or another object. What scans that take turns need of it is not dropped ([`Held`]).

use super::pages;
use crate::directory::chunks;
use crate::pg::datum::{dictionary_datums, Conversion, Datums};
use crate::pg::report::raise_format;
use crate::pg::{error, guc, shared, Kind, Oid, Rel, Toast};
use bytes::Bytes;
use firn_format::hash::MixMap;
use firn_format::{
    Column, Decoder, Dictionary, DirectoryEntry, Location, Outline, PackedColumn, PageRef, Place,
    Slot, StripeMeta, RECORD_BYTES,
};
use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

/// What makes a stripe's bytes the ones a handle was made for.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    storage: crate::pg::rel::StorageId,
    slot: u32,
    crc32c: u32,
    created_at: i64,
    generation: u32,
    cold: bool,
    /// Whose credentials open the store.
    owner: Oid,
}

/// A dictionary's values as datums, and the conversion that made them.
type Converted = (Conversion, Rc<Datums>);

/// An open stripe.
pub struct StripeHandle {
    /// No other handle of this session has it, before or after.
    pub number: u64,
    pub slot: Slot,
    pub entry: Rc<DirectoryEntry>,
    table: String,
    /// Owner of the table, whose credentials open the store.
    owner: Oid,
    outline: OnceCell<Outline>,
    meta: OnceCell<Arc<StripeMeta>>,
    dictionaries: RefCell<Vec<Option<Arc<Dictionary>>>>,
    dictionary_datums: RefCell<Vec<Option<Converted>>>,
    /// Place of the first chunk, a guess to be verified.
    first_chunk: Cell<Option<firn_directory::Place>>,
    weight: Cell<usize>,
    used: Cell<u64>,
    /// How many [`Held`] there are of it.
    holders: Cell<usize>,
}

/// Bytes of a cold stripe that are held at once, about, at most.
const MOST_AT_ONCE: u64 = 64 << 20;
/// What a range that does not follow the one before takes beside its bytes, at most: the cache reads whole blocks.
const BESIDE: u64 = 128 << 10;

/// How many of these ranges are read at once.
fn how_many_at_once(ranges: &[Range<u64>]) -> usize {
    let (mut held, mut last) = (0, None);
    let fits = |range: &&Range<u64>| {
        let beside = if last == Some(range.start) { 0 } else { BESIDE };
        last = Some(range.end);
        held += range.end.saturating_sub(range.start) + beside;
        held <= MOST_AT_ONCE
    };
    ranges.iter().take_while(fits).count().max(1).min(ranges.len())
}

/// What a handle takes by itself, bytes.
const WEIGHT: usize = 512;

/// Handles in the cache at most, but for those in use.
const MOST: usize = 65_536;

thread_local! {
    /// Weights of all handles that are [`Held`].
    static HELD: Cell<usize> = const { Cell::new(0) };
    /// Weights of all handles that there are.
    static WEIGHTS: Cell<usize> = const { Cell::new(0) };
    /// Some handle has grown since the cache was looked over.
    static GROWN: Cell<bool> = const { Cell::new(false) };
    static HANDLES: RefCell<(MixMap<Key, Rc<StripeHandle>>, u64)> = RefCell::default();
    static DECODER: RefCell<Decoder> = RefCell::new(Decoder::in_workspace(shared::workspace()));
}

/// Use the session's decoder.
pub(super) fn with_decoder<T>(f: impl FnOnce(&mut Decoder) -> T) -> T {
    DECODER.with_borrow_mut(f)
}

/// The handle of the stripe that `entry` describes.
pub fn handle_for(
    table: Rel,
    toast: &Toast,
    slot: Slot,
    entry: &Rc<DirectoryEntry>,
) -> Rc<StripeHandle> {
    let key = Key {
        storage: toast.storage(),
        slot: slot.0,
        crc32c: entry.crc32c,
        created_at: entry.created_at,
        generation: entry.generation,
        cold: matches!(entry.location, Location::Object { .. }),
        owner: table.owner(),
    };
    HANDLES.with_borrow_mut(|(map, clock)| {
        *clock += 1;
        let is_there = |handle: &&Rc<StripeHandle>| {
            Rc::ptr_eq(&handle.entry, entry) || handle.entry.location == entry.location
        };
        if let Some(handle) = map.get(&key).filter(is_there) {
            handle.used.set(*clock);
            let handle = handle.clone();
            // What was opened light and has grown since counts as well, while no new stripe comes.
            if GROWN.replace(false) {
                evict(map);
            }
            return handle;
        }
        evict(map);
        let handle = Rc::new(StripeHandle {
            number: *clock,
            slot,
            entry: entry.clone(),
            table: table.name(),
            owner: table.owner(),
            outline: OnceCell::new(),
            meta: OnceCell::new(),
            dictionaries: RefCell::default(),
            dictionary_datums: RefCell::default(),
            first_chunk: Cell::new(None),
            weight: Cell::new(WEIGHT),
            used: Cell::new(*clock),
            holders: Cell::new(0),
        });
        WEIGHTS.set(WEIGHTS.get() + WEIGHT);
        map.insert(key, handle.clone());
        handle
    })
}

/// Keep the cache within its bound: those not used longest go, until half of it is free. Not those that are in use: that
/// would free nothing, and have them read again beside it. Nor the newest: whoever asked for it has only begun.
fn evict(map: &mut MixMap<Key, Rc<StripeHandle>>) {
    // Directory rows have the last quarter.
    let bound = guc::metadata_cache() / 4 * 3;
    // (Known without going through all of them: a session may meet tens of thousands, each of which asks.)
    if WEIGHTS.get() < bound && map.len() < MOST {
        return;
    }
    let mut total: usize = map.values().map(|h| h.weight.get()).sum();
    if total < bound && map.len() < MOST {
        // Those that count beside it are in use, and no longer in the cache.
        return;
    }
    let unused = map.values().filter(|h| Rc::strong_count(h) == 1);
    let mut unused: Vec<_> = unused.map(|h| (h.used.get(), h.weight.get())).collect();
    unused.sort_unstable();
    let newest = map.values().map(|h| h.used.get()).max();
    let (mut left, mut last_to_go) = (map.len(), 0);
    for (used, weight) in unused {
        if Some(used) == newest || (total <= bound / 2 && left <= MOST / 2) {
            break;
        }
        total -= weight;
        left -= 1;
        last_to_go = used;
    }
    map.retain(|_, h| h.used.get() > last_to_go || Rc::strong_count(h) > 1);
}

/// A handle that stays for its scan's next row, whatever other scans read meanwhile. As many as `firn.metadata_cache` has
/// room for: of scans that take turns, each would find its handle gone if only the cache had them.
pub struct Held(Rc<StripeHandle>);

impl Held {
    /// None where there is no room (any more). To be asked again after each row: a handle grows with what is read by it.
    pub fn new(handle: &Rc<StripeHandle>) -> Option<Held> {
        let holders = handle.holders.get();
        let held = HELD.get() + if holders == 0 { handle.weight.get() } else { 0 };
        if held > guc::metadata_cache() {
            return None;
        }
        HELD.set(held);
        handle.holders.set(holders + 1);
        Some(Held(handle.clone()))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let left = self.0.holders.get() - 1;
        self.0.holders.set(left);
        if left == 0 {
            HELD.set(HELD.get() - self.0.weight.get());
        }
    }
}

impl Drop for StripeHandle {
    fn drop(&mut self) {
        WEIGHTS.set(WEIGHTS.get() - self.weight.get());
        pages::forget(self.number);
    }
}

impl StripeHandle {
    /// More is kept of the stripe.
    fn grow(&self, bytes: usize) {
        self.weight.set(self.weight.get() + bytes);
        WEIGHTS.set(WEIGHTS.get() + bytes);
        GROWN.set(true);
        if self.holders.get() > 0 {
            HELD.set(HELD.get() + bytes);
        }
    }

    /// It is in use, by somebody who did not have to ask for it; `anew` if that one read another before.
    pub fn touch(&self, anew: bool) {
        HANDLES.with_borrow_mut(|(map, clock)| {
            *clock += 1;
            self.used.set(*clock);
            // As if it had been asked for.
            if anew && GROWN.replace(false) {
                evict(map);
            }
        });
    }

    /// Read bytes of the stripe.
    pub fn read(&self, toast: &Toast, offset: u64, len: usize, out: &mut Vec<u8>) {
        out.clear();
        out.reserve(len);
        match &self.entry.location {
            Location::Chunks { address, .. } => {
                let (id, first) = chunks::key_of(*address);
                if !toast.read_run(id, first, offset, out, len, &self.first_chunk) {
                    error(
                        Kind::Corrupt,
                        format!(
                            "stripe {} of table \"{}\" is missing a chunk",
                            self.slot.0, self.table
                        ),
                    )
                    .detail(format!("Bytes {offset} to {} could not be read.", offset + len as u64))
                    .hint("Run firn.check() on the table.")
                    .raise()
                }
            }
            Location::Object { server, key } => {
                let store = (server.as_str(), self.owner);
                crate::stores::read_object(store, key, self.entry.bytes, offset, len, out)
            }
        }
    }

    /// Read bytes of a stripe in chunks at a glance: they are what they seem to be, and are to be held against a checksum. False says nothing.
    pub fn glance(&self, toast: &Toast, offset: u64, len: usize, out: &mut Vec<u8>) -> bool {
        out.clear();
        match &self.entry.location {
            Location::Chunks { address, .. } => {
                let (id, first) = chunks::key_of(*address);
                let bytes = offset..offset.saturating_add(len as u64);
                toast.glance_run(id, first, bytes, out, &self.first_chunk)
            }
            Location::Object { .. } => false,
        }
    }

    /// The first of these ranges of a cold stripe at once, as many as are to be in memory together, one at least: each by itself would be a request
    /// after the other. Nothing for a stripe in chunks: for these there is [`StripeHandle::read`].
    pub fn read_at_once(&self, ranges: &[Range<u64>]) -> Vec<Bytes> {
        match &self.entry.location {
            Location::Object { server, key } if !ranges.is_empty() => {
                let store = (server.as_str(), self.owner);
                let first = &ranges[..how_many_at_once(ranges)];
                crate::stores::read_object_at_once(store, key, self.entry.bytes, first)
            }
            _ => Vec::new(),
        }
    }

    /// All bytes of a cold stripe as the store has them, past the cache, which forgets what it has of them; none of a stripe in chunks.
    pub fn read_afresh(&self) -> Vec<u8> {
        let Location::Object { server, key } = &self.entry.location else { return Vec::new() };
        let store = (server.as_str(), self.owner);
        crate::stores::forget_object(store, key, self.entry.bytes);
        crate::stores::read_whole(store, key, self.entry.bytes)
    }

    /// Its bytes are in an object store.
    pub fn is_cold(&self) -> bool {
        matches!(self.entry.location, Location::Object { .. })
    }

    /// These bytes will be read soon.
    pub fn read_soon(&self, toast: &Toast, bytes: Range<u64>) {
        if matches!(self.entry.location, Location::Chunks { .. }) {
            toast.read_soon(bytes, &self.first_chunk);
        }
    }

    /// As [`StripeHandle::read`] for a stripe in chunks, but false when a chunk is missing.
    pub fn try_read(&self, toast: &Toast, offset: u64, len: usize, out: &mut Vec<u8>) -> bool {
        out.clear();
        match &self.entry.location {
            Location::Chunks { address, .. } => {
                let (id, first) = chunks::key_of(*address);
                toast.read_run(id, first, offset, out, len, &self.first_chunk)
            }
            Location::Object { .. } => {
                self.read(toast, offset, len, out);
                true
            }
        }
    }

    /// What has to be known of the stripe for a row of it, read at first use.
    pub fn outline(&self, toast: &Toast) -> &Outline {
        if let Some(outline) = self.outline.get() {
            return outline;
        }
        let offset = self.entry.meta_offset;
        let len = self.entry.bytes.saturating_sub(offset) as usize;
        let mut tail = Vec::new();
        self.read(toast, offset, len, &mut tail);
        let outline = self
            .entry
            .verify_meta(&tail)
            .and_then(|()| Outline::parse(&tail, offset))
            .unwrap_or_else(|e| self.raise(e));
        self.grow(outline.memory_bytes());
        self.dictionaries.borrow_mut().resize(outline.columns().len(), None);
        self.dictionary_datums.borrow_mut().resize(outline.columns().len(), None);
        self.outline.get_or_init(|| outline)
    }

    /// The stripe's metadata, also that of all pages of far columns.
    pub fn meta(&self, toast: &Toast) -> &Arc<StripeMeta> {
        if let Some(meta) = self.meta.get() {
            return meta;
        }
        let outline = self.outline(toast);
        let meta = match outline.whole() {
            Some(meta) => meta.clone(),
            None => {
                let far = outline.far();
                let mut bytes = Vec::new();
                self.read(toast, far.start, (far.end - far.start) as usize, &mut bytes);
                let meta = outline.complete(&bytes).unwrap_or_else(|e| self.raise(e));
                self.grow(meta.memory_bytes());
                Arc::new(meta)
            }
        };
        self.meta.get_or_init(|| meta)
    }

    /// Where the page is that holds a row of a stripe column.
    pub fn place_of(&self, toast: &Toast, column: usize, row: u32) -> Place<'_> {
        let place = match self.meta.get() {
            Some(meta) => meta.page(column, meta.page_of(column, row)).map(Place::Page),
            None => self.outline(toast).place(column, row),
        };
        place.unwrap_or_else(|e| self.raise(e))
    }

    /// The page at that place. Of a far column its record is read, each time, from where all sessions have it, unless all of
    /// them were read for a scan.
    pub fn page_at<'a>(
        &'a self,
        toast: &Toast,
        column: usize,
        place: &Place<'a>,
        bytes: &mut Vec<u8>,
    ) -> PageRef<'a> {
        let (number, offset) = match place {
            Place::Page(page) => return *page,
            Place::Record { number, offset, .. } => (*number, *offset),
        };
        let page = match self.entry.location {
            // A request for each record would be slower than one for all.
            Location::Object { .. } => self.meta(toast).page(column, number),
            Location::Chunks { .. } => {
                self.read(toast, offset, RECORD_BYTES, bytes);
                let short = || firn_format::Error::corrupt("a page map ends early");
                let record = bytes.first_chunk().ok_or_else(short);
                record.and_then(|r| self.outline(toast).page_of_record(column, number, r))
            }
        };
        page.unwrap_or_else(|e| self.raise(e))
    }

    /// The page at that place, or what seems to be its record at a glance, which is another's if its bytes have another checksum than it says. None says nothing.
    pub fn glance_at_page<'a>(
        &'a self,
        toast: &Toast,
        column: usize,
        place: &Place<'a>,
        bytes: &mut Vec<u8>,
    ) -> Option<PageRef<'a>> {
        let (number, offset) = match place {
            Place::Page(page) => return Some(*page),
            Place::Record { number, offset, .. } => (*number, *offset),
        };
        if !self.glance(toast, offset, RECORD_BYTES, bytes) {
            return None;
        }
        self.outline(toast).page_of_record(column, number, bytes.first_chunk()?).ok()
    }

    /// Raise what is wrong with this stripe's bytes. Those of a cold one that are damaged are read from the store next time.
    pub fn raise(&self, e: firn_format::Error) -> ! {
        match &self.entry.location {
            Location::Object { server, key } if !e.is_of_newer() => {
                crate::stores::forget_object((server, self.owner), key, self.entry.bytes)
            }
            _ => {}
        }
        raise_format(&self.table, self.slot.0, e)
    }

    /// The dictionary of a stripe column; None when it has none.
    pub fn dictionary(&self, toast: &Toast, column: usize) -> Option<Arc<Dictionary>> {
        let outline = self.outline(toast);
        let (offset, len) = outline.dictionary(column)?;
        if let Some(Some(d)) = self.dictionaries.borrow().get(column) {
            return Some(d.clone());
        }
        let mut bytes = Vec::new();
        self.read(toast, offset, len as usize, &mut bytes);
        Some(self.keep_dictionary(outline, column, &bytes))
    }

    /// The session has the column's dictionary already.
    pub fn has_dictionary(&self, column: usize) -> bool {
        matches!(self.dictionaries.borrow().get(column), Some(Some(_)))
    }

    /// The dictionary of a stripe column, of which these are the bytes.
    pub fn dictionary_of(&self, toast: &Toast, column: usize, bytes: &[u8]) -> Arc<Dictionary> {
        self.keep_dictionary(self.outline(toast), column, bytes)
    }

    fn keep_dictionary(&self, outline: &Outline, column: usize, bytes: &[u8]) -> Arc<Dictionary> {
        let dictionary = with_decoder(|d| outline.decode_dictionary(d, column, bytes))
            .unwrap_or_else(|e| self.raise(e));
        self.grow(2 * dictionary.memory_bytes());
        if let Some(place) = self.dictionaries.borrow_mut().get_mut(column) {
            *place = Some(dictionary.clone());
        }
        dictionary
    }

    /// A page of a stripe column, read (into `bytes`) and decoded.
    pub fn decode_page(
        &self,
        toast: &Toast,
        column: usize,
        page: &PageRef<'_>,
        bytes: &mut Vec<u8>,
    ) -> Column {
        let dictionary = self.dictionary(toast, column);
        self.read(toast, page.location.offset, page.location.len as usize, bytes);
        with_decoder(|d| d.decode(page, bytes, dictionary.as_ref()))
            .unwrap_or_else(|e| self.raise(e))
    }

    /// As [`StripeHandle::decode_page`], for who keeps it for single values, and may come to it `again`.
    pub fn pack_page(
        &self,
        toast: &Toast,
        column: usize,
        page: &PageRef<'_>,
        again: bool,
        bytes: &mut Vec<u8>,
    ) -> PackedColumn {
        let dictionary = self.dictionary(toast, column);
        self.read(toast, page.location.offset, page.location.len as usize, bytes);
        with_decoder(|d| d.pack(page, bytes, dictionary.as_ref(), again))
            .unwrap_or_else(|e| self.raise(e))
    }

    /// The dictionary's values as datums.
    pub fn dictionary_datums(
        &self,
        column: usize,
        conversion: Conversion,
        dictionary: &Dictionary,
    ) -> Rc<Datums> {
        if let Some(Some((c, d))) = self.dictionary_datums.borrow().get(column) {
            if *c == conversion {
                return d.clone();
            }
        }
        let datums = Rc::new(dictionary_datums(dictionary, conversion));
        self.grow(datums.memory_bytes());
        if let Some(place) = self.dictionary_datums.borrow_mut().get_mut(column) {
            *place = Some((conversion, datums.clone()));
        }
        datums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_read_at_once() {
        let pages: Vec<Range<u64>> = (0..2_048u64).map(|n| n * 4_096..(n + 1) * 4_096).collect();
        assert_eq!(how_many_at_once(&pages), 2_048);
        // Of many columns: each has blocks of its own.
        let columns: Vec<Range<u64>> = (0..2_048u64).map(|n| n << 20..(n << 20) + 1_024).collect();
        assert_eq!(how_many_at_once(&columns), 508);
        // What is too large is read by itself.
        let huge = [0..1 << 30, 1 << 30..1 << 31, 1 << 31..(1 << 31) + 1];
        assert_eq!(how_many_at_once(&huge), 1);
        assert_eq!(how_many_at_once(&[]), 0);
    }
}
