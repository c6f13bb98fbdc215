//! `lanewarden issue`: the fleet-wide issue lock. Here the remote is asked and told; `decide::issue` judges.

mod args;
mod desk;
mod lane_lock;
mod process;
mod status;
mod take;
mod words;

pub(super) use process::stamped_in_this_boot;

pub use args::{ClaimantArgs, IssueCommand, OneIssue};

use std::path::Path;

use super::{
    Failure, Outcome,
    claims::{
        place::{Place, Surroundings, remote_name, shown},
        trouble_words,
    },
    runtime,
};
use crate::{
    claims::{issue::issue_ref, record::issue_of, sanitise},
    decide::issue::{
        AuthDetail, BadReason, Expect, InfraDetail, Verdict, Who, after_delete, check_actor,
        check_reason, exit, on_release, on_verify,
    },
    exit_code::{FAILED, OK, USAGE},
    output,
    text::harmless,
    verdict::OpenPr,
};
use desk::{Desk, listing_failed};
use lane_lock::LaneLock;

const REMOTE: &[&str] = &["CLAIM_REMOTE"];
const MACHINE: &[&str] = &["CLAIM_MACHINE"];
const UNSPECIFIED: &str = "unspecified";

/// Runs the command.
pub(super) fn issue(what: IssueCommand, config: Option<&Path>) -> Outcome {
    let asked = Asked::of(&what)?;
    let around = Surroundings::take(config, REMOTE)?;
    let who = who(&around, asked.actor)?;
    let name = remote_name(&around, REMOTE);
    let runtime = runtime()?;
    runtime.block_on(async {
        let place = match Place::open(&around, &name).await {
            Ok(place) => place,
            Err(failure) if failure.code == FAILED => {
                note(&failure.words);
                return Ok(unreachable(&what, &who, &shown(&name)));
            }
            Err(failure) => return Err(failure),
        };
        let mut desk = Desk::new(place, shown(&name), who);
        match &what {
            IssueCommand::Status { issue, json } => {
                return Ok(status::status(&desk, issue.as_deref(), json.json).await);
            }
            IssueCommand::Smoke => return Ok(take::smoke(&mut desk).await),
            IssueCommand::Claim { issue, claimant }
            | IssueCommand::Verify { issue, claimant, .. }
            | IssueCommand::Adopt { issue, claimant, .. }
            | IssueCommand::Release { issue, claimant, .. } => {
                desk.take_up(&issue.issue);
                match process::claimant(&around, &desk.who, claimant.pid) {
                    Ok(process) => desk.process = process,
                    Err(why) => {
                        note(&why);
                        let detail = InfraDetail::ClaimantUnresolved;
                        return Ok(desk.say(&Verdict::Infra { detail, oid: None }, None, false));
                    }
                }
            }
        }
        Ok(perform(&mut desk, &what, &asked, &Around { config, seen: &around }).await)
    })
}

/// What is known of the box.
struct Around<'a> {
    config: Option<&'a Path>,
    seen: &'a Surroundings,
}

/// Every command that is about one issue.
async fn perform(
    desk: &mut Desk,
    what: &IssueCommand,
    asked: &Asked<'_>,
    around: &Around<'_>,
) -> u8 {
    match what {
        IssueCommand::Claim { claimant, .. } => {
            let verdict = take::claim(desk).await;
            if matches!(verdict, Verdict::Held { .. } | Verdict::LegacyBranch { .. })
                && let Some(issue) = issue_of(&desk.issue)
            {
                let inquirer = super::lane::inquirer(around.config, claimant.pid);
                desk.lane_lock = lane_lock::ask(inquirer.map_err(|failure| failure.code), issue);
            }
            desk.say(&verdict, None, false)
        }
        IssueCommand::Verify { json, .. } => {
            let found = desk.read().await;
            let verdict =
                listing_failed(&found).unwrap_or_else(|| on_verify(&desk.who, found.map_err(drop)));
            desk.say(&verdict, None, json.json)
        }
        IssueCommand::Adopt { .. } => {
            let Some(expect) = &asked.expect else { return FAILED };
            let mode = match expect {
                Expect::Nothing => "empty-lease",
                Expect::Oid(_) => "cas",
            };
            let audit = asked.reason.as_deref().map(|reason| (mode, reason));
            let verdict = take::adopt(desk, expect, audit).await;
            desk.say(&verdict, Some((expect, audit)), false)
        }
        IssueCommand::Release { force, .. } => {
            let verdict =
                if *force { forced(desk).await } else { release(desk, around.seen).await };
            desk.say(&verdict, None, false)
        }
        IssueCommand::Status { .. } | IssueCommand::Smoke => OK,
    }
}

/// What of the command line is checked before anything is asked of the world.
struct Asked<'a> {
    actor: Option<&'a str>,
    expect: Option<Expect>,
    reason: Option<String>,
}

