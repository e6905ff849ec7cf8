//! Whether a list of large objects is complete.
//!
//! The format does not say how many there are, so that a list that lost its end would pass for a whole one. But the table
//! of contents has their definitions: up to PostgreSQL 16 an entry `BLOB` for each, later entries `BLOB METADATA`
//! whose definition lists the oids, on which the entry with their contents depends.

use super::fault::While;
use super::toc::Toc;
use super::{LargeObject, LargeObjects};
use crate::error::{Error, Result};
use std::collections::HashSet;

/// The same large objects, and an error at the end if one of those defined was not among them.
pub(super) fn complete<'a>(
    toc: &Toc,
    place: usize,
    objects: LargeObjects<'a>,
    archive: String,
    detail: String,
) -> LargeObjects<'a> {
    let missing = defined(toc, place);
    Box::new(Complete { objects, missing, archive, detail, ended: false })
}

/// The large objects that are defined for the `BLOBS` entry at `place`; none if the archive has no definitions.
pub fn defined(toc: &Toc, place: usize) -> HashSet<u32> {
    let listed: Vec<_> = toc
        .entry(place)
        .dependencies
        .iter()
        .filter_map(|&id| Some(toc.entry(toc.place(id)?)))
        .filter(|entry| entry.desc == b"BLOB METADATA")
        .collect();
    if listed.is_empty() {
        return toc.entries().filter(|e| e.desc == b"BLOB").map(|e| e.oid).collect();
    }
    let oids = listed.iter().flat_map(|entry| entry.defn.split(|&c| c == b'\n'));
    oids.filter_map(|oid| std::str::from_utf8(oid).ok()?.parse().ok()).collect()
}

struct Complete<'a> {
    objects: LargeObjects<'a>,
    missing: HashSet<u32>,
    archive: String,
    detail: String,
    ended: bool,
}

impl Iterator for Complete<'_> {
    type Item = Result<LargeObject>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        match self.objects.next() {
            Some(Ok(object)) => {
                self.missing.remove(&object.oid);
                Some(Ok(object))
            }
            Some(Err(e)) => {
                self.ended = true;
                Some(Err(e))
            }
            None => {
                self.ended = true;
                let first = self.missing.iter().min()?;
                let e = Error::archive(format!(
                    "the contents of {} large objects are missing, of {first} for one",
                    self.missing.len()
                ));
                let what = format!("large objects of {}", self.archive);
                Some(Err(e).while_reading(&what, &self.detail))
            }
        }
    }
}
