//! Objects of the archive, looked up in the catalogs.

use super::in_order::{self, Asked};
use super::objects;
use super::questions::{Questions, CHUNK};
use crate::archive::Entry;
use crate::error::Result;
use crate::pg::{quote_ident, Connection, Rows};
use crate::plan::build::describe;
use crate::plan::text::{self, last_part, unquoted};
use crate::report::Event;
use crate::restore::cut::Cut;
use crate::restore::remade;
use crate::restore::together::together;
use crate::restore::Job;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};

/// Name of an object in a schema.
fn name(schema: &[u8], object: &[u8]) -> Vec<u8> {
    match schema {
        b"" => quote_ident(object),
        schema => [&quote_ident(schema)[..], b".", &quote_ident(object)].concat(),
    }
}

/// A part of a table that an entry is tagged with: "table part". With names that have spaces that may be read in several ways, as a
/// foreign key depends on two tables: then it is not looked for.
fn part<'a>(job: &Job, entry: &Entry<'a>) -> Option<(Vec<u8>, &'a [u8])> {
    let toc = job.archive.toc();
    let tables = entry.dependencies.iter().filter_map(|d| toc.place(*d)).map(|p| toc.entry(p));
    let own = tables.filter(|t| {
        matches!(t.desc, b"TABLE" | b"FOREIGN TABLE" | b"VIEW" | b"MATERIALIZED VIEW")
            && t.namespace == entry.namespace
    });
    let mut found = own.filter_map(|table| {
        let rest = entry.tag.strip_prefix(table.tag)?.strip_prefix(b" ")?;
        Some((name(table.namespace, table.tag), rest))
    });
    let first = found.next()?;
    found.all(|other| other == first).then_some(first)
}

const RELATIONS: &str = "SELECT n, CASE WHEN c.oid IS NULL THEN 'it is missing' \
     WHEN pg_catalog.strpos(kinds, c.relkind::text) = 0 THEN 'it is of another kind' \
     WHEN owner <> '' AND owner <> pg_catalog.pg_get_userbyid(c.relowner) THEN \
         'its owner is \"' || pg_catalog.pg_get_userbyid(c.relowner) || '\" instead of \"' || owner || '\"' \
     WHEN space <> '-' AND space <> COALESCE(s.spcname, '') AND NOT (s.oid IS NULL AND space = base) THEN \
         'its tablespace is \"' || COALESCE(s.spcname, '') || '\" instead of \"' || space || '\"' \
     WHEN method <> '-' AND (c.relkind IN ('r', 'm') OR c.relkind = 'p' AND \
         pg_catalog.current_setting('server_version_num')::int >= 170000) AND method <> COALESCE(m.amname, '') THEN \
         'its access method is \"' || COALESCE(m.amname, '') || '\" instead of \"' || method || '\"' \
     WHEN NOT COALESCE(i.indisvalid, true) AND (c.relkind = 'i' OR (SELECT pg_catalog.count(*) FROM pg_catalog.pg_inherits \
         WHERE inhparent = i.indrelid) = (SELECT pg_catalog.count(*) FROM pg_catalog.pg_inherits h \
         JOIN pg_catalog.pg_index p ON p.indexrelid = h.inhrelid WHERE h.inhparent = c.oid AND p.indisvalid)) \
         THEN 'it is invalid' END AS wrong \
     FROM asked LEFT JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(name) \
     LEFT JOIN pg_catalog.pg_tablespace s ON s.oid = c.reltablespace \
     LEFT JOIN pg_catalog.pg_index i ON i.indexrelid = c.oid \
     LEFT JOIN pg_catalog.pg_am m ON m.oid = c.relam \
     CROSS JOIN (SELECT spcname::text AS base FROM pg_catalog.pg_tablespace t JOIN pg_catalog.pg_database d \
     ON t.oid = d.dattablespace WHERE d.datname = pg_catalog.current_database()) b";

