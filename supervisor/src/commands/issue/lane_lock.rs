//! What the machine-local lane lock says beside an issue lock's verdict. It is asked read-only, it explains, and it never
//! changes a verdict's word or exit code.

use std::{
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

use serde_json::Value;

use crate::{
    claims::{issue::legacy_prefix, sanitise},
    lanes::{
        answer::{Answer, Verdict},
        desk::Desk,
    },
};

/// The longest that a look at the lane lock may take: a lane may be on a disk that hangs.
const DEADLINE: Duration = Duration::from_secs(20);
/// What `timeout` ends with, by which the predecessor names a look that was cut.
const CUT: u8 = 124;

/// What was seen of the lane lock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LaneLock {
    state: Option<String>,
    /// The lock is exactly ours.
    ours: bool,
    /// Another living process of this machine has it: its lane's directory and pid.
    peer: Option<(String, u64)>,
    /// A checkout in the lane is on this branch of the issue.
    branch: Option<String>,
}

impl LaneLock {
    fn unmeasured(cause: &str) -> Self {
        Self { state: Some(format!("unmeasured({cause})")), ..Self::default() }
    }

    /// The word behind `lane-lock=`.
    pub(super) fn state(&self) -> &str {
        self.state.as_deref().unwrap_or("unmeasured(not-probed)")
    }

    /// The tokens behind `lane-evidence=`.
    pub(super) fn evidence(&self) -> String {
        let mut tokens = Vec::new();
        if self.ours {
            tokens.push("lane-lock-self".to_owned());
        }
        if self.peer.is_some() {
            tokens.push("lane-lock-alive-local-peer".to_owned());
        }
        if let Some(branch) = &self.branch {
            tokens.push(format!("lane-worktree-branch:{branch}"));
        }
        if tokens.is_empty() { "none".to_owned() } else { tokens.join(",") }
    }

    /// Why a branch refuses a claim: by reason, further fields and advice.
    pub(super) fn legacy(&self) -> (&'static str, String, &'static str) {
        if self.ours {
            return (
                "released-then-resumed",
                String::new(),
                "this very process holds the issue's lane: the lock was given back and the work goes on. Ask with verify who holds the issue, and claim only when its owner says so; this is no abandoned work, and the procedure for abandoned work does not apply",
            );
        }
        match &self.peer {
            Some((dir, pid)) => (
                "lane-occupied-by-live-peer",
                format!(" lane-dir={dir} lane-holder-pid={pid}"),
                "another living process of this machine works in the issue's lane: leave the issue to it. Taking it over and the procedure for abandoned work are both wrong here",
            ),
            None => (
                "legacy-branch-lock",
                String::new(),
                "a branch of this issue exists and its lock is free: find out whose work the branch is, ask its owner, and follow the written procedure for resumed work",
            ),
        }
    }
}

/// Asks within a deadline. `desk` is `None` where no lane root is known, or the exit code of what forbids to know one.
pub(super) fn ask(desk: Result<Option<Desk>, u8>, issue: u64) -> LaneLock {
    let desk = match desk {
        Ok(Some(desk)) => desk,
        Ok(None) => return LaneLock::default(),
        Err(code) => return LaneLock::unmeasured(&format!("probe-exit-{code}")),
    };
    let (send, receive) = mpsc::channel();
    // A thread that hangs in the kernel ends with the process, which does not wait for it.
    let spawned = std::thread::Builder::new().name("lane-lock".to_owned()).spawn(move || {
        send.send(look(&desk, issue)).ok();
    });
    spawned
        .ok()
        .and_then(|_| receive.recv_timeout(DEADLINE).ok())
        .unwrap_or_else(|| LaneLock::unmeasured(&format!("probe-exit-{CUT}")))
}

fn look(desk: &Desk, issue: u64) -> LaneLock {
    let (Ok(verify), Ok(probe)) = (desk.verify(issue, None), desk.probe(issue, None)) else {
        return LaneLock::unmeasured("probe-exit-64");
    };
    let dir = probe.lane_dir.clone().map(PathBuf::from);
    let branch = dir.as_deref().and_then(|dir| branch_at(dir, issue));
    let exists = dir.as_deref().is_some_and(Path::is_dir);
    LaneLock { branch, ..judge(&verify, &probe, exists) }
}

