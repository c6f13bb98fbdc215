//! Durations and sizes as people write them: `2h`, `1h 30m`, `500ms`; `24G`, `512M`, `1.5GiB`.
//!
//! A bare number is refused where a unit is missing: `deadline = "90"` would be seconds to one reader and minutes to
//! another. Numbers are decimal whatever their leading zeros, so `08s` is eight seconds.

use std::time::Duration;

/// The longest duration that is taken, ten years: every sum of a few of them with a clock's reading stays in range.
pub const DURATION_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The largest size that is taken, bytes: fits the kernel's and the database's signed 64 bits.
pub const SIZE_MAX: u64 = i64::MAX.unsigned_abs();

/// Why a text is no duration or size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Nothing but white space.
    #[error("is empty")]
    Empty,
    /// A number without a unit.
    #[error("has no unit")]
    NoUnit,
    /// A unit or character that is not known.
    #[error("is not of the form number and unit")]
    Form,
    /// A sign in front.
    #[error("has a sign")]
    Sign,
    /// The same unit twice, or a smaller unit before a larger one.
    #[error("has its units out of order or twice")]
    Order,
    /// `KB`, `MB`, `GB`, `TB`: a thousand to some, 1024 to others.
    #[error("has a unit that means 1000 to some and 1024 to others")]
    Ambiguous,
    /// More than [`DURATION_MAX`] or [`SIZE_MAX`].
    #[error("is too large")]
    TooLarge,
}

/// Units of duration, largest first, with their milliseconds.
const DURATIONS: [(&str, u128); 6] = [
    ("w", 604_800_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// Units of size, largest first, with the power of two that they stand for.
const SIZES: [(&str, u32); 5] = [("T", 40), ("G", 30), ("M", 20), ("K", 10), ("B", 0)];

/// The duration that a text such as `1h 30m` stands for.
///
/// # Errors
/// [`UnitError`] with the rule that the text breaks.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(UnitError::Empty);
    }
    let mut total: u128 = 0;
    let mut last_unit: Option<usize> = None;
    while !rest.is_empty() {
        let (digits, after) = leading(rest, |c| c.is_ascii_digit());
        let number = whole(digits, rest)?;
        let (unit, after) = leading(after.trim_start(), |c| c.is_ascii_alphabetic());
        if unit.is_empty() {
            return Err(if after.is_empty() { UnitError::NoUnit } else { UnitError::Form });
        }
        let (rank, (_, millis)) = DURATIONS
            .iter()
            .enumerate()
            .find(|(_, (name, _))| *name == unit)
            .ok_or(UnitError::Form)?;
        if last_unit.is_some_and(|last| last >= rank) {
            return Err(UnitError::Order);
        }
        last_unit = Some(rank);
        total = number
            .checked_mul(*millis)
            .and_then(|part| total.checked_add(part))
            .ok_or(UnitError::TooLarge)?;
        rest = after.trim_start();
    }
    let millis = u64::try_from(total).map_err(|_| UnitError::TooLarge)?;
    let duration = Duration::from_millis(millis);
    if duration > DURATION_MAX { Err(UnitError::TooLarge) } else { Ok(duration) }
}

/// The size in bytes that a text such as `24G` or `1.5GiB` stands for; multiples are binary, fractions of a byte are
/// dropped.
///
/// # Errors
/// [`UnitError`] with the rule that the text breaks.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(UnitError::Empty);
    }
    let (digits, after) = leading(text, |c| c.is_ascii_digit());
    let number = whole(digits, text)?;
    let (fraction, after) = match after.strip_prefix('.') {
        Some(after) => {
            let (fraction, after) = leading(after, |c| c.is_ascii_digit());
            if fraction.is_empty() || fraction.len() > 9 {
                return Err(UnitError::Form);
            }
            (fraction, after)
        }
        None => ("", after),
    };
    let shift = size_unit(after.trim_start())?;
    let multiple = 1_u128 << shift;
    let whole_part = number.checked_mul(multiple).ok_or(UnitError::TooLarge)?;
    let fraction_part = if fraction.is_empty() {
        0
    } else {
        let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| UnitError::Form)?);
        whole(fraction, fraction)? * multiple / scale
    };
    let bytes = whole_part.checked_add(fraction_part).ok_or(UnitError::TooLarge)?;
    match u64::try_from(bytes) {
        Ok(bytes) if bytes <= SIZE_MAX => Ok(bytes),
        Ok(_) | Err(_) => Err(UnitError::TooLarge),
    }
}

