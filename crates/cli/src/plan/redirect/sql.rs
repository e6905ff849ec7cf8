//! Names of schemas in statements that `pg_dump` wrote, told apart from all else by tokens, and replaced.
//!
//! `pg_dump` writes with an empty search path, so that a name of a redirected schema stands before a dot, or behind the word SCHEMA.
//! What else may stand before a dot is a table's alias, in queries only. Strings are values, and a renamed schema does not change
//! them either, but for constants of the types that name objects (`'s.q'::regclass`). Whatever may be read in two ways is refused.

use super::aliases;
use super::tokens::{Kind, Statement};
use crate::plan::text::quoted::{id, literal};
use crate::plan::text::unquoted;
use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut, Range};

/// Old to new names, without quotes.
#[derive(Default)]
pub struct Map {
    names: HashMap<Vec<u8>, Vec<u8>>,
    /// Types whose values name nothing, by schema and name.
    pub plain: HashSet<(Vec<u8>, Vec<u8>)>,
}

impl<const N: usize> From<[(Vec<u8>, Vec<u8>); N]> for Map {
    fn from(names: [(Vec<u8>, Vec<u8>); N]) -> Map {
        Map { names: HashMap::from(names), plain: HashSet::new() }
    }
}

impl Deref for Map {
    type Target = HashMap<Vec<u8>, Vec<u8>>;

    fn deref(&self) -> &Self::Target {
        &self.names
    }
}

impl DerefMut for Map {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.names
    }
}

/// What statements may have before a dot besides schemas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aliases {
    /// Nothing at all, not even a table for its row as a whole (`t.*`).
    Never,
    /// A table, for its row as a whole.
    None,
    /// `old` and `new`.
    OfTriggers,
    /// Those that the query names.
    OfQueries,
}

/// How a statement came out.
#[derive(Debug, PartialEq, Eq)]
pub struct Rewritten {
    pub text: Vec<u8>,
    /// A name that stands in a string, and stays.
    pub left: Option<Vec<u8>>,
}

/// Types whose constants name objects.
const NAMES: [&[u8]; 10] = [
    b"regclass",
    b"regtype",
    b"regproc",
    b"regprocedure",
    b"regoper",
    b"regoperator",
    b"regcollation",
    b"regconfig",
    b"regdictionary",
    b"regnamespace",
];

/// The server's own tables and views with columns of such types: each is the type of its rows.
const ROWS_WITH_NAMES: [&[u8]; 13] = [
    b"pg_aggregate",
    b"pg_am",
    b"pg_amproc",
    b"pg_conversion",
    b"pg_operator",
    b"pg_prepared_statements",
    b"pg_proc",
    b"pg_range",
    b"pg_sequences",
    b"pg_transform",
    b"pg_ts_parser",
    b"pg_ts_template",
    b"pg_type",
];

/// A name of the map stands somewhere in a text, as a word. However often quotes in it are doubled does not matter.
fn mentioned(text: &[u8], map: &Map) -> Option<Vec<u8>> {
    let word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_' || *b >= 128;
    let bare = |text: &[u8]| -> Vec<u8> {
        text.iter().copied().filter(|b| !matches!(b, b'\'' | b'"' | b'\\')).collect()
    };
    let text = bare(text);
    map.keys()
        .find(|name| {
            let name = bare(name);
            // Nothing but quotes: it may be anywhere.
            name.is_empty()
                || text.windows(name.len()).enumerate().any(|(at, found)| {
                    found.eq_ignore_ascii_case(&name)
                        && !at.checked_sub(1).is_some_and(|before| word(&text[before]))
                        && !text.get(at + name.len()).is_some_and(word)
                })
        })
        .cloned()
}

/// A name of the map stands as a word in a string of a text.
pub fn mentioned_in_strings(text: &[u8], map: &Map) -> bool {
    Statement::of(text).is_none_or(|s| {
        s.tokens
            .iter()
            .filter(|t| matches!(t.kind, Kind::Text | Kind::Opaque))
            .any(|t| mentioned(&text[t.at.clone()], map).is_some())
    })
}

