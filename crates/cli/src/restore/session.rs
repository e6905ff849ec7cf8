//! Connections to the target, set up as `pg_restore` sets up its own.

use super::Options;
use crate::archive::Toc;
use crate::error::{Error, Result};
use crate::pg::{quote_ident, Address, Connection, For, Ping};

impl Options {
    /// Where the database of this name is, or the login's own.
    fn address(&self, dbname: Option<&str>) -> Address {
        let address = self.login.at(dbname).address;
        // A firewall that forgets quiet connections is to be noticed.
        address.or("keepalives_idle", "60").or("fallback_application_name", "firn")
    }

    /// Connect; to the database named in place of the login's own if one is.
    pub fn connect(&self, dbname: Option<&str>, purpose: For) -> Result<Connection> {
        Connection::open(&self.address(dbname), purpose)
    }

    /// Whether the server takes connections.
    pub fn ping(&self, dbname: Option<&str>) -> Result<Ping> {
        Connection::ping(&self.address(dbname))
    }
}

/// The word in quotes that an entry with a setting of the archive consists of: `SET client_encoding = 'UTF8';`. Like
/// `pg_restore` this takes nothing else from it: it is run by whoever restores, before `SET ROLE`.
fn quoted_word(defn: &[u8]) -> Option<&[u8]> {
    let begin = defn.iter().position(|b| *b == b'\'')? + 1;
    let length = defn[begin..].iter().position(|b| *b == b'\'')?;
    let word = &defn[begin..begin + length];
    let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b':');
    (!word.is_empty() && word.iter().all(plain)).then_some(word)
}

/// What the archive was written with, as settings: its names are read by these.
pub fn of_archive(toc: &Toc) -> Result<Vec<u8>> {
    let mut sql = Vec::new();
    for entry in toc.entries() {
        let setting: &[u8] = match entry.desc {
            b"ENCODING" => b"client_encoding",
            b"STDSTRINGS" => b"standard_conforming_strings",
            _ => continue,
        };
        let word = quoted_word(entry.defn)
            .filter(|word| entry.desc == b"ENCODING" || matches!(*word, b"on" | b"off"))
            .ok_or_else(|| {
                let defn = String::from_utf8_lossy(entry.defn).trim().to_string();
                let desc = String::from_utf8_lossy(entry.desc);
                Error::archive(format!("invalid {desc} item: {defn}"))
            })?;
        sql.extend([&b"SET "[..], setting, b" = '", word, b"';\n"].concat());
    }
    Ok(sql)
}

/// Settings for all that a restore runs, in the order of `pg_restore`.
pub fn prepare(
    connection: &Connection,
    toc: &Toc,
    options: &Options,
    memory_kb: Option<u64>,
) -> Result<()> {
    let mut sql = of_archive(toc)?;
    sql.extend_from_slice(
        b"SET check_function_bodies = false; SET xmloption = content; SET client_min_messages = warning;\n\
          SET row_security = off; SET synchronous_commit = off; SET default_tablespace = '';\n\
          SET escape_string_warning = off; SET bytea_output = 'hex';\n\
          SET default_transaction_isolation = 'read committed';\n",
    );
    sql.extend(no_limits(connection));
    if options.login.row_security {
        sql.extend_from_slice(b"SET row_security = on;\n");
    }
    // What the archive sets for a database that is made by this restore is for those who come later.
    if options.create && super::database::is_read_only(toc) {
        sql.extend_from_slice(b"SET default_transaction_read_only = off;\n");
    }
    if let Some(kb) = memory_kb {
        sql.extend_from_slice(format!("SET maintenance_work_mem = '{kb}kB';\n").as_bytes());
    }
    if let Some(role) = &options.login.role {
        sql.extend_from_slice(b"SET ROLE ");
        sql.extend(quote_ident(role.as_bytes()));
        sql.extend_from_slice(b";\n");
    }
    // As pg_restore has it this is a statement of the archive, run as the role that restores.
    for entry in toc.entries().filter(|e| e.desc == b"SEARCHPATH") {
        sql.extend_from_slice(entry.defn);
        sql.push(b'\n');
    }
    connection.run(&sql)?;
    Ok(())
}

/// What the server, the database or the role sets does not end what takes long.
pub fn no_limits(connection: &Connection) -> Vec<u8> {
    let mut sql = b"SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0;\n".to_vec();
    if connection.server_version() >= 140_000 {
        sql.extend_from_slice(b"SET idle_session_timeout = 0;\n");
    }
    if connection.server_version() >= 170_000 {
        sql.extend_from_slice(b"SET transaction_timeout = 0;\n");
    }
    sql
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Entry;

    fn settings(desc: &[u8], defn: &[u8]) -> Result<Vec<u8>> {
        let mut toc = Toc::default();
        toc.push(&Entry { desc, defn, dump_id: 1, ..Entry::default() }).unwrap();
        of_archive(&toc)
    }

    #[test]
    fn settings_of_archives_are_words() {
        let encoding = settings(b"ENCODING", b"SET client_encoding = 'SQL_ASCII';\n").unwrap();
        assert_eq!(encoding, b"SET client_encoding = 'SQL_ASCII';\n");
        let strings = b"SET standard_conforming_strings = 'off';\n";
        assert_eq!(settings(b"STDSTRINGS", strings).unwrap(), strings);
        // Nothing behind the word, nothing within it, no other word.
        let more = settings(b"ENCODING", b"SET client_encoding = 'UTF8'; DROP TABLE t;").unwrap();
        assert_eq!(more, b"SET client_encoding = 'UTF8';\n");
        assert!(settings(b"ENCODING", b"SET client_encoding = 'a b';").is_err());
        assert!(settings(b"STDSTRINGS", b"SET x = 'maybe';").is_err());
        assert!(settings(b"STDSTRINGS", b"DROP TABLE t;").is_err());
    }
}
