//! Worker threads of a backend. They never call PostgreSQL, and no signal is ever delivered to them:
//! PostgreSQL's handlers must run on the main thread.

/// A computation on a thread of its own.
pub struct Job<T>(std::thread::JoinHandle<T>);

/// Run `work` on a new thread.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Job<T> {
    // A new thread inherits the signal mask: block everything while it starts.
    let old = block_signals();
    let handle = std::thread::spawn(work);
    restore_signals(&old);
    Job(handle)
}

impl<T> Job<T> {
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
    /// The result; None when the work panicked.
    pub fn join(self) -> Option<T> {
        self.0.join().ok()
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
