//! How much the cache's folder holds, and what goes when it is too much. Shared by all processes.
//!
//! The file `usage` holds the sum; a process adds to it before it writes a piece and so never exceeds the bound.
//! Crashes and races leave the sum too high, never too low by more than what is being written; each eviction
//! looks at all files and puts it right. No lock is ever waited for longer than some milliseconds: who does not
//! get one leaves the cache as it is.

use crate::error::ErrorKind;
use crate::error::{io_text, Error, Result};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const MAGIC: &[u8; 8] = b"FIRNUSED";
const USAGE_BYTES: usize = 32;
/// How long the lock on `usage`, held for microseconds, is tried for.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_micros(250);
/// A temporary file older than this is nobody's: writing one takes milliseconds.
const TEMPORARY_AGE: Duration = Duration::from_secs(600);
/// Folders of pieces, named by two hexadecimal digits.
const FOLDERS: u32 = 256;

/// What the folder holds, in bytes on disk and files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub bytes: u64,
    pub pieces: u64,
}

#[derive(Debug)]
pub(super) struct Space {
    /// The folder of this layout's version.
    dir: PathBuf,
    most: u64,
}

impl Space {
    pub fn open(dir: PathBuf, most: u64, cancelled: &dyn Fn() -> bool) -> Result<Self> {
        let space = Space { dir, most };
        let failed = |e: io::Error| {
            Error::new(
                crate::error::io_kind(&e),
                format!("could not open the cache in {}: {}", space.dir.display(), io_text(&e)),
            )
        };
        make_folder(&space.dir).map_err(failed)?;
        // Opening the file shows that the folder can be written to.
        let known = match space.usage_file().and_then(|f| read_usage(&f)) {
            Ok(known) => known,
            Err(e) if e.kind() == io::ErrorKind::StorageFull => Some(Usage::default()),
            Err(e) => return Err(failed(e)),
        };
        if known.is_none_or(|u| u.bytes > most) {
            space.evict(0, cancelled)?;
        }
        Ok(space)
    }

    /// The path of a piece's file.
    pub fn path(&self, hash: u128) -> PathBuf {
        self.dir.join(format!("{:02x}", hash >> 120)).join(format!("{hash:032x}"))
    }

    /// The sum; `None` if the file holds none.
    pub fn usage(&self) -> Option<Usage> {
        // Unlocked: a torn read fails its checksum, so a second look is enough.
        let read = || self.usage_file().and_then(|f| read_usage(&f)).ok().flatten();
        read().or_else(read)
    }

