//! `lanewarden claims` as it is typed.

use clap::Subcommand;

use super::super::{Failure, issue::OneIssue};
use crate::{cli::Json, exit_code::USAGE};

/// What is done with the evidence of life.
#[derive(Debug, Subcommand)]
pub enum ClaimsCommand {
    /// Say that a process of this machine works in a lane; prints the record's object id
    #[command(after_help = "Exit codes: 0 the remote has it, 1 it has not, 64 wrong command line.")]
    Stamp {
        /// An issue's number without leading zero, or `p<digits>[-<hex>]` while it is unknown
        lane: String,
        /// The process [default: the caller]
        pid: Option<String>,
    },
    /// Say that this machine works on an issue
    Beat {
        /// The issue.
        #[command(flatten)]
        issue: OneIssue,
    },
    /// The fleet's lane claims
    #[command(after_help = "Exit codes: 0 shown, 1 the listing failed or a row is unreadable.")]
    List(Json),
    /// The fleet's heartbeats
    #[command(after_help = "Exit codes: 0 shown, 1 the listing failed or a row is unreadable.")]
    Heartbeats(Json),
    /// Whether a claim may be removed
    #[command(
        after_help = "Forms: MACHINE [SECS] for a claim of the older form, MACHINE LANE SECS for a lane.\nExit codes: 0 remove it, 1 keep it or cannot tell, 2 there is none, 64 wrong command line."
    )]
    ShouldReap {
        /// The claim's machine
        machine: String,
        /// The lane, if it is one, and the age in seconds beyond which a claim is stale
        #[arg(num_args = 0..=2, value_name = "LANE SECS")]
        rest: Vec<String>,
        /// The form of the answer.
        #[command(flatten)]
        json: Json,
    },
    /// Remove a claim, or with --sweep all that are due, under a lease on the record that was judged
    #[command(
        after_help = "Exit codes: 0 gone, 1 could not, 3 a pull request is open or that cannot be told, 4 the ref moved, 5 its issue is unreadable, 64 wrong command line.\n--sweep: 0 every claim of the fleet was judged and what is due is gone, 1 the listing failed or was cut short (nothing is removed then), something could not be told, or a removal failed. Machine-dependent clauses are those of should-reap."
    )]
    Reap {
        /// The claim's machine
        #[arg(required_unless_present = "sweep")]
        machine: Option<String>,
        /// The lane, if it is one, and the object id that was judged
        #[arg(num_args = 0..=2, value_name = "LANE OID")]
        rest: Vec<String>,
        /// How the whole fleet is swept.
        #[command(flatten)]
        sweep: SweepArgs,
    },
    /// Remove a machine's heartbeat
    #[command(
        after_help = "Exit codes: 0 gone, 1 could not, 3 a pull request is open or that cannot be told, 5 its issue is unreadable."
    )]
    Clear {
        /// The machine
        machine: String,
    },
}

/// How the whole fleet is swept.
#[derive(Debug, clap::Args)]
pub struct SweepArgs {
    /// Judge every lane claim, claim of the older form and heartbeat, and remove what is due
    #[arg(long, conflicts_with_all = ["machine", "rest"])]
    pub sweep: bool,
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Age in seconds beyond which a claim is stale [default: 14400]
    #[arg(long, value_name = "SECS")]
    pub threshold: Option<String>,
    /// Print JSON for programs
    #[arg(long)]
    pub json: bool,
}

impl SweepArgs {
    /// One claim is removed without a rehearsal: a flag that promises one must not be taken and ignored.
    pub(super) fn refuse_alone(&self) -> Result<(), Failure> {
        if self.dry_run || self.json || self.threshold.is_some() {
            return Err(Failure::new(
                USAGE,
                "--dry-run, --json and --threshold belong to --sweep; for one claim ask `claims should-reap`",
            ));
        }
        Ok(())
    }
}
