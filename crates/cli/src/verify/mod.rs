//! Comparing a database with what it should be: an archive that it was restored from, with or without the manifest
//! of a backup, or another database.
//!
//! - [`schema`]: every object is there, owned by whom it should be, made by the same statement, and no other.
//! - [`rows`]: every table has as many rows, and on request the same.
//! - [`objects`]: every large object has as many bytes, and on request the same.
//! - [`forms`]: what they do about text that differs with the settings of who wrote it.

mod forms;
pub mod objects;
pub mod rows;
pub mod schema;

use crate::row_sum::RowSum;
pub use rows::Depth;
pub use schema::Ignore;

use crate::archive::manifest::Manifest;
use crate::archive::{Archive, Compression, Toc};
use crate::backup::halt::Halt;
use crate::backup::program::{self, Program};
use crate::backup::{session, Spec};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::Login;
use crate::report::{Event, Watch};
use crate::stop::Stop;
use forms::Settings;
use std::fmt;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Kind, schema and name.
    pub object: String,
    /// A sentence about it without the final full stop.
    pub problem: String,
}

impl Difference {
    pub fn new(object: impl Into<String>, problem: impl Into<String>) -> Difference {
        Difference { object: object.into(), problem: problem.into() }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.problem)
    }
}

/// What a database should be.
pub enum Expected<'a> {
    /// What the selected entries (by place in the table of contents) of an archive make.
    Archive {
        archive: &'a Archive,
        manifest: Option<&'a Manifest>,
        selected: &'a (dyn Fn(usize) -> bool + Sync),
    },
    /// The same as another one.
    Database(&'a Login),
}

/// How to compare.
pub struct Terms {
    pub jobs: usize,
    pub depth: Depth,
    pub ignore: Ignore,
    /// `None`: the one that fits the server.
    pub pg_dump: Option<PathBuf>,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    pub differences: Vec<Difference>,
    /// What a person should know when reading them.
    pub notes: Vec<String>,
    /// Objects and tables that were compared, and rows that are as expected or not.
    pub objects: usize,
    pub tables: usize,
    pub rows: u64,
    /// Tables whose rows were only counted, though checksums were asked for: the archive has INSERT statements.
    pub only_counted: usize,
    /// Large objects whose contents were compared.
    pub large_objects: usize,
}

impl Outcome {
    /// The error that a comparison with differences ends in.
    pub fn error(&self) -> Option<Error> {
        let what = match self.differences.len() {
            0 => return None,
            1 => "1 difference".to_string(),
            n => format!("{n} differences"),
        };
        Some(Error::new(ErrorKind::Verify, format!("the database has {what}")))
    }
}

/// Compares a database with what it should be. What differs is in the answer; an error is what kept us from looking.
///
/// Nobody should write to the database meanwhile.
pub fn compare(
    target: &Login,
    expected: &Expected,
    terms: &Terms,
    watch: &dyn Watch,
    stop: &Stop,
) -> Result<Outcome> {
    let halt = Halt::new(stop);
    let result = compare_all(target, expected, terms, watch, &halt);
    match result {
        Err(_) if halt.is_set() => Err(halt.reason()),
        other => other,
    }
}

