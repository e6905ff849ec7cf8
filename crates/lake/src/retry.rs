//! Bounded repetition of requests that failed for a passing reason.

use crate::error::{ErrorKind, Failure};
use crate::options::StoreOptions;
use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, Instant};

/// The longest pause before the first repetition; it doubles from one to the next.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How often and how long one request is tried.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub max_retries: u32,
    /// No attempt begins later than this after the first.
    pub window: Duration,
    /// The longest one attempt may take.
    pub attempt: Duration,
}

impl Policy {
    pub fn of(options: &StoreOptions) -> Self {
        Policy {
            max_retries: options.max_retries,
            window: options.retry_timeout(),
            attempt: options.request_timeout(),
        }
    }

    /// Runs `attempt` until it succeeds, fails for good, or the policy's bounds are reached.
    ///
    /// The failure returned says how many attempts were made, and is `uncertain` if any of them was:
    /// a write whose answer was lost may have taken effect although a later attempt was refused.
    pub async fn run<T, F, Fut>(&self, mut attempt: F) -> Result<T, Failure>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, Failure>>,
    {
        let begun = Instant::now();
        let mut uncertain = false;
        let mut made = 0u32;
        loop {
            made = made.saturating_add(1);
            let result = match tokio::time::timeout(self.attempt, attempt()).await {
                Ok(result) => result,
                Err(_) => Err(Failure::passing(
                    ErrorKind::Unreachable,
                    format!("no complete answer within {} ms", self.attempt.as_millis()),
                )),
            };
            let mut failure = match result {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            uncertain |= failure.uncertain;
            failure.uncertain = uncertain;
            failure.attempts = made;
            let pause = pause_before_retry(made);
            if !failure.retry || made > self.max_retries || begun.elapsed() + pause > self.window {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
        }
    }
}

/// The pause before repetition `n` (from 1): exponential, and random in its upper half so that many backends
/// that failed together do not come back together.
fn pause_before_retry(n: u32) -> Duration {
    let full = FIRST_PAUSE
        .saturating_mul(1u32.checked_shl(n.saturating_sub(1)).unwrap_or(u32::MAX))
        .min(LONGEST_PAUSE);
    let mut h = RandomState::new().build_hasher();
    h.write_u32(std::process::id());
    h.write_u32(n);
    let random = (h.finish() >> 11) as f64 / (1u64 << 53) as f64;
    full.mul_f64(0.5 + 0.5 * random)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(policy: &Policy, results: Vec<Result<T, Failure>>) -> Result<T, Failure> {
        let rt = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut results = results.into_iter();
        rt.block_on(policy.run(|| {
            let next = results.next().expect("no more attempts were planned");
            async move { next }
        }))
    }

    fn policy(max_retries: u32) -> Policy {
        Policy { max_retries, window: Duration::from_secs(60), attempt: Duration::from_secs(1) }
    }

    #[test]
    fn only_passing_failures_are_retried() {
        let passing = || Err(Failure::passing(ErrorKind::Unreachable, "busy"));
        assert_eq!(run(&policy(2), vec![passing(), passing(), Ok(1)]).unwrap(), 1);
        let e = run::<i32>(&policy(1), vec![passing(), passing()]).unwrap_err();
        assert_eq!((e.attempts, e.uncertain), (2, true));
        let fatal = Err(Failure::fatal(ErrorKind::PermissionDenied, "no"));
        let e = run::<i32>(&policy(5), vec![fatal.clone()]).unwrap_err();
        assert_eq!((e.attempts, e.uncertain), (1, false));
        let e = run::<i32>(&policy(5), vec![passing(), fatal]).unwrap_err();
        assert_eq!((e.attempts, e.uncertain), (2, true));
    }

    #[test]
    fn time_bounds_the_whole() {
        let mut p = policy(100);
        p.window = Duration::from_millis(30);
        let passing = Err(Failure::passing(ErrorKind::Unreachable, "busy"));
        let e = run::<i32>(&p, vec![passing]).unwrap_err();
        assert_eq!(e.attempts, 1);
    }

    #[test]
    fn pauses_grow_and_are_bounded() {
        for n in 1..200 {
            let p = pause_before_retry(n);
            assert!(p >= FIRST_PAUSE / 2 && p <= LONGEST_PAUSE, "{n} {p:?}");
        }
        assert!(pause_before_retry(10) > pause_before_retry(1));
    }
}
