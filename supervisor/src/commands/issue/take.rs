//! Taking a lock: claim, adopt, and the trial of a remote.

use super::{
    desk::{Desk, remark},
    note, unauthenticated,
};
use crate::{
    claims::{GitErrorKind, issue::legacy_prefix, listing},
    decide::issue::{
        Expect, InfraDetail, Next, Pushed, SmokeFailure, Verdict, adopted_how, after_adopt,
        after_create, after_restamp, on_held,
    },
};

/// Takes the lock if nobody holds it and no branch of an older worker stands for one.
pub(super) async fn claim(desk: &Desk) -> Verdict {
    let place = &desk.place;
    let branches = legacy_prefix(&desk.issue);
    let (exact, starts) = ([desk.ref_name.as_str()], [branches.as_str()]);
    let listed = listing(&place.git, &place.scratch, &place.url, &exact, &starts).await;
    let listed = match remark(listed) {
        Ok(listed) => listed,
        Err(error) if error.kind() == GitErrorKind::Auth => return unauthenticated(),
        Err(_) => return Verdict::Infra { detail: InfraDetail::LegacyListing, oid: None },
    };
    let (locks, mut branches): (Vec<_>, Vec<_>) =
        listed.into_iter().partition(|(name, _)| *name == desk.ref_name);
    if let Some((_, oid)) = locks.into_iter().next() {
        match desk.read().await {
            Ok(Some(read)) => return settle(desk, on_held(&desk.who, read)).await,
            // Released since it was listed.
            Ok(None) => {}
            Err(_) => {
                let detail = InfraDetail::HolderUnreadable;
                return Verdict::Infra { detail, oid: Some(oid) };
            }
        }
    }
    if !branches.is_empty() {
        branches.sort();
        let refs = branches.into_iter().map(|(name, _)| name).collect();
        return Verdict::LegacyBranch { refs };
    }
    let Ok(made) = desk.write(None) else {
        return Verdict::Infra { detail: InfraDetail::NotBuilt, oid: None };
    };
    let pushed = desk.push(Some(&made), None).await;
    let found = desk.read_again(&made).await;
    settle(desk, after_create(&desk.who, &made, pushed, found)).await
}

/// Stamps a lock of ours anew if its process is dead.
async fn settle(desk: &Desk, next: Next) -> Verdict {
    match next {
        Next::Say(verdict) => verdict,
        Next::Restamp(oid) => match restamp(desk, &oid).await {
            Ok(oid) => Verdict::Held { oid, reentrant: true },
            Err(verdict) => verdict,
        },
    }
}

async fn restamp(desk: &Desk, oid: &str) -> Result<String, Verdict> {
    let made = desk
        .write(None)
        .map_err(|_| Verdict::Infra { detail: InfraDetail::NotBuilt, oid: None })?;
    let pushed = desk.push(Some(&made), Some(oid)).await;
    let found = desk.read_again(&made).await;
    after_restamp(&desk.who, &made, pushed, found)
}

/// Takes the lock over if it is exactly where `expect` says.
pub(super) async fn adopt(
    desk: &Desk,
    expect: &Expect,
    audit: Option<(&'static str, &str)>,
) -> Verdict {
    let Ok(made) = desk.write(audit) else {
        return Verdict::Infra { detail: InfraDetail::NotBuilt, oid: None };
    };
    let pushed = match expect {
        Expect::Nothing => desk.push(Some(&made), None).await,
        // An id of the other hash function is nowhere in a repository of ours: the read says what is there.
        Expect::Oid(oid) if oid.len() != made.len() => Pushed::NotAccepted,
        Expect::Oid(oid) => desk.push(Some(&made), Some(oid)).await,
    };
    let found = desk.read_again(&made).await;
    match after_adopt(&desk.who, expect, &made, pushed, found) {
        Next::Say(verdict) => verdict,
        Next::Restamp(oid) => match restamp(desk, &oid).await {
            Ok(new) => Verdict::Adopted { oid: new, how: adopted_how(expect, &oid) },
            Err(verdict) => verdict,
        },
    }
}

/// Makes, reads and deletes a ref that claims nothing.
pub(super) async fn smoke(desk: &mut Desk) -> u8 {
    desk.take_up("smoke");
    "smoke".clone_into(&mut desk.who.actor);
    let verdict = match desk.write(None) {
        Ok(made) => {
            desk.ref_name = format!("refs/claims/smoke-{made}");
            note(&format!("trying {}", desk.ref_name));
            match tried(desk, &made).await {
                Some(failure) => Verdict::SmokeFail(failure),
                None => Verdict::SmokeOk,
            }
        }
        Err(_) => Verdict::SmokeFail(SmokeFailure::CommitBuild),
    };
    desk.say(&verdict, None, false)
}

async fn tried(desk: &Desk, made: &str) -> Option<SmokeFailure> {
    let pushed = desk.push(Some(made), None).await;
    if pushed == Pushed::NoCredentials {
        return Some(SmokeFailure::Auth);
    }
    let seen = desk.peek().await;
    // Also after a push that failed: it may have landed before the connection broke.
    let deleted = desk.push(None, Some(made)).await == Pushed::Accepted;
    let cleaned = deleted && matches!(desk.peek().await, Ok(None));
    if pushed == Pushed::NotAccepted {
        return Some(SmokeFailure::PushRejected);
    }
    let seen = seen.ok().flatten();
    if seen.as_deref() != Some(made) {
        let expected = made.to_owned();
        return Some(SmokeFailure::Mismatch { seen, expected, cleaned });
    }
    (!cleaned).then_some(SmokeFailure::CleanupUnverified)
}
