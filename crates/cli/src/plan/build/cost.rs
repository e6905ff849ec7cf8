//! Estimates, in microseconds of a server's time. They order work and feed the simulator; being wrong costs speed,
//! never correctness. Measured on two cores with PostgreSQL 15, see docs/internals/restore.md.

use super::*;
use crate::plan::text;

/// For each partition that a parent has already, each further one: the parent's descriptor is built anew.
pub const REBUILD_NS: u64 = 2300;
/// Looking through a parent index's partitions when one is attached.
const ATTACH_INDEX_NS: u64 = 350;

fn of_entry(entry: &Entry) -> u64 {
    match entry.desc {
        b"TABLE" => 1100,
        b"FOREIGN TABLE" | b"MATERIALIZED VIEW" => 900,
        b"TABLE ATTACH" => 900,
        b"INDEX" => 700,
        b"CONSTRAINT" => 900,
        b"FK CONSTRAINT" => 900,
        b"INDEX ATTACH" => 300,
        b"VIEW" | b"SEQUENCE" | b"EXTENSION" => 600,
        b"TRIGGER" | b"RULE" | b"POLICY" => 300,
        b"COMMENT" => 60,
        b"ACL" => 120,
        _ => 200,
    }
}

impl Builder<'_> {
    pub(super) fn add_costs(&mut self) {
        let toc = self.input.toc;
        let size = |place: u32| self.input.sizes.data_bytes(place as usize);
        // Rows of a table, for what reads all of them: about 30 MB/s of stored bytes.
        let rows = |entry: &Entry| -> u64 {
            let data = entry.dependencies.iter().filter_map(|d| self.input.selection.data_of(*d));
            data.map(|p| size(p) / 30).sum()
        };
        let below = |entry: &Entry| -> u64 {
            let places = entry.dependencies.iter().filter_map(|d| toc.place(*d));
            places.map(|p| self.tree.children.get(&(p as u32)).map_or(0, Vec::len) as u64).sum()
        };
        let mut costs = Vec::with_capacity(self.plan.steps.len());
        for (number, step) in self.plan.steps.iter().enumerate() {
            let entries = self.plan.entries(number);
            let cost = match &step.work {
                Work::Milestone => 0,
                Work::Group(group) => {
                    let group = &self.plan.groups[*group as usize];
                    let family = &self.plan.families[group.family as usize];
                    let indexes = family.indexes_with_table().len() as u64;
                    let members = group.members.len() as u64;
                    let before =
                        if group.staged { members / 2 } else { u64::from(group.members.start) };
                    members * (1000 + 550 * indexes + before * REBUILD_NS / 1000)
                        + if group.staged { 8000 } else { 0 }
                }
                Work::BoundsBegin(_) => 1500,
                Work::BoundsEnd(_) => 20_000,
                Work::Data(_, parts) => {
                    150 + entries.iter().map(|p| size(*p) / 15 / u64::from(*parts)).sum::<u64>()
                }
                Work::Reload(_) => 1000 + entries.iter().map(|p| 500 + size(*p) / 10).sum::<u64>(),
                Work::LargeObjects => 100_000,
                Work::Checks(f) => {
                    1000 + self.plan.families[*f as usize].members.len() as u64 * 300
                }
                Work::BulkIndex(_) => 1000 + entries.len() as u64 / 2 * 600,
                Work::BulkAttach => 1000 + entries.len() as u64 * 250,
                Work::ForeignKeyAdd => 900,
                Work::Grants => 120 + entries.len() as u64 * 40,
                Work::ForeignKeyValidate | Work::Entries => entries
                    .iter()
                    .map(|p| {
                        let entry = toc.entry(*p as usize);
                        let parts = match use_of(&entry).recurses {
                            true => below(&entry) * 400,
                            false => 0,
                        };
                        let attached = match entry.desc {
                            b"INDEX ATTACH" => ATTACH_INDEX_NS * 64 / 1000,
                            b"TABLE ATTACH" => below(&entry) * REBUILD_NS / 2000,
                            _ => 0,
                        };
                        let heavy =
                            matches!(entry.desc, b"INDEX" | b"CONSTRAINT" | b"FK CONSTRAINT");
                        of_entry(&entry) + parts + attached + if heavy { rows(&entry) } else { 0 }
                    })
                    .sum(),
            };
            costs.push(u32::try_from(cost).unwrap_or(u32::MAX));
        }
        for (step, cost) in self.plan.steps.iter_mut().zip(costs) {
            step.cost = cost;
        }
    }

    /// Statements as pg_restore would run them, and as this plan does.
    pub(super) fn count_statements(&mut self) {
        let toc = self.input.toc;
        let of = |place: u32| -> u64 {
            let entry = toc.entry(place as usize);
            match entry.desc {
                b"TABLE DATA" | b"BLOBS" => 1,
                _ => {
                    let owned = !entry.owner.is_empty() && entry.section == Section::PreData;
                    statements(entry.defn) + u64::from(owned && is_relation(entry.desc))
                }
            }
        };
        let (mut archive, mut planned) = (0, 0);
        for (number, step) in self.plan.steps.iter().enumerate() {
            let entries = self.plan.entries(number);
            let all: u64 = entries.iter().map(|p| of(*p)).sum();
            if !matches!(step.work, Work::ForeignKeyAdd | Work::Checks(_) | Work::Data(1.., _)) {
                archive += all;
            }
            planned += match &step.work {
                Work::Group(group) => {
                    let group = &self.plan.groups[*group as usize];
                    // Each partition and its owner, and what the staging parent takes.
                    2 * group.members.len() as u64 + if group.staged { 12 } else { 0 }
                }
                Work::Milestone => 0,
                Work::BulkAttach | Work::ForeignKeyAdd | Work::ForeignKeyValidate => 1,
                Work::BulkIndex(_) | Work::Checks(_) => 2,
                Work::BoundsBegin(_) | Work::BoundsEnd(_) => 1,
                Work::Grants => entries.first().map_or(0, |p| of(*p)),
                _ => all,
            };
        }
        self.plan.statements_archive = archive;
        self.plan.statements_planned = planned;
    }
}

/// How many statements a text holds, or 1 if that is not certain.
fn statements(mut text: &[u8]) -> u64 {
    let mut count = 0;
    text = text.trim_ascii();
    while !text.is_empty() {
        count += 1;
        match text::split_statement(text) {
            Some((_, rest)) => text = rest,
            None => break,
        }
    }
    count
}
