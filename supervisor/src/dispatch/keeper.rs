//! The keeper goes and comes back: what was under way is settled with what it still has.

use super::{Dispatcher, timers, turn::Turn};
use crate::{
    clock::Now,
    decide::{exit::StopCause, marker::MarkerReading},
    event::EndedRun,
    ids::LaneId,
    keeper::protocol::{Started, StopSignal},
    lane::Step,
    observe::Observation,
    verdict::RunVerdict,
};

impl Dispatcher {
    /// A worker of a run that was given up, because the keeper that was asked for it went away, came up after all: ours,
    /// and better taken back than left alone in the lane.
    pub(super) fn take_late(&mut self, started: Started, now: Now, turn: &mut Turn) {
        let Some(lane) = self.lanes.get_mut(&started.lane) else { return };
        let seen_to_end = lane.last.as_ref().is_some_and(|last| {
            last.run == started.run.as_str() && last.verdict != RunVerdict::Vanished
        });
        if seen_to_end {
            return turn.stranger(&started);
        }
        lane.step = Step::Idle;
        let (id, down) = (started.lane.clone(), lane.down || self.ending.winds_down());
        self.adopt(started, true, now, turn);
        if down {
            self.order_end(&id, StopCause::Order, now, turn);
        }
    }

    pub(super) fn on_keeper_lost(&mut self, turn: &mut Turn) {
        if self.keeper_up {
            turn.observe(Observation::KeeperLost);
        }
        self.keeper_up = false;
    }

    pub(super) fn on_keeper_back(
        &mut self,
        living: &[Started],
        ended: Vec<EndedRun>,
        now: Now,
        turn: &mut Turn,
    ) {
        self.keeper_up = true;
        turn.observe(Observation::KeeperBack);
        for lane in self.lanes.values_mut() {
            let Some(run) = lane.run.as_mut() else { continue };
            run.kept = living.iter().any(|started| started.run == run.id)
                || ended.iter().any(|end| end.ended.started.run == run.id);
        }
        for end in ended {
            self.on_ended(end, now, turn);
        }
        for started in living {
            let spawning = self.lanes.get(&started.lane).is_some_and(|lane| {
                lane.step == Step::Spawning
                    && lane.run.as_ref().is_some_and(|run| run.id == started.run)
            });
            if spawning {
                self.on_spawned(started.clone(), now, turn);
            }
        }
        // A start that the old keeper never confirmed: whether a worker came of it cannot be told, so the run is given up
        // and the next preparation looks for an occupant.
        let unconfirmed: Vec<LaneId> = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.step == Step::Spawning)
            .filter(|(_, lane)| lane.run.as_ref().is_some_and(|run| !run.kept))
            .map(|(id, _)| id.clone())
            .collect();
        for id in unconfirmed {
            self.finish_unknown(&id, None, &MarkerReading::Absent, now, turn);
        }
        self.take_orphans(now, turn);
    }

    /// Workers whose keeper is gone: a signal that was meant for them went with it, and so did the tale of their end.
    fn take_orphans(&mut self, now: Now, turn: &mut Turn) {
        let mut gone = Vec::new();
        for (id, lane) in &mut self.lanes {
            let Some(run) = lane.run.as_mut().filter(|run| !run.kept && run.ended.is_none()) else {
                continue;
            };
            if let Some((wait_status, marker)) = run.gone.take() {
                gone.push((id.clone(), wait_status, marker));
            } else if run.stopping.is_some_and(|stopping| stopping.kill_at.is_none()) {
                turn.then(timers::signal(run, StopSignal::Term));
            }
        }
        for (id, wait_status, marker) in gone {
            self.finish_unknown(&id, wait_status, &marker, now, turn);
        }
    }
}
