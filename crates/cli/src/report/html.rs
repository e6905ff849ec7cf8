//! The report as one HTML file: nothing is loaded, nothing is run; drawings are SVG within it. It is well-formed XML,
//! too, so that programs can read it.

use super::progress::Progress;
use super::reporter::{Settings, Verdict};
use super::summary;
use super::words::{bytes, count, counted, cut, duration, lines, moment, one_line};
use super::Kind;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

mod chart;

const STYLE: &str = include_str!("html/page.css");
/// Skipped objects that are listed; there can be a hundred thousand.
const LISTED: usize = 2000;
/// Characters of a failed statement.
const STATEMENT: usize = 4000;

/// Text for HTML and XML, in elements and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Characters that XML cannot have.
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A name for one line, escaped.
fn name(text: &str) -> String {
    escape(&one_line(text))
}

/// The whole page.
pub fn page(
    settings: &Settings,
    progress: &Progress,
    now: Duration,
    begun: SystemTime,
    verdict: &Verdict,
) -> String {
    let mut out = String::new();
    let title = format!("firn {} of {}", settings.command, one_line(&settings.archive));
    let begin = moment(begun);
    // Seconds are enough here.
    let begin = begin.replace('T', " ");
    let begin = begin.split('.').next().unwrap_or_default();
    let database = progress.database.as_ref().map(|d| format!("database {}, ", name(d)));
    write!(
        out,
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\" />\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\" />\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
         <p class=\"soft\">{}{begin} UTC, {}, firn {}</p>\n\
         <p class=\"verdict {}\">{}</p>\n",
        database.unwrap_or_default(),
        counted(settings.jobs as u64, "connection", "connections"),
        env!("CARGO_PKG_VERSION"),
        if verdict.complete { "good" } else { "bad" },
        name(&verdict.text),
        title = escape(&title),
    )
    .ok();
    tiles(&mut out, progress, now);
    if !progress.timeline.is_empty() {
        out.push_str("<h2>What each connection did</h2>\n");
        legend(&mut out, progress);
        out.push_str("<div class=\"scroll\">\n");
        chart::timeline(&mut out, progress, now);
        out.push_str("</div>\n<h2>Connections at work</h2>\n<div class=\"scroll\">\n");
        chart::load(&mut out, progress, now);
        out.push_str("</div>\n");
    }
    out.push_str("<div class=\"tables\">\n");
    phases(&mut out, progress, now);
    kinds(&mut out, progress);
    out.push_str("</div>\n");
    slowest(&mut out, progress);
    numbers(&mut out, progress, now);
    missing(&mut out, progress);
    out.push_str("</body>\n</html>\n");
    out
}

fn tiles(out: &mut String, progress: &Progress, now: Duration) {
    let counts = progress.counts(now);
    let mut tiles = vec![(duration(now), "in all".to_string())];
    if let Some(planned) = progress.planned.filter(|p| p.statements_archive > 0) {
        let archive = count(planned.statements_archive);
        tiles.push((count(counts.statements), format!("statements run, {archive} in the archive")));
    }
    if progress.transactions > 0 {
        tiles.push((count(progress.transactions), "transactions".into()));
    }
    if let Some(parallelism) = progress.parallelism() {
        let all = progress.lanes.len();
        tiles.push((
            format!("{parallelism:.2}"),
            format!("of {all} connections at work on average"),
        ));
    }
    if counts.rows > 0 {
        tiles.push((count(counts.rows), "rows".into()));
    }
    if counts.bytes > 0 {
        tiles.push((bytes(counts.bytes), "of data".into()));
    }
    out.push_str("<div class=\"tiles\">\n");
    for (value, what) in tiles {
        writeln!(
            out,
            "<div class=\"tile\"><b>{}</b><span>{}</span></div>",
            escape(&value),
            escape(&what)
        )
        .ok();
    }
    out.push_str("</div>\n");
}

fn used(progress: &Progress) -> impl Iterator<Item = Kind> + '_ {
    Kind::ALL.into_iter().filter(|k| !progress.kinds[*k as usize].busy.is_zero())
}

fn legend(out: &mut String, progress: &Progress) {
    out.push_str("<p class=\"soft\">");
    for kind in used(progress) {
        let name = kind.name();
        write!(out, "<span class=\"key {name}\"></span>{name} &#160; ").ok();
    }
    out.push_str("</p>\n");
}

fn phases(out: &mut String, progress: &Progress, now: Duration) {
    out.push_str("<section>\n<h2>Phases</h2>\n<table>\n<tr><th>phase</th><th class=\"n\">time</th><th class=\"n\">share</th></tr>\n");
    for phase in &progress.phases {
        let length = phase.length(now);
        let share = length.as_secs_f64() * 100.0 / now.as_secs_f64().max(1e-9);
        writeln!(
            out,
            "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{share:.0} %</td></tr>",
            name(&phase.name),
            duration(length)
        )
        .ok();
    }
    out.push_str("</table>\n</section>\n");
}

fn kinds(out: &mut String, progress: &Progress) {
    if used(progress).next().is_none() {
        return;
    }
    out.push_str(
        "<section>\n<h2>Work</h2>\n<table>\n<tr><th>kind</th><th class=\"n\">connection time</th>\
         <th class=\"n\">batches</th></tr>\n",
    );
    for kind in used(progress) {
        let (of, name) = (progress.kinds[kind as usize], kind.name());
        writeln!(
            out,
            "<tr><td><span class=\"key {name}\"></span>{name}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            duration(of.busy),
            count(of.batches)
        )
        .ok();
    }
    out.push_str("</table>\n</section>\n");
}

