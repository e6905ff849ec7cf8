//! Lists of large objects, as archives from version 17 on have them.

/// The oids in the text of a list of large objects, one a line.
pub fn large_objects(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let oid = |line: &&[u8]| !line.is_empty() && line.iter().all(u8::is_ascii_digit);
    text.split(|b| *b == b'\n').map(<[u8]>::trim_ascii).filter(oid)
}

/// `GRANT … ON LARGE OBJECT 1 TO …`, in two parts around the oid.
pub struct LargeObjectStatement<'a> {
    pub before: &'a [u8],
    pub after: &'a [u8],
    /// It names one; else all of it is `before`.
    pub of_object: bool,
}

impl<'a> LargeObjectStatement<'a> {
    /// The next of several statements. Names in quotes are passed over.
    pub fn take(text: &mut &'a [u8]) -> Option<Self> {
        const OBJECT: &[u8] = b"LARGE OBJECT ";
        let all = *text;
        let (mut quotes, mut before, mut after, mut at) = (false, None, 0, 0);
        while at < all.len() {
            quotes ^= all[at] == b'"';
            if !quotes && all[at] == b';' {
                *text = all[at + 1..].trim_ascii_start();
                return Some(LargeObjectStatement {
                    before: &all[..before.unwrap_or(at)],
                    after: before.map_or(b"", |_| &all[after..at]),
                    of_object: before.is_some(),
                });
            }
            if !quotes && before.is_none() && all[at..].starts_with(OBJECT) {
                let end = at + OBJECT.len();
                before = Some(end);
                after = end + all[end..].iter().take_while(|b| b.is_ascii_digit()).count();
                at = after;
            } else {
                at += 1;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_around_the_oid() {
        let text = b"REVOKE ALL ON LARGE OBJECT 12 FROM \"LARGE OBJECT 1;\";\n  SET SESSION AUTHORIZATION \"LARGE OBJECT 12\";\nGRANT SELECT ON LARGE OBJECT 12 TO b;\n";
        let mut rest = &text[..];
        let mut found = Vec::new();
        while let Some(s) = LargeObjectStatement::take(&mut rest) {
            found.push((s.before, s.after, s.of_object));
        }
        assert_eq!(
            found,
            [
                (&b"REVOKE ALL ON LARGE OBJECT "[..], &b" FROM \"LARGE OBJECT 1;\""[..], true),
                (b"SET SESSION AUTHORIZATION \"LARGE OBJECT 12\"", b"", false),
                (b"GRANT SELECT ON LARGE OBJECT ", b" TO b", true),
            ]
        );
        assert_eq!(rest, b"");
    }
}
