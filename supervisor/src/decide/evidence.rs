//! What is kept beside a verdict, so that it can be reached again, and upgraded when evidence comes late.

use lanewarden_probes::{ending::Ending, kmsg::ChannelState};
use serde::{Deserialize, Serialize};

use super::{
    attribution::LaneKill,
    exit::{EndFacts, KnownEnd, StopCause},
    marker::MarkerFinding,
};

/// Everything from which a run was judged, as it is stored. [`Evidence::facts`] leads to the same verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// The wait status.
    pub wait_status: Wait,
    /// The worker's pid; 0 if there never was one.
    pub pid: u32,
    /// What its marker says.
    pub marker_found: MarkerFinding,
    /// Our own order to end it.
    pub ordered: Option<StopCause>,
    /// Whether we sent SIGKILL to the tree.
    pub our_kill: bool,
    /// OOM kills in its cgroup during the run.
    pub oom_kills_counted: Option<u64>,
    /// Those of them that no record names and that were known while the worker lived.
    #[serde(default)]
    pub oom_kills_unnamed_before: u64,
    /// Those that the kernel log named.
    pub oom_kills_named: Vec<LaneKill>,
    /// Processes that used the worker's address space.
    #[serde(default)]
    pub sharing: Vec<u32>,
    /// When it ended, milliseconds since the epoch.
    pub ended_at_ms: i64,
    /// How the kernel log was when it was judged: the silence of a closed channel proves nothing.
    pub kernel_log: ChannelState,
}

/// [`KnownEnd`] in stored words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// The parent, or the kernel through a pidfd, told it.
    Known(Ending),
    /// Nobody could learn it.
    Unknown,
    /// The program never ran.
    NotStarted,
}

impl Evidence {
    /// Evidence as it is stored, among whatever else stands there; `None` of a release that kept less.
    #[must_use]
    pub fn read(stored: &serde_json::Value) -> Option<Self> {
        Self::deserialize(stored).ok()
    }

    /// The facts, to keep.
    #[must_use]
    pub fn of(facts: &EndFacts<'_>) -> Self {
        Self {
            wait_status: match facts.end {
                KnownEnd::Known(ending) => Wait::Known(ending),
                KnownEnd::Unknown => Wait::Unknown,
                KnownEnd::NotStarted => Wait::NotStarted,
            },
            pid: facts.pid,
            marker_found: facts.marker.clone(),
            ordered: facts.ordered,
            our_kill: facts.our_kill,
            oom_kills_counted: facts.counted,
            oom_kills_unnamed_before: facts.unnamed_before,
            oom_kills_named: facts.named.to_vec(),
            sharing: facts.sharing.to_vec(),
            ended_at_ms: facts.ended_at_ms,
            kernel_log: facts.kernel_log,
        }
    }

    /// The facts, to judge again.
    #[must_use]
    pub fn facts(&self) -> EndFacts<'_> {
        EndFacts {
            end: match self.wait_status {
                Wait::Known(ending) => KnownEnd::Known(ending),
                Wait::Unknown => KnownEnd::Unknown,
                Wait::NotStarted => KnownEnd::NotStarted,
            },
            pid: self.pid,
            marker: &self.marker_found,
            ordered: self.ordered,
            our_kill: self.our_kill,
            counted: self.oom_kills_counted,
            unnamed_before: self.oom_kills_unnamed_before,
            named: &self.oom_kills_named,
            sharing: &self.sharing,
            ended_at_ms: self.ended_at_ms,
            kernel_log: self.kernel_log,
        }
    }
}
