//! PostgreSQL's form of a jsonb, made from the text that its output function writes of it: in one pass over the text and one over what
//! was found, without the parser's calls for each value. Layout: src/include/utils/jsonb.h, src/backend/utils/adt/jsonb_util.c
//! (`convertToJsonb`).
//!
//! The text has to be as that function writes it: one space behind each colon and comma, keys in order (shorter ones first, then by
//! bytes), none twice, numbers without an exponent. Whatever is otherwise, or uncommon, is left to PostgreSQL: `None`.

use super::datum::form_numeric;
use std::cmp::Ordering;

/// Bytes of a text up to which its form is made here. So no length or offset comes near the 28 bits that there are for it: of three
/// bytes, "1, ", come twelve.
const MOST_BYTES: usize = 16 << 20;
/// Arrays and objects in each other.
const MOST_LEVELS: usize = 64;
/// A number of so many digits fits into an i128 whatever they are.
const MOST_DIGITS: usize = 38;

const IS_STRING: u32 = 0;
const IS_NUMERIC: u32 = 0x1000_0000;
const IS_FALSE: u32 = 0x2000_0000;
const IS_TRUE: u32 = 0x3000_0000;
const IS_NULL: u32 = 0x4000_0000;
const IS_CONTAINER: u32 = 0x5000_0000;
const OF_TYPE: u32 = 0x7000_0000;
const HAS_OFFSET: u32 = 0x8000_0000;
/// Each so many entries one has its offset instead of its length.
const STRIDE: usize = 32;

const SCALAR: u32 = 0x1000_0000;
const OBJECT: u32 = 0x2000_0000;
const ARRAY: u32 = 0x4000_0000;

/// Fields of objects: all that somebody looks at of a document.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Fields(Vec<Box<[u8]>>);

impl Fields {
    pub fn new(mut names: Vec<Box<[u8]>>) -> Fields {
        names.sort_unstable_by(|a, b| in_order(a, b));
        names.dedup();
        Fields(names)
    }

    pub fn names(&self) -> &[Box<[u8]>] {
        &self.0
    }
}

/// The order of an object's keys.
fn in_order(a: &[u8], b: &[u8]) -> Ordering {
    (a.len(), a).cmp(&(b.len(), b))
}

/// As [`form_jsonb`], but of an object only these fields. What is asked of them by name is the same as of the whole.
pub fn form_fields(text: &[u8], fields: &Fields, out: &mut Vec<u8>) -> Option<()> {
    if text.first() != Some(&b'{') || text.len() > MOST_BYTES {
        return form_jsonb(text, out);
    }
    let mut scanner = Scanner { text, at: 0, found: Vec::with_capacity(4 * fields.0.len() + 4) };
    scanner.some_of_object(fields)?;
    form(text, &scanner.found, out);
    Some(())
}

/// Append the varlena (4-byte header) of the jsonb with this text to `out`, whose length must be a multiple of 4.
pub fn form_jsonb(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    if text.len() > MOST_BYTES {
        return None;
    }
    let mut scanner = Scanner { text, at: 0, found: Vec::with_capacity(text.len() / 8 + 2) };
    scanner.value(0)?;
    if scanner.at != text.len() {
        return None;
    }
    form(text, &scanner.found, out);
    Some(())
}

/// What was found first, and is within it.
fn form(text: &[u8], found: &[Found], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    let former = Former { text, found };
    if matches!(found[0].kind, Kind::Array | Kind::Object) {
        former.container(0, out);
    } else {
        word(SCALAR | ARRAY | 1, out);
        let place = reserve(1, out);
        let entry = former.value(0, out);
        let mut lengths = Lengths { place, number: 0, sum: 0 };
        lengths.push(entry, out);
    }
    let size = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&(size << 2).to_le_bytes());
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Null,
    False,
    True,
    Number {
        scale: u8,
    },
    /// Between the quotes.
    String {
        escaped: bool,
    },
    Array,
    Object,
}

/// A value, or a key, and where it stands. What is within a container follows it.
#[derive(Clone, Copy, Debug)]
struct Found {
    kind: Kind,
    start: u32,
    end: u32,
    /// Of a container: how many elements, or pairs, and the place behind all that is within.
    count: u32,
    next: u32,
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    found: Vec<Found>,
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn expect(&mut self, expected: &[u8]) -> Option<()> {
        let end = self.at + expected.len();
        (self.text.get(self.at..end)? == expected).then(|| self.at = end)
    }

