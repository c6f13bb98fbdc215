//! Verdicts as the one line that the predecessor prints.

use super::lane_lock::LaneLock;
use crate::decide::issue::{AdoptedHow, Expect, ReleasedHow, SmokeFailure, Verdict, Who};

/// Branches that a refusal names.
const MOST_BRANCHES: usize = 8;
const REMEDY: &str = "(NOT retryable: this machine has no working git credentials for the remote; set up its ssh key, token or credential helper first)";

/// What a line needs beside the verdict.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    /// The issue's number.
    pub(super) issue: &'a str,
    /// The full name of the lock.
    pub(super) ref_name: &'a str,
    /// The remote, shown harmless.
    pub(super) remote: &'a str,
    /// Us.
    pub(super) me: &'a Who,
    /// An adoption's expectation and audit.
    pub(super) adoption: Option<(&'a Expect, Option<(&'static str, &'a str)>)>,
    /// The lane lock's answer: it decorates and never decides.
    pub(super) lane_lock: &'a LaneLock,
}

/// The line, without its end.
pub(super) fn line(verdict: &Verdict, on: &Subject<'_>) -> String {
    format!("CLAIM: {}", words(verdict, on))
}

fn words(verdict: &Verdict, on: &Subject<'_>) -> String {
    let Subject { issue, ref_name, remote, me, .. } = on;
    let head = format!("issue={issue} ref={ref_name}");
    let us = format!("machine={} actor={}", me.machine, me.actor);
    match verdict {
        Verdict::Held { oid, reentrant } => {
            let tail = if *reentrant { " (re-entrant)" } else { "" };
            format!("HELD {head} sha={oid} {us} lane-lock={}{tail}", on.lane_lock.state())
        }
        Verdict::Lost { oid, holder, pid } => {
            let pid = pid.map(|pid| format!(" holder-pid={pid}")).unwrap_or_default();
            format!("LOST {head} sha={oid} {}{pid}", theirs(holder))
        }
        Verdict::LegacyBranch { refs } => {
            let lock = on.lane_lock;
            let (reason, where_, advice) = lock.legacy();
            format!(
                "LOST issue={issue} reason={reason} detail={} exists on {remote} claim-ref=free resume=documented-procedure lane-evidence={} lane-lock={}{where_} ({advice})",
                branches(refs),
                lock.evidence(),
                lock.state(),
            )
        }
        Verdict::VerifyOk { oid } => format!("VERIFY-OK {head} sha={oid} {us}"),
        Verdict::NoClaimRef => format!("VERIFY-FAIL issue={issue} reason=no-claim-ref"),
        Verdict::VerifyFail { oid, holder } => format!(
            "VERIFY-FAIL {head} sha={oid} {} wanted-machine={} wanted-actor={}",
            theirs(holder),
            me.machine,
            me.actor
        ),
        Verdict::Adopted { oid, how } => {
            format!("ADOPTED {head} sha={oid} {us}{}", adopted(*how, oid, on))
        }
        Verdict::AdoptLost { actual } => {
            let expected = expected(on);
            match actual {
                Some((oid, holder)) => {
                    format!("ADOPT-LOST {head} expected={expected} actual={oid} {}", theirs(holder))
                }
                None => {
                    format!("ADOPT-LOST {head} expected={expected} actual=<gone> holder=unknown")
                }
            }
        }
        Verdict::Released { how, oid } => {
            let sha = match (how, oid) {
                (ReleasedHow::Absent, _) | (ReleasedHow::Cas | ReleasedHow::Force, None) => {
                    String::new()
                }
                (ReleasedHow::Cas | ReleasedHow::Force, Some(oid)) => format!(" sha={oid}"),
            };
            format!("RELEASED {head}{sha} ({how})")
        }
        Verdict::NotHolder { oid, holder } => format!(
            "RELEASE-REFUSED issue={issue} reason=not-holder ref={ref_name} sha={oid} {}",
            theirs(holder)
        ),
        Verdict::OpenPr => format!("RELEASE-REFUSED issue={issue} reason=open-pr open-prs=1"),
        Verdict::OpenPrUnknown => format!(
            "RELEASE-REFUSED issue={issue} reason=open-pr-check-unavailable (configure [forge], or set CLAIM_OPEN_PR_CMD to a command that ends with 0 if a pull request of the issue is open and with 1 if none is)"
        ),
        Verdict::SmokeOk => format!(
            "SMOKE-OK remote={remote} namespace=refs/claims/* (created, read back and deleted)"
        ),
        Verdict::SmokeFail(failure) => smoke(failure, on),
        Verdict::Infra { detail, oid } => {
            let sha = oid.as_ref().map(|oid| format!(" sha={oid}")).unwrap_or_default();
            let at = if detail.names_remote() { format!("-on-{remote}") } else { String::new() };
            format!("ERROR reason=infra {head}{sha} detail={detail}{at} (transient \u{2014} retry)")
        }
        Verdict::Auth { detail, oid } => {
            let which =
                oid.as_ref().map_or_else(|| format!("ref={ref_name}"), |oid| format!("sha={oid}"));
            format!("ERROR reason=auth issue={issue} detail={detail} {which} {REMEDY}")
        }
    }
}

fn theirs(holder: &Who) -> String {
    // The predecessor puts the prefix on the machine only.
    format!("holder-machine={} actor={}", holder.machine, holder.actor)
}

