//! Everything that can happen to us. Sources and effects turn the world into these; `dispatch` turns these into effects.

use std::time::Duration;

use lanewarden_probes::{kmsg::ChannelState, liveness::Judged, oom::OomKill};

use crate::{
    decide::{admission::HostReading, attribution::LaneKill, marker::MarkerReading},
    effect::{ControlId, Post},
    ids::{LaneId, RunId},
    keeper::protocol::{Ended, Started},
    store::rows::{EndedRow, LaneRow, OpenRun},
    view::LastView,
};

/// One thing that happened.
#[derive(Debug)]
pub enum Event {
    /// The daemon is up: what the store remembers, what the keeper has, what lives. Always the first event.
    Began(Box<Beginning>),
    /// A lane was taken and the box measured, or not.
    Prepared {
        /// The lane.
        lane: LaneId,
        /// What came of it.
        answer: Preparation,
    },
    /// An observed lane was looked at.
    Looked {
        /// The lane.
        lane: LaneId,
        /// Who is there.
        looked: Looked,
    },
    /// Running lanes were walked: everybody there who is not of the worker's tree.
    Patrolled {
        /// The lanes that were walked.
        posts: Vec<Post>,
        /// Who should not be there.
        intruders: Vec<Intruder>,
    },
    /// Box and runs were measured.
    Sampled(Box<Sampling>),
    /// The coordination remote, or our way to it, answered a lane's stamp.
    ClaimAnswered {
        /// The lane.
        lane: LaneId,
        /// What came of it.
        answer: ClaimAnswer,
    },
    /// The keeper started a worker.
    Spawned(Box<Started>),
    /// The program never ran.
    NotSpawned {
        /// The lane.
        lane: LaneId,
        /// The run.
        run: RunId,
        /// At which step of the keeper.
        step: String,
        /// A sentence with the remedy.
        message: String,
    },
    /// A run ended, says the keeper.
    Ended(Box<EndedRun>),
    /// A worker's pidfd became readable. Its parent tells more, if it lives.
    WorkerGone {
        /// The run.
        run: RunId,
        /// The raw wait status, where the kernel tells it to a stranger (PIDFD_GET_INFO, Linux 6.15).
        wait_status: Option<i32>,
        /// What is at the marker's path.
        marker: MarkerReading,
        /// Whether the box's OOM counter grew since the worker is watched; `None` if unknown. The kernel counts before it
        /// kills (`__oom_kill_process`, mm/oom_kill.c), so no growth is proof that no OOM killer was it.
        box_counter_grew: Option<bool>,
    },
    /// The kernel log named an OOM victim.
    KernelKill(Box<KernelRecord>),
    /// The kernel log was read up to this record.
    KernelLogRead(u64),
    /// The kernel log became readable, or stopped being so.
    KernelLogState(ChannelState),
    /// Records of the kernel log were lost.
    KernelLogLost(u64),
    /// The keeper does not answer any more.
    KeeperLost,
    /// A keeper answers again: what it has.
    KeeperBack {
        /// Runs whose worker lives.
        living: Vec<Started>,
        /// Runs that ended.
        ended: Vec<EndedRun>,
    },
    /// A moment that was asked for with [`crate::effect::Effect::Wake`], or earlier.
    Tick,
    /// An order came over the control socket.
    Control {
        /// Whom to answer.
        id: ControlId,
        /// The order.
        order: Order,
    },
    /// The daemon is to end.
    Terminate(Termination),
    /// The store failed, or works again.
    Store {
        /// The failure; `None` when it works again.
        failure: Option<String>,
    },
}

/// An OOM kill as the kernel log tells it.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelRecord {
    /// What was said.
    pub kill: OomKill,
    /// The boot-wide sequence number of its record: one kill's identity.
    pub seq: u64,
    /// The record with which it was known, `seq` or a later one: how far the log was read.
    pub told_by: u64,
    /// When the record was read, or about when it was printed; milliseconds since the epoch.
    pub at_ms: i64,
    /// It was printed while nobody read, and the time comes from the printk clock, which stands still in suspend.
    pub approximate: bool,
}

/// What the kernel log holds that no daemon has acted on.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Missed {
    /// Kills, oldest first.
    pub kills: Vec<KernelRecord>,
    /// Records that were overwritten before anybody read them.
    pub lost: u64,
    /// The newest record; `None` in an empty log.
    pub position: Option<u64>,
}

/// What is known when the daemon begins.
#[derive(Debug, Default)]
pub struct Beginning {
    /// What the store remembers of each lane.
    pub lanes: Vec<LaneRow>,
    /// Runs that the store believes to be under way, each with the verdict on its worker if it has one.
    pub open: Vec<(OpenRun, Option<Judged>)>,
    /// Living runs of the keeper.
    pub living: Vec<Started>,
    /// Ended runs of the keeper that nobody has recorded.
    pub ended: Vec<EndedRun>,
    /// Ended runs of the keeper that are on record: the last daemon died before it could say so.
    pub recorded: Vec<RunId>,
    /// Runs that were judged lately, newest first: evidence that is found now may belong to them.
    pub past: Vec<PastRun>,
    /// OOM kills that the last daemon knew of runs that it did not see end.
    pub known_kills: Vec<KnownKills>,
    /// The kernel log since the last daemon read it; the channel's state if it cannot be read.
    pub kernel_log: Option<Result<Missed, ChannelState>>,
    /// The newest judged run of each lane.
    pub last: Vec<(LaneId, LastView)>,
    /// Whether the records' boot is this one: their moments of the boot clock mean something.
    pub same_boot: bool,
}

