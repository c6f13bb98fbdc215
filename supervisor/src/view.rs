//! What the daemon shows of itself: one picture for `status --json`, `/api/v1/lanes`, the status page and the gauges.

use lanewarden_probes::{closed_set, kmsg::ChannelState};
use serde::{Deserialize, Serialize};

use crate::verdict::{LaneState, RunVerdict, SigkillEnd};

/// The box at one moment. Its JSON is a contract: fields may be added, never renamed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BoxView {
    /// The box's name.
    pub machine: String,
    /// The daemon's version.
    pub version: String,
    /// Whether store and keeper answer and adoption is done.
    pub ready: bool,
    /// Whether the keeper answers.
    #[serde(default)]
    pub keeper_up: bool,
    /// What this host does not let us do, one sentence each.
    #[serde(default)]
    pub degraded: Vec<String>,
    /// What evidence can be had of how workers end, and how each source of it is.
    #[serde(default)]
    pub channels: Vec<ChannelView>,
    /// The lanes, by id.
    pub lanes: Vec<LaneView>,
    /// The notices that wait.
    pub spool: SpoolView,
    /// When this picture was taken, milliseconds since the epoch.
    #[serde(default)]
    pub taken_at_ms: i64,
}

closed_set! {
    /// A source of evidence of how workers end.
    pub enum Channel {
        /// `/dev/kmsg`: names the victims of the kernel's OOM killer.
        KernelLog = "kernel-log",
        /// The OOM counters of the runs' cgroups.
        CgroupCounter = "cgroup-counter",
        /// `oom_kill` of `/proc/vmstat`: tells whether all kills of the box were accounted for.
        BoxCounter = "box-counter",
        /// The keeper, who is the workers' parent.
        WaitStatus = "wait-status",
    }
}

/// One source of evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelView {
    /// Which.
    pub channel: Channel,
    /// How it is.
    pub state: ChannelState,
    /// What that means, and what helps; absent where nothing is to be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Notices that wait for delivery.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpoolView {
    /// Not delivered yet.
    pub pending: u64,
    /// Given up: the server will not take them.
    #[serde(default)]
    pub dead: u64,
}

/// One lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneView {
    /// Its id.
    pub id: String,
    /// Its checkout.
    pub dir: String,
    /// `manage` or `observe`.
    pub mode: String,
    /// Its state.
    pub state: LaneState,
    /// Why it is in that state.
    pub reason: Option<String>,
    /// When it entered the state, milliseconds since the epoch.
    #[serde(default)]
    pub since_ms: i64,
    /// When it will be tried again, milliseconds since the epoch.
    #[serde(default)]
    pub next_start_ms: Option<i64>,
    /// The worker's pid.
    pub pid: Option<u32>,
    /// The worker's identity, `machine:actor:pid:boot:ticks`.
    pub token: Option<String>,
    /// The run's nonce.
    pub run: Option<String>,
    /// When its worker was started, milliseconds since the epoch.
    #[serde(default)]
    pub run_started_ms: Option<i64>,
    /// The issue, if it is known.
    pub issue: Option<u64>,
    /// Failures that the breaker counts.
    #[serde(default)]
    pub failures: u32,
    /// Why limits or tree kill are weaker than configured, for the current run.
    #[serde(default)]
    pub degraded: Vec<String>,
    /// It cannot be told who works in this observed lane; the reason says why.
    #[serde(default)]
    pub cannot_tell: bool,
    /// Processes that work in the lane beside its worker.
    #[serde(default)]
    pub intruders: Vec<IntruderView>,
    /// The newest judged run.
    pub last: Option<LastView>,
    /// The lane's claim on the coordination remote.
    pub claim: Option<ClaimView>,
}

/// A process that works in a lane beside its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IntruderView {
    /// Its pid.
    pub pid: u32,
    /// Its name, escaped.
    pub command: String,
    /// When it was first seen, milliseconds since the epoch.
    pub since_ms: i64,
}

/// A judged run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LastView {
    /// Its verdict.
    pub verdict: RunVerdict,
    /// The exit code, if it exited.
    pub exit_code: Option<u8>,
    /// The signal, if one ended it.
    pub signal: Option<u8>,
    /// Who ended it, if SIGKILL did.
    pub end: Option<SigkillEnd>,
    /// How long it lived, seconds.
    pub duration_s: f64,
    /// One sentence.
    #[serde(default)]
    pub reason: String,
    /// Its nonce.
    #[serde(default)]
    pub run: String,
    /// When it ended, milliseconds since the epoch.
    #[serde(default)]
    pub ended_at_ms: i64,
    /// From its end to its verdict, milliseconds.
    #[serde(default)]
    pub judged_after_ms: u64,
}

/// A stamped claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimView {
    /// The ref.
    #[serde(rename = "ref")]
    pub name: String,
    /// The object.
    pub oid: String,
    /// Seconds since the remote accepted it.
    pub age_s: u64,
    /// When that was, milliseconds since the epoch.
    #[serde(default)]
    pub stamped_at_ms: i64,
}
