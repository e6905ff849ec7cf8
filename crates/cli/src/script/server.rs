//! Statements run on one connection (`-1`, `--transaction-size`): in one transaction, or one of so many statements.
//!
//! There is no journal. What fails ends it; with one transaction nothing of it stays, also where what is there is not what was restored.

use super::{walk, Sink, Wishes};
use crate::archive::{Archive, Entry, Toc};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{Connection, For};
use crate::plan::build::describe;
use crate::plan::redirect::Redirects;
use crate::plan::select::{select, unmatched, Selection};
use crate::report::{Event, Watch};
use crate::restore::data::{copy_rows, Flow, How};
use crate::restore::journal;
use crate::restore::left_out::LeftOut;
use crate::restore::proof::in_order::{self, InOrder};
use crate::restore::proof::schemas;
use crate::restore::session;
use crate::restore::{check, facts, finish, tell, Options, Report, Terms};
use crate::stop::{Cancels, Stop};
use std::collections::{BTreeMap, BTreeSet};

/// The last COMMIT is there when it is told, and all before it: with `synchronous_commit = off` the server answers before. Only a
/// transaction that has written something waits, and the last of several may be empty. Whoever may call one of these functions writes.
const DURABLE: &str = "SET LOCAL synchronous_commit = on;\n";
const WRITES: [&str; 2] = [
    "SELECT pg_catalog.lo_unlink(pg_catalog.lo_create(0));\n",
    "SELECT pg_catalog.pg_logical_emit_message(true, 'firn'::pg_catalog.text, ''::pg_catalog.text);\n",
];

/// What a statement could not do.
struct Failed {
    what: String,
    statement: String,
}

struct Server<'a> {
    connection: Connection,
    watch: &'a dyn Watch,
    stop: &'a Stop,
    /// Statements are cancelled when it is stopped.
    cancels: Cancels,
    /// The entry at work.
    what: String,
    failed: Option<Failed>,
    /// A COMMIT is under way.
    committing: bool,
    /// The answer to one was lost.
    unknown: bool,
    redirects: &'a Redirects,
    terms: &'a Terms,
    options: &'a Options,
    archive: &'a Archive,
    left_out: LeftOut,
    /// Rows that were copied, by the place of their entry.
    rows: BTreeMap<u32, u64>,
    /// Bytes of large objects, likewise.
    bytes: BTreeMap<u32, u64>,
    /// What is restored.
    chosen: (&'a Toc, &'a Selection),
    /// COMMIT is the end of it all.
    single: bool,
    /// What needed something of schemas whose objects are redirected, before. Nothing in a database that is made.
    crossing: BTreeSet<String>,
    /// The database that was made.
    made: Option<String>,
}

impl Server<'_> {
    /// A failure of the server's is one of the entry; all else is not.
    fn note(&mut self, statement: String, error: Error) -> Error {
        // That is so whatever the user has asked for meanwhile.
        self.unknown = self.committing && !self.connection.is_alive();
        if self.stop.is_set() {
            return Error::new(ErrorKind::Cancelled, "canceled by user");
        }
        if error.kind == ErrorKind::Statement {
            self.failed = Some(Failed { what: self.what.clone(), statement });
        }
        error
    }

    /// What was restored needs nothing of the schemas whose objects went elsewhere.
    fn crosses_nothing(&self) -> Result<()> {
        let (connection, redirects) = (&self.connection, self.redirects);
        let found = schemas::differences(connection, redirects, &self.crossing, self.chosen);
        let found = found.map_err(|e| match self.stop.is_set() {
            true => Error::new(ErrorKind::Cancelled, "canceled by user"),
            false => e,
        })?;
        found.iter().for_each(|what| self.watch.event(&Event::Note(what)));
        if found.is_empty() {
            return Ok(());
        }
        let message = "what was restored needs something of a schema that is redirected";
        Err(Error::new(ErrorKind::Verify, message))
    }

    /// What is there is what was restored.
    fn compare(&self) -> Result<()> {
        let restored = InOrder {
            archive: self.archive,
            options: self.options,
            terms: self.terms,
            selection: self.chosen.1,
            rows: &self.rows,
            bytes: &self.bytes,
            open: self.single,
            watch: self.watch,
            stop: self.stop,
        };
        in_order::compare(&restored, &self.connection)
    }
}

