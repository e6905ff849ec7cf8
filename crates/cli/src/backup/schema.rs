//! The schema as of a snapshot: `pg_dump` writes it down while the tables that it names are locked.

use super::program::{self, Running};
use super::sealed::Scratch;
use super::session::{self, Held, Leader, Snapshot};
use super::tasks::Tables;
use super::{Backup, Spec};
use crate::archive::rewrite::{Content, Rewritten};
use crate::archive::Compression;
use crate::error::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// How often a new snapshot is taken because tables changed between the last one and the locks.
const ATTEMPTS: u32 = 50;
/// The longest pause before that; the first is a tenth of it.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What the schema phase leaves.
pub struct Schema {
    pub snapshot: Snapshot,
    pub spec: Spec,
    pub contents: Rewritten,
    /// The archive's table of contents.
    pub toc: Scratch,
    pub tables: Tables,
}

impl Backup<'_> {
    /// Takes a snapshot, has the schema written down as of it, and locks the tables.
    pub fn schema(&self) -> Result<Schema> {
        let present = session::connect(&self.options.login)?;
        let _cancels = [self.halt.cancels(&self.leader().connection), self.halt.cancels(&present)];
        let mut why = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                self.progress.note(&format!("starting again with a new snapshot: {why}"));
                std::thread::sleep((LONGEST_PAUSE * attempt / 10).min(LONGEST_PAUSE));
            }
            self.halt.check()?;
            let snapshot = self.leader().begin()?;
            let mut toc = Scratch::new(self.destination.scratch()?, self.sealer.is_some());
            // Its locks end with it, so it stays until ours are there.
            let (spec, contents, _running) = match self.written(&snapshot, &mut toc)? {
                Ok(written) => written,
                Err(reason) => {
                    why = reason;
                    continue;
                }
            };
            match self.leader().hold(&contents.data, &contents.encoding, &present)? {
                Held::Locked(tables) => {
                    return Ok(Schema { snapshot, spec, contents, toc, tables })
                }
                Held::Moved(reason) => why = reason,
            }
        }
        Err(Error::new(ErrorKind::Statement, "tables kept changing while their locks were taken")
            .detail(format!("After {ATTEMPTS} snapshots: {why}."))
            .hint("Try again when no schema changes, TRUNCATE or VACUUM FULL are under way."))
    }

    fn leader(&self) -> MutexGuard<'_, Leader> {
        self.leader.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Has the schema written down, while the leader locks the tables; or tells why it cannot.
    #[allow(clippy::type_complexity)]
    fn written(
        &self,
        snapshot: &Snapshot,
        toc: &mut Scratch,
    ) -> Result<Result<(Spec, Rewritten, Running), String>> {
        let application =
            format!("firn backup {}-{:x}", std::process::id(), firn_lake::random_nonce());
        let give_up = Arc::new(AtomicBool::new(false));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let follow = scope.spawn(|| {
                let followed = self.leader().follow(&application, &over, &self.halt);
                if !matches!(followed, Ok(None)) {
                    give_up.store(true, Ordering::Relaxed);
                }
                followed
            });
            let contents = self.contents(snapshot, &application, &give_up, toc);
            over.store(true, Ordering::Relaxed);
            let followed = follow
                .join()
                .unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a thread panicked")));
            match followed? {
                Some(why) => Ok(Err(why)),
                None => contents.map(Ok),
            }
        })
    }

    fn contents(
        &self,
        snapshot: &Snapshot,
        application: &str,
        give_up: &Arc<AtomicBool>,
        toc: &mut Scratch,
    ) -> Result<(Spec, Rewritten, Running)> {
        let first = self.options.compression.unwrap_or_else(|| self.program.compression());
        let mut spec = first;
        loop {
            let program = &self.program;
            let options = self.options;
            let ask = program::Ask {
                program,
                login: &options.login,
                selection: &options.selection,
                filter: self.filter.as_deref(),
                snapshot: Some(snapshot),
                spec,
                application,
                give_up,
            };
            match toc.write(|out| program::contents(&ask, out, &self.halt))? {
                Ok(answer) => {
                    for line in answer.warnings {
                        self.progress.note(&line);
                    }
                    return Ok((spec, answer.contents, answer.running));
                }
                // Not every pg_dump was built with what its version knows.
                Err(refusal)
                    if refusal.at_once
                        && self.options.compression.is_none()
                        && spec.method == Compression::Zstd =>
                {
                    spec = Spec { method: Compression::Gzip, level: None };
                }
                Err(refusal) => return Err(refusal.error),
            }
        }
    }
}

/// The large objects that belong into the archive, and about how many bytes they take.
pub fn objects(leader: &Leader, contents: &Rewritten) -> Result<(Vec<u32>, u64)> {
    let mut listed = Vec::new();
    let mut wanted = false;
    for entry in &contents.data {
        if let Content::LargeObjects { oids } = &entry.content {
            wanted = true;
            listed.extend(oids.iter().flatten());
        }
    }
    if !wanted {
        return Ok((Vec::new(), 0));
    }
    let (all, bytes) = leader.large_objects()?;
    Ok((if listed.is_empty() { all } else { listed }, bytes))
}
