//! The SQL of a step.

use super::build::merge::{foreign_key_name, grant_table, grant_template};
use super::names::automatic_index_name;
use super::text::{self, last_part};
use super::{Plan, Work};
use crate::archive::{Entry, Toc};
use crate::pg::{quote_ident, quote_literal};

/// The schema of the journal and of staging parents.
pub const SCHEMA: &str = "firn_restore";

/// What of an entry's statements is left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    pub no_owner: bool,
    pub no_tablespaces: bool,
    pub no_table_access_method: bool,
}

/// Writes the statements of steps. Settings that an entry needs are set as they change, for the transaction only.
pub struct Renderer<'a> {
    pub toc: &'a Toc,
    pub plan: &'a Plan,
    pub style: Style,
}

/// Settings in force at a point of a transaction.
#[derive(Default, Clone)]
pub struct Settings {
    tablespace: Option<Vec<u8>>,
    tableam: Option<Vec<u8>>,
}

macro_rules! sql {
    ($out:expr, $($part:expr),+ $(,)?) => {{ $($out.extend_from_slice(AsRef::<[u8]>::as_ref(&$part));)+ }};
}

impl Renderer<'_> {
    fn entry(&self, place: u32) -> Entry<'_> {
        self.toc.entry(place as usize)
    }

    /// The statements of a step that is no data.
    pub fn step(&self, number: u32, settings: &mut Settings) -> Vec<u8> {
        let mut out = Vec::new();
        let entries = self.plan.entries(number as usize);
        match &self.plan.steps[number as usize].work {
            Work::Milestone | Work::Data | Work::LargeObjects => {}
            Work::Entries => entries.iter().for_each(|p| self.original(&mut out, *p, settings)),
            Work::Group(group) => self.group(&mut out, *group, settings),
            Work::BoundsBegin(family) => self.bounds_begin(&mut out, *family),
            Work::BoundsEnd(family) => {
                sql!(out, "DROP TABLE ", self.bounds_table(*family), ";\n");
            }
            Work::BulkAttach => self.bulk_attach(&mut out, entries, settings),
            Work::ForeignKeyAdd => {
                if let Some((table, name, tail)) = foreign_key_name(self.entry(entries[0]).defn) {
                    sql!(
                        out,
                        "ALTER TABLE ONLY ",
                        table,
                        " ADD CONSTRAINT ",
                        name,
                        " ",
                        tail,
                        " NOT VALID;\n"
                    );
                }
            }
            Work::ForeignKeyValidate => {
                if let Some((table, name, _)) = foreign_key_name(self.entry(entries[0]).defn) {
                    sql!(out, "ALTER TABLE ONLY ", table, " VALIDATE CONSTRAINT ", name, ";\n");
                }
            }
            Work::Grants => self.grants(&mut out, entries),
        }
        out
    }

    /// The archive's own statements for a step, in an order that works whatever rules have put elsewhere: indexes
    /// before the attachment of their table, which then takes them up.
    pub fn fallback(&self, number: u32, settings: &mut Settings) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        match &self.plan.steps[number as usize].work {
            Work::Group(group) => {
                let group = &self.plan.groups[*group as usize];
                let family = &self.plan.families[group.family as usize];
                for member in
                    &family.members[group.members.start as usize..group.members.end as usize]
                {
                    let pairs = match family.with_indexes {
                        true => {
                            &family.pairs[member.pairs.start as usize..member.pairs.end as usize]
                        }
                        false => &[],
                    };
                    self.original(&mut out, member.table, settings);
                    pairs.iter().for_each(|(index, _)| self.original(&mut out, *index, settings));
                    self.original(&mut out, member.attach, settings);
                    pairs.iter().for_each(|(_, attach)| self.original(&mut out, *attach, settings));
                }
            }
            Work::BulkAttach | Work::Grants => {
                for place in self.plan.entries(number as usize) {
                    self.original(&mut out, *place, settings);
                }
            }
            _ => return None,
        }
        Some(out)
    }

    /// An entry as `pg_restore` would run it.
    fn original(&self, out: &mut Vec<u8>, place: u32, settings: &mut Settings) {
        let entry = self.entry(place);
        self.set_storage(out, &entry, settings);
        if self.style.no_owner && entry.desc == b"SCHEMA" {
            sql!(out, "CREATE SCHEMA ", quote_ident(entry.tag), ";\n");
        } else {
            sql!(out, entry.defn);
        }
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
        self.owner(out, &entry);
    }

    /// Tablespace and access method for what an entry makes.
    fn set_storage(&self, out: &mut Vec<u8>, entry: &Entry, settings: &mut Settings) {
        let stored =
            matches!(entry.desc, b"TABLE" | b"INDEX" | b"CONSTRAINT" | b"MATERIALIZED VIEW");
        if stored && !self.style.no_tablespaces {
            let wanted = entry.tablespace;
            if settings.tablespace.as_deref().unwrap_or_default() != wanted {
                sql!(out, "SET LOCAL default_tablespace = ", quote_literal(wanted), ";\n");
                settings.tablespace = Some(wanted.to_vec());
            }
        }
        if !entry.tableam.is_empty() && !self.style.no_table_access_method {
            if entry.relkind == b'p' {
                return;
            }
            if settings.tableam.as_deref() != Some(entry.tableam) {
                sql!(
                    out,
                    "SET LOCAL default_table_access_method = ",
                    quote_ident(entry.tableam),
                    ";\n"
                );
                settings.tableam = Some(entry.tableam.to_vec());
            }
        }
    }

    fn owner(&self, out: &mut Vec<u8>, entry: &Entry) {
        if entry.relkind == b'p' && !entry.tableam.is_empty() && !self.style.no_table_access_method
        {
            // From version 17 on partitioned tables have an access method, which only a statement of its own sets.
            let mut name = quote_ident(entry.namespace);
            name.push(b'.');
            name.extend(quote_ident(entry.tag));
            sql!(
                out,
                "ALTER TABLE ",
                name,
                " SET ACCESS METHOD ",
                quote_ident(entry.tableam),
                ";\n"
            );
        }
        if self.style.no_owner || entry.owner.is_empty() || entry.drop_stmt.is_empty() {
            return;
        }
        if let Some(object) = owned_object(entry) {
            sql!(out, "ALTER ", object, " OWNER TO ", quote_ident(entry.owner), ";\n");
        }
    }

    fn bounds_table(&self, family: u32) -> Vec<u8> {
        let parent = self.plan.families[family as usize].parent;
        format!("{SCHEMA}.bounds_{}", self.entry(parent).dump_id).into_bytes()
    }

    /// A table with the parent's partition key whose partitions will be the bounds of the groups, so that the
    /// server finds any that overlap.
    fn bounds_begin(&self, out: &mut Vec<u8>, family: u32) {
        let parent = self.entry(self.plan.families[family as usize].parent);
        if let Some(table) = text::create_table(parent.defn) {
            sql!(
                out,
                "CREATE TABLE ",
                self.bounds_table(family),
                " (LIKE ",
                table.name,
                ") ",
                table.rest,
                ";\n"
            );
        }
    }

    fn group(&self, out: &mut Vec<u8>, number: u32, settings: &mut Settings) {
        let group = &self.plan.groups[number as usize];
        let family = &self.plan.families[group.family as usize];
        let Some(parent) = text::create_table(self.entry(family.parent).defn) else { return };
        let stage = format!("{SCHEMA}.stage_{number}").into_bytes();
        if group.staged {
            sql!(out, "CREATE TABLE ", stage, " (", parent.body, ") ", parent.rest, ";\n");
        }
        let above = if group.staged { &stage[..] } else { parent.name };
        let indexes: &[u32] = if family.with_indexes { &family.indexes } else { &[] };
        let parsed: Vec<_> =
            indexes.iter().filter_map(|i| text::index(self.entry(*i).defn)).collect();
        if group.staged {
            for (n, index) in parsed.iter().enumerate() {
                let name = format!("stage_{number}_{n}");
                match (index.constraint, index.unique) {
                    (true, _) => sql!(
                        out,
                        "ALTER TABLE ",
                        stage,
                        " ADD CONSTRAINT ",
                        name,
                        " ",
                        index.tail,
                        ";\n"
                    ),
                    (_, true) => sql!(
                        out,
                        "CREATE UNIQUE INDEX ",
                        name,
                        " ON ",
                        stage,
                        " ",
                        index.tail,
                        ";\n"
                    ),
                    _ => sql!(out, "CREATE INDEX ", name, " ON ", stage, " ", index.tail, ";\n"),
                }
            }
        }
        let members = &family.members[group.members.start as usize..group.members.end as usize];
        for member in members {
            let entry = self.entry(member.table);
            let (Some(table), Some(attach)) =
                (text::create_table(entry.defn), text::attach(self.entry(member.attach).defn))
            else {
                continue;
            };
            self.set_storage(out, &entry, settings);
            sql!(out, "CREATE TABLE ", table.name, " PARTITION OF ", above, " ", attach.bound);
            if !table.rest.is_empty() {
                sql!(out, " ", table.rest);
            }
            sql!(out, ";\n");
            if !table.extras.is_empty() {
                sql!(out, table.extras, "\n");
            }
            self.owner(out, &entry);
            if family.with_indexes {
                let pairs = &family.pairs[member.pairs.start as usize..member.pairs.end as usize];
                for ((own, _), index) in pairs.iter().zip(&parsed) {
                    let wanted = text::index(self.entry(*own).defn).map(|i| i.name);
                    let given = automatic_index_name(table.name, index);
                    if let (Some(wanted), Some(given)) = (wanted, given) {
                        if text::unquoted(wanted) != given {
                            let schema =
                                &table.name[..table.name.len() - last_part(table.name).len()];
                            sql!(
                                out,
                                "ALTER INDEX ",
                                schema,
                                quote_ident(&given),
                                " RENAME TO ",
                                wanted,
                                ";\n"
                            );
                        }
                    }
                }
            }
        }
        if group.staged {
            self.move_to_parent(out, number, &stage, parsed.len());
        }
        if family.with_indexes && !indexes.is_empty() {
            self.check_indexes(out, number);
        }
    }

    /// Let the staging parent's partitions, and their indexes and constraints, belong to the real ones.
    ///
    /// See "Staged partitions" in README.md. What is changed is just where the catalogs name the parent.
    fn move_to_parent(&self, out: &mut Vec<u8>, number: u32, stage: &[u8], indexes: usize) {
        let group = &self.plan.groups[number as usize];
        let family = &self.plan.families[group.family as usize];
        let Some(parent) = text::create_table(self.entry(family.parent).defn) else { return };
        // The range that the group fills, proved free of overlap with other groups' by the server.
        let bound = |n: u32| {
            let attach = text::attach(self.entry(family.members[n as usize].attach).defn);
            attach.and_then(|a| super::family::range_bounds(a.bound))
        };
        if let (Some((from, _)), Some((_, to))) =
            (bound(group.members.start), bound(group.members.end - 1))
        {
            let bounds = self.bounds_table(group.family);
            sql!(
                out,
                "CREATE TABLE ",
                SCHEMA,
                ".",
                format!("bound_{number}"),
                " PARTITION OF ",
                bounds
            );
            sql!(out, " FOR VALUES FROM (", from, ") TO (", to, ");\n");
        }
        sql!(out, "LOCK TABLE ONLY ", parent.name, " IN SHARE UPDATE EXCLUSIVE MODE;\n");
        // Pairs of oids: what the partitions hang on now, and what they shall hang on.
        let oid = |name: &[u8]| [quote_literal(name), b"::regclass::oid".to_vec()].concat();
        let mut relations =
            vec![[b"(".to_vec(), oid(stage), b",".to_vec(), oid(parent.name), b")".to_vec()]
                .concat()];
        let mut constraints = Vec::new();
        let schema = &parent.name[..parent.name.len() - last_part(parent.name).len()];
        for (n, place) in family.indexes.iter().take(indexes).enumerate() {
            let Some(index) = text::index(self.entry(*place).defn) else { continue };
            let staged = format!("{SCHEMA}.stage_{number}_{n}");
            let real = [schema, index.name].concat();
            relations.push(
                [b"(".to_vec(), oid(staged.as_bytes()), b",".to_vec(), oid(&real), b")".to_vec()]
                    .concat(),
            );
            if index.constraint {
                let find = |table: &[u8], name: &[u8]| {
                    let mut out = Vec::new();
                    sql!(
                        out,
                        "(SELECT oid FROM pg_catalog.pg_constraint WHERE conrelid = ",
                        oid(table)
                    );
                    sql!(out, " AND contypid = 0 AND conname = ", quote_literal(name), ")");
                    out
                };
                let staged = find(stage, format!("stage_{number}_{n}").as_bytes());
                let real = find(parent.name, &text::unquoted(index.name));
                constraints
                    .push([b"(".to_vec(), staged, b",".to_vec(), real, b")".to_vec()].concat());
            }
        }
        let map = relations.join(&b", "[..]);
        // Catalogs grow while the planner's statistics of them stay: only look-ups by index stay fast.
        sql!(out, "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off;\n");
        sql!(
            out,
            "UPDATE pg_catalog.pg_depend d SET refobjid = m.real FROM (VALUES ",
            map,
            ") AS m(stage, real)"
        );
        sql!(out, " JOIN pg_catalog.pg_inherits i ON i.inhparent = m.stage WHERE d.classid = 1259 AND d.objid = i.inhrelid");
        sql!(out, " AND d.refclassid = 1259 AND d.refobjid = m.stage;\n");
        if !constraints.is_empty() {
            let map = constraints.join(&b", "[..]);
            sql!(
                out,
                "UPDATE pg_catalog.pg_depend d SET refobjid = m.real FROM (VALUES ",
                map,
                ") AS m(stage, real)"
            );
            sql!(out, " JOIN pg_catalog.pg_constraint c ON c.conparentid = m.stage WHERE d.classid = 2606 AND d.objid = c.oid");
            sql!(out, " AND d.refclassid = 2606 AND d.refobjid = m.stage;\n");
            sql!(
                out,
                "UPDATE pg_catalog.pg_constraint c SET conparentid = m.real FROM (VALUES ",
                map,
                ") AS m(stage, real)"
            );
            sql!(out, " WHERE c.conparentid = m.stage;\n");
        }
        sql!(
            out,
            "UPDATE pg_catalog.pg_inherits i SET inhparent = m.real FROM (VALUES ",
            map,
            ") AS m(stage, real)"
        );
        sql!(out, " WHERE i.inhparent = m.stage;\n");
        // This tells all sessions, too, that the parent has other partitions now.
        sql!(
            out,
            "UPDATE pg_catalog.pg_class c SET relhassubclass = true FROM (VALUES ",
            map,
            ") AS m(stage, real)"
        );
        sql!(out, " WHERE c.oid = m.real;\n");
        sql!(out, "DROP TABLE ", stage, ";\n");
        sql!(out, "SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on;\n");
        let members = group.members.len();
        let tables = family.members[group.members.start as usize..group.members.end as usize]
            .iter()
            .filter_map(|m| text::create_table(self.entry(m.table).defn))
            .map(|t| [b"(".to_vec(), oid(t.name), b")".to_vec()].concat())
            .collect::<Vec<_>>()
            .join(&b", "[..]);
        // An error of division, and with it a rollback, unless all is as it should be.
        sql!(
            out,
            "SELECT 1 / (count(*) = ",
            members.to_string(),
            ")::int AS all_partitions_are_attached FROM (VALUES "
        );
        sql!(out, tables, ") AS t(oid) JOIN pg_catalog.pg_inherits i ON i.inhrelid = t.oid JOIN pg_catalog.pg_depend d ON");
        sql!(out, " d.classid = 1259 AND d.objid = t.oid AND d.objsubid = 0 AND d.refclassid = 1259 AND d.refobjid = i.inhparent");
        sql!(out, " AND d.deptype = 'a' WHERE i.inhparent = ", oid(parent.name), ";\n");
    }

    /// Fail unless the group's indexes have the archive's names and hang on the parent's indexes.
    fn check_indexes(&self, out: &mut Vec<u8>, number: u32) {
        let group = &self.plan.groups[number as usize];
        let family = &self.plan.families[group.family as usize];
        let Some(parent) = text::create_table(self.entry(family.parent).defn) else { return };
        let schema_of = |table: &[u8]| table[..table.len() - last_part(table).len()].to_vec();
        let oid = |name: &[u8]| [quote_literal(name), b"::regclass::oid".to_vec()].concat();
        let mut rows = Vec::new();
        for member in &family.members[group.members.start as usize..group.members.end as usize] {
            let pairs = &family.pairs[member.pairs.start as usize..member.pairs.end as usize];
            for ((own, _), above) in pairs.iter().zip(&family.indexes) {
                let own = text::index(self.entry(*own).defn);
                let above = text::index(self.entry(*above).defn);
                if let (Some(own), Some(above)) = (own, above) {
                    let own = oid(&[schema_of(own.table), own.name.to_vec()].concat());
                    let above = oid(&[schema_of(parent.name), above.name.to_vec()].concat());
                    rows.push([b"(".to_vec(), own, b",".to_vec(), above, b")".to_vec()].concat());
                }
            }
        }
        sql!(
            out,
            "SELECT 1 / (count(*) = ",
            rows.len().to_string(),
            ")::int AS all_indexes_are_attached FROM (VALUES "
        );
        sql!(out, rows.join(&b", "[..]), ") AS t(own, above) JOIN pg_catalog.pg_inherits i ON i.inhrelid = t.own AND i.inhparent = t.above;\n");
    }

    /// The parent's index without ONLY: the server attaches to it each partition's equal one.
    fn bulk_attach(&self, out: &mut Vec<u8>, entries: &[u32], settings: &mut Settings) {
        let entry = self.entry(entries[0]);
        let Some(index) = text::index(entry.defn) else { return };
        self.set_storage(out, &entry, settings);
        match (index.constraint, index.unique) {
            (true, _) => sql!(
                out,
                "ALTER TABLE ",
                index.table,
                " ADD CONSTRAINT ",
                index.name,
                " ",
                index.tail,
                ";\n"
            ),
            (_, true) => sql!(
                out,
                "CREATE UNIQUE INDEX ",
                index.name,
                " ON ",
                index.table,
                " ",
                index.tail,
                ";\n"
            ),
            _ => {
                sql!(out, "CREATE INDEX ", index.name, " ON ", index.table, " ", index.tail, ";\n")
            }
        }
        let oid = |name: &[u8]| [quote_literal(name), b"::regclass::oid".to_vec()].concat();
        let mut rows = Vec::new();
        for place in &entries[1..] {
            if let Some((above, own)) = text::index_attach(self.entry(*place).defn) {
                rows.push(
                    [b"(".to_vec(), oid(own), b",".to_vec(), oid(above), b")".to_vec()].concat(),
                );
            }
        }
        sql!(
            out,
            "SELECT 1 / (count(*) = ",
            rows.len().to_string(),
            ")::int AS all_indexes_are_attached FROM (VALUES "
        );
        sql!(out, rows.join(&b", "[..]), ") AS t(own, above) JOIN pg_catalog.pg_inherits i ON i.inhrelid = t.own AND i.inhparent = t.above;\n");
    }

    /// One GRANT or REVOKE for several tables.
    fn grants(&self, out: &mut Vec<u8>, entries: &[u32]) {
        let tables: Vec<&[u8]> =
            entries.iter().filter_map(|p| grant_table(&self.toc.entry(*p as usize))).collect();
        let Some(template) = grant_template(&self.entry(entries[0])) else { return };
        let names = tables.join(&b", "[..]);
        for byte in template {
            match byte {
                0 => out.extend_from_slice(&names),
                byte => out.push(byte),
            }
        }
    }
}

