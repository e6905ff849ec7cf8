//! Flags of `firn restore`; named as `pg_restore` names them where it has them.

use super::connect::Connect;
use super::output::Output;
use crate::error::{Error, Result};
use crate::plan::select::Filter;
use crate::plan::Rules;
use crate::restore::check::Check;
use crate::restore::session::Target;
use crate::restore::Options;
use crate::verify::Depth;
use clap::{Args as Group, ValueEnum, ValueHint};
use std::path::PathBuf;

/// What help and manual list these flags under.
const WHAT: &str = "What to restore";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnError {
    /// End at the first statement that fails; --resume goes on from there
    Stop,
    /// Leave out what depends on the failed statement, and list all of it at the end
    Continue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    PreData,
    Data,
    PostData,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VerifyDepth {
    /// All objects, and numbers of rows
    Counts,
    /// The rows, too
    Checksums,
}

#[derive(Group, Clone, Debug)]
#[command(disable_help_flag = true, override_usage = "firn restore [OPTIONS] ARCHIVE")]
pub struct Args {
    /// custom-format file or directory written by pg_dump or firn backup; path, file:// or s3:// URL
    pub archive: String,

    /// print this help
    #[arg(short = '?', long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,

    /// connect to database name, connection string or URI
    #[arg(short = 'd', long, value_name = "NAME")]
    pub dbname: Option<String>,
    #[command(flatten)]
    pub connect: Connect,
    /// do SET ROLE before restore
    #[arg(long, value_name = "ROLENAME")]
    pub role: Option<String>,

    /// use this many connections at the same time; by default one for each processor of this machine
    #[arg(short = 'j', long, value_name = "NUM", default_value_t = super::default_jobs(), hide_default_value = true, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub jobs: u16,
    /// go on with the unfinished restore in the target database
    #[arg(long)]
    pub resume: bool,
    /// what to do when a statement fails
    #[arg(long, value_enum, default_value = "stop", value_name = "ACTION")]
    pub on_error: OnError,
    /// as --on-error=stop
    #[arg(short = 'e', long, conflicts_with = "on_error")]
    pub exit_on_error: bool,
    /// show the plan and what numbers of jobs would bring, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// processors of the server, for predictions
    #[arg(long, value_name = "NUM")]
    pub server_cores: Option<usize>,
    /// compare the restored database with the archive, or the backup's manifest: all objects and the numbers of rows,
    /// or the rows themselves by their checksums
    #[arg(long, value_enum, value_name = "DEPTH", num_args = 0..=1, require_equals = true, default_missing_value = "counts")]
    pub verify: Option<VerifyDepth>,
    /// compare with this database, which the archive was made of and nobody has changed since
    #[arg(long, value_name = "NAME")]
    pub verify_source: Option<String>,
    /// the pg_dump for --verify, instead of the one that fits the server
    #[arg(long, value_name = "PATH", value_hint = ValueHint::ExecutablePath)]
    pub pg_dump: Option<PathBuf>,
    /// do not run ANALYZE at the end
    #[arg(long)]
    pub no_analyze: bool,
    /// switch a rewrite off (all, or a name that --dry-run lists); may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub disable_rule: Vec<String>,

    /// create the target database
    #[arg(short = 'C', long)]
    pub create: bool,
    /// clean (drop) database objects before recreating
    #[arg(short = 'c', long)]
    pub clean: bool,
    /// use IF EXISTS when dropping objects
    #[arg(long)]
    pub if_exists: bool,

    /// restore only the data, no schema
    #[arg(short = 'a', long, conflicts_with = "schema_only", help_heading = WHAT)]
    pub data_only: bool,
    /// restore only the schema, no data
    #[arg(short = 's', long, help_heading = WHAT)]
    pub schema_only: bool,
    /// restore named section; may be repeated
    #[arg(long, value_enum, help_heading = WHAT)]
    pub section: Vec<Section>,
    /// restore only objects in this schema; may be repeated
    #[arg(short = 'n', long = "schema", value_name = "NAME", help_heading = WHAT)]
    pub schemas: Vec<String>,
    /// do not restore objects in this schema; may be repeated
    #[arg(short = 'N', long = "exclude-schema", value_name = "NAME", help_heading = WHAT)]
    pub exclude_schemas: Vec<String>,
    /// restore named relation (table, view, etc.); may be repeated
    #[arg(short = 't', long = "table", value_name = "NAME", help_heading = WHAT)]
    pub tables: Vec<String>,
    /// restore named index; may be repeated
    #[arg(short = 'I', long = "index", value_name = "NAME", help_heading = WHAT)]
    pub indexes: Vec<String>,
    /// restore named function; may be repeated
    #[arg(short = 'P', long = "function", value_name = "NAME(args)", help_heading = WHAT)]
    pub functions: Vec<String>,
    /// restore named trigger; may be repeated
    #[arg(short = 'T', long = "trigger", value_name = "NAME", help_heading = WHAT)]
    pub triggers: Vec<String>,
    /// with -n, -t and the like: also restore what the chosen objects depend on, and what belongs to chosen tables
    #[arg(long, help_heading = WHAT)]
    pub with_dependencies: bool,
    /// use table of contents from this file for selecting output
    #[arg(short = 'L', long, value_name = "FILENAME", help_heading = WHAT)]
    pub use_list: Option<String>,
    /// print the table of contents of the archive
    #[arg(short = 'l', long)]
    pub list: bool,

    /// require table and/or schema include patterns to match at least one entity each
    #[arg(long, help_heading = WHAT)]
    pub strict_names: bool,
    /// disable triggers during data-only restore
    #[arg(long)]
    pub disable_triggers: bool,
    /// enable row security
    #[arg(long)]
    pub enable_row_security: bool,

    /// skip restoration of object ownership
    #[arg(short = 'O', long, help_heading = WHAT)]
    pub no_owner: bool,
    /// skip restoration of access privileges (grant/revoke)
    #[arg(short = 'x', long, alias = "no-acl", help_heading = WHAT)]
    pub no_privileges: bool,
    /// do not restore comments
    #[arg(long, help_heading = WHAT)]
    pub no_comments: bool,
    /// do not restore publications
    #[arg(long, help_heading = WHAT)]
    pub no_publications: bool,
    /// do not restore security labels
    #[arg(long, help_heading = WHAT)]
    pub no_security_labels: bool,
    /// do not restore subscriptions
    #[arg(long, help_heading = WHAT)]
    pub no_subscriptions: bool,
    /// do not restore statistics
    #[arg(long, help_heading = WHAT)]
    pub no_statistics: bool,
    /// do not restore table access methods
    #[arg(long, help_heading = WHAT)]
    pub no_table_access_method: bool,
    /// do not restore tablespace assignments
    #[arg(long, help_heading = WHAT)]
    pub no_tablespaces: bool,

    #[command(flatten)]
    pub output: Output,
}

impl Args {
    /// The rewrites that are on.
    pub fn rules(&self) -> Result<Rules> {
        let mut rules = Rules::all(true);
        for name in &self.disable_rule {
            if name == "all" {
                rules = Rules::all(false);
                continue;
            }
            let found = Rules::NAMES.iter().find(|(n, _)| n == name);
            let (_, place) = found.ok_or_else(|| {
                let names: Vec<&str> = Rules::NAMES.iter().map(|(n, _)| *n).collect();
                Error::usage(format!("there is no rule \"{name}\""))
                    .hint(format!("Rules are: all, {}.", names.join(", ")))
            })?;
            *place(&mut rules) = false;
        }
        Ok(rules)
    }

    fn filter(&self) -> Result<Filter> {
        let list = match &self.use_list {
            Some(file) => Some(read_list(file)?),
            None => None,
        };
        let has = |s| self.section.contains(&s);
        Ok(Filter {
            schema_only: self.schema_only,
            data_only: self.data_only,
            pre_data: has(Section::PreData),
            data: has(Section::Data),
            post_data: has(Section::PostData),
            schemas: self.schemas.clone(),
            exclude_schemas: self.exclude_schemas.clone(),
            tables: self.tables.clone(),
            indexes: self.indexes.clone(),
            functions: self.functions.clone(),
            triggers: self.triggers.clone(),
            no_privileges: self.no_privileges,
            no_comments: self.no_comments,
            no_security_labels: self.no_security_labels,
            no_publications: self.no_publications,
            no_subscriptions: self.no_subscriptions,
            no_statistics: self.no_statistics,
            create: self.create,
            with_dependencies: self.with_dependencies,
            list,
        })
    }

    /// How to connect. What needs no server does not ask for passwords.
    fn params(&self) -> Result<Vec<(String, String)>> {
        let dbname = self.dbname.as_deref();
        if self.list
            || dbname.is_none() && (self.dry_run || std::env::var_os("PGDATABASE").is_none())
        {
            return Ok(Vec::new());
        }
        self.connect.params(dbname)
    }

    fn check(&self) -> Option<Check> {
        (self.verify.is_some() || self.verify_source.is_some()).then(|| Check {
            depth: match self.verify {
                Some(VerifyDepth::Checksums) => Depth::Checksums,
                _ => Depth::Counts,
            },
            source: self.verify_source.clone(),
            pg_dump: self.pg_dump.clone(),
        })
    }

    pub fn options(&self) -> Result<Options> {
        if (self.data_only || self.schema_only) && !self.section.is_empty() {
            return Err(Error::usage(
                "options --section and --data-only/--schema-only cannot be used together",
            ));
        }
        if self.if_exists && !self.clean {
            return Err(Error::usage("option --if-exists requires option -c/--clean"));
        }
        if self.data_only && self.clean {
            return Err(Error::usage(
                "options -c/--clean and -a/--data-only cannot be used together",
            ));
        }
        Ok(Options {
            archive: self.archive.clone(),
            target: Target {
                params: self.params()?,
                dbname: self.dbname.clone(),
                role: self.role.clone(),
                row_security: self.enable_row_security,
            },
            jobs: usize::from(self.jobs),
            filter: self.filter()?,
            rules: self.rules()?,
            no_owner: self.no_owner,
            no_tablespaces: self.no_tablespaces,
            no_table_access_method: self.no_table_access_method,
            clean: self.clean,
            if_exists: self.if_exists,
            create: self.create,
            resume: self.resume,
            go_on_after_errors: self.on_error == OnError::Continue,
            verify: self.check(),
            analyze: !self.no_analyze,
            strict_names: self.strict_names,
            disable_triggers: self.disable_triggers && self.data_only,
        })
    }
}

/// Dump ids of a list file: the number at the start of each line; what follows a semicolon is a comment.
fn read_list(file: &str) -> Result<Vec<i32>> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| Error::io(format!("could not open TOC file \"{file}\""), &e))?;
    let mut ids = Vec::new();
    for line in text.lines() {
        let id = line.split(';').next().unwrap_or("").trim();
        if id.is_empty() {
            continue;
        }
        ids.push(id.parse().map_err(|_| {
            Error::usage(format!("could not understand a line of TOC file \"{file}\""))
                .detail(format!("The line is: {line}"))
        })?);
    }
    Ok(ids)
}
