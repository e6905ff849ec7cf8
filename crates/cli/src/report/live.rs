//! The live display on a terminal: phase and bar, rates, one line for each connection.

use super::lines::{named, speeds};
use super::progress::{Job, Progress};
use super::words::{ahead, bytes, clock, count, duration};
use super::Kind;
use console::{measure_text_width, truncate_str, Style, Term};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Columns that a text takes on a terminal.
pub fn width(text: &str) -> usize {
    measure_text_width(text)
}

/// What is drawn at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    pub phase: String,
    /// From 0 to 1; `None`: unknown.
    pub fraction: Option<f64>,
    /// Behind the bar.
    pub time: String,
    /// Below it.
    pub lines: Vec<String>,
}

/// Lines besides those of the connections.
const OTHERS: usize = 4;
/// Columns of a terminal that does not tell.
const COLUMNS: usize = 80;

/// The style of a kind of work.
fn style(kind: Kind) -> Style {
    let style = Style::new().for_stderr();
    match kind {
        Kind::Schema => style.blue(),
        Kind::Partitions => style.cyan(),
        Kind::Data => style.green(),
        Kind::Indexes => style.yellow(),
        Kind::Constraints => style.red(),
        Kind::Descriptions => style.magenta(),
        Kind::Analyze | Kind::Verify => style.white(),
    }
}

/// Lay a moment out for a terminal of so many columns and rows.
pub fn frame(progress: &Progress, now: Duration, columns: usize, rows: usize) -> Frame {
    let phase = progress.current();
    let mut time = clock(now);
    if let (Some(left), Some(_)) = (progress.left(now), progress.fraction()) {
        time.push_str(&format!(", about {} left", ahead(left)));
    }
    let mut lines = Vec::new();
    let speeds = speeds(progress, now);
    if !speeds.is_empty() {
        lines.push(fit(&format!("  {}", speeds.join("  ")), columns));
    }
    if progress.steps > 0 && progress.worked.is_some() {
        let room = rows.saturating_sub(OTHERS).max(1);
        let all = progress.lanes.len();
        let shown = if all > room { room - 1 } else { all };
        let digits = count(all as u64).len();
        for (number, lane) in progress.lanes.iter().enumerate().take(shown) {
            let line = match &lane.job {
                Some(job) => working(number, digits, job, now, columns),
                None => {
                    let idle = now.saturating_sub(lane.idle_since);
                    fit(
                        &format!(
                            "  {:>digits$}  {:12} {:>9}",
                            number + 1,
                            "waiting",
                            duration(idle)
                        ),
                        columns,
                    )
                }
            };
            lines.push(line);
        }
        if shown < all {
            let busy = progress.lanes[shown..].iter().filter(|l| l.job.is_some()).count();
            lines.push(fit(
                &format!("  and {} more connections, {busy} at work", all - shown),
                columns,
            ));
        }
    }
    Frame {
        phase: phase.map_or(String::new(), |p| p.name.clone()),
        fraction: progress.fraction(),
        time,
        lines,
    }
}

fn working(number: usize, digits: usize, job: &Job, now: Duration, columns: usize) -> String {
    let kind = job.kind();
    let front = format!("  {:>digits$}  ", number + 1);
    let since = duration(now.saturating_sub(job.begin));
    let moved = if job.bytes > 0 { format!("{} of ", bytes(job.bytes)) } else { String::new() };
    let rest = format!(" {since:>9}  {moved}{}", named(job));
    let left = columns.saturating_sub(width(&front) + 12);
    let kind = style(kind).apply_to(format!("{:12}", kind.name()));
    // Cut again, for terminals too narrow for anything.
    fit(&format!("{front}{kind}{}", fit(&rest, left)), columns)
}

fn fit(text: &str, columns: usize) -> String {
    truncate_str(text, columns, "…").into_owned()
}

/// The display.
pub struct Live {
    all: MultiProgress,
    bar: ProgressBar,
    below: Vec<ProgressBar>,
    known: Option<bool>,
    term: Term,
}