/// One of the types whose values name objects stands in a statement: as a column's type, or in a cast as well.
pub fn has_names(text: &[u8], in_casts: bool) -> bool {
    Statement::of(text).is_none_or(|s| {
        (0..s.len()).any(|n| {
            let cast = s.symbol(n.checked_sub(1), b"::");
            let word = s.at(Some(n));
            (NAMES.contains(&word) || ROWS_WITH_NAMES.contains(&word)) && (in_casts || !cast)
        })
    })
}

/// A statement with the schemas in the arguments of the functions that restore statistics, `'schemaname', 's'`; and whether a name stands in
/// another of them. `None` if it names its table in another way.
pub fn schema_arguments(text: &[u8], map: &Map) -> Option<(Vec<u8>, bool)> {
    let s = Statement::of(text)?;
    let mut out = Vec::with_capacity(text.len() + 64);
    let (mut copied, mut values) = (0, false);
    // What each call has been found to say.
    let mut calls = Vec::new();
    for (n, token) in s.tokens.iter().enumerate() {
        if s.symbol(Some(n), b"(") {
            calls.push(false);
        }
        match (calls.last_mut(), token.kind) {
            (Some(known @ false), Kind::Text) if s.at(Some(n)) == b"'schemaname'" => {
                *known = true;
                let name = s.tokens.get(n + 2).filter(|t| t.kind == Kind::Text)?;
                s.symbol(Some(n + 1), b",").then_some(())?;
                if let Some(new) = map.get(&content(&text[name.at.clone()])) {
                    out.extend_from_slice(&text[copied..name.at.start]);
                    out.extend_from_slice(&string(new));
                    copied = name.at.end;
                }
            }
            (_, Kind::Text | Kind::Opaque) if token.at.start >= copied => {
                values |= mentioned(&text[token.at.clone()], map).is_some();
            }
            _ => {}
        }
    }
    out.extend_from_slice(&text[copied..]);
    (!calls.is_empty() && calls.iter().all(|known| *known)).then_some((out, values))
}

/// `SELECT pg_catalog.setval('s.q', 1, true);` with the schema in its name, which is a value.
pub fn sequence_set(text: &[u8], map: &Map) -> Option<Vec<u8>> {
    let s = Statement::of(text)?;
    let name = s.tokens.get(5).filter(|t| t.kind == Kind::Text)?;
    let known = s.word(Some(0), &[b"SELECT"]) && s.word(Some(3), &[b"setval"]);
    let old = content(known.then_some(&text[name.at.clone()])?);
    let new = string(&rewrite(&old, map, Aliases::Never).ok()?.text);
    Some([&text[..name.at.start], &new, &text[name.at.end..]].concat())
}

/// The content of a string in single quotes, and back.
fn content(string: &[u8]) -> Vec<u8> {
    let inner = &string[1..string.len() - 1];
    let mut out = Vec::with_capacity(inner.len());
    let mut quote = false;
    for &b in inner {
        quote = b == b'\'' && !quote;
        if !quote {
            out.push(b);
        }
    }
    out
}

fn string(content: &[u8]) -> Vec<u8> {
    literal(content, true)
}

