//! The watcher of a run: keeps what is known of it and shows it, by a thread of its own, so that neither a slow
//! terminal nor a full pipe ever holds up the work.

use super::file::{NewFile, Readers};
use super::html;
use super::json::{self, When};
use super::lines::{self, Detail};
use super::live::Live;
use super::progress::Progress;
use super::secret;
use super::summary;
use super::words::{count, counted};
use super::{say, Event, Watch};
use crate::error::{Error, ErrorKind, Result};
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// Form of what is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people, on stderr: a live display on a terminal, lines otherwise.
    #[default]
    Text,
    /// One JSON object per line, on stdout.
    Json,
}

/// What to show, and of what.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `restore` or `backup`.
    pub command: &'static str,
    /// The archive, for headings.
    pub archive: String,
    pub jobs: usize,
    pub format: Format,
    pub quiet: bool,
    pub verbose: bool,
    /// Between two lines that say how far it is.
    pub interval: Duration,
    /// File of the HTML report.
    pub html: Option<String>,
}

/// How a run ended, as far as the reporter can say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Nothing is missing.
    pub complete: bool,
    /// One line.
    pub text: String,
    /// What can be done about it.
    pub hint: Option<String>,
}

/// Of what is known after the end; `error`: what ended it before its time.
pub fn verdict(progress: &Progress, command: &str, error: Option<&Error>) -> Verdict {
    let (failed, skipped) = (progress.failed.len() as u64, progress.skipped.len() as u64);
    let ignored = progress.ignored as u64;
    if progress.complete && error.is_none() && failed + skipped + ignored == 0 {
        return Verdict { complete: true, text: format!("{command} complete"), hint: None };
    }
    let mut parts = Vec::new();
    if failed > 0 {
        parts.push(format!("{} failed", counted(failed, "object", "objects")));
    }
    if skipped > 0 {
        parts.push(format!("{} skipped for what they need", count(skipped)));
    }
    let left = progress.steps.saturating_sub(progress.settled) as u64;
    if left > 0 {
        let all = count(progress.steps as u64);
        parts.push(format!("{} of {all} steps not done", count(left)));
    }
    if ignored > 0 {
        parts.push(format!("{} ignored", counted(ignored, "error", "errors")));
    }
    if let (Some(error), true) = (error, failed == 0) {
        parts.insert(0, super::words::one_line(&error.message));
    }
    let why = match parts.is_empty() {
        true => "it ended before its time".to_string(),
        false => parts.join(", "),
    };
    // What differs after the end does not come by going on.
    let resumable = match error {
        Some(error) => error.kind != ErrorKind::Verify,
        None => !progress.complete || failed + skipped > 0,
    };
    // Only what is planned has a journal.
    let journal = progress.begun && progress.planned.is_some();
    let hint = match (command, resumable) {
        ("restore", true) if progress.unchanged => {
            Some("Nothing was changed: when the cause is gone, run the same command again.")
        }
        ("restore", true) if journal => {
            Some("When the cause is gone, the same command with --resume does what is missing.")
        }
        _ => None,
    };
    let hint = hint.map(str::to_string);
    Verdict { complete: false, text: format!("{command} NOT complete: {why}"), hint }
}

struct Known {
    progress: Progress,
    /// Lines to be written.
    out: Vec<String>,
    over: bool,
}

struct Shared {
    settings: Settings,
    begun: SystemTime,
    begin: Instant,
    known: Mutex<Known>,
    wake: Condvar,
    /// Why the log ends where it does.
    broken: Mutex<Option<io::Error>>,
}

