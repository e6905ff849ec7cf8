//! Objects in a store, read from front to back with one range fetched ahead.
//!
//! A store serves one thread at a time best (its connections live on the thread that asks), so each reader
//! borrows one for itself; stores are kept for the next reader, with their open connections.

use crate::error::{Error, Result};
use crate::store::{store_error, StoreSettings};
use bytes::Bytes;
use firn_lake::{Store, StoreOptions};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, Receiver};
use std::sync::{Arc, Mutex};

/// The first range of a reader, in bytes: small things take one request, and no thread.
pub(super) const FIRST: u64 = 1 << 20;
/// The ranges after it. A reader holds at most two of them.
const STEP: u64 = 4 << 20;
/// Bytes fetched at a time behind where reading should have ended: at first, and at most.
pub(super) const BEYOND: u64 = 256 << 10;
pub(super) const MOST_BEYOND: u64 = 8 << 20;
/// Stores kept for later.
const KEPT: usize = 64;

/// A place in an object store: a bucket and what keys there begin with.
pub(super) struct Remote {
    /// For the first request: a wrong address is to be noticed soon.
    first: StoreOptions,
    /// For all that follow the first success.
    patient: StoreOptions,
    reached: AtomicBool,
    settings: StoreSettings,
    idle: Mutex<Vec<Store>>,
}

impl Remote {
    /// Nothing is sent yet.
    pub fn new(url: &str, settings: &StoreSettings) -> Result<Arc<Remote>> {
        Ok(Arc::new(Remote {
            first: settings.store_options(url)?,
            patient: settings.patient_store_options(url)?,
            reached: AtomicBool::new(false),
            settings: settings.clone(),
            idle: Mutex::default(),
        }))
    }

    /// Does something with a store of one's own.
    pub fn with<T>(
        &self,
        stop: Option<&AtomicBool>,
        ask: impl FnOnce(&Store, &dyn Fn() -> bool) -> firn_lake::Result<T>,
    ) -> firn_lake::Result<T> {
        let idle = self.idle.lock().unwrap_or_else(|e| e.into_inner()).pop();
        let reached = self.reached.load(Ordering::Relaxed);
        let store = match idle {
            Some(store) => store,
            None => Store::open(if reached { &self.patient } else { &self.first }, || {})?,
        };
        let cancelled =
            || stop.is_some_and(|s| s.load(Ordering::Relaxed)) || self.settings.is_cancelled();
        let answer = ask(&store, &cancelled);
        // What does not exist was not found by a store that answers.
        let answered = match &answer {
            Ok(_) => true,
            Err(e) => e.kind == firn_lake::ErrorKind::NotFound,
        };
        if answered {
            self.reached.store(true, Ordering::Relaxed);
        }
        let mut idle = self.idle.lock().unwrap_or_else(|e| e.into_inner());
        if reached && idle.len() < KEPT {
            idle.push(store);
        }
        answer
    }

    /// The size of an object; `None` if there is none with this key.
    pub fn size(&self, key: &str) -> firn_lake::Result<Option<u64>> {
        match self.with(None, |store, cancelled| store.head(key, cancelled)) {
            Ok(size) => Ok(Some(size)),
            Err(e) if e.kind == firn_lake::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// All keys and sizes.
    pub fn list(&self) -> Result<Vec<(String, u64)>> {
        self.with(None, |store, cancelled| store.list("", cancelled)).map_err(store_error)
    }
}

/// One object of a store.
#[derive(Clone)]
pub(super) struct Object {
    pub remote: Arc<Remote>,
    pub key: String,
}

impl Object {
    fn get(&self, range: Range<u64>, stop: Option<&AtomicBool>) -> Result<Bytes> {
        self.remote
            .with(stop, |store, cancelled| store.get_range(&self.key, range, cancelled))
            .map_err(store_error)
    }

    /// The bytes of a range.
    pub fn read(&self, range: Range<u64>) -> Result<Bytes> {
        self.get(range, None)
    }

    /// The first bytes from `at` on, and what fetches the rest up to `expected`, if there is any.
    pub fn begin(&self, at: u64, expected: u64) -> Result<(Bytes, Option<Ahead>)> {
        let second = (at + FIRST).min(expected);
        // Begun first, so that both are fetched at the same time.
        let ahead = (second < expected).then(|| Ahead::start(self.clone(), second..expected));
        Ok((self.get(at..second, None)?, ahead))
    }
}

/// A thread that fetches an object's ranges one after the other, one ahead of what is used.
pub(super) struct Ahead {
    ranges: Receiver<Result<Bytes>>,
    stop: Arc<AtomicBool>,
}

impl Ahead {
    fn start(object: Object, range: Range<u64>) -> Ahead {
        // Without room in the channel the thread waits with one range in its hands.
        let (sender, ranges) = sync_channel(0);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let fetch = move || {
            let mut at = range.start;
            while at < range.end {
                let end = (at + STEP).min(range.end);
                let bytes = object.get(at..end, Some(&stopped));
                let failed = bytes.is_err();
                if sender.send(bytes).is_err() || failed {
                    return;
                }
                at = end;
            }
        };
        let started = std::thread::Builder::new().name("firn-read".to_string()).spawn(fetch);
        if let Err(e) = started {
            // The sender went with the closure; say why in its place.
            let (sender, ranges) = sync_channel(1);
            let _ = sender.send(Err(Error::io("could not start a thread", &e)));
            return Ahead { ranges, stop };
        }
        Ahead { ranges, stop }
    }

    /// The next range; `None` after the last.
    pub fn next(&mut self) -> Result<Option<Bytes>> {
        self.ranges.recv().ok().transpose()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // The thread sees it within milliseconds; nobody waits for it.
        self.stop.store(true, Ordering::Relaxed);
    }
}
