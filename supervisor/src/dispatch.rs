//! The flow: one event in, effects out. The file to hand a newcomer.
//!
//! [`Dispatcher::handle`] reads top to bottom: find the lane and the run, gather what is known, judge (in `decide`), move
//! the lane through its table of transitions, and return what is to be done in the fixed order of
//! [`Effect::rank`](crate::effect::Effect::rank): record, claim, observe, notify, then the deeds. Nothing here reads a
//! clock, a file, a process or the network; `Now` is passed in, and effects answer with events.

mod begin;
mod books;
mod channels;
mod finish;
mod inherit;
mod keeper;
mod kernel;
mod observe;
mod orders;
mod past;
mod patrol;
mod report;
mod sample;
mod setup;
mod start;
#[cfg(test)]
mod tests;
mod timers;
mod turn;

use std::collections::BTreeMap;

use lanewarden_notify::Notice;

pub use setup::{Random, Setup, log_path};
use turn::Turn;

use crate::{
    clock::Now,
    config,
    decide::attribution::{SigkillFacts, wants_kernel_log},
    effect::{Effect, Goodbye, Telling},
    event::{ClaimAnswer, EndedRun, Event, Termination},
    ids::{LaneId, RunId},
    keeper::protocol::{Started, StopSignal},
    lane::{Lane, Step},
    observe::Observation,
    store::rows::{OpenRun, OpenWorker, Write},
    verdict::LaneState,
    view::BoxView,
};

/// How long after a SIGKILL the kernel log may still bring evidence, milliseconds. Measured: 50 ms covers all runs.
const EVIDENCE_WAIT_MS: u64 = 250;

/// All lanes of the box, and the one place where their lives are decided.
#[derive(Debug)]
pub struct Dispatcher {
    setup: Setup,
    lanes: BTreeMap<LaneId, Lane>,
    random: Random,
    began: bool,
    keeper_up: bool,
    store_failure: Option<String>,
    /// When running lanes are walked next, on the boot clock; `None` while a walk is under way.
    next_patrol: Option<u64>,
    /// When box and runs are measured next, on the boot clock.
    next_sample: u64,
    books: books::Books,
    ending: Ending,
}

/// How far the daemon is on its way out.
#[derive(Debug, Clone, Copy, Default)]
struct Ending {
    /// Nothing more is started.
    draining: bool,
    /// The order to end.
    termination: Option<Termination>,
    /// The goodbye was said.
    exited: bool,
}

impl Ending {
    /// Whether nothing more is started.
    const fn winds_down(self) -> bool {
        self.draining || self.termination.is_some()
    }
}

impl Dispatcher {
    /// A dispatcher of these lanes, of which nothing is known yet.
    #[must_use]
    pub fn new(setup: Setup, lanes: Vec<config::Lane>, random: Random, now: Now) -> Self {
        let lanes = lanes.into_iter().map(|lane| (lane.id.clone(), Lane::new(lane, now))).collect();
        Self {
            setup,
            lanes,
            random,
            began: false,
            keeper_up: true,
            store_failure: None,
            next_patrol: Some(now.after(patrol::EVERY)),
            // The books begin before the first worker does.
            next_sample: now.boot_ms,
            books: books::Books::default(),
            ending: Ending::default(),
        }
    }

