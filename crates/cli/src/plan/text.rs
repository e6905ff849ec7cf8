//! Reading pg_dump's own canonical DDL.
//!
//! This is no SQL parser: it recognises just the shapes that pg_dump writes and answers `None` for all else, so
//! that a rewrite falls back to the archive's statement. Text is bytes in the archive's encoding; all server
//! encodings keep ASCII bytes for ASCII characters, and quoted text is skipped by its quotes alone.

use crate::pg::quote_ident;

mod called;
mod foreign;
pub mod quoted;
pub use called::{called, calls_others, generated, Called, LONGEST_NAME};
pub use foreign::{
    added, constrained, foreign_key, may_be_chosen, not_null, without_digits, ForeignKey,
};

/// A name as an entry of that schema writes it, with a schema: until 10.2 statements leave out their own.
pub fn qualified(schema: &[u8], name: &[u8]) -> Vec<u8> {
    match last_part(name).len() == name.len() && !schema.is_empty() {
        true => [&quote_ident(schema)[..], b".", name].concat(),
        false => name.to_vec(),
    }
}

/// `CREATE TABLE name (body) rest; extras`.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct CreateTable<'a> {
    /// Qualified and quoted as in the archive.
    pub name: &'a [u8],
    /// Columns and constraints between the outer parentheses.
    pub body: &'a [u8],
    /// Clauses between the closing parenthesis and the semicolon, trimmed.
    pub rest: &'a [u8],
    /// Further statements, e.g. `ALTER TABLE … SET STORAGE`.
    pub extras: &'a [u8],
}

/// `ALTER TABLE ONLY parent ATTACH PARTITION child bound;`
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Attach<'a> {
    pub parent: &'a [u8],
    pub child: &'a [u8],
    /// `FOR VALUES …` or `DEFAULT`.
    pub bound: &'a [u8],
}

/// `CREATE [UNIQUE] INDEX name ON [ONLY] table tail;`, or `ALTER TABLE ONLY table ADD CONSTRAINT name tail;`
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Index<'a> {
    pub constraint: bool,
    pub unique: bool,
    /// Not qualified.
    pub name: &'a [u8],
    pub table: &'a [u8],
    /// `USING …`, `PRIMARY KEY (…)` and so on.
    pub tail: &'a [u8],
}

/// The length of an identifier at the start of `text`, quoted or not.
fn identifier(text: &[u8]) -> Option<usize> {
    match *text.first()? {
        b'"' => {
            let mut at = 1;
            loop {
                at += text.get(at..)?.iter().position(|&b| b == b'"')? + 1;
                match text.get(at) {
                    Some(b'"') => at += 1,
                    _ => return Some(at),
                }
            }
        }
        b'a'..=b'z' | b'_' => Some(
            text.iter()
                .position(|b| !matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'$'))
                .unwrap_or(text.len()),
        ),
        _ => None,
    }
}

/// Take an identifier, qualified or not, off the front of `text`.
pub fn take_name<'a>(text: &mut &'a [u8]) -> Option<&'a [u8]> {
    let mut length = identifier(text)?;
    while text.get(length) == Some(&b'.') {
        length += 1 + identifier(&text[length + 1..])?;
    }
    let (name, rest) = text.split_at(length);
    *text = rest;
    Some(name)
}

/// The last part of a qualified name, as it is written.
pub fn last_part(name: &[u8]) -> &[u8] {
    let mut rest = name;
    while let Some(length) = identifier(rest) {
        match rest.get(length) {
            Some(b'.') => rest = &rest[length + 1..],
            _ => break,
        }
    }
    rest
}

/// An identifier as the catalog has it: without quotes.
pub fn unquoted(name: &[u8]) -> Vec<u8> {
    match name {
        [b'"', inner @ .., b'"'] => {
            let mut out = Vec::with_capacity(inner.len());
            let mut quoted = false;
            for &b in inner {
                quoted = b == b'"' && !quoted;
                if !quoted {
                    out.push(b);
                }
            }
            out
        }
        _ => name.to_vec(),
    }
}

fn take(text: &mut &[u8], what: &[u8]) -> Option<()> {
    *text = text.strip_prefix(what)?;
    Some(())
}

