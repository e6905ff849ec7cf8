//! Comparing what two tables of contents say about a schema.
//!
//! Dumps of the same schema by the same `pg_dump` have the same entries, though in another order where dependencies
//! leave a choice, and with other numbers. So entries are paired by kind, schema and name, and their statements compared.

use super::forms::{moments, same_definition};
use super::Difference;
use crate::archive::{Entry, Toc};
use crate::backup::tasks::copy_target;
use crate::plan::render::SCHEMA;
use crate::plan::text::unquoted;
use std::cmp::Ordering;

/// What does not count as a difference.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ignore {
    pub owner: bool,
    pub privileges: bool,
    pub tablespaces: bool,
    pub table_access_methods: bool,
    pub comments: bool,
    pub publications: bool,
    pub subscriptions: bool,
    pub security_labels: bool,
    /// Objects that are not expected: the database was not empty, or only a part was restored.
    pub others: bool,
    /// Values of sequences, and which tables have data.
    pub data: bool,
    /// How statements are written, and how large objects are listed: the versions of `pg_dump` differ.
    pub wording: bool,
}

/// Entries that say something of the dump or of the database as such, which a restore leaves to whoever created it.
fn is_of_the_database(entry: &Entry) -> bool {
    matches!(
        entry.desc,
        b"ENCODING" | b"STDSTRINGS" | b"SEARCHPATH" | b"DATABASE" | b"DATABASE PROPERTIES"
    ) || (matches!(entry.desc, b"ACL" | b"COMMENT" | b"SECURITY LABEL")
        && entry.tag.starts_with(b"DATABASE "))
}

/// Large objects' owners, privileges and comments: one entry each, from version 17 on one for many.
fn is_of_large_objects(entry: &Entry) -> bool {
    entry.desc.starts_with(b"BLOB") || entry.tag.starts_with(b"LARGE OBJECT")
}

impl Ignore {
    /// The entry does not count.
    pub fn covers(&self, entry: &Entry) -> bool {
        is_of_the_database(entry)
            || is_of_the_journal(entry)
            || self.wording && is_of_large_objects(entry)
            || match entry.desc {
                b"ACL" | b"DEFAULT ACL" => self.privileges,
                b"COMMENT" => self.comments,
                b"SECURITY LABEL" => self.security_labels,
                b"SUBSCRIPTION" | b"SUBSCRIPTION TABLE" => self.subscriptions,
                b"TABLE DATA" | b"SEQUENCE SET" | b"BLOBS" | b"MATERIALIZED VIEW DATA" => self.data,
                // They come from sampling and are never quite the same.
                b"STATISTICS DATA" => true,
                desc => desc.starts_with(b"PUBLICATION") && self.publications,
            }
    }
}

/// The journal of a restore is there until all is compared.
fn is_of_the_journal(entry: &Entry) -> bool {
    let schema = SCHEMA.as_bytes();
    match entry.desc {
        b"SCHEMA" => entry.tag == schema,
        b"COMMENT" => entry.tag.strip_prefix(b"SCHEMA ").map(unquoted) == Some(schema.to_vec()),
        _ => entry.namespace == schema,
    }
}

/// By what entries are paired.
fn key<'a>(entry: &Entry<'a>) -> (&'a [u8], &'a [u8], &'a [u8]) {
    (entry.desc, entry.namespace, entry.tag)
}

fn order(a: &Entry, b: &Entry) -> Ordering {
    key(a).cmp(&key(b)).then_with(|| a.defn.cmp(b.defn))
}

fn sorted(toc: &Toc, wanted: impl Fn(usize, &Entry) -> bool) -> Vec<u32> {
    let mut places: Vec<u32> = (0..toc.len())
        .filter(|&place| wanted(place, &toc.entry(place)))
        .map(|place| place as u32)
        .collect();
    places.sort_by(|&a, &b| order(&toc.entry(a as usize), &toc.entry(b as usize)));
    places
}