    /// Whether a file of this size may be written now. If so it is counted already.
    pub fn reserve(&self, bytes: u64, cancelled: &dyn Fn() -> bool) -> Result<bool> {
        if bytes > self.most {
            return Ok(false);
        }
        for evicted in [false, true] {
            // Without a sum nothing fits, which leads to an eviction, which makes a new one.
            let granted = self.change(|u| match u {
                Some(u) if u.bytes.saturating_add(bytes) <= self.most => {
                    u.bytes += bytes;
                    u.pieces += 1;
                    true
                }
                _ => false,
            });
            match granted {
                Some(true) => return Ok(true),
                Some(false) if !evicted => {
                    if !self.evict(bytes, cancelled)? {
                        return Ok(false);
                    }
                }
                _ => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Takes back what was reserved, or counted, for a file that is not there.
    pub fn release(&self, bytes: u64) {
        self.change(|u| {
            if let Some(u) = u {
                u.bytes = u.bytes.saturating_sub(bytes);
                u.pieces = u.pieces.saturating_sub(1);
            }
        });
    }

    /// Applies a change under the lock; `None` if the lock or the file cannot be had.
    ///
    /// The change is given no sum if the file is damaged, and leaves none to keep it so.
    fn change<T>(&self, f: impl FnOnce(&mut Option<Usage>) -> T) -> Option<T> {
        let file = self.usage_file().ok()?;
        lock(&file)?;
        let mut usage = read_usage(&file).ok()?;
        let result = f(&mut usage);
        if let Some(usage) = usage {
            write_usage(&file, usage).ok()?;
        }
        Some(result)
    }

    fn usage_file(&self) -> io::Result<File> {
        let open = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(self.dir.join("usage"))
        };
        open().or_else(|e| match e.kind() {
            // Someone removed the whole folder: begin anew.
            io::ErrorKind::NotFound => make_folder(&self.dir).and_then(|()| open()),
            _ => Err(e),
        })
    }

    /// Removes the files used longest ago until `need` bytes more and a tenth of the whole are free. False if another
    /// process is doing so.
    pub fn evict(&self, need: u64, cancelled: &dyn Fn() -> bool) -> Result<bool> {
        let lock_file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.dir.join("evict"));
        let Ok(lock_file) = lock_file else {
            return Ok(false);
        };
        if lock_file.try_lock().is_err() {
            return Ok(false);
        }
        let before = self.usage();
        let mut files = self.files(cancelled)?;
        let mut left =
            Usage { bytes: files.iter().map(|f| f.bytes).sum(), pieces: files.len() as u64 };
        let target = (self.most - self.most / 10).min(self.most.saturating_sub(need));
        if left.bytes > target {
            files.sort_by_key(|f| f.used_at);
            for (n, f) in files.iter().enumerate() {
                if left.bytes <= target {
                    break;
                }
                ask(n, cancelled)?;
                if fs::remove_file(&f.path).is_ok() {
                    left.bytes -= f.bytes;
                    left.pieces -= 1;
                }
            }
        }
        // What others reserved meanwhile may or may not have been seen as files: counted twice at worst.
        self.change(|sum| {
            let (after, before) = sum.zip(before).unwrap_or_default();
            *sum = Some(Usage {
                bytes: left.bytes + after.bytes.saturating_sub(before.bytes),
                pieces: left.pieces + after.pieces.saturating_sub(before.pieces),
            });
        });
        Ok(true)
    }

    /// All files, without those that are nobody's, which are removed.
    fn files(&self, cancelled: &dyn Fn() -> bool) -> Result<Vec<PieceFile>> {
        let mut found = Vec::new();
        let now = SystemTime::now();
        for folder in 0..FOLDERS {
            let Ok(entries) = fs::read_dir(self.dir.join(format!("{folder:02x}"))) else {
                continue;
            };
            for (n, entry) in entries.flatten().enumerate() {
                ask(n, cancelled)?;
                let Ok(meta) = entry.metadata() else {
                    continue;
                };
                if !meta.is_file() {
                    continue;
                }
                let used_at = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                let temporary = entry.file_name().to_string_lossy().starts_with('.');
                let age = now.duration_since(used_at).unwrap_or_default();
                if temporary && age > TEMPORARY_AGE && fs::remove_file(entry.path()).is_ok() {
                    continue;
                }
                found.push(PieceFile {
                    path: entry.path(),
                    bytes: meta.len(),
                    used_at: if temporary { now } else { used_at },
                });
            }
        }
        Ok(found)
    }
}

struct PieceFile {
    path: PathBuf,
    bytes: u64,
    used_at: SystemTime,
}

fn ask(n: usize, cancelled: &dyn Fn() -> bool) -> Result<()> {
    if n.is_multiple_of(64) && cancelled() {
        return Err(Error::new(ErrorKind::Cancelled, "cancelled while making room in the cache"));
    }
    Ok(())
}

/// Creates a folder that only this user can look into: pieces are table data.
pub(super) fn make_folder(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn lock(file: &File) -> Option<()> {
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Some(()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            Err(TryLockError::Error(_)) => return None,
        }
    }
    None
}

/// `None` if the file holds no sum (yet).
fn read_usage(file: &File) -> io::Result<Option<Usage>> {
    let mut b = [0u8; USAGE_BYTES];
    match file.read_exact_at(&mut b, 0) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e),
    }
    let (body, crc) = b.split_at(24);
    if !body.starts_with(MAGIC) || !crc.starts_with(&crc32c::crc32c(body).to_le_bytes()) {
        return Ok(None);
    }
    let number = |at: usize| {
        body.get(at..at + 8).and_then(|s| s.try_into().ok()).map_or(0, u64::from_le_bytes)
    };
    Ok(Some(Usage { bytes: number(8), pieces: number(16) }))
}

fn write_usage(file: &File, usage: Usage) -> io::Result<()> {
    let mut b = Vec::with_capacity(USAGE_BYTES);
    b.extend_from_slice(MAGIC);
    b.extend_from_slice(&usage.bytes.to_le_bytes());
    b.extend_from_slice(&usage.pieces.to_le_bytes());
    b.extend_from_slice(&crc32c::crc32c(&b).to_le_bytes());
    b.resize(USAGE_BYTES, 0);
    file.write_all_at(&b, 0)
}
