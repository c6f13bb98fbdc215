//! How did the run end, in our words?

use lanewarden_probes::{ending::Ending, kmsg::ChannelState};
use serde::{Deserialize, Serialize};

use super::{
    attribution::{LaneKill, SigkillFacts, class, sigkill_end},
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
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
    /// Those of them that no record names and that were known while the worker lived.
    pub unnamed_before: u64,
    /// Those that the kernel log named.
    pub named: &'a [LaneKill],
    /// Processes that used the worker's address space.
    pub sharing: &'a [u32],
    /// When it ended, milliseconds since the epoch.
    pub ended_at_ms: i64,
    /// How the kernel log is: what it does not say proves nothing unless it is open.
    pub kernel_log: ChannelState,
}

impl<'a> EndFacts<'a> {
    /// What is known of a SIGKILL among them.
    const fn sigkill(&self, pid: u32, our_kill: bool) -> SigkillFacts<'a> {
        SigkillFacts {
            pid,
            our_kill,
            counted: self.counted,
            unnamed_before: self.unnamed_before,
            named: self.named,
            sharing: self.sharing,
            ended_at_ms: self.ended_at_ms,
        }
    }
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
            // That it ended is what we ordered, however it did.
            let ordered = facts.ordered.map(|cause| ordered(cause, "exit status not learnt"));
            ordered.unwrap_or_else(|| {
                let words = "the worker ended while nobody could learn how";
                plain(RunVerdict::Vanished, words.to_owned())
            })
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
    let near = |kill: &&LaneKill| (facts.ended_at_ms - kill.read_at_ms).abs() <= OOM_NEAR_END_MS;
    let named = facts.named.iter().rfind(near);
    // 137 is what a shell makes of a child's SIGKILL. By itself it is a hint; beside a counter that has just grown it is
    // the cause.
    let counted = code == 128 + SIGKILL && facts.sigkill(facts.pid, false).unnamed() > 0;
    if named.is_some() || counted {
        let end = named.map_or(SigkillEnd::OomUnnamed, |kill| class(kill.kill.kind));
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
    let end = (signal == SIGKILL).then(|| sigkill_end(facts.sigkill(facts.pid, facts.our_kill)));
    let shown =
        if core { format!("signal {signal}, core dumped") } else { format!("signal {signal}") };
    let judged = if end.is_some_and(SigkillEnd::is_oom) {
        plain(RunVerdict::OomKilled, "an OOM killer ended the worker".to_owned())
    } else if let Some(cause) = facts.ordered {
        ordered(cause, &shown)
    } else {
        plain(RunVerdict::Signalled, format!("{shown}, {}", nobodys(facts, end)))
    };
    JudgedEnd { end, ..judged }
}

