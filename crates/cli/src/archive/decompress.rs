//! Decompression that takes a stream that ends too early for what it is.

use super::fault::{cut_off, damaged};
use super::header::Compression;
use flate2::{Decompress, FlushDecompress, Status};
use lz4_flex::frame::FrameDecoder;
use std::io::{self, BufRead, Read};

/// The decompressed bytes of a file of a directory.
pub(super) fn of_file<R: BufRead + Send + 'static>(
    mut inner: R,
    compression: Compression,
) -> io::Result<Box<dyn Read + Send>> {
    if inner.fill_buf()?.is_empty() {
        return match compression {
            Compression::Gzip => Err(cut_off()),
            // pg_dump writes nothing at all for an empty large object.
            Compression::None | Compression::Lz4 | Compression::Zstd => Ok(Box::new(io::empty())),
        };
    }
    Ok(match compression {
        Compression::None => Box::new(inner),
        Compression::Gzip => Box::new(Foreign(flate2::bufread::MultiGzDecoder::new(inner))),
        Compression::Lz4 => Box::new(Foreign(Lz4::new(inner))),
        Compression::Zstd => Box::new(Foreign(zstd::Decoder::with_buffer(inner)?)),
    })
}

/// The decompressed bytes of a stretch of data in a custom archive. It has an end mark of its own, so that an empty
/// one is whole.
pub(super) fn of_blocks<R: BufRead + Send + 'static>(
    mut inner: R,
    compression: Compression,
) -> io::Result<Box<dyn Read + Send>> {
    if inner.fill_buf()?.is_empty() {
        return Ok(Box::new(io::empty()));
    }
    match compression {
        Compression::Gzip => Ok(Box::new(Inflate::new(inner))),
        other => of_file(inner, other),
    }
}

/// A decoder of a library: what it complains of is damage unless the bytes could not be read at all.
struct Foreign<R>(R);

impl<R: Read> Read for Foreign<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.read(out).map_err(|e| {
            let ours = e.get_ref().is_some_and(|inner| inner.is::<crate::Error>());
            let passed_on = e.raw_os_error().is_some() || e.kind() == io::ErrorKind::Interrupted;
            if ours || passed_on || e.kind() == io::ErrorKind::UnexpectedEof {
                return e;
            }
            damaged(format!("the compressed data is damaged: {e}"))
        })
    }
}

/// Frames of LZ4. (lz4_flex takes the input's end between two blocks for the frame's, and stops after one frame.)
struct Lz4<R: Read> {
    decoder: FrameDecoder<Watched<R>>,
}

/// What a frame decoder takes from its input.
struct Watched<R> {
    inner: R,
    /// Bytes of the current frame.
    taken: u64,
    /// The fifth byte of the frame: its flags.
    flags: u8,
    /// The last eight bytes.
    last: [u8; 8],
    /// There was no more where more was wanted.
    at_end: bool,
}

/// The least bytes of a frame: magic number, descriptor with its checksum, end mark.
const LEAST_FRAME: u64 = 4 + 3 + 4;
/// The flag of frames that have a checksum of their contents behind the end mark.
const CONTENT_CHECKSUM: u8 = 4;

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(out)?;
        self.at_end |= n == 0 && !out.is_empty();
        if let Some(flags) = 4u64.checked_sub(self.taken).and_then(|i| out[..n].get(i as usize)) {
            self.flags = *flags;
        }
        let kept = n.min(8);
        self.last.copy_within(kept.., 0);
        self.last[8 - kept..].copy_from_slice(&out[n - kept..n]);
        self.taken += n as u64;
        Ok(n)
    }
}

impl<R> Watched<R> {
    /// Whether the last thing taken was a frame's end.
    fn after_end_mark(&self) -> bool {
        let mark =
            if self.flags & CONTENT_CHECKSUM != 0 { &self.last[..4] } else { &self.last[4..] };
        self.taken >= LEAST_FRAME && mark == [0; 4]
    }
}

impl<R: Read> Lz4<R> {
    fn new(inner: R) -> Self {
        let watched = Watched { inner, taken: 0, flags: 0, last: [0; 8], at_end: false };
        Lz4 { decoder: FrameDecoder::new(watched) }
    }
}

impl<R: Read> Read for Lz4<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        loop {
            let before = self.decoder.get_ref().taken;
            let n = self.decoder.read(out)?;
            if n > 0 {
                return Ok(n);
            }
            let watched = self.decoder.get_mut();
            if watched.at_end {
                return if watched.taken == 0 { Ok(0) } else { Err(cut_off()) };
            }
            if watched.taken == before {
                return Err(damaged("the compressed data is damaged: no progress"));
            }
            if watched.after_end_mark() {
                // Another frame may follow.
                watched.taken = 0;
            }
        }
    }
}

