//! Partitions that can be made together with their parent: who belongs to whom, and for which of them
//! `CREATE TABLE … PARTITION OF` gives provably what the archive's statements give.
//!
//! The proof is by text. pg_dump prints a partition as a table of its own, with all columns, defaults and
//! constraints; where these equal the parent's to the byte, nothing of the partition differs from what it
//! inherits. ATTACH PARTITION marks columns and constraints as inherited, just as PARTITION OF makes them.
//! What could still differ is refused here: see [`merges`].

use super::names::{self, automatic_index_name};
use super::select::Selection;
use super::text::{self, CreateTable, Index};
use super::Facts;
use crate::archive::{Entry, Toc};
use std::collections::HashMap;
use std::ops::Range;

/// A partitioned table and those of its partitions that are made by `PARTITION OF`.
#[derive(Debug, Default)]
pub struct Family {
    /// Place of the parent's entry.
    pub parent: u32,
    /// In the order in which they are made: by bounds as far as the archive's text tells, the default last.
    pub members: Vec<Member>,
    /// Pairs of an index of a partition and the entry that attaches it.
    pub pairs: Vec<(u32, u32)>,
    /// The parent's indexes and constraints, all of which the partitions have.
    pub indexes: Vec<u32>,
    /// How the partitions get their indexes.
    pub index_mode: IndexMode,
    /// CHECK constraints are left out of all CREATE TABLEs and added to the parent, which takes them down to the
    /// partitions, when these are all there.
    pub late_checks: bool,
    /// The entries that make columns of the parent, or of what is above it, identity columns, where partitions inherit
    /// that.
    pub identities: Vec<u32>,
}

/// How partitions get their indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IndexMode {
    /// By the archive's statements.
    #[default]
    Own,
    /// The parent's come first, and each partition gets its own with itself.
    WithTable,
    /// By one statement for the parent and all partitions.
    Bulk,
}

impl Family {
    /// Leave all but these of the indexes, each of which every member has, to the archive's statements.
    pub fn keep_indexes(&mut self, keep: impl Fn(u32) -> bool) {
        let kept: Vec<bool> = self.indexes.iter().map(|index| keep(*index)).collect();
        if !kept.contains(&false) {
            return;
        }
        let all = std::mem::take(&mut self.pairs);
        for member in &mut self.members {
            let own = &all[member.pairs.start as usize..member.pairs.end as usize];
            let begin = self.pairs.len() as u32;
            let own = own.iter().zip(&kept).filter(|(_, kept)| **kept);
            self.pairs.extend(own.map(|(pair, _)| *pair));
            member.pairs = begin..self.pairs.len() as u32;
        }
        self.indexes.retain(|index| keep(*index));
        if self.indexes.is_empty() {
            self.index_mode = IndexMode::Own;
        }
    }

    /// The parent's indexes that each partition gets with itself.
    pub fn indexes_with_table(&self) -> &[u32] {
        match self.index_mode {
            IndexMode::WithTable => &self.indexes,
            _ => &[],
        }
    }

    /// The pairs of a member's indexes and attachments that are made with it.
    pub fn pairs_with_table(&self, member: &Member) -> &[(u32, u32)] {
        match self.index_mode {
            IndexMode::WithTable => {
                &self.pairs[member.pairs.start as usize..member.pairs.end as usize]
            }
            _ => &[],
        }
    }
}

/// A partition.
#[derive(Debug, Clone)]
pub struct Member {
    /// Places of its entry and of the one that attaches it.
    pub table: u32,
    pub attach: u32,
    /// In [`Family::pairs`]; in the order of [`Family::indexes`] if made with the partition.
    pub pairs: Range<u32>,
    pub default: bool,
}

/// What one needs to know to tell whether indexes should be made with their tables.
pub trait Sizes {
    /// Stored bytes of the rows of the table that the entry of a TABLE DATA copies into.
    fn data_bytes(&self, place: usize) -> u64;
}

/// Why a partition cannot be made by PARTITION OF; `None` if it can.
///
/// `parent` and `child` are their entries, `table_of` what was read of them.
pub fn merges(
    facts: &Facts,
    parent: (&Entry, &CreateTable),
    child: (&Entry, &CreateTable),
) -> Option<&'static str> {
    let ((parent, above), (child, below)) = (parent, child);
    // From version 18 on NOT NULL constraints have names, and partitions inherit them.
    let expected = match facts.server_version >= 180_000 && contains(above.body, b"NOT NULL") {
        true => names::inherited_body(above.name, above.body),
        false => Some(above.body.to_vec()),
    };
    if expected.as_deref() != Some(below.body) {
        return Some("columns, defaults or constraints differ from the parent's");
    }
    if !above.rest.starts_with(b"PARTITION BY ") {
        return Some("the parent is not partitioned");
    }
    // Storage and compression settings of the parent would be inherited.
    if !above.extras.is_empty() {
        return Some("the parent has settings beyond CREATE TABLE");
    }
    // A partition without a tablespace goes into its parent's.
    if !parent.tablespace.is_empty() {
        return Some("the parent has a tablespace");
    }
    // From version 17 a partition without an access method takes its parent's.
    if !parent.tableam.is_empty() {
        return Some("the parent has an access method");
    }
    // Partitions of temporary or foreign kind are no plain tables, and were not read as such.
    (child.desc != b"TABLE").then_some("the partition is not a table")
}

