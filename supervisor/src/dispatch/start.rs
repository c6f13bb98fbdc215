//! The way up: take the lane, pass admission, stamp the claim, spawn.

use std::{collections::BTreeMap, time::Duration};

use lanewarden_notify::Notice;

use super::{Dispatcher, turn::Turn};
use crate::{
    clock::Now,
    decide::{admission, claim},
    effect::{ClaimWish, Effect, Telling},
    event::Preparation,
    ids::{LaneId, RunId},
    keeper::protocol::SpawnOrder,
    lane::{Lane, Step},
    observe::Observation,
    store::rows::Write,
    verdict::{LaneState, Verified},
};

/// A lane that admission refuses, or that somebody else holds, is tried again after this long.
pub(super) const RECHECK: Duration = Duration::from_secs(10);

impl Dispatcher {
    /// Begins a start, unless a budget is used up.
    pub(super) fn begin_start(&mut self, id: &LaneId, now: Now, turn: &mut Turn) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        lane.next_start = None;
        if let Some(budget) = used_up(lane, now) {
            let reason = format!(
                "the budget of {budget} is used up; `lanewarden start {id}` begins a new one"
            );
            return self.move_to(id, LaneState::Exhausted, Some(reason), now, turn);
        }
        lane.step = Step::Preparing;
        turn.then(Effect::Prepare(id.clone()));
        // Held and occupied lanes keep showing why until they are admitted.
        let quiet = matches!(lane.state, LaneState::Held | LaneState::Occupied);
        if !quiet {
            self.move_to(id, LaneState::Starting, None, now, turn);
        }
    }

    pub(super) fn on_prepared(
        &mut self,
        id: &LaneId,
        answer: Preparation,
        now: Now,
        turn: &mut Turn,
    ) {
        let Some(lane) = self.lanes.get_mut(id).filter(|lane| lane.step == Step::Preparing) else {
            return;
        };
        lane.step = Step::Idle;
        if lane.down || self.ending.winds_down() {
            turn.then(Effect::Release(id.clone()));
            return self.move_to(
                id,
                LaneState::Stopped,
                lane_down_reason(self.ending.draining),
                now,
                turn,
            );
        }
        let reading = match answer {
            Preparation::Taken { reading, epoch } => {
                lane.epoch = Some(epoch);
                reading
            }
            Preparation::Occupied(by) => return self.occupied(id, by, now, turn),
            Preparation::Unusable(what) => {
                self.move_to(id, LaneState::Starting, None, now, turn);
                self.start_run(id, now, turn);
                return self.finish_not_started(id, &what, now, turn);
            }
        };
        let refusals = admission::admit(&reading, &self.setup.admission);
        if let Some(first) = refusals.first() {
            let again = lane.state == LaneState::Held
                && lane.reason.as_deref().is_some_and(|why| why.starts_with(first.check.as_str()));
            turn.observe(Observation::StartRefused {
                lane: id.clone(),
                check: first.check,
                detail: first.detail.clone(),
                again,
            });
            if !again {
                turn.tell(Telling {
                    // The placeholder stands for a lane id that may be too long or have dots.
                    id: format!("hold-{}-{}-{}", id.placeholder(), first.check, now.unix_ms),
                    notice: Notice::HoldBegan {
                        lane: id.to_string(),
                        check: first.check.to_string(),
                        detail: first.detail.clone(),
                    },
                });
            }
            let all: Vec<String> = refusals
                .iter()
                .map(|refusal| format!("{}: {}", refusal.check, refusal.detail))
                .collect();
            lane.next_start = Some(now.after(RECHECK));
            return self.move_to(id, LaneState::Held, Some(all.join("; ")), now, turn);
        }
        match self.setup.remote_deadline {
            Some(deadline) if lane.claim.is_none() => {
                lane.step = Step::Claiming(now.after(deadline));
                self.move_to(
                    id,
                    LaneState::Starting,
                    Some("stamping its claim".to_owned()),
                    now,
                    turn,
                );
            }
            Some(_) | None => self.spawn(id, now, turn),
        }
    }

    /// Somebody else holds the lane: nothing is started, and it is looked at again later.
    pub(super) fn occupied(&mut self, id: &LaneId, by: String, now: Now, turn: &mut Turn) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        lane.step = Step::Idle;
        lane.next_start = Some(now.after(RECHECK));
        self.move_to(id, LaneState::Occupied, Some(by), now, turn);
    }

    /// Asks the keeper for a worker, if there is one to ask.
    pub(super) fn spawn(&mut self, id: &LaneId, now: Now, turn: &mut Turn) {
        if !self.keeper_up {
            // An order that waits for the next keeper would be carried out when nobody counts on it any more.
            let Some(lane) = self.lanes.get_mut(id) else { return };
            lane.step = Step::Idle;
            lane.next_start = Some(now.boot_ms);
            let why = "the keeper does not answer".to_owned();
            return self.move_to(id, LaneState::Held, Some(why), now, turn);
        }
        let Some(run) = self.start_run(id, now, turn) else { return };
        let Some(lane) = self.lanes.get_mut(id) else { return };
        lane.step = Step::Spawning;
        let order = SpawnOrder {
            argv: lane.config.command.clone(),
            dir: lane.config.dir.clone(),
            env: worker_env(&self.setup, lane, &run),
            log: self.setup.log_path(id, &run),
            marker_dir: self.setup.marker_dir(&run),
            limits: lane.config.limits,
            oom_score_adj: lane.config.oom_score_adj,
            run,
            lane: id.clone(),
        };
        turn.then(Effect::Spawn(Box::new(order)));
        self.move_to(id, LaneState::Starting, None, now, turn);
    }

    /// Begins a run: its nonce is on disk before anybody is asked to start anything.
    fn start_run(&mut self, id: &LaneId, now: Now, turn: &mut Turn) -> Option<RunId> {
        let run = self.random.run_id();
        let lane = self.lanes.get_mut(id)?;
        lane.spent.runs = lane.spent.runs.saturating_add(1);
        lane.next_start = None;
        lane.again = false;
        lane.run = Some(Lane::begun(run.clone(), now));
        turn.write(Write::RunStarting { run: run.clone(), lane: id.clone(), at_ms: now.unix_ms });
        Some(run)
    }
}

