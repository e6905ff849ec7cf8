//! The fence around libpq: connections, statements, COPY and cancel requests with safe types.
//!
//! libpq and not a protocol library of our own choice: connection strings, environment variables, service and
//! password files, TLS, GSSAPI and multiple hosts then mean just what they mean to `psql` and `pg_restore`.
//! Statements are bytes, for they are in the archive's encoding. `unsafe` lives here and nowhere else.

mod connection;
mod conninfo;
mod login;
mod result;

pub use connection::{Canceller, Connection, For, Ping};
pub use conninfo::{is_conninfo, Address};
pub use login::Login;
pub use result::{Failure, Rows};

/// An identifier quoted for SQL, always with quotes.
pub fn quote_ident(name: &[u8]) -> Vec<u8> {
    quoted(name, b'"')
}

/// A string constant for SQL that means the same whatever `standard_conforming_strings` is: as in libpq's
/// `PQescapeLiteral` one with backslashes is an escape string. In the encodings of clients alone (SJIS and the like) a
/// byte of a character may be a backslash; such text is left as it is.
pub fn quote_literal(value: &[u8]) -> Vec<u8> {
    if !value.contains(&b'\\') || std::str::from_utf8(value).is_err() {
        return quoted(value, b'\'');
    }
    let mut doubled = Vec::with_capacity(value.len() + 8);
    for &byte in value {
        if byte == b'\\' {
            doubled.push(byte);
        }
        doubled.push(byte);
    }
    [b" E", &quoted(&doubled, b'\'')[..]].concat()
}

fn quoted(text: &[u8], quote: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    out.push(quote);
    for &byte in text {
        if byte == quote {
            out.push(quote);
        }
        out.push(byte);
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_doubled() {
        assert_eq!(quote_ident(br#"a"b"#), br#""a""b""#);
        assert_eq!(quote_literal(b"it's"), b"'it''s'");
        assert_eq!(quote_literal(br"a\'b"), br" E'a\\''b'");
        assert_eq!(quote_literal(b"\x83\x5c"), b"'\x83\x5c'");
    }
}
