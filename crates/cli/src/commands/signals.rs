//! What Ctrl-C and its like do.

use crate::error::{Error, ErrorKind, Result};
use crate::stop::Stop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a signal stops, and how the user is told that it was heard.
struct Work {
    stop: Stop,
    say: Box<dyn Fn(&str) + Send>,
}

/// Signals are handled: one ends the program, or the work that has begun, if that has not been asked for before.
pub struct Signals(Arc<Mutex<Option<Work>>>);

fn lock(work: &Mutex<Option<Work>>) -> MutexGuard<'_, Option<Work>> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Signals {
    pub fn handle() -> Result<Signals> {
        let work = Arc::default();
        let handle = Arc::clone(&work);
        ctrlc::set_handler(move || match &*lock(&handle) {
            Some(Work { stop, say }) if !stop.is_set() => {
                say("stopping; press Ctrl-C again to leave at once");
                stop.stop();
            }
            _ => std::process::exit(130),
        })
        .map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
        Ok(Signals(work))
    }

    /// The work begins: from now on the answer is what a signal stops. `say` tells that it was heard.
    pub fn begin(&self, say: impl Fn(&str) + Send + 'static) -> Stop {
        let stop = Stop::default();
        *lock(&self.0) = Some(Work { stop: stop.clone(), say: Box::new(say) });
        stop
    }
}
