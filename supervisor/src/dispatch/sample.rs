//! When box and runs are measured, and what follows from the figures.

use std::time::Duration;

use super::{Dispatcher, report::oom_page, turn::Turn};
use crate::{
    clock::Now,
    decide::{
        attribution::{Owner, Proof},
        ledger::{Growth, Placement, place},
    },
    effect::{Effect, Post},
    event::{KernelRecord, Sampling},
    ids::{LaneId, RunId},
    observe::Observation,
    store::rows::{KillRow, Write},
    verdict::SigkillEnd,
};

/// How often box and runs are measured.
pub(super) const EVERY: Duration = Duration::from_secs(5);

/// How long after a worker's start it is measured first: what shares its memory is known from then on.
pub(super) const AFTER_START: Duration = Duration::from_secs(1);

/// How often while a record waits for the counters.
const WHILE_HELD: Duration = Duration::from_millis(100);

impl Dispatcher {
    /// Asks for a pass over box and runs, if one is due, and gives up what waited too long for one.
    pub(super) fn sample(&mut self, now: Now, turn: &mut Turn) {
        if self.began && self.next_sample <= now.boot_ms {
            self.sample_now(now, turn);
        }
        let (due, wait): (Vec<_>, Vec<_>) =
            self.books.held.drain(..).partition(|(_, until)| *until <= now.boot_ms);
        self.books.held = wait;
        for (record, _) in &due {
            self.give_up(record, turn);
        }
        if !due.is_empty() {
            self.write_position(turn);
        }
        let soon = self.next_sample < now.after(EVERY);
        let next = Some(self.next_sample).filter(|_| self.began && soon);
        turn.wake_to_sample(next.into_iter().chain(self.books.held_until()).min());
    }

    pub(super) fn sample_now(&mut self, now: Now, turn: &mut Turn) {
        let pause = if self.books.held.is_empty() { EVERY } else { WHILE_HELD };
        self.next_sample = now.after(pause);
        let posts = self
            .lanes
            .values()
            .filter(|lane| lane.has_worker())
            .filter_map(|lane| lane.run.as_ref()?.started.as_ref())
            .map(Post::from)
            .collect();
        turn.then(Effect::Sample(posts));
    }

    pub(super) fn on_sampled(&mut self, sampling: &Sampling, now: Now, turn: &mut Turn) {
        self.take_samples(sampling);
        self.settle_runs(sampling.taken_at_ms, turn);
        self.settle_past(sampling.taken_at_ms, turn);
        self.books.box_counter = Some(sampling.oom_kills.is_some());
        let growth = self.growth();
        let own = growth.iter().filter_map(|run| run.unexplained).sum();
        // Books that begin while a record waits and a run has growth could not tell whether the one explains the other.
        let clear = self.books.ledger.has_begun() || own == 0 || self.books.held.is_empty();
        if let Some(counter) = sampling.oom_kills.filter(|_| clear) {
            for _ in 0..self.books.ledger.pass(counter, own, sampling.taken_at_ms) {
                unnamed(None, sampling.taken_at_ms, turn);
            }
        }
        self.place_held(sampling, now, turn);
        self.books.forget(now);
    }

    fn take_samples(&mut self, sampling: &Sampling) {
        let counted = sampling.runs.iter().filter(|run| run.oom_kills.is_some()).count();
        self.books.counters = (counted, sampling.runs.len());
        for sample in &sampling.runs {
            let run = self.lanes.values_mut().filter_map(|lane| lane.run.as_mut());
            // What the keeper read at its end is newer.
            let Some(run) = run.into_iter().find(|run| run.id == sample.run && run.ended.is_none())
            else {
                continue;
            };
            run.tally.counted = sample.oom_kills.or(run.tally.counted);
            run.roster.see(&sample.tasks, sampling.taken_at_ms);
            run.sharing.clone_from(&sample.sharing);
        }
    }

