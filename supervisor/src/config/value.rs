//! Rules for one value: what a TOML value must be to count as a duration, a path, a topic.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use toml::de::DeValue;

use super::{
    document::Refusal,
    units::{UnitError, parse_duration, parse_size},
};

/// A rule: the value, or why it is refused.
pub(super) type Rule<T> = Result<T, Refusal>;

/// Text without NUL, which neither a path nor an argument can hold.
pub(super) fn text(value: &DeValue<'_>) -> Rule<String> {
    let text = value.as_str().ok_or_else(|| wrong_type(value, "text", "put it in quotes"))?;
    if text.contains('\0') {
        return Err(Refusal::new("must not contain NUL", "remove \\u0000"));
    }
    Ok(text.to_owned())
}

/// Text with something in it, on one line.
pub(super) fn name(value: &DeValue<'_>) -> Rule<String> {
    let text = text(value)?;
    if text.trim().is_empty() {
        return Err(Refusal::new("must not be empty", "give it a value or remove the key"));
    }
    if text.chars().any(char::is_control) {
        return Err(Refusal::new("must not contain control characters", "remove them"));
    }
    Ok(text)
}

/// `true` or `false`.
pub(super) fn truth(value: &DeValue<'_>) -> Rule<bool> {
    value.as_bool().ok_or_else(|| wrong_type(value, "true or false", "write it without quotes"))
}

/// A list of texts.
pub(super) fn texts(value: &DeValue<'_>) -> Rule<Vec<String>> {
    let list = value
        .as_array()
        .ok_or_else(|| wrong_type(value, "a list of texts", "write [\"...\", \"...\"]"))?;
    list.iter().map(|item| text(item.get_ref())).collect()
}

/// A command: program and arguments, never a line for a shell.
pub(super) fn command(value: &DeValue<'_>) -> Rule<Vec<String>> {
    let argv = texts(value)?;
    match argv.first() {
        None => Err(Refusal::new("must not be empty", "name a program and its arguments")),
        Some(program) if program.trim().is_empty() => {
            Err(Refusal::new("must start with a program", "the first text is its name or path"))
        }
        Some(_) => Ok(argv),
    }
}

/// Texts that the watchdog looks for.
pub(super) fn prompts(value: &DeValue<'_>) -> Rule<Vec<String>> {
    let prompts = texts(value)?;
    if prompts.is_empty() {
        return Err(Refusal::new(
            "must not be empty",
            "name a text, or write action = \"off\" for a lane without watchdog",
        ));
    }
    if prompts.iter().any(|prompt| prompt.trim().is_empty()) {
        return Err(Refusal::new(
            "must not contain an empty text, which is found in every line",
            "remove it",
        ));
    }
    Ok(prompts)
}

/// An absolute directory.
pub(super) fn directory(value: &DeValue<'_>) -> Rule<PathBuf> {
    let path = PathBuf::from(name(value)?);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(Refusal::new(
            "must be an absolute path",
            "write it from / on; ~ and variables are not expanded",
        ))
    }
}

/// A duration with its unit.
pub(super) fn duration(value: &DeValue<'_>) -> Rule<Duration> {
    if let DeValue::Integer(number) = value {
        return Err(Refusal::new(
            "is a duration and needs a unit",
            format!("write \"{}s\" for seconds; units are ms, s, m, h, d, w", number.as_str()),
        ));
    }
    let text = value.as_str().ok_or_else(|| {
        wrong_type(value, "a duration in quotes", "such as \"90s\" or \"1h 30m\"")
    })?;
    parse_duration(text).map_err(|error| {
        let remedy = match error {
            UnitError::NoUnit => "add a unit: ms, s, m, h, d or w",
            UnitError::Order => "write each unit once, the largest first",
            UnitError::TooLarge => "write at most 3650d",
            UnitError::Empty | UnitError::Form | UnitError::Sign | UnitError::Ambiguous => {
                "write it such as \"90s\", \"1h 30m\" or \"500ms\""
            }
        };
        Refusal::new(error.to_string(), remedy)
    })
}

/// A duration that is not zero.
pub(super) fn positive_duration(value: &DeValue<'_>) -> Rule<Duration> {
    let duration = duration(value)?;
    if duration.is_zero() {
        return Err(Refusal::new("must be longer than zero", "write it such as \"90s\""));
    }
    Ok(duration)
}

