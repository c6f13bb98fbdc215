//! The configuration as meant: every default filled in, every rule held.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use super::Problem;
use crate::{
    ids::{LaneId, MachineName},
    keeper::protocol::Limits,
};

/// A valid configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The box's name.
    pub machine: MachineName,
    /// Where lanes and their locks live. Absolute; need not exist yet.
    pub lane_root: PathBuf,
    /// Store, worker logs, markers. Absolute.
    pub state_dir: PathBuf,
    /// Sockets and lock files. Absolute.
    pub runtime_dir: PathBuf,
    /// Where claims live; `None` runs without claims.
    pub remote: Option<Remote>,
    /// The HTTP listener; `None` if it is switched off.
    pub metrics: Option<Metrics>,
    /// Whom to page; `None` keeps notices in the spool and the log.
    pub ntfy: Option<Ntfy>,
    /// Who knows which pull requests are open; `None`: nobody can be asked.
    pub forge: Option<Forge>,
    /// May one more worker start?
    pub admission: Admission,
    /// What is done for the shell tools that came before.
    pub compat: Compat,
    /// The lanes, in the order of the file.
    pub lanes: Vec<Lane>,
    /// The file that this came from.
    pub path: PathBuf,
    /// What is allowed and yet worth a remark, such as a command that an observed lane never runs.
    pub notes: Vec<Problem>,
}

/// The coordination remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// URL or absolute path; never starts with `-`, never carries a password.
    pub url: String,
    /// How often claims are stamped and read without another cause. Default 5m.
    pub refresh: Duration,
    /// The longest that one call of git may take. Default 20s.
    pub deadline: Duration,
    /// Private key for ssh. Absolute.
    pub ssh_key_file: Option<PathBuf>,
    /// Host keys for ssh. Absolute.
    pub known_hosts_file: Option<PathBuf>,
    /// File whose content is the token for http(s): `token_file` as configured, or the place of `credential`.
    pub token_file: Option<PathBuf>,
    /// Name of the systemd credential that holds the token, as configured.
    pub credential: Option<String>,
}

/// The HTTP listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metrics {
    /// Address and port. Default 127.0.0.1:9464; port 0 takes a free one.
    pub listen: SocketAddr,
}

/// The ntfy server and topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ntfy {
    /// `http://` or `https://` with a host and without a trailing slash.
    pub server: String,
    /// `[-_A-Za-z0-9]{1,64}`.
    pub topic: String,
    /// File whose content is the access token. Absolute.
    pub token_file: Option<PathBuf>,
}

/// Who knows which pull requests are open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forge {
    /// Who is asked.
    pub pulls: Pulls,
    /// The longest that one question may take, all pages included. Positive. Default 20s.
    pub deadline: Duration,
}

/// Who is asked about open pull requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pulls {
    /// GitHub's REST interface.
    Github {
        /// Its root, without a trailing slash: https, or this very host. Default `https://api.github.com`.
        api: String,
        /// `owner/name`.
        repo: String,
        /// File whose content is the access token. Absolute.
        token_file: Option<PathBuf>,
        /// The file is a credential that systemd guards, with modes of its own.
        from_service_manager: bool,
    },
    /// Program and arguments, to which the issue's number is added: exit 0 is yes, 1 is no, anything else unknown.
    Command(Vec<String>),
}

/// Which interface a forge has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForgeKind {
    /// GitHub's, which servers of one's own and other forges have too.
    Github,
}

impl ForgeKind {
    /// Every member.
    pub const ALL: [Self; 1] = [Self::Github];

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Github => "github",
        }
    }
}

/// Limits of the host beyond which no worker is started.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Admission {
    /// Highest 1-minute load average. Finite and positive. Default 4 for each CPU.
    pub load_max: f64,
    /// Least free disk, bytes. Default 2 GiB.
    pub disk_free_min: u64,
    /// Least available memory, bytes. Default 1 GiB.
    pub memory_available_min: u64,
    /// Highest `some avg10` of memory pressure, per cent (Documentation/accounting/psi.rst). Default: not asked.
    pub memory_pressure_some_avg10_max: Option<f64>,
}

/// What is done for the shell tools that came before, on boxes where they are still at work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compat {
    /// Lane locks are written also as their records, so that those tools respect them. Default false; theirs are always
    /// read.
    pub shell: bool,
}

/// One lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Its name.
    pub id: LaneId,
    /// Its directory, as configured. Absolute.
    pub dir: PathBuf,
    /// Who starts the worker.
    pub mode: Mode,
    /// Program and arguments; empty exactly if the lane is only observed.
    pub command: Vec<String>,
    /// Wall clock of one run. Positive. Default 2h.
    pub deadline: Duration,
    /// From TERM to KILL of the whole tree; zero kills at once. Default 10s.
    pub stop_grace: Duration,
    /// When a worker that ended is followed by another.
    pub restart: Restart,
    /// Limits of a run's cgroup.
    pub limits: Limits,
    /// How a worker that waits for an answer is noticed; `None` does not look.
    pub watchdog: Option<Watchdog>,
    /// How much this lane may do before it rests.
    pub budget: Budget,
    /// Added to the worker's allow-listed environment.
    pub env: BTreeMap<String, String>,
    /// The worker's `oom_score_adj`, 0 to 1000. Default 400: workers die before the supervisor does.
    pub oom_score_adj: i32,
}

/// Who starts a lane's worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// We do.
    #[default]
    Manage,
    /// Somebody else does: the lane is watched, stamped and reported.
    Observe,
}

impl Mode {
    /// Every member.
    pub const ALL: [Self; 2] = [Self::Manage, Self::Observe];

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Manage => "manage",
            Self::Observe => "observe",
        }
    }
}

/// When a worker that ended is followed by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// Wait after the first failure. Default 1s.
    pub delay: Duration,
    /// Longest wait, however often it fails. Never below `delay`. Default 5m, or `delay` if that is longer.
    pub max_delay: Duration,
    /// Least time between two starts from the second failure in a row. Default 1s.
    pub min_gap: Duration,
    /// Wait after a run that found no work. Default 15m.
    pub idle_delay: Duration,
    /// Failures in a row within `breaker_window` that trip the lane; 0 switches the breaker off, 1 trips on the first.
    /// Default 3.
    pub breaker: u32,
    /// How far back failures count. Positive while the breaker is on. Default 1h.
    pub breaker_window: Duration,
}

/// How a worker that waits for an answer is noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watchdog {
    /// Texts whose presence at the end of the log means a question. Not empty, and none of them empty.
    pub prompt: Vec<String>,
    /// How many of the last lines are looked at, 1 to 10000. Default 20.
    pub tail_lines: u32,
    /// Time between two looks. Positive. Default 30s.
    pub scan: Duration,
    /// What is done about it. Default page.
    pub action: WatchdogAction,
}

/// What is done about a worker that waits for an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum WatchdogAction {
    /// Page, and let the worker run on until it ends or meets its deadline.
    #[default]
    Page,
}

impl WatchdogAction {
    /// Every member.
    pub const ALL: [Self; 1] = [Self::Page];

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Page => "page",
        }
    }
}

/// How much a lane may do before it rests; 0 is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    /// Runs.
    pub runs: u64,
    /// Issues concluded.
    pub issues: u64,
    /// Hours of wall clock.
    pub hours: u64,
}
