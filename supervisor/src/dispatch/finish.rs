//! The end of a run: gather, judge, record, tell, and decide what comes next.

use lanewarden_notify::Notice;
use lanewarden_probes::ending::{Ending, Usage};

use super::{
    Dispatcher,
    report::{judge_run, report},
    turn::Turn,
};
use crate::{
    clock::Now,
    config::Mode,
    decide::{
        exit::{JudgedEnd, KnownEnd},
        marker::{self, MarkerFinding, MarkerReading},
        restart::{self, Next},
    },
    effect::{Effect, Telling},
    event::EndedRun,
    ids::{LaneId, RunId},
    keeper::protocol::{Ended, StopSignal},
    lane::{self, Run, Step},
    observe::Observation,
    store::rows::EndedRow,
    verdict::{LaneState, RunVerdict, SigkillEnd},
};

/// What is known of an end, whoever told it.
#[derive(Debug)]
pub(super) struct Finish {
    pub(super) end: KnownEnd,
    pub(super) marker: MarkerFinding,
    pub(super) our_kill: bool,
    pub(super) counted: Option<u64>,
    pub(super) started_at_ms: i64,
    pub(super) ended_at_ms: i64,
    pub(super) usage: Usage,
    pub(super) peak_memory_bytes: Option<u64>,
    pub(super) leftovers: u32,
    pub(super) survivors: Vec<u32>,
    /// Shown instead of the judgement's own sentence.
    pub(super) said: Option<String>,
}

/// What a pidfd tells of a worker's end.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) wait_status: Option<i32>,
    pub(super) marker: MarkerReading,
    pub(super) box_counter_grew: Option<bool>,
}

/// Whether we killed the tree ourselves.
pub(super) fn our_kill(ended: &Ended) -> bool {
    ended.our_signals.iter().any(|(how, _)| *how == StopSignal::Kill)
}

/// OOM kills in the run's cgroup during the run.
pub(super) fn counted(ended: &Ended) -> Option<u64> {
    ended.oom_kills.map(|(before, after)| after.saturating_sub(before))
}

impl Finish {
    /// How long the run lived, milliseconds.
    pub(super) fn lived_ms(&self) -> u64 {
        u64::try_from(self.ended_at_ms.saturating_sub(self.started_at_ms)).unwrap_or(0)
    }

    /// What a keeper saw.
    fn seen(seen: &EndedRun) -> Self {
        let ended = &seen.ended;
        Self {
            end: Ending::from_wait_status(ended.wait_status)
                .map_or(KnownEnd::Unknown, KnownEnd::Known),
            marker: marker::find(&seen.marker, &ended.started.run),
            our_kill: our_kill(ended),
            counted: counted(ended),
            started_at_ms: ended.started.started_at_ms,
            ended_at_ms: ended.ended_at_ms,
            usage: ended.usage,
            peak_memory_bytes: ended.peak_memory_bytes,
            leftovers: ended.leftovers,
            survivors: ended.survivors.clone(),
            said: None,
        }
    }

    /// What is left to know when no keeper saw it.
    fn unseen(run: &Run, wait_status: Option<i32>, reading: &MarkerReading, now: Now) -> Self {
        Self {
            end: wait_status
                .and_then(Ending::from_wait_status)
                .map_or(KnownEnd::Unknown, KnownEnd::Known),
            marker: marker::find(reading, &run.id),
            our_kill: run.stopping.is_some_and(|stopping| stopping.kill_at.is_some()),
            counted: None,
            started_at_ms: run.began.unix_ms,
            ended_at_ms: now.unix_ms,
            usage: lane::NO_USAGE,
            peak_memory_bytes: None,
            leftovers: 0,
            survivors: Vec::new(),
            said: None,
        }
    }
}

impl Dispatcher {
    /// A run that its keeper saw end.
    pub(super) fn finish_kept(&mut self, id: &LaneId, seen: &EndedRun, now: Now, turn: &mut Turn) {
        self.finish(id, &Finish::seen(seen), now, turn);
    }

    /// A run whose parent is gone; the kernel may still have told its wait status.
    pub(super) fn finish_unknown(
        &mut self,
        id: &LaneId,
        wait_status: Option<i32>,
        reading: &MarkerReading,
        now: Now,
        turn: &mut Turn,
    ) {
        let Some(run) = self.lanes.get(id).and_then(|lane| lane.run.as_ref()) else { return };
        let finish = Finish::unseen(run, wait_status, reading, now);
        self.finish(id, &finish, now, turn);
    }