    /// What runs under way have counted and no record names.
    fn settle_runs(&mut self, at_ms: i64, turn: &mut Turn) {
        for (id, lane) in &mut self.lanes {
            let limit = lane.config.limits.memory_max;
            let Some(run) = lane.run.as_mut() else { continue };
            let settled = run.tally.settle(run.kills.len(), at_ms);
            for _ in 0..settled {
                self.books.ledger.line(at_ms);
                unnamed(Some((id, &run.id)), at_ms, turn);
            }
            if settled > 0 {
                turn.tell(oom_page(id, &run.id, None, limit, SigkillEnd::OomUnnamed));
            }
        }
    }

    /// The same of runs that were judged lately: what their last counts had and nobody was told of.
    fn settle_past(&mut self, at_ms: i64, turn: &mut Turn) {
        for past in &mut self.books.past {
            let settled = past.tally.settle(past.evidence.oom_kills_named.len(), at_ms);
            let (id, run) = (&past.row.lane, &past.row.run);
            for _ in 0..settled {
                self.books.ledger.line(at_ms);
                unnamed(Some((id, run)), at_ms, turn);
            }
            if settled > 0 {
                turn.tell(oom_page(id, run, None, past.limit, SigkillEnd::OomUnnamed));
            }
        }
    }

    /// How much each run's counter has that nothing explains.
    fn growth(&self) -> Vec<Growth> {
        let living = self.lanes.values().filter_map(|lane| lane.run.as_ref()).map(|run| Growth {
            run: run.id.clone(),
            unexplained: run.tally.unexplained(run.kills.len()),
        });
        living.chain(self.books.past.iter().map(super::books::Past::growth)).collect()
    }

    /// Places the records that were read before this pass, as far as it tells.
    fn place_held(&mut self, sampling: &Sampling, now: Now, turn: &mut Turn) {
        let (read, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.books.held)
            .into_iter()
            .partition(|(record, _)| record.at_ms <= sampling.taken_at_ms);
        if read.is_empty() {
            self.books.held = later;
            return;
        }
        let mut left = Vec::new();
        for (record, until) in read {
            // The pass may have seen more numbers than were known before.
            match self.owner(&record) {
                Owner::Run { run, proof, conflict } => {
                    self.attribute(&record, &run, proof, conflict, now, turn);
                }
                Owner::Foreign { conflict } => Self::foreign(&record, conflict, turn),
                Owner::Unplaced => left.push((record, until)),
            }
        }
        let outstanding = sampling
            .oom_kills
            .and_then(|counter| self.books.ledger.outstanding(counter, sampling.taken_at_ms));
        let lines = u64::try_from(left.len()).unwrap_or(u64::MAX);
        let placement = place(lines, outstanding, &self.growth());
        if placement == Placement::CannotTell {
            left.extend(later);
            self.books.held = left;
            return;
        }
        self.books.held = later;
        for (record, _) in &left {
            self.put_where(&placement, record, now, turn);
        }
        self.write_position(turn);
    }

    fn put_where(
        &mut self,
        placement: &Placement,
        record: &KernelRecord,
        now: Now,
        turn: &mut Turn,
    ) {
        match placement {
            Placement::Run(run) => {
                self.attribute(record, run, Proof::Counter, None, now, turn);
            }
            Placement::Foreign => Self::foreign(record, None, turn),
            Placement::CannotTell => {}
        }
    }
}

/// A kill that only a counter told of: on record, and counted.
pub(super) fn unnamed(owner: Option<(&LaneId, &RunId)>, at_ms: i64, turn: &mut Turn) {
    turn.write(Write::OomKill(Box::new(KillRow {
        seq: None,
        at_ms,
        lane: owner.map(|(lane, _)| lane.clone()),
        run: owner.map(|(_, run)| run.clone()),
        class: SigkillEnd::OomUnnamed,
        proof: Proof::Counter.to_string(),
        kill: serde_json::Value::Null,
    })));
    turn.observe(Observation::OomKill {
        lane: owner.map(|(lane, _)| lane.clone()),
        class: SigkillEnd::OomUnnamed,
        victim: "a process that no record of the kernel log names".to_owned(),
    });
}
