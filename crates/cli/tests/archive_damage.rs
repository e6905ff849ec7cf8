//! Damaged archives: cut off anywhere, with any byte changed, or mixed up. Reading them ends with an error or the same
//! contents, never with a panic, and never takes much more memory than they are large.
//!
//! One test in a program of its own, because it counts the memory that the program takes.

#[path = "archives/read.rs"]
mod read;

use firn_cli::archive::Archive;
use firn_cli::Error;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use read::{contents, expected, files, path, whole_archives, Piece};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn taken(more: usize) {
    PEAK.fetch_max(NOW.fetch_add(more, Ordering::Relaxed) + more, Ordering::Relaxed);
}

// SAFETY: everything is passed on to the system's allocator as it comes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        System.alloc(layout)
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        System.dealloc(at, layout)
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        taken(size);
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        System.realloc(at, layout, size)
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Buffers and decompressors: the largest block of an LZ4 frame has 4 MiB and is held twice.
const BUFFERS: usize = 16 << 20;

type Contents = BTreeMap<Piece, Vec<u8>>;

/// Reads all of an archive and checks what that took.
fn read_all(size: usize, open: impl FnOnce() -> Result<Archive, Error>) -> Result<Contents, Error> {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let mut kept = 0;
    let found = open().and_then(|archive| {
        // What the contents themselves take is no matter: a few bytes may be a long text compressed.
        let found = contents(&archive)?;
        kept = found.values().map(Vec::len).sum::<usize>();
        Ok(found)
    });
    let peak = PEAK.load(Ordering::Relaxed) - before;
    assert!(peak < BUFFERS + 16 * size + 4 * kept, "{peak} bytes for a file of {size}");
    found
}

/// What an archive consists of: one file, or some with names.
#[derive(Clone)]
enum Raw {
    Custom(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, Arc<[u8]>>),
}

impl Raw {
    fn load(path: &std::path::Path) -> Raw {
        match path.is_file() {
            true => Raw::Custom(std::fs::read(path).unwrap()),
            false => Raw::Directory(files(path)),
        }
    }

    /// The files by number.
    fn parts(&self) -> Vec<Vec<u8>> {
        match self {
            Raw::Custom(bytes) => vec![bytes.clone()],
            Raw::Directory(files) => files.values().map(|bytes| bytes.to_vec()).collect(),
        }
    }

    fn name(&self, part: usize) -> String {
        match self {
            Raw::Custom(_) => String::new(),
            Raw::Directory(files) => {
                String::from_utf8(files.keys().nth(part).unwrap().clone()).unwrap()
            }
        }
    }

    /// The bytes of a file that are worth changing: tables of contents are alike in all archives of a version.
    fn places(&self, path: &std::path::Path, part: usize) -> std::ops::Range<usize> {
        let plain = path.file_name().unwrap().to_str().unwrap().starts_with("none.d");
        let size = self.parts()[part].len();
        match self {
            _ if plain => 0..size,
            Raw::Directory(_) if self.name(part) == "toc.dat" => 0..0,
            Raw::Directory(_) => 0..size,
            Raw::Custom(_) => {
                let beside = path.to_str().unwrap().replace(".piped", "");
                let archive = Archive::open(&beside).unwrap();
                let data: u64 =
                    (0..archive.toc().len()).filter_map(|place| archive.data_size(place)).sum();
                size - data as usize..size
            }
        }
    }

    fn read_with(&self, part: usize, bytes: Vec<u8>) -> Result<Contents, Error> {
        match self {
            Raw::Custom(_) => read_all(bytes.len(), || Archive::from_bytes(bytes)),
            Raw::Directory(files) => {
                let mut files = files.clone();
                *files.values_mut().nth(part).unwrap() = bytes.into();
                let size = files.values().map(|f| f.len()).sum();
                read_all(size, || Archive::from_files(files))
            }
        }
    }
}

fn explained(e: &Error) {
    assert!(e.message.starts_with("could not "), "{e}");
    assert!(e.detail.is_some() && e.hint.is_some(), "{e}");
}

/// Cut off at each length: an error, unless nothing is lost.
fn cut_off() {
    for archive in whole_archives() {
        let raw = Raw::load(&archive);
        for (part, bytes) in raw.parts().into_iter().enumerate() {
            let name = raw.name(part);
            // The end of a large object's file has no mark if it is not compressed, and one that is cut to nothing
            // may be an empty one in LZ4 and zstd.
            let unmarked = name.starts_with("blob_") && name.ends_with(".dat");
            let from = usize::from(name.starts_with("blob_") && !name.ends_with(".gz"));
            let places = raw.places(&archive, part);
            for length in (places.start.max(from)..places.end).filter(|_| !unmarked) {
                match raw.read_with(part, bytes[..length].to_vec()) {
                    Err(e) => explained(&e),
                    // Empty lines behind COPY's end are no loss.
                    Ok(found) => assert!(
                        found == expected(),
                        "{} {name} cut to {length} of {}",
                        archive.display(),
                        bytes.len()
                    ),
                }
            }
        }
    }
}

/// Each byte changed. What gzip holds is protected by checksums: an error or the same contents.
fn flipped() {
    for archive in whole_archives() {
        let raw = Raw::load(&archive);
        for (part, bytes) in raw.parts().into_iter().enumerate() {
            let name = raw.name(part);
            for at in raw.places(&archive, part) {
                let mut changed = bytes.clone();
                changed[at] ^= [1, 0xff, 0x80][at % 3];
                match raw.read_with(part, changed) {
                    Err(e) => explained(&e),
                    Ok(found) if name.ends_with(".gz") => {
                        assert!(found == expected(), "{} {name} byte {at}", archive.display())
                    }
                    Ok(_) => {}
                }
            }
        }
    }
}

/// Several changes at once: bytes set, removed, doubled, taken from elsewhere.
fn mixed_up() {
    let archives: Vec<Raw> = whole_archives()
        .iter()
        .chain(&[path("15/latin1.dump"), path("18/schema.dump")])
        .map(|path| Raw::load(path))
        .collect();
    let change = (0u8..4, any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>());
    let changes = prop::collection::vec(change, 1..6);
    let strategy = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), changes);
    let mut runner =
        TestRunner::new(Config { cases: 3000, failure_persistence: None, ..Config::default() });
    let run = runner.run(&strategy, |(archive, part, changes)| {
        let raw = archive.get(&archives);
        let parts = raw.parts();
        let part = part.index(parts.len());
        let mut bytes = parts[part].clone();
        for (kind, a, b, value) in changes {
            if bytes.is_empty() {
                break;
            }
            let (a, b) = (a.index(bytes.len()), b.index(bytes.len()));
            let (from, to) = (a.min(b), a.max(b).min(a.min(b) + 300));
            match kind {
                0 => bytes[a] = value,
                1 => drop(bytes.drain(from..to)),
                2 => {
                    let copy = bytes[from..to].to_vec();
                    bytes.splice(to..to, copy);
                }
                _ => {
                    let copy = bytes[from..to].to_vec();
                    let end = (value as usize * 7 + copy.len()).min(bytes.len());
                    let start = end - copy.len();
                    bytes[start..end].copy_from_slice(&copy);
                }
            }
        }
        if let Err(e) = raw.read_with(part, bytes) {
            explained(&e);
        }
        Ok(())
    });
    run.unwrap();
}

#[test]
fn damage() {
    for (name, run) in [("cut off", cut_off as fn()), ("flipped", flipped), ("mixed up", mixed_up)]
    {
        let begun = std::time::Instant::now();
        run();
        println!("{name}: {:.1?}", begun.elapsed());
    }
}
