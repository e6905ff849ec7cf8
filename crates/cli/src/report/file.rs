//! Files that a run writes for its user: reports, scripts and lists. They appear under their name only when they are whole, so
//! that nothing that is cut off is taken for one, and what the name had before stays until then.

use rustix::fs::{linkat, openat, AtFlags, Mode, OFlags, CWD};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{fchown, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Who may read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Its owner alone, whoever could read what was there before: it tells what databases hold.
    Owner,
    /// Whoever could read what was there before, else as the umask says.
    Usual,
}

/// A file that is being written.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// A pipe, a device, or a file in whose folder no other can be made.
    There { readers: Readers, regular: bool, begun: bool, kept: bool },
    /// Without a name as yet.
    Unnamed { path: PathBuf },
    /// Under a name for a while, on file systems that want one.
    Named { path: PathBuf, name: PathBuf },
}

impl NewFile {
    /// Begin. What is there stays as it is.
    pub fn create(path: &str, readers: Readers) -> io::Result<NewFile> {
        let path = Path::new(path);
        match fs::metadata(path) {
            Ok(meta) => {
                // Whoever may not write to it may not replace it either.
                let file = OpenOptions::new().write(true).open(path)?;
                let other = if replaceable(path, &meta) {
                    beside(path, Some(&meta), readers)
                } else {
                    None
                };
                Ok(other.unwrap_or_else(|| there(file, readers, meta.is_file())))
            }
            // A link to what is not there yet.
            Err(_) if path.is_symlink() => {
                let mode = if readers == Readers::Owner { 0o600 } else { 0o666 };
                let mut options = OpenOptions::new();
                let file =
                    options.write(true).create(true).truncate(false).mode(mode).open(path)?;
                Ok(there(file, readers, true))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => at(path, readers, 0o666),
            Err(e) => Err(e),
        }
    }

    /// All is written: it gets its name.
    pub fn keep(&mut self) -> io::Result<()> {
        self.begin()?;
        // What a full disk or quota takes back is told here at the latest.
        let synced = !matches!(self.place, Place::There { regular: false, .. });
        if synced {
            self.file.sync_all()?;
        }
        if let Place::Unnamed { path } = &self.place {
            let path = path.clone();
            let name = passing(&path);
            let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            linkat(CWD, &own, CWD, &name, AtFlags::SYMLINK_FOLLOW)?;
            self.place = Place::Named { path, name };
        }
        match &mut self.place {
            Place::Named { path, name } => {
                fs::rename(name, path)?;
                self.place = Place::There {
                    readers: Readers::Usual,
                    regular: true,
                    begun: true,
                    kept: true,
                };
            }
            Place::There { kept, .. } => *kept = true,
            Place::Unnamed { .. } => {}
        }
        Ok(())
    }

    /// What was there goes when something comes in its place.
    fn begin(&mut self) -> io::Result<()> {
        if let Place::There { readers, regular: true, begun: begun @ false, .. } = &mut self.place {
            *begun = true;
            if *readers == Readers::Owner {
                self.file.set_permissions(Permissions::from_mode(0o600))?;
            }
            self.file.set_len(0)?;
        }
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.begin()?;
        self.file.write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        match &self.place {
            Place::Named { name, .. } => drop(fs::remove_file(name)),
            Place::There { regular: true, begun: true, kept: false, .. } => {
                drop(self.file.set_len(0));
            }
            _ => {}
        }
    }
}

fn there(file: File, readers: Readers, regular: bool) -> NewFile {
    NewFile { file, place: Place::There { readers, regular, begun: false, kept: false } }
}

/// Whether another file in its place is the same to everybody else. Files that a shell has opened (`/dev/stdout`) and those
/// with several names are written to as they are.
fn replaceable(path: &Path, meta: &Metadata) -> bool {
    // (Files in /dev/shm are files.)
    let folder = path.parent().and_then(|folder| fs::canonicalize(folder).ok());
    let opened = folder.is_some_and(|f| f == Path::new("/dev") || f.starts_with("/proc"));
    meta.is_file() && meta.nlink() == 1 && !opened
}

/// A file that will be renamed to what is there, with its owner and mode; nothing where that cannot be.
fn beside(path: &Path, meta: Option<&Metadata>, readers: Readers) -> Option<NewFile> {
    let path = fs::canonicalize(path).ok()?;
    let made = at(&path, readers, 0o600).ok()?;
    if let Some(old) = meta {
        let new = made.file.metadata().ok()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            fchown(&made.file, Some(old.uid()), Some(old.gid())).ok()?;
        }
        if readers == Readers::Usual {
            let mode = Permissions::from_mode(old.mode() & 0o7777);
            made.file.set_permissions(mode).ok()?;
        }
    }
    Some(made)
}

