//! Runs asynchronous requests to their end on the calling thread, and stops when asked to.

use crate::error::{Error, ErrorKind, Failure, Result};
use std::future::{poll_fn, Future};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::MissedTickBehavior;

/// How often the caller is asked whether to stop. Half of the 20 ms promised, for a margin.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// A tokio runtime that lives on the calling thread only.
///
/// Its sole helper threads resolve host names (the system's resolver blocks); there are at most two, each runs
/// `thread_start` first and ends when idle for half a second.
pub(crate) struct Driver {
    runtime: Option<Runtime>,
}

impl Driver {
    pub fn new(thread_start: fn()) -> Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(2)
            .thread_keep_alive(Duration::from_millis(500))
            .thread_name("firn-lake")
            .on_thread_start(thread_start)
            .build()
            .map_err(|e| {
                Error::new(ErrorKind::Other, format!("could not set up network requests: {e}"))
            })?;
        Ok(Driver { runtime: Some(runtime) })
    }

    /// Runs `request` to its end, or until `cancelled` answers true.
    pub fn run<T>(
        &self,
        cancelled: &dyn Fn() -> bool,
        request: impl Future<Output = std::result::Result<T, Failure>>,
    ) -> std::result::Result<T, Failure> {
        if cancelled() {
            return Err(Failure::cancelled());
        }
        let runtime = match &self.runtime {
            Some(runtime) if Handle::try_current().is_err() => runtime,
            _ => {
                return Err(Failure::fatal(
                    ErrorKind::Other,
                    "a store must not be used from inside an asynchronous task",
                ))
            }
        };
        runtime.block_on(async {
            let mut request = pin!(request);
            let mut ticks = tokio::time::interval(ASK_EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut asked = Instant::now();
            poll_fn(move |cx| {
                // Polling the ticks until none is due leaves our waker with the timer.
                while ticks.poll_tick(cx).is_ready() {}
                // Asked by the clock rather than per tick: a stream of wake-ups may starve neither side.
                if asked.elapsed() >= ASK_EVERY / 2 {
                    asked = Instant::now();
                    if cancelled() {
                        return Poll::Ready(Err(Failure::cancelled()));
                    }
                }
                request.as_mut().poll(cx)
            })
            .await
        })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Not the runtime's own drop: that waits for a thread stuck in name resolution.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn cancel_ends_a_wait_at_once() {
        let driver = Driver::new(|| {}).unwrap();
        let begun = Instant::now();
        let asked = AtomicU32::new(0);
        let stop = || {
            asked.fetch_add(1, Ordering::Relaxed);
            begun.elapsed() > Duration::from_millis(100)
        };
        let e = driver
            .run::<()>(&stop, async {
                tokio::time::sleep(Duration::from_secs(60)).await;
                Ok(())
            })
            .unwrap_err();
        assert_eq!(e.kind, ErrorKind::Cancelled);
        assert!(begun.elapsed() < Duration::from_millis(500));
        assert!(asked.load(Ordering::Relaxed) >= 5);
    }

    #[test]
    fn cancelled_before_it_began() {
        let driver = Driver::new(|| {}).unwrap();
        let e = driver.run(&|| true, async { Ok(1) }).unwrap_err();
        assert_eq!(e.kind, ErrorKind::Cancelled);
    }

    #[test]
    fn inside_another_runtime_is_an_error_not_a_panic() {
        let driver = Driver::new(|| {}).unwrap();
        let outer = Builder::new_current_thread().build().unwrap();
        let e = outer.block_on(async { driver.run(&|| false, async { Ok(1) }) }).unwrap_err();
        assert_eq!(e.kind, ErrorKind::Other);
    }

    #[test]
    fn helper_threads_run_the_callers_function_first_and_do_not_delay_the_end() {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let driver = Driver::new(|| {
            STARTED.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
        let begun = Instant::now();
        let _ = driver.run::<()>(&|| begun.elapsed() > Duration::from_millis(50), async {
            let stuck = tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_secs(3)));
            stuck.await.map_err(|e| Failure::fatal(ErrorKind::Other, e.to_string()))
        });
        drop(driver);
        assert!(begun.elapsed() < Duration::from_secs(1));
        assert_eq!(STARTED.load(Ordering::Relaxed), 1);
    }
}
