//! The closed set of things that people are told, and how loudly.
//!
//! A notice holds plain fields: whoever raises it has judged already. It knows nothing of the words used for it
//! ([`mod@crate::render`]) nor of how it travels.

use crate::closed_set::closed_set;

closed_set! {
    /// How loudly something is said.
    pub enum Level {
        /// Somebody has to look now: ntfy priority 5.
        High = "high",
        /// Good to know: ntfy priority 3.
        Info = "info",
        /// A summary of things that were held back: ntfy priority 4.
        Digest = "digest",
        /// Something that was wrong no longer is: ntfy priority 2.
        Recovery = "recovery",
    }
}

impl Level {
    /// The level that a word from outside means; a word that is not known is [`Level::High`], so that a spelling
    /// mistake is never quiet.
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        word.parse().unwrap_or(Self::High)
    }

    /// ntfy's priority, 1 (lowest) to 5 (highest).
    #[must_use]
    pub const fn priority(self) -> u8 {
        match self {
            Self::High => 5,
            Self::Digest => 4,
            Self::Info => 3,
            Self::Recovery => 2,
        }
    }

    /// The one ntfy tag, a name that clients show as a picture before the title.
    #[must_use]
    pub const fn tag(self) -> &'static str {
        match self {
            Self::High => "rotating_light",
            Self::Info | Self::Recovery => "white_check_mark",
            Self::Digest => "clipboard",
        }
    }
}

closed_set! {
    /// What a notice is about, without its fields.
    pub enum Kind {
        /// See [`Notice::BreakerTripped`].
        BreakerTripped = "breaker-tripped",
        /// See [`Notice::OomKill`].
        OomKill = "oom-kill",
        /// See [`Notice::LaneDead`].
        LaneDead = "lane-dead",
        /// See [`Notice::BackWithLanesLost`].
        BackWithLanesLost = "back-with-lanes-lost",
        /// See [`Notice::Parked`].
        Parked = "parked",
        /// See [`Notice::Blocked`].
        Blocked = "blocked",
        /// See [`Notice::DeadlineEnded`].
        DeadlineEnded = "deadline-ended",
        /// See [`Notice::StoreDegraded`].
        StoreDegraded = "store-degraded",
        /// See [`Notice::StoreRecovered`].
        StoreRecovered = "store-recovered",
        /// See [`Notice::Intruder`].
        Intruder = "intruder",
        /// See [`Notice::ClaimLost`].
        ClaimLost = "claim-lost",
        /// See [`Notice::HoldBegan`].
        HoldBegan = "hold-began",
        /// See [`Notice::GateResult`].
        GateResult = "gate-result",
        /// See [`Notice::NoticesDropped`].
        NoticesDropped = "notices-dropped",
        /// See [`Notice::Text`].
        Text = "text",
        /// See [`Notice::Test`].
        Test = "test",
    }
}

/// Every kind of notice.
pub const KINDS: &[Kind] = Kind::ALL;

/// What orders notices that belong to no lane.
pub const BOX: &str = "box";

/// Something that people are told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A lane failed so often that it is not started any more.
    BreakerTripped {
        /// Lane id.
        lane: String,
        /// Failures counted within the window.
        failures: u32,
        /// Failures that trip the breaker.
        limit: u32,
        /// The window in seconds.
        window_s: u64,
        /// Verdict of the last run.
        last_verdict: String,
        /// Seconds until the lane is tried again by itself; none if it waits for an order.
        next_try_s: Option<u64>,
    },
    /// The kernel, or a daemon in its place, killed a process of a lane for memory.
    OomKill {
        /// Lane id.
        lane: String,
        /// Run that the victim belonged to.
        run: String,
        /// Process id of the victim; none if only a counter told of it.
        victim_pid: Option<u32>,
        /// The victim's `comm`, as the kernel printed it.
        victim_comm: Option<String>,
        /// Resident memory of the victim in kB, where the record says it.
        rss_kb: Option<u64>,
        /// The cgroup's memory limit in bytes, where there is one.
        limit_bytes: Option<u64>,
        /// Path of the cgroup that ran out.
        cgroup: Option<String>,
        /// How the end was classified, such as `oom-memcg`.
        class: String,
    },
    /// A lane that should have a live process has none.
    LaneDead {
        /// Lane id.
        lane: String,
        /// Liveness verdict, such as `DEAD-NO-PROCESS`.
        verdict: String,
        /// The evidence.
        detail: String,
        /// Process id that was looked for.
        pid: Option<u32>,
    },
    /// The warden is back after a pause, and lanes were lost meanwhile.
    BackWithLanesLost {
        /// Lane id and liveness verdict of each.
        lanes: Vec<(String, String)>,
        /// How many lanes were found alive and taken over.
        adopted: u32,
    },
    /// A lane waits for a decision of its owner.
    Parked {
        /// Lane id.
        lane: String,
        /// Issue number, if known.
        issue: Option<u64>,
        /// What the worker asks.
        question: Option<String>,
    },
    /// A worker could not go on with its issue.
    Blocked {
        /// Lane id.
        lane: String,
        /// Issue number, if known.
        issue: Option<u64>,
        /// What it says is in the way.
        reason: String,
    },
    /// A run reached its deadline and was ended.
    DeadlineEnded {
        /// Lane id.
        lane: String,
        /// Run.
        run: String,
        /// How long it had run, in seconds.
        after_s: u64,
    },
    /// Records cannot be written.
    StoreDegraded {
        /// What failed.
        error: String,
        /// What to do about it.
        remedy: String,
    },
    /// Records can be written again.
    StoreRecovered,
    /// Somebody works in a lane beside its worker.
    Intruder {
        /// Lane id.
        lane: String,
        /// Who.
        pid: u32,
        /// Its `comm`, escaped.
        command: String,
        /// The lane's own worker.
        worker: u32,
    },
    /// A lane's claim was taken or changed by somebody else.
    ClaimLost {
        /// Lane id.
        lane: String,
        /// What was seen.
        detail: String,
    },
    /// A lane is not started because a check refuses.
    HoldBegan {
        /// Lane id.
        lane: String,
        /// The check's name.
        check: String,
        /// What it measured.
        detail: String,
    },
    /// The project's own verification command ended.
    GateResult {
        /// Its result; `PASS` is the only quiet one.
        result: String,
        /// Branch that was verified.
        branch: String,
        /// Commit that was verified.
        sha: String,
        /// Components that failed.
        failing: Vec<String>,
    },
    /// Notices were dropped because the queue was full or they grew too old.
    NoticesDropped {
        /// How many of each kind.
        kinds: Vec<(String, u64)>,
        /// When the oldest of them was raised, in Unix milliseconds.
        since_ms: i64,
    },
    /// A text that a person or script sends.
    Text {
        /// How loudly.
        level: Level,
        /// Title.
        title: String,
        /// Text.
        message: String,
    },
    /// A trial of the way to the phone.
    Test {
        /// How loudly.
        level: Level,
    },
}