/// Compares a schema with what it should be. `selected` chooses the entries that count among the expected.
/// Answers the number of entries compared, and what differs in order of kind and name.
pub fn compare(
    expected: &Toc,
    selected: &dyn Fn(usize) -> bool,
    found: &Toc,
    ignore: &Ignore,
) -> (usize, Vec<Difference>) {
    let left = sorted(expected, |place, entry| selected(place) && !ignore.covers(entry));
    let right = sorted(found, |_, entry| !ignore.covers(entry));
    let (mut i, mut j) = (0, 0);
    let mut differences = Vec::new();
    let entry = |toc: &'_ Toc, places: &[u32], at: usize| {
        places.get(at).map(|&p| p as usize).filter(|&p| p < toc.len())
    };
    loop {
        let a = entry(expected, &left, i).map(|p| expected.entry(p));
        let b = entry(found, &right, j).map(|p| found.entry(p));
        let which = match (&a, &b) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => key(a).cmp(&key(b)),
        };
        match (which, a, b) {
            (Ordering::Less, Some(a), _) => {
                differences.push(Difference::new(shown(&a), "it is missing"));
                i += 1;
            }
            (Ordering::Greater, _, Some(b)) => {
                if !ignore.others {
                    differences.push(Difference::new(shown(&b), "it should not be there"));
                }
                j += 1;
            }
            (_, Some(a), Some(b)) => {
                // Among several with one name, those that are the same are a pair.
                let same = same_key(expected, &left, i).max(same_key(found, &right, j));
                if same > 1 && a.defn != b.defn && !ignore.wording {
                    let (skip_left, skip_right, problems) =
                        compare_group(expected, &left, i, found, &right, j, ignore);
                    differences.extend(problems);
                    (i, j) = (i + skip_left, j + skip_right);
                    continue;
                }
                if let Some(problem) = difference(&a, &b, ignore) {
                    differences.push(Difference::new(shown(&a), problem));
                }
                i += 1;
                j += 1;
            }
            _ => break,
        }
    }
    (left.len(), differences)
}

/// Whether what is compared has other numbers of quotes, and of bytes in hexadecimal, as it has where sessions write names or
/// bytes in other ways.
pub fn written_otherwise(
    expected: &Toc,
    selected: &dyn Fn(usize) -> bool,
    found: &Toc,
    ignore: &Ignore,
) -> [bool; 2] {
    [&b"\""[..], b"\\x"].map(|mark| {
        let count = |text: &[u8]| text.windows(mark.len()).filter(|part| *part == mark).count();
        let of = |entry: Entry| match ignore.covers(&entry) {
            true => 0,
            false => [entry.tag, entry.defn, entry.copy_stmt].map(count).iter().sum::<usize>(),
        };
        let left = (0..expected.len()).filter(|&place| selected(place));
        let left: usize = left.map(|place| of(expected.entry(place))).sum();
        left != found.entries().map(of).sum::<usize>()
    })
}

/// How many entries from a place on have the key of the first.
fn same_key(toc: &Toc, places: &[u32], from: usize) -> usize {
    let Some(first) = places.get(from).map(|&p| toc.entry(p as usize)) else { return 0 };
    places[from..].iter().take_while(|&&p| key(&toc.entry(p as usize)) == key(&first)).count()
}

/// Compares entries that share a name: by their statements, which are in order.
fn compare_group(
    expected: &Toc,
    left: &[u32],
    i: usize,
    found: &Toc,
    right: &[u32],
    j: usize,
    ignore: &Ignore,
) -> (usize, usize, Vec<Difference>) {
    let (n, m) = (same_key(expected, left, i), same_key(found, right, j));
    let a: Vec<Entry> = left[i..i + n].iter().map(|&p| expected.entry(p as usize)).collect();
    let mut b: Vec<Entry> = right[j..j + m].iter().map(|&p| found.entry(p as usize)).collect();
    let mut problems = Vec::new();
    for entry in a {
        match b.iter().position(|other| same_definition(other, &entry)) {
            Some(at) => {
                let other = b.remove(at);
                if let Some(problem) = difference(&entry, &other, ignore) {
                    problems.push(Difference::new(shown(&entry), problem));
                }
            }
            None => problems.push(Difference::new(shown(&entry), "it is missing, or another")),
        }
    }
    if !ignore.others {
        let extra =
            b.iter().map(|e| Difference::new(shown(e), "it should not be there, or another"));
        problems.extend(extra);
    }
    (n, m, problems)
}