/// A file of a mode (less the umask) in the folder of a path.
fn at(path: &Path, readers: Readers, mode: u32) -> io::Result<NewFile> {
    let mode = if readers == Readers::Owner { 0o600 } else { mode };
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(made) = openat(CWD, folder, flags, Mode::from_raw_mode(mode)) {
        let file = File::from(made);
        return Ok(NewFile { file, place: Place::Unnamed { path: path.to_path_buf() } });
    }
    // Not all file systems have files without names.
    let name = passing(path);
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&name)?;
    Ok(NewFile { file, place: Place::Named { path: path.to_path_buf(), name } })
}

/// A name for a while, which nobody else takes.
fn passing(path: &Path) -> PathBuf {
    let word = format!(".firn-{}-{:016x}", std::process::id(), firn_lake::random_nonce());
    path.with_file_name(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("firn-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Folder(folder)
        }

        fn path(&self, name: &str) -> String {
            self.0.join(name).to_str().unwrap().to_string()
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let mut names: Vec<String> =
                entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn mode(path: &str) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn written(path: &str, readers: Readers, text: &[u8]) {
        let mut file = NewFile::create(path, readers).unwrap();
        file.write_all(text).unwrap();
        file.keep().unwrap();
        drop(file);
        assert_eq!(fs::read(path).unwrap(), text);
    }

    #[test]
    fn modes() {
        let folder = Folder::new("modes");
        let path = folder.path("page");
        written(&path, Readers::Owner, b"one");
        assert_eq!(mode(&path), 0o600);
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        written(&path, Readers::Usual, b"two");
        assert_eq!(mode(&path), 0o644);
        written(&path, Readers::Owner, b"three");
        assert_eq!(mode(&path), 0o600);
        written(&path, Readers::Usual, b"four");
        assert_eq!(mode(&path), 0o600);
        assert_eq!(folder.names(), ["page"]);
    }

    #[test]
    fn only_when_whole() {
        let folder = Folder::new("whole");
        let (path, linked) = (folder.path("script"), folder.path("link"));
        for there in [None, Some("what was there")] {
            if let Some(text) = there {
                fs::write(&path, text).unwrap();
                std::os::unix::fs::symlink(&path, &linked).unwrap();
            }
            for name in [&path, &linked] {
                let mut file = NewFile::create(name, Readers::Usual).unwrap();
                file.write_all(b"half").unwrap();
                let seen = fs::read_to_string(&path).ok();
                assert_eq!(seen.as_deref(), there);
                drop(file);
                assert_eq!(fs::read_to_string(&path).ok().as_deref(), there);
                if there.is_none() {
                    break;
                }
            }
        }
        written(&linked, Readers::Usual, b"all");
        assert!(Path::new(&linked).is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"all");
        assert_eq!(folder.names(), ["link", "script"]);
    }

    /// With a second name it is still one file; cut off it is empty, which nobody takes for whole.
    #[test]
    fn in_its_place() {
        let folder = Folder::new("place");
        let (path, other) = (folder.path("a"), folder.path("b"));
        fs::write(&path, "what was there").unwrap();
        fs::hard_link(&path, &other).unwrap();
        let file = NewFile::create(&path, Readers::Usual).unwrap();
        drop(file);
        assert_eq!(fs::read(&other).unwrap(), b"what was there");
        written(&path, Readers::Usual, b"new");
        assert_eq!(fs::read(&other).unwrap(), b"new");
        let mut file = NewFile::create(&path, Readers::Usual).unwrap();
        file.write_all(b"half").unwrap();
        drop(file);
        assert_eq!(fs::read(&other).unwrap(), b"");
    }

    #[test]
    fn devices() {
        let mut file = NewFile::create("/dev/full", Readers::Owner).unwrap();
        assert_eq!(file.write_all(b"x").unwrap_err().kind(), io::ErrorKind::StorageFull);
        written("/dev/null", Readers::Owner, b"");
    }
}
