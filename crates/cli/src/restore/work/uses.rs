//! What the archive tells of tables and their sequences.

use crate::archive::Toc;
use crate::plan::build::goes_down;
use crate::plan::parents::Parents;
use std::collections::{HashMap, HashSet};

/// By dump ids.
pub(super) struct Uses {
    /// Of a sequence: the tables that it belongs to, or whose columns have it in their defaults.
    pub sequences: HashMap<i32, Vec<i32>>,
    pub parents: Parents,
    /// Tables a statement about which may go down to others that are no partitions of theirs.
    pub go_down: HashSet<i32>,
}

impl Uses {
    pub fn of(toc: &Toc) -> Uses {
        let desc = |id: i32| toc.place(id).map(|p| toc.entry(p).desc);
        let mut uses =
            Uses { sequences: HashMap::new(), parents: Parents::of(toc), go_down: HashSet::new() };
        for entry in toc.entries() {
            let of = |wanted: &'static [u8]| {
                entry.dependencies.iter().copied().filter(move |d| desc(*d) == Some(wanted))
            };
            let users = &mut uses.sequences;
            match entry.desc {
                b"SEQUENCE" => users.entry(entry.dump_id).or_default().extend(of(b"TABLE")),
                b"TABLE" => {
                    of(b"SEQUENCE").for_each(|s| users.entry(s).or_default().push(entry.dump_id));
                }
                b"DEFAULT" => {
                    let tables: Vec<i32> = of(b"TABLE").collect();
                    of(b"SEQUENCE").for_each(|s| users.entry(s).or_default().extend(&tables));
                }
                _ => {}
            }
        }
        let parts = &uses.parents;
        uses.go_down = goes_down(toc.entries().filter(|e| parts.get(e.dump_id).is_none()));
        uses
    }
}
