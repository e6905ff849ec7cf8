//! Flags of `firn backup`; named as `pg_dump` names them where it has them.

mod made;

pub use made::{Expire, List, Verify};

use super::connect::Connect;
use super::locked::Encrypt;
use super::output::Output;
use crate::backup::{Base, Options, Spec};
use crate::error::{Error, Result};
use crate::pg::Login;
use crate::store::StoreSettings;
use clap::{Args as Group, Subcommand};
use std::path::PathBuf;

#[derive(Group, Clone, Debug)]
#[command(
    disable_help_flag = true,
    args_override_self = true,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "firn backup [OPTIONS] DBNAME DEST\n       firn backup [OPTIONS] -d CONNECTION DEST\n       \
                      firn backup verify [OPTIONS] DEST\n       firn backup list [OPTIONS] PARENT\n       \
                      firn backup expire [OPTIONS] PARENT"
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub make: Make,
}

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Check a backup without a server: nothing missing, nothing changed
    Verify(Verify),
    /// List the backups below a folder or a prefix of an object store
    List(List),
    /// Remove the backups that rules do not keep
    Expire(Expire),
}

#[derive(Group, Clone, Debug)]
pub struct Make {
    /// database to back up (a name, connection string or URI), and where to: an empty or new directory, file:// or s3:// URL
    #[arg(value_name = "DBNAME DEST", required = true, num_args = 1..=2, hide = false)]
    pub places: Vec<String>,

    /// print this help
    #[arg(short = '?', long, action = clap::ArgAction::Help)]
    pub help: Option<bool>,

    /// connect to database name, connection string or URI; then only DEST follows
    #[arg(short = 'd', long, value_name = "NAME")]
    pub dbname: Option<String>,
    #[command(flatten)]
    pub connect: Connect,
    /// do SET ROLE before the backup
    #[arg(long, value_name = "ROLENAME")]
    pub role: Option<String>,

    /// use this many connections at the same time to copy data; by default one for each processor of this machine
    #[arg(short = 'j', long, value_name = "NUM", default_value_t = super::default_jobs(), hide_default_value = true, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub jobs: u16,
    /// compress as specified: none, gzip, lz4 or zstd, and a level after a colon; by default zstd, and gzip for
    /// PostgreSQL 15, whose pg_restore knows no other
    #[arg(short = 'Z', long, value_name = "METHOD[:LEVEL]")]
    pub compress: Option<String>,
    /// remove what an unfinished backup left at DEST, and start again
    #[arg(long)]
    pub overwrite_incomplete: bool,
    /// do not copy tables that have not changed since an earlier backup of the database beside DEST: take their files from it;
    /// by default from the latest. What cannot be proven unchanged is copied
    #[arg(long, value_name = "BASE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub incremental: Option<String>,
    /// do not compute checksums of tables' rows, by which restored tables are compared
    #[arg(long)]
    pub no_checksums: bool,
    /// do not wait for the backup to be written safely to disk
    #[arg(long)]
    pub no_sync: bool,
    /// wait until the backup can run without anomalies of serializable transactions
    #[arg(long)]
    pub serializable_deferrable: bool,
    /// the pg_dump to use, instead of the one that fits the server
    #[arg(long, value_name = "PATH")]
    pub pg_dump: Option<PathBuf>,

    #[command(flatten)]
    pub encrypt: Encrypt,

    #[command(flatten)]
    pub selection: Selection,

    #[command(flatten)]
    pub output: Output,
}