/// The duration in the form that [`parse_duration`] reads; parts of a millisecond are dropped.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let mut rest = duration.as_millis();
    let mut parts = Vec::new();
    for (name, millis) in DURATIONS {
        // Weeks are read but not written: "14d" says more than "2w" to most.
        if name != "w" && rest >= millis {
            parts.push(format!("{}{name}", rest / millis));
            rest %= millis;
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts.join(" ") }
}

/// The size in the largest unit that divides it, in the form that [`parse_size`] reads.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    SIZES
        .iter()
        .find(|(_, shift)| bytes >= (1 << shift) && bytes.is_multiple_of(1 << shift))
        .map_or_else(|| format!("{bytes}B"), |(name, shift)| format!("{}{name}", bytes >> shift))
}

fn size_unit(unit: &str) -> Result<u32, UnitError> {
    if unit.is_empty() {
        return Err(UnitError::NoUnit);
    }
    let upper = unit.to_ascii_uppercase();
    for (name, shift) in SIZES {
        if upper == name || (shift > 0 && upper == format!("{name}IB")) {
            return Ok(shift);
        }
        if shift > 0 && upper == format!("{name}B") {
            return Err(UnitError::Ambiguous);
        }
    }
    Err(UnitError::Form)
}

/// The number in `digits`; `text` is what a sign or a word is looked for in.
fn whole(digits: &str, text: &str) -> Result<u128, UnitError> {
    if digits.is_empty() {
        return Err(if text.starts_with(['-', '+']) { UnitError::Sign } else { UnitError::Form });
    }
    digits.parse().map_err(|_| UnitError::TooLarge)
}

/// Splits off the longest beginning whose characters pass the test.
fn leading(text: &str, test: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|c| !test(c)).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_as_written() {
        for (text, millis) in [
            ("2h", 7_200_000),
            ("20s", 20_000),
            ("1h 30m", 5_400_000),
            ("1h30m", 5_400_000),
            ("500ms", 500),
            ("0s", 0),
            (" 08s ", 8000),
            ("1 d", 86_400_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn durations_refused() {
        for (text, error) in [
            ("", UnitError::Empty),
            ("90", UnitError::NoUnit),
            ("1h 30", UnitError::NoUnit),
            ("0", UnitError::NoUnit),
            ("-5s", UnitError::Sign),
            ("+5s", UnitError::Sign),
            ("1.5h", UnitError::Form),
            ("5 parsecs", UnitError::Form),
            ("inf", UnitError::Form),
            ("nan", UnitError::Form),
            ("30m 1h", UnitError::Order),
            ("1h 1h", UnitError::Order),
            ("3651d", UnitError::TooLarge),
            ("99999999999999999999999999999999999999999s", UnitError::TooLarge),
            ("5s\u{0}", UnitError::Form),
        ] {
            assert_eq!(parse_duration(text), Err(error), "{text}");
        }
    }

    #[test]
    fn sizes_as_written() {
        for (text, bytes) in [
            ("24G", 24 << 30),
            ("512M", 512 << 20),
            ("40GiB", 40 << 30),
            ("1.5g", 3 << 29),
            ("37.5 G", 75 << 29),
            ("4096B", 4096),
            ("0B", 0),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn sizes_refused() {
        for (text, error) in [
            ("", UnitError::Empty),
            ("1024", UnitError::NoUnit),
            ("24GB", UnitError::Ambiguous),
            ("-1G", UnitError::Sign),
            ("1.G", UnitError::Form),
            (".5G", UnitError::Form),
            ("1X", UnitError::Form),
            ("nan", UnitError::Form),
            ("inf", UnitError::Form),
            ("8388608T", UnitError::TooLarge),
            ("340282366920938463463374607431768211455T", UnitError::TooLarge),
        ] {
            assert_eq!(parse_size(text), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_duration_survives_being_written(millis in 0..=DURATION_MAX.as_millis()) {
            let duration = Duration::from_millis(u64::try_from(millis).unwrap());
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn a_size_survives_being_written(bytes in 0..=SIZE_MAX) {
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }

        #[test]
        fn a_size_of_whole_units_survives(count in 0_u64..1024, shift in 0_u32..5) {
            let bytes = count << (shift * 10);
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_panics(text in "\\PC*", near in "[-+0-9. a-zA-Z]{0,60}") {
            for text in [&text, &near] {
                if let Ok(duration) = parse_duration(text) {
                    prop_assert!(duration <= DURATION_MAX);
                }
                if let Ok(bytes) = parse_size(text) {
                    prop_assert!(bytes <= SIZE_MAX);
                }
            }
        }
    }
}
