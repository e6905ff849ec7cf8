//! Columns of partitions that stand in another order than those of the table that their rows were loaded through.
//!
//! A partition that was a table before has its own order, and `pg_dump --load-via-partition-root` names the columns in it. A checksum is of
//! lines, so values are brought to one order first.

use crate::plan::text::{take_name, unquoted};
use std::borrow::Cow;
use std::collections::HashMap;

/// Where the columns of one list stand in another one, as COPY names them. None if they are in the same order, or are others.
pub fn of(wanted: &[u8], list: &[u8]) -> Option<Vec<usize>> {
    if wanted == list {
        return None;
    }
    let wanted = names(wanted);
    let at: HashMap<_, _> = names(list).into_iter().enumerate().map(|(at, n)| (n, at)).collect();
    let order: Vec<usize> = wanted.iter().filter_map(|name| at.get(name).copied()).collect();
    let same = order.len() == wanted.len() && order.len() == at.len();
    (same && !order.is_sorted()).then_some(order)
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
    let values: Vec<&[u8]> = order.iter().map(|at| values[*at]).collect();
    Cow::Owned([&values.join(&b'\t')[..], end].concat())
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
        assert_eq!(*row(b"1\t\\N\tx\\ty\n", &[1, 2, 0]), *b"\\N\tx\\ty\t1\n");
        assert_eq!(*row(b"\tx", &[1, 0]), *b"x\t");
        assert_eq!(*row(b"1\t2\t3\n", &[1, 0]), *b"1\t2\t3\n");
    }
}
