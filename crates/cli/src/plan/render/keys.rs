//! An index that came with its partition is taken away again: rows that came after it do not fit it.

use super::checks::{check, exact, oid};
use super::partitions::schema_of;
use super::Renderer;
use crate::plan::text;
use std::collections::HashSet;

/// An index that a partition got with itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyIndex {
    /// The step that made it.
    pub step: u32,
    pub family: u32,
    /// Place of the partition's attachment.
    pub table_attach: u32,
    /// Places of the index and of its attachment.
    pub index: u32,
    pub attach: u32,
    /// Place of the parent's index.
    pub above: u32,
}

impl Renderer<'_> {
    /// The name of an early index's table.
    pub fn table_of(&self, early: &EarlyIndex) -> Option<&[u8]> {
        Some(text::index(self.entry(early.index).defn)?.table)
    }

    /// Leave things as `pg_restore` does when it cannot make the index of a partition: the partition has none, that of its parent has all
    /// others and is not valid. No statement takes the index of a partition away while the parent has one, so this takes what ties
    /// the two together out of the catalogs, as DETACH PARTITION does for all indexes of a table; the rest is DROP.
    ///
    /// Who may not do that detaches the partition. It may have rows that the parent's key refuses as long as it is none.
    /// What could not be attached, which the place of its attachment tells, need not be detached. Returns the statements, and the tables
    /// that they detach.
    pub fn without_indexes(
        &self,
        indexes: &[EarlyIndex],
        by_catalogs: bool,
        attached: impl Fn(u32) -> bool,
    ) -> (Vec<u8>, Vec<&[u8]>) {
        let (mut out, mut tables) = (Vec::new(), Vec::new());
        let mut detached = HashSet::new();
        for early in indexes {
            let detach =
                !by_catalogs && attached(early.table_attach) && detached.insert(early.table_attach);
            self.without_index(&mut out, early, by_catalogs, detach);
            tables.extend(self.table_of(early).filter(|_| detach));
        }
        (out, tables)
    }

    fn without_index(
        &self,
        out: &mut Vec<u8>,
        early: &EarlyIndex,
        by_catalogs: bool,
        detach: bool,
    ) {
        let parent = self.entry(self.plan.families[early.family as usize].parent);
        let (Some(parent), Some(own), Some(above)) = (
            text::create_table(parent.defn),
            text::index(self.entry(early.index).defn),
            text::index(self.entry(early.above).defn),
        ) else {
            return;
        };
        let index = [schema_of(own.table), own.name].concat();
        if by_catalogs {
            let (index, table) = (oid(&index), oid(own.table));
            let above = oid(&[schema_of(parent.name), above.name].concat());
            sql!(out, "LOCK TABLE ONLY ", parent.name, " IN SHARE UPDATE EXCLUSIVE MODE;\n");
            sql!(out, "LOCK TABLE ONLY ", own.table, " IN ACCESS EXCLUSIVE MODE;\n");
            // What was made entry by entry may not be attached yet, and then nothing below ties it.
            check(out, 0, "the_index_is_attached_elsewhere");
            let tied = "pg_catalog.pg_inherits WHERE inhrelid == ";
            let elsewhere = " AND inhparent OPERATOR(pg_catalog.<>) ";
            sql!(out, exact(tied), index, elsewhere, above, ";\n");
            // 1259 is pg_class, 2606 pg_constraint.
            let ties =
                " AND deptype OPERATOR(pg_catalog.=) ANY ('{P,S}'::pg_catalog.\"char\"[]);\n";
            let key = exact("(SELECT oid FROM pg_catalog.pg_constraint WHERE conrelid == ");
            let own_key = exact(
                " AND contype OPERATOR(pg_catalog.=) ANY ('{p,u}'::pg_catalog.\"char\"[]) AND conindid == ",
            );
            sql!(
                out,
                exact("DELETE FROM pg_catalog.pg_depend WHERE classid == 2606 AND objid == ")
            );
            sql!(out, key, table, own_key, index, ")", ties);
            sql!(
                out,
                exact("DELETE FROM pg_catalog.pg_depend WHERE classid == 1259 AND objid == ")
            );
            sql!(out, index, ties);
            sql!(
                out,
                "UPDATE pg_catalog.pg_constraint SET conparentid = 0, conislocal = true, coninhcount = 0 WHERE oid IN "
            );
            sql!(out, key, table, own_key, index, ");\n");
            sql!(out, exact("DELETE FROM pg_catalog.pg_inherits WHERE inhrelid == "), index, ";\n");
            sql!(out, "UPDATE pg_catalog.pg_class SET relispartition = false WHERE oid ");
            sql!(out, exact("== "), index, ";\n");
            sql!(out, "UPDATE pg_catalog.pg_index SET indisvalid = false WHERE indexrelid ");
            sql!(out, exact("== "), above, ";\n");
            // This tells all sessions to look at the parent again.
            sql!(out, "UPDATE pg_catalog.pg_class SET relhassubclass = true WHERE oid ");
            sql!(out, exact("== "), oid(parent.name), ";\n");
        } else if detach {
            sql!(out, "ALTER TABLE ", parent.name, " DETACH PARTITION ", own.table, ";\n");
        }
        match own.constraint {
            true => sql!(out, "ALTER TABLE ONLY ", own.table, " DROP CONSTRAINT ", own.name, ";\n"),
            false => sql!(out, "DROP INDEX ", index, ";\n"),
        }
    }
}
