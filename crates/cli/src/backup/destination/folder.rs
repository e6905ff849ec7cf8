//! A backup in a local folder.

use super::{
    in_doubt, judge, lost, must_clear, take_over, usurped, Destination, Output, Preparation,
    Sibling,
};
use crate::archive::manifest::{self, Manifest};
use crate::backup::place::{failed, Place};
use crate::error::{Error, Result};
use rustix::fs::{renameat_with, RenameFlags, CWD};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A folder of files.
pub struct FolderDestination {
    path: PathBuf,
    sync: bool,
    jobs: usize,
    /// The marker's text.
    marker: Vec<u8>,
    /// Files written and not yet synced.
    unsynced: Arc<Mutex<Vec<PathBuf>>>,
}

/// Files of at least so many bytes are synced by whoever wrote them, while others still write.
const LARGE: u64 = 1 << 20;
/// Bytes written between two syncs of a file: the last one has little left to wait for.
const SYNC_EVERY: u64 = 64 << 20;

impl FolderDestination {
    /// Creates the folder, readable to its owner only, or makes sure that it is empty.
    pub fn prepare(path: PathBuf, how: Preparation) -> Result<FolderDestination> {
        let mut names = Vec::new();
        match fs::read_dir(&path) {
            Ok(entries) => {
                for entry in entries {
                    let entry = entry.map_err(|e| failed("read directory", &path, &e))?;
                    names.push(entry.file_name().to_string_lossy().into_owned());
                }
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new()
                    .mode(0o700)
                    .create(&path)
                    .map_err(|e| failed("create directory", &path, &e))?;
            }
            Err(e) => return Err(failed("read directory", &path, &e)),
        }
        let marker = path.join(manifest::MARKER);
        let read = || fs::read(&marker).map_err(|e| failed("read file", &marker, &e));
        let found = judge(names.iter().map(String::as_str), read)?;
        let location = path.display().to_string();
        let clear = must_clear(&location, found, how.overwrite_incomplete)?;
        let mut destination = FolderDestination {
            path,
            sync: how.sync,
            jobs: how.jobs,
            marker: how.marker.to_text()?,
            unsynced: Arc::default(),
        };
        if clear {
            let place = Place::Folder(destination.path.clone());
            destination.marker = take_over(&place, &location, &how.marker)?;
            return Ok(destination);
        }
        // Of two backups to the same folder only one gets past this.
        let mut file = destination.open_new(&marker)?;
        let written = file.write_all(&destination.marker);
        written.and_then(|()| if destination.sync { file.sync_all() } else { Ok(()) }).map_err(
            |e| {
                // Half a marker tells nothing.
                let _ = fs::remove_file(&marker);
                failed("write file", &marker, &e)
            },
        )?;
        if destination.sync {
            sync_folder(&destination.path)?;
            if let Ok(Some(parent)) =
                destination.path.canonicalize().map(|p| p.parent().map(Path::to_path_buf))
            {
                sync_folder(&parent)?;
            }
        }
        Ok(destination)
    }

    fn open_new(&self, path: &Path) -> Result<File> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|e| failed("create file", path, &e))
    }
}

/// Copies a file, if it is what it should be.
fn copy(source: &Path, mut output: Box<dyn Output>, from: &Sibling) -> bool {
    let Ok(mut file) = File::open(source) else { return false };
    let (mut hash, mut size) = (Sha256::new(), 0);
    loop {
        let mut bytes = Vec::new();
        match (&mut file).take(1 << 20).read_to_end(&mut bytes) {
            Ok(0) => break,
            Ok(n) => size += n as u64,
            Err(_) => return false,
        }
        hash.update(&bytes);
        if output.write(bytes).is_err() {
            return false;
        }
    }
    size == from.size && manifest::hex(&hash.finalize()) == from.sha256 && output.finish().is_ok()
}