/// Where `text` goes on after the token at its start, which may be a quoted one.
fn after_token(text: &[u8]) -> Option<usize> {
    match *text.first()? {
        quote @ (b'\'' | b'"') => {
            // A doubled quote is the end of one quoted text and the start of the next: skipping is the same.
            Some(2 + text[1..].iter().position(|&b| b == quote)?)
        }
        b'E' | b'e' if text.get(1) == Some(&b'\'') => {
            let mut at = 2;
            loop {
                match *text.get(at)? {
                    b'\\' => at += 2,
                    b'\'' => return Some(at + 1),
                    _ => at += 1,
                }
            }
        }
        b'$' => {
            let tag = text[1..].iter().position(|b| !(b.is_ascii_alphanumeric() || *b == b'_'))?;
            if text[1 + tag] != b'$' {
                return Some(1);
            }
            let tag = &text[..tag + 2];
            let body = &text[tag.len()..];
            let end = body.windows(tag.len()).position(|w| w == tag)?;
            Some(end + 2 * tag.len())
        }
        b'-' if text.get(1) == Some(&b'-') => {
            Some(text.iter().position(|&b| b == b'\n').unwrap_or(text.len()))
        }
        b if b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80 => Some(
            text.iter()
                .position(|&b| {
                    !(b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$') || b >= 0x80)
                })
                .unwrap_or(text.len()),
        ),
        _ => Some(1),
    }
}

/// The first `wanted` byte of `text` outside of quotes and parentheses.
fn find_outside(text: &[u8], wanted: u8) -> Option<usize> {
    let (mut at, mut depth) = (0, 0usize);
    while at < text.len() {
        let byte = text[at];
        if byte == wanted && depth == 0 {
            return Some(at);
        }
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        at += after_token(&text[at..])?;
    }
    None
}

/// One statement and what follows it; the statement without its semicolon. What follows is all there is to the text's end, blanks as well:
/// it may be the beginning of one whose rest is still to be read.
pub fn split_statement(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = find_outside(text, b';')?;
    Some((&text[..end], text[end + 1..].trim_ascii_start()))
}

/// The number of rows of an `INSERT INTO name [(columns)] [OVERRIDING …] VALUES (…), (…) [ON CONFLICT …]`, without its semicolon.
pub fn inserted_rows(statement: &[u8]) -> Option<u64> {
    let mut text = statement;
    take(&mut text, b"INSERT INTO ")?;
    take_name(&mut text)?;
    text = text.trim_ascii_start();
    if let Some(columns) = text.strip_prefix(b"(") {
        text = columns[find_outside(columns, b')')? + 1..].trim_ascii_start();
    }
    if text == b"DEFAULT VALUES" || text.starts_with(b"DEFAULT VALUES ") {
        return Some(1);
    }
    for kind in [&b"OVERRIDING SYSTEM VALUE "[..], b"OVERRIDING USER VALUE "] {
        text = text.strip_prefix(kind).unwrap_or(text);
    }
    take(&mut text, b"VALUES")?;
    let mut rows = 0;
    loop {
        let row = text.trim_ascii_start().strip_prefix(b"(")?;
        text = row[find_outside(row, b')')? + 1..].trim_ascii_start();
        rows += 1;
        match text.strip_prefix(b",") {
            Some(more) => text = more,
            None => break,
        }
    }
    (text.is_empty() || text.starts_with(b"ON CONFLICT ")).then_some(rows)
}

/// An INSERT statement, in parts as they are written.
pub struct Inserted<'a> {
    pub table: &'a [u8],
    /// None if they are not named.
    pub columns: Vec<&'a [u8]>,
    /// Of the first row.
    pub values: Vec<&'a [u8]>,
}

pub fn inserted(statement: &[u8]) -> Option<Inserted<'_>> {
    let mut text = statement.trim_ascii_start();
    take(&mut text, b"INSERT INTO ")?;
    let table = take_name(&mut text)?;
    text = text.trim_ascii_start();
    let mut columns = Vec::new();
    if let Some(list) = text.strip_prefix(b"(") {
        let end = find_outside(list, b')')?;
        columns = split_list(&list[..end]);
        text = list[end + 1..].trim_ascii_start();
    }
    for kind in [&b"OVERRIDING SYSTEM VALUE "[..], b"OVERRIDING USER VALUE "] {
        text = text.strip_prefix(kind).unwrap_or(text);
    }
    take(&mut text, b"VALUES")?;
    let row = text.trim_ascii_start().strip_prefix(b"(")?;
    let values = split_list(&row[..find_outside(row, b')')?]);
    Some(Inserted { table, columns, values })
}

/// What stands between commas.
fn split_list(mut list: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let Some(at) = find_outside(list, b',') {
        parts.push(list[..at].trim_ascii());
        list = &list[at + 1..];
    }
    parts.push(list.trim_ascii());
    parts
}

