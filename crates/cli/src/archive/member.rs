//! The files an archive consists of, and reading them from front to back.

use super::fault;
use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes read from a local file at a time.
const LOCAL_STEP: usize = 128 << 10;

/// One file of an archive, wherever it is. Cheap to clone, used by many threads at once.
#[derive(Clone)]
pub(super) struct Member {
    /// Its name for messages.
    pub name: String,
    /// Its size in bytes when it was opened.
    pub size: u64,
    bytes: Bytes,
}

#[derive(Clone)]
enum Bytes {
    Local(Arc<File>),
    Memory(Arc<[u8]>),
}

impl Member {
    /// An open local file.
    pub fn local(name: String, file: File) -> Result<Member> {
        let meta = file
            .metadata()
            .map_err(|e| Error::io(format!("could not stat file \"{name}\""), &e))?;
        if !meta.is_file() {
            return Err(Error::archive(format!("\"{name}\" is not a regular file")));
        }
        Ok(Member { name, size: meta.len(), bytes: Bytes::Local(Arc::new(file)) })
    }

    /// A file that lies in memory.
    pub fn memory(name: String, bytes: Arc<[u8]>) -> Member {
        Member { name, size: bytes.len() as u64, bytes: Bytes::Memory(bytes) }
    }

    /// The bytes of a range, from front to back; none beyond the file's end.
    pub fn read(&self, range: Range<u64>) -> Stream {
        let end = range.end.min(self.size);
        Stream { member: self.clone(), at: range.start.min(end), end, buffer: Vec::new(), used: 0 }
    }
}

/// Reads a range of a file from front to back.
///
/// If the file turns out shorter than it was when opened, that is an error and no end.
pub(super) struct Stream {
    member: Member,
    /// The file position behind the buffer.
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    used: usize,
}

impl Stream {
    /// The position in the file.
    pub fn position(&self) -> u64 {
        self.at - (self.buffer.len() - self.used) as u64
    }

    /// Bytes from here to the end of the range.
    pub fn left(&self) -> u64 {
        self.end - self.position()
    }

    /// Goes on `n` bytes further. `UnexpectedEof` if the range has fewer.
    pub fn skip(&mut self, n: u64) -> io::Result<()> {
        if n > self.left() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let buffered = (self.buffer.len() - self.used) as u64;
        if n <= buffered {
            self.used += n as usize;
        } else {
            self.at += n - buffered;
            self.buffer.clear();
            self.used = 0;
        }
        Ok(())
    }

    fn fill(&mut self) -> io::Result<()> {
        let step = (LOCAL_STEP as u64).min(self.end - self.at) as usize;
        self.used = 0;
        match &self.member.bytes {
            Bytes::Local(file) => {
                self.buffer.resize(step, 0);
                if let Err(e) = file.read_exact_at(&mut self.buffer, self.at) {
                    self.buffer.clear();
                    return Err(match e.kind() {
                        io::ErrorKind::UnexpectedEof => fault::damaged(format!(
                            "file \"{}\" became shorter while it was read",
                            self.member.name
                        )),
                        _ => e,
                    });
                }
            }
            Bytes::Memory(bytes) => {
                let start = self.at as usize;
                self.buffer.clear();
                self.buffer.extend_from_slice(&bytes[start..start + step]);
            }
        }
        self.at += step as u64;
        Ok(())
    }
}

impl io::BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.used == self.buffer.len() {
            self.fill()?;
        }
        Ok(&self.buffer[self.used..])
    }

    fn consume(&mut self, n: usize) {
        self.used = (self.used + n).min(self.buffer.len());
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let from = io::BufRead::fill_buf(self)?;
        let n = from.len().min(out.len());
        out[..n].copy_from_slice(&from[..n]);
        io::BufRead::consume(self, n);
        Ok(n)
    }
}
