//! Names of schemas in statements that `pg_dump` wrote, told apart from all else by tokens, and replaced.
//!
//! `pg_dump` writes with an empty search path, so that a name of a redirected schema stands before a dot, or behind the word SCHEMA.
//! What else may stand before a dot is a table's alias, in queries only. Strings are values, and a renamed schema does not change
//! them either, but for constants of the types that name objects (`'s.q'::regclass`). Whatever may be read in two ways is refused.

use crate::plan::text::unquoted;
use crate::script::names::{id, literal};
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Name,
    /// `'…'`.
    Text,
    /// `E'…'`, `$…$…$…$` and the like.
    Opaque,
    Symbol,
}

#[derive(Clone, Debug)]
struct Token {
    kind: Kind,
    at: Range<usize>,
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

fn tokens(text: &[u8]) -> Option<Vec<Token>> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let begin = at;
        let kind = match rest[0] {
            b if b.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'-' if rest.starts_with(b"--") => {
                at += rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
                continue;
            }
            b'/' if rest.starts_with(b"/*") => return None,
            quote @ (b'"' | b'\'') => {
                at += 1;
                loop {
                    at += text[at..].iter().position(|b| *b == quote)? + 1;
                    match text.get(at) {
                        Some(b) if *b == quote => at += 1,
                        _ => break,
                    }
                }
                if quote == b'"' {
                    Kind::Name
                } else {
                    Kind::Text
                }
            }
            b'E' | b'e' if rest.get(1) == Some(&b'\'') => {
                at += 2;
                loop {
                    match *text.get(at)? {
                        b'\\' => at += 2,
                        b'\'' => break,
                        _ => at += 1,
                    }
                }
                at += 1;
                Kind::Opaque
            }
            b'B' | b'b' | b'X' | b'x' | b'N' | b'n' | b'U' | b'u'
                if rest.get(1) == Some(&b'\'')
                    || rest.get(1..3) == Some(b"&'")
                    || rest.get(1..3) == Some(b"&\"") =>
            {
                // Bits: no names in them. Others pg_dump does not write.
                if !matches!(rest[0], b'B' | b'X') {
                    return None;
                }
                at += 2;
                at += text[at..].iter().position(|b| *b == b'\'')? + 1;
                Kind::Opaque
            }
            b'$' if rest.get(1).is_some_and(|b| !b.is_ascii_digit()) => {
                let tag = rest[1..].iter().position(|b| *b == b'$')? + 2;
                let end = rest[tag..].windows(tag).position(|w| w == &rest[..tag])?;
                at += 2 * tag + end;
                Kind::Opaque
            }
            b if b.is_ascii_alphabetic() || b == b'_' || b >= 128 => {
                let word =
                    |b: &u8| !(b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$') || *b >= 128);
                at += rest.iter().position(word).unwrap_or(rest.len());
                Kind::Name
            }
            b if b.is_ascii_digit() => {
                // 1.5 is no name before a dot.
                let number = |b: &u8| !(b.is_ascii_alphanumeric() || *b == b'.');
                at += rest.iter().position(number).unwrap_or(rest.len());
                Kind::Symbol
            }
            b':' if rest.starts_with(b"::") => {
                at += 2;
                Kind::Symbol
            }
            _ => {
                at += 1;
                Kind::Symbol
            }
        };
        all.push(Token { kind, at: begin..at });
    }
    Some(all)
}

