//! Names in `--redirect-…=OLD:NEW`. They are taken as they stand; what has a dot, a colon or a quote in it stands in double quotes,
//! in which a quote is doubled.

use crate::error::{Error, Result};
use std::fmt;

/// A table's name.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Name {
    pub schema: Option<String>,
    pub name: String,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => write!(f, "{}", self.name),
        }
    }
}

/// `OLD:NEW`, each `table` or `schema.table`.
pub fn tables(text: &str) -> Result<(Name, Name)> {
    let wrong = || {
        Error::usage(format!("invalid value \"{text}\" for --redirect-table"))
            .hint("It is [SCHEMA.]TABLE:[SCHEMA.]TABLE; names with . : or \" in them stand in double quotes.")
    };
    let name = |mut parts: Vec<String>| {
        let name = parts.pop()?;
        let schema = parts.pop();
        parts.is_empty().then_some(Name { schema, name })
    };
    let (old, new) = sides(text).ok_or_else(wrong)?;
    let (old, new) = (name(old).ok_or_else(wrong)?, name(new).ok_or_else(wrong)?);
    new.schema.iter().chain([&new.name]).try_for_each(|name| whole(name, "--redirect-table"))?;
    Ok((old, new))
}

/// `OLD:NEW`, each a schema.
pub fn schemas(text: &str) -> Result<(String, String)> {
    match sides(text).map(|(old, new)| (<[String; 1]>::try_from(old), <[String; 1]>::try_from(new)))
    {
        Some((Ok([old]), Ok([new]))) => {
            whole(&new, "--redirect-schema")?;
            Ok((old, new))
        }
        _ => Err(Error::usage(format!("invalid value \"{text}\" for --redirect-schema"))
            .hint("It is OLD:NEW; names with . : or \" in them stand in double quotes.")),
    }
}

/// Servers cut names that are longer: what is then there has another name than the one that is looked for, or that of something else.
const LONGEST: usize = 63;

fn whole(name: &str, option: &str) -> Result<()> {
    match name.len() > LONGEST {
        true => Err(Error::usage(format!("invalid value for {option}"))
            .detail(format!("The name \"{name}\" is longer than {LONGEST} bytes."))),
        false => Ok(()),
    }
}

/// The parts of both sides.
fn sides(text: &str) -> Option<(Vec<String>, Vec<String>)> {
    let mut sides = vec![Vec::new()];
    let mut chars = text.chars().peekable();
    loop {
        let mut part = String::new();
        if chars.peek() == Some(&'"') {
            chars.next();
            loop {
                match chars.next()? {
                    '"' if chars.peek() == Some(&'"') => part.extend(chars.next()),
                    '"' => break,
                    other => part.push(other),
                }
            }
        } else {
            while let Some(&c) = chars.peek() {
                if matches!(c, '.' | ':' | '"') {
                    break;
                }
                part.push(c);
                chars.next();
            }
        }
        (!part.is_empty()).then_some(())?;
        sides.last_mut()?.push(part);
        match chars.next() {
            Some('.') => {}
            Some(':') => sides.push(Vec::new()),
            Some(_) => return None,
            None => break,
        }
    }
    let (new, old) = (sides.pop()?, sides.pop()?);
    sides.is_empty().then_some((old, new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tables() {
        let shown =
            |text: &str| tables(text).ok().map(|(old, new)| [old, new].map(|n| (n.schema, n.name)));
        let name = |schema: Option<&str>, name: &str| (schema.map(String::from), name.to_string());
        assert_eq!(shown("a.t:u"), Some([name(Some("a"), "t"), name(None, "u")]));
        assert_eq!(
            shown("T t:\"a.b\".\"c:\"\"d\""),
            Some([name(None, "T t"), name(Some("a.b"), "c:\"d")])
        );
        for wrong in
            ["", "a", "a:", ":a", "a:b:c", "a.b.c:d", "a..b:c", "\"a:b", "\"\":a", "\"a\"b:c"]
        {
            assert_eq!(shown(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn names_that_servers_cut() {
        let (longest, long) = ("n".repeat(63), format!("{}ü", "n".repeat(62)));
        assert!(schemas(&format!("s:{longest}")).is_ok() && schemas(&format!("s:{long}")).is_err());
        for new in [format!("{long}.t"), format!("s.{long}"), long.clone()] {
            assert!(tables(&format!("t:{new}")).is_err(), "{new}");
        }
        assert!(tables(&format!("{long}:{longest}.{longest}")).is_ok());
    }
}
