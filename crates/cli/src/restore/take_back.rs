//! Constraints that are there, and may only come after what is still to come: they are dropped, and come again in the plan's order.
//!
//! - A foreign key of a partition, while one of a table above it is missing: that one, made later, would take up an equal one of the
//!   partition, which no dump has then as its own.
//! - Checks that are NOT VALID, and the foreign keys of a table, while rows come again that a crash has taken: these need not meet
//!   the ones, and may come in an order that the others refuse.
//!
//! What the journal says of one, of its comment and of the constraint itself changes in one transaction. What cannot be dropped, as
//! somebody has changed it meanwhile, stays.

use super::journal::{self, fence::Session, Done};
use super::Job;
use crate::archive::{Entry, Toc};
use crate::error::{ErrorKind, Result};
use crate::pg::Connection;
use crate::plan::build::{describe, is_not_valid, own_table};
use crate::plan::drops::with_if_exists;
use crate::plan::parents::Parents;
use crate::plan::Work;
use crate::report::Event;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Take back what is recorded too early. Tells whether something was.
pub fn early(
    job: &Job,
    connection: &Connection,
    session: Session,
    recorded: &Done,
) -> Result<bool> {
    if recorded.steps.is_empty() && recorded.entries.is_empty() {
        return Ok(false);
    }
    let toc = job.archive.toc();
    let steps: HashSet<u32> = recorded.steps.iter().copied().collect();
    let entries: HashSet<u32> = recorded.entries.iter().copied().collect();
    // By entry: the steps that do it. A foreign key may have two.
    let mut of_entry = BTreeMap::<u32, Vec<u32>>::new();
    let mut rows = HashSet::new();
    for (step, found) in job.plan.steps.iter().enumerate() {
        let places = job.plan.entries(step);
        match found.work {
            Work::Data(..) if steps.contains(&(step as u32)) => {}
            Work::Data(..) => rows.extend(toc.entry(places[0] as usize).dependencies),
            _ => places.iter().for_each(|place| {
                of_entry.entry(*place).or_default().push(step as u32);
            }),
        }
    }
    let done = |place: u32| {
        let all = of_entry.get(&place).map_or(&[][..], |steps| steps);
        let any = all.iter().any(|step| steps.contains(step));
        (any || entries.contains(&place), !all.iter().all(|step| steps.contains(step)))
    };
    let mut early = Vec::new();
    let (mut keys, mut missing) = (Vec::new(), HashSet::new());
    for place in job.selection.places() {
        let entry = toc.entry(place as usize);
        match entry.desc {
            b"FK CONSTRAINT" => {
                let Some(table) = own_table(toc, &entry) else { continue };
                let table = toc.entry(table as usize).dump_id;
                let (any, lacks) = done(place);
                if any {
                    keys.push((place, table));
                }
                if lacks && !entries.contains(&place) {
                    missing.insert(table);
                }
            }
            b"CHECK CONSTRAINT" | b"CONSTRAINT"
                if !rows.is_empty() && is_not_valid(entry.defn) && done(place).0 =>
            {
                early.push(place);
            }
            _ => {}
        }
    }
    if !(keys.is_empty() || missing.is_empty() && rows.is_empty()) {
        let parents = Parents::of(toc);
        let lacks_rows: HashSet<i32> =
            rows.iter().flat_map(|table| parents.above(*table)).collect();
        let is_early = |table: i32| {
            lacks_rows.contains(&table)
                || parents.above(table).skip(1).any(|above| missing.contains(&above))
        };
        early.extend(keys.iter().filter(|(_, table)| is_early(*table)).map(|(place, _)| *place));
    }
    if early.is_empty() {
        return Ok(false);
    }
    let comments = comments(job, &early);
    for place in early {
        let entry = toc.entry(place as usize);
        let left: BTreeSet<u32> =
            comments.get(&entry.dump_id).into_iter().flatten().copied().chain([place]).collect();
        take_back(job, connection, session, &entry, &left, &of_entry)?;
    }
    Ok(true)
}

/// What is said of constraints, by the dump ids of these.
fn comments(job: &Job, constraints: &[u32]) -> BTreeMap<i32, Vec<u32>> {
    let toc: &Toc = job.archive.toc();
    let mut comments: BTreeMap<i32, Vec<u32>> = (constraints.iter())
        .map(|place| (toc.entry(*place as usize).dump_id, Vec::new()))
        .collect();
    for place in job.selection.places() {
        let entry = toc.entry(place as usize);
        if entry.desc != b"COMMENT" {
            continue;
        }
        for id in entry.dependencies {
            if let Some(found) = comments.get_mut(id) {
                found.push(place);
            }
        }
    }
    comments
}

fn take_back(
    job: &Job,
    connection: &Connection,
    session: Session,
    constraint: &Entry,
    left: &BTreeSet<u32>,
    of_entry: &BTreeMap<u32, Vec<u32>>,
) -> Result<()> {
    let Some(drop) = with_if_exists(constraint) else { return Ok(()) };
    let mut sql = [b"BEGIN;\n", &drop[..]].concat();
    let left: Vec<u32> = left.iter().copied().collect();
    let steps: BTreeSet<u32> =
        left.iter().filter_map(|place| of_entry.get(place)).flatten().copied().collect();
    for step in steps {
        sql.extend(journal::reopen(session, step, job.plan.entries(step as usize), &left));
    }
    sql.extend_from_slice(b"COMMIT;");
    let Err(failure) = connection.run(&sql) else { return Ok(()) };
    if failure.error.kind == ErrorKind::Connection {
        return Err(failure.error);
    }
    connection.run(b"ROLLBACK").map_err(|failure| failure.error)?;
    let (what, why) = (describe(constraint), failure.error.message);
    job.watch.event(&Event::Note(&format!("{what} stays, though it should come later: {why}")));
    Ok(())
}
