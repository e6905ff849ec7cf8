//! A table's rows in pieces, read and decompressed ahead of the connection that sends them: the server waits for its
//! log now and then, and the reader need not wait with it.

use crate::archive::read_error;
use crate::error::{Error, ErrorKind, Result};
use std::io::Read;
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

/// Bytes of a piece, at most. Parts of a table take blocks of so many bytes, and on to the next line's end, in turn.
pub const BLOCK: usize = 1 << 20;
/// Pieces that are read ahead.
const AHEAD: usize = 8;

type Source = Box<dyn Read + Send>;

/// Hands out the bytes of one part. What it keeps does not depend on the length of lines.
struct Cutter {
    source: Source,
    /// What was read last; the bytes from `begin` on are still to be handed out.
    buffer: Vec<u8>,
    begin: usize,
    ended: bool,
    /// Of the block at `begin`, of all parts.
    number: u64,
    /// Bytes of it that lie before `begin`.
    passed: usize,
    part: u64,
    parts: u64,
}

impl Cutter {
    /// Read the next bytes, as many as a piece may have.
    fn fill(&mut self) -> Result<()> {
        self.buffer.clear();
        self.begin = 0;
        let mut limited = self.source.by_ref().take(BLOCK as u64);
        let read = limited.read_to_end(&mut self.buffer).map_err(read_error)?;
        self.ended = read < BLOCK;
        Ok(())
    }

    /// The part's next piece, `None` at the end.
    fn next(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            if self.begin == self.buffer.len() {
                if self.ended {
                    return Ok(None);
                }
                self.fill()?;
                continue;
            }
            let mine = self.number % self.parts == self.part;
            let bytes = &self.buffer[self.begin..];
            let from = (BLOCK - 1).saturating_sub(self.passed).min(bytes.len());
            let end = bytes[from..].iter().position(|&b| b == b'\n').map(|n| from + n + 1);
            let piece = &bytes[..end.unwrap_or(bytes.len())];
            let found = mine.then(|| piece.to_vec());
            self.begin += piece.len();
            self.passed += piece.len();
            if end.is_some() {
                (self.number, self.passed) = (self.number + 1, 0);
            }
            if found.is_some() {
                return Ok(found);
            }
        }
    }
}

enum Place {
    /// All is here already: a small table.
    Here(Cutter),
    Ahead(Receiver<Result<Option<Vec<u8>>>>),
}

/// The rows of one part of a table, in pieces.
pub struct Pieces(Place);

impl Pieces {
    /// Begin to read. More than one piece is read by a thread of its own, which ends when this is dropped.
    pub fn of(source: Source, (part, parts): (u16, u16)) -> Result<Self> {
        let mut cutter = Cutter {
            source,
            buffer: Vec::new(),
            begin: 0,
            ended: false,
            number: 0,
            passed: 0,
            part: u64::from(part),
            parts: u64::from(parts),
        };
        cutter.fill()?;
        if cutter.ended {
            return Ok(Self(Place::Here(cutter)));
        }
        let (give, pieces) = sync_channel(AHEAD);
        std::thread::Builder::new()
            .name("reader".into())
            .spawn(move || read_on(cutter, &give))
            .map_err(|e| {
                Error::new(ErrorKind::Internal, format!("could not start a thread: {e}"))
            })?;
        Ok(Self(Place::Ahead(pieces)))
    }

    /// The next piece, `None` at the end. `stop` is asked while there is none yet.
    pub fn next(&mut self, stop: impl Fn() -> bool) -> Result<Option<Vec<u8>>> {
        loop {
            if stop() {
                return Err(stopped());
            }
            match &mut self.0 {
                Place::Here(cutter) => return cutter.next(),
                Place::Ahead(pieces) => match pieces.recv_timeout(Duration::from_millis(100)) {
                    Ok(piece) => return piece,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        let message = "the reader of a table's rows ended before them";
                        return Err(Error::new(ErrorKind::Internal, message));
                    }
                },
            }
        }
    }
}

/// The user's wish.
pub fn stopped() -> Error {
    Error::new(ErrorKind::Cancelled, "canceled by user")
}

