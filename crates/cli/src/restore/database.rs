//! The target database: creating it, and dropping what is in the way.

use super::journal::fence;
use super::session::{self, Target};
use super::{tell, Options};
use crate::archive::{Archive, Entry};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{quote_ident, quote_literal, Connection};
use crate::plan::build::describe;
use crate::plan::render::search_path;
use crate::plan::select::Selection;
use crate::report::{Event, Watch};
use std::time::Duration;

/// Between looks whether a database is still being made.
const PAUSE: Duration = Duration::from_millis(50);

/// Create the archive's database, as `pg_restore --create` does; returns its name, and what of it failed and was passed over. With
/// `--resume` it may exist.
pub fn create(
    archive: &Archive,
    options: &Options,
    watch: &dyn Watch,
    stopped: &dyn Fn() -> bool,
) -> Result<(String, Option<String>)> {
    let toc = archive.toc();
    let entry = toc
        .entries()
        .find(|e| e.desc == b"DATABASE")
        .ok_or_else(|| Error::archive("the archive does not say how to create its database"))?;
    let name = String::from_utf8(entry.tag.to_vec()).map_err(|_| {
        Error::usage("the name of the archive's database is not in UTF-8")
            .hint("Create the database yourself and restore into it without --create.")
    })?;
    let connection = options.target.connect(None)?;
    // As on the connections that come, but for what the archive sets within its database.
    connection.run(&session::no_limits(&connection))?;
    if !fence::name_database(&connection, entry.tag)? {
        watch.event(&Event::Note(
            "another restore creates or removes a database of this name; waiting for it",
        ));
        while !fence::name_database(&connection, entry.tag)? {
            fence::end_idle_namers(&connection, entry.tag);
            if stopped() {
                return Err(fence::cancelled());
            }
            std::thread::sleep(PAUSE);
        }
    }
    if let Some(role) = &options.target.role {
        connection.run(&[b"SET ROLE ", &quote_ident(role.as_bytes())[..]].concat())?;
    }
    let mut literal =
        b"SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_database WHERE datname = ".to_vec();
    literal.extend(quote_literal(entry.tag));
    literal.push(b')');
    let exists = connection.query(&literal)?.flag(0, 0);
    if exists && options.resume {
        let ignored = give(&connection, &entry, options)?;
        return Ok((connection_string(&name, &options.target), ignored));
    }
    if exists && options.clean {
        let mut drop = entry.drop_stmt.trim_ascii().to_vec();
        if options.if_exists {
            drop = if_exists(&drop, entry.desc).unwrap_or(drop);
        }
        connection.run(&drop)?;
    }
    // CREATE DATABASE is no statement for a transaction; what follows it in the entry is run with it.
    // Its owner is named in the same statement: a database of the wrong owner is not left behind, to be resumed.
    let mut rest = entry.defn;
    let mut owner = Vec::new();
    if !options.no_owner && !entry.owner.is_empty() {
        owner = [b" OWNER = ", &quote_ident(entry.owner)[..]].concat();
    }
    let mut ignored = None;
    while let Some((statement, after)) = crate::plan::text::split_statement(rest) {
        let owner = std::mem::take(&mut owner);
        let mut made = connection.run(&[statement, &owner].concat());
        if let Err(failure) = &made {
            // By itself that is an error of ALTER DATABASE.
            if options.go_on_after_errors && !owner.is_empty() && is_of_owner(&failure.error) {
                let message = format!("{}: {}", describe(&entry), failure.error.message);
                made = connection.run(statement);
                ignored = Some(message);
            }
        }
        made?;
        tell::notices(&connection, watch);
        rest = after;
    }
    Ok((connection_string(&name, &options.target), ignored))
}

/// There is no such role, or one may not give it databases.
fn is_of_owner(error: &Error) -> bool {
    matches!(error.sqlstate.as_deref(), Some("42704" | "42501"))
}

/// A run that made the database for want of its owner without it said so, and nobody else knows of it. Answers what failed and was
/// passed over.
fn give(connection: &Connection, entry: &Entry, options: &Options) -> Result<Option<String>> {
    if options.no_owner || entry.owner.is_empty() {
        return Ok(None);
    }
    let sql = [
        b"SELECT pg_catalog.pg_get_userbyid(datdba) FROM pg_catalog.pg_database WHERE datname = ",
        &quote_literal(entry.tag)[..],
    ];
    let found = connection.query(&sql.concat())?;
    if found.is_empty() || found.get(0, 0) == Some(entry.owner) {
        return Ok(None);
    }
    let sql =
        [b"ALTER DATABASE ", &quote_ident(entry.tag)[..], b" OWNER TO ", &quote_ident(entry.owner)];
    match connection.run(&sql.concat()) {
        Ok(_) => Ok(None),
        Err(failure) if options.go_on_after_errors && is_of_owner(&failure.error) => {
            Ok(Some(format!("{}: {}", describe(entry), failure.error.message)))
        }
        Err(failure) => Err(failure.error),
    }
}

