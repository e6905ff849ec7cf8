//! Files of `--filter`: a line for each thing that is restored or left out. The grammar is that of `pg_restore` 17 and later
//! (`filter.c` in its sources).

use crate::error::{Error, Result};
use crate::plan::select::Filter;
use std::io::Read;

/// Kinds of objects that the grammar knows, as it spells them and as messages name them.
const KINDS: [(&str, &str); 11] = [
    ("table_data", "table data"),
    ("table_data_and_children", "table data and children"),
    ("database", "database"),
    ("extension", "extension"),
    ("foreign_data", "foreign data"),
    ("function", "function"),
    ("index", "index"),
    ("schema", "schema"),
    ("table", "table"),
    ("table_and_children", "table and children"),
    ("trigger", "trigger"),
];

/// Reads a file, or standard input if its name is `-`, and adds what it names to a filter.
pub fn read(file: &str, filter: &mut Filter) -> Result<()> {
    let failed =
        |e: &std::io::Error| Error::io(format!("could not open filter file \"{file}\""), e);
    let mut text = Vec::new();
    let place = if file == "-" {
        std::io::stdin().read_to_end(&mut text).map_err(|e| failed(&e))?;
        "standard input".to_string()
    } else {
        text = std::fs::read(file).map_err(|e| failed(&e))?;
        format!("file \"{file}\"")
    };
    let lines: Vec<&[u8]> = text.split_inclusive(|b| *b == b'\n').collect();
    parse(&lines, filter).map_err(|(line, why)| {
        Error::usage(format!("invalid format in filter read from {place} on line {line}: {why}"))
    })
}

/// What is wrong, and in which line, counted from 1.
type Wrong = (usize, String);

fn parse(lines: &[&[u8]], filter: &mut Filter) -> Result<(), Wrong> {
    let mut reader = Reader { lines, number: 0, rest: &[] };
    while reader.next_line() {
        reader.skip_space();
        if matches!(reader.rest.first(), None | Some(b'#')) {
            continue;
        }
        let command = reader.keyword();
        let include = match &command.to_ascii_lowercase()[..] {
            b"include" => true,
            b"exclude" => false,
            _ => {
                return Err(
                    reader.wrong("invalid filter command (expected \"include\" or \"exclude\")")
                )
            }
        };
        let kind = reader.keyword();
        if kind.is_empty() {
            return Err(reader.wrong("missing filter object type"));
        }
        let kind = String::from_utf8_lossy(kind);
        let known = KINDS.into_iter().find(|(name, _)| kind.eq_ignore_ascii_case(name));
        let Some((kind, shown)) = known else {
            return Err(reader.wrong(&format!("unsupported filter object type: \"{kind}\"")));
        };
        let name = reader.name()?;
        let names = match (include, kind) {
            (true, "function") => &mut filter.functions,
            (true, "index") => &mut filter.indexes,
            (true, "schema") => &mut filter.schemas,
            (true, "table") => &mut filter.tables,
            (true, "trigger") => &mut filter.triggers,
            (false, "schema") => &mut filter.exclude_schemas,
            _ => {
                let command = if include { "include" } else { "exclude" };
                let why = format!("{command} filter for \"{shown}\" is not allowed");
                return Err(reader.wrong(&why));
            }
        };
        names.push(String::from_utf8_lossy(&name).into_owned());
    }
    Ok(())
}

struct Reader<'a> {
    lines: &'a [&'a [u8]],
    /// Of the current line.
    number: usize,
    rest: &'a [u8],
}

fn is_space(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c)
}

impl<'a> Reader<'a> {
    fn wrong(&self, why: &str) -> Wrong {
        (self.number, why.to_string())
    }

    fn next_line(&mut self) -> bool {
        let Some(line) = self.lines.get(self.number) else { return false };
        self.number += 1;
        self.rest = line;
        true
    }

    /// Answers whether there was any.
    fn skip_space(&mut self) -> bool {
        let length = self.rest.iter().take_while(|b| is_space(**b)).count();
        self.rest = &self.rest[length..];
        length > 0
    }