impl Live {
    /// For so many connections.
    pub fn new(jobs: usize) -> Live {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(6));
        let bar = all.add(ProgressBar::new(1000));
        Live { all, bar, below: Vec::with_capacity(jobs), known: None, term: Term::stderr() }
    }

    /// Lay a moment out for this terminal.
    pub fn frame(&self, progress: &Progress, now: Duration) -> Frame {
        let (rows, columns) = self.term.size_checked().unwrap_or((24, COLUMNS as u16));
        // The last column stays free: some terminals break the line there.
        frame(progress, now, usize::from(columns).saturating_sub(1), usize::from(rows))
    }

    /// Write lines above the display, then draw it.
    pub fn show(&mut self, lines: &[String], frame: Frame) {
        for line in lines {
            let _ = self.all.println(line);
        }
        if self.known != Some(frame.fraction.is_some()) {
            self.known = Some(frame.fraction.is_some());
            let template = match frame.fraction {
                Some(_) => "{prefix} {wide_bar} {percent:>3} %  {msg}",
                None => "{prefix} {spinner}  {msg}",
            };
            // The template is constant; without it the bar looks different.
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.bar.set_style(style.progress_chars("━╸ ").tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏ "));
            }
        }
        self.bar.set_prefix(frame.phase);
        self.bar.set_message(frame.time);
        match frame.fraction {
            Some(fraction) => self.bar.set_position((fraction * 1000.0) as u64),
            None => self.bar.tick(),
        }
        while self.below.len() < frame.lines.len() {
            let line = self.all.add(ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                line.set_style(style);
            }
            self.below.push(line);
        }
        while self.below.len() > frame.lines.len() {
            if let Some(line) = self.below.pop() {
                line.finish_and_clear();
                self.all.remove(&line);
            }
        }
        for (line, text) in self.below.iter().zip(frame.lines) {
            if line.message() != text {
                line.set_message(text);
            }
            line.tick();
        }
    }

    /// Take the display away.
    pub fn clear(self) {
        let _ = self.all.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Costs, Event};

    fn busy(jobs: usize) -> Progress {
        let mut p = Progress::new(jobs);
        p.event(Duration::ZERO, &Event::Phase("restoring"));
        let cost = Costs::of(Kind::Data, 1_000_000);
        p.event(Duration::ZERO, &Event::Work { steps: 9, cost });
        for worker in 0..jobs - 1 {
            let what = "TABLE DATA public.a_table_with_a_rather_long_name_表表表表表表表表表表表表表表表表表表表表表表";
            p.event(Duration::ZERO, &Event::Begin { worker, what, steps: 3, cost });
            p.event(
                Duration::ZERO,
                &Event::Moved { worker: Some(worker), rows: 5, bytes: 5 << 20 },
            );
        }
        p
    }

    #[test]
    fn a_line_for_each_connection() {
        let frame = frame(&busy(3), Duration::from_secs(5), 100, 24);
        assert_eq!(frame.lines.len(), 4);
        assert_eq!(frame.phase, "restoring");
        assert!(frame.time.starts_with("0:05"), "{}", frame.time);
        assert!(frame.lines[1].starts_with("  1  "), "{}", frame.lines[1]);
        assert!(frame.lines[1].contains("5.00 MB of TABLE DATA public.a_table"));
        assert!(frame.lines[3].contains("waiting"));
    }

    #[test]
    fn it_fits_any_terminal() {
        for columns in [0, 1, 10, 40, 79, 200] {
            for rows in [0, 1, 5, 10, 60] {
                let frame = frame(&busy(20), Duration::from_secs(5), columns, rows);
                assert!(frame.lines.len() + 2 <= rows.max(4), "{rows}");
                let widest = frame.lines.iter().map(|l| width(l)).max().unwrap();
                assert!(widest <= columns.max(1), "{widest} of {columns}");
            }
        }
        let few = frame(&busy(20), Duration::ZERO, 80, 10);
        assert_eq!(few.lines.last().unwrap(), "  and 15 more connections, 14 at work");
    }
}
