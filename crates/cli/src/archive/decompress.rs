//! Decompression that takes a stream that ends too early for what it is.

use super::fault::damaged;
use super::header::Compression;
use flate2::{Decompress, FlushDecompress, Status};
use std::io::{self, BufRead, Read};

/// The decompressed bytes of a file of a directory.
///
/// No input at all is no output, for some versions of `pg_dump` write nothing for an empty large object.
pub(super) fn of_file<R: BufRead + Send + 'static>(
    mut inner: R,
    compression: Compression,
) -> io::Result<Box<dyn Read + Send>> {
    if inner.fill_buf()?.is_empty() {
        return Ok(Box::new(io::empty()));
    }
    Ok(match compression {
        Compression::None => Box::new(inner),
        Compression::Gzip => Box::new(Foreign(flate2::bufread::MultiGzDecoder::new(inner))),
        Compression::Lz4 => Box::new(Foreign(lz4_flex::frame::FrameDecoder::new(inner))),
        Compression::Zstd => Box::new(Foreign(zstd::Decoder::with_buffer(inner)?)),
    })
}

/// The decompressed bytes of a stretch of data in a custom archive.
pub(super) fn of_blocks<R: BufRead + Send + 'static>(
    inner: R,
    compression: Compression,
) -> io::Result<Box<dyn Read + Send>> {
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

/// A zlib stream. (flate2's own reader takes the input's end for the stream's.)
struct Inflate<R> {
    inner: R,
    state: Decompress,
    begun: bool,
    done: bool,
}

impl<R: BufRead> Inflate<R> {
    fn new(inner: R) -> Self {
        Inflate { inner, state: Decompress::new(true), begun: false, done: false }
    }
}

impl<R: BufRead> Read for Inflate<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        while !self.done {
            let input = self.inner.fill_buf()?;
            if input.is_empty() && !self.begun {
                self.done = true;
                break;
            }
            self.begun = true;
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
                    true => io::ErrorKind::UnexpectedEof.into(),
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