    /// Judges and records a run beside the one that its lane has now: `seen` by a keeper, or by nobody. Nothing that the
    /// lane is about to do follows from it.
    pub(super) fn bury(
        &mut self,
        id: &LaneId,
        mut run: Run,
        seen: Option<&EndedRun>,
        now: Now,
        turn: &mut Turn,
    ) {
        let finish = seen
            .map_or_else(|| Finish::unseen(&run, None, &MarkerReading::Absent, now), Finish::seen);
        self.books.bequeath(&mut run);
        let (judged, row) = judge_run(id, &run, &finish, self.books.kernel_log);
        self.conclude(id, run, &finish, &judged, row, now, turn);
    }

    /// Records, counts and tells a judged run, and keeps it for evidence that comes late.
    #[expect(clippy::too_many_arguments, reason = "everything that is known of one end")]
    fn conclude(
        &mut self,
        id: &LaneId,
        mut run: Run,
        finish: &Finish,
        judged: &JudgedEnd,
        row: EndedRow,
        now: Now,
        turn: &mut Turn,
    ) {
        let limit = self.lanes.get(id).and_then(|lane| lane.config.limits.memory_max);
        run.tally.counted = finish.counted.or(run.tally.counted);
        if judged.end == Some(SigkillEnd::OomUnnamed) {
            // It was waited for, and it is told now.
            let silent = run.tally.unexplained(run.kills.len()).unwrap_or(0);
            for _ in 0..silent {
                self.books.ledger.line(now.unix_ms);
                super::sample::unnamed(Some((id, &run.id)), finish.ended_at_ms, turn);
            }
            run.tally.unnamed = run.tally.unnamed.saturating_add(silent);
        }
        report(&run, finish, judged, &row, limit, now, turn);
        self.books.retire(&run, row, limit);
    }

    /// A run whose program never ran.
    pub(super) fn finish_not_started(&mut self, id: &LaneId, why: &str, now: Now, turn: &mut Turn) {
        let finish = Finish {
            end: KnownEnd::NotStarted,
            marker: MarkerFinding::Missing,
            our_kill: false,
            counted: None,
            started_at_ms: now.unix_ms,
            ended_at_ms: now.unix_ms,
            usage: lane::NO_USAGE,
            peak_memory_bytes: None,
            leftovers: 0,
            survivors: Vec::new(),
            said: Some(why.to_owned()),
        };
        self.finish(id, &finish, now, turn);
    }

    pub(super) fn on_not_spawned(
        &mut self,
        id: &LaneId,
        run: &RunId,
        step: &str,
        message: &str,
        now: Now,
        turn: &mut Turn,
    ) {
        let waits = self
            .lanes
            .get(id)
            .is_some_and(|lane| lane.run.as_ref().is_some_and(|own| own.id == *run));
        if waits {
            self.finish_not_started(id, &format!("{step}: {message}"), now, turn);
        }
    }

    /// A worker's pidfd says that it is gone. Its keeper tells how, if there is one; else the kernel may have.
    pub(super) fn on_worker_gone(&mut self, run: &RunId, gone: Gone, now: Now, turn: &mut Turn) {
        let Some(id) = self.lane_of(run) else { return };
        let Some(own) = self.lanes.get_mut(&id).and_then(|lane| lane.run.as_mut()) else { return };
        let Gone { wait_status, marker, box_counter_grew } = gone;
        own.gone = Some((wait_status, marker));
        if own.kept {
            return;
        }
        // Nobody counted its OOM kills: only the kernel log can tell whose SIGKILL it was, a moment later.
        let killed = wait_status.is_some_and(|status| status & 0x7f == 9);
        let ours = own.stopping.is_some_and(|stopping| stopping.kill_at.is_some());
        let maybe_oom = box_counter_grew != Some(false);
        let wait = killed && !ours && own.kills.is_empty() && maybe_oom;
        let until = now.boot_ms.saturating_add(if wait { super::EVIDENCE_WAIT_MS } else { 0 });
        own.judge_at = Some(until);
        if !wait {
            self.finish_orphan(&id, now, turn);
        }
    }

    /// Judges a run without a keeper whose worker is gone, if there is one: its time is up, or evidence came.
    pub(super) fn finish_orphan(&mut self, id: &LaneId, now: Now, turn: &mut Turn) {
        let told = self.lanes.get_mut(id).and_then(|lane| {
            let run = lane.run.as_mut().filter(|run| !run.kept && run.judge_at.is_some())?;
            run.judge_at = None;
            run.gone.take()
        });
        if let Some((wait_status, marker)) = told {
            self.finish_unknown(id, wait_status, &marker, now, turn);
        }
    }