/// What differs between two entries of one name.
fn difference(expected: &Entry, found: &Entry, ignore: &Ignore) -> Option<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let pairs = [
        ("owner", expected.owner, found.owner, ignore.owner),
        ("tablespace", expected.tablespace, found.tablespace, ignore.tablespaces),
        ("table access method", expected.tableam, found.tableam, ignore.table_access_methods),
    ];
    for (what, expected, found, ignored) in pairs {
        if expected != found && !ignored {
            return Some(format!(
                "its {what} is \"{}\" instead of \"{}\"",
                text(found),
                text(expected)
            ));
        }
    }
    if ignore.wording {
        return None;
    }
    // Data may be loaded through a partition's root or into it directly: the columns are what counts.
    // INSERT statements need not name them. Their order is the table's, which its own statement tells; but of who inherits a column that
    // its parent got later no statement can tell that it stands behind its own.
    let columns = |entry: &Entry| copy_target(entry.copy_stmt).map(|(_, c)| in_order(c));
    let statements = match expected.desc {
        b"TABLE DATA" if expected.copy_stmt.is_empty() || found.copy_stmt.is_empty() => {
            return None
        }
        b"TABLE DATA" => {
            (columns(expected).unwrap_or_default(), columns(found).unwrap_or_default())
        }
        _ if same_definition(expected, found) => return None,
        _ => (expected.defn.to_vec(), found.defn.to_vec()),
    };
    let (expected, found) = (&statements.0, &statements.1);
    (expected != found).then(|| {
        let (expected, found) = first_difference(expected, found);
        format!("it has \"{found}\" where \"{expected}\" is expected")
    })
}

/// A list of columns, in parentheses, sorted by their names.
fn in_order(list: &[u8]) -> Vec<u8> {
    let (mut names, mut quoted) = (vec![Vec::new()], false);
    for &c in list.strip_prefix(b"(").and_then(|l| l.strip_suffix(b")")).unwrap_or(list) {
        quoted ^= c == b'"';
        match (c, names.last_mut()) {
            (b',', _) if !quoted => names.push(Vec::new()),
            (_, Some(name)) => name.push(c),
            _ => {}
        }
    }
    let mut names: Vec<&[u8]> = names.iter().map(|name| name.trim_ascii()).collect();
    names.sort_unstable();
    [&b"("[..], &names.join(&b", "[..]), b")"].concat()
}

/// Characters of a statement that are shown.
const SHOWN: usize = 160;

/// The first lines that differ, without the spaces around them.
fn first_difference(expected: &[u8], found: &[u8]) -> (String, String) {
    let mut a = expected.split(|&c| c == b'\n');
    let mut b = found.split(|&c| c == b'\n');
    // Lines with the same moments are only shown where no others differ.
    let form = |line: &'_ [u8]| moments(line).into_owned();
    let by_bytes = form(expected) == form(found);
    loop {
        let (x, y) = (a.next(), b.next());
        if x.is_none() || x != y && (by_bytes || x.map(form) != y.map(form)) {
            let shown = |line: Option<&[u8]>| {
                let text = String::from_utf8_lossy(line.unwrap_or(b"")).trim().to_string();
                match text.char_indices().nth(SHOWN) {
                    Some((end, _)) => format!("{}…", &text[..end]),
                    None => text,
                }
            };
            return (shown(x), shown(y));
        }
    }
}