/// Whether there is a file of just this text.
fn holds(path: &Path, text: &[u8]) -> io::Result<bool> {
    match fs::read(path) {
        Ok(found) => Ok(found == text),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Gives a file another name; false if there is a file of that name, or somebody has removed this one.
fn name_new(from: &Path, to: &Path) -> Result<bool> {
    let named = match fs::hard_link(from, to) {
        Ok(()) => true,
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => is_same(from, to),
        Err(e) if e.kind() == io::ErrorKind::NotFound => false,
        // A file system without links.
        Err(_) => return rename_new(from, to),
    };
    // It has its name, or it has lost. What cannot be removed is in nobody's way.
    let _ = fs::remove_file(from);
    Ok(named)
}

/// Whether both are names of one file: NFS repeats a request whose answer was lost, and the second answer is that the name is taken.
fn is_same(one: &Path, other: &Path) -> bool {
    let inode = |path| fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()));
    matches!((inode(one), inode(other)), (Ok(one), Ok(other)) if one == other)
}

fn rename_new(from: &Path, to: &Path) -> Result<bool> {
    let two_steps = || match to.try_exists() {
        Ok(false) => match fs::rename(from, to) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            renamed => renamed.map(|()| true),
        },
        found => found.map(|_| false),
    };
    let named = match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(is_same(from, to)),
        Err(Errno::NOENT) => Ok(false),
        // Not even that: between the two somebody may come.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => two_steps(),
        Err(e) => Err(e.into()),
    };
    if !matches!(named, Ok(true)) || from.try_exists().unwrap_or(false) {
        let _ = fs::remove_file(from);
    }
    named.map_err(|e| failed("rename file", from, &e))
}

/// Removes what was adopted and is not as it should be.
fn discard(path: &Path) -> Result<bool> {
    fs::remove_file(path).map_err(|e| failed("remove file", path, &e))?;
    Ok(false)
}

fn sync_folder(path: &Path) -> Result<()> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .map_err(|e| failed("synchronize directory", path, &e))
}

impl Destination for FolderDestination {
    fn create(&self, name: &str, _expected: u64) -> Result<Box<dyn Output>> {
        let path = self.path.join(name);
        let file = self.open_new(&path)?;
        let unsynced = self.sync.then(|| Arc::clone(&self.unsynced));
        Ok(Box::new(FileOutput { file, path, written: 0, since_sync: 0, unsynced }))
    }

    fn adopt(&self, from: &Sibling, name: &str) -> Result<bool> {
        let path = self.path.join(name);
        let source = match self.path.canonicalize() {
            Ok(own) => own.with_file_name(from.backup).join(from.file),
            Err(e) => return Err(failed("find directory", &self.path, &e)),
        };
        // One file by two names: who removes one backup leaves the other whole. A symbolic link would be nothing of the kind.
        let linked = fs::symlink_metadata(&source).is_ok_and(|found| found.is_file())
            && fs::hard_link(&source, &path).is_ok();
        if !linked {
            // Another file system, one without links, too many of them, or a file that is not ours.
            return match copy(&source, self.create(name, from.size)?, from) {
                true => Ok(true),
                false => discard(&path),
            };
        }
        if !fs::metadata(&path).is_ok_and(|found| found.len() == from.size) {
            return discard(&path);
        }
        if self.sync {
            self.unsynced.lock().unwrap_or_else(|e| e.into_inner()).push(path);
        }
        Ok(true)
    }

    fn scratch(&self) -> Result<File> {
        let path = self.path.join(manifest::SCRATCH);
        let file = self.open_new(&path)?;
        fs::remove_file(&path).map_err(|e| failed("remove file", &path, &e))?;
        Ok(file)
    }

