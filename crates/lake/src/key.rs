//! Names of objects: never used before, readable, and safe in every store.

use crate::error::{Error, Result};
use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;

/// What an object's key says. `Display` is the key, [`ObjectKey::parse`] its inverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey {
    /// PostgreSQL's system identifier: which cluster (and its standbys and clones).
    pub system_identifier: u64,
    /// The timeline the offload ran on: tells a restored or promoted cluster from the one it left.
    pub timeline: u32,
    /// The database's OID.
    pub database: u32,
    /// The table's OID.
    pub relation: u32,
    /// The stripe's slot.
    pub slot: u32,
    /// How often the slot's stripe has been made anew.
    pub generation: u32,
    /// Random: tells two attempts at the same offload apart, whoever made them.
    pub nonce: u64,
}

/// The key under which a stripe goes to an object store:
///
/// `firn/<system identifier>/<timeline>/<database>/<relation>/<slot>-<generation>-<nonce>.parquet`
///
/// with the timeline as 8 hexadecimal digits (as in WAL file names), the slot as 8 and the nonce as 16 lower-case
/// ones, the rest decimal. With a fresh [`random_nonce`] per attempt the key was never used before, not by a
/// crashed attempt nor by a clone that shares everything else; that is why objects are never overwritten and a cached piece never
/// goes stale.
pub fn object_key(
    system_identifier: u64,
    timeline: u32,
    database: u32,
    relation: u32,
    slot: u32,
    generation: u32,
    nonce: u64,
) -> String {
    ObjectKey { system_identifier, timeline, database, relation, slot, generation, nonce }
        .to_string()
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{:08x}-{}-{:016x}.parquet",
            relation_prefix(self.system_identifier, self.timeline, self.database, self.relation),
            self.slot,
            self.generation,
            self.nonce
        )
    }
}

/// What the keys of one table on one timeline begin with; ends in a slash. For listings.
pub fn relation_prefix(
    system_identifier: u64,
    timeline: u32,
    database: u32,
    relation: u32,
) -> String {
    format!("firn/{system_identifier}/{timeline:08X}/{database}/{relation}/")
}

impl ObjectKey {
    /// Takes a key apart; `None` if [`object_key`] did not make it.
    pub fn parse(key: &str) -> Option<ObjectKey> {
        let rest = key.strip_prefix("firn/")?.strip_suffix(".parquet")?;
        let mut parts = rest.split('/');
        let system_identifier = parts.next()?.parse().ok()?;
        let timeline = u32::from_str_radix(parts.next()?, 16).ok()?;
        let database = parts.next()?.parse().ok()?;
        let relation = parts.next()?.parse().ok()?;
        let mut name = parts.next()?.split('-');
        let slot = u32::from_str_radix(name.next()?, 16).ok()?;
        let generation = name.next()?.parse().ok()?;
        let nonce = u64::from_str_radix(name.next()?, 16).ok()?;
        if parts.next().is_some() || name.next().is_some() {
            return None;
        }
        let parsed =
            ObjectKey { system_identifier, timeline, database, relation, slot, generation, nonce };
        // One spelling per key: "+1", leading zeros and the wrong case are not ours.
        (parsed.to_string() == key).then_some(parsed)
    }
}

/// 64 random bits for [`object_key`], from the operating system.
pub fn random_nonce() -> u64 {
    let mut bytes = [0u8; 8];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes));
    if read.is_ok() {
        return u64::from_le_bytes(bytes);
    }
    // Without the device: the standard library's own random keys, made different per call.
    let mut h = RandomState::new().build_hasher();
    h.write_u32(std::process::id());
    if let Ok(t) = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
        h.write_u128(t.as_nanos());
    }
    h.finish()
}

/// Checks that a key (or a prefix of one) means the same in every store: 1 to 900 bytes of
/// `A-Z a-z 0-9 . _ = -` between single slashes, no part beginning with a dot.
pub(crate) fn check_key(key: &str) -> Result<()> {
    let part_ok = |part: &str| {
        !part.is_empty()
            && part.len() <= 200
            && !part.starts_with('.')
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'=' | b'-'))
    };
    if key.len() <= 900 && key.split('/').all(part_ok) {
        Ok(())
    } else {
        let shown: String = key.chars().take(100).flat_map(char::escape_default).collect();
        Err(Error::invalid(format!(
            "\"{shown}\" cannot be an object's key: it must have letters, digits and ._=- between single slashes"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn readable() {
        let key = object_key(7301234567890123456, 1, 5, 16384, 0x8000_0000, 3, 0xab);
        assert_eq!(
            key,
            "firn/7301234567890123456/00000001/5/16384/80000000-3-00000000000000ab.parquet"
        );
        check_key(&key).unwrap();
        assert_ne!(random_nonce(), random_nonce());
    }

    #[test]
    fn strange_keys_are_refused() {
        for bad in ["", "/a", "a/", "a//b", "..", "a/../b", ".tmp", "a b", "a%2fb", "ä", "a\0b"] {
            assert!(check_key(bad).is_err(), "{bad:?}");
        }
        for not_ours in [
            "firn/1/00000001/5/1/80000000-3-ab.parquet",
            "firn/+1/00000001/5/1/80000000-3-00000000000000ab.parquet",
            "firn/1/00000001/5/1/80000000-3-00000000000000AB.parquet",
            "firn/1/00000001/5/1/80000000-3-00000000000000ab.csv",
            "other/1.parquet",
        ] {
            assert_eq!(ObjectKey::parse(not_ours), None, "{not_ours}");
        }
    }

    proptest! {
        #[test]
        fn round_trip(a in any::<u64>(), b: u32, c: u32, d: u32, e: u32, g: u32, n in any::<u64>()) {
            let key = object_key(a, b, c, d, e, g, n);
            check_key(&key).unwrap();
            prop_assert!(key.starts_with(&relation_prefix(a, b, c, d)));
            let back = ObjectKey::parse(&key).unwrap();
            prop_assert_eq!(back, ObjectKey {
                system_identifier: a, timeline: b, database: c, relation: d, slot: e, generation: g, nonce: n,
            });
        }

        #[test]
        fn parse_never_panics(s in "\\PC{0,80}") {
            let _ = ObjectKey::parse(&s);
            let _ = check_key(&s);
        }
    }
}