fn compare_all(
    target: &Login,
    expected: &Expected,
    terms: &Terms,
    watch: &dyn Watch,
    halt: &Arc<Halt>,
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    watch.event(&Event::Phase("comparing the schema"));
    let program = Program::find(terms.pg_dump.as_deref(), newest_server(target, expected)?)?;
    let source;
    let all = |_: usize| true;
    let (archive, manifest, selected): (_, _, &(dyn Fn(usize) -> bool + Sync)) = match expected {
        Expected::Archive { archive, manifest, selected } => (*archive, *manifest, *selected),
        Expected::Database(login) => {
            source = dump(login, &program, &[], halt)?.0;
            (&source, None, &all)
        }
    };
    // What is compared are bytes, which are those of an encoding, whatever the database's and the environment's are.
    let flag = archive_encoding(archive).map(|encoding| format!("--encoding={encoding}"));
    let mut flags: Vec<String> = flag.into_iter().collect();
    let (found, encoding) = match dump(target, &program, &flags, halt) {
        // That it has characters which are not of that encoding is a difference, not the end.
        Err(e) if e.kind == ErrorKind::Statement => {
            flags.clear();
            dump(target, &program, &flags, halt)?
        }
        found => found?,
    };
    let made_by = archive.header().dump_version.split(['.', ' ']).next().unwrap_or("").to_string();
    let mut ignore = terms.ignore;
    if made_by != program.major.to_string() {
        ignore.wording = true;
        outcome.notes.push(format!(
            "the archive was made by pg_dump {made_by}, the database needs pg_dump {}: objects are compared by kind, name and \
             owner, not by their statements, and large objects by their contents only",
            program.major
        ));
    }
    let (toc, found) = (archive.toc(), found.toc());
    let (objects, mut differences) = schema::compare(toc, selected, found, &ignore);
    let otherwise = schema::written_otherwise(toc, selected, found, &ignore);
    if !differences.is_empty() && otherwise.contains(&true) {
        // The dump that shows the fewest differences is the one that was written as what is expected.
        let mut compare = |expected: &Toc, found: &Toc| {
            let (_, others) = schema::compare(expected, selected, found, &ignore);
            if others.len() < differences.len() {
                differences = others;
            }
            differences.is_empty()
        };
        under_others(target, expected, &program, (otherwise, &flags), &mut compare, halt)?;
    }
    outcome.objects = objects;
    outcome.differences = differences;
    let connection = session::connect(target)?;
    // Names in the archive are in its encoding.
    let encoding = archive_encoding(archive).unwrap_or(encoding);
    let literal = crate::pg::quote_literal(encoding.as_bytes());
    connection.run(&[b"SET client_encoding = ", &literal[..]].concat())?;
    let tables = rows::tables(archive, selected, &connection)?;
    if !ignore.data {
        watch.event(&Event::Phase("comparing large objects"));
        let source = match expected {
            Expected::Archive { .. } => None,
            Expected::Database(login) => Some(session::connect(login)?),
        };
        let compared = match (terms.depth, &source) {
            (Depth::Checksums, None) => objects::with_archive(archive, selected, &connection, halt),
            (Depth::Checksums, Some(source)) => objects::with_database(source, &connection, halt),
            (Depth::Counts, None) => {
                objects::sizes_with_archive(archive, manifest, selected, &connection, halt)
                    .map(|differences| (0, differences))
            }
            (Depth::Counts, Some(source)) => {
                objects::sizes_with_database(source, &connection, halt)
                    .map(|differences| (0, differences))
            }
        };
        match compared {
            Ok((count, differences)) => {
                outcome.large_objects = count;
                outcome.differences.extend(differences);
            }
            // Sizes were not asked for by anybody.
            Err(e) if terms.depth == Depth::Counts && e.sqlstate.as_deref() == Some("42501") => {
                outcome.notes.push(format!("large objects were not compared: {}", e.message));
            }
            Err(e) => return Err(e),
        }
    }
    drop(connection);
    watch.event(&Event::Phase("comparing rows"));
    // Each is looked at on both sides.
    watch.event(&rows::work(2 * tables.len()));
    let work = rows::Work { depth: terms.depth, jobs: terms.jobs, watch, halt };
    // An archive's rows were most likely written under the settings that the database has.
    let settings = match expected {
        Expected::Archive { .. } => Settings::default(),
        Expected::Database(_) => Settings::same(),
    };
    let mut there = rows::of_database(target, &encoding, &settings, &tables, &work)?;
    let wanted = match expected {
        Expected::Archive { .. } => rows::of_archive(archive, manifest, &tables, &work)?,
        Expected::Database(login) => {
            let sums = rows::of_database(login, &encoding, &settings, &tables, &work)?;
            sums.into_iter().collect::<Result<Vec<_>>>()?
        }
    };
    if let Expected::Archive { .. } = expected {
        rows::under_others(archive, target, &encoding, &tables, (&wanted, &mut there), &work)?;
    }
    outcome.tables = tables.len();
    if terms.depth == Depth::Checksums {
        outcome.only_counted = tables.iter().filter(|table| table.inserts).count();
    }
    outcome.rows = there.iter().flatten().map(RowSum::rows).sum();
    outcome.differences.extend(rows::compare(&tables, &wanted, &there, terms.depth));
    Ok(outcome)
}

