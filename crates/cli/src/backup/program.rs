//! `pg_dump`, which knows how a schema is written down.
//!
//! It is asked for an archive in custom format to a pipe. There the table of contents comes before the data, with every
//! entry that any archive of the database would have; it is read, and `pg_dump` is sent home. Why, and what else
//! was tried: docs/decisions/0008-backup.md.

use super::halt::Halt;
use super::options::Spec;
use super::session::Snapshot;
use crate::archive::rewrite::{to_directory, Rewritten};
use crate::archive::Compression;
use crate::error::{Error, ErrorKind, Result};
use crate::pg::{Address, Login};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A `pg_dump` that was found.
#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
    /// Its major version, e.g. 15.
    pub major: u32,
    /// Its version in its own words.
    pub version: String,
}

/// The newest version whose archives are known.
const NEWEST: u32 = 18;

impl Program {
    /// The `pg_dump` at a path; else the one of the server's version, or the oldest newer one, among that of the
    /// search path and those of Debian's and Red Hat's packages.
    pub fn find(given: Option<&Path>, server: u32) -> Result<Program> {
        let too_old = |found: &Program| {
            Error::usage("aborting because of server version mismatch")
                .detail(format!(
                    "The server's version is {server}, that of \"{}\" is {}.",
                    found.path.display(),
                    found.version
                ))
                .hint("Name a pg_dump of the server's version by --pg-dump.")
        };
        if let Some(path) = given {
            let found = Program::ask(path).map_err(|e| {
                Error::usage(format!("could not execute \"{}\": {e}", path.display()))
            })?;
            return if found.major < server { Err(too_old(&found)) } else { Ok(found) };
        }
        let mut found: Vec<Program> = Vec::new();
        let known = (server..=NEWEST.max(server)).flat_map(|v| {
            [format!("/usr/lib/postgresql/{v}/bin/pg_dump"), format!("/usr/pgsql-{v}/bin/pg_dump")]
        });
        for path in std::iter::once("pg_dump".to_string()).chain(known) {
            if let Ok(program) = Program::ask(Path::new(&path)) {
                if program.major == server {
                    return Ok(program);
                }
                found.push(program);
            }
        }
        let oldest = found.iter().filter(|p| p.major > server).min_by_key(|p| p.major);
        match (oldest, found.first()) {
            (Some(program), _) => Ok(program.clone()),
            (None, Some(program)) => Err(too_old(program)),
            (None, None) => Err(Error::usage("could not find a \"pg_dump\" to execute").hint(
                "Install PostgreSQL's client programs of the server's version, or name pg_dump by --pg-dump.",
            )),
        }
    }

    fn ask(path: &Path) -> Result<Program> {
        let output = command(path)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map_err(|e| Error::io("could not execute it", &e))?;
        // "pg_dump (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)", "… 19beta1"
        let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
        let version = text.split_once(") ").map_or("", |(_, version)| version).to_string();
        let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
        let major = version[..digits].parse().map_err(|_| {
            Error::usage(format!("\"{}\" does not tell its version: \"{text}\"", path.display()))
        })?;
        Ok(Program { path: path.to_path_buf(), major, version })
    }

    /// The compression to use if none was asked for: the best that this version's `pg_restore` knows.
    pub fn compression(&self) -> Spec {
        let method = if self.major >= 16 { Compression::Zstd } else { Compression::Gzip };
        Spec { method, level: None }
    }

    /// Whether this version's `pg_restore` can read it.
    pub fn check_compression(&self, spec: Spec) -> Result<()> {
        match spec.method {
            Compression::Lz4 | Compression::Zstd if self.major < 16 => Err(Error::usage(format!(
                "pg_dump and pg_restore of version {} do not know compression {}",
                self.major, spec.method
            ))
            .hint("Use --compress=gzip or --compress=none.")),
            _ => Ok(()),
        }
    }
}