fn contains(text: &[u8], what: &[u8]) -> bool {
    text.windows(what.len()).any(|w| w == what)
}

/// The texts `FROM (…)` and `TO (…)` of a range bound.
pub fn range_bounds(bound: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = bound.strip_prefix(b"FOR VALUES FROM (")?;
    // Values may contain anything; what separates them stands outside of quotes.
    let middle = find_unquoted(text, b") TO (")?;
    let (from, to) = (&text[..middle], &text[middle + 6..]);
    Some((from, to.strip_suffix(b")")?))
}

fn find_unquoted(text: &[u8], what: &[u8]) -> Option<usize> {
    let mut quoted = false;
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            b'\'' => quoted = !quoted,
            _ if !quoted && text[at..].starts_with(what) => return Some(at),
            _ => {}
        }
    }
    None
}

/// What indexing statements of the archive say of indexes, by their qualified names.
struct Indexes<'a> {
    by_name: HashMap<Vec<u8>, (u32, Index<'a>)>,
    /// Indexes of each table, by the table's qualified name.
    of_table: HashMap<&'a [u8], Vec<u32>>,
}

fn qualified(table: &[u8], name: &[u8]) -> Vec<u8> {
    let schema = &table[..table.len() - text::last_part(table).len()];
    [schema, name].concat()
}

/// Find all families among the selected entries.
pub fn find(toc: &Toc, selection: &Selection, facts: &Facts, sizes: &dyn Sizes) -> Vec<Family> {
    let mut attached = HashMap::<u32, Vec<(u32, u32)>>::new();
    for place in selection.places() {
        let entry = toc.entry(place as usize);
        if entry.desc != b"TABLE ATTACH" {
            continue;
        }
        let Some(found) = text::attach(entry.defn) else { continue };
        let named = |name: &[u8]| {
            let mut all = entry.dependencies.iter().filter_map(|d| toc.place(*d));
            all.find(|&p| {
                let e = toc.entry(p);
                e.desc == b"TABLE"
                    && selection.has(p as u32)
                    && text::create_table(e.defn).is_some_and(|t| t.name == name)
            })
        };
        if let (Some(parent), Some(child)) = (named(found.parent), named(found.child)) {
            attached.entry(parent as u32).or_default().push((child as u32, place));
        }
    }
    if attached.is_empty() {
        return Vec::new();
    }
    let indexes = read_indexes(toc, selection);
    let attaches = read_index_attaches(toc, selection, &indexes);
    let mut parents: Vec<_> = attached.into_iter().collect();
    parents.sort_unstable();
    let mut families = Vec::new();
    for (parent, children) in parents {
        let entry = toc.entry(parent as usize);
        let Some(above) = text::create_table(entry.defn) else { continue };
        let mut family = Family { parent, ..Family::default() };
        for (table, attach) in children {
            let child = toc.entry(table as usize);
            let Some(below) = text::create_table(child.defn) else { continue };
            if merges(facts, (&entry, &above), (&child, &below)).is_none() {
                let bound = text::attach(toc.entry(attach as usize).defn).map(|a| a.bound);
                let default = bound == Some(b"DEFAULT");
                family.members.push(Member { table, attach, pairs: 0..0, default });
            }
        }
        if family.members.is_empty() {
            continue;
        }
        // The default partition last: with it in place each new partition would have to look into it.
        family.members.sort_by_key(|m| (m.default, m.attach));
        pair_indexes(toc, &mut family, &indexes, &attaches, above.name);
        if !little_data(&family, selection, toc, sizes) {
            family.index_mode = IndexMode::Own;
        }
        families.push(family);
    }
    families
}

fn read_indexes<'a>(toc: &'a Toc, selection: &Selection) -> Indexes<'a> {
    let mut all = Indexes { by_name: HashMap::new(), of_table: HashMap::new() };
    for place in selection.places() {
        let entry = toc.entry(place as usize);
        if !matches!(entry.desc, b"INDEX" | b"CONSTRAINT") {
            continue;
        }
        if let Some(index) = text::index(entry.defn) {
            all.of_table.entry(index.table).or_default().push(place);
            all.by_name.insert(qualified(index.table, index.name), (place, index));
        }
    }
    all
}

/// Index of a partition to (its parent's index, the entry that attaches it).
fn read_index_attaches(
    toc: &Toc,
    selection: &Selection,
    indexes: &Indexes,
) -> HashMap<u32, (u32, u32)> {
    let mut attaches = HashMap::new();
    for place in selection.places() {
        let entry = toc.entry(place as usize);
        if entry.desc != b"INDEX ATTACH" {
            continue;
        }
        let Some((above, below)) = text::index_attach(entry.defn) else { continue };
        if let (Some(above), Some(below)) = (indexes.by_name.get(above), indexes.by_name.get(below))
        {
            attaches.insert(below.0, (above.0, place));
        }
    }
    attaches
}

