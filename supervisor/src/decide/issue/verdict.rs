//! The answers about an issue lock: a closed set, each with its exit code.

use lanewarden_probes::closed_set;

use super::Who;

closed_set! {
    /// Where it could not be told who owns the issue. `-on-<remote>` follows where the remote is meant.
    pub enum InfraDetail {
        /// The holder's record could not be read, or names nobody.
        HolderUnreadable = "holder-commit-unreadable",
        /// The holder has our machine and actor, and whether its process lives cannot be told.
        HolderProcessUnknown = "holder-process-unknown",
        /// The process to claim for could not be looked at.
        ClaimantUnresolved = "claimant-process-unresolved",
        /// The record could not be made.
        NotBuilt = "claim-object-not-built",
        /// claim: lock and branches could not be listed.
        LegacyListing = "legacy-branch-ls-remote-unreachable",
        /// claim: the push failed and the ref could not be read.
        ClaimPushAndRead = "push-failed-and-ls-remote-unreachable",
        /// claim: the push failed and nobody holds the ref.
        ClaimRejectedAbsent = "push-rejected-but-ref-absent",
        /// claim: the push was accepted and the ref could not be read.
        ClaimUnconfirmed = "push-succeeded-but-confirm-ls-remote-unreachable",
        /// claim: the push was accepted and the ref is not there.
        ClaimAbsentOnConfirm = "push-accepted-but-ref-absent-on-confirm",
        /// claim, adopt: the lock of a dead process of ours could not be stamped anew.
        Restamp = "restamp-rejected-but-ref-unchanged",
        /// adopt: the ref could not be read after the push.
        AdoptPushAndRead = "adopt-cas-and-confirm-ls-remote-unreachable",
        /// adopt: the push failed and nobody holds the ref.
        AdoptRejectedAbsent = "adopt-empty-lease-rejected-but-ref-absent",
        /// adopt: the push failed and the ref is where the lease expects it.
        AdoptUnchanged = "adopt-cas-rejected-but-ref-unchanged",
        /// verify, release, status: the ref could not be read.
        Listing = "ls-remote-unreachable",
        /// release: the leased delete failed.
        CasDelete = "cas-delete-failed",
        /// release: the forced delete failed.
        ForceDelete = "delete-failed",
    }
}

impl InfraDetail {
    /// Whether the remote is named after it.
    #[must_use]
    pub const fn names_remote(self) -> bool {
        match self {
            Self::HolderUnreadable
            | Self::HolderProcessUnknown
            | Self::ClaimantUnresolved
            | Self::NotBuilt
            | Self::Restamp
            | Self::AdoptUnchanged => false,
            Self::LegacyListing
            | Self::ClaimPushAndRead
            | Self::ClaimRejectedAbsent
            | Self::ClaimUnconfirmed
            | Self::ClaimAbsentOnConfirm
            | Self::AdoptPushAndRead
            | Self::AdoptRejectedAbsent
            | Self::Listing
            | Self::CasDelete
            | Self::ForceDelete => true,
        }
    }
}

closed_set! {
    /// What the remote wanted credentials for.
    pub enum AuthDetail {
        /// A create, or a stamp of our own lock.
        ClaimPush = "claim-push-unauthenticated",
        /// An adoption.
        AdoptPush = "adopt-cas-push-unauthenticated",
        /// A release.
        CasDelete = "release-cas-delete-unauthenticated",
        /// A forced release.
        ForceDelete = "release-force-delete-unauthenticated",
        /// Reading.
        Listing = "ls-remote-unauthenticated",
    }
}

closed_set! {
    /// How a lock came to be adopted.
    pub enum AdoptedHow {
        /// By this very push.
        Now = "now",
        /// It was ours before.
        Again = "re-entrant",
        /// It was ours before, at another object than the one expected.
        LeaseMismatch = "lease-mismatch",
    }
}

closed_set! {
    /// How a lock came to be released.
    pub enum ReleasedHow {
        /// It was not there.
        Absent = "already absent",
        /// Deleted as its holder.
        Cas = "cas",
        /// Deleted whoever held it.
        Force = "force",
    }
}

/// Why the remote does not carry issue locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SmokeFailure {
    /// The record could not be made.
    CommitBuild,
    /// No credentials.
    Auth,
    /// The remote did not take the ref.
    PushRejected,
    /// The ref was not read back as it was pushed.
    Mismatch {
        /// What was read; `None`: nothing, or nothing could be read.
        seen: Option<String>,
        /// What was pushed.
        expected: String,
        /// Whether the ref was deleted afterwards.
        cleaned: bool,
    },
    /// The ref could not be deleted, or not be seen to be gone.
    CleanupUnverified,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The issue is ours.
    Held {
        /// The record.
        oid: String,
        /// It was ours before.
        reentrant: bool,
    },
    /// The issue is somebody else's.
    Lost {
        /// The record.
        oid: String,
        /// Whose.
        holder: Who,
        /// The process of our own machine and actor that holds it.
        pid: Option<u32>,
    },
    /// Nobody holds the lock, and branches of the issue exist.
    LegacyBranch {
        /// Their full names.
        refs: Vec<String>,
    },
    /// We hold it.
    VerifyOk {
        /// The record.
        oid: String,
    },
    /// Nobody holds it.
    NoClaimRef,
    /// Somebody else holds it.
    VerifyFail {
        /// The record.
        oid: String,
        /// Whose.
        holder: Who,
    },
    /// The issue is ours now.
    Adopted {
        /// The record.
        oid: String,
        /// How.
        how: AdoptedHow,
    },
    /// The lock was not where the adopter expected it.
    AdoptLost {
        /// What it holds, and whose; `None`: it is gone.
        actual: Option<(String, Who)>,
    },
    /// Nobody holds the issue now.
    Released {
        /// How.
        how: ReleasedHow,
        /// The record that was deleted.
        oid: Option<String>,
    },
    /// Only its holder releases a lock.
    NotHolder {
        /// The record.
        oid: String,
        /// Whose.
        holder: Who,
    },
    /// A pull request of the issue is open.
    OpenPr,
    /// Whether one is open could not be told.
    OpenPrUnknown,
    /// The remote carries issue locks.
    SmokeOk,
    /// It does not, or that could not be told.
    SmokeFail(SmokeFailure),
    /// It could not be told.
    Infra {
        /// Where it failed.
        detail: InfraDetail,
        /// The record in question.
        oid: Option<String>,
    },
    /// The remote wants credentials that this machine does not have.
    Auth {
        /// For what.
        detail: AuthDetail,
        /// The record in question.
        oid: Option<String>,
    },
}

/// 0 yes, 2 no, 1 could not tell.
#[must_use]
pub const fn exit(verdict: &Verdict) -> u8 {
    match verdict {
        Verdict::Held { .. }
        | Verdict::VerifyOk { .. }
        | Verdict::Adopted { .. }
        | Verdict::Released { .. }
        | Verdict::SmokeOk => 0,
        Verdict::Lost { .. }
        | Verdict::LegacyBranch { .. }
        | Verdict::NoClaimRef
        | Verdict::VerifyFail { .. }
        | Verdict::AdoptLost { .. }
        | Verdict::NotHolder { .. }
        | Verdict::OpenPr
        | Verdict::OpenPrUnknown => 2,
        Verdict::SmokeFail(_) | Verdict::Infra { .. } | Verdict::Auth { .. } => 1,
    }
}
