//! `lanewarden claims` as it is typed.

use clap::Subcommand;

use super::super::issue::OneIssue;
use crate::cli::Json;

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
    /// Remove a claim, under a lease on the record that was judged
    #[command(
        after_help = "Exit codes: 0 gone, 1 could not, 3 a pull request is open or that cannot be told, 4 the ref moved, 5 its issue is unreadable, 64 wrong command line."
    )]
    Reap {
        /// The claim's machine
        machine: String,
        /// The lane, if it is one, and the object id that was judged
        #[arg(num_args = 0..=2, value_name = "LANE OID")]
        rest: Vec<String>,
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
