//! A bounded cache of object pieces on the local disk, shared by all processes that open its folder.
//!
//! Reading never fails because of the cache: whatever is wrong with its folder, the bytes come from the store.

mod memory;
mod piece;
mod space;

use crate::error::{Error, ErrorKind, Result};
use crate::ranges;
use crate::store::Store;
use bytes::Bytes;
use memory::Memory;
use piece::{Object, Unusable, BLOCK, HEADER, PIECE};
use space::Space;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

/// Bytes of recently read blocks each process keeps.
const MEMORY: usize = 8 << 20;
/// Longer reads go past the memory: a scan would push out what look-ups return to.
const SMALL_READ: u64 = 256 << 10;
/// Pieces fetched from the store at a time, which bounds what a call holds besides its result.
const FETCH_AT_ONCE: usize = 32;
/// A piece's time of use is not set more often: reading must not cost a write to the folder.
const TOUCH_EVERY: Duration = Duration::from_secs(10);
/// After a write failed (a full disk), no other is tried for this long.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);

/// What a cache holds and how it has served this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Bytes on disk, of all processes.
    pub bytes: u64,
    /// Files, of all processes.
    pub pieces: u64,
    /// Pieces (or blocks of them) this process found in the cache.
    pub hits: u64,
    /// Pieces this process fetched from the store.
    pub misses: u64,
    /// Pieces this process found damaged and fetched again.
    pub damaged: u64,
    /// Pieces this process fetched but could not keep (no room, a full disk, another error of the folder).
    pub not_kept: u64,
}

/// A bounded cache of object pieces on the local disk; see the module and the crate's README.
///
/// Objects are immutable and their keys never used twice, so a piece is never stale. May be shared by threads.
#[derive(Debug)]
pub struct Cache {
    space: Option<Space>,
    memory: Mutex<Memory>,
    paused_until: Mutex<Option<Instant>>,
    hits: AtomicU64,
    misses: AtomicU64,
    damaged: AtomicU64,
    not_kept: AtomicU64,
    temporaries: AtomicU64,
}

impl Cache {
    /// Opens the cache in `dir` (created if absent), which may hold up to `max_bytes` on disk. With 0 nothing is
    /// kept. Processes that open the same folder should agree about `max_bytes`: each one obeys its own.
    pub fn open(dir: &Path, max_bytes: u64) -> Result<Cache> {
        let space = match max_bytes {
            0 => None,
            _ => Some(Space::open(dir.join("v1"), max_bytes, &|| false)?),
        };
        Ok(Cache {
            space,
            memory: Mutex::new(Memory::new(if max_bytes == 0 { 0 } else { MEMORY })),
            paused_until: Mutex::new(None),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            not_kept: AtomicU64::new(0),
            temporaries: AtomicU64::new(0),
        })
    }

