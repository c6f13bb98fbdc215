//! Whose process did the kernel kill? By proof, never by resemblance.
//!
//! Order of proof: the cgroup in which the victim lived (`task_memcg`), then the numbers of the run's processes and
//! threads, then the counters ([`super::ledger`]). Never by `cpuset=`, by the invoker, by a name or by size. The owner of
//! the limit is not the owner of the victim. Where two proofs disagree the stronger one decides, and both are shown.

use lanewarden_probes::{closed_set, oom::OomKill, oom::OomKind};
use serde::{Deserialize, Serialize};

use crate::{ids::RunId, verdict::SigkillEnd};

closed_set! {
    /// How it is known whose process a victim was.
    pub enum Proof {
        /// It lived in the run's cgroup, says the kernel.
        Cgroup = "cgroup",
        /// Its number was that of a process or thread of the run.
        Pid = "pid",
        /// The run's counter grew by just what the kernel log does not place.
        Counter = "counter",
    }
}

/// A run that might own a victim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The run.
    pub run: &'a RunId,
    /// Its cgroup in the memory hierarchy, as the kernel names it.
    pub cgroup: Option<&'a str>,
    /// Its worker's pid.
    pub pid: Option<u32>,
    /// Processes and threads that were seen in it, the worker's among them.
    pub tasks: &'a [u32],
    /// When it lived, milliseconds since the epoch; a number proves nothing outside of that time.
    pub lived: (i64, Option<i64>),
}

/// How long after a run's end a kill may be read and still be of one of its processes, milliseconds.
const AFTER_END_MS: i64 = 2_000;

impl Candidate<'_> {
    fn lived_at(&self, at_ms: i64) -> bool {
        // A start that was rounded to clock ticks, and a time that was converted, may be off by some milliseconds.
        at_ms >= self.lived.0.saturating_sub(100)
            && self.lived.1.is_none_or(|end| at_ms <= end.saturating_add(AFTER_END_MS))
    }

    fn is_worker(&self, kill: &OomKill) -> bool {
        self.pid.is_some_and(|pid| pid != 0 && (kill.pid == pid || kill.tgid == Some(pid)))
    }

    fn has_task(&self, kill: &OomKill) -> bool {
        self.is_worker(kill)
            || self.tasks.iter().any(|&task| task == kill.pid || kill.tgid == Some(task))
    }
}

/// Whose a victim was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// This run's.
    Run {
        /// The run.
        run: RunId,
        /// What says so.
        proof: Proof,
        /// What a weaker proof says instead.
        conflict: Option<String>,
    },
    /// None of ours.
    Foreign {
        /// What a weaker proof says instead.
        conflict: Option<String>,
    },
    /// The record does not say where it lived, and nobody knows its number: the counters must tell.
    Unplaced,
}

