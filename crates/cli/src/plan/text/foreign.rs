//! Constraints in statements that add them, foreign keys above all.

use super::{split_list, take_name, unquoted};

/// A foreign key, as a statement adds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignKey<'a> {
    /// As it is written.
    pub table: &'a [u8],
    pub name: Vec<u8>,
    /// Columns, what they refer to, actions, when it is checked: what a partition's must have equal to one of a table above to be taken up by
    /// it. Not whether rows have been looked at, nor the columns that ON DELETE SET … is about, which the server does not compare.
    pub definition: Vec<u8>,
    /// The columns that refer to others, without quotes, as the server puts them into names.
    referencing: Vec<u8>,
    /// How much of it is about columns and what they refer to.
    columns: usize,
    /// From version 18 on there are some that are not.
    is_enforced: bool,
}

impl ForeignKey<'_> {
    /// Columns and what they refer to.
    pub fn columns(&self) -> &[u8] {
        &self.definition[..self.columns]
    }

    /// Made behind it, this key of a table above takes up that of a partition, or is refused for its sake as one of the two is not enforced. One of the
    /// same name was there first where the archive is from, and was not taken up.
    pub fn takes_up(&self, own: &ForeignKey) -> bool {
        let refused = self.is_enforced != own.is_enforced && self.columns() == own.columns();
        self.name != own.name && (self.definition == own.definition || refused)
    }

    /// Whether what the server makes itself for this key, of a partition or for a partition that it refers to, may get this name, in whichever table: the
    /// key's own, or one that it chooses.
    pub fn may_give(&self, name: &[u8]) -> bool {
        name == self.name || may_be_chosen(name)
    }

    /// Whether the server may choose this name for what comes of this key in the first of these tables, from which the others lead up to the key's own: until
    /// version 17 by a table's name and the key's columns, from 18 on by the name that it has above.
    pub fn may_choose(&self, name: &[u8], tables: &[Vec<u8>]) -> bool {
        if !may_be_chosen(name) {
            return false;
        }
        let (stem, digits) = without_digits(name);
        let numbered = std::iter::successors(Some(name), |name| {
            let (stem, digits) = without_digits(name);
            stem.strip_suffix(b"_").filter(|_| !digits.is_empty())
        });
        if numbered.skip(1).any(|above| above == self.name)
            || object_name(&self.name, None, digits) == name
        {
            return true;
        }
        let Some(rest) = stem.strip_suffix(b"fkey") else { return false };
        let label = &name[rest.len()..];
        tables.iter().any(|table| {
            // Whichever of the two is cut, something is left of the table's.
            table.first() == name.first()
                && object_name(table, Some(&self.referencing), label) == name
        })
    }
}

/// The columns that refer to others, without quotes, as they are in a name.
fn referencing(definition: &[u8]) -> Vec<u8> {
    let list = definition.strip_prefix(b"FOREIGN KEY (").unwrap_or_default();
    let mut quoted = false;
    let end = list.iter().position(|byte| {
        quoted ^= *byte == b'"';
        !quoted && *byte == b')'
    });
    let columns = split_list(&list[..end.unwrap_or_default()]);
    let name = |column: &&[u8]| {
        let column = column.trim_ascii();
        unquoted(column.strip_prefix(b"PERIOD ").unwrap_or(column))
    };
    columns.iter().map(name).collect::<Vec<_>>().join(&b'_')
}

/// A name and the digits at its end.
pub fn without_digits(name: &[u8]) -> (&[u8], &[u8]) {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    name.split_at(name.len() - digits)
}

/// The name that the server puts together, of 63 bytes at most: the longer of the two is cut first (makeObjectName() in indexcmds.c).
fn object_name(first: &[u8], second: Option<&[u8]>, label: &[u8]) -> Vec<u8> {
    const MOST: usize = 63;
    let room = MOST.saturating_sub(label.len() + 1 + usize::from(second.is_some()));
    let (mut a, mut b) = (first.len(), second.map_or(0, <[u8]>::len));
    while a + b > room {
        match a > b {
            true => a -= 1,
            false => b -= 1,
        }
    }
    let mut name = cut(first, a).to_vec();
    for part in second.map(|second| cut(second, b)).into_iter().chain([label]) {
        name.push(b'_');
        name.extend(part);
    }
    name
}

/// No character is cut in two (in UTF-8; of other encodings the bytes are not known here).
fn cut(name: &[u8], length: usize) -> &[u8] {
    match std::str::from_utf8(name) {
        Ok(text) => &name[..text.floor_char_boundary(length)],
        Err(_) => &name[..length.min(name.len())],
    }
}

