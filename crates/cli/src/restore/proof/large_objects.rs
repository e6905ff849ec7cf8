//! Large objects: as many bytes as were written. Their sizes are known without reading them.

use super::in_order;
use crate::archive::large_objects::defined;
use crate::error::Result;
use crate::pg::Connection;
use crate::plan::build::describe;
use crate::plan::Work;
use crate::report::words::count;
use crate::report::Event;
use crate::restore::journal::Done;
use crate::restore::Job;
use crate::verify::objects::sizes;
use std::collections::BTreeSet;

/// Answers how many were looked at, and what is not as it should be.
pub fn compare(
    job: &Job,
    connection: &Connection,
    recorded: &Done,
) -> Result<(usize, Vec<String>)> {
    let is_contents = |number: &usize| matches!(job.plan.steps[*number].work, Work::LargeObjects);
    let steps: Vec<usize> = (0..job.plan.steps.len()).filter(is_contents).collect();
    if steps.is_empty() {
        return Ok((0, Vec::new()));
    }
    job.watch.event(&Event::Phase("comparing large objects"));
    let cancels = job.stop.cancels(connection);
    let look = || all(job, connection, recorded, &steps);
    let compared = in_order::question(job, connection, look);
    drop(cancels);
    match compared {
        Err(_) if job.stop.is_set() => Err(super::cancelled()),
        // Their owner by now lets us write, but not read.
        Err(e) if e.sqlstate.as_deref() == Some("42501") => {
            let note = format!("large objects were not compared: {}", e.message);
            job.watch.event(&Event::Note(&note));
            Ok((0, Vec::new()))
        }
        other => other,
    }
}

fn all(
    job: &Job,
    connection: &Connection,
    recorded: &Done,
    steps: &[usize],
) -> Result<(usize, Vec<String>)> {
    let toc = job.archive.toc();
    let look = || if job.stop.is_set() { Err(super::cancelled()) } else { Ok(()) };
    let (mut looked, mut differences) = (0, Vec::new());
    for &step in steps {
        let Some(&place) = job.plan.entries(step).first() else { continue };
        let Some(&written) = recorded.rows.get(&(step as u32)) else { continue };
        let mut oids: BTreeSet<u32> = defined(toc, place as usize).into_iter().collect();
        if oids.is_empty() {
            // An archive of data alone defines none: those that it has contents of.
            for object in job.archive.large_objects(place as usize)? {
                look()?;
                oids.insert(object?.oid);
            }
        }
        let sizes = sizes(connection, &oids, look)?;
        looked += sizes.len();
        let there: u64 = sizes.values().sum();
        let what = describe(&toc.entry(place as usize));
        let text = format!(
            "{what}: large objects have {} bytes, {} were written",
            count(there),
            count(written)
        );
        // What is too much is somebody else's, as with rows.
        if there > written {
            job.watch.event(&Event::Note(&text));
        } else if there < written {
            differences.push(text);
        }
    }
    Ok((looked, differences))
}
