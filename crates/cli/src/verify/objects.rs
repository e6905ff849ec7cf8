//! Comparing large objects: those of an archive, or of another database, with those that are there; by their contents, or by
//! their sizes, which the server knows without reading them.

use super::Difference;
use crate::archive::large_objects::defined;
use crate::archive::manifest::Manifest;
use crate::archive::{read_error, Archive};
use crate::backup::halt::Halt;
use crate::error::{Error, ErrorKind, Result};
use crate::pg::Connection;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

/// Bytes that are read at a time; as text they are twice as many.
const PIECE: usize = 1 << 20;

/// Objects whose sizes are asked for at once.
const AT_ONCE: usize = 1000;

/// What a large object holds.
#[derive(Debug, PartialEq, Eq)]
struct Sum {
    bytes: u64,
    sha256: [u8; 32],
}

fn difference(oid: u32, problem: impl Into<String>) -> Difference {
    Difference::new(format!("BLOB {oid}"), problem)
}

/// Compares the large objects whose contents are among the selected entries. Answers how many.
pub fn with_archive(
    archive: &Archive,
    selected: &dyn Fn(usize) -> bool,
    there: &Connection,
    halt: &Halt,
) -> Result<(usize, Vec<Difference>)> {
    let (mut count, mut differences) = (0, Vec::new());
    prepare(there)?;
    let toc = archive.toc();
    for place in (0..toc.len()).filter(|place| selected(*place)) {
        if toc.entry(place).desc != b"BLOBS" {
            continue;
        }
        for object in archive.large_objects(place)? {
            let mut object = object?;
            count += 1;
            let wanted = sum_of(&mut object.data, halt)?;
            differences.extend(compare(object.oid, &wanted, there, halt)?);
        }
    }
    Ok((count, differences))
}

/// Compares all large objects of one database with those of another.
pub fn with_database(
    source: &Connection,
    there: &Connection,
    halt: &Halt,
) -> Result<(usize, Vec<Difference>)> {
    let mut differences = Vec::new();
    prepare(source)?;
    prepare(there)?;
    let all = source.query(b"SELECT oid FROM pg_catalog.pg_largeobject_metadata ORDER BY oid")?;
    for row in 0..all.len() {
        let Some(oid) = all.number(row, 0) else { continue };
        let Some(wanted) = sum_there(oid, source, halt)? else { continue };
        differences.extend(compare(oid, &wanted, there, halt)?);
    }
    Ok((all.len(), differences))
}

/// Compares the sizes of the large objects whose contents are among the selected entries: all together if a manifest tells that,
/// else each with what the archive has.
pub fn sizes_with_archive(
    archive: &Archive,
    manifest: Option<&Manifest>,
    selected: &dyn Fn(usize) -> bool,
    there: &Connection,
    halt: &Halt,
) -> Result<Vec<Difference>> {
    let toc = archive.toc();
    let is_contents = |place: &usize| toc.entry(*place).desc == b"BLOBS";
    let places: Vec<usize> = (0..toc.len()).filter(is_contents).collect();
    if places.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(manifest) = manifest.filter(|_| places.iter().all(|place| selected(*place))) {
        let oids: BTreeSet<u32> = places.iter().flat_map(|place| defined(toc, *place)).collect();
        let found: u64 = sizes(there, &oids, || halt.check())?.values().sum();
        let wanted = manifest.head.large_objects.bytes;
        let problem = format!("they have {found} bytes instead of {wanted}");
        let difference = Difference::new("LARGE OBJECTS", problem);
        return Ok(if found == wanted { Vec::new() } else { vec![difference] });
    }
    let mut wanted = BTreeMap::new();
    for place in places.into_iter().filter(|place| selected(*place)) {
        for object in archive.large_objects(place)? {
            let mut object = object?;
            halt.check()?;
            let bytes =
                std::io::copy(&mut object.data, &mut std::io::sink()).map_err(read_error)?;
            wanted.insert(object.oid, bytes);
        }
    }
    compare_sizes(&wanted, there, halt)
}

/// Compares the sizes of all large objects of one database with those of another.
pub fn sizes_with_database(
    source: &Connection,
    there: &Connection,
    halt: &Halt,
) -> Result<Vec<Difference>> {
    let all = source.query(b"SELECT oid FROM pg_catalog.pg_largeobject_metadata")?;
    let all: BTreeSet<u32> = (0..all.len()).filter_map(|row| all.number(row, 0)).collect();
    compare_sizes(&sizes(source, &all, || halt.check())?, there, halt)
}

