//! A store in a local (or mounted) folder. Plain blocking calls in pieces small enough to stop between them.

use crate::error::{io_kind, ErrorKind, Failure};
use bytes::Bytes;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

type Result<T> = std::result::Result<T, Failure>;

/// Bytes read or written between two questions whether to stop.
const STEP: usize = 1 << 20;
/// Bytes written between two syncs, so that no single sync has much to wait for.
const SYNC_EVERY: usize = 8 << 20;

/// A folder whose files are objects; a key is the path below it.
#[derive(Debug)]
pub(crate) struct FileStore {
    root: PathBuf,
}

impl FileStore {
    pub fn new(root: PathBuf) -> Self {
        FileStore { root }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }

    /// A missing root folder is a mount that is away, not a store without objects.
    fn check_root(&self) -> Result<()> {
        match fs::metadata(&self.root) {
            Ok(m) if m.is_dir() => Ok(()),
            Ok(_) => {
                Err(Failure::fatal(ErrorKind::InvalidOptions, "the store's folder is not a folder"))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Failure::fatal(
                ErrorKind::Unreachable,
                "the store's folder does not exist (is it mounted?)",
            )),
            Err(e) => Err(e.into()),
        }
    }

    fn open(&self, key: &str) -> Result<(File, u64)> {
        let opened = File::open(self.path(key)).and_then(|f| f.metadata().map(|m| (f, m)));
        match opened {
            Ok((file, meta)) if meta.is_file() => Ok((file, meta.len())),
            Ok(_) => Err(Failure::fatal(ErrorKind::NotFound, "it is not a file")),
            Err(e) => {
                if io_kind(&e) == ErrorKind::NotFound {
                    self.check_root()?;
                    return Err(Failure::fatal(ErrorKind::NotFound, "it does not exist"));
                }
                Err(e.into())
            }
        }
    }

    /// Writes under a temporary name, syncs, and links the file into place, which fails if the key
    /// exists; then syncs the folder. After a crash the object is there whole or not at all.
    pub fn put(&self, key: &str, bytes: &Bytes, cancelled: &dyn Fn() -> bool) -> Result<()> {
        self.check_root()?;
        let target = self.path(key);
        let folder = target.parent().unwrap_or(&self.root);
        self.make_folders(folder)?;
        if fs::symlink_metadata(&target).is_ok() {
            return Err(exists());
        }
        let temporary = Temporary::beside(&target)?;
        let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary.0)?;
        let mut unsynced = 0;
        for step in bytes.chunks(STEP) {
            if cancelled() {
                return Err(Failure::cancelled());
            }
            file.write_all(step)?;
            unsynced += step.len();
            if unsynced >= SYNC_EVERY {
                file.sync_data()?;
                unsynced = 0;
            }
        }
        file.sync_all()?;
        if cancelled() {
            return Err(Failure::cancelled());
        }
        move_into_place(temporary, &target)
    }

    /// Writes a small object in the place of whatever has the key; after a crash there is either.
    pub fn replace(&self, key: &str, bytes: &Bytes) -> Result<()> {
        self.check_root()?;
        let target = self.path(key);
        let folder = target.parent().unwrap_or(&self.root);
        self.make_folders(folder)?;
        let temporary = Temporary::beside(&target)?;
        let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary.0)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary.0, &target)?;
        Ok(sync_folder(folder)?)
    }

    /// Begins an object that comes in parts; the answer is the name of the temporary file.
    pub fn upload_begin(&self, key: &str) -> Result<String> {
        self.check_root()?;
        let target = self.path(key);
        self.make_folders(target.parent().unwrap_or(&self.root))?;
        if fs::symlink_metadata(&target).is_ok() {
            return Err(exists());
        }
        let temporary = Temporary::beside(&target)?;
        OpenOptions::new().write(true).create_new(true).open(&temporary.0)?;
        let name = temporary.0.file_name().and_then(|n| n.to_str()).map(str::to_string);
        let name = name.ok_or_else(|| Failure::fatal(ErrorKind::Other, "a file has no name"))?;
        temporary.keep();
        Ok(name)
    }

    fn temporary(&self, key: &str, id: &str) -> PathBuf {
        self.path(key).with_file_name(id)
    }

    /// Writes a part.
    pub fn upload_part(
        &self,
        key: &str,
        id: &str,
        offset: u64,
        bytes: &Bytes,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<()> {
        let file = OpenOptions::new().write(true).open(self.temporary(key, id))?;
        let mut at = offset;
        for step in bytes.chunks(STEP) {
            if cancelled() {
                return Err(Failure::cancelled());
            }
            file.write_all_at(step, at)?;
            at += step.len() as u64;
        }
        file.sync_data()?;
        Ok(())
    }

    /// Moves an object of this size into place.
    pub fn upload_finish(
        &self,
        key: &str,
        id: &str,
        size: u64,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<()> {
        let temporary = Temporary(self.temporary(key, id));
        let file = OpenOptions::new().write(true).open(&temporary.0)?;
        let found = file.metadata()?.len();
        if found != size {
            return Err(Failure::fatal(
                ErrorKind::Corrupt,
                format!("its parts have {size} bytes and its file {found}"),
            ));
        }
        file.sync_all()?;
        if cancelled() {
            return Err(Failure::cancelled());
        }
        move_into_place(temporary, &self.path(key))
    }

    /// Removes what was written of an object.
    pub fn upload_abort(&self, key: &str, id: &str) -> Result<()> {
        remove(&self.temporary(key, id))
    }

    /// Removes an object, durably.
    pub fn delete(&self, key: &str) -> Result<()> {
        self.check_root()?;
        let path = self.path(key);
        remove(&path)?;
        match path.parent().filter(|folder| folder.is_dir()) {
            Some(folder) => Ok(sync_folder(folder)?),
            None => Ok(()),
        }
    }

    /// Creates the folders down to `folder`, each one durable before anything is put into it.
    fn make_folders(&self, folder: &Path) -> Result<()> {
        let missing: Vec<&Path> =
            folder.ancestors().take_while(|a| *a != self.root && !a.is_dir()).collect();
        for f in missing.into_iter().rev() {
            match fs::create_dir(f) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e.into()),
            }
            if let Some(parent) = f.parent() {
                sync_folder(parent)?;
            }
        }
        Ok(())
    }

    pub fn get_many(
        &self,
        key: &str,
        ranges: &[Range<u64>],
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<Bytes>> {
        let (file, length) = self.open(key)?;
        ranges.iter().map(|r| read(&file, length, r, cancelled)).collect()
    }

    pub fn head(&self, key: &str) -> Result<u64> {
        self.open(key).map(|(_, length)| length)
    }

    /// The crc32c of a whole object, and its length.
    pub fn checksum(&self, key: &str, cancelled: &dyn Fn() -> bool) -> Result<(u64, u32)> {
        let (file, length) = self.open(key)?;
        let mut crc = 0;
        let mut at = 0;
        while at < length {
            let end = (at + STEP as u64).min(length);
            crc = crc32c::crc32c_append(crc, &read(&file, length, &(at..end), cancelled)?);
            at = end;
        }
        Ok((length, crc))
    }

    /// All objects whose key begins with `prefix`.
    pub fn list(&self, prefix: &str, cancelled: &dyn Fn() -> bool) -> Result<Vec<(String, u64)>> {
        self.check_root()?;
        let start = prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut found = Vec::new();
        let mut folders = vec![start.to_string()];
        while let Some(folder) = folders.pop() {
            let entries = match fs::read_dir(self.root.join(&folder)) {
                Ok(entries) => entries,
                Err(e) if io_kind(&e) == ErrorKind::NotFound => continue,
                Err(e) => return Err(e.into()),
            };
            for entry in entries {
                if cancelled() {
                    return Err(Failure::cancelled());
                }
                let entry = entry?;
                let Ok(name) = entry.file_name().into_string() else {
                    continue;
                };
                let key = if folder.is_empty() { name } else { format!("{folder}/{name}") };
                // Temporary files and whatever else could not have been put here.
                if crate::key::check_key(&key).is_err() {
                    continue;
                }
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    folders.push(key);
                } else if kind.is_file() && key.starts_with(prefix) {
                    match entry.metadata() {
                        Ok(meta) => found.push((key, meta.len())),
                        Err(e) if io_kind(&e) == ErrorKind::NotFound => {}
                        Err(e) => return Err(e.into()),
                    }
                }
            }
        }
        found.sort();
        Ok(found)
    }
}

