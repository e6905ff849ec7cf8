//! Data in the custom format.
//!
//! Format: PostgreSQL's `pg_backup_custom.c`. Behind the table of contents come blocks: a type byte, the entry's dump id,
//! and then chunks, each its length and its bytes, ended by a chunk of length 0. A block of large objects has for
//! each one its oid and chunks, ended by oid 0. The table of contents tells where blocks begin, unless
//! the archive was written to a pipe.

use super::decompress;
use super::fault::{self, damaged, Explained, While};
use super::header::Compression;
use super::member::{Member, Stream};
use super::wire::decode_int;
use super::{LargeObject, LargeObjects};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock};

/// A block of one table's data.
const DATA: u8 = 1;
/// A block of large objects.
const LARGE_OBJECTS: u8 = 3;

/// The data of a custom archive.
pub(super) struct Custom {
    member: Member,
    int_size: usize,
    compression: Compression,
    /// Where the table of contents ends.
    data_start: u64,
    /// (place of the entry, offset), in order of place.
    offsets: Vec<(u32, u64)>,
    /// The offsets in order.
    sorted: Vec<u64>,
    /// The blocks of an archive without offsets by dump id, once somebody looked for them.
    found: OnceLock<HashMap<i32, Range<u64>>>,
    searching: Mutex<()>,
}

impl Custom {
    pub fn new(
        member: Member,
        int_size: usize,
        compression: Compression,
        data_start: u64,
        mut offsets: Vec<(u32, u64)>,
    ) -> Custom {
        offsets.shrink_to_fit();
        let mut sorted: Vec<u64> = offsets.iter().map(|&(_, offset)| offset).collect();
        sorted.sort_unstable();
        Custom {
            member,
            int_size,
            compression,
            data_start,
            offsets,
            sorted,
            found: OnceLock::new(),
            searching: Mutex::new(()),
        }
    }

    fn offset(&self, place: usize) -> Option<u64> {
        let at = self.offsets.binary_search_by_key(&place, |&(place, _)| place as usize).ok()?;
        Some(self.offsets[at].1)
    }

    /// The block of an entry if the table of contents tells it, or a search was made already.
    fn known(&self, place: usize, dump_id: i32) -> Option<Range<u64>> {
        if let Some(start) = self.offset(place) {
            let next = self.sorted.partition_point(|&other| other <= start);
            let end = self.sorted.get(next).map_or(self.member.size, |&end| end);
            return Some(start..end.max(start));
        }
        self.found.get()?.get(&dump_id).cloned()
    }

    /// Stored bytes of an entry's data; `None` if that takes a search.
    pub fn size(&self, place: usize, dump_id: i32) -> Option<u64> {
        self.known(place, dump_id).map(|block| block.end - block.start)
    }

    /// The chunks of an entry's data, behind the block's type and id.
    fn open(&self, place: usize, dump_id: i32, wanted: u8) -> Result<Chunks> {
        let block =
            match self.known(place, dump_id) {
                Some(block) => block,
                None => self.search()?.get(&dump_id).cloned().ok_or_else(|| {
                    Error::archive("the archive has no block with this entry's data")
                })?,
            };
        if block.start < self.data_start || block.start >= self.member.size {
            return Err(Error::archive(format!("its offset {} is invalid", block.start)));
        }
        let mut chunks = Chunks {
            stream: self.member.read(block.clone()),
            int_size: self.int_size,
            left: 0,
            ended: false,
        };
        let (kind, id) = chunks.block_header().map_err(crate::error::of_io)?;
        if id != dump_id {
            return Err(Error::archive(format!(
                "found the data of entry {id} at byte {} where that of entry {dump_id} should be",
                block.start
            )));
        }
        if kind != wanted {
            return Err(Error::archive(format!(
                "its data has block type {kind} where {wanted} is expected"
            )));
        }
        Ok(chunks)
    }

    pub fn data(&self, place: usize, dump_id: i32) -> Result<Box<dyn Read + Send>> {
        let chunks = self.open(place, dump_id, DATA)?;
        decompress::of_blocks(chunks, self.compression).map_err(crate::error::of_io)
    }

    /// The large objects of an entry; `archive` and `detail` are for errors.
    pub fn large_objects(
        &self,
        place: usize,
        dump_id: i32,
        archive: String,
        detail: String,
    ) -> Result<LargeObjects<'_>> {
        let chunks = self.open(place, dump_id, LARGE_OBJECTS)?;
        let shared = Arc::new(Mutex::new(Current { chunks, serial: 0, last: true }));
        Ok(Box::new(Objects {
            shared,
            compression: self.compression,
            archive,
            detail,
            ended: false,
        }))
    }

    /// Finds all blocks by going from chunk to chunk. The first caller searches, the others wait.
    fn search(&self) -> Result<&HashMap<i32, Range<u64>>> {
        let _one = self.searching.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(found) = self.found.get() {
            return Ok(found);
        }
        let found = self.find_blocks().map_err(crate::error::of_io).while_reading(
            "the archive's data",
            &format!(
                "File \"{}\" was written to a pipe: its blocks were searched.",
                self.member.name
            ),
        )?;
        Ok(self.found.get_or_init(|| found))
    }

    fn find_blocks(&self) -> io::Result<HashMap<i32, Range<u64>>> {
        let mut found = HashMap::new();
        let mut chunks = Chunks {
            stream: self.member.read(self.data_start..self.member.size),
            int_size: self.int_size,
            left: 0,
            ended: false,
        };
        while chunks.stream.left() > 0 {
            let start = chunks.stream.position();
            let (kind, id) = chunks.block_header()?;
            match kind {
                DATA => {
                    chunks.begin();
                    chunks.skip_rest()?;
                }
                LARGE_OBJECTS => {
                    while chunks.oid()? != 0 {
                        chunks.begin();
                        chunks.skip_rest()?;
                    }
                }
                _ => {
                    return Err(damaged(format!("unknown block type {kind} at byte {start}")));
                }
            }
            if found.insert(id, start..chunks.stream.position()).is_some() {
                return Err(damaged(format!(
                    "a second block of data of entry {id} at byte {start}"
                )));
            }
        }
        Ok(found)
    }
}

