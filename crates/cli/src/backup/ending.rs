//! What is written when all data is there: lists of large objects, the table of contents, and what makes a backup of it all.

use super::lane::Work;
use super::sealed::{self, Scratch, Sealer};
use crate::archive::manifest::{self, Encryption, FileRecord, Manifest};
use crate::archive::rewrite::{Content, DataEntry};
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::io::Read;

/// Writes the lists of large objects.
pub fn write_lists(work: &Work, entries: &[DataEntry], all: &[u32]) -> Result<()> {
    for entry in entries {
        let Content::LargeObjects { oids } = &entry.content else { continue };
        let mut text = String::new();
        for oid in oids.as_deref().unwrap_or(all) {
            text += &format!("{oid} blob_{oid}.dat\n");
        }
        write_plain(work, &entry.file, &mut text.as_bytes())?;
    }
    Ok(())
}

/// Writes the table of contents, which makes an archive of the files.
pub fn write_toc(work: &Work, toc: Scratch) -> Result<()> {
    write_plain(work, "toc.dat", &mut toc.read()?)
}

/// Makes a backup of what was written.
pub fn seal(work: &Work, sealer: Option<&Sealer>, own: &Manifest) -> Result<Option<Encryption>> {
    let Some(sealer) = sealer else {
        work.destination.seal(own)?;
        return Ok(None);
    };
    sealed::write_key(&*work.destination, sealer)?;
    let mut output = work.destination.create(manifest::FILE, 0)?;
    output.write(own.to_text()?)?;
    output.finish()?;
    work.destination.settle()?;
    let public = sealer.public(own);
    work.destination.seal(&public)?;
    Ok(public.head.encryption)
}

/// Writes a file as it is.
fn write_plain(work: &Work, name: &str, from: &mut impl Read) -> Result<()> {
    let mut output = work.destination.create(name, 0)?;
    let mut hash = Sha256::new();
    let mut size = 0;
    loop {
        work.halt.check()?;
        let mut bytes = Vec::new();
        let read = from.take(1 << 20).read_to_end(&mut bytes);
        read.map_err(|e| Error::io(format!("could not read what belongs into \"{name}\""), &e))?;
        if bytes.is_empty() {
            break;
        }
        hash.update(&bytes);
        size += bytes.len() as u64;
        output.write(bytes)?;
    }
    output.finish()?;
    let record = FileRecord {
        name: name.to_string(),
        size,
        sha256: manifest::hex(&hash.finalize()),
        table: None,
    };
    work.records.lock().unwrap_or_else(|e| e.into_inner()).push(record);
    Ok(())
}
