//! Unlogged tables and sequences, which a crash of the server empties and sets back.
//!
//! The journal is logged, so after a crash it says of such a table that its rows were copied. What was done in one
//! transaction before the crash is gone as a whole: an unlogged table that is empty while rows are recorded has lost all of
//! them, and gets them again. What an unlogged sequence has lost cannot be seen: its value is set again, which changes nothing
//! if it was there. (From 15 on serial and identity columns of unlogged tables have such.)
//!
//! It is looked at where the rows went: those that come through a partitioned table may be in any of its partitions.

use super::cut::Cut;
use super::journal::fence::Session;
use super::journal::{self, Done};
use super::pieces::Pieces;
use super::{reload, Job};
use crate::archive::{read_error, Archive, Entry};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{quote_ident, quote_literal, Connection};
use crate::plan::build::describe;
use crate::plan::text::{last_part, qualified, take_name, unquoted};
use crate::plan::Work;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;

/// With the right to it, which superusers have, triggers and rules do not fire, nor do foreign keys look, which may go in circles.
const BEFORE_ROWS: &[u8] =
    b"SELECT pg_catalog.set_config('session_replication_role', 'replica', true) \
    WHERE pg_catalog.has_parameter_privilege('session_replication_role', 'SET');\n";
const AFTER_ROWS: &[u8] =
    b"SELECT pg_catalog.set_config(name, reset_val, true) FROM pg_catalog.pg_settings \
    WHERE name OPERATOR(pg_catalog.=) 'session_replication_role' \
    AND pg_catalog.has_parameter_privilege('session_replication_role', 'SET');\n";

/// Whoever drops and makes constraints of several tables or of domains does so alone, until its transaction ends. The number is of this alone.
const ALONE: &[u8] = b"SELECT pg_catalog.pg_advisory_xact_lock(7380145926384)";

