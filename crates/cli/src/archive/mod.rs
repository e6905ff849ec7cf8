//! What a `pg_dump` archive says.
//!
//! [`Archive`] reads the custom, directory and tar formats of `pg_dump` 9.0 to 18 (those of 15 to 18 are tested) from a
//! local path, an object store or standard input.
//! Nothing in an archive is trusted: lengths are bounded by the file, names are
//! plain names, and data that ends early is an error. Why not a library: docs/decisions/0007-archive-reader.md.
//!
//! - [`toc`]: the table of contents in memory, compact: 164,000 partitions make 1.3 million entries.
//! - `wire`, `header`, `contents`: reading it.
//! - `custom`, `directory`: where the data is; `decompress`, `copy_end`: what it is.
//! - `folder`, `tar`, `member`, `remote`, `spool`: the files, wherever they are; `checked`: compared with a backup's
//!   manifest; `sealed`: decrypted.
//! - `large_objects`: whether all are there; `fault`: errors on their way through readers.

mod checked;
mod contents;
mod copy_end;
mod custom;
mod decompress;
mod directory;
mod fault;
mod folder;
mod header;
pub mod large_objects;
pub mod manifest;
mod member;
mod remote;
pub mod rewrite;
mod sealed;
mod spool;
mod tar;
pub mod toc;
mod wire;

pub use crate::error::of_io as read_error;
pub use header::{Compression, Created, Format, Header};
pub use sealed::open;
pub use toc::{Absent, Entry, Section, Toc};

use crate::crypt::{self, Keys};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{store_error, Location, StoreSettings};
use checked::Expected;
use custom::Custom;
use directory::Directory;
use fault::{while_reading, Explained, While, INCOMPLETE};
use folder::{Folder, Stored};
use manifest::Manifest;
use member::Member;
use remote::{Object, Remote};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use tar::{is_tar, Tar};
use wire::Wire;

/// What is told of errors about a table of contents that is not found.
const CONTENTS: &str = "The table of contents of an archive is its file \"toc.dat\".";

/// One large object of an archive.
pub struct LargeObject {
    pub oid: u32,
    /// Its contents. To be read before the next large object is asked for.
    pub data: Box<dyn Read + Send>,
}

type LargeObjects<'a> = Box<dyn Iterator<Item = Result<LargeObject>> + Send + 'a>;

/// An archive that was opened for reading. Many threads may read different entries of it at once.
///
/// Errors of the readers it gives are the program's own in disguise: [`read_error`] takes it off.
pub struct Archive {
    location: String,
    header: Header,
    toc: Toc,
    fingerprint: [u8; 32],
    data: Data,
}

enum Data {
    Custom(Custom),
    Directory(Directory),
}

impl Archive {
    /// Opens an archive and reads its table of contents. `location` is a path, a `file:///…` or an `s3://bucket/key`
    /// URL of an archive's file or a directory, or `-` for standard input; object stores are reached as the environment
    /// says.
    pub fn open(location: &str) -> Result<Archive> {
        Archive::open_with(location, &StoreSettings::default())
    }

    /// [`Archive::open`] with settings for object stores.
    pub fn open_with(location: &str, settings: &StoreSettings) -> Result<Archive> {
        Archive::open_locked(location, settings, &Keys::default())
    }

    /// [`Archive::open_with`] for a backup that may be encrypted.
    pub fn open_locked(location: &str, settings: &StoreSettings, keys: &Keys) -> Result<Archive> {
        if location == "-" {
            let file = spool::standard_input(settings)?;
            let member = Member::local(spool::NAME.into(), file)?;
            return Archive::open_file(spool::NAME, member, keys);
        }
        match Location::parse(location)? {
            Location::Local(path) => Archive::open_local(location, &path, keys),
            Location::S3 { bucket, key } => {
                Archive::open_remote(location, &bucket, &key, settings, keys)
            }
        }
    }

    fn open_local(location: &str, path: &Path, keys: &Keys) -> Result<Archive> {
        let doing = || format!("could not open archive \"{location}\"");
        let meta = fs::metadata(path).map_err(|e| Error::io(doing(), &e))?;
        if meta.is_dir() {
            return Archive::open_directory(location, Folder::local(path)?, keys);
        }
        if !meta.is_file() {
            return Err(Error::archive(format!("{}: it is not a regular file", doing())).hint(
                "Data is read from several places at once, which a pipe cannot do. \
                       Standard input may be one.",
            ));
        }
        let file = File::open(path).map_err(|e| Error::io(doing(), &e))?;
        Archive::open_file(location, Member::local(location.to_string(), file)?, keys)
    }

