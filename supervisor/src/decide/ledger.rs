//! The books of OOM kills: what the counters say against what the kernel log named.
//!
//! The box's counter (`oom_kill` of /proc/vmstat) grows by one for each address space that the kernel kills, and so does
//! that of the cgroup in which the victim lived, both before the kill line is printed. So every growth is a line of the
//! log, a line that is still to come, or a line that never comes (the victim was already exiting, records were lost).
//! Two uses: a line that does not say where its victim lived is placed by the counters, and growth that no line explains
//! is counted as what it is, a lane's own or foreign.

use std::collections::VecDeque;

use crate::ids::RunId;

/// How long growth may go without a line before it counts as unnamed, milliseconds.
pub const SETTLED_MS: i64 = 2_000;

/// The box's side of the books.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Growth of the counter that is accounted for: it stood here, with all lines up to then.
    accounted: Option<u64>,
    /// When each line was read that came after the newest pass that is accounted for.
    lines: VecDeque<i64>,
    /// Since when the same growth goes without lines.
    waiting: Option<(u64, i64)>,
}

/// The most lines that are remembered between two passes: more than any storm prints.
const LINES: usize = 4096;

impl Ledger {
    /// A kill line was read.
    pub fn line(&mut self, read_at_ms: i64) {
        if self.lines.len() >= LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(read_at_ms);
    }

    /// Takes a line back: its kill had been accounted for already, or is accounted for in another way.
    pub fn take_back(&mut self) {
        self.accounted = self.accounted.map(|accounted| accounted.saturating_sub(1));
    }

    /// Whether there is anything to compare the counter with.
    #[must_use]
    pub const fn has_begun(&self) -> bool {
        self.accounted.is_some()
    }

    /// The box's counter at one moment, beside what the counters of our own runs have that nothing explains. Gives how many
    /// kills no line has named for [`SETTLED_MS`]; they are accounted for by this.
    pub fn pass(&mut self, counter: u64, own_unexplained: u64, taken_at_ms: i64) -> u64 {
        let Some(accounted) = self.accounted else {
            // What was killed before us is nobody's news, unless a run of ours has it; lines that were read by now are
            // part of it.
            self.accounted = Some(counter.saturating_sub(own_unexplained));
            self.lines.retain(|&at| at > taken_at_ms);
            return 0;
        };
        let excess = self.outstanding(counter, taken_at_ms).unwrap_or(0);
        if excess == 0 {
            self.waiting = None;
            self.account(accounted, taken_at_ms);
            return 0;
        }
        match self.waiting {
            Some((before, since)) if before <= excess && taken_at_ms - since >= SETTLED_MS => {
                self.waiting = None;
                self.account(accounted.saturating_add(excess), taken_at_ms);
                excess
            }
            Some((before, _)) if before <= excess => 0,
            Some(_) | None => {
                self.waiting = Some((excess, taken_at_ms));
                0
            }
        }
    }

    /// Kills that were counted and of which no line was read by then; `None` before the first pass.
    #[must_use]
    pub fn outstanding(&self, counter: u64, taken_at_ms: i64) -> Option<u64> {
        let lines = self.lines.iter().filter(|&&at| at <= taken_at_ms).count();
        let lines = u64::try_from(lines).unwrap_or(u64::MAX);
        Some(counter.saturating_sub(self.accounted?.saturating_add(lines)))
    }

    fn account(&mut self, base: u64, taken_at_ms: i64) {
        let before = self.lines.len();
        self.lines.retain(|&at| at > taken_at_ms);
        let read = u64::try_from(before.saturating_sub(self.lines.len())).unwrap_or(u64::MAX);
        self.accounted = Some(base.saturating_add(read));
    }
}

/// A run's side of the books.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// OOM kills that its cgroup had counted when it was last looked at; `None` if nobody counts for it.
    pub counted: Option<u64>,
    /// Those of them that were told although no record names them.
    pub unnamed: u64,
    /// Since when the same growth goes without lines.
    waiting: Option<(u64, i64)>,
}

impl Tally {
    /// Kills that are counted, and neither named by `named` records nor told as unnamed.
    #[must_use]
    pub fn unexplained(&self, named: usize) -> Option<u64> {
        let named = u64::try_from(named).unwrap_or(u64::MAX);
        Some(self.counted?.saturating_sub(named.saturating_add(self.unnamed)))
    }

    /// How many kills have gone without a record for [`SETTLED_MS`] by now; they are told by this.
    pub fn settle(&mut self, named: usize, now_ms: i64) -> u64 {
        let open = self.unexplained(named).unwrap_or(0);
        if open == 0 {
            self.waiting = None;
            return 0;
        }
        let (before, since) = *self.waiting.get_or_insert((open, now_ms));
        if now_ms.saturating_sub(since) < SETTLED_MS {
            // A record explained one meanwhile: the rest has waited for as long.
            self.waiting = Some((before.min(open), since));
            return 0;
        }
        let settled = before.min(open);
        self.unnamed = self.unnamed.saturating_add(settled);
        self.waiting = (open > settled).then_some((open - settled, now_ms));
        settled
    }
}

/// How much the counter of a run grew that is not explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Growth {
    /// The run.
    pub run: RunId,
    /// Kills that its counter has and no line that was placed in it; `None` if it has no counter.
    pub unexplained: Option<u64>,
}

/// Where lines without a place belong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// All of them in this run.
    Run(RunId),
    /// None of them in a run of ours.
    Foreign,
    /// The counters fit more than one answer.
    CannotTell,
}