/// What two answers amount to. Pure.
fn judge(verify: &Answer, probe: &Answer, dir_exists: bool) -> LaneLock {
    let text = |key: &str| {
        let field = probe.fields.iter().find(|(name, _)| *name == key);
        field.and_then(|(_, value)| value.as_str())
    };
    let liveness = text("liveness").unwrap_or_default();
    let state = match probe.verdict {
        Verdict::Free if dir_exists => "free".to_owned(),
        Verdict::Free => "no-lane-dir".to_owned(),
        Verdict::Held if probe.lane_dir.is_none() => {
            "unmeasured(probe-named-no-lane-dir)".to_owned()
        }
        Verdict::Held => match liveness {
            "SELF" => "self".to_owned(),
            "ALIVE" => "occupied-alive".to_owned(),
            dead if dead.starts_with("DEAD-") => format!("reclaimable-{dead}"),
            unknown if unknown.starts_with("UNKNOWN-") => format!("occupied-unknown-{unknown}"),
            other => format!("unmeasured(probe-verdict-{})", sanitise(other)),
        },
        Verdict::Error => format!("unmeasured(probe-exit-{})", probe.verdict.exit()),
        Verdict::Acquired
        | Verdict::Reentrant
        | Verdict::AcquiredReclaimed
        | Verdict::VerifyOk
        | Verdict::Released
        | Verdict::AlreadyFree
        | Verdict::Reclaimed
        | Verdict::ReclaimedReentrant
        | Verdict::ReclaimLeaseMismatch
        | Verdict::Status
        | Verdict::Occupied
        | Verdict::VerifyFail
        | Verdict::ReleaseRefused
        | Verdict::ReleaseLost
        | Verdict::ReclaimLost => {
            format!("unmeasured(probe-verdict-{})", sanitise(probe.verdict.as_str()))
        }
    };
    let pid = probe.fields.iter().find(|(name, _)| *name == "holder-pid").map(|(_, pid)| pid);
    let here = text("holder-machine").is_some() && text("holder-machine") == text("our-machine");
    // Without a token of our own we may be the very holder.
    let other = match (text("holder-token"), text("our-token")) {
        (Some(holder), Some(ours)) => holder != ours,
        (Some(_) | None, None) | (None, Some(_)) => false,
    };
    let peer = (probe.verdict == Verdict::Held && liveness == "ALIVE" && here && other)
        .then(|| probe.lane_dir.clone().zip(pid.and_then(Value::as_u64)))
        .flatten();
    let ours = verify.verdict == Verdict::VerifyOk;
    LaneLock { state: Some(state), ours, peer, branch: None }
}

/// The branch of a checkout there, if it is one of the issue's. It decides nothing.
fn branch_at(dir: &Path, issue: u64) -> Option<String> {
    let repo = git2::Repository::open(dir).ok()?;
    let head = repo.find_reference("HEAD").ok()?;
    let target = head.symbolic_target().ok().flatten()?;
    target
        .starts_with(&legacy_prefix(&issue.to_string()))
        .then(|| sanitise(target.strip_prefix("refs/heads/").unwrap_or(target)))
}

#[cfg(test)]
mod tests {
    use lanewarden_probes::liveness::Liveness;

    use super::*;

    fn held(liveness: &str) -> Answer {
        Answer::new(Verdict::Held)
            .with("liveness", liveness)
            .with("holder-machine", "box-a")
            .with("holder-pid", 12)
            .with("holder-token", "box-a:flow:12:b:1")
            .with("our-machine", "box-a")
            .with("our-token", "box-a:flow:13:b:2")
            .at("/l/lane-7")
    }

    #[test]
    fn every_liveness_has_its_word() {
        let no = Answer::new(Verdict::VerifyFail);
        for &liveness in Liveness::ALL {
            let seen = judge(&no, &held(liveness.as_str()), true);
            let state = seen.state().to_owned();
            let word = if liveness == Liveness::OurSelf {
                "self".to_owned()
            } else if liveness == Liveness::Alive {
                "occupied-alive".to_owned()
            } else if liveness.is_dead() {
                format!("reclaimable-{liveness}")
            } else if liveness.is_unknown() {
                format!("occupied-unknown-{liveness}")
            } else {
                format!("unmeasured(probe-verdict-{liveness})")
            };
            assert_eq!(state, word);
            assert_eq!(seen.peer.is_some(), liveness == Liveness::Alive, "{liveness}");
        }
        let free = Answer::new(Verdict::Free).at("/l/lane-7");
        assert_eq!(judge(&no, &free, true).state(), "free");
        assert_eq!(judge(&no, &free, false).state(), "no-lane-dir");
        assert_eq!(
            judge(&no, &Answer::new(Verdict::Error), true).state(),
            "unmeasured(probe-exit-1)"
        );
        assert_eq!(LaneLock::default().state(), "unmeasured(not-probed)");
    }

    #[test]
    fn a_peer_needs_two_tokens_that_differ_on_one_machine() {
        let no = Answer::new(Verdict::VerifyFail);
        for (key, value) in [
            ("our-token", Value::Null),
            ("our-token", "box-a:flow:12:b:1".into()),
            ("holder-token", Value::Null),
            ("our-machine", "box-b".into()),
            ("our-machine", Value::Null),
            ("holder-pid", Value::Null),
        ] {
            let mut probe = held("ALIVE");
            probe.fields.retain(|(name, _)| *name != key);
            let seen = judge(&no, &probe.with(key, value.clone()), true);
            assert_eq!(seen.legacy().0, "legacy-branch-lock", "{key}={value}");
        }
        let seen = judge(&no, &held("ALIVE"), true);
        assert_eq!(seen.legacy().0, "lane-occupied-by-live-peer");
        assert_eq!(seen.evidence(), "lane-lock-alive-local-peer");
        let ours = judge(&Answer::new(Verdict::VerifyOk), &held("SELF"), true);
        assert_eq!(
            (ours.legacy().0, ours.evidence().as_str()),
            ("released-then-resumed", "lane-lock-self")
        );
    }
}
