//! The rows of the store, as values.

use lanewarden_probes::{closed_set, ending::Usage};
use serde::{Deserialize, Serialize};

use crate::{
    ids::{LaneId, RunId},
    verdict::{LaneState, RunVerdict, SigkillEnd, Verified},
};

/// One change of the store.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    /// The lane's present state.
    Lane(LaneRow),
    /// A run is about to be started: written before the keeper is asked, so that no worker is ever unknown.
    RunStarting {
        /// The run.
        run: RunId,
        /// Its lane.
        lane: LaneId,
        /// When, milliseconds since the epoch.
        at_ms: i64,
    },
    /// Its worker runs.
    RunStarted(OpenRun),
    /// It is judged.
    RunEnded(Box<EndedRow>),
    /// The kernel killed a process.
    OomKill(Box<KillRow>),
    /// The remote has this claim: the lease of the next write.
    ClaimStamped {
        /// The lane.
        lane: LaneId,
        /// The ref.
        name: String,
        /// The object.
        oid: String,
        /// When, milliseconds since the epoch.
        at_ms: i64,
    },
    /// The claim is gone.
    ClaimRemoved {
        /// The lane.
        lane: LaneId,
    },
    /// What is remembered of the box under a key: the newest value replaces the one before.
    Remember {
        /// Of what.
        key: Memory,
        /// In the words of whoever reads it again.
        value: String,
    },
    /// Who did what, for the audit.
    Audit {
        /// When, milliseconds since the epoch.
        at_ms: i64,
        /// What, one sentence.
        what: String,
    },
}

closed_set! {
    /// What is remembered of the box beside its lanes. Each value stands with the boot in which it was written.
    pub enum Memory {
        /// How far the kernel log was read: the sequence number of the newest record that was acted on.
        KernelLog = "kernel-log",
        /// How many lanes the box admits after a global OOM kill.
        Density = "density",
    }
}

/// What is remembered of a lane. Moments `*_boot_ms` are milliseconds on the boot clock of the boot that wrote them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneRow {
    /// The lane.
    pub lane: LaneId,
    /// Its state.
    pub state: LaneState,
    /// Why.
    pub reason: Option<String>,
    /// When it entered the state, milliseconds since the epoch.
    pub since_ms: i64,
    /// Whether an operator wants it down.
    pub down: bool,
    /// Whether another worker is to be started as soon as this one has ended, on order.
    #[serde(default)]
    pub again: bool,
    /// When it is to start next.
    pub next_start_boot_ms: Option<u64>,
    /// Failures in a row.
    pub streak: u32,
    /// When its failures ended, those inside the breaker's window.
    pub failures_boot_ms: Vec<u64>,
    /// Runs started since the last `start` order.
    pub runs: u64,
    /// Runs that finished an issue since then.
    pub issues: u64,
    /// When counting began, milliseconds since the epoch.
    pub counting_since_ms: i64,
    /// The issue, if it is known.
    pub issue: Option<u64>,
    /// The newest verdict and the forge's answer.
    pub last: Option<(RunVerdict, Verified)>,
}

/// A run that is under way as far as the store knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenRun {
    /// The run.
    pub run: RunId,
    /// Its lane.
    pub lane: LaneId,
    /// When it was started, milliseconds since the epoch.
    pub started_at_ms: i64,
    /// The worker; absent if the daemon died between asking for it and being told.
    pub worker: Option<OpenWorker>,
}

/// A worker as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenWorker {
    /// Its pid.
    pub pid: u32,
    /// Its start, ticks since boot.
    pub start_ticks: u64,
    /// The full boot id.
    pub boot_id: String,
    /// The pid namespace, if it could be read.
    pub pidns: Option<u64>,
    /// Its cgroup in the memory hierarchy.
    pub cgroup: Option<String>,
}

/// A judged run.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedRow {
    /// The run.
    pub run: RunId,
    /// Its lane.
    pub lane: LaneId,
    /// The issue that it worked on.
    pub issue: Option<u64>,
    /// How it is judged.
    pub verdict: RunVerdict,
    /// The forge's answer.
    pub verified: Verified,
    /// The exit code, if it exited.
    pub exit_code: Option<u8>,
    /// The signal, if one ended it.
    pub signal: Option<u8>,
    /// Who ended it, if SIGKILL did.
    pub end: Option<SigkillEnd>,
    /// When it started, milliseconds since the epoch.
    pub started_at_ms: i64,
    /// When it ended, milliseconds since the epoch.
    pub ended_at_ms: i64,
    /// Highest memory, bytes.
    pub peak_memory_bytes: Option<u64>,
    /// What it used.
    pub usage: Usage,
    /// Processes of its tree that outlived the worker and were killed.
    pub leftovers: u32,
    /// One sentence.
    pub reason: String,
    /// Everything from which it was judged.
    pub evidence: serde_json::Value,
}

/// An OOM kill.
#[derive(Debug, Clone, PartialEq)]
pub struct KillRow {
    /// The sequence number of the kernel's record in this boot; `None` if only a counter told of it.
    pub seq: Option<u64>,
    /// When it was read, milliseconds since the epoch.
    pub at_ms: i64,
    /// The lane; `None` for a foreign process.
    pub lane: Option<LaneId>,
    /// The run.
    pub run: Option<RunId>,
    /// How it was killed.
    pub class: SigkillEnd,
    /// What says whose it was, in words.
    pub proof: String,
    /// What the kernel said; null if only a counter told of it.
    pub kill: serde_json::Value,
}

/// A notice to be queued with the rows that cause it.
#[derive(Debug, Clone, PartialEq)]
pub struct Queued {
    /// The identity of the event.
    pub id: String,
    /// What is told.
    pub notice: lanewarden_notify::Notice,
    /// When it was raised, milliseconds since the epoch.
    pub at_ms: i64,
    /// As it is sent.
    pub message: lanewarden_notify::Message,
}
