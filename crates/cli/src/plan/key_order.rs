//! In which order foreign keys of a table, and of those above and below it, are made: a pure decision, for the plan and for what is made
//! again (`restore/work/worker/again.rs`).
//!
//! The server makes keys itself for what comes of one: for partitions of the table, and for partitions that it refers to. It gives them the key's name where
//! that is free, else one that it chooses; no dump has these. And a key that is made behind an equal one of a partition takes that up, which then is in no dump any more.
//!
//! Sure pairs, of a key and one of a table above it:
//! - it comes behind one that would take it up;
//! - else it comes before one of the same name, which would be given to what comes of that.
//!
//! Likely pairs: a key comes before one of its own table for what comes of which the server may choose its name; where each may get the other's, that of the
//! lower number comes first, as the server began with that. Possible ones: the same of a key above it, where that one's name is another key's in this table. Unlikely ones:
//! where it is not, so that something else would have to have it. Of pairs that would close a circle one does not count, the weakest, and of equal ones that
//! which is against the archive's order. Else it is the archive's order.

use super::text::{last_part, unquoted, without_digits, ForeignKey};
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::hash::Hash;

/// Why one key comes before another, the stronger the less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    Sure,
    Likely,
    Possible,
    Unlikely,
}

/// One comes before another.
pub type Pair = (usize, usize, Why);

/// A key to be made.
pub struct Placed<'k, T> {
    pub key: &'k ForeignKey<'k>,
    pub table: T,
    /// It refers to a table with partitions: something comes of it in its own table.
    pub splits: bool,
}

/// The ranks of keys, which are given in the archive's order. `above`: the tables that one is a partition of, from below, with their
/// names.
pub fn ranks<T: Copy + Eq + Hash>(
    keys: &[Placed<T>],
    above: impl Fn(T) -> Vec<(T, Vec<u8>)>,
) -> Vec<usize> {
    let mut of_table = HashMap::<T, Vec<usize>>::new();
    for (number, Placed { table, .. }) in keys.iter().enumerate() {
        of_table.entry(*table).or_default().push(number);
    }
    let mut pairs = Vec::new();
    for (table, own) in &of_table {
        // A key's offspring are in its own table and below. From this one up to its own:
        let mut tables = vec![unquoted(last_part(keys[own[0]].key.table))];
        let names: HashSet<&[u8]> = own.iter().map(|number| &keys[*number].key.name[..]).collect();
        let mut meet = |theirs: &[usize], tables: &[Vec<u8>], is_above: bool| {
            for (number, other) in own.iter().flat_map(|n| theirs.iter().map(move |o| (*n, *o))) {
                let (key, their) = (keys[number].key, keys[other].key);
                let may_get = |one: usize, name: &[u8]| {
                    (is_above || keys[one].splits) && keys[one].key.may_choose(name, tables)
                };
                if is_above && their.takes_up(key) {
                    pairs.push((other, number, Why::Sure));
                } else if is_above && their.name == key.name {
                    pairs.push((number, other, Why::Sure));
                } else if is_above && may_get(other, &key.name) {
                    let is_taken = names.contains(&their.name[..]);
                    let why = if is_taken { Why::Possible } else { Why::Unlikely };
                    pairs.push((number, other, why));
                } else if number != other && may_get(other, &key.name) {
                    let first = has_lower_number(&key.name, &their.name);
                    let gives_way = first == Ordering::Greater && may_get(number, &their.name);
                    if !gives_way {
                        pairs.push((number, other, Why::Likely));
                    }
                }
            }
        };
        meet(own, &tables, false);
        for (upper, name) in above(*table) {
            tables.push(name);
            meet(of_table.get(&upper).map_or(&[][..], |theirs| theirs), &tables, true);
        }
    }
    sorted(keys.len(), pairs)
}

/// Of names that differ by the number at their end alone, which has the lower one; none is the lowest. Others are equal.
pub fn has_lower_number(name: &[u8], other: &[u8]) -> Ordering {
    let ((stem, number), (others, others_number)) = (without_digits(name), without_digits(other));
    match stem == others {
        // Of as many digits, or of more, which are not led by zeros.
        true => (number.len(), number).cmp(&(others_number.len(), others_number)),
        false => Ordering::Equal,
    }
}

