//! One lane: its state, the table of transitions that it may make, and the run under way.

use std::time::Duration;

use lanewarden_probes::ending::Usage;

use crate::{
    clock::Now,
    config,
    decide::{
        attribution::LaneKill, ledger::Tally, marker::MarkerReading, restart::History,
        roster::Roster, shutdown::Stopping,
    },
    effect::ControlId,
    event::EndedRun,
    ids::RunId,
    keeper::protocol::Started,
    store::rows::LaneRow,
    verdict::{LaneState, RunVerdict, Verified},
    view::{ClaimView, IntruderView, LaneView, LastView},
};

use LaneState::{
    Cooling, Exhausted, Held, Observed, Occupied, Parked, Running, Starting, Stopped,
    Stopping as Ending, Tripped, Vacant,
};

/// Every transition that a lane may make. Staying where it is, with another reason, is always allowed.
///
/// ```text
/// stopped, cooling, held, parked, tripped, exhausted, occupied -> starting   a start is due
/// starting -> running        the worker runs             starting -> cooling, tripped, ...   it did not start
/// running  -> stopping       its end was ordered         running, stopping -> cooling, ...   it ended
/// vacant  <-> observed       an occupant came, went      running, stopping -> vacant   it is only observed by now
/// ```
pub const TRANSITIONS: &[(LaneState, &[LaneState])] = &[
    (Starting, &[Running, Ending, Cooling, Held, Tripped, Exhausted, Parked, Stopped, Occupied]),
    (Running, &[Ending, Cooling, Tripped, Exhausted, Parked, Stopped, Occupied, Vacant]),
    (Ending, &[Cooling, Starting, Tripped, Exhausted, Parked, Stopped, Occupied, Vacant]),
    (Cooling, &[Starting, Running, Stopped, Exhausted, Occupied]),
    (Held, &[Starting, Running, Stopped, Occupied, Exhausted]),
    (Parked, &[Starting, Running, Stopped]),
    (Tripped, &[Starting, Running, Stopped]),
    (Exhausted, &[Starting, Running, Stopped]),
    (Stopped, &[Starting, Running, Occupied, Exhausted]),
    (Occupied, &[Starting, Running, Stopped, Held, Exhausted]),
    (Observed, &[Vacant, Stopped]),
    (Vacant, &[Observed, Stopped]),
];

/// Whether the table has this transition.
#[must_use]
pub fn may_move(from: LaneState, to: LaneState) -> bool {
    from == to || TRANSITIONS.iter().any(|(start, ends)| *start == from && ends.contains(&to))
}

/// What a lane on its way up waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Idle,
    /// The lane being taken and the box being measured.
    Preparing,
    /// The first stamp of its claim, until this moment of the boot clock.
    Claiming(u64),
    /// The keeper's answer.
    Spawning,
}

/// A lane and everything that decisions about it need.
#[derive(Debug)]
pub struct Lane {
    /// Its configuration.
    pub config: config::Lane,
    /// Its state.
    pub state: LaneState,
    /// Why it is in that state.
    pub reason: Option<String>,
    /// Since when, milliseconds since the epoch.
    pub since_ms: i64,
    /// What it waits for.
    pub step: Step,
    /// Whether an operator wants it down.
    pub down: bool,
    /// When it is to be tried next, on the boot clock.
    pub next_start: Option<u64>,
    /// How it fared lately.
    pub history: History,
    /// What its budget has seen.
    pub spent: Spent,
    /// The run under way.
    pub run: Option<Run>,
    /// The newest judged run.
    pub last: Option<LastView>,
    /// The newest verdict and the forge's answer on it; outlives the daemon.
    pub judged: Option<(RunVerdict, Verified)>,
    /// The issue, if it is known.
    pub issue: Option<u64>,
    /// Its claim, as the remote has it.
    pub claim: Option<(String, String, i64)>,
    /// Whether another worker is to be started as soon as this one has ended, on order.
    pub again: bool,
    /// Clients that wait for the end of its worker. Not empty only while the lane is ordered down or `again` is set, so
    /// that each of them is answered when the run is over.
    pub waiting: Vec<ControlId>,
    /// Processes that work in the lane beside its worker.
    pub strangers: Vec<Stranger>,
    /// An observed lane in which it cannot be told who works there.
    pub cannot_tell: bool,
    /// The directory's epoch, from when it was taken.
    pub epoch: Option<u64>,
}

