//! Whether the journal in a database may be read.
//!
//! A superuser restores into a database whose owner is none. That owner can make a schema of the journal's name, with
//! views, rules, triggers, policies or columns that call his functions, and whoever reads or writes such a journal calls
//! them. So before the first statement that names the journal the catalogs say what it is: a schema and plain tables of
//! the role that restores, with just the columns that this program gives them. What belongs to that role nobody but it
//! and superusers can change.

use crate::error::{Error, Result};
use crate::pg::Connection;
use crate::plan::render::SCHEMA;

/// Name, type as the catalog has it, may it be null.
type Column = (&'static str, &'static str, bool);

/// Tables with their columns.
const TABLES: [(&str, &[Column]); 6] = [
    (
        "run",
        &[
            ("identity", "text", false),
            ("terms", "text", false),
            ("epoch", "int4", false),
            ("phase", "text", false),
            ("begun", "timestamptz", false),
        ],
    ),
    ("sessions", &[("session", "int4", false)]),
    ("journal", &[("steps", "_int4", false), ("rows", "int8", true), ("session", "int4", false)]),
    ("entries", &[("entry", "int4", false), ("session", "int4", false)]),
    ("without_rows", &[("entry", "int4", false), ("session", "int4", false)]),
    ("emptied", &[("entry", "int4", false), ("session", "int4", false)]),
];

/// The last of them, which journals of earlier builds do not have.
const NEWEST: &str = "emptied";

/// Whether there is a journal that can be trusted. An error if there is something else of its name.
pub fn check(connection: &Connection) -> Result<bool> {
    let sql = format!(
        "SELECT nspowner = (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user) \
         FROM pg_catalog.pg_namespace WHERE nspname = '{SCHEMA}'"
    );
    let schema = connection.query(sql.as_bytes())?;
    if schema.is_empty() {
        return Ok(false);
    }
    let refused = |detail: String| {
        Err(Error::usage(format!("schema \"{SCHEMA}\" in the target database is no journal of this role"))
            .detail(detail)
            .hint(format!(
                "Restore as the role that began the restore, or drop or rename schema \"{SCHEMA}\" after a look at what it is."
            )))
    };
    if !schema.flag(0, 0) {
        return refused("The schema belongs to another role.".into());
    }
    for (table, columns) in TABLES {
        // Unqualified operators are PostgreSQL's: the search path is empty. (11 is pg_catalog.)
        let sql = format!(
            "SELECT c.relkind = 'r' AND c.relpersistence = 'p' AND c.relowner = n.nspowner AND NOT c.relhasrules \
             AND NOT c.relhastriggers AND NOT c.relrowsecurity AND NOT c.relforcerowsecurity AND NOT c.relispartition \
             AND NOT c.relhasindex AND c.relchecks = 0 AND NOT c.relhassubclass AND c.reloftype = 0 \
             AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent)) \
             AND NOT EXISTS (SELECT FROM pg_catalog.pg_attrdef d WHERE d.adrelid = c.oid), \
             (SELECT pg_catalog.string_agg(a.attname || ' ' || CASE WHEN t.typnamespace = 11 AND a.atttypmod = -1 THEN t.typname ELSE '?' END || \
             CASE WHEN a.attnotnull THEN '' ELSE ' null' END, ',' ORDER BY a.attnum) \
             FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) \
             FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = '{SCHEMA}' AND c.relname = '{table}'"
        );
        let found = connection.query(sql.as_bytes())?;
        let expected: Vec<String> = columns
            .iter()
            .map(|(name, kind, null)| format!("{name} {kind}{}", if *null { " null" } else { "" }))
            .collect();
        if found.is_empty() && table == NEWEST {
            return Err(Error::usage(
                "the unfinished restore in the target database was begun by another build of firn",
            )
            .hint(
                "Resume with the program that it was begun with, or restore into another database.",
            ));
        }
        if found.is_empty() {
            return refused(format!("There is no table \"{SCHEMA}.{table}\"."));
        }
        if !found.flag(0, 0) || found.text(0, 1) != expected.join(",") {
            return refused(format!(
                "\"{SCHEMA}.{table}\" is no plain table of this role with the columns of a journal."
            ));
        }
    }
    Ok(true)
}
