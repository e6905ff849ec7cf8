//! The marker of a store: an object by which a store is known again. An empty mount point, or another bucket,
//! looks like a store without objects; it lacks the marker, or has another one.

use crate::error::{Error, ErrorKind, Result};
use crate::key::random_nonce;
use crate::store::Store;
use bytes::Bytes;

/// The marker's key. No stripe's object has it, and who copies `firn/` copies it, too.
pub const MARKER: &str = "firn/store-id";

const BEGIN: &str = "firn store ";
const DIGITS: usize = 32;

impl Store {
    /// The store's id; `None` if it has no marker.
    pub fn marker(&self, cancelled: &dyn Fn() -> bool) -> Result<Option<String>> {
        let size = match self.head(MARKER, cancelled) {
            Ok(size) => size,
            Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let bytes = match size as usize == BEGIN.len() + DIGITS + 1 {
            true => self.get_range(MARKER, 0..size, cancelled)?,
            false => Bytes::new(),
        };
        let id = parse(&bytes).ok_or_else(|| Error {
            kind: ErrorKind::Corrupt,
            message: format!(
                "the marker \"{MARKER}\" of store \"{}\" is damaged, or of a newer version of firn",
                self.url()
            ),
            key: Some(MARKER.to_owned()),
            store: Some(self.url().to_owned()),
            attempts: 1,
        })?;
        Ok(Some(id))
    }

    /// The store's id. A store without a marker gets one.
    pub fn mark(&self, cancelled: &dyn Fn() -> bool) -> Result<String> {
        if let Some(id) = self.marker(cancelled)? {
            return Ok(id);
        }
        let id = format!("{:016x}{:016x}", random_nonce(), random_nonce());
        match self.put(MARKER, Bytes::from(format!("{BEGIN}{id}\n")), cancelled) {
            Ok(()) => Ok(id),
            // Another session was faster: its marker counts.
            Err(e) if e.kind == ErrorKind::AlreadyExists => {
                self.marker(cancelled)?.ok_or(Error { kind: ErrorKind::Other, ..e })
            }
            Err(e) => Err(e),
        }
    }
}

fn parse(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let id = text.strip_prefix(BEGIN)?.strip_suffix('\n')?;
    let good = id.len() == DIGITS && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    good.then(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{parse, BEGIN, MARKER};
    use crate::key::{check_key, ObjectKey};

    #[test]
    fn markers_are_no_objects_and_are_read_with_care() {
        check_key(MARKER).unwrap();
        assert_eq!(ObjectKey::parse(MARKER), None);
        let id = "0123456789abcdef0123456789abcdef";
        assert_eq!(parse(format!("{BEGIN}{id}\n").as_bytes()).as_deref(), Some(id));
        for bad in
            ["", "firn store \n", "firn store x", "firn store 0123456789ABCDEF0123456789abcdef\n"]
        {
            assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(parse(&[0xff; 44]), None);
    }
}
