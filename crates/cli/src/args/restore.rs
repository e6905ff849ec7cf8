//! Flags of `firn restore`; named as `pg_restore` names them where it has them.

mod together;

use super::connect::Connect;
use super::filter_file;
use super::locked::Locked;
use super::output::Output;
use crate::archive::Format;
use crate::crypt::Keys;
use crate::error::{Error, Result};
use crate::pg::{is_conninfo, Address, Login};
use crate::plan::redirect::{names, Redirects};
use crate::plan::render::Style;
use crate::plan::select::Filter;
use crate::plan::Rules;
use crate::restore::check::{Check, Source};
use crate::restore::{Asked, Options};
use crate::script::text::restrict_key;
use crate::script::Wishes;
use crate::verify::Depth;
use clap::{Args as Group, ValueEnum, ValueHint};
use std::io::IsTerminal;
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
#[command(
    disable_help_flag = true,
    args_override_self = true,
    override_usage = "firn restore [OPTIONS] [ARCHIVE]"
)]
pub struct Args {
    /// file or directory written by pg_dump or firn backup; path, file:// or s3:// URL, - or none for standard input
    pub archive: Option<String>,

    /// print this help
    #[arg(short = '?', long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,

    /// connect to database name, connection string or URI
    #[arg(short = 'd', long, value_name = "NAME")]
    pub dbname: Option<String>,
    #[command(flatten)]
    pub connect: Connect,
    /// write a script for psql to this file (- for stdout) in place of restoring; with -l the list
    #[arg(short = 'f', long, value_name = "FILENAME")]
    pub file: Option<String>,
    /// format of the archive (should be automatic)
    #[arg(short = 'F', long, value_name = "c|d|t")]
    pub format: Option<String>,
    /// do SET ROLE before restore
    #[arg(long, value_name = "ROLENAME")]
    pub role: Option<String>,

    #[command(flatten)]
    pub locked: Locked,

    /// use this many connections at the same time; by default one for each processor of this machine
    #[arg(short = 'j', long, value_name = "NUM", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub jobs: Option<u16>,
    /// restore as a single transaction, on one connection
    #[arg(short = '1', long)]
    pub single_transaction: bool,
    /// restore on one connection and commit after every N objects
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub transaction_size: Option<u32>,
    /// go on with the unfinished restore in the target database
    #[arg(long)]
    pub resume: bool,
    /// what to do when a statement fails; stop if not given, but what --clean cannot drop is then passed over
    #[arg(long, value_enum, value_name = "ACTION")]
    pub on_error: Option<OnError>,
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
    /// do not count the rows of the tables at the end
    #[arg(long)]
    pub no_count: bool,
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
    #[arg(short = 'a', long, help_heading = WHAT)]
    pub data_only: bool,
    /// restore only the schema, no data
    #[arg(short = 's', long, help_heading = WHAT)]
    pub schema_only: bool,
    /// restore only the statistics, not schema or data
    #[arg(long, help_heading = WHAT)]
    pub statistics_only: bool,
    /// do not restore schema
    #[arg(long, help_heading = WHAT)]
    pub no_schema: bool,
    /// do not restore data
    #[arg(long, help_heading = WHAT)]
    pub no_data: bool,
    /// restore the statistics
    #[arg(long, help_heading = WHAT)]
    pub statistics: bool,
    /// do not restore statistics
    #[arg(long, help_heading = WHAT)]
    pub no_statistics: bool,
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
    /// with -a: put the rows of table OLD into table NEW, which is there; may be repeated
    #[arg(long, value_name = "OLD:NEW", help_heading = WHAT)]
    pub redirect_table: Vec<String>,
    /// put all of schema OLD into schema NEW; may be repeated
    #[arg(long, value_name = "OLD:NEW", help_heading = WHAT)]
    pub redirect_schema: Vec<String>,
    /// use table of contents from this file for selecting output
    #[arg(short = 'L', long, value_name = "FILENAME", help_heading = WHAT)]
    pub use_list: Option<String>,
    /// restore or skip objects based on expressions in FILENAME; may be repeated
    #[arg(long, value_name = "FILENAME", help_heading = WHAT)]
    pub filter: Vec<String>,
    /// print the table of contents of the archive
    #[arg(short = 'l', long)]
    pub list: bool,

