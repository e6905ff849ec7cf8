//! Reads the table of contents.
//!
//! Format: PostgreSQL's `pg_backup_archiver.c`, `WriteToc`, with what `pg_backup_custom.c` (an offset) and
//! `pg_backup_directory.c` and `pg_backup_tar.c` (a file name) append to each entry.

use super::header::{Format, Header};
use super::wire::{Offset, Wire};
use crate::archive::toc::{Absent, Entry, Section, Toc};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::io::Read;

/// Where the data of the entries is.
#[derive(Default)]
pub(super) struct DataPlaces {
    /// Custom format: (place of the entry, offset), in order of place; only entries with data of known place.
    pub offsets: Vec<(u32, u64)>,
    /// Custom format: entries with data whose place is not known.
    pub unknown: u32,
    /// Directory format: file names by place, where they are not the dump id with `.dat`.
    pub names: HashMap<u32, Box<[u8]>>,
}

/// The least an entry takes: this many integers.
const INTEGERS_PER_ENTRY: u64 = 15;

/// Texts of an entry, one after the other; reused for all entries.
#[derive(Default)]
struct Scratch {
    text: Vec<u8>,
    dependencies: Vec<i32>,
}

/// Reads all entries from behind the header, from a file of that name and size.
pub(super) fn read<R: Read>(
    wire: &mut Wire<R>,
    header: &Header,
    file: &str,
    size: u64,
) -> Result<(Toc, DataPlaces)> {
    let count = wire.int()?;
    let least = INTEGERS_PER_ENTRY * (1 + wire.int_size as u64);
    let count = u32::try_from(count)
        .map_err(|_| Error::archive(format!("invalid number of entries {count}")))?;
    if u64::from(count) > wire.left() / least {
        return Err(Error::archive("unexpected end of file").detail(format!(
            "The table of contents promises {count} entries, for which file \"{file}\" is too short."
        )));
    }
    let mut toc = Toc::with_room(size);
    let mut data = DataPlaces::default();
    let mut scratch = Scratch::default();
    for place in 0..count {
        let start = wire.position();
        entry(wire, header, place, &mut scratch, &mut toc, &mut data).map_err(|e| {
            let n = u64::from(place) + 1;
            e.detail(format!(
                "Entry {n} of {count} of the table of contents, at byte {start} of file \"{file}\"."
            ))
        })?;
    }
    toc.shrink();
    Ok((toc, data))
}

/// A text within the scratch buffer.
type Span = std::ops::Range<usize>;

fn text<R: Read>(wire: &mut Wire<R>, scratch: &mut Vec<u8>) -> Result<Span> {
    let start = scratch.len();
    wire.text(scratch)?;
    Ok(start..scratch.len())
}

/// The same, noting whether it is there.
fn perhaps<R: Read>(
    wire: &mut Wire<R>,
    scratch: &mut Vec<u8>,
    what: Absent,
    absent: &mut Absent,
) -> Result<Span> {
    let start = scratch.len();
    absent.note(what, wire.text(scratch)?);
    Ok(start..scratch.len())
}

/// Reads a number that is written as text. None is 0.
fn number<R: Read>(wire: &mut Wire<R>, scratch: &mut Vec<u8>) -> Result<u32> {
    let span = text(wire, scratch)?;
    let digits = &scratch[span.clone()];
    let value = digits.iter().try_fold(0u32, |value, &c| {
        let digit = c.wrapping_sub(b'0');
        (digit < 10).then_some(())?;
        value.checked_mul(10)?.checked_add(u32::from(digit))
    });
    let value = value.ok_or_else(|| {
        Error::archive(format!("\"{}\" is not a number", String::from_utf8_lossy(digits)))
    });
    scratch.truncate(span.start);
    value
}

fn entry<R: Read>(
    wire: &mut Wire<R>,
    header: &Header,
    place: u32,
    scratch: &mut Scratch,
    toc: &mut Toc,
    data: &mut DataPlaces,
) -> Result<()> {
    let Scratch { text: buffer, dependencies } = scratch;
    buffer.clear();
    dependencies.clear();
    let dump_id = wire.int()?;
    let had_dumper = wire.int()? != 0;
    let catalog_oid = number(wire, buffer)?;
    let oid = number(wire, buffer)?;
    let tag = text(wire, buffer)?;
    let desc = text(wire, buffer)?;
    let section = match wire.int()? {
        1 => Section::None,
        2 => Section::PreData,
        3 => Section::Data,
        4 => Section::PostData,
        code => return Err(Error::archive(format!("unknown section {code}"))),
    };
    let defn = text(wire, buffer)?;
    let mut absent = Absent::default();
    let drop_stmt = perhaps(wire, buffer, Absent::DROP_STMT, &mut absent)?;
    let copy_stmt = text(wire, buffer)?;
    let namespace = perhaps(wire, buffer, Absent::NAMESPACE, &mut absent)?;
    let tablespace = perhaps(wire, buffer, Absent::TABLESPACE, &mut absent)?;
    let tableam = match header.at_least(14) {
        true => perhaps(wire, buffer, Absent::TABLEAM, &mut absent)?,
        false => {
            absent.note(Absent::TABLEAM, false);
            0..0
        }
    };
    let relkind = if header.at_least(16) {
        let code = wire.int()?;
        u8::try_from(code)
            .map_err(|_| Error::archive(format!("invalid kind of relation {code}")))?
    } else {
        0
    };
    let owner = perhaps(wire, buffer, Absent::OWNER, &mut absent)?;
    let with_oids = text(wire, buffer)?;
    if &buffer[with_oids] == b"true" {
        toc.note_oids();
    }
    loop {
        let start = buffer.len();
        if !wire.text(buffer)? {
            break;
        }
        let id = std::str::from_utf8(&buffer[start..]).ok().and_then(|id| id.parse().ok());
        dependencies.push(id.ok_or_else(|| {
            let id = String::from_utf8_lossy(&buffer[start..]);
            Error::archive(format!("\"{id}\" is not a dump ID"))
        })?);
        buffer.truncate(start);
    }
    let has_data = match header.format {
        Format::Custom => match wire.offset()? {
            Offset::NoData => false,
            Offset::Unknown => {
                data.unknown += u32::from(had_dumper);
                had_dumper
            }
            Offset::At(offset) => {
                data.offsets.push((place, offset));
                true
            }
        },
        Format::Directory | Format::Tar => {
            let name = text(wire, buffer)?;
            let mut name = &buffer[name];
            // Some versions noted another name than the one they used; in tar archives all do.
            let list = format!("blobs_{dump_id}.toc");
            if &buffer[desc.clone()] == b"BLOBS" && !name.is_empty() {
                if !header.at_least(16) {
                    name = b"blobs.toc";
                } else if header.format == Format::Tar {
                    name = list.as_bytes();
                }
            }
            if !name.is_empty() && name != usual_name(dump_id).as_bytes() {
                data.names.insert(place, name.into());
            }
            !name.is_empty()
        }
    };
    toc.push(&Entry {
        dump_id,
        catalog_oid,
        oid,
        desc: &buffer[desc],
        tag: &buffer[tag],
        namespace: &buffer[namespace],
        owner: &buffer[owner],
        tablespace: &buffer[tablespace],
        tableam: &buffer[tableam],
        relkind,
        section,
        defn: &buffer[defn],
        drop_stmt: &buffer[drop_stmt],
        copy_stmt: &buffer[copy_stmt],
        has_data,
        dependencies,
        absent,
    })
}

/// The file name `pg_dump` gives an entry's data, without what compression adds.
pub(super) fn usual_name(dump_id: i32) -> String {
    format!("{dump_id}.dat")
}