    fn finish(&mut self, id: &LaneId, finish: &Finish, now: Now, turn: &mut Turn) {
        let random = self.random.number();
        let Some(lane) = self.lanes.get_mut(id) else { return };
        let Some(run) = lane.run.take() else { return };
        lane.step = Step::Idle;
        let known = run.started.as_ref().is_some_and(|started| started.pid != 0);
        if !run.kept && known && lane.config.mode == Mode::Manage {
            // No keeper ends what is left of its tree.
            turn.then(super::timers::signal(&run, StopSignal::Kill));
        }
        let (judged, row) = judge_run(id, &run, finish, self.books.kernel_log);
        lane.last = Some(lane::last_view(&row, now));
        lane.judged = Some((judged.verdict, judged.verified));
        if judged.verdict == RunVerdict::Finalized {
            lane.spent.issues = lane.spent.issues.saturating_add(1);
        }
        // Only an issue that is blocked for a technical reason is carried forward: every other end concludes or forgets.
        lane.issue = judged.issue.filter(|_| judged.verdict == RunVerdict::Blocked);
        let lived = std::time::Duration::from_millis(finish.lived_ms());
        lane.history = lane.history.after(judged.verdict, lived, now.boot_ms, &lane.config.restart);
        let nonce = run.id.clone();
        self.conclude(id, run, finish, &judged, row, now, turn);
        self.after_run(id, &nonce, &judged, random, now, turn);
    }

    /// And now? Down, at once, later, or not without a person.
    fn after_run(
        &mut self,
        id: &LaneId,
        run: &RunId,
        judged: &JudgedEnd,
        random: u64,
        now: Now,
        turn: &mut Turn,
    ) {
        let draining = self.ending.draining;
        let Some(lane) = self.lanes.get_mut(id) else { return };
        if lane.config.mode == Mode::Observe {
            // Whoever comes next is looked for at once. The lock is ours only if the lane was managed until now.
            lane.next_start = Some(now.boot_ms);
            turn.then(Effect::Release(id.clone()));
            return self.vacant(id, Some(judged.reason.clone()), now, turn);
        }
        if lane.down || self.ending.winds_down() {
            // Only an operator's stop outlives the daemon: a lane that was drained is due again in the next one.
            lane.next_start = None;
            lane.again = false;
            turn.then(Effect::Release(id.clone()));
            let reason = super::start::lane_down_reason(draining);
            return self.move_to(id, LaneState::Stopped, reason, now, turn);
        }
        if std::mem::take(&mut lane.again) {
            for client in lane.waiting.drain(..) {
                turn.done(client, format!("{id} ended its worker and starts another"));
            }
            // Due at once; it is begun as every start is, which asks whether there is a keeper.
            lane.next_start = Some(now.boot_ms);
            let reason = Some("ordered to restart".to_owned());
            return self.move_to(id, LaneState::Cooling, reason, now, turn);
        }
        match restart::next(
            judged.verdict,
            &lane.history,
            &lane.config.restart,
            now.boot_ms,
            random,
        ) {
            Next::At { boot_ms, why } => {
                lane.next_start = Some(boot_ms);
                let reason = format!("{}; {why}", judged.reason);
                self.move_to(id, LaneState::Cooling, Some(reason), now, turn);
            }
            Next::Parked => {
                lane.next_start = None;
                let question = judged.question.clone().unwrap_or_else(|| judged.reason.clone());
                self.move_to(id, LaneState::Parked, Some(question), now, turn);
            }
            Next::Tripped { failures } => {
                lane.next_start = None;
                let window = lane.config.restart.breaker_window;
                turn.observe(Observation::BreakerTripped { lane: id.clone(), failures });
                turn.tell(Telling {
                    id: format!("breaker-{run}"),
                    notice: Notice::BreakerTripped {
                        lane: id.to_string(),
                        failures,
                        limit: lane.config.restart.breaker,
                        window_s: window.as_secs(),
                        last_verdict: format!("{}: {}", judged.verdict, judged.reason),
                        next_try_s: None,
                    },
                });
                let count = if failures == 1 {
                    "1 failure".to_owned()
                } else {
                    format!("{failures} failures, the newest")
                };
                let reason =
                    format!("{count}: {}; `lanewarden start {id}` tries again", judged.reason);
                self.move_to(id, LaneState::Tripped, Some(reason), now, turn);
            }
        }
    }
}

/// How long the run under way has lived, milliseconds.
#[must_use]
pub(super) fn age_ms(lane: &lane::Lane, now: Now) -> Option<u64> {
    lane.run.as_ref().map(|run| now.boot_ms.saturating_sub(run.began.boot_ms))
}
