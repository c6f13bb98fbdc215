//! Writes refs under lease, many in one connection, and judges the outcome ref by ref.
//!
//! Refspecs carry no `+`: git lets a force override its own lease, while a lease that holds forces by itself.

use std::{collections::BTreeSet, ffi::OsString};

use lanewarden_probes::closed_set;

use super::{
    failure::{GitError, redact_url},
    git::{Git, GitOutput, failed},
    objects::Scratch,
    snapshot::list,
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
/// With `atomic` all are made or none. Git reports a leased delete of a ref that is gone already as it reports a moved
/// ref; then a second connection looks, and a ref that is gone is up to date.
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
    if updates.is_empty() {
        return Ok(Vec::new());
    }
    let output = send(git, scratch, url, updates, atomic).await?;
    let report = parse_report(&output.stdout);
    let line = |update: &RefUpdate| report.iter().find(|line| line.ref_name == update.ref_name);
    if !output.status.success() && !updates.iter().any(|update| line(update).is_some()) {
        tracing::debug!(remote = redact_url(url), "push failed before any ref was judged");
        return Err(failed("push", &output));
    }
    let mut results: Vec<UpdateResult> = updates
        .iter()
        .map(|update| UpdateResult {
            ref_name: update.ref_name.clone(),
            outcome: line(update).map_or(PushOutcome::Unconfirmed, |line| line.outcome),
        })
        .collect();
    settle_deletes(git, scratch, url, updates, &mut results).await;
    Ok(results)
}

/// Tells refused deletes of absent refs from those of moved refs. If the look fails they stay refused, which is true of
/// both: the ref is not at the object that was judged.
async fn settle_deletes(
    git: &Git,
    scratch: &Scratch,
    url: &str,
    updates: &[RefUpdate],
    results: &mut [UpdateResult],
) {
    let mut refused: Vec<&mut UpdateResult> = updates
        .iter()
        .zip(results)
        .filter(|(update, result)| {
            update.new.is_none() && result.outcome == PushOutcome::LeaseRefused
        })
        .map(|(_, result)| result)
        .collect();
    let patterns: Vec<String> = refused.iter().map(|result| result.ref_name.clone()).collect();
    if patterns.is_empty() {
        return;
    }
    let Ok(listed) = list(git, scratch.path(), url, &patterns).await else { return };
    for result in &mut refused {
        if !listed.iter().any(|(name, _)| name == result.ref_name.as_bytes()) {
            result.outcome = PushOutcome::UpToDate;
        }
    }
}

async fn send(
    git: &Git,
    scratch: &Scratch,
    url: &str,
    updates: &[RefUpdate],
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
        if new.is_none() && expect.is_none() {
            return bad("a ref that can be deleted without a lease", ref_name);
        }
    }
    let new: Vec<&str> = updates.iter().filter_map(|update| update.new.as_deref()).collect();
    match scratch.first_absent(&new) {
        Some(oid) => bad("a commit in the scratch repository", oid),
        None => Ok(()),
    }
}

