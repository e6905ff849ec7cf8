//! Comparing what was restored with what it was restored from: `--verify`.
//!
//! The archive, or the manifest that a backup has, says what must be there. A source that still exists can be asked
//! itself, by `--verify-source`.

use super::{reload, unlogged, Options, Terms};
use crate::archive::{Archive, Entry};
use crate::backup::program::Program;
use crate::error::{Error, Result};
use crate::pg::{quote_ident, quote_literal, Address, Connection, Login};
use crate::plan::select::Selection;
use crate::report::words::count;
use crate::report::{Did, Event, Watch};
use crate::stop::Stop;
use crate::verify::{self, Depth, Expected, Ignore, Outcome};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// What to compare.
#[derive(Clone, Debug)]
pub struct Check {
    pub depth: Depth,
    /// A database to compare with, in place of the archive.
    pub source: Option<Source>,
    /// `None`: the `pg_dump` that fits the server.
    pub pg_dump: Option<PathBuf>,
}

/// Where the database is that an archive was made of.
#[derive(Clone, Debug)]
pub enum Source {
    /// On the target's server.
    Database(String),
    Elsewhere(Address),
}

/// Differences that are shown; more are counted.
const SHOWN: usize = 100;

/// Names in one statement.
const NAMES: usize = 5000;

/// Whether it can be done at all, which nobody wants to learn after hours.
pub fn can(check: &Check, server_version: u32) -> Result<()> {
    Program::find(check.pg_dump.as_deref(), server_version / 10_000).map(drop)
}

/// Whether somebody has made objects in this database. Its journal does not count.
pub fn has_objects(connection: &Connection) -> Result<bool> {
    let mut sql = String::from("SELECT 1 WHERE false");
    for (table, schema) in [
        ("class", "rel"),
        ("proc", "pro"),
        ("type", "typ"),
        ("operator", "opr"),
        ("collation", "coll"),
    ] {
        sql += &format!(
            " OR EXISTS (SELECT FROM pg_catalog.pg_{table} WHERE oid >= 16384 AND {schema}namespace \
             IN (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname <> 'firn_restore' AND nspname !~ '^pg_'))"
        );
    }
    sql += " OR EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE oid >= 16384 AND nspname <> 'firn_restore' \
            AND nspname !~ '^pg_') OR EXISTS (SELECT FROM pg_catalog.pg_largeobject_metadata)";
    // What is in no schema.
    for table in [
        "am",
        "cast",
        "event_trigger",
        "extension",
        "foreign_data_wrapper",
        "foreign_server",
        "language",
        "publication",
        "transform",
    ] {
        // pg_upgrade makes the language that is in each database anew.
        let named = match table {
            "extension" => " AND extname <> 'plpgsql'",
            "language" => " AND lanname <> 'plpgsql'",
            _ => "",
        };
        sql += &format!(" OR EXISTS (SELECT FROM pg_catalog.pg_{table} WHERE oid >= 16384{named})");
    }
    Ok(!connection.query(sql.as_bytes())?.is_empty())
}

/// What a restore would make or load and is there already: a relation that it makes, or rows in a table that it loads, be it the one
/// that the rows are filed under or the one that they go to: with `--load-via-partition-root` the target need not have the former.
pub fn already_there(
    connection: &Connection,
    archive: &Archive,
    terms: &Terms,
    selection: &Selection,
) -> Result<Option<String>> {
    let toc = archive.toc();
    let (mut made, mut loaded) = (Vec::new(), BTreeSet::new());
    for place in selection.places() {
        let entry = toc.entry(place as usize);
        let name = [&quote_ident(entry.namespace)[..], b".", &quote_ident(entry.tag)].concat();
        match entry.desc {
            b"TABLE" | b"VIEW" | b"MATERIALIZED VIEW" | b"FOREIGN TABLE" | b"SEQUENCE" => {
                made.push(name);
            }
            b"TABLE DATA" => {
                let mut tables = entry.dependencies.iter().filter_map(|d| toc.place(*d));
                let own = |p: usize| toc.entry(p).tag == entry.tag && terms.makes(toc, p);
                if !tables.any(own) {
                    loaded.insert(name);
                    loaded.extend(match entry.copy_stmt {
                        // INSERTs tell it only where they are stored.
                        b"" => unlogged::filled(archive, place)?,
                        _ => Some(reload::target(toc, place)),
                    });
                }
            }
            _ => {}
        }
    }
    let there = |names: &[Vec<u8>], all: bool| -> Result<Vec<Vec<u8>>> {
        let rows: Vec<Vec<u8>> =
            names.iter().map(|n| [b"(", &quote_literal(n)[..], b")"].concat()).collect();
        let sql: [&[u8]; 4] = [
            b"SELECT name FROM (VALUES ",
            &rows.join(&b", "[..]),
            b") v(name) WHERE pg_catalog.to_regclass(name) IS NOT NULL",
            if all { b"" } else { b" LIMIT 1" },
        ];
        let found = connection.query(&sql.concat())?;
        Ok((0..found.len()).filter_map(|r| found.get(r, 0).map(<[u8]>::to_vec)).collect())
    };
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    for names in made.chunks(NAMES) {
        if let Some(name) = there(names, false)?.first() {
            return Ok(Some(format!("Relation {} exists.", text(name))));
        }
    }
    let loaded: Vec<Vec<u8>> = loaded.into_iter().collect();
    for names in loaded.chunks(NAMES) {
        for name in there(names, true)? {
            let sql = [b"SELECT EXISTS (SELECT FROM ", &name[..], b")"].concat();
            if connection.query(&sql)?.flag(0, 0) {
                return Ok(Some(format!("Table {} has rows.", text(&name))));
            }
        }
    }
    Ok(None)
}

