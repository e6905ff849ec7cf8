//! Foreign keys in statements that add them.

use super::{take_name, unquoted};

/// The name of a foreign key and what is said of it, as far as a partition's must be equal to one of a table above to be taken up by it.
#[derive(Debug, PartialEq, Eq)]
pub struct ForeignKey<'a> {
    pub name: Vec<u8>,
    /// Columns, what they refer to, actions, when it is checked; not whether rows have been.
    pub definition: &'a [u8],
}

/// The key of `ALTER TABLE [ONLY] table ADD CONSTRAINT name FOREIGN KEY …;`
pub fn foreign_key(defn: &[u8]) -> Option<ForeignKey<'_>> {
    let text = defn.trim_ascii().strip_prefix(b"ALTER TABLE ")?;
    let mut text = text.strip_prefix(b"ONLY ").unwrap_or(text);
    take_name(&mut text)?;
    let mut text = text.trim_ascii_start().strip_prefix(b"ADD CONSTRAINT ")?;
    let name = unquoted(take_name(&mut text)?);
    let mut definition = text.trim_ascii();
    for words in [&b";"[..], b" NOT VALID", b" NOT ENFORCED"] {
        definition = definition.strip_suffix(words).unwrap_or(definition);
    }
    definition.starts_with(b"FOREIGN KEY ").then_some(ForeignKey { name, definition })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let name = b"k k".to_vec();
        let definition = &b"FOREIGN KEY (a) REFERENCES s.u(a) ON DELETE CASCADE"[..];
        let expected = Some(ForeignKey { name, definition });
        let text = "ALTER TABLE ONLY s.t\n    ADD CONSTRAINT \"k k\" FOREIGN KEY (a) REFERENCES s.u(a) ON DELETE CASCADE";
        for end in [";\n", " NOT VALID;\n", " NOT ENFORCED;"] {
            assert_eq!(foreign_key(format!("{text}{end}").as_bytes()), expected);
        }
        let other = b"ALTER TABLE s.t\n    ADD CONSTRAINT k CHECK ((a > 0)) NOT VALID;\n";
        assert_eq!(foreign_key(other), None);
        assert_eq!(foreign_key(b"ALTER TABLE ONLY s.t ADD CONSTRAINT"), None);
    }
}
