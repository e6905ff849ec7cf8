//! Names and strings as `pg_restore` writes them (`fmtId` and its like in PostgreSQL's sources): in quotes only where they need
//! them.

use crate::error::{Error, ErrorKind, Result};
use crate::pg::quote_ident;

#[rustfmt::skip]
/// Keywords of PostgreSQL 18 that are not unreserved, in order.
const KEYWORDS: &[&str] = &[
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "authorization", "between",
    "bigint", "binary", "bit", "boolean", "both", "case", "cast", "char", "character", "check", "coalesce", "collate",
    "collation", "column", "concurrently", "constraint", "create", "cross", "current_catalog", "current_date",
    "current_role", "current_schema", "current_time", "current_timestamp", "current_user", "dec", "decimal",
    "default", "deferrable", "desc", "distinct", "do", "else", "end", "except", "exists", "extract", "false", "fetch",
    "float", "for", "foreign", "freeze", "from", "full", "grant", "greatest", "group", "grouping", "having", "ilike",
    "in", "initially", "inner", "inout", "int", "integer", "intersect", "interval", "into", "is", "isnull", "join",
    "json", "json_array", "json_arrayagg", "json_exists", "json_object", "json_objectagg", "json_query",
    "json_scalar", "json_serialize", "json_table", "json_value", "lateral", "leading", "least", "left", "like",
    "limit", "localtime", "localtimestamp", "merge_action", "national", "natural", "nchar", "none", "normalize",
    "not", "notnull", "null", "nullif", "numeric", "offset", "on", "only", "or", "order", "out", "outer", "overlaps",
    "overlay", "placing", "position", "precision", "primary", "real", "references", "returning", "right", "row",
    "select", "session_user", "setof", "similar", "smallint", "some", "substring", "symmetric", "system_user",
    "table", "tablesample", "then", "time", "timestamp", "to", "trailing", "treat", "trim", "true", "union", "unique",
    "user", "using", "values", "varchar", "variadic", "verbose", "when", "where", "window", "with", "xmlattributes",
    "xmlconcat", "xmlelement", "xmlexists", "xmlforest", "xmlnamespaces", "xmlparse", "xmlpi", "xmlroot",
    "xmlserialize", "xmltable",
];

/// A name for SQL.
pub fn id(name: &[u8]) -> Vec<u8> {
    let plain = name.first().is_some_and(|b| b.is_ascii_lowercase() || *b == b'_')
        && name.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'_');
    let keyword =
        || std::str::from_utf8(name).is_ok_and(|name| KEYWORDS.binary_search(&name).is_ok());
    match plain && !keyword() {
        true => name.to_vec(),
        false => quote_ident(name),
    }
}

/// A name with its schema, if it has one.
pub fn qualified(schema: &[u8], name: &[u8]) -> Vec<u8> {
    match schema {
        b"" => id(name),
        schema => [&id(schema)[..], b".", &id(name)].concat(),
    }
}

/// A string constant.
pub fn literal(text: &[u8], standard_strings: bool) -> Vec<u8> {
    let mut out = vec![b'\''];
    for &b in text {
        if b == b'\'' || b == b'\\' && !standard_strings {
            out.push(b);
        }
        out.push(b);
    }
    out.push(b'\'');
    out
}

/// A constant of type bytea.
pub fn bytes_literal(bytes: &[u8], standard_strings: bool) -> Vec<u8> {
    let mut out = if standard_strings { b"'\\x".to_vec() } else { b"'\\\\x".to_vec() };
    out.extend(
        bytes.iter().flat_map(|b| [b >> 4, b & 15].map(|n| b"0123456789abcdef"[usize::from(n)])),
    );
    out.push(b'\'');
    out
}

/// A name in one line, for comments.
pub fn one_line(name: &[u8]) -> Vec<u8> {
    name.iter().map(|b| if matches!(b, b'\n' | b'\r') { b' ' } else { *b }).collect()
}

/// How psql is told to connect with a database.
pub fn psql_connect(name: &[u8]) -> Result<Vec<u8>> {
    let shown = String::from_utf8_lossy(name);
    if name.iter().any(|b| matches!(b, b'\n' | b'\r')) {
        let message = format!("database name contains a newline or carriage return: \"{shown}\"");
        return Err(Error::new(ErrorKind::Archive, message));
    }
    if name.iter().all(|b| b.is_ascii_alphanumeric() || b"_.".contains(b)) {
        return Ok([b"\\connect ", &id(name)[..], b"\n"].concat());
    }
    let mut value = b"dbname='".to_vec();
    for &b in name {
        if matches!(b, b'\'' | b'\\') {
            value.push(b'\\');
        }
        value.push(b);
    }
    value.push(b'\'');
    let mut out = b"\\encoding SQL_ASCII\n\\connect -reuse-previous=on ".to_vec();
    out.extend(id(&value));
    out.push(b'\n');
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_where_they_are_needed() {
        assert!(KEYWORDS.is_sorted());
        let shown = |name: &[u8]| String::from_utf8(id(name)).unwrap();
        assert_eq!(shown(b"plain_1"), "plain_1");
        assert_eq!(shown(b"abort"), "abort");
        for name in ["select", "json_table", "1st", "Big", "a b", "", "a$b", "é"] {
            assert_eq!(shown(name.as_bytes()), format!("\"{name}\""));
        }
        assert_eq!(shown(b"a\"b"), "\"a\"\"b\"");
        assert_eq!(qualified(b"user", b"t"), b"\"user\".t");
        assert_eq!(qualified(b"", b"t"), b"t");
    }

    #[test]
    fn constants() {
        assert_eq!(literal(b"it's \\", true), b"'it''s \\'");
        assert_eq!(literal(b"it's \\", false), b"'it''s \\\\'");
        assert_eq!(bytes_literal(b"\x00\xff", true), b"'\\x00ff'");
        assert_eq!(bytes_literal(b"\x00\xff", false), b"'\\\\x00ff'");
    }

    #[test]
    fn databases() {
        assert_eq!(psql_connect(b"shop").unwrap(), b"\\connect shop\n");
        assert_eq!(psql_connect(b"Shop").unwrap(), b"\\connect \"Shop\"\n");
        let odd = b"\\encoding SQL_ASCII\n\\connect -reuse-previous=on \"dbname='a\\'\"\" b'\"\n";
        assert_eq!(psql_connect(b"a'\" b").unwrap(), odd);
        psql_connect(b"a\nb").unwrap_err();
    }
}