/// What goes to `pg_dump` as it is.
#[derive(Group, Clone, Debug, Default)]
#[command(next_help_heading = "Options passed on to pg_dump")]
pub struct Selection {
    /// dump only the data, not the schema
    #[arg(short = 'a', long)]
    pub data_only: bool,
    /// dump only the schema, no data
    #[arg(short = 's', long, conflicts_with = "data_only")]
    pub schema_only: bool,
    /// include large objects
    #[arg(short = 'b', long, alias = "blobs")]
    pub large_objects: bool,
    /// exclude large objects
    #[arg(short = 'B', long, alias = "no-blobs", conflicts_with = "large_objects")]
    pub no_large_objects: bool,
    /// dump the specified schema(s) only
    #[arg(short = 'n', long, value_name = "PATTERN")]
    pub schema: Vec<String>,
    /// do NOT dump the specified schema(s)
    #[arg(short = 'N', long, value_name = "PATTERN")]
    pub exclude_schema: Vec<String>,
    /// dump only the specified table(s)
    #[arg(short = 't', long, value_name = "PATTERN")]
    pub table: Vec<String>,
    /// do NOT dump the specified table(s)
    #[arg(short = 'T', long, value_name = "PATTERN")]
    pub exclude_table: Vec<String>,
    /// do NOT dump data for the specified table(s)
    #[arg(long, value_name = "PATTERN")]
    pub exclude_table_data: Vec<String>,
    /// dump only the specified table(s), with their children and partitions
    #[arg(long, value_name = "PATTERN")]
    pub table_and_children: Vec<String>,
    /// do NOT dump the specified table(s), with their children and partitions
    #[arg(long, value_name = "PATTERN")]
    pub exclude_table_and_children: Vec<String>,
    /// do NOT dump data for the specified table(s), with their children and partitions
    #[arg(long, value_name = "PATTERN")]
    pub exclude_table_data_and_children: Vec<String>,
    /// dump the specified extension(s) only
    #[arg(short = 'e', long, value_name = "PATTERN")]
    pub extension: Vec<String>,
    /// do NOT dump the specified extension(s)
    #[arg(long, value_name = "PATTERN")]
    pub exclude_extension: Vec<String>,
    /// include or exclude objects based on expressions in this file
    #[arg(long, value_name = "FILENAME")]
    pub filter: Vec<String>,
    /// include data of foreign tables on servers matching the pattern
    #[arg(long, value_name = "PATTERN")]
    pub include_foreign_data: Vec<String>,
    /// dump named section (pre-data, data, or post-data)
    #[arg(long, value_name = "SECTION")]
    pub section: Vec<String>,
    /// dump the data in this encoding
    #[arg(short = 'E', long, value_name = "ENCODING")]
    pub encoding: Option<String>,
    /// enable row security (dump only content user has access to)
    #[arg(long)]
    pub enable_row_security: bool,
    /// load partitions via the root table
    #[arg(long)]
    pub load_via_partition_root: bool,
    /// fail after waiting this long for a table lock
    #[arg(long, value_name = "TIMEOUT")]
    pub lock_wait_timeout: Option<String>,
    /// skip restoration of object ownership
    #[arg(short = 'O', long)]
    pub no_owner: bool,
    /// do not dump privileges (grant/revoke)
    #[arg(short = 'x', long, alias = "no-acl")]
    pub no_privileges: bool,
    /// do not dump comments
    #[arg(long)]
    pub no_comments: bool,
    /// do not dump publications
    #[arg(long)]
    pub no_publications: bool,
    /// do not dump security label assignments
    #[arg(long)]
    pub no_security_labels: bool,
    /// do not dump subscriptions
    #[arg(long)]
    pub no_subscriptions: bool,
    /// do not dump table access methods
    #[arg(long)]
    pub no_table_access_method: bool,
    /// do not dump tablespace assignments
    #[arg(long)]
    pub no_tablespaces: bool,
    /// do not dump TOAST compression methods
    #[arg(long)]
    pub no_toast_compression: bool,
    /// do not dump unlogged table data
    #[arg(long)]
    pub no_unlogged_table_data: bool,
    /// do not dump statistics
    #[arg(long)]
    pub no_statistics: bool,
    /// dump the statistics
    #[arg(long)]
    pub statistics: bool,
    /// quote all identifiers, even if not key words
    #[arg(long)]
    pub quote_all_identifiers: bool,
    /// require table and/or schema include patterns to match at least one entity each
    #[arg(long)]
    pub strict_names: bool,
    /// set what SET SESSION AUTHORIZATION commands are to name: the superuser for restoring
    #[arg(short = 'S', long, value_name = "NAME")]
    pub superuser: Option<String>,
}