/// OOM kills of a run that are on record.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownKills {
    /// The run.
    pub run: RunId,
    /// Those that the kernel log named, oldest first.
    pub named: Vec<LaneKill>,
    /// How many were told without a record.
    pub unnamed: u64,
}

/// A judged run, with what attribution needs to know of its worker.
#[derive(Debug, Clone, PartialEq)]
pub struct PastRun {
    /// The verdict, with its evidence.
    pub row: EndedRow,
    /// The worker's pid; 0 if there never was one.
    pub pid: u32,
    /// Its cgroup in the memory hierarchy.
    pub cgroup: Option<String>,
}

/// An ended run with what was read beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct EndedRun {
    /// What the keeper says.
    pub ended: Ended,
    /// What is at the marker's path.
    pub marker: MarkerReading,
    /// Whether the box's OOM counter (`oom_kill` of /proc/vmstat) grew since it was last read; `None` if unknown.
    pub box_counter_grew: Option<bool>,
}

/// What came of taking a lane and measuring the box.
#[derive(Debug, Clone, PartialEq)]
pub enum Preparation {
    /// The lane is ours.
    Taken {
        /// What was measured of the box.
        reading: HostReading,
        /// The directory's epoch: grows each time that the lane changes hands, and never shrinks.
        epoch: u64,
    },
    /// Somebody else holds the lane, or it cannot be told that nobody does.
    Occupied(String),
    /// No worker can start there: the directory is missing, or is none.
    Unusable(String),
}

/// Who is in an observed lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Looked {
    /// Nobody's working directory is there.
    Nobody,
    /// Only interactive shells are there: which.
    Shell(String),
    /// Somebody is there who has only just come.
    Young {
        /// Look again after this time.
        left: Duration,
    },
    /// The outermost process that works there.
    Somebody(Visitor),
    /// The process table could not be read.
    CannotTell(String),
}

/// What one pass over the box measured. `None` where the kernel does not say, or could not be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sampling {
    /// Processes that the kernel's OOM killer ended since boot, on the whole box (`oom_kill` of /proc/vmstat).
    pub oom_kills: Option<u64>,
    /// When the pass began, milliseconds since the epoch.
    pub taken_at_ms: i64,
    /// The runs that were asked about and whose groups or trees could be found.
    pub runs: Vec<RunSample>,
}

/// What was measured of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunSample {
    /// The run.
    pub run: RunId,
    /// OOM kills that its cgroup has counted; on v1 only its own processes', on v2 those of nested groups too.
    pub oom_kills: Option<u64>,
    /// Other processes that use the worker's address space (kcmp(2), KCMP_VM): the kernel kills all of them and names one.
    pub sharing: Vec<u32>,
    /// Its threads and processes, by the kernel's numbers in our pid namespace.
    pub tasks: Vec<u32>,
}

/// A process that works in a lane beside its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intruder {
    /// The lane.
    pub lane: LaneId,
    /// The run beside which it was seen.
    pub run: RunId,
    /// Its pid.
    pub pid: u32,
    /// Its start, ticks since boot.
    pub start_ticks: u64,
    /// The same, milliseconds since the epoch.
    pub started_at_ms: i64,
    /// Its name, escaped.
    pub command: String,
}

/// The occupant of an observed lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visitor {
    /// Its pid.
    pub pid: u32,
    /// Its start, ticks since boot.
    pub start_ticks: u64,
    /// The same, milliseconds since the epoch.
    pub started_at_ms: i64,
    /// Pid and name for people, escaped.
    pub shown: String,
}

/// What came of a stamp.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// The remote has it.
    Stamped {
        /// The ref.
        name: String,
        /// The object that the ref points to now: the lease of the next write.
        oid: String,
        /// When, milliseconds since the epoch.
        at_ms: i64,
    },
    /// The ref is gone, as asked.
    Removed {
        /// The ref.
        name: String,
    },
    /// It failed and will be tried again.
    Failed(String),
    /// Another live warden stamps this very ref.
    Lost(String),
}

/// An order of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Tell everything.
    Status,
    /// End the lane's worker and keep the lane down.
    Stop(LaneId),
    /// Let the lane work again: clears a stop, a park, a tripped breaker and used-up budgets.
    Start(LaneId),
    /// End the lane's worker and start another at once.
    Restart(LaneId),
    /// Start nothing more; running workers finish.
    Drain,
    /// A worker tells the issue that it works on.
    Issue(LaneId, u64),
}

/// How the daemon is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Termination {
    /// Workers go on under the keeper.
    LeaveWorkers,
    /// Workers end first: TERM, grace, KILL.
    WithWorkers,
    /// Workers end at once: KILL.
    AtOnce,
}