/// Watches a run, and shows it as its settings say. Clones watch the same run.
#[derive(Clone)]
pub struct Reporter {
    shared: Arc<Shared>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
    html: Arc<Mutex<Option<NewFile>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reporter {
    /// Begin. Fails if the HTML report's file cannot be made, before any work is done in vain.
    pub fn start(settings: Settings) -> Result<Reporter> {
        let html =
            match &settings.html {
                Some(path) => Some(NewFile::create(path, Readers::Owner).map_err(|e| {
                    Error::io(format!("could not create HTML report \"{path}\""), &e)
                })?),
                None => None,
            };
        let known = Known { progress: Progress::new(settings.jobs), out: Vec::new(), over: false };
        let shared = Arc::new(Shared {
            settings,
            begun: SystemTime::now(),
            begin: Instant::now(),
            known: Mutex::new(known),
            wake: Condvar::new(),
            broken: Mutex::new(None),
        });
        shared.open();
        let (sender, thread) =
            (Arc::clone(&shared), std::thread::Builder::new().name("report".into()));
        let thread = thread
            .spawn(move || show(&sender))
            .map_err(|e| Error::io("could not start a thread", &e))?;
        Ok(Reporter {
            shared,
            thread: Arc::new(Mutex::new(Some(thread))),
            html: Arc::new(Mutex::new(html)),
        })
    }

    /// Say something that is no part of the work, such as that it is being stopped.
    pub fn say(&self, text: &str) {
        self.event(&Event::Note(text));
    }

    /// The run is over: show how it went, write the report. Tells whether nothing is missing; or what of report and log could
    /// not be written, where no error says that the run has failed anyhow.
    pub fn finish(&self, error: Option<&Error>) -> Result<bool> {
        let error = error.map(secret::error);
        let error = error.as_ref();
        let now = self.shared.begin.elapsed();
        let verdict = {
            let mut known = lock(&self.shared.known);
            known.progress.close(now);
            known.over = true;
            verdict(&known.progress, self.shared.settings.command, error)
        };
        self.shared.wake.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
        let known = lock(&self.shared.known);
        let html = self.write_html(&known.progress, now, &verdict);
        self.shared.close(&known.progress, now, &verdict, error);
        let log = lock(&self.shared.broken).take();
        let log = log.map(|e| Error::io("could not write the log to standard output", &e));
        let mut unwritten: Vec<Error> = html.err().into_iter().chain(log).collect();
        // The error that the program ends with is the last thing that it says.
        let last = if error.is_none() { unwritten.pop() } else { None };
        for other in unwritten {
            say(&format!("firn: warning: {}", other.message));
        }
        match last {
            Some(e) => Err(e.detail(format!("How it ended: {}.", verdict.text))),
            None => Ok(verdict.complete),
        }
    }

    /// Look at what is known so far.
    pub fn look<T>(&self, look: impl FnOnce(&Progress) -> T) -> T {
        look(&lock(&self.shared.known).progress)
    }

    fn write_html(&self, progress: &Progress, now: Duration, verdict: &Verdict) -> Result<()> {
        let Some(mut file) = lock(&self.html).take() else { return Ok(()) };
        let settings = &self.shared.settings;
        let text = html::page(settings, progress, now, self.shared.begun, verdict);
        file.write_all(text.as_bytes()).and_then(|()| file.keep()).map_err(|e| {
            let path = settings.html.as_deref().unwrap_or_default();
            Error::io(format!("could not write HTML report \"{path}\""), &e)
        })
    }
}

impl Watch for Reporter {
    fn event(&self, event: &Event) {
        // Here all that is shown and written comes through.
        match *event {
            Event::Failed { what, statement, error } => {
                let (statement, error) = secret::failure(statement, error);
                self.take(&Event::Failed { what, statement: &statement, error: &error });
            }
            Event::Setback { worker, setback, message } => {
                self.take(&Event::Setback { worker, setback, message: &secret::line(message) });
            }
            Event::Note(text) => self.take(&Event::Note(&secret::line(text))),
            _ => self.take(event),
        }
    }
}

impl Reporter {
    fn take(&self, event: &Event) {
        let shared = &*self.shared;
        let mut known = lock(&shared.known);
        // Under the lock, so that times do not go back.
        let now = shared.begin.elapsed();
        let job = known.progress.event(now, event);
        let detail = shared.settings.detail();
        let line = match shared.settings.format {
            Format::Json => {
                let when = shared.when(now);
                json::event(when, event, job.as_ref(), &known.progress, detail)
            }
            Format::Text => lines::event(now, event, job.as_ref(), &known.progress, detail),
        };
        if let Some(line) = line {
            known.out.push(line);
            drop(known);
            shared.wake.notify_all();
        }
    }
}

impl Settings {
    fn detail(&self) -> Detail {
        match (self.quiet, self.verbose) {
            (true, _) => Detail::Errors,
            (false, false) => Detail::Usual,
            (false, true) => Detail::All,
        }
    }
}

impl Shared {
    fn when(&self, elapsed: Duration) -> When {
        When { time: self.begun + elapsed, elapsed }
    }

    fn open(&self) {
        if self.settings.format == Format::Json && !self.settings.quiet {
            let settings = &self.settings;
            let fields = serde_json::json!({
                "command": settings.command, "version": env!("CARGO_PKG_VERSION"), "archive": settings.archive,
                "connections": settings.jobs,
            });
            lock(&self.known).out.push(json::line(self.when(Duration::ZERO), "start", fields));
        }
    }

    /// Lines of the usual kind. That a log cannot be written must not end the work; one for programs ends there, so that
    /// they do not take what comes later for all of it.
    fn write(&self, lines: &[String]) {
        let text = lines.iter().flat_map(|l| [l.as_str(), "\n"]).collect::<String>();
        match self.settings.format {
            Format::Json => {
                let mut broken = lock(&self.broken);
                if broken.is_none() {
                    let mut out = io::stdout().lock();
                    *broken = out.write_all(text.as_bytes()).and_then(|()| out.flush()).err();
                }
            }
            Format::Text => drop(io::stderr().lock().write_all(text.as_bytes())),
        }
    }

