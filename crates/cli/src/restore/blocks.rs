//! A table's rows in blocks that end with lines, read and decompressed ahead of the connection that sends them: the
//! server waits for its log now and then, and the reader need not wait with it.

use crate::archive::read_error;
use crate::error::{Error, ErrorKind, Result};
use std::io::Read;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bytes that are sent at a time, to the next line's end. Parts of a table take blocks of this size in turn.
pub const BLOCK: usize = 1 << 20;
/// Bytes that are read ahead. A block with a longer line than that is alone.
const AHEAD: usize = 8 * BLOCK;

/// The first `length` bytes of `bytes`.
pub struct Block {
    bytes: Vec<u8>,
    length: usize,
}

impl std::ops::Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

type Source = Box<dyn Read + Send>;

/// Cuts what it reads into blocks, and hands out those of one part.
struct Cutter {
    source: Source,
    /// Its first `filled` bytes are still to be handed out.
    buffer: Vec<u8>,
    filled: usize,
    ended: bool,
    /// Of the next block, of all parts.
    number: u64,
    part: u64,
    parts: u64,
}

impl Cutter {
    /// Have a whole block at the buffer's begin. Returns its length, 0 at the end.
    fn fill(&mut self) -> Result<usize> {
        loop {
            if self.ended {
                return Ok(self.filled);
            }
            if self.filled >= BLOCK {
                let tail = &self.buffer[BLOCK - 1..self.filled];
                if let Some(end) = tail.iter().position(|&b| b == b'\n') {
                    return Ok(BLOCK + end);
                }
            }
            // Zeroed once only: a read may bring little.
            if self.buffer.len() < self.filled + BLOCK / 4 {
                self.buffer.resize(self.filled + BLOCK, 0);
            }
            let read = self.source.read(&mut self.buffer[self.filled..]).map_err(read_error)?;
            self.filled += read;
            self.ended = read == 0;
        }
    }

    /// The part's next block. `spare` gives memory to go on with.
    fn next(&mut self, spare: impl Fn() -> Vec<u8>) -> Result<Option<Block>> {
        loop {
            let length = self.fill()?;
            if length == 0 {
                return Ok(None);
            }
            let (number, rest) = (self.number, self.filled - length);
            self.number += 1;
            self.filled = rest;
            if number % self.parts != self.part {
                self.buffer.copy_within(length..length + rest, 0);
                continue;
            }
            let mut next = spare();
            if next.len() < rest {
                next.resize(rest, 0);
            }
            next[..rest].copy_from_slice(&self.buffer[length..length + rest]);
            return Ok(Some(Block { bytes: std::mem::replace(&mut self.buffer, next), length }));
        }
    }
}

/// How much memory blocks on their way take.
#[derive(Default)]
struct Room {
    used: usize,
    /// Nobody takes blocks any more.
    closed: bool,
}

type Shared = Arc<(Mutex<Room>, Condvar)>;

fn lock(shared: &Shared) -> MutexGuard<'_, Room> {
    shared.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wait until there is room for so many bytes, and take it. `false`: nobody wants them any more.
fn take_room(shared: &Shared, bytes: usize) -> bool {
    let full = |room: &mut Room| !room.closed && room.used > 0 && room.used + bytes > AHEAD;
    let waited = shared.1.wait_while(lock(shared), full);
    let mut room = waited.unwrap_or_else(PoisonError::into_inner);
    room.used += bytes;
    !room.closed
}

enum Place {
    /// All is here already: a small table.
    Here(Cutter),
    Ahead {
        blocks: Receiver<Result<Option<Block>>>,
        spare: Sender<Vec<u8>>,
        room: Shared,
    },
}

/// The blocks of one part of a table's rows.
pub struct Blocks(Place);

impl Blocks {
    /// Begin to read. More than one block is read by a thread of its own, which ends when this is dropped.
    pub fn of(source: Source, (part, parts): (u16, u16)) -> Result<Self> {
        let mut cutter = Cutter {
            source,
            buffer: Vec::new(),
            filled: 0,
            ended: false,
            number: 0,
            part: u64::from(part),
            parts: u64::from(parts),
        };
        cutter.fill()?;
        if cutter.ended {
            return Ok(Self(Place::Here(cutter)));
        }
        let (give, blocks) = channel();
        let (spare, spares) = channel();
        let room = Shared::default();
        let theirs = Arc::clone(&room);
        std::thread::Builder::new()
            .name("reader".into())
            .spawn(move || read_on(cutter, &give, &spares, &theirs))
            .map_err(|e| {
                Error::new(ErrorKind::Internal, format!("could not start a thread: {e}"))
            })?;
        Ok(Self(Place::Ahead { blocks, spare, room }))
    }