impl<'a> Asked<'a> {
    fn of(what: &'a IssueCommand) -> Result<Self, Failure> {
        let (mut expectation, mut why) = (None, None);
        let actor = match what {
            IssueCommand::Claim { claimant, .. }
            | IssueCommand::Verify { claimant, .. }
            | IssueCommand::Release { claimant, .. } => claimant.actor.as_deref(),
            IssueCommand::Adopt { claimant, expect, reason, .. } => {
                let wanted = Expect::parse(expect).ok_or_else(|| {
                    Failure::new(
                        USAGE,
                        "--expect takes `none` or a full object id of 40 or 64 hex digits, as `issue status` shows it",
                    )
                })?;
                why = reason
                    .as_deref()
                    .map(check_reason)
                    .transpose()
                    .map_err(|error: BadReason| Failure::new(USAGE, error))?;
                if wanted == Expect::Nothing && why.is_none() {
                    return Err(Failure::new(
                        USAGE,
                        "taking a lock that nobody holds past its branch needs --reason",
                    ));
                }
                expectation = Some(wanted);
                claimant.actor.as_deref()
            }
            IssueCommand::Status { .. } | IssueCommand::Smoke => None,
        };
        Ok(Self { actor, expect: expectation, reason: why })
    }
}

/// Us: machine and actor, each one token, the same wherever it is written or compared.
fn who(around: &Surroundings, actor: Option<&str>) -> Result<Who, Failure> {
    let configured = || around.config.as_ref().map(|config| config.machine.to_string());
    let host = || {
        let host = around.env.host_name.as_deref()?;
        host.split('.').next().map(str::to_owned)
    };
    let machine = around.first(MACHINE).map(str::to_owned).or_else(configured).or_else(host);
    let machine = sanitise(&machine.unwrap_or_default());
    if machine == UNSPECIFIED {
        return Err(Failure::new(
            USAGE,
            "this machine has no name that other machines could tell from theirs; set CLAIM_MACHINE",
        ));
    }
    let actor = actor.or_else(|| around.env.var("CLAIM_ACTOR")).unwrap_or("flow");
    let actor = check_actor(actor).ok_or_else(|| {
        Failure::new(USAGE, "an actor has at least three of the characters A-Z a-z 0-9 . _ : / # -")
    })?;
    Ok(Who { machine, actor })
}

async fn release(desk: &Desk, around: &Surroundings) -> Verdict {
    let found = desk.read().await;
    if let Some(verdict) = listing_failed(&found) {
        return verdict;
    }
    let oid = match on_release(&desk.who, found.map_err(drop)) {
        Ok(oid) => oid,
        Err(verdict) => return verdict,
    };
    let open = match issue_of(&desk.issue) {
        Some(issue) => {
            let told = around.open_pulls(desk.place.git.deadline()).ask(issue).await;
            if let Some(trouble) = told.trouble {
                note(&trouble_words(trouble));
            }
            told.open
        }
        // Not a number that a pull request could be looked up by.
        None => OpenPr::Unknown,
    };
    match open {
        OpenPr::No => delete(desk, false, &oid).await,
        OpenPr::Yes => Verdict::OpenPr,
        OpenPr::Unknown => Verdict::OpenPrUnknown,
    }
}

/// Whoever holds it: read, and deleted under a lease on what was read.
async fn forced(desk: &Desk) -> Verdict {
    let found = desk.peek().await;
    if let Some(verdict) = listing_failed(&found) {
        return verdict;
    }
    match found {
        Err(_) => Verdict::Infra { detail: InfraDetail::Listing, oid: None },
        Ok(None) => {
            let how = crate::decide::issue::ReleasedHow::Absent;
            Verdict::Released { how, oid: None }
        }
        Ok(Some(oid)) => delete(desk, true, &oid).await,
    }
}

async fn delete(desk: &Desk, force: bool, oid: &str) -> Verdict {
    use crate::decide::issue::Pushed;
    let pushed = desk.push(None, Some(oid)).await;
    let after = match pushed {
        Pushed::NotAccepted => desk.peek().await.map_err(drop),
        Pushed::Accepted | Pushed::NoCredentials => Ok(None),
    };
    after_delete(force, oid, pushed, after)
}

/// The answer of a command that knows no remote to ask.
fn unreachable(what: &IssueCommand, who: &Who, remote: &str) -> u8 {
    let lane_lock = &LaneLock::default();
    let (issue, detail) = match what {
        IssueCommand::Claim { issue, .. } => (&issue.issue, InfraDetail::LegacyListing),
        IssueCommand::Adopt { issue, .. } => (&issue.issue, InfraDetail::AdoptPushAndRead),
        IssueCommand::Verify { issue, .. } | IssueCommand::Release { issue, .. } => {
            (&issue.issue, InfraDetail::Listing)
        }
        IssueCommand::Status { .. } => {
            output::line(&status::unreachable(remote));
            return FAILED;
        }
        IssueCommand::Smoke => {
            let ref_name = "refs/claims/smoke";
            let failure = crate::decide::issue::SmokeFailure::PushRejected;
            let on = words::Subject {
                issue: "smoke",
                ref_name,
                remote,
                me: who,
                adoption: None,
                lane_lock,
            };
            output::line(&words::line(&Verdict::SmokeFail(failure), &on));
            return FAILED;
        }
    };
    let ref_name = issue_ref(issue);
    let on =
        words::Subject { issue, ref_name: &ref_name, remote, me: who, adoption: None, lane_lock };
    let verdict = Verdict::Infra { detail, oid: None };
    output::line(&words::line(&verdict, &on));
    exit(&verdict)
}

/// A remark beside the verdict.
fn note(text: &str) {
    output::note(&format!("[claim] {}", harmless(text)));
}

/// Reading was refused for want of credentials: an answer of its own, and not an outage.
const fn unauthenticated() -> Verdict {
    Verdict::Auth { detail: AuthDetail::Listing, oid: None }
}