impl Selection {
    /// The flags for `pg_dump`.
    fn flags(&self) -> Vec<String> {
        let mut flags = Vec::new();
        for (name, values) in [
            ("schema", &self.schema),
            ("exclude-schema", &self.exclude_schema),
            ("table", &self.table),
            ("exclude-table", &self.exclude_table),
            ("exclude-table-data", &self.exclude_table_data),
            ("table-and-children", &self.table_and_children),
            ("exclude-table-and-children", &self.exclude_table_and_children),
            ("exclude-table-data-and-children", &self.exclude_table_data_and_children),
            ("extension", &self.extension),
            ("exclude-extension", &self.exclude_extension),
            ("filter", &self.filter),
            ("include-foreign-data", &self.include_foreign_data),
            ("section", &self.section),
        ] {
            flags.extend(values.iter().map(|value| format!("--{name}={value}")));
        }
        for (name, value) in [
            ("encoding", &self.encoding),
            ("lock-wait-timeout", &self.lock_wait_timeout),
            ("superuser", &self.superuser),
        ] {
            flags.extend(value.iter().map(|value| format!("--{name}={value}")));
        }
        for (name, set) in [
            ("data-only", self.data_only),
            ("schema-only", self.schema_only),
            ("blobs", self.large_objects),
            ("no-blobs", self.no_large_objects),
            ("enable-row-security", self.enable_row_security),
            ("load-via-partition-root", self.load_via_partition_root),
            ("no-owner", self.no_owner),
            ("no-privileges", self.no_privileges),
            ("no-comments", self.no_comments),
            ("no-publications", self.no_publications),
            ("no-security-labels", self.no_security_labels),
            ("no-subscriptions", self.no_subscriptions),
            ("no-table-access-method", self.no_table_access_method),
            ("no-tablespaces", self.no_tablespaces),
            ("no-toast-compression", self.no_toast_compression),
            ("no-unlogged-table-data", self.no_unlogged_table_data),
            ("no-statistics", self.no_statistics),
            ("statistics", self.statistics),
            ("quote-all-identifiers", self.quote_all_identifiers),
            ("strict-names", self.strict_names),
        ] {
            if set {
                flags.push(format!("--{name}"));
            }
        }
        flags
    }
}

