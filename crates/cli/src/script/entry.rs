//! The statements of one entry.

use super::walk::{State, Walk};
use crate::archive::{read_error, Absent, Entry};
use crate::error::{Error, Result};
use crate::plan::render::{may_be_there, LargeObjectStatement};
use crate::plan::select::Parts;
use crate::plan::text::quoted::{id, literal, one_line, qualified};
use crate::plan::who::Who;
use crate::report::say;
use std::io::Read;

macro_rules! sql {
    ($walk:expr, $($part:expr),+ $(,)?) => {{
        let mut text = Vec::new();
        $(text.extend_from_slice(AsRef::<[u8]>::as_ref(&$part));)+
        $walk.sink.sql(&text)
    }};
}

/// Between two transactions of `--transaction-size`.
const COMMIT: &[u8] = b"COMMIT;\nBEGIN;\n\n";
/// Bytes of a large object in one statement.
const PIECE: usize = 16 << 10;
/// `INV_WRITE` of libpq's large objects.
const WRITE: u32 = 0x20000;

impl Walk<'_> {
    pub(super) fn entry(&mut self, place: usize, parts: Parts) -> Result<()> {
        let entry = self.toc.entry(place);
        if entry.desc == b"WARNING" {
            let text = if self.schema_too && !entry.defn.is_empty() {
                entry.defn
            } else {
                entry.copy_stmt
            };
            if !text.is_empty() {
                let text = String::from_utf8_lossy(text);
                say(&format!("firn: warning: warning from original dump file: {text}"));
            }
        }
        if parts.schema {
            let database = matches!(entry.desc, b"DATABASE" | b"DATABASE PROPERTIES");
            if database && self.wishes.transaction_size.is_some() {
                self.sink.sql(b"COMMIT;\n\n")?;
            }
            self.print(&entry, "")?;
            if database {
                self.sink.connect(entry.tag, &self.wishes.restrict_key)?;
                self.state = State::default();
                self.fixed_state()?;
            }
        }
        if parts.data {
            if entry.has_data {
                self.data(place, &entry)?;
            } else if !parts.schema {
                self.print(&entry, "")?;
            }
        }
        if parts.statistics {
            self.print(&entry, "Statistics for ")?;
        }
        self.counted(COMMIT)
    }

    /// Rows or large objects.
    fn data(&mut self, place: usize, entry: &Entry) -> Result<()> {
        self.print(entry, "Data for ")?;
        if entry.desc == b"BLOBS" {
            self.select_schema(b"pg_catalog")?;
            return self.large_objects(place);
        }
        let table = qualified(entry.namespace, entry.tag);
        // Where the tables are made as well, their triggers come later.
        let disable = self.wishes.asked.disable_triggers && !self.schema_too;
        let superuser = Who::superuser(self.wishes.asked.superuser.as_deref());
        if disable {
            self.become_user(superuser.clone())?;
            sql!(self, "ALTER TABLE ", table, " DISABLE TRIGGER ALL;\n\n")?;
        }
        self.become_owner(entry)?;
        self.select_schema(entry.namespace)?;
        self.sink.rows(self.archive, place)?;
        if disable {
            self.become_user(superuser)?;
            sql!(self, "ALTER TABLE ", table, " ENABLE TRIGGER ALL;\n\n")?;
        }
        Ok(())
    }

    fn large_objects(&mut self, place: usize) -> Result<()> {
        let own = !self.wishes.single_transaction && self.wishes.transaction_size.is_none();
        if own {
            self.sink.sql(b"BEGIN;\n\n")?;
        }
        let mut buffer = Vec::with_capacity(PIECE);
        let mut written = 0;
        for object in self.archive.large_objects(place)? {
            let mut object = object?;
            let oid = object.oid;
            sql!(self, format!("SELECT pg_catalog.lo_open('{oid}', {WRITE});\n"))?;
            loop {
                buffer.clear();
                let mut piece = object.data.by_ref().take(PIECE as u64);
                if piece.read_to_end(&mut buffer).map_err(read_error)? == 0 {
                    break;
                }
                let bytes =
                    crate::plan::text::quoted::bytes_literal(&buffer, self.standard_strings);
                sql!(self, "SELECT pg_catalog.lowrite(0, ", bytes, ");\n")?;
                written += buffer.len() as u64;
            }
            self.sink.sql(b"SELECT pg_catalog.lo_close(0);\n\n")?;
        }
        self.sink.wrote(place, written);
        if own {
            self.sink.sql(b"COMMIT;\n\n")?;
        }
        Ok(())
    }

    /// The definition, with what must be set before it, and the owner.
    fn print(&mut self, entry: &Entry, prefix: &str) -> Result<()> {
        let partitioned = entry.relkind == b'p';
        self.become_owner(entry)?;
        self.select_schema(entry.namespace)?;
        self.select_tablespace(entry)?;
        if !partitioned {
            self.select_access_method(entry)?;
        }
        self.head(entry, prefix)?;
        self.definition(entry)?;
        self.owner(entry)?;
        if partitioned && !self.wishes.asked.style.no_table_access_method {
            if let Some(method) = entry.given(Absent::TABLEAM) {
                let table = qualified(entry.namespace, entry.tag);
                sql!(self, "ALTER TABLE ", table, " SET ACCESS METHOD ", id(method), ";\n\n")?;
            }
        }
        // Privileges may set the session's user.
        if matches!(entry.desc, b"ACL" | b"ACL LANGUAGE" | b"DEFAULT ACL") {
            self.state.who = None;
            let words = b" SESSION AUTHORIZATION";
            if entry.defn.windows(words.len()).any(|w| w == words) {
                self.become_role()?;
            }
        }
        Ok(())
    }

    fn select_tablespace(&mut self, entry: &Entry) -> Result<()> {
        let Some(wanted) = entry.given(Absent::TABLESPACE) else { return Ok(()) };
        if self.wishes.asked.style.no_tablespaces
            || self.state.tablespace.as_deref() == Some(wanted)
        {
            return Ok(());
        }
        let name = if wanted.is_empty() { literal(b"", true) } else { id(wanted) };
        sql!(self, "SET default_tablespace = ", name, ";\n\n")?;
        self.state.tablespace = Some(wanted.to_vec());
        Ok(())
    }

    fn select_access_method(&mut self, entry: &Entry) -> Result<()> {
        let Some(wanted) = entry.given(Absent::TABLEAM) else { return Ok(()) };
        if self.wishes.asked.style.no_table_access_method
            || self.state.tableam.as_deref() == Some(wanted)
        {
            return Ok(());
        }
        sql!(self, "SET default_table_access_method = ", id(wanted), ";\n\n")?;
        self.state.tableam = Some(wanted.to_vec());
        Ok(())
    }

    /// The comment above an entry.
    fn head(&mut self, entry: &Entry, prefix: &str) -> Result<()> {
        let or_hyphen = |text: Option<&[u8]>| text.map_or(b"-".to_vec(), one_line);
        let owner = entry.given(Absent::OWNER).filter(|_| !self.wishes.asked.style.no_owner);
        let mut text = format!("--\n-- {prefix}Name: ").into_bytes();
        text.extend(one_line(entry.tag));
        text.extend_from_slice(b"; Type: ");
        text.extend(one_line(entry.desc));
        text.extend_from_slice(b"; Schema: ");
        text.extend(or_hyphen(entry.given(Absent::NAMESPACE)));
        text.extend_from_slice(b"; Owner: ");
        text.extend(or_hyphen(owner));
        if !entry.tablespace.is_empty() && !self.wishes.asked.style.no_tablespaces {
            text.extend_from_slice(b"; Tablespace: ");
            text.extend(one_line(entry.tablespace));
        }
        text.extend_from_slice(b"\n--\n\n");
        self.sink.remark(&text)
    }

    fn definition(&mut self, entry: &Entry) -> Result<()> {
        let comment = entry.defn.starts_with(b"--");
        if self.wishes.asked.style.no_owner && entry.desc == b"SCHEMA" && !comment {
            return sql!(self, "CREATE SCHEMA ", id(entry.tag), ";\n\n\n");
        }
        if entry.desc == b"BLOB METADATA" {
            return self.for_each_object(entry, b"SELECT pg_catalog.lo_create('", b"')");
        }
        if entry.desc == b"ACL" && entry.tag.starts_with(b"LARGE OBJECTS") {
            return self.large_object_privileges(entry);
        }
        if entry.defn.is_empty() {
            return Ok(());
        }
        sql!(self, entry.defn, "\n\n")?;
        if self.wishes.transaction_size.is_some()
            && !matches!(entry.desc, b"FUNCTION" | b"PROCEDURE")
        {
            let statements = entry.defn.iter().filter(|b| **b == b';').count() as u32;
            self.count += statements.saturating_sub(1);
        }
        Ok(())
    }

    fn owner(&mut self, entry: &Entry) -> Result<()> {
        // A schema "public" that is not made is handed over all the same. On the server what was there before is, by who may.
        let kept = match self.sink.is_script() {
            true => entry.desc == b"SCHEMA" && entry.defn.starts_with(b"--"),
            false => may_be_there(entry, self.search_path.is_none()),
        };
        if self.wishes.asked.style.no_owner
            || self.wishes.asked.style.session_authorization && !kept
            || entry.owner.is_empty()
            || entry.drop_stmt.is_empty()
        {
            return Ok(());
        }
        if self.wishes.asked.style.session_authorization && !self.sink.is_script() {
            self.become_user(Who::LoggedIn)?;
        }
        let owner = [b" OWNER TO ", &id(entry.owner)[..]].concat();
        if entry.desc == b"BLOB METADATA" {
            return self.for_each_object(entry, b"ALTER LARGE OBJECT ", &owner);
        }
        match owned(entry)? {
            Some(object) => sql!(self, "ALTER ", object, owner, ";\n\n"),
            None => Ok(()),
        }
    }

    /// A statement for each of a list of large objects.
    pub(super) fn for_each_object(&mut self, list: &Entry, begin: &[u8], end: &[u8]) -> Result<()> {
        let mut lines: Vec<&[u8]> = list.defn.split(|b| *b == b'\n').collect();
        // What follows the last line's end.
        lines.pop();
        for oid in lines {
            if oid.is_empty() || !oid.iter().all(u8::is_ascii_digit) {
                return Err(Error::archive("invalid list of large objects"));
            }
            sql!(self, begin, oid, end, ";\n")?;
            self.counted(COMMIT)?;
        }
        self.sink.sql(b"\n")
    }

    /// Privileges of a list of large objects: the entry has the statements for the first of them.
    fn large_object_privileges(&mut self, entry: &Entry) -> Result<()> {
        let list = entry.dependencies.first().copied().unwrap_or(0);
        let list = self.toc.place(list).map(|place| self.toc.entry(place));
        let list = list
            .filter(|list| list.desc == b"BLOB METADATA")
            .ok_or_else(|| Error::archive("the privileges of large objects do not say of which"))?;
        let mut rest = entry.defn;
        while let Some(statement) =
            LargeObjectStatement::take(&mut rest).filter(|statement| statement.of_object)
        {
            self.for_each_object(&list, statement.before, statement.after)?;
        }
        Ok(())
    }
}