    fn push(&mut self, kind: Kind, start: usize, end: usize) {
        let (start, end) = (start as u32, end as u32);
        let next = self.found.len() as u32 + 1;
        self.found.push(Found { kind, start, end, count: 0, next });
    }

    fn word(&mut self, expected: &[u8], kind: Kind) -> Option<()> {
        self.expect(expected)?;
        self.push(kind, 0, 0);
        Some(())
    }

    fn value(&mut self, level: usize) -> Option<()> {
        match self.peek()? {
            b'"' => self.string().map(drop),
            b'{' if level < MOST_LEVELS => self.object(level),
            b'[' if level < MOST_LEVELS => self.array(level),
            b'n' => self.word(b"null", Kind::Null),
            b't' => self.word(b"true", Kind::True),
            b'f' => self.word(b"false", Kind::False),
            b'-' | b'0'..=b'9' => self.number(),
            _ => None,
        }
    }

    /// The place among what is found.
    fn string(&mut self) -> Option<usize> {
        self.expect(b"\"")?;
        let start = self.at;
        let mut escaped = false;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => {
                    escaped = true;
                    self.at += 2;
                }
                // Control characters are always escaped.
                0..0x20 => return None,
                _ => self.at += 1,
            }
        }
        if escaped && !escapes_are_known(&self.text[start..self.at]) {
            return None;
        }
        self.push(Kind::String { escaped }, start, self.at);
        self.at += 1;
        Some(self.found.len() - 1)
    }

    fn number(&mut self) -> Option<()> {
        let start = self.at;
        self.at += usize::from(self.peek()? == b'-');
        let first = self.at;
        let (mut digits, mut point) = (0, None);
        while let Some(byte) = self.peek() {
            match byte {
                b'0'..=b'9' => digits += 1,
                b'.' if point.is_none() && digits > 0 => point = Some(digits),
                b',' | b'}' | b']' => break,
                _ => return None,
            }
            self.at += 1;
        }
        let whole = point.unwrap_or(digits);
        let leading_zero = whole > 1 && self.text[first] == b'0';
        if whole == 0 || point == Some(digits) || leading_zero || digits > MOST_DIGITS {
            return None;
        }
        self.push(Kind::Number { scale: (digits - whole) as u8 }, start, self.at);
        Some(())
    }

    /// Behind a value of a container: whether another one follows.
    fn goes_on(&mut self, close: u8) -> Option<bool> {
        match self.peek()? {
            b',' => self.expect(b", ").map(|()| true),
            byte if byte == close => {
                self.at += 1;
                Some(false)
            }
            _ => None,
        }
    }

    fn array(&mut self, level: usize) -> Option<()> {
        let own = self.found.len();
        self.push(Kind::Array, 0, 0);
        self.at += 1;
        let mut count = 0;
        if self.peek()? == b']' {
            self.at += 1;
        } else {
            loop {
                self.value(level + 1)?;
                count += 1;
                if !self.goes_on(b']')? {
                    break;
                }
            }
        }
        self.close(own, count);
        Some(())
    }

    fn object(&mut self, level: usize) -> Option<()> {
        let own = self.found.len();
        self.push(Kind::Object, 0, 0);
        self.at += 1;
        let mut count = 0;
        if self.peek()? == b'}' {
            self.at += 1;
        } else {
            let mut before: Option<Found> = None;
            loop {
                let key = self.string()?;
                let key = self.found[key];
                let plain = key.kind == (Kind::String { escaped: false });
                if !plain || before.is_some_and(|before| !self.follows(before, key)) {
                    return None;
                }
                before = Some(key);
                self.expect(b": ")?;
                self.value(level + 1)?;
                count += 1;
                if !self.goes_on(b'}')? {
                    break;
                }
            }
        }
        self.close(own, count);
        Some(())
    }

    /// An object, of which only some fields are looked for, up to the last of them.
    fn some_of_object(&mut self, fields: &Fields) -> Option<()> {
        self.push(Kind::Object, 0, 0);
        self.at += 1;
        let mut wanted = fields.0.iter();
        let mut next = wanted.next();
        let mut count = 0;
        let mut before: Option<Found> = None;
        while self.peek()? != b'}' {
            let key = self.string()?;
            let key = self.found[key];
            let name = &self.text[key.start as usize..key.end as usize];
            let plain = key.kind == (Kind::String { escaped: false });
            if !plain || before.is_some_and(|before| !self.follows(before, key)) {
                return None;
            }
            before = Some(key);
            while next.is_some_and(|next| in_order(next, name) == Ordering::Less) {
                next = wanted.next();
            }
            let Some(next) = next else {
                self.found.pop();
                break;
            };
            self.expect(b": ")?;
            if **next == *name {
                self.value(1)?;
                count += 1;
            } else {
                self.found.pop();
                self.skip()?;
            }
            if !self.goes_on(b'}')? {
                break;
            }
        }
        self.close(0, count);
        Some(())
    }

    /// Over a value, of which no more is looked at than where it ends.
    fn skip(&mut self) -> Option<()> {
        let mut level = 0_usize;
        loop {
            match self.peek()? {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    level += 1;
                    self.at += 1;
                    continue;
                }
                b'}' | b']' if level > 0 => {
                    level -= 1;
                    self.at += 1;
                }
                b',' | b'}' if level == 0 => return Some(()),
                _ => self.at += 1,
            }
        }
    }

    fn skip_string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(())
    }

    fn close(&mut self, own: usize, count: u32) {
        let next = self.found.len() as u32;
        self.found[own].count = count;
        self.found[own].next = next;
    }

    fn follows(&self, before: Found, key: Found) -> bool {
        let [a, b] = [before, key].map(|k| &self.text[k.start as usize..k.end as usize]);
        in_order(a, b) == Ordering::Less
    }
}