    /// The end of the display.
    fn close(&self, progress: &Progress, now: Duration, verdict: &Verdict, error: Option<&Error>) {
        let mut out = Vec::new();
        match self.settings.format {
            Format::Json => {
                if let Some(error) = error {
                    out.push(json::line(self.when(now), "error", json::error_fields(error)));
                }
                out.push(json::summary(self.when(now), progress, verdict));
            }
            // The error says all, as long as nothing was done.
            Format::Text if error.is_some() && !progress.begun => {}
            Format::Text => {
                if !self.settings.quiet {
                    out.push(summary::text(progress, now));
                }
                if !verdict.complete {
                    out.extend(summary::missing(progress));
                }
                if !self.settings.quiet || !verdict.complete {
                    out.push(format!("firn: {}", verdict.text));
                }
                if let (Some(hint), None) = (&verdict.hint, error) {
                    out.push(format!("HINT:  {hint}"));
                }
            }
        }
        self.write(&out);
    }
}

/// The thread that shows: lines as they come, the live display five times a second, how far it is at each interval.
fn show(shared: &Shared) {
    let settings = &shared.settings;
    let on_terminal = settings.format == Format::Text
        && !settings.quiet
        && std::io::stderr().is_terminal()
        && std::env::var_os("TERM").is_none_or(|t| t != "dumb");
    let mut live = on_terminal.then(|| Live::new(settings.jobs));
    let pause = Duration::from_millis(if on_terminal { 200 } else { 500 });
    let mut due = settings.interval;
    loop {
        let mut known = lock(&shared.known);
        if known.out.is_empty() && !known.over {
            let waited = shared.wake.wait_timeout(known, pause);
            known = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let over = known.over;
        let now = shared.begin.elapsed();
        known.progress.tick(now);
        let mut out = std::mem::take(&mut known.out);
        let mut frame = None;
        if let Some(live) = &live {
            frame = Some(live.frame(&known.progress, now));
        } else if now >= due && !over && !settings.quiet {
            due = now + settings.interval;
            out.extend(match settings.format {
                Format::Json => json::progress(shared.when(now), &known.progress),
                Format::Text => {
                    lines::progress(&known.progress, now).map(|l| lines::stamped(now, &l))
                }
            });
        }
        // Written without the lock: the work goes on however long this takes.
        drop(known);
        match (&mut live, frame) {
            (Some(live), Some(frame)) => live.show(&out, frame),
            _ if out.is_empty() => {}
            _ => shared.write(&out),
        }
        if over {
            if let Some(live) = live {
                live.clear();
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Costs;

    #[test]
    fn never_complete_with_something_missing() {
        let mut p = Progress::new(1);
        let found = verdict(&p, "restore", None);
        assert!(!found.complete && found.hint.is_none());
        p.event(Duration::ZERO, &Event::Finished);
        assert_eq!(
            verdict(&p, "restore", None),
            Verdict { complete: true, text: "restore complete".into(), hint: None }
        );
        p.event(Duration::ZERO, &Event::Ignored(1));
        let found = verdict(&p, "restore", None);
        assert_eq!(found.text, "restore NOT complete: 1 error ignored");
        assert!(found.hint.is_none());
        let mut p = Progress::new(1);
        p.event(Duration::ZERO, &Event::Finished);
        let error = Error::new(ErrorKind::Cancelled, "canceled by user");
        let found = verdict(&p, "restore", Some(&error));
        assert_eq!(found.text, "restore NOT complete: canceled by user");
        assert!(!found.complete);
        p.event(Duration::ZERO, &Event::Skipped { what: "x" });
        assert!(!verdict(&p, "restore", None).complete);
        p.event(Duration::ZERO, &Event::Failed { what: "x", statement: "", error: &error });
        p.event(Duration::ZERO, &Event::Work { steps: 5000, cost: Costs::default() });
        assert!(verdict(&p, "restore", None).hint.is_none(), "there is no journal");
        let planned = Event::Planned {
            steps: 5000,
            entries: 5000,
            statements: 5000,
            statements_archive: 5000,
            bytes: 0,
        };
        p.event(Duration::ZERO, &planned);
        assert!(verdict(&p, "restore", None).hint.is_some_and(|h| h.contains("--resume")));
        assert_eq!(
            verdict(&p, "restore", None).text,
            "restore NOT complete: 1 object failed, 1 skipped for what they need, 5,000 of 5,000 steps not done"
        );
    }
}
