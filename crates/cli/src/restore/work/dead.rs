//! Entries that failed or were left out in this run, and whether that is for a reason that passes.

use crate::archive::Toc;
use crate::error::{Error, ErrorKind};
use std::collections::HashMap;

/// What is missing, by place.
#[derive(Default)]
pub(super) struct Dead {
    /// `true`: what keeps it away passes.
    by_place: HashMap<u32, bool>,
    schemas: HashMap<Vec<u8>, bool>,
    /// The first place of rows among them; and of rows that are kept away by what passes.
    first_rows: Option<u32>,
    first_rows_passing: Option<u32>,
}

impl Dead {
    pub fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    pub fn contains(&self, place: u32) -> bool {
        self.by_place.contains_key(&place)
    }

    pub fn places(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_place.keys().copied()
    }

    /// Why an entry is missing, if it is: whether that passes.
    pub fn passes(&self, place: u32) -> Option<bool> {
        self.by_place.get(&place).copied()
    }

    pub fn schema_passes(&self, schema: &[u8]) -> Option<bool> {
        self.schemas.get(schema).copied()
    }

    /// Whether it is news. What an entry failed of first is why it is missing: a part of a table's rows fails of another's failure.
    pub fn insert(&mut self, toc: &Toc, place: u32, passes: bool) -> bool {
        if self.contains(place) {
            return false;
        }
        let entry = toc.entry(place as usize);
        if entry.desc == b"SCHEMA" {
            self.schemas.insert(entry.tag.to_vec(), passes);
        }
        if matches!(entry.desc, b"TABLE DATA" | b"TABLE ATTACH") {
            let first = |found: Option<u32>| Some(found.map_or(place, |found| found.min(place)));
            self.first_rows = first(self.first_rows);
            if passes {
                self.first_rows_passing = first(self.first_rows_passing);
            }
        }
        self.by_place.insert(place, passes);
        true
    }

    /// Rows that stand before a place are missing; `passing`: for a reason that passes.
    pub fn lacks_rows_before(&self, place: u32, passing: bool) -> bool {
        let first = if passing { self.first_rows_passing } else { self.first_rows };
        first.is_some_and(|first| first < place)
    }
}

/// An error that may be over when it is tried again by `--resume`: a resource was short, a lock was held, the connection or the server went
/// away, somebody cancelled it, the archive could not be read. A file that the server does not have, such as a library, stays away.
pub(super) fn passes(error: &Error) -> bool {
    let outside =
        matches!(error.kind, ErrorKind::Connection | ErrorKind::Storage | ErrorKind::Cancelled);
    let state = error.sqlstate.as_deref().unwrap_or_default();
    let class = state.get(..2).unwrap_or_default();
    outside
        || matches!(class, "08" | "40" | "53" | "57" | "58") && state != "58P01"
        || state == "55P03"
        || state == "XX000" && error.message.contains("concurrently")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Entry;

    #[test]
    fn rows_before() {
        let mut toc = Toc::default();
        for (id, desc) in
            [&b"VIEW"[..], b"TABLE DATA", b"TABLE DATA", b"SCHEMA"].into_iter().enumerate()
        {
            toc.push(&Entry { dump_id: id as i32 + 1, desc, tag: b"s", ..Entry::default() })
                .unwrap();
        }
        let mut dead = Dead::default();
        assert!(dead.insert(&toc, 0, true) && !dead.lacks_rows_before(9, false));
        assert!(dead.insert(&toc, 2, false) && dead.insert(&toc, 1, true));
        // What it failed of first counts.
        assert!(!dead.insert(&toc, 1, false) && dead.passes(1) == Some(true));
        assert!(dead.lacks_rows_before(2, true) && !dead.lacks_rows_before(1, true));
        assert!(dead.insert(&toc, 3, false) && dead.schema_passes(b"s") == Some(false));
        assert!(dead.schema_passes(b"t").is_none());
    }

    #[test]
    fn what_passes() {
        let of = |state: &str| {
            let mut error = Error::new(ErrorKind::Statement, "it failed");
            error.sqlstate = Some(state.into());
            passes(&error)
        };
        assert!(["53100", "57P01", "40P01", "55P03", "58030"].into_iter().all(of));
        assert!(!["58P01", "23505", "42P07", "P0001", "XX000", ""].into_iter().any(of));
        assert!(passes(&Error::new(ErrorKind::Connection, "gone")));
    }
}