/// Those of the first phase are dropped from above, those of the second made from below. NOT NULL constraints are inherited by column, not by
/// name: only those of tables without any above and below are looked at. What is NOT ENFORCED, from version 18 on, refuses nothing.
/// What belongs to others stays: rows that meet it come all the same. Two columns: what is to be said before the rows, and behind them. The lines of each are in order.
const UNMET_OF: &[u8] = b"WITH RECURSIVE t(name) AS (SELECT ";
const UNMET: &[u8] = b"::pg_catalog.text), \
    tree AS (SELECT pg_catalog.to_regclass(t.name)::pg_catalog.oid AS rel FROM t \
      UNION SELECT p.relid FROM t, pg_catalog.pg_partition_tree(pg_catalog.to_regclass(t.name)) p), \
    up AS (SELECT c.conrelid AS rel, c.conname, c.contype, 0 AS level FROM pg_catalog.pg_constraint c \
      JOIN tree ON c.conrelid OPERATOR(pg_catalog.=) tree.rel \
      WHERE NOT c.convalidated AND pg_catalog.to_jsonb(c) OPERATOR(pg_catalog.->>) 'conenforced'::pg_catalog.text IS DISTINCT FROM 'false' \
      AND (c.contype OPERATOR(pg_catalog.=) 'c'::pg_catalog.\"char\" OR c.contype OPERATOR(pg_catalog.=) 'n'::pg_catalog.\"char\" \
      AND c.coninhcount OPERATOR(pg_catalog.=) 0 \
      AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent OPERATOR(pg_catalog.=) c.conrelid)) \
      UNION SELECT i.inhparent, up.conname, up.contype, up.level OPERATOR(pg_catalog.+) 1 FROM up JOIN pg_catalog.pg_inherits i \
      ON i.inhrelid OPERATOR(pg_catalog.=) up.rel JOIN pg_catalog.pg_constraint c ON c.conrelid OPERATOR(pg_catalog.=) i.inhparent \
      AND c.conname OPERATOR(pg_catalog.=) up.conname AND c.contype OPERATOR(pg_catalog.=) up.contype), \
    own AS (SELECT c.oid, c.conrelid AS rel, c.conname, c.contype, pg_catalog.max(up.level) AS level FROM up JOIN pg_catalog.pg_constraint c \
      ON c.conrelid OPERATOR(pg_catalog.=) up.rel AND c.conname OPERATOR(pg_catalog.=) up.conname AND c.contype OPERATOR(pg_catalog.=) up.contype \
      WHERE c.conislocal AND NOT EXISTS (SELECT FROM up of JOIN pg_catalog.pg_class o ON o.oid OPERATOR(pg_catalog.=) of.rel \
      WHERE of.conname OPERATOR(pg_catalog.=) c.conname AND NOT pg_catalog.pg_has_role(o.relowner, 'USAGE')) GROUP BY 1, 2, 3, 4), \
    down AS (SELECT rel, conname, contype FROM own UNION SELECT i.inhrelid, down.conname, down.contype FROM down \
      JOIN pg_catalog.pg_inherits i ON i.inhparent OPERATOR(pg_catalog.=) down.rel), \
    types AS (SELECT a.atttypid AS type FROM pg_catalog.pg_attribute a JOIN tree ON a.attrelid OPERATOR(pg_catalog.=) tree.rel \
      WHERE a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped \
      UNION SELECT m.type FROM types JOIN pg_catalog.pg_type y ON y.oid OPERATOR(pg_catalog.=) types.type, \
      LATERAL (SELECT y.typbasetype AS type UNION ALL SELECT y.typelem UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a \
      WHERE a.attrelid OPERATOR(pg_catalog.=) y.typrelid AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped \
      UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid OPERATOR(pg_catalog.=) y.oid \
      OR r.rngmultitypid OPERATOR(pg_catalog.=) y.oid) m), \
    more AS (SELECT c.oid, c.contypid, c.conrelid, c.conname FROM pg_catalog.pg_constraint c WHERE NOT c.convalidated \
      AND pg_catalog.to_jsonb(c) OPERATOR(pg_catalog.->>) 'conenforced'::pg_catalog.text IS DISTINCT FROM 'false' \
      AND (c.contypid OPERATOR(pg_catalog.=) ANY (SELECT type FROM types JOIN pg_catalog.pg_type y ON y.oid OPERATOR(pg_catalog.=) type \
      WHERE pg_catalog.pg_has_role(y.typowner, 'USAGE')) \
      OR c.contype OPERATOR(pg_catalog.=) 'f'::\"char\" AND c.conparentid OPERATOR(pg_catalog.=) 0::pg_catalog.oid \
      AND c.conrelid OPERATOR(pg_catalog.=) ANY (SELECT rel FROM tree) \
      AND NOT pg_catalog.has_parameter_privilege('session_replication_role', 'SET'))), \
    lines(phase, place, name, before, after) AS ( \
      SELECT 1, pg_catalog.row_number() OVER (ORDER BY level DESC), conname, \
        pg_catalog.format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I;', rel::pg_catalog.regclass, conname), NULL FROM own \
      UNION ALL SELECT 2, pg_catalog.row_number() OVER (ORDER BY level), conname, NULL, \
        pg_catalog.format('ALTER TABLE %s ADD CONSTRAINT %I %s;', rel::pg_catalog.regclass, conname, pg_catalog.pg_get_constraintdef(oid)) FROM own \
      UNION ALL SELECT 3, 0, conname, CASE WHEN contypid OPERATOR(pg_catalog.=) 0::pg_catalog.oid \
        THEN pg_catalog.format('ALTER TABLE %s DROP CONSTRAINT %I;', conrelid::pg_catalog.regclass, conname) \
        ELSE pg_catalog.format('ALTER DOMAIN %s DROP CONSTRAINT %I;', contypid::pg_catalog.regtype, conname) END, \
        CASE WHEN contypid OPERATOR(pg_catalog.=) 0::pg_catalog.oid \
        THEN pg_catalog.format('ALTER TABLE %s ADD CONSTRAINT %I %s;', conrelid::pg_catalog.regclass, conname, pg_catalog.pg_get_constraintdef(oid)) \
        ELSE pg_catalog.format('ALTER DOMAIN %s ADD CONSTRAINT %I %s;', contypid::pg_catalog.regtype, conname, pg_catalog.pg_get_constraintdef(oid)) END \
        FROM more \
      UNION ALL SELECT 4, 0, c.conname, NULL, pg_catalog.format('ALTER TABLE %s VALIDATE CONSTRAINT %I;', c.conrelid::pg_catalog.regclass, c.conname) \
        FROM down JOIN pg_catalog.pg_constraint c ON c.conrelid OPERATOR(pg_catalog.=) down.rel AND c.conname OPERATOR(pg_catalog.=) down.conname \
        AND c.contype OPERATOR(pg_catalog.=) down.contype WHERE c.convalidated AND NOT c.conislocal \
      UNION ALL SELECT 5, 0, c.conname, NULL, CASE WHEN c.contypid OPERATOR(pg_catalog.=) 0::pg_catalog.oid \
        THEN pg_catalog.format('COMMENT ON CONSTRAINT %I ON %s IS %L;', c.conname, c.conrelid::pg_catalog.regclass, d.description) \
        ELSE pg_catalog.format('COMMENT ON CONSTRAINT %I ON DOMAIN %s IS %L;', c.conname, c.contypid::pg_catalog.regtype, d.description) END \
        FROM pg_catalog.pg_constraint c JOIN pg_catalog.pg_description d ON d.objoid OPERATOR(pg_catalog.=) c.oid \
        AND d.classoid OPERATOR(pg_catalog.=) 'pg_catalog.pg_constraint'::pg_catalog.regclass::pg_catalog.oid \
        WHERE c.oid OPERATOR(pg_catalog.=) ANY (SELECT oid FROM more) OR EXISTS (SELECT FROM down \
        WHERE down.rel OPERATOR(pg_catalog.=) c.conrelid AND down.conname OPERATOR(pg_catalog.=) c.conname)) \
    SELECT before, after FROM lines ORDER BY phase, place, name";

