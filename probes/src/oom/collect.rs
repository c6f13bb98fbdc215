//! The kills of a log, each listed once however often it was printed.

use std::collections::VecDeque;

use super::{OomKill, join};

/// How many of the latest kills are compared with a new one.
const REMEMBERED: usize = 512;

/// Lines of one kill carry the same printk clock, or nearly: a group's first victim is printed twice.
const SAME_KILL_USEC: u64 = 5_000_000;

/// A kill that may be printed again.
#[derive(Debug, Clone, Copy)]
struct Recent {
    index: usize,
    stamp: Option<u64>,
}

/// Collects kills.
#[derive(Debug, Default)]
pub(super) struct Collector {
    kills: Vec<OomKill>,
    recent: VecDeque<Recent>,
}

impl Collector {
    /// All kills, in the order of the log.
    pub(super) fn into_kills(self) -> Vec<OomKill> {
        self.kills
    }

    /// Another boot: pids and clocks begin anew.
    pub(super) fn new_boot(&mut self) {
        self.recent.clear();
    }

    /// Adds a kill, or what it adds to a kill that is known.
    pub(super) fn add(&mut self, kill: OomKill, stamp: Option<u64>) {
        for recent in self.recent.iter_mut().rev() {
            let Some(known) = self.kills.get_mut(recent.index) else { continue };
            if is_same(known, &kill, recent.stamp.zip(stamp)) {
                merge(known, kill);
                return;
            }
        }
        if self.recent.len() >= REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(Recent { index: self.kills.len(), stamp });
        self.kills.push(kill);
    }

    /// The latest kill was that of a whole cgroup.
    pub(super) fn mark_group(&mut self, path: &str) {
        let latest = self.recent.back().and_then(|recent| self.kills.get_mut(recent.index));
        let Some(kill) = latest.filter(|kill| !kill.shared_mm) else { return };
        kill.group = true;
        if kill.task_memcg.is_none() {
            kill.task_memcg = Some(path.to_owned());
        }
    }

    /// Gives a constraint line to the kill whose record comes right after it, where that was read first. `true` if there
    /// is one.
    pub(super) fn complete(&mut self, text: &[u8], seq: u64) -> bool {
        let next = seq.checked_add(1);
        for recent in self.recent.iter().rev() {
            let Some(kill) = self.kills.get_mut(recent.index) else { continue };
            if kill.seq == next && !kill.constraint_only {
                if kill.constraint.is_none() {
                    join::complete(text, kill);
                }
                return true;
            }
        }
        false
    }
}

/// Whether two kills of one pid are one. `stamps` are their printk clocks, where both are known.
fn is_same(known: &OomKill, new: &OomKill, stamps: Option<(u64, u64)>) -> bool {
    // A process that was printed by its thread's id, and then by its own.
    let by_thread = new.constraint_only && known.tgid == Some(new.pid);
    if known.pid != new.pid && !by_thread {
        return false;
    }
    if let Some((before, now)) = stamps {
        return before.abs_diff(now) <= SAME_KILL_USEC;
    }
    let partial = |kill: &OomKill| kill.constraint_only || kill.truncated || kill.shared_mm;
    let named_alike = known.comm == new.comm || known.comm.is_none() || new.comm.is_none();
    let sized_alike = known.total_vm_kb == new.total_vm_kb
        && known.anon_rss_kb == new.anon_rss_kb
        && known.file_rss_kb == new.file_rss_kb;
    by_thread
        || named_alike
            && (sized_alike || partial(known) || partial(new) || known.group && new.group)
}

/// Fills what is missing in `known` from `new`.
fn merge(known: &mut OomKill, new: OomKill) {
    if known.pid == new.pid && known.constraint_only && !new.constraint_only {
        // The kill line came after all: it is the better witness of everything but the cgroups.
        let before = std::mem::replace(known, new);
        known.constraint = known.constraint.take().or(before.constraint);
        known.memcg = known.memcg.take().or(before.memcg);
        known.task_memcg = known.task_memcg.take().or(before.task_memcg);
        known.uid = known.uid.or(before.uid);
        known.comm = known.comm.take().or(before.comm);
        if known.kind == super::OomKind::Unknown {
            known.kind = before.kind;
        }
        return;
    }
    if known.truncated && !new.truncated && !new.constraint_only {
        known.truncated = false;
    }
    if known.kind == super::OomKind::Unknown {
        known.kind = new.kind;
    }
    known.group |= new.group;
    known.comm = known.comm.take().or(new.comm);
    known.uid = known.uid.or(new.uid);
    known.constraint = known.constraint.take().or(new.constraint);
    known.memcg = known.memcg.take().or(new.memcg);
    known.task_memcg = known.task_memcg.take().or(new.task_memcg);
    known.total_vm_kb = known.total_vm_kb.or(new.total_vm_kb);
    known.anon_rss_kb = known.anon_rss_kb.or(new.anon_rss_kb);
    known.file_rss_kb = known.file_rss_kb.or(new.file_rss_kb);
    known.shmem_rss_kb = known.shmem_rss_kb.or(new.shmem_rss_kb);
    known.oom_score_adj = known.oom_score_adj.or(new.oom_score_adj);
    known.tgid = known.tgid.or(new.tgid);
    known.tgid_comm = known.tgid_comm.take().or(new.tgid_comm);
    known.seq = known.seq.or(new.seq);
}
