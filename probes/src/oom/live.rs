//! The strict way in: records of the device, as they come.

use std::collections::VecDeque;

use super::{
    OomKill,
    grammar::said,
    join::{Joiner, Outcome},
};
use crate::kmsg::KmsgRecord;

/// Kills that are remembered in order to say each only once.
const REMEMBERED: usize = 64;

/// A group kill prints its first victim twice, at once.
const SAME_KILL_USEC: u64 = 5_000_000;

/// Finds kills in the records of `/dev/kmsg`. Memory is bounded, whatever is fed.
///
/// Only the kernel's own records count (facility 0), and a message must be the beginning of its record. A kill is given
/// out when its line is seen; the kernel prints nothing reliable after it. So the first victim of a group kill does not
/// carry `group`, the others do.
#[derive(Debug, Default)]
pub struct LiveParser {
    joiner: Joiner,
    next_seq: Option<u64>,
    recent: VecDeque<(u32, u64)>,
}

impl LiveParser {
    /// A parser at the beginning of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next record and gives the kills that it tells.
    ///
    /// All records of the stream should be fed, those of user space too: they are ignored, but their numbers show that
    /// nothing was lost between a constraint line and its kill line. After a gap a constraint line may come out as a kill
    /// of its own (`constraint_only`), because its kill line may have been lost; without a gap a constraint line that no
    /// kill line follows means that nobody was killed.
    pub fn take(&mut self, record: &KmsgRecord) -> Vec<OomKill> {
        let mut kills = Vec::new();
        if self.next_seq.is_some_and(|expected| record.seq > expected) {
            self.joiner.gap();
        }
        self.next_seq = Some(record.seq.saturating_add(1));
        if !record.is_from_kernel() {
            return kills;
        }
        let Some(said) = said(&record.text) else {
            if record.continuation {
                self.joiner.extend(&record.text, Some(record.seq));
            }
            return kills;
        };
        let had_gap = self.joiner.has_gap();
        let Outcome { unfinished, kill, .. } =
            self.joiner.take(said, &record.text, Some(record.seq), Some(record.usec));
        for kill in unfinished.filter(|_| had_gap).into_iter().chain(kill) {
            if self.is_news(&kill, record.usec) {
                kills.push(kill);
            }
        }
        kills
    }

    /// Whether this kill was not given out just before.
    fn is_news(&mut self, kill: &OomKill, usec: u64) -> bool {
        self.recent.retain(|&(_, then)| usec.abs_diff(then) <= SAME_KILL_USEC);
        if self.recent.iter().any(|&(pid, _)| pid == kill.pid) {
            return false;
        }
        if self.recent.len() >= REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back((kill.pid, usec));
        true
    }
}
