//! Which user a worker runs as, and how a file is made as somebody else.

use std::io;

use rustix::{
    process::{Gid, Uid, getegid, geteuid, getgroups},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

/// The user that the worker gets.
///
/// An unprivileged keeper has no choice. Root takes the one user that is allowed, or, among several, the owner of the
/// lane's directory: whose checkout it is, works in it.
pub(super) fn choose(
    own: u32,
    allowed: &[u32],
    allow_root: bool,
    owner: u32,
) -> Result<u32, String> {
    let mut usable: Vec<u32> = allowed.iter().copied().filter(|&uid| uid != 0).collect();
    if allow_root {
        usable.push(0);
    }
    usable.sort_unstable();
    usable.dedup();
    let wanted = match (own, usable.as_slice()) {
        (0, [one]) => *one,
        (0, _) => owner,
        (own, _) => own,
    };
    if usable.contains(&wanted) {
        return Ok(wanted);
    }
    Err(format!(
        "this keeper may not start workers as uid {wanted}: allow that user{}",
        if wanted == 0 {
            " with --allow-root, or give the lane's directory to an allowed one"
        } else {
            ""
        }
    ))
}

/// Runs `what` with the file rights of that user. Without root, or for our own user, nothing changes.
///
/// The keeper has one thread, so nobody else acts under the borrowed name.
///
/// # Errors
/// If the name cannot be taken, and what `what` says. If our own name cannot be taken back every later step fails too.
pub(super) fn acting_as<T>(
    uid: u32,
    gid: u32,
    what: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let (own, own_gid) = (geteuid(), getegid());
    if !own.is_root() || uid == 0 {
        return what();
    }
    let groups = getgroups()?;
    set_thread_groups(&[])?;
    set_thread_res_gid(None::<Gid>, Some(Gid::from_raw(gid)), None::<Gid>)?;
    let result = set_thread_res_uid(None::<Uid>, Some(Uid::from_raw(uid)), None::<Uid>)
        .map_err(io::Error::from);
    let result = result.and_then(|()| what());
    set_thread_res_uid(None::<Uid>, Some(own), None::<Uid>)?;
    set_thread_res_gid(None::<Gid>, Some(own_gid), None::<Gid>)?;
    set_thread_groups(&groups)?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_never_chosen_unless_allowed() {
        assert_eq!(choose(0, &[1000], false, 0), Ok(1000), "the one that is allowed");
        assert_eq!(choose(0, &[1000, 1001], false, 1001), Ok(1001), "the directory's owner");
        assert_eq!(choose(0, &[], true, 1000), Ok(0));
        assert_eq!(choose(0, &[1000], true, 0), Ok(0));
        assert!(choose(0, &[0], false, 0).is_err(), "uid 0 in the list does not count");
        assert!(choose(0, &[1000, 1001], false, 0).is_err());
        assert!(choose(0, &[], false, 1000).is_err());
        assert_eq!(choose(1000, &[1000], false, 0), Ok(1000));
        assert!(choose(1000, &[], false, 1000).is_err());
    }
}