impl Sink for Server<'_> {
    fn sql(&mut self, text: &[u8]) -> Result<()> {
        if text.trim_ascii().is_empty() {
            return Ok(());
        }
        if self.stop.is_set() {
            return Err(Error::new(ErrorKind::Cancelled, "canceled by user"));
        }
        self.committing = text.starts_with(b"COMMIT");
        let result = self.connection.run(text);
        tell::notices(&self.connection, self.watch);
        let Err(failure) = result else {
            self.committing = false;
            return Ok(());
        };
        let mut error = failure.error;
        let (statement, begin) = tell::statement_at(text, failure.index, error.position);
        error.position = error.position.and_then(|p| p.checked_sub(begin));
        Err(self.note(statement, error))
    }

    fn remark(&mut self, _text: &[u8]) -> Result<()> {
        Ok(())
    }

    fn connect(&mut self, database: &[u8], _restrict_key: &str) -> Result<()> {
        let name = String::from_utf8(database.to_vec()).map_err(|_| {
            Error::usage("the name of the archive's database is not in UTF-8")
                .hint("Create the database yourself and restore into it without --create.")
        })?;
        self.connection = self.options.connect(Some(&name), For::Statements)?;
        self.cancels = self.stop.cancels(&self.connection);
        be_alone(&self.connection, self.stop)?;
        self.made = Some(name);
        Ok(())
    }

    fn rows(&mut self, archive: &Archive, place: usize) -> Result<()> {
        let moved = |bytes| self.watch.event(&Event::Moved { worker: None, rows: 0, bytes });
        let flow = Flow { stop: self.stop, moved: &moved };
        let copied = copy_rows(&self.connection, archive, place, &How::default(), &flow);
        tell::notices(&self.connection, self.watch);
        let (toc, at) = (archive.toc(), place as u32);
        let noted = copied.and_then(|copied| {
            self.left_out.note(toc, self.terms, at, &copied)?;
            Ok(copied)
        });
        match noted {
            Ok(copied) => {
                self.left_out.tell(toc, &[at], self.watch);
                self.rows.insert(at, copied.rows);
                self.watch.event(&Event::Moved { worker: None, rows: copied.rows, bytes: 0 });
                Ok(())
            }
            Err(e) => {
                let statement = archive.toc().entry(place).copy_stmt;
                let statement = String::from_utf8_lossy(statement).trim_end().to_string();
                Err(self.note(statement, e))
            }
        }
    }

    fn wrote(&mut self, place: usize, bytes: u64) {
        self.bytes.insert(place as u32, bytes);
    }

    fn last(&mut self) -> Result<()> {
        if self.single {
            self.crosses_nothing()?;
            self.compare()?;
            return self.sql(DURABLE.as_bytes());
        }
        self.what = "the end".to_string();
        self.sql(DURABLE.as_bytes())?;
        for writes in WRITES {
            let write =
                format!("SAVEPOINT firn_restore;\n{writes}RELEASE SAVEPOINT firn_restore;\n");
            match self.connection.run(write.as_bytes()) {
                // insufficient_privilege
                Err(f) if f.error.sqlstate.as_deref() == Some("42501") => {
                    self.sql(b"ROLLBACK TO SAVEPOINT firn_restore;\n")?;
                }
                Err(f) => return Err(self.note(writes.to_string(), f.error)),
                Ok(_) => return Ok(()),
            }
        }
        // It is all there, unless the server crashes in the next moment.
        self.watch.event(&Event::Note(
            "warning: this role may neither create large objects nor write messages, so the server may still have to write what was committed last to disk",
        ));
        Ok(())
    }

    fn begin(&mut self, entry: &Entry) {
        self.what = describe(entry);
    }

    fn is_script(&self) -> bool {
        false
    }

    fn lacks_transaction_timeout(&self) -> bool {
        self.connection.server_version() < 170_000
    }
}

/// Be the only restore of this database for as long as the connection lives, as those with a journal are.
fn be_alone(connection: &Connection, stop: &Stop) -> Result<()> {
    journal::fence::be_alone(connection, None, &|| stop.is_set()).map_err(|error| {
        match error.kind {
            ErrorKind::Cancelled => Error::new(ErrorKind::Cancelled, "canceled by user"),
            _ => error,
        }
    })
}

