//! What is known of the box's OOM kills beyond the runs under way.

use std::collections::{BTreeMap, VecDeque};

use lanewarden_probes::kmsg::ChannelState;

use crate::{
    clock::Now,
    decide::{
        attribution::{Candidate, LaneKill},
        evidence::Evidence,
        ledger::{Growth, Ledger, Tally},
    },
    event::{KernelRecord, PastRun},
    ids::RunId,
    lane::Run,
    store::rows::EndedRow,
};

/// How long a record may wait for the counters to tell whose its victim was, milliseconds.
pub(super) const HELD_MS: u64 = 1_000;

/// How long a judged run stays known, milliseconds: evidence that comes later does not reach its verdict.
const PAST_MS: i64 = 60_000;

/// The most judged runs that stay known.
const MOST_PAST: usize = 64;

/// The books of one daemon.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) ledger: Ledger,
    /// Records that do not say whose their victims were, oldest first, each with the moment of the boot clock at which it
    /// is given up.
    pub(super) held: Vec<(KernelRecord, u64)>,
    /// Judged runs, newest first.
    pub(super) past: VecDeque<Past>,
    /// Kills of runs that the last daemon left, until those runs are taken over.
    pub(super) inherited: BTreeMap<RunId, (Vec<LaneKill>, u64)>,
    /// How the kernel log is.
    pub(super) kernel_log: ChannelState,
    /// Whether the box's counter could be read; `None` before the first pass.
    pub(super) box_counter: Option<bool>,
    /// How many of the runs that were measured last have a counter, and how many there were.
    pub(super) counters: (usize, usize),
    /// The newest record that was read.
    position: Option<u64>,
    /// The newest that the store knows of.
    written: Option<u64>,
}

/// A judged run to which late evidence may belong.
#[derive(Debug, Clone)]
pub(super) struct Past {
    pub(super) row: EndedRow,
    pub(super) evidence: Evidence,
    pub(super) tally: Tally,
    pub(super) limit: Option<u64>,
    cgroup: Option<String>,
    tasks: Vec<u32>,
}

impl Default for Books {
    fn default() -> Self {
        Self {
            ledger: Ledger::default(),
            held: Vec::new(),
            past: VecDeque::new(),
            inherited: BTreeMap::new(),
            kernel_log: ChannelState::Absent,
            box_counter: None,
            counters: (0, 0),
            position: None,
            written: None,
        }
    }
}

impl Books {
    /// The kernel log was read up to this record.
    pub(super) fn read_to(&mut self, seq: u64) {
        self.position = self.position.max(Some(seq));
    }

    /// The position that the store is to know, if it does not yet: before every record that still waits, so that none is
    /// lost with us.
    pub(super) fn unwritten(&mut self) -> Option<u64> {
        let oldest = self.held.iter().map(|(record, _)| record.seq).min();
        let safe = match oldest {
            Some(seq) => self.position.min(seq.checked_sub(1)),
            None => self.position,
        };
        if safe.is_none() || safe == self.written {
            return None;
        }
        self.written = safe;
        safe
    }

    /// Gives a run what is known of its kills from before us.
    pub(super) fn bequeath(&mut self, run: &mut Run) {
        if let Some((kills, unnamed)) = self.inherited.remove(&run.id) {
            run.kills.extend(kills);
            run.tally.unnamed = run.tally.unnamed.saturating_add(unnamed);
        }
    }

    /// Keeps a judged run for a while. What was told of it at its end is settled.
    pub(super) fn retire(&mut self, run: &Run, row: EndedRow, limit: Option<u64>) {
        let Some(evidence) = Evidence::read(&row.evidence) else { return };
        let mut tally = run.tally.clone();
        tally.counted = evidence.oom_kills_counted.or(tally.counted);
        self.keep(Past {
            evidence,
            tally,
            limit,
            cgroup: run.started.as_ref().and_then(|started| started.cgroup.clone()),
            tasks: run.roster.tasks(),
            row,
        });
    }

    /// Keeps a run that an earlier daemon judged; it told what there was to tell.
    pub(super) fn recall(&mut self, past: PastRun, limit: Option<u64>) {
        let Some(mut evidence) = Evidence::read(&past.row.evidence) else { return };
        evidence.pid = past.pid;
        let mut tally = Tally::default();
        tally.counted = evidence.oom_kills_counted;
        tally.unnamed = tally.unexplained(evidence.oom_kills_named.len()).unwrap_or(0);
        let (cgroup, tasks) = (past.cgroup, Vec::new());
        self.keep(Past { row: past.row, evidence, tally, limit, cgroup, tasks });
    }

    fn keep(&mut self, past: Past) {
        self.past.push_front(past);
        self.past.truncate(MOST_PAST);
    }

    /// Forgets the runs that ended long ago.
    pub(super) fn forget(&mut self, now: Now) {
        self.past.retain(|past| now.unix_ms.saturating_sub(past.row.ended_at_ms) <= PAST_MS);
    }

    /// When the oldest record that waits is given up, on the boot clock.
    pub(super) fn held_until(&self) -> Option<u64> {
        self.held.iter().map(|(_, until)| *until).min()
    }
}

impl Past {
    pub(super) fn candidate(&self) -> Candidate<'_> {
        Candidate {
            run: &self.row.run,
            cgroup: self.cgroup.as_deref(),
            pid: Some(self.evidence.pid),
            tasks: &self.tasks,
            lived: (self.row.started_at_ms, Some(self.row.ended_at_ms)),
        }
    }

    pub(super) fn growth(&self) -> Growth {
        let named = self.evidence.oom_kills_named.len();
        // Nobody counts for it any more: what is not known of it by now does not come.
        let unexplained = Some(self.tally.unexplained(named).unwrap_or(0));
        Growth { run: self.row.run.clone(), unexplained }
    }
}