/// Whose the victim of this record was.
#[must_use]
pub fn owner(kill: &OomKill, at_ms: i64, candidates: &[Candidate<'_>]) -> Owner {
    let by_pid =
        candidates.iter().find(|candidate| candidate.lived_at(at_ms) && candidate.has_task(kill));
    let Some(lived_in) = kill.task_memcg.as_deref() else {
        return by_pid.map_or(Owner::Unplaced, |found| of(found, Proof::Pid, None));
    };
    let by_group = candidates
        .iter()
        .find(|candidate| candidate.cgroup.is_some_and(|own| is_below(lived_in, own)));
    match (by_group, by_pid) {
        (Some(group), Some(other)) if group.run != other.run => {
            let conflict = format!("its number {} was last seen in run {}", kill.pid, other.run);
            of(group, Proof::Cgroup, Some(conflict))
        }
        (Some(group), _) => of(group, Proof::Cgroup, None),
        (None, Some(found)) if found.cgroup.is_none() => of(found, Proof::Pid, None),
        // The worker itself, held by us: it left its group. Any other number may be used again by now.
        (None, Some(found)) if found.is_worker(kill) => {
            let conflict = format!("it lived in {lived_in}, not in its run's cgroup");
            of(found, Proof::Pid, Some(conflict))
        }
        (None, Some(found)) => Owner::Foreign {
            conflict: Some(format!("its number {} was last seen in run {}", kill.pid, found.run)),
        },
        (None, None) => Owner::Foreign { conflict: None },
    }
}

fn of(candidate: &Candidate<'_>, proof: Proof, conflict: Option<String>) -> Owner {
    Owner::Run { run: candidate.run.clone(), proof, conflict }
}

/// Whether `path` is `group` or lies below it.
fn is_below(path: &str, group: &str) -> bool {
    path.strip_prefix(group).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// An OOM kill in one of our runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneKill {
    /// What the kernel said.
    pub kill: OomKill,
    /// When its record was read, milliseconds since the epoch.
    pub read_at_ms: i64,
    /// What says that it was this run's.
    pub proof: Proof,
    /// What a weaker proof says instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict: Option<String>,
}

/// The class of a kill that the kernel log names.
#[must_use]
pub const fn class(kind: OomKind) -> SigkillEnd {
    match kind {
        OomKind::Memcg => SigkillEnd::OomMemcg,
        OomKind::Global => SigkillEnd::OomGlobal,
        OomKind::Unknown => SigkillEnd::OomUnnamed,
    }
}

/// Everything known about the SIGKILL that ended a worker.
#[derive(Debug, Clone, Copy)]
pub struct SigkillFacts<'a> {
    /// The worker's pid.
    pub pid: u32,
    /// Whether we sent SIGKILL to the tree, by the keeper's record of its intent.
    pub our_kill: bool,
    /// OOM kills in the run's cgroup during the run, by its counter.
    pub counted: Option<u64>,
    /// Those of them that no record names and that were known, and told, while the worker lived: they did not end it.
    pub unnamed_before: u64,
    /// OOM kills of this run that the kernel log named.
    pub named: &'a [LaneKill],
    /// Processes that used the worker's address space.
    pub sharing: &'a [u32],
    /// When the worker ended, milliseconds since the epoch.
    pub ended_at_ms: i64,
}

/// How far from an OOM kill a silent co-victim's end may lie, milliseconds.
const CO_VICTIM_MS: i64 = 1_000;

impl SigkillFacts<'_> {
    /// OOM kills that were counted and that no record names.
    #[must_use]
    pub fn unnamed(&self) -> u64 {
        let named = u64::try_from(self.named.len()).unwrap_or(u64::MAX);
        self.counted.unwrap_or(0).saturating_sub(named.saturating_add(self.unnamed_before))
    }
}

/// Who ended it.
///
/// Beside a named victim a worker is a co-victim only if it is known to have used the victim's memory: somebody may have
/// killed it for another reason in the same second. (A cgroup that is killed as a whole has a record for each member.)
#[must_use]
pub fn sigkill_end(facts: SigkillFacts<'_>) -> SigkillEnd {
    if facts.our_kill {
        return SigkillEnd::KilledByUs;
    }
    let names = |kill: &&LaneKill| kill.kill.pid == facts.pid || kill.kill.tgid == Some(facts.pid);
    if let Some(kill) = facts.named.iter().find(names) {
        return class(kill.kill.kind);
    }
    let shared = |kill: &LaneKill| {
        let near = (facts.ended_at_ms - kill.read_at_ms).abs() <= CO_VICTIM_MS;
        let same = |pid: u32| facts.sharing.contains(&pid);
        near && (same(kill.kill.pid) || kill.kill.tgid.is_some_and(same))
    };
    if facts.named.iter().any(shared) {
        SigkillEnd::CoVictim
    } else if facts.unnamed() > 0 {
        SigkillEnd::OomUnnamed
    } else {
        SigkillEnd::Unexplained
    }
}

/// Whether it is worth waiting for the kernel log before the worker's end is judged.
///
/// The kernel raises its counters before it sends SIGKILL, so a counter that stands still proves that no OOM killer did
/// it. Only a counter that grew without a name, or no counter at all, leaves the question open.
#[must_use]
pub fn wants_kernel_log(facts: SigkillFacts<'_>, box_counter_grew: Option<bool>) -> bool {
    if facts.our_kill {
        return false;
    }
    match (facts.counted, box_counter_grew) {
        (Some(0), _) | (None, Some(false)) => false,
        (Some(_), _) => facts.unnamed() > 0,
        (None, Some(true) | None) => facts.named.is_empty(),
    }
}

#[cfg(test)]
#[path = "attribution/tests.rs"]
mod tests;
