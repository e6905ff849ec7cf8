//! Flags for what is shown; the same for all commands that work long.

use crate::report::{Format, Settings};
use clap::{Args as Group, ValueEnum};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people on standard error; on a terminal a live display
    Text,
    /// One JSON object per line on standard output
    Json,
}

#[derive(Group, Clone, Debug)]
#[command(next_help_heading = "Output options")]
pub struct Output {
    /// how to report what happens
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
    /// without a terminal, or with --log-format=json: tell how far it is every so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub progress_interval: f64,
    /// verbose mode: tell of each batch
    #[arg(short = 'v', long)]
    pub verbose: bool,
    /// no output but errors
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub quiet: bool,
    /// write a report with the timeline of the connections
    #[arg(long, value_name = "FILENAME")]
    pub html_report: Option<String>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(n) if (0.1..=86_400.0).contains(&n) => Ok(n),
        _ => Err("not a number of seconds from 0.1 to 86400".into()),
    }
}

impl Output {
    /// What the reporter of a command shows.
    pub fn settings(&self, command: &'static str, archive: &str, jobs: usize) -> Settings {
        Settings {
            command,
            archive: archive.to_string(),
            jobs,
            format: match self.log_format {
                LogFormat::Text => Format::Text,
                LogFormat::Json => Format::Json,
            },
            quiet: self.quiet,
            verbose: self.verbose,
            interval: Duration::from_secs_f64(self.progress_interval),
            html: self.html_report.clone(),
        }
    }
}
