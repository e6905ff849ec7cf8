//! Tables that are emptied and filled, as a worker does it. Which belong together: [`crate::restore::reload`].

use super::attempt::Tried;
use super::{cancelled, Worker};
use crate::error::{Error, ErrorKind};
use crate::pg::{quote_literal, Connection};
use crate::plan::build::describe;
use crate::plan::render::Settings;
use crate::plan::who::Who;
use crate::plan::{Reload, Work};
use crate::restore::data::{copy_rows, Copied, Flow, How};
use crate::restore::unlogged;
use std::collections::HashMap;

impl Worker<'_, '_> {
    /// Empty tables and fill them, in the order in which foreign keys hold. `sql` is what was to be sent before.
    pub(super) fn reload(
        &self,
        step: u32,
        number: u32,
        sql: &mut Vec<u8>,
        settings: &mut Settings,
        flow: &Flow,
    ) -> Result<Copied, Tried> {
        let site = self.site;
        let (connection, _) = self.connection.as_ref().ok_or_else(cancelled)?;
        let reload = &site.terms.facts.reloads[number as usize];
        let refill = self.is_refill(step);
        let silent = site.terms.silences_triggers(site.archive.toc());
        let triggers = |sql: &mut Vec<u8>, settings: &mut Settings, how: &[u8]| {
            for table in reload.emptied.iter().filter(|_| silent && !refill) {
                sql.extend(self.become_superuser(settings));
                sql.extend([b"ALTER TABLE ", &table[..], how, b" TRIGGER ALL;\n"].concat());
            }
            sql.extend(site.renderer.become_user(Who::Restores, settings));
        };
        // Not as the owner of what came before in the same transaction.
        sql.extend(site.renderer.become_user(Who::Restores, settings));
        if !refill {
            let all = reload.emptied.join(&b", "[..]);
            sql.extend([b"LOCK TABLE ", &all[..], b" IN ACCESS EXCLUSIVE MODE;\n"].concat());
            self.send(connection, sql)?;
            no_others(connection, reload)?;
            triggers(sql, settings, b" DISABLE");
            sql.extend([b"TRUNCATE TABLE ", &all[..], b";\n"].concat());
        }
        if reload.in_circle {
            // Those that can be are checked at the end.
            sql.extend_from_slice(b"SET CONSTRAINTS ALL DEFERRED;\n");
        }
        let mut copied = Copied::default();
        let mut places = site.plan.entries(step as usize).to_vec();
        if refill {
            places = self.still_lost(connection, &places, sql)?;
        }
        let mut after = Vec::new();
        for place in places {
            sql.extend(site.renderer.become_user(Who::Restores, settings));
            copied.statements += self.send(connection, sql)?;
            let into = match refill {
                true => unlogged::filled(site.archive, place)?,
                false => None,
            };
            if let Some(table) = into {
                let quiet = unlogged::quiet(connection, &table)?;
                sql.extend(quiet.before);
                after.extend(quiet.after);
            }
            sql.extend(site.renderer.before_rows(place, settings));
            copied.statements += self.send(connection, sql)?;
            let how = How { skip_empty: site.terms.rules.skip_empty_data, ..How::default() };
            let at = place as usize;
            let found = copy_rows(connection, site.archive, at, &how, flow)
                .map_err(|error| Tried { error, statement: self.copy_statement(at) })?;
            if found.rows < found.sent {
                let (rows, sent) = (found.rows, found.sent);
                let what = describe(&site.archive.toc().entry(at));
                let message = format!("{what}: the server took {rows} of {sent} rows");
                let error = Error::new(ErrorKind::Statement, message)
                    .detail("The table keeps the rows that it had.")
                    .hint("A trigger, a rule or ON CONFLICT leaves rows out; --disable-triggers switches triggers off meanwhile.");
                return Err(error.into());
            }
            copied.add(&found);
        }
        sql.extend(site.renderer.become_user(Who::Restores, settings));
        sql.extend(after);
        if !refill {
            triggers(sql, settings, b" ENABLE");
        }
        Ok(copied)
    }

