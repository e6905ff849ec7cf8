//! The target database: creating it, and dropping what is in the way.

use super::journal::{self, fence};
use super::session;
use super::{tell, Options, Terms};
use crate::archive::{Archive, Entry, Toc};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{quote_ident, quote_literal, Connection, For};
use crate::plan::build::describe;
use crate::plan::drops::with_if_exists;
use crate::plan::render::{large_objects, search_path};
use crate::plan::select::Selection;
use crate::plan::text::{take_name, unquoted};
use crate::report::{Event, Watch};
use crate::stop::Stop;
use std::time::Duration;

/// Between looks whether a database is still being made. A look at all locks stops all who take one for a moment.
const PAUSE: Duration = Duration::from_millis(500);

/// A database that was made, or that was there.
pub struct Made {
    /// For [`Options::connect`].
    pub name: String,
    /// It was made without its owner, who could not be had: what failed.
    pub ownerless: Option<String>,
}

fn entry_of(archive: &Archive) -> Result<Entry<'_>> {
    archive
        .toc()
        .entries()
        .find(|e| e.desc == b"DATABASE")
        .ok_or_else(|| Error::archive("the archive does not say how to create its database"))
}

/// Create the archive's database, as `pg_restore --create` does. With `--resume` it may exist, and nothing is changed then: what is in it
/// may have nothing to do with this restore.
pub fn create(
    archive: &Archive,
    options: &Options,
    watch: &dyn Watch,
    stop: &Stop,
) -> Result<Made> {
    let entry = entry_of(archive)?;
    let name = String::from_utf8(entry.tag.to_vec()).map_err(|_| {
        Error::usage("the name of the archive's database is not in UTF-8")
            .hint("Create the database yourself and restore into it without --create.")
    })?;
    let connection = options.connect(None, For::OwnQueries)?;
    let _cancels = stop.cancels(&connection);
    // As on the connections that come, but for what the archive sets within its database.
    connection.run(&session::no_limits(&connection))?;
    // Whatever the environment says: the name is in the archive's encoding.
    connection.run(&session::of_archive(archive.toc())?)?;
    connection.run(b"SET synchronous_commit = on")?;
    if !fence::name_database(&connection, entry.tag)? {
        watch.event(&Event::Note(
            "another restore creates or removes a database of this name; waiting for it",
        ));
        while !fence::name_database(&connection, entry.tag)? {
            fence::end_idle_namers(&connection, entry.tag);
            if stop.is_set() {
                return Err(fence::cancelled());
            }
            // Two who find each other's lock give theirs up, and do not come again at the same time.
            std::thread::sleep(PAUSE + Duration::from_millis(u64::from(std::process::id() % 37)));
        }
    }
    if let Some(role) = &options.login.role {
        connection.run(&[b"SET ROLE ", &quote_ident(role.as_bytes())[..]].concat())?;
    }
    let mut literal =
        b"SELECT EXISTS (SELECT 1 FROM pg_catalog.pg_database WHERE datname = ".to_vec();
    literal.extend(quote_literal(entry.tag));
    literal.push(b')');
    let exists = connection.query(&literal)?.flag(0, 0);
    if exists && options.resume {
        return Ok(Made { name, ownerless: None });
    }
    if exists && options.asked.clean {
        drop_database(&connection, archive, options)?;
    }
    // CREATE DATABASE is no statement for a transaction; what follows it in the entry is run with it.
    // Its owner is named in the same statement: a database of the wrong owner is not left behind, to be resumed.
    let mut rest = entry.defn;
    let mut owner = Vec::new();
    if !options.asked.style.no_owner && !entry.owner.is_empty() {
        owner = [b" OWNER = ", &quote_ident(entry.owner)[..]].concat();
    }
    let mut ownerless = None;
    while let Some((statement, after)) = crate::plan::text::split_statement(rest) {
        let owner = std::mem::take(&mut owner);
        let mut made = connection.run(&[statement, &owner].concat());
        if let Err(failure) = &made {
            // By itself that is an error of ALTER DATABASE.
            if options.go_on_after_errors && !owner.is_empty() && is_of_owner(&failure.error) {
                let message = format!("{}: {}", describe(&entry), failure.error.message);
                made = connection.run(statement);
                ownerless = Some(message);
            }
        }
        made?;
        tell::notices(&connection, watch);
        stop.check()?;
        rest = after;
    }
    Ok(Made { name, ownerless })
}

/// Its properties first: a template is none then, and can be dropped. Only a superuser may change that; a database that is no template
/// can be dropped all the same, and another says that it is one.
fn drop_database(connection: &Connection, archive: &Archive, options: &Options) -> Result<()> {
    let toc = archive.toc();
    for place in (0..toc.len()).rev() {
        let entry = toc.entry(place);
        if !is_of_database(&entry) || entry.drop_stmt.trim_ascii().is_empty() {
            continue;
        }
        let dropped = connection.run(&match options.asked.if_exists {
            true => if_exists(&entry),
            false => entry.drop_stmt.to_vec(),
        });
        match dropped {
            Err(failure)
                if entry.desc == b"DATABASE PROPERTIES"
                    && failure.error.sqlstate.as_deref() == Some("42501") => {}
            dropped => drop(dropped?),
        }
    }
    Ok(())
}

