//! Who is of a run's tree, and who works in its lane beside it? One walk over the process table.
//!
//! The keeper knows its own; this is for lanes that are walked for strangers, and for trees whose keeper is gone.

use std::path::PathBuf;

use lanewarden_probes::{
    Root,
    identity::{self, ProcStat},
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::{clock::start_unix_ms, effect::Post, event::Intruder, keeper::protocol::StopSignal};

/// The lanes to be looked at, with their canonical directories.
pub(super) type Beat = Vec<(Post, PathBuf)>;

/// Everybody whose working directory is in one of these lanes and who is not of the lane's worker's tree. Who may not be
/// asked for its working directory is attributed to nobody.
pub(super) fn patrol(beat: &Beat, ancestors: &[u32]) -> Vec<Intruder> {
    let root = Root::live();
    let Ok(pids) = identity::pids(&root) else { return Vec::new() };
    let mut found = Vec::new();
    for pid in pids.into_iter().filter(|pid| !ancestors.contains(pid)) {
        let Ok(Ok(place)) = identity::cwd(&root, pid) else { continue };
        let Some((post, _)) = beat.iter().find(|(_, dir)| place.starts_with(dir)) else { continue };
        if Tree::of(&root, post).has(pid) {
            continue;
        }
        // It may have ended between two reads.
        let Some(stat) = stat(&root, pid) else { continue };
        if stat.is_kernel_thread() || stat.is_over() {
            continue;
        }
        found.push(Intruder {
            lane: post.lane.clone(),
            run: post.run.clone(),
            pid,
            start_ticks: stat.start_ticks,
            started_at_ms: start_unix_ms(stat.start_ticks),
            command: stat.comm.escape_ascii().to_string(),
        });
    }
    found
}

/// Signals everybody of a run's tree, each through a pidfd that was opened before its membership was proven; SIGKILL until
/// a walk finds nobody. How many signals were sent.
///
/// `spared` are we and our ancestors: no proof of membership makes them a worker's.
pub(super) fn sweep(post: &Post, how: StopSignal, spared: &[u32]) -> usize {
    let (signal, walks) = match how {
        StopSignal::Term => (Signal::TERM, 1),
        StopSignal::Kill => (Signal::KILL, 5),
    };
    let root = Root::live();
    let mut sent = 0;
    for _ in 0..walks {
        let tree = Tree::of(&root, post);
        let before = sent;
        for pid in identity::pids(&root).unwrap_or_default() {
            if pid <= 1 || spared.contains(&pid) {
                continue;
            }
            let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let Some(pidfd) = raw.and_then(|raw| pidfd_open(raw, PidfdFlags::empty()).ok()) else {
                continue;
            };
            let alive =
                stat(&root, pid).is_some_and(|stat| !stat.is_over() && !stat.is_kernel_thread());
            if alive && tree.has(pid) && pidfd_send_signal(&pidfd, signal).is_ok() {
                sent += 1;
            }
        }
        if sent == before {
            break;
        }
    }
    sent
}

/// Whose the worker's pid is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leader {
    /// The worker's.
    Worker,
    /// Nobody's: its session, if anybody is left in it, keeps the number from being used again.
    Gone,
    /// Somebody else's, or it cannot be told, or there never was a worker: descent and session prove nothing.
    Other,
}

/// Everybody of a run's tree, as far as the process table can be read.
pub(super) fn members(root: &Root, post: &Post) -> Vec<u32> {
    let tree = Tree::of(root, post);
    let all = identity::pids(root).unwrap_or_default();
    all.into_iter().filter(|&pid| tree.has(pid)).collect()
}

/// A run's tree at one moment.
struct Tree<'a> {
    root: &'a Root,
    post: &'a Post,
    leader: Leader,
    cookie: String,
}

impl<'a> Tree<'a> {
    fn of(root: &'a Root, post: &'a Post) -> Self {
        let leader = match identity::stat(root, post.pid) {
            // No worker was ever told of. Number 0 is the session of everything that has none, kernel threads and
            // service managers included, and 1 is init's.
            _ if post.pid <= 1 || post.start_ticks == 0 => Leader::Other,
            Ok(Ok(stat)) if stat.start_ticks == post.start_ticks => Leader::Worker,
            Ok(Err(lanewarden_probes::Absent::Gone)) => Leader::Gone,
            Ok(_) | Err(_) => Leader::Other,
        };
        Self { root, post, leader, cookie: format!("LANEWARDEN_RUN={}", post.run) }
    }

    /// Whether a process is of the tree: by descent, by session, by the run's cookie in its environment, or by the run's
    /// cgroup. Any one is proof; a daemonised child keeps the last two.
    fn has(&self, pid: u32) -> bool {
        (self.leader != Leader::Other && self.is_kin(pid))
            || self.has_cookie(pid)
            || self.is_grouped(pid)
    }

    fn is_kin(&self, pid: u32) -> bool {
        let worker = i64::from(self.post.pid);
        let mut at = pid;
        for _ in 0..64 {
            if self.leader == Leader::Worker && at == self.post.pid {
                return true;
            }
            match stat(self.root, at) {
                Some(stat) if stat.session == worker => return true,
                Some(stat) if stat.ppid > 1 => at = stat.ppid,
                Some(_) | None => return false,
            }
        }
        false
    }

    fn has_cookie(&self, pid: u32) -> bool {
        let environ =
            identity::environ(self.root, pid).ok().and_then(Result::ok).unwrap_or_default();
        environ.split(|&byte| byte == 0).any(|one| one == self.cookie.as_bytes())
    }

    fn is_grouped(&self, pid: u32) -> bool {
        let Some(group) = self.post.cgroup.as_deref() else { return false };
        let path = self.root.proc().join(pid.to_string()).join("cgroup");
        std::fs::read_to_string(path)
            .is_ok_and(|groups| groups.lines().any(|line| line.ends_with(&format!(":{group}"))))
    }
}

fn stat(root: &Root, pid: u32) -> Option<ProcStat> {
    identity::stat(root, pid).ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{LaneId, RunId};

    fn post(pid: u32, start_ticks: u64) -> Post {
        Post {
            lane: LaneId::new("a").unwrap(),
            run: RunId::from_bytes([0xa5; 16]),
            pid,
            start_ticks,
            cgroup: None,
        }
    }

    fn members(post: &Post) -> Vec<u32> {
        super::members(&Root::live(), post)
    }

    #[test]
    fn a_run_whose_worker_was_never_told_of_has_no_tree() {
        // Session 0 is that of kernel threads and of everything that a service manager starts without one.
        for (pid, ticks) in [(0, 0), (0, 5), (1, 5), (std::process::id(), 0)] {
            assert_eq!(members(&post(pid, ticks)), Vec::<u32>::new(), "{pid} {ticks}");
        }
    }

    #[test]
    fn a_number_that_is_somebody_elses_by_now_proves_nothing() {
        // Our own pid with another start: our children, our session and we are strangers to that run.
        assert_eq!(members(&post(std::process::id(), 1)), Vec::<u32>::new());
    }

    #[test]
    fn a_worker_and_its_children_are_of_its_tree() {
        let root = Root::live();
        let own = stat(&root, std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let found = members(&post(own.pid, own.start_ticks));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&own.pid) && found.contains(&child.id()), "{found:?}");
        let session = u32::try_from(own.session).unwrap();
        assert!(
            session == own.pid || !found.contains(&session),
            "our session's leader is not ours"
        );
    }
}
