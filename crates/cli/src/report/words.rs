//! Numbers, times and names as people read them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A count with its thousands apart: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count and what is counted: `1 row`, `2 rows`.
pub fn counted(n: u64, one: &str, more: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { more })
}

/// Bytes with three digits or so, in units of 1024 as `pg_size_pretty` takes them: `340 MB`, `1.27 GB`.
pub fn bytes(n: u64) -> String {
    let mut value = n as f64;
    let mut unit = "bytes";
    for larger in ["kB", "MB", "GB", "TB", "PB", "EB"] {
        // What would be rounded to 1000 goes to the larger unit, too.
        if value < 999.5 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    match unit {
        "bytes" => format!("{n} bytes"),
        _ => format!("{} {unit}", three(value)),
    }
}

fn three(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// A number of bytes for people, as `pg_size_pretty` shows it, in whole units: what is told of a backup that is there.
pub fn size(bytes: u64) -> String {
    let mut n = bytes;
    for unit in ["bytes", "kB", "MB", "GB"] {
        if n < 10 * 1024 {
            return format!("{n} {unit}");
        }
        n = (n + 512) / 1024;
    }
    format!("{n} TB")
}

/// So many per second: `12.3`, `4,567`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        r if !r.is_finite() || r <= 0.0 => "0".into(),
        r if r < 99.95 => three(r),
        r => count(r.round() as u64),
    }
}

/// A time to look back on: `0.12 s`, `34.5 s`, `12 min 5 s`, `3 h 4 min`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        s if s < 9.995 => format!("{s:.2} s"),
        s if s < 99.95 => format!("{s:.1} s"),
        _ => whole(seconds.round() as u64),
    }
}

/// A time to look forward to, in which fractions mean nothing: `8 s`, `2 min 10 s`.
pub fn ahead(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    match seconds {
        0..=59 => format!("{seconds} s"),
        // To 5 seconds, and to 5 minutes.
        60..=599 => whole(seconds.div_ceil(5) * 5),
        600..=3599 => whole(seconds.div_ceil(60) * 60),
        _ => whole(seconds.div_ceil(300) * 300),
    }
}

fn whole(seconds: u64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match (hours, minutes, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, 0) => format!("{m} min"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, m, _) if m % 60 == 0 => format!("{} h", count(h)),
        (h, m, _) => format!("{} h {} min", count(h), m % 60),
    }
}

/// Elapsed time of a clock: `0:07`, `12:34`, `1:02:03`.
pub fn clock(time: Duration) -> String {
    let s = time.as_secs();
    match s / 3600 {
        0 => format!("{}:{:02}", s / 60, s % 60),
        h => format!("{h}:{:02}:{:02}", s / 60 % 60, s % 60),
    }
}

/// A moment in UTC as RFC 3339 with milliseconds.
pub fn moment(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_millis()
    )
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    // Whole periods of 400 years first, so that far days take no longer.
    let mut year = 1970 + days / 146_097 * 400;
    let mut left = days % 146_097;
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, left + 1)
}

/// Text of the archive or the server for one line of a terminal or log: control characters, which could move the
/// cursor or forge lines, become `�`, line ends and tabs become blanks.
pub fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\r' | '\t' => ' ',
            c if c.is_control() || is_bidi(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// The same for text of several lines, which stay.
pub fn lines(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            c if c.is_control() || is_bidi(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Characters that turn the direction of what follows, by which text can look like other text.
fn is_bidi(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// At most `most` characters of a text, with a mark where it was cut.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_string(),
        Some(_) => {
            let mut out: String = text.chars().take(most.saturating_sub(1)).collect();
            out.push('…');
            out
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_in_whole_units() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (10_239, "10239 bytes"),
            (10_240, "10 kB"),
            (5 << 20, "5120 kB"),
            (50 << 20, "50 MB"),
            (1 << 40, "1024 GB"),
            (1 << 50, "1024 TB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn counts() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (164_074, "164,074"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(count(n), text);
        }
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(counted(1, "row", "rows"), "1 row");
        assert_eq!(counted(0, "row", "rows"), "0 rows");
    }

    #[test]
    fn sizes() {
        for (n, text) in [
            (0, "0 bytes"),
            (999, "999 bytes"),
            (1000, "0.98 kB"),
            (1 << 10, "1.00 kB"),
            (10_240, "10.0 kB"),
            (340 << 20, "340 MB"),
            (1023 << 20, "1.00 GB"),
            (1_363_148_800, "1.27 GB"),
            (u64::MAX, "16.0 EB"),
        ] {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn rates() {
        for (r, text) in [
            (0.0, "0"),
            (f64::NAN, "0"),
            (f64::INFINITY, "0"),
            (0.126, "0.13"),
            (12.34, "12.3"),
            (99.96, "100"),
            (4567.4, "4,567"),
        ] {
            assert_eq!(rate(r), text);
        }
    }

    #[test]
    fn times() {
        let ms = Duration::from_millis;
        for (t, text) in [
            (0, "0.00 s"),
            (123, "0.12 s"),
            (9_996, "10.0 s"),
            (34_512, "34.5 s"),
            (100_000, "1 min 40 s"),
            (3_600_000, "1 h"),
            (3_720_000, "1 h 2 min"),
            (725_000, "12 min 5 s"),
        ] {
            assert_eq!(duration(ms(t)), text);
        }
        for (t, text) in [
            (0, "0 s"),
            (100, "1 s"),
            (59_000, "59 s"),
            (59_001, "1 min"),
            (61_000, "1 min 5 s"),
            (601_000, "11 min"),
            (3_601_000, "1 h 5 min"),
        ] {
            assert_eq!(ahead(ms(t)), text);
        }
        assert_eq!(clock(ms(7_900)), "0:07");
        assert_eq!(clock(ms(3_723_000)), "1:02:03");
    }

    #[test]
    fn moments() {
        let at = |s, ms: u32| moment(UNIX_EPOCH + Duration::new(s, ms * 1_000_000));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_399, 999), "2000-02-28T23:59:59.999Z");
        assert_eq!(at(951_782_400, 0), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(1_709_251_199, 7), "2024-02-29T23:59:59.007Z");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000Z");
        assert_eq!(at(253_402_300_799, 0), "9999-12-31T23:59:59.000Z");
    }

    #[test]
    fn hostile_text() {
        assert_eq!(
            one_line("a\u{1b}[2Jb\nfirn: all is well\r\tx"),
            "a\u{fffd}[2Jb firn: all is well  x"
        );
        assert_eq!(one_line("naïve Größe 表"), "naïve Größe 表");
        assert_eq!(one_line("a\u{202e}b\u{9b}c"), "a\u{fffd}b\u{fffd}c");
        assert_eq!(lines("a\nb\u{7}"), "a\nb\u{fffd}");
        assert_eq!(cut("Größe", 5), "Größe");
        assert_eq!(cut("Größen", 5), "Größ…");
    }
}