/// Has schemas that differ compared again, as dumps under other settings write them, until they are the same. `flags` are for all
/// dumps.
fn under_others(
    target: &Login,
    expected: &Expected,
    program: &Program,
    ([names, bytes], flags): ([bool; 2], &[String]),
    same: &mut dyn FnMut(&Toc, &Toc) -> bool,
    halt: &Arc<Halt>,
) -> Result<()> {
    let all_quoted = [flags, &["--quote-all-identifiers".to_string()]].concat();
    let mut ways: Vec<(Settings, &[String])> = Vec::new();
    match expected {
        Expected::Database(_) => ways.push((Settings::same(), flags)),
        Expected::Archive { .. } => {
            for settings in Settings::tried(bytes, names) {
                // pg_dump's flag quotes more than the setting does.
                if settings.quotes_all() {
                    ways.push((settings.clone(), &all_quoted));
                }
                ways.push((settings, flags));
            }
        }
    }
    for (settings, flags) in ways {
        let dump = |login: &Login| dump(&settings.login(login), program, flags, halt);
        let compared = dump(target).and_then(|(found, _)| match expected {
            Expected::Archive { archive, .. } => Ok(same(archive.toc(), found.toc())),
            Expected::Database(login) => Ok(same(dump(login)?.0.toc(), found.toc())),
        });
        halt.check()?;
        // What stands between us and the server need not let such settings pass: then what was found before counts.
        if compared.unwrap_or(true) {
            break;
        }
    }
    Ok(())
}

/// The newest major version among the servers: its `pg_dump` can read all of them.
fn newest_server(target: &Login, expected: &Expected) -> Result<u32> {
    let mut newest = session::connect(target)?.server_version() / 10_000;
    if let Expected::Database(login) = expected {
        newest = newest.max(session::connect(login)?.server_version() / 10_000);
    }
    Ok(newest)
}

/// The encoding that an archive's text is in.
fn archive_encoding(archive: &Archive) -> Option<String> {
    let entry = archive.toc().entries().find(|entry| entry.desc == b"ENCODING")?;
    let text = String::from_utf8_lossy(entry.defn).into_owned();
    text.split('\'').nth(1).map(str::to_string)
}

/// The table of contents that a dump of a database would have, as an archive without data, and its encoding.
/// `flags` are further ones for `pg_dump`.
fn dump(
    login: &Login,
    program: &Program,
    flags: &[String],
    halt: &Arc<Halt>,
) -> Result<(Archive, String)> {
    let folder = Temporary::new()?;
    let path = folder.0.join("toc.dat");
    let file = File::create(&path)
        .map_err(|e| Error::io(format!("could not create file \"{}\"", path.display()), &e))?;
    let ask = program::Ask {
        program,
        login,
        selection: flags,
        filter: None,
        snapshot: None,
        spec: Spec { method: Compression::None, level: None },
        application: "firn",
        give_up: &Arc::default(),
    };
    let answer = program::contents(&ask, file, halt).map_err(|refusal| refusal.error)?;
    drop(answer.running);
    Ok((Archive::open(&folder.0.to_string_lossy())?, answer.contents.encoding))
}

/// A folder that goes when dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Result<Temporary> {
        let name = format!("firn-verify-{}-{:016x}", std::process::id(), firn_lake::random_nonce());
        let path = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&path).map_err(|e| {
            Error::io(format!("could not create directory \"{}\"", path.display()), &e)
        })?;
        Ok(Temporary(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Nothing depends on it.
        let _ = fs::remove_dir_all::<&Path>(&self.0);
    }
}
