//! What warden and keeper say to each other: one JSON document a line, over one Unix stream socket.
//!
//! The protocol number comes first: a keeper answers [`Request::Hello`] with its own number, and each side understands
//! its own and the one before. Every request carries an id that its answer repeats. [`Notification::Ended`] is sent
//! without a request, to every connected peer, and again on [`Request::List`] until [`Request::Forget`] says that the
//! ending is on the warden's disk.

use std::{collections::BTreeMap, path::PathBuf};

use lanewarden_probes::ending::Usage;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::ids::{LaneId, RunId};

/// The protocol's number. Raised when a message changes its meaning; additions do not count.
pub const PROTOCOL: u32 = 1;

/// The longest line that either side accepts, bytes.
pub const MAX_LINE: usize = 1 << 20;

/// A request with its id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// Repeated in the answer.
    pub id: u64,
    /// What is asked.
    #[serde(flatten)]
    pub request: Request,
}

/// What the warden asks of the keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case")]
pub enum Request {
    /// First message of a connection.
    Hello {
        /// The asker's [`PROTOCOL`].
        protocol: u32,
    },
    /// Start a worker. Answered by [`Answer::Spawned`] or [`Answer::NotSpawned`].
    Spawn(Box<SpawnOrder>),
    /// Signal a run. Answered by [`Answer::Signalled`].
    Signal {
        /// Whose worker.
        run: RunId,
        /// How.
        how: StopSignal,
    },
    /// Tell of every run that is not forgotten. Answered by [`Answer::Runs`].
    List,
    /// The ending is on disk: forget the run and remove its cgroup. Answered by [`Answer::Forgotten`].
    Forget {
        /// Which run.
        run: RunId,
    },
}

/// How a run is signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StopSignal {
    /// SIGTERM to every process of the tree.
    Term,
    /// SIGKILL to every process of the tree, again until nothing is left.
    Kill,
}

/// Everything that the keeper needs to start one worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpawnOrder {
    /// The run's nonce.
    pub run: RunId,
    /// Its lane.
    pub lane: LaneId,
    /// Program and arguments. The program is looked up in `env`'s PATH if it has no slash.
    pub argv: Vec<String>,
    /// Working directory; must exist.
    pub dir: PathBuf,
    /// The worker's whole environment.
    pub env: BTreeMap<String, String>,
    /// Opened with O_APPEND, O_NOFOLLOW, created with mode 0640; gets standard output and error.
    pub log: PathBuf,
    /// Made for this run with mode 0700; the marker goes there.
    pub marker_dir: PathBuf,
    /// Limits of the run's own cgroup.
    pub limits: Limits,
    /// The worker's oom_score_adj, 0 to 1000: workers die before the supervisor does.
    pub oom_score_adj: i32,
}

/// Resource limits of one run. Absent means unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Hard memory limit, bytes.
    pub memory_max: Option<u64>,
    /// Throttling limit, bytes (cgroup v2 only).
    pub memory_high: Option<u64>,
    /// Most processes and threads.
    pub pids_max: Option<u64>,
    /// CPU weight, 1 to 10000 (cgroup v2 only).
    pub cpu_weight: Option<u64>,
}

/// What the keeper answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's id.
    pub id: u64,
    /// The answer.
    #[serde(flatten)]
    pub answer: Answer,
}

/// The keeper's answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// To [`Request::Hello`].
    Hello {
        /// The keeper's [`PROTOCOL`].
        protocol: u32,
        /// Its version, for people.
        version: String,
        /// Its pid.
        pid: u32,
        /// What this host lets it enforce, and what it does not, one sentence each.
        degraded: Vec<String>,
    },
    /// The program runs.
    Spawned(Box<Started>),
    /// The program never ran.
    NotSpawned {
        /// Which run.
        run: RunId,
        /// At which step: `directory`, `log`, `marker-dir`, `cgroup`, `fork`, `exec`, `refused`.
        step: String,
        /// The error number, where the kernel gave one.
        errno: Option<i32>,
        /// A sentence with the remedy.
        message: String,
    },
    /// To [`Request::Signal`].
    Signalled {
        /// How many processes were signalled; 0 if nothing of the run lives.
        processes: u32,
    },
    /// To [`Request::List`].
    Runs {
        /// Those whose worker lives.
        living: Vec<Started>,
        /// Those that ended and are not forgotten.
        ended: Vec<Ended>,
    },
    /// To [`Request::Forget`].
    Forgotten,
    /// The request cannot be honoured; the connection goes on.
    Refused {
        /// Why, and what to do.
        message: String,
    },
}

/// A worker that was started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// The run.
    pub run: RunId,
    /// Its lane.
    pub lane: LaneId,
    /// The worker's pid, in the keeper's pid namespace.
    pub pid: u32,
    /// Field 22 of /proc/PID/stat: ticks since boot.
    pub start_ticks: u64,
    /// When, milliseconds since the epoch.
    pub started_at_ms: i64,
    /// The run's cgroup, as the kernel names it in OOM reports (memory hierarchy); absent where none could be made.
    pub cgroup: Option<String>,
    /// What could not be enforced for this run, one sentence each.
    pub degraded: Vec<String>,
}

/// A message that nobody asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "notify", rename_all = "kebab-case")]
pub enum Notification {
    /// A run ended, and nothing of its tree is left (or `survivors` says what is).
    Ended(Box<Ended>),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    /// The worker, as it was started.
    pub started: Started,
    /// The raw wait status of wait(2).
    pub wait_status: i32,
    /// What it used.
    pub usage: Usage,
    /// When the keeper learnt of it, milliseconds since the epoch.
    pub ended_at_ms: i64,
    /// The signals that the keeper sent to the tree on order, with the time in milliseconds since the epoch, oldest
    /// first. Written down before each signal.
    pub our_signals: Vec<(StopSignal, i64)>,
    /// OOM kills that the run's cgroup counted at spawn and at the end; absent where there is no counter.
    pub oom_kills: Option<(u64, u64)>,
    /// Highest memory of the run's cgroup, bytes; absent where there is none.
    pub peak_memory_bytes: Option<u64>,
    /// Processes of the tree that were still there when the worker ended, and were killed.
    pub leftovers: u32,
    /// Pids that could not be ended.
    pub survivors: Vec<u32>,
}

/// One line from the keeper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FromKeeper {
    /// An answer to a request.
    Reply(Reply),
    /// A notification.
    Notification(Notification),
}

/// A line that is not a message of the protocol.
#[derive(Debug, thiserror::Error)]
#[error("not a message of protocol {PROTOCOL}: {source}")]
pub struct BadMessage {
    source: serde_json::Error,
}

/// The message as one line, with its newline.
#[must_use]
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    // Maps with string keys and plain values: serialisation into memory cannot fail.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The message in one line.
///
/// # Errors
/// [`BadMessage`] if the line is no message of this protocol.
pub fn decode<T: DeserializeOwned>(line: &[u8]) -> Result<T, BadMessage> {
    serde_json::from_slice(line).map_err(|source| BadMessage { source })
}
