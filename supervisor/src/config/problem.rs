//! What is wrong with a configuration: every problem with its line, key, value and remedy.

use std::{fmt, io, path::PathBuf};

/// One thing that is wrong, or worth a remark.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Line in the file, from 1; absent where the file has no such line (a key that is missing at the top).
    pub line: Option<usize>,
    /// Dotted path of the key; lanes are counted from 0: `lane[1].restart.delay`. Empty for the file itself.
    pub key: String,
    /// The value as written, escaped and shortened; absent where there is none to show.
    pub value: Option<String>,
    /// The rule that it breaks.
    pub rule: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        if let Some(value) = &self.value {
            write!(f, "{value}: ")?;
        }
        write!(f, "{}", self.rule)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

/// A configuration that cannot be used. The command that meets it exits 78.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("read the configuration {}; name another file with --config or LANEWARDEN_CONFIG", shown(&path.to_string_lossy()))]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file was read and breaks rules.
    #[error("{}", Lines(path, problems))]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// Everything that is wrong with it, by line; never empty.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    /// Everything that is wrong with the file; empty if it could not be read.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Read { .. } => &[],
            Self::Invalid { problems, .. } => problems,
        }
    }
}

/// One problem a line: `path:line: key: value: rule; remedy`.
struct Lines<'a>(&'a PathBuf, &'a [Problem]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = shown(&self.0.to_string_lossy());
        for (index, problem) in self.1.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            match problem.line {
                Some(line) => write!(f, "{path}:{line}: {problem}")?,
                None => write!(f, "{path}: {problem}")?,
            }
        }
        Ok(())
    }
}

/// The longest value that a message repeats, characters.
const SHOWN_MAX: usize = 80;

/// Foreign text made fit for a terminal and one line: control and format characters escaped, and cut at 80 characters.
pub(super) fn shown(text: &str) -> String {
    let mut out = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == SHOWN_MAX {
            out.push_str("...");
            break;
        }
        if matches!(c, '"' | '\'' | '\\') { out.push(c) } else { out.extend(c.escape_debug()) }
    }
    out
}

/// True if a key's name suggests that its value must not be repeated.
pub(super) fn looks_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["token", "secret", "passw", "credential", "api_key", "apikey", "auth"]
        .iter()
        .any(|word| key.contains(word))
}

/// True if a text has a URL with a user part, which may hold a password.
pub(super) fn has_userinfo(text: &str) -> bool {
    text.split("://").skip(1).any(|rest| {
        let end = |c: char| matches!(c, '/' | '"' | '\'') || c.is_whitespace();
        rest.split(end).next().is_some_and(|authority| authority.contains('@'))
    })
}

/// The known key that is nearest to a misspelt one, if any is near enough to be what was meant.
pub(super) fn nearest<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let lower = key.to_lowercase();
    let letters: Vec<char> = lower.chars().take(64).collect();
    known
        .iter()
        .map(|candidate| {
            // A beginning of two letters or more counts as one slip.
            let begins = lower.len() > 1 && candidate.starts_with(&lower);
            (if begins { 1 } else { distance(&letters, candidate) }, *candidate)
        })
        .filter(|(distance, candidate)| *distance <= candidate.len().div_ceil(3).max(1))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions and replacements that make one text of the other (Wagner and Fischer, one row).
fn distance(from: &[char], to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut next = Vec::with_capacity(row.len());
        next.push(i + 1);
        let mut left = i + 1;
        for ((b, above_left), above) in to.iter().zip(&row).zip(row.iter().skip(1)) {
            left = (above_left + usize::from(a != b)).min(above + 1).min(left + 1);
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or(from.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_what_was_meant() {
        let known = ["deadline", "stop_grace", "dir", "id", "env"];
        assert_eq!(nearest("dedline", &known), Some("deadline"));
        assert_eq!(nearest("stop-grace", &known), Some("stop_grace"));
        assert_eq!(nearest("Dir", &known), Some("dir"));
        assert_eq!(nearest("stop", &known), Some("stop_grace"));
        assert_eq!(nearest("colour", &known), None);
    }

    #[test]
    fn distances() {
        let chars = |text: &str| text.chars().collect::<Vec<_>>();
        assert_eq!(distance(&chars("kitten"), "sitting"), 3);
        assert_eq!(distance(&[], "abc"), 3);
        assert_eq!(distance(&chars("abc"), ""), 3);
    }

    #[test]
    fn secrets_are_suspected() {
        assert!(looks_secret("ntfy.Token") && looks_secret("env.API_KEY"));
        assert!(!looks_secret("lane[0].restart.delay"));
        assert!(has_userinfo("\"https://u:p@host/x\""));
        assert!(!has_userinfo("\"https://host/a@b\"") && !has_userinfo("git@host:x"));
    }

    #[test]
    fn what_is_shown_is_one_short_printable_line() {
        assert_eq!(shown("\"a\u{1b}[31m\n\u{202e}\""), "\"a\\u{1b}[31m\\n\\u{202e}\"");
        assert_eq!(shown(&"x".repeat(81)), format!("{}...", "x".repeat(80)));
    }
}