/// A name as `pg_dump` writes it, or in quotes: a word with capitals and no quotes is a keyword.
fn name_of(text: &[u8], token: &Token) -> Option<Vec<u8>> {
    let word = &text[token.at.clone()];
    (token.kind == Kind::Name && (word[0] == b'"' || !word.iter().any(u8::is_ascii_uppercase)))
        .then(|| unquoted(word))
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

/// The server's own tables with columns of such types: each is the type of its rows.
const ROWS_WITH_NAMES: [&[u8]; 8] = [
    b"pg_aggregate",
    b"pg_am",
    b"pg_conversion",
    b"pg_operator",
    b"pg_range",
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
    tokens(text).is_none_or(|all| {
        all.iter()
            .filter(|t| matches!(t.kind, Kind::Text | Kind::Opaque))
            .any(|t| mentioned(&text[t.at.clone()], map).is_some())
    })
}

/// One of the types whose values name objects stands in a statement: as a column's type, or in a cast as well.
pub fn has_names(text: &[u8], in_casts: bool) -> bool {
    tokens(text).is_none_or(|all| {
        all.iter().enumerate().any(|(n, t)| {
            let cast = n > 0 && text[all[n - 1].at.clone()] == *b"::";
            let word = &text[t.at.clone()];
            (NAMES.contains(&word) || ROWS_WITH_NAMES.contains(&word)) && (in_casts || !cast)
        })
    })
}

/// The schemas in the arguments of functions that restore statistics: `'schemaname', 's'`.
pub fn schema_arguments(text: &[u8], map: &Map) -> Option<Vec<u8>> {
    let tokens = tokens(text)?;
    let mut out = Vec::with_capacity(text.len() + 64);
    let mut copied = 0;
    for three in tokens.windows(3) {
        let [word, comma, name] = three else { continue };
        if &text[word.at.clone()] != b"'schemaname'" || &text[comma.at.clone()] != b"," {
            continue;
        }
        (name.kind == Kind::Text).then_some(())?;
        if let Some(new) = map.get(&content(&text[name.at.clone()])) {
            out.extend_from_slice(&text[copied..name.at.start]);
            out.extend_from_slice(&string(new));
            copied = name.at.end;
        }
    }
    out.extend_from_slice(&text[copied..]);
    Some(out)
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
pub fn rewrite(text: &[u8], map: &Map, aliases: Aliases) -> Result<Rewritten, String> {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let tokens = tokens(text).ok_or("its text is not as pg_dump writes it")?;
    let symbol = |n: usize, what: &[u8]| {
        tokens.get(n).is_some_and(|t| t.kind == Kind::Symbol && &text[t.at.clone()] == what)
    };
    let word = |n: Option<usize>, what: &[&[u8]]| {
        n.and_then(|n| tokens.get(n))
            .is_some_and(|t| t.kind == Kind::Name && what.contains(&&text[t.at.clone()]))
    };
    let before = |n: usize| n.checked_sub(1);
    let is_plain = |n: usize| {
        let name = |n: usize| tokens.get(n).and_then(|t| name_of(text, t));
        name(n).zip(name(n + 2)).is_some_and(|both| map.plain.contains(&both))
    };
    // `s.*` is a row as a whole, but for `s.*=` or `s.*(int, int)`, an operator.
    let whole_row = |n: usize| {
        let after =
            |t: &Token| text.get(t.at.end).is_some_and(|b| b"(*=<>+-/~!@#%^&|`?".contains(b));
        aliases != Aliases::Never
            && symbol(n + 2, b"*")
            && !tokens.get(n + 2).is_some_and(after)
            && !word(before(n), &[b"OPERATOR"])
    };
    // A name that stands by itself may be an alias or a table's, and then is one before dots.
    let introduced = |name: &[u8]| match aliases {
        Aliases::Never | Aliases::None => false,
        Aliases::OfTriggers => matches!(name, b"old" | b"new"),
        Aliases::OfQueries => {
            matches!(name, b"old" | b"new" | b"excluded")
                || tokens.iter().enumerate().any(|(n, t)| {
                    !symbol(n + 1, b".")
                        && !word(before(n), &[b"SCHEMA"])
                        && name_of(text, t).is_some_and(|found| found == name)
                })
        }
    };
    let mut out = Vec::with_capacity(text.len() + 64);
    let mut copied = 0;
    let mut left = None;
    let mut replace = |at: &Range<usize>, new: &[u8], copied: &mut usize| {
        out.extend_from_slice(&text[*copied..at.start]);
        out.extend_from_slice(new);
        *copied = at.end;
    };
    for (n, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Symbol => {}
            Kind::Opaque => {
                let Some(found) = mentioned(&text[token.at.clone()], map) else { continue };
                if symbol(n + 1, b"::") && !word(Some(n + 2), &[b"text"]) {
                    return Err(format!("a string with escapes has \"{}\" in it", shown(&found)));
                }
                left = Some(found);
            }
            Kind::Text => {
                let whole = &text[token.at.clone()];
                let cast = symbol(n + 1, b"::");
                let of_names = cast && word(Some(n + 2), &NAMES);
                if of_names && !symbol(n + 3, b"[") {
                    let old = content(whole);
                    let new = match word(Some(n + 2), &[b"regnamespace"]) {
                        true => map.get(&unquoted(&old)).map_or(old.clone(), |new| id(new)),
                        false => rewrite(&old, map, Aliases::Never)?.text,
                    };
                    replace(&token.at, &string(&new), &mut copied);
                    continue;
                }
                let Some(found) = mentioned(whole, map) else { continue };
                match cast && symbol(n + 3, b".") {
                    // Labels and the like.
                    true if is_plain(n + 2) => {}
                    of_user if of_user || of_names => {
                        return Err(format!(
                            "the value {} may name schema \"{}\"",
                            shown(whole),
                            shown(&found)
                        ))
                    }
                    _ => left = Some(found),
                }
            }
            Kind::Name => {
                let Some(name) = name_of(text, token) else { continue };
                let Some(new) = map.get(&name) else { continue };
                let new = id(new);
                if n > 0 && symbol(n - 1, b".") {
                    continue;
                }
                if !symbol(n + 1, b".") {
                    if word(before(n), &[b"SCHEMA"]) {
                        replace(&token.at, &new, &mut copied);
                    }
                    continue;
                }
                let operator = n >= 2 && symbol(n - 1, b"(") && word(Some(n - 2), &[b"OPERATOR"]);
                // A row as a whole.
                if whole_row(n) && !operator {
                    continue;
                }
                let sure = operator
                    || symbol(n + 3, b"(")
                    || n > 0 && symbol(n - 1, b"::")
                    || word(
                        before(n),
                        &[
                            b"JOIN",
                            b"INTO",
                            b"UPDATE",
                            b"ONLY",
                            b"VIEW",
                            b"TABLE",
                            b"FUNCTION",
                            b"PROCEDURE",
                            b"COLLATE",
                        ],
                    );
                if !sure && introduced(&name) {
                    let end = tokens.get(n + 2).map_or(token.at.end, |t| t.at.end);
                    let place = shown(&text[token.at.start..end]);
                    return Err(format!(
                        "{place} may be of schema \"{}\" or of an alias of that name",
                        shown(&name)
                    ));
                }
                replace(&token.at, &new, &mut copied);
            }
        }
    }
    out.extend_from_slice(&text[copied..]);
    Ok(Rewritten { text: out, left })
}

/// The names before dots, with what comes behind.
pub fn qualified(text: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let Some(tokens) = tokens(text) else { return Vec::new() };
    let dot = |t: &Token| t.kind == Kind::Symbol && &text[t.at.clone()] == b".";
    tokens
        .windows(3)
        .filter(|w| dot(&w[1]))
        .filter_map(|w| Some((name_of(text, &w[0])?, name_of(text, &w[2])?)))
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
        let old = Map::from([(b"old".to_vec(), b"x".to_vec())]);
        assert!(rewrite(b"WHEN (old.a > 1)", &old, Aliases::OfTriggers).is_err());
        assert!(rewrite(b"CHECK (old.a(1))", &old, Aliases::None).is_ok());
    }

    #[test]
    fn values_that_may_be_names() {
        assert!(of("'{sales.t}'::regclass[]", Aliases::None).is_err());
        assert!(of("'(sales.t,1)'::sales.pair", Aliases::None).is_err());
        assert!(of("'(1,1)'::sales.pair", Aliases::None).is_ok());
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
        let text = b"f('schemaname', 'sales', 'v', '''schemaname'', ''sales''');\nf(\n\t'schemaname', 'sales',\n\t'n', 1);";
        let new = b"f('schemaname', 'x''y', 'v', '''schemaname'', ''sales''');\nf(\n\t'schemaname', 'x''y',\n\t'n', 1);";
        let map = Map::from([(b"sales".to_vec(), b"x'y".to_vec())]);
        assert_eq!(schema_arguments(text, &map).unwrap(), new);
        assert_eq!(schema_arguments(b"f('schemaname', E'a\\\\')", &map), None);
    }

    #[test]
    fn types_of_names() {
        assert!(has_names(b"CREATE TABLE a.t (\n x regclass[]\n)", false));
        assert!(!has_names(b"CREATE TABLE a.t (\n x text DEFAULT ('a'::regclass)::text\n)", false));
        assert!(has_names(b"PARTITION BY LIST (((x)::regclass))", true));
    }
}
