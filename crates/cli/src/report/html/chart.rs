//! The drawings of the report.

use super::{escape, name};
use crate::report::progress::Progress;
use crate::report::timeline::{Span, Timeline};
use crate::report::words::{count, counted, duration};
use crate::report::Kind;
use std::fmt::Write;
use std::time::Duration;

/// In units of the drawing, which is as wide as the page.
const WIDTH: f64 = 1180.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 12.0;
const LOAD_HEIGHT: f64 = 130.0;
/// Spans that are drawn.
const SPANS: usize = 2500;

/// Where a moment of a run of some length is.
struct Scale {
    all: f64,
}

impl Scale {
    fn new(all: Duration) -> Scale {
        Scale { all: all.as_secs_f64().max(1e-3) }
    }

    fn x(&self, at: Duration) -> f64 {
        LEFT + (at.as_secs_f64() / self.all).min(1.0) * (WIDTH - LEFT - RIGHT)
    }

    /// Lines and labels at round times.
    fn grid(&self, out: &mut String, top: f64, bottom: f64) {
        let step = round_step(self.all / 10.0);
        let mut n = 0.0;
        while n * step <= self.all {
            let at = Duration::from_secs_f64(n * step);
            let x = self.x(at);
            writeln!(
                out,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{bottom}\" />\
                 <text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
                bottom + 14.0,
                label(n * step)
            )
            .ok();
            n += 1.0;
        }
    }
}

/// The smallest round number of seconds that is not below `least`.
fn round_step(least: f64) -> f64 {
    let rounds =
        [1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0];
    if least <= 1.0 {
        // Decimal fractions.
        let unit = 10f64.powf(least.max(1e-6).log10().floor());
        return [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|n| n * unit)
            .find(|n| *n >= least * 0.999)
            .unwrap_or(1.0);
    }
    let found = rounds.into_iter().find(|n| *n >= least);
    found.unwrap_or_else(|| (least / 3600.0).ceil() * 3600.0)
}

/// Seconds on the axis.
fn label(seconds: f64) -> String {
    match seconds {
        0.0 => "0".into(),
        s if s < 1.0 => format!("{} ms", (s * 1000.0).round()),
        s if s < 120.0 => format!("{} s", (s * 100.0).round() / 100.0),
        s if s < 7200.0 && s % 60.0 == 0.0 => format!("{} min", s / 60.0),
        s if s < 7200.0 => format!("{}:{:02.0} min", (s / 60.0).floor(), s % 60.0),
        s => format!("{:.1} h", s / 3600.0).replace(".0 h", " h"),
    }
}

fn svg(out: &mut String, height: f64, title: &str) {
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">",
        escape(title)
    )
    .ok();
}

/// One row for each connection, a box for each stretch of work, coloured by its kind.
pub fn timeline(out: &mut String, progress: &Progress, now: Duration) {
    let scale = Scale::new(now);
    let lanes = progress.timeline.lanes().len().max(1);
    let (high, gap) = match lanes {
        0..=16 => (22.0, 4.0),
        17..=64 => (10.0, 2.0),
        _ => (4.0, 1.0),
    };
    let top = 26.0;
    let bottom = top + lanes as f64 * (high + gap);
    svg(out, bottom + 24.0, "timeline of the connections");
    for (n, phase) in progress.phases.iter().enumerate() {
        let end = phase.end.unwrap_or(now);
        let (x, to) = (scale.x(phase.begin), scale.x(end));
        // Phases too short to have their name in them show it to the mouse.
        let fits = (to - x) > 7.0 * phase.name.chars().count() as f64;
        write!(
            out,
            "<rect class=\"{}\" x=\"{x:.1}\" y=\"4\" width=\"{:.1}\" height=\"16\"><title>{}: {}</title></rect>",
            if n % 2 == 0 { "phase" } else { "lane" },
            (to - x).max(0.5),
            name(&phase.name),
            duration(phase.length(now))
        )
        .ok();
        if fits {
            write!(out, "<text x=\"{:.1}\" y=\"16\">{}</text>", x + 4.0, name(&phase.name)).ok();
        }
        out.push('\n');
    }
    let every = (12.0 / (high + gap)).ceil() as usize;
    for lane in 0..lanes {
        let y = top + lane as f64 * (high + gap);
        write!(
            out,
            "<rect class=\"lane\" x=\"{LEFT}\" y=\"{y}\" width=\"{}\" height=\"{high}\" />",
            WIDTH - LEFT - RIGHT
        )
        .ok();
        if lane % every == 0 {
            let middle = y + high / 2.0 + 4.0;
            write!(
                out,
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>",
                LEFT - 8.0,
                lane + 1
            )
            .ok();
        }
        out.push('\n');
    }
    scale.grid(out, top - 2.0, bottom);
    let drawn = thinned(&progress.timeline);
    for (lane, spans) in drawn.lanes().iter().enumerate() {
        let y = top + lane as f64 * (high + gap);
        for span in spans {
            one(out, &scale, span, y, high);
        }
    }
    out.push_str("</svg>\n");
}

