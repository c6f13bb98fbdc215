//! May a claim be removed? Every unknown keeps it, except the process of another machine, which nobody here can see.

use lanewarden_probes::{closed_set, liveness::Liveness};

use crate::{claims::record::ParsedClaim, verdict::OpenPr};

closed_set! {
    /// What is to become of a claim, and by which clause.
    pub enum Reap {
        /// There is no such claim.
        Absent = "absent",
        /// Stale, and its process is affirmed dead.
        StaleDead = "stale-dead",
        /// Stale, and of another machine.
        StaleForeign = "stale-foreign",
        /// A placeholder: only its owner removes it.
        KeepPlaceholder = "keep-placeholder",
        /// The record cannot be read.
        KeepUnreadable = "keep-unreadable",
        /// Which issue it is about cannot be told.
        KeepNoIssue = "keep-no-issue",
        /// When it was stamped cannot be told.
        KeepNoStamp = "keep-no-stamp",
        /// Not older than the threshold, or stamped in the future.
        KeepFresh = "keep-fresh",
        /// A pull request is open.
        KeepOpenPr = "keep-open-pr",
        /// Whether one is open cannot be told.
        KeepOpenPrUnknown = "keep-open-pr-unknown",
        /// Of this machine, and names no process.
        KeepNoPid = "keep-no-pid",
        /// Of this machine, and its process, or the warden that answers for it, is not affirmed dead.
        KeepProcess = "keep-process",
        /// By its name of this machine, by its boot of another one.
        KeepOtherBox = "keep-other-box",
        /// The ref's name is of no form that a writer makes.
        KeepMalformed = "keep-malformed",
    }
}

impl Reap {
    /// 0 remove it, 2 there is none, 1 keep it.
    #[must_use]
    pub const fn exit(self) -> u8 {
        match self {
            Self::StaleDead | Self::StaleForeign => 0,
            Self::Absent => 2,
            Self::KeepPlaceholder
            | Self::KeepUnreadable
            | Self::KeepNoIssue
            | Self::KeepNoStamp
            | Self::KeepFresh
            | Self::KeepOpenPr
            | Self::KeepOpenPrUnknown
            | Self::KeepNoPid
            | Self::KeepProcess
            | Self::KeepOtherBox
            | Self::KeepMalformed => 1,
        }
    }

    /// Whether it was kept because something could not be read or told, and not because it should stay.
    #[must_use]
    pub const fn cannot_tell(self) -> bool {
        match self {
            Self::KeepUnreadable
            | Self::KeepNoIssue
            | Self::KeepNoStamp
            | Self::KeepOpenPrUnknown
            | Self::KeepMalformed => true,
            Self::Absent
            | Self::StaleDead
            | Self::StaleForeign
            | Self::KeepPlaceholder
            | Self::KeepFresh
            | Self::KeepOpenPr
            | Self::KeepNoPid
            | Self::KeepProcess
            | Self::KeepOtherBox => false,
        }
    }
}

/// Whether a claim that exists is stale enough to ask about pull requests and processes; the issue to ask about.
///
/// `record` is `None` if it cannot be read; `issue` is the ref's word for a lane and the message's elsewhere.
///
/// # Errors
/// The clause by which it is kept.
pub fn is_stale(
    placeholder: bool,
    record: Option<&ParsedClaim>,
    issue: Option<u64>,
    now_s: i64,
    threshold_s: u64,
) -> Result<u64, Reap> {
    if placeholder {
        return Err(Reap::KeepPlaceholder);
    }
    let record = record.ok_or(Reap::KeepUnreadable)?;
    let issue = issue.ok_or(Reap::KeepNoIssue)?;
    let ts = record.ts.and_then(|ts| i64::try_from(ts).ok()).ok_or(Reap::KeepNoStamp)?;
    // A stamp of the future has a negative age.
    let age = u64::try_from(now_s.saturating_sub(ts)).map_err(|_| Reap::KeepFresh)?;
    if age > threshold_s { Ok(issue) } else { Err(Reap::KeepFresh) }
}

