//! Lanes whose worker somebody else starts: found, watched, stamped and reported; never started, signalled or limited.

use std::time::Duration;

use super::{Dispatcher, turn::Turn};
use crate::{
    clock::Now,
    config::Mode,
    effect::Effect,
    event::Looked,
    ids::LaneId,
    keeper::protocol::Started,
    lane::{Lane, Run, Step},
    observe::Observation,
    store::rows::Write,
    verdict::LaneState,
};

/// A vacant lane is looked at this often. An occupied one is not looked at: its pidfd tells.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Dispatcher {
    /// Whether observed lanes are to be looked at.
    pub(super) fn may_look(&self) -> bool {
        self.began && self.ending.termination.is_none()
    }

    /// Asks who is in the lane.
    pub(super) fn look(&mut self, id: &LaneId, turn: &mut Turn) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        lane.next_start = None;
        lane.step = Step::Preparing;
        turn.then(Effect::Look(id.clone()));
    }

    pub(super) fn on_looked(&mut self, id: &LaneId, looked: Looked, now: Now, turn: &mut Turn) {
        let nonce = self.random.run_id();
        let Some(lane) = self
            .lanes
            .get_mut(id)
            .filter(|lane| lane.config.mode == Mode::Observe && lane.step == Step::Preparing)
        else {
            return;
        };
        lane.step = Step::Idle;
        lane.next_start = Some(now.after(LOOK_EVERY));
        lane.cannot_tell = match &looked {
            Looked::CannotTell(_) => true,
            Looked::Young { .. } => lane.cannot_tell,
            Looked::Nobody | Looked::Shell(_) | Looked::Somebody(_) => false,
        };
        let visitor = match looked {
            Looked::Somebody(visitor) => visitor,
            Looked::Nobody => return self.vacant(id, None, now, turn),
            Looked::Shell(shell) => return self.vacant(id, Some(shell), now, turn),
            Looked::Young { left } => {
                lane.next_start = Some(now.after(left));
                let reason = lane.reason.clone().filter(|_| lane.state == LaneState::Vacant);
                return self.vacant(id, reason, now, turn);
            }
            Looked::CannotTell(why) => {
                return self.vacant(
                    id,
                    Some(format!("cannot tell who is there: {why}")),
                    now,
                    turn,
                );
            }
        };
        let started = Started {
            run: nonce.clone(),
            lane: id.clone(),
            pid: visitor.pid,
            start_ticks: visitor.start_ticks,
            started_at_ms: visitor.started_at_ms,
            // The group that it lives in may be shared with anybody: only its own pid proves that a victim was it.
            cgroup: None,
            degraded: Vec::new(),
        };
        lane.next_start = None;
        lane.run = Some(Run {
            started: Some(started.clone()),
            kept: false,
            ..Lane::begun(nonce.clone(), now)
        });
        turn.write(Write::RunStarting { run: nonce.clone(), lane: id.clone(), at_ms: now.unix_ms });
        self.write_started(&started, turn);
        turn.observe(Observation::RunStarted {
            lane: id.clone(),
            run: nonce.clone(),
            pid: visitor.pid,
        });
        turn.then(Effect::Watch { run: nonce, pid: visitor.pid, start_ticks: visitor.start_ticks });
        self.move_to(id, LaneState::Observed, Some(visitor.shown), now, turn);
    }

    /// Nobody is there, as far as can be told. Said once, not at every look.
    pub(super) fn vacant(
        &mut self,
        id: &LaneId,
        reason: Option<String>,
        now: Now,
        turn: &mut Turn,
    ) {
        let same = self
            .lanes
            .get(id)
            .is_some_and(|lane| lane.state == LaneState::Vacant && lane.reason == reason);
        if !same {
            self.move_to(id, LaneState::Vacant, reason, now, turn);
        }
    }
}
