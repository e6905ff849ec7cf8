//! Directory entries: what a table's directory says of one stripe. The layout is in README.md.

use crate::checksum;
use crate::error::{Error, Result};
use crate::zone::{Bound, ZoneMap};

/// Version of the entries that are written. Version 1 has no checksum of the metadata.
pub const ENTRY_VERSION: u16 = 2;

/// Whether the stripe is there yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryState {
    /// Its TIDs are taken, its bytes are still to be written.
    Reserved,
    Live,
}

/// Where a stripe's bytes are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Location {
    /// Chunks of the TOAST relation from this chunk address on.
    Chunks { address: u64, chunk_bytes: u32 },
    /// An object in the store behind this foreign server.
    Object { server: String, key: String },
}

/// One stripe of a table.
#[derive(Clone, PartialEq, Debug)]
pub struct DirectoryEntry {
    pub version: u16,
    pub state: EntryState,
    /// Virtual blocks of the stripe.
    pub blocks: u32,
    pub rows: u32,
    /// Size of the stripe as stored, bytes.
    pub bytes: u64,
    /// Size of its values before encoding, bytes.
    pub raw_bytes: u64,
    /// Where page index and footer begin.
    pub meta_offset: u64,
    /// CRC-32C of the stripe's bytes.
    pub crc32c: u32,
    /// CRC-32C of page index and footer; entries of version 1 have none.
    pub meta_crc32c: u32,
    /// Microseconds since 1970.
    pub created_at: i64,
    /// Grows each time the stripe moves between chunks and objects.
    pub generation: u32,
    pub location: Location,
    /// Zone maps by field id; a column without one is unknown.
    pub zones: Vec<(i32, ZoneMap)>,
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, v: u8) {
        self.0.push(v)
    }
    fn u16(&mut self, v: u16) {
        self.0.extend_from_slice(&v.to_le_bytes())
    }
    fn u32(&mut self, v: u32) {
        self.0.extend_from_slice(&v.to_le_bytes())
    }
    fn u64(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes())
    }
    fn text(&mut self, v: &[u8]) {
        self.u16(v.len().min(usize::from(u16::MAX)) as u16);
        self.0.extend_from_slice(&v[..v.len().min(usize::from(u16::MAX))]);
    }
    fn bound(&mut self, bound: &Option<Bound>) {
        match bound {
            None => self.u8(0),
            Some(Bound::I64(v)) => {
                self.u8(1);
                self.u64(*v as u64);
            }
            Some(Bound::I128(v)) => {
                self.u8(2);
                self.0.extend_from_slice(&v.to_le_bytes());
            }
            Some(Bound::F64(v)) => {
                self.u8(3);
                self.u64(v.to_bits());
            }
            Some(Bound::Bytes(v)) => {
                self.u8(4);
                self.text(v);
            }
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        if n > self.0.len() {
            return Err(Error::corrupt("a directory entry ends too early"));
        }
        let (head, tail) = self.0.split_at(n);
        self.0 = tail;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0u8; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }
    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }
    fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    fn text(&mut self) -> Result<&'a [u8]> {
        let n = self.u16()?;
        self.take(usize::from(n))
    }
    fn string(&mut self) -> Result<String> {
        String::from_utf8(self.text()?.to_vec())
            .map_err(|_| Error::corrupt("a name in a directory entry is not UTF-8"))
    }
    fn bound(&mut self) -> Result<Option<Bound>> {
        Ok(match self.u8()? {
            0 => None,
            1 => Some(Bound::I64(self.u64()? as i64)),
            2 => Some(Bound::I128(i128::from_le_bytes(self.array()?))),
            3 => Some(Bound::F64(f64::from_bits(self.u64()?))),
            4 => Some(Bound::Bytes(self.text()?.to_vec())),
            other => return Err(Error::corrupt(format!("unknown bound {other} in a zone map"))),
        })
    }
}

const FLAG_NAN: u8 = 1;
const FLAG_EXACT: u8 = 2;
/// Five bits of the flags: the code of the kind, 0 when it was not noted.
const KIND_SHIFT: u32 = 2;
const KIND_BITS: u8 = 31;

impl DirectoryEntry {
    /// The entry of a stripe that is still to be written.
    pub fn reserved(blocks: u32) -> DirectoryEntry {
        DirectoryEntry {
            version: ENTRY_VERSION,
            state: EntryState::Reserved,
            blocks,
            rows: 0,
            bytes: 0,
            raw_bytes: 0,
            meta_offset: 0,
            crc32c: 0,
            meta_crc32c: 0,
            created_at: 0,
            generation: 0,
            location: Location::Chunks { address: 0, chunk_bytes: 0 },
            zones: Vec::new(),
        }
    }