/// A size: bytes as a number, or text with its unit.
pub(super) fn size(value: &DeValue<'_>) -> Rule<u64> {
    if matches!(value, DeValue::Integer(_)) {
        return integer(value, 0, i64::MAX).map(i64::unsigned_abs);
    }
    let text = value
        .as_str()
        .ok_or_else(|| wrong_type(value, "a size in quotes", "such as \"24G\" or \"512M\""))?;
    parse_size(text).map_err(|error| {
        let remedy = match error {
            UnitError::NoUnit => "add a unit: B, K, M, G or T",
            UnitError::Ambiguous => {
                "leave the B out, or write KiB, MiB, GiB, TiB: multiples are of 1024"
            }
            UnitError::TooLarge => "write at most 8388607T",
            UnitError::Empty | UnitError::Form | UnitError::Sign | UnitError::Order => {
                "write it such as \"24G\", \"512M\" or \"1.5GiB\""
            }
        };
        Refusal::new(error.to_string(), remedy)
    })
}

/// A limit: `parse`'s value, or `"max"` for none (the kernel's word, cgroup-v2.rst).
pub(super) fn limit<T>(
    value: &DeValue<'_>,
    parse: impl FnOnce(&DeValue<'_>) -> Rule<T>,
) -> Rule<Option<T>> {
    if value.as_str() == Some("max") { Ok(None) } else { parse(value).map(Some) }
}

/// A limit on memory; a worker cannot run on nothing.
pub(super) fn memory_limit(value: &DeValue<'_>) -> Rule<Option<u64>> {
    match limit(value, size)? {
        Some(0) => Err(Refusal::new("must be more than zero", "write \"max\" for no limit")),
        limit => Ok(limit),
    }
}

/// A whole number within bounds.
pub(super) fn integer(value: &DeValue<'_>, min: i64, max: i64) -> Rule<i64> {
    let number = value
        .as_integer()
        .ok_or_else(|| wrong_type(value, "a whole number", "write it without quotes or point"))?;
    // A number too large for 64 bits breaks the bounds like any other.
    i64::from_str_radix(number.as_str(), number.radix())
        .ok()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| {
            let rule = if max == i64::MAX {
                format!("must be {min} or more, and fit 64 bits")
            } else {
                format!("must be {min} to {max}")
            };
            Refusal::new(rule, "write a number within these bounds")
        })
}

/// A whole number that is not negative.
pub(super) fn count(value: &DeValue<'_>, min: u32, max: i64) -> Rule<u64> {
    integer(value, i64::from(min), max).map(i64::unsigned_abs)
}

/// A whole number that fits 32 bits and is not negative.
pub(super) fn small(value: &DeValue<'_>, min: u32, max: u32) -> Rule<u32> {
    let number = integer(value, i64::from(min), i64::from(max))?;
    u32::try_from(number).map_err(|_| Refusal::new(format!("must be {min} to {max}"), ""))
}

/// A number above zero, at most `max`, neither infinite nor NaN.
pub(super) fn positive_number(value: &DeValue<'_>, max: f64) -> Rule<f64> {
    let number: Option<f64> = match value {
        DeValue::Float(number) => number.as_str().parse().ok(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse().ok(),
        DeValue::Integer(_)
        | DeValue::String(_)
        | DeValue::Boolean(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_)
        | DeValue::Table(_) => {
            return Err(wrong_type(value, "a decimal number", "write it without quotes"));
        }
    };
    number.filter(|number| number.is_finite() && *number > 0.0 && *number <= max).ok_or_else(|| {
        Refusal::new(
            format!("must be a number above 0 and at most {max}"),
            "write a finite number; to switch the rule off where it has no default, remove the key",
        )
    })
}

/// One spelling of a closed set.
pub(super) fn member<T: Copy>(
    value: &DeValue<'_>,
    all: &[T],
    spelling: impl Fn(T) -> &'static str,
) -> Rule<T> {
    let known = || all.iter().map(|member| spelling(*member)).collect::<Vec<_>>().join(", ");
    let text = text(value)?;
    all.iter()
        .copied()
        .find(|member| spelling(*member) == text)
        .ok_or_else(|| Refusal::new("is not a known value", format!("write one of: {}", known())))
}

/// Address and port to listen on; `"off"` or nothing for none.
pub(super) fn listen(value: &DeValue<'_>) -> Rule<Option<SocketAddr>> {
    let text = text(value)?;
    if text.is_empty() || text == "off" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        Refusal::new(
            "must be an IP address and a port",
            "write it such as \"127.0.0.1:9464\" or \"[::1]:9464\"; \"off\" for no listener",
        )
    })
}

