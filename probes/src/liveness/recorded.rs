//! What a record says about a process, and what was judged of it.

use super::Liveness;
use crate::identity::{BootId, Identity};
use serde::Serialize;

/// What a record (a lane lock, a lane claim) says. Parts that it does not carry are `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The machine. Empty: the record is unreadable.
    pub machine: String,
    /// The actor; needed only for `SELF`.
    pub actor: Option<String>,
    /// The process.
    pub pid: Option<u32>,
    /// The boot, in full.
    pub boot: Option<BootId>,
    /// Start in clock ticks since boot.
    pub ticks: Option<u64>,
    /// The pid namespace in which `pid` counts. `None` is taken as ours: old records do not say.
    pub pidns: Option<u64>,
    /// The time namespace in which `ticks` were read. `None` is taken as the initial one.
    pub timens: Option<u64>,
    /// Inode of the pidfd on pidfs.
    pub pidfs_ino: Option<u64>,
    /// When the record was stamped, milliseconds since 1970. A record that has this and lacks boot or ticks is judged
    /// by the time window in which the process started; one without it then gets `UNKNOWN-NO-BOOT-ID` or
    /// `UNKNOWN-NO-START-TICKS`.
    pub ts_ms: Option<i64>,
    /// The record is of a kind that carries a stamp, and its stamp is missing or unparsable: the window rule applies
    /// as far as it can without one.
    pub ts_unreadable: bool,
    /// The highest boottime clock that was ever seen in this boot, milliseconds.
    pub seen_boottime_ms: Option<u64>,
    /// The record was written for a process that was not meant to last (scope `ephemeral`).
    pub ephemeral: bool,
    /// The lane has no worker and pid and ticks name the warden.
    pub no_worker: bool,
}

impl Recorded {
    /// The record that `identity` would leave.
    #[must_use]
    pub fn of(identity: &Identity) -> Self {
        Self {
            machine: identity.machine.clone(),
            actor: Some(identity.actor.clone()),
            pid: Some(identity.pid),
            boot: identity.boot_id.clone(),
            ticks: identity.start_ticks,
            pidns: identity.pidns,
            timens: identity.timens,
            pidfs_ino: identity.pidfs_ino,
            ..Self::default()
        }
    }

    /// The identity in it, when it has a pid and an actor.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        Some(Identity {
            machine: self.machine.clone(),
            actor: self.actor.clone()?,
            pid: self.pid?,
            boot_id: self.boot.clone(),
            start_ticks: self.ticks,
            pidns: self.pidns,
            timens: self.timens,
            pidfs_ino: self.pidfs_ino,
        })
    }

    /// Whether it is judged by the time window and not by identity.
    #[must_use]
    pub fn is_by_window(&self) -> bool {
        (self.boot.is_none() || self.ticks.is_none())
            && (self.ts_ms.is_some() || self.ts_unreadable)
    }
}

/// A verdict and the evidence that led to it, in one sentence fragment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// The verdict.
    pub verdict: Liveness,
    /// Why, with the numbers that were compared. Our own words; nothing that a process chose.
    pub reason: String,
}

impl Judged {
    pub(super) fn new(verdict: Liveness, reason: impl Into<String>) -> Self {
        Self { verdict, reason: reason.into() }
    }

    /// What to answer for a record that could not be fetched or parsed.
    #[must_use]
    pub fn unreadable(cause: impl Into<String>) -> Self {
        Self::new(Liveness::UnknownUnreadable, cause)
    }
}
