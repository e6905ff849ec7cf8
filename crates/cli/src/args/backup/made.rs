//! Flags about backups that are there: of `firn backup verify`, `list` and `expire`.

use crate::args::connect::Connect;
use crate::args::locked::Locked;
use crate::args::output::LogFormat;
use crate::backup::expire::{self, Rules};
use crate::error::{Error, Result};
use crate::pg::Login;
use crate::store::StoreSettings;
use crate::verify::{Depth, Ignore, Terms};
use clap::Args as Group;
use std::path::PathBuf;

/// Flags of `firn backup verify`.
#[derive(Group, Clone, Debug)]
#[command(
    disable_help_flag = true,
    args_override_self = true,
    override_usage = "firn backup verify [OPTIONS] DEST"
)]
pub struct Verify {
    /// the backup: a directory, file:// or s3:// URL
    pub dest: String,
    /// read so many files at the same time; by default one for each processor
    #[arg(short = 'j', long, value_name = "NUM", default_value_t = crate::args::default_jobs(), hide_default_value = true, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub jobs: u16,
    /// no output but problems
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// also compare this database, restored from the backup, with it: schema and numbers of rows
    #[arg(short = 'd', long, value_name = "NAME")]
    pub dbname: Option<String>,
    #[command(flatten)]
    pub connect: Connect,
    /// do SET ROLE before comparing
    #[arg(long, value_name = "ROLENAME", requires = "dbname")]
    pub role: Option<String>,
    /// compare the rows, too, by their checksums
    #[arg(long, requires = "dbname")]
    pub checksums: bool,
    /// skip object ownership
    #[arg(short = 'O', long, requires = "dbname")]
    pub no_owner: bool,
    /// skip access privileges (grant/revoke)
    #[arg(short = 'x', long, alias = "no-acl", requires = "dbname")]
    pub no_privileges: bool,
    /// skip tablespace assignments
    #[arg(long, requires = "dbname")]
    pub no_tablespaces: bool,
    /// skip table access methods
    #[arg(long, requires = "dbname")]
    pub no_table_access_method: bool,
    /// the pg_dump to use, instead of the one that fits the server
    #[arg(long, value_name = "PATH", requires = "dbname")]
    pub pg_dump: Option<PathBuf>,
    #[command(flatten)]
    pub locked: Locked,
    /// print this help
    #[arg(short = '?', long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
}

impl Verify {
    /// The database to compare with the backup.
    pub fn login(&self) -> Result<Option<Login>> {
        let Some(dbname) = &self.dbname else { return Ok(None) };
        let address = self.connect.address(Some(dbname))?;
        Ok(Some(Login { address, role: self.role.clone(), row_security: false }))
    }

    /// How to compare it.
    pub fn terms(&self) -> Terms {
        Terms {
            jobs: usize::from(self.jobs),
            depth: if self.checksums { Depth::Checksums } else { Depth::Counts },
            ignore: Ignore {
                owner: self.no_owner,
                privileges: self.no_privileges,
                tablespaces: self.no_tablespaces,
                table_access_methods: self.no_table_access_method,
                ..Ignore::default()
            },
            pg_dump: self.pg_dump.clone(),
        }
    }
}

/// Flags of `firn backup list`.
#[derive(Group, Clone, Debug)]
#[command(disable_help_flag = true, args_override_self = true)]
pub struct List {
    /// where to look: a directory, file:// or s3:// URL
    pub parent: String,
    /// one JSON object per line
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub locked: Locked,
    /// print this help
    #[arg(short = '?', long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
}

/// Flags of `firn backup expire`.
#[derive(Group, Clone, Debug)]
#[command(disable_help_flag = true, override_usage = "firn backup expire [OPTIONS] PARENT")]
pub struct Expire {
    /// where the backups are: a directory, file:// or s3:// URL
    pub parent: String,
    /// keep the latest so many of each database
    #[arg(long, value_name = "NUM", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep: Option<u32>,
    /// keep those whose snapshot is not older than so many days
    #[arg(long, value_name = "DAYS", alias = "older-than", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep_days: Option<u32>,
    /// keep the latest of each of the last so many days that have any (UTC)
    #[arg(long, value_name = "NUM", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep_daily: Option<u32>,
    /// keep the latest of each of the last so many weeks that have any
    #[arg(long, value_name = "NUM", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep_weekly: Option<u32>,
    /// keep the latest of each of the last so many months that have any
    #[arg(long, value_name = "NUM", value_parser = clap::value_parser!(u32).range(1..))]
    pub keep_monthly: Option<u32>,
    /// also remove unfinished backups that were begun more than so many hours ago; without it none is removed
    #[arg(long, value_name = "HOURS", value_parser = clap::value_parser!(u32).range(1..))]
    pub incomplete_hours: Option<u32>,
    /// remove nothing, only show what would be
    #[arg(long)]
    pub dry_run: bool,
    /// remove so many files at the same time from an object store
    #[arg(short = 'j', long, value_name = "NUM", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub jobs: u16,
    /// how to report what becomes of each backup
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub log_format: LogFormat,
    /// tell only of backups that are removed
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// print this help
    #[arg(short = '?', long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,
}

impl Expire {
    pub fn options(&self, store: StoreSettings) -> Result<expire::Options> {
        let rules = Rules {
            number: self.keep,
            days: self.keep_days,
            daily: self.keep_daily,
            weekly: self.keep_weekly,
            monthly: self.keep_monthly,
        };
        if rules.is_empty() {
            return Err(Error::usage("nothing says which backups to keep")
                .hint("Give one or more of --keep, --keep-days, --keep-daily, --keep-weekly, --keep-monthly."));
        }
        Ok(expire::Options {
            parent: self.parent.clone(),
            store,
            rules,
            incomplete_hours: self.incomplete_hours,
            dry_run: self.dry_run,
            jobs: usize::from(self.jobs),
        })
    }
}