/// A process that works in the lane beside its worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stranger {
    /// Its pid.
    pub pid: u32,
    /// Its start, ticks since boot.
    pub start_ticks: u64,
    /// Its name, escaped.
    pub command: String,
    /// When it was first seen, milliseconds since the epoch.
    pub since_ms: i64,
    /// Whether people were told.
    pub told: bool,
}

/// What the lane's budget has seen since the last `start` order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Runs started.
    pub runs: u64,
    /// Issues finished.
    pub issues: u64,
    /// Since when, milliseconds since the epoch.
    pub since_ms: i64,
}

/// The run under way.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its nonce.
    pub id: RunId,
    /// The worker, once the keeper told it.
    pub started: Option<Started>,
    /// When it was begun.
    pub began: Now,
    /// Whether the keeper is its parent; an adopted worker of a dead keeper has none.
    pub kept: bool,
    /// Our order to end it.
    pub stopping: Option<Stopping>,
    /// What the keeper says of its end, while the kernel log is awaited until this moment of the boot clock.
    pub ended: Option<(EndedRun, u64)>,
    /// OOM kills in its tree.
    pub kills: Vec<LaneKill>,
    /// What its cgroup's counter says of them.
    pub tally: Tally,
    /// Its processes and threads.
    pub roster: Roster,
    /// Processes that use the worker's address space.
    pub sharing: Vec<u32>,
    /// Its pidfd said that the worker is gone while its keeper was to tell how: all that is known, should that keeper be
    /// gone too.
    pub gone: Option<(Option<i32>, MarkerReading)>,
    /// When a run without a keeper, whose worker is gone, is judged at the latest, on the boot clock.
    pub judge_at: Option<u64>,
}

impl Lane {
    /// A lane as configured, before anything is known of it.
    #[must_use]
    pub fn new(config: config::Lane, now: Now) -> Self {
        let state = match config.mode {
            config::Mode::Manage => Stopped,
            config::Mode::Observe => Vacant,
        };
        Self {
            config,
            state,
            reason: None,
            since_ms: now.unix_ms,
            step: Step::Idle,
            down: false,
            next_start: None,
            history: History::default(),
            spent: Spent { since_ms: now.unix_ms, ..Spent::default() },
            run: None,
            last: None,
            judged: None,
            issue: None,
            claim: None,
            again: false,
            waiting: Vec::new(),
            strangers: Vec::new(),
            cannot_tell: false,
            epoch: None,
        }
    }

    /// When the run under way must end, on the boot clock.
    #[must_use]
    pub fn deadline(&self) -> Option<u64> {
        let run = self.run.as_ref().filter(|_| self.config.mode == config::Mode::Manage)?;
        run.started.as_ref()?;
        Some(run.began.after(self.config.deadline))
    }