/// What does not count, as it was not asked for.
fn ignore(terms: &Terms, archive: &Archive, selection: &Selection) -> Ignore {
    let filter = &terms.filter;
    let mut ignore = Ignore {
        owner: terms.asked.style.no_owner,
        privileges: filter.no_privileges,
        tablespaces: terms.asked.style.no_tablespaces,
        table_access_methods: terms.asked.style.no_table_access_method,
        comments: filter.no_comments,
        publications: filter.no_publications,
        subscriptions: filter.no_subscriptions,
        security_labels: filter.no_security_labels,
        data: !filter.wants_data(),
        ..Ignore::default()
    };
    let left_out = |(place, entry): (usize, Entry)| {
        !selection.has(place as u32) && !entry.desc.is_empty() && !ignore.covers(&entry)
    };
    ignore.others = terms.had_objects || archive.toc().entries().enumerate().any(left_out);
    ignore
}

/// What was restored.
pub struct Restored<'a> {
    pub archive: &'a Archive,
    pub terms: &'a Terms,
    pub selection: &'a Selection,
    /// The database, if it is not the target's own.
    pub dbname: Option<&'a str>,
}

/// Compares, and tells what differs. An error if anything does.
pub fn check(
    check: &Check,
    restored: &Restored,
    options: &Options,
    watch: &dyn Watch,
    stop: &Stop,
) -> Result<()> {
    let Restored { archive, terms, selection, dbname } = *restored;
    let own = Login { row_security: false, ..options.login.clone() };
    let target = own.at(dbname);
    let source = check.source.as_ref().map(|source| match source {
        Source::Database(name) => own.at(Some(name)),
        Source::Elsewhere(address) => Login { address: address.clone(), ..own.clone() },
    });
    let manifest = match source {
        None => archive.manifest()?,
        Some(_) => None,
    };
    let selected = |place: usize| selection.has(place as u32);
    let expected = match &source {
        Some(login) => Expected::Database(login),
        None => Expected::Archive { archive, manifest: manifest.as_ref(), selected: &selected },
    };
    let terms = verify::Terms {
        jobs: options.jobs,
        depth: check.depth,
        ignore: ignore(terms, archive, selection),
        pg_dump: check.pg_dump.clone(),
    };
    let outcome = verify::compare(&target, &expected, &terms, &Compared(watch), stop)?;
    tell(&outcome, check, watch)
}

fn tell(outcome: &Outcome, check: &Check, watch: &dyn Watch) -> Result<()> {
    for note in &outcome.notes {
        watch.event(&Event::Note(note));
    }
    for difference in outcome.differences.iter().take(SHOWN) {
        watch.event(&Event::Note(&difference.to_string()));
    }
    let more = outcome.differences.len().saturating_sub(SHOWN) as u64;
    if more > 0 {
        watch.event(&Event::Note(&format!("and {} more", count(more))));
    }
    let with = if check.source.is_some() { "the source" } else { "the archive" };
    if let Some(error) = outcome.error() {
        return Err(Error { message: format!("{} to {with}", error.message), ..error });
    }
    let sums = match (check.depth, outcome.only_counted) {
        (Depth::Counts, _) => String::new(),
        (Depth::Checksums, 0) => ", of the same checksums".to_string(),
        (Depth::Checksums, all) if all == outcome.tables => {
            "; these came as INSERT statements and were counted only".to_string()
        }
        (Depth::Checksums, some) => format!(
            ", of the same checksums but for {} tables, whose rows came as INSERT statements and were counted only",
            count(some as u64)
        ),
    };
    let value = format!(
        "equal to {with}: {} objects, {} tables with {} rows{sums}",
        count(outcome.objects as u64),
        count(outcome.tables as u64),
        count(outcome.rows)
    );
    watch.event(&Event::Fact { name: "verified", value: &value });
    Ok(())
}

/// A comparison's events. Rows that are compared are not rows that were loaded.
struct Compared<'a>(&'a dyn Watch);

impl Watch for Compared<'_> {
    fn event(&self, event: &Event) {
        match *event {
            Event::End { worker, did } => {
                self.0.event(&Event::End { worker, did: Did { rows: 0, ..did } });
            }
            Event::Moved { .. } => {}
            _ => self.0.event(event),
        }
    }
}