/// How `pg_dump` is told where to connect to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Handed {
    /// As all of PostgreSQL's programs take them. Everybody on the machine can read them: no secrets.
    pub flags: Vec<String>,
    /// For the environment, which only the same user can read.
    pub password: Option<String>,
}

/// Other keywords whose values nobody else may see, and which libpq takes from no environment variable.
const SECRETS: [&str; 4] =
    ["sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"];

/// Flags for a connection: one connection string without the password. No part of it is read as another one.
pub fn connection_flags(address: &Address) -> Result<Handed> {
    let mut handed = Handed { flags: vec!["--no-password".to_string()], password: None };
    for (key, value) in address.pairs() {
        if key == "password" {
            handed.password = Some(value.to_string());
        } else if SECRETS.contains(&key) {
            return Err(Error::usage(format!(
                "pg_dump cannot be given {key} without showing it to everybody on this machine"
            ))
            .hint("Put it into a service file and name the service."));
        }
    }
    let conninfo = address.conninfo(|key| key != "password");
    if !conninfo.is_empty() {
        handed.flags.push(format!("--dbname={conninfo}"));
    }
    Ok(handed)
}

const FILTER: &str = "--filter=";

/// What stands in all files of `--filter`, one after the other; `None` if there is none. It is read once: `pg_dump` is started as often as
/// it takes, and what comes from a pipe, or is edited meanwhile, would be something else then.
pub fn filter(selection: &[String]) -> Result<Option<Vec<u8>>> {
    let mut all = None;
    for path in selection.iter().filter_map(|flag| flag.strip_prefix(FILTER)) {
        let mut text = Vec::new();
        let read = match path {
            "-" => std::io::stdin().lock().read_to_end(&mut text),
            _ => File::open(path).and_then(|mut file| file.read_to_end(&mut text)),
        };
        read.map_err(|e| Error::io(format!("could not read filter file \"{path}\""), &e))?;
        let all: &mut Vec<u8> = all.get_or_insert_default();
        all.extend(text);
        all.push(b'\n');
    }
    Ok(all)
}

/// What goes to `pg_dump` besides the database.
pub struct Ask<'a> {
    pub program: &'a Program,
    pub login: &'a Login,
    /// Flags that say what to select.
    pub selection: &'a [String],
    /// What stands in the files of `--filter`: see [`filter`].
    pub filter: Option<&'a [u8]>,
    /// None: the present.
    pub snapshot: Option<&'a Snapshot>,
    pub spec: Spec,
    /// By which `pg_dump`'s session is known.
    pub application: &'a str,
    /// Set to end it.
    pub give_up: &'a Arc<AtomicBool>,
}

/// What came of it.
pub struct Answer {
    pub contents: Rewritten,
    /// Lines that `pg_dump` wrote for people.
    pub warnings: Vec<String>,
    /// `pg_dump`, still connected and with its locks, until this is dropped.
    pub running: Running,
}

/// Why there is no answer.
pub struct Refusal {
    pub error: Error,
    /// `pg_dump` wrote nothing at all.
    pub at_once: bool,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        Refusal { error, at_once: false }
    }
}

/// What starts `pg_dump`, without a passphrase that is not for it.
fn command(path: &Path) -> Command {
    let mut command = Command::new(path);
    command.env_remove(crate::crypt::VARIABLE);
    command
}