/// A topic of ntfy.
pub(super) fn topic(value: &DeValue<'_>) -> Rule<String> {
    let text = text(value)?;
    let fits = (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
    if fits {
        Ok(text)
    } else {
        Err(Refusal::new("must be 1 to 64 of A-Z a-z 0-9 _ -", "choose another topic"))
    }
}

/// The server's base URL, without its trailing slash.
pub(super) fn server(value: &DeValue<'_>) -> Rule<String> {
    let text = name(value)?;
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).ok_or_else(
        || Refusal::new("must start with https:// or http://", "write the whole URL"),
    )?;
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(Refusal::new("must not carry a user or password", "use token_file"));
    }
    if text.contains(['?', '#']) || text.chars().any(char::is_whitespace) {
        return Err(Refusal::new(
            "must be a URL without query, fragment or white space",
            "remove them",
        ));
    }
    let (host, port) = match authority.rsplit_once(':') {
        // The colons of an IPv6 address end with its bracket.
        Some((_, after)) if after.ends_with(']') => (authority, None),
        Some((host, port)) => (host, Some(port)),
        None => (authority, None),
    };
    if host.is_empty() || port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err(Refusal::new("must name a host", "write it such as \"https://ntfy.example\""));
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// The remote: a URL, an scp-like address or an absolute path that is safe in git's argv.
pub(super) fn remote_url(value: &DeValue<'_>) -> Rule<String> {
    let text = name(value)?;
    if text.starts_with('-') {
        return Err(Refusal::new("must not start with -", "git would take it for an option"));
    }
    if let Some((_, rest)) = text.split_once("://") {
        let authority = rest.split('/').next().unwrap_or_default();
        // Over http the user name alone is a token as often as not.
        let http = text.starts_with("http");
        if authority.rsplit_once('@').is_some_and(|(user, _)| http || user.contains(':')) {
            return Err(Refusal::new(
                "must not carry a secret, which every process could read",
                "use token_file or credential; for a user name set credential.username in git",
            ));
        }
        return Ok(text);
    }
    // gitremote-helpers(7): "ext::" runs any command.
    if text.contains("::") && !text.starts_with('/') {
        return Err(Refusal::new("must not name a remote helper", "use ssh, https or a path"));
    }
    let before_slash = text.split('/').next().unwrap_or_default();
    if text.starts_with('/') || before_slash.contains(':') {
        Ok(text)
    } else {
        Err(Refusal::new("must be a URL or an absolute path", "write the path from / on"))
    }
}

fn wrong_type(value: &DeValue<'_>, wanted: &str, remedy: &str) -> Refusal {
    Refusal::new(format!("must be {wanted}, not {}", value.type_str()), remedy)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn value(text: &str) -> DeValue<'_> {
        DeValue::String(Cow::Borrowed(text))
    }

    #[test]
    fn remotes() {
        for good in [
            "git@host:org/repo.git",
            "ssh://git@host/repo",
            "https://host/repo",
            "ssh://[::1]:22/repo",
            "/srv/repo.git",
            "/srv/a::b",
            "file:///srv/repo.git",
        ] {
            assert_eq!(remote_url(&value(good)), Ok(good.to_owned()));
        }
        for bad in [
            "",
            "-oProxyCommand=x",
            "ext::sh -c x",
            "repo.git",
            "../r",
            "https://u:p@h/r",
            "https://token@h/r",
            "a\nb:c",
        ] {
            assert!(remote_url(&value(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn servers() {
        for (written, meant) in [
            ("https://ntfy.example/", "https://ntfy.example"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://[::1]:80/base", "http://[::1]:80/base"),
            ("http://[::1]", "http://[::1]"),
        ] {
            assert_eq!(server(&value(written)), Ok(meant.to_owned()));
        }
        for bad in [
            "ntfy.example",
            "https://",
            "https:///x",
            "ftp://h",
            "https://u:p@h",
            "https://h:99999",
            "https://:80",
            "https://h/?a",
            "https://h h",
        ] {
            assert!(server(&value(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(listen(&value("off")), Ok(None));
        assert_eq!(listen(&value("")), Ok(None));
        assert_eq!(listen(&value("[::1]:0")), Ok(Some("[::1]:0".parse().unwrap())));
        assert!(listen(&value("localhost:9464")).is_err());
    }
}
