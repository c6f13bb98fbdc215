//! From a pid to an identity: the pidfd is opened first, so that what is read after it is about the same process.

use super::{Identity, ProcStat, boot_id, own_pid, pid_namespace, stat, tgid, time_namespace};
use crate::{ProbeError, Reading, Root};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{fstat, fstatfs},
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open, test_kill_process},
};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::OnceLock,
};

/// File system type of pidfs (include/uapi/linux/magic.h). Only there is a pidfd's inode a name.
const PIDFS_MAGIC: u64 = 0x5049_4446;

/// What pidfd_open(2) says about a number, or kill(2) with signal 0 where pidfds are not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PidfdOutcome {
    /// A process of that number exists, perhaps as a zombie.
    Opened {
        /// The inode on pidfs, where the kernel has it.
        ino: Option<u64>,
        /// The descriptor is readable: all threads have exited.
        exited: bool,
    },
    /// ESRCH: there is no process and no thread of that number in our pid namespace. The only proof of death.
    NoProcess,
    /// ENOENT (EINVAL before 6.x): the number is that of a thread, not of a process.
    IsThread,
    /// EPERM: it exists and we may not touch it.
    Denied,
    /// The probe itself failed (EMFILE, ENOMEM): this errno.
    Failed(i32),
}

/// Opens a pidfd of `pid` in the running system and says what came of it.
#[must_use]
pub fn open_pidfd(pid: u32) -> (PidfdOutcome, Option<OwnedFd>) {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return (PidfdOutcome::NoProcess, None);
    };
    match pidfd_open(number, PidfdFlags::empty()) {
        Ok(fd) => {
            (PidfdOutcome::Opened { ino: pidfs_inode(&fd), exited: is_readable(&fd) }, Some(fd))
        }
        Err(Errno::SRCH) => (PidfdOutcome::NoProcess, None),
        Err(Errno::NOENT | Errno::INVAL) => (PidfdOutcome::IsThread, None),
        // No pidfds here: an old kernel, or a seccomp filter that answers EPERM for calls that it does not know.
        Err(Errno::NOSYS | Errno::PERM) => (by_null_signal(number), None),
        Err(errno) => (PidfdOutcome::Failed(errno.raw_os_error()), None),
    }
}

fn by_null_signal(pid: Pid) -> PidfdOutcome {
    match test_kill_process(pid) {
        Ok(()) => PidfdOutcome::Opened { ino: None, exited: false },
        Err(Errno::SRCH) => PidfdOutcome::NoProcess,
        Err(Errno::PERM) => PidfdOutcome::Denied,
        Err(errno) => PidfdOutcome::Failed(errno.raw_os_error()),
    }
}

/// The inode of a pidfd, if it lies on pidfs; elsewhere all pidfds share one.
#[expect(
    clippy::useless_conversion,
    reason = "the types of f_type and st_ino differ between architectures"
)]
fn pidfs_inode(fd: &OwnedFd) -> Option<u64> {
    // All pidfds of a kernel lie on the same file system: one answer serves for all.
    static ON_PIDFS: OnceLock<bool> = OnceLock::new();
    let on_pidfs = match ON_PIDFS.get() {
        Some(known) => *known,
        None => {
            let kind = u64::try_from(fstatfs(fd).ok()?.f_type).ok()?;
            *ON_PIDFS.get_or_init(|| kind == PIDFS_MAGIC)
        }
    };
    on_pidfs.then(|| fstat(fd).ok().map(|stat| u64::from(stat.st_ino))).flatten()
}

/// Whether the process behind the descriptor has exited. A failing poll proves nothing and says no.
fn is_readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok() && fds.iter().any(|fd| fd.revents().contains(PollFlags::IN))
}

/// A process that was resolved.
#[derive(Debug)]
pub struct Resolved {
    /// Who it is; parts that could not be read are `None`.
    pub identity: Identity,
    /// What was read, one fact a line, for people. No bytes that the process chose.
    pub evidence: Vec<String>,
    /// The process itself: act through this and not through the number. `None` where pidfds are not to be had.
    pub pidfd: Option<OwnedFd>,
    /// What `/proc/PID/stat` said.
    pub stat: Option<ProcStat>,
}

/// A pid names no process.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// ESRCH.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The number.
        pid: u32,
    },
    /// The number is a thread's. Name its process instead.
    #[error("{pid} is the id of a thread, not of a process{}", leader_hint(*leader))]
    IsThread {
        /// The number.
        pid: u32,
        /// The process whose thread it is, if that could be read.
        leader: Option<u32>,
    },
    /// The kernel refused to answer.
    #[error("asking the kernel for process {pid}")]
    Pidfd {
        /// The number.
        pid: u32,
        /// What it said.
        source: std::io::Error,
    },
    /// A file could not be read.
    #[error("reading about process {pid}")]
    Probe {
        /// The number.
        pid: u32,
        /// Which file.
        source: ProbeError,
    },
}

fn leader_hint(leader: Option<u32>) -> String {
    leader.map(|leader| format!("; its process is {leader}")).unwrap_or_default()
}

