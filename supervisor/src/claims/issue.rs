//! The record behind an issue lock: `refs/claims/issue-<N>`, who holds it, and by which process.
//!
//! The identity tokens come first and the user's own words last, because readers take the first token of a key: nothing
//! that a person types as a reason can name another holder.

use super::record::{ParsedClaim, format_ts, sanitise};

/// The namespace of issue locks.
pub const ISSUE_LOCKS: &str = "refs/claims/";
/// The most digits of an issue's number.
const DIGITS_MAX: usize = 40;

/// An issue lock that we write. Text goes through [`sanitise`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssueClaim {
    /// The issue's number as it was typed, or `smoke`.
    pub issue: String,
    /// The box.
    pub machine: String,
    /// Who claims.
    pub actor: String,
    /// The process that claims, or the command itself where none could be named.
    pub pid: u32,
    /// What makes `pid` a process and not a number; `None` where no lasting process could be named.
    pub process: Option<ProcessPart>,
    /// Seconds since 1970 UTC.
    pub ts: u64,
    /// Makes every record an object of its own, so that two claimers never push the same one.
    pub nonce: String,
    /// `mode` and reason of an adoption.
    pub audit: Option<(&'static str, String)>,
}

/// One process of one boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessPart {
    /// The boot id, a full UUID.
    pub boot: String,
    /// Start in clock ticks since boot (proc(5), field 22 of `stat`).
    pub ticks: u64,
    /// Inode of the pid namespace in which the pid counts.
    pub pidns: Option<u64>,
}

impl IssueClaim {
    /// The message: the predecessor's tokens, then the process, then what a person said.
    #[must_use]
    pub fn to_message(&self) -> String {
        let mut line = format!(
            "claim issue={} machine={} pid={} actor={} ts={} nonce={}",
            sanitise(&self.issue),
            sanitise(&self.machine),
            self.pid,
            sanitise(&self.actor),
            format_ts(self.ts),
            sanitise(&self.nonce)
        );
        if let Some(ProcessPart { boot, ticks, pidns }) = &self.process {
            line.push_str(&format!(" boot={} ticks={ticks}", sanitise(boot)));
            if let Some(pidns) = pidns {
                line.push_str(&format!(" pidns={pidns}"));
            }
        }
        if let Some((mode, reason)) = &self.audit {
            line.push_str(&format!(" mode={mode} reason={}", sanitise(reason)));
        }
        line
    }
}

/// An issue lock as it was read. `None` is unknown: missing or malformed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedIssue {
    /// Machine and actor, made harmless; `None` unless the record says both.
    pub holder: Option<(String, String)>,
    /// Whether both were written in the form in which we would write them. A holder that was not is never us.
    pub verbatim: bool,
    /// Seconds since 1970 UTC.
    pub ts: Option<u64>,
    /// The process' number.
    pub pid: Option<u32>,
    /// The process, if the record carries one in full.
    pub process: Option<ProcessPart>,
    /// The reason of an adoption, made harmless.
    pub reason: Option<String>,
}

impl ParsedIssue {
    /// Reads a message. Never fails: what is not understood is unknown.
    #[must_use]
    pub fn parse(message: &[u8]) -> Self {
        let text = |key| {
            let value = first(message, key).filter(|value| !value.is_empty())?;
            let clean = sanitise(&String::from_utf8_lossy(value));
            let verbatim = clean.as_bytes() == value;
            Some((clean, verbatim))
        };
        let holder = text("machine").zip(text("actor"));
        let common = ParsedClaim::parse(message);
        Self {
            verbatim: holder.as_ref().is_some_and(|(machine, actor)| machine.1 && actor.1),
            holder: holder.map(|(machine, actor)| (machine.0, actor.0)),
            ts: common.ts,
            pid: common.pid,
            process: common.boot.zip(common.ticks).map(|(boot, ticks)| ProcessPart {
                boot,
                ticks,
                pidns: common.pidns,
            }),
            reason: text("reason").map(|(reason, _)| reason),
        }
    }
}

