//! What all connections do together when the plan is done: counting, comparing, ANALYZE.

use crate::error::{ErrorKind, Result};
use crate::pg::Connection;
use std::sync::{Mutex, PoisonError};

/// Let `work` run on `first`, and at the same time on as many more connections as there are to be had, up to `jobs`; each run takes
/// what is left until there is nothing. It is told its number, from 0, and its connection. The first error of any is returned when all have
/// ended.
pub fn together(
    jobs: usize,
    first: &Connection,
    connect: impl Fn() -> Result<Connection> + Sync,
    work: impl Fn(usize, &Connection) -> Result<()> + Sync,
) -> Result<()> {
    let failed = Mutex::new(None);
    let keep = |result: Result<()>| {
        if let Err(e) = result {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
        }
    };
    std::thread::scope(|scope| {
        for number in 1..jobs {
            let (connect, work, keep) = (&connect, &work, &keep);
            scope.spawn(move || {
                keep(match connect() {
                    // The server may not have as many as were asked for: the first does it all, if need be.
                    Err(e) if e.kind == ErrorKind::Connection => Ok(()),
                    connection => connection.and_then(|own| work(number, &own)),
                });
            });
        }
        keep(work(0, first));
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(e) => Err(e),
        None => Ok(()),
    }
}