fn thinned(timeline: &Timeline) -> Timeline {
    let mut drawn = timeline.to_most(SPANS);
    drawn.thin();
    drawn
}

fn one(out: &mut String, scale: &Scale, span: &Span, y: f64, high: f64) {
    let x = scale.x(span.begin);
    let length = span.end.saturating_sub(span.begin);
    let failed = if span.failed { " failed" } else { "" };
    let mut about = format!("{}: {}", span.kind.name(), crate::report::words::cut(&span.what, 90));
    if span.batches > 1 {
        write!(about, " and more: {}", counted(span.batches, "batch", "batches")).ok();
    }
    write!(about, ", {}", counted(span.steps, "step", "steps")).ok();
    if span.rows > 0 {
        write!(about, ", {}", counted(span.rows, "row", "rows")).ok();
    }
    write!(
        about,
        "; {} at {}",
        duration(length),
        label((span.begin.as_secs_f64() * 100.0).round() / 100.0)
    )
    .ok();
    if span.failed {
        about.push_str("; not all of it done");
    }
    writeln!(
        out,
        "<rect class=\"span {}{failed}\" x=\"{x:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"{high}\"><title>{}</title></rect>",
        span.kind.name(),
        (scale.x(span.end) - x).max(0.4),
        name(&about)
    )
    .ok();
}

/// How many connections were at work over time, stacked by kind of work.
pub fn load(out: &mut String, progress: &Progress, now: Duration) {
    let scale = Scale::new(now);
    let (slices, width) = (progress.load.slices(), progress.load.width());
    let (top, bottom) = (10.0, 10.0 + LOAD_HEIGHT);
    let most = progress.lanes.len().max(1) as f64;
    let y = |connections: f64| bottom - (connections / most).min(1.0) * LOAD_HEIGHT;
    svg(out, bottom + 24.0, "connections at work over time");
    scale.grid(out, top, bottom);
    let step = (most / 4.0).ceil().max(1.0) as usize;
    for n in (0..=most as usize).step_by(step) {
        let at = y(n as f64);
        writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" />\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            count(n as u64)
        )
        .ok();
    }
    // The last slice may reach beyond the end.
    let ends = |n: usize| {
        let begin = width * n as u32;
        (begin, (begin + width).min(now.max(begin)))
    };
    let busy = |n: usize, micros: u64| {
        let (begin, end) = ends(n);
        let all = end.saturating_sub(begin).as_micros() as f64;
        if all > 0.0 {
            micros as f64 / all
        } else {
            0.0
        }
    };
    let mut below = vec![0u64; slices.len()];
    for kind in Kind::ALL {
        let above: Vec<u64> =
            slices.iter().zip(&below).map(|(s, b)| b + s.0[kind as usize]).collect();
        if above == below {
            continue;
        }
        write!(out, "<path class=\"{}\" d=\"", kind.name()).ok();
        area(
            out,
            &scale,
            &ends,
            &|n| y(busy(n, above[n])),
            &|n| y(busy(n, below[n])),
            slices.len(),
        );
        out.push_str("\" />\n");
        below = above;
    }
    for (n, slice) in slices.iter().enumerate().filter(|(_, s)| s.total() > 0) {
        let (begin, end) = ends(n);
        let mut about = format!(
            "{}: {:.1} connections at work",
            label((begin.as_secs_f64() * 100.0).round() / 100.0),
            busy(n, slice.total())
        );
        for kind in Kind::ALL.into_iter().filter(|k| slice.0[*k as usize] > 0) {
            write!(about, ", {} {:.1}", kind.name(), busy(n, slice.0[kind as usize])).ok();
        }
        writeln!(
            out,
            "<rect class=\"hover\" x=\"{:.1}\" y=\"{top}\" width=\"{:.2}\" height=\"{LOAD_HEIGHT}\"><title>{}</title></rect>",
            scale.x(begin),
            (scale.x(end) - scale.x(begin)).max(0.4),
            escape(&about)
        )
        .ok();
    }
    out.push_str("</svg>\n");
}

