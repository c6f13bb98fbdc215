//! Writes refs under lease, many in one connection, and judges the outcome ref by ref.
//!
//! Refspecs carry no `+`: git lets a force override its own lease, while a lease that holds forces by itself.

use std::{collections::BTreeSet, ffi::OsString};

use lanewarden_probes::closed_set;

use super::{
    failure::{GitError, redact_url},
    git::{Git, GitOutput, failed},
    objects::Scratch,
};

closed_set! {
    /// What became of one update.
    pub enum PushOutcome {
        /// The ref is as we wanted it, by our doing.
        Accepted = "accepted",
        /// The ref was as we wanted it already: at the same object, or absent.
        UpToDate = "up-to-date",
        /// The ref was not where the lease expected it. Nothing was changed.
        LeaseRefused = "lease-refused",
        /// The remote refused for a reason of its own, or another ref of an atomic push failed. Nothing was changed.
        Rejected = "rejected",
        /// The remote did not say what became of it: read the ref again.
        Unconfirmed = "unconfirmed",
    }
}

/// One wanted change of a ref.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefUpdate {
    /// The full name.
    pub ref_name: String,
    /// The object to put there, 40 lower-case hex digits, in the scratch repository; `None` deletes.
    pub new: Option<String>,
    /// The object that must be there now; `None`: the ref must not exist.
    pub expect: Option<String>,
}

/// What became of one wanted change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateResult {
    /// The full name.
    pub ref_name: String,
    /// What became of it.
    pub outcome: PushOutcome,
}

/// Makes the changes in one connection and says for each, in the same order, what became of it.
///
/// With `atomic` all are made or none. A delete of a ref that is gone already is up to date; git refuses a whole push
/// for it, so then a second connection makes the rest.
///
/// # Errors
/// [`GitError`] if git could not be run, the remote not be reached or its report not be read; whether anything was
/// changed is then unknown, and the refs must be read again. [`GitError::BadRequest`] before anything is sent.
pub async fn push(
    git: &Git,
    scratch: &Scratch,
    url: &str,
    updates: &[RefUpdate],
    atomic: bool,
) -> Result<Vec<UpdateResult>, GitError> {
    check(scratch, updates)?;
    let mut rest: Vec<&RefUpdate> = updates.iter().collect();
    let mut gone = BTreeSet::new();
    let mut report = Vec::new();
    if !rest.is_empty() {
        let mut output = send(git, scratch, url, &rest, atomic).await?;
        gone = refs_gone(&output.stderr);
        rest.retain(|update| !(update.new.is_none() && gone.contains(&update.ref_name)));
        if rest.len() < updates.len() && !rest.is_empty() {
            output = send(git, scratch, url, &rest, atomic).await?;
        }
        if !rest.is_empty() {
            report = parse_report(&output.stdout);
            let told =
                |update: &&RefUpdate| report.iter().any(|line| line.ref_name == update.ref_name);
            if !output.status.success() && !rest.iter().any(told) {
                tracing::debug!(remote = redact_url(url), "push failed before any ref was judged");
                return Err(failed("push", &output));
            }
        }
    }
    Ok(updates.iter().map(|update| judge(update, &gone, &report)).collect())
}

fn judge(update: &RefUpdate, gone: &BTreeSet<String>, report: &[UpdateResult]) -> UpdateResult {
    let outcome = if update.new.is_none() && gone.contains(&update.ref_name) {
        PushOutcome::UpToDate
    } else {
        let line = report.iter().find(|line| line.ref_name == update.ref_name);
        line.map_or(PushOutcome::Unconfirmed, |line| line.outcome)
    };
    UpdateResult { ref_name: update.ref_name.clone(), outcome }
}