impl Make {
    pub fn options(&self) -> Result<Options> {
        let (dbname, destination) = match (&self.dbname, &self.places[..]) {
            // "firn backup -j 2 verify /dest" is meant otherwise.
            (None, [word, _]) if ["verify", "list", "expire"].contains(&&word[..]) => {
                return Err(Error::usage(format!(
                    "command \"{word}\" must come before its options"
                ))
                .hint(format!("To back up a database of this name, give it as -d {word}.")))
            }
            (Some(dbname), [destination]) | (None, [dbname, destination]) => (dbname, destination),
            (Some(_), _) => {
                return Err(Error::usage("too many command-line arguments")
                    .hint("With -d only the destination follows."))
            }
            (None, _) => {
                return Err(Error::usage("no destination was given")
                    .hint("Usage: firn backup [OPTIONS] DBNAME DEST"))
            }
        };
        if self.incremental.is_some() && self.encrypt.is_asked() {
            return Err(Error::usage("an encrypted backup cannot be incremental")
                .detail("Every file of an encrypted backup is encrypted with a key of its own, and bound to that backup.")
                .hint("Leave out --incremental: all tables are then copied."));
        }
        let address = self.connect.address(Some(dbname))?;
        Ok(Options {
            login: Login {
                address,
                role: self.role.clone(),
                row_security: self.selection.enable_row_security,
            },
            destination: destination.clone(),
            store: StoreSettings::default(),
            jobs: usize::from(self.jobs),
            compression: self.compress.as_deref().map(Spec::parse).transpose()?,
            sealing: self.encrypt.sealing()?,
            pg_dump: self.pg_dump.clone(),
            selection: self.selection.flags(),
            deferrable: self.serializable_deferrable,
            overwrite_incomplete: self.overwrite_incomplete,
            checksums: !self.no_checksums,
            sync: !self.no_sync,
            incremental: self.incremental.as_deref().map(|base| match base {
                "" => Base::Latest,
                name => Base::Named(name.to_string()),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command as Top};
    use crate::backup::expire::Rules;
    use clap::Parser;

    fn parse(line: &str) -> std::result::Result<Args, clap::Error> {
        let cli = Cli::try_parse_from(line.split(' '))?;
        #[allow(irrefutable_let_patterns)]
        let Top::Backup(args) = cli.command
        else {
            panic!("{line}")
        };
        Ok(*args)
    }

    #[test]
    fn database_and_destination() {
        let options = |line: &str| parse(line).unwrap().make.options();
        let found = options("firn backup -h x -p 5 db /dest -j 3 -Z zstd:5 -t a* -T b -s --role r")
            .unwrap();
        assert_eq!(found.destination, "/dest");
        let address = |options: &Options| options.login.address.conninfo(|_| true);
        assert_eq!(address(&found), "host='x' port='5' dbname='db'");
        assert_eq!(found.selection, ["--table=a*", "--exclude-table=b", "--schema-only"]);
        assert_eq!((found.jobs, found.compression.unwrap().to_string()), (3, "zstd:5".into()));
        let found = options("firn backup -d service=x /dest").unwrap();
        assert_eq!(address(&found), "service='x'");
        let base = |line| options(line).unwrap().incremental;
        assert_eq!(base("firn backup db /dest"), None);
        assert_eq!(base("firn backup --incremental db /dest"), Some(Base::Latest));
        assert_eq!(base("firn backup db /dest --incremental=a"), Some(Base::Named("a".into())));
        for flags in ["-r age1x", "-R /nowhere", "--passphrase", "--passphrase-file /nowhere"] {
            for base in ["--incremental", "--incremental=a"] {
                let e = options(&format!("firn backup {base} {flags} db /dest")).err().unwrap();
                assert!(e.message.contains("cannot be incremental") && e.hint.is_some(), "{e}");
            }
        }
        assert!(options("firn backup onlyone").is_err());
        assert!(options("firn backup -d x a b").is_err());
        assert!(options("firn backup -j 2 verify /dest").is_err());
        assert!(options("firn backup -j 2 -d verify /dest").is_ok());
    }

    #[test]
    fn subcommands() {
        let args = parse("firn backup verify /dest -j 2").unwrap();
        assert!(matches!(args.command, Some(Command::Verify(Verify { jobs: 2, .. }))));
        let args = parse("firn backup list s3://b/x --json").unwrap();
        assert!(matches!(args.command, Some(Command::List(List { json: true, .. }))));
        let args = parse("firn backup expire /b --keep=3 --keep-weekly 4 --dry-run").unwrap();
        let Some(Command::Expire(expire)) = args.command else { panic!() };
        let options = expire.options(StoreSettings::default()).unwrap();
        let rules = Rules { number: Some(3), weekly: Some(4), ..Rules::default() };
        assert_eq!((options.rules, options.dry_run), (rules, true));
        let args = parse("firn backup expire /b").unwrap();
        let Some(Command::Expire(expire)) = args.command else { panic!() };
        assert!(expire.options(StoreSettings::default()).is_err());
        assert!(parse("firn backup expire /b --keep 0").is_err());
        assert!(parse("firn backup").is_err());
        assert!(parse("firn backup -j 0 a b").is_err());
        assert!(parse("firn backup a b c").is_err());
    }
}