/// The names of a table's or domain's constraints that the server might choose for a NOT NULL constraint of another: it takes none that
/// any constraint of the schema has. (Those of NOT NULL constraints are told from version 18 on, where they are not those that the server
/// would choose.)
pub fn named_as_not_nulls(defn: &[u8]) -> Vec<Vec<u8>> {
    let (begin, like) = (&b"CONSTRAINT "[..], &b"_not_null"[..]);
    let mut names = Vec::new();
    let mut rest = defn;
    while let Some(at) = rest.windows(begin.len()).position(|w| w == begin) {
        rest = &rest[at + begin.len()..];
        let mut after = rest;
        let name = take_name(&mut after).map(unquoted);
        names.extend(name.filter(|name| name.windows(like.len()).any(|part| part == like)));
    }
    names
}

pub fn create_table(defn: &[u8]) -> Option<CreateTable<'_>> {
    let mut text = defn;
    take(&mut text, b"CREATE TABLE ")?;
    let name = take_name(&mut text)?;
    take(&mut text, b" (")?;
    let close = find_outside(text, b')')?;
    let (body, text) = (&text[..close], &text[close + 1..]);
    let end = find_outside(text, b';')?;
    Some(CreateTable {
        name,
        body: body.trim_ascii(),
        rest: text[..end].trim_ascii(),
        extras: text[end + 1..].trim_ascii(),
    })
}

/// Columns or constraints of a table.
type Items<'a> = Vec<&'a [u8]>;

/// The body of a CREATE TABLE cut into its columns and its CHECK constraints, each of which stands by itself:
/// `CONSTRAINT name CHECK (…)`. `None` if there is a constraint of another shape.
pub fn split_checks(body: &[u8]) -> Option<(Items<'_>, Items<'_>)> {
    let (mut columns, mut checks) = (Vec::new(), Vec::new());
    let mut rest = body;
    while !rest.is_empty() {
        let end = find_outside(rest, b',');
        let item = rest[..end.unwrap_or(rest.len())].trim_ascii();
        rest = end.map_or(&[][..], |e| &rest[e + 1..]);
        let mut text = item;
        if take(&mut text, b"CONSTRAINT ").is_none() {
            columns.push(item);
            continue;
        }
        take_name(&mut text)?;
        take(&mut text, b" CHECK (")?;
        (find_outside(text, b')')? == text.len() - 1).then_some(())?;
        checks.push(item);
    }
    Some((columns, checks))
}

pub fn attach(defn: &[u8]) -> Option<Attach<'_>> {
    let mut text = defn;
    take(&mut text, b"ALTER TABLE ONLY ")?;
    let parent = take_name(&mut text)?;
    take(&mut text, b" ATTACH PARTITION ")?;
    let child = take_name(&mut text)?;
    take(&mut text, b" ")?;
    let (bound, rest) = split_statement(text)?;
    (rest.is_empty() && (bound.starts_with(b"FOR VALUES ") || bound == b"DEFAULT"))
        .then_some(Attach { parent, child, bound })
}

/// `ALTER TABLE table ALTER COLUMN column ADD GENERATED kind AS IDENTITY (…);`
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Identity<'a> {
    pub table: &'a [u8],
    pub column: &'a [u8],
    /// `ALWAYS` or `BY DEFAULT`.
    pub kind: &'a [u8],
}

pub fn identity(defn: &[u8]) -> Option<Identity<'_>> {
    let mut text = defn;
    take(&mut text, b"ALTER TABLE ")?;
    let table = take_name(&mut text)?;
    take(&mut text, b" ALTER COLUMN ")?;
    let column = take_name(&mut text)?;
    take(&mut text, b" ADD GENERATED ")?;
    let kinds: [&[u8]; 2] = [b"ALWAYS", b"BY DEFAULT"];
    let kind = kinds.into_iter().find(|kind| text.starts_with(kind))?;
    take(&mut text, kind)?;
    take(&mut text, b" AS IDENTITY (")?;
    Some(Identity { table, column, kind })
}