/// Restore on one connection.
pub fn run(options: &Options, wishes: &Wishes, watch: &dyn Watch, stop: &Stop) -> Result<Report> {
    restore(options, wishes, watch, stop).map_err(|e| stop.or_stopped(e))
}

fn restore(options: &Options, wishes: &Wishes, watch: &dyn Watch, stop: &Stop) -> Result<Report> {
    watch.event(&Event::Phase("reading the archive"));
    let mut archive = options.open(&stop.settings())?;
    options.tell_moment(&archive, watch)?;
    let filter = options.filter_for(archive.toc(), &mut |line| watch.event(&Event::Note(line)))?;
    let options = &Options { filter: filter.clone(), ..options.clone() };
    options.redirect(&mut archive, &mut |line| watch.event(&Event::Note(line)))?;
    if let Some(missing) = unmatched(archive.toc(), &filter).filter(|_| options.strict_names) {
        return Err(Error::usage(missing));
    }
    let connection = options.connect(None, For::Statements)?;
    let cancels = stop.cancels(&connection);
    let (database, server_version) = (&connection.database(), connection.server_version());
    watch.event(&Event::Target { database, server_version });
    if let Some(check) = &options.verify {
        check::can(check, server_version)?;
    }
    // No rule is used, so none is tried.
    let mut terms = options.terms(facts::of_server(&connection, options.jobs)?);
    stop.check()?;
    terms.filter = filter.clone();
    if !options.create {
        be_alone(&connection, stop)?;
        if journal::is_there(&connection)? {
            return Err(journal::unfinished());
        }
        terms.had_objects = check::has_objects(&connection)?;
    }
    let crossing = match options.create {
        true => BTreeSet::new(),
        false => {
            connection.run(&session::of_archive(archive.toc())?)?;
            schemas::crossing(&connection, &options.redirects)?
        }
    };
    let selection = select(archive.toc(), &terms.filter);
    watch.event(&Event::Phase("restoring"));
    let wishes = Wishes { filter, ..wishes.clone() };
    let mut server = Server {
        connection,
        watch,
        stop,
        cancels,
        what: "the session".to_string(),
        failed: None,
        committing: false,
        unknown: false,
        redirects: &options.redirects,
        terms: &terms,
        options,
        archive: &archive,
        left_out: LeftOut::default(),
        rows: BTreeMap::new(),
        bytes: BTreeMap::new(),
        chosen: (archive.toc(), &selection),
        single: wishes.single_transaction,
        crossing,
        made: None,
    };
    if let Err(error) = walk::walk(&archive, &wishes, &mut server) {
        if server.unknown {
            return Err(error.hint(
                "Whether the server has committed the transaction is not known. Look whether its objects are there.",
            ));
        }
        if wishes.single_transaction {
            watch.event(&Event::Unchanged);
        } else {
            watch.event(&Event::Note("what was committed before the error stays"));
        }
        let Some(Failed { what, statement }) = server.failed else {
            return Err(match wishes.single_transaction && error.hint.is_none() {
                true => error.hint("Nothing was changed."),
                false => error,
            });
        };
        watch.event(&Event::Failed { what: &what, statement: &statement, error: &error });
        return Ok(Report::default());
    }
    // Of several transactions none can take back what the others have done.
    if !wishes.single_transaction {
        server.crosses_nothing()?;
        server.compare()?;
    }
    server.left_out.sum_up(watch);
    let Server { connection, cancels, made, .. } = server;
    drop(cancels);
    let (archive, terms, selection) = (&archive, &terms, &selection);
    let restored = check::Restored { archive, terms, selection, dbname: made.as_deref() };
    if options.analyze && terms.filter.wants_data() {
        watch.event(&Event::Phase("analyzing"));
        let hint = "All is restored; run ANALYZE yourself.";
        let witness = finish::Witness::Last(connection);
        finish::analyze(&restored, options, witness, watch, stop, hint)?;
    } else {
        drop(connection);
    }
    if let Some(check) = &options.verify {
        check::check(check, &restored, options, watch, stop)?;
    }
    watch.event(&Event::Finished);
    Ok(Report::default())
}
