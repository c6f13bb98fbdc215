//! How did the run end, in our words?

use lanewarden_probes::ending::Ending;

use super::{
    attribution::{LaneKill, SigkillFacts, sigkill_end},
    marker::{Marker, MarkerFinding, Outcome, asks_owner},
};
use crate::verdict::{RunVerdict, SigkillEnd, Verified};

/// SIGKILL, signal(7).
const SIGKILL: u8 = 9;

/// How long before a worker's failing exit an OOM kill in its tree may lie and still be the cause, milliseconds.
///
/// A shell, make or npm that loses its child reports it and exits within moments; an agent whose tool call was killed an
/// hour ago and that fails now fails for another reason.
const OOM_NEAR_END_MS: i64 = 2_000;

/// Why we ended a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// Its deadline.
    Deadline,
    /// An operator's order, or our own stop with workers.
    Order,
    /// An operator's order to restart.
    Restart,
}

/// What is known of the wait status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KnownEnd {
    /// The parent, or the kernel through a pidfd, told it.
    Known(Ending),
    /// It ended while nobody could learn how.
    Unknown,
    /// The program never ran.
    NotStarted,
}

/// Everything from which a run is judged.
#[derive(Debug, Clone)]
pub struct EndFacts<'a> {
    /// The wait status.
    pub end: KnownEnd,
    /// The worker's pid; 0 if there never was one.
    pub pid: u32,
    /// What its marker says.
    pub marker: &'a MarkerFinding,
    /// Our own order to end it.
    pub ordered: Option<StopCause>,
    /// Whether we sent SIGKILL to the tree.
    pub our_kill: bool,
    /// OOM kills in its cgroup during the run.
    pub counted: Option<u64>,
    /// Those that the kernel log named.
    pub named: &'a [LaneKill],
    /// When it ended, milliseconds since the epoch.
    pub ended_at_ms: i64,
}

/// A judged end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgedEnd {
    /// The verdict.
    pub verdict: RunVerdict,
    /// Who ended it, if SIGKILL did.
    pub end: Option<SigkillEnd>,
    /// Whether the forge confirmed a `finalized` run.
    pub verified: Verified,
    /// One sentence for people.
    pub reason: String,
    /// The issue that the marker names.
    pub issue: Option<u64>,
    /// What the owner is asked, for a parked run.
    pub question: Option<String>,
}

/// Judges a run.
#[must_use]
pub fn judge(facts: &EndFacts<'_>) -> JudgedEnd {
    match facts.end {
        KnownEnd::NotStarted => plain(RunVerdict::NotStarted, "the program never ran".to_owned()),
        KnownEnd::Unknown => unknown(facts),
        KnownEnd::Known(Ending::Exited { code: 0 }) => finished(facts),
        KnownEnd::Known(Ending::Exited { code }) => failed(facts, code),
        KnownEnd::Known(Ending::Signalled { signal, core }) => signalled(facts, signal, core),
    }
}

fn unknown(facts: &EndFacts<'_>) -> JudgedEnd {
    // A complete marker of this very run is evidence of its own; without it nothing is known.
    match facts.marker {
        MarkerFinding::Valid(marker) => {
            let mut judged = by_marker(marker);
            judged.reason.push_str("; the exit status could not be learnt");
            judged
        }
        MarkerFinding::Missing | MarkerFinding::Invalid(_) | MarkerFinding::Stale { .. } => {
            plain(RunVerdict::Vanished, "the worker ended while nobody could learn how".to_owned())
        }
    }
}

fn finished(facts: &EndFacts<'_>) -> JudgedEnd {
    match (facts.marker, facts.ordered) {
        (MarkerFinding::Valid(marker), _) => by_marker(marker),
        (_, Some(cause)) => ordered(cause, "exit 0"),
        (MarkerFinding::Missing, None) => {
            plain(RunVerdict::MarkerMissing, "exit 0, and the worker left no marker".to_owned())
        }
        (MarkerFinding::Invalid(why), None) => {
            plain(RunVerdict::MarkerInvalid, format!("exit 0, and the marker is not one: {why}"))
        }
        (MarkerFinding::Stale { run }, None) => {
            plain(RunVerdict::MarkerStale, format!("exit 0, and the marker is that of run {run:?}"))
        }
    }
}

