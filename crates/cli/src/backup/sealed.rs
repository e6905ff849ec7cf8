//! Encrypted backups: a destination that encrypts, and the manifest that anybody may read.
//!
//! What a backup consists of, with its own manifest, is encrypted file by file. Decrypted, all of that is a backup like any.
//! The second manifest, in the clear, says what there is to be read: names, sizes and sums of encrypted files, so that
//! whether all of it is there and whole can be told without a key.

use super::destination::{Destination, Output, Sibling};
use crate::archive::manifest::{self, hex, Encryption, FileRecord, Manifest};
use crate::archive::read_error;
use crate::crypt::{self, Keys, Sealed, Sealing};
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::sync::{Arc, Mutex};

/// Encrypts the files of a backup, and notes what they have become.
pub struct Sealer {
    sealing: Sealing,
    records: Mutex<Vec<FileRecord>>,
}

impl Sealer {
    pub fn new(sealing: Sealing) -> Arc<Sealer> {
        Arc::new(Sealer { sealing, records: Mutex::default() })
    }

    /// A destination that encrypts what comes to `inner`.
    pub fn over(self: &Arc<Self>, inner: Box<dyn Destination>) -> Box<dyn Destination> {
        Box::new(SealedDestination { inner, sealer: Arc::clone(self) })
    }

    /// The manifest that anybody may read, of all that was written.
    pub fn public(&self, manifest: &Manifest) -> Manifest {
        let mut files = self.records.lock().unwrap_or_else(|e| e.into_inner()).clone();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let encryption = Encryption {
            format: crypt::FORMAT.to_string(),
            recipients: self.sealing.recipients(),
            passphrase: self.sealing.key_file().is_some(),
            selected: manifest::has_secret_choice(&manifest.head.options),
        };
        Manifest { head: manifest.head.public(&encryption), files }
    }
}

struct SealedDestination {
    inner: Box<dyn Destination>,
    sealer: Arc<Sealer>,
}

impl Destination for SealedDestination {
    fn create(&self, name: &str, expected: u64) -> Result<Box<dyn Output>> {
        let name = format!("{name}{}", crypt::SUFFIX);
        let output = self.inner.create(&name, expected)?;
        let sink = Sink { output, hash: Sha256::new(), size: 0, buffer: Vec::new() };
        let sealed = self.sealer.sealing.seal(sink)?;
        Ok(Box::new(SealedOutput { sealed, name, sealer: Arc::clone(&self.sealer) }))
    }

    /// What lies beside is in the clear, or encrypted with another key.
    fn adopt(&self, _: &Sibling, _: &str) -> Result<bool> {
        Ok(false)
    }

    fn write_as_is(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        self.inner.write_as_is(name, bytes)
    }

    fn scratch(&self) -> Result<File> {
        self.inner.scratch()
    }

    fn settle(&self) -> Result<()> {
        self.inner.settle()
    }

    fn seal(&self, manifest: &Manifest) -> Result<()> {
        self.inner.seal(manifest)
    }

    fn abandon(&self) {
        self.inner.abandon();
    }
}

/// Writes the file with the key, if there is one. It is encrypted already.
pub fn write_key(destination: &dyn Destination, sealer: &Sealer) -> Result<()> {
    let Some(key) = sealer.sealing.key_file() else { return Ok(()) };
    destination.write_as_is(crypt::KEY_FILE, key.to_vec())?;
    let record = record(crypt::KEY_FILE, key.len() as u64, Sha256::digest(key).as_slice());
    sealer.records.lock().unwrap_or_else(|e| e.into_inner()).push(record);
    Ok(())
}

fn record(name: &str, size: u64, sum: &[u8]) -> FileRecord {
    FileRecord { name: name.to_string(), size, sha256: hex(sum), table: None }
}

/// Bytes that are handed on at a time: what comes out of the encryption comes in pieces of 64 kB.
const PIECE: usize = 1 << 20;

/// Where encrypted bytes go.
struct Sink {
    output: Box<dyn Output>,
    hash: Sha256,
    size: u64,
    buffer: Vec<u8>,
}

impl Sink {
    fn hand_on(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.output.write(std::mem::take(&mut self.buffer))
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hash.update(bytes);
        self.size += bytes.len() as u64;
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE {
            self.hand_on().map_err(io::Error::other)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct SealedOutput {
    sealed: Sealed<Sink>,
    name: String,
    sealer: Arc<Sealer>,
}

impl Output for SealedOutput {
    fn write(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.sealed.write_all(&bytes).map_err(read_error)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let mut sink = self.sealed.finish().map_err(read_error)?;
        sink.hand_on()?;
        let record = record(&self.name, sink.size, &sink.hash.finalize());
        sink.output.finish()?;
        self.sealer.records.lock().unwrap_or_else(|e| e.into_inner()).push(record);
        Ok(())
    }
}

/// The file with the table of contents while the backup is made. Of an encrypted backup it is encrypted, too: it lies at
/// the destination or in the folder for temporary files, and what was there can be found on the disk later.
pub struct Scratch {
    file: File,
    key: Option<Sealing>,
    keys: Keys,
}

impl Scratch {
    pub fn new(file: File, encrypted: bool) -> Scratch {
        let (key, keys) = match encrypted {
            true => {
                let (sealing, keys) = Keys::generate();
                (Some(sealing), keys)
            }
            false => (None, Keys::default()),
        };
        Scratch { file, key, keys }
    }

    /// Writes it from the beginning, by what `write` does.
    pub fn write<T>(&mut self, write: impl FnOnce(&mut dyn Write) -> T) -> Result<T> {
        let failed = |e: io::Error| Error::io("could not write the table of contents", &e);
        self.file.set_len(0).and_then(|()| self.file.rewind()).map_err(failed)?;
        let mut out = BufWriter::with_capacity(PIECE, &mut self.file);
        let Some(key) = &self.key else {
            let done = write(&mut out);
            out.flush().map_err(failed)?;
            return Ok(done);
        };
        let mut sealed = key.seal(out)?;
        let done = write(&mut sealed);
        sealed.finish().and_then(|mut out| out.flush()).map_err(failed)?;
        Ok(done)
    }

    /// Reads it from the beginning.
    pub fn read(mut self) -> Result<Box<dyn Read>> {
        let failed = |e: io::Error| Error::io("could not read the table of contents", &e);
        self.file.rewind().map_err(failed)?;
        let reader = BufReader::with_capacity(PIECE, self.file);
        match self.key {
            None => Ok(Box::new(reader)),
            Some(_) => {
                Ok(Box::new(crate::archive::open(&self.keys, "the table of contents", reader)?))
            }
        }
    }
}