    /// require table and/or schema include patterns to match at least one entity each
    #[arg(long, help_heading = WHAT)]
    pub strict_names: bool,
    /// with -a: empty the tables, each in the transaction that restores its rows
    #[arg(long, alias = "truncate-tables")]
    pub truncate_table: bool,
    /// disable triggers during data-only restore
    #[arg(long)]
    pub disable_triggers: bool,
    /// superuser user name to use for disabling triggers
    #[arg(short = 'S', long, value_name = "NAME")]
    pub superuser: Option<String>,
    /// use SET SESSION AUTHORIZATION commands instead of ALTER OWNER commands to set ownership
    #[arg(long)]
    pub use_set_session_authorization: bool,
    /// with -f: use provided string as psql \restrict key
    #[arg(long, value_name = "RESTRICT_KEY")]
    pub restrict_key: Option<String>,
    /// does nothing, as in pg_restore
    #[arg(short = 'R', long, hide = true)]
    pub no_reconnect: bool,
    /// do not restore data of tables that could not be created; always so
    #[arg(long)]
    pub no_data_for_failed_tables: bool,
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
    /// do not restore row security policies
    #[arg(long, help_heading = WHAT)]
    pub no_policies: bool,
    /// do not restore publications
    #[arg(long, help_heading = WHAT)]
    pub no_publications: bool,
    /// do not restore security labels
    #[arg(long, help_heading = WHAT)]
    pub no_security_labels: bool,
    /// do not restore subscriptions
    #[arg(long, help_heading = WHAT)]
    pub no_subscriptions: bool,
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
        if self.use_set_session_authorization && !self.no_owner {
            // What several entries become has no owner to run it.
            let whole = Rules::all(false);
            let Rules { skip_empty_data, copy_freeze, split_data, .. } = rules;
            rules = Rules { skip_empty_data, copy_freeze, split_data, ..whole };
        }
        Ok(rules)
    }

    fn filter(&self) -> Result<Filter> {
        let has = |s| self.section.contains(&s);
        let mut filter = Filter {
            schema_only: self.schema_only,
            data_only: self.data_only,
            statistics_only: self.statistics_only,
            with_statistics: self.statistics,
            no_schema: self.no_schema,
            no_data: self.no_data,
            no_statistics: self.no_statistics,
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
            no_policies: self.no_policies,
            no_security_labels: self.no_security_labels,
            no_publications: self.no_publications,
            no_subscriptions: self.no_subscriptions,
            create: self.create,
            with_dependencies: self.with_dependencies,
            list: None,
        };
        for file in &self.filter {
            filter_file::read(file, &mut filter)?;
        }
        Ok(filter)
    }

    /// The format that the archive is said to have.
    fn format(&self) -> Result<Option<Format>> {
        let Some(name) = self.format.as_deref().filter(|name| !name.is_empty()) else {
            return Ok(None);
        };
        let format = match &name.to_ascii_lowercase()[..] {
            "c" | "custom" => Format::Custom,
            "d" | "directory" => Format::Directory,
            "t" | "tar" => Format::Tar,
            "p" | "plain" => {
                let message = "archive format \"plain\" is not supported; please use psql";
                return Err(Error::usage(message.replace("plain", name)));
            }
            _ => {
                return Err(Error::usage(format!(
                    "unrecognized archive format \"{name}\"; please specify \"c\", \"d\", or \"t\""
                )))
            }
        };
        Ok(Some(format))
    }

    /// How to connect. What needs no server does not ask for passwords.
    fn address(&self) -> Result<Address> {
        let dbname = self.dbname.as_deref();
        if self.list
            || self.file.is_some()
            || dbname.is_none() && (self.dry_run || std::env::var_os("PGDATABASE").is_none())
        {
            return Ok(Address::default());
        }
        self.connect.address(dbname)
    }

    fn check(&self) -> Result<Option<Check>> {
        if self.verify.is_none() && self.verify_source.is_none() {
            return Ok(None);
        }
        // A name is one on the target's server, by whatever way that is known.
        let source = |text: &String| match is_conninfo(text) {
            true => self.connect.elsewhere(Some(text)).map(Source::Elsewhere),
            false => Ok(Source::Database(text.clone())),
        };
        Ok(Some(Check {
            depth: match self.verify {
                Some(VerifyDepth::Checksums) => Depth::Checksums,
                _ => Depth::Counts,
            },
            source: self.verify_source.as_ref().map(source).transpose()?,
            pg_dump: self.pg_dump.clone(),
        }))
    }

    /// Where the archive is.
    fn archive(&self) -> Result<String> {
        match &self.archive {
            Some(archive) => Ok(archive.clone()),
            // Nobody types an archive.
            None if std::io::stdin().is_terminal() => Err(Error::usage(
                "missing command-line argument: ARCHIVE",
            )
            .hint("Without one the archive is read from standard input, which is a terminal.")),
            None => Ok("-".to_string()),
        }
    }

    /// What opens the archive.
    fn keys(&self) -> Result<Keys> {
        if self.archive()? == "-" {
            self.locked.leave_standard_input()?;
        }
        self.locked.all_keys()
    }

    /// Restore on one connection, in pg_restore's order.
    pub fn one_connection(&self) -> bool {
        self.single_transaction || self.transaction_size.is_some()
    }

    /// What a script is to be like.
    pub fn wishes(&self, filter: Filter) -> Result<Wishes> {
        Ok(Wishes {
            filter,
            asked: self.asked(),
            create: self.create,
            role: self.role.clone(),
            row_security: self.enable_row_security,
            single_transaction: self.single_transaction,
            transaction_size: self.transaction_size,
            restrict_key: match &self.restrict_key {
                Some(key) => key.clone(),
                None => restrict_key()?,
            },
        })
    }

    fn asked(&self) -> Asked {
        let superuser = self.superuser.clone().filter(|name| !name.is_empty());
        Asked {
            style: Style {
                no_owner: self.no_owner,
                no_tablespaces: self.no_tablespaces,
                no_table_access_method: self.no_table_access_method,
                session_authorization: self.use_set_session_authorization && !self.no_owner,
            },
            clean: self.clean,
            if_exists: self.if_exists,
            disable_triggers: self.disable_triggers,
            superuser: superuser.filter(|_| self.disable_triggers),
        }
    }

    /// Connections to work with.
    pub fn jobs(&self) -> u16 {
        match self.jobs {
            _ if self.one_connection() => 1,
            Some(jobs) => jobs,
            None => super::default_jobs(),
        }
    }

    pub fn options(&self) -> Result<Options> {
        self.check_together()?;
        let filter = self.filter()?;
        let rows_only = !filter.wants_schema();
        for (option, given) in [
            ("--truncate-table", self.truncate_table),
            ("--redirect-table", !self.redirect_table.is_empty()),
        ] {
            if given && !(rows_only && filter.wants_data()) {
                let message = format!("option {option} requires option -a/--data-only");
                return Err(
                    Error::usage(message).hint("It is about rows of tables that are there.")
                );
            }
        }
        let tables = self.redirect_table.iter().map(|pair| names::tables(pair));
        let schemas = self.redirect_schema.iter().map(|pair| names::schemas(pair));
        let redirects = Redirects {
            redirect_tables: tables.collect::<Result<_>>()?,
            redirect_schemas: schemas.collect::<Result<_>>()?,
        };
        Ok(Options {
            archive: self.archive()?,
            format: self.format()?,
            keys: self.keys()?,
            use_list: self.use_list.clone(),
            login: Login {
                address: self.address()?,
                role: self.role.clone(),
                row_security: self.enable_row_security,
            },
            named: self.dbname.is_some(),
            jobs: usize::from(self.jobs()),
            filter,
            rules: self.rules()?,
            asked: self.asked(),
            create: self.create,
            resume: self.resume,
            go_on_after_errors: self.on_error == Some(OnError::Continue),
            stop_at_drops: self.exit_on_error || self.on_error == Some(OnError::Stop),
            count_rows: !self.no_count,
            verify: self.check()?,
            analyze: !self.no_analyze,
            strict_names: self.strict_names,
            truncate: self.truncate_table,
            redirects,
        })
    }
}