/// Has `pg_dump` write down the schema as of a snapshot: the table of contents of a directory archive goes to `out`.
pub fn contents(ask: &Ask, out: impl Write, halt: &Arc<Halt>) -> Result<Answer, Refusal> {
    let Ask { program, login, selection, snapshot, spec, .. } = *ask;
    let Handed { flags, password } = connection_flags(&login.address)?;
    let mut command = command(&program.path);
    // The compression is given only to learn whether this pg_dump, and so its pg_restore, was built with it.
    command.args(["--format=custom", &compress_flag(program, spec)]);
    command.args(flags).args(selection.iter().filter(|flag| !flag.starts_with(FILTER)));
    if ask.filter.is_some() {
        command.arg(format!("{FILTER}-"));
    }
    if let Some(snapshot) = snapshot {
        command.arg(format!("--snapshot={}", snapshot.id));
    }
    if let Some(role) = &login.role {
        command.arg(format!("--role={role}"));
    }
    if let Some(password) = password {
        command.env("PGPASSWORD", password);
    }
    command.env("PGAPPNAME", ask.application);
    let mut running = Running::start(command, ask, halt)?;
    let Some(stdout) = running.stdout.take() else {
        return Err(Error::new(ErrorKind::Internal, "pg_dump has no output").into());
    };
    let level = spec.level.unwrap_or(if spec.method == Compression::None { 0 } else { -1 });
    let mut input = Counted { inner: stdout, bytes: 0 };
    match to_directory(&mut input, out, spec.method, level) {
        Ok(contents) => {
            running.stdout = Some(input.inner);
            let warnings = running.lines();
            Ok(Answer { contents, warnings, running })
        }
        Err(e) => {
            halt.check()?;
            let at_once = input.bytes == 0;
            drop(input);
            Err(Refusal { error: running.failure(e), at_once })
        }
    }
}

fn compress_flag(program: &Program, spec: Spec) -> String {
    if program.major >= 16 {
        return format!("--compress={spec}");
    }
    match (spec.method, spec.level) {
        (Compression::None, _) => "--compress=0".to_string(),
        (_, level) => format!("--compress={}", level.unwrap_or(6)),
    }
}

struct Counted<R> {
    inner: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.bytes += n as u64;
        Ok(n)
    }
}

/// A `pg_dump` at work. Ended when dropped.
pub struct Running {
    child: Arc<Mutex<Child>>,
    stdout: Option<ChildStdout>,
    said: Arc<Mutex<Vec<String>>>,
    listener: Option<JoinHandle<()>>,
    over: Arc<AtomicBool>,
}