/// What stands around rows that come again into a table that has its triggers and rules by now: they came before those.
pub struct Quiet {
    pub before: Vec<u8>,
    pub after: Vec<u8>,
}

/// Let rows into a table whose row security is there by now, and binds its owner, too: they came before it.
pub fn unforced(connection: &Connection, table: &[u8]) -> Result<Quiet> {
    let sql = [
        b"SELECT pg_catalog.format('ALTER TABLE ONLY %I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
          JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace \
          WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(",
        &quote_literal(table)[..],
        b")::pg_catalog.oid AND c.relrowsecurity AND c.relforcerowsecurity",
    ];
    let found = connection.query(&sql.concat())?;
    if found.is_empty() {
        return Ok(Quiet { before: Vec::new(), after: Vec::new() });
    }
    let alter = found.get(0, 0).unwrap_or_default();
    // A table with foreign keys that are still to be looked at is not altered.
    let immediate = b"SET CONSTRAINTS ALL IMMEDIATE;\n";
    Ok(Quiet {
        before: [alter, b" NO FORCE ROW LEVEL SECURITY;\n"].concat(),
        after: [immediate, alter, b" FORCE ROW LEVEL SECURITY;\n"].concat(),
    })
}

/// Let no trigger and no rule of a table, or of what is below it, see rows. Those that fire all the same, as they are for replicas or
/// one may not say what the session is, are off until the transaction ends.
pub fn quiet(connection: &Connection, table: &[u8]) -> Result<Quiet> {
    let unforced = unforced(connection, table)?;
    let before = [BEFORE_ROWS, &unforced.before].concat();
    let mut quiet = Quiet { before, after: unforced.after };
    let sql = [
        b"WITH tree AS (SELECT pg_catalog.to_regclass(",
        &quote_literal(table)[..],
        b")::pg_catalog.oid AS rel UNION SELECT relid FROM pg_catalog.pg_partition_tree(pg_catalog.to_regclass(",
        &quote_literal(table),
        b"))), f AS (SELECT tgrelid AS rel, tgname AS name, 'TRIGGER' AS kind, tgenabled AS fires FROM pg_catalog.pg_trigger \
          WHERE NOT tgisinternal UNION ALL SELECT ev_class, rulename, 'RULE', ev_enabled FROM pg_catalog.pg_rewrite \
          WHERE ev_type OPERATOR(pg_catalog.=) '3'::\"char\") \
          SELECT pg_catalog.format('ALTER TABLE ONLY %s DISABLE %s %I;', f.rel::pg_catalog.regclass, kind, name), \
          pg_catalog.format('ALTER TABLE ONLY %s ENABLE %s%s %I;', f.rel::pg_catalog.regclass, CASE WHEN fires OPERATOR(pg_catalog.=) 'A'::\"char\" \
          THEN 'ALWAYS ' WHEN fires OPERATOR(pg_catalog.=) 'R'::\"char\" THEN 'REPLICA ' ELSE '' END, kind, name) \
          FROM f JOIN tree ON tree.rel OPERATOR(pg_catalog.=) f.rel WHERE fires OPERATOR(pg_catalog.=) 'A'::\"char\" \
          OR fires OPERATOR(pg_catalog.=) CASE WHEN pg_catalog.has_parameter_privilege('session_replication_role', 'SET') \
          THEN 'R'::\"char\" ELSE 'O'::\"char\" END ORDER BY 1",
    ];
    let found = connection.query(&sql.concat())?;
    if !found.is_empty() {
        // A table with foreign keys that are still to be looked at is not altered.
        quiet.after.extend_from_slice(b"SET CONSTRAINTS ALL IMMEDIATE;\n");
    }
    for row in 0..found.len() {
        for (column, sql) in [&mut quiet.before, &mut quiet.after].into_iter().enumerate() {
            sql.extend_from_slice(found.get(row, column).unwrap_or_default());
            sql.push(b'\n');
        }
    }
    let unmet = unmet(connection, table)?;
    quiet.before.extend(unmet.before);
    quiet.after.extend(unmet.after);
    quiet.after.extend_from_slice(AFTER_ROWS);
    Ok(quiet)
}

/// What is NOT VALID of a table, of what it inherits from or is a partition of, and of domains of its columns: rows that were there before that
/// need not meet it. Dropped, and added again, with all that was valid of it elsewhere; also foreign keys, for who cannot switch these off.
fn unmet(connection: &Connection, table: &[u8]) -> Result<Quiet> {
    let sql = [UNMET_OF, &quote_literal(table)[..], UNMET].concat();
    connection.run(connection.not_compiled(true)).map_err(|failure| failure.error)?;
    if connection.query(&sql)?.is_empty() {
        return Ok(Quiet { before: Vec::new(), after: Vec::new() });
    }
    // One after the other: another one may be about to drop the same, of a table above or of a domain.
    connection.run(ALONE).map_err(|failure| failure.error)?;
    let found = connection.query(&sql)?;
    let mut unmet = Quiet { before: Vec::new(), after: Vec::new() };
    for row in 0..found.len() {
        for (column, sql) in [&mut unmet.before, &mut unmet.after].into_iter().enumerate() {
            let text = found.get(row, column).unwrap_or_default();
            if !text.is_empty() {
                sql.extend_from_slice(text);
                sql.push(b'\n');
            }
        }
    }
    if !unmet.after.is_empty() {
        unmet.after.splice(0..0, b"SET CONSTRAINTS ALL IMMEDIATE;\n".iter().copied());
    }
    Ok(unmet)
}

/// Steps that are recorded, and what they did is not there, or may not be; with their entry.
pub fn lost(job: &Job, connection: &Connection, recorded: &Done) -> Result<Vec<(u32, u32)>> {
    let toc = job.archive.toc();
    // By the entry of the rows: its steps that are recorded, and how many rows they copied.
    let mut tables = BTreeMap::<u32, (Vec<u32>, u64)>::new();
    let (mut values, mut reloads) = (Vec::new(), Vec::new());
    for &step in &recorded.steps {
        let rows = recorded.rows.get(&step).copied().unwrap_or(0);
        match (job.plan.steps.get(step as usize).map(|s| &s.work), job.plan.entries(step as usize))
        {
            (Some(Work::Data(..)), [place, ..]) => {
                let found = tables.entry(*place).or_default();
                found.0.push(step);
                found.1 += rows;
            }
            (Some(Work::Reload(_)), places) if rows > 0 => reloads.push((step, places)),
            (_, [place]) if toc.entry(*place as usize).desc == b"SEQUENCE SET" => {
                values.push((step, *place));
            }
            _ => {}
        }
    }
    let mut all = Vec::new();
    let of_names = |desc: &[u8]| matches!(desc, b"TABLE" | b"TABLE DATA" | b"SEQUENCE SET");
    let named = toc.entries().filter(|entry| of_names(entry.desc));
    let cut = Cut::of(connection, named.flat_map(|entry| [entry.namespace, entry.tag]))?;
    let tables_there = match tables.is_empty() && reloads.is_empty() {
        true => HashMap::new(),
        false => unlogged_tables(connection)?,
    };
    let unlogged = Unlogged { tables: tables_there, cut };
    let is_lost = |place: u32| is_lost(job.archive, connection, &unlogged, place);
    for (place, (steps, rows)) in tables {
        if rows > 0 && is_lost(place)? {
            all.extend(steps.into_iter().map(|step| (step, place)));
        }
    }
    for (step, places) in reloads {
        // What is recorded is the sum of the rows of all.
        for &place in places {
            if is_lost(place)? {
                all.push((step, place));
            }
        }
    }
    if !values.is_empty() {
        let found = connection.query(
            b"SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n \
              ON n.oid OPERATOR(pg_catalog.=) c.relnamespace WHERE c.relkind OPERATOR(pg_catalog.=) 'S'::\"char\" \
              AND c.relpersistence OPERATOR(pg_catalog.=) 'u'::\"char\"",
        )?;
        let there: HashSet<_> =
            (0..found.len()).map(|r| (found.get(r, 0), found.get(r, 1))).collect();
        values.retain(|(_, place)| {
            let entry = toc.entry(*place as usize);
            let [schema, name] = [entry.namespace, entry.tag].map(|name| unlogged.cut.left(name));
            there.contains(&(Some(schema), Some(name)))
        });
        all.extend(values);
    }
    Ok(all)
}

/// The journal was removed, and its server has crashed right then: nothing is left that rows could come again by.
pub fn all_there(job: &Job, connection: &Connection, recorded: &Done) -> Result<()> {
    let toc = job.archive.toc();
    let mut gone = Vec::new();
    for (_, place) in lost(job, connection, recorded)? {
        let entry = toc.entry(place as usize);
        if entry.desc != b"SEQUENCE SET" || is_set_back(connection, &entry)? {
            gone.push(describe(&entry));
        }
    }
    gone.sort();
    gone.dedup();
    if gone.is_empty() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Verify,
        "the server crashed when all was restored, which emptied tables, or set back sequences, that are not logged",
    )
    .detail(format!("Lost are: {}.", gone.join(", ")))
    .hint("All else is there. Restore these: --section=data with -t, -n or -L."))
}

