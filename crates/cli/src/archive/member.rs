//! The files an archive consists of, and reading them from front to back.

use super::fault;
use super::remote::{Ahead, Object, BEYOND, FIRST, MOST_BEYOND};
use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes read from a local file at a time.
const LOCAL_STEP: u64 = 128 << 10;

/// One file of an archive, wherever it is. Cheap to clone, used by many threads at once.
#[derive(Clone)]
pub(super) struct Member {
    /// Its name for messages.
    pub name: String,
    /// Its size in bytes when it was opened.
    pub size: u64,
    /// Where it begins in `bytes`.
    start: u64,
    bytes: Bytes,
}

#[derive(Clone)]
enum Bytes {
    Local(Arc<File>),
    Memory(Arc<[u8]>),
    Object(Object),
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
        Ok(Member { name, size: meta.len(), start: 0, bytes: Bytes::Local(Arc::new(file)) })
    }

    /// A file that lies in memory.
    pub fn memory(name: String, bytes: Arc<[u8]>) -> Member {
        Member { name, size: bytes.len() as u64, start: 0, bytes: Bytes::Memory(bytes) }
    }

    /// An object of this size in a store.
    pub fn object(object: Object, size: u64) -> Member {
        Member { name: object.key.clone(), size, start: 0, bytes: Bytes::Object(object) }
    }

    /// A part of it that is a file of its own.
    pub fn part(&self, name: String, range: Range<u64>) -> Member {
        let (start, size) = (self.start + range.start, range.end - range.start);
        Member { name, size, start, bytes: self.bytes.clone() }
    }

    /// The bytes from front to back for a reader that will stop early, nobody knows where.
    pub fn start(&self) -> Stream {
        self.read(0..FIRST)
    }

    /// All bytes, from front to back.
    pub fn whole(&self) -> Stream {
        self.read(0..self.size)
    }

    /// The bytes from `range.start` on, from front to back, to the file's end. `range.end` is where the reader will
    /// probably stop: nothing beyond it is read ahead.
    pub fn read(&self, range: Range<u64>) -> Stream {
        let at = self.start + range.start.min(self.size);
        let end = self.start + self.size;
        let expected = self.start.saturating_add(range.end).clamp(at, end);
        Stream {
            member: self.clone(),
            at,
            expected,
            end,
            buffer: Buffer::default(),
            ahead: None,
            beyond: BEYOND,
        }
    }
}

/// Bytes that were read and not used yet.
#[derive(Default)]
struct Buffer {
    bytes: bytes::Bytes,
    own: Vec<u8>,
    used: usize,
}

impl Buffer {
    fn all(&self) -> &[u8] {
        match self.bytes.is_empty() {
            true => &self.own,
            false => &self.bytes,
        }
    }

    fn rest(&self) -> &[u8] {
        &self.all()[self.used..]
    }

    fn clear(&mut self) {
        self.bytes = bytes::Bytes::new();
        self.own.clear();
        self.used = 0;
    }
}

/// Reads a file from front to back.
///
/// If the file turns out shorter than it was when opened, that is an error and no end.
pub(super) struct Stream {
    member: Member,
    /// The position behind the buffer, in the bytes that the file is a part of; so are those below.
    at: u64,
    /// Where the reader will probably stop.
    expected: u64,
    end: u64,
    buffer: Buffer,
    /// What fetches an object's next bytes meanwhile.
    ahead: Option<Ahead>,
    /// How many of an object's bytes to fetch next behind where reading should have ended.
    beyond: u64,
}

impl Stream {
    /// The position in the file.
    pub fn position(&self) -> u64 {
        self.at - self.buffer.rest().len() as u64 - self.member.start
    }

    /// Bytes from here to the file's end.
    pub fn left(&self) -> u64 {
        self.member.size - self.position()
    }

    /// Goes on `n` bytes further; an error if the file has fewer.
    pub fn skip(&mut self, mut n: u64) -> io::Result<()> {
        if n > self.left() {
            return Err(fault::cut_off());
        }
        loop {
            let step = n.min(self.buffer.rest().len() as u64);
            self.buffer.used += step as usize;
            n -= step;
            if n == 0 {
                return Ok(());
            }
            if self.ahead.is_none() {
                self.at += n;
                self.buffer.clear();
                return Ok(());
            }
            // What follows is on its way already.
            self.fill()?;
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        self.buffer.clear();
        if self.at == self.end {
            return Ok(());
        }
        match &self.member.bytes {
            Bytes::Local(file) => {
                let own = &mut self.buffer.own;
                own.resize(LOCAL_STEP.min(self.end - self.at) as usize, 0);
                if let Err(e) = file.read_exact_at(own, self.at) {
                    own.clear();
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
                let end = (self.at + LOCAL_STEP).min(self.end) as usize;
                self.buffer.own.extend_from_slice(&bytes[start..end]);
            }
            Bytes::Object(object) => {
                let fetched = match &mut self.ahead {
                    Some(ahead) => ahead.next().map_err(fault::to_io)?,
                    None => None,
                };
                self.buffer.bytes = match fetched {
                    Some(bytes) => bytes,
                    None if self.at < self.expected => {
                        let begun = object.begin(self.at, self.expected).map_err(fault::to_io)?;
                        self.ahead = begun.1;
                        begun.0
                    }
                    None => {
                        let range = self.at..(self.at + self.beyond).min(self.end);
                        self.beyond = (self.beyond * 2).min(MOST_BEYOND);
                        object.read(range).map_err(fault::to_io)?
                    }
                };
            }
        }
        self.at += self.buffer.all().len() as u64;
        Ok(())
    }
}

impl BufRead for Stream {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.buffer.rest().is_empty() {
            self.fill()?;
        }
        Ok(self.buffer.rest())
    }

    fn consume(&mut self, n: usize) {
        self.buffer.used += n.min(self.buffer.rest().len());
    }
}

impl Read for Stream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let n = from.len().min(out.len());
        out[..n].copy_from_slice(&from[..n]);
        self.consume(n);
        Ok(n)
    }
}
