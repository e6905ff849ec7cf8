//! `--clean`: what is there is dropped first, in reverse order.

use super::walk::Walk;
use crate::archive::{Absent, Entry};
use crate::error::Result;
use crate::plan::select::Choice;

impl Walk<'_> {
    pub(super) fn drops(&mut self, choice: &Choice) -> Result<()> {
        for &place in choice.order.iter().rev() {
            let entry = self.toc.entry(place as usize);
            let parts = choice.parts[place as usize];
            let database = matches!(entry.desc, b"DATABASE" | b"DATABASE PROPERTIES");
            // With the database all that is in it goes, and we are not connected to it yet.
            if self.wishes.create && !database
                || !(parts.schema || parts.data)
                || entry.given(Absent::DROP_STMT).is_none()
            {
                continue;
            }
            self.sink.begin(&entry);
            let outside = database && self.wishes.transaction_size.is_some();
            if outside {
                self.sink.sql(b"COMMIT;\n")?;
            }
            self.become_owner(&entry)?;
            self.select_schema(entry.namespace)?;
            self.drop(&entry)?;
            if outside {
                self.sink.sql(b"BEGIN;\n")?;
                self.count = 0;
            } else {
                self.counted(b"COMMIT;\nBEGIN;\n")?;
            }
        }
        // The schema may be gone by now.
        self.state.schema = None;
        Ok(())
    }

    fn drop(&mut self, entry: &Entry) -> Result<()> {
        let if_exists = self.wishes.if_exists;
        if entry.desc == b"BLOB METADATA" {
            return match if_exists {
                true => self.for_each_object(
                    entry,
                    b"SELECT pg_catalog.lo_unlink(oid) FROM pg_catalog.pg_largeobject_metadata WHERE oid = '",
                    b"'",
                ),
                false => self.for_each_object(entry, b"SELECT pg_catalog.lo_unlink('", b"')"),
            };
        }
        if entry.drop_stmt.is_empty() {
            return Ok(());
        }
        if !if_exists || entry.drop_stmt.starts_with(b"--") {
            return self.sink.sql(entry.drop_stmt);
        }
        if entry.desc == b"BLOB" {
            let oid = entry.oid;
            return self.sink.sql(
                format!(
                    "SELECT pg_catalog.lo_unlink(oid) FROM pg_catalog.pg_largeobject_metadata WHERE oid = '{oid}';\n"
                )
                .as_bytes(),
            );
        }
        let text = with_if_exists(entry).unwrap_or_else(|| {
            let statement = String::from_utf8_lossy(entry.drop_stmt);
            eprintln!(
                "firn: warning: could not find where to insert IF EXISTS in statement \"{statement}\""
            );
            entry.drop_stmt.to_vec()
        });
        self.sink.sql(&text)
    }
}

/// The statement that drops something, with IF EXISTS; `None` if there is no place for it.
fn with_if_exists(entry: &Entry) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut text = entry.drop_stmt;
    if let Some(rest) = text.strip_prefix(b"ALTER TABLE") {
        out.extend_from_slice(b"ALTER TABLE IF EXISTS");
        text = rest;
    }
    // These have no such clause, and views that lose their query are not dropped.
    if matches!(entry.desc, b"DEFAULT" | b"DATABASE PROPERTIES")
        || text.starts_with(b"CREATE OR REPLACE VIEW")
    {
        out.extend_from_slice(text);
        return Some(out);
    }
    let what = match entry.desc {
        b"CONSTRAINT" | b"CHECK CONSTRAINT" | b"FK CONSTRAINT" => b"DROP CONSTRAINT".to_vec(),
        desc => [b"DROP ", desc].concat(),
    };
    let end = text.windows(what.len()).position(|w| w == what)? + what.len();
    out.extend_from_slice(&text[..end]);
    out.extend_from_slice(b" IF EXISTS");
    out.extend_from_slice(&text[end..]);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_if_exists() {
        let with = |desc, drop_stmt| {
            let entry = Entry { desc, drop_stmt, ..Entry::default() };
            with_if_exists(&entry).map(|text| String::from_utf8(text).unwrap())
        };
        let cases: [(&[u8], &[u8], &str); 5] = [
            (b"TABLE", b"DROP TABLE a.t;\n", "DROP TABLE IF EXISTS a.t;\n"),
            (
                b"FK CONSTRAINT",
                b"ALTER TABLE ONLY a.t DROP CONSTRAINT k;\n",
                "ALTER TABLE IF EXISTS ONLY a.t DROP CONSTRAINT IF EXISTS k;\n",
            ),
            (
                b"DEFAULT",
                b"ALTER TABLE a.t ALTER COLUMN c DROP DEFAULT;\n",
                "ALTER TABLE IF EXISTS a.t ALTER COLUMN c DROP DEFAULT;\n",
            ),
            (
                b"RULE",
                b"CREATE OR REPLACE VIEW v AS SELECT 1;\n",
                "CREATE OR REPLACE VIEW v AS SELECT 1;\n",
            ),
            (b"TRIGGER", b"DROP TRIGGER x ON a.t;\n", "DROP TRIGGER IF EXISTS x ON a.t;\n"),
        ];
        for (desc, drop, expected) in cases {
            assert_eq!(with(desc, drop).unwrap(), expected);
        }
        assert_eq!(with(b"PROCEDURAL LANGUAGE", b"DROP LANGUAGE l;\n"), None);
    }
}
