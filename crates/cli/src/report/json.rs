//! One JSON object per line, for programs. The names of fields are documented in docs/guide/restore.md and stay.

use super::progress::{Job, Progress, Slow};
use super::reporter::Verdict;
use super::words::moment;
use super::{Event, Kind, Setback};
use crate::error::Error;
use serde_json::{json, Map, Value};
use std::time::{Duration, SystemTime};

/// How much of it.
pub use super::lines::Detail;

/// When a line is written.
#[derive(Clone, Copy, Debug)]
pub struct When {
    pub time: SystemTime,
    /// Since the beginning.
    pub elapsed: Duration,
}

/// Seconds with milliseconds.
fn seconds(time: Duration) -> Value {
    json!((time.as_secs_f64() * 1000.0).round() / 1000.0)
}

/// A rate with one decimal.
fn per_second(rate: f64) -> Value {
    json!((rate * 10.0).round() / 10.0)
}

/// A line: the event's name and the time, then its own fields.
pub fn line(when: When, name: &str, fields: Value) -> String {
    let head = format!(
        "{{\"event\":{},\"time\":{},\"elapsed\":{}",
        json!(name),
        json!(moment(when.time)),
        seconds(when.elapsed)
    );
    let fields = fields.to_string();
    // An object, so the first and the last character are its braces.
    match fields.strip_prefix('{') {
        None | Some("}") => format!("{head}}}"),
        Some(rest) => format!("{head},{rest}"),
    }
}

/// An error by its parts; what is not known of it is null.
pub fn error_fields(error: &Error) -> Value {
    json!({
        "message": error.message,
        "sqlstate": error.sqlstate,
        "detail": error.detail,
        "hint": error.hint,
        "context": error.context,
        "position": error.position,
    })
}

fn with(mut fields: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
        fields.extend(more);
    }
    fields
}

/// The line of an event, if it has one; `job` is the batch that it ends.
pub fn event(
    when: When,
    event: &Event,
    job: Option<&Job>,
    progress: &Progress,
    detail: Detail,
) -> Option<String> {
    let (name, fields) = match event {
        Event::Failed { what, statement, error } => {
            ("failed", with(json!({ "object": what, "statement": statement }), error_fields(error)))
        }
        Event::Skipped { what } => ("skipped", json!({ "object": what })),
        Event::Anew => ("anew", json!({})),
        _ if detail == Detail::Errors => return None,
        Event::Phase(name) => ("phase", json!({ "phase": name })),
        Event::Target { database, server_version } => {
            ("target", json!({ "database": database, "server_version": server_version }))
        }
        Event::Planned { steps, entries, statements, statements_archive, bytes } => (
            "plan",
            json!({
                "steps": steps, "entries": entries, "statements_planned": statements,
                "statements_archive": statements_archive, "stored_bytes": bytes,
            }),
        ),
        Event::Work { steps, cost } => {
            ("work", json!({ "steps": steps, "estimated_seconds": seconds(micros(cost.total())) }))
        }
        Event::Resumed { done, .. } => {
            ("resumed", json!({ "steps_done": done, "steps": progress.steps }))
        }
        Event::Connected { worker, pid } => {
            ("connected", json!({ "connection": worker + 1, "pid": pid }))
        }
        Event::Setback { worker, setback, message } => (
            "setback",
            json!({ "connection": worker + 1, "kind": setback.name(), "message": message }),
        ),
        Event::Fact { name, value } => ("fact", json!({ "name": name, "value": value })),
        Event::Note(message) => ("note", json!({ "message": message })),
        Event::Unchanged => ("unchanged", json!({})),
        Event::Begin { worker, what, steps, cost } if detail == Detail::All => (
            "batch_begin",
            json!({
                "connection": worker + 1, "object": what, "steps": steps,
                "kind": cost.main().unwrap_or_default().name(),
            }),
        ),
        Event::End { worker, did } if detail == Detail::All => {
            let job = job?;
            (
                "batch_end",
                json!({
                    "connection": worker + 1, "object": job.what, "steps": job.steps, "kind": job.kind().name(),
                    "seconds": seconds(when.elapsed.saturating_sub(job.begin)), "statements": did.statements,
                    "rows": job.rows, "bytes": job.bytes, "ok": did.ok,
                }),
            )
        }
        _ => return None,
    };
    Some(line(when, name, fields))
}