/// Whether a string has only the escapes that the output function writes.
fn escapes_are_known(string: &[u8]) -> bool {
    let mut at = 0;
    while let Some(byte) = string.get(at) {
        at += match (byte, string.get(at + 1)) {
            (b'\\', Some(b'"' | b'\\' | b'b' | b'f' | b'n' | b'r' | b't')) => 2,
            (b'\\', Some(b'u')) if of_control(&string[at..]).is_some() => 6,
            (b'\\', _) => return false,
            _ => 1,
        };
    }
    true
}

/// The control character that a string begins with, written as `\u001f`.
fn of_control(string: &[u8]) -> Option<u8> {
    let hex = string.strip_prefix(b"\\u00")?.get(..2)?;
    let digit = |byte: u8| (byte as char).to_digit(16).map(|d| d as u8);
    let byte = 16 * digit(hex[0])? + digit(hex[1])?;
    (1..0x20).contains(&byte).then_some(byte)
}

/// A string whose escapes are known, without them.
fn unescape(string: &[u8], out: &mut Vec<u8>) {
    let mut rest = string;
    while let Some(at) = rest.iter().position(|b| *b == b'\\') {
        out.extend_from_slice(&rest[..at]);
        let escape = &rest[at..];
        let (byte, size) = match escape.get(1) {
            Some(b'b') => (0x08, 2),
            Some(b'f') => (0x0c, 2),
            Some(b'n') => (b'\n', 2),
            Some(b'r') => (b'\r', 2),
            Some(b't') => (b'\t', 2),
            Some(b'u') => (of_control(escape).unwrap_or(b'?'), 6),
            Some(other) => (*other, 2),
            None => (b'\\', 1),
        };
        out.push(byte);
        rest = escape.get(size..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
}

/// The digits of a number, as if it had no point.
fn number(text: &[u8]) -> i128 {
    let digits = text.iter().filter(|b| b.is_ascii_digit()).map(|b| b - b'0');
    let size = match text.len() {
        // Of u64, whatever the digits.
        ..20 => i128::from(digits.fold(0, |value, digit| value * 10 + u64::from(digit))),
        _ => digits.fold(0, |value, digit| value * 10 + i128::from(digit)),
    };
    if text.first() == Some(&b'-') {
        -size
    } else {
        size
    }
}

fn word(word: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&word.to_le_bytes());
}

fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

/// Room for so many entries; where they begin.
fn reserve(entries: usize, out: &mut Vec<u8>) -> usize {
    let place = out.len();
    out.resize(place + 4 * entries, 0);
    place
}

/// The entries of a container, as they come.
struct Lengths {
    place: usize,
    number: usize,
    sum: u32,
}

impl Lengths {
    fn push(&mut self, entry: u32, out: &mut [u8]) {
        self.sum += entry & !OF_TYPE;
        let entry = match self.number % STRIDE {
            0 => (entry & OF_TYPE) | self.sum | HAS_OFFSET,
            _ => entry,
        };
        let at = self.place + 4 * self.number;
        out[at..at + 4].copy_from_slice(&entry.to_le_bytes());
        self.number += 1;
    }
}

struct Former<'a> {
    text: &'a [u8],
    found: &'a [Found],
}