pub fn index(defn: &[u8]) -> Option<Index<'_>> {
    let mut text = defn;
    let found = if take(&mut text, b"ALTER TABLE ONLY ").is_some() {
        let table = take_name(&mut text)?;
        take(&mut text, b"\n    ADD CONSTRAINT ")?;
        let name = take_name(&mut text)?;
        take(&mut text, b" ")?;
        let (tail, rest) = split_statement(text)?;
        let known = tail.starts_with(b"PRIMARY KEY (") || tail.starts_with(b"UNIQUE (");
        (known && rest.is_empty()).then_some(Index {
            constraint: true,
            unique: true,
            name,
            table,
            tail,
        })
    } else {
        let unique = take(&mut text, b"CREATE UNIQUE INDEX ").is_some();
        if !unique {
            take(&mut text, b"CREATE INDEX ")?;
        }
        let name = take_name(&mut text)?;
        take(&mut text, b" ON ")?;
        let _only = take(&mut text, b"ONLY ");
        let table = take_name(&mut text)?;
        take(&mut text, b" ")?;
        let (tail, rest) = split_statement(text)?;
        rest.is_empty().then_some(Index { constraint: false, unique, name, table, tail })
    }?;
    // A name with a schema is not an index's name in these statements.
    (last_part(found.name) == found.name).then_some(found)
}