/// A sequence stands where it begins, and the archive has set it to something else.
fn is_set_back(connection: &Connection, entry: &Entry) -> Result<bool> {
    let name = [&quote_ident(entry.namespace)[..], b".", &quote_ident(entry.tag)].concat();
    let sql = [
        b"SELECT last_value, is_called, last_value OPERATOR(pg_catalog.=) seqstart FROM ",
        &name[..],
        b" JOIN pg_catalog.pg_sequence ON seqrelid OPERATOR(pg_catalog.=) ",
        &quote_literal(&name),
        b"::pg_catalog.regclass",
    ];
    let found = connection.ask(&sql.concat())?;
    if found.is_empty() || found.flag(0, 1) || !found.flag(0, 2) {
        return Ok(false);
    }
    let start = format!("', {}, false);", found.text(0, 0));
    Ok(!entry.defn.trim_ascii().ends_with(start.as_bytes()))
}

/// Schema and name.
type Name = (Vec<u8>, Vec<u8>);

/// What is not logged.
struct Unlogged {
    tables: HashMap<Name, bool>,
    cut: Cut,
}

impl Unlogged {
    fn get(&self, schema: &[u8], table: &[u8]) -> Option<&bool> {
        self.tables.get(&(self.cut.left(schema).to_vec(), self.cut.left(table).to_vec()))
    }
}

