//! One lock, looked at and written to.

use lanewarden_probes::identity::Identity;
use serde_json::json;

use super::{
    super::claims::place::Place, lane_lock::LaneLock, note, process, unauthenticated, words,
};
use crate::{
    claims::{
        GitError, GitErrorKind, IssueClaim, ParsedIssue, ProcessPart, PushOutcome, RefUpdate,
        RemoteRef, issue::issue_ref, listing, push, read_one,
    },
    clock::{random_bytes, unix_ms},
    decide::issue::{Expect, HolderProcess, Pushed, Read, Verdict, Who, exit},
    output,
};

/// Everything that is needed to ask about one lock.
#[derive(Debug)]
pub(super) struct Desk {
    pub(super) place: Place,
    pub(super) remote: String,
    pub(super) who: Who,
    pub(super) process: Option<Identity>,
    pub(super) issue: String,
    pub(super) ref_name: String,
    pub(super) lane_lock: LaneLock,
}

impl Desk {
    pub(super) fn new(place: Place, remote: String, who: Who) -> Self {
        let (issue, ref_name) = (String::new(), String::new());
        Self { place, remote, who, process: None, issue, ref_name, lane_lock: LaneLock::default() }
    }

    /// Turns to an issue.
    pub(super) fn take_up(&mut self, issue: &str) {
        issue.clone_into(&mut self.issue);
        self.ref_name = issue_ref(issue);
    }

    /// Prints the verdict and gives its exit code.
    pub(super) fn say(
        &self,
        verdict: &Verdict,
        adoption: Option<(&Expect, Option<(&'static str, &str)>)>,
        json: bool,
    ) -> u8 {
        let on = words::Subject {
            issue: &self.issue,
            ref_name: &self.ref_name,
            remote: &self.remote,
            me: &self.who,
            adoption,
            lane_lock: &self.lane_lock,
        };
        let line = words::line(verdict, &on);
        let code = exit(verdict);
        if json {
            let word = line.split(' ').nth(1).unwrap_or_default();
            output::json(&json!({
                "issue": self.issue, "ref": self.ref_name, "verdict": word, "exit": code, "line": line,
            }));
        } else {
            output::line(&line);
        }
        code
    }

    /// The lock with its holder, in one connection.
    pub(super) async fn read(&self) -> Result<Option<Read>, GitError> {
        let place = &self.place;
        let found = read_one(&place.git, &place.scratch, &place.url, &self.ref_name).await;
        Ok(remark(found)?.map(|found| self.measured(&found)))
    }

    /// The lock's object alone.
    pub(super) async fn peek(&self) -> Result<Option<String>, GitError> {
        let place = &self.place;
        let name = self.ref_name.as_str();
        let found = listing(&place.git, &place.scratch, &place.url, &[name], &[]).await;
        Ok(remark(found)?.into_iter().next().map(|(_, oid)| oid))
    }

    /// Reads again after a push that wanted `made` there: the object alone, and the holder only if it is another.
    pub(super) async fn read_again(&self, made: &str) -> Result<Option<Read>, ()> {
        match self.peek().await {
            Err(_) => Err(()),
            Ok(None) => Ok(None),
            Ok(Some(oid)) if oid == made => Ok(Some(Read {
                oid,
                holder: Some(self.who.clone()),
                verbatim: true,
                pid: None,
                process: HolderProcess::Same,
            })),
            Ok(Some(_)) => self.read().await.map_err(drop),
        }
    }

    fn measured(&self, found: &RemoteRef) -> Read {
        let Ok(message) = &found.message else {
            return Read {
                oid: found.oid.clone(),
                holder: None,
                verbatim: false,
                pid: None,
                process: HolderProcess::NotCompared,
            };
        };
        let parsed = ParsedIssue::parse(message);
        let process = process::holder(&parsed, &self.who, self.process.as_ref());
        let holder = parsed.holder.map(|(machine, actor)| Who { machine, actor });
        Read { oid: found.oid.clone(), holder, verbatim: parsed.verbatim, pid: parsed.pid, process }
    }

    /// Makes a record of ours.
    pub(super) fn write(&self, audit: Option<(&'static str, &str)>) -> Result<String, GitError> {
        let ts = u64::try_from(unix_ms() / 1000).unwrap_or(0);
        let own = std::process::id();
        let random = u128::from_le_bytes(random_bytes());
        let process = self.process.as_ref();
        let claim = IssueClaim {
            issue: self.issue.clone(),
            machine: self.who.machine.clone(),
            actor: self.who.actor.clone(),
            pid: process.map_or(own, |process| process.pid),
            process: process.and_then(part),
            ts,
            nonce: format!("{own}-{}-{}-{ts}", random >> 64, random & u128::from(u64::MAX)),
            audit: audit.map(|(mode, reason)| (mode, reason.to_owned())),
        };
        remark(self.place.scratch.write_commit(&claim.to_message(), ts))
    }

    /// Puts `new` where `expect` must be now; `None` stands for an absent ref on either side.
    pub(super) async fn push(&self, new: Option<&str>, expect: Option<&str>) -> Pushed {
        let update = RefUpdate {
            ref_name: self.ref_name.clone(),
            new: new.map(str::to_owned),
            expect: expect.map(str::to_owned),
        };
        let place = &self.place;
        let result = push(&place.git, &place.scratch, &place.url, &[update], false).await;
        match remark(result) {
            Ok(results) => match results.first().map(|result| result.outcome) {
                Some(PushOutcome::Accepted | PushOutcome::UpToDate) => Pushed::Accepted,
                Some(
                    PushOutcome::LeaseRefused | PushOutcome::Rejected | PushOutcome::Unconfirmed,
                )
                | None => Pushed::NotAccepted,
            },
            Err(error) if error.kind() == GitErrorKind::Auth => Pushed::NoCredentials,
            Err(_) => Pushed::NotAccepted,
        }
    }
}

fn part(process: &Identity) -> Option<ProcessPart> {
    let boot = process.boot_id.as_ref()?.full().to_owned();
    Some(ProcessPart { boot, ticks: process.start_ticks?, pidns: process.pidns })
}

/// Says beside the verdict what went wrong. Git's own words are not in it.
pub(super) fn remark<T>(result: Result<T, GitError>) -> Result<T, GitError> {
    if let Err(error) = &result {
        note(&error.to_string());
    }
    result
}

/// The verdict of a first read that was refused for want of credentials.
pub(super) fn listing_failed<T>(found: &Result<T, GitError>) -> Option<Verdict> {
    let kind = found.as_ref().err().map(GitError::kind);
    (kind == Some(GitErrorKind::Auth)).then(unauthenticated)
}
