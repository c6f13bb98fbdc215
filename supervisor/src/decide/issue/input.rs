//! What a person may say: an actor, a reason, an expected object.

use crate::claims::record::sanitise;

/// Words that stand where a reason should.
const PLACEHOLDERS: &[&str] = &[
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
/// What sanitising leaves of nothing.
const UNSPECIFIED: &str = "unspecified";
/// A shorter text says nothing.
const LEAST: usize = 3;

/// What the adopter says the lock holds now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// Nothing: the lock must not exist.
    Nothing,
    /// This object, 40 or 64 lower-case hex digits.
    Oid(String),
}

impl Expect {
    /// Reads `none` or a full object id. All zeros is git's way to say nothing.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == "none" {
            return Some(Self::Nothing);
        }
        let full =
            matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !full {
            return None;
        }
        let zero = text.bytes().all(|byte| byte == b'0');
        Some(if zero { Self::Nothing } else { Self::Oid(text.to_ascii_lowercase()) })
    }
}

/// The actor as it is written and compared, or `None` if it names nobody.
#[must_use]
pub fn check_actor(text: &str) -> Option<String> {
    Some(sanitise(text)).filter(|actor| actor.len() >= LEAST && actor != UNSPECIFIED)
}

/// Why a reason is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadReason {
    /// It holds `<...>`.
    #[error("the reason still holds a <placeholder>; write why in its place")]
    Template,
    /// Nothing is left of it, or too little.
    #[error("the reason says nothing; write at least three letters of why")]
    Empty,
    /// A word that stands for a reason.
    #[error("the reason is a placeholder word; write why")]
    Word,
}

/// The reason as it is recorded.
///
/// # Errors
/// [`BadReason`]: the reader of an audit must not find template text.
pub fn check_reason(text: &str) -> Result<String, BadReason> {
    if text.split_once('<').is_some_and(|(_, rest)| rest.contains('>')) {
        return Err(BadReason::Template);
    }
    let clean = sanitise(text);
    if clean.len() < LEAST || clean == UNSPECIFIED {
        return Err(BadReason::Empty);
    }
    if PLACEHOLDERS.iter().any(|word| clean.eq_ignore_ascii_case(word)) {
        return Err(BadReason::Word);
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_full_ids_and_none_are_expectations() {
        let id = "AB".repeat(20);
        assert_eq!(Expect::parse(&id), Some(Expect::Oid("ab".repeat(20))));
        assert_eq!(Expect::parse(&"1f".repeat(32)), Some(Expect::Oid("1f".repeat(32))));
        for nothing in ["none", &"0".repeat(40), &"0".repeat(64)] {
            assert_eq!(Expect::parse(nothing), Some(Expect::Nothing));
        }
        for bad in ["", "0", "00", "abc123", "0000000", "None", &"g".repeat(40), &"a".repeat(41)] {
            assert_eq!(Expect::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_actor_names_somebody() {
        assert_eq!(check_actor("flow lane=1").as_deref(), Some("flow-lane-1"));
        for bad in ["", "  ", "---", "ab", "unspecified", "\u{2026}\u{2026}\u{2026}"] {
            assert_eq!(check_actor(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_reason_says_why() {
        assert_eq!(check_reason("owner said so\nok").as_deref(), Ok("owner-said-so-ok"));
        assert_eq!(check_reason("wip").as_deref(), Ok("wip"));
        assert_eq!(check_reason(&"x".repeat(200)).unwrap().len(), 120);
        for bad in ["", "   ", "---", "...x<y>", "a", "==", "\u{2026}", "TODO", "N/A", "Tbd"] {
            assert!(check_reason(bad).is_err(), "{bad}");
        }
        assert_eq!(check_reason("<why>"), Err(BadReason::Template));
    }

    proptest! {
        #[test]
        fn any_text_is_one_token_or_refused(text in "\\PC{0,200}") {
            for token in [check_actor(&text), check_reason(&text).ok()].into_iter().flatten() {
                prop_assert_eq!(sanitise(&token), token.clone());
                prop_assert!((3..=120).contains(&token.len()));
            }
            if let Some(Expect::Oid(oid)) = Expect::parse(&text) {
                prop_assert_eq!(oid.len(), text.len());
            }
        }
    }
}
