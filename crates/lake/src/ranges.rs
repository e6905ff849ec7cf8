//! Which requests serve a set of byte ranges: pure functions.

use bytes::{Bytes, BytesMut};
use std::ops::Range;

/// Ranges closer than this are fetched by one request: below it, the bytes between cost less than
/// another request's round trip (about 10 ms at 30 MB/s).
const NEAR: u64 = 256 << 10;
/// Ranges closer than this are, however few bytes of them are wanted.
const NEXT: u64 = 16 << 10;
/// No request asks for more, so that a large range is fetched by several requests at once and one that fails
/// is cheap to repeat.
pub(crate) const LARGEST: u64 = 4 << 20;

/// How close ranges have to be that are fetched by one request, so that no more is between them than in them: who comes again and again
/// for small parts of an object would fetch nearly all of it each time.
pub(crate) fn near(wanted: &[Range<u64>]) -> u64 {
    let bytes: u64 = wanted.iter().map(|r| r.end.saturating_sub(r.start)).sum();
    let gaps = wanted.len().saturating_sub(1).max(1) as u64;
    (bytes / gaps).clamp(NEXT, NEAR)
}

/// The requests that cover `wanted`: ascending, disjoint, none empty, none larger than `largest`.
pub(crate) fn requests(wanted: &[Range<u64>], near: u64, largest: u64) -> Vec<Range<u64>> {
    let mut sorted: Vec<Range<u64>> = wanted.iter().filter(|r| r.start < r.end).cloned().collect();
    sorted.sort_by_key(|r| r.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for r in sorted {
        match merged.last_mut() {
            Some(last) if r.start <= last.end.saturating_add(near) => {
                last.end = last.end.max(r.end)
            }
            _ => merged.push(r),
        }
    }
    let largest = largest.max(1);
    let mut out = Vec::new();
    for r in merged {
        // Equal shares rather than a small rest.
        let length = r.end - r.start;
        let share = length.div_ceil(length.div_ceil(largest));
        let mut at = r.start;
        while at < r.end {
            let end = at.saturating_add(share).min(r.end);
            out.push(at..end);
            at = end;
        }
    }
    out
}

/// Cuts the wanted ranges out of what [`requests`] fetched; without copying where one request holds a whole
/// range. `None` if `fetched` does not cover a range.
pub(crate) fn cut(wanted: &[Range<u64>], fetched: &[(Range<u64>, Bytes)]) -> Option<Vec<Bytes>> {
    wanted.iter().map(|w| cut_one(w, fetched)).collect()
}

fn cut_one(wanted: &Range<u64>, fetched: &[(Range<u64>, Bytes)]) -> Option<Bytes> {
    if wanted.start >= wanted.end {
        return Some(Bytes::new());
    }
    let first = fetched.partition_point(|(r, _)| r.end <= wanted.start);
    let mut parts = Vec::new();
    let mut at = wanted.start;
    for (r, bytes) in fetched.get(first..)? {
        if at >= wanted.end || r.start > at {
            break;
        }
        let from = usize::try_from(at - r.start).ok()?;
        let to = usize::try_from(r.end.min(wanted.end) - r.start).ok()?;
        if from > to || to > bytes.len() {
            return None;
        }
        parts.push(bytes.slice(from..to));
        at = r.end.min(wanted.end);
    }
    if at < wanted.end {
        return None;
    }
    if parts.len() == 1 {
        return parts.pop();
    }
    let mut whole = BytesMut::with_capacity(usize::try_from(wanted.end - wanted.start).ok()?);
    for p in parts {
        whole.extend_from_slice(&p);
    }
    Some(whole.freeze())
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn near_ranges_share_a_request_and_large_ones_are_divided() {
        assert_eq!(requests(&[0..10, 15..20, 40..50], 5, 100), vec![0..20, 40..50]);
        assert_eq!(requests(&[0..10], 0, 4), vec![0..4, 4..8, 8..10]);
        assert_eq!(requests(&[7..7], 0, 4), Vec::<Range<u64>>::new());
        assert_eq!(
            requests(&[u64::MAX - 3..u64::MAX], 10, 2),
            vec![u64::MAX - 3..u64::MAX - 1, u64::MAX - 1..u64::MAX]
        );
    }

    #[test]
    fn no_more_is_fetched_between_than_is_wanted() {
        // A page of a kilobyte of each of twenty columns.
        let pages: Vec<Range<u64>> = (0..20u64).map(|n| n << 17..(n << 17) + 1024).collect();
        assert_eq!(requests(&pages, near(&pages), LARGEST), pages);
        let large: Vec<Range<u64>> = (0..4u64).map(|n| n << 20..(n << 20) + (900 << 10)).collect();
        assert_eq!(requests(&large, near(&large), u64::MAX).len(), 1);
        assert_eq!(near(&[0..10]), NEXT);
        assert_eq!(near(&[]), NEXT);
    }

    #[test]
    fn what_was_not_fetched_is_not_invented() {
        let fetched = [(0..4, Bytes::from_static(b"abcd")), (8..9, Bytes::from_static(b"i"))];
        assert_eq!(cut(&[0..6], &fetched), None);
        assert_eq!(cut(&[8..12], &fetched), None);
        assert_eq!(cut(&[0..4], &[(0..4, Bytes::from_static(b"ab"))]), None);
    }

    proptest! {
        #[test]
        fn every_byte_comes_back(
            spans in prop::collection::vec((0u64..1000, 0u64..200), 0..12),
            near in 0u64..50, largest in 1u64..300,
        ) {
            let object: Vec<u8> = (0..1200u32).map(|i| (i * 7 % 251) as u8).collect();
            let wanted: Vec<_> = spans.iter().map(|&(s, l)| s..s + l).collect();
            let asked = requests(&wanted, near, largest);
            for pair in asked.windows(2) {
                prop_assert!(pair[0].end <= pair[1].start);
            }
            for r in &asked {
                prop_assert!(r.start < r.end && r.end - r.start <= largest);
            }
            let fetched: Vec<_> = asked.into_iter().map(|r| {
                let bytes = Bytes::copy_from_slice(&object[r.start as usize..r.end as usize]);
                (r, bytes)
            }).collect();
            let got = cut(&wanted, &fetched).unwrap();
            for (w, g) in wanted.iter().zip(got) {
                prop_assert_eq!(&g[..], &object[w.start as usize..w.end as usize]);
            }
        }
    }
}
