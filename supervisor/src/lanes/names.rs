//! Canonical directories, and words that are fit for a record.

use std::path::{Component, Path, PathBuf};

/// What a word becomes of which nothing can be kept.
pub const UNSPECIFIED: &str = "unspecified";

/// The longest word in a record, bytes.
const WORD_MAX: usize = 120;

/// Reasons that say nothing.
const PLACEHOLDERS: [&str; 14] = [
    "why",
    "reason",
    "todo",
    "tbd",
    "tba",
    "xxx",
    "xxxx",
    "placeholder",
    "fixme",
    "none",
    "foo",
    "bar",
    "baz",
    "n/a",
];

/// One word of a record: letters, digits and `. _ : / # -` stay, every other run becomes one `-`; at most 120 bytes,
/// no `-` at either end. Never empty, never with `=`.
#[must_use]
pub fn word(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let kept = c.is_ascii_alphanumeric() || "._:/#".contains(c);
        if kept {
            out.push(c);
        } else if !out.is_empty() && !out.ends_with('-') {
            out.push('-');
        }
    }
    out.truncate(WORD_MAX);
    let trimmed = out.trim_end_matches('-');
    if trimmed.is_empty() { UNSPECIFIED.to_owned() } else { trimmed.to_owned() }
}

/// An actor as it is recorded. It is part of the identity, so two that cannot be recorded must not become one.
///
/// # Errors
/// The rule that it breaks.
pub fn actor(text: &str) -> Result<String, String> {
    let word = word(text);
    if word == UNSPECIFIED || word.len() < 3 {
        return Err(format!(
            "an actor needs at least 3 of A-Z a-z 0-9 . _ : / # -; {text:?} would be recorded as {word:?}"
        ));
    }
    Ok(word)
}

/// A reason as it is recorded.
///
/// # Errors
/// The rule that it breaks: empty, too short, a placeholder, or a template that was not filled in.
pub fn reason(text: &str) -> Result<String, String> {
    let template = text.split_once('<').is_some_and(|(_, rest)| rest.contains('>'));
    let word = word(text);
    if template {
        return Err(format!("{text:?} still has a <...> to be filled in"));
    }
    let kept = word.chars().filter(char::is_ascii_alphanumeric).count();
    if word == UNSPECIFIED || kept < 3 {
        return Err(format!("{text:?} says nothing; say why in at least 3 letters"));
    }
    if PLACEHOLDERS.contains(&text.trim().to_ascii_lowercase().as_str()) {
        return Err(format!("{text:?} is a placeholder; say why"));
    }
    Ok(word)
}

/// The directory as the kernel would reach it: `..` applied after symbolic links, a missing end kept as it is written.
///
/// # Errors
/// A component that may not be searched, or is no directory.
pub fn canonical(path: &Path) -> std::io::Result<PathBuf> {
    let mut done = PathBuf::from("/");
    let mut missing = false;
    for component in path.components() {
        match component {
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => {
                done.pop();
                missing = missing && !done.is_dir();
            }
            Component::Normal(name) => {
                done.push(name);
                if missing {
                    continue;
                }
                match std::fs::canonicalize(&done) {
                    Ok(real) => done = real,
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => missing = true,
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_those_of_the_records() {
        assert_eq!(word("  a b\t=c-- "), "a-b-c");
        assert_eq!(word("===\u{2014}"), UNSPECIFIED);
        assert_eq!(word("tmux: server"), "tmux:-server");
        let long = format!("{} {}", "x".repeat(119), "y");
        assert_eq!(word(&long), "x".repeat(119), "the cut leaves no separator at the end");
        assert!(
            actor("ab").is_err()
                && actor("unspecified").is_err()
                && actor("\u{e4}\u{e4}\u{e4}").is_err()
        );
    }

    #[test]
    fn reasons_must_say_something() {
        for bad in ["", "  ", "a", "TODO", "n/a", "because <why>", "\u{2014}\u{2014}", "..."] {
            assert!(reason(bad).is_err(), "{bad:?}");
        }
        assert_eq!(reason("host was rebooted").unwrap(), "host-was-rebooted");
    }

    #[test]
    fn links_and_dots_are_resolved_and_a_missing_end_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("real/deep")).unwrap();
        std::os::unix::fs::symlink(top.join("real/deep"), top.join("link")).unwrap();
        let of = |text: &str| canonical(&top.join(text)).unwrap();
        assert_eq!(
            of("link/../lane-1"),
            top.join("real/lane-1"),
            "the kernel applies .. after the link"
        );
        assert_eq!(of("link/lane *[1]/"), top.join("real/deep/lane *[1]"));
        assert_eq!(of("no/such/../lane-1"), top.join("no/lane-1"));
        std::fs::write(top.join("file"), "").unwrap();
        assert!(canonical(&top.join("file/x")).is_err());
    }

    proptest! {
        #[test]
        fn a_word_never_carries_a_key(text in any::<String>()) {
            let word = word(&text);
            prop_assert!(!word.is_empty() && word.len() <= WORD_MAX);
            prop_assert!(word.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:/#-".contains(&b)));
        }
    }
}