    /// Whether it is an object or a prefix only asking tells.
    fn open_remote(
        location: &str,
        bucket: &str,
        key: &str,
        settings: &StoreSettings,
        keys: &Keys,
    ) -> Result<Archive> {
        if !key.is_empty() && !location.ends_with('/') {
            let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
            let remote = Remote::new(&format!("s3://{bucket}/{prefix}"), settings)?;
            match remote.size(name) {
                Ok(Some(size)) => {
                    let object = Object { remote, key: name.to_string() };
                    return Archive::open_file(location, Member::object(object, size), keys);
                }
                // Without the right to list, what does not exist is denied.
                Ok(None)
                | Err(firn_lake::Error { kind: firn_lake::ErrorKind::PermissionDenied, .. }) => {}
                Err(e) => return Err(store_error(e)),
            }
        }
        let remote = Remote::new(&format!("s3://{bucket}/{key}"), settings)?;
        Archive::open_directory(location, Folder::remote(remote), keys)
    }

    /// Reads an archive in custom or tar format that lies in memory.
    pub fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Result<Archive> {
        let member = Member::memory("memory".to_string(), bytes.into());
        Archive::open_file("memory", member, &Keys::default())
    }

    /// Reads an archive in directory format whose files, by name, lie in memory.
    pub fn from_files(files: BTreeMap<Vec<u8>, Arc<[u8]>>) -> Result<Archive> {
        Archive::from_locked_files(files, &Keys::default())
    }

    /// [`Archive::from_files`] of a backup that may be encrypted.
    pub fn from_locked_files(files: BTreeMap<Vec<u8>, Arc<[u8]>>, keys: &Keys) -> Result<Archive> {
        Archive::open_directory("memory", Folder::memory(files), keys)
    }

    fn open_file(location: &str, member: Member, keys: &Keys) -> Result<Archive> {
        let what = format!("archive \"{location}\"");
        let detail = "File of an archive.";
        let mut start = Vec::new();
        let read = member.read(0..512).take(512).read_to_end(&mut start).map_err(read_error);
        read.while_reading(&what, detail)?;
        if is_tar(&start) {
            let tar = Tar::open(member).while_reading(&what, detail)?;
            return Archive::open_files(location, Folder::tar(tar), Format::Tar, keys);
        }
        refuse_other_formats(&start).while_reading(&what, detail)?;
        keys.expect_nothing(&what)?;
        Archive::open_custom(location, member)
    }

    fn open_custom(location: &str, member: Member) -> Result<Archive> {
        let what = format!("archive \"{location}\"");
        let mut wire = Wire::new(member.start(), member.size);
        let detail = format!("File \"{}\".", member.name);
        let read = read_contents(&mut wire, Format::Custom, &member.name, member.size);
        let (header, toc, places) = read.while_reading(&what, &detail)?;
        check_data_start(&wire, &places).while_reading(&what, &detail)?;
        let custom =
            Custom::new(member, wire.int_size, header.compression, wire.position(), places.offsets);
        Ok(Archive {
            location: location.to_string(),
            header,
            toc,
            fingerprint: wire.finish(),
            data: Data::Custom(custom),
        })
    }

    fn open_directory(location: &str, folder: Folder, keys: &Keys) -> Result<Archive> {
        Archive::open_files(location, folder, Format::Directory, keys)
    }

    fn open_files(
        location: &str,
        mut folder: Folder,
        format: Format,
        keys: &Keys,
    ) -> Result<Archive> {
        let what = format!("archive \"{location}\"");
        let manifest = format!("File \"{}\" of the archive.", manifest::FILE);
        match manifest_of(&folder).while_reading(&what, &manifest)? {
            Some(public) if public.head.encryption.is_some() => {
                let own = format!("File \"{}\" of the archive.", sealed::manifest_file(true));
                folder.unlock(&public, keys, location).map_err(|e| match e.kind {
                    ErrorKind::Key => e,
                    _ => while_reading(e, &what, &own),
                })?;
            }
            Some(own) => {
                keys.expect_nothing(&what)?;
                folder.expect(Expected::of(&own).while_reading(&what, &manifest)?);
            }
            None => {
                folder.survey().while_reading(&what, &manifest)?;
                // Whatever lies there, nothing shows that it is what the key is for: who can write there, too, may
                // have put a table of contents of his own beside an encrypted one.
                if keys.are_given() {
                    let refusal = folder.without_manifest(keys, &what);
                    return Err(while_reading(refusal, &what, CONTENTS));
                }
            }
        }
        let detail = "File \"toc.dat\" of the archive.";
        let opened = folder.open_contents().map_err(|e| while_reading(e, &what, CONTENTS));
        let (Stored { bytes, compression, name }, size) = opened?;
        let limit = if compression == Compression::None { size } else { u64::MAX };
        let contents = decompress::of_file(bytes, compression).map_err(read_error);
        let mut wire = Wire::new(contents.while_reading(&what, detail)?, limit);
        let read = read_contents(&mut wire, format, &name, size).and_then(|contents| {
            match wire.at_end()? {
                true => Ok(contents),
                false => Err(Error::archive("the file goes on after the last entry")),
            }
        });
        let (header, toc, places) = read.while_reading(&what, detail)?;
        // Before anything is done with the archive, not only when the file is wanted.
        for name in places.names.values() {
            folder::check_name(name).while_reading(&what, detail)?;
        }
        Ok(Archive {
            location: location.to_string(),
            header,
            toc,
            fingerprint: wire.finish(),
            data: Data::Directory(Directory::new(folder, places.names)),
        })
    }

