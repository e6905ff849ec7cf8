//! The folder of an archive in directory format: a local one, one in an object store, one in a tar archive, or one in
//! memory.

use super::checked::Expected;
use super::fault::While;
use super::header::Compression;
use super::manifest::{self, Manifest};
use super::member::Member;
use super::remote::{Object, Remote};
use super::sealed::{self, Seal};
use super::tar::Tar;
use crate::crypt::{self, Keys};
use crate::error::{Error, ErrorKind, Result};
use crate::store::store_error;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file with the table of contents.
const CONTENTS: &[u8] = b"toc.dat";

/// The order in which `pg_restore` looks for a file.
const SUFFIXES: [Compression; 4] =
    [Compression::None, Compression::Gzip, Compression::Lz4, Compression::Zstd];

/// Files by name.
pub(super) type Files = BTreeMap<Vec<u8>, Arc<[u8]>>;

/// The folder, and what a manifest says of its files.
pub(super) struct Folder {
    place: Place,
    expected: Option<Expected>,
    /// Of an encrypted backup; then `expected` is of what was encrypted.
    seal: Option<Seal>,
}

/// Where the files are.
enum Place {
    /// A local folder; its path has no symbolic links.
    Local(PathBuf),
    /// What begins with a prefix in an object store, with the sizes where no manifest has them.
    Remote { remote: Arc<Remote>, sizes: HashMap<Vec<u8>, u64> },
    /// Files that lie in memory.
    Memory(Files),
    /// Files within another.
    Tar(Tar),
}

/// A name of a file right within the folder.
pub(super) fn check_name(name: &[u8]) -> Result<&[u8]> {
    let plain = !name.is_empty()
        && name.len() <= 255
        && name != b"."
        && name != b".."
        && !name.iter().any(|&c| c == b'/' || c == b'\\' || c < b' ' || c == 0x7f);
    if plain {
        return Ok(name);
    }
    Err(Error::archive(format!(
        "\"{}\" is not the name of a file within the archive",
        String::from_utf8_lossy(name).escape_debug()
    )))
}

/// A file's name with each suffix that it may have.
fn spellings(name: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    SUFFIXES.iter().map(move |compression| [name, compression.suffix().as_bytes()].concat())
}

/// What a file is compressed with.
fn by_suffix(name: &[u8]) -> Compression {
    let with = |c: &Compression| *c != Compression::None && name.ends_with(c.suffix().as_bytes());
    SUFFIXES.into_iter().find(with).unwrap_or(Compression::None)
}

/// The bytes of a file as they are stored.
pub(super) struct Stored {
    pub bytes: Box<dyn BufRead + Send>,
    pub compression: Compression,
    /// The file's name with what compression adds.
    pub name: String,
}

impl Folder {
    /// A local folder.
    pub fn local(path: &Path) -> Result<Folder> {
        let real = path.canonicalize().map_err(|e| {
            Error::io(format!("could not open directory \"{}\"", path.display()), &e)
        })?;
        Ok(Folder { place: Place::Local(real), expected: None, seal: None })
    }

    /// What the store of `remote` holds.
    pub fn remote(remote: Arc<Remote>) -> Folder {
        Folder {
            place: Place::Remote { remote, sizes: HashMap::new() },
            expected: None,
            seal: None,
        }
    }

    /// Files that lie in memory.
    pub fn memory(files: Files) -> Folder {
        Folder { place: Place::Memory(files), expected: None, seal: None }
    }

    /// What a tar archive holds.
    pub fn tar(tar: Tar) -> Folder {
        Folder { place: Place::Tar(tar), expected: None, seal: None }
    }

    /// From now on files are compared with this.
    pub fn expect(&mut self, expected: Expected) {
        self.expected = Some(expected);
    }

    /// From now on files are decrypted, and compared with the encrypted manifest.
    pub fn unlock(&mut self, public: &Manifest, keys: &Keys, location: &str) -> Result<()> {
        let (seal, own) = sealed::unlock(self, public, keys, location)?;
        self.expected = Some(Expected::of(&own)?);
        self.seal = Some(seal);
        Ok(())
    }

    /// Whether it is encrypted.
    pub fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    /// The manifest of an encrypted backup, read anew.
    pub fn own_manifest(&self) -> Option<Result<Manifest>> {
        self.seal.as_ref().map(|seal| seal.manifest(self))
    }

    /// There is no manifest: a store is asked what files there are, now and not when one is wanted, because what
    /// is planned by their sizes must not depend on how the store feels. An error if what is there is the
    /// rest of a backup that was not finished: its table of contents may be there and its data not.
    pub fn survey(&mut self) -> Result<()> {
        let marker = manifest::MARKER.as_bytes();
        if let Place::Remote { remote, .. } = &self.place {
            // What is no archive may be a bucket of millions of objects.
            let remote = remote.clone();
            if !self.has_contents()? {
                return match self.find_alone(marker)? {
                    Some(_) => Err(unfinished()),
                    None => Ok(()),
                };
            }
            self.place = Place::Remote { sizes: listed(&remote)?, remote };
        }
        if self.find(manifest::FILE.as_bytes())?.is_some() {
            return Err(
                Error::archive("its manifest was not there, and now it is").hint("Try again.")
            );
        }
        if self.find(manifest::DOOMED.as_bytes())?.is_some() {
            return Err(Error::archive("it is a backup that is being removed")
                .detail(format!("There is a file \"{}\".", manifest::DOOMED)));
        }
        match self.find(marker)? {
            Some(_) => Err(unfinished()),
            None => Ok(()),
        }
    }