    /// The next block, `None` at the end. `stopped` is asked while there is none yet.
    pub fn next(&mut self, stopped: impl Fn() -> bool) -> Result<Option<Block>> {
        let cancelled = || Error::new(ErrorKind::Cancelled, "canceled by user");
        if stopped() {
            return Err(cancelled());
        }
        match &mut self.0 {
            Place::Here(cutter) => cutter.next(Vec::new),
            Place::Ahead { blocks, .. } => loop {
                match blocks.recv_timeout(Duration::from_millis(100)) {
                    Ok(block) => return block,
                    Err(RecvTimeoutError::Timeout) if stopped() => return Err(cancelled()),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        return Err(Error::new(
                            ErrorKind::Internal,
                            "the reader of a table's rows ended before them",
                        ))
                    }
                }
            },
        }
    }

    /// Take a block's memory back, for another one. Must be done: as long as it is not, it counts as read ahead.
    pub fn done(&mut self, block: Block) {
        if let Place::Ahead { spare, room, .. } = &self.0 {
            lock(room).used -= block.bytes.len();
            room.1.notify_one();
            if block.bytes.len() <= AHEAD / 2 {
                // If the reader has come to its end, it is freed.
                let _ = spare.send(block.bytes);
            }
        }
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        if let Place::Ahead { room, .. } = &self.0 {
            lock(room).closed = true;
            room.1.notify_one();
        }
    }
}

/// Read to the end, or until nobody takes the blocks.
fn read_on(
    mut cutter: Cutter,
    give: &Sender<Result<Option<Block>>>,
    spares: &Receiver<Vec<u8>>,
    room: &Shared,
) {
    loop {
        let block = cutter.next(|| spares.try_recv().unwrap_or_default());
        let bytes = match &block {
            Ok(Some(block)) => block.bytes.len(),
            _ => 0,
        };
        if !take_room(room, bytes) || give.send(block).is_err() || bytes == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Cursor};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn all(text: &[u8], part: (u16, u16)) -> Vec<Vec<u8>> {
        let mut blocks = Blocks::of(Box::new(Cursor::new(text.to_vec())), part).unwrap();
        let mut found = Vec::new();
        while let Some(block) = blocks.next(|| false).unwrap() {
            found.push(block.to_vec());
            blocks.done(block);
        }
        found
    }

    fn lines(count: usize) -> Vec<u8> {
        (0..count).flat_map(|n| format!("line {n}\n").into_bytes()).collect()
    }

    #[test]
    fn blocks_end_with_lines() {
        for count in [0, 1, 1000, 1_500_000] {
            let text = lines(count);
            let blocks = all(&text, (0, 1));
            assert!(blocks.iter().all(|b| b.ends_with(b"\n")));
            assert!(blocks.len() >= text.len() / (2 * BLOCK));
            assert_eq!(blocks.concat(), text);
        }
    }

    #[test]
    fn parts_take_turns() {
        let text = lines(1_500_000);
        let whole = all(&text, (0, 1));
        let parts: Vec<_> = (0..3).map(|n| all(&text, (n, 3))).collect();
        for (n, block) in whole.iter().enumerate() {
            assert_eq!(&parts[n % 3][n / 3], block);
        }
        assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), whole.len());
    }

    #[test]
    fn a_line_longer_than_blocks() {
        let text = [&b"short\n"[..], &vec![b'x'; 3 * BLOCK], b"\nshort\n"].concat();
        let blocks = all(&text, (0, 1));
        assert_eq!(blocks.concat(), text);
        assert!(blocks.iter().all(|b| b.ends_with(b"\n")));
    }

    #[test]
    fn errors_come_through() {
        struct Broken(Cursor<Vec<u8>>);
        impl Read for Broken {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                match self.0.read(buffer)? {
                    0 => Err(io::Error::other("torn")),
                    read => Ok(read),
                }
            }
        }
        let mut blocks =
            Blocks::of(Box::new(Broken(Cursor::new(lines(1_000_000)))), (0, 1)).unwrap();
        let error = loop {
            match blocks.next(|| false) {
                Ok(block) => blocks.done(block.expect("not the end")),
                Err(e) => break e,
            }
        };
        assert!(error.to_string().contains("torn"), "{error}");
        assert!(Blocks::of(Box::new(Broken(Cursor::new(lines(3)))), (0, 1)).is_err());
    }

    #[test]
    fn long_lines_wait_for_each_other() {
        struct Counted(Arc<AtomicUsize>);
        impl Read for Counted {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                // Lines of 16 blocks.
                let begin = self.0.load(Ordering::Relaxed) % (16 * BLOCK);
                let length = buffer.len().min(16 * BLOCK - begin);
                buffer[..length].fill(b'x');
                if begin + length == 16 * BLOCK {
                    buffer[length - 1] = b'\n';
                }
                self.0.fetch_add(length, Ordering::Relaxed);
                Ok(length)
            }
        }
        let read = Arc::new(AtomicUsize::new(0));
        let mut blocks = Blocks::of(Box::new(Counted(Arc::clone(&read))), (0, 1)).unwrap();
        for n in 1..6 {
            let block = blocks.next(|| false).unwrap().unwrap();
            assert_eq!(block.len(), 16 * BLOCK);
            std::thread::sleep(Duration::from_millis(60));
            // This one, and the next, which waits, with what was read beyond its end.
            assert!(read.load(Ordering::Relaxed) <= (n + 1) * 16 * BLOCK + 17 * BLOCK);
            blocks.done(block);
        }
    }

    #[test]
    fn it_stops() {
        let mut blocks = Blocks::of(Box::new(io::repeat(b'\n')), (0, 1)).unwrap();
        assert!(blocks.next(|| false).unwrap().is_some());
        assert!(blocks.next(|| true).is_err());
    }
}