/// Read to the end, or until nobody takes the pieces.
fn read_on(mut cutter: Cutter, give: &SyncSender<Result<Option<Vec<u8>>>>) {
    loop {
        let piece = cutter.next();
        let last = !matches!(piece, Ok(Some(_)));
        if give.send(piece).is_err() || last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{self, Cursor};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;

    fn all(text: &[u8], part: (u16, u16)) -> Vec<u8> {
        let mut pieces = Pieces::of(Box::new(Cursor::new(text.to_vec())), part).unwrap();
        let mut found = Vec::new();
        while let Some(piece) = pieces.next(|| false).unwrap() {
            assert!(piece.len() <= BLOCK && !piece.is_empty());
            found.extend(piece);
        }
        found
    }

    fn lines(count: usize) -> Vec<u8> {
        (0..count).flat_map(|n| format!("line {n}\n").into_bytes()).collect()
    }

    /// The blocks of a text, as the definition has them.
    fn blocks(mut text: &[u8]) -> Vec<&[u8]> {
        let mut found = Vec::new();
        while !text.is_empty() {
            let from = text.len().min(BLOCK - 1);
            let end = text[from..].iter().position(|&b| b == b'\n').map(|n| from + n + 1);
            let (block, rest) = text.split_at(end.unwrap_or(text.len()));
            found.push(block);
            text = rest;
        }
        found
    }

    #[test]
    fn parts_take_turns() {
        let long = |blocks: usize| [vec![b'x'; blocks * BLOCK + 5], vec![b'\n']].concat();
        let exact = [vec![b'y'; BLOCK - 1], vec![b'\n']].concat();
        let texts = [
            lines(0),
            lines(1),
            lines(1000),
            lines(1_500_000),
            [lines(3), long(3), lines(3), long(1), long(5), lines(100_000)].concat(),
            exact.repeat(4),
            [exact, lines(200_000)].concat(),
        ];
        for text in texts {
            assert!(all(&text, (0, 1)) == text);
            let blocks = blocks(&text);
            for parts in [2, 3] {
                for part in 0..parts {
                    let step = usize::from(parts);
                    let own = blocks.iter().skip(usize::from(part)).step_by(step);
                    assert!(all(&text, (part, parts)) == own.copied().collect::<Vec<_>>().concat());
                }
            }
        }
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
        let source = Broken(Cursor::new(lines(1_000_000)));
        let mut pieces = Pieces::of(Box::new(source), (0, 1)).unwrap();
        let error = loop {
            match pieces.next(|| false) {
                Ok(piece) => drop(piece.expect("not the end")),
                Err(e) => break e,
            }
        };
        assert!(error.to_string().contains("torn"), "{error}");
        assert!(Pieces::of(Box::new(Broken(Cursor::new(lines(3)))), (0, 1)).is_err());
    }

    /// Endless, without a line's end, counted; stalls from `stall` bytes on.
    struct Endless(Arc<AtomicUsize>, usize);

    impl Read for Endless {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.load(Ordering::Relaxed) >= self.1 {
                std::thread::sleep(Duration::from_secs(3600));
            }
            buffer.fill(b'x');
            self.0.fetch_add(buffer.len(), Ordering::Relaxed);
            Ok(buffer.len())
        }
    }

    #[test]
    fn a_bounded_number_is_read_ahead() {
        let read = Arc::new(AtomicUsize::new(0));
        let source = Endless(Arc::clone(&read), usize::MAX);
        let mut pieces = Pieces::of(Box::new(source), (0, 1)).unwrap();
        for n in 1..20 {
            pieces.next(|| false).unwrap().unwrap();
            std::thread::sleep(Duration::from_millis(20));
            assert!(read.load(Ordering::Relaxed) <= (n + AHEAD + 2) * BLOCK);
        }
    }

    #[test]
    fn a_stalled_source_does_not_keep_from_stopping() {
        let source = Endless(Arc::new(AtomicUsize::new(0)), 2 * BLOCK);
        let mut pieces = Pieces::of(Box::new(source), (0, 1)).unwrap();
        pieces.next(|| false).unwrap().unwrap();
        pieces.next(|| false).unwrap().unwrap();
        let asked = AtomicUsize::new(0);
        let stop = || asked.fetch_add(1, Ordering::Relaxed) > 2;
        assert_eq!(pieces.next(stop).unwrap_err().kind, ErrorKind::Cancelled);
    }
}
