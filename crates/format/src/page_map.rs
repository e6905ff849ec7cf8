//! Page maps: where the pages of a far column are, a record of fixed length each. A column is far when it has so many pages that
//! reading about all of them costs more than a row's look-up; then its pages have as many rows each, so that a row's page follows from
//! its number, and what is said of them lies before the metadata at the file's end.

use crate::error::{Error, Result};

/// Begin of the key of a column's page map in a stripe's key-value metadata, before its field id.
pub(crate) const KEY: &str = "firn.page_map.";
/// Bytes of a record: where the page begins, and its checksum ([`checksum_of`]). The last record has where the last page ends,
/// and the CRC-32C of all bytes of the map before itself.
pub(crate) const RECORD: usize = 8;
/// Pages that a column has at least to be far: what is said of fewer is read faster than it is found.
pub(crate) const FAR_PAGES: usize = 256;

/// A page map, as the footer tells of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    /// Where its first record is in the file.
    pub offset: u64,
    pub pages: u32,
    /// Rows of each page but the last.
    pub rows: u32,
}

impl Told {
    pub fn to_text(self) -> String {
        format!("{}|{}|{}", self.offset, self.pages, self.rows)
    }

    pub fn from_text(text: &str) -> Result<Told> {
        let parts: Option<Vec<u64>> = text.split('|').map(|n| n.parse().ok()).collect();
        let small = |n: u64| u32::try_from(n).ok();
        let told = || match parts.as_deref()? {
            [offset, pages, rows] => {
                Some(Told { offset: *offset, pages: small(*pages)?, rows: small(*rows)? })
            }
            _ => None,
        };
        told().ok_or_else(|| Error::corrupt("a page map is not described"))
    }

    /// Bytes of the map.
    pub fn len(self) -> u64 {
        (u64::from(self.pages) + 1) * RECORD as u64
    }
}

/// The checksum of a page in a map: the CRC-32C of its bytes as stored, the column's field id and the page's number, four bytes
/// each, little-endian. So a record that is another page's is not taken for this one's.
pub(crate) fn checksum_of(page: &[u8], field_id: i32, number: u32) -> u32 {
    continued(crc32c::crc32c(page), field_id, number)
}

/// As [`checksum_of`], of a page whose bytes have this CRC-32C.
pub(crate) fn continued(bytes: u32, field_id: i32, number: u32) -> u32 {
    let sum = crc32c::crc32c_append(bytes, &field_id.to_le_bytes());
    crc32c::crc32c_append(sum, &number.to_le_bytes())
}

/// A record: where a page begins, and its checksum.
fn record(bytes: &[u8; RECORD]) -> (u32, u32) {
    let [a, b, c, d, crc @ ..] = *bytes;
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes(crc))
}

/// The map of pages that begin here and have these checksums, the last of which ends at `end`.
pub(crate) fn encode(pages: impl Iterator<Item = (u32, u32)>, end: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for (offset, checksum) in pages {
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&checksum.to_le_bytes());
    }
    out.extend_from_slice(&end.to_le_bytes());
    let checksum = crc32c::crc32c(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// Offset, length and checksum of the page that a record and the next one are about.
pub(crate) fn page(records: &[u8; 2 * RECORD]) -> Result<(u32, u32, u32)> {
    let bad = || Error::corrupt("a page map is damaged: a page ends before it begins");
    let ([own, next], []) = records.as_chunks::<RECORD>() else { return Err(bad()) };
    let ((offset, checksum), (end, _)) = (record(own), record(next));
    let len = end.checked_sub(offset).filter(|len| *len > 0 && offset >= 4).ok_or_else(bad)?;
    Ok((offset, len, checksum))
}

/// All pages of a map: offset, length and checksum of each.
pub(crate) fn decode(map: &[u8]) -> Result<Vec<(u32, u32, u32)>> {
    let (records, rest) = map.as_chunks::<RECORD>();
    let Some((last, before)) = records.split_last().filter(|_| rest.is_empty()) else {
        return Err(Error::corrupt("a page map ends early"));
    };
    let sum = map.get(..before.len() * RECORD + 4).unwrap_or(&[]);
    crate::checksum::verify(sum, record(last).1, || "a page map".to_owned())?;
    let pairs = records.windows(2).map(|pair| {
        let mut both = [0; 2 * RECORD];
        both.iter_mut().zip(pair.iter().flatten()).for_each(|(to, from)| *to = *from);
        page(&both)
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_round_trips() {
        let pages = [(4, 7), (10, 8), (11, 9)];
        let map = encode(pages.into_iter(), 20);
        assert_eq!(map.len(), 4 * RECORD);
        assert_eq!(decode(&map).unwrap(), [(4, 6, 7), (10, 1, 8), (11, 9, 9)]);
        assert_eq!(page(map[8..24].try_into().unwrap()).unwrap(), (10, 1, 8));
        let told = Told { offset: 1 << 33, pages: 3, rows: 14 };
        assert_eq!((Told::from_text(&told.to_text()).unwrap(), told.len()), (told, 32));
        for text in ["", "1|2", "1|2|3|4", "1|2|x", "1|-2|3", "1|4294967296|3"] {
            assert!(Told::from_text(text).is_err(), "{text}");
        }
    }

    #[test]
    fn each_bit_of_a_map_counts() {
        let map = encode([(4, 7), (10, 8)].into_iter(), 20);
        assert!(decode(&map).is_ok());
        for bit in 0..map.len() * 8 {
            let mut changed = map.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&changed).is_err(), "bit {bit}");
        }
        assert!(decode(&map[..12]).is_err() && decode(&[]).is_err());
    }
}