    /// Encode in at most `max_bytes`; zone maps that do not fit are left out, later columns first.
    pub fn encode(&self, max_bytes: usize) -> Vec<u8> {
        let mut w = Writer(Vec::with_capacity(max_bytes.min(8_192)));
        w.u16(self.version);
        w.u8(match self.state {
            EntryState::Reserved => 0,
            EntryState::Live => 1,
        });
        w.u32(self.blocks);
        w.u32(self.rows);
        w.u64(self.bytes);
        w.u64(self.raw_bytes);
        w.u64(self.meta_offset);
        w.u32(self.crc32c);
        if self.version > 1 {
            w.u32(self.meta_crc32c);
        }
        w.u64(self.created_at as u64);
        w.u32(self.generation);
        match &self.location {
            Location::Chunks { address, chunk_bytes } => {
                w.u8(0);
                w.u64(*address);
                w.u32(*chunk_bytes);
            }
            Location::Object { server, key } => {
                w.u8(1);
                w.text(server.as_bytes());
                w.text(key.as_bytes());
            }
        }
        let count_at = w.0.len();
        w.u16(0);
        let mut count = 0u16;
        for (field_id, zone) in &self.zones {
            let before = w.0.len();
            w.u32(*field_id as u32);
            w.u32(zone.nulls);
            w.u32(zone.rows);
            let kind = (zone.kind.unwrap_or(0) & KIND_BITS) << KIND_SHIFT;
            let exact = if zone.exact { FLAG_EXACT } else { 0 };
            w.u8(if zone.has_nan { FLAG_NAN } else { 0 } | exact | kind);
            w.bound(&zone.min);
            w.bound(&zone.max);
            if w.0.len() + 4 > max_bytes || count == u16::MAX {
                w.0.truncate(before);
                break;
            }
            count += 1;
        }
        w.0[count_at..count_at + 2].copy_from_slice(&count.to_le_bytes());
        let crc = crc32c::crc32c(&w.0);
        w.u32(crc);
        w.0
    }

    pub fn decode(bytes: &[u8]) -> Result<DirectoryEntry> {
        let Some(body_len) = bytes.len().checked_sub(4) else {
            return Err(Error::corrupt("a directory entry is too short"));
        };
        let (body, stored) = bytes.split_at(body_len);
        // Entries of every version, those to come as well, end with this checksum and begin with the version: so a damaged
        // entry is not taken for a newer one.
        let crc = crc32c::crc32c(body);
        if stored != crc.to_le_bytes() {
            return Err(Error::corrupt("a directory entry's checksum does not match"));
        }
        let mut r = Reader(body);
        let version = r.u16()?;
        if version > ENTRY_VERSION {
            return Err(Error::newer(format!(
                "it has version {version}, this firn knows up to {ENTRY_VERSION}"
            )));
        }
        if version == 0 {
            return Err(Error::corrupt("a directory entry has version 0"));
        }
        let state = match r.u8()? {
            0 => EntryState::Reserved,
            1 => EntryState::Live,
            other => return Err(Error::corrupt(format!("unknown entry state {other}"))),
        };
        let (blocks, rows) = (r.u32()?, r.u32()?);
        let (bytes, raw_bytes, meta_offset) = (r.u64()?, r.u64()?, r.u64()?);
        let crc32c = r.u32()?;
        let meta_crc32c = if version > 1 { r.u32()? } else { 0 };
        let created_at = r.u64()? as i64;
        let generation = r.u32()?;
        let location = match r.u8()? {
            0 => Location::Chunks { address: r.u64()?, chunk_bytes: r.u32()? },
            1 => Location::Object { server: r.string()?, key: r.string()? },
            other => return Err(Error::corrupt(format!("unknown stripe location {other}"))),
        };
        let count = r.u16()?;
        let mut zones = Vec::new();
        for _ in 0..count {
            let field_id = r.u32()? as i32;
            let (nulls, rows) = (r.u32()?, r.u32()?);
            let flags = r.u8()?;
            let (min, max) = (r.bound()?, r.bound()?);
            zones.push((
                field_id,
                ZoneMap {
                    min,
                    max,
                    nulls,
                    rows,
                    has_nan: flags & FLAG_NAN != 0,
                    exact: flags & FLAG_EXACT != 0,
                    kind: Some(flags >> KIND_SHIFT & KIND_BITS).filter(|code| *code != 0),
                },
            ));
        }
        if !r.0.is_empty() {
            return Err(Error::corrupt("a directory entry has trailing bytes"));
        }
        Ok(DirectoryEntry {
            version,
            state,
            blocks,
            rows,
            bytes,
            raw_bytes,
            meta_offset,
            crc32c,
            meta_crc32c,
            created_at,
            generation,
            location,
            zones,
        })
    }

    /// The metadata's checksum is known.
    pub fn has_meta_checksum(&self) -> bool {
        self.version > 1
    }