/// The value of the first token whose whole key is `key`.
fn first<'a>(message: &'a [u8], key: &str) -> Option<&'a [u8]> {
    message.split(u8::is_ascii_whitespace).find_map(|token| {
        token.strip_prefix(key.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
    })
}

/// Whether the text is an issue's number: ASCII digits, at most 40. As in the predecessor, `0` and leading zeros pass.
#[must_use]
pub fn is_issue_number(text: &str) -> bool {
    (1..=DIGITS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The lock of an issue.
#[must_use]
pub fn issue_ref(issue: &str) -> String {
    format!("{ISSUE_LOCKS}issue-{issue}")
}

/// What the branches of an issue's older workers start with.
#[must_use]
pub fn legacy_prefix(issue: &str) -> String {
    format!("refs/heads/issue-{issue}-")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim() -> IssueClaim {
        IssueClaim {
            issue: "7".into(),
            machine: "box-a".into(),
            actor: "flow".into(),
            pid: 42,
            process: None,
            ts: 1_700_000_000,
            nonce: "42-1-2-3".into(),
            audit: None,
        }
    }

    #[test]
    fn the_message_is_the_predecessors_and_the_persons_words_come_last() {
        let plain = claim().to_message();
        assert_eq!(
            plain,
            "claim issue=7 machine=box-a pid=42 actor=flow ts=2023-11-14T22:13:20Z nonce=42-1-2-3"
        );
        let process = ProcessPart {
            boot: "0f8fad5b-d9cb-469f-a165-70867728950e".into(),
            ticks: 9,
            pidns: Some(5),
        };
        let audit = Some(("cas", "x machine=evil actor=evil".to_owned()));
        let full = IssueClaim { process: Some(process.clone()), audit, ..claim() }.to_message();
        let tail = " ticks=9 pidns=5 mode=cas reason=x-machine-evil-actor-evil";
        assert!(full.ends_with(tail), "{full}");
        let read = ParsedIssue::parse(full.as_bytes());
        assert_eq!(read.holder, Some(("box-a".into(), "flow".into())));
        assert!(read.verbatim);
        assert_eq!((read.process, read.pid), (Some(process), Some(42)));
        assert_eq!(read.reason.as_deref(), Some("x-machine-evil-actor-evil"));
    }

    #[test]
    fn the_first_exact_key_decides_and_half_a_holder_is_none() {
        let forged = b"claim holder-machine=x machine=a actor=flow machine=b actor=other";
        assert_eq!(ParsedIssue::parse(forged).holder, Some(("a".into(), "flow".into())));
        for half in ["claim machine=a", "claim actor=a", "claim machine= actor=b", ""] {
            assert_eq!(ParsedIssue::parse(half.as_bytes()).holder, None, "{half}");
        }
        let glob = ParsedIssue::parse(b"claim machine=machine* actor=\x1b[31m");
        assert_eq!(glob.holder, Some(("machine".into(), "31m".into())));
        assert!(!glob.verbatim);
    }

    #[test]
    fn issue_numbers_are_digits() {
        for good in ["7", "0", "007"] {
            assert!(is_issue_number(good), "{good}");
        }
        for bad in ["", "7x", "-7", "7 ", "\u{0667}", &"1".repeat(41)] {
            assert!(!is_issue_number(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in any::<Vec<u8>>()) {
            let read = ParsedIssue::parse(&bytes);
            let clean = |(machine, actor): (String, String)| {
                sanitise(&machine) == machine && sanitise(&actor) == actor
            };
            prop_assert!(read.holder.is_none_or(clean));
        }

        #[test]
        fn what_is_written_is_read(machine in "\\PC{0,140}", actor in "\\PC{0,140}", reason in "\\PC{0,140}") {
            let wrote = IssueClaim { machine: machine.clone(), actor: actor.clone(), audit: Some(("cas", reason.clone())), ..claim() };
            let read = ParsedIssue::parse(wrote.to_message().as_bytes());
            prop_assert_eq!(read.holder, Some((sanitise(&machine), sanitise(&actor))));
            prop_assert!(read.verbatim);
            prop_assert_eq!(read.reason, Some(sanitise(&reason)));
        }
    }
}