/// How an entry's object is named in `ALTER … OWNER TO`; `None` for what has no owner of its own.
fn owned(entry: &Entry) -> Result<Option<Vec<u8>>> {
    let object = match entry.desc {
        b"COLLATION"
        | b"CONVERSION"
        | b"DOMAIN"
        | b"FOREIGN TABLE"
        | b"MATERIALIZED VIEW"
        | b"SEQUENCE"
        | b"STATISTICS"
        | b"TABLE"
        | b"TEXT SEARCH DICTIONARY"
        | b"TEXT SEARCH CONFIGURATION"
        | b"TYPE"
        | b"VIEW"
        | b"DATABASE"
        | b"PROCEDURAL LANGUAGE"
        | b"SCHEMA"
        | b"EVENT TRIGGER"
        | b"FOREIGN DATA WRAPPER"
        | b"SERVER"
        | b"PUBLICATION"
        | b"SUBSCRIPTION" => [entry.desc, b" ", &qualified(entry.namespace, entry.tag)].concat(),
        b"BLOB" => [b"LARGE OBJECT ", entry.tag].concat(),
        // Named with their arguments: as the statement that drops them does.
        b"AGGREGATE" | b"FUNCTION" | b"OPERATOR" | b"OPERATOR CLASS" | b"OPERATOR FAMILY"
        | b"PROCEDURE" => {
            let object = entry.drop_stmt.get(5..).unwrap_or_default();
            let end = object.iter().rposition(|b| !matches!(b, b'\n' | b';'));
            object[..end.map_or(0, |end| end + 1)].to_vec()
        }
        b"CAST"
        | b"CHECK CONSTRAINT"
        | b"CONSTRAINT"
        | b"DATABASE PROPERTIES"
        | b"DEFAULT"
        | b"FK CONSTRAINT"
        | b"INDEX"
        | b"RULE"
        | b"TRIGGER"
        | b"ROW SECURITY"
        | b"POLICY"
        | b"USER MAPPING" => return Ok(None),
        other => {
            let kind = String::from_utf8_lossy(other);
            let message = format!("don't know how to set owner for object type \"{kind}\"");
            return Err(Error::archive(message));
        }
    };
    Ok(Some(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners() {
        let named = |desc, drop_stmt| {
            owned(&Entry { desc, namespace: b"s", tag: b"Order", drop_stmt, ..Entry::default() })
        };
        assert_eq!(named(b"TABLE", b"x").unwrap().unwrap(), b"TABLE s.\"Order\"");
        let drop = b"DROP FUNCTION s.f(integer);\n";
        assert_eq!(named(b"FUNCTION", drop).unwrap().unwrap(), b"FUNCTION s.f(integer)");
        assert_eq!(named(b"INDEX", b"x").unwrap(), None);
        named(b"EXTENSION", b"x").unwrap_err();
    }
}