    /// Whether a worker of the lane lives, or may.
    #[must_use]
    pub fn has_worker(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.ended.is_none())
    }

    /// A run that is begun now and of whose worker nothing is known yet.
    #[must_use]
    pub fn begun(run: RunId, now: Now) -> Run {
        Run {
            id: run,
            started: None,
            began: now,
            kept: true,
            stopping: None,
            ended: None,
            kills: Vec::new(),
            tally: Tally::default(),
            roster: Roster::default(),
            sharing: Vec::new(),
            gone: None,
            judge_at: None,
        }
    }

    /// The row that the store keeps of it.
    #[must_use]
    pub fn row(&self) -> LaneRow {
        LaneRow {
            lane: self.config.id.clone(),
            state: self.state,
            reason: self.reason.clone(),
            since_ms: self.since_ms,
            down: self.down,
            again: self.again,
            next_start_boot_ms: self.next_start,
            streak: self.history.streak,
            failures_boot_ms: self.history.failures.clone(),
            runs: self.spent.runs,
            issues: self.spent.issues,
            counting_since_ms: self.spent.since_ms,
            issue: self.issue,
            last: self.judged,
        }
    }

    /// What is shown of it.
    #[must_use]
    pub fn view(&self, token: impl Fn(&Started) -> String, now: Now) -> LaneView {
        let started = self.run.as_ref().and_then(|run| run.started.as_ref());
        LaneView {
            id: self.config.id.to_string(),
            dir: self.config.dir.display().to_string(),
            mode: self.config.mode.as_str().to_owned(),
            state: self.state,
            reason: self.reason.clone(),
            since_ms: self.since_ms,
            next_start_ms: self.next_start.map(|at| now.unix_of(at)),
            pid: started.map(|started| started.pid),
            token: started.map(token),
            run: self.run.as_ref().map(|run| run.id.to_string()),
            run_started_ms: started.map(|started| started.started_at_ms),
            issue: self.issue,
            failures: u32::try_from(self.history.failures.len()).unwrap_or(u32::MAX),
            cannot_tell: self.cannot_tell && self.run.is_none(),
            degraded: started.map(|started| started.degraded.clone()).unwrap_or_default(),
            intruders: self
                .strangers
                .iter()
                .map(|one| IntruderView {
                    pid: one.pid,
                    command: one.command.clone(),
                    since_ms: one.since_ms,
                })
                .collect(),
            last: self.last.clone(),
            claim: self.claim.as_ref().map(|(name, oid, at_ms)| ClaimView {
                name: name.clone(),
                oid: oid.clone(),
                age_s: u64::try_from((now.unix_ms - at_ms) / 1000).unwrap_or(0),
                stamped_at_ms: *at_ms,
            }),
        }
    }
}

/// What is shown of a judged run.
#[must_use]
pub fn last_view(row: &crate::store::rows::EndedRow, now: Now) -> LastView {
    let lived = u64::try_from(row.ended_at_ms.saturating_sub(row.started_at_ms)).unwrap_or(0);
    LastView {
        verdict: row.verdict,
        exit_code: row.exit_code,
        signal: row.signal,
        end: row.end,
        duration_s: Duration::from_millis(lived).as_secs_f64(),
        reason: row.reason.clone(),
        run: row.run.to_string(),
        ended_at_ms: row.ended_at_ms,
        judged_after_ms: u64::try_from(now.unix_ms - row.ended_at_ms).unwrap_or(0),
    }
}

/// Usage of a run of which nothing could be learnt.
pub const NO_USAGE: Usage = Usage { user_us: 0, system_us: 0, max_rss_kb: 0 };

/// Whether the newest verdict is worth a page of its own because a lane died unexpectedly.
#[must_use]
pub const fn died_unexpectedly(verdict: RunVerdict) -> bool {
    matches!(verdict, RunVerdict::Signalled | RunVerdict::Vanished)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_in_the_table_and_has_a_way_out() {
        for &state in LaneState::ALL {
            let ends = TRANSITIONS.iter().find(|(start, _)| *start == state);
            assert!(ends.is_some_and(|(_, ends)| !ends.is_empty()), "{state}");
        }
    }

    #[test]
    fn only_orders_and_ends_lead_out_of_running() {
        assert!(may_move(Running, Ending));
        assert!(!may_move(Running, Starting), "a second worker");
        assert!(!may_move(Running, Held));
        assert!(!may_move(Vacant, Starting), "an observed lane is never started");
    }
}