/// What is not logged, whatever the archive says of it: tables, and (`true`) partitioned tables with such partitions.
fn unlogged_tables(connection: &Connection) -> Result<HashMap<Name, bool>> {
    let found = connection.query(
        b"WITH u AS (SELECT oid, relispartition FROM pg_catalog.pg_class WHERE relkind OPERATOR(pg_catalog.=) 'r'::\"char\" \
          AND relpersistence OPERATOR(pg_catalog.=) 'u'::\"char\") \
          SELECT n.nspname, c.relname, c.relkind OPERATOR(pg_catalog.=) 'p'::\"char\" FROM pg_catalog.pg_class c \
          JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace \
          JOIN (SELECT oid FROM u UNION SELECT a.relid FROM u, pg_catalog.pg_partition_ancestors(u.oid) a \
          WHERE u.relispartition) f ON f.oid OPERATOR(pg_catalog.=) c.oid",
    )?;
    let text = |row, column| found.get(row, column).unwrap_or_default().to_vec();
    Ok((0..found.len()).map(|row| ((text(row, 0), text(row, 1)), found.flag(row, 2))).collect())
}

/// The rows of an entry, some of which are recorded, are gone.
fn is_lost(
    archive: &Archive,
    connection: &Connection,
    unlogged: &Unlogged,
    place: u32,
) -> Result<bool> {
    let entry = archive.toc().entry(place as usize);
    let own = unlogged.get(entry.namespace, entry.tag) == Some(&false);
    let parts = unlogged.tables.values().any(|partitioned| *partitioned);
    // Only what INSERTs say of a table has to be read for it.
    let into = match entry.copy_stmt {
        b"" if own || parts => filled(archive, place)?,
        b"" => None,
        _ => Some(reload::target(archive.toc(), place)),
    };
    let Some(into) = into else { return Ok(false) };
    let table = last_part(&into);
    let schema = into[..into.len() - table.len()].strip_suffix(b".").unwrap_or_default();
    let Some(partitioned) = unlogged.get(&unquoted(schema), &unquoted(table)) else {
        return Ok(false);
    };
    let (all_empty, elsewhere) = match partitioned {
        true => leaves(connection, &into, false)?,
        false => (is_empty(connection, &[b"ONLY ", &into[..]].concat())?, false),
    };
    if all_empty && !elsewhere {
        return Ok(filled(archive, place)?.is_some());
    }
    let of_entry =
        [b"ONLY ", &quote_ident(entry.namespace)[..], b".", &quote_ident(entry.tag)].concat();
    let may_be = || {
        let of_own = own && is_empty(connection, &of_entry)?;
        Ok::<_, Error>(all_empty || of_own && leaves(connection, &into, true)?.0)
    };
    if *partitioned && may_be()? && filled(archive, place)?.is_some() {
        let (what, into) = (describe(&entry), String::from_utf8_lossy(&into).into_owned());
        return Err(Error::usage(format!("rows of {what} may have been lost in a crash"))
            .detail(format!("They came through {into}, of whose partitions those that are not logged are empty, and others are not, or are foreign tables."))
            .hint("Which rows went into which partitions is not known. Empty the table, drop the schema firn_restore and begin anew."));
    }
    Ok(false)
}

