//! Lines for a log: what happened, and now and then how far it is.

use super::progress::{Job, Progress};
use super::words::{ahead, bytes, count, counted, cut, duration, lines, one_line, rate};
use super::{Event, Setback};
use crate::error::Error;
use std::time::Duration;

/// How much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Errors only.
    Errors,
    /// All but single batches.
    Usual,
    /// Each batch and connection, too.
    All,
}

/// Characters of a statement that are shown.
const STATEMENT: usize = 2000;

/// A line with the time since the beginning.
pub fn stamped(now: Duration, text: &str) -> String {
    format!("firn: [{:.1} s] {text}", now.as_secs_f64())
}

/// What a log says of an event; `job` is the batch that it ends.
pub fn event(
    now: Duration,
    event: &Event,
    job: Option<&Job>,
    progress: &Progress,
    detail: Detail,
) -> Option<String> {
    if let Event::Failed { what, statement, error } = event {
        return Some(failed(what, statement, error));
    }
    if detail == Detail::Errors {
        return None;
    }
    let text = match event {
        Event::Phase(name) => name.to_string(),
        Event::Planned { steps, statements, statements_archive, bytes: stored, .. } => {
            let mut text = format!(
                "{} of the archive, {} planned, in {}",
                counted(*statements_archive, "statement", "statements"),
                count(*statements),
                counted(*steps as u64, "step", "steps")
            );
            if *stored > 0 {
                text.push_str(&format!("; {} of stored data", bytes(*stored)));
            }
            text
        }
        Event::Resumed { done, .. } => format!(
            "going on: an earlier run has done {} of {} steps",
            count(*done as u64),
            count(progress.steps as u64)
        ),
        Event::Connected { worker, pid } if detail == Detail::All => {
            format!("connection {} is server process {pid}", worker + 1)
        }
        Event::End { worker, did } if detail == Detail::All => {
            let job = job?;
            let elapsed = now.saturating_sub(job.begin);
            let mut text = format!("connection {}: {}", worker + 1, named(job));
            text.push_str(if did.ok { ": " } else { ", not all of it done: " });
            if job.rows > 0 {
                text.push_str(&format!("{}, ", counted(job.rows, "row", "rows")));
            }
            if job.bytes > 0 {
                text.push_str(&format!("{}, ", bytes(job.bytes)));
            }
            text.push_str(&duration(elapsed));
            text
        }
        Event::Skipped { what, .. } => format!("skipped: {}", one_line(what)),
        Event::Setback { setback, message, .. } => match setback {
            Setback::Reconnected | Setback::Fallback => format!("warning: {}", one_line(message)),
            Setback::OneByOne | Setback::Later => one_line(message),
        },
        Event::Note(text) => one_line(text),
        Event::Unchanged => return None,
        _ => return None,
    };
    Some(stamped(now, &text))
}

/// A batch by its first step and the number of the others.
pub fn named(job: &Job) -> String {
    let what = one_line(&job.what);
    match job.steps {
        0 | 1 => what,
        2 => format!("{what} and 1 more step"),
        n => format!("{what} and {} more steps", count(n as u64 - 1)),
    }
}

/// A failure with all that is known of it.
pub fn failed(what: &str, statement: &str, error: &Error) -> String {
    let mut out =
        format!("firn: error: could not restore {}: {}", one_line(what), lines(&error.to_string()));
    if let Some(pointer) = error.position.and_then(|p| pointer(statement, p)) {
        out.push('\n');
        out.push_str(&pointer);
    }
    if !statement.is_empty() {
        out.push_str("\nSTATEMENT:  ");
        out.push_str(&cut(&lines(statement.trim_end()), STATEMENT));
    }
    out
}

/// The line of a statement that the server points at, and a mark below the place. `position` counts characters from 1.
pub fn pointer(statement: &str, position: usize) -> Option<String> {
    let at = position.checked_sub(1)?;
    let before: String = statement.chars().take(at).collect();
    if before.chars().count() < at {
        return None;
    }
    let number = before.matches('\n').count();
    let line = statement.split('\n').nth(number)?;
    let column = before.rsplit('\n').next().map_or(0, |s| s.chars().count());
    // A part of a long line.
    let begin = column.saturating_sub(40);
    let shown: String = line.chars().skip(begin).take(80).collect();
    let shown = one_line(&shown);
    let front = format!("LINE {}: {}", number + 1, if begin > 0 { "…" } else { "" });
    let left: String = shown.chars().take(column - begin).collect();
    let blanks = front.chars().count() + super::live::width(&left);
    Some(format!("{front}{shown}\n{}^", " ".repeat(blanks)))
}

/// How far it is, in one line without the time.
pub fn progress(progress: &Progress, now: Duration) -> Option<String> {
    let phase = progress.current()?;
    let mut parts = Vec::new();
    if let Some(fraction) = progress.fraction() {
        parts.push(format!("{:.0} %", (fraction * 100.0).floor()));
    }
    parts.extend(speeds(progress, now));
    if let Some(left) = progress.left(now).filter(|_| progress.fraction().is_some()) {
        parts.push(format!("about {} left", ahead(left)));
    }
    let text = match parts.is_empty() {
        true => format!("for {}", duration(phase.length(now))),
        false => parts.join(", "),
    };
    Some(format!("{}: {text}", phase.name))
}

