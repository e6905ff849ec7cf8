//! Makes, checks and lists backups: archives in `pg_dump`'s directory format with a manifest.
//!
//! One connection takes a snapshot, `pg_dump` writes down the schema as of it, and several connections copy tables
//! and large objects of the same snapshot, the largest first. What they read is compressed, hashed and written as
//! it comes. The manifest is written when all else is durable. docs/decisions/0008-backup.md tells why so.
//!
//! - `session`, `program`: the server, and `pg_dump`; `schema`: what both agree on; `tasks`, `worker`, `objects`: what is copied, by whom.
//! - `lane`, `pack`, `destination`: the way of the data; [`manifest`]: what says that it is all there.
//! - `basis`, `known`, `incremental`: what proves that a table has not changed, and whose files are then taken.
//! - `ending`: what is written after all data; `sealed`: encrypted backups.
//! - `survey`: what lies in a folder. [`check`], [`list`]: looking at backups, without a server; [`expire`]: removing them.
//! - `progress`: what it tells while it works; `halt`: how it stops.

pub mod check;
pub mod expire;
pub mod list;

mod basis;
mod destination;
mod ending;
pub(crate) mod halt;
mod incremental;
mod known;
mod lane;
mod objects;
mod options;
mod pack;
mod place;
pub(crate) mod program;
mod progress;
mod schema;
pub(crate) mod sealed;
pub(crate) mod session;
mod survey;
pub(crate) mod tasks;
mod worker;

pub use options::{Base, Options, Spec};

use crate::archive::manifest::{self, Encryption, Head, Manifest, Marker};
use crate::error::{Error, Result};
use crate::report::words::size;
use crate::report::Watch;
use crate::stop::Stop;
use destination::{Destination, Preparation};
use halt::Halt;
use known::Known;
use lane::Work;
use pack::Packer;
use program::Program;
use progress::Watched;
use sealed::Sealer;
use session::Leader;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// A finished backup.
#[derive(Debug)]
pub struct Report {
    /// Of an encrypted backup, its own and not the one that anybody may read.
    pub manifest: Manifest,
    pub encryption: Option<Encryption>,
    /// Time until the schema was written down, of the data, and until all was durable.
    pub schema: Duration,
    pub data: Duration,
    pub settle: Duration,
}

/// Makes a backup. `stop` ends it as soon as can be, without a manifest; while that is written it is waited for instead.
pub fn run(options: &Options, watch: Arc<dyn Watch>, stop: &Stop) -> Result<Report> {
    let halt = Halt::new(stop);
    let progress = Arc::new(Watched::new(watch));
    let result = Backup::begin(options, progress, halt.clone()).and_then(Backup::finish);
    match result {
        // What is left in doubt is told, whatever the reason.
        Err(Error { detail: Some(detail), .. })
            if halt.is_set() && detail == destination::DOUBT =>
        {
            Err(halt.reason().detail(detail))
        }
        // What the user asked for goes before what followed from it.
        Err(_) if halt.is_set() => Err(halt.reason()),
        other => other,
    }
}

struct Backup<'a> {
    options: &'a Options,
    started: SystemTime,
    began: Instant,
    halt: Arc<Halt>,
    progress: Arc<Watched>,
    /// Two threads use it in turn.
    leader: Mutex<Leader>,
    program: Program,
    destination: Box<dyn Destination>,
    /// Of an encrypted backup.
    sealer: Option<Arc<Sealer>>,
    database: String,
    system_identifier: Option<String>,
    /// See [`program::filter`].
    filter: Option<Vec<u8>>,
}

