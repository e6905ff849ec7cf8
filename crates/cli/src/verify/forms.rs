//! Text that depends on settings of the session that wrote it, made comparable.
//!
//! `pg_dump` writes rows and definitions under its server's, database's and role's settings but for DateStyle and
//! IntervalStyle, and an archive does not say what they were. What has few possible values is tried on the server; moments
//! and floats, whose text has many, are brought to one form here. (Floats have other digits by `--extra-float-digits`, and
//! from servers before version 12.) Amounts of money are not: under another `lc_monetary` their text may be that of another
//! amount.

use crate::archive::Entry;
use crate::error::Result;
use crate::pg::Login;
use crate::pg::{quote_literal, Connection};
use crate::plan::text::{take_name, unquoted};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::LowerExp;
use std::str::FromStr;

/// Settings of a session that text depends on, besides what each of our sessions sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings(Vec<(&'static str, &'static str)>);

impl Settings {
    /// All of them: for both sides where both are databases.
    pub fn same() -> Settings {
        Settings(vec![
            ("TimeZone", "UTC"),
            ("lc_monetary", "C"),
            ("bytea_output", "hex"),
            ("quote_all_identifiers", "off"),
        ])
    }

    /// Those with few values, where an archive has `bytes` (bytea) or `names`. Each sets all that others do.
    pub fn tried(bytes: bool, names: bool) -> Vec<Settings> {
        let mut all = vec![Settings::default()];
        for (wanted, name, values) in [
            (bytes, "bytea_output", ["hex", "escape"]),
            (names, "quote_all_identifiers", ["off", "on"]),
        ] {
            if wanted {
                let with = |before: &Settings| {
                    values.map(|v| Settings([&before.0[..], &[(name, v)]].concat()))
                };
                all = all.iter().flat_map(with).collect();
            }
        }
        all
    }

    pub fn quotes_all(&self) -> bool {
        self.0.contains(&("quote_all_identifiers", "on"))
    }

    pub fn set(&self, connection: &Connection) -> Result<()> {
        let statements = self.0.iter().map(|(name, value)| format!("SET {name} = '{value}'; "));
        let sql: String = statements.collect();
        if !sql.is_empty() {
            connection.run(sql.as_bytes())?;
        }
        Ok(())
    }

    /// For a program that connects by itself.
    pub fn login(&self, login: &Login) -> Login {
        let given = login.address.pairs().find(|(key, _)| *key == "options");
        let given = given.map(|(_, value)| value.to_string());
        let mut options = given.or_else(|| std::env::var("PGOPTIONS").ok()).unwrap_or_default();
        for (name, value) in &self.0 {
            options += &format!(" -c {name}={value}");
        }
        Login { address: login.address.with("options", &options), ..login.clone() }
    }
}

/// What is brought to one form in a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    AsIs,
    /// Moments are in it.
    Moments,
    /// Nothing is in it but float8, or float4.
    Doubles,
    Singles,
}

/// What the text of a table's rows depends on.
#[derive(Debug, Default)]
pub struct Forms {
    /// By column.
    columns: Vec<Form>,
    bytes: bool,
    names: bool,
}