/// Steps, rates, and how many connections work: what there is of it.
pub fn speeds(progress: &Progress, now: Duration) -> Vec<String> {
    let mut parts = Vec::new();
    if progress.steps > 0 {
        parts.push(format!(
            "{} of {} steps",
            count(progress.settled as u64),
            count(progress.steps as u64)
        ));
    }
    let (rates, counts) = (progress.rates(now), progress.counts(now));
    if progress.steps > 0 && progress.worked.is_some() {
        if rates.statements > 0.0 {
            parts.push(format!("{} statements/s", rate(rates.statements)));
        }
        if counts.bytes > 0 {
            parts.push(format!("{} at {}/s", bytes(counts.bytes), bytes(rates.bytes as u64)));
        }
        if counts.rows > 0 {
            parts.push(counted(counts.rows, "row", "rows"));
        }
        parts.push(format!("{} of {} connections at work", progress.busy(), progress.lanes.len()));
    }
    if !progress.failed.is_empty() {
        parts.push(format!("{} failed", count(progress.failed.len() as u64)));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::report::{Costs, Did, Kind};

    #[test]
    fn the_server_points_into_statements() {
        let sql = "CREATE TABLE a (\n\tx nonsense,\n y int)";
        let position = sql.find("nonsense").unwrap() + 1;
        let pointer_text = pointer(sql, position).unwrap();
        assert_eq!(pointer_text, "LINE 2:  x nonsense,\n           ^");
        assert_eq!(pointer("a", 1).unwrap(), "LINE 1: a\n        ^");
        assert_eq!(pointer("a", 0), None);
        assert_eq!(pointer("a", 9), None);
        // Wide characters take two columns.
        assert_eq!(pointer("表 x", 3).unwrap(), "LINE 1: 表 x\n           ^");
        let long = format!("{}here{}", "a ".repeat(500), "b ".repeat(500));
        let text = pointer(&long, 1001).unwrap();
        let (line, mark) = text.split_once('\n').unwrap();
        assert_eq!(line.chars().nth(mark.chars().count() - 1), Some('h'));
        assert!(line.chars().count() < 100);
    }

    #[test]
    fn failures_say_all() {
        let mut error =
            Error::new(ErrorKind::Statement, "type \"x\" does not exist").hint("Make it.");
        error.sqlstate = Some("42704".into());
        error.position = Some(8);
        let text = failed("TABLE a.\"b\nfirn: error: forged\"", "SELECT x", &error);
        assert_eq!(
            text,
            "firn: error: could not restore TABLE a.\"b firn: error: forged\": type \"x\" does not exist \
             (SQLSTATE 42704)\nHINT:  Make it.\nLINE 1: SELECT x\n               ^\nSTATEMENT:  SELECT x"
        );
    }

    #[test]
    fn details() {
        let mut p = Progress::new(1);
        let now = Duration::from_millis(1500);
        let cost = Costs::of(Kind::Indexes, 5);
        let begin = Event::Begin { worker: 0, what: "INDEX a.i", steps: 3, cost };
        p.event(Duration::from_secs(1), &begin);
        let end = Event::End { worker: 0, did: Did { ok: true, ..Did::default() } };
        let job = p.event(now, &end);
        let say = |detail| event(now, &end, job.as_ref(), &p, detail);
        assert_eq!(say(Detail::Usual), None);
        assert_eq!(
            say(Detail::All).unwrap(),
            "firn: [1.5 s] connection 1: INDEX a.i and 2 more steps: 0.50 s"
        );
        let note = Event::Note("x");
        assert_eq!(event(now, &note, None, &p, Detail::Errors), None);
        assert_eq!(event(now, &note, None, &p, Detail::Usual).unwrap(), "firn: [1.5 s] x");
    }

    #[test]
    fn how_far() {
        let mut p = Progress::new(2);
        assert_eq!(progress(&p, Duration::ZERO), None);
        p.event(Duration::ZERO, &Event::Phase("planning"));
        assert_eq!(progress(&p, Duration::from_secs(3)).unwrap(), "planning: for 3.00 s");
        p.event(Duration::ZERO, &Event::Phase("restoring"));
        p.event(Duration::ZERO, &Event::Work { steps: 4, cost: Costs::of(Kind::Data, 4_000_000) });
        let cost = Costs::of(Kind::Data, 1_000_000);
        for second in 0..2 {
            let (begin, end) = (Duration::from_secs(second), Duration::from_secs(second + 1));
            p.event(begin, &Event::Begin { worker: 0, what: "x", steps: 1, cost });
            p.event(begin, &Event::Moved { worker: Some(0), rows: 0, bytes: 1 << 20 });
            let did = Did { steps: 1, cost, statements: 10, transactions: 1, rows: 7, ok: true };
            p.event(end, &Event::End { worker: 0, did });
            p.tick(end);
        }
        assert_eq!(
            progress(&p, Duration::from_secs(2)).unwrap(),
            "restoring: 50 %, 2 of 4 steps, 10.0 statements/s, 2.00 MB at 1.00 MB/s, 14 rows, 0 of 2 connections at \
             work, about 2 s left"
        );
    }
}
