//! The way of data from a connection to the destination: blocks, compressed by whoever is free, in order to a file.
//!
//! Two threads: the caller's fills blocks and hands them to the packer; the lane's own waits for each to be compressed,
//! hashes it and writes it. What lies between them is bounded, so memory is, however slow the destination.

use super::destination::{Destination, Output};
use super::halt::Halt;
use super::pack::{Block, Packed, Packer, BLOCK};
use super::progress::Watched;
use crate::archive::manifest::{hex, FileRecord, LargeObjects, TableData};
use crate::error::{Error, ErrorKind, Result};
use crate::row_sum::RowSum;
use sha2::{Digest, Sha256};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// The most blocks of one lane on their way: enough for a big table to keep so many threads compressing.
const UNDER_WAY: usize = 8;

/// What all lanes share.
pub struct Work {
    pub destination: Box<dyn Destination>,
    pub packer: Packer,
    pub progress: Arc<Watched>,
    pub halt: Arc<Halt>,
    pub records: Mutex<Vec<FileRecord>>,
    pub large_objects: Mutex<LargeObjects>,
    pub checksums: bool,
}

/// What a new file is to hold.
pub struct NewFile {
    /// With the compression's suffix.
    pub name: String,
    /// About so many bytes will be stored.
    pub expected: u64,
    /// For a table; its numbers are filled in.
    pub table: Option<TableData>,
}

enum Item {
    Begin(Box<NewFile>),
    Block(Receiver<Result<Packed>>),
    /// The file is complete, with so many rows as the server counted, and with it the table of this name.
    End {
        rows: Option<u64>,
        done: Option<String>,
    },
}

/// The caller's end of a lane.
pub struct Lane {
    queue: Option<SyncSender<Item>>,
    thread: Option<JoinHandle<()>>,
    work: Arc<Work>,
    block: Vec<u8>,
    rows: bool,
    blocks: u64,
}

impl Lane {
    /// For the connection of that number.
    pub fn start(work: Arc<Work>, connection: usize) -> Result<Lane> {
        let (queue, items) = sync_channel((work.packer.threads() + 1).min(UNDER_WAY));
        let own = Arc::clone(&work);
        let thread = std::thread::Builder::new()
            .name("firn-write".to_string())
            .spawn(move || {
                let mut writer = Writer { work: own, connection, file: None };
                while let Ok(item) = items.recv() {
                    let halt = Arc::clone(&writer.work.halt);
                    if halt.watch(|| writer.take(item)).is_none() {
                        return;
                    }
                }
            })
            .map_err(|e| Error::io("could not start a thread", &e))?;
        let (queue, thread) = (Some(queue), Some(thread));
        let block = Vec::new();
        Ok(Lane { queue, thread, work, block, rows: false, blocks: 0 })
    }

    fn send(&self, item: Item) -> Result<()> {
        let sent = self.queue.as_ref().and_then(|queue| queue.send(item).ok());
        // The writer goes only after it has said why.
        sent.ok_or_else(|| self.work.halt.reason())
    }

    pub fn begin(&mut self, file: NewFile) -> Result<()> {
        self.work.halt.check()?;
        self.block.clear();
        self.blocks = 0;
        self.rows = file.table.is_some();
        self.send(Item::Begin(Box::new(file)))
    }

    /// Adds data; of tables whole rows.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        if self.block.len() + data.len() > BLOCK && !self.block.is_empty() {
            self.flush(0)?;
        }
        self.block.extend_from_slice(data);
        Ok(())
    }

    fn flush(&mut self, tail: usize) -> Result<()> {
        self.work.halt.check()?;
        self.blocks += 1;
        let data = std::mem::take(&mut self.block);
        let block = Block { data, tail, rows: self.rows };
        let packed = self.work.packer.pack(block)?;
        self.send(Item::Block(packed))
    }

    /// Ends the file; of tables with the end mark of `pg_dump`. `rows`: what the server counted. `done`: what ends with it.
    pub fn end(&mut self, rows: Option<u64>, done: Option<String>) -> Result<()> {
        let mut tail = 0;
        if self.rows {
            self.block.extend_from_slice(END_MARK);
            tail = END_MARK.len();
        }
        if !self.block.is_empty() || self.blocks == 0 {
            self.flush(tail)?;
        }
        self.send(Item::End { rows, done })
    }

    /// Waits until everything is written.
    pub fn finish(mut self) -> Result<()> {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            if thread.join().is_err() {
                return Err(Error::new(ErrorKind::Internal, "a thread panicked"));
            }
        }
        match self.work.halt.is_set() {
            true => Err(self.work.halt.reason()),
            false => Ok(()),
        }
    }
}

/// What `pg_dump` ends a table's data with.
const END_MARK: &[u8] = b"\\.\n\n\n";

struct Open {
    output: Box<dyn Output>,
    hash: Sha256,
    name: String,
    table: Option<TableData>,
    size: u64,
    raw: u64,
    rows: u64,
    sum: RowSum,
}

/// The other end.
struct Writer {
    work: Arc<Work>,
    connection: usize,
    file: Option<Open>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

fn lost() -> Error {
    Error::new(ErrorKind::Internal, "data without a file")
}

impl Writer {
    fn take(&mut self, item: Item) -> Result<()> {
        match item {
            Item::Begin(file) => {
                let NewFile { name, expected, table } = *file;
                let output = self.work.destination.create(&name, expected)?;
                let (hash, sum) = (Sha256::new(), RowSum::default());
                self.file = Some(Open { output, hash, name, table, size: 0, raw: 0, rows: 0, sum });
                Ok(())
            }
            Item::Block(packed) => {
                let packed = packed.recv().map_err(|_| {
                    Error::new(ErrorKind::Internal, "a thread that compresses is gone")
                })??;
                let file = self.file.as_mut().ok_or_else(lost)?;
                file.hash.update(&packed.bytes);
                file.size += packed.bytes.len() as u64;
                file.raw += packed.raw;
                file.rows += packed.rows;
                file.sum.merge(packed.sum);
                file.output.write(packed.bytes)?;
                self.work.progress.advance(self.connection, packed.rows, packed.raw);
                Ok(())
            }
            Item::End { rows, done } => {
                let mut file = self.file.take().ok_or_else(lost)?;
                if rows.is_some_and(|rows| rows != file.rows) {
                    return Err(Error::new(ErrorKind::Internal, "rows were lost on their way")
                        .detail(format!("The server sent {rows:?}, {} arrived.", file.rows)));
                }
                file.output.finish()?;
                match &mut file.table {
                    Some(table) => {
                        table.rows = file.rows;
                        table.bytes = file.raw;
                        table.checksum = self.work.checksums.then(|| file.sum.to_string());
                    }
                    None => {
                        let mut all = lock(&self.work.large_objects);
                        all.count += 1;
                        all.bytes += file.raw;
                        all.stored += file.size;
                    }
                }
                let sha256 = hex(&file.hash.finalize());
                let Open { name, size, table, .. } = file;
                lock(&self.work.records).push(FileRecord { name, size, sha256, table });
                if let Some(name) = done {
                    self.work.progress.done(self.connection, &name);
                }
                Ok(())
            }
        }
    }
}