async fn send(
    git: &Git,
    scratch: &Scratch,
    url: &str,
    updates: &[&RefUpdate],
    atomic: bool,
) -> Result<GitOutput, GitError> {
    let mut args: Vec<OsString> = ["push", "--porcelain", "--no-verify"].map(OsString::from).into();
    if atomic {
        args.push("--atomic".into());
    }
    for RefUpdate { ref_name, expect, .. } in updates {
        let expect = expect.as_deref().unwrap_or_default();
        args.push(format!("--force-with-lease={ref_name}:{expect}").into());
    }
    args.push("--".into());
    args.push(url.into());
    for RefUpdate { ref_name, new, .. } in updates {
        args.push(format!("{}:{ref_name}", new.as_deref().unwrap_or_default()).into());
    }
    git.run_to_end(&args, Some(scratch.path()), b"").await
}

/// Refuses what git would read as something else, above all an empty id, which would delete.
fn check(scratch: &Scratch, updates: &[RefUpdate]) -> Result<(), GitError> {
    let bad = |what, value: &str| {
        Err(GitError::BadRequest { what, value: value.chars().take(200).collect() })
    };
    let mut names = BTreeSet::new();
    for RefUpdate { ref_name, new, expect } in updates {
        if !ref_name.starts_with("refs/") || !git2::Reference::is_valid_name(ref_name) {
            return bad("the full name of a ref", ref_name);
        }
        if !names.insert(ref_name) {
            return bad("named once in a push", ref_name);
        }
        for oid in new.iter().chain(expect) {
            if !is_oid(oid) {
                return bad("a full object id", oid);
            }
        }
        if let Some(oid) = new.as_ref().filter(|oid| !scratch.contains(oid)) {
            return bad("a commit in the scratch repository", oid);
        }
        if new.is_none() && expect.is_none() {
            return bad("a ref that can be deleted without a lease", ref_name);
        }
    }
    Ok(())
}

/// 40 lower-case hex digits that are not all zero.
pub(super) fn is_oid(text: &str) -> bool {
    text.len() == 40
        && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        && text.bytes().any(|b| b != b'0')
}

/// Refs of which git said that they cannot be deleted because they are not there. It says so for all of them at once.
fn refs_gone(stderr: &[u8]) -> BTreeSet<String> {
    String::from_utf8_lossy(stderr)
        .lines()
        .filter_map(|line| {
            let rest = line.strip_prefix("error: unable to delete '")?;
            Some(rest.strip_suffix("': remote ref does not exist")?.to_owned())
        })
        .collect()
}

/// Reads the report of `git push --porcelain` (git-push(1), "OUTPUT"): `flag TAB from:to TAB summary (reason)`. The
/// first line on a ref counts; other lines are skipped.
#[must_use]
pub fn parse_report(stdout: &[u8]) -> Vec<UpdateResult> {
    let mut results: Vec<UpdateResult> = Vec::new();
    for line in stdout.split(|byte| *byte == b'\n') {
        let Some(result) = std::str::from_utf8(line).ok().and_then(parse_line) else { continue };
        if !results.iter().any(|known| known.ref_name == result.ref_name) {
            results.push(result);
        }
    }
    results
}

fn parse_line(line: &str) -> Option<UpdateResult> {
    let mut fields = line.splitn(3, '\t');
    let (flag, names, summary) = (fields.next()?, fields.next()?, fields.next()?);
    let (_, ref_name) = names.split_once(':')?;
    let outcome = match flag {
        " " | "+" | "-" | "*" => PushOutcome::Accepted,
        "=" => PushOutcome::UpToDate,
        "!" => refusal(summary),
        _ => return None,
    };
    Some(UpdateResult { ref_name: ref_name.to_owned(), outcome })
}

fn refusal(summary: &str) -> PushOutcome {
    /// What client and servers say when the old value was not the expected one.
    const MOVED: &[&str] = &[
        "stale info",
        "but expected",
        "incorrect old value",
        "reference already exists",
        "reference does not exist",
        "fetch first",
    ];
    if summary.starts_with("[remote failure]") {
        PushOutcome::Unconfirmed
    } else if MOVED.iter().any(|sign| summary.contains(sign)) {
        PushOutcome::LeaseRefused
    } else {
        PushOutcome::Rejected
    }
}
