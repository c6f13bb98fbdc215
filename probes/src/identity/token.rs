//! The five parts of an identity and their one-line form.

use super::BootId;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// One process on one machine, as its recorder saw it.
///
/// Comparison is structural and over full values; [`Identity::token`] is for display and logs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// The machine's configured or sanitised name.
    pub machine: String,
    /// Who acts there.
    pub actor: String,
    /// The process, as numbered in `pidns`.
    pub pid: u32,
    /// The boot; `None` if it could not be read.
    pub boot_id: Option<BootId>,
    /// Start in clock ticks since boot, as read in `timens`; `None` if it could not be read.
    pub start_ticks: Option<u64>,
    /// Inode of the **recorder's** pid namespace, in which `pid` is the number.
    pub pidns: Option<u64>,
    /// Inode of the **recorder's** time namespace, which shifts `start_ticks`.
    pub timens: Option<u64>,
    /// Inode of the pidfd on pidfs (6.9 and later): unique for the life of the boot.
    pub pidfs_ino: Option<u64>,
}

impl Identity {
    /// `machine:actor:pid:boot8:ticks`, with `-` for a part that could not be read.
    #[must_use]
    pub fn token(&self) -> String {
        let boot = self.boot_id.as_ref().map_or("-", BootId::short);
        let ticks = self.start_ticks.map_or_else(|| "-".to_owned(), |ticks| ticks.to_string());
        format!("{}:{}:{}:{boot}:{ticks}", self.machine, self.actor, self.pid)
    }

    /// Whether both name the same process of the same actor: all five parts known and equal, the boot id in full,
    /// and nothing that is known on both sides differs.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let unlike = |a: Option<u64>, b: Option<u64>| a.zip(b).is_some_and(|(a, b)| a != b);
        self.machine == other.machine
            && self.actor == other.actor
            && self.pid == other.pid
            && self.boot_id.is_some()
            && self.boot_id == other.boot_id
            && self.start_ticks.is_some()
            && self.start_ticks == other.start_ticks
            && !unlike(self.pidns, other.pidns)
            && !unlike(self.timens, other.timens)
            && !unlike(self.pidfs_ino, other.pidfs_ino)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.token())
    }
}

/// A token read back. It holds less than an [`Identity`] and never decides whether two processes are the same.
///
/// ```
/// use lanewarden_probes::identity::Token;
/// let token: Token = "box-a:flow:lane-1:4711:0f6b1c9e:78127".parse().unwrap();
/// assert_eq!((token.machine.as_str(), token.actor.as_str()), ("box-a", "flow:lane-1"));
/// assert_eq!(token.to_string(), "box-a:flow:lane-1:4711:0f6b1c9e:78127");
/// assert!("box-a:flow:4711:0f6b1c9e:+5".parse::<Token>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Token {
    /// Up to the first colon.
    pub machine: String,
    /// Between the machine and the last three parts; may hold colons.
    pub actor: String,
    /// The process; `None` for `-`.
    pub pid: Option<u32>,
    /// Eight lower-case hex digits of the boot id; `None` for `-`.
    pub boot8: Option<String>,
    /// Start ticks; `None` for `-`.
    pub ticks: Option<u64>,
}

/// A text that is no token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not machine:actor:pid:boot8:ticks, its {part} is wrong")]
pub struct TokenError {
    part: &'static str,
    found: String,
}

impl FromStr for Token {
    type Err = TokenError;