/// How often it is looked whether the run was stopped.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Running {
    fn start(mut command: Command, ask: &Ask, halt: &Arc<Halt>) -> Result<Running> {
        let stdin = if ask.filter.is_some() { Stdio::piped() } else { Stdio::null() };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| {
            Error::io(format!("could not execute \"{}\"", ask.program.path.display()), &e)
        })?;
        if let (Some(mut stdin), Some(filter)) = (child.stdin.take(), ask.filter) {
            let filter = filter.to_vec();
            // If it does not read to the end, it says why.
            std::thread::spawn(move || drop(stdin.write_all(&filter)));
        }
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let child = Arc::new(Mutex::new(child));
        let said = Arc::new(Mutex::new(Vec::new()));
        let over = Arc::new(AtomicBool::new(false));
        let lines = Arc::clone(&said);
        let listener = stderr.map(|stderr| {
            std::thread::spawn(move || {
                for line in BufReader::new(stderr).split(b'\n').map_while(|line| line.ok()) {
                    let line = String::from_utf8_lossy(&line).into_owned();
                    lines.lock().unwrap_or_else(|e| e.into_inner()).push(line);
                }
            })
        });
        // Whoever reads from the pipe waits for as long as pg_dump does, for a lock say; only its end ends that.
        let (watched, halt, ended) = (Arc::clone(&child), Arc::clone(halt), Arc::clone(&over));
        let give_up = Arc::clone(ask.give_up);
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if halt.is_set() || give_up.load(Ordering::Relaxed) {
                    let _ = watched.lock().unwrap_or_else(|e| e.into_inner()).kill();
                    return;
                }
                std::thread::sleep(LOOK_EVERY);
            }
        });
        Ok(Running { child, stdout, said, listener, over })
    }

    fn lines(&self) -> Vec<String> {
        std::mem::take(&mut *self.said.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// What is to be said after the table of contents broke off.
    fn failure(mut self, e: Error) -> Error {
        // It may have ended by itself, or not know yet that nobody listens.
        let status = self.end();
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        if e.kind != ErrorKind::Archive {
            return e;
        }
        let lines = self.lines();
        if lines.is_empty() {
            let how = status.map_or("it did not end".to_string(), |s| s.to_string());
            return Error::new(ErrorKind::Archive, "could not read what pg_dump writes")
                .detail(format!("{e} ({how})"));
        }
        Error::new(ErrorKind::Statement, "pg_dump failed").detail(lines.join("\n"))
    }

    fn end(&mut self) -> Option<ExitStatus> {
        self.over.store(true, Ordering::Relaxed);
        self.stdout = None;
        let mut child = self.child.lock().unwrap_or_else(|e| e.into_inner());
        let _ = child.kill();
        child.wait().ok()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_connection() {
        let flags = [("host", "h"), ("port", "5"), ("user", "u"), ("password", "secret")];
        let handed = connection_flags(&Address::new(&flags, Some("-d")).unwrap()).unwrap();
        let flags = ["--no-password", "--dbname=host='h' port='5' user='u' dbname='-d'"];
        assert_eq!(handed.flags, flags);
        assert_eq!(handed.password.as_deref(), Some("secret"));
        // What the environment says counts for pg_dump as well.
        assert_eq!(connection_flags(&Address::default()).unwrap().flags, ["--no-password"]);
    }

    #[test]
    fn no_secret_among_the_flags() {
        let of = |dbname: &str| connection_flags(&Address::new(&[], Some(dbname))?);
        for dbname in ["postgresql://u:geheim@h/d", "host=h user=u password=geheim dbname=d"] {
            let handed = of(dbname).unwrap();
            assert_eq!(handed.password.as_deref(), Some("geheim"));
            let flag = &handed.flags[1];
            for part in ["--dbname=", "host='h'", "user='u'", "dbname='d'"] {
                assert!(flag.contains(part), "{flag}");
            }
            assert!(!flag.contains("geheim"), "{flag}");
        }
        assert_eq!(of("dbname='a''b\\\\c'").unwrap_err().exit_code(), 2);
        assert_eq!(of("dbname='a\\'b'").unwrap().flags[1], "--dbname=dbname='a\\'b'");
        of("dbname=d sslpassword=x").unwrap_err();
    }

    #[test]
    fn a_name_sends_no_password_elsewhere() {
        let server = Address::new(&[], Some("host=h password=geheim dbname=postgres")).unwrap();
        let handed = connection_flags(&server.database("host=evil dbname=x")).unwrap();
        assert_eq!(handed.flags.len(), 2);
        for part in ["--dbname=", "host='h'", "dbname='host=evil dbname=x'"] {
            assert!(handed.flags[1].contains(part), "{handed:?}");
        }
        let name = Address::default().database("postgresql://evil/x");
        assert_eq!(
            connection_flags(&name).unwrap().flags[1],
            "--dbname=dbname='postgresql://evil/x'"
        );
    }

    #[test]
    fn compression_by_version() {
        let program = |major| Program { path: "x".into(), major, version: String::new() };
        let spec = |text| Spec::parse(text).unwrap();
        assert_eq!(compress_flag(&program(15), spec("gzip:3")), "--compress=3");
        assert_eq!(compress_flag(&program(15), spec("none")), "--compress=0");
        assert_eq!(compress_flag(&program(16), spec("zstd:4")), "--compress=zstd:4");
        assert_eq!(program(15).compression().to_string(), "gzip");
        program(15).check_compression(spec("gzip:1")).unwrap();
        program(15).check_compression(spec("lz4")).unwrap_err();
        program(16).check_compression(spec("lz4")).unwrap();
        assert_eq!(program(17).compression().to_string(), "zstd");
    }
}