impl Forms {
    /// Asks for the types of a table's columns; `list` has them as COPY does, `table` is the table's quoted name. `defn` is how the
    /// archive defines it: what is no float there may have lost digits in one.
    pub fn of(connection: &Connection, table: &[u8], list: &[u8], defn: &[u8]) -> Result<Forms> {
        let multiranges = match connection.server_version() >= 140_000 {
            true => " OR r.rngmultitypid = t.oid",
            false => "",
        };
        // Types that others consist of. Those of extensions may show moments.
        let sql = [
            b"WITH RECURSIVE part(attname, oid) AS (SELECT a.attname, a.atttypid FROM pg_catalog.pg_attribute a WHERE a.attrelid = ",
            &quote_literal(table)[..],
            b"::pg_catalog.regclass AND a.attnum > 0 AND NOT a.attisdropped \
              UNION SELECT p.attname, d.oid \
              FROM part p JOIN pg_catalog.pg_type t ON t.oid = p.oid, \
              LATERAL (SELECT t.typbasetype WHERE t.typtype = 'd' \
              UNION ALL SELECT t.typelem WHERE t.typelem <> 0 \
              UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a WHERE t.typtype = 'c' AND a.attrelid = t.typrelid \
              AND a.attnum > 0 AND NOT a.attisdropped \
              UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid",
            multiranges.as_bytes(),
            b") d(oid)) SELECT p.attname, pg_catalog.bool_or(t.oid = 1184 OR t.typtype = 'b' AND t.typelem = 0 \
              AND t.typcategory = 'U' AND t.oid >= 16384), pg_catalog.bool_or(t.oid = 17), \
              pg_catalog.bool_or(t.typtype = 'b' AND t.oid < 16384 AND t.typname LIKE 'reg%'), \
              pg_catalog.bool_and(t.typelem <> 0 OR t.typtype IN ('d', 'c', 'r', 'm') OR t.oid IN (701, 602, 604, 718)), \
              pg_catalog.bool_and(t.typelem <> 0 OR t.typtype IN ('d', 'c', 'r', 'm') OR t.oid = 700) \
              FROM part p JOIN pg_catalog.pg_type t ON t.oid = p.oid GROUP BY p.attname",
        ]
        .concat();
        let rows = connection.query(&sql)?;
        let mut known = HashMap::with_capacity(rows.len());
        for row in 0..rows.len() {
            known.insert(rows.get(row, 0).unwrap_or_default().to_vec(), row);
        }
        let mut forms = Forms::default();
        let mut rest = list;
        while let Some(name) = take_name(&mut rest) {
            let row = known.get(&unquoted(name)).copied();
            let is = |column| row.is_some_and(|row| rows.flag(row, column));
            forms.columns.push(match (is(1), is(4), is(5)) {
                (true, _, _) => Form::Moments,
                (_, true, _) if defines_float(defn, name) => Form::Doubles,
                (_, _, true) if defines_float(defn, name) => Form::Singles,
                _ => Form::AsIs,
            });
            forms.bytes |= is(2);
            forms.names |= is(3);
            rest = rest.strip_prefix(b",").unwrap_or(rest).trim_ascii_start();
        }
        Ok(forms)
    }

    /// The rows' text is the same under all settings.
    pub fn none(&self) -> bool {
        !self.bytes && !self.names && self.as_is()
    }

    fn as_is(&self) -> bool {
        self.columns.iter().all(|form| *form == Form::AsIs)
    }

    /// Under which the rows may have been written.
    pub fn settings(&self) -> Vec<Settings> {
        Settings::tried(self.bytes, self.names)
    }

    /// A row of COPY with its line end, as all sessions would write it.
    pub fn row<'a>(&self, row: &'a [u8]) -> Cow<'a, [u8]> {
        if self.as_is() {
            return Cow::Borrowed(row);
        }
        let mut out = Vec::with_capacity(row.len());
        for (at, value) in row.split(|byte| *byte == b'\t').enumerate() {
            if at > 0 {
                out.push(b'\t');
            }
            match self.columns.get(at) {
                Some(Form::Moments) => out.extend_from_slice(&moments(value)),
                Some(Form::Doubles) => floats::<f64>(value, &mut out),
                Some(Form::Singles) => floats::<f32>(value, &mut out),
                _ => out.extend_from_slice(value),
            }
        }
        Cow::Owned(out)
    }
}

/// Types of floats, as definitions have them.
const FLOATS: [&[u8]; 9] = [
    b"double precision",
    b"real",
    b"point",
    b"line",
    b"lseg",
    b"box",
    b"path",
    b"polygon",
    b"circle",
];

/// A table's definition has a column of floats, or of arrays of them, by this name.
fn defines_float(defn: &[u8], name: &[u8]) -> bool {
    let line = [b"\n    ", name, b" "].concat();
    let begin = defn.windows(line.len()).position(|part| part == line);
    begin.is_some_and(|at| FLOATS.iter().any(|of| defn[at + line.len()..].starts_with(of)))
}