/// How an entry's object is named in `ALTER … OWNER TO`; `None` for what has no owner of its own.
fn owned_object(entry: &Entry) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match entry.desc {
        // Named by kind, schema and name.
        b"TABLE"
        | b"VIEW"
        | b"MATERIALIZED VIEW"
        | b"FOREIGN TABLE"
        | b"SEQUENCE"
        | b"TYPE"
        | b"DOMAIN"
        | b"COLLATION"
        | b"CONVERSION"
        | b"STATISTICS"
        | b"TEXT SEARCH DICTIONARY"
        | b"TEXT SEARCH CONFIGURATION"
        | b"SCHEMA"
        | b"DATABASE"
        | b"PROCEDURAL LANGUAGE"
        | b"EVENT TRIGGER"
        | b"FOREIGN DATA WRAPPER"
        | b"SERVER"
        | b"PUBLICATION"
        | b"SUBSCRIPTION" => {
            sql!(out, entry.desc, " ");
            if !entry.namespace.is_empty() {
                sql!(out, quote_ident(entry.namespace), ".");
            }
            sql!(out, quote_ident(entry.tag));
        }
        b"BLOB" => sql!(out, "LARGE OBJECT ", entry.tag),
        // Named with their arguments: as the statement that drops them does.
        b"FUNCTION" | b"PROCEDURE" | b"AGGREGATE" | b"OPERATOR" | b"OPERATOR CLASS"
        | b"OPERATOR FAMILY" => {
            let name = entry.drop_stmt.strip_prefix(b"DROP ")?.trim_ascii_end();
            sql!(out, name.strip_suffix(b";")?);
        }
        _ => return None,
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners() {
        let table = Entry { desc: b"TABLE", namespace: b"s", tag: b"a\"b", ..Entry::default() };
        assert_eq!(owned_object(&table).unwrap(), b"TABLE \"s\".\"a\"\"b\"");
        let function = Entry {
            desc: b"FUNCTION",
            drop_stmt: b"DROP FUNCTION s.f(integer);\n",
            ..Entry::default()
        };
        assert_eq!(owned_object(&function).unwrap(), b"FUNCTION s.f(integer)");
        assert_eq!(owned_object(&Entry { desc: b"INDEX", ..Entry::default() }), None);
    }
}