fn expected(on: &Subject<'_>) -> String {
    match on.adoption {
        Some((Expect::Oid(oid), _)) => oid.clone(),
        Some((Expect::Nothing, _)) | None => "none".to_owned(),
    }
}

fn adopted(how: AdoptedHow, oid: &str, on: &Subject<'_>) -> String {
    let from = expected(on);
    match how {
        AdoptedHow::Now => {
            let audit = on.adoption.and_then(|(_, audit)| audit);
            let audit = audit.map(|(mode, reason)| format!(" mode={mode} reason={reason}"));
            format!(" from={from}{}", audit.unwrap_or_default())
        }
        AdoptedHow::Again => format!(" from={from} (re-entrant)"),
        AdoptedHow::LeaseMismatch => format!(
            " (re-entrant, lease-mismatch expected={from} actual={oid}: it was ours already)"
        ),
    }
}

fn smoke(failure: &SmokeFailure, on: &Subject<'_>) -> String {
    let head = format!("SMOKE-FAIL remote={}", on.remote);
    match failure {
        SmokeFailure::CommitBuild => format!("{head} reason=commit-build"),
        SmokeFailure::Auth => format!("{head} ref={} reason=auth {REMEDY}", on.ref_name),
        SmokeFailure::PushRejected => format!("{head} ref={} reason=push-rejected", on.ref_name),
        SmokeFailure::Mismatch { seen, expected, cleaned } => {
            let seen = seen.as_deref().unwrap_or("none");
            let cleanup = if *cleaned { "" } else { " cleanup-delete=FAILED" };
            format!(
                "{head} ref={} reason=ls-remote-mismatch seen={seen} expected={expected}{cleanup}",
                on.ref_name
            )
        }
        SmokeFailure::CleanupUnverified => {
            format!(
                "{head} ref={} reason=cleanup-unverified (the ref may be left there; it claims nothing)",
                on.ref_name
            )
        }
    }
}

/// Names of branches, whose text anybody chose, as one token.
fn branches(refs: &[String]) -> String {
    let mut shown: Vec<String> =
        refs.iter().take(MOST_BRANCHES).map(|name| crate::claims::sanitise(name)).collect();
    if refs.len() > MOST_BRANCHES {
        shown.push(format!("and-{}-more", refs.len() - MOST_BRANCHES));
    }
    shown.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::issue::{AuthDetail, InfraDetail};

    fn said(
        verdict: &Verdict,
        adoption: Option<(&Expect, Option<(&'static str, &str)>)>,
    ) -> String {
        let me = Who { machine: "box-a".into(), actor: "flow".into() };
        let ref_name = "refs/claims/issue-7";
        let lane_lock = &LaneLock::default();
        line(
            verdict,
            &Subject { issue: "7", ref_name, remote: "origin", me: &me, adoption, lane_lock },
        )
    }

    #[test]
    fn lines_are_those_of_the_predecessor() {
        let them = Who { machine: "box-b".into(), actor: "flow".into() };
        let held = Verdict::Held { oid: "abc".into(), reentrant: true };
        assert_eq!(
            said(&held, None),
            "CLAIM: HELD issue=7 ref=refs/claims/issue-7 sha=abc machine=box-a actor=flow lane-lock=unmeasured(not-probed) (re-entrant)"
        );
        let lost = Verdict::Lost { oid: "abc".into(), holder: them.clone(), pid: None };
        assert_eq!(
            said(&lost, None),
            "CLAIM: LOST issue=7 ref=refs/claims/issue-7 sha=abc holder-machine=box-b actor=flow"
        );
        let infra = Verdict::Infra { detail: InfraDetail::Listing, oid: None };
        assert_eq!(
            said(&infra, None),
            "CLAIM: ERROR reason=infra issue=7 ref=refs/claims/issue-7 detail=ls-remote-unreachable-on-origin (transient \u{2014} retry)"
        );
        let cas = Expect::Oid("old".into());
        let now = Verdict::Adopted { oid: "new".into(), how: AdoptedHow::Now };
        assert_eq!(
            said(&now, Some((&cas, Some(("cas", "owner-left"))))),
            "CLAIM: ADOPTED issue=7 ref=refs/claims/issue-7 sha=new machine=box-a actor=flow from=old mode=cas reason=owner-left"
        );
        let gone = Verdict::AdoptLost { actual: None };
        assert_eq!(
            said(&gone, Some((&cas, None))),
            "CLAIM: ADOPT-LOST issue=7 ref=refs/claims/issue-7 expected=old actual=<gone> holder=unknown"
        );
        let absent = Verdict::Released { how: ReleasedHow::Absent, oid: None };
        assert_eq!(
            said(&absent, None),
            "CLAIM: RELEASED issue=7 ref=refs/claims/issue-7 (already absent)"
        );
    }

    #[test]
    fn a_refusal_prints_nothing_that_can_be_run() {
        let refs: Vec<String> = (0..20).map(|n| format!("refs/heads/issue-7-$(x){n}")).collect();
        let text = said(&Verdict::LegacyBranch { refs }, None);
        for runnable in ["adopt", "--expect", "lanewarden", "$(", "`", "git "] {
            assert!(!text.contains(runnable), "{text}");
        }
        assert!(text.contains("and-12-more exists on origin claim-ref=free"), "{text}");
    }

    #[test]
    fn credentials_are_nothing_to_try_again() {
        for &detail in AuthDetail::ALL {
            let text = said(&Verdict::Auth { detail, oid: None }, None);
            assert!(text.contains("NOT retryable") && !text.contains("transient"), "{text}");
        }
    }
}