    /// Strict: decimal numbers without sign or leading zero, `-` for an unread part, and in names only what the
    /// records' sanitiser keeps (letters, digits and `._:/#-`).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = |part| TokenError { part, found: text.chars().take(200).collect() };
        let mut parts = text.rsplitn(4, ':');
        let ticks = parts.next().and_then(part_number).ok_or_else(|| wrong("ticks"))?;
        let boot8 = parts.next().and_then(part_boot).ok_or_else(|| wrong("boot"))?;
        let pid = match parts.next().and_then(part_number).ok_or_else(|| wrong("pid"))? {
            None => None,
            Some(wide) => match u32::try_from(wide) {
                Ok(pid) if pid > 0 => Some(pid),
                Ok(_) | Err(_) => return Err(wrong("pid")),
            },
        };
        let names = parts.next().ok_or_else(|| wrong("machine"))?;
        let (machine, actor) = names.split_once(':').ok_or_else(|| wrong("actor"))?;
        for (name, part) in [(machine, "machine"), (actor, "actor")] {
            let kept = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/#-".contains(&byte);
            if name.is_empty() || !name.bytes().all(kept) {
                return Err(wrong(part));
            }
        }
        Ok(Self { machine: machine.to_owned(), actor: actor.to_owned(), pid, boot8, ticks })
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |part: Option<u64>| part.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let boot = self.boot8.as_deref().unwrap_or("-");
        let pid = number(self.pid.map(u64::from));
        write!(f, "{}:{}:{pid}:{boot}:{}", self.machine, self.actor, number(self.ticks))
    }
}

/// `Some(None)` for `-`, `Some(Some(n))` for a canonical decimal, `None` for anything else.
#[expect(
    clippy::option_option,
    reason = "the outer option is the parser's failure, the inner the part's absence"
)]
fn part_number(part: &str) -> Option<Option<u64>> {
    if part == "-" {
        return Some(None);
    }
    let canonical =
        part.bytes().all(|byte| byte.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
    canonical.then(|| part.parse().ok())?.map(Some)
}

#[expect(
    clippy::option_option,
    reason = "the outer option is the parser's failure, the inner the part's absence"
)]
fn part_boot(part: &str) -> Option<Option<String>> {
    if part == "-" {
        return Some(None);
    }
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (part.len() == 8 && part.bytes().all(hex)).then(|| Some(part.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn identity() -> Identity {
        Identity {
            machine: "box-a".into(),
            actor: "flow".into(),
            pid: 4711,
            boot_id: Some("0f6b1c9e-1234-4abc-8def-0123456789ab".parse().unwrap()),
            start_ticks: Some(78127),
            pidns: Some(4_026_531_836),
            timens: Some(4_026_531_834),
            pidfs_ino: Some(46744),
        }
    }

    #[test]
    fn unread_parts_print_as_a_dash_and_never_compare_equal() {
        let whole = identity();
        assert_eq!(whole.token(), "box-a:flow:4711:0f6b1c9e:78127");
        assert!(whole.is_same(&whole));
        let unread = Identity { boot_id: None, start_ticks: None, ..identity() };
        assert_eq!(unread.token(), "box-a:flow:4711:-:-");
        assert!(!unread.is_same(&unread));
    }

    #[test]
    fn comparison_is_over_the_full_boot_id_and_the_pidfs_inode() {
        let other_boot = Identity {
            boot_id: Some("0f6b1c9e-ffff-4abc-8def-0123456789ab".parse().unwrap()),
            ..identity()
        };
        assert_eq!(other_boot.token(), identity().token());
        assert!(!other_boot.is_same(&identity()));
        let reused = Identity { pidfs_ino: Some(46745), ..identity() };
        assert!(!reused.is_same(&identity()));
        let old_kernel = Identity { pidfs_ino: None, ..identity() };
        assert!(old_kernel.is_same(&identity()));
    }

    proptest! {
        #[test]
        fn tokens_survive_the_round_trip(
            machine in "[A-Za-z0-9._-]{1,12}", actor in "[A-Za-z0-9._:/#-]{1,12}",
            pid in proptest::option::of(1u32..), boot in proptest::option::of("[0-9a-f]{8}"),
            ticks in proptest::option::of(any::<u64>()),
        ) {
            let token = Token { machine, actor, pid, boot8: boot, ticks };
            prop_assert_eq!(token.to_string().parse::<Token>().unwrap(), token);
        }

        #[test]
        fn what_parses_prints_as_it_was(text in "[a-z0-9:+ -]{0,40}") {
            if let Ok(token) = text.parse::<Token>() {
                prop_assert_eq!(token.to_string(), text);
            }
        }
    }
}
