//! Partitions made below a staging parent move to the real one. See "Staged partitions" in ../README.md.

use super::checks::{check, check_alike, exact, oid, pair};
use super::partitions::schema_of;
use super::{Renderer, Settings, SCHEMA};
use crate::pg::quote_literal;
use crate::plan::family::{range_bounds, Member};
use crate::plan::text;
use crate::plan::who::Who;
use crate::plan::Work;

/// An expression for the oid of a table's constraint.
fn constraint(table: &[u8], name: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    sql!(
        out,
        exact("(SELECT oid FROM pg_catalog.pg_constraint WHERE contypid == 0 AND conrelid == ")
    );
    sql!(out, oid(table), exact(" AND conname == "), quote_literal(name), ")");
    out
}

/// Pairs as a table expression.
fn map(pairs: &[Vec<u8>]) -> Vec<u8> {
    [b"(VALUES ", &pairs.join(&b", "[..])[..], b") AS m(stage, real)"].concat()
}

impl Renderer<'_> {
    /// The range that members of a group fill, which adjoin each other, in the table of their family's bounds.
    fn fill_bound(&self, out: &mut Vec<u8>, family: u32, name: &str, members: &[Member]) {
        let bound = |member: Option<&Member>| {
            let attach = text::attach(self.entry(member?.attach).defn)?;
            range_bounds(attach.bound)
        };
        if let (Some((from, _)), Some((_, to))) = (bound(members.first()), bound(members.last())) {
            sql!(out, "CREATE TABLE ", SCHEMA, ".", name, " PARTITION OF ");
            sql!(out, self.bounds_table(family));
            sql!(out, " FOR VALUES FROM (", from, ") TO (", to, ") USING heap;\n");
        }
    }

    /// The table of bounds of a step's group, if it is a staged one.
    pub fn bounds_of(&self, step: u32) -> Option<Vec<u8>> {
        let Work::Group(number) = self.plan.steps[step as usize].work else { return None };
        let group = &self.plan.groups[number as usize];
        group.staged.then(|| self.bounds_table(group.family))
    }

    /// What stands around the archive's own statements for entries of a staged group. What they attach to the parent counts for the
    /// groups that come later, which are not compared with the parent. The lock first: in the order in which others take it.
    pub fn bounded(
        &self,
        step: u32,
        entries: &[u32],
        statements: impl FnOnce(&mut Settings) -> Vec<u8>,
        settings: &mut Settings,
    ) -> Vec<u8> {
        let mut out = Vec::new();
        let Work::Group(number) = self.plan.steps[step as usize].work else { return out };
        let group = &self.plan.groups[number as usize];
        let (_, members) = self.family(group);
        let attached: Vec<Member> =
            members.iter().filter(|m| entries.contains(&m.attach)).cloned().collect();
        if attached.is_empty() {
            return statements(settings);
        }
        sql!(out, self.become_user(Who::Restores, settings));
        sql!(out, "LOCK TABLE ONLY ", self.bounds_table(group.family));
        sql!(out, " IN SHARE UPDATE EXCLUSIVE MODE;\n");
        sql!(out, statements(settings), self.become_user(Who::Restores, settings));
        self.set_tablespace(&mut out, b"", settings);
        let name = match attached.len() == members.len() {
            true => format!("bound_{number}"),
            false => format!("bound_{number}_{}", attached[0].attach),
        };
        self.fill_bound(&mut out, group.family, &name, &attached);
        out
    }

    /// Let the staging parent's partitions, and their indexes and constraints, belong to the real ones: what is changed is
    /// just where the catalogs name the parent.
    pub(super) fn move_to_parent(&self, out: &mut Vec<u8>, number: u32, stage: &[u8]) {
        let group = &self.plan.groups[number as usize];
        let (family, members) = self.family(group);
        let Some(parent) = text::create_table(self.entry(family.parent).defn) else { return };
        // Proved free of overlap with other groups' by the server.
        self.fill_bound(out, group.family, &format!("bound_{number}"), members);
        sql!(out, "LOCK TABLE ONLY ", parent.name, " IN SHARE UPDATE EXCLUSIVE MODE;\n");
        // Catalogs grow while the planner's statistics of them stay: only look-ups by index stay fast.
        let settings = ["seqscan", "hashjoin", "mergejoin"];
        for setting in settings {
            sql!(out, "SET LOCAL enable_", setting, " = off;\n");
        }
        // What the partitions hang on now, and what they shall hang on.
        let identity = self.plan.inherits_identity;
        check_alike(out, stage, parent.name, identity);
        let mut relations = vec![pair(&oid(stage), &oid(parent.name))];
        let mut constraints = Vec::new();
        for (n, place) in family.indexes_with_table().iter().enumerate() {
            let Some(index) = text::index(self.entry(*place).defn) else { continue };
            let name = format!("stage_{number}_{n}").into_bytes();
            let staged = [SCHEMA.as_bytes(), b".", &name].concat();
            let real = [schema_of(parent.name), index.name].concat();
            check_alike(out, &staged, &real, identity);
            relations.push(pair(&oid(&staged), &oid(&real)));
            if index.constraint {
                let real = constraint(parent.name, &text::unquoted(index.name));
                constraints.push(pair(&constraint(stage, &name), &real));
            }
        }
        let relations = map(&relations);
        // 1259 is pg_class, 2606 pg_constraint.
        let text =
            " JOIN pg_catalog.pg_inherits i ON i.inhparent == m.stage WHERE d.classid == 1259 \
            AND d.objid == i.inhrelid AND d.refclassid == 1259 AND d.refobjid == m.stage;\n";
        sql!(
            out,
            "UPDATE pg_catalog.pg_depend d SET refobjid = m.real FROM ",
            relations,
            exact(text)
        );
        if !constraints.is_empty() {
            let constraints = map(&constraints);
            let text = " JOIN pg_catalog.pg_constraint c ON c.conparentid == m.stage \
                WHERE d.classid == 2606 AND d.objid == c.oid \
                AND d.refclassid == 2606 AND d.refobjid == m.stage;\n";
            sql!(
                out,
                "UPDATE pg_catalog.pg_depend d SET refobjid = m.real FROM ",
                constraints,
                exact(text)
            );
            sql!(
                out,
                "UPDATE pg_catalog.pg_constraint c SET conparentid = m.real FROM ",
                constraints
            );
            sql!(out, exact(" WHERE c.conparentid == m.stage;\n"));
        }
        sql!(out, "UPDATE pg_catalog.pg_inherits i SET inhparent = m.real FROM ", relations);
        sql!(out, exact(" WHERE i.inhparent == m.stage;\n"));
        // This tells all sessions, too, that the parent has other partitions now.
        sql!(out, "UPDATE pg_catalog.pg_class c SET relhassubclass = true FROM ", relations);
        sql!(out, exact(" WHERE c.oid == m.real;\n"));
        sql!(out, "DROP TABLE ", stage, ";\n");
        let tables: Vec<Vec<u8>> = members
            .iter()
            .filter_map(|m| text::create_table(self.entry(m.table).defn))
            .map(|t| [b"(", &oid(t.name)[..], b")"].concat())
            .collect();
        check(out, members.len(), "all_partitions_are_attached");
        let text = ") AS t(oid) JOIN pg_catalog.pg_inherits i ON i.inhrelid == t.oid \
            JOIN pg_catalog.pg_depend d ON d.classid == 1259 AND d.objid == t.oid AND d.objsubid == 0 \
            AND d.refclassid == 1259 AND d.refobjid == i.inhparent \
            AND d.deptype == 'a'::pg_catalog.\"char\" WHERE i.inhparent == ";
        sql!(out, "(VALUES ", tables.join(&b", "[..]), exact(text), oid(parent.name), ";\n");
        for setting in settings {
            sql!(out, "SET LOCAL enable_", setting, " TO DEFAULT;\n");
        }
    }
}