/// Numbers from 0 in an order in which all of these pairs are, and else as they are. Of a circle the weakest pair does not count.
pub fn sorted(count: usize, mut pairs: Vec<Pair>) -> Vec<usize> {
    pairs.sort_unstable_by_key(|(before, after, why)| (*after, *before, *why));
    pairs.dedup_by_key(|(before, after, _)| (*before, *after));
    let (mut waits_for, mut behind) = (vec![Vec::new(); count], vec![Vec::new(); count]);
    for (before, after, why) in pairs {
        waits_for[after].push((before, why));
        behind[before].push(after);
    }
    let mut ready: BinaryHeap<_> =
        (0..count).filter(|n| waits_for[*n].is_empty()).map(Reverse).collect();
    let mut rank = vec![usize::MAX; count];
    let (mut next, mut left) = (0, 0);
    while next < count {
        let Some(Reverse(number)) = ready.pop() else {
            while rank[left] != usize::MAX {
                left += 1;
            }
            let (before, after) = in_circle(&waits_for, left);
            waits_for[after].retain(|(other, _)| *other != before);
            if waits_for[after].is_empty() {
                ready.push(Reverse(after));
            }
            continue;
        };
        rank[number] = next;
        next += 1;
        for after in std::mem::take(&mut behind[number]) {
            let before = waits_for[after].len();
            waits_for[after].retain(|(other, _)| *other != number);
            if waits_for[after].is_empty() && before > 0 {
                ready.push(Reverse(after));
            }
        }
    }
    rank
}

