//! A checksum of a table's rows that does not depend on their order.

use std::fmt;
use twox_hash::XxHash3_128;

/// The sum, modulo 2^128, of the XXH3-128 of each row's line in COPY's text format (without the line end), and the
/// number of rows. Two tables with the same rows, as often and in any order, have the same sum; accidental
/// differences change it. It is no defence against somebody who wants it to fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowSum {
    rows: u64,
    sum: u128,
}

impl RowSum {
    /// Adds whole lines, each with its line end; returns how many. COPY writes line ends within values as `\n`.
    pub fn add_rows(&mut self, text: &[u8]) -> u64 {
        let before = self.rows;
        for row in text.split_inclusive(|&c| c == b'\n') {
            self.add(row.strip_suffix(b"\n").unwrap_or(row));
        }
        self.rows - before
    }

    /// Adds one row.
    pub fn add(&mut self, row: &[u8]) {
        self.sum = self.sum.wrapping_add(XxHash3_128::oneshot(row));
        self.rows += 1;
    }

    /// Adds all rows of another sum.
    pub fn merge(&mut self, other: RowSum) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.rows += other.rows;
    }

    /// So many rows, of which nothing else is known.
    pub fn counted(rows: u64) -> RowSum {
        RowSum { rows, sum: 0 }
    }

    /// What a manifest holds: the number of rows, and the sum as it is shown.
    pub fn parse(rows: u64, sum: &str) -> Option<RowSum> {
        Some(RowSum { rows, sum: u128::from_str_radix(sum, 16).ok().filter(|_| sum.len() == 32)? })
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }
}

impl fmt::Display for RowSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(text: &str) -> RowSum {
        let mut sum = RowSum::default();
        sum.add_rows(text.as_bytes());
        sum
    }

    #[test]
    fn order_does_not_matter_and_all_else_does() {
        assert_eq!(sum("a\nb\nb\n"), sum("b\na\nb\n"));
        for other in ["a\nb\n", "a\nb\na\n", "a\nb\n\n", "a\nbb\n", ""] {
            assert_ne!(sum("a\nb\nb\n").to_string(), sum(other).to_string(), "{other:?}");
        }
        assert_eq!(sum("\n\n").rows(), 2);
    }

    #[test]
    fn parts_add_up() {
        let mut whole = sum("a\n");
        whole.merge(sum("b\nc\n"));
        assert_eq!(whole, sum("c\nb\na\n"));
        assert_eq!(RowSum::parse(3, &whole.to_string()), Some(whole));
        assert_eq!(RowSum::parse(3, "1"), None);
    }

    #[test]
    fn it_stays_what_manifests_hold() {
        assert_eq!(sum("").to_string(), "00000000000000000000000000000000");
        // XXH3-128 of nothing, as the algorithm's own tests have it.
        assert_eq!(sum("\n").to_string(), "99aa06d3014798d86001c324468d497f");
    }
}