    fn keyword(&mut self) -> &'a [u8] {
        self.skip_space();
        let length = self.rest.iter().take_while(|b| !is_space(**b)).count();
        let (word, rest) = self.rest.split_at(length);
        self.rest = rest;
        word
    }

    /// The rest of the line up to a comment, in the server's spelling: no blanks but between words and behind commas.
    fn name(&mut self) -> Result<Vec<u8>, Wrong> {
        self.skip_space();
        if self.rest.is_empty() {
            return Err(self.wrong("missing object name pattern"));
        }
        let mut out = Vec::new();
        let (mut no_space, mut found_space) = (true, false);
        while self.rest.first().is_some_and(|b| *b != b'#') {
            while let Some(&b) = self.rest.first() {
                if is_space(b) || b"#,.()\"".contains(&b) {
                    break;
                }
                if !no_space && found_space {
                    out.push(b' ');
                    no_space = true;
                }
                out.push(b);
                self.rest = &self.rest[1..];
            }
            no_space = false;
            match self.rest.first() {
                Some(b'"') => {
                    if found_space {
                        out.push(b' ');
                    }
                    self.quoted(&mut out)?;
                }
                Some(b',') => {
                    out.extend_from_slice(b", ");
                    no_space = true;
                    self.rest = &self.rest[1..];
                }
                Some(&b) if b".()".contains(&b) => {
                    out.push(b);
                    no_space = true;
                    self.rest = &self.rest[1..];
                }
                _ => {}
            }
            found_space = self.skip_space();
        }
        Ok(out)
    }

    /// A text in quotes, with them; it may go over several lines.
    fn quoted(&mut self, out: &mut Vec<u8>) -> Result<(), Wrong> {
        out.push(b'"');
        self.rest = &self.rest[1..];
        loop {
            match *self.rest {
                [b'\r' | b'\n', ref rest @ ..] => self.rest = rest,
                [] => {
                    if !self.next_line() {
                        return Err(self.wrong("unexpected end of file"));
                    }
                    out.push(b'\n');
                }
                [b'"', b'"', ref rest @ ..] => {
                    out.extend_from_slice(b"\"\"");
                    self.rest = rest;
                }
                [b'"', ref rest @ ..] => {
                    out.push(b'"');
                    self.rest = rest;
                    return Ok(());
                }
                [b'\\', ref rest @ ..] => {
                    match rest.first() {
                        Some(b'n') => out.push(b'\n'),
                        Some(b'\\') => out.push(b'\\'),
                        _ => {}
                    }
                    self.rest = rest.get(1..).unwrap_or_default();
                }
                [b, ref rest @ ..] => {
                    out.push(b);
                    self.rest = rest;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Filter, Wrong> {
        let lines: Vec<&[u8]> = text.as_bytes().split_inclusive(|b| *b == b'\n').collect();
        let mut filter = Filter::default();
        parse(&lines, &mut filter).map(|()| filter)
    }

    #[test]
    fn names() {
        let text = "# comment\n\n include  table \t t  # more\ninclude function f( int ,text )\ninclude trigger a  b\n\
                    exclude schema \"x\"\"y\nz\\\\\"\ninclude schema s\r\nInclude INDEX \"i\" . j";
        let filter = parsed(text).unwrap();
        assert_eq!(filter.tables, ["t"]);
        assert_eq!(filter.functions, ["f(int, text)"]);
        assert_eq!(filter.triggers, ["a b"]);
        assert_eq!(filter.exclude_schemas, ["\"x\"\"y\nz\\\""]);
        assert_eq!(filter.schemas, ["s"]);
        assert_eq!(filter.indexes, ["\"i\".j"]);
    }

    #[test]
    fn what_is_wrong() {
        let wrong = |text: &str| parsed(text).unwrap_err();
        assert_eq!(wrong("include table").1, "missing object name pattern");
        assert_eq!(wrong("\ninclude").0, 2);
        assert_eq!(wrong("include").1, "missing filter object type");
        assert!(wrong("take table t").1.starts_with("invalid filter command"));
        assert_eq!(wrong("include view v").1, "unsupported filter object type: \"view\"");
        assert_eq!(
            wrong("include table_data t").1,
            "include filter for \"table data\" is not allowed"
        );
        assert_eq!(wrong("exclude table t").1, "exclude filter for \"table\" is not allowed");
        assert_eq!(wrong("include table \"t\n"), (1, "unexpected end of file".to_string()));
    }
}
