//! The table of runs: living, being swept, ended. A run stays until it is forgotten on order.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    time::Duration,
};

use rustix::process::{Signal, pidfd_send_signal};

use super::{
    clock,
    group::Group,
    process,
    protocol::{Ended, MAX_LINE, Started, StopSignal, encode},
    reap::{Dead, Harvest},
    start::Worker,
    tree::{Known, Member, Snapshot, signal},
};
use crate::ids::RunId;

/// The most bytes of the list of all runs at which one more is taken. The list is one line, and half a line is left for
/// what the endings add. A warden that gets here forgets nothing, so it has lost its store.
const MOST_LISTED: usize = MAX_LINE / 2;

/// The most orders that are remembered for one run; a warden that repeats itself does not fill the table.
const MOST_SIGNALS: usize = 32;

/// Between two looks while a tree is ended.
const AGAIN: Duration = Duration::from_millis(20);
/// The same, for a worker that SIGKILL did not end within [`PATIENCE`].
const AGAIN_STUCK: Duration = Duration::from_millis(500);
/// How long a tree is ended before its rest is reported as survivors.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks at trees that no cgroup holds together.
const RECORD: Duration = Duration::from_secs(5);
/// Between two tries to remove the cgroup of a forgotten run.
const REMOVE: Duration = Duration::from_secs(1);
/// How many looks must agree that nothing is left.
const AGREED: u8 = 2;

#[derive(Debug)]
struct Run {
    started: Started,
    pidfd: Option<OwnedFd>,
    group: Group,
    oom_before: Option<u64>,
    our_signals: Vec<(StopSignal, i64)>,
    recorded: BTreeSet<Member>,
    leftovers: BTreeSet<Member>,
    exit: Option<Dead>,
    sweep: Option<Sweep>,
    ended: Option<Ended>,
}

/// A tree that is being ended.
#[derive(Debug)]
struct Sweep {
    since: Duration,
    next: Duration,
    quiet: u8,
    /// Whether what is found are leftovers of a worker that ended by itself.
    leftovers: bool,
}

/// Every run that is not forgotten.
#[derive(Debug, Default)]
pub(super) struct Runs {
    table: BTreeMap<RunId, Run>,
    /// Cgroups of forgotten runs that were still in use.
    busy: Vec<Group>,
    next_remove: Duration,
    next_record: Duration,
}

/// The answer to a signal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SignalOutcome {
    /// So many were signalled.
    Sent(u32),
    /// Nothing is known of this run.
    UnknownRun,
}

/// The answer to an order to forget.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ForgetOutcome {
    /// It is forgotten.
    Forgotten,
    /// It was never known, or was forgotten before.
    Unknown,
    /// It has not ended.
    Lives,
}

impl Runs {
    /// Why no worker may be started for this run and lane now.
    pub(super) fn objection(&self, run: &RunId, lane: &crate::ids::LaneId) -> Option<String> {
        if self.table.contains_key(run) {
            return Some(format!("the run {run} was started already: a nonce names one run"));
        }
        if let Some(other) =
            self.table.values().find(|other| other.started.lane == *lane && other.ended.is_none())
        {
            return Some(format!(
                "the lane {lane} has a worker, pid {}: stop it first",
                other.started.pid
            ));
        }
        (encode(&self.list()).len() > MOST_LISTED).then(|| {
            let count = self.table.len();
            format!("{count} runs are not forgotten: record and forget their endings")
        })
    }

    /// Takes a worker that was started.
    pub(super) fn insert(&mut self, worker: Worker) {
        let run = Run {
            pidfd: worker.pidfd,
            group: worker.group,
            oom_before: worker.oom_kills,
            our_signals: Vec::new(),
            recorded: BTreeSet::new(),
            leftovers: BTreeSet::new(),
            exit: None,
            sweep: None,
            ended: None,
            started: worker.started,
        };
        self.table.insert(run.started.run.clone(), run);
    }

    /// Every run: those that live, and those that ended.
    pub(super) fn list(&self) -> (Vec<Started>, Vec<Ended>) {
        let living = self.table.values().filter(|run| run.ended.is_none());
        (
            living.map(|run| run.started.clone()).collect(),
            self.table.values().filter_map(|run| run.ended.clone()).collect(),
        )
    }

    /// Whether a worker lives.
    pub(super) fn any_living(&self) -> bool {
        self.table.values().any(|run| run.ended.is_none())
    }

