//! Hostile text made harmless, cut to a size that the server takes, and numbers made readable. Pure.

use std::borrow::Cow;

/// What stands in for a character that must not reach a phone or a terminal.
pub const REPLACEMENT: char = '\u{FFFD}';

/// Text of several lines: newlines stay, a carriage return before one goes, tabs become spaces, and every other
/// control, bidirectional or invisible character becomes [`REPLACEMENT`].
#[must_use]
pub fn lines(text: &str) -> String {
    neutralise(text, '\n')
}

/// Text of one line: as [`lines`], and newlines become spaces; no space at either end.
#[must_use]
pub fn line(text: &str) -> String {
    neutralise(text, ' ').trim().to_owned()
}

fn neutralise(text: &str, newline: char) -> String {
    let text: Cow<'_, str> =
        if text.contains('\r') { text.replace("\r\n", "\n").into() } else { text.into() };
    text.chars()
        .map(|c| match c {
            '\n' => newline,
            '\t' => ' ',
            c if c.is_control() || is_invisible(c) => REPLACEMENT,
            c => c,
        })
        .collect()
}

/// Characters that turn the direction of text around, take no room, or break a line where none is seen
/// (Unicode 16, the format characters and the fillers that render as nothing).
const fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{00AD}'
            | '\u{034F}'
            | '\u{061C}'
            | '\u{115F}'..='\u{1160}'
            | '\u{17B4}'..='\u{17B5}'
            | '\u{180B}'..='\u{180E}'
            | '\u{200B}'..='\u{200F}'
            | '\u{2028}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}'
            | '\u{3164}'
            | '\u{FEFF}'
            | '\u{FFA0}'
            | '\u{FFF9}'..='\u{FFFB}'
            | '\u{1D173}'..='\u{1D17A}'
            | '\u{E0000}'..='\u{E0FFF}'
    )
}

/// Takes the meaning out of anything that a server would decode as an RFC 2047 encoded word (`=?charset?B?...?=`):
/// ntfy hands titles on through a header and decodes them there.
#[must_use]
pub fn no_encoded_words(text: &str) -> String {
    text.replace("=?", "= ?")
}

/// `text` in at most `limit` bytes: whole if it fits, else its beginning up to a character boundary and
/// a mark that says how many bytes are missing. A limit too small for the mark gives a bare beginning.
#[must_use]
pub fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    // The mark is longest when everything is missing, so this leaves room for any.
    let room = limit.saturating_sub(mark(text.len()).len());
    let kept = prefix(text, room);
    if kept.is_empty() {
        return prefix(text, limit).to_owned();
    }
    format!("{kept}{}", mark(text.len().saturating_sub(kept.len())))
}

fn mark(missing: usize) -> String {
    format!("\u{2026} [{missing} bytes cut]")
}

/// The longest beginning of `text` with at most `limit` bytes.
#[must_use]
pub fn prefix(text: &str, limit: usize) -> &str {
    text.get(..text.floor_char_boundary(limit)).unwrap_or_default()
}

/// A size in binary units with one digit after the point, `24.0 GiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (unit, name) in UNITS {
        if bytes >= unit {
            // The rest is below 2^40, so ten times it fits.
            return format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit);
        }
    }
    format!("{bytes} bytes")
}

/// A length of time in its two largest units, `2h 5m`, `40s`.
#[must_use]
pub fn span(seconds: u64) -> String {
    let (d, h, m, s) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let (large, small) = match (d, h, m) {
        (0, 0, 0) => return format!("{s}s"),
        (0, 0, m) => ((m, "m"), (s, "s")),
        (0, h, m) => ((h, "h"), (m, "m")),
        (d, h, _) => ((d, "d"), (h, "h")),
    };
    match small.0 {
        0 => format!("{}{}", large.0, large.1),
        n => format!("{}{} {n}{}", large.0, large.1, small.1),
    }
}

/// `2026-11-30 02:14:05 UTC` for a time in Unix milliseconds. Gregorian, without leap seconds; the day arithmetic
/// is the usual one on eras of 400 years that begin in March.
#[must_use]
pub fn utc(unix_ms: i64) -> String {
    let seconds = unix_ms.div_euclid(1_000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let since_march_0000 = days.saturating_add(719_468);
    let (era, day_of_era) =
        (since_march_0000.div_euclid(146_097), since_march_0000.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (h, m, s) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02} UTC")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_cannot_be_seen_is_shown() {
        assert_eq!(
            lines("a\r\nb\tc\u{1b}[31m\u{202e}d\u{200b}"),
            "a\nb c\u{FFFD}[31m\u{FFFD}d\u{FFFD}"
        );
        assert_eq!(line(" one\ntwo\n"), "one two");
        assert_eq!(
            line("caf\u{e9} \u{1F6A8} \u{65E5}\u{672C}"),
            "caf\u{e9} \u{1F6A8} \u{65E5}\u{672C}"
        );
    }

    #[test]
    fn sizes_spans_and_times_read_well() {
        assert_eq!(size(1_023), "1023 bytes");
        assert_eq!(size(24 << 30), "24.0 GiB");
        assert_eq!(size(1_610_612_736), "1.5 GiB");
        assert_eq!(size(u64::MAX), "16777215.9 TiB");
        assert_eq!(span(59), "59s");
        assert_eq!(span(7_500), "2h 5m");
        assert_eq!(span(7_200), "2h");
        assert_eq!(span(90_061), "1d 1h");
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_782_400_000), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(1_796_004_845_999), "2026-11-30 02:14:05 UTC");
        assert_eq!(utc(-1), "1969-12-31 23:59:59 UTC");
    }

    #[test]
    fn a_cut_says_how_much_is_missing() {
        let text = "x".repeat(100);
        let kept = cut(&text, 40);
        assert!(kept.len() <= 40 && kept.ends_with("bytes cut]"), "{kept}");
        let missing: usize =
            kept.split('[').nth(1).and_then(|t| t.split(' ').next()).unwrap().parse().unwrap();
        assert_eq!(missing + kept.matches('x').count(), 100);
        assert_eq!(cut("short", 5), "short");
    }

    proptest! {
        #[test]
        fn any_text_is_cut_within_its_limit(text in any::<String>(), limit in 0_usize..300) {
            let kept = cut(&text, limit);
            prop_assert!(kept.len() <= limit);
            if text.len() <= limit { prop_assert_eq!(kept, text); }
        }

        #[test]
        fn neutral_text_stays_as_it_is(text in any::<String>()) {
            let once = lines(&text);
            prop_assert!(once.chars().all(|c| c == '\n' || !c.is_control()));
            prop_assert_eq!(lines(&once), once.clone());
            prop_assert!(!no_encoded_words(&once).contains("=?"));
        }

        #[test]
        fn any_time_and_number_has_a_text(ms in any::<i64>(), n in any::<u64>()) {
            prop_assert!(utc(ms).ends_with("UTC"));
            prop_assert!(!size(n).is_empty() && !span(n).is_empty());
        }
    }
}
