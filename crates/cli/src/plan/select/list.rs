//! List files: `firn restore -l` prints them, `-L` takes them.

use crate::archive::Toc;
use crate::error::{Error, ErrorKind, Result};

/// What a list file names.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct List {
    /// Dump ids in the list's order, each once.
    pub ids: Vec<i32>,
    /// Lines that name nothing and are passed over, without what follows a semicolon.
    pub ignored: Vec<String>,
}

/// Reads a list as `pg_restore` does: the number at the start of each line counts, a semicolon begins a comment; lines
/// without a number, with one that no archive like this has, or with one that came before are passed over. A number
/// that is missing among the archive's is an error: the list belongs to another archive.
pub fn read(text: &[u8], toc: &Toc) -> Result<List> {
    let most = toc.entries().map(|e| e.dump_id).max().unwrap_or(0);
    let mut list = List::default();
    let mut seen = std::collections::HashSet::new();
    for line in text.split(|&c| c == b'\n') {
        let line = line.split(|&c| c == b';').next().unwrap_or_default();
        if line.iter().all(|c| b" \t\r\n".contains(c)) {
            continue;
        }
        match number(line) {
            Some(id) if id > 0 && id <= most && !seen.contains(&id) => {
                if toc.place(id).is_none() {
                    let message = format!("could not find entry for ID {id}");
                    return Err(Error::new(ErrorKind::Archive, message)
                        .hint("The list must be one of this archive."));
                }
                seen.insert(id);
                list.ids.push(id);
            }
            _ => list.ignored.push(String::from_utf8_lossy(line).into_owned()),
        }
    }
    Ok(list)
}

/// The number at the start, whatever follows it; 0 if it is too large.
fn number(line: &[u8]) -> Option<i32> {
    let line = line.trim_ascii_start();
    let (negative, digits) = match line.first()? {
        b'-' => (true, &line[1..]),
        b'+' => (false, &line[1..]),
        _ => (false, line),
    };
    let length = digits.iter().take_while(|c| c.is_ascii_digit()).count();
    let value = std::str::from_utf8(digits.get(..length)?).ok()?;
    match value.is_empty() {
        true => None,
        false => Some(value.parse::<i32>().map_or(0, |n| if negative { -n } else { n })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Entry;

    fn toc() -> Toc {
        let mut toc = Toc::default();
        for dump_id in [1, 2, 5] {
            toc.push(&Entry { dump_id, ..Entry::default() }).unwrap();
        }
        toc
    }

    #[test]
    fn what_counts() {
        let text = b"; comment\n\n5; 12 TABLE a t\n 1 TABLE\n9; too large\nnonsense 3; x\n5 again\n-2\n \t\r\n2";
        let list = read(text, &toc()).unwrap();
        assert_eq!(list.ids, [5, 1, 2]);
        assert_eq!(list.ignored, ["9", "nonsense 3", "5 again", "-2"]);
    }

    #[test]
    fn what_is_missing() {
        let e = read(b"1\n3; 0 0 TABLE\n", &toc()).unwrap_err();
        assert_eq!(e.message, "could not find entry for ID 3");
        assert_eq!(e.exit_code(), 1);
    }
}
