//! Arguments as written; what they mean is decided in `commands`.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum, error::ErrorKind};

use crate::{
    commands::{ClaimsCommand, IssueCommand, lane::args::LockCommand},
    exit_code,
    ids::LaneId,
    output,
};

/// Per-box supervisor and monitoring agent for lanes of coding agents.
#[derive(Debug, Parser)]
#[command(
    name = "lanewarden",
    version,
    after_help = "Exit codes: 0 done, 1 not done or could not tell, 3 found (dead lanes, OOM kills), 64 wrong command line, \
78 wrong configuration.\nA first look without any configuration: lanewarden demo"
)]
pub struct Cli {
    /// Configuration file [default: $LANEWARDEN_CONFIG, else $XDG_CONFIG_HOME/lanewarden/config.toml, else
    /// /etc/lanewarden/config.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// How much is logged to standard error
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        env = "LANEWARDEN_LOG",
        default_value = "info"
    )]
    pub log: LogLevel,
    /// Log lines as JSON
    #[arg(long, global = true)]
    pub log_json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// How much is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// What is lost.
    Error,
    /// What is not as it should be.
    Warn,
    /// What happens.
    Info,
    /// How it happens.
    Debug,
    /// Everything.
    Trace,
}

/// Wants JSON.
#[derive(Debug, Clone, Copy, Args)]
pub struct Json {
    /// One JSON document instead of text
    #[arg(long)]
    pub json: bool,
}

/// One lane.
#[derive(Debug, Clone, Args)]
pub struct OneLane {
    /// The lane's id
    #[arg(value_parser = lane_id)]
    pub lane: LaneId,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// A self-contained tour in a temporary directory: lanes that finish, crash, hang and leak memory
    #[command(after_help = "Examples:\n  lanewarden demo\n  lanewarden demo --seconds 60 --keep")]
    Demo {
        /// Stop after this long at the latest
        #[arg(long, default_value_t = 45, value_name = "N", value_parser = clap::value_parser!(u64).range(10..=3600))]
        seconds: u64,
        /// Leave the temporary directory for a look
        #[arg(long)]
        keep: bool,
    },
    /// The warden, in the foreground; starts a keeper if none runs
    #[command(
        after_help = "SIGTERM leaves workers to the keeper; the next warden takes them over. Ctrl-C ends them first, a second \
Ctrl-C at once.\n\nExamples:\n  lanewarden run\n  lanewarden --config ./box.toml run --with-workers"
    )]
    Run {
        /// Who starts the keeper: `auto` starts one if none runs, `unit` waits for a service manager's
        #[arg(long, default_value = "auto")]
        keeper: Keeper,
        /// End the workers before ending, also on SIGTERM
        #[arg(long)]
        with_workers: bool,
    },
    /// The keeper, in the foreground: parent of all workers
    Keep(KeepArgs),
    /// The holder: sleeps, so that a service manager keeps the cgroup below which lanes have theirs
    #[command(after_help = "Ends on SIGTERM. See systemd/lanewarden-lanes.service.")]
    Hold,
    /// Validate configuration and environment
    #[command(
        after_help = "Exit codes: 0 valid, 78 not.\n\nExample:\n  lanewarden --config ./box.toml check"
    )]
    Check {
        /// Print the configuration with every default filled in, secrets masked
        #[arg(long)]
        effective: bool,
        /// The form of the answer.
        #[command(flatten)]
        json: Json,
    },
    /// Lanes, verdicts, claims and backlog of the running daemon
    #[command(after_help = "Exit codes: 0 shown, 1 the daemon cannot be reached.")]
    Status(Json),
    /// End a lane's worker and keep the lane down
    Stop(OneLane),
    /// Let a lane work again: clears a stop, a park, a tripped breaker, a used-up budget
    Start(OneLane),
    /// End a lane's worker and start another at once
    Restart(OneLane),
    /// Start nothing more; running workers finish
    Drain,
    /// A worker's output
    #[command(after_help = "Examples:\n  lanewarden logs lane-1\n  lanewarden logs lane-1 -f")]
    Logs {
        /// Whose.
        #[command(flatten)]
        lane: OneLane,
        /// Which run: its nonce or the start of it [default: the newest]
        #[arg(long, value_name = "R")]
        run: Option<String>,
        /// Go on with what is written, over the ends of runs
        #[arg(short, long)]
        follow: bool,
    },
    /// Past runs with verdict, duration, exit, peak memory and OOM evidence
    #[command(
        after_help = "Examples:\n  lanewarden history\n  lanewarden history lane-1 --limit 5 --json"
    )]
    History {
        /// Only this lane
        #[arg(value_parser = lane_id)]
        lane: Option<LaneId>,
        /// The most runs
        #[arg(long, default_value_t = 20, value_name = "N")]
        limit: u32,
        /// The form of the answer.
        #[command(flatten)]
        json: Json,
    },
    /// What is dead on this box right now
    #[command(
        after_help = "Exit codes: 3 dead lanes found; 1 none reported, which is no clean bill; with --certify 0 if every \
configured lane was measured and none is dead or unknown.\n\nExample for cron, which mails findings only:\n  */5 * * * * lanewarden dead-lanes"
    )]
    DeadLanes {
        /// Exit 0 if every configured lane was measured and none is dead or unknown
        #[arg(long)]
        certify: bool,
        /// Also write the counts for node_exporter's textfile collector
        #[arg(long, value_name = "FILE")]
        textfile: Option<PathBuf>,
        /// The form of the answer.
        #[command(flatten)]
        json: Json,
    },
    /// Lane claims and heartbeats on the coordination remote
    Claims {
        /// What.
        #[command(subcommand)]
        what: ClaimsCommand,
    },
    /// The fleet-wide issue lock
    Issue {
        /// What.
        #[command(subcommand)]
        what: IssueCommand,
    },
    /// The five parts of a process' identity, with the evidence
    Identity {
        /// Which process [default: the caller]
        pid: Option<u32>,
        /// The form of the answer.
        #[command(flatten)]
        json: Json,
    },
    /// OOM kills from a kernel log: raw kmsg, dmesg, syslog, journal text or JSON
    #[command(
        after_help = "Exit codes: 3 kills found, 0 none in a log that was read whole, 1 could not read.\n\nExamples:\n  dmesg | lanewarden oom --file -\n  lanewarden oom --file /var/log/kern.log --json"
    )]
    Oom {
        /// The log; `-` is standard input [default: the kernel's ring buffer]
        #[arg(long, value_name = "F")]
        file: Option<PathBuf>,
        /// The form of the answer.
        #[command(flatten)]
        json: Json,
    },
    /// Publish notices by hand
    Notify {
        /// What.
        #[command(subcommand)]
        what: Notify,
    },
    /// Commands for workers and lanes
    Lane {
        /// What.
        #[command(subcommand)]
        what: LaneCommand,
    },
    /// The catalogue of metric series
    Metrics(Json),
    /// Shell completion
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// The manual page of the program, or of one command
    #[command(
        after_help = "Examples:\n  lanewarden man | man -l -\n  lanewarden man dead-lanes > lanewarden-dead-lanes.1"
    )]
    Man {
        /// Which command's
        command: Option<String>,
    },
    /// A worker of the demo.
    #[command(hide = true)]
    DemoWorker {
        /// What it does.
        kind: String,
    },
}

