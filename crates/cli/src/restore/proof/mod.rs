//! The end of a restore, checked: what the journal says is done against the plan, and what the database has against
//! what the archive says of the same. "Complete" is told after that and not before.
//!
//! This is what a restore always does, by the catalogs and by counting rows. [`super::check`] compares every statement, by a
//! dump of the result, or the rows themselves; it takes longer, and is asked for.
//!
//! - [`catalogs`]: relations and their parts: owners, tablespaces, access methods, identity, partitions, constraints; large objects.
//! - [`objects`]: all else that has a name, and what is said of it: owners, privileges, comments, values of sequences.
//! - [`in_order`]: of what was restored on one connection.
//! - [`schemas`]: what went into other schemas.
//! - [`rows`]: as many rows as were copied.
//! - [`money`]: amounts, whose text sessions read differently.
//! - [`large_objects`]: as many bytes of large objects as were written.

mod catalogs;
pub mod in_order;
mod large_objects;
pub mod money;
mod objects;
mod questions;
mod rows;
pub mod schemas;

use super::journal::Done;
use super::{tell, Job};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::Connection;
use crate::report::words::count;
use crate::report::Event;

/// Differences that are shown; more are counted.
const SHOWN: usize = 100;

/// Compare. An error of kind `Verify` if anything differs; the journal then stays.
pub(super) fn of(job: &Job, connection: &Connection, recorded: &Done) -> Result<()> {
    let missing = tell::real_steps(&job.plan)
        .filter(|step| recorded.steps.binary_search(step).is_err())
        .count();
    if missing > 0 {
        let message = format!("{missing} steps of the restore are not in its journal");
        return Err(
            Error::new(ErrorKind::Verify, message).hint("Restore again into an empty database.")
        );
    }
    job.watch.event(&Event::Phase("comparing with the catalogs"));
    let (objects, mut differences) = catalogs::compare(job, connection)?;
    let toc = job.archive.toc();
    let twice = recorded
        .twice
        .iter()
        .map(|s| format!("{}: it was done twice", tell::name(&job.plan, toc, *s)));
    differences.extend(twice);
    let (redirects, before) = (&job.terms.redirects, &job.terms.facts.crossing);
    let chosen = (toc, &job.selection);
    differences.extend(schemas::differences(connection, redirects, before, chosen)?);
    let (mut counted, mut large_objects) = (rows::Counted::default(), 0);
    if job.options.count_rows && job.terms.filter.wants_data() {
        job.watch.event(&Event::Phase("counting rows"));
        counted = rows::compare(job, connection, recorded)?;
        differences.append(&mut counted.differences);
        let (looked, found) = large_objects::compare(job, connection, recorded)?;
        large_objects = looked;
        differences.extend(found);
    }
    for difference in differences.iter().take(SHOWN) {
        job.watch.event(&Event::Note(difference));
    }
    let more = differences.len().saturating_sub(SHOWN) as u64;
    if more > 0 {
        job.watch.event(&Event::Note(&format!("and {} more", count(more))));
    }
    if !differences.is_empty() {
        let message = match differences.len() {
            1 => "the database differs from what was restored in 1 place".to_string(),
            n => format!("the database differs from what was restored in {n} places"),
        };
        return Err(Error::new(ErrorKind::Verify, message).hint(
            "If others have worked in the database meanwhile, that may be why. --resume compares again.",
        ));
    }
    let mut value = format!("{} objects by the catalogs", count(objects as u64));
    if counted.tables > 0 {
        let (tables, rows) = (count(counted.tables as u64), count(counted.rows));
        value += &format!(", {tables} tables with {rows} rows by counting");
    }
    if large_objects > 0 {
        value += &format!(", {} large objects by their sizes", count(large_objects as u64));
    }
    job.watch.event(&Event::Fact { name: "checked", value: &value });
    Ok(())
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "canceled by user")
        .hint("All is restored, but not compared: --resume does that.")
}
