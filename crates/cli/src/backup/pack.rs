//! Compressing, off the threads that wait for the network.
//!
//! Data is cut into blocks, and each is compressed by itself: a gzip member or a frame of zstd or lz4. A file of
//! several of them, one after the other, is what these formats allow and what `pg_restore` reads. So one big table
//! keeps as many processors busy as many small ones do.

use super::options::Spec;
use crate::archive::Compression;
use crate::error::{Error, ErrorKind, Result};
use crate::row_sum::RowSum;
use std::io::Write;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Arc, Mutex};

/// Bytes of a block before compression: enough that what the parts cannot share is not missed (measured: 1 %).
pub const BLOCK: usize = 1 << 20;

/// A block's data and what to do with it.
pub struct Block {
    pub data: Vec<u8>,
    /// So many bytes at the end are no rows.
    pub tail: usize,
    /// Data is rows in COPY's text format, to be counted and summed.
    pub rows: bool,
}

/// A block's outcome.
#[derive(Debug)]
pub struct Packed {
    pub bytes: Vec<u8>,
    /// Bytes before compression.
    pub raw: u64,
    pub rows: u64,
    pub sum: RowSum,
}

type Job = (Block, SyncSender<Result<Packed>>);

/// Threads that compress. They end when all handles are dropped.
#[derive(Clone)]
pub struct Packer {
    jobs: SyncSender<Job>,
    threads: usize,
}

impl Packer {
    /// Starts the threads. `sums`: compute checksums of rows.
    pub fn start(spec: Spec, threads: usize, sums: bool) -> Result<Packer> {
        // No room to queue: a block waits in the hands of the thread that filled it.
        let (jobs, queue) = sync_channel::<Job>(0);
        let queue = Arc::new(Mutex::new(queue));
        let threads = threads.max(1);
        for _ in 0..threads {
            let queue = Arc::clone(&queue);
            let work = move || loop {
                let job = queue.lock().unwrap_or_else(|e| e.into_inner()).recv();
                let Ok((block, reply)) = job else { return };
                // Nobody waits for it any more if the run was stopped.
                let _ = reply.send(pack(block, spec, sums));
            };
            std::thread::Builder::new()
                .name("firn-pack".to_string())
                .spawn(work)
                .map_err(|e| Error::io("could not start a thread", &e))?;
        }
        Ok(Packer { jobs, threads })
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Gives a block to whoever is free; the outcome comes by the receiver.
    pub fn pack(&self, block: Block) -> Result<Receiver<Result<Packed>>> {
        let (reply, outcome) = sync_channel(1);
        self.jobs
            .send((block, reply))
            .map_err(|_| Error::new(ErrorKind::Internal, "no thread is left to compress"))?;
        Ok(outcome)
    }
}

fn pack(block: Block, spec: Spec, sums: bool) -> Result<Packed> {
    let Block { data, tail, rows } = block;
    let raw = data.len() as u64;
    let text = &data[..data.len().saturating_sub(tail)];
    let mut sum = RowSum::default();
    let mut count = 0;
    if rows && sums {
        count = sum.add_rows(text);
    } else if rows {
        count = text.iter().filter(|&&c| c == b'\n').count() as u64;
    }
    let bytes = match spec.method {
        Compression::None => data,
        _ => compress(&data, spec)?,
    };
    Ok(Packed { bytes, raw, rows: count, sum })
}

/// Compresses some data to a member or frame of its own.
pub fn compress(data: &[u8], spec: Spec) -> Result<Vec<u8>> {
    let room = Vec::with_capacity(data.len() / 3 + 64);
    let packed = match spec.method {
        Compression::None => Ok(data.to_vec()),
        Compression::Gzip => {
            let level = spec.level.map_or(6, |l| l.clamp(1, 9) as u32);
            let mut out = flate2::write::GzEncoder::new(room, flate2::Compression::new(level));
            out.write_all(data).and_then(|()| out.finish())
        }
        Compression::Zstd => zstd::bulk::compress(data, spec.level.unwrap_or(ZSTD_LEVEL)),
        Compression::Lz4 => {
            let mut out = lz4_flex::frame::FrameEncoder::new(room);
            out.write_all(data).and_then(|()| out.finish().map_err(Into::into))
        }
    };
    packed.map_err(|e| Error::io("could not compress data", &e))
}

/// zstd's own default.
const ZSTD_LEVEL: i32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn unpack(data: &[u8], method: Compression) -> Vec<u8> {
        let mut out = Vec::new();
        match method {
            Compression::None => out.extend(data),
            Compression::Gzip => {
                flate2::read::MultiGzDecoder::new(data).read_to_end(&mut out).unwrap();
            }
            Compression::Zstd => zstd::stream::copy_decode(data, &mut out).unwrap(),
            Compression::Lz4 => {
                let mut rest = data;
                while !rest.is_empty() {
                    lz4_flex::frame::FrameDecoder::new(&mut rest).read_to_end(&mut out).unwrap();
                }
            }
        }
        out
    }

    #[test]
    fn blocks_one_after_the_other_are_a_file() {
        for text in ["none", "gzip", "gzip:1", "zstd", "zstd:7", "lz4"] {
            let spec = Spec::parse(text).unwrap();
            let packer = Packer::start(spec, 2, true).unwrap();
            let (mut file, mut whole, mut rows, mut sum) = (vec![], vec![], 0, RowSum::default());
            for n in 0..5u8 {
                let mut data = format!("{n}\t{}\n", "x".repeat(1000)).repeat(50 * n as usize);
                data += "\\.\n";
                whole.extend_from_slice(data.as_bytes());
                let block = Block { data: data.into_bytes(), tail: 3, rows: true };
                let packed = packer.pack(block).unwrap().recv().unwrap().unwrap();
                file.extend(packed.bytes);
                rows += packed.rows;
                sum.merge(packed.sum);
            }
            assert_eq!(unpack(&file, spec.method), whole, "{text}");
            assert_eq!((rows, sum.rows()), (500, 500));
        }
    }

    #[test]
    fn nothing_has_a_frame_too() {
        for text in ["gzip", "zstd", "lz4"] {
            let spec = Spec::parse(text).unwrap();
            let packed = compress(b"", spec).unwrap();
            assert!(!packed.is_empty(), "{text}");
            assert_eq!(unpack(&packed, spec.method), b"");
        }
    }
}