/// Replace. An error says what cannot be told.
pub fn rewrite(text: &[u8], map: &Map, kind: Aliases) -> Result<Rewritten, String> {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let s = Statement::of(text).ok_or("its text is not as pg_dump writes it")?;
    let used = match kind {
        Aliases::Never | Aliases::None => HashSet::new(),
        Aliases::OfTriggers => HashSet::from([b"old".to_vec(), b"new".to_vec()]),
        Aliases::OfQueries => aliases::of_query(&s),
    };
    let is_plain = |n: usize| {
        s.name(Some(n)).zip(s.name(Some(n + 2))).is_some_and(|both| map.plain.contains(&both))
    };
    let mut out = Vec::with_capacity(text.len() + 64);
    let mut copied = 0;
    let mut left = None;
    let mut replace = |at: &Range<usize>, new: &[u8]| {
        out.extend_from_slice(&text[copied..at.start]);
        out.extend_from_slice(new);
        copied = at.end;
    };
    for (n, token) in s.tokens.iter().enumerate() {
        let (whole, before) = (&text[token.at.clone()], n.checked_sub(1));
        match token.kind {
            Kind::Symbol => {}
            Kind::Opaque => {
                let Some(found) = mentioned(whole, map) else { continue };
                if s.symbol(Some(n + 1), b"::") && !s.word(Some(n + 2), &[b"text"]) {
                    return Err(format!("a string with escapes has \"{}\" in it", shown(&found)));
                }
                left = Some(found);
            }
            Kind::Text => {
                let cast = s.symbol(Some(n + 1), b"::");
                let of_names = cast && s.word(Some(n + 2), &NAMES);
                if of_names && !s.symbol(Some(n + 3), b"[") {
                    let old = content(whole);
                    let new = match s.word(Some(n + 2), &[b"regnamespace"]) {
                        true => map.get(&unquoted(&old)).map_or(old.clone(), |new| id(new)),
                        false => rewrite(&old, map, Aliases::Never)?.text,
                    };
                    replace(&token.at, &string(&new));
                    continue;
                }
                let Some(found) = mentioned(whole, map) else { continue };
                let of_rows = cast && s.word(Some(n + 2), &ROWS_WITH_NAMES);
                match cast && s.symbol(Some(n + 3), b".") {
                    // Labels and the like.
                    true if is_plain(n + 2) => {}
                    of_user if of_user || of_names || of_rows => {
                        let (value, schema) = (shown(whole), shown(&found));
                        return Err(format!("the value {value} may name schema \"{schema}\""));
                    }
                    _ => left = Some(found),
                }
            }
            Kind::Name => {
                let Some(name) = s.name(Some(n)) else { continue };
                let Some(new) = map.get(&name) else { continue };
                if s.symbol(before, b".") {
                    continue;
                }
                if !s.symbol(Some(n + 1), b".") {
                    if s.word(before, &[b"SCHEMA"]) {
                        replace(&token.at, &id(new));
                    }
                    continue;
                }
                if is_whole_row(&s, n, kind) || is_parameter(&s, n) {
                    continue;
                }
                let written = kind == Aliases::OfQueries && aliases::is_written(&s, n);
                if !is_schema(&s, n) && (used.contains(&name) || written) {
                    let end = s.tokens.get(n + 2).map_or(token.at.end, |t| t.at.end);
                    let place = shown(&text[token.at.start..end]);
                    let name = shown(&name);
                    return Err(match written {
                        true => format!(
                            "{place} may be of schema \"{name}\" or of a column of that name"
                        ),
                        false => format!(
                            "{place} may be of schema \"{name}\" or of an alias of that name"
                        ),
                    });
                }
                replace(&token.at, &id(new));
            }
        }
    }
    out.extend_from_slice(&text[copied..]);
    Ok(Rewritten { text: out, left })
}

/// Only a schema can stand before this dot.
fn is_schema(s: &Statement, n: usize) -> bool {
    const BEFORE: [&[u8]; 9] = [
        b"JOIN",
        b"INTO",
        b"UPDATE",
        b"ONLY",
        b"VIEW",
        b"TABLE",
        b"FUNCTION",
        b"PROCEDURE",
        b"COLLATE",
    ];
    let before = n.checked_sub(1);
    // FROM within a line may be that of a function: EXTRACT(year FROM x.y).
    let line = |n: usize| {
        let gap = s.tokens[n - 1].at.end..s.tokens[n].at.start;
        s.text[gap].contains(&b'\n')
    };
    let mut from = before;
    while s.symbol(from, b"(") {
        from = from.and_then(|n| n.checked_sub(1));
    }
    is_operator(s, n)
        || s.symbol(Some(n + 3), b"(")
        || s.symbol(before, b"::")
        || s.word(before, &BEFORE)
        // Of a policy and of a rule.
        || n == 4 && s.word(before, &[b"ON"])
        || n == 7 && s.word(before, &[b"TO"])
        || from.is_some_and(|n| n > 0 && s.word(from, &[b"FROM"]) && line(n))
}

/// `OPERATOR(s.=)`.
fn is_operator(s: &Statement, n: usize) -> bool {
    s.symbol(n.checked_sub(1), b"(") && s.word(n.checked_sub(2), &[b"OPERATOR"])
}

/// `t.*` is a row as a whole, but for `s.*=` or `s.*(int, int)`, an operator.
fn is_whole_row(s: &Statement, n: usize, kind: Aliases) -> bool {
    let end = s.tokens.get(n + 2).map_or(s.text.len(), |t| t.at.end);
    let more = s.text.get(end).is_some_and(|b| b"(*=<>+-/~!@#%^&|`?".contains(b));
    kind != Aliases::Never
        && s.symbol(Some(n + 2), b"*")
        && !more
        && !s.word(n.checked_sub(1), &[b"OPERATOR"])
        && !is_operator(s, n)
}

