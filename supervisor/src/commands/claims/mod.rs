//! `lanewarden claims`: evidence of life on the coordination remote. It never says who owns an issue.

mod args;
mod list;
pub(super) mod place;
mod reap;
mod stamp;
mod sweep;
mod twin;

pub use args::ClaimsCommand;

use std::path::Path;

use super::{Failure, Outcome, runtime};
use crate::{
    exit_code::{FAILED, USAGE},
    forge::{OpenPulls, Told, Trouble},
    ids::MachineName,
    output,
    text::harmless,
};
use place::{Place, Surroundings, remote_name, shown};

const REMOTE: &[&str] = &["HEARTBEAT_REMOTE", "CLAIM_REMOTE"];
const MACHINE: &[&str] = &["HEARTBEAT_MACHINE", "CLAIM_MACHINE"];

/// Runs the command.
pub(super) fn claims(what: ClaimsCommand, config: Option<&Path>) -> Outcome {
    let task = Task::of(what)?;
    let around = Surroundings::take(config, REMOTE)?;
    let us = match machine(&around) {
        Ok(us) => Some(us),
        Err(failure) if task.needs_name() => return Err(failure),
        Err(_) => None,
    };
    let name = remote_name(&around, REMOTE);
    runtime()?.block_on(async {
        let place = match Place::open(&around, &name).await {
            Ok(place) => place,
            Err(failure) if failure.code == FAILED => {
                note(&failure.words);
                return Ok(FAILED);
            }
            Err(failure) => return Err(failure),
        };
        let room = Room {
            pulls: around.open_pulls(place.git.deadline()),
            place,
            remote: shown(&name),
            us: us.map(|us| us.to_string()).unwrap_or_default(),
        };
        Ok(match task {
            Task::Stamp(stamp) => stamp::stamp(&room, stamp).await,
            Task::Beat(issue) => stamp::beat(&room, &issue).await,
            Task::List(json) => list::claims(&room, json).await,
            Task::Heartbeats(json) => list::heartbeats(&room, json).await,
            Task::ShouldReap(target, seconds, json) => {
                reap::should_reap(&room, &target, seconds, json).await
            }
            Task::Reap(target, lease) => reap::reap(&room, &target, lease).await,
            Task::Sweep(how) => sweep::sweep(&room, how).await,
            Task::Clear(target) => reap::clear(&room, &target).await,
        })
    })
}

/// The command line, checked before anything is asked of the world.
enum Task {
    Stamp(stamp::Stamp),
    Beat(String),
    List(bool),
    Heartbeats(bool),
    ShouldReap(reap::Target, u64, bool),
    Reap(reap::Target, Option<String>),
    Sweep(sweep::How),
    Clear(reap::Target),
}

impl Task {
    fn of(what: ClaimsCommand) -> Result<Self, Failure> {
        Ok(match what {
            ClaimsCommand::Stamp { lane, pid } => Self::Stamp(stamp::Stamp::of(lane, pid)?),
            ClaimsCommand::Beat { issue } => Self::Beat(issue.issue),
            ClaimsCommand::List(json) => Self::List(json.json),
            ClaimsCommand::Heartbeats(json) => Self::Heartbeats(json.json),
            ClaimsCommand::ShouldReap { machine, rest, json } => {
                let (target, seconds) = reap::judged(&machine, &rest)?;
                Self::ShouldReap(target, seconds, json.json)
            }
            ClaimsCommand::Reap { machine: Some(machine), rest, sweep } => {
                sweep.refuse_alone()?;
                let (target, lease) = reap::leased(&machine, &rest)?;
                Self::Reap(target, lease)
            }
            ClaimsCommand::Reap { machine: None, sweep, .. } => {
                Self::Sweep(sweep::How::of(&sweep)?)
            }
            ClaimsCommand::Clear { machine } => Self::Clear(reap::Target::heartbeat(&machine)?),
        })
    }

    /// Whether it cannot be done without knowing what this machine is called.
    const fn needs_name(&self) -> bool {
        match self {
            // A box that does not know its own name would take its own claims for those of another.
            Self::Stamp(_) | Self::Beat(_) | Self::ShouldReap(..) | Self::Sweep(_) => true,
            Self::List(_) | Self::Heartbeats(_) | Self::Reap(..) | Self::Clear(_) => false,
        }
    }
}

/// Where a command works.
struct Room {
    place: Place,
    remote: String,
    /// Our machine; empty if it has no usable name and none is needed.
    us: String,
    pulls: OpenPulls,
}

impl Room {
    async fn open_pr(&self, issue: u64) -> Told {
        self.pulls.ask(issue).await
    }
}

/// Why a question about pull requests has no answer, with the remedy.
pub(super) fn trouble_words(trouble: Trouble) -> String {
    format!("open pull requests cannot be told ({trouble}): {}", trouble.remedy())
}

/// The machine's name as one component of a ref.
fn machine(around: &Surroundings) -> Result<MachineName, Failure> {
    if let Some(name) = around.first(MACHINE) {
        return MachineName::new(name)
            .map_err(|error| Failure::new(USAGE, format!("HEARTBEAT_MACHINE: {error}")));
    }
    let host = around.env.host_name.as_deref();
    let configured = around.config.as_ref().map(|config| config.machine.clone());
    configured.or_else(|| host.and_then(MachineName::from_host_name)).ok_or_else(|| {
        Failure::new(USAGE, "this machine has no usable name; set HEARTBEAT_MACHINE")
    })
}

/// An age for people, as the predecessor writes it. A stamp of the future is new.
pub(super) fn age(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m", s / 60),
        s @ 3600..86_400 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

/// A remark beside the answer.
fn note(text: &str) {
    output::note(&format!("[claim-heartbeat] {}", harmless(text)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_whole_units() {
        let shown: Vec<String> = [-5, 0, 59, 60, 3599, 3600, 86_399, 86_400].map(age).into();
        assert_eq!(shown, ["0s", "0s", "59s", "1m", "59m", "1h", "23h", "1d"]);
    }
}