/// `ALTER INDEX parent ATTACH PARTITION child;`
pub fn index_attach(defn: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut text = defn;
    take(&mut text, b"ALTER INDEX ")?;
    let parent = take_name(&mut text)?;
    take(&mut text, b" ATTACH PARTITION ")?;
    let child = take_name(&mut text)?;
    (text.trim_ascii() == b";").then_some((parent, child))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_inserts() {
        let of = |text: &str| {
            let found = inserted(text.as_bytes())?;
            let text = |part: &[u8]| String::from_utf8(part.to_vec()).unwrap();
            let all = |parts: Vec<&[u8]>| parts.into_iter().map(text).collect::<Vec<_>>().join("|");
            Some(format!("{} {} {}", text(found.table), all(found.columns), all(found.values)))
        };
        assert_eq!(of("INSERT INTO s.t VALUES ('a, b)', 1)").unwrap(), "s.t  'a, b)'|1");
        let named = "INSERT INTO s.\"T\" (a, \"b,c\") OVERRIDING SYSTEM VALUE VALUES\n\t('it''s', '$1,00'),\n\t(2, 3)";
        assert_eq!(of(named).unwrap(), "s.\"T\" a|\"b,c\" 'it''s'|'$1,00'");
        assert_eq!(of("INSERT INTO s.t DEFAULT VALUES"), None);
    }

    #[test]
    fn rows_of_inserts() {
        let rows = |text: &str| inserted_rows(text.as_bytes());
        assert_eq!(rows("INSERT INTO public.t VALUES (1, 'it''s; (a),', NULL)"), Some(1));
        assert_eq!(
            rows("INSERT INTO s.\"a (b\" (x, \"y)\") VALUES\n\t(1, E'\\'('),\n\t(f(2), '');"),
            None
        );
        assert_eq!(
            rows("INSERT INTO s.\"a (b\" (x, \"y)\") VALUES\n\t(1, E'\\'('),\n\t(2, '')"),
            Some(2)
        );
        let overriding =
            "INSERT INTO t OVERRIDING SYSTEM VALUE VALUES (1), (2), (3) ON CONFLICT DO NOTHING";
        assert_eq!(rows(overriding), Some(3));
        assert_eq!(rows("INSERT INTO t DEFAULT VALUES"), Some(1));
        assert_eq!(rows("INSERT INTO t DEFAULT VALUES ON CONFLICT DO NOTHING"), Some(1));
        for other in [
            "INSERT INTO t SELECT 1",
            "INSERT INTO t VALUES",
            "UPDATE t SET a = 1",
            "INSERT INTO t VALUES (1) x",
        ] {
            assert_eq!(rows(other), None, "{other}");
        }
    }

    #[test]
    fn names_like_those_of_not_null() {
        let named = b"CREATE TABLE public.b (\n    v text NOT NULL,\n    id integer CONSTRAINT a_id_not_null NOT NULL,\n    w text CONSTRAINT \"x y_not_null\" NOT NULL,\n    CONSTRAINT c CHECK ((id > 0)),\n    CONSTRAINT d_not_null1 CHECK ((w IS NOT NULL))\n);\n";
        let found = [&b"a_id_not_null"[..], b"x y_not_null", b"d_not_null1"];
        assert_eq!(named_as_not_nulls(named), found);
    }

    #[test]
    fn tables() {
        let found = create_table(
            b"CREATE TABLE a.\"b c\" (\n    x integer DEFAULT f(')'::text),\n    y text\n)\nPARTITION BY RANGE (x);\n",
        )
        .unwrap();
        assert_eq!(found.name, b"a.\"b c\"");
        assert_eq!(found.body, b"x integer DEFAULT f(')'::text),\n    y text");
        assert_eq!(found.rest, b"PARTITION BY RANGE (x)");
        assert_eq!(found.extras, b"");
        let extras = create_table(b"CREATE TABLE a.t (\n    x text\n);\nALTER TABLE ONLY a.t ALTER COLUMN x SET STORAGE PLAIN;\n");
        assert!(extras.unwrap().extras.starts_with(b"ALTER TABLE"));
        assert_eq!(create_table(b"CREATE UNLOGGED TABLE a.t (\n x int\n);"), None);
        assert_eq!(create_table(b"CREATE TABLE a.t (\n x int DEFAULT ')\n);"), None);
        assert_eq!(create_table(b"CREATE TABLE a.t OF a.ty;"), None);
    }

    #[test]
    fn checks_stand_apart() {
        let body = b"a integer DEFAULT f(1, 2) NOT NULL,\n    b text,\n    CONSTRAINT \"x y\" CHECK ((a > 0) AND (b <> ','::text)),\n    CONSTRAINT z CHECK (g(a))";
        let (columns, checks) = split_checks(body).unwrap();
        assert_eq!(columns, [&b"a integer DEFAULT f(1, 2) NOT NULL"[..], b"b text"]);
        assert_eq!(checks.len(), 2);
        assert_eq!(checks[1], b"CONSTRAINT z CHECK (g(a))");
        assert_eq!(split_checks(b"a int,\n    CONSTRAINT x NOT NULL a"), None);
        assert_eq!(split_checks(b"a int,\n    CONSTRAINT x CHECK (a > 0) NOT VALID"), None);
    }

    #[test]
    fn quotes_of_all_kinds() {
        for literal in ["'a;b'", "'it''s ;'", "E'\\';'", "$q$;$q$", "$$;$$", "\"a;b\""] {
            let text = format!("x {literal} y; z");
            let (first, rest) = split_statement(text.as_bytes()).unwrap();
            assert_eq!(first, format!("x {literal} y").as_bytes());
            assert_eq!(rest, b"z");
        }
        assert_eq!(split_statement(b"x 'y; z"), None);
        assert_eq!(split_statement(b"x; \n y  "), Some((&b"x"[..], &b"y  "[..])));
    }

    #[test]
    fn attaches() {
        let found = attach(b"ALTER TABLE ONLY a.p ATTACH PARTITION a.\"c \"\"1\" FOR VALUES FROM ('1;') TO ('2');\n");
        let found = found.unwrap();
        assert_eq!(found.child, b"a.\"c \"\"1\"");
        assert_eq!(found.bound, b"FOR VALUES FROM ('1;') TO ('2')");
        assert_eq!(
            attach(b"ALTER TABLE ONLY a.p ATTACH PARTITION a.c DEFAULT;\nDROP TABLE x;"),
            None
        );
    }

    #[test]
    fn identities() {
        let found = identity(b"ALTER TABLE a.p ALTER COLUMN \"I d\" ADD GENERATED BY DEFAULT AS IDENTITY (\n    SEQUENCE NAME a.q\n);\n");
        let expected = Identity { table: b"a.p", column: b"\"I d\"", kind: b"BY DEFAULT" };
        assert_eq!(found, Some(expected));
        assert_eq!(identity(b"CREATE SEQUENCE a.q;"), None);
    }

    #[test]
    fn indexes() {
        let found = index(b"CREATE INDEX i ON ONLY a.p USING btree (v);\n").unwrap();
        assert_eq!(
            (found.name, found.table, found.tail),
            (&b"i"[..], &b"a.p"[..], &b"USING btree (v)"[..])
        );
        let found = index(b"ALTER TABLE ONLY a.c\n    ADD CONSTRAINT \"K\" PRIMARY KEY (id, d);\n")
            .unwrap();
        assert!(found.constraint);
        assert_eq!(found.name, b"\"K\"");
        assert_eq!(
            index(b"ALTER TABLE ONLY a.c\n    ADD CONSTRAINT k EXCLUDE USING gist (x WITH &&);\n"),
            None
        );
        assert_eq!(index(b"CREATE INDEX i ON a.c USING btree (v);\nALTER INDEX i ALTER COLUMN 1 SET STATISTICS 5;"), None);
        assert_eq!(
            index_attach(b"ALTER INDEX a.p_i ATTACH PARTITION a.c_i;\n"),
            Some((&b"a.p_i"[..], &b"a.c_i"[..]))
        );
    }

    #[test]
    fn names() {
        assert_eq!(last_part(b"a.\"b.c\""), b"\"b.c\"");
        assert_eq!(unquoted(b"\"a\"\"b\""), b"a\"b");
        assert_eq!(unquoted(b"ab"), b"ab");
    }
}
