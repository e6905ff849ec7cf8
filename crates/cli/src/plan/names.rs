//! Names that PostgreSQL gives to indexes of its own accord (`ChooseIndexName` in its sources), to know which
//! ones to rename. A wrong guess does no harm: the names are checked before a transaction ends.

use super::text::{last_part, split_checks, take_name, unquoted, Index};
use crate::pg::quote_ident;

/// Bytes of a name, without the terminator.
const MAX_NAME: usize = 63;

/// The name that a partition's index gets when it is made for its parent's index. `None` when it is not certain:
/// names outside of ASCII, expressions.
pub fn automatic_index_name(table: &[u8], index: &Index) -> Option<Vec<u8>> {
    let table = unquoted(last_part(table));
    if index.constraint && index.tail.starts_with(b"PRIMARY KEY") {
        return object_name(&table, b"", b"pkey");
    }
    let columns = columns(index)?;
    object_name(&table, &columns.join(&b'_'), if index.constraint { b"key" } else { b"idx" })
}

/// The plain columns of an index, included ones too.
fn columns(index: &Index) -> Option<Vec<Vec<u8>>> {
    let mut names = Vec::<Vec<u8>>::new();
    let open = index.tail.iter().position(|&b| b == b'(')?;
    let mut rest = &index.tail[open + 1..];
    loop {
        let name = take_name(&mut rest)?;
        if rest.first() == Some(&b'(') || last_part(name) != name {
            return None;
        }
        let name = unquoted(name);
        // The second of two like names would get a number.
        if names.contains(&name) {
            return None;
        }
        names.push(name);
        // Operator classes, order and collations follow up to the comma; none with parentheses of their own.
        let end = rest.iter().position(|b| matches!(b, b',' | b')' | b'(' | b'"' | b'\''))?;
        match rest[end] {
            b',' => rest = rest[end + 1..].trim_ascii_start(),
            b')' => {
                rest = rest[end + 1..].trim_ascii_start();
                match rest.strip_prefix(b"INCLUDE (") {
                    Some(included) => rest = included,
                    None => return Some(names),
                }
            }
            _ => return None,
        }
    }
}

/// The body of a partition of `table` in a dump of version 18 or later: columns that are NOT NULL have their constraint's
/// name, which they inherit, and which the parent's text leaves out where it is the one that the server gives by
/// itself. `None` if the names are not certain.
pub fn inherited_body(table: &[u8], body: &[u8]) -> Option<Vec<u8>> {
    let table = unquoted(last_part(table));
    let (columns, checks) = split_checks(body)?;
    let mut items = Vec::with_capacity(columns.len() + checks.len());
    for column in columns {
        let Some(head) = column.strip_suffix(b" NOT NULL") else {
            // Not at the end, or with something of its own behind it.
            if column.windows(8).any(|w| w == b"NOT NULL") {
                return None;
            }
            items.push(column.to_vec());
            continue;
        };
        let mut rest = column;
        let name = unquoted(take_name(&mut rest)?);
        // Named in the parent already.
        let mut tail = &head[head.iter().rposition(|b| *b == b' ').map_or(0, |p| p + 1)..];
        let last = take_name(&mut tail);
        let before = last.map_or(head, |l| &head[..head.len() - l.len()]);
        if before.ends_with(b" CONSTRAINT ") {
            items.push(column.to_vec());
            continue;
        }
        let given = object_name(&table, &name, b"not_null")?;
        let quoted = match is_plain(&given) {
            true => given,
            false => quote_ident(&given),
        };
        items.push([head, b" CONSTRAINT ", &quoted, b" NOT NULL"].concat());
    }
    items.extend(checks.into_iter().map(<[u8]>::to_vec));
    Some(items.join(&b",\n    "[..]))
}

/// The name needs no quotes: it holds nothing but small letters, digits and underscores, and by its ending is no keyword.
fn is_plain(name: &[u8]) -> bool {
    name.first().is_some_and(|b| b.is_ascii_lowercase() || *b == b'_')
        && name.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'_')
}

/// `table_columns_label`, the longer of the first two cut until all fits (`makeObjectName`).
fn object_name(table: &[u8], columns: &[u8], label: &[u8]) -> Option<Vec<u8>> {
    if !table.is_ascii() || !columns.is_ascii() {
        return None;
    }
    // More columns than a name can hold are not even looked at by the server, cut here the same.
    let overhead = label.len() + 1 + usize::from(!columns.is_empty());
    let (mut first, mut second) = (table.len(), columns.len().min(MAX_NAME));
    if columns.len() >= MAX_NAME {
        return None;
    }
    while first + second > MAX_NAME - overhead {
        match first > second {
            true => first -= 1,
            false => second -= 1,
        }
    }
    let mut name = table[..first].to_vec();
    if !columns.is_empty() {
        name.push(b'_');
        name.extend_from_slice(&columns[..second]);
    }
    name.push(b'_');
    name.extend_from_slice(label);
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::super::text::index;
    use super::*;

    fn name(table: &str, ddl: &str) -> Option<String> {
        let found = index(ddl.as_bytes()).unwrap();
        automatic_index_name(table.as_bytes(), &found).map(|n| String::from_utf8(n).unwrap())
    }

    #[test]
    fn as_the_server_names_them() {
        let plain =
            "CREATE INDEX i ON ONLY a.p USING btree (v, \"B\" DESC NULLS LAST) INCLUDE (w);\n";
        assert_eq!(name("a.c1", plain).unwrap(), "c1_v_B_w_idx");
        let primary = "ALTER TABLE ONLY a.p\n    ADD CONSTRAINT k PRIMARY KEY (id);\n";
        assert_eq!(name("a.c1", primary).unwrap(), "c1_pkey");
        let unique = "ALTER TABLE ONLY a.p\n    ADD CONSTRAINT k UNIQUE (id, d);\n";
        assert_eq!(name("\"C\"", unique).unwrap(), "C_id_d_key");
        assert_eq!(name("a.c", "CREATE INDEX i ON a.p USING btree (lower(v));\n"), None);
        assert_eq!(
            name("a.c", "CREATE INDEX i ON a.p USING btree (v) WHERE (v > 0);\n").unwrap(),
            "c_v_idx"
        );
    }

    #[test]
    fn bodies_of_partitions() {
        let body = b"id bigint NOT NULL,\n    v text,\n    \"D\" date DEFAULT f() NOT NULL,\n    w int CONSTRAINT n NOT NULL,\n    CONSTRAINT c CHECK ((v IS NOT NULL))";
        let found = String::from_utf8(inherited_body(b"a.p", body).unwrap()).unwrap();
        assert_eq!(
            found,
            "id bigint CONSTRAINT p_id_not_null NOT NULL,\n    v text,\n    \"D\" date DEFAULT f() CONSTRAINT \"p_D_not_null\" NOT NULL,\n    w int CONSTRAINT n NOT NULL,\n    CONSTRAINT c CHECK ((v IS NOT NULL))"
        );
        assert_eq!(inherited_body(b"p", b"id int NOT NULL NO INHERIT"), None);
    }

    #[test]
    fn long_names_are_cut() {
        let table = "t".repeat(63);
        let primary = "ALTER TABLE ONLY a.p\n    ADD CONSTRAINT k PRIMARY KEY (id);\n";
        assert_eq!(name(&table, primary).unwrap(), format!("{}_pkey", "t".repeat(58)));
        let plain = "CREATE INDEX i ON ONLY a.p USING btree (abcdef);\n";
        assert_eq!(name(&table, plain).unwrap(), format!("{}_abcdef_idx", "t".repeat(52)));
    }
}
