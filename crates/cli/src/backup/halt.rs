//! Stopping everything when one part fails or the user asks to.

use crate::error::{Error, ErrorKind, Result};
use crate::pg::Canceller;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What all threads of a run look at to learn whether to go on. The first failure is the run's.
pub struct Halt {
    /// Set when the user asks to stop.
    asked: Arc<AtomicBool>,
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
}

impl Halt {
    /// `asked` is set by whoever handles the user's signals.
    pub fn new(asked: Arc<AtomicBool>) -> Arc<Halt> {
        Arc::new(Halt { asked, failed: AtomicBool::new(false), error: Mutex::new(None) })
    }

    /// Whether to stop.
    pub fn is_set(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.asked.load(Ordering::Relaxed)
    }

    /// An error if the run is over.
    pub fn check(&self) -> Result<()> {
        match self.is_set() {
            true => Err(self.reason()),
            false => Ok(()),
        }
    }

    /// Note a failure and stop all others. Later failures mostly follow from the first and are dropped.
    pub fn fail(&self, e: Error) {
        let mut error = self.error.lock().unwrap_or_else(|e| e.into_inner());
        if error.is_none() && !(e.kind == ErrorKind::Cancelled && self.is_set()) {
            *error = Some(e);
        }
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Why the run is over.
    pub fn reason(&self) -> Error {
        if self.asked.load(Ordering::Relaxed) {
            return Error::new(ErrorKind::Cancelled, "stopped at the user's request");
        }
        let error = self.error.lock().unwrap_or_else(|e| e.into_inner());
        error.clone().unwrap_or_else(|| Error::new(ErrorKind::Cancelled, "stopped"))
    }

    /// Do something; if it fails, stop all others.
    pub fn watch<T>(&self, work: impl FnOnce() -> Result<T>) -> Option<T> {
        match work() {
            Ok(value) => Some(value),
            Err(e) => {
                self.fail(e);
                None
            }
        }
    }
}

/// Cancels what some connections do once the run is over, until it is dropped.
pub struct Watch {
    over: Arc<AtomicBool>,
}

impl Watch {
    pub fn start(connections: Vec<Canceller>, halt: &Arc<Halt>) -> Watch {
        let over = Arc::new(AtomicBool::new(false));
        let (ended, halt) = (Arc::clone(&over), Arc::clone(halt));
        std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                if halt.is_set() {
                    connections.iter().for_each(Canceller::cancel);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Watch { over }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_counts() {
        let halt = Halt::new(Arc::default());
        halt.check().unwrap();
        halt.fail(Error::archive("first"));
        halt.fail(Error::archive("second"));
        assert_eq!(halt.check().unwrap_err().message, "first");
    }

    #[test]
    fn the_user_goes_before_failures() {
        let asked = Arc::new(AtomicBool::new(false));
        let halt = Halt::new(asked.clone());
        asked.store(true, Ordering::Relaxed);
        halt.fail(Error::archive("a broken connection"));
        assert_eq!(halt.reason().kind, ErrorKind::Cancelled);
    }
}