    /// Hold a stripe's bytes from `meta_offset` to its end against their checksum, which must come
    /// before parsing them.
    ///
    /// # Errors
    /// Corrupt when they differ.
    pub fn verify_meta(&self, tail: &[u8]) -> Result<()> {
        if !self.has_meta_checksum() {
            return Ok(());
        }
        checksum::verify(tail, self.meta_crc32c, || {
            format!("the metadata in bytes {} to {}", self.meta_offset, self.bytes)
        })
    }

    /// The zone map of a column.
    pub fn zone(&self, field_id: i32) -> Option<&ZoneMap> {
        self.zones.iter().find(|(id, _)| *id == field_id).map(|(_, z)| z)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bound() -> impl Strategy<Value = Option<Bound>> {
        prop_oneof![
            Just(None),
            any::<i64>().prop_map(|v| Some(Bound::I64(v))),
            any::<i128>().prop_map(|v| Some(Bound::I128(v))),
            (-1e300f64..1e300).prop_map(|v| Some(Bound::F64(v))),
            prop::collection::vec(any::<u8>(), 0..33).prop_map(|v| Some(Bound::Bytes(v))),
        ]
    }

    prop_compose! {
        fn entry()(
            rows: u32, bytes: u64, raw_bytes: u64, meta_offset: u64, crc32c: u32, created_at: i64,
            old: bool, tail: u32,
            generation: u32, live: bool, address: u64, object in prop::option::of("[a-z0-9/]{1,80}"),
            zones in prop::collection::vec(
                (any::<i32>(), bound(), bound(), any::<u32>(), any::<bool>(), any::<bool>(), prop::option::of(1u8..32)),
                0..40),
        ) -> DirectoryEntry {
            DirectoryEntry {
                version: if old { 1 } else { ENTRY_VERSION },
                meta_crc32c: if old { 0 } else { tail },
                state: if live { EntryState::Live } else { EntryState::Reserved },
                rows, bytes, raw_bytes, meta_offset, crc32c, created_at, generation,
                location: match object {
                    Some(key) => Location::Object { server: "cold".into(), key },
                    None => Location::Chunks { address, chunk_bytes: 8_100 },
                },
                zones: zones.into_iter().map(|(id, min, max, nulls, has_nan, exact, kind)| {
                    (id, ZoneMap { min, max, nulls, rows, has_nan, exact, kind })
                }).collect(),
                ..DirectoryEntry::reserved(rows / 291)
            }
        }
    }

    proptest! {
        #[test]
        fn entries_round_trip(e in entry()) {
            prop_assert_eq!(DirectoryEntry::decode(&e.encode(1 << 20)).unwrap(), e);
        }
        #[test]
        fn entries_fit_and_keep_the_first_zones(e in entry(), room in 250usize..2_000) {
            let bytes = e.encode(room);
            prop_assert!(bytes.len() <= room);
            let back = DirectoryEntry::decode(&bytes).unwrap();
            prop_assert_eq!(&e.zones[..back.zones.len()], &back.zones[..]);
        }
        #[test]
        fn newer_entries_are_said_to_be_that(e in entry(), version in ENTRY_VERSION + 1..) {
            let newer = DirectoryEntry { version, ..e };
            let error = DirectoryEntry::decode(&newer.encode(8_000)).unwrap_err();
            prop_assert_eq!(error.kind, crate::ErrorKind::Newer);
        }
        #[test]
        fn a_damaged_version_is_no_newer_one(e in entry(), flip in 1u16..) {
            let mut bytes = e.encode(8_000);
            for (byte, flip) in bytes.iter_mut().zip(flip.to_le_bytes()) {
                *byte ^= flip;
            }
            let error = DirectoryEntry::decode(&bytes).unwrap_err();
            prop_assert_eq!(error.kind, crate::ErrorKind::Corrupt);
        }
        #[test]
        fn metadata_is_held_against_its_checksum(
            e in entry(), tail in prop::collection::vec(any::<u8>(), 1..99),
            at: prop::sample::Index, flip in 1u8..,
        ) {
            let e = DirectoryEntry { meta_crc32c: crc32c::crc32c(&tail), ..e };
            prop_assert!(e.verify_meta(&tail).is_ok());
            let mut damaged = tail.clone();
            damaged[at.index(tail.len())] ^= flip;
            prop_assert_eq!(e.verify_meta(&damaged).is_err(), e.has_meta_checksum());
            prop_assert_eq!(e.verify_meta(&tail[1..]).is_err(), e.has_meta_checksum());
        }
        #[test]
        fn damage_is_found(e in entry(), at: prop::sample::Index, flip in 1u8..) {
            let mut bytes = e.encode(8_000);
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(DirectoryEntry::decode(&bytes).is_err());
        }
        #[test]
        fn any_bytes_decode_or_fail(bytes: Vec<u8>) {
            let _ = DirectoryEntry::decode(&bytes);
        }
    }
}
