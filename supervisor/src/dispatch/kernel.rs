//! The kernel log named OOM victims: whose were they, and who must know?
//!
//! A record that says where its victim lived, or whose victim's number is known, is attributed at once. One that says
//! neither waits for a pass over the counters, for at most [`HELD_MS`].

use lanewarden_probes::kmsg::ChannelState;

use super::{Dispatcher, books::HELD_MS, report, turn::Turn};
use crate::{
    clock::Now,
    decide::attribution::{Candidate, LaneKill, Owner, Proof, class, owner},
    event::KernelRecord,
    ids::{LaneId, RunId},
    lane::Run,
    observe::Observation,
    store::rows::{KillRow, Memory, Write},
};

impl Dispatcher {
    pub(super) fn on_kernel_kill(&mut self, record: KernelRecord, now: Now, turn: &mut Turn) {
        self.books.ledger.line(record.at_ms);
        self.books.read_to(record.told_by);
        self.place_or_hold(record, now, turn);
        self.write_position(turn);
    }

    pub(super) fn on_kernel_log_read(&mut self, seq: u64, turn: &mut Turn) {
        self.books.read_to(seq);
        self.write_position(turn);
    }

    pub(super) fn on_kernel_log_state(&mut self, state: ChannelState, turn: &mut Turn) {
        self.books.kernel_log = state;
        turn.observe(Observation::KernelLogState(state));
    }

    /// So that the next daemon goes on where we stopped.
    pub(super) fn write_position(&mut self, turn: &mut Turn) {
        if let Some(seq) = self.books.unwritten() {
            turn.write(Write::Remember { key: Memory::KernelLog, value: seq.to_string() });
        }
    }

    fn place_or_hold(&mut self, record: KernelRecord, now: Now, turn: &mut Turn) {
        match self.owner(&record) {
            Owner::Run { run, proof, conflict } => {
                self.attribute(&record, &run, proof, conflict, now, turn);
            }
            Owner::Foreign { conflict } => Self::foreign(&record, conflict, turn),
            Owner::Unplaced => {
                self.books.held.push((record, now.boot_ms.saturating_add(HELD_MS)));
                self.sample_now(now, turn);
            }
        }
    }

    /// Whose the victim was, as far as record and numbers tell.
    pub(super) fn owner(&self, record: &KernelRecord) -> Owner {
        let live: Vec<(&Run, Vec<u32>)> = self
            .lanes
            .values()
            .filter_map(|lane| lane.run.as_ref())
            .map(|run| (run, run.roster.tasks()))
            .collect();
        let living = live.iter().map(|(run, tasks)| Candidate {
            run: &run.id,
            cgroup: run.started.as_ref().and_then(|started| started.cgroup.as_deref()),
            pid: run.started.as_ref().map(|started| started.pid),
            tasks,
            lived: (
                run.started.as_ref().map_or(run.began.unix_ms, |started| started.started_at_ms),
                run.ended.as_ref().map(|(ended, _)| ended.ended.ended_at_ms),
            ),
        });
        let past = self.books.past.iter().map(super::books::Past::candidate);
        let candidates: Vec<Candidate<'_>> = living.chain(past).collect();
        match owner(&record.kill, record.at_ms, &candidates) {
            // Nobody of ours was there.
            Owner::Unplaced if candidates.is_empty() => Owner::Foreign { conflict: None },
            found @ (Owner::Run { .. } | Owner::Foreign { .. } | Owner::Unplaced) => found,
        }
    }

    /// The victim was of this run: on record, counted, told, and whoever waits for it is judged.
    pub(super) fn attribute(
        &mut self,
        record: &KernelRecord,
        nonce: &RunId,
        proof: Proof,
        conflict: Option<String>,
        now: Now,
        turn: &mut Turn,
    ) {
        let kill = LaneKill {
            kill: record.kill.clone(),
            read_at_ms: record.at_ms,
            proof,
            conflict: conflict.clone(),
        };
        let Some(id) = self.lane_of(nonce) else {
            return self.amend(record, nonce, kill, now, turn);
        };
        let words = with_conflict(proof.as_str(), conflict.as_deref());
        put(record, Some((&id, nonce)), words, turn);
        count(record, Some(&id), turn);
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        let limit = lane.config.limits.memory_max;
        let Some(run) = lane.run.as_mut() else { return };
        run.kills.push(kill);
        // The run may have ended already and have waited for just this.
        let waiting = run.ended.take();
        turn.tell(report::oom_page(&id, nonce, Some(&record.kill), limit, class(record.kill.kind)));
        if let Some((ended, _)) = waiting {
            self.finish_kept(&id, &ended, now, turn);
        }
        self.finish_orphan(&id, now, turn);
    }

    /// The victim was nobody's of ours.
    pub(super) fn foreign(record: &KernelRecord, conflict: Option<String>, turn: &mut Turn) {
        let words = with_conflict("foreign", conflict.as_deref());
        put(record, None, words, turn);
        count(record, None, turn);
    }

    /// Nothing tells whose the victim was. The counters will say whose kills there were; they are not counted here.
    pub(super) fn give_up(&mut self, record: &KernelRecord, turn: &mut Turn) {
        let words = "cannot tell: the record does not say where the victim lived, its number was not known, and the counters fit more than one answer";
        put(record, None, words.to_owned(), turn);
        turn.observe(Observation::KillUnplaced { victim: report::victim(&record.kill) });
        self.books.ledger.take_back();
    }
}

/// Puts a kill on record; `owner` is `None` if it was nobody's of ours, or if that cannot be told.
pub(super) fn put(
    record: &KernelRecord,
    owner: Option<(&LaneId, &RunId)>,
    proof: String,
    turn: &mut Turn,
) {
    turn.write(Write::OomKill(Box::new(KillRow {
        seq: Some(record.seq),
        at_ms: record.at_ms,
        lane: owner.map(|(lane, _)| lane.clone()),
        run: owner.map(|(_, run)| run.clone()),
        class: class(record.kill.kind),
        proof,
        kill: serde_json::to_value(&record.kill).unwrap_or_default(),
    })));
}

/// Counts a kill, and writes the log line.
pub(super) fn count(record: &KernelRecord, lane: Option<&LaneId>, turn: &mut Turn) {
    turn.observe(Observation::OomKill {
        lane: lane.cloned(),
        class: class(record.kill.kind),
        victim: report::victim(&record.kill),
    });
}

/// Proof and conflict in the words of the store.
pub(super) fn with_conflict(proof: &str, conflict: Option<&str>) -> String {
    conflict.map_or_else(|| proof.to_owned(), |conflict| format!("{proof}; {conflict}"))
}
