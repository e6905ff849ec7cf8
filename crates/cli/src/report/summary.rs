//! How it went, as a table for people.

use super::live::width;
use super::progress::Progress;
use super::words::{bytes, count, counted, cut, duration, one_line};
use super::{Kind, Setback};
use std::fmt::Write;
use std::time::Duration;

/// Statements of the archive that were not needed; `None` if that cannot be said as not all was done in this run.
pub fn saved(progress: &Progress) -> Option<u64> {
    let planned = progress.planned?;
    let whole = progress.complete && progress.resumed == 0;
    (whole && planned.statements_archive > 0).then(|| {
        planned.statements_archive.saturating_sub(progress.counts(Duration::ZERO).statements)
    })
}

/// Name and value of each line below the tables of times.
pub fn facts(progress: &Progress, now: Duration) -> Vec<(&'static str, String)> {
    let counts = progress.counts(now);
    let mut facts = Vec::new();
    if let Some(planned) = progress.planned.filter(|p| p.statements_archive > 0) {
        let mut text = format!(
            "{} in the archive, {} run",
            count(planned.statements_archive),
            count(counts.statements)
        );
        if let Some(saved) = saved(progress) {
            let percent = saved as f64 * 100.0 / planned.statements_archive as f64;
            write!(text, ", {} saved ({percent:.0} %)", count(saved)).ok();
        }
        facts.push(("statements", text));
    }
    if progress.resumed > 0 {
        let done = counted(progress.resumed as u64, "step", "steps");
        facts.push(("earlier run", format!("{done} done by it")));
    }
    if progress.transactions > 0 {
        facts.push(("transactions", count(progress.transactions)));
    }
    if let Some(parallelism) = progress.parallelism() {
        let lanes = progress.lanes.len();
        facts.push((
            "parallelism",
            format!(
                "{parallelism:.2} of {} at work on average ({:.0} %)",
                counted(lanes as u64, "connection", "connections"),
                parallelism * 100.0 / lanes.max(1) as f64
            ),
        ));
    }
    if counts.rows > 0 || counts.bytes > 0 {
        let mut text = format!("{}, {}", counted(counts.rows, "row", "rows"), bytes(counts.bytes));
        let busy = progress.kinds[Kind::Data as usize].busy.as_secs_f64();
        let wall = progress.worked.map_or(0.0, |(b, e)| e.saturating_sub(b).as_secs_f64());
        if counts.bytes > 0 && busy > 0.0 && wall > 0.0 {
            write!(text, ", {}/s for each connection", bytes((counts.bytes as f64 / busy) as u64))
                .ok();
        }
        facts.push(("data", text));
    }
    facts.extend(progress.facts.iter().map(|(name, value)| (*name, value.clone())));
    let trouble = setbacks(progress);
    if !trouble.is_empty() {
        facts.push(("setbacks", trouble));
    }
    facts
}