impl Notice {
    /// What it is about.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::BreakerTripped { .. } => Kind::BreakerTripped,
            Self::OomKill { .. } => Kind::OomKill,
            Self::LaneDead { .. } => Kind::LaneDead,
            Self::BackWithLanesLost { .. } => Kind::BackWithLanesLost,
            Self::Parked { .. } => Kind::Parked,
            Self::Blocked { .. } => Kind::Blocked,
            Self::DeadlineEnded { .. } => Kind::DeadlineEnded,
            Self::StoreDegraded { .. } => Kind::StoreDegraded,
            Self::StoreRecovered => Kind::StoreRecovered,
            Self::Intruder { .. } => Kind::Intruder,
            Self::ClaimLost { .. } => Kind::ClaimLost,
            Self::HoldBegan { .. } => Kind::HoldBegan,
            Self::GateResult { .. } => Kind::GateResult,
            Self::NoticesDropped { .. } => Kind::NoticesDropped,
            Self::Text { .. } => Kind::Text,
            Self::Test { .. } => Kind::Test,
        }
    }

    /// How loudly it is said.
    #[must_use]
    pub fn level(&self) -> Level {
        match self {
            Self::BreakerTripped { .. }
            | Self::OomKill { .. }
            | Self::LaneDead { .. }
            | Self::BackWithLanesLost { .. }
            | Self::Parked { .. }
            | Self::StoreDegraded { .. }
            | Self::Intruder { .. }
            | Self::ClaimLost { .. }
            | Self::HoldBegan { .. } => Level::High,
            // One timeout or one obstacle is no emergency: the breaker pages when they repeat.
            Self::Blocked { .. } | Self::DeadlineEnded { .. } => Level::Info,
            Self::StoreRecovered => Level::Recovery,
            Self::NoticesDropped { .. } => Level::Digest,
            Self::GateResult { result, .. } if result == "PASS" => Level::Info,
            Self::GateResult { .. } => Level::High,
            Self::Text { level, .. } | Self::Test { level } => *level,
        }
    }

    /// The lane it is about, if it is about one.
    #[must_use]
    pub fn lane(&self) -> Option<&str> {
        match self {
            Self::BreakerTripped { lane, .. }
            | Self::OomKill { lane, .. }
            | Self::LaneDead { lane, .. }
            | Self::Parked { lane, .. }
            | Self::Blocked { lane, .. }
            | Self::DeadlineEnded { lane, .. }
            | Self::Intruder { lane, .. }
            | Self::ClaimLost { lane, .. }
            | Self::HoldBegan { lane, .. } => Some(lane),
            Self::BackWithLanesLost { .. }
            | Self::StoreDegraded { .. }
            | Self::StoreRecovered
            | Self::GateResult { .. }
            | Self::NoticesDropped { .. }
            | Self::Text { .. }
            | Self::Test { .. } => None,
        }
    }

    /// What it is kept in order with: notices of one subject reach people in the order in which they were raised.
    /// The lane, else [`BOX`].
    #[must_use]
    pub fn subject(&self) -> &str {
        self.lane().unwrap_or(BOX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_and_tags_are_those_of_the_contract() {
        let table: Vec<_> =
            Level::ALL.iter().map(|l| (l.as_str(), l.priority(), l.tag())).collect();
        assert_eq!(
            table,
            [
                ("high", 5, "rotating_light"),
                ("info", 3, "white_check_mark"),
                ("digest", 4, "clipboard"),
                ("recovery", 2, "white_check_mark"),
            ]
        );
    }

    #[test]
    fn what_is_not_recognised_is_loud() {
        assert_eq!(Level::from_word("completion"), Level::High);
        assert_eq!(Level::from_word("INFO"), Level::High);
        assert_eq!(Level::from_word("recovery"), Level::Recovery);
        let gate = |result: &str| Notice::GateResult {
            result: result.into(),
            branch: "main".into(),
            sha: "abc".into(),
            failing: vec![],
        };
        assert_eq!(gate("PASS").level(), Level::Info);
        for result in ["FAIL", "pass", "PASS ", "", "ERROR"] {
            assert_eq!(gate(result).level(), Level::High, "{result:?}");
        }
    }

    #[test]
    fn spellings_are_kebab_case_and_unique() {
        let mut seen = std::collections::BTreeSet::new();
        for kind in KINDS {
            let word = kind.as_str();
            assert!(word.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{word}");
            assert!(seen.insert(word), "{word} twice");
            assert_eq!(word.parse(), Ok(*kind));
        }
    }
}