/// Fill in the family's indexes and pairs, and whether they can be made with the partitions.
fn pair_indexes(
    toc: &Toc,
    family: &mut Family,
    indexes: &Indexes,
    attaches: &HashMap<u32, (u32, u32)>,
    parent_name: &[u8],
) {
    let read = |place: u32| text::index(toc.entry(place as usize).defn);
    family.indexes = indexes.of_table.get(parent_name).cloned().unwrap_or_default();
    let parents: Vec<_> = family.indexes.iter().filter_map(|i| read(*i)).collect();
    // Constraints and indexes of a shape that was not recognised are not in the list: their partitions' parts
    // are then made by the archive's statements, after the partitions, as the parent's are.
    let plain = family.indexes.iter().all(|&i| {
        let entry = toc.entry(i as usize);
        entry.tablespace.is_empty()
    });
    let mut with_indexes = plain;
    for member in &mut family.members {
        let Some(table) = text::create_table(toc.entry(member.table as usize).defn) else {
            continue;
        };
        let own = indexes.of_table.get(table.name).map_or(&[][..], |v| v);
        let begin = family.pairs.len() as u32;
        let mut names = Vec::new();
        for (&above, parent) in family.indexes.iter().zip(&parents) {
            // The one index that is attached to this one and equal to it.
            let found = own.iter().find(|i| attaches.get(i).is_some_and(|(p, _)| *p == above));
            let equal = found.and_then(|&i| {
                let child = read(i)?;
                let entry = toc.entry(i as usize);
                let same = child.constraint == parent.constraint
                    && child.unique == parent.unique
                    && child.tail == parent.tail
                    && entry.tablespace.is_empty();
                same.then(|| automatic_index_name(table.name, parent)).flatten()
            });
            match (found, equal) {
                (Some(&i), Some(name)) if !names.contains(&name) => {
                    names.push(name);
                    family.pairs.push((i, attaches[&i].1));
                }
                _ => with_indexes = false,
            }
        }
        member.pairs = begin..family.pairs.len() as u32;
    }
    if with_indexes && parents.len() == family.indexes.len() {
        family.index_mode = IndexMode::Bulk;
    }
}

/// Rows come so few to a partition that keeping indexes up to date while they are copied costs less than
/// building them afterwards.
fn little_data(family: &Family, selection: &Selection, toc: &Toc, sizes: &dyn Sizes) -> bool {
    let (mut total, mut largest) = (0, 0);
    for member in &family.members {
        let bytes = selection
            .data_of(toc.entry(member.table as usize).dump_id)
            .map_or(0, |place| sizes.data_bytes(place as usize));
        total += bytes;
        largest = bytes.max(largest);
    }
    largest < 256 << 10 && total / (family.members.len() as u64) < 8 << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_ranges() {
        let bounds = range_bounds(b"FOR VALUES FROM ('a) TO (', 1) TO (MAXVALUE, 2)").unwrap();
        assert_eq!(bounds, (&b"'a) TO (', 1"[..], &b"MAXVALUE, 2"[..]));
        assert_eq!(range_bounds(b"FOR VALUES IN (1)"), None);
        assert_eq!(range_bounds(b"DEFAULT"), None);
    }

    #[test]
    fn what_is_not_the_same_is_refused() {
        let facts = Facts {
            server_version: 150_000,
            superuser: true,
            no_staging: None,
            lock_slots: 6400,
            jobs: 1,
            reloads: Vec::new(),
            crossing: Default::default(),
            generated: Default::default(),
        };
        let above = text::create_table(
            b"CREATE TABLE p (\n    a integer NOT NULL\n)\nPARTITION BY RANGE (a);",
        )
        .unwrap();
        let below = text::create_table(b"CREATE TABLE c (\n    a integer NOT NULL\n);").unwrap();
        let entry = Entry { desc: b"TABLE", ..Entry::default() };
        let merge = |facts, parent: &Entry, above: &CreateTable, below: &CreateTable| {
            merges(facts, (parent, above), (&entry, below))
        };
        assert_eq!(merge(&facts, &entry, &above, &below), None);
        let newer = Facts { server_version: 180_000, ..facts.clone() };
        assert!(merge(&newer, &entry, &above, &below).is_some());
        let named = CreateTable { body: b"a integer CONSTRAINT p_a_not_null NOT NULL", ..below };
        assert_eq!(merge(&newer, &entry, &above, &named), None);
        let spaced = Entry { tablespace: b"fast", ..entry };
        assert!(merge(&facts, &spaced, &above, &below).is_some());
        let more = CreateTable { extras: b"ALTER TABLE", ..above };
        assert!(merge(&facts, &entry, &more, &below).is_some());
        let other = CreateTable { body: b"a bigint NOT NULL", ..below };
        assert!(merge(&facts, &entry, &above, &other).is_some());
    }
}