/// All kinds of questions about the selected entries.
fn questions(job: &Job) -> Vec<Questions> {
    let toc = job.archive.toc();
    let mut relations =
        Questions::new("n, name, kinds, owner::name, space::name, method::name", RELATIONS);
    let mut attached = Questions::new(
        "n, parent, child",
        // By the child alone: with both to choose from the planner, which knows nothing of the new rows, may take the index by
        // parents, and read all of a parent's partitions for each of them.
        "SELECT n, 'it is not attached to ' || parent AS wrong FROM asked WHERE (SELECT \
         pg_catalog.bool_or(inhparent = pg_catalog.to_regclass(parent)) IS NOT TRUE \
         FROM pg_catalog.pg_inherits WHERE inhrelid = pg_catalog.to_regclass(child))",
    );
    let mut constraints = Questions::new(
        "n, name, part::name, valid, foreign_key",
        // An archive has no foreign key of a partition that comes of its parent's. (Versions until 10 have no such column.)
        "SELECT n, CASE WHEN c.oid IS NULL THEN 'it is missing' WHEN valid = 't' AND NOT c.convalidated \
         THEN 'it is not validated' WHEN foreign_key = 't' AND pg_catalog.to_jsonb(c) ->> 'conparentid' <> '0' \
         THEN 'a foreign key of the table above has taken it up' END AS wrong FROM asked LEFT JOIN pg_catalog.pg_constraint c \
         ON c.conrelid = pg_catalog.to_regclass(name) AND c.contypid = 0 AND c.conname = part",
    );
    let missing = |found: &str| {
        format!("SELECT n, 'it is missing' AS wrong FROM asked WHERE NOT EXISTS (SELECT FROM pg_catalog.{found})")
    };
    let named = |found: &str| Questions::new("n, name, part::name", missing(found));
    let mut triggers =
        named("pg_trigger WHERE tgrelid = pg_catalog.to_regclass(name) AND tgname = part");
    let mut rules =
        named("pg_rewrite WHERE ev_class = pg_catalog.to_regclass(name) AND rulename = part");
    let mut policies =
        named("pg_policy WHERE polrelid = pg_catalog.to_regclass(name) AND polname = part");
    let mut defaults = named(
        "pg_attribute WHERE attrelid = pg_catalog.to_regclass(name) AND attname = part AND atthasdef",
    );
    let one = |found: &str| Questions::new("n, name", missing(found));
    let mut objects = one("pg_largeobject_metadata WHERE oid = name::pg_catalog.oid");
    let mut identities = Questions::new(
        "n, name",
        "SELECT n, 'no identity column belongs to it' AS wrong FROM asked WHERE NOT EXISTS (SELECT FROM \
         pg_catalog.pg_depend d JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid \
         WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = pg_catalog.to_regclass(name) \
         AND d.refclassid = d.classid AND d.deptype = 'i' AND a.attidentity <> '')",
    );
    // Until 9.6 a view that a constraint of what it reads depends on is a table first, which a rule makes a view.
    let returns = |e: &Entry| e.desc == b"RULE" && e.tag.ends_with(b"_RETURN");
    let views = toc.entries().filter(returns).flat_map(|e| e.dependencies.to_vec());
    let views: HashSet<i32> = views.collect();
    let mut populated = one("pg_class WHERE oid = pg_catalog.to_regclass(name) AND relispopulated");
    for place in job.selection.places() {
        let entry = toc.entry(place as usize);
        let own = name(entry.namespace, entry.tag);
        let owner = if job.terms.asked.style.no_owner { b"" } else { entry.owner };
        let space = if job.terms.asked.style.no_tablespaces { b"-" } else { entry.tablespace };
        let no_method = job.terms.asked.style.no_table_access_method || entry.tableam.is_empty();
        let method = if no_method { b"-" } else { entry.tableam };
        let mut relation = |kinds: &[u8], owner: &[u8], space: &[u8]| {
            relations.ask(place, &[&own, kinds, owner, space, method]);
        };
        match entry.desc {
            b"TABLE" if views.contains(&entry.dump_id) => relation(b"rpv", owner, space),
            b"TABLE" => relation(b"rp", owner, space),
            b"VIEW" => relation(b"v", owner, b"-"),
            b"MATERIALIZED VIEW" => relation(b"m", owner, space),
            b"FOREIGN TABLE" => relation(b"f", owner, b"-"),
            b"SEQUENCE" => {
                relation(b"S", owner, b"-");
                if text::identity(entry.defn).is_some() {
                    identities.ask(place, &[&own]);
                }
            }
            b"INDEX" => relation(b"iI", b"", space),
            b"TABLE ATTACH" => {
                if let Some(found) = text::attach(entry.defn) {
                    let [parent, child] = [found.parent, found.child]
                        .map(|name| text::qualified(entry.namespace, name));
                    attached.ask(place, &[&parent, &child]);
                }
            }
            b"INDEX ATTACH" => {
                if let Some((parent, child)) = text::index_attach(entry.defn) {
                    let [parent, child] =
                        [parent, child].map(|name| text::qualified(entry.namespace, name));
                    attached.ask(place, &[&parent, &child]);
                }
            }
            b"CONSTRAINT" | b"FK CONSTRAINT" | b"CHECK CONSTRAINT" => {
                // Without its table in the archive, what the statement says.
                let said = || {
                    let name = text::foreign_key(entry.defn)?.name;
                    Some((remade::altered(&entry)?.0, name.into()))
                };
                let found = part(job, &entry).map(|(table, part)| (table, Cow::Borrowed(part)));
                if let Some((table, part)) = found.or_else(said) {
                    // Names and texts that have such words end with a quote.
                    let ends = |words: &[u8]| entry.defn.trim_ascii().ends_with(words);
                    let valid = !ends(b" NOT VALID;") && !ends(b" NOT ENFORCED;");
                    let flag = |is: bool| if is { &b"t"[..] } else { b"f" };
                    let foreign_key = entry.desc == b"FK CONSTRAINT";
                    constraints.ask(place, &[&table, &part, flag(valid), flag(foreign_key)]);
                }
                let index = text::index(entry.defn).filter(|i| i.constraint);
                if let (b"CONSTRAINT", Some(index)) = (entry.desc, index) {
                    let own = name(entry.namespace, &unquoted(last_part(index.name)));
                    relations.ask(place, &[&own, b"iI", b"", space, b"-"]);
                }
            }
            b"TRIGGER" => {
                part(job, &entry).into_iter().for_each(|(t, p)| triggers.ask(place, &[&t, p]))
            }
            b"RULE" => part(job, &entry).into_iter().for_each(|(t, p)| rules.ask(place, &[&t, p])),
            b"POLICY" => {
                part(job, &entry).into_iter().for_each(|(t, p)| policies.ask(place, &[&t, p]))
            }
            // A table that inherits a column may be without its default: the server keeps no NULL.
            b"DEFAULT" if entry.defn.trim_ascii().ends_with(b" SET DEFAULT NULL;") => {}
            b"DEFAULT" => {
                part(job, &entry).into_iter().for_each(|(t, p)| defaults.ask(place, &[&t, p]))
            }
            b"BLOB" => objects.ask(place, &[entry.tag]),
            b"BLOB METADATA" => {
                for oid in entry.defn.split(|b| *b == b'\n').map(<[u8]>::trim_ascii) {
                    if !oid.is_empty() && oid.iter().all(u8::is_ascii_digit) {
                        objects.ask(place, &[oid]);
                    }
                }
            }
            b"MATERIALIZED VIEW DATA" => populated.ask(place, &[&own]),
            _ => {}
        }
    }
    let mut all = vec![
        relations,
        attached,
        constraints,
        triggers,
        rules,
        policies,
        defaults,
        objects,
        identities,
        populated,
    ];
    all.extend(objects::questions(job));
    all
}