fn slowest(out: &mut String, progress: &Progress) {
    if progress.slowest.is_empty() {
        return;
    }
    out.push_str(
        "<h2>Slowest</h2>\n<table>\n<tr><th class=\"n\">time</th><th>kind</th><th>object</th><th class=\"n\">steps</th>\
         <th class=\"n\">rows</th><th class=\"n\">data</th><th class=\"n\">connection</th></tr>\n",
    );
    for slow in &progress.slowest {
        let kind = slow.kind.name();
        writeln!(
            out,
            "<tr><td class=\"n\">{}</td><td><span class=\"key {kind}\"></span>{kind}</td><td>{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            duration(slow.elapsed),
            name(&slow.what),
            count(slow.steps as u64),
            if slow.rows > 0 { count(slow.rows) } else { String::new() },
            if slow.bytes > 0 { bytes(slow.bytes) } else { String::new() },
            slow.worker + 1
        )
        .ok();
    }
    out.push_str("</table>\n");
}

fn numbers(out: &mut String, progress: &Progress, now: Duration) {
    let facts = summary::facts(progress, now);
    if facts.is_empty() {
        return;
    }
    out.push_str("<h2>In numbers</h2>\n<table>\n");
    for (what, value) in facts {
        writeln!(out, "<tr><th>{}</th><td>{}</td></tr>", escape(what), escape(&value)).ok();
    }
    out.push_str("</table>\n");
}

/// Last, as in the log: what is not there.
fn missing(out: &mut String, progress: &Progress) {
    if !progress.failed.is_empty() {
        out.push_str("<h2 class=\"bad\">Failed</h2>\n<table>\n");
        for failed in &progress.failed {
            write!(
                out,
                "<tr><td><b>{}</b><br />{}",
                name(&failed.what),
                escape(&lines(&failed.error.to_string())).replace('\n', "<br />")
            )
            .ok();
            if !failed.statement.is_empty() {
                let statement = escape(&cut(&lines(&failed.statement), STATEMENT));
                write!(out, "<pre>{statement}</pre>").ok();
            }
            out.push_str("</td></tr>\n");
        }
        out.push_str("</table>\n");
    }
    if !progress.skipped.is_empty() {
        out.push_str(
            "<h2 class=\"bad\">Skipped, as something that they need, or may only come after, failed</h2>\n<table>\n",
        );
        for skipped in progress.skipped.iter().take(LISTED) {
            writeln!(out, "<tr><td>{}</td></tr>", name(skipped)).ok();
        }
        if let Some(more) = progress.skipped.len().checked_sub(LISTED).filter(|n| *n > 0) {
            writeln!(out, "<tr><td>and {} more; the log lists all</td></tr>", count(more as u64))
                .ok();
        }
        out.push_str("</table>\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::report::{Costs, Did, Event};

    #[test]
    fn names_cannot_break_out() {
        assert_eq!(
            escape("<a href=\"x\" id='y'>&"),
            "&lt;a href=&quot;x&quot; id=&#39;y&#39;&gt;&amp;"
        );
        assert_eq!(name("a\u{0}\n<"), "a\u{fffd} &lt;");
    }

    /// Each tag that opens closes; enough of a check here, tests/restore reads reports with an XML parser.
    fn balanced(page: &str) {
        let mut open = Vec::new();
        for part in page.split('<').skip(1) {
            let (tag, _) = part.split_once('>').unwrap_or_else(|| panic!("<{part}"));
            if tag.starts_with('!') || tag.ends_with('/') {
                continue;
            }
            match tag.strip_prefix('/') {
                Some(end) => assert_eq!(open.pop(), Some(end)),
                None => open.push(tag.split_whitespace().next().unwrap()),
            }
        }
        assert!(open.is_empty(), "{open:?}");
    }

    fn show(progress: &Progress, now: Duration) -> String {
        let settings = Settings {
            command: "restore",
            archive: "<a>&b".into(),
            jobs: 2,
            ..Settings::default()
        };
        let verdict =
            Verdict { complete: false, text: "restore NOT complete: x".into(), hint: None };
        page(&settings, progress, now, SystemTime::UNIX_EPOCH, &verdict)
    }

    #[test]
    fn pages_are_whole_even_with_nothing_done() {
        let mut p = Progress::new(2);
        balanced(&show(&p, Duration::ZERO));
        p.event(Duration::ZERO, &Event::Phase("planning <"));
        let error = Error::new(ErrorKind::Statement, "no\n</pre><script>");
        let failed = Event::Failed { what: "TABLE <b>", statement: "SELECT '<';", error: &error };
        p.event(Duration::ZERO, &failed);
        for n in 0..LISTED + 5 {
            let what = format!("INDEX <i{n}>");
            p.event(Duration::ZERO, &Event::Skipped { what: &what });
        }
        let page = show(&p, Duration::from_secs(1));
        balanced(&page);
        assert!(
            !page.contains("<script")
                && page.contains("and 5 more")
                && page.contains("1970-01-01 00:00:00 UTC")
        );
    }

    #[test]
    fn many_batches_make_a_small_page() {
        let mut p = Progress::new(8);
        let ms = Duration::from_millis;
        p.event(ms(0), &Event::Phase("restoring"));
        for n in 0..200_000u64 {
            let worker = (n % 8) as usize;
            let cost = Costs::of(Kind::ALL[(n / 997) as usize % 7], 10);
            let what = "TABLE public.a_partition_with_a_rather_long_name_as_they_are and 511 more partitions";
            p.event(ms(n * 10), &Event::Begin { worker, what, steps: 5, cost });
            let did = Did { ok: n % 5000 != 0, ..Did::default() };
            p.event(ms(n * 10 + 70), &Event::End { worker, did });
        }
        let page = show(&p, ms(2_000_500));
        balanced(&page);
        assert!(page.len() < 1_200_000, "{}", page.len());
        assert!(page.matches("<rect class=\"span").count() > 1000);
    }
}