fn read(
    file: &File,
    length: u64,
    range: &Range<u64>,
    cancelled: &dyn Fn() -> bool,
) -> Result<Bytes> {
    if range.end > length {
        return Err(Failure::fatal(
            ErrorKind::Corrupt,
            format!("it has {length} bytes where {} are needed", range.end),
        ));
    }
    let wanted = usize::try_from(range.end.saturating_sub(range.start))
        .map_err(|_| Failure::fatal(ErrorKind::InvalidOptions, "the range is too large"))?;
    let mut buffer = vec![0; wanted];
    let mut at = range.start;
    for step in buffer.chunks_mut(STEP) {
        if cancelled() {
            return Err(Failure::cancelled());
        }
        file.read_exact_at(step, at)?;
        at += step.len() as u64;
    }
    Ok(buffer.into())
}

fn exists() -> Failure {
    Failure::fatal(ErrorKind::AlreadyExists, "an object with this key exists")
}

/// Removes a file if it is there.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if io_kind(&e) != ErrorKind::NotFound => Err(e.into()),
        _ => Ok(()),
    }
}

/// Gives a file its name, unless another one has it, and makes that durable.
fn move_into_place(temporary: Temporary, target: &Path) -> Result<()> {
    match fs::hard_link(&temporary.0, target) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => return Err(exists()),
        // Some file systems have no hard links. Renaming would replace what exists, so look once more.
        Err(_) => {
            if fs::symlink_metadata(target).is_ok() {
                return Err(exists());
            }
            fs::rename(&temporary.0, target)?;
        }
    }
    drop(temporary);
    if let Some(folder) = target.parent() {
        sync_folder(folder)?;
    }
    Ok(())
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// A temporary file's path; the file goes when this is dropped.
struct Temporary(PathBuf);

impl Temporary {
    /// `.<name>.<process>.<random>.tmp`: keys have no part that begins with a dot, so it is never an object.
    fn beside(target: &Path) -> Result<Self> {
        let mut name = OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        name.push(format!(".{}.{:016x}.tmp", std::process::id(), crate::key::random_nonce()));
        Ok(Temporary(target.with_file_name(name)))
    }

    /// Leaves the file where it is.
    fn keep(mut self) {
        self.0 = PathBuf::new();
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.0.as_os_str().is_empty() {
            return;
        }
        // It may never have been created, or have been renamed; and there is nobody to tell of a failure.
        let _ = fs::remove_file(&self.0);
    }
}