    /// Tells what the remote had from the last daemon: ref, object and time of each lane's claim.
    pub fn remember_claims(&mut self, held: BTreeMap<LaneId, (String, String, i64)>) {
        for (id, claim) in held {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.claim = Some(claim);
            }
        }
    }

    /// One turn: everything that follows from `event`, in the order in which it is to be done.
    pub fn handle(&mut self, event: Event, now: Now) -> Vec<Effect> {
        let mut turn = Turn::default();
        match event {
            Event::Began(beginning) => self.on_began(*beginning, now, &mut turn),
            Event::Prepared { lane, answer } => self.on_prepared(&lane, answer, now, &mut turn),
            Event::Looked { lane, looked } => self.on_looked(&lane, looked, now, &mut turn),
            Event::Patrolled { posts, intruders } => {
                self.on_patrolled(&posts, intruders, now, &mut turn);
            }
            Event::Sampled(sampling) => self.on_sampled(&sampling, now, &mut turn),
            Event::ClaimAnswered { lane, answer } => self.on_claim(&lane, answer, now, &mut turn),
            Event::Spawned(started) => self.on_spawned(*started, now, &mut turn),
            Event::NotSpawned { lane, run, step, message } => {
                self.on_not_spawned(&lane, &run, &step, &message, now, &mut turn);
            }
            Event::Ended(ended) => self.on_ended(*ended, now, &mut turn),
            Event::WorkerGone { run, wait_status, marker, box_counter_grew } => {
                let gone = finish::Gone { wait_status, marker, box_counter_grew };
                self.on_worker_gone(&run, gone, now, &mut turn);
            }
            Event::KernelKill(record) => self.on_kernel_kill(*record, now, &mut turn),
            Event::KernelLogRead(seq) => self.on_kernel_log_read(seq, &mut turn),
            Event::KernelLogState(state) => self.on_kernel_log_state(state, &mut turn),
            Event::KernelLogLost(count) => turn.observe(Observation::KernelLogLost(count)),
            Event::KeeperLost => self.on_keeper_lost(&mut turn),
            Event::KeeperBack { living, ended } => {
                self.on_keeper_back(&living, ended, now, &mut turn)
            }
            Event::Tick => {}
            Event::Control { id, order } => self.on_order(id, order, now, &mut turn),
            Event::Terminate(how) => self.on_terminate(how, now, &mut turn),
            Event::Store { failure } => self.on_store(failure, now, &mut turn),
        }
        self.on_time(now, &mut turn);
        self.leave_if_done(&mut turn);
        turn.effects(self.next_moment(now))
    }

    /// What is shown of the box.
    #[must_use]
    pub fn view(&self, now: Now) -> BoxView {
        BoxView {
            machine: self.setup.machine.to_string(),
            version: self.setup.version.clone(),
            keeper_up: self.keeper_up,
            ready: self.began && self.keeper_up && self.store_failure.is_none(),
            degraded: self.degraded(),
            channels: self.channels(),
            lanes: self
                .lanes
                .values()
                .map(|lane| lane.view(|started| self.token(started), now))
                .collect(),
            taken_at_ms: now.unix_ms,
            ..BoxView::default()
        }
    }

    /// A worker's identity, for display.
    fn token(&self, started: &Started) -> String {
        let boot = self.setup.boot_id.get(..8).unwrap_or("-");
        let (machine, lane) = (&self.setup.machine, &started.lane);
        format!("{machine}:flow-{lane}:{}:{boot}:{}", started.pid, started.start_ticks)
    }

    fn on_claim(&mut self, id: &LaneId, answer: ClaimAnswer, now: Now, turn: &mut Turn) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let claiming = matches!(lane.step, Step::Claiming(_));
        match answer {
            ClaimAnswer::Stamped { name, oid, at_ms } => {
                lane.claim = Some((name.clone(), oid.clone(), at_ms));
                turn.write(Write::ClaimStamped { lane: id.clone(), name, oid, at_ms });
            }
            ClaimAnswer::Removed { .. } => {
                lane.claim = None;
                turn.write(Write::ClaimRemoved { lane: id.clone() });
            }
            // The remote is advisory: what could not be stamped is stamped later, and the worker starts.
            ClaimAnswer::Failed(_) => {}
            ClaimAnswer::Lost(detail) => {
                lane.claim = None;
                turn.tell(Telling {
                    id: format!("claim-lost-{}-{}", id.placeholder(), now.unix_ms),
                    notice: Notice::ClaimLost { lane: id.to_string(), detail: detail.clone() },
                });
                if claiming {
                    return self.occupied(
                        id,
                        format!("its claim is held elsewhere: {detail}"),
                        now,
                        turn,
                    );
                }
            }
        }
        if claiming {
            self.spawn(id, now, turn);
        }
    }

    fn on_spawned(&mut self, started: Started, now: Now, turn: &mut Turn) {
        let id = started.lane.clone();
        let Some(lane) = self.lanes.get_mut(&id) else { return turn.stranger(&started) };
        if lane.run.is_none() && lane.config.mode == config::Mode::Manage {
            return self.take_late(started, now, turn);
        }
        let Some(run) = lane.run.as_mut().filter(|run| run.id == started.run) else {
            return turn.stranger(&started);
        };
        lane.step = Step::Idle;
        run.started = Some(started.clone());
        let ordered = run.stopping.is_some().then(|| timers::signal(run, StopSignal::Term));
        self.write_started(&started, turn);
        turn.observe(Observation::RunStarted {
            lane: id.clone(),
            run: started.run.clone(),
            pid: started.pid,
        });
        self.next_sample = self.next_sample.min(now.after(sample::AFTER_START));
        turn.then(Effect::Watch {
            run: started.run.clone(),
            pid: started.pid,
            start_ticks: started.start_ticks,
        });
        if let Some(signal) = ordered {
            // The order came while the keeper was starting it.
            turn.then(signal);
            turn.observe(Observation::Signalled { lane: id.clone(), how: StopSignal::Term });
            let why = Some("its end was ordered while it was started".to_owned());
            self.move_to(&id, LaneState::Stopping, why, now, turn);
        } else {
            self.move_to(&id, LaneState::Running, None, now, turn);
        }
    }

    /// The worker is on record, so that the next daemon knows whom to look for.
    fn write_started(&self, started: &Started, turn: &mut Turn) {
        turn.write(Write::RunStarted(OpenRun {
            run: started.run.clone(),
            lane: started.lane.clone(),
            started_at_ms: started.started_at_ms,
            worker: Some(OpenWorker {
                pid: started.pid,
                start_ticks: started.start_ticks,
                boot_id: self.setup.boot_id.clone(),
                pidns: self.setup.pidns,
                cgroup: started.cgroup.clone(),
            }),
        }));
    }

    fn on_ended(&mut self, ended: EndedRun, now: Now, turn: &mut Turn) {
        let (id, nonce) = (ended.ended.started.lane.clone(), ended.ended.started.run.clone());
        let Some(run) = self
            .lanes
            .get_mut(&id)
            .and_then(|lane| lane.run.as_mut())
            .filter(|run| run.id == nonce)
        else {
            // Judged before, or of a lane that the configuration no longer has: nothing waits for it.
            turn.then(Effect::Forget(nonce));
            return;
        };
        let started = ended.ended.started.clone();
        run.started.get_or_insert(started);
        let facts = SigkillFacts {
            pid: ended.ended.started.pid,
            our_kill: finish::our_kill(&ended.ended),
            counted: finish::counted(&ended.ended),
            unnamed_before: run.tally.unnamed,
            named: &run.kills,
            sharing: &run.sharing,
            ended_at_ms: ended.ended.ended_at_ms,
        };
        let killed = ended.ended.wait_status & 0x7f == 9 || finish::counted(&ended.ended) > Some(0);
        if killed && wants_kernel_log(facts, ended.box_counter_grew) {
            run.tally.counted = finish::counted(&ended.ended).or(run.tally.counted);
            run.ended = Some((ended, now.boot_ms.saturating_add(EVIDENCE_WAIT_MS)));
            return;
        }
        self.finish_kept(&id, &ended, now, turn);
    }

    fn on_store(&mut self, failure: Option<String>, now: Now, turn: &mut Turn) {
        let failed_before = self.store_failure.is_some();
        match (&failure, failed_before) {
            (Some(error), false) => turn.tell(Telling {
                id: format!("store-{}", now.unix_ms),
                notice: Notice::StoreDegraded {
                    error: error.clone(),
                    remedy: format!(
                        "free space on the file system of {}; supervision goes on",
                        self.setup.state_dir.display()
                    ),
                },
            }),
            (None, true) => turn.tell(Telling {
                id: format!("store-back-{}", now.unix_ms),
                notice: Notice::StoreRecovered,
            }),
            (Some(_), true) | (None, false) => {}
        }
        self.store_failure = failure;
    }

    /// Moves a lane through the table, and tells store, remote and log.
    fn move_to(
        &mut self,
        id: &LaneId,
        to: LaneState,
        reason: Option<String>,
        now: Now,
        turn: &mut Turn,
    ) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let from = lane.state;
        debug_assert!(crate::lane::may_move(from, to), "{id}: {from} -> {to}");
        let changed = from != to || lane.reason != reason;
        if from != to {
            lane.since_ms = now.unix_ms;
        }
        lane.state = to;
        lane.reason.clone_from(&reason);
        turn.write(Write::Lane(lane.row()));
        if self.setup.remote_deadline.is_some() {
            turn.claim(start::wish(lane));
        }
        if changed {
            turn.observe(Observation::LaneMoved { lane: id.clone(), from, to, reason });
        }
        if to == LaneState::Stopped {
            let sentence = format!("{id} is down, and nothing of its worker is left");
            for client in lane.waiting.drain(..) {
                turn.done(client, sentence.clone());
            }
        }
    }

    fn lane_of(&self, run: &RunId) -> Option<LaneId> {
        self.lanes
            .iter()
            .find(|(_, lane)| lane.run.as_ref().is_some_and(|own| own.id == *run))
            .map(|(id, _)| id.clone())
    }

    fn leave_if_done(&mut self, turn: &mut Turn) {
        let Some(how) = self.ending.termination.filter(|_| !self.ending.exited) else { return };
        // Whoever works in an observed lane is not ours to wait for.
        let managed =
            || self.lanes.values().filter(|lane| lane.config.mode == config::Mode::Manage);
        let workers = managed().filter(|lane| lane.has_worker()).count();
        let pending = managed().any(|lane| lane.run.is_some());
        if how == Termination::LeaveWorkers || !pending {
            self.ending.exited = true;
            for (id, lane) in &mut self.lanes {
                for client in lane.waiting.drain(..) {
                    turn.refuse(client, format!("the daemon ends before the worker of {id} does"));
                }
            }
            turn.then(Effect::Exit(Goodbye { workers_left: workers }));
        }
    }
}