/// The pair to leave out of a circle that this one waits for, or is in. All of them wait for some.
fn in_circle(waits_for: &[Vec<(usize, Why)>], start: usize) -> (usize, usize) {
    let (mut way, mut seen) = (Vec::<Pair>::new(), HashMap::new());
    let mut number = start;
    let begin = loop {
        if let Some(begin) = seen.insert(number, way.len()) {
            break begin;
        }
        let (before, why) = waits_for[number][0];
        way.push((before, number, why));
        number = before;
    };
    let strength = |(before, after, why): &&Pair| (Reverse(*why), Reverse(before > after), *after);
    let weakest = way[begin..].iter().min_by_key(strength);
    weakest.map_or((start, start), |(before, after, _)| (*before, *after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::text::foreign_key;

    const SURE: Why = Why::Sure;
    const LIKELY: Why = Why::Likely;
    const POSSIBLE: Why = Why::Possible;

    #[test]
    fn pairs_come_in_order_and_others_as_they_are() {
        let order = |count: usize, pairs: &[Pair]| {
            let rank = sorted(count, pairs.to_vec());
            let mut numbers: Vec<usize> = (0..count).collect();
            numbers.sort_by_key(|n| rank[*n]);
            numbers
        };
        assert_eq!(order(4, &[]), [0, 1, 2, 3]);
        assert_eq!(order(4, &[(3, 1, SURE), (3, 1, LIKELY)]), [0, 2, 3, 1]);
        assert_eq!(order(4, &[(2, 0, LIKELY), (3, 2, SURE)]), [1, 3, 2, 0]);
        // A circle is as it is, and what waits for it comes behind.
        assert_eq!(order(4, &[(1, 0, SURE), (0, 1, SURE), (1, 2, SURE)]), [3, 0, 1, 2]);
        assert_eq!(order(3, &[(2, 0, SURE), (2, 1, LIKELY), (1, 2, LIKELY)]), [1, 2, 0]);
        // What is sure stays, the least of the others does not.
        assert_eq!(order(3, &[(2, 0, SURE), (0, 1, LIKELY), (1, 2, LIKELY)]), [1, 2, 0]);
        assert_eq!(order(3, &[(1, 0, LIKELY), (2, 1, SURE), (0, 2, SURE)]), [0, 2, 1]);
        // The weakest of a circle, of equal ones that which is against the order.
        assert_eq!(
            order(3, &[(2, 0, SURE), (0, 1, LIKELY), (1, 0, LIKELY), (1, 2, POSSIBLE)]),
            [2, 0, 1]
        );
        assert_eq!(order(1, &[]), [0]);
    }

    /// Keys as (table, name, column, table that it refers to), parts of `p` are `p_a` and `p_b`.
    fn made(keys: &[(&str, &str, &str, &str)]) -> Vec<usize> {
        let texts: Vec<String> = keys
            .iter()
            .map(|(table, name, column, to)| {
                format!("ALTER TABLE s.{table} ADD CONSTRAINT {name} FOREIGN KEY ({column}) REFERENCES s.{to}(id);")
            })
            .collect();
        let keys: Vec<_> = texts.iter().map(|text| foreign_key(text.as_bytes()).unwrap()).collect();
        let placed =
            |key| Placed { key, table: key.table, splits: !key.definition.ends_with(b"s.w(id)") };
        let placed: Vec<Placed<&[u8]>> = keys.iter().map(placed).collect();
        let rank = ranks(&placed, |table| match table {
            b"s.p_a" | b"s.p_b" => vec![(&b"s.p"[..], b"p".to_vec())],
            _ => vec![],
        });
        let mut numbers: Vec<usize> = (0..rank.len()).collect();
        numbers.sort_by_key(|n| rank[*n]);
        numbers
    }

    #[test]
    fn what_may_be_chosen_gives_way_to_what_is_sure() {
        // Common names: none of them is one that the server would choose for what comes of another.
        let keys =
            [("p_b", "p_b_r_fkey", "r", "u"), ("p", "p_s_fkey", "s", "w"), ("p", "to_u", "r", "u")];
        assert_eq!(made(&keys), [1, 2, 0]);
        // It would be chosen for the one of all, and taken up by it.
        assert_eq!(made(&[("p_a", "p_a_r_fkey", "r", "u"), ("p", "k", "r", "u")]), [1, 0]);
        // Chosen for the one of all, and not taken up.
        assert_eq!(made(&[("p", "k", "r", "u"), ("p_a", "p_a_r_fkey", "s", "w")]), [1, 0]);
        assert_eq!(made(&[("p", "k", "r", "u"), ("p_a", "k_1", "s", "w")]), [1, 0]);
        assert_eq!(made(&[("p", "k", "r", "u"), ("p_a", "p_a_s_fkey", "s", "w")]), [0, 1]);
        // As PostgreSQL names them: the first is taken up by that of all if it comes before, and would get the name of the second.
        let keys = [
            ("p_a", "p_a_s_fkey", "s", "u"),
            ("p_a", "p_a_s_fkey3", "s", "v"),
            ("p", "p_s_fkey", "s", "u"),
        ];
        assert_eq!(made(&keys), [2, 0, 1]);
        // The same name.
        assert_eq!(made(&[("p", "k", "r", "u"), ("p_a", "k", "s", "w")]), [1, 0]);
        // Of one table, and of another.
        assert_eq!(made(&[("t", "k", "r", "u"), ("t", "t_r_fkey1", "s", "w")]), [1, 0]);
        assert_eq!(made(&[("t", "k", "r", "u"), ("t", "k_2", "s", "w")]), [1, 0]);
        assert_eq!(made(&[("v", "k", "r", "u"), ("t", "v_r_fkey1", "s", "w")]), [0, 1]);
        // Nothing comes of it in its own table: `w` has no partitions.
        assert_eq!(made(&[("t", "k", "r", "w"), ("t", "t_r_fkey1", "s", "w")]), [0, 1]);
        // Each may get the other's: the server began with the lower number.
        let three = [
            ("t", "t_r_fkey", "r", "u"),
            ("t", "t_r_fkey12", "r", "v"),
            ("t", "t_r_fkey6", "r", "x"),
        ];
        assert_eq!(made(&three), [0, 2, 1]);
        // What comes of the one at the top has the name of that, which is free; what comes of the one between has another.
        let schemas = [("p_a", "p_a_r_fkey2", "r", "u"), ("p", "p_a_r_fkey", "r", "u")];
        assert_eq!(made(&schemas), [1, 0]);
        assert_eq!(made(&[("t", "t_r_fkey1", "r", "u"), ("t", "t_r_fkey2", "r", "v")]), [0, 1]);
    }
}
