//! Who owns an issue? Decided from what the remote was read to hold, never from what a push said.
//!
//! Whoever holds the ref holds the issue; machine and actor name the holder. Where a record also names a process, a
//! second session of the same machine and actor is not the holder while that process lives.

mod input;
mod verdict;

pub use input::{BadReason, Expect, check_actor, check_reason};
pub use verdict::{AdoptedHow, AuthDetail, InfraDetail, ReleasedHow, SmokeFailure, Verdict, exit};

use lanewarden_probes::closed_set;

closed_set! {
    /// What was measured of the process that a record of our machine and actor names.
    pub enum HolderProcess {
        /// The record names none, or we do not know which process we act for: machine and actor decide.
        NotCompared = "not-compared",
        /// The one that we act for.
        Same = "same",
        /// Another one, and it lives.
        Alive = "alive",
        /// Another one, affirmed dead.
        Dead = "dead",
        /// Another one, and it cannot be told whether it lives.
        Unknown = "unknown",
        /// One of another boot, stamped after ours began: a second box bears our name.
        OtherBox = "other-box",
    }
}

/// Machine and actor, sanitised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// The box.
    pub machine: String,
    /// Who acts there.
    pub actor: String,
}

/// A lock as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The object.
    pub oid: String,
    /// The holder; `None` if the record could not be read or names none.
    pub holder: Option<Who>,
    /// Whether the holder is written as we would write ourselves.
    pub verbatim: bool,
    /// The number of the holder's process, to be shown.
    pub pid: Option<u32>,
    /// What is known of the process.
    pub process: HolderProcess,
}

/// What a read of the remote came to: an answer, or no answer.
pub type Found = Result<Option<Read>, ()>;

/// How a push ended, by its own account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// The remote said that it took it.
    Accepted,
    /// Anything else; the ref tells.
    NotAccepted,
    /// The remote wants credentials that we do not have.
    NoCredentials,
}

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// The answer.
    Say(Verdict),
    /// The lock is ours by a process that is dead: stamp it anew, under a lease on this object.
    Restamp(String),
}

/// Whose a lock is.
enum Standing {
    Ours,
    OursDead,
    Other(Who, Option<u32>),
    Untold(InfraDetail),
}

fn standing(me: &Who, read: &Read) -> Standing {
    let Some(holder) = &read.holder else {
        return Standing::Untold(InfraDetail::HolderUnreadable);
    };
    if !read.verbatim || holder != me {
        return Standing::Other(holder.clone(), None);
    }
    match read.process {
        HolderProcess::NotCompared | HolderProcess::Same => Standing::Ours,
        HolderProcess::Dead => Standing::OursDead,
        HolderProcess::Alive | HolderProcess::OtherBox => Standing::Other(holder.clone(), read.pid),
        HolderProcess::Unknown => Standing::Untold(InfraDetail::HolderProcessUnknown),
    }
}

fn infra(detail: InfraDetail, oid: Option<&str>) -> Verdict {
    Verdict::Infra { detail, oid: oid.map(str::to_owned) }
}

/// `claim`: the lock is there already.
#[must_use]
pub fn on_held(me: &Who, read: Read) -> Next {
    Next::Say(match standing(me, &read) {
        Standing::OursDead => return Next::Restamp(read.oid),
        Standing::Ours => Verdict::Held { oid: read.oid, reentrant: true },
        Standing::Other(holder, pid) => Verdict::Lost { oid: read.oid, holder, pid },
        Standing::Untold(detail) => infra(detail, Some(&read.oid)),
    })
}

/// `claim`: the record `made` was pushed, create only, and the ref was read again.
#[must_use]
pub fn after_create(me: &Who, made: &str, pushed: Pushed, found: Found) -> Next {
    let accepted = match pushed {
        Pushed::NoCredentials => {
            let detail = AuthDetail::ClaimPush;
            return Next::Say(Verdict::Auth { detail, oid: None });
        }
        Pushed::Accepted => true,
        Pushed::NotAccepted => false,
    };
    Next::Say(match found {
        Err(()) if accepted => infra(InfraDetail::ClaimUnconfirmed, Some(made)),
        Err(()) => infra(InfraDetail::ClaimPushAndRead, None),
        Ok(None) if accepted => infra(InfraDetail::ClaimAbsentOnConfirm, Some(made)),
        Ok(None) => infra(InfraDetail::ClaimRejectedAbsent, None),
        Ok(Some(read)) if read.oid == made => Verdict::Held { oid: read.oid, reentrant: false },
        Ok(Some(read)) => return on_held(me, read),
    })
}