/// Names that the server chooses for what comes of a foreign key: until version 17 `table_columns_fkey`, of which it cuts what is too long, from 18 on
/// also `key_1`, each with a number where it is taken (ChooseConstraintName() in pg_constraint.c).
pub fn may_be_chosen(name: &[u8]) -> bool {
    let (stem, digits) = without_digits(name);
    stem.ends_with(b"_fkey") || !digits.is_empty() && stem.ends_with(b"_")
}

/// Table, name and the rest of `ALTER [FOREIGN] TABLE [ONLY] table ADD CONSTRAINT name …;`
pub fn added(defn: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let text = defn.trim_ascii().strip_prefix(b"ALTER ")?;
    let text = text.strip_prefix(b"FOREIGN ").unwrap_or(text).strip_prefix(b"TABLE ")?;
    let mut text = text.strip_prefix(b"ONLY ").unwrap_or(text);
    let table = take_name(&mut text)?;
    let mut text = text.trim_ascii_start().strip_prefix(b"ADD CONSTRAINT ")?;
    let name = take_name(&mut text)?;
    Some((table, name, text))
}

/// Table and name of the constraint that such a statement adds, or `CREATE CONSTRAINT TRIGGER name … ON table …;`.
pub fn constrained(defn: &[u8]) -> Option<(&[u8], &[u8])> {
    let Some(mut text) = defn.trim_ascii().strip_prefix(b"CREATE CONSTRAINT TRIGGER ") else {
        return added(defn).map(|(table, name, _)| (table, name));
    };
    let name = take_name(&mut text)?;
    let mut quoted = false;
    let at = (0..text.len()).find(|at| {
        quoted ^= text[*at] == b'"';
        !quoted && text[*at..].starts_with(b" ON ")
    })?;
    let mut text = &text[at + b" ON ".len()..];
    Some((take_name(&mut text)?, name))
}

/// The column of which such a statement adds a NOT NULL constraint.
pub fn not_null(defn: &[u8]) -> Option<Vec<u8>> {
    let (_, _, rest) = added(defn)?;
    let mut rest = rest.trim_ascii_start().strip_prefix(b"NOT NULL ")?;
    take_name(&mut rest).map(unquoted)
}

/// The key of such a statement.
pub fn foreign_key(defn: &[u8]) -> Option<ForeignKey<'_>> {
    let (table, name, text) = added(defn)?;
    let mut text = text.trim_ascii();
    let is_enforced = !text.ends_with(b" NOT ENFORCED;");
    for words in [&b";"[..], b" NOT VALID", b" NOT ENFORCED"] {
        text = text.strip_suffix(words).unwrap_or(text);
    }
    if !text.starts_with(b"FOREIGN KEY ") {
        return None;
    }
    let definition = without_columns_set(text);
    let columns = end_of_columns(&definition);
    let (name, referencing) = (unquoted(name), referencing(&definition));
    Some(ForeignKey { table, name, definition, referencing, columns, is_enforced })
}

/// Where the second list in parentheses ends.
fn end_of_columns(definition: &[u8]) -> usize {
    let (mut quoted, mut lists) = (false, 0);
    for (at, byte) in definition.iter().enumerate() {
        quoted ^= *byte == b'"';
        lists += usize::from(!quoted && *byte == b')');
        if lists == 2 {
            return at + 1;
        }
    }
    definition.len()
}