    /// What the archive says about itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The table of contents.
    pub fn toc(&self) -> &Toc {
        &self.toc
    }

    /// Use another table of contents in place of the archive's own, with entries in the same places.
    pub fn change_toc(&mut self, change: impl FnOnce(Toc) -> Result<Toc>) -> Result<()> {
        self.toc = change(std::mem::take(&mut self.toc))?;
        Ok(())
    }

    /// The manifest, if this is a backup of `firn backup`. Read anew, as it may be large.
    pub fn manifest(&self) -> Result<Option<Manifest>> {
        match &self.data {
            Data::Custom(_) => Ok(None),
            Data::Directory(directory) => {
                let folder = directory.folder();
                let what = format!("archive \"{}\"", self.location);
                let name = sealed::manifest_file(folder.is_sealed());
                let file = format!("File \"{name}\" of the archive.");
                let found = match folder.own_manifest() {
                    Some(own) => own.map(Some),
                    None => manifest_of(folder),
                };
                found.while_reading(&what, &file)
            }
        }
    }

    /// Whether this is an encrypted backup.
    pub fn is_encrypted(&self) -> bool {
        matches!(&self.data, Data::Directory(directory) if directory.folder().is_sealed())
    }

    /// Reads all of a file of an encrypted backup, by the name that it has there, and compares it with all that the
    /// manifests say. `each` gets the numbers of bytes.
    pub fn examine(&self, name: &str, each: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        match &self.data {
            Data::Custom(_) => Err(Error::new(ErrorKind::Internal, "no folder to look into")),
            Data::Directory(directory) => directory.folder().examine(name, each),
        }
    }

    /// All bytes of a file of a directory, as it was before encryption.
    pub fn read_file(&self, name: &str) -> Result<Vec<u8>> {
        match &self.data {
            Data::Custom(_) => Err(Error::new(ErrorKind::Internal, "no folder to look into")),
            Data::Directory(directory) => directory.folder().read_stored(name.as_bytes()),
        }
    }

    /// SHA-256 of the bytes of the header and the table of contents: tells one archive from another.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// What is being read, and where, for errors about the data of the entry at `place`; from the file of that name,
    /// or the one that the table of contents names.
    fn about(&self, place: usize, file: Option<&str>) -> (String, String) {
        let entry = self.toc.entry(place);
        let text = |bytes| String::from_utf8_lossy(bytes);
        let name = match entry.namespace {
            b"" => format!("\"{}\"", text(entry.tag)),
            schema => format!("\"{}.{}\"", text(schema), text(entry.tag)),
        };
        let what = format!("data of {name} from archive \"{}\"", self.location);
        let file = match (&self.data, file) {
            (Data::Custom(_), _) => String::new(),
            (_, Some(name)) => format!(", file \"{name}\""),
            (Data::Directory(directory), None) => {
                let name = directory.name(place, entry.dump_id);
                format!(", file \"{}\"", String::from_utf8_lossy(&name).escape_debug())
            }
        };
        (what, format!("Entry {} ({}){file}.", entry.dump_id, text(entry.desc)))
    }

