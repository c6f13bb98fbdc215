//! Names that cannot be mixed up: a machine, a lane, a run.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A name that does not have the required form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not a {kind}: {rule}")]
pub struct BadName {
    kind: &'static str,
    value: String,
    rule: &'static str,
}

macro_rules! name_type {
    ($(#[$meta:meta])* $name:ident, $kind:literal, $rule:literal, $test:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Takes a text of the required form.
            ///
            /// # Errors
            /// [`BadName`] with the rule that the text breaks.
            pub fn new(text: &str) -> Result<Self, BadName> {
                let test: fn(&str) -> bool = $test;
                if test(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(BadName { kind: $kind, value: text.chars().take(80).collect(), rule: $rule })
                }
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;

            fn try_from(text: String) -> Result<Self, BadName> {
                Self::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }
    };
}

name_type!(
    /// The box's name in refs, records and pages: one component of a git ref.
    MachineName,
    "machine name",
    "1 to 64 of A-Z a-z 0-9 . _ -, no leading dot, no '..', no '.lock' at the end",
    |text| {
        (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            && !text.starts_with('.')
            && !text.ends_with('.')
            && !text.contains("..")
            && !text.ends_with(".lock")
    }
);

name_type!(
    /// A lane's name: stable, short, fit for a path component and a metric label.
    LaneId,
    "lane id",
    "1 to 40 of a-z 0-9 . _ -, starting with a letter or digit",
    |text| {
        (1..=40).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
            && text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
    }
);

name_type!(
    /// A run's nonce: names one life of one worker, for ever.
    RunId,
    "run nonce",
    "32 lower-case hex digits",
    |text| text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
);

impl LaneId {
    /// The claim ref's last component while the lane's issue is unknown: `p0-` and the first 12 hex digits of the
    /// SHA-256 of the lane id. Stable, and of the placeholder form that the predecessor's readers accept.
    #[must_use]
    pub fn placeholder(&self) -> String {
        let digest = Sha256::digest(self.0.as_bytes());
        let hex: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        format!("p0-{hex}")
    }
}

impl MachineName {
    /// Makes a machine name of a host name: its first label, with every other character replaced by `-`.
    /// `None` if nothing usable is left.
    #[must_use]
    pub fn from_host_name(host: &str) -> Option<Self> {
        let label = host.split('.').next().unwrap_or_default();
        let clean: String = label
            .chars()
            .take(64)
            .map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' })
            .collect();
        Self::new(clean.trim_matches('-')).ok()
    }
}

impl RunId {
    /// The nonce of these 16 random bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_name_is_one_ref_component() {
        for good in ["box-a", "A.b_c", "x"] {
            assert!(MachineName::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".x", "a..b", "a.lock", "a/b", "a b", "x.", &"x".repeat(65)] {
            assert!(MachineName::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_lane_id_starts_with_a_letter_or_digit() {
        for good in ["lane-1", "0", "a.b_c"] {
            assert!(LaneId::new(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "Lane", "a/b", &"x".repeat(41)] {
            assert!(LaneId::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_placeholder_is_stable() {
        // printf lane-1 | sha256sum
        let lane = LaneId::new("lane-1").unwrap();
        assert!(lane.placeholder().starts_with("p0-"));
        assert_eq!(lane.placeholder().len(), 15);
        assert_eq!(lane.placeholder(), LaneId::new("lane-1").unwrap().placeholder());
    }

    #[test]
    fn a_host_name_becomes_one_component() {
        assert_eq!(MachineName::from_host_name("vm.example.org").unwrap().as_str(), "vm");
        assert_eq!(MachineName::from_host_name("a b").unwrap().as_str(), "a-b");
        assert_eq!(MachineName::from_host_name("..."), None);
    }
}
