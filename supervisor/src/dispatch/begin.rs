//! The first event: adopt what lives, judge what ended, and go on where the last daemon left off.

use lanewarden_notify::Notice;
use lanewarden_probes::liveness::Judged;

use super::{Dispatcher, turn::Turn};
use crate::{
    clock::Now,
    config::Mode,
    decide::{exit::StopCause, marker::MarkerReading, restart::History},
    effect::{Effect, Telling},
    event::Beginning,
    ids::LaneId,
    keeper::protocol::Started,
    lane::{Lane, Run, Spent, Step},
    observe::Observation,
    store::rows::{LaneRow, OpenRun},
    verdict::LaneState,
};

impl Dispatcher {
    pub(super) fn on_began(&mut self, mut beginning: Beginning, now: Now, turn: &mut Turn) {
        self.began = true;
        for row in std::mem::take(&mut beginning.lanes) {
            self.remember(row, beginning.same_boot);
        }
        for (id, last) in std::mem::take(&mut beginning.last) {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.last = Some(last);
            }
        }
        self.inherit_kills(&mut beginning, now, turn);
        let (living, ended) = (beginning.living.len(), beginning.ended.len());
        for run in beginning.recorded {
            turn.then(Effect::Forget(run));
        }
        for started in beginning.living {
            self.adopt(started, true, now, turn);
        }
        for end in beginning.ended {
            let started = end.ended.started.clone();
            match self.lanes.get(&started.lane).map(|lane| lane.run.is_some()) {
                // Its lane has moved on: it never costs a living worker its place.
                Some(true) => {
                    let run = run_of(&started, true, now);
                    self.bury(&started.lane, run, Some(&end), now, turn);
                }
                Some(false) => {
                    self.set_run(&started, true, now);
                    self.on_ended(end, now, turn);
                }
                None => self.on_ended(end, now, turn),
            }
        }
        let mut lost = Vec::new();
        for (open, judged) in beginning.open {
            self.settle(&open, judged.as_ref(), now, turn, &mut lost);
        }
        let count = lost.len();
        if !lost.is_empty() {
            turn.tell(Telling {
                id: format!("back-{}", now.unix_ms),
                notice: Notice::BackWithLanesLost {
                    lanes: lost,
                    adopted: u32::try_from(living).unwrap_or(u32::MAX),
                },
            });
        }
        turn.observe(Observation::Adopted { living, ended, lost: count });
        self.books.inherited.clear();
        self.write_position(turn);
        self.first_starts(now, turn);
    }

    fn remember(&mut self, row: LaneRow, same_boot: bool) {
        let Some(lane) = self.lanes.get_mut(&row.lane) else { return };
        lane.down = row.down;
        lane.again = row.again;
        lane.issue = row.issue;
        lane.judged = row.last;
        lane.spent = Spent { runs: row.runs, issues: row.issues, since_ms: row.counting_since_ms };
        if same_boot {
            // Moments of another boot's clock mean nothing here.
            lane.history = History { failures: row.failures_boot_ms, streak: row.streak };
            lane.next_start = row.next_start_boot_ms;
        }
        let stays = match row.state {
            LaneState::Parked | LaneState::Tripped | LaneState::Exhausted => true,
            LaneState::Cooling => lane.next_start.is_some(),
            LaneState::Starting
            | LaneState::Running
            | LaneState::Stopping
            | LaneState::Held
            | LaneState::Stopped
            | LaneState::Occupied
            | LaneState::Observed
            | LaneState::Vacant => false,
        };
        if stays && lane.config.mode == Mode::Manage {
            lane.state = row.state;
            lane.reason = row.reason;
            lane.since_ms = row.since_ms;
        }
    }

    fn set_run(&mut self, started: &Started, kept: bool, now: Now) {
        let Some(lane) = self.lanes.get_mut(&started.lane) else { return };
        let mut run = run_of(started, kept, now);
        self.books.bequeath(&mut run);
        lane.run = Some(run);
        lane.next_start = None;
        // Not a transition: this is where the last daemon left it.
        lane.state = living(lane.config.mode);
        lane.reason = None;
    }

    /// Takes over a living worker. It is never started again, signalled or judged on the way.
    pub(super) fn adopt(&mut self, started: Started, kept: bool, now: Now, turn: &mut Turn) {
        let id = started.lane.clone();
        if self.lanes.get(&id).is_none_or(|lane| lane.run.is_some()) {
            return turn.stranger(&started);
        }
        self.set_run(&started, kept, now);
        let state = self.lanes.get(&id).map_or(LaneState::Running, |lane| living(lane.config.mode));
        if kept {
            // The last daemon may have died between asking for it and being told.
            self.write_started(&started, turn);
        }
        turn.then(Effect::Watch {
            run: started.run,
            pid: started.pid,
            start_ticks: started.start_ticks,
        });
        self.move_to(&id, state, None, now, turn);
        // The last daemon died over an order that stands: it is carried out by us.
        match self.lanes.get(&id) {
            Some(lane) if lane.down => self.order_end(&id, StopCause::Order, now, turn),
            Some(lane) if lane.again => self.order_end(&id, StopCause::Restart, now, turn),
            Some(_) | None => {}
        }
    }

    /// A run that the store believes to be under way and of which no keeper knows.
    fn settle(
        &mut self,
        open: &OpenRun,
        judged: Option<&Judged>,
        now: Now,
        turn: &mut Turn,
        lost: &mut Vec<(String, String)>,
    ) {
        let id = open.lane.clone();
        let known = self.lanes.get(&id).is_none_or(|lane| {
            lane.run.as_ref().is_some_and(|run| run.id == open.run)
                || lane.last.as_ref().is_some_and(|last| last.run == open.run.as_str())
        });
        if known {
            return;
        }
        let alive = judged.is_some_and(|judged| !judged.verdict.is_dead());
        let started = Started {
            run: open.run.clone(),
            lane: id.clone(),
            pid: open.worker.as_ref().map_or(0, |worker| worker.pid),
            start_ticks: open.worker.as_ref().map_or(0, |worker| worker.start_ticks),
            started_at_ms: open.started_at_ms,
            cgroup: open.worker.as_ref().and_then(|worker| worker.cgroup.clone()),
            degraded: vec!["its keeper is gone: its exit status may stay unknown".to_owned()],
        };
        let Some(lane) = self.lanes.get(&id) else { return };
        if lane.run.is_some() {
            // Another run has the lane by now. What ended is recorded; what may live is left alone.
            if alive {
                turn.stranger(&started);
            } else {
                self.bury(&id, run_of(&started, false, now), None, now, turn);
            }
            return;
        }
        // These start nothing by themselves, and whoever orders a start asks first who is in the lane.
        let waits =
            matches!(lane.state, LaneState::Parked | LaneState::Tripped | LaneState::Exhausted);
        match judged {
            // Alive by identity: ours, without a parent. It is watched by pidfd.
            Some(judged) if alive && !judged.verdict.is_unknown() => {
                self.adopt(started, false, now, turn);
            }
            // Cannot tell: nothing is started beside it.
            Some(_) if alive && waits => {}
            // Whoever is in an observed lane is found by looking.
            Some(_) if alive && lane.config.mode == Mode::Observe => {}
            Some(judged) if alive => {
                let why = format!("its last worker (pid {}): {}", started.pid, judged.reason);
                self.occupied(&id, why, now, turn);
            }
            Some(_) | None => {
                let verdict = judged.map_or("never confirmed", |judged| judged.verdict.as_str());
                lost.push((id.to_string(), verdict.to_owned()));
                self.set_run(&started, false, now);
                self.finish_unknown(&id, None, &MarkerReading::Absent, now, turn);
            }
        }
    }

    /// Every managed lane that is free and wanted is due now, or when it was.
    fn first_starts(&mut self, now: Now, turn: &mut Turn) {
        let ids: Vec<LaneId> = self.lanes.keys().cloned().collect();
        for id in ids {
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            let free = lane.run.is_none() && lane.step == Step::Idle;
            if !free {
                continue;
            }
            if lane.config.mode == Mode::Observe {
                lane.next_start = Some(now.boot_ms);
                self.move_to(&id, LaneState::Vacant, None, now, turn);
                continue;
            }
            match lane.state {
                LaneState::Stopped if lane.down => {
                    self.move_to(
                        &id,
                        LaneState::Stopped,
                        Some("stopped on order".to_owned()),
                        now,
                        turn,
                    );
                }
                LaneState::Stopped => {
                    lane.next_start.get_or_insert(now.boot_ms);
                }
                LaneState::Parked
                | LaneState::Tripped
                | LaneState::Exhausted
                | LaneState::Cooling => {
                    let (state, reason) = (lane.state, lane.reason.clone());
                    self.move_to(&id, state, reason, now, turn);
                }
                LaneState::Starting
                | LaneState::Running
                | LaneState::Stopping
                | LaneState::Held
                | LaneState::Occupied
                | LaneState::Observed
                | LaneState::Vacant => {}
            }
        }
    }
}

/// The state of a lane whose worker lives.
const fn living(mode: Mode) -> LaneState {
    match mode {
        Mode::Manage => LaneState::Running,
        Mode::Observe => LaneState::Observed,
    }
}

/// The run of a worker that was started before us.
fn run_of(started: &Started, kept: bool, now: Now) -> Run {
    let lived = u64::try_from(now.unix_ms.saturating_sub(started.started_at_ms)).unwrap_or(0);
    let began = Now { boot_ms: now.boot_ms.saturating_sub(lived), unix_ms: started.started_at_ms };
    Run { started: Some(started.clone()), kept, ..Lane::begun(started.run.clone(), began) }
}
