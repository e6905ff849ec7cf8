//! What is told and written holds no passwords.
//!
//! Statements of an archive may have them: user mappings have options, subscriptions connection strings, functions both.
//! Where a statement or an error enters a report, secrets in it are replaced, so that no log, no page and no line on
//! the terminal can show them. In doubt more is replaced than need be.

use crate::error::Error;
use std::ops::Range;

/// What stands in a secret's place.
const MASK: &str = "********";

/// Words behind which a secret stands, as an option of a foreign server or in a connection string.
const TELLING: [&str; 9] = [
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "credential",
    "api_key",
    "private_key",
];

/// A statement without secrets.
#[derive(Debug, PartialEq, Eq)]
pub struct Masked {
    pub text: String,
    /// The place that the server points at, in the new text. Characters count from 1.
    pub position: Option<usize>,
    /// What was replaced.
    secrets: Vec<String>,
}

/// Masks a statement.
pub fn statement(text: &str, position: Option<usize>) -> Masked {
    // A backslash before a quote means one thing or the other, as standard_conforming_strings says: both are tried.
    let mut spans = literals(text, false);
    spans.extend(literals(text, true));
    spans.extend(connection_strings(text));
    spans.retain(|span| !span.is_empty());
    spans.sort_by_key(|span| span.start);
    let mut merged: Vec<Range<usize>> = Vec::new();
    for span in spans {
        match merged.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => merged.push(span),
        }
    }
    let mut out = String::with_capacity(text.len());
    let mut secrets = Vec::new();
    // In bytes of the text; what lies behind its end stays there.
    let pointed = position.and_then(|p| {
        let at = text.char_indices().nth(p.checked_sub(1)?);
        Some(at.map_or(text.len(), |(byte, _)| byte))
    });
    let mut new_position = None;
    let mut at = 0;
    for span in merged {
        if let Some(pointed) = pointed.filter(|p| (at..span.end).contains(p)) {
            let before = &text[at..pointed.min(span.start)];
            new_position = Some(out.chars().count() + before.chars().count() + 1);
        }
        out.push_str(&text[at..span.start]);
        out.push_str(MASK);
        secrets.push(text[span.clone()].to_string());
        at = span.end;
    }
    if let Some(pointed) = pointed.filter(|p| *p >= at && new_position.is_none()) {
        new_position = Some(out.chars().count() + text[at..pointed].chars().count() + 1);
    }
    out.push_str(&text[at..]);
    Masked { text: out, position: new_position, secrets }
}

/// Masks a line that is told.
pub fn line(text: &str) -> String {
    statement(text, None).text
}

/// Masks an error.
pub fn error(error: &Error) -> Error {
    hide(error, &[])
}

/// Masks a statement that failed and the error about it, which may repeat parts of it.
pub fn failure(sql: &str, found: &Error) -> (String, Error) {
    let masked = statement(sql, found.position);
    let mut words: Vec<&str> = Vec::new();
    for secret in &masked.secrets {
        words.push(secret);
        // The server complains of single words of a connection string.
        words.extend(secret.split(|c: char| c.is_whitespace() || "='\"&?/@:".contains(c)));
    }
    words.retain(|word| word.len() >= 3);
    words.sort_by_key(|word| std::cmp::Reverse(word.len()));
    let error = Error { position: masked.position, ..hide(found, &words) };
    (masked.text, error)
}

fn hide(found: &Error, words: &[&str]) -> Error {
    let hide = |text: &str| {
        let text = words.iter().fold(text.to_string(), |text, word| text.replace(word, MASK));
        line(&text)
    };
    let perhaps = |text: &Option<String>| text.as_deref().map(hide);
    Error {
        message: hide(&found.message),
        detail: perhaps(&found.detail),
        hint: perhaps(&found.hint),
        context: perhaps(&found.context),
        ..found.clone()
    }
}

/// What a statement is about, as far as it matters.
#[derive(Default)]
struct Sense {
    /// Words since the statement began.
    words: usize,
    last: String,
    user_mapping: bool,
    subscription: bool,
}

impl Sense {
    fn word(&mut self, word: &str) {
        let word = word.to_lowercase();
        self.user_mapping |= word == "mapping" && self.last == "user";
        // CREATE SUBSCRIPTION, ALTER SUBSCRIPTION
        self.subscription |= word == "subscription" && self.words <= 2;
        self.words += 1;
        self.last = word;
    }

    /// The next string is a secret.
    fn secret(&self) -> bool {
        self.user_mapping
            || self.subscription && self.last == "connection"
            || TELLING.iter().any(|telling| self.last.contains(telling))
    }
}