    /// The data of the entry at `place`, decompressed.
    ///
    /// For entries with a COPY statement: rows in COPY's text format, without the end-of-data marker `\.`.
    /// Data that is damaged or ends early fails while it is read; what was read before that is not to be kept.
    pub fn data(&self, place: usize) -> Result<Box<dyn Read + Send>> {
        let entry = self.toc.entry(place);
        let data = match &self.data {
            Data::Custom(custom) => custom.data(place, entry.dump_id).map(|data| (data, None)),
            Data::Directory(directory) => {
                directory.data(place, entry.dump_id).map(|(data, file)| (data, Some(file)))
            }
        };
        let (data, file) = data.map_err(|e| {
            let (what, detail) = self.about(place, None);
            while_reading(e, &what, &detail)
        })?;
        let (what, detail) = self.about(place, file.as_deref());
        Ok(match entry.copy_stmt {
            b"" if entry.desc == b"TABLE DATA" => {
                Box::new(Explained::new(copy_end::Statements::new(data), what, detail))
            }
            b"" => Box::new(Explained::new(data, what, detail)),
            _ => Box::new(Explained::new(copy_end::Rows::new(data), what, detail)),
        })
    }

    /// The bytes that the data of the entry at `place` takes in the archive, compressed as it is; `None` if that
    /// cannot be told cheaply.
    pub fn data_size(&self, place: usize) -> Option<u64> {
        let entry = self.toc.entry(place);
        if !entry.has_data {
            return None;
        }
        match &self.data {
            Data::Custom(custom) => custom.size(place, entry.dump_id),
            Data::Directory(_) if entry.desc == b"BLOBS" => None,
            Data::Directory(directory) => directory.size(place, entry.dump_id),
        }
    }

    /// The large objects of the `BLOBS` entry at `place`, one after the other.
    pub fn large_objects(
        &self,
        place: usize,
    ) -> Result<Box<dyn Iterator<Item = Result<LargeObject>> + Send + '_>> {
        let id = self.toc.entry(place).dump_id;
        let (_, detail) = self.about(place, None);
        let archive = format!("archive \"{}\"", self.location);
        let objects = match &self.data {
            Data::Custom(custom) => {
                custom.large_objects(place, id, archive.clone(), detail.clone())
            }
            Data::Directory(directory) => {
                directory.large_objects(place, id, archive.clone(), detail.clone())
            }
        };
        let objects = objects.while_reading(&format!("large objects of {archive}"), &detail)?;
        Ok(large_objects::complete(&self.toc, place, objects, archive, detail))
    }
}

/// The manifest of a backup, if there is one.
fn manifest_of(folder: &Folder) -> Result<Option<Manifest>> {
    let Some(text) = folder.read_alone(manifest::FILE.as_bytes())? else {
        return Ok(None);
    };
    let manifest = Manifest::from_text(&text).map_err(|e| {
        e.hint("Backups of firn have such a file. If it belongs to something else, remove it.")
    })?;
    Ok(Some(manifest))
}

type Contents = (Header, Toc, contents::DataPlaces);

fn read_contents<R: Read>(
    wire: &mut Wire<R>,
    format: Format,
    file: &str,
    size: u64,
) -> Result<Contents> {
    let header = Header::read(wire, format)?;
    let (toc, places) = contents::read(wire, &header, file, size)?;
    Ok((header, toc, places))
}

/// The first block of data follows the table of contents. If it does not, the number of entries is wrong.
fn check_data_start<R: Read>(wire: &Wire<R>, places: &contents::DataPlaces) -> Result<()> {
    let first = places.offsets.iter().map(|&(_, offset)| offset).min();
    let start = match (first, places.unknown) {
        (Some(first), 0) => first,
        (None, 0) => wire.size(),
        // Searching the blocks will tell.
        (_, _) => return Ok(()),
    };
    if start == wire.position() {
        return Ok(());
    }
    Err(Error::archive(format!(
        "the table of contents ends at byte {} and the data begins at byte {start}",
        wire.position()
    )))
}

/// Says what a file is that is no custom archive.
fn refuse_other_formats(start: &[u8]) -> Result<()> {
    let error = |message: &str, hint: &str| Err(Error::archive(message).hint(hint));
    if start.starts_with(b"PGDMP") {
        Ok(())
    } else if start.starts_with(b"--") || start.starts_with(b"\n--") {
        error(
            "it is a script and not an archive",
            "Scripts of plain SQL are restored with psql. \
             An archive is made by pg_dump --format=custom, directory or tar.",
        )
    } else if start.starts_with(crypt::FORMAT.as_bytes()) {
        error(
            "it is a file that age encrypted",
            "Decrypt it first, or through a pipe: age --decrypt -i IDENTITY FILE | firn restore … \
             Of an encrypted backup give the folder.",
        )
    } else if start.is_empty() {
        error("the file is empty", INCOMPLETE)
    } else {
        error(
            "it is not an archive of pg_dump",
            "An archive is made by pg_dump --format=custom, directory or tar.",
        )
    }
}