/// The outline between two lines of steps: the upper one forwards, the lower one back. Stretches without any height
/// are left out.
fn area(
    out: &mut String,
    scale: &Scale,
    ends: &dyn Fn(usize) -> (Duration, Duration),
    upper: &dyn Fn(usize) -> f64,
    lower: &dyn Fn(usize) -> f64,
    slices: usize,
) {
    let empty = |n: usize| (upper(n) - lower(n)).abs() < 0.05;
    let mut n = 0;
    while n < slices {
        if empty(n) {
            n += 1;
            continue;
        }
        let from = n;
        while n < slices && !empty(n) {
            n += 1;
        }
        write!(out, "M{:.1} {:.1}", scale.x(ends(from).0), lower(from)).ok();
        for slice in from..n {
            write!(out, "V{:.1}H{:.1}", upper(slice), scale.x(ends(slice).1)).ok();
        }
        for slice in (from..n).rev() {
            write!(out, "V{:.1}H{:.1}", lower(slice), scale.x(ends(slice).0)).ok();
        }
        out.push('Z');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_times() {
        for (least, step) in [
            (0.0012, 0.002),
            (0.09, 0.1),
            (0.4, 0.5),
            (1.0, 1.0),
            (1.1, 2.0),
            (7.0, 10.0),
            (31.0, 60.0),
            (1900.0, 3600.0),
            (4000.0, 7200.0),
        ] {
            assert!((round_step(least) - step).abs() < 1e-9, "{least}: {}", round_step(least));
        }
    }

    #[test]
    fn labels() {
        for (seconds, text) in [
            (0.0, "0"),
            (0.05, "50 ms"),
            (1.5, "1.5 s"),
            (90.0, "90 s"),
            (180.0, "3 min"),
            (150.0, "2:30 min"),
            (7200.0, "2 h"),
            (9000.0, "2.5 h"),
        ] {
            assert_eq!(label(seconds), text);
        }
    }

    #[test]
    fn areas_have_no_height_where_nothing_is() {
        let ends = |n: usize| (Duration::from_secs(n as u64), Duration::from_secs(n as u64 + 1));
        let heights = [0.0, 5.0, 7.0, 0.0, 3.0];
        let mut out = String::new();
        let scale = Scale { all: (WIDTH - LEFT - RIGHT) };
        area(&mut out, &scale, &ends, &|n| 100.0 - heights[n], &|_| 100.0, 5);
        assert_eq!(
            out,
            "M45.0 100.0V95.0H46.0V93.0H47.0V100.0H46.0V100.0H45.0ZM48.0 100.0V97.0H49.0V100.0H48.0Z"
        );
    }
}
