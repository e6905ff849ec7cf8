//! Worker threads of a backend. They never call PostgreSQL, and no signal is ever delivered to them:
//! PostgreSQL's handlers must run on the main thread.

use std::sync::mpsc::{sync_channel, RecvError};

/// A computation on a thread of its own.
pub struct Job<T>(std::thread::JoinHandle<Result<T, RecvError>>);

/// Run `work` on a new thread; gives it back when the system has no thread left.
pub fn spawn<T, F>(work: F) -> Result<Job<T>, F>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (give, take) = sync_channel::<F>(1);
    // A new thread inherits the signal mask: block everything while it starts.
    let old = block_signals();
    let started = std::thread::Builder::new().spawn(move || take.recv().map(|work| work()));
    restore_signals(&old);
    match started {
        Ok(handle) => match give.send(work) {
            Ok(()) => Ok(Job(handle)),
            Err(unsent) => Err(unsent.0),
        },
        Err(_) => Err(work),
    }
}

impl<T> Job<T> {
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
    /// The result; None when the work panicked.
    pub fn join(self) -> Option<T> {
        self.0.join().ok()?.ok()
    }
}

/// Block all signals on the calling thread (for threads started by libraries).
pub fn block_all_signals() {
    let _old = block_signals();
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: sets are initialised by sigfillset and pthread_sigmask.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut old: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        old
    }
}

fn restore_signals(old: &libc::sigset_t) {
    // SAFETY: a set obtained above.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, old, std::ptr::null_mut());
    }
}