/// Without the list behind SET NULL and SET DEFAULT.
fn without_columns_set(text: &[u8]) -> Vec<u8> {
    let (mut kept, mut quoted, mut left_out) = (Vec::with_capacity(text.len()), false, false);
    for &byte in text {
        quoted ^= byte == b'"';
        let ends = |words: &[u8]| kept.ends_with(words);
        if !quoted && byte == b'(' && (ends(b" SET NULL ") || ends(b" SET DEFAULT ")) {
            left_out = true;
            kept.pop();
        }
        if !left_out {
            kept.push(byte);
        }
        left_out &= quoted || byte != b')';
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let name = b"k k".to_vec();
        let definition = b"FOREIGN KEY (a) REFERENCES s.u(a) ON DELETE CASCADE".to_vec();
        let expected = |is_enforced| {
            let (name, definition) = (name.clone(), definition.clone());
            let referencing = b"a".to_vec();
            Some(ForeignKey {
                table: b"s.t",
                name,
                definition,
                referencing,
                columns: 33,
                is_enforced,
            })
        };
        let text = "ALTER TABLE ONLY s.t\n    ADD CONSTRAINT \"k k\" FOREIGN KEY (a) REFERENCES s.u(a) ON DELETE CASCADE";
        for end in [";\n", " NOT VALID;\n", " NOT ENFORCED;"] {
            let is_enforced = !end.contains("ENFORCED");
            assert_eq!(foreign_key(format!("{text}{end}").as_bytes()), expected(is_enforced));
        }
        let other = b"ALTER TABLE s.t\n    ADD CONSTRAINT k CHECK ((a > 0)) NOT VALID;\n";
        assert_eq!(foreign_key(other), None);
        assert_eq!(
            added(other).map(|(table, name, _)| (table, name)),
            Some((&b"s.t"[..], &b"k"[..]))
        );
        assert_eq!(foreign_key(b"ALTER TABLE ONLY s.t ADD CONSTRAINT"), None);
    }

    #[test]
    fn taken_up() {
        let key = |name: &str, rest: &str| {
            format!(
                "ALTER TABLE t ADD CONSTRAINT {name} FOREIGN KEY (\"a)\") REFERENCES u(b){rest};"
            )
        };
        for (above, own, takes_up) in [
            (("p", ""), ("k", ""), true),
            (("p", ""), ("k", " NOT VALID"), true),
            (("p", ""), ("p", ""), false),
            (("p", ""), ("k", " ON DELETE CASCADE"), false),
            (("p", ""), ("k", " ON DELETE CASCADE NOT ENFORCED"), true),
            (("p", " NOT ENFORCED"), ("k", " ON DELETE CASCADE NOT ENFORCED"), false),
            (("p", " NOT ENFORCED"), ("k", " ON DELETE CASCADE"), true),
            (("p", " ON DELETE SET NULL"), ("k", " ON DELETE SET NULL (\"a)\")"), true),
        ] {
            let [above, own] = [above, own].map(|(name, rest)| key(name, rest));
            let [a, b] = [&above, &own].map(|text| foreign_key(text.as_bytes()).unwrap());
            assert_eq!(a.takes_up(&b), takes_up, "{above} {own}");
        }
    }

    #[test]
    fn names_of_what_comes_of_a_key() {
        let key = foreign_key(b"ALTER TABLE t ADD CONSTRAINT k9 FOREIGN KEY (a) REFERENCES u(b);");
        let key = key.unwrap();
        for (name, may) in [
            ("k9", true),
            ("t1_a_fkey", true),
            ("t1_a_fkey12", true),
            ("k9_1", true),
            ("k", false),
            ("fkey", false),
            ("t_a_key", false),
            ("t_a_key1", false),
            ("", false),
            ("7", false),
        ] {
            assert_eq!(key.may_give(name.as_bytes()), may, "{name}");
        }
    }

    #[test]
    fn constraints_and_triggers() {
        let trigger =
            b"CREATE CONSTRAINT TRIGGER \"f k\" AFTER UPDATE OF \"a ON b\" OR DELETE ON s.\"t t\" FROM s.u DEFERRABLE FOR EACH ROW EXECUTE FUNCTION s.f();\n";
        assert_eq!(constrained(trigger), Some((&b"s.\"t t\""[..], &b"\"f k\""[..])));
        let unique = b"ALTER TABLE ONLY s.t\n    ADD CONSTRAINT k UNIQUE (a);\n";
        assert_eq!(constrained(unique), Some((&b"s.t"[..], &b"k"[..])));
        assert_eq!(constrained(b"CREATE TRIGGER k AFTER INSERT ON s.t"), None);
        assert_eq!(constrained(b"CREATE CONSTRAINT TRIGGER k"), None);
    }

    #[test]
    fn columns_set() {
        for (text, kept) in [
            ("a ON DELETE SET NULL (x) DEFERRABLE", "a ON DELETE SET NULL DEFERRABLE"),
            ("a ON DELETE SET DEFAULT (x, \"y)\")", "a ON DELETE SET DEFAULT"),
            ("a ON UPDATE SET NULL ON DELETE CASCADE", "a ON UPDATE SET NULL ON DELETE CASCADE"),
            ("\"a SET NULL (x)\" b", "\"a SET NULL (x)\" b"),
            ("a ON DELETE SET NULL (x", "a ON DELETE SET NULL"),
        ] {
            assert_eq!(without_columns_set(text.as_bytes()), kept.as_bytes(), "{text}");
        }
    }
}