/// An entry for people.
fn shown(entry: &Entry) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    match entry.namespace {
        b"" => format!("{} {}", text(entry.desc), text(entry.tag)),
        namespace => format!("{} {}.{}", text(entry.desc), text(namespace), text(entry.tag)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toc(entries: &[(&str, &str, &str, &str)]) -> Toc {
        let mut toc = Toc::default();
        for (n, (desc, tag, owner, defn)) in entries.iter().enumerate() {
            toc.push(&Entry {
                dump_id: n as i32 + 1,
                desc: desc.as_bytes(),
                tag: tag.as_bytes(),
                owner: owner.as_bytes(),
                defn: defn.as_bytes(),
                namespace: b"s",
                ..Entry::default()
            })
            .unwrap();
        }
        toc
    }

    fn problems(expected: &Toc, found: &Toc, ignore: Ignore) -> Vec<String> {
        let (_, differences) = compare(expected, &|_| true, found, &ignore);
        differences.iter().map(|d| d.to_string()).collect()
    }

    const BASE: [(&str, &str, &str, &str); 5] = [
        ("TABLE", "t", "me", "CREATE TABLE t (\n    a int,\n    b int\n);\n"),
        ("INDEX", "i", "me", "CREATE INDEX i"),
        ("ACL", "TABLE t", "me", "GRANT"),
        ("CAST", "x", "me", "CREATE CAST 1"),
        ("CAST", "x", "me", "CREATE CAST 2"),
    ];

    #[test]
    fn order_and_numbers_do_not_matter() {
        let mut turned = BASE;
        turned.reverse();
        assert_eq!(problems(&toc(&BASE), &toc(&turned), Ignore::default()), [""; 0]);
    }

    #[test]
    fn every_kind_of_difference_is_told() {
        let with = |at: usize, entry| {
            let mut changed = BASE;
            changed[at] = entry;
            problems(&toc(&BASE), &toc(&changed), Ignore::default())
        };
        assert_eq!(
            with(0, ("TABLE", "t", "me", "CREATE TABLE t (\n    a int,\n    b text\n);\n")),
            ["TABLE s.t: it has \"b text\" where \"b int\" is expected"]
        );
        assert_eq!(
            with(0, ("TABLE", "t", "you", BASE[0].3)),
            ["TABLE s.t: its owner is \"you\" instead of \"me\""]
        );
        assert_eq!(
            with(1, ("INDEX", "j", "me", "CREATE INDEX j")),
            ["INDEX s.i: it is missing", "INDEX s.j: it should not be there"]
        );
        assert_eq!(
            with(4, ("CAST", "x", "me", "CREATE CAST 3")),
            ["CAST s.x: it has \"CREATE CAST 3\" where \"CREATE CAST 2\" is expected"]
        );
        assert_eq!(
            with(3, ("CAST", "x", "me", "CREATE CAST 3")),
            ["CAST s.x: it is missing, or another", "CAST s.x: it should not be there, or another"]
        );
        assert_eq!(
            problems(&toc(&BASE), &toc(&BASE[..4]), Ignore::default()),
            ["CAST s.x: it is missing"]
        );
        assert_eq!(
            problems(&toc(&BASE[1..]), &toc(&BASE), Ignore::default()),
            ["TABLE s.t: it should not be there"]
        );
    }

    #[test]
    fn what_is_ignored() {
        let mut other = BASE;
        other[0].2 = "you";
        other[2].3 = "REVOKE";
        let ignore = Ignore { owner: true, privileges: true, ..Ignore::default() };
        assert_eq!(problems(&toc(&BASE), &toc(&other), ignore), [""; 0]);
        let ignore = Ignore { others: true, ..Ignore::default() };
        assert_eq!(problems(&toc(&BASE[1..]), &toc(&BASE), ignore), [""; 0]);
        let (n, differences) =
            compare(&toc(&BASE), &|place| place == 1, &toc(&BASE[1..2]), &ignore);
        assert_eq!((n, differences.len()), (1, 0));
    }
}
