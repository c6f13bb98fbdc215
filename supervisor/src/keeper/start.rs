//! From an order to a running worker.

use std::{io, os::fd::OwnedFd};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::{
    KeeperOptions,
    account::{acting_as, choose},
    cgroup::Parents,
    clock,
    group::Group,
    prepare::{self, NotStarted, Step},
    process,
    protocol::{SpawnOrder, Started},
    spawn::{self, Account, Birth, Reached},
};

/// Who orders: its user and group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// A worker that runs.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) started: Started,
    /// Absent where the kernel gave none; then its pid and start ticks must do.
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) group: Group,
    /// OOM kills of the group before the worker entered.
    pub(super) oom_kills: Option<u64>,
}

/// Starts the ordered worker.
///
/// # Errors
/// [`NotStarted`]: nothing of the worker is left, neither process nor cgroup.
pub(super) fn start(
    order: &SpawnOrder,
    peer: Peer,
    options: &KeeperOptions,
    parents: &Parents,
) -> Result<Worker, NotStarted> {
    sane(order)?;
    let owner = prepare::directory(&order.dir)?;
    let own = rustix::process::geteuid().as_raw();
    let uid = choose(own, &options.allow_users, options.allow_root, owner)
        .map_err(NotStarted::refused)?;
    let user = change_of_user(own, uid)?;
    // Files with the rights of who asks: the keeper opens nothing for a peer that the peer could not open itself.
    let log = acting_as(peer.uid, peer.gid, || Ok(prepare::log(&order.log)))
        .map_err(|error| NotStarted::failed(Step::Log, &error, "act as the peer"))??;
    prepare::marker_dir(&order.marker_dir, uid, file_owner(own, peer.uid), peer.gid)?;
    let name = order.argv.first().map(String::as_str).unwrap_or_default();
    let path = order.env.get("PATH").map(String::as_str);
    let program = prepare::program(name, &order.dir, path)?;

    let (mut group, mut degraded) = Group::make(parents, order);
    let (doors, closed) = group.doors();
    let all_open = closed.is_empty();
    degraded.extend(closed);
    let oom_kills = group.oom_kills();
    let birth = Birth {
        program: program.clone(),
        argv: order.argv.clone(),
        env: clean_env(order),
        dir: order.dir.clone(),
        log,
        doors,
        oom_score_adj: order.oom_score_adj,
        user,
    };
    let born = spawn::spawn(birth).map_err(|(reached, error)| {
        if !group.remove() {
            tracing::warn!(lane = %order.lane, "the cgroup of a failed start stays");
        }
        explain(reached, &error, &program, order)
    })?;

    // Not reaped yet, so the pid is still this process, dead or alive.
    let start_ticks = match process::stat(born.pid) {
        Ok(stat) => stat.start_ticks,
        Err(error) => return Err(give_up(born.pid, &group, &error)),
    };
    if !born.in_groups {
        degraded.push("the worker could not enter its cgroup: its limits are off".to_owned());
    }
    group.set_entered(born.in_groups && all_open);
    let score = process::number(born.pid, "oom_score_adj");
    if score.is_some_and(|score| score != i64::from(order.oom_score_adj)) {
        degraded.push(format!("oom_score_adj {} could not be set", order.oom_score_adj));
    }
    let started = Started {
        run: order.run.clone(),
        lane: order.lane.clone(),
        pid: born.pid,
        start_ticks,
        started_at_ms: clock::epoch_ms(),
        cgroup: group.kernel_name().filter(|_| born.in_groups),
        degraded,
    };
    Ok(Worker { started, pidfd: open_pidfd(born.pid), group, oom_kills })
}

/// Who owns a file that was made in the peer's name.
fn file_owner(own: u32, peer: u32) -> u32 {
    if own == 0 { peer } else { own }
}

fn sane(order: &SpawnOrder) -> Result<(), NotStarted> {
    if !(0..=1000).contains(&order.oom_score_adj) {
        return Err(NotStarted::refused(format!(
            "oom_score_adj {} is not within 0 to 1000: workers die before the supervisor does",
            order.oom_score_adj
        )));
    }
    let bad_key = |key: &str| key.is_empty() || key.contains(['=', '\0']);
    if order.argv.iter().any(|word| word.contains('\0'))
        || order.env.iter().any(|(key, value)| bad_key(key) || value.contains('\0'))
    {
        return Err(NotStarted::refused(
            "command and environment must not hold NUL bytes, nor `=` in a name",
        ));
    }
    Ok(())
}

/// What the service manager said to us is not for the worker.
fn clean_env(order: &SpawnOrder) -> Vec<(String, String)> {
    let ours = |key: &str| {
        matches!(key, "NOTIFY_SOCKET" | "CREDENTIALS_DIRECTORY")
            || key.starts_with("LISTEN_")
            || key.starts_with("WATCHDOG_")
    };
    order
        .env
        .iter()
        .filter(|(key, _)| !ours(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn change_of_user(own: u32, uid: u32) -> Result<Option<Account>, NotStarted> {
    if own == uid {
        return Ok(None);
    }
    spawn::account(uid).map(Some).ok_or_else(|| {
        NotStarted::refused(format!(
            "uid {uid} is not in this machine's user database: add that user"
        ))
    })
}

fn explain(
    reached: Reached,
    error: &io::Error,
    program: &std::path::Path,
    order: &SpawnOrder,
) -> NotStarted {
    match reached {
        Reached::Exec => {
            NotStarted::failed(Step::Exec, error, prepare::exec_sentence(program, error))
        }
        Reached::User => {
            NotStarted::failed(Step::Refused, error, format!("become the worker's user: {error}"))
        }
        // std enters the directory before it hands over to us.
        Reached::Nothing if is_about_the_directory(error) => {
            let text = format!("enter {}: {error}", order.dir.display());
            NotStarted::failed(Step::Directory, error, text)
        }
        Reached::Nothing => {
            let text =
                format!("start one more process: {error}; the box is short of processes or memory");
            NotStarted::failed(Step::Fork, error, text)
        }
    }
}

fn is_about_the_directory(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | PermissionDenied | NotADirectory)
}

/// A worker without an identity could never be signalled safely: it must not live. It is reaped with the strangers.
fn give_up(pid: u32, group: &Group, error: &io::Error) -> NotStarted {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
        && let Err(error) = kill_process(pid, Signal::KILL)
    {
        tracing::warn!(%error, "a worker without identity cannot be ended");
    }
    if !group.remove() {
        tracing::debug!("the cgroup of a failed start stays");
    }
    NotStarted::failed(
        Step::Fork,
        error,
        format!("read the new worker's start time from /proc: {error}"),
    )
}

/// A pidfd of this process, if the kernel gives one.
pub(super) fn open_pidfd(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}
