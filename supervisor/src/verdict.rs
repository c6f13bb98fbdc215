//! The closed sets of judgement that this crate decides. Liveness and endings live in `lanewarden-probes`.

use lanewarden_probes::closed_set;

closed_set! {
    /// The state of a lane.
    pub enum LaneState {
        /// Its worker is being spawned, or what must come before that is under way.
        Starting = "starting",
        /// Its worker lives.
        Running = "running",
        /// Its worker is being ended.
        Stopping = "stopping",
        /// It waits to restart.
        Cooling = "cooling",
        /// Admission refuses; the reason is beside it.
        Held = "held",
        /// It waits for its owner.
        Parked = "parked",
        /// The breaker keeps it down.
        Tripped = "tripped",
        /// A budget is used up.
        Exhausted = "exhausted",
        /// Down on our order.
        Stopped = "stopped",
        /// Somebody else holds the lane.
        Occupied = "occupied",
        /// Observe mode, and its occupant is alive.
        Observed = "observed",
        /// Observe mode, and nobody is there.
        Vacant = "vacant",
    }
}

closed_set! {
    /// How a run is judged.
    pub enum RunVerdict {
        /// The marker says that an issue was finished with a pull request.
        Finalized = "finalized",
        /// The marker says that there was nothing to do.
        NoWork = "no-work",
        /// The marker says that the issue cannot go on.
        Blocked = "blocked",
        /// Blocked on a decision of the owner.
        ParkedOnOwner = "parked-on-owner",
        /// Exited with a code other than 0.
        Failed = "failed",
        /// A signal that was not ours and no OOM killer's ended it.
        Signalled = "signalled",
        /// An OOM killer ended it.
        OomKilled = "oom-killed",
        /// Ended by us at its deadline.
        Deadline = "deadline",
        /// Ended while it waited for an answer that nobody gave.
        StuckOnQuestion = "stuck-on-question",
        /// Exit 0 and no marker.
        MarkerMissing = "marker-missing",
        /// Exit 0 and a marker that cannot be read as one.
        MarkerInvalid = "marker-invalid",
        /// Exit 0 and a marker that carries another run's nonce.
        MarkerStale = "marker-stale",
        /// The program never ran.
        NotStarted = "not-started",
        /// Ended by us on order.
        Stopped = "stopped",
        /// Ended while nobody could learn how.
        Vanished = "vanished",
    }
}

closed_set! {
    /// Who ended a process that died of SIGKILL.
    pub enum SigkillEnd {
        /// The kernel, at a cgroup's memory limit.
        OomMemcg = "oom-memcg",
        /// The kernel, because the box was out of memory.
        OomGlobal = "oom-global",
        /// A user-space OOM killer.
        OomUserspace = "oom-userspace",
        /// The lane's OOM counter grew, and no record names the victim.
        OomUnnamed = "oom-unnamed",
        /// Died beside an OOM victim with which it shared its memory or its group.
        CoVictim = "co-victim",
        /// We did it.
        KilledByUs = "killed-by-us",
        /// Nobody left evidence.
        Unexplained = "unexplained",
    }
}

closed_set! {
    /// The forge's answer on a `finalized` run.
    pub enum Verified {
        /// The pull request is merged.
        Merged = "merged",
        /// Open with auto-merge armed.
        PendingAutomerge = "pending-automerge",
        /// The forge could not be asked.
        Unverified = "unverified",
        /// The forge says otherwise.
        Mismatch = "mismatch",
        /// An order to stop came while the answer was still settling.
        Aborted = "aborted",
        /// No forge is configured, or the run is not one to ask about.
        NotAsked = "not-asked",
    }
}

closed_set! {
    /// One check of admission: may one more worker start?
    pub enum AdmissionCheck {
        /// The 1-minute load average.
        Load = "load",
        /// Free space where the lane lives.
        Disk = "disk",
        /// `MemAvailable`.
        Memory = "memory",
        /// Memory pressure, PSI some avg10.
        Pressure = "pressure",
    }
}

closed_set! {
    /// Whether a pull request is open. Reaping takes unknown for yes; reports print it.
    pub enum OpenPr {
        /// One is.
        Yes = "yes",
        /// None is, affirmed.
        No = "no",
        /// Nobody could be asked, or the answer was no answer.
        Unknown = "unknown",
    }
}

impl LaneState {
    /// Whether a worker of the lane lives, or may.
    #[must_use]
    pub const fn has_worker(self) -> bool {
        matches!(self, Self::Starting | Self::Running | Self::Stopping | Self::Observed)
    }
}

impl RunVerdict {
    /// Whether the run counts as a failure for the breaker.
    ///
    /// A worker that we ended on order, that waits for its owner or that did its work does not.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        match self {
            Self::Failed
            | Self::Signalled
            | Self::OomKilled
            | Self::Deadline
            | Self::MarkerMissing
            | Self::MarkerInvalid
            | Self::MarkerStale
            | Self::NotStarted
            | Self::Vanished => true,
            Self::Finalized
            | Self::NoWork
            | Self::Blocked
            | Self::ParkedOnOwner
            | Self::StuckOnQuestion
            | Self::Stopped => false,
        }
    }
}

impl SigkillEnd {
    /// Whether an OOM killer did it.
    #[must_use]
    pub const fn is_oom(self) -> bool {
        match self {
            Self::OomMemcg
            | Self::OomGlobal
            | Self::OomUserspace
            | Self::OomUnnamed
            | Self::CoVictim => true,
            Self::KilledByUs | Self::Unexplained => false,
        }
    }
}