/// A lock that was ours by a dead process was stamped anew as `made`, and the ref was read again. `Ok`: it is ours at
/// this object.
///
/// # Errors
/// The verdict that says why it is not, or not known to be.
pub fn after_restamp(
    me: &Who,
    made: &str,
    pushed: Pushed,
    found: Found,
) -> Result<String, Verdict> {
    if pushed == Pushed::NoCredentials {
        return Err(Verdict::Auth { detail: AuthDetail::ClaimPush, oid: None });
    }
    match found {
        Err(()) => Err(infra(InfraDetail::ClaimPushAndRead, None)),
        Ok(None) => Err(infra(InfraDetail::ClaimRejectedAbsent, None)),
        Ok(Some(read)) if read.oid == made => Ok(read.oid),
        Ok(Some(read)) => match standing(me, &read) {
            Standing::Ours => Ok(read.oid),
            Standing::OursDead => Err(infra(InfraDetail::Restamp, Some(&read.oid))),
            Standing::Other(holder, pid) => Err(Verdict::Lost { oid: read.oid, holder, pid }),
            Standing::Untold(detail) => Err(infra(detail, Some(&read.oid))),
        },
    }
}

/// `verify`.
#[must_use]
pub fn on_verify(me: &Who, found: Found) -> Verdict {
    match found {
        Err(()) => infra(InfraDetail::Listing, None),
        Ok(None) => Verdict::NoClaimRef,
        Ok(Some(read)) => match standing(me, &read) {
            Standing::Ours | Standing::OursDead => Verdict::VerifyOk { oid: read.oid },
            Standing::Other(holder, _) => Verdict::VerifyFail { oid: read.oid, holder },
            Standing::Untold(detail) => infra(detail, Some(&read.oid)),
        },
    }
}

/// `adopt`: the record `made` was pushed under the lease `expect`, and the ref was read again.
#[must_use]
pub fn after_adopt(me: &Who, expect: &Expect, made: &str, pushed: Pushed, found: Found) -> Next {
    if pushed == Pushed::NoCredentials {
        return Next::Say(Verdict::Auth { detail: AuthDetail::AdoptPush, oid: None });
    }
    Next::Say(match (found, expect) {
        (Err(()), _) => infra(InfraDetail::AdoptPushAndRead, None),
        (Ok(None), Expect::Nothing) => infra(InfraDetail::AdoptRejectedAbsent, None),
        (Ok(None), Expect::Oid(_)) => Verdict::AdoptLost { actual: None },
        (Ok(Some(read)), _) if read.oid == made => {
            Verdict::Adopted { oid: read.oid, how: AdoptedHow::Now }
        }
        (Ok(Some(read)), expect) => {
            let at_lease = matches!(expect, Expect::Oid(oid) if *oid == read.oid);
            match standing(me, &read) {
                Standing::Ours => {
                    let how = adopted_how(expect, &read.oid);
                    Verdict::Adopted { oid: read.oid, how }
                }
                Standing::OursDead => return Next::Restamp(read.oid),
                Standing::Untold(detail) => infra(detail, Some(&read.oid)),
                Standing::Other(..) if at_lease => {
                    infra(InfraDetail::AdoptUnchanged, Some(&read.oid))
                }
                Standing::Other(holder, _) => {
                    Verdict::AdoptLost { actual: Some((read.oid, holder)) }
                }
            }
        }
    })
}

/// How an adoption ended that found the lock to be ours already, at `oid`.
#[must_use]
pub fn adopted_how(expect: &Expect, oid: &str) -> AdoptedHow {
    match expect {
        Expect::Oid(lease) if lease != oid => AdoptedHow::LeaseMismatch,
        Expect::Oid(_) | Expect::Nothing => AdoptedHow::Again,
    }
}

/// `release` without force, before anything is deleted. `Ok`: this object may go if no pull request is open.
///
/// # Errors
/// The verdict that ends it.
pub fn on_release(me: &Who, found: Found) -> Result<String, Verdict> {
    match found {
        Err(()) => Err(infra(InfraDetail::Listing, None)),
        Ok(None) => Err(Verdict::Released { how: ReleasedHow::Absent, oid: None }),
        Ok(Some(read)) => match standing(me, &read) {
            Standing::Ours | Standing::OursDead => Ok(read.oid),
            Standing::Other(holder, _) => Err(Verdict::NotHolder { oid: read.oid, holder }),
            Standing::Untold(detail) => Err(infra(detail, Some(&read.oid))),
        },
    }
}