/// What is said of a signal that is neither ours nor a known OOM killer's.
fn nobodys(facts: &EndFacts<'_>, end: Option<SigkillEnd>) -> String {
    let state = facts.kernel_log;
    match (end, facts.counted) {
        // Only SIGKILL is an OOM killer's, and only a counter or a log that was read can rule it out.
        (Some(_), None) if state != ChannelState::Open => format!(
            "not ours; whether an OOM killer sent it cannot be told: no cgroup counts for this run, and the kernel log is {state}"
        ),
        (Some(_) | None, Some(_) | None) => "not ours and no OOM killer's".to_owned(),
    }
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

#[cfg(test)]
mod tests {
    use lanewarden_probes::oom::OomKill;
    use proptest::prelude::*;

    use super::*;
    use crate::decide::evidence::Evidence;

    const ENDED_AT: i64 = 1_000_000;

    fn marker(outcome: Outcome) -> Marker {
        Marker { outcome, issue: Some(7), pr: Some("12".to_owned()), reason: None, question: None }
    }

    fn kill(pid: u32, before_end_ms: i64) -> LaneKill {
        let kill: OomKill =
            serde_json::from_value(serde_json::json!({"pid": pid, "kind": "memcg"})).unwrap();
        let proof = crate::decide::attribution::Proof::Cgroup;
        LaneKill { kill, read_at_ms: ENDED_AT - before_end_ms, proof, conflict: None }
    }

    fn exited(code: u8) -> KnownEnd {
        KnownEnd::Known(Ending::Exited { code })
    }

    fn signal(signal: u8) -> KnownEnd {
        KnownEnd::Known(Ending::Signalled { signal, core: false })
    }

    /// Facts about worker 10: no marker, no order, a counter that stands still.
    fn facts(end: KnownEnd) -> EndFacts<'static> {
        EndFacts {
            end,
            pid: 10,
            marker: &MarkerFinding::Missing,
            ordered: None,
            our_kill: false,
            counted: Some(0),
            unnamed_before: 0,
            named: &[],
            sharing: &[],
            ended_at_ms: ENDED_AT,
            kernel_log: ChannelState::Open,
        }
    }

    fn with<'a>(marker: &'a MarkerFinding, end: KnownEnd) -> EndFacts<'a> {
        EndFacts { marker, ..facts(end) }
    }

    /// Every kind of facts that leads to the verdict.
    fn leading_to(verdict: RunVerdict) -> Vec<JudgedEnd> {
        let valid = |outcome| MarkerFinding::Valid(marker(outcome));
        let parked = MarkerFinding::Valid(Marker {
            reason: Some("seam1-approval".to_owned()),
            ..marker(Outcome::Blocked)
        });
        let invalid = MarkerFinding::Invalid("no outcome".to_owned());
        let stale = MarkerFinding::Stale { run: "x".to_owned() };
        let (own, child) = ([kill(10, 5)], [kill(11, 5)]);
        let by = |ordered, end| EndFacts { ordered: Some(ordered), ..facts(end) };
        let all = match verdict {
            RunVerdict::Finalized => {
                let marker = valid(Outcome::Finalized);
                return [exited(0), KnownEnd::Unknown]
                    .map(|end| judge(&with(&marker, end)))
                    .to_vec();
            }
            RunVerdict::NoWork => return vec![judge(&with(&valid(Outcome::NoWork), exited(0)))],
            RunVerdict::Blocked => return vec![judge(&with(&valid(Outcome::Blocked), exited(0)))],
            RunVerdict::ParkedOnOwner => return vec![judge(&with(&parked, exited(0)))],
            RunVerdict::MarkerInvalid => return vec![judge(&with(&invalid, exited(0)))],
            RunVerdict::MarkerStale => return vec![judge(&with(&stale, exited(0)))],
            // A marker cannot turn a failure into a success.
            RunVerdict::Failed => {
                let mut all = vec![judge(&with(&valid(Outcome::Finalized), exited(1)))];
                // 137 alone is a hint, an old kill in the tree is another story.
                all.push(judge(&facts(exited(137))));
                let old = [kill(11, 60_000)];
                all.push(judge(&EndFacts { named: &old, counted: Some(1), ..facts(exited(1)) }));
                all.push(judge(&EndFacts { named: &old, counted: Some(1), ..facts(exited(137)) }));
                return all;
            }
            RunVerdict::Signalled => {
                let beside = EndFacts { named: &child, counted: Some(1), ..facts(signal(9)) };
                vec![facts(signal(11)), facts(signal(9)), facts(signal(15)), beside]
            }
            RunVerdict::OomKilled => vec![
                EndFacts { named: &own, counted: Some(1), ..facts(signal(9)) },
                EndFacts { named: &child, sharing: &[11], counted: Some(1), ..facts(signal(9)) },
                EndFacts { counted: Some(1), ..facts(signal(9)) },
                EndFacts { named: &child, counted: Some(1), ..facts(exited(1)) },
                EndFacts { counted: Some(1), ..facts(exited(137)) },
                // It was killed for memory while we waited for it to end.
                EndFacts { named: &own, counted: Some(1), ..by(StopCause::Order, signal(9)) },
            ],
            RunVerdict::Deadline => vec![
                by(StopCause::Deadline, signal(15)),
                by(StopCause::Deadline, exited(143)),
                by(StopCause::Deadline, exited(0)),
                EndFacts { our_kill: true, ..by(StopCause::Deadline, signal(9)) },
            ],
            // Nothing finds out that a worker waits for an answer.
            RunVerdict::StuckOnQuestion => return Vec::new(),
            RunVerdict::MarkerMissing => vec![facts(exited(0))],
            RunVerdict::NotStarted => vec![facts(KnownEnd::NotStarted)],
            RunVerdict::Stopped => vec![
                by(StopCause::Order, signal(15)),
                by(StopCause::Restart, exited(1)),
                by(StopCause::Order, exited(0)),
                EndFacts { our_kill: true, ..by(StopCause::Order, signal(9)) },
            ],
            RunVerdict::Vanished => vec![facts(KnownEnd::Unknown)],
        };
        all.iter().map(judge).collect()
    }

    #[test]
    fn every_verdict_has_facts_that_lead_to_it() {
        let mut unproduced = Vec::new();
        for &verdict in RunVerdict::ALL {
            let judged = leading_to(verdict);
            if judged.is_empty() {
                unproduced.push(verdict);
            }
            for judged in judged {
                assert_eq!(judged.verdict, verdict, "{judged:?}");
                assert!(!judged.reason.is_empty());
            }
        }
        assert_eq!(unproduced, [RunVerdict::StuckOnQuestion]);
    }

    #[test]
    fn who_ended_it_is_told_beside_the_verdict() {
        let ends = |verdict| -> Vec<Option<SigkillEnd>> {
            leading_to(verdict).into_iter().map(|judged| judged.end).collect()
        };
        assert_eq!(
            ends(RunVerdict::Signalled),
            [None, Some(SigkillEnd::Unexplained), None, Some(SigkillEnd::Unexplained)]
        );
        assert_eq!(ends(RunVerdict::Stopped)[3], Some(SigkillEnd::KilledByUs));
        assert_eq!(
            ends(RunVerdict::OomKilled),
            [
                Some(SigkillEnd::OomMemcg),
                Some(SigkillEnd::CoVictim),
                Some(SigkillEnd::OomUnnamed),
                Some(SigkillEnd::OomMemcg),
                Some(SigkillEnd::OomUnnamed),
                Some(SigkillEnd::OomMemcg),
            ]
        );
    }

    #[test]
    fn a_closed_kernel_log_is_said_where_nothing_else_can_tell() {
        let blind =
            EndFacts { counted: None, kernel_log: ChannelState::Denied, ..facts(signal(9)) };
        let reason = judge(&blind).reason;
        assert!(reason.contains("cannot be told") && reason.contains("denied"), "{reason}");
        let counted = EndFacts { counted: Some(0), ..blind };
        assert!(judge(&counted).reason.contains("no OOM killer's"), "its counter stands still");
    }

    #[test]
    fn a_finalized_run_is_unverified_until_a_forge_confirms_it() {
        for judged in leading_to(RunVerdict::Finalized) {
            assert_eq!((judged.verified, judged.issue), (Verified::Unverified, Some(7)));
        }
    }

    fn finding() -> impl Strategy<Value = MarkerFinding> {
        prop_oneof![
            Just(MarkerFinding::Missing),
            ".{0,20}".prop_map(MarkerFinding::Invalid),
            ".{0,20}".prop_map(|run| MarkerFinding::Stale { run }),
            prop_oneof![Just(Outcome::Finalized), Just(Outcome::NoWork), Just(Outcome::Blocked)]
                .prop_map(|outcome| MarkerFinding::Valid(marker(outcome))),
        ]
    }

    fn end() -> impl Strategy<Value = KnownEnd> {
        prop_oneof![
            Just(KnownEnd::Unknown),
            Just(KnownEnd::NotStarted),
            prop_oneof![Just(0), Just(137), any::<u8>()].prop_map(exited),
            prop_oneof![Just(9), 1_u8..64].prop_map(signal),
        ]
    }

    fn cause() -> impl Strategy<Value = Option<StopCause>> {
        proptest::option::of(prop_oneof![
            Just(StopCause::Deadline),
            Just(StopCause::Order),
            Just(StopCause::Restart)
        ])
    }

    proptest! {
        #[test]
        fn nothing_is_judged_better_than_it_is(
            end in end(),
            marker in finding(),
            ordered in cause(),
            our_kill in any::<bool>(),
            counted in proptest::option::of(0_u64..3),
            kills in proptest::collection::vec((9_u32..12, 0_i64..5000), 0..3),
            unnamed_before in 0_u64..2,
            sharing in proptest::collection::vec(9_u32..12, 0..2),
        ) {
            let named: Vec<LaneKill> = kills.iter().map(|&(pid, before)| kill(pid, before)).collect();
            let facts = EndFacts {
                end, pid: 10, marker: &marker, ordered, our_kill, counted, unnamed_before, named: &named,
                sharing: &sharing, ended_at_ms: ENDED_AT, kernel_log: ChannelState::Open,
            };
            let judged = judge(&facts);
            // What is stored leads to the same verdict.
            let stored = serde_json::to_string(&Evidence::of(&facts)).unwrap();
            let read: Evidence = serde_json::from_str(&stored).unwrap();
            prop_assert_eq!(&judge(&read.facts()), &judged);
            let valid = matches!(marker, MarkerFinding::Valid(_));
            let good = matches!(
                judged.verdict,
                RunVerdict::Finalized | RunVerdict::NoWork | RunVerdict::Blocked | RunVerdict::ParkedOnOwner
            );
            // Only exit 0 or an end that nobody saw, and a marker of this very run, is good.
            prop_assert!(!good || valid && (end == exited(0) || end == KnownEnd::Unknown));
            // What we did not order and what is not good is a failure.
            prop_assert!(good || judged.verdict.is_failure() || ordered.is_some());
            if end == KnownEnd::Unknown && !valid {
                // Not learning how is no excuse for what we did ourselves.
                let vanished = judged.verdict == RunVerdict::Vanished;
                prop_assert_eq!(vanished, ordered.is_none());
            }
            if judged.verdict == RunVerdict::OomKilled {
                prop_assert!(judged.end.is_some_and(SigkillEnd::is_oom));
                prop_assert!(counted.unwrap_or(0) > 0 || !named.is_empty(), "with evidence only");
            }
            prop_assert!(judged.verdict != RunVerdict::Stopped || ordered.is_some());
        }
    }
}
