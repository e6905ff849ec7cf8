//! `--clean`: what is there is dropped first, in reverse order.

use super::walk::Walk;
use crate::archive::{Absent, Entry};
use crate::error::Result;
use crate::plan::drops::with_if_exists;
use crate::plan::select::Choice;
use crate::report::say;

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
        let if_exists = self.wishes.asked.if_exists;
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
            say(&format!(
                "firn: warning: could not find where to insert IF EXISTS in statement \"{statement}\""
            ));
            entry.drop_stmt.to_vec()
        });
        self.sink.sql(&text)
    }
}