fn micros(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// How far it is.
pub fn progress(when: When, progress: &Progress) -> Option<String> {
    let now = when.elapsed;
    let phase = progress.current()?;
    let (counts, rates) = (progress.counts(now), progress.rates(now));
    let lanes = progress.lanes.iter().enumerate().map(|(number, lane)| {
        let fields = json!({ "connection": number + 1, "pid": lane.pid });
        match &lane.job {
            Some(job) => with(
                fields,
                json!({
                    "object": job.what, "kind": job.kind().name(), "steps": job.steps,
                    "seconds": seconds(now.saturating_sub(job.begin)), "bytes": job.bytes,
                }),
            ),
            None => with(
                fields,
                json!({ "object": null, "seconds": seconds(now.saturating_sub(lane.idle_since)) }),
            ),
        }
    });
    let fields = json!({
        "phase": phase.name,
        "percent": progress.fraction().map(|f| (f * 1000.0).floor() / 10.0),
        "eta_seconds": progress.left(now).map(seconds),
        "steps_done": progress.settled,
        "steps": progress.steps,
        "statements": counts.statements,
        "statements_per_second": per_second(rates.statements),
        "bytes": counts.bytes,
        "bytes_per_second": per_second(rates.bytes),
        "rows": counts.rows,
        "rows_per_second": per_second(rates.rows),
        "connections_busy": progress.busy(),
        "failed": progress.failed.len(),
        "skipped": progress.skipped.len(),
        "connections": lanes.collect::<Vec<_>>(),
    });
    Some(line(when, "progress", fields))
}

/// How it went: the last line.
pub fn summary(when: When, progress: &Progress, verdict: &Verdict) -> String {
    let now = when.elapsed;
    let counts = progress.counts(now);
    let phases = progress
        .phases
        .iter()
        .map(|p| json!({ "phase": p.name, "seconds": seconds(p.length(now)) }))
        .collect::<Vec<_>>();
    let kinds = Kind::ALL.into_iter().filter_map(|kind| {
        let of = &progress.kinds[kind as usize];
        (of.batches > 0 || !of.busy.is_zero()).then(|| {
            json!({ "kind": kind.name(), "connection_seconds": seconds(of.busy), "batches": of.batches })
        })
    });
    let setbacks: Map<String, Value> = Setback::ALL
        .into_iter()
        .map(|s| (s.name().to_string(), json!(progress.setbacks[s as usize])))
        .collect();
    let slowest = progress.slowest.iter().map(slow).collect::<Vec<_>>();
    let failed = progress.failed.iter().map(|f| {
        with(json!({ "object": f.what, "statement": f.statement }), error_fields(&f.error))
    });
    let planned = progress.planned.unwrap_or_default();
    let fields = json!({
        "complete": verdict.complete,
        "message": verdict.text,
        "hint": verdict.hint,
        "seconds": seconds(now),
        "phases": phases,
        "kinds": kinds.collect::<Vec<_>>(),
        "entries": planned.entries,
        "statements_archive": planned.statements_archive,
        "statements_run": counts.statements,
        "statements_saved": super::summary::saved(progress),
        "transactions": progress.transactions,
        "batches": progress.batches,
        "steps_resumed": progress.resumed,
        "connections": progress.lanes.len(),
        "parallelism": progress.parallelism().map(|p| (p * 100.0).round() / 100.0),
        "rows": counts.rows,
        "bytes": counts.bytes,
        "setbacks": setbacks,
        "notes": progress.notes,
        "slowest": slowest,
        "failed": failed.collect::<Vec<_>>(),
        "skipped": progress.skipped,
    });
    line(when, "summary", fields)
}

fn slow(slow: &Slow) -> Value {
    json!({
        "object": slow.what, "kind": slow.kind.name(), "connection": slow.worker + 1, "steps": slow.steps,
        "seconds": seconds(slow.elapsed), "rows": slow.rows, "bytes": slow.bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::report::{Costs, Did};

    fn when() -> When {
        When { time: SystemTime::UNIX_EPOCH, elapsed: Duration::from_micros(1_234_567) }
    }

    fn parsed(text: &str) -> Value {
        assert!(!text.contains('\n'), "{text}");
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn any_name_can_be_read_back() {
        let p = Progress::new(1);
        for name in [
            "a\"b\\c\nd\te\r",
            "\u{0}\u{1}\u{1f}\u{7f}\u{2028}",
            "</script><!--",
            "Größe 表 🦀",
            &String::from_utf8_lossy(b"latin \xe4\xf6"),
        ] {
            let text = event(when(), &Event::Skipped { what: name }, None, &p, Detail::Usual);
            let found = parsed(&text.unwrap());
            assert_eq!(found["object"], name);
            assert_eq!(found["elapsed"], 1.235);
            assert_eq!(found["time"], "1970-01-01T00:00:00.000Z");
        }
    }

    #[test]
    fn errors_have_all_fields() {
        let mut error = Error::new(ErrorKind::Statement, "no").detail("d");
        error.sqlstate = Some("42P01".into());
        let failed = Event::Failed { what: "TABLE x", statement: "SELECT", error: &error };
        let p = Progress::new(1);
        let found = parsed(&event(when(), &failed, None, &p, Detail::Errors).unwrap());
        assert_eq!(found["sqlstate"], "42P01");
        assert!(found["hint"].is_null() && found.get("hint").is_some());
        assert_eq!(found["statement"], "SELECT");
    }

    #[test]
    fn batches_only_on_request() {
        let mut p = Progress::new(1);
        let cost = Costs::of(Kind::Data, 5);
        let begin = Event::Begin { worker: 0, what: "TABLE DATA x", steps: 1, cost };
        assert_eq!(event(when(), &begin, None, &p, Detail::Usual), None);
        p.event(Duration::ZERO, &begin);
        let running = parsed(&{
            p.event(Duration::ZERO, &Event::Phase("restoring"));
            progress(when(), &p).unwrap()
        });
        assert_eq!(running["connections"][0]["object"], "TABLE DATA x");
        assert_eq!(running["connections"][0]["seconds"], 1.235);
        assert!(running["percent"].is_null());
        let did = Did { steps: 1, cost, statements: 2, transactions: 1, rows: 9, ok: true };
        let end = Event::End { worker: 0, did };
        let job = p.event(when().elapsed, &end);
        let found = parsed(&event(when(), &end, job.as_ref(), &p, Detail::All).unwrap());
        assert_eq!((&found["rows"], &found["kind"]), (&json!(9), &json!("data")));
        let verdict = Verdict { complete: false, text: "no".into(), hint: None };
        let found = parsed(&summary(when(), &p, &verdict));
        assert_eq!(found["complete"], false);
        assert_eq!(found["rows"], 9);
        assert_eq!(found["setbacks"]["fallback"], 0);
    }
}
