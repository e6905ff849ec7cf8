//! Files compared with what a manifest says of them, while they are read.

use super::fault::damaged;
use super::manifest::Manifest;
use super::member::Member;
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{self, BufRead, Read};

/// Size in bytes and SHA-256 of each file, by name.
pub(super) struct Expected(HashMap<Box<[u8]>, (u64, [u8; 32])>);

impl Expected {
    /// Of names, sizes and sums; an error if a name comes twice.
    pub fn new(files: Vec<(Vec<u8>, u64, [u8; 32])>) -> Result<Expected> {
        let mut all = HashMap::new();
        for (name, size, sum) in files {
            let name: Box<[u8]> = name.into();
            if let Some(twice) = all.insert(name.clone(), (size, sum)).map(|_| name) {
                let twice = String::from_utf8_lossy(&twice).into_owned();
                return Err(Error::archive(format!("the manifest lists file \"{twice}\" twice")));
            }
        }
        Ok(Expected(all))
    }

    /// What a manifest says.
    pub fn of(manifest: &Manifest) -> Result<Expected> {
        let files = manifest.files.iter().map(|file| {
            let sum = sha256(&file.sha256).ok_or_else(|| {
                let name = file.name.escape_debug();
                Error::archive(format!("the manifest has no valid SHA-256 of file \"{name}\""))
            })?;
            Ok((file.name.clone().into_bytes(), file.size, sum))
        });
        Expected::new(files.collect::<Result<Vec<_>>>()?)
    }

    /// The size that a file should have; `None` if the manifest does not list it.
    pub fn size(&self, name: &[u8]) -> Option<u64> {
        self.0.get(name).map(|&(size, _)| size)
    }

    /// The bytes of a file, with an error at their end if they are not those that the manifest says.
    pub fn check(&self, name: &[u8], member: &Member) -> Result<Box<dyn BufRead + Send>> {
        self.check_size(name, member)?;
        self.check_bytes(name, &member.name, member.whole())
    }

    /// An error if a file's size is not the one that the manifest says.
    pub fn check_size(&self, name: &[u8], member: &Member) -> Result<()> {
        match self.size(name) {
            None => Err(unlisted(&member.name)),
            Some(size) if member.size != size => Err(Error::archive(format!(
                "file \"{}\" has {} bytes, the manifest says {size}",
                member.name, member.size
            ))),
            Some(_) => Ok(()),
        }
    }

    /// Bytes that should be those of a file, with an error at their end if they are not. `shown` is its name for messages.
    pub fn check_bytes(
        &self,
        name: &[u8],
        shown: &str,
        bytes: impl BufRead + Send + 'static,
    ) -> Result<Box<dyn BufRead + Send>> {
        let Some(&(_, sum)) = self.0.get(name) else { return Err(unlisted(shown)) };
        let hash = Some(Sha256::new());
        Ok(Box::new(Checked { inner: bytes, hash, sum, name: shown.to_string() }))
    }
}

fn unlisted(name: &str) -> Error {
    Error::archive(format!("the manifest has no file \"{name}\""))
}

/// A SHA-256 from its hexadecimal digits.
fn sha256(digits: &str) -> Option<[u8; 32]> {
    crate::hex::decode(digits.as_bytes())?.try_into().ok()
}

struct Checked<R> {
    inner: R,
    /// Of what was consumed; gone once it was compared.
    hash: Option<Sha256>,
    sum: [u8; 32],
    name: String,
}

impl<R: BufRead> BufRead for Checked<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let bytes = self.inner.fill_buf()?;
        if bytes.is_empty() {
            if let Some(hash) = self.hash.take() {
                if hash.finalize()[..] != self.sum {
                    return Err(damaged(format!(
                        "file \"{}\" does not have the SHA-256 that the manifest says",
                        self.name
                    )));
                }
            }
        }
        Ok(bytes)
    }

    fn consume(&mut self, n: usize) {
        // What was filled is still there: filling again reads nothing.
        if let (Some(hash), Ok(bytes)) = (&mut self.hash, self.inner.fill_buf()) {
            hash.update(&bytes[..n.min(bytes.len())]);
        }
        self.inner.consume(n);
    }
}

impl<R: BufRead> Read for Checked<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let n = bytes.len().min(out.len());
        out[..n].copy_from_slice(&bytes[..n]);
        self.consume(n);
        Ok(n)
    }
}
