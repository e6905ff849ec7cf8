//! The SQL of partitions, their indexes and their constraints.

use super::checks::{check_attached, check_storage, oid, pair};
use super::{Renderer, Settings, SCHEMA};
use crate::archive::Entry;
use crate::pg::{quote_ident, quote_literal};
use crate::plan::family::{Family, Member};
use crate::plan::names::{automatic_index_name, inherited_body};
use crate::plan::text::{self, last_part};
use crate::plan::Group;

/// The schema of a qualified name, with the dot; empty if it has none.
pub(super) fn schema_of(name: &[u8]) -> &[u8] {
    &name[..name.len() - last_part(name).len()]
}

/// The columns of a family's table, with its CHECK constraints unless these come later.
fn columns_of(family: &Family, body: &[u8]) -> Vec<u8> {
    match text::split_checks(body) {
        Some((columns, _)) if family.late_checks => columns.join(&b",\n    "[..]),
        _ => body.to_vec(),
    }
}

impl Renderer<'_> {
    pub(super) fn family(&self, group: &Group) -> (&Family, &[Member]) {
        let family = &self.plan.families[group.family as usize];
        (family, &family.members[group.members.start as usize..group.members.end as usize])
    }

    /// The table in whose partitions a family's bounds are proved disjoint.
    pub(super) fn bounds_table(&self, family: u32) -> Vec<u8> {
        let parent = self.plan.families[family as usize].parent;
        format!("{SCHEMA}.bounds_{}", self.entry(parent).dump_id).into_bytes()
    }

    /// A table with the parent's partition key whose partitions will be the bounds of the groups, so that the
    /// server finds any that overlap.
    pub(super) fn bounds_begin(&self, out: &mut Vec<u8>, family: u32, settings: &mut Settings) {
        let parent = self.entry(self.plan.families[family as usize].parent);
        let Some(table) = text::create_table(parent.defn) else { return };
        self.set_tablespace(out, b"", settings);
        sql!(out, "CREATE TABLE ", self.bounds_table(family));
        sql!(out, " (LIKE ", table.name, ") ", table.rest, ";\n");
    }

    /// A parent whose CHECK constraints come later.
    pub(super) fn parent_without_checks(&self, out: &mut Vec<u8>, entry: &Entry, family: &Family) {
        let Some(table) = text::create_table(entry.defn) else { return };
        let columns = columns_of(family, table.body);
        sql!(out, "CREATE TABLE ", table.name, " (", columns, ")\n", table.rest, ";\n");
    }

    /// The family's CHECK constraints for the parent, which takes them down to its partitions.
    pub(super) fn checks(&self, out: &mut Vec<u8>, family: u32) {
        let parent = self.entry(self.plan.families[family as usize].parent);
        let Some(table) = text::create_table(parent.defn) else { return };
        let Some((_, checks)) = text::split_checks(table.body) else { return };
        let added: Vec<Vec<u8>> = checks.iter().map(|c| [b"ADD ", *c].concat()).collect();
        sql!(out, "ALTER TABLE ", table.name, " ", added.join(&b", "[..]), ";\n");
    }

    pub(super) fn group(&self, out: &mut Vec<u8>, number: u32, settings: &mut Settings) {
        let group = &self.plan.groups[number as usize];
        let (family, members) = self.family(group);
        let Some(parent) = text::create_table(self.entry(family.parent).defn) else { return };
        let indexes = family.indexes_with_table();
        let parsed: Vec<_> =
            indexes.iter().filter_map(|i| text::index(self.entry(*i).defn)).collect();
        let stage = format!("{SCHEMA}.stage_{number}").into_bytes();
        // Indexes that come with a partition go where the setting says; the partition itself says where it goes.
        self.set_tablespace(out, b"", settings);
        if group.staged {
            // By the parent's names, not by those that the server would give to the staging parent's constraints.
            let named = match self.plan.names_not_null {
                true => inherited_body(parent.name, parent.body),
                false => None,
            };
            let columns = columns_of(family, named.as_deref().unwrap_or(parent.body));
            sql!(out, "CREATE TABLE ", stage, " (", columns, ") ", parent.rest, ";\n");
            for place in &family.identities {
                let Some(found) = text::identity(self.entry(*place).defn) else { continue };
                sql!(out, "ALTER TABLE ", stage, " ALTER COLUMN ", found.column);
                sql!(out, " ADD GENERATED ", found.kind, " AS IDENTITY;\n");
            }
            for (n, index) in parsed.iter().enumerate() {
                let name = format!("stage_{number}_{n}");
                self.index(out, index, name.as_bytes(), &stage);
            }
        }
        let above = if group.staged { &stage[..] } else { parent.name };
        for member in members {
            let entry = self.entry(member.table);
            let (Some(table), Some(attach)) =
                (text::create_table(entry.defn), text::attach(self.entry(member.attach).defn))
            else {
                continue;
            };
            self.set_access_method(out, &entry, settings);
            sql!(out, "CREATE TABLE ", table.name, " PARTITION OF ", above, " ", attach.bound);
            sql!(out, if table.rest.is_empty() { "" } else { " " }, table.rest);
            if !(entry.tablespace.is_empty() || self.style.no_tablespaces) {
                sql!(out, " TABLESPACE ", quote_ident(entry.tablespace));
            }
            sql!(out, ";\n");
            if !table.extras.is_empty() {
                sql!(out, table.extras, "\n");
            }
            self.owner(out, &entry, settings);
            for ((own, _), index) in family.pairs_with_table(member).iter().zip(&parsed) {
                self.rename_index(out, table.name, index, *own);
            }
        }
        if group.staged {
            self.move_to_parent(out, number, &stage);
        }
        self.check_storage(out, members);
        if !indexes.is_empty() {
            let pairs = members.iter().flat_map(|m| {
                family.pairs_with_table(m).iter().zip(indexes).map(|((own, _), i)| (*own, *i))
            });
            self.check_indexes(out, pairs);
        }
    }

    /// An index like `index`, by another name on another table.
    fn index(&self, out: &mut Vec<u8>, index: &text::Index, name: &[u8], table: &[u8]) {
        match (index.constraint, index.unique) {
            (true, _) => sql!(out, "ALTER TABLE ", table, " ADD CONSTRAINT ", name),
            (_, true) => sql!(out, "CREATE UNIQUE INDEX ", name, " ON ", table),
            _ => sql!(out, "CREATE INDEX ", name, " ON ", table),
        }
        sql!(out, " ", index.tail, ";\n");
    }

    /// Give an index that the server named by itself the archive's name.
    fn rename_index(&self, out: &mut Vec<u8>, table: &[u8], above: &text::Index, own: u32) {
        let wanted = text::index(self.entry(own).defn).map(|i| i.name);
        if let (Some(wanted), Some(given)) = (wanted, automatic_index_name(table, above)) {
            if text::unquoted(wanted) != given {
                sql!(out, "ALTER INDEX ", schema_of(table), quote_ident(&given));
                sql!(out, " RENAME TO ", wanted, ";\n");
            }
        }
    }

    /// The parent's index without ONLY, which makes those of the partitions, too. Entries are the parent's index,
    /// then each partition's with its attachment.
    pub(super) fn bulk_index(
        &self,
        out: &mut Vec<u8>,
        entries: &[u32],
        family: u32,
        settings: &mut Settings,
    ) {
        let Some(index) = text::index(self.entry(entries[0]).defn) else { return };
        self.set_storage(out, &self.entry(entries[0]), settings);
        // All of the partitions are small: for each the server would think about workers, a tenth of what its index takes.
        sql!(out, "SET LOCAL max_parallel_maintenance_workers = 0;\n");
        self.index(out, &index, index.name, index.table);
        sql!(out, "SET LOCAL max_parallel_maintenance_workers TO DEFAULT;\n");
        let family = &self.plan.families[family as usize];
        let own = || entries[1..].iter().step_by(2);
        for (member, own) in family.members.iter().zip(own()) {
            if let Some(table) = text::create_table(self.entry(member.table).defn) {
                self.rename_index(out, table.name, &index, *own);
            }
        }
        self.check_indexes(out, own().map(|own| (*own, entries[0])));
    }

    /// The parent's index without ONLY, when its partitions have theirs: the server attaches each that is equal.
    pub(super) fn bulk_attach(&self, out: &mut Vec<u8>, entries: &[u32], settings: &mut Settings) {
        let Some(index) = text::index(self.entry(entries[0]).defn) else { return };
        self.set_storage(out, &self.entry(entries[0]), settings);
        self.index(out, &index, index.name, index.table);
        let attached = entries[1..].iter().filter_map(|p| text::index_attach(self.entry(*p).defn));
        let pairs: Vec<_> = attached.map(|(above, own)| pair(&oid(own), &oid(above))).collect();
        check_attached(out, &pairs, false);
    }

    /// Fail unless partitions lie where the archive says.
    fn check_storage(&self, out: &mut Vec<u8>, members: &[Member]) {
        let mut expected = Vec::with_capacity(members.len());
        for member in members {
            let entry = self.entry(member.table);
            let Some(table) = text::create_table(entry.defn) else { continue };
            let literal = |wanted: &[u8], known: bool| match known {
                true => quote_literal(wanted),
                false => b"NULL".to_vec(),
            };
            let method = !(self.style.no_table_access_method || entry.tableam.is_empty());
            let mut row = Vec::new();
            sql!(row, "(", oid(table.name), ", ");
            sql!(row, literal(entry.tablespace, !self.style.no_tablespaces), ", ");
            sql!(row, literal(entry.tableam, method && entry.relkind != b'p'), ")");
            expected.push(row);
        }
        check_storage(out, &expected);
    }

    /// Fail unless indexes (of partitions, of parents) have the archive's names and hang on one another, and lie in the
    /// database's own tablespace: no others are made with their tables.
    fn check_indexes(&self, out: &mut Vec<u8>, pairs: impl Iterator<Item = (u32, u32)>) {
        let oid_of = |place: u32| {
            let index = text::index(self.entry(place).defn)?;
            Some(oid(&[schema_of(index.table), index.name].concat()))
        };
        let pairs: Vec<_> =
            pairs.filter_map(|(own, above)| Some(pair(&oid_of(own)?, &oid_of(above)?))).collect();
        check_attached(out, &pairs, true);
    }
}
