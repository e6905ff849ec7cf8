//! Columns of partitions that stand in another order than those of the table that their rows were loaded through.
//!
//! A partition that was a table before has its own order, and `pg_dump --load-via-partition-root` names the columns in it. A checksum is of
//! lines, so values are brought to one order first.

use crate::plan::text::{take_name, unquoted};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Where the columns of one list stand in another one, as COPY names them. None if they are in the same order, or are others.
pub fn of(wanted: &[u8], list: &[u8]) -> Option<Vec<usize>> {
    if wanted == list {
        return None;
    }
    let (wanted, list) = (names(wanted), names(list));
    // Of a name that stands there twice nobody knows which is meant.
    let each_once: HashSet<&Vec<u8>> = wanted.iter().collect();
    let at: HashMap<&Vec<u8>, usize> = list.iter().enumerate().map(|(at, n)| (n, at)).collect();
    if [wanted.len(), each_once.len(), at.len()] != [list.len(); 3] {
        return None;
    }
    let order: Vec<usize> = wanted.iter().map_while(|name| at.get(name).copied()).collect();
    (order.len() == list.len() && !order.is_sorted()).then_some(order)
}

fn names(mut list: &[u8]) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    while let Some(name) = take_name(&mut list) {
        names.push(unquoted(name));
        list = list.strip_prefix(b",").unwrap_or(list).trim_ascii_start();
    }
    names
}

/// A row of COPY, with its line end, with its values in such an order. One with another number of values stays.
pub fn row<'a>(row: &'a [u8], order: &[usize]) -> Cow<'a, [u8]> {
    let values = row.strip_suffix(b"\n").unwrap_or(row);
    let end = &row[values.len()..];
    let values: Vec<&[u8]> = values.split(|byte| *byte == b'\t').collect();
    if values.len() != order.len() {
        return Cow::Borrowed(row);
    }
    let moved: Vec<&[u8]> = order.iter().filter_map(|at| values.get(*at).copied()).collect();
    Cow::Owned([&moved.join(&b'\t')[..], end].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_in_another_order() {
        assert_eq!(of(b"a, b", b"a, b"), None);
        assert_eq!(of(b"", b""), None);
        assert_eq!(of(b"a, b, \"c, d\"", b"\"c, d\", a, b"), Some(vec![1, 2, 0]));
        // Others, more and fewer.
        assert_eq!(of(b"a, b", b"b, c"), None);
        assert_eq!(of(b"a, b", b"b, a, c"), None);
        assert_eq!(of(b"b, a, c", b"a, b"), None);
        assert_eq!(of(b"a, b", b"\"a\", b"), None);
        // Lists that no table can have.
        for list in [&b"a, a, b"[..], b"b, a, a", b"a, b", b"b, b"] {
            assert_eq!(of(b"b, a", list), of(b"b, a", b"a, b").filter(|_| list == b"a, b"));
            assert_eq!(of(b"b, b", list), None);
        }
        assert_eq!(*row(b"1\t\\N\tx\\ty\n", &[1, 2, 0]), *b"\\N\tx\\ty\t1\n");
        assert_eq!(*row(b"\tx", &[1, 0]), *b"x\t");
        assert_eq!(*row(b"1\t2\t3\n", &[1, 0]), *b"1\t2\t3\n");
    }
}