/// Identity columns that partitions have otherwise than their parents. From version 17 on they inherit it.
const INHERITED: &[u8] =
    b"SELECT n.nspname, r.relname, p.attname FROM pg_catalog.pg_attribute p \
     JOIN pg_catalog.pg_partitioned_table t ON t.partrelid = p.attrelid \
     JOIN pg_catalog.pg_inherits c ON c.inhparent = p.attrelid \
     JOIN pg_catalog.pg_class r ON r.oid = c.inhrelid JOIN pg_catalog.pg_namespace n ON n.oid = r.relnamespace \
     JOIN pg_catalog.pg_attribute a ON a.attrelid = c.inhrelid AND a.attname = p.attname \
     WHERE p.attnum > 0 AND NOT p.attisdropped AND a.attidentity <> p.attidentity";

/// Look all of them up, on all connections. Returns how many were looked for, and what is not as it should be.
pub fn compare(job: &Job, connection: &Connection) -> Result<(usize, Vec<String>)> {
    let questions = questions(job);
    let chunks = || questions.iter().flat_map(|q| q.rows.chunks(CHUNK).map(move |rows| (q, rows)));
    let asked = chunks().map(|(_, rows)| rows.len()).sum();
    let waiting: Vec<_> = chunks().collect();
    let jobs = job.options.jobs.min(waiting.len());
    let waiting = Mutex::new(waiting);
    let wrong = Mutex::new(Vec::new());
    let refused = Mutex::new(BTreeSet::new());
    let work = |_: usize, connection: &Connection| -> Result<()> {
        let _cancels = job.stop.cancels(connection);
        look_up_by_index(job, connection, true)?;
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some((questions, rows)) = next else { break };
            let found = look_up(job, connection, questions, rows);
            if job.stop.is_set() {
                return Err(super::cancelled());
            }
            let found = match found? {
                Asked::Told(found) => found,
                Asked::Refused(why) => {
                    refused.lock().unwrap_or_else(PoisonError::into_inner).insert(why);
                    continue;
                }
            };
            wrong.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
        }
        look_up_by_index(job, connection, false)
    };
    together(jobs, connection, || job.connect(), work)?;
    // As the archive has them, whoever was first.
    let mut wrong = wrong.into_inner().unwrap_or_else(PoisonError::into_inner);
    wrong.sort();
    let mut wrong: Vec<String> = wrong.into_iter().map(|(_, text)| text).collect();
    let mut refused = refused.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut inherited = Rows::default();
    if connection.server_version() >= 170_000 {
        match in_order::ask(job, connection, INHERITED)? {
            Asked::Told(rows) => inherited = rows,
            Asked::Refused(why) => drop(refused.insert(why)),
        }
    }
    for why in refused {
        let note = format!("some objects were not looked for: {why}");
        job.watch.event(&Event::Note(&note));
    }
    wrong.extend(identities(job, connection, &inherited)?);
    Ok((asked, wrong))
}

