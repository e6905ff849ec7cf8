//! A worker's connection: taken when the server has room for it, made again when it breaks.

use super::{cancelled, Worker};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::For;
use crate::report::{Event, Setback};
use crate::restore::journal::{self, fence};
use crate::restore::session::prepare;
use crate::restore::work::lock;
use std::sync::atomic::Ordering;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// How often a connection that the server has refused is tried again, when others work and when nobody does, and for how
/// long it is when nobody does.
const TRY_EVERY: Duration = Duration::from_secs(5);
const TRY_SOON: Duration = Duration::from_millis(200);
const TRY_FOR: Duration = Duration::from_secs(10);

impl Worker<'_, '_> {
    /// Connect, or wait until the server takes another connection: it may not have as many as were asked for, and others
    /// may do with fewer what there is to do. Tells whether there is a connection; if not, all is done without it.
    pub(super) fn join(&mut self) -> Result<bool> {
        let (site, begin) = (self.site, Instant::now());
        loop {
            let error = match self.connect() {
                Ok(()) => return Ok(true),
                Err(e) if e.kind != ErrorKind::Connection => return Err(e),
                Err(e) => e,
            };
            // With the server gone, or a connection that this pass began with, nothing goes on.
            if site.keeper.with(|keeper| keeper.query(b"SELECT 1").is_err()) {
                return Err(error);
            }
            // Somebody has to work. The server counts a session until its process has ended, so that those that were
            // closed just now may be in the way.
            let others = site.connected.load(Ordering::Relaxed) > 0;
            if !others && begin.elapsed() > TRY_FOR {
                return Err(error);
            }
            if others && !site.fewer.swap(true, Ordering::Relaxed) {
                let message = format!("warning: working with fewer connections: {}", error.message);
                site.watch.event(&Event::Note(&message));
            }
            let wait = if others { TRY_EVERY } else { TRY_SOON };
            let waiting = Instant::now();
            let mut scheduler = lock(&site.scheduler);
            while waiting.elapsed() < wait {
                if site.stop.is_set() || scheduler.finished() {
                    return Ok(false);
                }
                let woken = site.wake.wait_timeout(scheduler, wait);
                scheduler = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    fn connect(&mut self) -> Result<()> {
        let site = self.site;
        let connection = site.options.connect(site.dbname, For::Statements)?;
        self.cancels = Some(site.stop.cancels(&connection));
        prepare(&connection, site.archive.toc(), site.options, site.memory_kb)?;
        let session = site.keeper.enter(&connection)?;
        let pid = connection.backend_pid();
        site.watch.event(&Event::Connected { worker: self.number, pid });
        self.connection = Some((connection, session));
        site.connected.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Connect again after the connection broke. Tells whether the steps were committed all the same. Without an error and without a
    /// connection: those who have one do what is left. An error of kind `Connection`: nobody knows what was done but the journal.
    pub(super) fn recover(&mut self, piece: Option<u32>, error: &Error) -> Result<bool> {
        let site = self.site;
        let lost = self.connection.take();
        self.cancels = None;
        let number = self.number + 1;
        let message = format!("connection {number} was lost ({}); connecting again", error.message);
        self.setback(Setback::Reconnected, &message);
        // What was sent may still be worked on; the answer of the journal counts when that can commit no more.
        if let Some((connection, session)) = lost {
            site.connected.fetch_sub(1, Ordering::Relaxed);
            drop(connection);
            let stopped = || site.stop.is_set();
            site.keeper.with(|keeper| fence::shut_out(keeper, session, &stopped))?;
        }
        // Not all steps are recorded; those that are not may be done a second time.
        let new = self.records.get();
        let mut last = None;
        for wait in [0, 200, 500, 1000, 2000] {
            if site.stop.is_set() {
                return Err(cancelled());
            }
            std::thread::sleep(Duration::from_millis(wait));
            match self.connect() {
                Ok(()) => {
                    if let (Some((connection, _)), Some(step)) = (&self.connection, new) {
                        return journal::has(connection, step, piece);
                    }
                    return Ok(false);
                }
                Err(e) if e.kind == ErrorKind::Usage => return Err(e),
                Err(e) => last = Some(e),
            }
        }
        // Somebody else has the place, as it seems. Those who have connections do what is left, if there are any.
        if site.connected.load(Ordering::Relaxed) > 0 {
            let found = site.keeper.with(|keeper| match new {
                Some(step) => journal::has(keeper, step, piece),
                None => keeper.query(b"SELECT 1").map(|_| false),
            });
            if let Ok(found) = found {
                return Ok(found);
            }
        }
        let error = last.unwrap_or_else(|| error.clone());
        Err(error.hint("Run the same command with --resume when the server can be reached again."))
    }
}