    /// Signals a run's tree. The intent is written down first.
    pub(super) fn signal(&mut self, id: &RunId, how: StopSignal) -> SignalOutcome {
        let Some(run) = self.table.get_mut(id) else { return SignalOutcome::UnknownRun };
        if run.ended.is_some() {
            return SignalOutcome::Sent(0);
        }
        run.intend(how);
        let snapshot = Snapshot::take();
        let members = self.look(id, &snapshot);
        let Some(run) = self.table.get_mut(id) else { return SignalOutcome::UnknownRun };
        let sent = match how {
            StopSignal::Term => run.send(&members, Signal::TERM),
            StopSignal::Kill => {
                let now = clock::monotonic();
                run.sweep =
                    Some(Sweep { since: now, next: now + AGAIN, quiet: 0, leftovers: false });
                let by_group = run.group.kill();
                let sent = run.send(&members, Signal::KILL);
                // Who was in the group is dead already, and its pidfd says so or not: they were all signalled.
                if by_group { u32::try_from(members.len()).unwrap_or(u32::MAX) } else { sent }
            }
        };
        SignalOutcome::Sent(sent)
    }

    /// Forgets an ended run and removes its cgroup.
    pub(super) fn forget(&mut self, id: &RunId) -> ForgetOutcome {
        match self.table.get(id) {
            None => return ForgetOutcome::Unknown,
            Some(run) if run.ended.is_none() => return ForgetOutcome::Lives,
            Some(_) => {}
        }
        if let Some(run) = self.table.remove(id)
            && !run.group.remove()
        {
            self.busy.push(run.group);
        }
        ForgetOutcome::Forgotten
    }

    /// Takes what was reaped, and goes on with what is under way. Returns the runs that ended.
    pub(super) fn turn(&mut self, harvest: &Harvest) -> Vec<Ended> {
        let now = clock::monotonic();
        let mut snapshot = None;
        let mut ended = Vec::new();
        for dead in &harvest.dead {
            if let Some(id) = self.leader(dead.pid) {
                self.leader_ended(&id, *dead, harvest.childless, &mut snapshot);
            }
        }
        let due: Vec<RunId> = self
            .table
            .iter()
            .filter(|(_, run)| run.ended.is_none())
            .filter(|(_, run)| match &run.sweep {
                Some(sweep) => sweep.next <= now,
                None => run.exit.is_some(),
            })
            .map(|(id, _)| id.clone())
            .collect();
        for id in due {
            ended.extend(self.step(&id, now, &mut snapshot));
        }
        if now >= self.next_remove {
            self.next_remove = now + REMOVE;
            self.busy.retain(|group| !group.remove());
        }
        if now >= self.next_record {
            self.next_record = now + RECORD;
            self.record(&mut snapshot);
        }
        ended
    }

    /// How long nothing need be done.
    pub(super) fn pause(&self) -> Option<Duration> {
        let now = clock::monotonic();
        let sweeps = self
            .table
            .values()
            .filter(|run| run.ended.is_none())
            .filter_map(|run| run.sweep.as_ref().map(|sweep| sweep.next));
        let remove = (!self.busy.is_empty()).then_some(self.next_remove);
        let record = self.table.values().any(Run::is_loose).then_some(self.next_record);
        sweeps.chain(remove).chain(record).min().map(|next| next.saturating_sub(now))
    }

    fn leader(&self, pid: u32) -> Option<RunId> {
        // A pid is free for reuse once it was reaped: only a run whose worker was not can mean this one.
        let run = self.table.values().find(|run| run.exit.is_none() && run.started.pid == pid)?;
        Some(run.started.run.clone())
    }

    /// The worker itself is dead: is anything of its tree left?
    fn leader_ended(
        &mut self,
        id: &RunId,
        dead: Dead,
        childless: bool,
        snapshot: &mut Option<Snapshot>,
    ) {
        let Some(run) = self.table.get_mut(id) else { return };
        run.exit = Some(dead);
        run.pidfd = None;
        if run.sweep.is_some() || childless {
            return;
        }
        if self.looks_empty(id) {
            return;
        }
        let members = self.look(id, snapshot.get_or_insert_with(Snapshot::take));
        if members.is_empty() {
            return;
        }
        if let Some(run) = self.table.get_mut(id) {
            let now = clock::monotonic();
            run.sweep = Some(Sweep { since: now, next: now, quiet: 0, leftovers: true });
        }
    }

    /// The quick answer for the common case, without a look at every process of the box.
    fn looks_empty(&self, id: &RunId) -> bool {
        let Some(run) = self.table.get(id) else { return true };
        let alive = |pid: &u32| process::stat(*pid).is_ok_and(|stat| !stat.is_dead());
        if run.group.pids().iter().any(alive) {
            return false;
        }
        let leaders: BTreeSet<u32> = self
            .table
            .values()
            .filter(|run| run.exit.is_none())
            .map(|run| run.started.pid)
            .collect();
        match process::own_children() {
            Some(children) => {
                children.iter().filter(|pid| !leaders.contains(pid)).all(|pid| !alive(pid))
            }
            // The group is proof enough; without one there is no quick answer.
            None => run.group.holds_the_tree(),
        }
    }