fn is_of_database(entry: &Entry) -> bool {
    matches!(entry.desc, b"DATABASE" | b"DATABASE PROPERTIES")
}

/// There is no such role, or one may not give it databases.
fn is_of_owner(error: &Error) -> bool {
    matches!(error.sqlstate.as_deref(), Some("42704" | "42501"))
}

/// What the archive sets for sessions in the database is in force while it is restored, as `pg_restore` has it, which connects
/// anew for that: a text search configuration or a currency decides what is stored. These are the statements of a step, which
/// tells of errors; here they come before the connections that work. Not those by which nobody could work there.
pub fn settings(connection: &Connection, archive: &Archive, selection: &Selection) -> Result<()> {
    let entries = selection.places().map(|place| archive.toc().entry(place as usize));
    for entry in entries.filter(|e| e.desc == b"DATABASE PROPERTIES") {
        let mut rest = entry.defn;
        while let Some((statement, after)) = crate::plan::text::split_statement(rest) {
            rest = after;
            if !is_setting(statement) {
                continue;
            }
            match connection.run(statement) {
                Err(failure) if failure.error.kind == ErrorKind::Connection => {
                    return Err(failure.error)
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// What `ALTER DATABASE name SET parameter …` sets, also for a role in it, in lower case.
fn parameter(statement: &[u8]) -> Option<Vec<u8>> {
    let statement = statement.trim_ascii_start();
    let mut rest = match statement.strip_prefix(b"ALTER ROLE ") {
        Some(mut rest) => {
            take_name(&mut rest)?;
            rest.strip_prefix(b" IN DATABASE ")?
        }
        None => statement.strip_prefix(b"ALTER DATABASE ")?,
    };
    take_name(&mut rest)?;
    let mut rest = rest.strip_prefix(b" SET ")?;
    take_name(&mut rest).map(|name| unquoted(name).to_ascii_lowercase())
}

/// The archive makes its database one whose transactions are read-only by default: of who connects after that.
pub(super) fn is_read_only(toc: &Toc) -> bool {
    let properties = toc.entries().filter(|e| e.desc == b"DATABASE PROPERTIES");
    properties.into_iter().any(|entry| {
        let mut rest = entry.defn;
        while let Some((statement, after)) = crate::plan::text::split_statement(rest) {
            rest = after;
            if parameter(statement).is_some_and(|name| name == b"default_transaction_read_only") {
                return true;
            }
        }
        false
    })
}

/// A setting of the database, or of a role in it, that does not keep a restore from working.
fn is_setting(statement: &[u8]) -> bool {
    let harmful = |name: &[u8]| {
        matches!(name, b"default_transaction_read_only" | b"role" | b"session_authorization")
            || name.ends_with(b"_preload_libraries")
    };
    parameter(statement).is_some_and(|name| !harmful(&name))
}

/// Whose the database of a connection is.
fn owner(connection: &Connection) -> Result<Vec<u8>> {
    let found = connection.query(
        b"SELECT pg_catalog.pg_get_userbyid(datdba) FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()",
    )?;
    Ok(found.get(0, 0).unwrap_or_default().to_vec())
}

/// The role that a database belongs to, as it was made for it without its owner.
pub fn maker(connection: &Connection) -> Result<Option<u32>> {
    let found = connection.query(
        b"SELECT datdba FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()",
    )?;
    Ok(found.number(0, 0))
}

/// An unfinished restore has noted that it made the database without its owner: give it to him, once, as somebody may give it to others
/// later; not if that has been done already. Answers what failed and was passed over.
pub fn give(
    connection: &Connection,
    archive: &Archive,
    options: &Options,
    terms: &Terms,
    watch: &dyn Watch,
) -> Result<Option<String>> {
    let entry = entry_of(archive)?;
    let given = Terms { made_for: None, ..terms.clone() };
    if maker(connection)? != terms.made_for {
        journal::change_terms(connection, b"", &given)?;
        tell_owner(connection, archive, options, watch)?;
        return Ok(None);
    }
    let (database, owner) = (quote_ident(entry.tag), quote_ident(entry.owner));
    let alter = [b"ALTER DATABASE ", &database[..], b" OWNER TO ", &owner, b";"];
    match journal::change_terms(connection, &alter.concat(), &given) {
        Ok(()) => {
            let owner = String::from_utf8_lossy(entry.owner);
            watch.event(&Event::Note(&format!("the database belongs to \"{owner}\" now")));
            Ok(None)
        }
        Err(error) if options.go_on_after_errors && is_of_owner(&error) => {
            Ok(Some(format!("{}: {}", describe(&entry), error.message)))
        }
        Err(error) if is_of_owner(&error) => Err(error.hint(
            "Give the database to a role that is there, by ALTER DATABASE, or use --on-error=continue.",
        )),
        Err(error) => Err(error),
    }
}

/// A database that was there, without a journal: nobody knows whether it is one that a run had made, so its owner is told, not changed.
pub fn tell_owner(
    connection: &Connection,
    archive: &Archive,
    options: &Options,
    watch: &dyn Watch,
) -> Result<()> {
    let wanted = entry_of(archive)?.owner;
    let owner = owner(connection)?;
    if !options.asked.style.no_owner && !wanted.is_empty() && owner != wanted {
        let [owner, wanted] = [&owner, wanted].map(String::from_utf8_lossy);
        let note = format!("the database belongs to \"{owner}\", in the archive to \"{wanted}\"; that is left as it is");
        watch.event(&Event::Note(&note));
    }
    Ok(())
}

/// Drop all that will be restored, in reverse order. As in `pg_restore`, what cannot be dropped (for it is not there) is
/// told and left, unless errors are to end it.
pub fn clean(
    connection: &Connection,
    archive: &Archive,
    selection: &Selection,
    options: &Options,
    watch: &dyn Watch,
    stop: &Stop,
) -> Result<Vec<String>> {
    // Event triggers may read views.
    connection.refusing("", || drop_all(connection, archive, selection, options, watch, stop))
}

fn drop_all(
    connection: &Connection,
    archive: &Archive,
    selection: &Selection,
    options: &Options,
    watch: &dyn Watch,
    stop: &Stop,
) -> Result<Vec<String>> {
    let stopped = |e: Error| {
        e.hint("What was dropped by then stays dropped. Without --resume, as there is no journal yet, the same command does the rest.")
    };
    let mut ignored = Vec::new();
    let mut places: Vec<u32> = selection.places().collect();
    places.reverse();
    let selects_schemas = archive.toc().selects_schemas();
    for place in places {
        let entry = archive.toc().entry(place as usize);
        let mut drop = entry.drop_stmt.trim_ascii().to_vec();
        if drop.is_empty() || is_of_database(&entry) {
            continue;
        }
        stop.check().map_err(stopped)?;
        if options.asked.if_exists {
            drop = if_exists(&entry);
        }
        // Old archives mean names in the entry's schema. Statements of one message are one transaction.
        if selects_schemas && !entry.namespace.is_empty() {
            drop = [search_path(entry.namespace), drop].concat();
        }
        // From version 17 on a list of large objects, each of which goes by itself, with a comment for a statement.
        let drops = match entry.desc {
            b"BLOB METADATA" => unlinks(entry.defn, options.asked.if_exists),
            _ => vec![drop],
        };
        for drop in drops {
            let dropped = connection.run(&drop);
            tell::notices(connection, watch);
            let Err(failure) = dropped else { continue };
            let error = failure.error;
            stop.check().map_err(stopped)?;
            if error.kind == ErrorKind::Connection {
                return Err(error);
            }
            let what = format!("{}: {}", describe(&entry), error.message);
            if options.stop_at_drops {
                let message = format!("could not drop {what}");
                return Err(Error { message, position: None, ..error });
            }
            ignored.push(what);
        }
    }
    Ok(ignored)
}

/// The statements that remove a list of large objects.
fn unlinks(list: &[u8], if_exists: bool) -> Vec<Vec<u8>> {
    large_objects(list).map(|oid| unlink(oid, if_exists)).collect()
}

fn unlink(oid: &[u8], if_exists: bool) -> Vec<u8> {
    let (before, after): (&[u8], &[u8]) = match if_exists {
        true => (
            b"SELECT pg_catalog.lo_unlink(oid) FROM pg_catalog.pg_largeobject_metadata WHERE oid = '",
            b"'",
        ),
        false => (b"SELECT pg_catalog.lo_unlink('", b"')"),
    };
    [before, oid, after].concat()
}

/// An entry's DROP statement with IF EXISTS in it, where there is a place for it.
fn if_exists(entry: &Entry) -> Vec<u8> {
    let drop = entry.drop_stmt.trim_ascii();
    if let Some(oid) = drop.strip_prefix(b"SELECT pg_catalog.lo_unlink('") {
        let digits = oid.iter().take_while(|b| b.is_ascii_digit()).count();
        return unlink(&oid[..digits], true);
    }
    // As archives from before version 9.1 have it.
    if let (b"PROCEDURAL LANGUAGE", Some(name)) = (entry.desc, drop.strip_prefix(b"DROP LANGUAGE "))
    {
        return [b"DROP LANGUAGE IF EXISTS ", name].concat();
    }
    with_if_exists(entry).map_or_else(|| drop.to_vec(), |text| text.trim_ascii().to_vec())
}