fn compare_sizes(
    wanted: &BTreeMap<u32, u64>,
    there: &Connection,
    halt: &Halt,
) -> Result<Vec<Difference>> {
    let found = sizes(there, &wanted.keys().copied().collect(), || halt.check())?;
    let compare = |(oid, wanted): (&u32, &u64)| match found.get(oid) {
        None => Some(difference(*oid, "it is missing")),
        Some(found) if found != wanted => {
            Some(difference(*oid, format!("it has {found} bytes instead of {wanted}")))
        }
        Some(_) => None,
    };
    Ok(wanted.iter().filter_map(compare).collect())
}

/// The sizes of large objects, for which the server looks at the last page of each; those that are not there are not in the answer.
pub fn sizes(
    connection: &Connection,
    oids: &BTreeSet<u32>,
    look: impl Fn() -> Result<()>,
) -> Result<BTreeMap<u32, u64>> {
    let mut sizes = BTreeMap::new();
    let oids: Vec<String> = oids.iter().map(u32::to_string).collect();
    for oids in oids.chunks(AT_ONCE) {
        look()?;
        // Opened for reading, and closed one by one: in an open transaction the server looks through all that are open for the next.
        // OFFSET keeps the three levels apart.
        let sql = format!(
            "SELECT oid, bytes, pg_catalog.lo_close(fd) FROM (SELECT oid, fd, pg_catalog.lo_lseek64(fd, 0, 2) AS bytes FROM \
             (SELECT oid, pg_catalog.lo_open(oid, 262144) AS fd FROM pg_catalog.pg_largeobject_metadata \
             WHERE oid OPERATOR(pg_catalog.=) ANY ('{{{}}}'::pg_catalog.oid[]) OFFSET 0) opened OFFSET 0) found",
            oids.join(",")
        );
        let rows = connection.query(sql.as_bytes())?;
        for row in 0..rows.len() {
            if let (Some(oid), Some(bytes)) = (rows.number(row, 0), rows.number(row, 1)) {
                sizes.insert(oid, bytes);
            }
        }
    }
    Ok(sizes)
}

fn prepare(connection: &Connection) -> Result<()> {
    connection.run(b"SET bytea_output = 'hex'")?;
    Ok(())
}

fn compare(oid: u32, wanted: &Sum, there: &Connection, halt: &Halt) -> Result<Option<Difference>> {
    Ok(match sum_there(oid, there, halt)? {
        None => Some(difference(oid, "it is missing")),
        Some(found) if found.bytes != wanted.bytes => {
            let (found, wanted) = (found.bytes, wanted.bytes);
            Some(difference(oid, format!("it has {found} bytes instead of {wanted}")))
        }
        Some(found) if found != *wanted => {
            Some(difference(oid, format!("its {} bytes differ", found.bytes)))
        }
        Some(_) => None,
    })
}

fn sum_of(data: &mut dyn Read, halt: &Halt) -> Result<Sum> {
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let mut buffer = vec![0; PIECE];
    loop {
        halt.check()?;
        let read = data.read(&mut buffer).map_err(read_error)?;
        if read == 0 {
            return Ok(Sum { bytes, sha256: hash.finalize().into() });
        }
        hash.update(&buffer[..read]);
        bytes += read as u64;
    }
}

/// What a database has; `None` if it has no such object.
fn sum_there(oid: u32, connection: &Connection, halt: &Halt) -> Result<Option<Sum>> {
    let (mut hash, mut bytes) = (Sha256::new(), 0u64);
    loop {
        halt.check()?;
        let sql = format!("SELECT pg_catalog.lo_get({oid}, {bytes}, {PIECE})");
        let rows = match connection.query(sql.as_bytes()) {
            Ok(rows) => rows,
            // Undefined object.
            Err(e) if e.sqlstate.as_deref() == Some("42704") => return Ok(None),
            Err(e) => return Err(e),
        };
        let piece = decoded(rows.get(0, 0).unwrap_or_default())?;
        hash.update(&piece);
        bytes += piece.len() as u64;
        if piece.len() < PIECE {
            return Ok(Some(Sum { bytes, sha256: hash.finalize().into() }));
        }
    }
}

/// The bytes of a bytea in hexadecimal.
fn decoded(text: &[u8]) -> Result<Vec<u8>> {
    let wrong = || Error::new(ErrorKind::Internal, "the server sent no bytea in hexadecimal");
    let digits = text.strip_prefix(b"\\x").ok_or_else(wrong)?;
    crate::hex::decode(digits).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal() {
        assert_eq!(decoded(b"\\x00fFa9").unwrap(), [0, 255, 0xa9]);
        assert!(decoded(b"\\x").unwrap().is_empty());
        assert!(decoded(b"00").is_err());
        assert!(decoded(b"\\x0").is_err());
        assert!(decoded(b"\\xzz").is_err());
    }
}