/// Reads the bytes of chunks up to the one of length 0.
struct Chunks {
    stream: Stream,
    int_size: usize,
    /// Bytes left of the current chunk.
    left: u64,
    ended: bool,
}

impl Chunks {
    fn exactly(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.stream.read_exact(bytes).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => fault::cut_off(),
            _ => e,
        })
    }

    fn int(&mut self) -> io::Result<i32> {
        let mut bytes = [0; 9];
        let bytes = &mut bytes[..1 + self.int_size];
        self.exactly(bytes)?;
        decode_int(bytes).map_err(fault::to_io)
    }

    /// A block's type and dump id.
    fn block_header(&mut self) -> io::Result<(u8, i32)> {
        let mut kind = [0];
        self.exactly(&mut kind)?;
        Ok((kind[0], self.int()?))
    }

    /// A large object's oid, written as a signed integer; 0 at the end.
    fn oid(&mut self) -> io::Result<u32> {
        Ok(self.int()? as u32)
    }

    /// The next bytes are a chunk.
    fn begin(&mut self) {
        self.left = 0;
        self.ended = false;
    }

    /// Reads the next chunk's length once the current one is used up.
    fn advance(&mut self) -> io::Result<()> {
        if self.left > 0 || self.ended {
            return Ok(());
        }
        let length = self.int()?;
        let length = u64::try_from(length)
            .map_err(|_| damaged(format!("invalid length {length} of a chunk of data")))?;
        if length > self.stream.left() {
            return Err(fault::cut_off());
        }
        self.left = length;
        self.ended = length == 0;
        Ok(())
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        loop {
            self.advance()?;
            if self.ended {
                return Ok(());
            }
            self.stream.skip(self.left)?;
            self.left = 0;
        }
    }
}

impl BufRead for Chunks {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.advance()?;
        if self.ended {
            return Ok(&[]);
        }
        let bytes = self.stream.fill_buf()?;
        let n = (bytes.len() as u64).min(self.left) as usize;
        Ok(&bytes[..n])
    }

    fn consume(&mut self, n: usize) {
        let n = (n as u64).min(self.left);
        self.left -= n;
        self.stream.consume(n as usize);
    }
}

impl Read for Chunks {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let n = bytes.len().min(out.len());
        out[..n].copy_from_slice(&bytes[..n]);
        self.consume(n);
        Ok(n)
    }
}

/// Where the large objects of one entry are being read.
struct Current {
    chunks: Chunks,
    /// Which object it is, counted from 1.
    serial: u64,
    /// The object was skipped or read to its end.
    last: bool,
}

/// Gives out the large objects of an entry one after the other. Asking for the next one ends the one before.
struct Objects {
    shared: Arc<Mutex<Current>>,
    compression: Compression,
    archive: String,
    detail: String,
    ended: bool,
}

impl Objects {
    fn step(&mut self) -> io::Result<Option<LargeObject>> {
        let mut current = self.shared.lock().unwrap_or_else(|e| e.into_inner());
        if !current.last {
            current.chunks.skip_rest()?;
        }
        let oid = current.chunks.oid()?;
        if oid == 0 {
            return Ok(None);
        }
        current.chunks.begin();
        current.last = false;
        current.serial += 1;
        let serial = current.serial;
        drop(current);
        let stored = StoredObject { shared: self.shared.clone(), serial };
        let data = decompress::of_blocks(io::BufReader::new(stored), self.compression)?;
        let what = format!("large object {oid} of {}", self.archive);
        let data = Box::new(Explained::new(data, what, self.detail.clone()));
        Ok(Some(LargeObject { oid, data }))
    }
}

impl Iterator for Objects {
    type Item = Result<LargeObject>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let what = format!("large objects of {}", self.archive);
        let object = self.step().map_err(crate::error::of_io).while_reading(&what, &self.detail);
        self.ended = !matches!(object, Ok(Some(_)));
        object.transpose()
    }
}

/// The stored bytes of one large object.
struct StoredObject {
    shared: Arc<Mutex<Current>>,
    serial: u64,
}

impl Read for StoredObject {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut current = self.shared.lock().unwrap_or_else(|e| e.into_inner());
        if current.serial != self.serial {
            return Err(fault::to_io(Error::new(
                crate::error::ErrorKind::Internal,
                "a large object was read after the next one was asked for",
            )));
        }
        current.chunks.read(out)
    }
}
