//! Which flags of `firn restore` go together.

use super::{Args, OnError};
use crate::error::{Error, Result};

impl Args {
    /// Flags that make no sense together, in the words of pg_restore.
    pub(super) fn check_together(&self) -> Result<()> {
        let (schema, data) =
            (("-s/--schema-only", self.schema_only), ("-a/--data-only", self.data_only));
        let statistics = ("--statistics-only", self.statistics_only);
        let with_statistics = ("--statistics", self.statistics);
        let no_statistics = ("--no-statistics", self.no_statistics);
        let database = ("-d/--dbname", self.dbname.is_some());
        let file = ("-f/--file", self.file.is_some());
        let single = ("-1/--single-transaction", self.single_transaction);
        let size = ("--transaction-size", self.transaction_size.is_some());
        let proceed = ("--on-error=continue", self.on_error == Some(OnError::Continue));
        let truncate = ("--truncate-table", self.truncate_table);
        let source = ("--verify-source", self.verify_source.is_some());
        let schemas = ("--redirect-schema", !self.redirect_schema.is_empty());
        let tables = ("--redirect-table", !self.redirect_table.is_empty());
        let pairs = [
            (schema, data),
            (schema, statistics),
            (data, statistics),
            (data, ("--no-data", self.no_data)),
            (schema, ("--no-schema", self.no_schema)),
            (statistics, no_statistics),
            (with_statistics, no_statistics),
            (data, with_statistics),
            (schema, with_statistics),
            (("-c/--clean", self.clean), data),
            (database, file),
            (database, ("--restrict-key", self.restrict_key.is_some())),
            (single, size),
            (("-C/--create", self.create), single),
            (("--resume", self.resume), file),
            (("--resume", self.resume), single),
            (("--resume", self.resume), size),
            (("--verify", self.verify.is_some()), file),
            // There nothing is where it is to go.
            (source, tables),
            (source, schemas),
            (proceed, single),
            (proceed, size),
            (truncate, file),
            (truncate, single),
            (truncate, size),
            (truncate, ("-C/--create", self.create)),
            // It would empty tables that nobody has named.
            (truncate, ("--with-dependencies", self.with_dependencies)),
            (schemas, tables),
        ];
        for ((one, first), (two, second)) in pairs {
            if first && second {
                return Err(Error::usage(format!(
                    "options {one} and {two} cannot be used together"
                )));
            }
        }
        if self.if_exists && !self.clean {
            return Err(Error::usage("option --if-exists requires option -c/--clean"));
        }
        if self.single_transaction && self.jobs.is_some_and(|jobs| jobs > 1) {
            let message = "cannot specify both --single-transaction and multiple jobs";
            return Err(Error::usage(message));
        }
        let valid =
            |key: &String| !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric());
        if self.restrict_key.as_ref().is_some_and(|key| !valid(key)) {
            return Err(Error::usage("invalid restrict key"));
        }
        Ok(())
    }
}
