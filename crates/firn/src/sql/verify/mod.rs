//! `firn.check()`: everything that is stored of a table is read and held against everything else.
//!
//! Nothing that is read ends the check: what is read from disk or store is read within [`attempt`], by the
//! page, by the stripe, by the index, and what that raises about data becomes a row.

mod indexes;
mod stripes;
pub mod survey;

use crate::directory::{Directory, Found};
use crate::pg::own_toast::lacks_toast;
use crate::pg::snapshot::Registered;
use crate::pg::{attempt, lock, xact, Count, LockMode, Oid, OpenRel, Phase, Progress, Rel};
use firn_format::Location;
use std::collections::BTreeMap;
use survey::{Class, Survey, CLASSES};

/// Is told severity, object and problem.
type Report<'a> = &'a mut dyn FnMut(&str, &str, &str);

/// Problems found within an attempt.
type Problems = Vec<(String, String, String)>;

/// Do `work` and report what it finds, or what it fails of.
fn gather(name: &str, report: Report<'_>, work: impl FnOnce(Report<'_>)) -> bool {
    let done = attempt(|| {
        let mut problems = Problems::new();
        work(&mut |severity, object, problem| {
            problems.push((severity.to_owned(), object.to_owned(), problem.to_owned()));
        });
        problems
    });
    match done {
        Ok(problems) => {
            problems
                .iter()
                .for_each(|(severity, object, problem)| report(severity, object, problem));
            true
        }
        Err(e) => {
            report("error", name, &format!("it cannot be checked: {}", e.text));
            false
        }
    }
}

/// Check one table; each problem is reported.
pub fn check_table(table: Rel, progress: &Progress, report: Report<'_>) {
    let name = table.name();
    if lacks_toast(table) {
        let text = "it has no TOAST relation, so it can have no stripes";
        report("warning", &format!("table {name}"), text);
    }
    let Some(toast) = table.toast_oid() else { return };
    progress.phase(Phase::CheckingStripes);
    let snapshot = Registered::latest();
    let survey = survey::take(toast, snapshot.snap(), &mut |_, _, _, _| ());
    report_structure(&survey, toast, &name, report);
    check_contents(table, &survey, progress, report);
}

/// Check what a survey has listed: pages and directory rows, stripes, and the table's indexes.
pub fn check_contents(table: Rel, survey: &Survey, progress: &Progress, report: Report<'_>) {
    let name = table.name();
    for (block, why) in &survey.unreadable_pages {
        let rows_of = format!("TOAST relation of {name}");
        report("error", &rows_of, &format!("its page {block} cannot be read: {why}"));
    }
    for (slot, why) in &survey.unreadable_entries {
        let stripe = format!("stripe {slot} of {name}");
        report("error", &stripe, &format!("its directory row {why}"));
    }
    progress.set(Count::StripesTotal, survey.stripes.len() as u64);
    progress.set(Count::BytesTotal, survey.stripes.iter().map(|f| f.entry.bytes).sum());
    check_stripes(table, survey, progress, report);
    progress.phase(Phase::CheckingIndexes);
    indexes::check(table, survey, progress, report);
}

/// Rows and indexes of the TOAST relation as such.
fn report_structure(survey: &Survey, toast: Oid, name: &str, report: Report<'_>) {
    let rows_of = format!("TOAST relation of {name}");
    report_toast_indexes(survey, toast, &rows_of, report);
    if survey.strangers > 0 {
        let text = format!("{} of its rows have keys that nobody gives", survey.strangers);
        report("error", &rows_of, &text);
    }
    for (class, what) in CLASSES {
        let doubled = survey.doubled[class as usize];
        if doubled > 0 {
            report(
                "error",
                &rows_of,
                &format!("{doubled} of its {what} have a key that another has"),
            );
        }
    }
    if !survey.is_complete() {
        return;
    }
    for (class, what) in CLASSES {
        let orphans = survey.orphans[class as usize];
        if orphans.rows == 0 {
            continue;
        }
        // A list that leads nowhere may be followed.
        let severity = if class == Class::Forwarding { "error" } else { "warning" };
        let (rows, bytes) = (orphans.rows, orphans.bytes);
        report(severity, &rows_of, &format!("{rows} {what} ({bytes} bytes) belong to no stripe"));
    }
    if survey.stale_lists > 0 {
        let text = format!("{} forwarding lists are older than any snapshot", survey.stale_lists);
        report("warning", &rows_of, &text);
    }
}

