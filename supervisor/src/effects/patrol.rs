//! Who works in a lane beside its worker? One walk over the process table for all lanes, a link read for each process.

use std::path::PathBuf;

use lanewarden_probes::{Root, identity};

use crate::{clock::start_unix_ms, effect::Post, event::Intruder};

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
        if belongs(&root, pid, post) {
            continue;
        }
        // It may have ended between two reads.
        let Ok(Ok(stat)) = identity::stat(&root, pid) else { continue };
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

/// Whether a process is of the worker's tree: by descent, by session, by the run's cookie in its environment, or by the
/// run's cgroup. Any one is proof; a daemonised child keeps the last two.
fn belongs(root: &Root, pid: u32, post: &Post) -> bool {
    let worker = i64::from(post.pid);
    let mut at = pid;
    for _ in 0..64 {
        if at == post.pid {
            return true;
        }
        match identity::stat(root, at) {
            Ok(Ok(stat)) if stat.session == worker => return true,
            Ok(Ok(stat)) if stat.ppid > 1 => at = stat.ppid,
            // The chain ends here, or its end may not be seen: the other proofs decide.
            Ok(_) | Err(_) => break,
        }
    }
    let cookie = format!("LANEWARDEN_RUN={}", post.run);
    let environ = identity::environ(root, pid).ok().and_then(Result::ok).unwrap_or_default();
    if environ.split(|&byte| byte == 0).any(|one| one == cookie.as_bytes()) {
        return true;
    }
    let groups = std::fs::read_to_string(root.proc().join(pid.to_string()).join("cgroup"));
    post.cgroup.as_deref().is_some_and(|group| {
        groups.is_ok_and(|groups| groups.lines().any(|line| line.ends_with(group)))
    })
}
