//! Objects that were made without something that says how statements are understood: it had failed, with `--on-error=continue`, and
//! came by a later pass.
//!
//! The plan has all that stands behind a cast, an operator class or an extension wait for it, as nothing in the archive tells which
//! objects mean something by it (`plan/build/order.rs`). When it fails, what does not depend on it is made all the same, as by
//! `pg_restore`, and may mean something else then: an explicit conversion goes through text where the cast would have called its
//! function, and looks the same in every dump. So nothing that is compared finds it. The journal does: each pass has an epoch, and within
//! one the plan's order holds.
//!
//! So it is with what functions of the archive find in other tables: an index, a check or a generated column that was made without
//! rows which came later after all keeps what it found then. The journal has a note of each ([`journal::without_rows`]).

use super::journal;
use super::{tell, Job};
use crate::archive::{Entry, Toc};
use crate::error::{Error, ErrorKind, Result};
use crate::pg::Connection;
use crate::plan::build::{changes_meanings, describe};
use crate::plan::Plan;
use crate::report::words::count;
use std::collections::{BTreeSet, HashMap};

/// Objects that are named.
const SHOWN: usize = 10;
/// Of those that looked at missing rows: nothing else tells which they are.
const LOOKED: usize = 200_000;

/// An error that tells of such objects, if there are any. All is restored nevertheless: nothing that could be done again helps.
pub fn look(job: &Job, connection: &Connection) -> Result<Option<Error>> {
    Ok(joined(meanings(job, connection)?, rows(job, connection)?))
}

/// Both errors in one.
pub fn joined(first: Option<Error>, second: Option<Error>) -> Option<Error> {
    let (first, second) = match (first, second) {
        (Some(first), Some(second)) => (first, second),
        (first, second) => return first.or(second),
    };
    let sentence = format!("Besides, {}.", second.message);
    let of = |parts: [Option<String>; 3]| {
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        Some(parts.join(" ")).filter(|text| !text.is_empty())
    };
    let detail = of([first.detail.clone(), Some(sentence), second.detail]);
    Some(Error { detail, hint: of([first.hint.clone(), second.hint, None]), ..first })
}

/// Objects that were made without rows which came later.
fn rows(job: &Job, connection: &Connection) -> Result<Option<Error>> {
    let toc = job.archive.toc();
    let places = journal::without_rows(connection)?;
    let found: Vec<Entry> = (places.iter().filter(|place| job.plan.looks.contains(place)))
        .map(|place| toc.entry(*place as usize))
        .collect();
    if found.is_empty() {
        return Ok(None);
    }
    let message = "objects were made without rows that came later, at which they may look";
    let detail = format!(
        "Their functions may read other tables, which lacked rows: {}.",
        shown(found.iter().map(describe).collect(), LOOKED)
    );
    let any = |which: fn(&[u8]) -> bool| found.iter().any(|entry| which(entry.desc));
    let advice = [
        (any(|desc| desc == b"INDEX" || desc == b"CONSTRAINT"), "REINDEX the indexes."),
        (any(|desc| desc == b"CHECK CONSTRAINT"), "Drop the checks and add them again."),
        (
            any(|desc| desc == b"TABLE DATA"),
            "UPDATE the rows, setting the columns from which others are generated to themselves, or load them anew.",
        ),
    ];
    let advice = advice.into_iter().filter(|(any, _)| *any).map(|(_, advice)| advice);
    let hint = format!("All is there. {}", advice.collect::<Vec<_>>().join(" "));
    Ok(Some(Error::new(ErrorKind::Verify, message).detail(detail).hint(hint)))
}

fn shown(names: Vec<String>, most: usize) -> String {
    match names.len().saturating_sub(most) {
        0 => names.join(", "),
        more => format!("{} and {} more", names[..most].join(", "), count(more as u64)),
    }
}

/// Objects that were made without something that says how they are understood.
fn meanings(job: &Job, connection: &Connection) -> Result<Option<Error>> {
    let toc = job.archive.toc();
    let any = job.selection.places().any(|place| changes_meanings(toc.entry(place as usize).desc));
    if !any {
        return Ok(None);
    }
    let (mut epochs, entries) = journal::epochs(connection, job.plan.steps.len())?;
    for (step, epoch) in epochs.iter_mut().filter(|_| !entries.is_empty()) {
        let of_entries = job.plan.entries(*step as usize).iter().filter_map(|e| entries.get(e));
        *epoch = of_entries.copied().fold(*epoch, i32::min);
    }
    let (late, without) = behind(toc, &job.plan, &epochs);
    if without.is_empty() {
        return Ok(None);
    }
    let named = |steps: &[u32]| {
        let names = |step: &u32| tell_all(toc, &job.plan, *step);
        shown(steps.iter().flat_map(names).collect(), SHOWN)
    };
    let message = "objects were made without what says how they are to be understood";
    let detail = format!(
        "Of a later run, after errors, are: {}. Made before are: {}.",
        named(&late),
        named(&without)
    );
    Ok(Some(Error::new(ErrorKind::Verify, message).detail(detail).hint(
        "All is there, but these may mean something else than where they come from. Drop them and make them again, or restore into an empty database.",
    )))
}