    /// Reads bytes of an object of `object_len` bytes, from the cache where it has them.
    ///
    /// `store_id` names the store among those that share this cache, and must stay the same over restarts.
    #[allow(clippy::too_many_arguments)]
    pub fn read(
        &self,
        store: &Store,
        store_id: &str,
        key: &str,
        object_len: u64,
        range: Range<u64>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Bytes> {
        let ranges = [range];
        let mut all = self.read_many(store, store_id, key, object_len, &ranges, cancelled)?;
        all.pop().ok_or_else(|| Error::new(ErrorKind::Other, "a read returned nothing"))
    }

    /// Reads several ranges; what the cache lacks is fetched in parallel. They may overlap and come in any order;
    /// the result is in theirs.
    pub fn read_many(
        &self,
        store: &Store,
        store_id: &str,
        key: &str,
        object_len: u64,
        ranges: &[Range<u64>],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<Bytes>> {
        if let Some(r) = ranges.iter().find(|r| r.start > r.end || r.end > object_len) {
            return Err(Error::invalid(format!(
                "bytes {} to {} of object \"{key}\" cannot be read: it has {object_len}",
                r.start, r.end
            )));
        }
        let object = Object::new(store_id, key, object_len);
        let Some(space) = self.space.as_ref().filter(|_| object.fits()) else {
            let pieces: u64 = ranges.iter().map(|r| pieces_of(r).count() as u64).sum();
            self.misses.fetch_add(pieces, Ordering::Relaxed);
            return store.get_ranges(key, ranges, cancelled);
        };
        let call = Call {
            cache: self,
            space,
            object,
            identity: format!("{store_id}\n{key}\n{object_len}").into(),
            cancelled,
        };
        // Ranges that share blocks are one read: each has buffers of whole blocks.
        let spans = ranges::requests(ranges, BLOCK, u64::MAX);
        let mut reads = Vec::with_capacity(spans.len());
        let mut missing = BTreeSet::new();
        for span in &spans {
            let read = call.look_up(span)?;
            missing.extend(read.holes.iter().copied());
            reads.push(read);
        }
        let missing: Vec<u64> = missing.into_iter().collect();
        for numbers in missing.chunks(FETCH_AT_ONCE) {
            call.fetch(store, numbers, &mut reads)?;
        }
        let read: Vec<_> = spans.into_iter().zip(reads.into_iter().map(Read::finish)).collect();
        ranges::cut(ranges, &read)
            .ok_or_else(|| Error::new(ErrorKind::Other, "a read came back too short"))
    }

    /// Drops all that is cached of one object: for a reader that finds its bytes damaged although the cache does not.
    pub fn forget(&self, store_id: &str, key: &str, object_len: u64) {
        let Some(space) = &self.space else {
            return;
        };
        let object = Object::new(store_id, key, object_len);
        self.memory().forget(&format!("{store_id}\n{key}\n{object_len}"));
        for number in pieces_of(&(0..object_len)) {
            remove(space, &object, number);
        }
    }

    /// What the cache holds and how it has served.
    pub fn stats(&self) -> CacheStats {
        let usage = self.space.as_ref().and_then(Space::usage).unwrap_or_default();
        CacheStats {
            bytes: usage.bytes,
            pieces: usage.pieces,
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            damaged: self.damaged.load(Ordering::Relaxed),
            not_kept: self.not_kept.load(Ordering::Relaxed),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // A panic elsewhere while it was held cannot have left it inconsistent enough to matter: blocks are
        // verified before they go in and never changed.
        self.memory.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn may_write(&self) -> bool {
        let mut paused = self.paused_until.lock().unwrap_or_else(|e| e.into_inner());
        match *paused {
            Some(until) if Instant::now() < until => false,
            _ => {
                *paused = None;
                true
            }
        }
    }

    fn pause_writes(&self) {
        let mut paused = self.paused_until.lock().unwrap_or_else(|e| e.into_inner());
        *paused = Some(Instant::now() + PAUSE_AFTER_FAILURE);
    }
}

/// The numbers of the pieces a range touches.
fn pieces_of(range: &Range<u64>) -> Range<u64> {
    if range.start >= range.end {
        return 0..0;
    }
    range.start / PIECE..(range.end - 1) / PIECE + 1
}

/// Removes a piece's file and the count of it.
fn remove(space: &Space, object: &Object, number: u64) {
    let path = space.path(object.piece_hash(number));
    let Ok(meta) = fs::metadata(&path) else {
        return;
    };
    if fs::remove_file(&path).is_ok() {
        // Whatever happened to the file, no more than was once counted.
        let range = object.piece_range(number);
        space.release(meta.len().min(HEADER + range.end - range.start));
    }
}

/// One range being put together.
struct Read {
    /// The range, widened to whole blocks: checksums are per block.
    wide: Range<u64>,
    /// Where the wanted bytes lie in `buffer`.
    wanted: Range<usize>,
    buffer: Vec<u8>,
    /// Complete already, from memory.
    ready: Option<Bytes>,
    /// The pieces whose bytes `buffer` still lacks.
    holes: Vec<u64>,
}

impl Read {
    fn finish(self) -> Bytes {
        match self.ready {
            Some(bytes) => bytes,
            None => Bytes::from(self.buffer).slice(self.wanted),
        }
    }
}

/// What one call of `read_many` carries around.
struct Call<'a> {
    cache: &'a Cache,
    space: &'a Space,
    object: Object<'a>,
    identity: Arc<str>,
    cancelled: &'a dyn Fn() -> bool,
}

impl Call<'_> {
    fn check_cancelled(&self) -> Result<()> {
        if (self.cancelled)() {
            return Err(Error { key: Some(self.object.key.to_string()), ..Error::cancelled() });
        }
        Ok(())
    }

    fn look_up(&self, range: &Range<u64>) -> Result<Read> {
        let small = range.end - range.start <= SMALL_READ;
        if small {
            if let Some(bytes) = self.recall(range) {
                let pieces = pieces_of(range).count() as u64;
                self.cache.hits.fetch_add(pieces, Ordering::Relaxed);
                return Ok(Read {
                    wide: range.clone(),
                    wanted: 0..0,
                    buffer: Vec::new(),
                    ready: Some(bytes),
                    holes: Vec::new(),
                });
            }
        }
        let start = range.start / BLOCK * BLOCK;
        let end = range.end.next_multiple_of(BLOCK).min(self.object.length);
        let too_large = |_| Error::invalid("the range is too large");
        let mut read = Read {
            wide: start..end,
            wanted: usize::try_from(range.start - start).map_err(too_large)?
                ..usize::try_from(range.end - start).map_err(too_large)?,
            buffer: vec![0; usize::try_from(end - start).map_err(too_large)?],
            ready: None,
            holes: Vec::new(),
        };
        for number in pieces_of(&read.wide) {
            self.check_cancelled()?;
            let within = self.share(&read.wide, number);
            let out = slot(&mut read, &self.object, number, &within)?;
            if self.piece_from_disk(number, within.clone(), out) {
                self.cache.hits.fetch_add(1, Ordering::Relaxed);
                if small {
                    self.remember(number, within.start, out);
                }
            } else {
                read.holes.push(number);
            }
        }
        Ok(read)
    }

    /// The part of a piece that a range needs, relative to the piece's start.
    fn share(&self, wide: &Range<u64>, number: u64) -> Range<u64> {
        let piece = self.object.piece_range(number);
        wide.start.max(piece.start) - piece.start..wide.end.min(piece.end) - piece.start
    }

    fn recall(&self, range: &Range<u64>) -> Option<Bytes> {
        if range.start >= range.end {
            return Some(Bytes::new());
        }
        let (first, last) = (range.start / BLOCK, (range.end - 1) / BLOCK);
        let mut memory = self.cache.memory();
        let mut get = |block: u64| {
            let number = block * BLOCK / PIECE;
            let within = (block - number * (PIECE / BLOCK)) as u32;
            memory.get(self.object.piece_hash(number), within, &self.identity)
        };
        if first == last {
            let from = (range.start - first * BLOCK) as usize;
            let to = (range.end - first * BLOCK) as usize;
            let block = get(first)?;
            return (to <= block.len()).then(|| block.slice(from..to));
        }
        let mut whole = Vec::with_capacity((range.end - range.start) as usize);
        for block in first..=last {
            let bytes = get(block)?;
            let at = block * BLOCK;
            let from = range.start.saturating_sub(at) as usize;
            let to = (range.end - at).min(BLOCK) as usize;
            whole.extend_from_slice(bytes.get(from..to)?);
        }
        Some(whole.into())
    }

    /// Keeps blocks in memory: copies, so that a small block does not hold a large buffer.
    fn remember(&self, number: u64, start: u64, bytes: &[u8]) {
        let hash = self.object.piece_hash(number);
        let first = (start / BLOCK) as u32;
        let mut memory = self.cache.memory();
        for (n, block) in bytes.chunks(BLOCK as usize).enumerate() {
            let copy = Bytes::copy_from_slice(block);
            memory.put(hash, first + n as u32, &self.identity, copy);
        }
    }

    /// Whether the piece was there and whole.
    fn piece_from_disk(&self, number: u64, within: Range<u64>, out: &mut [u8]) -> bool {
        let path = self.space.path(self.object.piece_hash(number));
        let Ok(file) = File::open(&path) else {
            return false;
        };
        match piece::read(&file, &self.object, number, within, out) {
            Ok(()) => {
                touch(&file);
                true
            }
            Err(Unusable::Damaged) => {
                self.cache.damaged.fetch_add(1, Ordering::Relaxed);
                remove(self.space, &self.object, number);
                false
            }
            Err(Unusable::Other) => {
                remove(self.space, &self.object, number);
                false
            }
            Err(Unusable::Io) => false,
        }
    }

    /// Fetches pieces, gives the reads their shares, and keeps the pieces.
    fn fetch(&self, store: &Store, numbers: &[u64], reads: &mut [Read]) -> Result<()> {
        let ranges: Vec<Range<u64>> = numbers.iter().map(|n| self.object.piece_range(*n)).collect();
        let fetched = store.get_ranges(self.object.key, &ranges, self.cancelled)?;
        let misses = numbers.len() as u64;
        self.cache.misses.fetch_add(misses, Ordering::Relaxed);
        for (number, bytes) in numbers.iter().zip(&fetched) {
            for read in reads.iter_mut().filter(|r| r.holes.contains(number)) {
                let within = self.share(&read.wide, *number);
                let small = (read.wanted.end - read.wanted.start) as u64 <= SMALL_READ;
                let part = bytes
                    .get(within.start as usize..within.end as usize)
                    .ok_or_else(|| Error::new(ErrorKind::Other, "a piece came back too short"))?;
                slot(read, &self.object, *number, &within)?.copy_from_slice(part);
                if small {
                    self.remember(*number, within.start, part);
                }
            }
            self.check_cancelled()?;
            if !self.keep(*number, bytes)? {
                self.cache.not_kept.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Writes a piece to the folder. Only a cancel is an error.
    fn keep(&self, number: u64, bytes: &[u8]) -> Result<bool> {
        if !self.cache.may_write() {
            return Ok(false);
        }
        let size = HEADER + bytes.len() as u64;
        let path = self.space.path(self.object.piece_hash(number));
        if path.exists() {
            // Another process was faster.
            return Ok(true);
        }
        if !self.space.reserve(size, self.cancelled)? {
            return Ok(false);
        }
        let written = self.write(&path, number, bytes);
        if written.is_err() {
            self.space.release(size);
            self.cache.pause_writes();
        }
        Ok(written.is_ok())
    }

    fn write(&self, path: &Path, number: u64, bytes: &[u8]) -> io::Result<()> {
        let serial = self.cache.temporaries.fetch_add(1, Ordering::Relaxed);
        let nonce = crate::key::random_nonce();
        let temporary = Temporary(
            path.with_file_name(format!(".{}.{serial}.{nonce:016x}.tmp", std::process::id())),
        );
        let create =
            || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary.0);
        let mut file = create().or_else(|e| match (e.kind(), path.parent()) {
            (io::ErrorKind::NotFound, Some(folder)) => {
                space::make_folder(folder)?;
                create()
            }
            _ => Err(e),
        })?;
        piece::write(&mut file, &self.object, number, bytes)?;
        fs::rename(&temporary.0, path)
    }
}

/// The part of a read's buffer that a piece fills.
fn slot<'a>(
    read: &'a mut Read,
    object: &Object,
    number: u64,
    within: &Range<u64>,
) -> Result<&'a mut [u8]> {
    let at = (object.piece_range(number).start + within.start - read.wide.start) as usize;
    read.buffer
        .get_mut(at..at + (within.end - within.start) as usize)
        .ok_or_else(|| Error::new(ErrorKind::Other, "a piece lies outside of its read"))
}

/// Marks a piece as used now, unless it was lately. What fails here only makes eviction less fair.
fn touch(file: &File) {
    let used_at = file.metadata().and_then(|m| m.modified());
    if let Ok(used_at) = used_at {
        let now = SystemTime::now();
        if now.duration_since(used_at).unwrap_or_default() > TOUCH_EVERY {
            let _ = file.set_modified(now);
        }
    }
}

/// A temporary file's path; the file goes when this is dropped, unless it was renamed.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