/// What was measured of the processes behind a claim of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Processes {
    /// The record names a process.
    pub named: bool,
    /// The named process.
    pub worker: Liveness,
    /// Judged by boot and start ticks, and not by when it was stamped.
    pub by_identity: bool,
    /// The warden that the record names, if it names one.
    pub warden: Option<Liveness>,
    /// Of another boot, stamped after ours began.
    pub other_box: bool,
}

/// The last clauses, on a stale claim. `ours` is `None` for a claim of another machine.
#[must_use]
pub fn judge(open: OpenPr, ours: Option<Processes>) -> Reap {
    match open {
        OpenPr::Yes => return Reap::KeepOpenPr,
        OpenPr::Unknown => return Reap::KeepOpenPrUnknown,
        OpenPr::No => {}
    }
    let Some(seen) = ours else { return Reap::StaleForeign };
    if seen.other_box {
        return Reap::KeepOtherBox;
    }
    if !seen.named {
        return Reap::KeepNoPid;
    }
    // A warden that lives restarts its workers, and says so when the remote is back.
    if seen.warden.is_some_and(|warden| !warden.is_dead()) {
        return Reap::KeepProcess;
    }
    let dead = if seen.by_identity {
        seen.worker.is_dead()
    } else {
        // By stamps alone a reused number is a guess: somebody may have set the clock.
        seen.worker == Liveness::DeadNoProcess
    };
    if dead { Reap::StaleDead } else { Reap::KeepProcess }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(ts: Option<u64>) -> ParsedClaim {
        ParsedClaim { ts, ..ParsedClaim::default() }
    }

    #[test]
    fn every_unknown_keeps() {
        let stale = |placeholder, record: Option<&ParsedClaim>, issue| {
            is_stale(placeholder, record, issue, 1000, 100)
        };
        let old = record(Some(899));
        assert_eq!(stale(false, Some(&old), Some(7)), Ok(7));
        assert_eq!(stale(true, Some(&old), Some(7)), Err(Reap::KeepPlaceholder));
        assert_eq!(stale(false, None, Some(7)), Err(Reap::KeepUnreadable));
        assert_eq!(stale(false, Some(&old), None), Err(Reap::KeepNoIssue));
        assert_eq!(stale(false, Some(&record(None)), Some(7)), Err(Reap::KeepNoStamp));
        for fresh in [900, 1000, 5000] {
            assert_eq!(stale(false, Some(&record(Some(fresh))), Some(7)), Err(Reap::KeepFresh));
        }
    }

    #[test]
    fn only_affirmed_death_reaps() {
        for &worker in Liveness::ALL {
            let seen = Processes {
                named: true,
                worker,
                by_identity: true,
                warden: None,
                other_box: false,
            };
            assert_eq!(judge(OpenPr::No, Some(seen)).exit() == 0, worker.is_dead(), "{worker}");
            let window = Processes { by_identity: false, ..seen };
            let reaps = judge(OpenPr::No, Some(window)).exit() == 0;
            assert_eq!(reaps, worker == Liveness::DeadNoProcess, "{worker}");
            for kept in [
                judge(OpenPr::Yes, Some(seen)),
                judge(OpenPr::Unknown, Some(seen)),
                judge(OpenPr::No, Some(Processes { named: false, ..seen })),
                judge(OpenPr::No, Some(Processes { warden: Some(Liveness::Alive), ..seen })),
                judge(OpenPr::No, Some(Processes { other_box: true, ..seen })),
            ] {
                assert_eq!(kept.exit(), 1, "{worker}: {kept}");
            }
        }
        assert_eq!(judge(OpenPr::No, None), Reap::StaleForeign);
        assert_eq!(judge(OpenPr::Unknown, None), Reap::KeepOpenPrUnknown);
    }
}
