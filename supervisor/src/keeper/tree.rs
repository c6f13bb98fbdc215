//! Who belongs to a run.
//!
//! The keeper is subreaper, so every living process of a run is its descendant, whatever it forked, detached or renamed.
//! Which run a child of the keeper belongs to is told by its cgroup, its session, an earlier look, or the nonce in its
//! environment; a child that can only be of one run, because no other could have had it, is of that one.

use std::collections::{BTreeMap, BTreeSet};

use rustix::process::{Signal, pidfd_send_signal};

use super::{
    process::{self, Stat},
    start::open_pidfd,
};

/// The worker's variable that names its run.
const COOKIE: &str = "LANEWARDEN_RUN";

/// One process, named so that no other can be meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member {
    pub(super) pid: u32,
    pub(super) start_ticks: u64,
}

/// Every process of the box at one moment.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    own: u32,
    processes: BTreeMap<u32, Stat>,
    children: BTreeMap<u32, Vec<u32>>,
}

/// What is known of a run's tree.
#[derive(Debug)]
pub(super) struct Known<'a> {
    pub(super) run: &'a str,
    /// The worker itself.
    pub(super) leader: Member,
    /// Who is in its cgroup.
    pub(super) in_group: BTreeSet<u32>,
    /// Who was seen in the tree before.
    pub(super) recorded: &'a BTreeSet<Member>,
    /// Workers of other runs whose tree may live.
    pub(super) others: BTreeSet<Member>,
}

impl Snapshot {
    /// Looks at every process.
    pub(super) fn take() -> Self {
        Self::of(std::process::id(), process::all())
    }

    fn of(own: u32, list: Vec<(u32, Stat)>) -> Self {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (pid, stat) in &list {
            children.entry(stat.ppid).or_default().push(*pid);
        }
        Self { own, processes: list.into_iter().collect(), children }
    }

    /// The living processes of the run.
    pub(super) fn members(&self, known: &Known<'_>) -> BTreeSet<Member> {
        let adopted = self.children.get(&self.own).into_iter().flatten();
        let descended = self.below(self.own, &BTreeSet::new());
        let mut roots: Vec<u32> =
            adopted.copied().filter(|&pid| self.is_ours(pid, known)).collect();
        roots.extend(known.in_group.iter().copied());
        // Who was taken out of our descent by another subreaper of the tree is still below it.
        roots.extend(descended.iter().copied().filter(|&pid| self.is_marked(pid, known)));

        // A worker that is dead may have left its pid to somebody else: compare both halves.
        let stop: BTreeSet<u32> = known
            .others
            .iter()
            .filter(|other| self.is_exactly(other))
            .map(|other| other.pid)
            .collect();
        let mut found = BTreeSet::new();
        for root in roots {
            found.insert(root);
            found.extend(self.below(root, &stop));
        }
        found
            .into_iter()
            // Never ourselves, never init, wherever somebody may have put us.
            .filter(|&pid| pid != self.own && pid > 1 && !stop.contains(&pid))
            .filter_map(|pid| Some((pid, self.processes.get(&pid)?)))
            .filter(|(_, stat)| !stat.is_dead())
            .map(|(pid, stat)| Member { pid, start_ticks: stat.start_ticks })
            .collect()
    }

    /// Whether a child of the keeper is of this run.
    fn is_ours(&self, pid: u32, known: &Known<'_>) -> bool {
        let Some(stat) = self.processes.get(&pid) else { return false };
        let member = Member { pid, start_ticks: stat.start_ticks };
        if member == known.leader || self.is_marked(pid, known) {
            return true;
        }
        if known.others.contains(&member) || stat.start_ticks < known.leader.start_ticks {
            return false;
        }
        if process::has_environment(pid, COOKIE, known.run) {
            return true;
        }
        // No other run that may still have processes was there when this one was born.
        !known.others.iter().any(|other| other.start_ticks <= stat.start_ticks)
    }

    fn is_exactly(&self, member: &Member) -> bool {
        self.processes.get(&member.pid).is_some_and(|stat| stat.start_ticks == member.start_ticks)
    }