fn tell_all(toc: &Toc, plan: &Plan, step: u32) -> Vec<String> {
    let entries = plan.entries(step as usize);
    match entries.is_empty() {
        true => vec![tell::name(plan, toc, step)],
        false => entries.iter().map(|place| describe(&toc.entry(*place as usize))).collect(),
    }
}

/// Steps that change meanings and were done in a later epoch than some that wait for them; and these, if they may mean something by it.
fn behind(toc: &Toc, plan: &Plan, epochs: &HashMap<u32, i32>) -> (Vec<u32>, Vec<u32>) {
    let first = epochs.values().min();
    if first == epochs.values().max() {
        return Default::default();
    }
    let has = |step: u32, which: fn(&Entry) -> bool| {
        plan.entries(step as usize).iter().any(|place| which(&toc.entry(*place as usize)))
    };
    // By step: the last epoch of all such before it.
    let mut before = vec![0; plan.steps.len()];
    let mut waits = plan.waits.clone();
    let mut ready: Vec<u32> = (0..).take(waits.len()).filter(|s| waits[*s as usize] == 0).collect();
    let mut without = Vec::new();
    let mut earliest = i32::MAX;
    while let Some(step) = ready.pop() {
        let at = step as usize;
        let own = epochs.get(&step).copied().unwrap_or(0);
        if own > 0 && own < before[at] && has(step, is_understood) {
            without.push(step);
            earliest = earliest.min(own);
        }
        let told = if has(step, |entry| changes_meanings(entry.desc)) { own } else { 0 };
        for &next in plan.followers(at) {
            let next = next as usize;
            before[next] = before[next].max(before[at]).max(told);
            waits[next] -= 1;
            if waits[next] == 0 {
                ready.push(next as u32);
            }
        }
    }
    without.sort_unstable();
    let makes = |step: &u32| has(*step, |entry| changes_meanings(entry.desc));
    let late: BTreeSet<u32> =
        epochs.iter().filter(|(_, epoch)| **epoch > earliest).map(|(step, _)| *step).collect();
    (late.into_iter().filter(makes).collect(), without)
}

/// Expressions, operators or conversions are in it, which the server has looked up as it was made.
fn is_understood(entry: &Entry) -> bool {
    let has = |words: &[&[u8]]| {
        words.iter().any(|word| entry.defn.windows(word.len()).any(|part| part == *word))
    };
    match entry.desc {
        b"TABLE" | b"FOREIGN TABLE" | b"DOMAIN" => {
            has(&[b" DEFAULT ", b"CHECK (", b" GENERATED ALWAYS AS (", b"PARTITION BY "])
        }
        b"FUNCTION" | b"PROCEDURE" => has(&[b" DEFAULT ", b"BEGIN ATOMIC", b"\n    RETURN "]),
        b"TRIGGER" => has(&[b" WHEN ("]),
        b"PUBLICATION TABLE" => has(&[b" WHERE "]),
        b"VIEW"
        | b"MATERIALIZED VIEW"
        | b"MATERIALIZED VIEW DATA"
        | b"RULE"
        | b"POLICY"
        | b"DEFAULT"
        | b"CHECK CONSTRAINT"
        | b"CONSTRAINT"
        | b"FK CONSTRAINT"
        | b"INDEX"
        | b"STATISTICS" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Step, Work};

    /// A cast, a milestone behind it, a view that waits for that, a table without expressions, and a view that does not wait.
    fn found(epochs: &[(u32, i32)]) -> (Vec<u32>, Vec<u32>) {
        let mut toc = Toc::default();
        for (id, desc) in [&b"CAST"[..], b"VIEW", b"TABLE", b"VIEW"].into_iter().enumerate() {
            toc.push(&Entry { dump_id: id as i32 + 1, desc, ..Entry::default() }).unwrap();
        }
        let step =
            |work, entries| Step { work, entries, locks: 0..0, lock_count: 0, cost: 0, rank: 0 };
        let mut plan = Plan { covered: vec![0, 1, 2, 3], ..Plan::default() };
        let works = [(Work::Entries, 0..1), (Work::Milestone, 0..0)];
        let more = (1..4).map(|place| (Work::Entries, place..place + 1));
        plan.steps = works.into_iter().chain(more).map(|(work, at)| step(work, at)).collect();
        (plan.followers, plan.ends) = (vec![1, 2, 3], vec![1, 3, 3, 3, 3]);
        plan.waits = vec![0, 1, 1, 1, 0];
        behind(&toc, &plan, &epochs.iter().copied().collect())
    }

    #[test]
    fn what_was_made_without_a_cast() {
        assert_eq!(found(&[(0, 1), (2, 1), (3, 1), (4, 1)]), (vec![], vec![]));
        assert_eq!(found(&[(0, 1), (2, 2), (3, 2), (4, 2)]), (vec![], vec![]));
        assert_eq!(found(&[(0, 2), (2, 1), (3, 1), (4, 1)]), (vec![0], vec![2]));
        // What does not wait for it, or means nothing by it.
        assert_eq!(found(&[(0, 2), (2, 2), (3, 1), (4, 1)]), (vec![], vec![]));
    }
}
