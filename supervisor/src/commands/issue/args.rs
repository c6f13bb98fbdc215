//! `lanewarden issue` as it is typed.

use clap::{Args, Subcommand};

use crate::{claims::issue::is_issue_number, cli::Json};

/// What is asked of the issue lock.
#[derive(Debug, Subcommand)]
pub enum IssueCommand {
    /// Take an issue for this machine and actor
    #[command(
        after_help = "Exit codes: 0 held, 2 somebody else's, 1 could not tell, 64 wrong command line."
    )]
    Claim {
        /// Which.
        #[command(flatten)]
        issue: OneIssue,
        /// For whom.
        #[command(flatten)]
        claimant: ClaimantArgs,
    },
    /// Ask whether this machine and actor hold the issue
    Verify {
        /// Which.
        #[command(flatten)]
        issue: OneIssue,
        /// For whom.
        #[command(flatten)]
        claimant: ClaimantArgs,
        /// The form of the answer.
        #[command(flatten)]
        json: Json,
    },
    /// Take an issue over from exactly the record that was seen
    Adopt {
        /// Which.
        #[command(flatten)]
        issue: OneIssue,
        /// The record's full object id as `issue status` shows it, or the word for an absent lock
        #[arg(long, value_name = "OID", allow_hyphen_values = true)]
        expect: String,
        /// Why, for the audit; needed where no record is expected
        #[arg(long, allow_hyphen_values = true)]
        reason: Option<String>,
        /// For whom.
        #[command(flatten)]
        claimant: ClaimantArgs,
    },
    /// Give an issue back
    #[command(
        after_help = "Refused while a pull request of the issue is open, and while nobody can tell: $CLAIM_OPEN_PR_CMD is run as `bash -c CMD _ ISSUE`, exit 0 is yes, 1 is no."
    )]
    Release {
        /// Which.
        #[command(flatten)]
        issue: OneIssue,
        /// Whoever holds it, and whatever is open
        #[arg(long)]
        force: bool,
        /// For whom.
        #[command(flatten)]
        claimant: ClaimantArgs,
    },
    /// Who holds which issue
    Status {
        /// Only this one
        #[arg(value_parser = issue_number)]
        issue: Option<String>,
        /// The form of the answer.
        #[command(flatten)]
        json: Json,
    },
    /// Try whether the remote takes, shows and deletes refs of locks
    Smoke,
}

/// One issue.
#[derive(Debug, Args)]
pub struct OneIssue {
    /// The issue's number
    #[arg(value_name = "N", value_parser = issue_number)]
    pub issue: String,
}

/// For whom a lock is asked.
#[derive(Debug, Args)]
pub struct ClaimantArgs {
    /// Who acts [default: $CLAIM_ACTOR, else flow]
    #[arg(long, allow_hyphen_values = true)]
    pub actor: Option<String>,
    /// The process that works on it [default: the occupant of the lane in which this is run, if any]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=2_147_483_647))]
    pub pid: Option<u32>,
}

/// ASCII digits only.
pub(in crate::commands) fn issue_number(text: &str) -> Result<String, String> {
    if is_issue_number(text) {
        Ok(text.to_owned())
    } else {
        Err("an issue's number has digits only".to_owned())
    }
}
