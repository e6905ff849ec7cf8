//! Statements that drop what an entry has made.

use crate::archive::Entry;

/// The statement that drops something, with IF EXISTS where `pg_restore` puts it; `None` if there is no place for it.
pub fn with_if_exists(entry: &Entry) -> Option<Vec<u8>> {
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
        let cases: [(&[u8], &[u8], &str); 7] = [
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
            (
                b"OPERATOR CLASS",
                b"DROP OPERATOR CLASS a.o USING btree;\n",
                "DROP OPERATOR CLASS IF EXISTS a.o USING btree;\n",
            ),
            (
                b"CHECK CONSTRAINT",
                b"ALTER DOMAIN a.d DROP CONSTRAINT c;\n",
                "ALTER DOMAIN a.d DROP CONSTRAINT IF EXISTS c;\n",
            ),
            (b"TRIGGER", b"DROP TRIGGER x ON a.t;\n", "DROP TRIGGER IF EXISTS x ON a.t;\n"),
        ];
        for (desc, drop, expected) in cases {
            assert_eq!(with(desc, drop).unwrap(), expected);
        }
        assert_eq!(with(b"PROCEDURAL LANGUAGE", b"DROP LANGUAGE l;\n"), None);
    }
}
