//! What expressions call, by their text.

use super::{after_token, find_outside, identifier, last_part, unquoted};
use std::collections::BTreeSet;

/// Bytes of a name, in whatever encoding.
pub const LONGEST_NAME: usize = 256;

/// What an expression names with a schema: `pg_dump` writes all that is not the server's own so. An operator class, a collation and
/// a table are not called. Names are those of the catalogs, without schemas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Called {
    pub functions: BTreeSet<Vec<u8>>,
    pub operators: BTreeSet<Vec<u8>>,
    /// What it casts to.
    pub types: BTreeSet<Vec<u8>>,
}

impl Called {
    fn add(&mut self, mut more: Called) {
        self.functions.append(&mut more.functions);
        self.operators.append(&mut more.operators);
        self.types.append(&mut more.types);
    }
}

/// What a text calls; a function without a name if it cannot be read to its end.
pub fn called(statement: &[u8]) -> Called {
    let mut found = Called::default();
    let mut text = statement;
    let mut cast = false;
    while !text.is_empty() {
        match whole_name(text) {
            Some(length) => {
                let (name, rest) = text.split_at(length);
                let last = last_part(name);
                if last.len() < name.len() {
                    if cast {
                        found.types.insert(unquoted(last));
                    } else if rest.starts_with(b"(") {
                        found.functions.insert(unquoted(last));
                    }
                }
                (text, cast) = (rest, false);
            }
            None => {
                if let Some(operator) = text.strip_prefix(b"OPERATOR(") {
                    let (schema, name) = operator.split_at(identifier(operator).unwrap_or(0));
                    let name = name.strip_prefix(b".").unwrap_or(name);
                    match name.iter().take(LONGEST_NAME).position(|b| *b == b')') {
                        Some(_) if schema == b"pg_catalog" => {}
                        Some(end) => drop(found.operators.insert(name[..end].to_vec())),
                        None => drop(found.functions.insert(Vec::new())),
                    }
                }
                cast = text.starts_with(b"::") || cast && text.starts_with(b":");
                let Some(length) = after_token(text) else {
                    found.functions.insert(Vec::new());
                    break;
                };
                text = &text[length.min(text.len())..];
            }
        }
    }
    found
}

/// A statement calls a function, uses an operator or casts to a type by a name with a schema.
pub fn calls_others(statement: &[u8]) -> bool {
    called(statement) != Called::default()
}

/// A table has stored generated columns: what the expressions of these call by their text, where casts that are implicit do not appear.
pub fn generated(defn: &[u8]) -> Option<Called> {
    let words = b" GENERATED ALWAYS AS (";
    let mut rest = defn;
    let mut found = None;
    while let Some(at) = rest.windows(words.len()).position(|w| w == words) {
        rest = &rest[at + words.len()..];
        // One that has no end leaves none to the others.
        let Some(end) = find_outside(rest, b')') else {
            found.get_or_insert_with(Called::default).add(called(rest));
            break;
        };
        if rest[end..].starts_with(b") STORED") {
            found.get_or_insert_with(Called::default).add(called(&rest[..end]));
        }
        rest = &rest[end..];
    }
    found
}

/// How long the identifier is that a text begins with, with as many parts as it has: a point that none follows is behind it.
fn whole_name(text: &[u8]) -> Option<usize> {
    let mut length = identifier(text)?;
    while text.get(length) == Some(&b'.') {
        let Some(next) = identifier(&text[length + 1..]) else { break };
        length += 1 + next;
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_others() {
        let calls = |text: &str| calls_others(text.as_bytes());
        for text in [
            "CREATE INDEX i ON public.t USING btree (public.f(a))",
            "CREATE INDEX i ON public.t USING btree (a) WHERE (a OPERATOR(public.===) b)",
            "CREATE INDEX i ON public.t USING btree (((a)::\"S\".\"T y\"))",
            "ALTER TABLE ONLY s.t\n    ADD CONSTRAINT c EXCLUDE USING gist (r WITH &&) WHERE (\"s s\".f(a))",
        ] {
            assert!(calls(text), "{text}");
        }
        for text in [
            "CREATE INDEX i ON public.t USING btree (lower(a) COLLATE public.de) WHERE (b = 'public.f(1)'::text)",
            "CREATE INDEX i ON public.t USING gist (a public.gist_trgm_ops (siglen='32'))",
            "CREATE INDEX i ON public.t USING btree (a) WHERE ((b)::numeric > 1.5 AND b OPERATOR(pg_catalog.<) 3)",
        ] {
            assert!(!calls(text), "{text}");
        }
    }

    #[test]
    fn generated_columns() {
        let called = b"CREATE TABLE public.t (\n    a integer,\n    b integer GENERATED ALWAYS AS ((a + 1)) STORED,\n    \
            c integer GENERATED ALWAYS AS (public.f((a)::bigint)) STORED\n);\n";
        let names = |text: &[u8]| generated(text).unwrap().functions;
        assert_eq!(names(called), [b"f".to_vec()].into());
        let own = b"CREATE TABLE public.t (\n    a public.state DEFAULT public.f(),\n    b text GENERATED ALWAYS AS (lower('public.f(1)'::text)) STORED\n);\n";
        assert_eq!(generated(own), Some(Called::default()));
        let more = b"CREATE TABLE t (\n    a x GENERATED ALWAYS AS ((((a)::public.\"Y\" OPERATOR(s.<>) 1) OPERATOR(pg_catalog.<>) 2)) STORED\n);";
        let expected = Called {
            functions: [].into(),
            operators: [b"<>".to_vec()].into(),
            types: [b"Y".to_vec()].into(),
        };
        assert_eq!(generated(more), Some(expected));
        assert_eq!(generated(b"CREATE TABLE t (a int);"), None);
        let unread = [vec![]].into();
        assert_eq!(generated(b" GENERATED ALWAYS AS (x' s.f(").unwrap().functions, unread);
        // Nor more time than a few looks at it: minutes, if each part of a name was a new beginning.
        let parts = [&b"a.".repeat(500_000)[..], b"1 public.f(1)"].concat();
        assert_eq!(super::called(&parts).functions, [b"f".to_vec()].into());
        // Takes no more memory than the text.
        let endless = b"OPERATOR(".repeat(50_000);
        assert_eq!(super::called(&endless), Called { functions: unread, ..Called::default() });
    }
}
