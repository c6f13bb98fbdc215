//! Arguments of the lane lock's commands, as written.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::{cli::Json, lanes::predecessor::canonical_number};

const ANSWERS: &str = "Prints one line, `LANE-LOCK: VERDICT key=value ... lane-dir=...`. Exit codes: 0 yes, 2 somebody \
else holds it, 1 could not be told (never that somebody else has it), 64 wrong question.";

/// The lane lock and the commit guard.
#[derive(Debug, Subcommand)]
pub enum LockCommand {
    /// Take a lane's directory for the session that asks; a dead holder's lock is replaced
    #[command(after_help = ANSWERS)]
    Acquire {
        /// Which lane.
        #[command(flatten)]
        lane: Which,
        /// Why, for the audit
        #[arg(long, value_name = "R")]
        reason: Option<String>,
    },
    /// Whether the lane is exactly ours
    #[command(after_help = ANSWERS)]
    Verify {
        /// Which lane.
        #[command(flatten)]
        lane: Which,
        /// The form of the answer.
        #[command(flatten)]
        json: Json,
    },
    /// Who holds the lane; writes nothing, and exits 0 also if it is held
    #[command(after_help = ANSWERS)]
    Probe {
        /// Which lane.
        #[command(flatten)]
        lane: Which,
        /// The form of the answer.
        #[command(flatten)]
        json: Json,
    },
    /// Give the lane back
    #[command(after_help = ANSWERS)]
    Release {
        /// Which lane.
        #[command(flatten)]
        lane: Which,
        /// Also if somebody else holds it; resolves no identity
        #[arg(long)]
        force: bool,
        /// Only if this lease stands; binds also under --force
        #[arg(long, value_name = "LEASE")]
        expect: Option<String>,
    },
    /// Adopt a lane whose holder is known to be gone
    #[command(after_help = ANSWERS)]
    Reclaim {
        /// Which lane.
        #[command(flatten)]
        lane: Which,
        /// The lease that stands now, or `none`; without it only a holder that is proven dead gives way
        #[arg(long, value_name = "LEASE", requires = "reason")]
        expect: Option<String>,
        /// Why, for the audit
        #[arg(long, value_name = "R")]
        reason: Option<String>,
    },
    /// All locks, or one lane's; a count of locks is not a count of occupied lanes
    #[command(after_help = ANSWERS)]
    Status {
        /// Only this issue's
        #[arg(value_parser = issue)]
        issue: Option<u64>,
        /// Where lanes and their locks are
        #[arg(long, value_name = "DIR")]
        lane_root: Option<PathBuf>,
        /// Which lock directory, for an inspection of one that is elsewhere [default: `.lane-locks` below the lane root]
        #[arg(long, value_name = "DIR", conflicts_with = "lane_root")]
        lock_root: Option<PathBuf>,
        /// The form of the answer.
        #[command(flatten)]
        json: Json,
    },
    /// Keep a second session from committing in an occupied lane
    Guard {
        /// What.
        #[command(subcommand)]
        what: Guard,
    },
}

/// The commit guard.
#[derive(Debug, Subcommand)]
pub enum Guard {
    /// Put a pre-commit hook into a repository; an existing one is kept and runs after it
    Install {
        /// The repository, or any of its worktrees
        #[arg(long, value_name = "R", default_value = ".")]
        repo: PathBuf,
    },
    /// What the hook calls: exit 1 if a live session holds the lane and we are not it
    #[command(
        after_help = "Says nothing outside of lanes. What cannot be told is a warning, and the commit goes on."
    )]
    Check {
        /// The directory that is asked about
        #[arg(long, value_name = "D", default_value = ".")]
        dir: PathBuf,
    },
}

/// Which lane, and who asks.
#[derive(Debug, Clone, Args)]
pub struct Which {
    /// The issue's number
    #[arg(value_parser = issue)]
    pub issue: u64,
    /// The lane's directory, absolute [default: `lane-N` below the lane root]
    #[arg(long = "dir", visible_alias = "lane-dir", value_name = "D")]
    pub dir: Option<PathBuf>,
    /// The process that holds the lane [default: $LANE_LOCK_PID, else the outermost ancestor inside the lane]
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Option<u32>,
    /// Who acts [default: $LANE_LOCK_ACTOR, else `flow`]
    #[arg(long, value_name = "A")]
    pub actor: Option<String>,
}

/// Paths are made of it, so `0`, `07` and `+7` are not other names of an issue.
fn issue(text: &str) -> Result<u64, String> {
    canonical_number(text)
        .filter(|number| i64::try_from(*number).is_ok())
        .ok_or_else(|| "it is not an issue's number, 1 or more without leading zeros".to_owned())
}