impl Former<'_> {
    fn of(&self, found: &Found) -> &[u8] {
        &self.text[found.start as usize..found.end as usize]
    }

    /// Append a value. Its entry: type and length, padding before it included.
    fn value(&self, place: usize, out: &mut Vec<u8>) -> u32 {
        let found = &self.found[place];
        let start = out.len();
        let length = |out: &Vec<u8>| (out.len() - start) as u32;
        match found.kind {
            Kind::Null => IS_NULL,
            Kind::False => IS_FALSE,
            Kind::True => IS_TRUE,
            Kind::Number { scale } => {
                pad(out);
                form_numeric(number(self.of(found)), scale, out);
                IS_NUMERIC | length(out)
            }
            Kind::String { escaped } => {
                match escaped {
                    true => unescape(self.of(found), out),
                    false => out.extend_from_slice(self.of(found)),
                }
                IS_STRING | length(out)
            }
            Kind::Array | Kind::Object => {
                self.container(place, out);
                IS_CONTAINER | length(out)
            }
        }
    }

    fn container(&self, place: usize, out: &mut Vec<u8>) {
        let found = &self.found[place];
        let count = found.count as usize;
        pad(out);
        let is_object = found.kind == Kind::Object;
        word(found.count | if is_object { OBJECT } else { ARRAY }, out);
        let entries = reserve(if is_object { 2 * count } else { count }, out);
        let mut lengths = Lengths { place: entries, number: 0, sum: 0 };
        if is_object {
            let mut key = place + 1;
            for _ in 0..count {
                let entry = self.value(key, out);
                lengths.push(entry, out);
                key = self.found[key + 1].next as usize;
            }
        }
        let mut own = place + 1;
        for _ in 0..count {
            own += usize::from(is_object);
            let entry = self.value(own, out);
            lengths.push(entry, out);
            own = self.found[own].next as usize;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{form_fields, form_jsonb, Fields};

    fn form(text: &str) -> Option<Vec<u8>> {
        let mut out = vec![7; 4];
        form_jsonb(text.as_bytes(), &mut out).map(|()| out[4..].to_vec())
    }

    fn words(form: &[u8]) -> Vec<u32> {
        form.chunks(4).map(|w| w.iter().rev().fold(0, |sum, b| sum << 8 | u32::from(*b))).collect()
    }

    #[test]
    fn forms() {
        assert_eq!(words(&form("{}").unwrap()), [8 << 2, 0x2000_0000]);
        assert_eq!(words(&form("[]").unwrap()), [8 << 2, 0x4000_0000]);
        assert_eq!(words(&form("null").unwrap()), [12 << 2, 0x5000_0001, 0xC000_0000]);
        // A key of one byte, then three of padding, and the number 5: its own header, its short one, a digit.
        let form = form(r#"{"a": 5}"#).unwrap();
        let number = 0x8000 | 5 << 16;
        let expected = [28 << 2, 0x2000_0001, 0x8000_0001, 0x1000_000B, 0x61, 8 << 2, number];
        assert_eq!(words(&form), expected);
    }

    #[test]
    fn some_fields() {
        let text = r#"{"a": 1, "b": "x\"}]", "cc": {"a": [2, "}"], "b": {}}, "dd": [1, [2]], "eee": null}"#;
        let all = ["a", "b", "cc", "dd", "eee"];
        let value = ["1", r#""x\"}]""#, r#"{"a": [2, "}"], "b": {}}"#, "[1, [2]]", "null"];
        for chosen in 0_usize..32 {
            let some = || (0..5).filter(|n| chosen >> n & 1 == 1);
            let fields = some().map(|n| Box::from(all[n].as_bytes()));
            let others = ["", "aa", "b ", "zzzz"].map(|name| Box::from(name.as_bytes()));
            let fields = Fields::new(fields.chain(others).collect());
            let mut out = Vec::new();
            form_fields(text.as_bytes(), &fields, &mut out).unwrap();
            let same: Vec<String> =
                some().map(|n| format!("\"{}\": {}", all[n], value[n])).collect();
            assert_eq!(out, form(&format!("{{{}}}", same.join(", "))).unwrap(), "{chosen}");
        }
        let fields = Fields::new(vec![Box::from(&b"a"[..])]);
        for text in ["[1, 2]", "\"a\"", "{}"] {
            let mut out = Vec::new();
            form_fields(text.as_bytes(), &fields, &mut out).unwrap();
            assert_eq!(out, form(text).unwrap());
        }
        let fields = Fields::new(vec![Box::from(&b"a"[..]), Box::from(&b"zz"[..])]);
        for text in [
            "{\"b\": 1, \"a\": 2}",
            "{\"\\n\": 1, \"a\": 1}",
            "{\"",
            "{\"A\": [}",
            "{\"A\": {",
            "{\"A\": \"\\",
            "{",
        ] {
            assert_eq!(form_fields(text.as_bytes(), &fields, &mut Vec::new()), None, "{text}");
        }
    }

    #[test]
    fn escapes() {
        let form = form(r#"["\"\\\b\f\n\r\t\u0001\u001f/ä"]"#).unwrap();
        assert_eq!(&form[12..], "\"\\\u{8}\u{c}\n\r\t\u{1}\u{1f}/ä".as_bytes());
    }

    #[test]
    fn not_as_postgresql_writes_it() {
        let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
        let texts = [
            "",
            " ",
            "nul",
            "nulll",
            "[1,2]",
            "[1, 2",
            "[1, 2]]",
            "[1, ]",
            "[, 1]",
            "{\"a\":1}",
            "{\"a\": 1,\"b\": 2}",
            "{\"b\": 1, \"a\": 2}",
            "{\"a\": 1, \"a\": 2}",
            "{\"aa\": 1, \"b\": 2}",
            "{\"a\\n\": 1}",
            "{\"a\"",
            "{\"a\": ",
            "{a: 1}",
            "[\"a]",
            "[\"\\",
            "[\"\\\"]",
            "[\"\\/\"]",
            "[\"\\u0000\"]",
            "[\"\\u00e4\"]",
            "[\"\\u00\"]",
            "[\"\n\"]",
            "[-]",
            "[01]",
            "[1.]",
            "[.5]",
            "[1e5]",
            "[1.2.3]",
            "[--1]",
            "[+1]",
            "[1 ]",
            "{\"a\": 1}x",
            "{\"\\",
            "-",
            "[-01]",
            "[123456789012345678901234567890123456789]",
            "{1: 2}",
            "{]",
            "[}",
            "[\u{1}]",
            &deep,
        ];
        for text in texts {
            assert_eq!(form(text), None, "{text}");
        }
        assert!(form(&deep[1..deep.len() - 1]).is_some());
        assert!(form("[12345678901234567890123456789012345678]").is_some());
    }

    #[test]
    fn whatever_the_bytes() {
        let whole =
            r#"{"a": [1, -2.50, {"bb": "c\n\u0001"}], "b": {"x": null, "y": true, "zz": false}}"#;
        let fields = Fields::new(vec![Box::from(&b"a"[..]), Box::from(&b"zz"[..])]);
        let mut random = 88_172_645_463_325_252_u64;
        for _ in 0..20_000 {
            let mut text = whole.as_bytes().to_vec();
            for _ in 0..3 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let at = random as usize / 1_000 % text.len().max(1);
                match random % 4 {
                    _ if text.is_empty() => (),
                    0 => drop(text.remove(at)),
                    1 => text[at] = whole.as_bytes()[random as usize / 4 % whole.len()],
                    2 => text[at] = (random >> 40) as u8,
                    _ => text.truncate(at),
                }
            }
            form_jsonb(&text, &mut Vec::new());
            form_fields(&text, &fields, &mut Vec::new());
        }
    }
}
