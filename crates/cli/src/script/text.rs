//! Statements as a script for psql.

use super::Sink;
use crate::archive::{read_error, Archive};
use crate::error::{Error, Result};
use crate::plan::text::quoted;
use crate::report::file::{NewFile, Readers};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};

/// A script that is being written.
pub struct Text {
    out: BufWriter<Out>,
    /// Its name for messages.
    name: String,
    /// Whoever reads standard output has seen enough.
    pub closed: bool,
}

enum Out {
    Standard(io::Stdout),
    File(NewFile),
}

impl Write for Out {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        match self {
            Out::Standard(out) => out.write(text),
            Out::File(file) => file.write(text),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Out::Standard(out) => out.flush(),
            Out::File(file) => file.flush(),
        }
    }
}

/// The end of a table's rows, with the empty lines that pg_dump puts there.
const END_OF_ROWS: &[u8] = b"\\.\n\n\n";

impl Text {
    /// Writes to a file, or to standard output if it is named `-`.
    pub fn create(name: &str) -> Result<Text> {
        let out = match name {
            "-" => Out::Standard(io::stdout()),
            name => Out::File(
                NewFile::create(name, Readers::Usual)
                    .map_err(|e| Error::io(format!("could not open output file \"{name}\""), &e))?,
            ),
        };
        let name = match name {
            "-" => "to standard output".to_string(),
            name => format!("output file \"{name}\""),
        };
        Ok(Text { out: BufWriter::with_capacity(128 << 10, out), name, closed: false })
    }

    fn write(&mut self, text: &[u8]) -> Result<()> {
        let written = self.out.write_all(text);
        self.check(written)
    }

    fn check(&mut self, written: io::Result<()>) -> Result<()> {
        written.map_err(|e| {
            self.closed = e.kind() == io::ErrorKind::BrokenPipe;
            Error::io(format!("could not write {}", self.name), &e)
        })
    }

    /// All is written. A script that does not get here is none: of a file nothing is left.
    pub fn finish(&mut self) -> Result<()> {
        let kept = self.out.flush().and_then(|()| match self.out.get_mut() {
            Out::Standard(_) => Ok(()),
            Out::File(file) => file.keep(),
        });
        self.check(kept)
    }
}

impl Sink for Text {
    fn sql(&mut self, text: &[u8]) -> Result<()> {
        self.write(text)
    }

    fn remark(&mut self, text: &[u8]) -> Result<()> {
        self.write(text)
    }

    fn connect(&mut self, database: &[u8], restrict_key: &str) -> Result<()> {
        let connect = quoted::psql_connect(database)?;
        self.write(format!("\\unrestrict {restrict_key}\n").as_bytes())?;
        self.write(&connect)?;
        self.write(format!("\\restrict {restrict_key}\n\n").as_bytes())
    }

    fn rows(&mut self, archive: &Archive, place: usize) -> Result<()> {
        let copy = archive.toc().entry(place).copy_stmt;
        self.write(copy)?;
        let mut rows = archive.data(place)?;
        let mut buffer = vec![0; 128 << 10];
        loop {
            let read = rows.read(&mut buffer).map_err(read_error)?;
            if read == 0 {
                break;
            }
            self.write(&buffer[..read])?;
        }
        match copy {
            b"" => Ok(()),
            _ => self.write(END_OF_ROWS),
        }
    }
}

/// A word that nobody can guess, for psql's restricted mode.
pub fn restrict_key() -> Result<String> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| Error::io("could not generate restrict key", &e))?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}