    /// Of the entries that are lost those whose table nobody has filled again, this program before its connection was lost
    /// included; nobody does from now on. Several may go into one table, which the first of them fills.
    fn still_lost(
        &self,
        connection: &Connection,
        places: &[u32],
        sql: &mut Vec<u8>,
    ) -> Result<Vec<u32>, Tried> {
        let mut looked = HashMap::new();
        let mut found = Vec::new();
        for &place in places.iter().filter(|p| self.site.again.contains(p)) {
            let Some(table) = unlogged::filled(self.site.archive, place)? else { continue };
            let empty = match looked.get(&table) {
                Some(empty) => *empty,
                None => {
                    let clause = unlogged::clause(connection, &table)?;
                    let lock =
                        [b"LOCK TABLE ", &clause[..], b" IN SHARE ROW EXCLUSIVE MODE;\n"].concat();
                    sql.extend(lock);
                    self.send(connection, sql)?;
                    let empty = unlogged::is_empty(connection, &clause)?;
                    looked.insert(table, empty);
                    empty
                }
            };
            if empty {
                found.push(place);
            }
        }
        Ok(found)
    }

    /// The step is recorded, and a crash has emptied some of its tables, which are not logged: these are filled again, and nothing else.
    /// The record stays, by which the next run would find them.
    pub(super) fn is_refill(&self, step: u32) -> bool {
        let plan = self.site.plan;
        matches!(plan.steps[step as usize].work, Work::Reload(_))
            && plan.entries(step as usize).iter().any(|p| self.site.again.contains(p))
    }
}

/// What TRUNCATE reaches is what the restore was planned for: tables that got names of others since were not asked for, nor were
/// partitions that have come, as TRUNCATE of a partitioned table empties them all. Under a lock that lets no more of them come.
fn no_others(connection: &Connection, reload: &Reload) -> Result<(), Tried> {
    let name = |table: &Vec<u8>| quote_literal(table.strip_prefix(b"ONLY ").unwrap_or(table));
    let planned = reload.emptied.iter().zip(&reload.oids).filter(|(_, oid)| **oid != 0);
    let planned: Vec<_> = planned
        .map(|(table, oid)| [b"(", &name(table)[..], format!(", {oid})").as_bytes()].concat())
        .collect();
    if !planned.is_empty() {
        let sql = [
            b"SELECT name FROM (VALUES ",
            &planned.join(&b", "[..])[..],
            b") v (name, oid) WHERE NOT name::pg_catalog.regclass OPERATOR(pg_catalog.=) oid::pg_catalog.oid ORDER BY 1 LIMIT 1",
        ];
        let found = connection.query(&sql.concat())?;
        if !found.is_empty() {
            let message = format!("{} is not the table that it was", found.text(0, 0));
            return Err(Error::new(ErrorKind::Statement, message)
                .detail("Since the restore was planned another table got that name; its rows would be lost.")
                .hint("Give the tables their names of before, or drop the schema firn_restore and begin anew.")
                .into());
        }
    }
    let plain = |table: &&Vec<u8>| !table.starts_with(b"ONLY ");
    let parents: Vec<_> = reload.emptied.iter().filter(plain).map(|t| quote_literal(t)).collect();
    if parents.is_empty() {
        return Ok(());
    }
    let known: Vec<_> = reload.emptied.iter().map(name).collect();
    let sql = [
        b"WITH RECURSIVE below AS (SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhparent \
          OPERATOR(pg_catalog.=) ANY (ARRAY[",
        &parents.join(&b", "[..])[..],
        b"]::pg_catalog.regclass[]) UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN below b \
          ON i.inhparent OPERATOR(pg_catalog.=) b.inhrelid) \
          SELECT inhrelid::pg_catalog.regclass::pg_catalog.text FROM below WHERE NOT inhrelid OPERATOR(pg_catalog.=) ANY (ARRAY[",
        &known.join(&b", "[..]),
        b"]::pg_catalog.regclass[]) ORDER BY 1 LIMIT 1",
    ]
    .concat();
    let found = connection.query(&sql)?;
    if found.is_empty() {
        return Ok(());
    }
    let what = found.text(0, 0);
    let message = format!("{what} has become a partition of a table that is to be emptied");
    Err(Error::new(ErrorKind::Statement, message)
        .detail("It was not there when the restore was planned; its rows would be lost.")
        .hint("Detach it, or drop the schema firn_restore and begin anew, with the table chosen as well.")
        .into())
}