/// `toast.autovacuum_enabled='false'`, of a table's storage.
fn is_parameter(s: &Statement, n: usize) -> bool {
    let end = s.tokens.get(n + 2).map_or(s.text.len(), |t| t.at.end);
    s.at(Some(n)) == b"toast" && s.name(Some(n + 2)).is_some() && s.text.get(end) == Some(&b'=')
}

/// The names before dots, with what comes behind.
pub fn qualified(text: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let Some(s) = Statement::of(text) else { return Vec::new() };
    (0..s.len())
        .filter(|n| s.symbol(Some(n + 1), b"."))
        .filter_map(|n| Some((s.name(Some(n))?, s.name(Some(n + 2))?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> Map {
        Map::from([(b"sales".to_vec(), b"New \"one\"".to_vec()), (b"A.b".to_vec(), b"c".to_vec())])
    }

    fn of(text: &str, aliases: Aliases) -> Result<String, String> {
        rewrite(text.as_bytes(), &map(), aliases).map(|r| String::from_utf8(r.text).unwrap())
    }

    #[test]
    fn names_before_dots() {
        for (old, new) in [
            ("CREATE TABLE sales.t (sales sales.ty DEFAULT 'sales.x'::text, b \"A.b\".\"sales\")",
             "CREATE TABLE \"New \"\"one\"\"\".t (sales \"New \"\"one\"\"\".ty DEFAULT 'sales.x'::text, b c.\"sales\")"),
            ("DEFAULT nextval('sales.\"Q''\"'::regclass)", "DEFAULT nextval('\"New \"\"one\"\"\".\"Q''\"'::regclass)"),
            ("x.sales.y a.\"A.b\" sales.* other.t", "x.sales.y a.\"A.b\" sales.* other.t"),
            ("GRANT USAGE ON SCHEMA sales TO sales;", "GRANT USAGE ON SCHEMA \"New \"\"one\"\"\" TO sales;"),
            ("(a OPERATOR(sales.*) b)", "(a OPERATOR(\"New \"\"one\"\"\".*) b)"),
            ("f('sales.f(sales.t,\"A.b\".u)'::regprocedure)", "f('\"New \"\"one\"\"\".f(\"New \"\"one\"\"\".t,c.u)'::regprocedure)"),
            ("AS $x$ SELECT sales.t $x$", "AS $x$ SELECT sales.t $x$"),
            ("OPERATOR 1 sales.*(int,int), OPERATOR 2 sales.*=(int,int)",
             "OPERATOR 1 \"New \"\"one\"\"\".*(int,int), OPERATOR 2 \"New \"\"one\"\"\".*=(int,int)"),
            ("'sales.*'::regoper", "'\"New \"\"one\"\"\".*'::regoper"),
            ("'sales'::regnamespace", "'\"New \"\"one\"\"\"'::regnamespace"),
        ] {
            assert_eq!(of(old, Aliases::None).unwrap(), new);
        }
        assert!(mentioned_in_strings(b"AS $$ SELECT Sales.t $$", &map()));
        assert!(!mentioned_in_strings(b"sales AS $$ wholesales $$", &map()));
        let left = |text: &[u8]| rewrite(text, &map(), Aliases::None).unwrap().left;
        assert_eq!(left(b"SET search_path TO 'x', 'sales'"), Some(b"sales".to_vec()));
        assert_eq!(left(b"AS $$ SELECT sales.t $$"), Some(b"sales".to_vec()));
        assert_eq!(left(b"DEFAULT nextval('sales.q'::regclass)"), None);
    }

    #[test]
    fn aliases() {
        let query = |text| of(text, Aliases::OfQueries);
        assert_eq!(
            query("SELECT o.id FROM sales.orders o").unwrap(),
            "SELECT o.id FROM \"New \"\"one\"\"\".orders o"
        );
        assert!(query("SELECT sales.id FROM sales.orders sales").is_err());
        assert!(query("SELECT sales.id FROM other.sales").is_err());
        assert!(query("SELECT sales.f(1) AS sales").is_ok());
        assert_eq!(
            query("SELECT sales.id\n   FROM (sales.sales\n     JOIN sales.t ON (true))"),
            Err("sales.id may be of schema \"sales\" or of an alias of that name".into())
        );
        assert_eq!(
            query("SELECT t.sales\n   FROM sales.t").unwrap(),
            "SELECT t.sales\n   FROM \"New \"\"one\"\"\".t"
        );
        assert!(query("UPDATE other.t SET sales.part = 1").is_err());
        let old = Map::from([(b"old".to_vec(), b"x".to_vec())]);
        assert!(rewrite(b"WHEN (old.a > 1)", &old, Aliases::OfTriggers).is_err());
        assert!(rewrite(b"CHECK (old.a(1))", &old, Aliases::None).is_ok());
    }

    #[test]
    fn values_that_may_be_names() {
        assert!(of("'{sales.t}'::regclass[]", Aliases::None).is_err());
        assert!(of("'(sales.t,1)'::sales.pair", Aliases::None).is_err());
        assert!(of("'(1,1)'::sales.pair", Aliases::None).is_ok());
        assert!(of("'(sales.f,1)'::pg_amproc", Aliases::None).is_err());
        let mut map = map();
        map.plain.insert((b"sales".to_vec(), b"pair".to_vec()));
        assert!(rewrite(b"'sales'::sales.pair", &map, Aliases::None).is_ok());
        assert!(rewrite(b"'{ok,sales}'::sales.pair[]", &map, Aliases::None).is_ok());
        let quotes = Map::from([(b"a\"b".to_vec(), b"c".to_vec())]);
        let text = |text: &[u8]| rewrite(text, &quotes, Aliases::None).map(|r| r.text);
        assert_eq!(text(b"'\"a\"\"b\".q'::regclass").unwrap(), b"'c.q'::regclass");
        assert!(text(b"'{\"\\\"a\\\"\\\"b\\\".q\"}'::regclass[]").is_err());
        assert!(of("/* sales */", Aliases::None).is_err());
        assert!(of("'open", Aliases::None).is_err());
    }

    #[test]
    fn arguments_of_statistics() {
        let map = Map::from([(b"sales".to_vec(), b"x'y".to_vec())]);
        let new = |text: &str| {
            let found = schema_arguments(text.as_bytes(), &map);
            found.map(|(text, values)| (String::from_utf8(text).unwrap(), values))
        };
        let text = "f('schemaname', 'sales', 'v', '''schemaname'', ''ales''');\nf(\n\t'schemaname', 'sales',\n\t'n', 1);";
        let expected = text.replace("'sales'", "'x''y'");
        assert_eq!(new(text), Some((expected, false)));
        let text = "f('schemaname', 'other', 'relname', 'schemaname', 'sales', 1);";
        assert_eq!(new(text), Some((text.into(), true)));
        assert_eq!(new("f('schemaname', E'a\\\\')"), None);
        assert_eq!(new("f('relation', 'sales.t'::regclass)"), None);
    }

    #[test]
    fn values_of_sequences() {
        let map = Map::from([(b"sales".to_vec(), b"x'y".to_vec())]);
        let new =
            |text: &str| sequence_set(text.as_bytes(), &map).map(|t| String::from_utf8(t).unwrap());
        let text = "SELECT pg_catalog.setval('sales.\"a'', sales.b\"', 1, true);";
        assert_eq!(new(text).unwrap(), text.replacen("sales", "\"x''y\"", 1));
        assert_eq!(new("SELECT pg_catalog.lastval('sales.q')"), None);
    }

    #[test]
    fn parameters_of_storage() {
        let map = Map::from([(b"toast".to_vec(), b"x".to_vec())]);
        let text = b"CREATE TABLE toast.t (a toast.b) WITH (fillfactor='70', toast.autovacuum_enabled='false')";
        let new =
            b"CREATE TABLE x.t (a x.b) WITH (fillfactor='70', toast.autovacuum_enabled='false')";
        assert_eq!(rewrite(text, &map, Aliases::None).unwrap().text, new);
    }

    #[test]
    fn types_of_names() {
        assert!(has_names(b"CREATE TABLE a.t (\n x regclass[]\n)", false));
        assert!(!has_names(b"CREATE TABLE a.t (\n x text DEFAULT ('a'::regclass)::text\n)", false));
        assert!(has_names(b"PARTITION BY LIST (((x)::regclass))", true));
    }
}