/// The insides of strings that are secrets by what stands before them. `escapes`: a backslash quotes the next character.
fn literals(text: &str, escapes: bool) -> Vec<Range<usize>> {
    let bytes = text.as_bytes();
    let mut spans = Vec::new();
    let mut sense = Sense::default();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\'' => {
                let escaped = escapes || at > 0 && matches!(bytes[at - 1], b'e' | b'E');
                let end = end_of_quoted(bytes, at, escaped);
                if sense.secret() {
                    spans.push(at + 1..end);
                }
                sense.last.clear();
                at = end + 1;
            }
            b'"' => {
                let end = end_of_quoted(bytes, at, false);
                sense.word(&text[at + 1..end]);
                at = end + 1;
            }
            b'-' if bytes[at..].starts_with(b"--") => at = after(bytes, at, b"\n"),
            b'/' if bytes[at..].starts_with(b"/*") => at = after(bytes, at, b"*/"),
            b'$' => {
                let tag = bytes[at + 1..].iter().take_while(|c| is_word(**c)).count();
                let end = at + 1 + tag;
                if bytes.get(end) == Some(&b'$') {
                    // What a function does may hold statements of these kinds.
                    let mark = &bytes[at..=end];
                    let begin = end + 1;
                    let close = find(&bytes[begin..], mark).map_or(bytes.len(), |n| begin + n);
                    let inner = literals(&text[begin..close], escapes);
                    spans.extend(inner.into_iter().map(|s| s.start + begin..s.end + begin));
                    at = (close + mark.len()).min(bytes.len());
                } else {
                    at += 1;
                }
            }
            b';' => {
                sense = Sense::default();
                at += 1;
            }
            c if is_word(c) => {
                let length = bytes[at..].iter().take_while(|c| is_word(**c)).count();
                let next = bytes.get(at + length);
                // The E of E'…' and its like are no words.
                if !(length == 1 && next == Some(&b'\'')) {
                    sense.word(&text[at..at + length]);
                }
                at += length;
            }
            _ => at += 1,
        }
    }
    spans
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_' || c >= 0x80
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|w| w == what)
}

fn after(bytes: &[u8], at: usize, what: &[u8]) -> usize {
    find(&bytes[at..], what).map_or(bytes.len(), |n| at + n + what.len())
}

/// Where the quote is that ends what begins with one at `at`; the text's end if there is none.
fn end_of_quoted(bytes: &[u8], at: usize, escapes: bool) -> usize {
    let quote = bytes[at];
    let mut at = at + 1;
    while at < bytes.len() {
        if bytes[at] == b'\\' && escapes {
            at += 2;
        } else if bytes[at] != quote {
            at += 1;
        } else if bytes.get(at + 1) == Some(&quote) {
            at += 2;
        } else {
            return at;
        }
    }
    bytes.len()
}