/// `release`: the object `leased` was to be deleted under lease; `after` is what the ref held afterwards, which need
/// not be read if the remote accepted.
#[must_use]
pub fn after_delete(
    forced: bool,
    leased: &str,
    pushed: Pushed,
    after: Result<Option<String>, ()>,
) -> Verdict {
    let (how, auth, detail) = if forced {
        (ReleasedHow::Force, AuthDetail::ForceDelete, InfraDetail::ForceDelete)
    } else {
        (ReleasedHow::Cas, AuthDetail::CasDelete, InfraDetail::CasDelete)
    };
    let oid = Some(leased.to_owned());
    match (pushed, after) {
        (Pushed::NoCredentials, _) => Verdict::Auth { detail: auth, oid },
        // A connection that broke after the delete, or somebody else's delete: the lock is gone either way.
        (Pushed::Accepted, _) | (Pushed::NotAccepted, Ok(None)) => Verdict::Released { how, oid },
        (Pushed::NotAccepted, Ok(Some(_)) | Err(())) => Verdict::Infra { detail, oid },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> Who {
        Who { machine: "box-a".into(), actor: "flow".into() }
    }

    fn read(oid: &str, process: HolderProcess) -> Read {
        Read { oid: oid.into(), holder: Some(me()), verbatim: true, pid: Some(7), process }
    }

    fn other(oid: &str) -> Read {
        let holder = Some(Who { machine: "box-b".into(), actor: "flow".into() });
        Read { holder, ..read(oid, HolderProcess::NotCompared) }
    }

    fn unreadable(oid: &str) -> Read {
        Read { holder: None, ..other(oid) }
    }

    fn code(next: Next) -> Option<u8> {
        match next {
            Next::Say(verdict) => Some(exit(&verdict)),
            Next::Restamp(_) => None,
        }
    }

    #[test]
    fn a_process_of_ours_decides_only_when_it_was_measured() {
        let expected = [
            (HolderProcess::NotCompared, Some(0)),
            (HolderProcess::Same, Some(0)),
            (HolderProcess::Alive, Some(2)),
            (HolderProcess::Dead, None),
            (HolderProcess::Unknown, Some(1)),
            (HolderProcess::OtherBox, Some(2)),
        ];
        assert_eq!(expected.len(), HolderProcess::ALL.len());
        for (process, answer) in expected {
            assert_eq!(code(on_held(&me(), read("x", process))), answer, "{process}");
        }
        assert_eq!(code(on_held(&me(), unreadable("x"))), Some(1));
        assert_eq!(code(on_held(&me(), other("x"))), Some(2));
        let lookalike = Read { verbatim: false, ..read("x", HolderProcess::NotCompared) };
        assert_eq!(code(on_held(&me(), lookalike)), Some(2));
    }

    #[test]
    fn the_read_outranks_the_push() {
        for pushed in [Pushed::Accepted, Pushed::NotAccepted] {
            let held = |found| code(after_create(&me(), "mine", pushed, found));
            assert_eq!(held(Ok(Some(other("mine")))), Some(0), "ours by its id");
            assert_eq!(held(Ok(Some(other("x")))), Some(2));
            assert_eq!(held(Ok(None)), Some(1));
            assert_eq!(held(Err(())), Some(1));
        }
        let denied = after_create(&me(), "mine", Pushed::NoCredentials, Ok(None));
        assert_eq!(denied, Next::Say(Verdict::Auth { detail: AuthDetail::ClaimPush, oid: None }));
    }

    #[test]
    fn an_adoption_is_told_from_the_read() {
        let cas = Expect::Oid("old".into());
        let adopt =
            |expect, found| match after_adopt(&me(), expect, "new", Pushed::NotAccepted, found) {
                Next::Say(verdict) => verdict,
                Next::Restamp(oid) => panic!("restamps {oid}"),
            };
        let now = Verdict::Adopted { oid: "new".into(), how: AdoptedHow::Now };
        assert_eq!(adopt(&cas, Ok(Some(read("new", HolderProcess::Same)))), now);
        let how = |expect, oid| {
            let verdict = adopt(expect, Ok(Some(read(oid, HolderProcess::NotCompared))));
            let Verdict::Adopted { how, .. } = verdict else { panic!("{verdict:?}") };
            how
        };
        assert_eq!(how(&cas, "old"), AdoptedHow::Again);
        assert_eq!(how(&cas, "third"), AdoptedHow::LeaseMismatch);
        assert_eq!(how(&Expect::Nothing, "third"), AdoptedHow::Again);
        let detail = |verdict| {
            let Verdict::Infra { detail, .. } = verdict else { panic!("{verdict:?}") };
            detail
        };
        assert_eq!(detail(adopt(&cas, Ok(Some(other("old"))))), InfraDetail::AdoptUnchanged);
        assert_eq!(detail(adopt(&Expect::Nothing, Ok(None))), InfraDetail::AdoptRejectedAbsent);
        assert_eq!(detail(adopt(&cas, Err(()))), InfraDetail::AdoptPushAndRead);
        assert_eq!(adopt(&cas, Ok(None)), Verdict::AdoptLost { actual: None });
        assert_eq!(exit(&adopt(&cas, Ok(Some(other("third"))))), 2);
    }

    #[test]
    fn a_release_needs_the_holder_and_a_lease() {
        assert_eq!(on_release(&me(), Ok(Some(read("x", HolderProcess::Dead)))), Ok("x".into()));
        for (found, code) in
            [(Err(()), 1), (Ok(None), 0), (Ok(Some(other("x"))), 2), (Ok(Some(unreadable("x"))), 1)]
        {
            assert_eq!(exit(&on_release(&me(), found).unwrap_err()), code);
        }
        for forced in [false, true] {
            let deleted = |pushed, after| exit(&after_delete(forced, "x", pushed, after));
            assert_eq!(deleted(Pushed::Accepted, Err(())), 0);
            assert_eq!(deleted(Pushed::NotAccepted, Ok(None)), 0);
            assert_eq!(deleted(Pushed::NotAccepted, Ok(Some("y".into()))), 1);
            assert_eq!(deleted(Pushed::NotAccepted, Err(())), 1);
            assert_eq!(deleted(Pushed::NoCredentials, Ok(None)), 1);
        }
    }
}
