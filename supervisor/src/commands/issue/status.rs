//! `issue status`: who holds which issue.

use serde_json::{Value, json};

use super::{super::claims::age, desk::Desk};
use crate::{
    claims::{
        GitErrorKind, ParsedIssue, RemoteRef,
        issue::{ISSUE_LOCKS, issue_ref},
        record::format_ts,
        sanitise, snapshot,
    },
    clock::unix_ms,
    exit_code::{FAILED, OK},
    output,
};

/// Lists every lock, or one. A record that cannot be read is shown with question marks.
pub(super) async fn status(desk: &Desk, issue: Option<&str>, json: bool) -> u8 {
    let place = &desk.place;
    let (prefix, pattern) = match issue {
        Some(issue) => (issue_ref(issue), issue_ref(issue)),
        None => (ISSUE_LOCKS.to_owned(), format!("{ISSUE_LOCKS}*")),
    };
    let found = snapshot(&place.git, &place.scratch, &place.url, &[&prefix]).await;
    let found = match super::desk::remark(found) {
        Ok(found) => found,
        Err(error) => {
            output::line(&failed(error.kind(), &desk.remote));
            return FAILED;
        }
    };
    let locks: Vec<Lock> = found.iter().filter_map(Lock::of).collect();
    if json {
        let rows: Vec<Value> = locks.iter().map(Lock::json).collect();
        output::json(&json!({ "remote": desk.remote, "issues": rows }));
    } else if locks.is_empty() {
        output::line(&format!("CLAIM: STATUS none pattern={pattern} remote={}", desk.remote));
    } else {
        for lock in &locks {
            output::line(&lock.line());
        }
    }
    OK
}

/// The answer when no remote could be named.
pub(super) fn unreachable(remote: &str) -> String {
    failed(GitErrorKind::Unreachable, remote)
}

fn failed(kind: GitErrorKind, remote: &str) -> String {
    if kind == GitErrorKind::Auth {
        "CLAIM: ERROR reason=auth detail=ls-remote-unauthenticated (NOT retryable: this machine has no working git credentials for the remote; set up its ssh key, token or credential helper first)".to_owned()
    } else {
        format!(
            "CLAIM: ERROR reason=infra detail=ls-remote-unreachable-on-{remote} (transient \u{2014} retry)"
        )
    }
}

struct Lock {
    issue: String,
    ref_name: String,
    oid: String,
    record: Option<ParsedIssue>,
    age_s: Option<i64>,
}

impl Lock {
    fn of(found: &RemoteRef) -> Option<Self> {
        let issue = found.name.strip_prefix(ISSUE_LOCKS)?.strip_prefix("issue-")?;
        let record = found.message.as_ref().ok().map(|message| ParsedIssue::parse(message));
        let ts = record.as_ref().and_then(|record| record.ts);
        Some(Self {
            // Names of refs are anybody's text.
            issue: sanitise(issue),
            ref_name: sanitise(&found.name),
            oid: found.oid.clone(),
            age_s: ts.and_then(|ts| i64::try_from(ts).ok()).map(|ts| unix_ms() / 1000 - ts),
            record,
        })
    }

    fn line(&self) -> String {
        let holder = self.record.as_ref().and_then(|record| record.holder.as_ref());
        let (machine, actor) =
            holder.map_or(("?", "?"), |(machine, actor)| (machine.as_str(), actor.as_str()));
        let ts = self.record.as_ref().and_then(|record| record.ts);
        let reason = self.record.as_ref().and_then(|record| record.reason.as_ref());
        format!(
            "CLAIM: STATUS issue={} ref={} sha={} machine={machine} actor={actor} ts={} age={}{}",
            self.issue,
            self.ref_name,
            self.oid,
            ts.map_or_else(|| "?".to_owned(), format_ts),
            self.age_s.map_or_else(|| "unknown".to_owned(), age),
            reason.map(|reason| format!(" reason={reason}")).unwrap_or_default()
        )
    }

    fn json(&self) -> Value {
        let record = self.record.as_ref();
        let holder = record.and_then(|record| record.holder.as_ref());
        json!({
            "issue": self.issue,
            "ref": self.ref_name,
            "oid": self.oid,
            "machine": holder.map(|(machine, _)| machine),
            "actor": holder.map(|(_, actor)| actor),
            "pid": record.and_then(|record| record.pid),
            "ts": record.and_then(|record| record.ts).map(format_ts),
            "age_s": self.age_s,
            "reason": record.and_then(|record| record.reason.as_ref()),
            "readable": record.is_some(),
        })
    }
}
