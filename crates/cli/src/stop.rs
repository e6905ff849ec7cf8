//! Stopping what the program does, and what its connections do.

use crate::error::{Error, ErrorKind, Result};
use crate::pg::{Canceller, Connection};
use crate::store::StoreSettings;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How often statements are cancelled, for as long as there are any: a request that comes between two of them ends neither.
const AGAIN: Duration = Duration::from_millis(100);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets others stop the work: the signal handler, a part of it that has failed.
#[derive(Clone, Default)]
pub struct Stop {
    flags: Flags,
    list: Arc<Mutex<List>>,
}

#[derive(Clone, Default)]
struct Flags {
    own: Arc<AtomicBool>,
    /// What stops more than this stops this as well.
    above: Option<Arc<Flags>>,
}

impl Flags {
    fn is_set(&self) -> bool {
        self.own.load(Ordering::SeqCst) || self.above.as_ref().is_some_and(|above| above.is_set())
    }
}

/// The connections whose statements are cancelled.
#[derive(Default)]
struct List {
    last: u64,
    entries: Vec<(u64, Flags, Arc<Canceller>)>,
    /// A thread does so.
    busy: bool,
}

/// As long as it lives, what a connection does is cancelled when the run is stopped, or has been.
#[must_use]
pub struct Cancels {
    number: u64,
    list: Arc<Mutex<List>>,
}

impl Drop for Cancels {
    fn drop(&mut self) {
        lock(&self.list).entries.retain(|(number, ..)| *number != self.number);
    }
}

impl Stop {
    /// One that can be stopped by itself, and is stopped with this one.
    pub fn within(&self) -> Stop {
        let flags = Flags { own: Arc::default(), above: Some(Arc::new(self.flags.clone())) };
        Stop { flags, list: Arc::clone(&self.list) }
    }

    /// Who looks ends; statements run on until [`Stop::stop`].
    pub fn mark(&self) {
        self.flags.own.store(true, Ordering::SeqCst);
    }

    /// End as soon as possible: statements are cancelled, transactions rolled back.
    pub fn stop(&self) {
        self.mark();
        cancel(&self.list);
    }

    /// Cancel what this connection does, too.
    pub fn cancels(&self, connection: &Connection) -> Cancels {
        let mut list = lock(&self.list);
        list.last += 1;
        let number = list.last;
        list.entries.push((number, self.flags.clone(), Arc::new(connection.canceller())));
        drop(list);
        if self.is_set() {
            cancel(&self.list);
        }
        Cancels { number, list: Arc::clone(&self.list) }
    }

    pub fn is_set(&self) -> bool {
        self.flags.is_set()
    }

    /// Settings of stores that give up when it is stopped.
    pub fn settings(&self) -> StoreSettings {
        let asked = self.clone();
        let cancelled = Some(Arc::new(move || asked.is_set()) as _);
        StoreSettings { cancelled, ..StoreSettings::default() }
    }

    /// An error if it is stopped.
    pub fn check(&self) -> Result<()> {
        match self.is_set() {
            true => Err(Error::new(ErrorKind::Cancelled, "canceled by user")),
            false => Ok(()),
        }
    }

    /// The error, or where it follows from the stop that.
    pub fn or_stopped(&self, error: Error) -> Error {
        // query_canceled
        match error.sqlstate.as_deref() {
            Some("57014") => self.check().err().unwrap_or(error),
            _ => error,
        }
    }
}

/// Cancels, again and again until there is nothing that is stopped, on a thread of its own.
fn cancel(list: &Arc<Mutex<List>>) {
    if std::mem::replace(&mut lock(list).busy, true) {
        return;
    }
    let own = Arc::clone(list);
    let until_all_end = move || loop {
        let stopped: Vec<Arc<Canceller>> = {
            let mut list = lock(&own);
            let stopped = list.entries.iter().filter(|(_, flags, _)| flags.is_set());
            let stopped: Vec<_> = stopped.map(|(.., canceller)| Arc::clone(canceller)).collect();
            if stopped.is_empty() {
                list.busy = false;
                return;
            }
            stopped
        };
        // Without the lock: a server that does not answer keeps nobody waiting but this thread.
        stopped.iter().for_each(|canceller| canceller.cancel());
        std::thread::sleep(AGAIN);
    };
    if std::thread::Builder::new().name("cancel".into()).spawn(until_all_end).is_err() {
        let mut list = lock(list);
        list.busy = false;
        list.entries.iter().filter(|(_, flags, _)| flags.is_set()).for_each(|e| e.2.cancel());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stops_more_stops_all_within() {
        let all = Stop::default();
        let (one, other) = (all.within(), all.within());
        let inner = one.within();
        one.stop();
        assert!(inner.is_set() && one.is_set() && !other.is_set() && !all.is_set());
        let store = other.settings().cancelled.unwrap();
        assert!(!store());
        all.stop();
        assert!(other.is_set() && store());
        assert_eq!(other.check().unwrap_err().kind, ErrorKind::Cancelled);
    }
}
