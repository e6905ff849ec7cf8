//! What steps lock, from what their entries say.

use super::*;
use crate::plan::text;

/// Parent and partition of an INDEX ATTACH, by its dependencies.
fn index_ends(toc: &Toc, entry: &Entry) -> Option<(u32, u32)> {
    if entry.desc != b"INDEX ATTACH" {
        return None;
    }
    let (above, own) = text::index_attach(entry.defn)?;
    let is = |place: &u32, name: &[u8]| {
        let index = toc.entry(*place as usize);
        let name = text::unquoted(text::last_part(name));
        match index.desc {
            b"INDEX" => index.tag == name,
            // With its table.
            b"CONSTRAINT" => index.tag.strip_suffix(&name[..]).is_some_and(|t| t.ends_with(b" ")),
            _ => false,
        }
    };
    let places = || entry.dependencies.iter().filter_map(|d| toc.place(*d)).map(|p| p as u32);
    let mut own = places().filter(|place| is(place, own));
    // Those of two schemas may have one name: the partition's is of the entry's schema.
    let own = own.find(|place| toc.entry(*place as usize).namespace == entry.namespace)?;
    let above = places().find(|place| *place != own && is(place, above))?;
    Some((above, own))
}

impl Builder<'_> {
    /// What each step locks.
    pub(super) fn add_locks(&mut self) {
        let toc = self.input.toc;
        for place in self.input.selection.places() {
            let ends = index_ends(toc, &toc.entry(place as usize));
            self.above_index.extend(ends.map(|(parent, own)| (own, parent)));
        }
        for number in 0..self.plan.steps.len() {
            let mut locks = Vec::new();
            let mut count = 0u64;
            match &self.plan.steps[number].work {
                Work::Milestone => {}
                Work::Group(group) => {
                    let group = &self.plan.groups[*group as usize];
                    let family = &self.plan.families[group.family as usize];
                    let indexes = family.indexes_with_table().len();
                    count = group.members.len() as u64 * (3 + 2 * indexes as u64) + 8;
                    self.use_relation(&mut locks, family.parent, Mode::AccessShare);
                    locks.push(Lock { resource: Resource::tree(family.parent), mode: Mode::Part });
                    if !group.staged {
                        let resource = Resource::relation(family.parent);
                        locks.push(Lock { resource, mode: Mode::ShareUpdateExclusive });
                    }
                }
                Work::BoundsBegin(_) | Work::BoundsEnd(_) => count = 300,
                work => {
                    // Statements for all partitions: the first entry is the parent's, the others go with it.
                    let whole =
                        matches!(work, Work::BulkAttach | Work::BulkIndex(_) | Work::Checks(_));
                    let checks = matches!(work, Work::Checks(_));
                    let emptied = match work {
                        Work::Reload(n) => self.input.facts.reloads[*n as usize].emptied.len(),
                        _ => 0,
                    };
                    let entries = self.plan.entries(number).to_vec();
                    for (n, place) in entries.iter().enumerate() {
                        let more = self.entry_locks(&mut locks, *place, whole && n == 0);
                        count += if whole && n > 0 { 0 } else { more };
                    }
                    if emptied > 0 {
                        // Each with an index or two, and with what TOAST has of it.
                        count += 5 * emptied as u64;
                        locks.iter_mut().for_each(|lock| {
                            if lock.mode == Mode::RowExclusive {
                                lock.mode = Mode::AccessExclusive;
                            }
                        });
                    }
                    if checks {
                        count += 2 * self.tree.size(entries[0]) as u64;
                        let resource = Resource::tree(entries[0]);
                        locks.push(Lock { resource, mode: Mode::Whole });
                    }
                }
            }
            locks.sort_unstable_by_key(|l| (l.resource, l.mode as u8));
            locks.dedup();
            let begin = self.plan.locks.len() as u32;
            self.plan.locks.extend(locks);
            let step = &mut self.plan.steps[number];
            step.locks = begin..self.plan.locks.len() as u32;
            step.lock_count = u32::try_from(count).unwrap_or(u32::MAX);
        }
    }

    /// A lock on a relation, and that a part of the trees that it belongs to is in use.
    fn use_relation(&self, locks: &mut Vec<Lock>, place: u32, mode: Mode) {
        locks.push(Lock { resource: Resource::relation(place), mode });
        for above in self.tree.ancestors(place) {
            locks.push(Lock { resource: Resource::tree(above), mode: Mode::Part });
        }
    }

    /// Add the locks of an entry; returns how many entries of the lock table it takes.
    fn entry_locks(&self, locks: &mut Vec<Lock>, place: u32, whole: bool) -> u64 {
        let toc = self.input.toc;
        let entry = toc.entry(place as usize);
        let found = use_of(&entry);
        let mut count = if entry.desc == b"TABLE" { 3 } else { 1 };
        for &id in entry.dependencies {
            let Some(at) = toc.place(id) else { continue };
            let other = toc.entry(at);
            let at = at as u32;
            if entry.desc == b"ACL" {
                locks.push(Lock { resource: Resource::row(at), mode: Mode::Row });
                continue;
            }
            let index = matches!(other.desc, b"INDEX" | b"CONSTRAINT");
            if !(is_relation(other.desc) || index && entry.desc == b"INDEX ATTACH") {
                continue;
            }
            // "table part" is how parts of tables are tagged; indexes are not, and have one table.
            let own = entry.desc == b"INDEX"
                || other.tag == entry.tag
                || entry.tag.strip_prefix(other.tag).is_some_and(|rest| rest.starts_with(b" "));
            let mode = if own { found.own } else { found.others };
            self.use_relation(locks, at, mode);
            count += 1;
            if (found.recurses || whole) && self.tree.children.contains_key(&at) {
                locks.push(Lock { resource: Resource::tree(at), mode: Mode::Whole });
                // Each partition with two of its indexes or so.
                count += 3 * self.tree.size(at) as u64;
            }
        }
        // With the last of its parts an index becomes valid, and with that all above it may: from version 18 on nothing that the server locks
        // keeps two of these from each missing the other.
        if let Some((parent, _)) = index_ends(toc, &entry) {
            // A hostile archive may attach in circles.
            let mut seen = HashSet::new();
            let mut index = parent;
            while let Some(&above) = self.above_index.get(&index).filter(|at| seen.insert(**at)) {
                let resource = Resource::relation(above);
                locks.push(Lock { resource, mode: Mode::ShareUpdateExclusive });
                count += 1;
                index = above;
            }
        }
        // Rows are compared with the bounds of all that their table is attached to.
        if entry.desc == b"TABLE DATA" {
            let tables = entry.dependencies.iter().filter_map(|d| toc.place(*d));
            for above in tables.flat_map(|at| self.tree.ancestors(at as u32)) {
                let resource = Resource::relation(above);
                locks.push(Lock { resource, mode: Mode::AccessShare });
                count += 1;
            }
        }
        // Rows that go through a parent go to any partition of the tree that this one is of.
        if self.via_root.contains(&place) {
            for &id in entry.dependencies {
                let Some(at) = toc.place(id) else { continue };
                for above in self.tree.ancestors(at as u32) {
                    let resource = Resource::relation(above);
                    locks.push(Lock { resource, mode: Mode::RowExclusive });
                    count += self.tree.size(above) as u64;
                }
            }
        }
        // What it makes is locked by itself.
        if is_relation(entry.desc) || matches!(entry.desc, b"INDEX" | b"CONSTRAINT") {
            self.use_relation(locks, place, Mode::AccessExclusive);
        }
        count
    }
}