impl<'a> Backup<'a> {
    fn begin(options: &'a Options, progress: Arc<Watched>, halt: Arc<Halt>) -> Result<Backup<'a>> {
        let (started, began) = (SystemTime::now(), Instant::now());
        incremental::check(options)?;
        let leader = Leader::connect(options)?;
        let server = leader.connection.server_version() / 10_000;
        if server < 15 {
            return Err(Error::usage(format!("server version {server} is not supported"))
                .hint("Servers of PostgreSQL 15 and later are backed up."));
        }
        let program = Program::find(options.pg_dump.as_deref(), server)?;
        if let Some(spec) = options.compression {
            program.check_compression(spec)?;
        }
        let filter = program::filter(&options.selection)?;
        let database = leader.connection.database();
        let marker = Marker {
            database: database.clone(),
            started: manifest::utc(started),
            firn_version: env!("CARGO_PKG_VERSION").to_string(),
            run: format!("{:016x}", firn_lake::random_nonce()),
            passphrase: options.sealing.as_ref().is_some_and(|s| s.key_file().is_some()),
        };
        let how = Preparation {
            marker,
            overwrite_incomplete: options.overwrite_incomplete,
            jobs: options.jobs,
            sync: options.sync,
        };
        let mut destination =
            destination::prepare(&options.destination, &options.store, how, &halt)?;
        let sealer = options.sealing.clone().map(Sealer::new);
        if let Some(sealer) = &sealer {
            destination = sealer.over(destination);
        }
        let system_identifier = leader.system_identifier();
        Ok(Backup {
            options,
            started,
            began,
            halt,
            progress,
            leader: Mutex::new(leader),
            program,
            destination,
            sealer,
            database,
            system_identifier,
            filter,
        })
    }

    fn finish(self) -> Result<Report> {
        self.progress.phase(&format!("writing down the schema of database \"{}\"", self.database));
        let mut schema = self.schema()?;
        let after_schema = Instant::now();
        let Backup {
            options,
            started,
            began,
            halt,
            progress,
            leader,
            program,
            destination,
            sealer,
            ..
        } = self;
        let leader = leader.into_inner().unwrap_or_else(|e| e.into_inner());
        let (objects, objects_bytes) = schema::objects(&leader, &schema.contents)?;
        let known = Known::read(&leader, &schema, options, &progress)?;
        let taken = match &options.incremental {
            Some(base) => {
                let ask = incremental::Ask {
                    options,
                    database: &self.database,
                    system_identifier: self.system_identifier.as_deref(),
                    encoding: &schema.contents.encoding,
                    compression: schema.spec.method,
                    basis: known.basis.as_ref(),
                    facts: &known.facts,
                    tables: &schema.tables.list,
                    entries: &schema.contents.data,
                };
                incremental::take(&ask, base, &*destination, &progress, &halt)?
            }
            None => incremental::Taken::default(),
        };
        schema.tables.list.retain(|table| !taken.places.contains(&table.place));
        let tables = schema.tables.list.clone();
        let tasks = tasks::tasks(schema.tables, &objects, objects_bytes);
        let bytes = tasks.iter().map(tasks::Task::weight).sum();
        progress.phase(&format!("copying {} tables, {}", tasks.len(), size(bytes)));
        progress.total(tasks.len() as u64, bytes);
        let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
        let work = Arc::new(Work {
            destination,
            packer: Packer::start(schema.spec, threads.min(options.jobs * 4), options.checksums)?,
            progress: progress.clone(),
            halt: halt.clone(),
            records: Mutex::new(taken.records),
            large_objects: Mutex::default(),
            checksums: options.checksums,
        });
        let entries = schema.contents.data.clone();
        let plan = worker::Plan {
            work: work.clone(),
            tasks: Mutex::new(tasks.into()),
            entries,
            suffix: schema.spec.method.suffix(),
            leader: Mutex::new(leader.connection),
        };
        let copied =
            worker::copy(plan, options, &schema.snapshot, &schema.contents.encoding, &halt);
        let written = copied.and_then(|()| {
            let after_data = Instant::now();
            work.progress.phase("waiting for stable storage");
            work.destination.settle()?;
            // With the table of contents it is an archive for pg_restore, which knows nothing of manifests.
            ending::write_lists(&work, &schema.contents.data, &objects)?;
            ending::write_toc(&work, schema.toc)?;
            work.destination.settle()?;
            let entries = &schema.contents.data;
            let proofs = known.confirmed(options, &schema.snapshot, &tables, entries, &progress);
            halt.check()?;
            Ok((after_data, proofs))
        });
        let (after_data, (basis, proofs)) = match written {
            Ok(done) => done,
            Err(e) => {
                halt.fail(e.clone());
                work.destination.abandon();
                return Err(e);
            }
        };
        let mut files =
            std::mem::take(&mut *work.records.lock().unwrap_or_else(|e| e.into_inner()));
        files.sort_by(|a, b| a.name.cmp(&b.name));
        for data in files.iter_mut().filter_map(|file| file.table.as_mut()) {
            // Those that were taken have their own.
            data.basis = data.basis.take().or_else(|| proofs.get(&data.dump_id).cloned());
        }
        let large_objects = *work.large_objects.lock().unwrap_or_else(|e| e.into_inner());
        let manifest = Manifest {
            head: Head {
                firn_backup: manifest::VERSION,
                database: self.database,
                system_identifier: self.system_identifier,
                encoding: schema.contents.encoding,
                server_version: schema.contents.server_version,
                pg_dump_version: program.version,
                firn_version: env!("CARGO_PKG_VERSION").to_string(),
                started: manifest::utc(started),
                snapshot_time: schema.snapshot.time,
                snapshot_lsn: schema.snapshot.lsn,
                standby: schema.snapshot.standby,
                finished: manifest::utc(SystemTime::now()),
                compression: schema.spec.to_string(),
                jobs: options.jobs,
                options: options.selection.clone(),
                filter_sha256: self.filter.map(|text| survey::sum(&text)),
                entries: schema.contents.entries,
                large_objects,
                base: taken.base,
                basis,
                encryption: None,
            },
            files,
        };
        let encryption = match ending::seal(&work, sealer.as_deref(), &manifest) {
            Ok(encryption) => encryption,
            Err(e) => {
                halt.fail(e.clone());
                work.destination.abandon();
                return Err(e);
            }
        };
        Ok(Report {
            manifest,
            encryption,
            schema: after_schema - began,
            data: after_data - after_schema,
            settle: after_data.elapsed(),
        })
    }
}
