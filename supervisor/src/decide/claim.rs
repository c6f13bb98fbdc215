//! What should the lane's claim say, and when does it go?

use crate::verdict::{LaneState, RunVerdict, Verified};

/// Whether the lane's work is concluded, so that its claim may be removed once no worker of it lives.
///
/// Affirmative: only a verified merge of the lane's issue, a park on its owner, or an idle run while no issue is known.
/// Everything else, every early exit included, keeps the claim.
#[must_use]
pub fn concluded(verdict: Option<RunVerdict>, verified: Verified, issue_known: bool) -> bool {
    match verdict {
        Some(RunVerdict::Finalized) => verified == Verified::Merged,
        Some(RunVerdict::ParkedOnOwner) => true,
        Some(RunVerdict::NoWork) => !issue_known,
        Some(
            RunVerdict::Blocked
            | RunVerdict::Failed
            | RunVerdict::Signalled
            | RunVerdict::OomKilled
            | RunVerdict::Deadline
            | RunVerdict::StuckOnQuestion
            | RunVerdict::MarkerMissing
            | RunVerdict::MarkerInvalid
            | RunVerdict::MarkerStale
            | RunVerdict::NotStarted
            | RunVerdict::Stopped
            | RunVerdict::Vanished,
        )
        | None => false,
    }
}

/// Whether a claim is to be removed: the work is concluded and the lane is down for good, without a worker.
#[must_use]
pub fn remove(state: LaneState, concluded: bool) -> bool {
    concluded && matches!(state, LaneState::Stopped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_affirmed_conclusions_conclude() {
        let concluding: Vec<_> = RunVerdict::ALL
            .iter()
            .filter(|&&verdict| concluded(Some(verdict), Verified::Unverified, false))
            .collect();
        assert_eq!(concluding, [&RunVerdict::NoWork, &RunVerdict::ParkedOnOwner]);
        assert!(concluded(Some(RunVerdict::Finalized), Verified::Merged, true));
        assert!(!concluded(Some(RunVerdict::NoWork), Verified::NotAsked, true));
        assert!(!concluded(None, Verified::NotAsked, false));
    }

    #[test]
    fn a_lane_that_may_still_work_keeps_its_claim() {
        for &state in LaneState::ALL {
            assert_eq!(remove(state, true), state == LaneState::Stopped, "{state}");
            assert!(!remove(state, false));
        }
    }
}
