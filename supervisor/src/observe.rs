//! What happened, in the past tense: one arm writes the log line, and the metrics count it. Call sites say what
//! happened and nothing else.

use lanewarden_probes::kmsg::ChannelState;
use tracing::{error, info, warn};

use crate::{
    claims::GitErrorKind,
    ids::{LaneId, RunId},
    keeper::protocol::StopSignal,
    verdict::{AdmissionCheck, LaneState, RunVerdict, SigkillEnd},
};

/// Something that happened and is logged and counted.
#[derive(Debug, Clone, PartialEq)]
pub enum Observation {
    /// The daemon took over what it found.
    Adopted {
        /// Runs whose worker lives.
        living: usize,
        /// Runs that ended meanwhile and were judged.
        ended: usize,
        /// Runs of which nothing could be learnt.
        lost: usize,
    },
    /// A lane moved.
    LaneMoved {
        /// The lane.
        lane: LaneId,
        /// From here.
        from: LaneState,
        /// To there.
        to: LaneState,
        /// Why.
        reason: Option<String>,
    },
    /// A worker runs.
    RunStarted {
        /// The lane.
        lane: LaneId,
        /// The run.
        run: RunId,
        /// The worker.
        pid: u32,
    },
    /// A run was judged.
    RunEnded {
        /// The lane.
        lane: LaneId,
        /// The run.
        run: RunId,
        /// How.
        verdict: RunVerdict,
        /// Who ended it, if SIGKILL did.
        end: Option<SigkillEnd>,
        /// How long it lived, milliseconds.
        lived_ms: u64,
        /// From the keeper's reaping to the verdict, milliseconds.
        judged_after_ms: u64,
        /// One sentence.
        reason: String,
    },
    /// The kernel killed a process.
    OomKill {
        /// The lane; `None` for a process that is none of ours.
        lane: Option<LaneId>,
        /// The class.
        class: SigkillEnd,
        /// The victim, escaped.
        victim: String,
    },
    /// Somebody works in a lane beside its worker.
    Intruder {
        /// The lane.
        lane: LaneId,
        /// Who.
        pid: u32,
        /// Its name, escaped.
        command: String,
    },
    /// Records of the kernel log were lost.
    KernelLogLost(u64),
    /// The kernel log can be read, or cannot any more.
    KernelLogState(ChannelState),
    /// A kill of which it cannot be told whose it was. The counters tell how many there were.
    KillUnplaced {
        /// The victim, escaped.
        victim: String,
    },
    /// Evidence came after a verdict and changed it.
    RunAmended {
        /// The lane.
        lane: LaneId,
        /// The run.
        run: RunId,
        /// The verdict before.
        before: RunVerdict,
        /// The verdict now.
        verdict: RunVerdict,
        /// One sentence.
        reason: String,
    },
    /// The breaker opened.
    BreakerTripped {
        /// The lane.
        lane: LaneId,
        /// Failures inside the window.
        failures: u32,
    },
    /// Admission refused a start.
    StartRefused {
        /// The lane.
        lane: LaneId,
        /// The first check that refused.
        check: AdmissionCheck,
        /// Both numbers.
        detail: String,
        /// Whether the lane was held for this reason before.
        again: bool,
    },
    /// A run's tree was signalled.
    Signalled {
        /// The lane.
        lane: LaneId,
        /// How.
        how: StopSignal,
    },
    /// A push of claims ended.
    ClaimsPushed {
        /// Refs that the remote took.
        accepted: usize,
        /// Refs that it did not.
        refused: usize,
        /// How long it took, milliseconds.
        took_ms: u64,
    },
    /// The remote could not be reached or would not listen.
    ClaimsFailed {
        /// Of which kind.
        class: GitErrorKind,
        /// Refs that wait.
        lanes: usize,
    },
    /// A notice was taken by the server.
    NoticeDelivered {
        /// From the event to the server's answer, milliseconds.
        after_ms: u64,
    },
    /// A notice was not taken and will be tried again.
    NoticeDelayed {
        /// Why.
        reason: String,
    },
    /// A notice was given up.
    NoticeDropped {
        /// Why.
        reason: String,
    },
    /// Writing to the store failed.
    StoreFailed {
        /// What SQLite or the file system said.
        error: String,
    },
    /// The store works again.
    StoreRecovered,
    /// The keeper does not answer.
    KeeperLost,
    /// A keeper answers.
    KeeperBack,
    /// Something of ours that does not belong to a configured lane.
    Stranger {
        /// What.
        detail: String,
    },
}

impl Observation {
    /// Writes the log line.
    pub fn log(&self) {
        match self {
            Self::Adopted { living, ended, lost } => {
                info!(living, ended, lost, "took over what was there");
            }
            Self::LaneMoved { lane, from, to, reason } => {
                info!(%lane, %from, %to, reason = reason.as_deref().unwrap_or(""), "lane moved");
            }
            Self::RunStarted { lane, run, pid } => info!(%lane, %run, pid, "worker runs"),
            Self::RunEnded { lane, run, verdict, end, lived_ms, judged_after_ms, reason } => {
                let end = end.map_or("", SigkillEnd::as_str);
                info!(%lane, %run, %verdict, end, lived_ms, judged_after_ms, reason, "run judged");
            }
            Self::OomKill { lane: Some(lane), class, victim } => {
                error!(%lane, %class, victim, "OOM kill in a lane");
            }
            Self::OomKill { lane: None, class, victim } => {
                warn!(%class, victim, "OOM kill outside all lanes");
            }
            Self::Intruder { lane, pid, command } => {
                warn!(%lane, pid, command, "somebody works in the lane beside its worker");
            }
            Self::KernelLogLost(count) => warn!(count, "records of the kernel log were lost"),
            Self::KernelLogState(ChannelState::Open) => info!("the kernel log is read"),
            Self::KernelLogState(state) => warn!(%state, "the kernel log cannot be read in full"),
            Self::KillUnplaced { victim } => {
                warn!(victim, "the kernel killed a process, and it cannot be told whose");
            }
            Self::RunAmended { lane, run, before, verdict, reason } => {
                warn!(%lane, %run, %before, %verdict, reason, "later evidence changed a verdict");
            }
            Self::BreakerTripped { lane, failures } => error!(%lane, failures, "breaker tripped"),
            Self::StartRefused { again: true, .. } => {}
            Self::StartRefused { lane, check, detail, again: false } => {
                warn!(%lane, %check, detail, "start refused");
            }
            Self::Signalled { lane, how } => info!(%lane, ?how, "worker signalled"),
            Self::ClaimsPushed { accepted, refused, took_ms } => {
                info!(accepted, refused, took_ms, "claims pushed");
            }
            Self::ClaimsFailed { class, lanes } => {
                warn!(class = class.as_str(), lanes, "claims could not be pushed; will retry");
            }
            Self::NoticeDelivered { after_ms } => info!(after_ms, "notice delivered"),
            Self::NoticeDelayed { reason } => warn!(reason, "notice not taken; will retry"),
            Self::NoticeDropped { reason } => error!(reason, "notice given up"),
            Self::StoreFailed { error } => error!(error, "the store cannot be written"),
            Self::StoreRecovered => info!("the store can be written again"),
            Self::KeeperLost => error!("the keeper does not answer; workers go on without it"),
            Self::KeeperBack => info!("a keeper answers"),
            Self::Stranger { detail } => warn!(detail, "not of a configured lane"),
        }
    }
}