    /// One step towards the end of a run whose worker is dead or being killed.
    fn step(
        &mut self,
        id: &RunId,
        now: Duration,
        snapshot: &mut Option<Snapshot>,
    ) -> Option<Ended> {
        if self.table.get(id)?.sweep.is_none() {
            return self.table.get_mut(id)?.finish(Vec::new());
        }
        let members = self.look(id, snapshot.get_or_insert_with(Snapshot::take));
        let run = self.table.get_mut(id)?;
        let sweep = run.sweep.as_mut()?;
        sweep.quiet = if members.is_empty() { sweep.quiet.saturating_add(1) } else { 0 };
        let stuck = now.saturating_sub(sweep.since) >= PATIENCE;
        sweep.next = now + if stuck { AGAIN_STUCK } else { AGAIN };
        let (agreed, leftovers) = (sweep.quiet >= AGREED, sweep.leftovers);
        if leftovers {
            run.leftovers.extend(members.iter().copied());
        }
        if run.exit.is_some() && (agreed || stuck) {
            return run.finish(members.iter().map(|member| member.pid).collect());
        }
        if agreed {
            // Only the worker's own status is missing.
            return None;
        }
        run.group.kill();
        run.send(&members, Signal::KILL);
        None
    }

    /// The living processes of a run; they are remembered.
    fn look(&mut self, id: &RunId, snapshot: &Snapshot) -> BTreeSet<Member> {
        let Some(run) = self.table.get(id) else { return BTreeSet::new() };
        let members = snapshot.members(&Known {
            run: id.as_str(),
            leader: run.leader(),
            in_group: run.group.pids().into_iter().collect(),
            recorded: &run.recorded,
            others: self
                .table
                .values()
                .filter(|other| other.started.run != *id && other.may_have_processes())
                .map(Run::leader)
                .collect(),
        });
        if let Some(run) = self.table.get_mut(id) {
            // The dead need no memory.
            run.recorded = members.clone();
        }
        members
    }

    /// Remembers who is in trees that no cgroup holds together: later they may have lost every mark.
    fn record(&mut self, snapshot: &mut Option<Snapshot>) {
        let loose: Vec<RunId> =
            self.table.iter().filter(|(_, run)| run.is_loose()).map(|(id, _)| id.clone()).collect();
        for id in loose {
            self.look(&id, snapshot.get_or_insert_with(Snapshot::take));
        }
    }
}

impl Run {
    fn leader(&self) -> Member {
        Member { pid: self.started.pid, start_ticks: self.started.start_ticks }
    }

    /// Writes an order down. The first ones and the newest are kept, since they explain an ending.
    fn intend(&mut self, how: StopSignal) {
        if self.our_signals.len() >= MOST_SIGNALS {
            self.our_signals.remove(MOST_SIGNALS / 2);
        }
        self.our_signals.push((how, clock::epoch_ms()));
    }

    /// Whether something of it may live. A run that ended empty can have no late child.
    fn may_have_processes(&self) -> bool {
        self.ended.as_ref().is_none_or(|ended| !ended.survivors.is_empty())
    }

    fn is_loose(&self) -> bool {
        self.exit.is_none() && !self.group.holds_the_tree()
    }

    /// Signals them, the worker itself first.
    fn send(&self, members: &BTreeSet<Member>, how: Signal) -> u32 {
        let leader = self.leader();
        let mut sent = 0;
        if members.contains(&leader) {
            let done = match &self.pidfd {
                Some(pidfd) => pidfd_send_signal(pidfd, how).is_ok(),
                None => signal(leader, how),
            };
            sent += u32::from(done);
        }
        for &member in members.iter().filter(|member| **member != leader) {
            sent += u32::from(signal(member, how));
        }
        sent
    }

    /// Reads the counters, while the cgroup is there, and closes the record.
    fn finish(&mut self, survivors: Vec<u32>) -> Option<Ended> {
        let exit = self.exit?;
        self.sweep = None;
        let ended = Ended {
            started: self.started.clone(),
            wait_status: exit.wait_status,
            usage: exit.usage,
            ended_at_ms: exit.at_ms,
            our_signals: self.our_signals.clone(),
            oom_kills: self.oom_before.zip(self.group.oom_kills()),
            peak_memory_bytes: self.group.peak_memory(),
            leftovers: u32::try_from(self.leftovers.len()).unwrap_or(u32::MAX),
            survivors,
        };
        self.ended = Some(ended.clone());
        Some(ended)
    }
}