    fn is_marked(&self, pid: u32, known: &Known<'_>) -> bool {
        let Some(stat) = self.processes.get(&pid) else { return false };
        let member = Member { pid, start_ticks: stat.start_ticks };
        // A session ends with its last member, and its number may be used anew: then another process has that pid.
        let session_is_ours =
            !self.processes.contains_key(&known.leader.pid) || self.is_exactly(&known.leader);
        let in_session = session_is_ours
            && stat.session == known.leader.pid
            && stat.start_ticks >= known.leader.start_ticks;
        !known.others.contains(&member) && (in_session || known.recorded.contains(&member))
    }

    /// Everybody below, except for these and whoever is below them.
    fn below(&self, root: u32, stop: &BTreeSet<u32>) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        let mut open = vec![root];
        while let Some(pid) = open.pop() {
            for &child in self.children.get(&pid).into_iter().flatten() {
                if !stop.contains(&child) && found.insert(child) {
                    open.push(child);
                }
            }
        }
        found
    }
}

/// Signals exactly this process; `false` if it is gone.
///
/// The pidfd is opened first and the start time compared then: a pid that was reused in between is not hit.
pub(super) fn signal(member: Member, signal: Signal) -> bool {
    let Some(pidfd) = open_pidfd(member.pid) else { return false };
    let same = process::stat(member.pid).is_ok_and(|stat| stat.start_ticks == member.start_ticks);
    same && pidfd_send_signal(pidfd, signal).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEPER: u32 = 1_000_000;

    fn process(pid: u32, ppid: u32, session: u32, start_ticks: u64) -> (u32, Stat) {
        (pid, Stat { state: b'S', ppid, session, threads: 1, start_ticks })
    }

    fn members(list: Vec<(u32, Stat)>, known: &Known<'_>) -> Vec<u32> {
        Snapshot::of(KEEPER, list).members(known).iter().map(|member| member.pid).collect()
    }

    fn known<'a>(recorded: &'a BTreeSet<Member>, others: &[(u32, u64)]) -> Known<'a> {
        Known {
            run: "r",
            leader: Member { pid: 2_000_010, start_ticks: 100 },
            in_group: BTreeSet::new(),
            recorded,
            others: others.iter().map(|&(pid, start_ticks)| Member { pid, start_ticks }).collect(),
        }
    }

    #[test]
    fn descent_and_session_are_followed_and_other_runs_are_not() {
        let none = BTreeSet::new();
        let list = vec![
            process(2_000_010, KEEPER, 2_000_010, 100),
            process(2_000_011, 2_000_010, 2_000_011, 101),
            process(2_000_012, KEEPER, 2_000_010, 102),
            process(2_000_020, KEEPER, 2_000_020, 90),
            process(2_000_021, 2_000_020, 2_000_020, 120),
            process(2_000_030, 1, 2_000_010, 130),
        ];
        let known = known(&none, &[(2_000_020, 90)]);
        assert_eq!(members(list, &known), [2_000_010, 2_000_011, 2_000_012]);
    }

    #[test]
    fn an_orphan_without_a_mark_is_taken_only_if_nobody_else_could_have_it() {
        let none = BTreeSet::new();
        let orphan = || vec![process(2_000_040, KEEPER, 2_000_040, 150)];
        assert_eq!(members(orphan(), &known(&none, &[])), [2_000_040]);
        assert_eq!(
            members(orphan(), &known(&none, &[(2_000_050, 200)])),
            [2_000_040],
            "born later"
        );
        assert!(members(orphan(), &known(&none, &[(2_000_050, 120)])).is_empty(), "cannot tell");
        let seen = BTreeSet::from([Member { pid: 2_000_040, start_ticks: 150 }]);
        assert_eq!(members(orphan(), &known(&seen, &[(2_000_050, 120)])), [2_000_040]);
        let reused = BTreeSet::from([Member { pid: 2_000_040, start_ticks: 149 }]);
        assert!(members(orphan(), &known(&reused, &[(2_000_050, 120)])).is_empty());
    }

    #[test]
    fn a_zombie_is_not_a_member_but_its_children_are() {
        let none = BTreeSet::new();
        let (pid, mut stat) = process(2_000_010, KEEPER, 2_000_010, 100);
        stat.state = b'Z';
        let list = vec![(pid, stat), process(2_000_011, 2_000_010, 5, 101)];
        assert_eq!(members(list, &known(&none, &[])), [2_000_011]);
    }
}