/// 40 lower-case hex digits that are not all zero.
pub(super) fn is_oid(text: &str) -> bool {
    text.len() == 40
        && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        && text.bytes().any(|b| b != b'0')
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::testing::{Daemon, World, update},
        *,
    };

    const LANE: &str = "refs/lane-claims/box-a/900";
    const OTHER: &str = "refs/lane-claims/box-a/p0-0123456789ab";

    #[tokio::test]
    async fn a_ref_is_created_replaced_and_deleted_under_lease() {
        let world = World::new();
        let one = world.scratch.write_commit("claim issue=900 n=1", 1_700_000_000).unwrap();
        let two = world.scratch.write_commit("claim issue=900 n=2", 1_700_000_000).unwrap();
        let create = update(LANE, Some(&one), None);
        assert_eq!(world.push(std::slice::from_ref(&create)).await, [PushOutcome::Accepted]);
        assert_eq!(world.at(LANE).as_deref(), Some(one.as_str()));
        // The same object again is no loss of a race.
        assert_eq!(world.push(&[create]).await, [PushOutcome::UpToDate]);
        assert_eq!(
            world.push(&[update(LANE, Some(&two), None)]).await,
            [PushOutcome::LeaseRefused]
        );
        assert_eq!(world.at(LANE).as_deref(), Some(one.as_str()));
        let replace = update(LANE, Some(&two), Some(&one));
        assert_eq!(world.push(&[replace]).await, [PushOutcome::Accepted]);
        assert_eq!(
            world.push(&[update(LANE, None, Some(&one))]).await,
            [PushOutcome::LeaseRefused]
        );
        assert_eq!(world.at(LANE).as_deref(), Some(two.as_str()));
        assert_eq!(world.push(&[update(LANE, None, Some(&two))]).await, [PushOutcome::Accepted]);
        assert_eq!(world.at(LANE), None);
        world.assert_tidy();
    }

    #[tokio::test]
    async fn a_moved_ref_is_kept_and_its_sibling_is_written() {
        let world = World::new();
        let theirs = world.plant(LANE, "claim issue=900 machine=else");
        let seen = world.scratch.write_commit("seen", 1).unwrap();
        let ours = world.scratch.write_commit("ours", 2).unwrap();
        let both = [update(LANE, Some(&ours), Some(&seen)), update(OTHER, Some(&ours), None)];
        assert_eq!(world.push(&both).await, [PushOutcome::LeaseRefused, PushOutcome::Accepted]);
        assert_eq!(world.at(LANE).as_deref(), Some(theirs.as_str()));
        assert_eq!(world.at(OTHER).as_deref(), Some(ours.as_str()));
    }

    #[tokio::test]
    async fn an_atomic_push_is_all_or_nothing() {
        let world = World::new();
        world.plant(LANE, "theirs");
        let ours = world.scratch.write_commit("ours", 2).unwrap();
        let both = [update(LANE, Some(&ours), None), update(OTHER, Some(&ours), None)];
        let results = push(&world.git, &world.scratch, &world.url, &both, true).await.unwrap();
        assert_eq!(results[0].outcome, PushOutcome::LeaseRefused);
        assert_ne!(results[1].outcome, PushOutcome::Accepted);
        assert_eq!(world.at(OTHER), None);
    }

    #[tokio::test]
    async fn a_ref_that_is_gone_needs_no_delete() {
        let world = World::new();
        let ours = world.scratch.write_commit("ours", 2).unwrap();
        let absent = update(LANE, None, Some(&ours));
        let batch = [absent.clone(), update(OTHER, Some(&ours), None)];
        assert_eq!(world.push(&batch).await, [PushOutcome::UpToDate, PushOutcome::Accepted]);
        assert_eq!(world.push(&[absent]).await, [PushOutcome::UpToDate]);
        assert_eq!(world.push(&[]).await, []);
    }

    #[tokio::test]
    async fn a_hook_that_refuses_is_a_rejection_and_one_that_is_ours_does_not_run() {
        use std::os::unix::fs::PermissionsExt;
        let world = World::new();
        let hook = world.remote.path().join("hooks/update");
        std::fs::write(&hook, "#!/bin/sh\ncase $1 in */900) exit 1;; esac\n").unwrap();
        std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
        let ours = world.scratch.write_commit("ours", 2).unwrap();
        let both = [update(LANE, Some(&ours), None), update(OTHER, Some(&ours), None)];
        // `core.hooksPath=/dev/null` on our side must not reach the remote's hooks.
        assert_eq!(world.push(&both).await, [PushOutcome::Rejected, PushOutcome::Accepted]);
    }

    #[tokio::test]
    async fn nothing_dangerous_is_sent() {
        let world = World::new();
        let there = world.plant(LANE, "theirs");
        let ours = world.scratch.write_commit("ours", 2).unwrap();
        let unknown = "1".repeat(40);
        for bad in [
            update(LANE, Some(""), Some(&there)),
            update(LANE, Some(&unknown), Some(&there)),
            update(LANE, Some(&"0".repeat(40)), Some(&there)),
            update(LANE, Some(&ours), Some("")),
            update(LANE, None, None),
            update("--all", Some(&ours), None),
            update("refs/lane-claims/a:b", Some(&ours), None),
            update("refs/lane-claims/*", Some(&ours), None),
        ] {
            let error =
                push(&world.git, &world.scratch, &world.url, std::slice::from_ref(&bad), false)
                    .await;
            let kind = error.unwrap_err().kind();
            assert_eq!(kind, super::super::GitErrorKind::BadRequest, "{bad:?}");
        }
        assert_eq!(world.at(LANE), Some(there));
    }

    #[tokio::test]
    async fn a_remote_that_is_not_there_is_an_error_of_its_own() {
        let world = World::new();
        let ours = world.scratch.write_commit("ours", 2).unwrap();
        let updates = [update(LANE, Some(&ours), None)];
        let port = super::super::testing::free_port();
        for url in ["/nowhere/r.git".to_owned(), format!("git://127.0.0.1:{port}/r.git")] {
            let error = push(&world.git, &world.scratch, &url, &updates, false).await.unwrap_err();
            assert_eq!(error.kind(), super::super::GitErrorKind::Unreachable, "{url}: {error}");
        }
    }

    #[tokio::test]
    async fn all_of_it_works_over_a_real_daemon() {
        let mut world = World::new();
        let Some(daemon) = Daemon::serve(&world).await else { return };
        world.url.clone_from(&daemon.url);
        let one = world.scratch.write_commit("claim issue=900 pid=1", 1).unwrap();
        let two = world.scratch.write_commit("claim issue=900 pid=2", 2).unwrap();
        let both = [update(LANE, Some(&one), None), update(OTHER, Some(&one), None)];
        assert_eq!(world.push(&both).await, [PushOutcome::Accepted, PushOutcome::Accepted]);
        let both = [update(LANE, Some(&two), Some(&two)), update(OTHER, None, Some(&one))];
        assert_eq!(world.push(&both).await, [PushOutcome::LeaseRefused, PushOutcome::Accepted]);
        let refs = world.snapshot().await;
        assert_eq!(refs.len(), 1);
        assert_eq!((refs[0].name.as_str(), refs[0].oid.as_str()), (LANE, one.as_str()));
        assert_eq!(refs[0].message.as_deref(), Ok(b"claim issue=900 pid=1".as_slice()));
    }

    #[test]
    fn reports_are_read_line_by_line() {
        let report = b"To git://h/r\n \tx:refs/a\ta..b\n+\tx:refs/b\ta...b (forced update)\n-\t:refs/c\t[deleted]\n\
            *\tx:refs/d\t[new reference]\n=\tx:refs/e\t[up to date]\n!\tx:refs/f\t[rejected] (stale info)\n\
            !\tx:refs/g\t[remote rejected] (cannot lock ref 'refs/g': is at a but expected b)\n\
            !\tx:refs/h\t[remote rejected] (pre-receive hook declined)\n\
            !\tx:refs/i\t[remote failure] (remote failed to report status)\n*\tx:refs/f\t[new reference]\nDone\n";
        let outcomes: Vec<_> = parse_report(report)
            .into_iter()
            .map(|result| (result.ref_name, result.outcome.as_str()))
            .collect();
        let expected = [
            ("refs/a", "accepted"),
            ("refs/b", "accepted"),
            ("refs/c", "accepted"),
            ("refs/d", "accepted"),
            ("refs/e", "up-to-date"),
            ("refs/f", "lease-refused"),
            ("refs/g", "lease-refused"),
            ("refs/h", "rejected"),
            ("refs/i", "unconfirmed"),
        ];
        assert_eq!(outcomes, expected.map(|(name, outcome)| (name.to_owned(), outcome)));
    }

    proptest! {
        #[test]
        fn any_report_is_read(bytes in any::<Vec<u8>>(), text in "([-+*=! ]\t|[a-z]*:refs/[a-z]|\\[|\n|\t|\\PC){0,60}") {
            prop_assert!(parse_report(&bytes).len() <= bytes.len());
            let names: BTreeSet<_> = parse_report(text.as_bytes()).into_iter().map(|r| r.ref_name).collect();
            prop_assert_eq!(names.len(), parse_report(text.as_bytes()).len());
        }
    }
}
