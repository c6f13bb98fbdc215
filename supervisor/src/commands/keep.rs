//! `lanewarden keep`.

use std::path::Path;

use super::{Failure, Outcome, load};
use crate::{
    cli::KeepArgs,
    exit_code::{FAILED, OK, USAGE},
    keeper::{self, KeeperError, KeeperOptions},
    sources::keeper::keeper_dir,
};

pub(super) fn keep(args: KeepArgs, config: Option<&Path>) -> Outcome {
    let runtime_dir = match args.runtime_dir {
        Some(dir) => dir,
        None => keeper_dir(&load(config)?.runtime_dir),
    };
    let own = rustix::process::geteuid().as_raw();
    let users = |names: &[String]| -> Result<Vec<u32>, Failure> {
        if names.is_empty() {
            return Ok(vec![own]);
        }
        names.iter().map(|name| uid(name)).collect()
    };
    let options = KeeperOptions {
        runtime_dir,
        peers: users(&args.peer)?,
        allow_users: users(&args.allow_user)?,
        allow_root: args.allow_root,
        cgroup_base: args.cgroup,
    };
    match keeper::run(options) {
        Ok(()) => Ok(OK),
        // Two wardens that start at once may both start a keeper; the one that runs serves both.
        Err(error @ KeeperError::AlreadyRunning { .. }) => Err(Failure::new(FAILED, error)),
        Err(error) => Err(Failure::new(FAILED, chain(&error))),
    }
}

/// Sleeps until it is told to end. Its life is that of the cgroup in which lanes live; it never does anything.
pub(super) fn hold() -> Outcome {
    use signal_hook::{
        consts::{SIGINT, SIGTERM},
        iterator::Signals,
    };
    let mut signals = Signals::new([SIGTERM, SIGINT])
        .map_err(|error| Failure::new(FAILED, format!("waiting for signals: {error}")))?;
    signals.forever().next();
    Ok(OK)
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        words.push_str(": ");
        words.push_str(&one.to_string());
        cause = one.source();
    }
    words
}

fn uid(name: &str) -> Result<u32, Failure> {
    if let Ok(uid) = name.parse() {
        return Ok(uid);
    }
    // passwd(5). Users of a directory service are named by uid.
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find_map(|fields| match fields.as_slice() {
            [user, _, uid, ..] if *user == name => uid.parse().ok(),
            _ => None,
        })
        .ok_or_else(|| {
            Failure::new(
                USAGE,
                format!("/etc/passwd has no user {name:?}; name another, or give a uid"),
            )
        })
}