pub(super) fn lane_down_reason(draining: bool) -> Option<String> {
    Some(if draining { "drained" } else { "stopped on order" }.to_owned())
}

fn used_up(lane: &Lane, now: Now) -> Option<String> {
    let budget = lane.config.budget;
    let hours = i64::try_from(budget.hours).unwrap_or(i64::MAX).saturating_mul(3_600_000);
    if budget.runs > 0 && lane.spent.runs >= budget.runs {
        Some(format!("{} runs", budget.runs))
    } else if budget.issues > 0 && lane.spent.issues >= budget.issues {
        Some(format!("{} issues", budget.issues))
    } else if hours > 0 && now.unix_ms.saturating_sub(lane.spent.since_ms) >= hours {
        Some(format!("{} hours", budget.hours))
    } else {
        None
    }
}

/// What the lane's claim should say now.
pub(super) fn wish(lane: &Lane) -> ClaimWish {
    let started = lane.run.as_ref().and_then(|run| run.started.as_ref());
    let (last, verified) = lane.judged.unzip();
    let verified = verified.unwrap_or(Verified::NotAsked);
    let concluded = lane.run.is_none() && claim::concluded(last, verified, lane.issue.is_some());
    ClaimWish {
        lane: lane.config.id.clone(),
        state: lane.state,
        issue: lane.issue,
        worker: started.map(|started| (started.pid, started.start_ticks)),
        run: lane.run.as_ref().map(|run| run.id.clone()),
        epoch: lane.epoch,
        remove: claim::remove(lane.state, concluded),
    }
}

/// The worker's whole environment: an allow-list of ours, the lane's own, and what identifies lane and run.
fn worker_env(setup: &super::Setup, lane: &Lane, run: &RunId) -> BTreeMap<String, String> {
    let id = &lane.config.id;
    let marker = setup.marker_dir(run).join("marker.json").display().to_string();
    let mut env = setup.worker_env.clone();
    env.extend(lane.config.env.clone());
    let own = [
        ("LANEWARDEN_LANE", id.to_string()),
        ("LANEWARDEN_RUN", run.to_string()),
        ("LANEWARDEN_MARKER", marker.clone()),
        ("LANEWARDEN_SOCKET", setup.socket.display().to_string()),
        // What workers of the predecessor look for.
        ("LANE_ID", id.to_string()),
        ("CLAIM_ACTOR", format!("flow-{id}")),
        ("MARKER_FILE", marker),
    ];
    env.extend(own.map(|(key, value)| (key.to_owned(), value)));
    let epoch = lane.epoch.map(|epoch| ("LANEWARDEN_EPOCH".to_owned(), epoch.to_string()));
    env.extend(epoch);
    env
}