/// A zlib stream. (flate2's own reader takes the input's end for the stream's.)
struct Inflate<R> {
    inner: R,
    state: Decompress,
    done: bool,
}

impl<R: BufRead> Inflate<R> {
    fn new(inner: R) -> Self {
        Inflate { inner, state: Decompress::new(true), done: false }
    }
}

impl<R: BufRead> Read for Inflate<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        while !self.done {
            let input = self.inner.fill_buf()?;
            let at_end = input.is_empty();
            let (read, written) = (self.state.total_in(), self.state.total_out());
            let status = self
                .state
                .decompress(input, out, FlushDecompress::None)
                .map_err(|e| damaged(format!("the compressed data is damaged: {e}")))?;
            let read = (self.state.total_in() - read) as usize;
            let written = (self.state.total_out() - written) as usize;
            self.inner.consume(read);
            if status == Status::StreamEnd {
                self.done = true;
                if !self.inner.fill_buf()?.is_empty() {
                    return Err(damaged("the compressed data goes on after its end"));
                }
            } else if written == 0 && read == 0 {
                return Err(match at_end {
                    true => cut_off(),
                    false => damaged("the compressed data is damaged: no progress"),
                });
            }
            if written > 0 {
                return Ok(written);
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const ALL: [Compression; 3] = [Compression::Gzip, Compression::Lz4, Compression::Zstd];

    /// Rows, and not all alike.
    fn text() -> Vec<u8> {
        let mut state = 1u32;
        let mut number = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        (0..300).flat_map(|i| format!("{i}\t{}\tword\n", number()).into_bytes()).collect()
    }

    /// Writes pieces and makes a block of each.
    fn write<W: Write>(mut to: W, text: &[u8]) -> W {
        for piece in text.chunks(700) {
            to.write_all(piece).unwrap();
            to.flush().unwrap();
        }
        to
    }

    fn compressed(how: Compression, text: &[u8], checksum: bool) -> Vec<u8> {
        let level = flate2::Compression::new(6);
        match how {
            Compression::None => text.to_vec(),
            Compression::Gzip => {
                write(flate2::write::GzEncoder::new(Vec::new(), level), text).finish().unwrap()
            }
            Compression::Lz4 => {
                let info = lz4_flex::frame::FrameInfo::new().content_checksum(checksum);
                let encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
                write(encoder, text).finish().unwrap()
            }
            Compression::Zstd => {
                let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
                encoder.include_checksum(checksum).unwrap();
                write(encoder, text).finish().unwrap()
            }
        }
    }

    fn decompressed(how: Compression, bytes: &[u8], step: usize) -> io::Result<Vec<u8>> {
        let input = io::BufReader::with_capacity(step, io::Cursor::new(bytes.to_vec()));
        let mut out = Vec::new();
        of_file(input, how)?.read_to_end(&mut out).map(|_| out)
    }

    #[test]
    fn several_in_a_file_are_one() {
        let text = text();
        let (first, second) = text.split_at(3000);
        for how in ALL {
            for checksum in [false, true] {
                let mut file = compressed(how, first, checksum);
                file.extend(compressed(how, b"", checksum));
                file.extend(compressed(how, second, checksum));
                for step in [1, 3, 64, 100_000] {
                    assert!(decompressed(how, &file, step).unwrap() == text, "{how} {step}");
                }
            }
        }
    }

    #[test]
    fn a_stream_that_ends_early_is_an_error() {
        let text = text();
        for how in ALL {
            for checksum in [false, true] {
                let file = compressed(how, &text, checksum);
                assert!(decompressed(how, &file, 64).unwrap() == text);
                for length in 1..file.len() {
                    let found = decompressed(how, &file[..length], 64);
                    assert!(found.is_err(), "{how} cut to {length} of {}", file.len());
                }
                let trailing = [&file[..], b"rubbish"].concat();
                assert!(decompressed(how, &trailing, 64).is_err(), "{how}");
            }
        }
    }

    #[test]
    fn a_zlib_stream_that_ends_early_is_an_error() {
        let text = text();
        let level = flate2::Compression::new(6);
        let stream =
            write(flate2::write::ZlibEncoder::new(Vec::new(), level), &text).finish().unwrap();
        let read = |bytes: &[u8]| {
            let mut out = Vec::new();
            let bytes = io::Cursor::new(bytes.to_vec());
            of_blocks(bytes, Compression::Gzip)?.read_to_end(&mut out).map(|_| out)
        };
        assert!(read(&stream).unwrap() == text);
        for length in 1..stream.len() {
            assert!(read(&stream[..length]).is_err(), "cut to {length} of {}", stream.len());
        }
        assert!(read(&[&stream[..], b"x"].concat()).is_err());
    }
}
