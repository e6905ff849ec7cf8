//! Statements as `pg_dump` writes them, in tokens.

use crate::plan::text::unquoted;
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Name,
    /// `'…'`.
    Text,
    /// `E'…'`, `$…$…$…$` and the like.
    Opaque,
    Symbol,
}

#[derive(Clone, Debug)]
pub struct Token {
    pub kind: Kind,
    pub at: Range<usize>,
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

/// A statement in tokens. Beyond its ends nothing is found.
pub struct Statement<'a> {
    pub text: &'a [u8],
    pub tokens: Vec<Token>,
}

impl<'a> Statement<'a> {
    /// `None` if it is not as `pg_dump` writes them.
    pub fn of(text: &'a [u8]) -> Option<Statement<'a>> {
        Some(Statement { text, tokens: tokens(text)? })
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// The token's text.
    pub fn at(&self, n: Option<usize>) -> &'a [u8] {
        n.and_then(|n| self.tokens.get(n)).map_or(b"", |t| &self.text[t.at.clone()])
    }

    pub fn symbol(&self, n: Option<usize>, what: &[u8]) -> bool {
        n.and_then(|n| self.tokens.get(n)).is_some_and(|t| t.kind == Kind::Symbol)
            && self.at(n) == what
    }

    /// One of these keywords, or names that need no quotes.
    pub fn word(&self, n: Option<usize>, what: &[&[u8]]) -> bool {
        n.and_then(|n| self.tokens.get(n)).is_some_and(|t| t.kind == Kind::Name)
            && what.contains(&self.at(n))
    }

    /// A name as `pg_dump` writes it, or in quotes: a word with capitals and no quotes is a keyword.
    pub fn name(&self, n: Option<usize>) -> Option<Vec<u8>> {
        let word = self.at(n);
        let is_name = self.tokens.get(n?)?.kind == Kind::Name;
        (is_name && (word[0] == b'"' || !word.iter().any(u8::is_ascii_uppercase)))
            .then(|| unquoted(word))
    }

    /// Where the parenthesis that ends here begins.
    pub fn opening(&self, end: usize) -> Option<usize> {
        let mut depth = 0;
        for n in (0..=end).rev() {
            if self.symbol(Some(n), b")") {
                depth += 1;
            } else if self.symbol(Some(n), b"(") {
                depth -= 1;
                if depth == 0 {
                    return Some(n);
                }
            }
        }
        None
    }
}