/// Places `lines` kill lines that do not say where their victims lived. `outstanding` lines are still to come, on the
/// whole box.
#[must_use]
pub fn place(lines: u64, outstanding: Option<u64>, runs: &[Growth]) -> Placement {
    let all_counted = runs.iter().all(|run| run.unexplained.is_some());
    let mut grown = runs.iter().filter(|run| run.unexplained.is_some_and(|grown| grown > 0));
    match (grown.next(), grown.next()) {
        // A counter is raised before its line is printed: one that stands still has nothing to do with it.
        (None, _) if all_counted => Placement::Foreign,
        (Some(one), None)
            if all_counted && outstanding == Some(0) && one.unexplained == Some(lines) =>
        {
            Placement::Run(one.run.clone())
        }
        _ => Placement::CannotTell,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(byte: u8) -> RunId {
        RunId::from_bytes([byte; 16])
    }

    fn growth(byte: u8, unexplained: Option<u64>) -> Growth {
        Growth { run: run(byte), unexplained }
    }

    #[test]
    fn lines_without_a_place_go_where_a_counter_grew_by_just_so_many() {
        let (a, still) = (growth(1, Some(2)), growth(2, Some(0)));
        assert_eq!(place(2, Some(0), &[a.clone(), still.clone()]), Placement::Run(run(1)));
        assert_eq!(place(1, Some(0), std::slice::from_ref(&still)), Placement::Foreign);
        assert_eq!(place(1, Some(0), &[]), Placement::Foreign, "no run, no lane to blame");
        // One of ours and one that is foreign, or two of ours: which line is whose?
        assert_eq!(place(3, Some(0), &[a.clone(), still.clone()]), Placement::CannotTell);
        assert_eq!(place(4, Some(0), &[a.clone(), growth(3, Some(2))]), Placement::CannotTell);
        // The line of the lane's kill may be one that is still to come.
        assert_eq!(place(2, Some(1), std::slice::from_ref(&a)), Placement::CannotTell);
        assert_eq!(place(2, None, std::slice::from_ref(&a)), Placement::CannotTell);
        // A run without a counter may be the victim's.
        assert_eq!(place(1, Some(0), &[still, growth(4, None)]), Placement::CannotTell);
        assert_eq!(place(2, Some(0), &[a, growth(4, None)]), Placement::CannotTell);
    }

    #[test]
    fn what_no_line_names_is_counted_once_and_late() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.pass(100, 0, 0), 0, "before us");
        ledger.line(10);
        assert_eq!(ledger.pass(102, 0, 20), 0, "one line, two kills: the other may come");
        assert_eq!(ledger.outstanding(102, 20), Some(1));
        assert_eq!(ledger.pass(102, 0, 20 + SETTLED_MS), 1);
        assert_eq!(ledger.pass(102, 0, 30 + 3 * SETTLED_MS), 0);
        assert_eq!(ledger.outstanding(102, 30 + 3 * SETTLED_MS), Some(0));
    }

    #[test]
    fn a_line_that_comes_late_settles_what_waited() {
        let mut ledger = Ledger::default();
        ledger.pass(5, 0, 0);
        assert_eq!(ledger.pass(6, 0, 100), 0);
        ledger.line(150);
        assert_eq!(ledger.pass(6, 0, 5_000), 0);
        assert_eq!(ledger.pass(6, 0, 10_000), 0);
    }

    #[test]
    fn growth_of_a_run_that_no_record_explains_is_told_once() {
        let mut tally = Tally::default();
        assert_eq!((tally.unexplained(0), tally.settle(0, 0)), (None, 0), "nobody counts");
        tally.counted = Some(3);
        assert_eq!(tally.settle(1, 0), 0);
        tally.counted = Some(4);
        assert_eq!(tally.settle(2, SETTLED_MS - 1), 0);
        assert_eq!(tally.settle(2, SETTLED_MS), 2);
        assert_eq!(tally.unexplained(2), Some(0));
        // A newer kill waits for its own time.
        tally.counted = Some(5);
        assert_eq!(tally.settle(2, SETTLED_MS + 1), 0);
        assert_eq!(tally.settle(2, 2 * SETTLED_MS), 0);
        assert_eq!(tally.settle(2, 2 * SETTLED_MS + 1), 1);
        assert_eq!(tally.settle(2, 9 * SETTLED_MS), 0);
    }

    #[test]
    fn what_a_run_of_ours_counted_before_us_is_news() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.pass(5, 2, 0), 0);
        assert_eq!(ledger.outstanding(5, 0), Some(2));
        // Told as that run's own, which accounts for it like a line.
        ledger.line(10);
        ledger.line(10);
        assert_eq!(ledger.pass(5, 0, SETTLED_MS), 0);
        assert_eq!(ledger.pass(5, 0, 3 * SETTLED_MS), 0);
        // A line whose kill was told as unnamed before it came.
        ledger.line(3 * SETTLED_MS + 1);
        ledger.take_back();
        assert_eq!(ledger.outstanding(5, 4 * SETTLED_MS), Some(0));
    }

    proptest! {
        /// Kills happen, most with a line a moment later: named and unnamed together are what the counter grew by.
        #[test]
        fn nothing_is_counted_twice_or_forgotten(
            steps in proptest::collection::vec((0_i64..400, any::<bool>(), any::<bool>()), 0..60),
        ) {
            let (mut ledger, mut counter, mut now) = (Ledger::default(), 7_u64, 0_i64);
            ledger.pass(counter, 0, now);
            let (mut silent, mut found) = (0_u64, 0_u64);
            for (pause, is_named, passes) in steps {
                now += pause;
                counter += 1;
                if is_named {
                    now += 1;
                    ledger.line(now);
                } else {
                    silent += 1;
                }
                if passes {
                    found += ledger.pass(counter, 0, now);
                }
            }
            for _ in 0..3 {
                now += SETTLED_MS;
                found += ledger.pass(counter, 0, now);
            }
            prop_assert_eq!(found, silent);
        }
    }
}