/// A database name for [`Target::connect`] that libpq takes for nothing but a name. It looks for connection strings in the
/// first of several names only: behind the target's own a name is a name.
pub fn connection_string(name: &str, target: &Target) -> String {
    if target.dbname.is_some() {
        return name.to_string();
    }
    match name.contains('=') || name.starts_with("postgres://") || name.starts_with("postgresql://")
    {
        true => format!("dbname='{}'", name.replace('\\', "\\\\").replace('\'', "\\'")),
        false => name.to_string(),
    }
}

/// Drop all that will be restored, in reverse order. As in `pg_restore`, what cannot be dropped (for it is not there) is
/// told and left.
pub fn clean(
    connection: &Connection,
    archive: &Archive,
    selection: &Selection,
    options: &Options,
    watch: &dyn Watch,
) -> Result<Vec<String>> {
    let mut ignored = Vec::new();
    let mut places: Vec<u32> = selection.places().collect();
    places.reverse();
    let selects_schemas = !archive.toc().entries().any(|e| e.desc == b"SEARCHPATH");
    for place in places {
        let entry = archive.toc().entry(place as usize);
        let mut drop = entry.drop_stmt.trim_ascii().to_vec();
        if drop.is_empty() || matches!(entry.desc, b"DATABASE" | b"DATABASE PROPERTIES") {
            continue;
        }
        if options.if_exists {
            drop = if_exists(&drop, entry.desc).unwrap_or(drop);
        }
        // Old archives mean names in the entry's schema. Statements of one message are one transaction.
        if selects_schemas && !entry.namespace.is_empty() {
            drop = [search_path(entry.namespace), drop].concat();
        }
        let dropped = connection.run(&drop);
        tell::notices(connection, watch);
        if let Err(failure) = dropped {
            if failure.error.kind == ErrorKind::Connection {
                return Err(failure.error);
            }
            ignored.push(format!("{}: {}", describe(&entry), failure.error.message));
        }
    }
    Ok(ignored)
}

/// A DROP statement with IF EXISTS in it.
fn if_exists(drop: &[u8], desc: &[u8]) -> Option<Vec<u8>> {
    let text = drop;
    // ALTER TABLE … DROP CONSTRAINT / ALTER … DROP DEFAULT: both ends may be missing.
    if let Some(rest) = text.strip_prefix(b"ALTER TABLE ") {
        let mut out = b"ALTER TABLE IF EXISTS ".to_vec();
        let middle = rest.windows(17).position(|w| w == b" DROP CONSTRAINT ");
        match middle {
            Some(at) => {
                out.extend_from_slice(&rest[..at + 17]);
                out.extend_from_slice(b"IF EXISTS ");
                out.extend_from_slice(&rest[at + 17..]);
            }
            None => out.extend_from_slice(rest),
        }
        return Some(out);
    }
    if let Some(rest) = text.strip_prefix(b"ALTER DOMAIN ") {
        return Some([b"ALTER DOMAIN IF EXISTS ", rest].concat());
    }
    if text.starts_with(b"SELECT pg_catalog.lo_unlink(") {
        let oid = text.strip_prefix(b"SELECT pg_catalog.lo_unlink('")?;
        let oid = &oid[..oid.iter().position(|b| *b == b'\'')?];
        let mut out = b"SELECT pg_catalog.lo_unlink(oid) FROM pg_catalog.pg_largeobject_metadata WHERE oid = '".to_vec();
        out.extend_from_slice(oid);
        out.extend_from_slice(b"';");
        return Some(out);
    }
    // The kind as the statement names it may be of several words, e.g. for operator classes.
    let kind: &[u8] = match desc {
        b"DEFAULT" => return None,
        b"PROCEDURAL LANGUAGE" if text.starts_with(b"DROP LANGUAGE ") => b"LANGUAGE",
        other => other,
    };
    let rest = text.strip_prefix(b"DROP ")?.strip_prefix(kind)?;
    Some([b"DROP ", kind, b" IF EXISTS", rest].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_if_exists() {
        let cases: [(&[u8], &[u8], &[u8]); 4] = [
            (b"DROP TABLE a.t;", b"TABLE", b"DROP TABLE IF EXISTS a.t;"),
            (
                b"DROP OPERATOR CLASS a.o USING btree;",
                b"OPERATOR CLASS",
                b"DROP OPERATOR CLASS IF EXISTS a.o USING btree;",
            ),
            (
                b"ALTER TABLE ONLY a.t DROP CONSTRAINT k;",
                b"CONSTRAINT",
                b"ALTER TABLE IF EXISTS ONLY a.t DROP CONSTRAINT IF EXISTS k;",
            ),
            (b"DROP TRIGGER x ON a.t;", b"TRIGGER", b"DROP TRIGGER IF EXISTS x ON a.t;"),
        ];
        for (drop, desc, expected) in cases {
            assert_eq!(if_exists(drop, desc).as_deref(), Some(expected));
        }
    }

    #[test]
    fn odd_database_names() {
        let nowhere = Target::default();
        assert_eq!(connection_string("plain", &nowhere), "plain");
        assert_eq!(connection_string("a=b'c", &nowhere), "dbname='a=b\\'c'");
        let somewhere = Target { dbname: Some("postgres".into()), ..Target::default() };
        assert_eq!(connection_string("a=b'c", &somewhere), "a=b'c");
    }
}
