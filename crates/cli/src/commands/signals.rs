//! What Ctrl-C and its like do.

use crate::error::{Error, ErrorKind, Result};
use crate::stop::Stop;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a signal stops, and how the user is told that it was heard.
struct Work {
    stop: Stop,
    say: Box<dyn Fn(&str) + Send>,
    /// It is stopped before that is told, as telling may wait for who reads it.
    at_once: bool,
}

/// What signals end: the program, or the work that has begun, if that has not been asked for before.
#[derive(Clone, Default)]
pub struct Signals(Arc<Mutex<Option<Work>>>);

fn lock(signals: &Signals) -> MutexGuard<'_, Option<Work>> {
    signals.0.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Signals {
    /// From now on signals are handled.
    pub fn handle(&self) -> Result<()> {
        let handle = self.clone();
        ctrlc::set_handler(move || match &*lock(&handle) {
            Some(Work { stop, say, at_once }) if !stop.is_set() => {
                if *at_once {
                    stop.mark();
                }
                say("stopping; press Ctrl-C again to leave at once");
                stop.stop();
            }
            _ => std::process::exit(130),
        })
        .map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))
    }

    /// The work begins: from now on a signal stops what is answered. `say` tells that it was heard.
    pub fn begin(&self, say: impl Fn(&str) + Send + 'static) -> Stop {
        let stop = Stop::default();
        *lock(self) = Some(Work { stop: stop.clone(), say: Box::new(say), at_once: false });
        stop
    }
}

/// For commands that handle no signals before their work begins.
pub fn begin(say: impl Fn(&str) + Send + 'static) -> Result<Stop> {
    let signals = Signals::default();
    let stop = signals.begin(say);
    if let Some(work) = &mut *lock(&signals) {
        work.at_once = true;
    }
    signals.handle()?;
    Ok(stop)
}
