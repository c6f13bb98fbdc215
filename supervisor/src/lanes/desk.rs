//! The sessions' side of the lane lock: one question, one decision in one transaction, one answer.

use std::path::{Path, PathBuf};

use lanewarden_probes::{identity::Identity, liveness::Recorded};
use rusqlite::Connection;
use serde_json::Value;

use super::{
    answer::{Answer, Verdict},
    mirror::{Image, without_images},
    place::{LockError, Place, Trouble, key},
    predecessor,
    rows::{self, Audit, Held, Kind},
    session::{Doubt, Scope, Session, session},
    standing::{Judge, Standing},
    waits::{self, Flocks},
};
use crate::text::rfc3339;

mod release;
mod report;
mod write;

/// Where lanes are asked about, by whom, and when.
#[derive(Debug, Clone)]
pub struct Desk {
    /// Where lanes and their locks are. Absolute.
    pub lane_root: PathBuf,
    /// This machine's names, the one to record first. Never empty.
    pub machines: Vec<String>,
    /// Who acts, as recorded.
    pub actor: String,
    /// The process that was named, if one was.
    pub pid: Option<u32>,
    /// Where the walk for the session begins; `None`: at our parent.
    pub from: Option<u32>,
    /// Now, milliseconds since the epoch.
    pub now_ms: i64,
    /// A fresh random number, for the lease.
    pub nonce: u64,
    /// Whether the shell tools' records are written too.
    pub shell: bool,
}

/// What a caller states about the present holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// Nothing: only what is proven dead, or free, may be taken.
    Unstated,
    /// That there is none.
    Nobody,
    /// That this lease stands.
    Lease(String),
}

/// A question that cannot be asked so; exit 64, and no verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);

/// An answer, or that the question was wrong.
pub type Answered = Result<Answer, Misuse>;

/// One lane, resolved once per command.
struct Lane {
    issue: u64,
    dir: PathBuf,
    key: String,
}

/// The answer when the locks could not be used.
#[must_use]
pub fn infra(error: &LockError) -> Answer {
    let answer = Answer::new(Verdict::Error).with("reason", "infra");
    match error {
        LockError::Waited { path, seconds, held_by } => answer
            .with("detail", "lock-wait-timed-out")
            .with("waited-for", path.display().to_string())
            .with("waited-s", *seconds)
            .with(
                "held-by-pid",
                held_by.0.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
            ),
        LockError::Directory { .. } => answer.with("detail", "lock-root-unusable"),
        LockError::File { .. } => answer.with("detail", "lock-file-unusable"),
        LockError::Sql { .. } => answer.with("detail", "store-unusable"),
        LockError::Name { .. } => answer.with("detail", "directory-name"),
    }
    .noting(error.to_string())
}

impl Desk {
    fn lane(&self, issue: u64, dir: Option<&Path>) -> Result<Lane, LockError> {
        let wanted =
            dir.map_or_else(|| self.lane_root.join(format!("lane-{issue}")), Path::to_owned);
        let dir = super::names::canonical(&wanted).map_err(|source| LockError::File {
            doing: "resolving",
            path: wanted,
            source,
        })?;
        let key = key(&dir)?.to_owned();
        Ok(Lane { issue, dir, key })
    }

    fn session(&self, dir: &Path) -> Session {
        let machine = self.machines.first().map_or("-", String::as_str);
        session(machine, &self.actor, self.pid, self.from, dir)
    }

    fn judge(&self, me: Option<Identity>) -> Judge {
        Judge { names: self.machines.clone(), me }
    }

    fn image(&self, place: &Place) -> Image {
        Image::new(&self.lane_root, &place.dir, self.shell)
    }

    /// The lock of an issue, else that of its directory; a predecessor's if we have none.
    fn find(&self, store: Option<&Place>, lane: &Lane) -> Result<Option<Held>, LockError> {
        let own = match store {
            None => None,
            Some(place) => place.read("reading a lane lock", |store| {
                match rows::by_issue(store, lane.issue)? {
                    Some(held) => Ok(Some(held)),
                    None => rows::by_dir(store, &lane.key),
                }
            })?,
        };
        let locks = self.lane_root.join(".lane-locks");
        Ok(own.or_else(|| predecessor::record(&locks, lane.issue)).or_else(|| {
            let here = |held: &Held| Path::new(&held.dir) == lane.dir;
            predecessor::records(&locks).ok()?.into_iter().find(here)
        }))
    }
}

/// How a holder is described in every refusal and report.
fn holder(answer: Answer, held: &Held, stands: &Standing, now_ms: i64) -> Answer {
    let who = &stands.who;
    let age =
        (held.taken_at_ms > 0).then(|| format!("{}s", (now_ms - held.taken_at_ms).max(0) / 1000));
    let taken = (held.taken_at_ms > 0).then(|| rfc3339(held.taken_at_ms));
    answer
        .with("holder-issue", held.issue)
        .with("holder-machine", who.machine.clone())
        .with("holder-actor", who.actor.clone())
        .with("holder-pid", who.pid)
        .with("holder-pid-scope", held.scope.clone())
        .with("holder-kind", held.kind.as_str())
        .with("holder-start-ticks", who.ticks)
        .with("holder-token", rows::token(who))
        .with("lease", lease(held, who))
        .with("epoch", held.epoch)
        .with("acquired-ts", taken)
        .with("age", age.map_or_else(|| Value::from("unknown"), Value::from))
}

/// `<token>#<nonce>`: names one acquisition. In a daemon's lane the process changes under one acquisition, so the lease
/// names the warden.
fn lease(held: &Held, who: &Recorded) -> String {
    let who = if held.kind == Kind::Daemon { &held.holder } else { who };
    format!("{}#{}", rows::token(who), held.nonce)
}
