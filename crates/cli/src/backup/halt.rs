//! Stopping everything when one part fails or the user asks to.

use crate::error::{Error, ErrorKind, Result};
use crate::pg::Connection;
use crate::stop::{Cancels, Stop};
use std::sync::{Arc, Mutex};

/// What all threads of a run look at to learn whether to go on. The first failure is the run's.
pub struct Halt {
    /// Stopped when the user asks to.
    asked: Stop,
    /// Stopped with it, and when a part fails.
    all: Stop,
    error: Mutex<Option<Error>>,
}

impl Halt {
    /// `asked` is stopped by whoever handles the user's signals.
    pub fn new(asked: &Stop) -> Arc<Halt> {
        Arc::new(Halt { asked: asked.clone(), all: asked.within(), error: Mutex::new(None) })
    }

    /// Whether to stop.
    pub fn is_set(&self) -> bool {
        self.all.is_set()
    }

    /// As long as the answer lives, what a connection does is cancelled when the run is over.
    pub fn cancels(&self, connection: &Connection) -> Cancels {
        self.all.cancels(connection)
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
        drop(error);
        self.all.stop();
    }

    /// Why the run is over.
    pub fn reason(&self) -> Error {
        if self.asked.is_set() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_counts() {
        let halt = Halt::new(&Stop::default());
        halt.check().unwrap();
        halt.fail(Error::archive("first"));
        halt.fail(Error::archive("second"));
        assert_eq!(halt.check().unwrap_err().message, "first");
    }

    #[test]
    fn the_user_goes_before_failures() {
        let asked = Stop::default();
        let halt = Halt::new(&asked);
        asked.stop();
        halt.fail(Error::archive("a broken connection"));
        assert_eq!(halt.reason().kind, ErrorKind::Cancelled);
    }
}
