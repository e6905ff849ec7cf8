//! Checksums of single pages: the CRC-32C of each page as it is stored, header and data, in the
//! file's order, as base64 in one key-value of the footer. Parquet's own checksums of pages leave the
//! headers out.

use crate::error::{Error, Result};
use base64::engine::general_purpose::STANDARD_NO_PAD;
use base64::Engine;

/// Key of the checksums in a stripe's key-value metadata.
pub(crate) const KEY: &str = "firn.page_crc32c";

/// The value of [`KEY`] for these checksums.
pub(crate) fn to_text(checksums: &[u32]) -> String {
    let bytes: Vec<u8> = checksums.iter().flat_map(|c| c.to_le_bytes()).collect();
    STANDARD_NO_PAD.encode(bytes)
}

/// The checksums in a value of [`KEY`].
pub(crate) fn from_text(text: &str) -> Result<Vec<u32>> {
    let bytes = STANDARD_NO_PAD
        .decode(text)
        .map_err(|e| Error::corrupt(format!("the checksums of a stripe's pages: {e}")))?;
    let (words, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(Error::corrupt("the checksums of a stripe's pages end within one"));
    }
    Ok(words.iter().map(|w| u32::from_le_bytes(*w)).collect())
}

/// Hold the bytes of `what` against their checksum.
pub(crate) fn verify(bytes: &[u8], expected: u32, what: impl FnOnce() -> String) -> Result<()> {
    compare(crc32c::crc32c(bytes), expected, what)
}

/// Hold the checksum that `what` has against the one that it should have.
pub(crate) fn compare(found: u32, expected: u32, what: impl FnOnce() -> String) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    let what = what();
    Err(Error::corrupt(format!(
        "{what} is damaged: the CRC-32C of its bytes is {found:08x} instead of {expected:08x}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_round_trip_as_text() {
        for n in 0..9u32 {
            let checksums: Vec<u32> = (0..n).map(|i| i.wrapping_mul(0x9E37_79B9)).collect();
            assert_eq!(from_text(&to_text(&checksums)).unwrap(), checksums);
        }
        assert!(from_text("AAAA").is_err() && from_text("not base64").is_err());
    }
}