fn setbacks(progress: &Progress) -> String {
    let parts = Setback::ALL.into_iter().filter_map(|setback| {
        let n = progress.setbacks[setback as usize];
        let text = match setback {
            Setback::Reconnected => counted(n, "connection made again", "connections made again"),
            Setback::OneByOne => counted(n, "batch done step by step", "batches done step by step"),
            Setback::Fallback => counted(n, "rewrite given up", "rewrites given up"),
            Setback::Later => counted(n, "step put off", "steps put off"),
        };
        (n > 0).then_some(text)
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// Lines with a name at the left and the value behind it.
struct Rows {
    out: String,
    /// Of the names.
    width: usize,
}

impl Rows {
    fn add(&mut self, name: &str, value: &str) {
        writeln!(self.out, "{}{name}  {value}", " ".repeat(self.width.saturating_sub(width(name))))
            .ok();
    }
}

/// The table, without a line's end at its end.
pub fn text(progress: &Progress, now: Duration) -> String {
    let names: Vec<String> = progress.phases.iter().map(|p| cut(&one_line(&p.name), 60)).collect();
    let widest = names.iter().map(|n| width(n)).max().unwrap_or(0).max(20);
    let mut rows = Rows { out: String::new(), width: widest };
    for (phase, name) in progress.phases.iter().zip(&names) {
        rows.add(name, &format!("{:>12}", duration(phase.length(now))));
    }
    rows.add("total", &format!("{:>12}", duration(now)));
    rows.out.push('\n');
    let busy: Vec<_> =
        Kind::ALL.into_iter().filter(|k| progress.kinds[*k as usize].batches > 0).collect();
    if busy.len() > 1 {
        for kind in busy {
            let of = progress.kinds[kind as usize];
            let value = format!(
                "{:>12} of connections, {}",
                duration(of.busy),
                counted(of.batches, "batch", "batches")
            );
            rows.add(kind.name(), &value);
        }
        rows.out.push('\n');
    }
    for (name, value) in facts(progress, now) {
        rows.add(name, &value);
    }
    for (n, slow) in progress.slowest.iter().take(5).enumerate() {
        let mut what = cut(&one_line(&slow.what), 100);
        if slow.steps > 1 {
            let more = counted(slow.steps as u64 - 1, "more step", "more steps");
            write!(what, " and {more}").ok();
        }
        let name = if n == 0 { "slowest" } else { "" };
        rows.add(name, &format!("{:>12}  {what}", duration(slow.elapsed)));
    }
    rows.out.trim_end().to_string()
}

/// What is missing: a line for each failure and each object that was skipped.
pub fn missing(progress: &Progress) -> Vec<String> {
    let failed = progress.failed.iter().map(|f| {
        let state = f.error.sqlstate.as_ref().map_or(String::new(), |s| format!(" (SQLSTATE {s})"));
        format!("firn: failed: {}: {}{state}", one_line(&f.what), one_line(&f.error.message))
    });
    let skipped = progress.skipped.iter().map(|s| format!("firn: skipped: {}", one_line(s)));
    failed.chain(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::report::{Costs, Did, Event};

    fn run() -> Progress {
        let mut p = Progress::new(2);
        let at = Duration::from_secs;
        p.event(at(0), &Event::Phase("planning"));
        let (statements, statements_archive) = (900, 2000);
        p.event(
            at(1),
            &Event::Planned { steps: 5, entries: 9, statements, statements_archive, bytes: 5 },
        );
        p.event(at(1), &Event::Phase("restoring"));
        for (n, kind) in [Kind::Schema, Kind::Data, Kind::Indexes].into_iter().enumerate() {
            let (worker, cost) = (n % 2, Costs::of(kind, 10));
            let begin = at(1 + n as u64);
            p.event(begin, &Event::Begin { worker, what: kind.name(), steps: 1 + n, cost });
            if kind == Kind::Data {
                p.event(begin, &Event::Moved { worker: Some(worker), rows: 0, bytes: 4 << 20 });
            }
            let did =
                Did { steps: 1, cost, statements: 400, transactions: 1, rows: n as u64, ok: true };
            p.event(begin + at(1 + n as u64), &Event::End { worker, did });
        }
        p
    }

    #[test]
    fn tables() {
        let mut p = run();
        p.event(
            Duration::from_secs(7),
            &Event::Setback { worker: 0, setback: Setback::Later, message: "" },
        );
        p.event(Duration::from_secs(8), &Event::Finished);
        let expected = "\
            \x20           planning        1.00 s\n\
            \x20          restoring        7.00 s\n\
            \x20              total        8.00 s\n\
            \n\
            \x20             schema        1.00 s of connections, 1 batch\n\
            \x20               data        2.00 s of connections, 1 batch\n\
            \x20            indexes        3.00 s of connections, 1 batch\n\
            \n\
            \x20         statements  2,000 in the archive, 1,200 run, 800 saved (40 %)\n\
            \x20       transactions  3\n\
            \x20        parallelism  1.20 of 2 connections at work on average (60 %)\n\
            \x20               data  3 rows, 4.00 MB, 2.00 MB/s for each connection\n\
            \x20           setbacks  1 step put off\n\
            \x20            slowest        3.00 s  indexes and 2 more steps\n\
            \x20                           2.00 s  data and 1 more step\n\
            \x20                           1.00 s  schema";
        assert_eq!(text(&p, Duration::from_secs(8)), expected);
    }

    #[test]
    fn nothing_is_saved_by_what_was_not_done() {
        let mut p = run();
        assert_eq!(saved(&p), None);
        p.event(Duration::from_secs(8), &Event::Finished);
        assert_eq!(saved(&p), Some(800));
        p.resumed = 3;
        assert_eq!(saved(&p), None);
    }

    #[test]
    fn what_is_missing_is_listed() {
        let mut p = run();
        let mut error = Error::new(ErrorKind::Statement, "no\nway");
        error.sqlstate = Some("42501".into());
        p.event(Duration::ZERO, &Event::Failed { what: "TABLE a", statement: "", error: &error });
        p.event(Duration::ZERO, &Event::Skipped { what: "INDEX a" });
        assert_eq!(
            missing(&p),
            ["firn: failed: TABLE a: no way (SQLSTATE 42501)", "firn: skipped: INDEX a"]
        );
    }
}