/// Text with its numbers as numbers of a type are written, each in one way.
fn floats<F: FromStr + LowerExp>(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(first) = rest.first() {
        let of_number = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'.' | b'+' | b'-' | b'e' | b'E');
        let length = rest.iter().take_while(of_number).count();
        // A word, as of infinity, is none.
        let digits = first.is_ascii_digit() || rest.get(1).is_some_and(u8::is_ascii_digit);
        let number = std::str::from_utf8(&rest[..length]).ok().filter(|_| digits);
        match number.and_then(|number| number.parse::<F>().ok()) {
            Some(number) => out.extend(format!("{number:e}").into_bytes()),
            None => out.extend_from_slice(&rest[..length.max(1)]),
        }
        rest = &rest[length.max(1)..];
    }
}

/// Text in which each moment, with its distance from UTC as DateStyle ISO writes it, stands as seconds of UTC.
pub fn moments(text: &[u8]) -> Cow<'_, [u8]> {
    let mut out = Vec::new();
    let (mut copied, mut at) = (0, 0);
    while at < text.len() {
        if !text[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        match moment(&text[at..]) {
            Some((seconds, fraction, length)) => {
                out.extend_from_slice(&text[copied..at]);
                out.extend(format!("@{seconds}").into_bytes());
                out.extend_from_slice(fraction);
                at += length;
                copied = at;
            }
            None => at += text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count(),
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.extend_from_slice(&text[copied..]);
    Cow::Owned(out)
}

/// A moment at the front of `text`: seconds of UTC since 1970, what follows the seconds, how long its text is.
fn moment(text: &[u8]) -> Option<(i64, &[u8], usize)> {
    let mut at = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if !(4..=6).contains(&at) {
        return None;
    }
    let mut year: i64 = number(&text[..at])?;
    let mut two = |separator: u8| -> Option<i64> {
        (text.get(at) == Some(&separator)).then_some(())?;
        let value = number(text.get(at + 1..at + 3)?)?;
        at += 3;
        Some(value)
    };
    let (month, day, hour) = (two(b'-')?, two(b'-')?, two(b' ')?);
    let (minute, second) = (two(b':')?, two(b':')?);
    let begin = at;
    if text.get(at) == Some(&b'.') {
        at += 1 + text[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    }
    let fraction = &text[begin..at];
    let east = match text.get(at)? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let mut distance = number(text.get(at + 1..at + 3)?)? * 3600;
    at += 3;
    for unit in [60, 1] {
        let Some(value) = text.get(at + 1..at + 3).filter(|_| text[at] == b':').and_then(number)
        else {
            break;
        };
        distance += value * unit;
        at += 3;
    }
    if text[at..].starts_with(b" BC") {
        (year, at) = (1 - year, at + 3);
    }
    let time = hour * 3600 + minute * 60 + second;
    Some((days(year, month, day) * 86_400 + time - east * distance, fraction, at))
}

fn number(digits: &[u8]) -> Option<i64> {
    let all = digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| all)?.parse().ok()
}

/// Days since 1970 by the Gregorian calendar, also before there was one: years from March on, in eras of 400.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// What stands before the source of a function, which is what somebody wrote.
const BODY: &[u8] = b"\n    AS $";

/// The same definition but for the form of moments in it. What people wrote is compared as it is.
pub fn same_definition(a: &Entry, b: &Entry) -> bool {
    if a.defn == b.defn || a.desc == b"COMMENT" {
        return a.defn == b.defn;
    }
    let parts = |text: &'_ [u8]| text.windows(BODY.len()).position(|part| part == BODY);
    let (a, a_body) = a.defn.split_at(parts(a.defn).unwrap_or(a.defn.len()));
    let (b, b_body) = b.defn.split_at(parts(b.defn).unwrap_or(b.defn.len()));
    a_body == b_body && definition(a) == definition(b)
}

/// Types whose values are text: what looks like a moment in them is what somebody wrote.
const TEXTS: [&[u8]; 8] =
    [b"text", b"character", b"bpchar", b"char", b"name", b"json", b"jsonb", b"xml"];

/// What stands before the only literals of other types whose type is not told: bounds of partitions.
const BOUNDS: &[u8] = b" FOR VALUES ";

/// A definition in which moments stand as seconds of UTC: in literals, but for those of text.
fn definition(text: &[u8]) -> Cow<'_, [u8]> {
    if matches!(moments(text), Cow::Borrowed(_)) {
        return Cow::Borrowed(text);
    }
    let bounds = text.windows(BOUNDS.len()).position(|part| part == BOUNDS);
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.iter().position(|byte| matches!(byte, b'\'' | b'"')) {
        let Some(length) = quoted(&rest[begin..]) else { break };
        let (before, literal) = (&rest[..begin], &rest[begin..begin + length]);
        let from = text.len() - rest.len() + begin;
        out.extend_from_slice(before);
        rest = &rest[begin + length..];
        let of_other_type = match rest.strip_prefix(b"::") {
            Some(name) => {
                let name = name.strip_prefix(b"\"").unwrap_or(name);
                let word = name.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
                !TEXTS.contains(&&name[..word])
            }
            None => bounds.is_some_and(|bounds| from > bounds),
        };
        match literal[0] == b'\'' && of_other_type {
            true => out.extend_from_slice(&moments(literal)),
            false => out.extend_from_slice(literal),
        }
    }
    out.extend_from_slice(rest);
    Cow::Owned(out)
}

/// How long the quoted text at the front is; a quote within is doubled.
fn quoted(text: &[u8]) -> Option<usize> {
    let quote = *text.first()?;
    let mut at = 1;
    loop {
        at += text.get(at..)?.iter().position(|byte| *byte == quote)? + 1;
        match text.get(at) {
            Some(next) if *next == quote => at += 1,
            _ => return Some(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &[u8]) -> String {
        String::from_utf8_lossy(text).into_owned()
    }

    #[test]
    fn moments_are_those_of_utc() {
        let of = |text: &str| shown(&moments(text.as_bytes()));
        assert_eq!(of("1970-01-01 00:00:00+00"), "@0");
        for same in
            ["2024-02-29 23:30:00.5+00", "2024-03-01 08:30:00.5+09", "2024-02-29 19:00:00.5-04:30"]
        {
            assert_eq!(of(same), "@1709249400.5", "{same}");
        }
        assert_eq!(of("0001-12-31 23:00:00-01 BC"), of("0001-01-01 00:00:00+00"));
        assert_eq!(of("1880-01-01 00:18:59+00:18:59"), of("1880-01-01 00:00:00+00"));
        assert_eq!(of("[\"10000-01-01 00:00:00+00\",)"), "[\"@253402300800\",)");
        for other in [
            "2024-02-29",
            "2024-02-29 23:30:00",
            "infinity",
            "12024-02",
            "\\N",
            "2024-02-29 23:30:0x+00",
            "2024-02-29 23:30:00+0",
        ] {
            assert_eq!(of(other), other);
        }
    }

    #[test]
    fn rows() {
        let forms = Forms { columns: vec![Form::AsIs, Form::Moments], ..Forms::default() };
        let row = |text: &str| shown(&forms.row(text.as_bytes()));
        let tokyo = "1970-01-01 09:00:00+09";
        assert_eq!(row(&format!("{tokyo}\t{tokyo}\t{tokyo}\n")), format!("{tokyo}\t@0\t{tokyo}\n"));
        assert_eq!(row("a\t\\N\n"), "a\t\\N\n");
    }

    #[test]
    fn columns_of_floats() {
        let defn = b"CREATE TABLE s.t (\n    a double precision,\n    \"B\" real[] NOT NULL,\n    c numeric,\n    d point\n);\n";
        for (name, is) in
            [("a", true), ("\"B\"", true), ("B", false), ("c", false), ("d", true), ("x", false)]
        {
            assert_eq!(defines_float(defn, name.as_bytes()), is, "{name}");
        }
        assert!(!defines_float(b"", b"a"));
    }

    #[test]
    fn floats_are_numbers() {
        let of = |form| {
            let forms = Forms { columns: vec![form], ..Forms::default() };
            move |text: &str| shown(&forms.row(text.as_bytes()))
        };
        let (double, single) = (of(Form::Doubles), of(Form::Singles));
        for (a, b) in [
            ("0.1", "0.10000000000000001"),
            ("{1e+08,NULL,-2.5}\n", "{100000000,NULL,-2.50}\n"),
            ("<(0.1,-0),Infinity>", "<(0.10000000000000001,-0),Infinity>"),
        ] {
            assert_eq!(double(a), double(b));
        }
        assert_eq!(single("0.1\n"), single("0.100000001\n"));
        for (a, b) in [
            ("0.1", "0.10000000000000002"),
            ("0.1", "-0.1"),
            ("0", "-0"),
            ("(1,2)", "(1,3)"),
            ("{1,2}", "{12}"),
            ("1", "\\N"),
            ("Infinity", "-Infinity"),
        ] {
            assert_ne!(double(a), double(b));
        }
        assert_ne!(double("0.1"), double("0.100000001"));
        for same in ["\\N\n", "NaN\n", "-Infinity\n", "{NULL,NaN}\n"] {
            assert_eq!(double(same), same);
        }
    }

    #[test]
    fn definitions() {
        let same = |desc: &str, a: &str, b: &str| {
            let entry = |defn| Entry { desc: desc.as_bytes(), defn, ..Entry::default() };
            same_definition(&entry(a.as_bytes()), &entry(b.as_bytes()))
        };
        let of = "timestamp with time zone";
        let utc = |of: &str| format!("DEFAULT '1970-01-01 00:00:00+00'{of},");
        let tokyo = |of: &str| format!("DEFAULT '1970-01-01 09:00:00+09'{of},");
        let (a, b) = (utc(&format!("::{of}")), tokyo(&format!("::{of}")));
        assert!(same("TABLE", &a, &b) && !same("COMMENT", &a, &b));
        assert!(!same("TABLE", &a, &a.replace("+00", "+09")));
        for text in ["::text", "::character varying(30)", "::\"char\"", "::jsonb", ""] {
            assert!(!same("TABLE", &utc(text), &tokyo(text)), "{text}");
        }
        // The text before and after is compared as it is.
        assert!(!same("TABLE", &(utc("::text") + &a), &(tokyo("::text") + &b)));
        assert!(same(
            "TABLE",
            &format!("'it''s'::text {a} \"'\""),
            &format!("'it''s'::text {b} \"'\"")
        ));
        for other in ["tstzrange", "public.pair", "\"Odd\""] {
            assert!(same("VIEW", &utc(&format!("::{other}")), &tokyo(&format!("::{other}"))));
        }
        let bound =
            |at: &str| format!("ATTACH PARTITION s.p FOR VALUES FROM ('{at}') TO (MAXVALUE);");
        let [a, b] = ["1970-01-01 00:00:00+00", "1970-01-01 09:00:00+09"].map(bound);
        assert!(same("TABLE ATTACH", &a, &b));
        let (utc, tokyo) = (utc("::timestamptz"), tokyo("::timestamptz"));
        let function = |default, body| format!("f(a text {default})\n    AS $${body}$$;");
        assert!(same("FUNCTION", &function(&utc, &utc), &function(&tokyo, &utc)));
        assert!(!same("FUNCTION", &function(&utc, &utc), &function(&utc, &tokyo)));
        // What has no end is what it is.
        assert!(!same("TABLE", "'1970-01-01 00:00:00+00", "'1970-01-01 09:00:00+09"));
    }

    #[test]
    fn all_combinations_are_tried() {
        assert_eq!(Settings::tried(false, false), [Settings::default()]);
        let both = Settings::tried(true, true);
        assert_eq!(both.len(), 4);
        assert_eq!(both.iter().filter(|settings| settings.quotes_all()).count(), 2);
        let login = both[3].login(&Login {
            address: Login::default().address.with("options", "-c a=b"),
            ..Login::default()
        });
        let expected = ("options", "-c a=b -c bytea_output=escape -c quote_all_identifiers=on");
        assert_eq!(login.address.pairs().collect::<Vec<_>>(), [expected]);
    }
}