/// Values behind `password=` and the like, and what stands between colon and @ in a URL.
fn connection_strings(text: &str) -> Vec<Range<usize>> {
    let lower = text.to_ascii_lowercase();
    let bytes = lower.as_bytes();
    let mut spans = Vec::new();
    for word in TELLING {
        for (found, _) in lower.match_indices(word) {
            let rest = &lower[found + word.len()..];
            let Some(value) = rest.trim_start().strip_prefix('=').map(str::trim_start) else {
                continue;
            };
            let begin = lower.len() - value.len();
            // In quotes, which are doubled within a string of SQL.
            let quotes = value.bytes().take_while(|c| *c == b'\'').count();
            let end = match quotes {
                0 => value.find(|c: char| c.is_whitespace() || "'\"&;)".contains(c)),
                n => value[n..].find('\'').map(|end| n + end),
            };
            spans.push(begin + quotes..begin + end.unwrap_or(value.len()));
        }
    }
    // A key of age, wherever it stands. What all of them begin with is none.
    const BEGIN: &str = "age-secret-key-1";
    for (found, _) in lower.match_indices("age-secret-key-") {
        let ends = |c: char| !c.is_ascii_alphanumeric() && c != '-';
        let length = lower[found..].find(ends).unwrap_or(lower.len() - found);
        if lower[found..found + length] != *BEGIN {
            spans.push(found..found + length);
        }
    }
    for (found, _) in lower.match_indices("://") {
        let begin = found + 3;
        let ends = |c: &u8| c.is_ascii_whitespace() || matches!(c, b'/' | b'\'' | b'"' | b'?');
        let length = bytes[begin..].iter().position(ends).unwrap_or(bytes.len() - begin);
        let host = &lower[begin..begin + length];
        if let (Some(colon), Some(mark)) = (host.find(':'), host.rfind('@')) {
            if colon < mark {
                spans.push(begin + colon + 1..begin + mark);
            }
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_age() {
        let told = line("could not open file \"AGE-SECRET-KEY-1TV8N3ERHV\": no such file");
        assert_eq!(told, "could not open file \"********\": no such file");
        assert_eq!(line("age-secret-key-1abc"), "********");
        let hint = "lines that begin with \"AGE-SECRET-KEY-1\"";
        assert_eq!(line(hint), hint);
    }
    use crate::error::ErrorKind;

    #[track_caller]
    fn check(sql: &str, expected: &str) {
        assert_eq!(line(sql), expected.replace('#', MASK), "{sql}");
    }

    #[test]
    fn user_mappings() {
        check(
            "CREATE USER MAPPING FOR \"o'x\" SERVER s OPTIONS (\n    password 'it''s',\n    \"user\" 'me'\n);\nSELECT 'x';",
            "CREATE USER MAPPING FOR \"o'x\" SERVER s OPTIONS (\n    password '#',\n    \"user\" '#'\n);\nSELECT 'x';",
        );
        check(
            "alter user  mapping for u server s options (set a 'b')",
            "alter user  mapping for u server s options (set a '#')",
        );
        // Cut off.
        check(
            "CREATE USER MAPPING FOR u SERVER s OPTIONS (password 'abc",
            "CREATE USER MAPPING FOR u SERVER s OPTIONS (password '#",
        );
        // Whatever the backslash means.
        check(
            "CREATE USER MAPPING FOR u SERVER s OPTIONS (p 'a\\', q 'b')",
            "CREATE USER MAPPING FOR u SERVER s OPTIONS (p '#'#'#",
        );
        check(
            "CREATE SERVER s OPTIONS (host 'h', sslpassword 'p')",
            "CREATE SERVER s OPTIONS (host 'h', sslpassword '#')",
        );
    }

    #[test]
    fn subscriptions_and_roles() {
        check(
            "CREATE SUBSCRIPTION s CONNECTION E'host=h user=u' PUBLICATION p WITH (slot_name = 's')",
            "CREATE SUBSCRIPTION s CONNECTION E'#' PUBLICATION p WITH (slot_name = 's')",
        );
        check(
            "ALTER ROLE u WITH LOGIN PASSWORD 'x' VALID UNTIL 'infinity'",
            "ALTER ROLE u WITH LOGIN PASSWORD '#' VALID UNTIL 'infinity'",
        );
        check(
            "COMMENT ON SUBSCRIPTION s IS 'my connection'",
            "COMMENT ON SUBSCRIPTION s IS 'my connection'",
        );
    }

    #[test]
    fn connection_strings_anywhere() {
        check(
            "SELECT dblink('host=h password=geheim port=1')",
            "SELECT dblink('host=h password=# port=1')",
        );
        check("dblink('password = ''a b'' x=1')", "dblink('password = ''#'' x=1')");
        check(
            "could not connect to postgresql://u:p@h:5432/d?sslpassword=q&x=1",
            "could not connect to postgresql://u:#@h:5432/d?sslpassword=#&x=1",
        );
        check("s3://bucket/key and http://h:80/x@y", "s3://bucket/key and http://h:80/x@y");
        check(
            "CREATE FUNCTION f() AS $x$ ALTER USER u PASSWORD 'y' $x$",
            "CREATE FUNCTION f() AS $x$ ALTER USER u PASSWORD '#' $x$",
        );
        check(
            "CREATE TABLE t (password text DEFAULT 'x')",
            "CREATE TABLE t (password text DEFAULT 'x')",
        );
    }

    #[test]
    fn the_place_moves_with_the_text() {
        let sql = "ALTER ROLE ü PASSWORD 'long secret' NONSENSE";
        let place = sql.chars().position(|c| c == 'N').map(|_| sql.chars().count() - 7);
        let masked = statement(sql, place);
        let found: String = masked.text.chars().skip(masked.position.unwrap() - 1).collect();
        assert_eq!(found, "NONSENSE");
        assert_eq!(statement(sql, Some(26)).position, Some(24));
        assert_eq!(statement("SELECT 1", Some(8)).position, Some(8));
        assert_eq!(statement("", Some(1)).position, Some(1));
    }

    #[test]
    fn errors_do_not_repeat_them() {
        let sql = "CREATE SUBSCRIPTION s CONNECTION 'geheim dbname=x' PUBLICATION p";
        let mut e = Error::new(
            ErrorKind::Statement,
            "missing \"=\" after \"geheim\" in connection info string",
        );
        e.context = Some(format!("SQL statement \"{sql}\""));
        let (text, e) = failure(sql, &e);
        assert!(!format!("{text} {e}").contains("geheim"), "{text} {e}");
        assert!(e.message.starts_with("missing \"=\" after \"****"));
    }
}
