//! Connections to the target, set up as `pg_restore` sets up its own.

use crate::archive::Toc;
use crate::error::Result;
use crate::pg::{quote_ident, Connection};
use crate::plan::select::is_session_setup;

/// How to connect and what to be.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// libpq's keywords and values, without the database.
    pub params: Vec<(String, String)>,
    /// Name, connection string or URI.
    pub dbname: Option<String>,
    pub role: Option<String>,
    /// Let row-level security policies apply instead of failing where they would.
    pub row_security: bool,
}

impl Target {
    /// Connect; to `dbname` in place of the target's own if given.
    pub fn connect(&self, dbname: Option<&str>) -> Result<Connection> {
        let mut params = self.params.clone();
        if let Some(own) = &self.dbname {
            params.push(("dbname".into(), own.clone()));
        }
        if let Some(dbname) = dbname {
            params.push(("dbname".into(), dbname.into()));
        }
        params.push(("fallback_application_name".into(), "firn".into()));
        Connection::open(&params)
    }
}

/// Settings for all that a restore runs.
pub fn prepare(
    connection: &Connection,
    toc: &Toc,
    target: &Target,
    memory_kb: Option<u64>,
) -> Result<()> {
    let mut sql = Vec::new();
    // What the archive was written with: encoding, literal strings, search path.
    for entry in toc.entries().filter(is_session_setup) {
        sql.extend_from_slice(entry.defn);
        sql.push(b'\n');
    }
    sql.extend_from_slice(
        b"SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0;\n\
          SET check_function_bodies = false; SET xmloption = content; SET client_min_messages = warning;\n\
          SET row_security = off; SET synchronous_commit = off; SET default_tablespace = '';\n\
          SET escape_string_warning = off; SET bytea_output = 'hex';\n",
    );
    if connection.server_version() >= 170_000 {
        sql.extend_from_slice(b"SET transaction_timeout = 0;\n");
    }
    if target.row_security {
        sql.extend_from_slice(b"SET row_security = on;\n");
    }
    if let Some(kb) = memory_kb {
        sql.extend_from_slice(format!("SET maintenance_work_mem = '{kb}kB';\n").as_bytes());
    }
    if let Some(role) = &target.role {
        sql.extend_from_slice(b"SET ROLE ");
        sql.extend(quote_ident(role.as_bytes()));
        sql.extend_from_slice(b";\n");
    }
    connection.run(&sql)?;
    Ok(())
}