/// What is published.
#[derive(Debug, Subcommand)]
pub enum Notify {
    /// Publish one notice of each level; exit 1 if the server does not take them
    Test,
    /// Publish a text
    Send {
        /// The title
        title: String,
        /// The message
        message: String,
        /// high, info, digest or recovery; anything else is high
        #[arg(long, default_value = "info")]
        level: String,
    },
    /// Publish the result of a gate
    Gate {
        /// PASS, FAIL or another word
        #[arg(long)]
        result: String,
        /// The branch
        #[arg(long)]
        branch: String,
        /// The commit
        #[arg(long)]
        sha: String,
        /// Components that failed
        #[arg(long, value_delimiter = ',')]
        failing: Vec<String>,
    },
}

/// What is said of a lane and its lock.
#[derive(Debug, Subcommand)]
pub enum LaneCommand {
    /// Tell the warden which issue the worker of this lane works on
    #[command(after_help = "Run by a worker: the lane is that of $LANEWARDEN_LANE.")]
    Issue {
        /// The issue's number
        #[arg(value_parser = clap::value_parser!(u64).range(1..))]
        issue: u64,
        /// The lane
        #[arg(long, env = "LANEWARDEN_LANE", value_parser = lane_id)]
        lane: LaneId,
        /// The warden's socket
        #[arg(long, env = "LANEWARDEN_SOCKET")]
        socket: Option<PathBuf>,
    },
    /// The machine-local lock on a lane's directory.
    #[command(flatten)]
    Lock(LockCommand),
}

/// Who starts the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Keeper {
    /// The warden.
    Auto,
    /// A unit of the service manager.
    Unit,
}

/// Arguments of the keeper.
#[derive(Debug, Args)]
pub struct KeepArgs {
    /// Where its socket and lock are [default: `keeper` below the configured runtime directory]
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// Who may give orders: user name or uid [default: our own]
    #[arg(long, value_name = "USER")]
    pub peer: Vec<String>,
    /// As whom workers may run: user name or uid [default: our own]
    #[arg(long, value_name = "USER")]
    pub allow_user: Vec<String>,
    /// Workers may run as uid 0
    #[arg(long)]
    pub allow_root: bool,
    /// Below which cgroup lanes get theirs [default: our own]
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<String>,
}

fn lane_id(text: &str) -> Result<LaneId, String> {
    LaneId::new(text).map_err(|error| error.to_string())
}

/// Parses the command line; an error is printed, and its exit code given back.
///
/// # Errors
/// 0 after help and version, 64 for everything that is wrong.
pub fn parse() -> Result<Cli, u8> {
    parse_from(std::env::args_os())
}

fn parse_from(args: impl IntoIterator<Item = OsString>) -> Result<Cli, u8> {
    Cli::try_parse_from(args).map_err(|error| {
        // clap's own code for usage errors is 2, which is a verdict here.
        let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
        let code = if asked { exit_code::OK } else { exit_code::USAGE };
        if error.print().is_err() {
            output::error("the help could not be printed");
        }
        code
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn usage_errors_are_64_and_help_is_0() {
        let code = |args: &[&str]| parse_from(args.iter().map(OsString::from)).unwrap_err();
        assert_eq!(code(&["lanewarden", "--no-such"]), 64);
        assert_eq!(code(&["lanewarden"]), 64);
        assert_eq!(code(&["lanewarden", "stop", "Not A Lane"]), 64);
        assert_eq!(code(&["lanewarden", "--help"]), 0);
        assert_eq!(code(&["lanewarden", "run", "--help"]), 0);
    }
}
