//! Which backups are kept.

use crate::archive::manifest::utc;
use std::time::{Duration, UNIX_EPOCH};

/// What to keep. A backup is kept if any of them keeps it; the latest always is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The latest so many.
    pub number: Option<u32>,
    /// Those not older than so many days.
    pub days: Option<u32>,
    /// The latest of each of the last so many days, weeks and months (UTC) that have any.
    pub daily: Option<u32>,
    pub weekly: Option<u32>,
    pub monthly: Option<u32>,
}

const DAY: u64 = 86_400;

/// Seconds since 1970 of a time like `2026-11-21T14:03:20.5Z`.
pub fn seconds(time: &str) -> Option<u64> {
    let part = |from: usize, to: usize| {
        let digits = time.get(from..to)?;
        digits.bytes().all(|c| c.is_ascii_digit()).then(|| digits.parse::<u64>().ok())?
    };
    let marks = [(4, "-"), (7, "-"), (10, "T"), (13, ":"), (16, ":")];
    if !time.ends_with('Z') || marks.iter().any(|(at, mark)| time.get(*at..at + 1) != Some(mark)) {
        return None;
    }
    let (year, month, day) = (part(0, 4)?, part(5, 7)?, part(8, 10)?);
    let (hour, minute, second) = (part(11, 13)?, part(14, 16)?, part(17, 19)?);
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Years from 1 March of a year 0, in cycles of 400 years.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    Some((days - 719_468) * DAY + hour * 3600 + minute * 60 + second)
}

/// The month of a time, as a number that tells it from all others.
fn month(time: u64) -> u64 {
    let text = utc(UNIX_EPOCH + Duration::from_secs(time));
    let mut parts = text.split('-').map(|part| part.parse::<u64>().unwrap_or(0));
    parts.next().unwrap_or(0) * 12 + parts.next().unwrap_or(0)
}

impl Rules {
    pub fn is_empty(&self) -> bool {
        *self == Rules::default()
    }

    /// Why each backup is kept, `None` for those that are not; `times` are those of one database's, the latest first.
    pub fn keep(&self, times: &[u64], now: u64) -> Vec<Option<&'static str>> {
        let mut kept = vec![None; times.len()];
        let mut mark = |at: usize, why: &'static str| {
            kept[at].get_or_insert(why);
        };
        if !times.is_empty() {
            mark(0, "the latest");
        }
        for at in 0..times.len().min(self.number.unwrap_or(0) as usize) {
            mark(at, "--keep");
        }
        let oldest = now.saturating_sub(u64::from(self.days.unwrap_or(0)) * DAY);
        for (at, time) in times.iter().enumerate() {
            if self.days.is_some() && *time >= oldest {
                mark(at, "--keep-days");
            }
        }
        // 1970 began on a Thursday; weeks begin on Mondays.
        let week = |time: u64| (time / DAY + 3) / 7;
        let day = |time: u64| time / DAY;
        // What a time falls into: two of one day, week or month are the same.
        type Span = fn(u64) -> u64;
        let rules = [
            (self.daily, "--keep-daily", day as Span),
            (self.weekly, "--keep-weekly", week as Span),
            (self.monthly, "--keep-monthly", month as Span),
        ];
        for (number, why, span) in rules {
            let mut last = None;
            let mut left = number.unwrap_or(0);
            for (at, time) in times.iter().enumerate() {
                if left > 0 && last != Some(span(*time)) {
                    last = Some(span(*time));
                    left -= 1;
                    mark(at, why);
                }
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_there_and_back() {
        for time in (0..5_000_000_000).step_by(86_399 * 17) {
            let text = utc(UNIX_EPOCH + Duration::from_secs(time));
            assert_eq!(seconds(&text), Some(time), "{text}");
            let (year, rest) = text.split_once('-').unwrap();
            let calendar = year.parse::<u64>().unwrap() * 12 + rest[..2].parse::<u64>().unwrap();
            assert_eq!(month(time), calendar, "{text}");
        }
        assert_eq!(seconds("2026-11-21T14:03:20.554769Z"), Some(1_795_269_800));
        for bad in [
            "",
            "2026",
            "2026-11-21 14:03:20Z",
            "2026-11-21T14:03:20",
            "1969-01-01T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "+026-11-01T00:00:00Z",
        ] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }

    /// What is kept of backups of so many days ago, at noon.
    fn kept(rules: Rules, days_ago: &[u64]) -> Vec<u64> {
        // A Wednesday.
        let now = seconds("2026-11-25T12:00:00Z").unwrap();
        let times: Vec<u64> = days_ago.iter().map(|d| now - d * DAY).collect();
        let why = rules.keep(&times, now);
        days_ago.iter().zip(why).filter_map(|(d, why)| why.map(|_| *d)).collect()
    }

    #[test]
    fn rules() {
        let all: Vec<u64> = (0..100).collect();
        let none = Rules::default();
        assert_eq!(kept(none, &all), [0]);
        assert_eq!(kept(Rules { number: Some(3), ..none }, &all), [0, 1, 2]);
        assert_eq!(kept(Rules { number: Some(3), ..none }, &[5]), [5]);
        assert_eq!(kept(Rules { days: Some(2), ..none }, &all), [0, 1, 2]);
        // Too old, but there is no other.
        assert_eq!(kept(Rules { days: Some(2), ..none }, &[50, 60]), [50]);
        assert_eq!(kept(Rules { daily: Some(2), ..none }, &[0, 0, 7, 7, 9]), [0, 7]);
        assert_eq!(kept(Rules { weekly: Some(3), ..none }, &all), [0, 3, 10]);
        assert_eq!(kept(Rules { monthly: Some(3), ..none }, &all), [0, 25, 56]);
        let mixed = Rules { number: Some(2), weekly: Some(2), monthly: Some(2), ..none };
        assert_eq!(kept(mixed, &all), [0, 1, 3, 25]);
        assert_eq!(kept(mixed, &[]), [0u64; 0]);
    }

    #[test]
    fn of_two_in_a_day_the_later_one() {
        let rules = Rules { daily: Some(2), ..Rules::default() };
        let times = [10 * DAY + 50, 10 * DAY + 40, 9 * DAY + 9, 9 * DAY + 8, 8 * DAY];
        let kept: Vec<bool> = rules.keep(&times, 11 * DAY).iter().map(Option::is_some).collect();
        assert_eq!(kept, [true, false, true, false, false]);
    }
}