fn report_toast_indexes(survey: &Survey, toast: Oid, rows_of: &str, report: Report<'_>) {
    let valid = survey.indexes.iter().filter(|i| i.valid).count();
    if valid != 1 {
        report("error", rows_of, &format!("it has {valid} valid indexes instead of one"));
    }
    let unusable: Vec<_> = survey.indexes.iter().filter(|i| !i.valid || !i.ready).collect();
    // REINDEX CONCURRENTLY has one while it runs. (A standby does not know who holds such a lock on the primary.)
    let is_standby = xact::is_in_recovery();
    let at_work = !unusable.is_empty()
        && !is_standby
        && lock::is_held_by_others(
            OpenRel::open(toast, LockMode::AccessShare).rel(),
            LockMode::ShareUpdateExclusive,
        );
    let what = match is_standby {
        true => "REINDEX CONCURRENTLY is at work on the primary, or left it",
        false => "REINDEX CONCURRENTLY left it",
    };
    for index in unusable.iter().filter(|_| !at_work) {
        // Rows are right without one that nobody reads.
        let level = if index.valid { "error" } else { "warning" };
        report(level, &format!("index {}", index.name), &format!("it is invalid; {what}"));
    }
    for trouble in &survey.index_trouble {
        report("error", &format!("index of {rows_of}"), trouble);
    }
    if survey.astray > 0 {
        let text = format!("{} of its entries lead to rows of another key", survey.astray);
        report("error", &format!("index of {rows_of}"), &text);
    }
    if survey.doubtful > 0 {
        let text = format!("the keys of {} of its rows may be damaged", survey.doubtful);
        report("error", rows_of, &text);
    }
    let unindexed = survey.unindexed();
    if unindexed > 0 {
        report(
            "error",
            &format!("index of {rows_of}"),
            &format!("it lacks entries of {unindexed} rows"),
        );
    }
}

/// Each stripe by itself, and its place among the others.
fn check_stripes(table: Rel, survey: &Survey, progress: &Progress, report: Report<'_>) {
    let mut end_of_last = 0u64;
    // Stores that gave no answer, and how many stripes were left out for that.
    let mut silent: BTreeMap<String, u64> = BTreeMap::new();
    for (at, found) in survey.stripes.iter().enumerate() {
        xact::check_for_interrupts();
        let name = format!("stripe {} of {}", found.slot.0, table.name());
        if u64::from(found.slot.0) < end_of_last {
            report("error", &name, "its row addresses overlap the stripe before it");
        }
        end_of_last = u64::from(found.slot.0) + u64::from(found.entry.blocks);
        check_addresses(survey, at, &name, report);
        let server = match &found.entry.location {
            Location::Object { server, .. } => Some(server),
            Location::Chunks { .. } => None,
        };
        if let Some(left_out) = server.and_then(|s| silent.get_mut(s)) {
            *left_out += 1;
        } else if let Some(server) = check_stripe(table, found, &name, report) {
            silent.insert(server, 0);
        }
        progress.add(Count::StripesDone, 1);
        progress.add(Count::RowsDone, u64::from(found.entry.rows));
        progress.add(Count::BytesDone, found.entry.bytes);
    }
    for (server, left_out) in silent.iter().filter(|(_, n)| **n > 0) {
        let text = format!("its store gave no answer; {left_out} more stripes were not checked");
        report("error", &format!("server {server}"), &text);
    }
}

/// Check one stripe. Returns its server if its store gave no answer.
fn check_stripe(table: Rel, found: &Found, name: &str, report: Report<'_>) -> Option<String> {
    let done = attempt(|| {
        let mut problems = Problems::new();
        if let Some(directory) = Directory::open(table, LockMode::AccessShare) {
            directory.toast.read_in_bulk();
            stripes::check(table, &directory, found, name, &mut |severity, object, problem| {
                problems.push((severity.to_owned(), object.to_owned(), problem.to_owned()));
            });
        }
        problems
    });
    match done {
        Ok(problems) => {
            problems
                .iter()
                .for_each(|(severity, object, problem)| report(severity, object, problem));
            None
        }
        Err(e) => {
            report("error", name, &e.text);
            match &found.entry.location {
                Location::Object { server, .. } if e.unanswered => Some(server.clone()),
                _ => None,
            }
        }
    }
}

/// Addresses that a stripe has must have been given out, and its chunks must be seen by whoever sees it.
fn check_addresses(survey: &Survey, at: usize, name: &str, report: Report<'_>) {
    let found = &survey.stripes[at];
    let (chunks, there) = (survey::chunk_count(found), survey.chunks[at]);
    if survey.by_key && there < chunks {
        let text = format!("{} of its {chunks} chunks are missing or dead", chunks - there);
        report("error", name, &text);
    }
    let Some((next_block, next_address)) = survey.allocated else {
        let text = match survey.on_pages[Class::Allocation as usize] {
            0 => "the table's allocation row is missing",
            _ => "the table's allocation row is damaged, or of a newer version of firn",
        };
        return report("error", name, text);
    };
    if u64::from(found.slot.0) + u64::from(found.entry.blocks) > next_block {
        report("error", name, "its row addresses were never given out and will be given to others");
    }
    if let Location::Chunks { address, .. } = found.entry.location {
        if address.saturating_add(chunks.into()) > next_address {
            report(
                "error",
                name,
                "its chunk addresses were never given out and will be given to others",
            );
        }
    }
}

impl Survey {
    /// All directory rows are known, so what they do not name belongs to nothing. Where a row's key may be damaged, it may be one of
    /// them.
    pub fn is_complete(&self) -> bool {
        let keys_are_sound = self.by_key && self.astray == 0 && self.unindexed() == 0;
        keys_are_sound
            && self.strangers == 0
            && self.unreadable_pages.is_empty()
            && self.unreadable_entries.is_empty()
    }
}