/// Whether all partitions, or those that are not logged, are empty, as a crash leaves these; and whether there are foreign tables among
/// them, which nobody looks at here.
fn leaves(connection: &Connection, table: &[u8], not_logged: bool) -> Result<(bool, bool)> {
    let sql = [
        b"SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(c.relname), \
          c.relkind OPERATOR(pg_catalog.=) 'f'::\"char\", c.relpersistence OPERATOR(pg_catalog.=) 'u'::\"char\" FROM pg_catalog.pg_class c \
          JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace \
          JOIN pg_catalog.pg_partition_tree(pg_catalog.to_regclass(",
        &quote_literal(table)[..],
        b")) t ON t.relid OPERATOR(pg_catalog.=) c.oid WHERE c.relkind OPERATOR(pg_catalog.=) 'r'::\"char\" \
          OR c.relkind OPERATOR(pg_catalog.=) 'f'::\"char\"",
    ];
    let found = connection.query(&sql.concat())?;
    let (foreign, own): (Vec<_>, Vec<_>) = (0..found.len()).partition(|row| found.flag(*row, 1));
    let mut empty = true;
    for row in own.into_iter().filter(|row| !not_logged || found.flag(*row, 2)) {
        let leaf = [b"ONLY ", found.get(row, 0).unwrap_or_default()].concat();
        empty = empty && is_empty(connection, &leaf)?;
    }
    Ok((empty, !foreign.is_empty()))
}

