//! Everything that we can do. `dispatch` returns these in a fixed order; `effects` performs them.

use lanewarden_notify::Notice;

use crate::{
    ids::{LaneId, RunId},
    keeper::protocol::{SpawnOrder, Started, StopSignal},
    observe::Observation,
    store::rows::Write,
    verdict::LaneState,
    view::BoxView,
};

/// Names one waiting client of the control socket.
pub type ControlId = u64;

/// One deed.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Write these rows and queue these notices, in one transaction.
    Record {
        /// Rows.
        writes: Vec<Write>,
        /// Notices that the rows cause.
        notices: Vec<Telling>,
    },
    /// What the claims of these lanes should say from now on. Queued, never awaited; the newest wish wins.
    Claim(Vec<ClaimWish>),
    /// Write the log line and count.
    Observe(Observation),
    /// Wake the courier.
    Notify,
    /// Take the lane and measure the box; answers with `Prepared`.
    Prepare(LaneId),
    /// Look who is in an observed lane; answers with `Looked`.
    Look(LaneId),
    /// Walk running lanes for processes that are not of the worker's tree; answers with `Patrolled`.
    Patrol(Vec<Post>),
    /// Measure the box and these runs; answers with `Sampled`.
    Sample(Vec<Post>),
    /// Start a worker; answers with `Spawned` or `NotSpawned`.
    Spawn(Box<SpawnOrder>),
    /// Hold a pidfd on this worker; answers with `WorkerGone`.
    Watch {
        /// The run.
        run: RunId,
        /// Its worker.
        pid: u32,
        /// Proves that the pid is still the worker's.
        start_ticks: u64,
    },
    /// Signal a run's tree.
    Signal {
        /// The run.
        run: RunId,
        /// How.
        how: StopSignal,
        /// The worker, if no keeper is its parent: then we signal its tree ourselves.
        stray: Option<Post>,
    },
    /// The ending is recorded: the keeper may forget it.
    Forget(RunId),
    /// Give the lane back.
    Release(LaneId),
    /// Answer a client of the control socket.
    Reply(ControlId, Answer),
    /// Send `Tick` at this moment of the boot clock at the latest.
    Wake(u64),
    /// The same, for a pass over the runs that is due sooner than the loop's own pulse.
    WakeToSample(u64),
    /// Leave the loop.
    Exit(Goodbye),
}

/// Something that a person is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Telling {
    /// The identity of the event: the same event is told once, however often it is replayed.
    pub id: String,
    /// What is told.
    pub notice: Notice,
}

/// A running lane that is to be walked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Post {
    /// The lane.
    pub lane: LaneId,
    /// Its run.
    pub run: RunId,
    /// Its worker.
    pub pid: u32,
    /// Its start, ticks since boot: proves that the pid is still the worker's.
    pub start_ticks: u64,
    /// The run's cgroup in the memory hierarchy.
    pub cgroup: Option<String>,
}

impl From<&Started> for Post {
    fn from(started: &Started) -> Self {
        Self {
            lane: started.lane.clone(),
            run: started.run.clone(),
            pid: started.pid,
            start_ticks: started.start_ticks,
            cgroup: started.cgroup.clone(),
        }
    }
}

/// What a lane's claim should say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimWish {
    /// The lane.
    pub lane: LaneId,
    /// What its claim says.
    pub state: LaneState,
    /// The issue, if it is known.
    pub issue: Option<u64>,
    /// The worker, while there is one.
    pub worker: Option<(u32, u64)>,
    /// The run, while there is one.
    pub run: Option<RunId>,
    /// The lane directory's epoch, once it was taken: fences off a late writer.
    pub epoch: Option<u64>,
    /// Take the claim away instead.
    pub remove: bool,
}

/// The answer to an order.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Done; one sentence.
    Done(String),
    /// Not done: what was tried, what was seen, what to do next.
    Refused(String),
    /// Everything.
    Status(Box<BoxView>),
}

/// What the daemon leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goodbye {
    /// Workers that go on under the keeper.
    pub workers_left: usize,
}

impl Effect {
    /// The place in the fixed order of a turn: record, claim, observe, notify, then the deeds.
    ///
    /// A lane is forgotten and given back before anything is started, and answers go out when all is done.
    #[must_use]
    pub const fn rank(&self) -> u8 {
        match self {
            Self::Record { .. } => 0,
            Self::Claim(_) => 1,
            Self::Observe(_) => 2,
            Self::Notify => 3,
            Self::Watch { .. } => 4,
            Self::Signal { .. } => 5,
            Self::Forget(_) => 6,
            Self::Release(_) => 7,
            Self::Prepare(_) | Self::Look(_) | Self::Patrol(_) | Self::Sample(_) => 8,
            Self::Spawn(_) => 9,
            Self::Wake(_) | Self::WakeToSample(_) => 10,
            Self::Reply(..) => 11,
            Self::Exit(_) => 12,
        }
    }
}
