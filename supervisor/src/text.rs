//! Text for people: times, durations, sizes, and foreign bytes made harmless.

use std::time::{Duration, UNIX_EPOCH};

/// Milliseconds since the epoch as RFC 3339 in UTC, `2026-01-31T12:00:00.000Z`; moments before the epoch are shown as it.
#[must_use]
pub fn rfc3339(unix_ms: i64) -> String {
    let since = Duration::from_millis(u64::try_from(unix_ms).unwrap_or(0));
    humantime::format_rfc3339_millis(UNIX_EPOCH + since).to_string()
}

/// A duration in seconds for people: `350ms`, `4.2s`, `3m 05s`, `2h 10m`, `3d 4h`.
#[must_use]
pub fn duration(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
    let s = whole.as_secs();
    match s {
        0 => format!("{}ms", whole.as_millis()),
        1..=59 => format!("{seconds:.1}s"),
        60..=3599 => format!("{}m {:02}s", s / 60, s % 60),
        3600..=86_399 => format!("{}h {:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d {}h", s / 86_400, s / 3600 % 24),
    }
}

/// A size in bytes for people, binary multiples.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, scale) in UNITS {
        if bytes >= scale {
            return format!("{}.{} {unit}", bytes / scale, bytes % scale * 10 / scale);
        }
    }
    format!("{bytes} B")
}

/// Text with every control character escaped, so that it cannot drive a terminal.
#[must_use]
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_827_696_789), "2000-02-29T12:34:56.789Z");
        assert_eq!(rfc3339(-1), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn durations_and_sizes_read_well() {
        let shown: Vec<String> =
            [0.35, 4.24, 185.0, 7800.0, 273_600.0].into_iter().map(duration).collect();
        assert_eq!(shown, ["350ms", "4.2s", "3m 05s", "2h 10m", "3d 4h"]);
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(24 << 30), "24.0 GiB");
        assert_eq!(size(12), "12 B");
    }

    #[test]
    fn a_terminal_cannot_be_driven() {
        assert_eq!(harmless("a\u{1b}[31mb\nc"), "a\\u{1b}[31mb\\nc");
    }
}