    fn settle(&self) -> Result<()> {
        let paths = std::mem::take(&mut *self.unsynced.lock().unwrap_or_else(|e| e.into_inner()));
        let next = AtomicUsize::new(0);
        let sync_some = || -> Result<()> {
            while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                File::open(path)
                    .and_then(|file| file.sync_all())
                    .map_err(|e| failed("synchronize file", path, &e))?;
            }
            Ok(())
        };
        let threads = (self.jobs * 2).min(paths.len().div_ceil(16));
        std::thread::scope(|scope| {
            let threads: Vec<_> = (1..threads).map(|_| scope.spawn(sync_some)).collect();
            let mut result = sync_some();
            for thread in threads {
                let other = thread.join();
                result = result.and(other.unwrap_or_else(|_| {
                    Err(Error::new(crate::error::ErrorKind::Internal, "a thread panicked"))
                }));
            }
            result
        })?;
        if self.sync {
            sync_folder(&self.path)?;
        }
        Ok(())
    }

    fn seal(&self, manifest: &Manifest) -> Result<()> {
        let marker = self.path.join(manifest::MARKER);
        let note = self.path.join(manifest::DOOMED);
        let usurpers = || {
            !matches!(note.try_exists(), Ok(false))
                || fs::read(&marker).map_or(true, |text| text != self.marker)
        };
        if usurpers() {
            return Err(usurped());
        }
        let (found, _) = Place::Folder(self.path.clone()).list(0)?;
        let found = found.iter().map(|file| (&file.name[..], file.size)).collect();
        if let Some(file) = manifest.lacking(&found).first() {
            return Err(lost(file));
        }
        let manifest = manifest.to_text()?;
        let temporary = self.path.join(manifest::temporary(manifest::FILE));
        let target = self.path.join(manifest::FILE);
        let mut file = self.open_new(&temporary)?;
        file.write_all(&manifest).map_err(|e| failed("write file", &temporary, &e))?;
        if self.sync {
            file.sync_all().map_err(|e| failed("synchronize file", &temporary, &e))?;
        }
        // An answer may be wrong, or be about another try (NFS): what is there tells.
        let named = name_new(&temporary, &target);
        if !matches!(named, Ok(true)) {
            match holds(&target, &manifest) {
                Ok(true) => {}
                // Another run has long been where this one is: this one was stopped, or its disk did not answer.
                Ok(false) => return Err(named.err().unwrap_or_else(usurped)),
                Err(e) => {
                    let e = failed("read file", &target, &e);
                    return Err(in_doubt(named.err().unwrap_or(e)));
                }
            }
        }
        // Whoever takes the place exchanges the marker, and whoever removes the backup writes his note, and then looks for the manifest.
        // If neither is there now, he will find it.
        if usurpers() {
            match holds(&target, &manifest) {
                Ok(true) => Place::Folder(self.path.clone())
                    .remove(manifest::FILE)
                    .map_err(|_| in_doubt(usurped()))?,
                Ok(false) => {}
                Err(_) => return Err(in_doubt(usurped())),
            }
            return Err(usurped());
        }
        // Only now: an error must not keep us from looking.
        if self.sync {
            sync_folder(&self.path).map_err(in_doubt)?;
        }
        // The manifest is there and tells enough: should the marker stay, or come back after a crash, nobody minds.
        let _ = Place::Folder(self.path.clone()).remove(manifest::MARKER);
        Ok(())
    }

    fn abandon(&self) {}
}

struct FileOutput {
    file: File,
    path: PathBuf,
    written: u64,
    since_sync: u64,
    /// Where to leave the path of a small file; `None` if nothing is synced.
    unsynced: Option<Arc<Mutex<Vec<PathBuf>>>>,
}

impl Output for FileOutput {
    fn write(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.file.write_all(&bytes).map_err(|e| failed("write file", &self.path, &e))?;
        self.written += bytes.len() as u64;
        self.since_sync += bytes.len() as u64;
        if self.since_sync >= SYNC_EVERY && self.unsynced.is_some() {
            self.file.sync_data().map_err(|e| failed("synchronize file", &self.path, &e))?;
            self.since_sync = 0;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Some(unsynced) = &self.unsynced else { return Ok(()) };
        if self.written >= LARGE {
            return self.file.sync_all().map_err(|e| failed("synchronize file", &self.path, &e));
        }
        unsynced.lock().unwrap_or_else(|e| e.into_inner()).push(self.path.clone());
        Ok(())
    }
}
