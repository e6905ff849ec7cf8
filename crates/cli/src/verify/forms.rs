//! Text that depends on settings of the session that wrote it, made comparable.
//!
//! `pg_dump` writes rows and definitions under its server's, database's and role's settings but for DateStyle,
//! IntervalStyle and `extra_float_digits`, and an archive does not say what they were. What has few possible values is
//! tried on the server; moments, whose text has many, are brought to one form here. Amounts of money are not: under another
//! `lc_monetary` their text may be that of another amount.

use crate::archive::Entry;
use crate::backup::Login;
use crate::error::Result;
use crate::pg::{quote_literal, Connection};
use crate::plan::text::{take_name, unquoted};
use std::borrow::Cow;
use std::collections::HashMap;

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

/// What the text of a table's rows depends on.
#[derive(Debug, Default)]
pub struct Forms {
    /// By column: moments are in it.
    moments: Vec<bool>,
    bytes: bool,
    names: bool,
}

impl Forms {
    /// Asks for the types of a table's columns; `list` has them as COPY does, `table` is the table's quoted name.
    pub fn of(connection: &Connection, table: &[u8], list: &[u8]) -> Result<Forms> {
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
              pg_catalog.bool_or(t.typtype = 'b' AND t.oid < 16384 AND t.typname LIKE 'reg%') \
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
            forms.moments.push(is(1));
            forms.bytes |= is(2);
            forms.names |= is(3);
            rest = rest.strip_prefix(b",").unwrap_or(rest).trim_ascii_start();
        }
        Ok(forms)
    }

    /// The rows' text is the same under all settings.
    pub fn none(&self) -> bool {
        !self.bytes && !self.names && !self.moments.contains(&true)
    }

    /// Under which the rows may have been written.
    pub fn settings(&self) -> Vec<Settings> {
        Settings::tried(self.bytes, self.names)
    }

    /// A row of COPY with its line end, as all sessions would write it.
    pub fn row<'a>(&self, row: &'a [u8]) -> Cow<'a, [u8]> {
        if !self.moments.contains(&true) {
            return Cow::Borrowed(row);
        }
        let mut out = Vec::with_capacity(row.len());
        for (at, value) in row.split(|byte| *byte == b'\t').enumerate() {
            if at > 0 {
                out.push(b'\t');
            }
            match self.moments.get(at) {
                Some(true) => out.extend_from_slice(&moments(value)),
                _ => out.extend_from_slice(value),
            }
        }
        Cow::Owned(out)
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
    a_body == b_body && moments(a) == moments(b)
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
        let forms = Forms { moments: vec![false, true], ..Forms::default() };
        let row = |text: &str| shown(&forms.row(text.as_bytes()));
        let tokyo = "1970-01-01 09:00:00+09";
        assert_eq!(row(&format!("{tokyo}\t{tokyo}\t{tokyo}\n")), format!("{tokyo}\t@0\t{tokyo}\n"));
        assert_eq!(row("a\t\\N\n"), "a\t\\N\n");
    }

    #[test]
    fn definitions() {
        let same = |desc: &str, a: &str, b: &str| {
            let entry = |defn| Entry { desc: desc.as_bytes(), defn, ..Entry::default() };
            same_definition(&entry(a.as_bytes()), &entry(b.as_bytes()))
        };
        let (utc, tokyo) = ("('1970-01-01 00:00:00+00')", "('1970-01-01 09:00:00+09')");
        assert!(same("TABLE", utc, tokyo) && !same("COMMENT", utc, tokyo));
        assert!(!same("TABLE", utc, "('1970-01-01 00:00:00+09')"));
        let function = |default, body| format!("f(a text {default})\n    AS $${body}$$;");
        assert!(same("FUNCTION", &function(utc, utc), &function(tokyo, utc)));
        assert!(!same("FUNCTION", &function(utc, utc), &function(utc, tokyo)));
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