/// Finds out who `pid` is. `machine` and `actor` are the caller's names and are taken as they are.
///
/// # Errors
/// No such process, a thread's id, or the kernel could not be asked. Parts that may not be read are no error: they
/// are `None` in the identity and said in the evidence.
pub fn resolve(
    root: &Root,
    pid: u32,
    machine: &str,
    actor: &str,
) -> Result<Resolved, ResolveError> {
    let (outcome, pidfd) = open_pidfd(pid);
    let probe = |source| ResolveError::Probe { pid, source };
    let group = tgid(root, pid).map_err(probe)?;
    let mut evidence = Vec::new();
    let pidfs_ino = match outcome {
        PidfdOutcome::NoProcess => return Err(ResolveError::NoProcess { pid }),
        PidfdOutcome::IsThread => return Err(ResolveError::IsThread { pid, leader: group.ok() }),
        PidfdOutcome::Failed(errno) => {
            let source = std::io::Error::from_raw_os_error(errno);
            return Err(ResolveError::Pidfd { pid, source });
        }
        PidfdOutcome::Opened { ino, exited } => {
            let has = if pidfd.is_some() { "opened" } else { "not to be had here, process exists" };
            let over = if exited { ", readable (exited)" } else { "" };
            evidence.push(format!("pidfd: {has}{over}"));
            ino
        }
        PidfdOutcome::Denied => {
            evidence.push("pidfd: denied, process exists".to_owned());
            None
        }
    };
    match group {
        Ok(leader) if leader != pid => {
            return Err(ResolveError::IsThread { pid, leader: Some(leader) });
        }
        Ok(_) => evidence.push(format!("status: Tgid {pid}")),
        Err(absent) => evidence.push(format!("status: {absent:?}")),
    }
    let line = said(&mut evidence, "stat", stat(root, pid), |stat| {
        let (ticks, state) = (stat.start_ticks, char::from(stat.state));
        format!(
            "start_ticks {ticks}, state {state}, threads {}, ppid {}",
            stat.num_threads, stat.ppid
        )
    })
    .map_err(probe)?;
    let boot =
        said(&mut evidence, "boot_id", boot_id(root), |id| id.full().to_owned()).map_err(probe)?;
    let us = own_pid(root).map_err(probe)?.ok();
    let mut own = |what, read: fn(&Root, u32) -> Reading<u64>| match us {
        Some(us) => said(&mut evidence, what, read(root, us), u64::to_string),
        None => Ok(None),
    };
    let pidns = own("recorder's pid namespace", pid_namespace).map_err(probe)?;
    let timens = own("recorder's time namespace", time_namespace).map_err(probe)?;
    if let Some(ino) = pidfs_ino {
        evidence.push(format!("pidfs inode: {ino}"));
    }
    let identity = Identity {
        machine: machine.to_owned(),
        actor: actor.to_owned(),
        pid,
        boot_id: boot,
        start_ticks: line.as_ref().map(|stat| stat.start_ticks),
        pidns,
        timens,
        pidfs_ino,
    };
    Ok(Resolved { identity, evidence, pidfd, stat: line })
}

/// Writes a reading into the evidence and hands its value on.
fn said<T>(
    evidence: &mut Vec<String>,
    what: &str,
    reading: Reading<T>,
    show: impl Fn(&T) -> String,
) -> Result<Option<T>, ProbeError> {
    Ok(match reading? {
        Ok(value) => {
            evidence.push(format!("{what}: {}", show(&value)));
            Some(value)
        }
        Err(absent) => {
            evidence.push(format!("{what}: {absent:?}"));
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_resolve_to_ourselves_twice_the_same() {
        let us = std::process::id();
        let first = resolve(&Root::live(), us, "box", "me").unwrap();
        let second = resolve(&Root::live(), us, "box", "me").unwrap();
        assert!(first.identity.is_same(&second.identity), "{:?}", first.evidence);
        assert!(first.pidfd.is_some());
        assert_eq!(first.identity.token().split(':').count(), 5);
    }

    #[test]
    fn a_thread_is_refused_and_its_process_named() {
        let (told, tid) = std::sync::mpsc::sync_channel(1);
        let (done, wait) = std::sync::mpsc::sync_channel::<()>(1);
        let thread = std::thread::spawn(move || {
            told.send(rustix::thread::gettid()).unwrap();
            wait.recv().unwrap();
        });
        let tid = u32::try_from(tid.recv().unwrap().as_raw_nonzero().get()).unwrap();
        let error = resolve(&Root::live(), tid, "box", "me").unwrap_err();
        assert!(
            matches!(error, ResolveError::IsThread { leader: Some(leader), .. } if leader == std::process::id()),
            "{error}"
        );
        done.send(()).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn numbers_that_cannot_be_pids_are_nobody() {
        for pid in [0, u32::MAX] {
            assert!(matches!(
                resolve(&Root::live(), pid, "box", "me"),
                Err(ResolveError::NoProcess { .. })
            ));
        }
    }
}
