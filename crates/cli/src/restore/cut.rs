//! Names that the server has cut.
//!
//! An archive's names are those of its database. Where the target's encoding needs more bytes for one than a name has room for, the server
//! cuts it in every statement, and its catalogs have what is left.

use crate::error::Result;
use crate::pg::{quote_literal, Connection};
use std::collections::{BTreeSet, HashMap};

/// Bytes of a name on a server as it comes, without the last, which is zero.
const ROOM: usize = 63;
/// Bytes that a byte of one encoding may become in another.
const GROWS: usize = 4;
/// Names in one statement.
const CHUNK: usize = 2000;

/// Names, by what they were in the archive.
#[derive(Default)]
pub struct Cut(HashMap<Vec<u8>, Vec<u8>>);

impl Cut {
    /// Asks for those of some names that may be cut. The session has the archive's encoding.
    pub fn of<'a>(connection: &Connection, names: impl Iterator<Item = &'a [u8]>) -> Result<Cut> {
        let names: BTreeSet<&[u8]> = names.filter(|name| may_be_cut(name)).collect();
        let names: Vec<&[u8]> = names.into_iter().collect();
        let mut cut = Cut::default();
        for chunk in names.chunks(CHUNK) {
            let given: Vec<Vec<u8>> = (0..)
                .zip(chunk)
                .map(|(n, name)| {
                    [format!("({n}, ").as_bytes(), &quote_literal(name), b")"].concat()
                })
                .collect();
            let sql = [
                b"SELECT n, name::pg_catalog.name FROM (VALUES ",
                &given.join(&b", "[..])[..],
                b") given(n, name) WHERE name OPERATOR(pg_catalog.<>) name::pg_catalog.name::pg_catalog.text",
            ];
            let found = connection.query(&sql.concat())?;
            for row in 0..found.len() {
                let name = found.number::<usize>(row, 0).and_then(|n| chunk.get(n));
                if let (Some(name), Some(left)) = (name, found.get(row, 1)) {
                    cut.0.insert(name.to_vec(), left.to_vec());
                }
            }
        }
        Ok(cut)
    }

    /// A name as the catalogs have it.
    pub fn left<'a>(&'a self, name: &'a [u8]) -> &'a [u8] {
        self.0.get(name).map_or(name, Vec::as_slice)
    }
}

fn may_be_cut(name: &[u8]) -> bool {
    name.len() > ROOM || !name.is_ascii() && name.len() * GROWS > ROOM
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_names_are_asked_for() {
        assert!(!may_be_cut(&[b'a'; 63]) && may_be_cut(&[b'a'; 64]));
        assert!(!may_be_cut(&[0xe9; 15]) && may_be_cut(&[0xe9; 16]));
    }
}
