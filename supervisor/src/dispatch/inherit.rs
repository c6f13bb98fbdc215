//! OOM kills that happened while no daemon ran, and those that the last one knew of.

use lanewarden_probes::kmsg::ChannelState;

use super::{Dispatcher, kernel, report::oom_page, turn::Turn};
use crate::{
    clock::Now,
    decide::attribution::{Candidate, LaneKill, Owner, class, owner},
    event::{Beginning, KernelRecord},
    ids::{LaneId, RunId},
    observe::Observation,
};

/// A run that the last daemon left.
struct Left {
    run: RunId,
    lane: LaneId,
    cgroup: Option<String>,
    pid: u32,
    lived: (i64, Option<i64>),
}

impl Dispatcher {
    /// Places what the kernel log holds that nobody has acted on, before any run is judged: each kill is recorded, counted
    /// and told here, once, and given to its run when that is taken over.
    pub(super) fn inherit_kills(&mut self, beginning: &mut Beginning, now: Now, turn: &mut Turn) {
        for past in std::mem::take(&mut beginning.past) {
            let limit =
                self.lanes.get(&past.row.lane).and_then(|lane| lane.config.limits.memory_max);
            self.books.recall(past, limit);
        }
        for known in std::mem::take(&mut beginning.known_kills) {
            self.books.inherited.insert(known.run, (known.named, known.unnamed));
        }
        let missed = match beginning.kernel_log.take() {
            Some(Ok(missed)) => missed,
            Some(Err(state)) => {
                self.books.kernel_log = state;
                return turn.observe(Observation::KernelLogState(state));
            }
            None => return,
        };
        self.books.kernel_log = ChannelState::Open;
        if missed.lost > 0 {
            turn.observe(Observation::KernelLogLost(missed.lost));
        }
        if let Some(position) = missed.position {
            self.books.read_to(position);
        }
        let left = left(beginning, &self.setup.boot_id);
        for record in missed.kills {
            self.inherit(&left, &record, now, turn);
        }
    }

    fn inherit(&mut self, left: &[Left], record: &KernelRecord, now: Now, turn: &mut Turn) {
        let found = {
            let open = left.iter().map(Left::candidate);
            let past = self.books.past.iter().map(super::books::Past::candidate);
            let candidates: Vec<Candidate<'_>> = open.chain(past).collect();
            match owner(&record.kill, record.at_ms, &candidates) {
                Owner::Unplaced if candidates.is_empty() => Owner::Foreign { conflict: None },
                found @ (Owner::Run { .. } | Owner::Foreign { .. } | Owner::Unplaced) => found,
            }
        };
        match found {
            Owner::Run { run, proof, conflict } => {
                let Some(of) = left.iter().find(|of| of.run == run) else {
                    return self.attribute(record, &run, proof, conflict, now, turn);
                };
                let words = kernel::with_conflict(proof.as_str(), conflict.as_deref());
                kernel::put(record, Some((&of.lane, &run)), words, turn);
                kernel::count(record, Some(&of.lane), turn);
                let limit = self.lanes.get(&of.lane).and_then(|lane| lane.config.limits.memory_max);
                let class = class(record.kill.kind);
                turn.tell(oom_page(&of.lane, &run, Some(&record.kill), limit, class));
                let (kill, read_at_ms) = (record.kill.clone(), record.at_ms);
                let kill = LaneKill { kill, read_at_ms, proof, conflict };
                self.books.inherited.entry(run).or_default().0.push(kill);
            }
            Owner::Foreign { conflict } => Self::foreign(record, conflict, turn),
            Owner::Unplaced => self.give_up(record, turn),
        }
    }
}

impl Left {
    fn candidate(&self) -> Candidate<'_> {
        Candidate {
            run: &self.run,
            cgroup: self.cgroup.as_deref(),
            pid: Some(self.pid),
            tasks: &[],
            lived: self.lived,
        }
    }
}

/// The runs to which a kill of this boot may belong.
fn left(beginning: &Beginning, boot_id: &str) -> Vec<Left> {
    let ended = beginning.ended.iter().map(|end| (&end.ended.started, Some(end.ended.ended_at_ms)));
    let living = beginning.living.iter().map(|started| (started, None));
    let kept = living.chain(ended).map(|(started, ended)| Left {
        run: started.run.clone(),
        lane: started.lane.clone(),
        cgroup: started.cgroup.clone(),
        pid: started.pid,
        lived: (started.started_at_ms, ended),
    });
    let open = beginning.open.iter().filter_map(|(open, _)| {
        let worker = open.worker.as_ref().filter(|worker| worker.boot_id == boot_id)?;
        Some(Left {
            run: open.run.clone(),
            lane: open.lane.clone(),
            cgroup: worker.cgroup.clone(),
            pid: worker.pid,
            lived: (open.started_at_ms, None),
        })
    });
    kept.chain(open).collect()
}