/// Tables of this restore whose identity columns are not as their parents have them.
fn identities(job: &Job, connection: &Connection, found: &Rows) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    if !found.is_empty() {
        let toc = job.archive.toc();
        let made = job.selection.places().map(|p| toc.entry(p as usize));
        let made: Vec<_> =
            made.filter(|e| e.desc == b"TABLE").map(|e| (e.namespace, e.tag)).collect();
        let names = made.iter().flat_map(|(schema, table)| [*schema, *table]);
        let cut = in_order::question(job, connection, || Cut::of(connection, names))?;
        let made: HashSet<_> =
            made.iter().map(|(schema, table)| (cut.left(schema), cut.left(table))).collect();
        for row in 0..found.len() {
            // Others' may have been so before.
            let (Some(schema), Some(table)) = (found.get(row, 0), found.get(row, 1)) else {
                continue;
            };
            if !made.contains(&(schema, table)) {
                continue;
            }
            let table = String::from_utf8_lossy(&name(schema, table)).into_owned();
            let column = found.text(row, 2);
            wrong.push(format!(
                "TABLE {table}: its column \"{column}\" is not the identity column that its parent's is"
            ));
        }
    }
    Ok(wrong)
}

/// The catalogs have just grown, and the planner knows nothing of it: look-ups by index are right for sure.
fn look_up_by_index(job: &Job, connection: &Connection, on: bool) -> Result<()> {
    let settings = ["seqscan", "hashjoin", "mergejoin"].map(|setting| match on {
        true => format!("SET enable_{setting} = off;\n"),
        false => format!("RESET enable_{setting};\n"),
    });
    let compiled = match (connection.not_compiled(false), on) {
        (b"", _) | (_, true) => connection.not_compiled(false),
        (_, false) => b"RESET jit",
    };
    in_order::set(job, connection, &[settings.concat().as_bytes(), compiled].concat())
}

/// Some questions of a kind; the places of entries that are not as they should be, with what is wrong.
fn look_up(
    job: &Job,
    connection: &Connection,
    questions: &Questions,
    rows: &[(u32, Vec<u8>)],
) -> Result<Asked<Vec<(usize, String)>>> {
    let toc = job.archive.toc();
    let sql = [
        b"SELECT n, wrong FROM (WITH ",
        &questions.asked(rows)[..],
        b" ",
        questions.query.as_bytes(),
        b") answers WHERE wrong IS NOT NULL ORDER BY n",
    ]
    .concat();
    let found = match in_order::ask(job, connection, &sql)? {
        Asked::Told(found) => found,
        Asked::Refused(why) => return Ok(Asked::Refused(why)),
    };
    let wrong = (0..found.len()).map(|row| {
        let place: usize = found.number(row, 0).unwrap_or(0);
        (place, format!("{}: {}", describe(&toc.entry(place)), found.text(row, 1)))
    });
    Ok(Asked::Told(wrong.collect()))
}
