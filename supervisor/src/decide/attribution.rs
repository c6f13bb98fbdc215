//! Whose process did the kernel kill? By proof, never by resemblance.

use lanewarden_probes::oom::{OomKill, OomKind};

use crate::{ids::RunId, verdict::SigkillEnd};

/// A run that might own a victim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate<'a> {
    /// The run.
    pub run: &'a RunId,
    /// Its cgroup in the memory hierarchy, as the kernel names it.
    pub cgroup: Option<&'a str>,
    /// Its worker's pid.
    pub pid: Option<u32>,
}

/// An OOM kill in one of our runs.
#[derive(Debug, Clone, PartialEq)]
pub struct LaneKill {
    /// What the kernel said.
    pub kill: OomKill,
    /// When its record was read, milliseconds since the epoch.
    pub read_at_ms: i64,
}

/// The run that owns the victim: the cgroup in which the victim lived decides (`task_memcg`, never the limit's owner,
/// never `cpuset=`); where the log does not say it, the worker's own pid does. `None` is a foreign kill.
#[must_use]
pub fn owner<'a>(kill: &OomKill, candidates: &[Candidate<'a>]) -> Option<&'a RunId> {
    if let Some(lived_in) = kill.task_memcg.as_deref() {
        return candidates
            .iter()
            .find(|candidate| candidate.cgroup.is_some_and(|own| is_below(lived_in, own)))
            .or_else(|| by_pid(kill, candidates).filter(|candidate| candidate.cgroup.is_none()))
            .map(|candidate| candidate.run);
    }
    by_pid(kill, candidates).map(|candidate| candidate.run)
}

fn by_pid<'c, 'a>(kill: &OomKill, candidates: &'c [Candidate<'a>]) -> Option<&'c Candidate<'a>> {
    let pid = kill.tgid.unwrap_or(kill.pid);
    candidates.iter().find(|candidate| candidate.pid == Some(pid))
}

/// Whether `path` is `group` or lies below it.
fn is_below(path: &str, group: &str) -> bool {
    path.strip_prefix(group).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
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
    /// OOM kills of this run that the kernel log named.
    pub named: &'a [LaneKill],
}

/// Who ended it.
#[must_use]
pub fn sigkill_end(facts: SigkillFacts<'_>) -> SigkillEnd {
    if facts.our_kill {
        return SigkillEnd::KilledByUs;
    }
    let own = facts
        .named
        .iter()
        .find(|kill| kill.kill.pid == facts.pid || kill.kill.tgid == Some(facts.pid));
    if let Some(kill) = own {
        return match kill.kill.kind {
            OomKind::Memcg => SigkillEnd::OomMemcg,
            OomKind::Global => SigkillEnd::OomGlobal,
            OomKind::Unknown => SigkillEnd::OomUnnamed,
        };
    }
    let named = u64::try_from(facts.named.len()).unwrap_or(u64::MAX);
    match facts.counted {
        Some(counted) if counted > named => SigkillEnd::OomUnnamed,
        Some(_) | None if named > 0 => SigkillEnd::CoVictim,
        Some(_) | None => SigkillEnd::Unexplained,
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
        (Some(counted), _) => counted > u64::try_from(facts.named.len()).unwrap_or(u64::MAX),
        (None, Some(true) | None) => facts.named.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kill(pid: u32, task_memcg: Option<&str>) -> OomKill {
        let mut kill: OomKill =
            serde_json::from_value(serde_json::json!({"pid": pid, "kind": "memcg"})).unwrap();
        kill.task_memcg = task_memcg.map(str::to_owned);
        kill
    }

    #[test]
    fn the_cgroup_in_which_the_victim_lived_decides() {
        let (a, b) = (RunId::from_bytes([1; 16]), RunId::from_bytes([2; 16]));
        let candidates = [
            Candidate { run: &a, cgroup: Some("/lanes/a.1"), pid: Some(10) },
            Candidate { run: &b, cgroup: Some("/lanes/a.10"), pid: Some(20) },
        ];
        assert_eq!(owner(&kill(99, Some("/lanes/a.1")), &candidates), Some(&a));
        assert_eq!(owner(&kill(99, Some("/lanes/a.1/sub")), &candidates), Some(&a));
        assert_eq!(owner(&kill(99, Some("/lanes/a.10")), &candidates), Some(&b));
        // A pid that happens to be ours, in somebody else's group, is not ours: the group was read, the pid is reused.
        assert_eq!(owner(&kill(10, Some("/user.slice")), &candidates), None);
        assert_eq!(owner(&kill(20, None), &candidates), Some(&b));
        assert_eq!(owner(&kill(21, None), &candidates), None);
    }

    #[test]
    fn who_sent_the_sigkill() {
        let named = [LaneKill { kill: kill(10, None), read_at_ms: 0 }];
        let facts = SigkillFacts { pid: 10, our_kill: false, counted: Some(1), named: &named };
        assert_eq!(sigkill_end(facts), SigkillEnd::OomMemcg);
        assert_eq!(sigkill_end(SigkillFacts { our_kill: true, ..facts }), SigkillEnd::KilledByUs);
        assert_eq!(sigkill_end(SigkillFacts { pid: 11, ..facts }), SigkillEnd::CoVictim);
        assert_eq!(sigkill_end(SigkillFacts { named: &[], ..facts }), SigkillEnd::OomUnnamed);
        let quiet = SigkillFacts { named: &[], counted: Some(0), ..facts };
        assert_eq!(sigkill_end(quiet), SigkillEnd::Unexplained);
        assert_eq!(sigkill_end(SigkillFacts { counted: None, ..quiet }), SigkillEnd::Unexplained);
    }

    #[test]
    fn a_counter_that_stands_still_needs_no_waiting() {
        let facts = SigkillFacts { pid: 10, our_kill: false, counted: Some(0), named: &[] };
        assert!(!wants_kernel_log(facts, None));
        assert!(wants_kernel_log(SigkillFacts { counted: Some(1), ..facts }, None));
        assert!(wants_kernel_log(SigkillFacts { counted: None, ..facts }, None));
        assert!(!wants_kernel_log(SigkillFacts { counted: None, ..facts }, Some(false)));
        assert!(!wants_kernel_log(SigkillFacts { our_kill: true, counted: None, ..facts }, None));
    }
}