/// The table that an entry's rows go into, with its schema, by the statements that it has; `None`: there are no rows.
pub fn filled(archive: &Archive, place: u32) -> Result<Option<Vec<u8>>> {
    let toc = archive.toc();
    let entry = toc.entry(place as usize);
    if !entry.has_data {
        return Ok(None);
    }
    let source = archive.data(place as usize)?;
    if !entry.copy_stmt.is_empty() {
        let some = Pieces::of(source, (0, 1))?.next(|| false)?.is_some();
        return Ok(some.then(|| reload::target(toc, place)));
    }
    let mut some = Vec::new();
    source.take(4096).read_to_end(&mut some).map_err(read_error)?;
    let some = some.trim_ascii_start();
    if some.is_empty() {
        return Ok(None);
    }
    let named = some.strip_prefix(b"INSERT INTO ").and_then(|mut text| take_name(&mut text));
    // Archives of old versions leave out an entry's own schema.
    Ok(Some(match named {
        Some(table) => qualified(entry.namespace, table),
        None => reload::target(toc, place),
    }))
}

/// What is meant by a table that rows go into: it alone, or if it is partitioned all that is below it.
pub fn clause(connection: &Connection, table: &[u8]) -> Result<Vec<u8>> {
    let sql = [
        b"SELECT relkind OPERATOR(pg_catalog.=) 'p'::\"char\" FROM pg_catalog.pg_class WHERE oid OPERATOR(pg_catalog.=) \
          pg_catalog.to_regclass(",
        &quote_literal(table)[..],
        b")",
    ];
    let found = connection.query(&sql.concat())?;
    let partitioned = !found.is_empty() && found.flag(0, 0);
    Ok([if partitioned { &b""[..] } else { b"ONLY " }, table].concat())
}

/// It has no rows; `table` as [`clause`] has it.
pub fn is_empty(connection: &Connection, table: &[u8]) -> Result<bool> {
    let look = [b"SELECT NOT EXISTS (SELECT FROM ", table, b")"].concat();
    Ok(connection.ask(&look)?.flag(0, 0))
}

/// Take back what is recorded of rows that a crash has taken. Returns the entries that come again.
pub fn forget_lost(
    job: &Job,
    connection: &Connection,
    session: Session,
    recorded: &mut Done,
) -> Result<HashSet<u32>> {
    let (steps, mut places): (HashSet<u32>, HashSet<u32>) =
        lost(job, connection, recorded)?.into_iter().unzip();
    // Of tables that were emptied and filled together others stay as they are: their step stays recorded.
    let reload = |step: &u32| matches!(job.plan.steps[*step as usize].work, Work::Reload(_));
    let list: Vec<u32> = steps.iter().copied().filter(|step| !reload(step)).collect();
    if !list.is_empty() {
        let forget = journal::forget(session, &list, &job.plan.looking(&list));
        let emptied: Vec<u32> = places.iter().copied().collect();
        let note = journal::record_emptied(session, &emptied);
        let sql = [b"BEGIN;\n", &forget[..], &note, b"COMMIT;"].concat();
        connection.run(&sql)?;
    }
    recorded.steps.retain(|step| !steps.contains(step));
    // Those of an earlier pass, too, which may have ended before they were there again.
    places.extend(journal::emptied(connection)?);
    Ok(places)
}
