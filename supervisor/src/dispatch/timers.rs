//! What is due: starts, deadlines, the rungs of a stop, and the end of waiting for evidence.

use super::{Dispatcher, turn::Turn};
use crate::{
    clock::Now,
    config::Mode,
    decide::{
        exit::StopCause,
        shutdown::{Rung, Stopping, rung},
    },
    effect::{Effect, Post},
    ids::LaneId,
    keeper::protocol::StopSignal,
    lane::{Lane, Run, Step},
    observe::Observation,
    verdict::LaneState,
};

impl Dispatcher {
    /// Does everything that is due at `now`.
    pub(super) fn on_time(&mut self, now: Now, turn: &mut Turn) {
        let ids: Vec<LaneId> = self.lanes.keys().cloned().collect();
        for id in ids {
            self.on_time_of(&id, now, turn);
        }
        self.patrol(now, turn);
        self.sample(now, turn);
    }

    fn on_time_of(&mut self, id: &LaneId, now: Now, turn: &mut Turn) {
        let (may_start, may_look) = (self.may_start(), self.may_look());
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let orphan_due =
            lane.run.as_ref().is_some_and(|run| run.judge_at.is_some_and(|at| at <= now.boot_ms));
        if orphan_due {
            return self.finish_orphan(id, now, turn);
        }
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let evidence_due =
            lane.run.as_mut().and_then(|run| run.ended.take_if(|(_, until)| *until <= now.boot_ms));
        if let Some((ended, _)) = evidence_due {
            self.finish_kept(id, &ended, now, turn);
        }
        let Some(lane) = self.lanes.get(id) else { return };
        if matches!(lane.step, Step::Claiming(until) if until <= now.boot_ms) {
            return self.spawn(id, now, turn);
        }
        let due = lane.next_start.is_some_and(|at| at <= now.boot_ms);
        let free = lane.step == Step::Idle && lane.run.is_none();
        match lane.config.mode {
            Mode::Observe if due && free && may_look => return self.look(id, turn),
            Mode::Manage if due && free && may_start => return self.begin_start(id, now, turn),
            Mode::Observe | Mode::Manage => {}
        }
        if lane.deadline().is_some_and(|at| at <= now.boot_ms) {
            self.order_end(id, StopCause::Deadline, now, turn);
        }
        self.climb(id, now, turn);
    }

    fn may_start(&self) -> bool {
        self.began && self.keeper_up && self.ending.termination.is_none() && !self.ending.draining
    }

    /// Orders a worker's end: TERM now, KILL after the grace. A second order changes nothing but the cause of a restart.
    pub(super) fn order_end(&mut self, id: &LaneId, cause: StopCause, now: Now, turn: &mut Turn) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        if lane.config.mode == Mode::Observe {
            // Somebody else's worker is never signalled.
            return;
        }
        let Some(run) = lane.run.as_mut().filter(|run| run.ended.is_none()) else { return };
        if let Some(stopping) = run.stopping.as_mut() {
            if (stopping.cause, cause) == (StopCause::Restart, StopCause::Order) {
                stopping.cause = cause;
            }
            return;
        }
        run.stopping = Some(Stopping { cause, term_at: now.boot_ms, kill_at: None });
        if run.started.is_none() {
            return;
        }
        let signal = signal(run, StopSignal::Term);
        turn.then(signal);
        turn.observe(Observation::Signalled { lane: id.clone(), how: StopSignal::Term });
        let why = match cause {
            StopCause::Deadline => "its deadline passed",
            StopCause::Order => "ordered to stop",
            StopCause::Restart => "ordered to restart",
        };
        self.move_to(id, LaneState::Stopping, Some(why.to_owned()), now, turn);
    }

    /// The next rung of a stop, if it is due.
    fn climb(&mut self, id: &LaneId, now: Now, turn: &mut Turn) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let grace = lane.config.stop_grace;
        let Some(run) = lane.run.as_mut().filter(|run| run.started.is_some()) else { return };
        if run.ended.is_some() {
            return;
        }
        let Some(stopping) = run.stopping.as_mut() else { return };
        if rung(*stopping, grace, now.boot_ms) == Rung::Kill {
            stopping.kill_at = Some(now.boot_ms);
            let signal = signal(run, StopSignal::Kill);
            turn.then(signal);
            turn.observe(Observation::Signalled { lane: id.clone(), how: StopSignal::Kill });
        }
    }

    /// The next moment at which something is due.
    pub(super) fn next_moment(&self, now: Now) -> Option<u64> {
        // Patrols are in no hurry: the loop's own pulse is often enough for them.
        self.lanes.values().filter_map(|lane| self.next_of(lane, now)).min()
    }

    fn next_of(&self, lane: &Lane, now: Now) -> Option<u64> {
        let claiming = match lane.step {
            Step::Claiming(until) => Some(until),
            Step::Idle | Step::Preparing | Step::Spawning => None,
        };
        let may = match lane.config.mode {
            Mode::Manage => self.may_start(),
            Mode::Observe => self.may_look(),
        };
        let start =
            lane.next_start.filter(|_| lane.step == Step::Idle && lane.run.is_none() && may);
        let run = lane.run.as_ref();
        let orphan = run.and_then(|run| run.judge_at);
        let evidence = run.and_then(|run| run.ended.as_ref()).map(|(_, until)| *until);
        let stopping = run
            .filter(|run| run.started.is_some() && run.ended.is_none())
            .and_then(|run| run.stopping)
            .map(|stopping| match rung(stopping, lane.config.stop_grace, now.boot_ms) {
                Rung::Wait(until) => until,
                Rung::Kill => now.boot_ms,
            });
        let deadline = lane
            .deadline()
            .filter(|_| run.is_some_and(|run| run.stopping.is_none() && run.ended.is_none()));
        [claiming, start, evidence, orphan, stopping, deadline].into_iter().flatten().min()
    }
}

/// The deed that signals a run's tree.
pub(super) fn signal(run: &Run, how: StopSignal) -> Effect {
    let stray = run.started.as_ref().filter(|_| !run.kept).map(Post::from);
    Effect::Signal { run: run.id.clone(), how, stray }
}