fn failed(facts: &EndFacts<'_>, code: u8) -> JudgedEnd {
    if let Some(cause) = facts.ordered {
        return ordered(cause, &format!("exit {code}"));
    }
    let counted = facts.counted.unwrap_or(0) > 0 || !facts.named.is_empty();
    let near = facts
        .named
        .iter()
        .any(|kill| (facts.ended_at_ms - kill.read_at_ms).abs() <= OOM_NEAR_END_MS);
    // 137 is what a shell makes of a child's SIGKILL. By itself it is a hint; beside the counter it is the cause.
    if counted && (near || code == 128 + SIGKILL) {
        let end = facts.named.first().map_or(SigkillEnd::OomUnnamed, |kill| {
            sigkill_end(SigkillFacts {
                pid: kill.kill.pid,
                our_kill: false,
                counted: facts.counted,
                named: facts.named,
            })
        });
        return JudgedEnd {
            end: Some(end),
            ..plain(
                RunVerdict::OomKilled,
                format!("exit {code} after an OOM kill in the worker's tree"),
            )
        };
    }
    plain(RunVerdict::Failed, format!("exit {code}"))
}

fn signalled(facts: &EndFacts<'_>, signal: u8, core: bool) -> JudgedEnd {
    let end = (signal == SIGKILL).then(|| {
        sigkill_end(SigkillFacts {
            pid: facts.pid,
            our_kill: facts.our_kill,
            counted: facts.counted,
            named: facts.named,
        })
    });
    let shown =
        if core { format!("signal {signal}, core dumped") } else { format!("signal {signal}") };
    let judged = if end.is_some_and(SigkillEnd::is_oom) {
        plain(RunVerdict::OomKilled, "an OOM killer ended the worker".to_owned())
    } else if let Some(cause) = facts.ordered {
        ordered(cause, &shown)
    } else {
        plain(RunVerdict::Signalled, format!("{shown}, not ours and no OOM killer's"))
    };
    JudgedEnd { end, ..judged }
}

fn by_marker(marker: &Marker) -> JudgedEnd {
    let (verdict, reason) = match marker.outcome {
        Outcome::Finalized => {
            let issue = marker.issue.map_or_else(String::new, |issue| format!(" issue {issue}"));
            (
                RunVerdict::Finalized,
                format!("finalized{issue}; no forge is configured to confirm it"),
            )
        }
        Outcome::NoWork => (RunVerdict::NoWork, "nothing to do".to_owned()),
        Outcome::Blocked if asks_owner(marker.reason.as_deref()) => {
            (RunVerdict::ParkedOnOwner, "waits for a decision of its owner".to_owned())
        }
        Outcome::Blocked => {
            let why = marker.reason.as_deref().unwrap_or("no reason given");
            (RunVerdict::Blocked, format!("blocked: {why}"))
        }
    };
    let verified = match marker.outcome {
        Outcome::Finalized => Verified::Unverified,
        Outcome::NoWork | Outcome::Blocked => Verified::NotAsked,
    };
    JudgedEnd {
        verified,
        issue: marker.issue,
        question: marker.question.clone().or_else(|| marker.reason.clone()),
        ..plain(verdict, reason)
    }
}

fn ordered(cause: StopCause, how: &str) -> JudgedEnd {
    match cause {
        StopCause::Deadline => {
            plain(RunVerdict::Deadline, format!("ended at its deadline ({how})"))
        }
        StopCause::Order | StopCause::Restart => {
            plain(RunVerdict::Stopped, format!("ended on order ({how})"))
        }
    }
}

fn plain(verdict: RunVerdict, reason: String) -> JudgedEnd {
    JudgedEnd {
        verdict,
        end: None,
        verified: Verified::NotAsked,
        reason,
        issue: None,
        question: None,
    }
}