    /// Whether a store has a table of contents.
    fn has_contents(&self) -> Result<bool> {
        for full in spellings(CONTENTS) {
            if self.find_alone(&full)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The file with a name as the archive's lists give it, or with that name and a compression's suffix.
    pub fn open(&self, name: &[u8]) -> Result<Stored> {
        for full in spellings(check_name(name)?) {
            if let Some(member) = self.find_stored(&full)? {
                return self.stored(&full, &member);
            }
        }
        Err(missing(name))
    }

    /// The file in which lies what has exactly this name in the archive, if there is such.
    fn find_stored(&self, name: &[u8]) -> Result<Option<Member>> {
        match (&self.seal, &self.expected) {
            (Some(_), Some(expected)) if expected.size(name).is_none() => Ok(None),
            (Some(seal), _) => self.find_sized(&Seal::name(name), seal.public()).map(Some),
            (None, _) => self.find(name),
        }
    }

    /// The file with exactly this name, which a manifest lists.
    pub fn find_sized(&self, name: &[u8], listed: &Expected) -> Result<Member> {
        let found = match (&self.place, listed.size(name)) {
            (Place::Remote { remote, .. }, Some(size)) => {
                let key = String::from_utf8_lossy(name).into_owned();
                Some(Member::object(Object { remote: remote.clone(), key }, size))
            }
            _ => self.find(name)?,
        };
        found.ok_or_else(|| missing(name))
    }

    /// All bytes of what has exactly this name in the archive.
    pub fn read_stored(&self, name: &[u8]) -> Result<Vec<u8>> {
        let member = self.find_stored(name)?.ok_or_else(|| missing(name))?;
        let mut bytes = Vec::new();
        self.stored(name, &member)?.bytes.read_to_end(&mut bytes).map_err(crate::error::of_io)?;
        Ok(bytes)
    }

    /// All bytes of a file as they are, which must not be more than so many.
    pub fn read_small(&self, name: &[u8], most: u64) -> Result<Vec<u8>> {
        let member = self.find_alone(name)?.ok_or_else(|| missing(name))?;
        if member.size > most {
            return Err(Error::archive(format!("file \"{}\" is too large", member.name)));
        }
        let mut bytes = Vec::new();
        member.whole().read_to_end(&mut bytes).map_err(crate::error::of_io)?;
        Ok(bytes)
    }

    /// Reads all of a file of an encrypted backup, encrypted and decrypted, and compares both with what the manifests say.
    pub fn examine(&self, name: &str, each: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let Some(seal) = &self.seal else {
            return Err(Error::new(ErrorKind::Internal, "the backup is not encrypted"));
        };
        let member = self.find_sized(name.as_bytes(), seal.public())?;
        let inner = name.strip_suffix(crypt::SUFFIX).unwrap_or(name).as_bytes();
        let mut bytes = match &self.expected {
            _ if name == crypt::KEY_FILE => seal.public().check(name.as_bytes(), &member)?,
            Some(expected) if expected.size(inner).is_some() => {
                expected.check_bytes(inner, name, seal.open_compared(&member)?)?
            }
            // The encrypted manifest itself.
            _ => seal.open_compared(&member)?,
        };
        loop {
            let n = bytes.fill_buf().map_err(crate::error::of_io)?.len();
            if n == 0 {
                return Ok(());
            }
            bytes.consume(n);
            each(n as u64)?;
        }
    }

    /// The table of contents and its stored size.
    pub fn open_contents(&self) -> Result<(Stored, u64)> {
        for full in spellings(CONTENTS) {
            if let Some(member) = self.find_stored(&full)? {
                let listed = self.expected.as_ref().and_then(|expected| expected.size(&full));
                return Ok((self.stored(&full, &member)?, listed.unwrap_or(member.size)));
            }
        }
        Err(self.no_contents()?)
    }

    /// Why somebody who gave keys gets nothing of a folder that has no manifest.
    pub fn without_manifest(&self, keys: &Keys, what: &str) -> Error {
        let sealed = self.find_alone(&Seal::name(CONTENTS)).map(|found| found.is_some());
        match sealed.and_then(|sealed| Ok(!sealed && self.has_contents()?)) {
            Ok(true) => keys.not_encrypted(what),
            Ok(false) => self.no_contents().unwrap_or_else(|e| e),
            Err(e) => e,
        }
    }

    /// What to say if there is no table of contents in the clear.
    fn no_contents(&self) -> Result<Error> {
        // In a store, too, of whose files there is no list without a table of contents.
        if self.find_alone(&Seal::name(CONTENTS))?.is_some() {
            return Ok(Error::archive("it is encrypted, and its manifest is missing").hint(
                "Decrypt its files with age, all of them into another folder, and restore that.",
            ));
        }
        Ok(Error::archive("file \"toc.dat\" does not exist").hint(
            "An archive is a file or a directory that pg_dump made in custom, directory or tar format.",
        ))
    }

    /// All bytes of a file as they are, if there is one with exactly this name.
    pub fn read_alone(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(member) = self.find_alone(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        member.whole().read_to_end(&mut bytes).map_err(crate::error::of_io)?;
        Ok(Some(bytes))
    }

    fn stored(&self, name: &[u8], member: &Member) -> Result<Stored> {
        let bytes = match (&self.seal, &self.expected) {
            (Some(seal), Some(expected)) => {
                expected.check_bytes(name, &member.name, seal.open(member)?)?
            }
            (_, Some(expected)) => expected.check(name, member)?,
            (_, None) => Box::new(member.whole()),
        };
        Ok(Stored { bytes, compression: by_suffix(name), name: member.name.clone() })
    }

    /// The file with exactly this name, if there is one.
    fn find(&self, name: &[u8]) -> Result<Option<Member>> {
        let shown = || String::from_utf8_lossy(name).into_owned();
        match &self.place {
            Place::Local(folder) => open_local(folder, name),
            Place::Memory(files) => {
                Ok(files.get(name).map(|bytes| Member::memory(shown(), bytes.clone())))
            }
            Place::Tar(tar) => Ok(tar.find(name)),
            Place::Remote { remote, sizes } => {
                let object = || Object { remote: remote.clone(), key: shown() };
                let size = match &self.expected {
                    Some(expected) => expected.size(name),
                    None => sizes.get(name).copied(),
                };
                Ok(size.map(|size| Member::object(object(), size)))
            }
        }
    }

    /// As [`Folder::find`], without asking a store for all its files.
    fn find_alone(&self, name: &[u8]) -> Result<Option<Member>> {
        let Place::Remote { remote, .. } = &self.place else { return self.find(name) };
        let key = String::from_utf8_lossy(name).into_owned();
        let size = remote.size(&key).map_err(store_error)?;
        let object = || Object { remote: remote.clone(), key };
        Ok(size.map(|size| Member::object(object(), size)))
    }

    /// The size of the file that [`Folder::open`] would open, in bytes.
    pub fn size(&self, name: &[u8]) -> Option<u64> {
        spellings(check_name(name).ok()?).find_map(|full| match (&self.expected, &self.place) {
            (Some(expected), _) => expected.size(&full),
            (None, Place::Local(folder)) => {
                fs::metadata(folder.join(OsStr::from_bytes(&full))).ok().map(|meta| meta.len())
            }
            (None, Place::Memory(files)) => files.get(&full).map(|bytes| bytes.len() as u64),
            (None, Place::Tar(tar)) => tar.size(&full),
            (None, Place::Remote { sizes, .. }) => sizes.get(&full).copied(),
        })
    }
}

fn missing(name: &[u8]) -> Error {
    let name = String::from_utf8_lossy(name);
    Error::archive(format!("file \"{name}\" does not exist"))
}

fn unfinished() -> Error {
    let detail =
        format!("There is a file \"{}\" and no file \"{}\".", manifest::MARKER, manifest::FILE);
    Error::archive("it is a backup that was not finished, or is being made")
        .detail(detail)
        .hint("Make the backup again; --overwrite-incomplete removes what there is of this one.")
}

/// The sizes of all files in a store. One listing takes a request per thousand of them; asking for each would
/// take one per file.
fn listed(remote: &Remote) -> Result<HashMap<Vec<u8>, u64>> {
    let found = remote
        .list()
        .while_reading("the archive's list of files", "The store was asked for all files.")?;
    let direct = found.into_iter().filter(|(key, _)| !key.contains('/'));
    Ok(direct.map(|(key, size)| (key.into_bytes(), size)).collect())
}

/// Opens a file within a folder. Links that lead out of it are refused: an archive from elsewhere must not make
/// us read what its maker could not.
fn open_local(folder: &Path, name: &[u8]) -> Result<Option<Member>> {
    let path = folder.join(OsStr::from_bytes(name));
    let shown = String::from_utf8_lossy(name).into_owned();
    let failed =
        |e: &io::Error| Error::io(format!("could not open file \"{}\"", path.display()), e);
    let real = match path.canonicalize() {
        Ok(real) => real,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            if path.is_symlink() {
                return Err(Error::archive(format!("\"{shown}\" is a symbolic link to nothing")));
            }
            return Ok(None);
        }
        Err(e) => return Err(failed(&e)),
    };
    if !real.starts_with(folder) {
        return Err(Error::archive(format!(
            "\"{shown}\" is a symbolic link that leaves the archive"
        ))
        .hint("Files of an archive must lie within its directory."));
    }
    // Opening something else than a file, a pipe for one, might wait for ever.
    if !fs::metadata(&real).map_err(|e| failed(&e))?.is_file() {
        return Err(Error::archive(format!("\"{shown}\" is not a regular file")));
    }
    Member::local(shown, File::open(&real).map_err(|e| failed(&e))?).map(Some)
}
